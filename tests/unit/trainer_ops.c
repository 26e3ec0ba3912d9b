/* The CPU's tensor verbs against plain double arithmetic, with sizes around the widths of vectors
 * and blocks, in place and not, and with numbers that are not. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/ops_cpu.h"

static const int SIZES[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 100};

/* A fixed sequence in [-1, 1). */
static float next_float(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return (float)(int32_t)*s * 0x1p-31f;
}

static float *filled(size_t n, uint32_t seed, float scale)
{
    float *x = mem_alloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = next_float(&seed) * scale;
    return x;
}

static void assert_close(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fmax(1.0, fabs(want))))
        fail_msg("got %.9g, want %.9g", got, want);
}

/* ---- elem.h ---- */

/* Distance in units of the last place of `want` as a float; denormals count as the smallest ones.
 */
static double ulps(float got, double want)
{
    if (isnan(want) || isinf((float)want))
        return got == (float)want || (isnan(got) && isnan(want)) ? 0 : INFINITY;
    int exponent;
    if (fabs(want) < (double)FLT_MIN)
        return fabs((double)got) <= (double)FLT_MIN ? 0 : INFINITY;
    frexp(want, &exponent);
    double ulp = ldexp(1.0, exponent - 24);
    return fabs((double)got - want) / ulp;
}

static double logistic(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static void exponentials_are_within_four_ulps(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        uint32_t bits = (uint32_t)i * 10737u + 12345u;
        float x = elem_from_bits(bits);
        if (isnan(x))
            continue;
        worst = fmax(worst, ulps(elem_exp(x), exp((double)x)));
        worst = fmax(worst, ulps(elem_expm1(x), expm1((double)x)));
        worst = fmax(worst, ulps(elem_tanh(x), tanh((double)x)));
        worst = fmax(worst, ulps(elem_sigmoid(x), logistic((double)x)));
        if (worst > 4)
            fail_msg("%g: %g ulps (exp %g, expm1 %g, tanh %g, sigmoid %g)", (double)x, worst,
                     (double)elem_exp(x), (double)elem_expm1(x), (double)elem_tanh(x),
                     (double)elem_sigmoid(x));
    }
    for (float x = -20; x < 20; x += 0.0013f) {
        worst = fmax(worst, ulps(elem_tanh(x), tanh((double)x)));
        worst = fmax(worst, ulps(elem_exp(x), exp((double)x)));
        worst = fmax(worst, ulps(elem_sigmoid(x), logistic((double)x)));
    }
    assert_true(worst <= 4);
}

static void nan_stays_nan(void **state)
{
    (void)state;
    assert_true(isnan(elem_exp(NAN)));
    assert_true(isnan(elem_expm1(NAN)));
    assert_true(isnan(elem_tanh(NAN)));
    for (int f = 0; f < ACTIVATION_SOFTMAX; f++)
        assert_true(isnan(elem_activate((enum activation)f, NAN)));
}

static double true_activation(enum activation f, double x)
{
    switch (f) {
    case ACTIVATION_RELU: return fmax(x, 0);
    case ACTIVATION_TANH: return tanh(x);
    case ACTIVATION_SIGMOID: return logistic(x);
    case ACTIVATION_GELU: return x * 0.5 * erfc(-x * M_SQRT1_2);
    case ACTIVATION_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_ELU: return x > 0 ? x : expm1(x);
    case ACTIVATION_SILU: return x * logistic(x);
    case ACTIVATION_SOFTPLUS: return fmax(x, 0) + log1p(exp(-fabs(x)));
    case ACTIVATION_LEAKY_RELU: return x > 0 ? x : 0.2 * x;
    default: return x;
    }
}

static void activations_and_their_slopes(void **state)
{
    (void)state;
    for (int f = 0; f < ACTIVATION_SOFTMAX; f++)
        for (double x = -8.05; x < 8; x += 0.1) {
            enum activation a = (enum activation)f;
            float y = elem_activate(a, (float)x);
            assert_close(y, true_activation(a, (double)(float)x), 1e-6);
            double h = 1e-5;
            double slope = (true_activation(a, x + h) - true_activation(a, x - h)) / (2 * h);
            assert_close(elem_derivative(a, elem_keeps_input(a) ? (float)x : y), slope, 2e-6);
        }
    assert_close(elem_activate(ACTIVATION_SOFTPLUS, -INFINITY), 0, 0);
    assert_true(isinf(elem_activate(ACTIVATION_SOFTPLUS, INFINITY)));
    assert_close(elem_activate(ACTIVATION_SIGMOID, -200), 0, 1e-30);
}

