/* ops_gemm.cu: matrix products and the dense layer.
 *
 * A product is cuBLASLt's (gemm_plan.cu), in the precision that the device was opened with:
 *
 *   float32   CUBLAS_COMPUTE_32F, no TF32
 *   tf32      CUBLAS_COMPUTE_32F_FAST_TF32
 *   16 bits   operands rounded first, by kernels here; sums and results are float32. What is too
 *             large for float16 becomes infinite, which is the loss scale's affair.
 *
 * Where the library has no way for a product, a kernel here does it.
 *
 * An epilogue takes a step's place only where it means the same: GELU's is the tanh form, of an
 * accuracy that nobody states, so float32 goes without; ReLU's is asked first whether NaN stays
 * NaN; the bias' gradient would be of rounded operands, or not added to what is there.
 */
#include "trainer/cuda/gemm_plan.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/tape.h"

/* ---- 16-bit operands ---- */

template <int IS_BFLOAT16> ELEM uint16_t rounded_to(float x)
{
    return IS_BFLOAT16 ? elem_to_bfloat16(x) : elem_to_float16(x);
}

template <int IS_BFLOAT16>
__global__ static void round_operand(int64_t n, const float *x, uint16_t *y)
{
    GRID_STRIDE(i, n)
    y[i] = rounded_to<IS_BFLOAT16>(x[i]);
}

/* Four at a time; both are aligned for it. */
template <int IS_BFLOAT16>
__global__ static void round_operand_by_4(int64_t n, const float4 *x, ushort4 *y)
{
    GRID_STRIDE(i, n)
    {
        float4 v = x[i];
        y[i] = make_ushort4(rounded_to<IS_BFLOAT16>(v.x), rounded_to<IS_BFLOAT16>(v.y),
                            rounded_to<IS_BFLOAT16>(v.z), rounded_to<IS_BFLOAT16>(v.w));
    }
}

template <int IS_BFLOAT16> static void round_all(int64_t n, const float *x, uint16_t *y)
{
    if (n % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0)
        TAPE_LAUNCH(round_operand_by_4<IS_BFLOAT16>, tape_grid(n / 4), TAPE_THREADS, 0, n / 4,
                    reinterpret_cast<const float4 *>(x), reinterpret_cast<ushort4 *>(y));
    else
        TAPE_LAUNCH(round_operand<IS_BFLOAT16>, tape_grid(n), TAPE_THREADS, 0, n, x, y);
}

static int takes_16_bits(void)
{
    enum compute_type compute = device_options()->compute;
    return compute == COMPUTE_BFLOAT16 || compute == COMPUTE_FLOAT16;
}

/* What device_operand() has since the last product, as long as the tape stands where it stood then:
 * a layer's backward pass multiplies the same gradient twice in a row. */
static struct {
    const float *x;
    int64_t n;
} held[2];
static uint64_t held_at;

/* -1: it is in neither. */
static int place_of(const float *x, int64_t n)
{
    for (int i = 0; i < 2 && held_at == tape_place(); i++)
        if (held[i].x == x && held[i].n == n)
            return i;
    return -1;
}

static const uint16_t *round_into(int which, const float *x, int64_t n)
{
    uint16_t *y = device_operand(which, n);
    if (y && device_options()->compute == COMPUTE_BFLOAT16)
        round_all<1>(n, x, y);
    else if (y)
        round_all<0>(n, x, y);
    held[which] = {x, n};
    return y;
}

/* a and b themselves, or their copies in 16 bits; NULL after a failure. */
static void take_operands(const struct product *g, const void *ret[2])
{
    const float *x[2] = {g->a, g->b};
    int64_t n[2] = {g->m * g->k, g->k * g->n};
    int at[2] = {place_of(x[0], n[0]), place_of(x[1], n[1])};
    for (int i = 0; i < 2; i++) {
        int free = at[!i] >= 0 ? !at[!i] : i;
        if (!takes_16_bits())
            ret[i] = x[i];
        else if (at[i] >= 0)
            ret[i] = device_operand(at[i], n[i]);
        else
            ret[i] = round_into(at[i] = free, x[i], n[i]);
    }
}

