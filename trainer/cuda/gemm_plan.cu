/* gemm_plan.cu: see gemm_plan.h.
 *
 * cuBLASLt thinks in columns. A row-major matrix is the transposed one to it, so C' = op(B)' op(A)'
 * is asked for: its A is our B, its M our n, and an epilogue's bias, one for each of its rows, is
 * one for each of our columns.
 *
 * Which algorithm is taken decides the order of sums. It depends on the shape, the alignment of the
 * pointers and the library alone; those that add up in place, in the order in which blocks happen
 * to arrive, are excluded.
 */
#include "trainer/cuda/gemm_plan.h"

#include "trainer/cuda/device_parts.h"
#include "trainer/cuda/tape.h"

/* Compared as bytes. */
struct plan_key {
    int64_t m, n, k;
    uint32_t transposed; /* 1: a, 2: b */
    uint32_t is_added;   /* beta 1 */
    uint32_t epilogue;
    uint32_t a, b, c, bias, aux; /* alignments: 4, 8, 16 */
};

struct gemm_plan {
    struct plan_key key;
    uint64_t number; /* another one each time: the same place in memory is not the same plan */
    int is_possible;
    float beta;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c; /* the library's: a is of our B */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    struct gemm_plan *next; /* of the same hash */
};

#define SLOTS      256
#define PLANS_MOST 1024
static struct gemm_plan *slots[SLOTS];
static int plan_count;
static uint64_t plan_number;
static int relu_keeps_nan = -1;

int *gemm_relu_keeps_nan(void)
{
    return &relu_keeps_nan;
}

/* ---- keys ---- */

static uint32_t alignment_of(const void *p)
{
    uintptr_t u = reinterpret_cast<uintptr_t>(p);
    return u % 16 == 0 ? 16 : u % 8 == 0 ? 8 : 4;
}

static int is_16_bits(void)
{
    return device_operand_room(&device.options) != 0;
}

static struct plan_key key_of(const struct product *g)
{
    struct plan_key k;
    memset(&k, 0, sizeof k);
    k.m = g->m, k.n = g->n, k.k = g->k;
    k.transposed = (g->transpose_a ? 1u : 0u) | (g->transpose_b ? 2u : 0u);
    k.is_added = g->beta != 0.0f;
    k.epilogue = static_cast<uint32_t>(g->epilogue);
    k.a = is_16_bits() ? 16 : alignment_of(g->a);
    k.b = is_16_bits() ? 16 : alignment_of(g->b);
    k.c = alignment_of(g->c);
    k.bias = alignment_of(g->bias);
    k.aux = alignment_of(g->aux);
    return k;
}

static unsigned slot_of(const struct plan_key *k)
{
    uint64_t h = 0;
    for (int64_t side : {k->m, k->n, k->k, static_cast<int64_t>(k->transposed + 4 * k->epilogue)})
        h = (h ^ static_cast<uint64_t>(side)) * 0x9e3779b97f4a7c15u;
    return static_cast<unsigned>(h >> 40) % SLOTS;
}

/* ---- describing ---- */

static int set(struct gemm_plan *p, cublasLtMatmulDescAttributes_t attribute, const void *value,
               size_t size)
{
    return device_ok_blas(cublasLtMatmulDescSetAttribute(p->what, attribute, value, size),
                          "describe a product");
}

static int layout(cublasLtMatrixLayout_t *ret, cudaDataType type, int is_transposed, int64_t rows,
                  int64_t columns)
{
    int64_t r = is_transposed ? columns : rows, c = is_transposed ? rows : columns;
    return device_ok_blas(cublasLtMatrixLayoutCreate(ret, type, static_cast<uint64_t>(r),
                                                     static_cast<uint64_t>(c), r),
                          "describe a matrix");
}

static int describe_layouts(struct gemm_plan *p, const struct product *g)
{
    enum compute_type compute = device.options.compute;
    cudaDataType type = compute == COMPUTE_BFLOAT16  ? CUDA_R_16BF
                        : compute == COMPUTE_FLOAT16 ? CUDA_R_16F
                                                     : CUDA_R_32F;
    return layout(&p->a, type, g->transpose_b, g->n, g->k) &&
           layout(&p->b, type, g->transpose_a, g->k, g->m) &&
           layout(&p->c, CUDA_R_32F, 0, g->n, g->m);
}

static int set_pointers(struct gemm_plan *p, const void *bias, const void *aux)
{
    return (!bias ||
            set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void *>(&bias), sizeof bias)) &&
           (!aux || set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void *>(&aux),
                        sizeof aux));
}

/* Pointers too: the library takes their alignment from what they are. */
static int describe(struct gemm_plan *p, const struct product *g)
{
    cublasComputeType_t compute =
        device.options.compute == COMPUTE_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t a = g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType bias_type = CUDA_R_32F;
    return device_ok_blas(cublasLtMatmulDescCreate(&p->what, compute, CUDA_R_32F),
                          "describe a product") &&
           set(p, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a) &&
           set(p, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b) &&
           set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &g->epilogue, sizeof g->epilogue) &&
           set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type) &&
           (!g->aux || set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->n, sizeof g->n)) &&
           set_pointers(p, g->bias, g->aux) && describe_layouts(p, g);
}

