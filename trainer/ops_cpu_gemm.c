/* ops_cpu_gemm.c: matrix products whose elements do not depend on their neighbours.
 *
 * Each element of C is one chain of fused multiply-adds over k, in order, wherever it stands and
 * however many rows there are. So a batch cut differently over ranks or micro-batches gives every
 * item the same bits; libraries, whose kernels add up in another order at the edges of their
 * blocks, do not, and near a ReLU's corner the last bit decides whether a unit takes part. It is
 * also the same on every CPU that has the instructions; others get plain loops, which keep the
 * order with a rounding more, and are slow.
 *
 * How: B is packed K_BLOCK rows and N_BLOCK columns at a time into panels of 16 columns (a panel
 * fits into the first cache), which bounds the memory for it whatever the layer, and a kernel keeps
 * 6 x 16 elements of C in registers while it walks down a panel. A is read where it lies,
 * transposed or not. Blocks of M_BLOCK rows stay in the second cache while all panels pass. For the
 * small layers that train here this takes less time than OpenBLAS, which packs both sides and
 * clears C first.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/ops_cpu.h"

static void scale_row(float beta, int64_t n, float *c)
{
    for (int64_t j = 0; j < n; j++)
        c[j] = beta == 0.0f ? 0.0f : beta * c[j];
}

void cpu_gemm_plain(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                    const float *a, const float *b, float beta, float *c)
{
    for (int64_t i = 0; i < m; i++) {
        float *row = c + i * n;
        scale_row(beta, n, row);
        for (int64_t l = 0; l < k; l++) {
            float x = transpose_a ? a[l * m + i] : a[i * k + l];
            int64_t step = transpose_b ? k : 1;
            const float *from = transpose_b ? b + l : b + l * n;
            for (int64_t j = 0; j < n; j++)
                row[j] += x * from[j * step];
        }
    }
}

#ifdef __x86_64__
#include <immintrin.h>

#define ROWS    6 /* with two vectors of columns: 12 of the 16 registers */
#define COLS    16
#define K_BLOCK 256
#define M_BLOCK 96
#define N_BLOCK 4096

#define WITH_FMA __attribute__((target("avx2,fma")))
#define KERNEL   static inline __attribute__((always_inline, target("avx2,fma")))

/* A piece of the product: C[r][0..16) (+)= sum over k of a[r * row + k * step] panel[k][0..16) */
struct piece {
    const float *a;
    int64_t row, step; /* strides of A: one of them is 1 */
    const float *panel;
    int64_t depth;
    float *c;
    int64_t c_row;
    int64_t cols; /* of C: fewer than 16 in the last panel */
    int add;      /* to what C holds */
};

KERNEL void load_c(const struct piece *p, int rows, __m256 sum[ROWS][2])
{
    float edge[COLS] = {0};
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const float *from = p->c + r * p->c_row;
        if (p->cols < COLS)
            from = memcpy(edge, from, (size_t)p->cols * sizeof *edge);
        sum[r][0] = _mm256_loadu_ps(from);
        sum[r][1] = _mm256_loadu_ps(from + 8);
    }
}

KERNEL void store_c(const struct piece *p, int rows, __m256 sum[ROWS][2])
{
    float edge[COLS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *to = p->cols < COLS ? edge : p->c + r * p->c_row;
        _mm256_storeu_ps(to, sum[r][0]);
        _mm256_storeu_ps(to + 8, sum[r][1]);
        if (p->cols < COLS)
            memcpy(p->c + r * p->c_row, edge, (size_t)p->cols * sizeof *edge);
    }
}