/* ---- without the library ---- */

#define TILE 16

struct plain_product {
    const float *a, *b;
    float *c;
    int64_t m, n, k;
    int64_t a_row, a_column, b_row, b_column; /* strides */
    int64_t is_added;                         /* to what c holds */
    int64_t compute;                          /* enum compute_type */
};

ELEM float operand_value(int64_t compute, float x)
{
    if (compute == COMPUTE_BFLOAT16)
        return elem_from_bfloat16(elem_to_bfloat16(x));
    return compute == COMPUTE_FLOAT16 ? elem_from_float16(elem_to_float16(x)) : x;
}

/* A tile of TILE x TILE elements a block, of a thread each. */
__global__ static void gemm_plain(plain_product p)
{
    __shared__ float a[TILE][TILE + 1];
    __shared__ float b[TILE][TILE + 1];
    int row = threadIdx.x / TILE, column = threadIdx.x % TILE;
    int64_t across = (p.n + TILE - 1) / TILE, tiles = (p.m + TILE - 1) / TILE * across;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t i = tile / across * TILE + row, j = tile % across * TILE + column;
        float sum = 0.0f;
        for (int64_t l = 0; l < p.k; l += TILE) {
            a[row][column] =
                i < p.m && l + column < p.k
                    ? operand_value(p.compute, p.a[i * p.a_row + (l + column) * p.a_column])
                    : 0.0f;
            b[row][column] =
                j < p.n && l + row < p.k
                    ? operand_value(p.compute, p.b[(l + row) * p.b_row + j * p.b_column])
                    : 0.0f;
            __syncthreads();
            for (int t = 0; t < TILE; t++)
                sum = fmaf(a[row][t], b[t][column], sum);
            __syncthreads();
        }
        if (i < p.m && j < p.n)
            p.c[i * p.n + j] = p.is_added ? p.c[i * p.n + j] + sum : sum;
    }
}

static void multiply_plainly(const struct product *g)
{
    struct plain_product p = {};
    p.a = g->a, p.b = g->b, p.c = g->c;
    p.m = g->m, p.n = g->n, p.k = g->k;
    p.a_row = g->transpose_a ? 1 : g->k;
    p.a_column = g->transpose_a ? g->m : 1;
    p.b_row = g->transpose_b ? 1 : g->n;
    p.b_column = g->transpose_b ? g->k : 1;
    p.is_added = g->beta != 0.0f;
    p.compute = device_options()->compute;
    int64_t tiles = (p.m + TILE - 1) / TILE * ((p.n + TILE - 1) / TILE);
    TAPE_LAUNCH(gemm_plain, tape_grid(tiles * TAPE_THREADS), TILE * TILE, 0, p);
}

/* ---- products ---- */

static int is_too_large(const struct product *g)
{
    if (g->m <= INT32_MAX && g->n <= INT32_MAX && g->k <= INT32_MAX)
        return 0;
    struct err e;
    err_set(&e, ERR_TOO_LARGE,
            "A matrix product of %lld x %lld x %lld is more than cuBLAS takes: no side may be over "
            "%d; a smaller batch or tensor ranks make it smaller.",
            static_cast<long long>(g->m), static_cast<long long>(g->n),
            static_cast<long long>(g->k), INT32_MAX);
    device_fail(&e);
    return 1;
}

/* Whether it is done; where it is not, nothing has been asked for. g's sides are not 0. */
static int multiply_by_library(const struct product *g)
{
    struct gemm_plan *plan = gemm_plan(g);
    if (!plan)
        return 0;
    const void *x[2];
    take_operands(g, x);
    if (x[0] && x[1])
        gemm_plan_run(plan, g, x[0], x[1]);
    held_at = tape_place();
    return 1;
}