static void softmax_pieces_merge(void **state)
{
    (void)state;
    struct elem_softmax a = {1.0f, 2.0f}, b = {3.0f, 4.0f};
    struct elem_softmax r = elem_softmax_merge(a, b);
    assert_close(r.max, 3, 0);
    assert_close(r.sum, 2 * exp(-2) + 4, 1e-6);
}

/* ---- products ---- */

typedef void gemm_verb(int, int, int64_t, int64_t, int64_t, const float *, const float *, float,
                       float *);

static void check_gemm(gemm_verb *gemm, int ta, int tb, int m, int n, int k, float beta)
{
    float *a = filled((size_t)(m * k), 1, 1), *b = filled((size_t)(k * n), 2, 1);
    float *c = filled((size_t)(m * n), 3, 1);
    double *want = mem_alloc((size_t)(m * n) * sizeof *want);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = (double)beta * (double)c[i * n + j];
            for (int l = 0; l < k; l++)
                sum +=
                    (double)a[ta ? l * m + i : i * k + l] * (double)b[tb ? j * k + l : l * n + j];
            want[i * n + j] = sum;
        }
    gemm(ta, tb, m, n, k, a, b, beta, c);
    for (int i = 0; i < m * n; i++)
        assert_close(c[i], want[i], 1e-5);
    free(a);
    free(b);
    free(c);
    free(want);
}

static void products_of_all_forms(void **state)
{
    (void)state;
    static const int S[] = {1, 2, 5, 12, 13, 31};
    gemm_verb *const verbs[] = {ops_cpu.gemm, cpu_gemm_plain};
    for (size_t x = 0; x < 2 * ARRAY_LEN(S) * ARRAY_LEN(S) * ARRAY_LEN(S); x++) {
        gemm_verb *gemm = verbs[x % 2];
        int m = S[x / 2 % ARRAY_LEN(S)], n = S[x / 2 / ARRAY_LEN(S) % ARRAY_LEN(S)];
        int k = S[x / 2 / ARRAY_LEN(S) / ARRAY_LEN(S)];
        check_gemm(gemm, 0, 0, m, n, k, 0);
        check_gemm(gemm, 0, 1, m, n, k, 0);
        check_gemm(gemm, 1, 0, m, n, k, 0);
        check_gemm(gemm, 1, 0, m, n, k, 1);
    }
    ops_cpu.gemm(0, 0, 0, 5, 5, NULL, NULL, 0, NULL); /* no rows: nothing happens */
}

