/* emu_blas.cc: cuBLASLt over CBLAS, on the device thread.
 *
 * Operands of reduced precision are rounded as the GPU's multipliers see them; sums are float32. A
 * product's workspace is overwritten with NaN, as any algorithm might.
 *
 * Refused is what the library refuses: matrices that do not fit together, pointers that are less
 * aligned than the algorithm was chosen for, an algorithm of another product, GELU's second output
 * with odd rows. TRAINYARD_EMU_BLAS, a list of words, changes what it can:
 *
 *   none      no algorithm for any product
 *   unfused   none for a product with an epilogue
 *   relu_max  ReLU's epilogue makes 0 of NaN
 */
#include <cblas.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cublasLt.h"
#include "emu.h"

/* Reached from the library's build alone, and without the trainer's headers' C++ form. */
extern "C" {
#include "trainer/elem.h"
}

struct cublasLtContext {
    int is_open;
};
struct emu_matmul_desc {
    cublasComputeType_t compute;
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    float *bias, *aux;
    int64_t aux_ld;
};
struct emu_matrix_layout {
    cudaDataType type;
    int64_t rows, cols, ld;
};
struct emu_matmul_preference {
    uint64_t workspace;
    uint32_t sums;
    uint32_t alignment[4]; /* A, B, C, D */
};

/* What an algorithm was chosen for. */
struct chosen {
    uint32_t m, n, k;
    uint16_t epilogue, compute, transposed, type;
    uint16_t alignment[4];
    uint32_t workspace;
};
static_assert(sizeof(struct chosen) <= sizeof(cublasLtMatmulAlgo_t), "fits");

static int is_asked(const char *word)
{
    const char *list = getenv("TRAINYARD_EMU_BLAS");
    return list && strstr(list, word);
}

/* ---- handles ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    openblas_set_num_threads(1);
    *handle = new cublasLtContext{1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    default: return "CUBLAS_STATUS_?";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the GPU program failed to execute";
    default: return "an internal operation failed";
    }
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *ret = new emu_matmul_desc{};
    (*ret)->compute = compute;
    (*ret)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t take(T *to, const void *from, size_t size)
{
    if (!from || size != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *from, size_t size)
{
    cudaDataType type = CUDA_R_32F;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(&d->a, from, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(&d->b, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(&d->epilogue, from, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d->bias, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(&d->aux, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(&d->aux_ld, from, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        if (take(&type, from, size) != CUBLAS_STATUS_SUCCESS)
            return CUBLAS_STATUS_INVALID_VALUE;
        return type == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *ret = new emu_matrix_layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    *ret = new emu_matmul_preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *from, size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(&p->workspace, from, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(&p->sums, from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return take(&p->alignment[0], from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return take(&p->alignment[1], from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return take(&p->alignment[2], from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return take(&p->alignment[3], from, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- what is possible ---- */

static size_t size_of(cudaDataType t)
{
    return t == CUDA_R_32F ? 4 : 2;
}

static int is_layout(const emu_matrix_layout *l)
{
    return l->rows > 0 && l->cols > 0 && l->ld >= l->rows && l->rows <= INT32_MAX &&
           l->cols <= INT32_MAX;
}

static int64_t op_rows(const emu_matrix_layout *l, cublasOperation_t op)
{
    return op == CUBLAS_OP_N ? l->rows : l->cols;
}

static int64_t op_cols(const emu_matrix_layout *l, cublasOperation_t op)
{
    return op == CUBLAS_OP_N ? l->cols : l->rows;
}

/* Of one bit of an epilogue; GELU_AUX's 128 is one of them. */
static int has(cublasLtEpilogue_t e, int part)
{
    return (static_cast<int>(e) & part) == part;
}

static int has_bias(cublasLtEpilogue_t e)
{
    return has(e, CUBLASLT_EPILOGUE_BIAS) || has(e, CUBLASLT_EPILOGUE_BGRADA) ||
           has(e, CUBLASLT_EPILOGUE_BGRADB);
}

