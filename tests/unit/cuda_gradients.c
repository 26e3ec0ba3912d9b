/* The GPU's gradients against central differences of what the GPU computes forwards: activations,
 * layer normalisation and losses, for what each has a gradient of. */
#include "tests/unit/cuda_parity.h"

#define ROWS 5
#define COLS 7
#define N    (ROWS * COLS)
#define STEP 1e-2f

/* What is differentiated: a sum of outputs, times fixed numbers, as a function of some arrays. */
struct function {
    const char *name;
    int count;    /* arrays */
    float *at[3]; /* host */
    int64_t n[3]; /* elements */
    float gradient[3][N];
    enum activation f; /* of the activation */
    struct loss_args loss;
    double (*value)(const struct function *f);
};

static uint32_t seed = 4711;
static float next(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-31f;
}

static float dy[N]; /* the fixed numbers */

/* ---- the device ---- */

static float *on_device(const float *host, size_t n)
{
    float *p = ops_cuda.alloc(n * sizeof *p);
    assert_non_null(p);
    if (host)
        ops_cuda.upload(p, host, n * sizeof *p);
    return p;
}

static void to_host(float *host, float *p, size_t n)
{
    struct err e;
    ops_cuda.download(host, p, n * sizeof *p);
    ops_cuda.release(p);
    if (ops_cuda.finish(&e) < 0)
        fail_msg("%s", e.text);
}

static double total_of(float *y)
{
    float host[N];
    double sum = 0;
    to_host(host, y, N);
    for (int i = 0; i < N; i++)
        sum += (double)host[i] * (double)dy[i];
    return sum;
}

/* ---- the comparison ---- */

static double value_at(struct function *f, int array, int64_t i, float x)
{
    float before = f->at[array][i];
    f->at[array][i] = x;
    double value = f->value(f);
    f->at[array][i] = before;
    return value;
}

static void check(struct function *f)
{
    for (int a = 0; a < f->count; a++)
        for (int64_t i = 0; i < f->n[a]; i++) {
            float x = f->at[a][i], up = x + STEP, down = x - STEP;
            double want =
                (value_at(f, a, i, up) - value_at(f, a, i, down)) / ((double)up - (double)down);
            if (!(fabs((double)f->gradient[a][i] - want) <= 2e-3 * fmax(1, fabs(want))))
                fail_msg("%s: array %d [%lld]: gradient %g, difference %g", f->name, a,
                         (long long)i, (double)f->gradient[a][i], want);
        }
}

/* ---- activations ---- */

static double activation_value(const struct function *f)
{
    float *z = on_device(f->at[0], N), *bias = on_device(f->at[1], COLS), *y = on_device(NULL, N);
    ops_cuda.activate(f->f, ROWS, COLS, bias, z, y);
    double value = total_of(y);
    ops_cuda.release(z);
    ops_cuda.release(bias);
    return value;
}

static void activation_gradient(struct function *f)
{
    float *z = on_device(f->at[0], N), *bias = on_device(f->at[1], COLS), *y = on_device(NULL, N);
    float *d = on_device(dy, N), *d_bias = on_device(NULL, COLS);
    ops_cuda.activate(f->f, ROWS, COLS, bias, z, y);
    ops_cuda.activate_backward(f->f, ROWS, COLS, elem_keeps_input(f->f) ? z : y, d, d, 0.0f,
                               d_bias);
    to_host(f->gradient[0], d, N);
    to_host(f->gradient[1], d_bias, COLS);
    ops_cuda.release(z);
    ops_cuda.release(bias);
    ops_cuda.release(y);
}

/* Far enough from 0 for a difference not to reach over a bend. */
static float off_zero(void)
{
    float u = next();
    return u < 0.0f ? 1.5f * u - 0.05f : 1.5f * u + 0.05f;
}

static void of_activations(void **state)
{
    (void)state;
    for (int k = 0; k < ACTIVATION__MAX; k++) {
        float z[N], bias[COLS];
        struct function f = {.name = activation_name((enum activation)k),
                             .count = 2,
                             .at = {z, bias},
                             .n = {N, COLS},
                             .f = (enum activation)k,
                             .value = activation_value};
        for (int c = 0; c < COLS; c++)
            bias[c] = next();
        for (int i = 0; i < N; i++)
            z[i] = off_zero() - bias[i % COLS];
        activation_gradient(&f);
        check(&f);
    }
}

/* ---- layer normalisation ---- */