static int has_fma(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

/* Element (i, j) as one chain over k. */
static float chain(int fused, int ta, int tb, int m, int n, int k, const float *a, const float *b,
                   int i, int j)
{
    float sum = 0;
    for (int l = 0; l < k; l++) {
        float x = a[ta ? l * m + i : i * k + l], y = b[tb ? j * k + l : l * n + j];
        volatile float product = x * y; /* rounded by itself */
        sum = fused ? fmaf(x, y, sum) : sum + product;
    }
    return sum;
}

/* So a batch cut anywhere gives each row the same bits. */
static void elements_do_not_depend_on_their_neighbours(void **state)
{
    (void)state;
    static const int M[] = {1, 5, 6, 7, 96, 97, 130}, N[] = {1, 15, 16, 33, 4113},
                     K[] = {1, 255, 256, 600};
    for (size_t x = 0; x < ARRAY_LEN(M) * ARRAY_LEN(N) * ARRAY_LEN(K); x++) {
        int m = M[x % ARRAY_LEN(M)], n = N[x / ARRAY_LEN(M) % ARRAY_LEN(N)];
        int k = K[x / ARRAY_LEN(M) / ARRAY_LEN(N)], ta = x % 2, tb = x / 2 % 2;
        float *a = filled((size_t)(m * k), 1, 1), *b = filled((size_t)(k * n), 2, 1);
        float *c = filled((size_t)(m * n), 3, 1), *d = filled((size_t)(m * n), 4, 1);
        ops_cpu.gemm(ta, tb, m, n, k, a, b, 0, c);
        cpu_gemm_plain(ta, tb, m, n, k, a, b, 0, d);
        for (int i = 0; i < m; i += 1 + m / 9)
            for (int j = 0; j < n; j += 1 + n / 9) {
                assert_true(c[i * n + j] == chain(has_fma(), ta, tb, m, n, k, a, b, i, j));
                assert_true(d[i * n + j] == chain(0, ta, tb, m, n, k, a, b, i, j));
            }
        free(a);
        free(b);
        free(c);
        free(d);
    }
}

/* What a product needs beside its operands does not grow with them. */
static void wide_products_take_little_memory(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rusage before, after;
        int n = 400000;
        float a = 2, *b = filled((size_t)n, 2, 1), *c = filled((size_t)n, 3, 1);
        getrusage(RUSAGE_SELF, &before);
        ops_cpu.gemm(0, 0, 1, n, 1, &a, b, 0, c);
        getrusage(RUSAGE_SELF, &after);
        int ok = c[n - 1] == 2 * b[n - 1] && after.ru_maxrss - before.ru_maxrss < 64 * 1024;
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_full_device_says_so(void **state)
{
    (void)state;
#ifndef TRAINYARD_SANITIZED /* whose allocator ends the process instead */
    assert_null(ops_cpu.alloc((size_t)1 << 60));
    assert_null(ops_cpu.alloc(SIZE_MAX));
#endif
    static const size_t BYTES[] = {0, 1, 63, 64, 65, 100000};
    for (size_t i = 0; i < ARRAY_LEN(BYTES); i++) {
        unsigned char *p = ops_cpu.alloc(BYTES[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t b = 0; b < BYTES[i]; b++)
            assert_int_equal(p[b], 0);
        ops_cpu.release(p);
    }
}

/* ---- rows ---- */

static void bias_and_activation_in_place_and_apart(void **state)
{
    (void)state;
    for (int f = 0; f < ACTIVATION_SOFTMAX; f++)
        for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
            int cols = SIZES[s], rows = 3;
            size_t n = (size_t)(rows * cols);
            float *z = filled(n, 5, 3), *bias = filled((size_t)cols, 6, 1), *y = filled(n, 7, 1);
            float *same = mem_alloc(n * sizeof *same), *before = mem_alloc(n * sizeof *before);
            memcpy(same, z, n * sizeof *z);
            memcpy(before, z, n * sizeof *z);
            ops_cpu.activate((enum activation)f, rows, cols, bias, z, y);
            ops_cpu.activate((enum activation)f, rows, cols, bias, same, same);
            for (size_t i = 0; i < n; i++) {
                double want = (double)before[i] + (double)bias[i % (size_t)cols];
                assert_close(z[i], want, 1e-6);
                assert_close(y[i], true_activation((enum activation)f, want), 2e-6);
                assert_true(y[i] == same[i]);
            }
            free(z);
            free(bias);
            free(y);
            free(same);
            free(before);
        }
}

static void softmax_rows_sum_to_one(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        int cols = SIZES[s];
        float *z = filled((size_t)(2 * cols), 5, 90), *y = filled((size_t)(2 * cols), 6, 1);
        ops_cpu.activate(ACTIVATION_SOFTMAX, 2, cols, NULL, z, y);
        for (int r = 0; r < 2; r++) {
            double sum = 0, denominator = 0;
            for (int c = 0; c < cols; c++)
                denominator += exp((double)z[r * cols + c]);
            for (int c = 0; c < cols; c++) {
                sum += (double)y[r * cols + c];
                assert_close(y[r * cols + c], exp((double)z[r * cols + c]) / denominator, 1e-6);
            }
            assert_close(sum, 1, 1e-6);
        }
        free(z);
        free(y);
    }
}

static void normalisation_by_the_formula(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        int n = SIZES[s];
        float *x = filled((size_t)n, 5, 4), *y = filled((size_t)n, 6, 1), stats[2];
        float *gamma = filled((size_t)n, 7, 1), *beta = filled((size_t)n, 8, 1);
        double mean = 0, variance = 0;
        for (int i = 0; i < n; i++)
            mean += (double)x[i] / n;
        for (int i = 0; i < n; i++)
            variance += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
        ops_cpu.normalize(1, n, 1e-3f, x, gamma, beta, stats, y);
        for (int i = 0; i < n; i++)
            assert_close(y[i],
                         ((double)x[i] - mean) / sqrt(variance + 1e-3) * (double)gamma[i] +
                             (double)beta[i],
                         1e-5);
        free(x);
        free(y);
        free(gamma);
        free(beta);
    }
}