static void multiply(const struct product *g)
{
    if (device_failed() || g->m == 0 || g->n == 0 || is_too_large(g))
        return;
    if (g->k == 0 && g->beta == 0.0f)
        tape_zero(g->c, static_cast<size_t>(g->m * g->n) * sizeof *g->c);
    if (g->k != 0 && !multiply_by_library(g))
        multiply_plainly(g);
}

static struct product product_of(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                                 const float *a, const float *b, float beta, float *c)
{
    struct product g = {};
    g.transpose_a = transpose_a, g.transpose_b = transpose_b;
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.b = b, g.c = c;
    g.beta = beta;
    g.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return g;
}

void cuda_gemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
               const float *b, float beta, float *c)
{
    struct product g = product_of(transpose_a, transpose_b, m, n, k, a, b, beta, c);
    multiply(&g);
}

/* 1 if it was done in one with its epilogue. */
static int multiply_fused(const struct product *g)
{
    return !device_failed() && g->m && g->n && g->k && !is_too_large(g) && multiply_by_library(g);
}

/* ---- the dense layer ---- */

/* Runs ReLU's epilogue over NaN, once for each open(). */
static int relu_keeps_nan(void)
{
    enum { N = 16 };
    int *known = gemm_relu_keeps_nan();
    if (*known >= 0)
        return *known;
    float host[N * N];
    memset(host, 0xff, sizeof host);
    float *c = static_cast<float *>(device_scratch(sizeof host));
    float *zeroes = static_cast<float *>(device_scratch(sizeof host));
    float *nan = static_cast<float *>(device_scratch(sizeof host));
    tape_zero(zeroes, sizeof host);
    cuda_upload(nan, host, sizeof host);
    struct product g = product_of(0, 0, N, N, N, zeroes, zeroes, 0.0f, c);
    g.epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    g.bias = nan;
    *known = multiply_fused(&g);
    if (*known)
        cuda_download(host, c, sizeof host);
    for (float y : host)
        *known = *known && y != y;
    device_scratch_done();
    return *known;
}

/* The epilogue that does what activate() would; DEFAULT: none does. */
static cublasLtEpilogue_t epilogue_of(enum activation f, int has_bias, int keeps_z, int64_t cols)
{
    int is_float32 = device_options()->compute == COMPUTE_FLOAT32;
    int e = CUBLASLT_EPILOGUE_DEFAULT, bias = has_bias ? CUBLASLT_EPILOGUE_BIAS : 0;
    if (f == ACTIVATION_LINEAR && !keeps_z && has_bias)
        e = CUBLASLT_EPILOGUE_BIAS;
    else if (f == ACTIVATION_RELU && !keeps_z && relu_keeps_nan())
        e = CUBLASLT_EPILOGUE_RELU | bias;
    else if (f == ACTIVATION_GELU_TANH && !is_float32 && !keeps_z)
        e = CUBLASLT_EPILOGUE_GELU | bias;
    else if (f == ACTIVATION_GELU_TANH && !is_float32 && cols % 8 == 0)
        e = CUBLASLT_EPILOGUE_GELU_AUX | bias;
    return static_cast<cublasLtEpilogue_t>(e);
}

void cuda_dense(enum activation f, int64_t rows, int64_t cols, int64_t in, const float *x,
                const float *kernel, const float *bias, float *z, float *y)
{
    struct product g = product_of(0, 0, rows, cols, in, x, kernel, 0.0f, y);
    if (!device_options()->is_plain && !device_failed() && rows)
        g.epilogue = epilogue_of(f, bias != NULL, z != y, cols);
    g.bias = const_cast<float *>(bias);
    g.aux = z != y ? z : NULL;
    if (g.epilogue != CUBLASLT_EPILOGUE_DEFAULT && multiply_fused(&g))
        return;
    cuda_gemm(0, 0, rows, cols, in, x, kernel, 0.0f, z);
    cuda_activate(f, rows, cols, bias, z, y);
}