static cublasStatus_t check(const emu_matmul_desc *d, const emu_matrix_layout *a,
                            const emu_matrix_layout *b, const emu_matrix_layout *c)
{
    if (!is_layout(a) || !is_layout(b) || !is_layout(c) || op_rows(a, d->a) != c->rows ||
        op_cols(b, d->b) != c->cols || op_cols(a, d->a) != op_rows(b, d->b))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || c->type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (has_bias(d->epilogue) && !d->bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (has(d->epilogue, CUBLASLT_EPILOGUE_GELU_AUX) &&
        (!d->aux || d->aux_ld % 8 || d->aux_ld < c->rows ||
         reinterpret_cast<uintptr_t>(d->aux) % 16))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

static struct chosen choice(const emu_matmul_desc *d, const emu_matrix_layout *a,
                            const emu_matrix_layout *c)
{
    struct chosen w;
    memset(&w, 0, sizeof w);
    w.m = static_cast<uint32_t>(c->rows);
    w.n = static_cast<uint32_t>(c->cols);
    w.k = static_cast<uint32_t>(op_cols(a, d->a));
    w.epilogue = static_cast<uint16_t>(d->epilogue);
    w.compute = static_cast<uint16_t>(d->compute);
    w.transposed = static_cast<uint16_t>(d->a * 2 + d->b);
    w.type = static_cast<uint16_t>(a->type);
    w.workspace = w.k > 64 ? 65536 : 0; /* some add up in it, others do not */
    return w;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t wish, int asked,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *ret_count)
{
    *ret_count = 0;
    cublasStatus_t r = check(d, a, b, c);
    if (r != CUBLAS_STATUS_SUCCESS)
        return r;
    if (asked < 1 || is_asked("none") ||
        (is_asked("unfused") && d->epilogue != CUBLASLT_EPILOGUE_DEFAULT))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct chosen w = choice(d, a, c);
    for (int i = 0; i < 4; i++)
        w.alignment[i] = static_cast<uint16_t>(wish->alignment[i] < 16 ? wish->alignment[i] : 16);
    if (w.workspace > wish->workspace || !(wish->sums & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))
        w.workspace = 0;
    memset(results, 0, sizeof *results);
    memcpy(results->algo.data, &w, sizeof w);
    results->workspaceSize = w.workspace;
    results->state = CUBLAS_STATUS_SUCCESS;
    *ret_count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product, on the device ---- */

struct product_work {
    emu_matmul_desc d;
    emu_matrix_layout a, b, c;
    const void *pa, *pb;
    float beta, *pc;
    void *workspace;
    size_t workspace_bytes;
};

static float tf32_of(float x)
{
    uint32_t u = elem_bits(x);
    return x != x || std::isinf(x) ? x : elem_from_bits((u + 0x1000u) & 0xffffe000u);
}

static std::vector<float> operand_of(const emu_matmul_desc &d, const emu_matrix_layout &l,
                                     const void *p)
{
    size_t n = static_cast<size_t>(l.ld * (l.cols - 1) + l.rows);
    const void *at = emu_translate_bytes(p, n * size_of(l.type));
    const float *f = static_cast<const float *>(at);
    const uint16_t *h = static_cast<const uint16_t *>(at);
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++)
        x[i] = l.type == CUDA_R_16BF                       ? elem_from_bfloat16(h[i])
               : l.type == CUDA_R_16F                      ? elem_from_float16(h[i])
               : d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? tf32_of(f[i])
                                                           : f[i];
    return x;
}

/* bias[i] = the sum of row i, of `rows`, over k. */
static void add_up(const std::vector<float> &x, const emu_matrix_layout &l, int is_by_rows,
                   int64_t rows, int64_t k, float *bias)
{
    float *to = emu_translate(bias, static_cast<size_t>(rows) * sizeof *bias);
    for (int64_t i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (int64_t j = 0; j < k; j++)
            sum += x[static_cast<size_t>(is_by_rows ? i + j * l.ld : j + i * l.ld)];
        to[i] = sum;
    }
}

static float activated(cublasLtEpilogue_t e, float v)
{
    if (has(e, CUBLASLT_EPILOGUE_GELU))
        return 0.5f * v * (1.0f + std::tanh(0.7978845608f * (v + 0.044715f * v * v * v)));
    if (has(e, CUBLASLT_EPILOGUE_RELU))
        return v > 0.0f || (v != v && !is_asked("relu_max")) ? v : 0.0f;
    return v;
}

static void finish(const product_work &w, float *c)
{
    cublasLtEpilogue_t e = w.d.epilogue;
    int64_t m = w.c.rows, n = w.c.cols;
    float *bias = has(e, CUBLASLT_EPILOGUE_BIAS)
                      ? emu_translate(w.d.bias, static_cast<size_t>(m) * sizeof *bias)
                      : NULL;
    float *aux =
        has(e, CUBLASLT_EPILOGUE_GELU_AUX)
            ? emu_translate(w.d.aux, static_cast<size_t>(w.d.aux_ld * (n - 1) + m) * sizeof *aux)
            : NULL;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float v = c[j * w.c.ld + i] + (bias ? bias[i] : 0.0f);
            if (aux)
                aux[j * w.d.aux_ld + i] = v;
            c[j * w.c.ld + i] = activated(e, v);
        }
}

static void multiply(const product_work &w)
{
    std::vector<float> a = operand_of(w.d, w.a, w.pa), b = operand_of(w.d, w.b, w.pb);
    int64_t m = w.c.rows, n = w.c.cols, k = op_cols(&w.a, w.d.a);
    float *c = emu_translate(w.pc, static_cast<size_t>(w.c.ld * (n - 1) + m) * sizeof *c);
    if (w.workspace_bytes)
        memset(emu_translate_bytes(w.workspace, w.workspace_bytes), 0xff, w.workspace_bytes);
    cblas_sgemm(CblasColMajor, w.d.a == CUBLAS_OP_T ? CblasTrans : CblasNoTrans,
                w.d.b == CUBLAS_OP_T ? CblasTrans : CblasNoTrans, static_cast<blasint>(m),
                static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, a.data(),
                static_cast<blasint>(w.a.ld), b.data(), static_cast<blasint>(w.b.ld), w.beta, c,
                static_cast<blasint>(w.c.ld));
    if (has(w.d.epilogue, CUBLASLT_EPILOGUE_BGRADA))
        add_up(a, w.a, w.d.a == CUBLAS_OP_N, m, k, w.d.bias);
    else if (has(w.d.epilogue, CUBLASLT_EPILOGUE_BGRADB))
        add_up(b, w.b, w.d.b == CUBLAS_OP_T, n, k, w.d.bias);
    else if (w.d.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        finish(w, c);
}

/* ---- the call ---- */

static int is_aligned(const void *p, uint16_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

static int is_of(const cublasLtMatmulAlgo_t *algorithm, const product_work &w,
                 const void *workspace, size_t workspace_bytes)
{
    struct chosen was, is = choice(&w.d, &w.a, &w.c);
    memcpy(&was, algorithm->data, sizeof was);
    return was.m == is.m && was.n == is.n && was.k == is.k && was.epilogue == is.epilogue &&
           was.compute == is.compute && was.transposed == is.transposed && was.type == is.type &&
           is_aligned(w.pa, was.alignment[0]) && is_aligned(w.pb, was.alignment[1]) &&
           is_aligned(w.pc, was.alignment[2]) && is_aligned(w.pc, was.alignment[3]) &&
           (!was.workspace || (workspace && workspace_bytes >= was.workspace));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    cudaError_t injected = cudaSuccess;
    if (emu_injected("BLAS", &injected))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    cublasStatus_t r = check(d, a, b, c);
    if (r != CUBLAS_STATUS_SUCCESS)
        return r;
    product_work w = {*d, *a, *b, *c, A, B, 0.0f, static_cast<float *>(D), workspace, 0};
    memcpy(&w.beta, beta, sizeof w.beta);
    float one = 0.0f;
    memcpy(&one, alpha, sizeof one);
    if (one != 1.0f || C != D || !algorithm || !is_of(algorithm, w, workspace, workspace_bytes) ||
        !emu_is_device(A) || !emu_is_device(B) || !emu_is_device(D))
        return CUBLAS_STATUS_INVALID_VALUE;
    w.workspace_bytes = workspace_bytes;
    cudaError_t e = emu_enqueue(stream, "cublasLtMatmul", [w] {
        multiply(w);
        return EMU_DONE;
    });
    return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