static void dropout_depends_on_position_not_on_slices(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 37 };
    float *x = mem_alloc(ROWS * COLS * sizeof *x), *all = mem_alloc(ROWS * COLS * sizeof *all);
    float part[ROWS * COLS], other[ROWS * COLS];
    struct dropout_args a = {
        .rate = 0.25f, .seed = 3, .stream = 1025, .width = COLS, .columns = COLS};
    int kept = 0;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = 1;
    ops_cpu.dropout(&a, ROWS, COLS, x, all);
    for (int i = 0; i < ROWS * COLS; i++) {
        assert_true(all[i] == 0 || all[i] == 1.0f / 0.75f);
        kept += all[i] != 0;
    }
    assert_in_range(kept, ROWS * COLS * 70 / 100, ROWS * COLS * 80 / 100);
    a.position = 13;
    ops_cpu.dropout(&a, 5, COLS, x, part);
    assert_memory_equal(part, all + 13 * COLS, 5 * COLS * sizeof *part);
    a.width = 11, a.first_column = 22; /* of rows that are split by columns */
    ops_cpu.dropout(&a, 5, 11, x, part);
    for (int r = 0; r < 5; r++)
        assert_memory_equal(part + r * 11, all + (13 + r) * COLS + 22, 11 * sizeof *part);
    a.width = COLS, a.first_column = 0, a.stream = 1026;
    ops_cpu.dropout(&a, 5, COLS, x, other);
    assert_memory_not_equal(all + 13 * COLS, other, 5 * COLS * sizeof *part);
    free(x);
    free(all);
}

/* ---- losses ---- */

static struct loss_sums loss_of(enum loss kind, int from_logits, int rows, int cols,
                                const float *out, const int32_t *classes, const float *targets,
                                float *gradient)
{
    struct loss_sums s = {0};
    struct loss_args a = {.kind = kind,
                          .from_logits = from_logits,
                          .rows = rows,
                          .cols = cols,
                          .out = out,
                          .classes = classes,
                          .targets = targets,
                          .gradient = gradient,
                          .sums = &s};
    ops_cpu.loss(&a);
    return s;
}

static void cross_entropy_of_logits(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        int cols = SIZES[s];
        float *x = filled((size_t)cols, 9, 30), *g = filled((size_t)cols, 1, 1);
        float *hot = mem_zalloc((size_t)cols * sizeof *hot);
        int32_t class = cols / 2;
        double sum = 0;
        hot[class] = 1;
        for (int c = 0; c < cols; c++)
            sum += exp((double)x[c]);
        struct loss_sums a =
            loss_of(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1, 1, cols, x, &class, NULL, g);
        assert_close(a.loss, log(sum) - (double)x[class], 1e-6);
        for (int c = 0; c < cols; c++)
            assert_close(g[c], exp((double)x[c]) / sum - (c == class), 1e-6);
        struct loss_sums b = loss_of(LOSS_CATEGORICAL_CROSSENTROPY, 1, 1, cols, x, NULL, hot, NULL);
        assert_close(b.loss, a.loss, 1e-6);
        assert_true(a.accuracy == b.accuracy);
        assert_close(a.mae, b.mae, 1e-6);
        free(x);
        free(g);
        free(hot);
    }
}