KERNEL void walk(const struct piece *p, int rows)
{
    __m256 sum[ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    if (p->add)
        load_c(p, rows, sum);
    const float *a = p->a, *b = p->panel;
    for (int64_t k = 0; k < p->depth; k++, a += p->step, b += COLS) {
        __m256 low = _mm256_load_ps(b), high = _mm256_load_ps(b + 8);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256 x = _mm256_broadcast_ss(a + r * p->row);
            sum[r][0] = _mm256_fmadd_ps(x, low, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(x, high, sum[r][1]);
        }
    }
    store_c(p, rows, sum);
}

WITH_FMA static void walk_rows(const struct piece *p, int64_t rows)
{
    switch (rows) {
    case 1: walk(p, 1); break;
    case 2: walk(p, 2); break;
    case 3: walk(p, 3); break;
    case 4: walk(p, 4); break;
    case 5: walk(p, 5); break;
    default: walk(p, ROWS); break;
    }
}

/* One panel: columns [j, j + cols) of rows [k0, k0 + depth) of B. */
WITH_FMA static void pack_panel(int64_t n, const float *from, int64_t depth, int64_t cols,
                                float *to)
{
    for (int64_t l = 0; l < depth; l++, from += n, to += COLS) {
        if (cols == COLS) {
            _mm256_store_ps(to, _mm256_loadu_ps(from));
            _mm256_store_ps(to + 8, _mm256_loadu_ps(from + 8));
        } else {
            for (int64_t c = 0; c < COLS; c++)
                to[c] = c < cols ? from[c] : 0.0f;
        }
    }
}

static void pack_panel_transposed(int64_t k, const float *from, int64_t depth, int64_t cols,
                                  float *to)
{
    for (int64_t l = 0; l < depth; l++, from++, to += COLS)
        for (int64_t c = 0; c < COLS; c++)
            to[c] = c < cols ? from[c * k] : 0.0f;
}

/* Rows [k0, k0 + depth) of columns [j0, j1) of op(B) as panels [depth][16], zeroes to the right of
 * the last. */
static void pack(int transpose_b, int64_t n, int64_t k, const float *b, int64_t k0, int64_t depth,
                 int64_t j0, int64_t j1, float *to)
{
    for (int64_t j = j0; j < j1; j += COLS, to += depth * COLS) {
        int64_t cols = j1 - j < COLS ? j1 - j : COLS;
        if (transpose_b)
            pack_panel_transposed(k, b + j * k + k0, depth, cols, to);
        else
            pack_panel(n, b + k0 * n + j, depth, cols, to);
    }
}

/* m x n of C for one block of k, whose panels are packed. */
static void multiply_block(const struct piece *first, int64_t m, int64_t n)
{
    for (int64_t i0 = 0; i0 < m; i0 += M_BLOCK) {
        int64_t i1 = i0 + M_BLOCK < m ? i0 + M_BLOCK : m;
        for (int64_t j = 0; j < n; j += COLS)
            for (int64_t i = i0; i < i1; i += ROWS) {
                struct piece p = *first;
                p.a += i * p.row;
                p.panel += j * p.depth;
                p.c += i * p.c_row + j;
                p.cols = n - j < COLS ? n - j : COLS;
                walk_rows(&p, i1 - i < ROWS ? i1 - i : ROWS);
            }
    }
}

/* Kept from call to call: a backend is one device of one process. */
static float *packing(void)
{
    static float *panels;
    _Static_assert((size_t)N_BLOCK * K_BLOCK * sizeof *panels == CPU_GEMM_BYTES, "foretold");
    if (!panels)
        panels = mem_aligned(CPU_GEMM_BYTES);
    return panels;
}

static void gemm_in_order(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                          const float *a, const float *b, float beta, float *c)
{
    float *panels = packing();
    for (int64_t j0 = 0; j0 < n; j0 += N_BLOCK) {
        int64_t j1 = j0 + N_BLOCK < n ? j0 + N_BLOCK : n;
        for (int64_t k0 = 0; k0 < k; k0 += K_BLOCK) {
            struct piece p = {
                .row = transpose_a ? 1 : k,
                .step = transpose_a ? m : 1,
                .panel = panels,
                .depth = k - k0 < K_BLOCK ? k - k0 : K_BLOCK,
                .c = c + j0,
                .c_row = n,
                .add = k0 > 0 || beta != 0.0f,
            };
            p.a = a + k0 * p.step;
            pack(transpose_b, n, k, b, k0, p.depth, j0, j1, panels);
            multiply_block(&p, m, j1 - j0);
        }
    }
}

static int has_fma(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

void cpu_gemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
              const float *b, float beta, float *c)
{
    if (m == 0 || n == 0)
        return;
#ifdef __x86_64__
    if (has_fma() && k > 0 && (beta == 0.0f || beta == 1.0f)) {
        gemm_in_order(transpose_a, transpose_b, m, n, k, a, b, beta, c);
        return;
    }
#endif
    cpu_gemm_plain(transpose_a, transpose_b, m, n, k, a, b, beta, c);
}