/* ---- the bias' gradient ---- */

#define SUM_COLUMNS 32 /* of a block: a warp reads a row of them */
#define SUM_LANES   (TAPE_THREADS / SUM_COLUMNS)
#define SUM_ROWS    512 /* of a block: the same on every GPU */

/* partial [blocks of rows, cols]: sums over SUM_ROWS rows. */
__global__ static void sum_columns(int64_t rows, int64_t cols, int64_t tiles, const float *x,
                                   float *partial)
{
    __shared__ float lanes[SUM_LANES][SUM_COLUMNS];
    int lane = threadIdx.x / SUM_COLUMNS, at = threadIdx.x % SUM_COLUMNS;
    int64_t column = blockIdx.x % tiles * SUM_COLUMNS + at, part = blockIdx.x / tiles;
    int64_t end = (part + 1) * SUM_ROWS < rows ? (part + 1) * SUM_ROWS : rows;
    float sum = 0.0f;
    for (int64_t r = part * SUM_ROWS + lane; column < cols && r < end; r += SUM_LANES)
        sum += x[r * cols + column];
    lanes[lane][at] = sum;
    __syncthreads();
    if (lane || column >= cols)
        return;
    for (int l = 1; l < SUM_LANES; l++)
        sum += lanes[l][at];
    partial[part * cols + column] = sum;
}

__global__ static void add_partial(int64_t parts, int64_t cols, const float *partial, float beta,
                                   float *y)
{
    GRID_STRIDE(i, cols)
    {
        float sum = 0.0f;
        for (int64_t p = 0; p < parts; p++)
            sum += partial[p * cols + i];
        y[i] = beta == 0.0f ? sum : y[i] + sum;
    }
}

/* As many rows at a time as scratch has partial sums for. */
static void add_columns(int64_t rows, int64_t cols, const float *x, float beta, float *y)
{
    int64_t room = static_cast<int64_t>(device_scratch_bytes() / sizeof(float)) / cols;
    int64_t most = (room < 1 ? 1 : room < 1024 ? room : 1024) * SUM_ROWS;
    int64_t tiles = (cols + SUM_COLUMNS - 1) / SUM_COLUMNS;
    if (!rows && beta == 0.0f)
        tape_zero(y, static_cast<size_t>(cols) * sizeof *y);
    for (int64_t r = 0; r < rows; r += most, beta = 1.0f) {
        int64_t n = rows - r < most ? rows - r : most, parts = (n + SUM_ROWS - 1) / SUM_ROWS;
        float *partial =
            static_cast<float *>(device_scratch(static_cast<size_t>(parts * cols) * sizeof(float)));
        TAPE_LAUNCH(sum_columns, dim3(static_cast<unsigned>(tiles * parts)), TAPE_THREADS, 0, n,
                    cols, tiles, x + r * cols, partial);
        TAPE_LAUNCH(add_partial, tape_grid(cols), TAPE_THREADS, 0, parts, cols, partial, beta, y);
        device_scratch_done();
    }
}

void cuda_dense_backward_kernel(int64_t rows, int64_t cols, int64_t in, const float *x,
                                const float *dz, float beta, float *d_kernel, float *d_bias)
{
    struct product g = product_of(1, 0, in, cols, rows, x, dz, beta, d_kernel);
    if (!device_options()->is_plain && d_bias && beta == 0.0f &&
        device_options()->compute == COMPUTE_FLOAT32) {
        g.epilogue = CUBLASLT_EPILOGUE_BGRADA; /* of the library's A, which is dz */
        g.bias = d_bias;
        if (multiply_fused(&g))
            return;
        g.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    }
    if (d_bias && cols)
        add_columns(rows, cols, dz, beta, d_bias);
    multiply(&g);
}