/* As classes, one-hot, and binary, against rows one by one without weights. */
static void classes_weigh_loss_and_gradient(void **state)
{
    (void)state;
    static const float x[9] = {1, 2, 3, 0, -1, 2, 0.5f, 0, 1}, weights[] = {0.25f, 1, 3};
    static const int32_t classes[3] = {2, 0, 1};
    static const float hot[9] = {0, 0, 1, 1, 0, 0, 0, 1, 0}, labels[3] = {1, 0, 1};
    for (int form = 0; form < 3; form++) {
        float g[9], plain[9];
        int cols = form < 2 ? 3 : 1;
        struct loss_sums s = {0}, sum = {0};
        double want = 0;
        struct loss_args a = {
            .kind = LOSS_BINARY_CROSSENTROPY, .from_logits = 1, .rows = 1, .cols = cols};
        if (form < 2)
            a.kind = form ? LOSS_CATEGORICAL_CROSSENTROPY : LOSS_SPARSE_CATEGORICAL_CROSSENTROPY;
        for (int i = 0; i < 3; i++) {
            int class = form < 2 ? classes[i] : (int)labels[i];
            float weight = class == 0 ? 0.25f : class == 2 ? 3 : 1;
            struct loss_sums one = {0};
            a.out = x + i * cols;
            a.classes = form == 0 ? &classes[i] : NULL;
            a.targets = form == 1 ? hot + i * cols : form == 2 ? &labels[i] : NULL;
            a.gradient = plain + i * cols;
            a.sums = &one;
            ops_cpu.loss(&a);
            for (int c = 0; c < cols; c++)
                plain[i * cols + c] *= weight;
            want += weight * one.loss;
            sum.accuracy += one.accuracy;
            sum.mae += one.mae;
        }
        a.out = x;
        a.rows = 3;
        a.classes = form == 0 ? classes : NULL;
        a.targets = form == 1 ? hot : form == 2 ? labels : NULL;
        a.gradient = g;
        a.sums = &s;
        a.weights = weights;
        a.weight_count = form < 2 ? 3 : 1; /* class 1 has no weight given: 1 */
        ops_cpu.loss(&a);
        assert_close(s.loss, want, 1e-12);
        assert_memory_equal(g, plain, (size_t)(3 * cols) * sizeof *g);
        assert_true(s.accuracy == sum.accuracy && fabs(s.mae - sum.mae) < 1e-12);
    }
}

static void extreme_logits_stay_finite(void **state)
{
    (void)state;
    float x[3] = {1e30f, -1e30f, 0}, g[3];
    int32_t class = 1;
    struct loss_sums s = loss_of(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1, 1, 3, x, &class, NULL, g);
    assert_close(s.loss, 2e30, 1e-6);
    assert_true(isfinite(g[0]) && isfinite(g[1]));
    float t[3] = {0, 1, 1};
    s = loss_of(LOSS_BINARY_CROSSENTROPY, 1, 1, 3, x, NULL, t, g);
    assert_close(s.loss, (2e30 + log(2)) / 3, 1e-6);
    x[0] = NAN;
    s = loss_of(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1, 1, 3, x, &class, NULL, g);
    assert_true(isnan(s.loss));
}

static void probabilities_are_clipped_as_keras_does(void **state)
{
    (void)state;
    float p[2] = {0, 1}, g[2];
    int32_t class = 0;
    struct loss_sums s = loss_of(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 0, 1, 2, p, &class, NULL, g);
    assert_close(s.loss, -log(1e-7), 1e-5);
    assert_true(g[0] == 0);
    float t = 1, q = 0;
    s = loss_of(LOSS_BINARY_CROSSENTROPY, 0, 1, 1, &q, NULL, &t, g);
    assert_close(s.loss, -log(1e-7), 1e-5);
    float out[2] = {1, 3}, target[2] = {2, 5};
    s = loss_of(LOSS_MEAN_SQUARED_ERROR, 0, 1, 2, out, NULL, target, g);
    assert_close(s.loss, 2.5, 1e-7);
    assert_close(s.mae, 1.5, 1e-7);
    assert_close(g[0], -1, 1e-7);
    assert_close(g[1], -2, 1e-7);
}

static void accuracy_of_one_and_of_several_outputs(void **state)
{
    (void)state;
    float logit[2] = {0.2f, -3}, one[2] = {1, 1};
    assert_true(loss_of(LOSS_BINARY_CROSSENTROPY, 1, 2, 1, logit, NULL, one, NULL).accuracy == 1);
    assert_true(loss_of(LOSS_BINARY_CROSSENTROPY, 0, 2, 1, logit, NULL, one, NULL).accuracy == 0);
    float out[3] = {2, 7, 7};
    int32_t first = 1, second = 2; /* of equal outputs the first counts */
    assert_true(
        loss_of(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1, 1, 3, out, &first, NULL, NULL).accuracy ==
        1);
    assert_true(
        loss_of(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1, 1, 3, out, &second, NULL, NULL).accuracy ==
        0);
    assert_true(
        loss_of(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1, 0, 3, out, NULL, NULL, NULL).loss == 0);
}