/* ---- choosing ---- */

static int prefer(cublasLtMatmulPreference_t to, cublasLtMatmulPreferenceAttributes_t attribute,
                  const void *value, size_t size)
{
    return device_ok_blas(cublasLtMatmulPreferenceSetAttribute(to, attribute, value, size),
                          "state a preference");
}

static int prefer_all(cublasLtMatmulPreference_t to, const struct plan_key *k)
{
    uint64_t workspace = DEVICE_BLAS_WORKSPACE;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return prefer(to, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace) &&
           prefer(to, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums) &&
           prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->b, sizeof k->b) &&
           prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->a, sizeof k->a) &&
           prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->c, sizeof k->c) &&
           prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->c, sizeof k->c);
}

/* "None" comes as a status or as a count of 0. */
static int choose(struct gemm_plan *p, cublasLtMatmulPreference_t wish)
{
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    cublasStatus_t r = cublasLtMatmulAlgoGetHeuristic(device.blas, p->what, p->a, p->b, p->c, p->c,
                                                      wish, 1, &result, &count);
    if (r == CUBLAS_STATUS_NOT_SUPPORTED || r == CUBLAS_STATUS_INVALID_VALUE)
        return 0;
    if (!device_ok_blas(r, "choose an algorithm for a product"))
        return 0;
    if (count < 1 || result.state != CUBLAS_STATUS_SUCCESS)
        return 0;
    p->algorithm = result.algo;
    p->workspace = result.workspaceSize;
    return 1;
}

static void find_algorithm(struct gemm_plan *p)
{
    cublasLtMatmulPreference_t wish = NULL;
    if (!device_ok_blas(cublasLtMatmulPreferenceCreate(&wish), "state a preference"))
        return;
    p->is_possible = prefer_all(wish, &p->key) && choose(p, wish);
    cublasLtMatmulPreferenceDestroy(wish);
}

/* ---- keeping ---- */

static void free_plan(struct gemm_plan *p)
{
    if (p->what)
        cublasLtMatmulDescDestroy(p->what);
    for (cublasLtMatrixLayout_t l : {p->a, p->b, p->c})
        if (l)
            cublasLtMatrixLayoutDestroy(l);
    free(p);
}

static void free_plans(void)
{
    for (struct gemm_plan *&slot : slots) {
        for (struct gemm_plan *p = slot, *next; p; p = next) {
            next = p->next;
            free_plan(p);
        }
        slot = NULL;
    }
    plan_count = 0;
}

void gemm_plan_forget(void)
{
    free_plans();
    relu_keeps_nan = -1;
}

static struct gemm_plan *make_plan(const struct product *g, const struct plan_key *k)
{
    if (plan_count == PLANS_MOST) {
        tape_issue(); /* what is recorded points to them */
        free_plans();
    }
    struct gemm_plan *p = static_cast<struct gemm_plan *>(mem_zalloc(sizeof *p));
    memcpy(&p->key, k, sizeof *k);
    p->number = ++plan_number;
    p->beta = g->beta;
    if (describe(p, g))
        find_algorithm(p);
    struct gemm_plan **slot = &slots[slot_of(k)];
    p->next = *slot;
    *slot = p;
    plan_count++;
    return p;
}

struct gemm_plan *gemm_plan(const struct product *g)
{
    struct plan_key k = key_of(g);
    struct gemm_plan *p = slots[slot_of(&k)];
    while (p && memcmp(&p->key, &k, sizeof k) != 0)
        p = p->next;
    if (!p)
        p = make_plan(g, &k);
    return p->is_possible ? p : NULL;
}

/* ---- running ---- */

struct plan_call {
    struct gemm_plan *plan;
    uint64_t number;
    const void *a, *b; /* the library's */
    float *c, *bias, *aux;
};

static int matrix_product(cudaStream_t s, const void *arguments)
{
    const struct plan_call *c = static_cast<const struct plan_call *>(arguments);
    struct gemm_plan *p = c->plan;
    const float one = 1.0f;
    if (!set_pointers(p, c->bias, c->aux))
        return -1;
    cublasStatus_t r =
        cublasLtMatmul(device.blas, p->what, &one, c->a, p->a, c->b, p->b, &p->beta, c->c, p->c,
                       c->c, p->c, &p->algorithm, device.blas_workspace, p->workspace, s);
    return device_ok_blas(r, "multiply matrices") ? 0 : -1;
}

void gemm_plan_run(struct gemm_plan *p, const struct product *g, const void *a, const void *b)
{
    struct plan_call c;
    memset(&c, 0, sizeof c);
    c.plan = p;
    c.number = p->number;
    c.a = b;
    c.b = a;
    c.c = g->c;
    c.bias = g->bias;
    c.aux = g->aux;
    tape_call(matrix_product, &c, sizeof c);
}

uint16_t *device_operand(int which, int64_t n)
{
    size_t room = device_operand_room(&device.options);
    if (static_cast<size_t>(n) <= room)
        return device.operands[which];
    struct err e;
    err_set(&e, ERR_INTERNAL,
            "A matrix product has an operand of %lld elements, and the memory for rounded operands "
            "was reserved for %zu.",
            static_cast<long long>(n), room);
    device_fail(&e);
    return NULL;
}