static double norm_value(const struct function *f)
{
    float *x = on_device(f->at[0], N), *gamma = on_device(f->at[1], COLS);
    float *beta = on_device(f->at[2], COLS), *stats = on_device(NULL, 2 * ROWS);
    float *y = on_device(NULL, N);
    ops_cuda.normalize(ROWS, COLS, 1e-3f, x, gamma, beta, stats, y);
    double value = total_of(y);
    ops_cuda.release(x);
    ops_cuda.release(gamma);
    ops_cuda.release(beta);
    ops_cuda.release(stats);
    return value;
}

static void norm_gradient(struct function *f)
{
    float *x = on_device(f->at[0], N), *gamma = on_device(f->at[1], COLS);
    float *beta = on_device(f->at[2], COLS), *stats = on_device(NULL, 2 * ROWS);
    float *y = on_device(NULL, N), *d = on_device(dy, N);
    float *d_gamma = on_device(NULL, COLS), *d_beta = on_device(NULL, COLS);
    ops_cuda.normalize(ROWS, COLS, 1e-3f, x, gamma, beta, stats, y);
    ops_cuda.normalize_backward(ROWS, COLS, x, stats, gamma, d, d, 0.0f, d_gamma, d_beta);
    to_host(f->gradient[0], d, N);
    to_host(f->gradient[1], d_gamma, COLS);
    to_host(f->gradient[2], d_beta, COLS);
    ops_cuda.release(x);
    ops_cuda.release(gamma);
    ops_cuda.release(beta);
    ops_cuda.release(stats);
    ops_cuda.release(y);
}

static void of_layer_normalisation(void **state)
{
    (void)state;
    float x[N], gamma[COLS], beta[COLS];
    struct function f = {.name = "normalize",
                         .count = 3,
                         .at = {x, gamma, beta},
                         .n = {N, COLS, COLS},
                         .value = norm_value};
    for (int i = 0; i < N; i++)
        x[i] = 2.0f * next();
    for (int c = 0; c < COLS; c++) {
        gamma[c] = 1.0f + 0.5f * next();
        beta[c] = next();
    }
    norm_gradient(&f);
    check(&f);
}

/* ---- losses ---- */

static float loss_targets[N], loss_weights[3] = {0.5f, 2.0f, 1.5f};
static const int32_t loss_classes[ROWS] = {0, 3, 6, 1, 2};

static double loss_and_gradient(const struct function *f, float *gradient)
{
    struct loss_args a = f->loss;
    struct loss_sums sums = {0, 0, 0};
    float *out = on_device(f->at[0], N), *d = on_device(NULL, N);
    float *targets = on_device(loss_targets, N), *weights = on_device(loss_weights, 3);
    int32_t *classes = ops_cuda.alloc(sizeof loss_classes);
    struct loss_sums *to = ops_cuda.alloc(sizeof sums);
    assert_non_null(classes);
    assert_non_null(to);
    ops_cuda.upload(classes, loss_classes, sizeof loss_classes);
    a.rows = ROWS;
    a.cols = COLS;
    a.out = out;
    a.gradient = gradient ? d : NULL;
    a.sums = to;
    a.weights = weights;
    a.weight_count = 3;
    if (a.kind == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY)
        a.classes = classes;
    else
        a.targets = targets;
    ops_cuda.loss(&a);
    ops_cuda.download(&sums, to, sizeof sums);
    float unused[N];
    to_host(gradient ? gradient : unused, d, N);
    ops_cuda.release(out);
    ops_cuda.release(targets);
    ops_cuda.release(weights);
    ops_cuda.release(classes);
    ops_cuda.release(to);
    return sums.loss;
}

static double loss_value(const struct function *f)
{
    return loss_and_gradient(f, NULL);
}

static void of_losses(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        loss_targets[i] = 0.5f + 0.45f * next();
    for (int k = 0; k < LOSS__MAX; k++)
        for (int logits = 0; logits < (k == LOSS_MEAN_SQUARED_ERROR ? 1 : 2); logits++) {
            float out[N];
            char name[32];
            snprintf(name, sizeof name, "loss %d, logits %d", k, logits);
            struct function f = {.name = name,
                                 .count = 1,
                                 .at = {out},
                                 .n = {N},
                                 .loss = {.kind = (enum loss)k, .from_logits = logits},
                                 .value = loss_value};
            for (int i = 0; i < N; i++)
                out[i] = logits ? 1.5f * next() : 0.5f + 0.3f * next();
            loss_and_gradient(&f, f.gradient[0]);
            check(&f);
        }
}

static void draw_numbers(void)
{
    for (int i = 0; i < N; i++)
        dy[i] = next();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_activations),
        cmocka_unit_test(of_layer_normalisation),
        cmocka_unit_test(of_losses),
    };
    draw_numbers();
    return cmocka_run_group_tests(tests, parity_open, parity_close);
}