/* ---- updates ---- */

static void adam_by_the_formula(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        size_t n = (size_t)SIZES[s];
        float *w = filled(n, 1, 1), *m = filled(n, 2, 1), *v = filled(n, 3, 1),
              *g = filled(n, 4, 9);
        float *w0 = filled(n, 1, 1), *m0 = filled(n, 2, 1), *v0 = filled(n, 3, 1);
        struct elem_adam a = {0.01f, 0.9f, 0.1f, 0.999f, 0.001f, 1e-7f, 0.125f, 0.99f};
        for (size_t i = 0; i < n; i++)
            v[i] = v0[i] = fabsf(v0[i]);
        ops_cpu.adam(&a, n, g, w, m, v);
        for (size_t i = 0; i < n; i++) {
            double gi = (double)g[i] * 0.125, mi = 0.9 * (double)m0[i] + 0.1 * gi;
            double vi = 0.999 * (double)v0[i] + 0.001 * gi * gi;
            assert_close(m[i], mi, 1e-6);
            assert_close(v[i], vi, 1e-6);
            assert_close(w[i], (double)w0[i] * 0.99 - 0.01 * mi / (sqrt(vi) + 1e-7), 1e-6);
        }
        free(w);
        free(m);
        free(v);
        free(g);
        free(w0);
        free(m0);
        free(v0);
    }
}

static void sgd_by_the_formula(void **state)
{
    (void)state;
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        float g[5] = {1, -2, 3, -4, 5}, w[5] = {0}, m[5] = {1, 1, 1, 1, 1}, plain[5] = {0};
        struct elem_sgd a = {0.1f, 0.9f, 0.5f, nesterov};
        ops_cpu.sgd(&a, 5, g, w, m);
        ops_cpu.sgd(&a, 5, g, plain, NULL);
        for (int i = 0; i < 5; i++) {
            double step = 0.1 * 0.5 * (double)g[i], v = 0.9 - step;
            assert_close(m[i], v, 1e-6);
            assert_close(w[i], nesterov ? 0.9 * v - step : v, 1e-6);
            assert_close(plain[i], -step, 1e-6);
        }
    }
}

static void squares_add_up_in_double(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        size_t n = (size_t)SIZES[s];
        float *x = filled(n, 4, 1e20f);
        double want = 0, got;
        for (size_t i = 0; i < n; i++)
            want += (double)x[i] * (double)x[i];
        ops_cpu.sum_squares(n, x, &got);
        assert_close(got, want, 1e-12);
        free(x);
    }
    double got = 1;
    ops_cpu.sum_squares(0, NULL, &got);
    assert_true(got == 0);
}

/* The nearest of the two neighbours, the even one in the middle; all 2^16 values stay as they are.
 */
static void bfloat16_rounds_to_the_nearest(void **state)
{
    (void)state;
    enum { ALL = 1 << 16 };
    uint16_t *all = mem_alloc(ALL * sizeof *all), *again = mem_alloc(ALL * sizeof *again);
    float *x = mem_alloc(ALL * sizeof *x);
    for (int i = 0; i < ALL; i++)
        all[i] = (uint16_t)i;
    ops_cpu.from_bfloat16(ALL, all, x);
    ops_cpu.to_bfloat16(ALL, x, again);
    for (int i = 0; i < ALL; i++)
        assert_true(isnan(x[i]) ? isnan(elem_from_bfloat16(again[i])) : again[i] == all[i]);
    for (uint32_t i = 0; i < 0x7f7f; i++) { /* finite, and its upper neighbour too */
        float middle = elem_from_bits(i << 16 | 0x8000);
        assert_int_equal(elem_to_bfloat16(middle), i + (i & 1));
        assert_int_equal(elem_to_bfloat16(elem_from_bits((i << 16) + 0x7fff)), i);
        assert_int_equal(elem_to_bfloat16(-elem_from_bits((i << 16) + 0x8001)), 0x8001 + i);
    }
    assert_int_equal(elem_to_bfloat16(FLT_MAX), 0x7f80);
    assert_true(isnan(elem_from_bfloat16(elem_to_bfloat16(elem_from_bits(0x7f800001)))));
    free(all);
    free(again);
    free(x);
}

/* All float16s, and where between two of them the one becomes the other. */
static void float16_rounds_to_the_nearest(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7c00; i++) {
        double low = i < 0x400 ? ldexp(i, -24) : ldexp((i & 0x3ff) | 0x400, (int)(i >> 10) - 25);
        float middle = (float)(low + ldexp(1, (i < 0x400 ? 1 : (int)(i >> 10)) - 26));
        uint32_t up = i + (i & 1);
        assert_true((double)elem_from_float16((uint16_t)i) == low);
        assert_true((double)elem_from_float16((uint16_t)(0x8000 | i)) == -low);
        assert_int_equal(elem_to_float16((float)low), i);
        assert_int_equal(elem_to_float16((float)-low), 0x8000 | i);
        assert_int_equal(elem_to_float16(middle), up);
        assert_int_equal(elem_to_float16(nextafterf(middle, 0.0f)), i);
        assert_int_equal(elem_to_float16(-nextafterf(middle, INFINITY)), 0x8001 + i);
    }
    assert_true(isinf(elem_from_float16(0x7c00)) && elem_from_float16(0xfc00) < 0.0f);
    assert_int_equal(elem_to_float16(INFINITY), 0x7c00);
    assert_int_equal(elem_to_float16(-FLT_MAX), 0xfc00);
    assert_int_equal(elem_to_float16(0x1p-149f), 0);
    for (uint32_t i = 0x7c01; i < 0x8000; i++)
        assert_true(isnan(elem_from_float16((uint16_t)i)));
    for (uint32_t payload = 1; payload < 0x800000; payload <<= 1)
        assert_true(
            isnan(elem_from_float16(elem_to_float16(elem_from_bits(0x7f800000 | payload)))));
}

static void arrays_add_up(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        size_t n = (size_t)SIZES[s];
        float *x = filled(n, 1, 2), *y = filled(n, 2, 2), *was = filled(n, 2, 2);
        double *a = mem_alloc(n * sizeof *a), *b = mem_alloc(n * sizeof *b);
        for (size_t i = 0; i < n; i++) {
            a[i] = (double)x[i] / 3;
            b[i] = (double)y[i] / 7;
        }
        ops_cpu.add(n, x, y);
        ops_cpu.add_f64(n, a, b);
        for (size_t i = 0; i < n; i++) {
            assert_true(y[i] == was[i] + x[i]);
            assert_true(b[i] == (double)was[i] / 7 + a[i]);
        }
        free(x), free(y), free(was), free(a), free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponentials_are_within_four_ulps),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(activations_and_their_slopes),
        cmocka_unit_test(softmax_pieces_merge),
        cmocka_unit_test(products_of_all_forms),
        cmocka_unit_test(elements_do_not_depend_on_their_neighbours),
        cmocka_unit_test(wide_products_take_little_memory),
        cmocka_unit_test(a_full_device_says_so),
        cmocka_unit_test(bias_and_activation_in_place_and_apart),
        cmocka_unit_test(softmax_rows_sum_to_one),
        cmocka_unit_test(normalisation_by_the_formula),
        cmocka_unit_test(dropout_depends_on_position_not_on_slices),
        cmocka_unit_test(cross_entropy_of_logits),
        cmocka_unit_test(classes_weigh_loss_and_gradient),
        cmocka_unit_test(extreme_logits_stay_finite),
        cmocka_unit_test(probabilities_are_clipped_as_keras_does),
        cmocka_unit_test(accuracy_of_one_and_of_several_outputs),
        cmocka_unit_test(adam_by_the_formula),
        cmocka_unit_test(sgd_by_the_formula),
        cmocka_unit_test(squares_add_up_in_double),
        cmocka_unit_test(bfloat16_rounds_to_the_nearest),
        cmocka_unit_test(float16_rounds_to_the_nearest),
        cmocka_unit_test(arrays_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
