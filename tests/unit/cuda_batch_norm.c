/* Batch normalisation on the GPU: elements have the CPU's bits, sums are its but for their order;
 * and its gradients are the slopes of its values. */
#include "cuda_slopes.h"

struct batch_norm {
    int64_t rows, cols;
    double count, epsilon, momentum;
    float accumulate;
    int x, dy, sums, stats, gamma, beta, mean, variance, y, dx, d_gamma, d_beta;
};

/* No array. */
#define NONE (-1)

static const struct batch_norm ABSENT = {
    .x = NONE,
    .dy = NONE,
    .sums = NONE,
    .stats = NONE,
    .gamma = NONE,
    .beta = NONE,
    .mean = NONE,
    .variance = NONE,
    .y = NONE,
    .dx = NONE,
    .d_gamma = NONE,
    .d_beta = NONE,
};

static struct batch_norm_args args_of(const struct parity_side *s, const struct batch_norm *v)
{
    return (struct batch_norm_args){.rows = v->rows,
                                    .cols = v->cols,
                                    .x = parity_at(s, v->x),
                                    .stats = parity_at(s, v->stats),
                                    .gamma = parity_at(s, v->gamma),
                                    .beta = parity_at(s, v->beta)};
}

static void moments(struct parity_side *s, const void *args)
{
    const struct batch_norm *v = args;
    s->ops->batch_moments(v->rows, v->cols, parity_at(s, v->x), parity_at(s, v->sums));
}

static void stats(struct parity_side *s, const void *args)
{
    const struct batch_norm *v = args;
    s->ops->batch_stats(v->cols, parity_at(s, v->sums), v->count, v->epsilon,
                        parity_at(s, v->stats));
}

static void moving_stats(struct parity_side *s, const void *args)
{
    const struct batch_norm *v = args;
    s->ops->moving_stats(v->cols, parity_at(s, v->mean), parity_at(s, v->variance), v->epsilon,
                         parity_at(s, v->stats));
}

static void update_moving(struct parity_side *s, const void *args)
{
    const struct batch_norm *v = args;
    s->ops->update_moving(v->cols, parity_at(s, v->sums), v->count, v->momentum,
                          parity_at(s, v->mean), parity_at(s, v->variance));
}

static void normalize(struct parity_side *s, const void *args)
{
    const struct batch_norm *v = args;
    struct batch_norm_args a = args_of(s, v);
    s->ops->batch_normalize(&a, parity_at(s, v->y));
}

static void norm_sums(struct parity_side *s, const void *args)
{
    const struct batch_norm *v = args;
    struct batch_norm_args a = args_of(s, v);
    s->ops->batch_norm_sums(&a, parity_at(s, v->dy), parity_at(s, v->sums));
}

static void backward(struct parity_side *s, const void *args)
{
    const struct batch_norm *v = args;
    struct batch_norm_args a = args_of(s, v);
    s->ops->batch_norm_backward(&a, parity_at(s, v->dy), parity_at(s, v->sums), v->count,
                                parity_at(s, v->dx), v->accumulate, parity_at(s, v->d_gamma),
                                parity_at(s, v->d_beta));
}

static const int64_t ROWS[] = {0, 1, 2, 7, 63, 65, 1021};
static const int64_t COLS[] = {0, 1, 3, 4, 31, 64, 260, 1028};

static void begin(struct parity *p, const char *verb, int64_t rows, int64_t cols, int offset)
{
    parity_begin(p, verb, "%lld x %lld, offset %d", (long long)rows, (long long)cols, offset);
    p->offset = offset;
}

static void check_sums(int64_t rows, int64_t cols, int offset)
{
    struct batch_norm v = ABSENT;
    struct parity p;
    v.rows = rows;
    v.cols = cols;
    begin(&p, "batch_moments", rows, cols, offset);
    v.x = parity_floats(&p, rows * cols, 100, PARITY_PLAIN);
    v.sums = parity_out(&p, sizeof(double), 2 * cols);
    parity_run(&p, moments, &v);
    parity_near(&p, v.sums, 1e-13, 1e-10 * (double)rows);
    parity_end(&p);
    begin(&p, "batch_norm_sums", rows, cols, offset);
    v.x = parity_floats(&p, rows * cols, 100, PARITY_PLAIN);
    v.dy = parity_floats(&p, rows * cols, 1, PARITY_PLAIN);
    v.stats = parity_floats(&p, 2 * cols, 1, PARITY_PLAIN);
    v.sums = parity_out(&p, sizeof(double), 2 * cols);
    parity_run(&p, norm_sums, &v);
    parity_near(&p, v.sums, 1e-13, 1e-12 * (double)rows);
    parity_end(&p);
}

static void check_elements(int64_t rows, int64_t cols, int offset, int has_parameters)
{
    struct batch_norm v = ABSENT;
    struct parity p;
    v.rows = rows;
    v.cols = cols;
    v.count = 1.5 * (double)rows + 1;
    begin(&p, has_parameters ? "batch_normalize" : "batch_normalize, plain", rows, cols, offset);
    v.x = parity_floats(&p, rows * cols, 3, PARITY_ODD);
    v.stats = parity_floats(&p, 2 * cols, 1, PARITY_PLAIN);
    v.gamma = has_parameters ? parity_floats(&p, cols, 1, PARITY_PLAIN) : NONE;
    v.beta = has_parameters ? parity_floats(&p, cols, 1, PARITY_PLAIN) : NONE;
    v.y = parity_out(&p, sizeof(float), rows * cols);
    parity_run(&p, normalize, &v);
    parity_same(&p, v.y);
    parity_end(&p);
    begin(&p, has_parameters ? "batch_norm_backward" : "batch_norm_backward, moving", rows, cols,
          offset);
    v.x = parity_floats(&p, rows * cols, 3, PARITY_PLAIN);
    v.stats = parity_floats(&p, 2 * cols, 1, PARITY_PLAIN);
    v.gamma = has_parameters ? parity_floats(&p, cols, 1, PARITY_PLAIN) : NONE;
    v.sums = has_parameters ? parity_doubles_as(&p, PARITY_IN, 2 * cols, 10) : NONE;
    v.dy = parity_floats(&p, rows * cols, 1, PARITY_PLAIN);
    v.dx = parity_out(&p, sizeof(float), rows * cols);
    parity_run(&p, backward, &v);
    parity_same(&p, v.dx);
    parity_end(&p);
}

/* dx in the place of dy; d_gamma and d_beta, added to what is there, or not. */
static void check_gradients(int64_t rows, int64_t cols, int offset, float accumulate)
{
    struct batch_norm v = ABSENT;
    struct parity p;
    v.rows = rows;
    v.cols = cols;
    v.count = (double)rows + 1;
    v.accumulate = accumulate;
    begin(&p, accumulate == 0.0f ? "batch_norm_backward, in place" : "the same, adding", rows, cols,
          offset);
    v.x = parity_floats(&p, rows * cols, 3, PARITY_PLAIN);
    v.stats = parity_floats(&p, 2 * cols, 1, PARITY_PLAIN);
    v.gamma = parity_floats(&p, cols, 1, PARITY_PLAIN);
    v.sums = parity_doubles_as(&p, PARITY_IN, 2 * cols, 10);
    v.dx = v.dy = parity_floats_as(&p, PARITY_INOUT, rows * cols, 1, PARITY_PLAIN);
    v.d_gamma = accumulate == 0.0f ? parity_out(&p, sizeof(float), cols)
                                   : parity_floats_as(&p, PARITY_INOUT, cols, 1, PARITY_PLAIN);
    v.d_beta = parity_floats_as(&p, PARITY_INOUT, cols, 1, PARITY_PLAIN);
    parity_run(&p, backward, &v);
    parity_same(&p, v.dx);
    parity_near(&p, v.d_gamma, 1e-6, 1e-6);
    parity_near(&p, v.d_beta, 1e-6, 1e-6);
    parity_end(&p);
}

static void check_stats(int64_t cols, int offset)
{
    struct batch_norm v = ABSENT;
    struct parity p;
    v.cols = cols;
    v.count = 37;
    v.epsilon = 1e-3;
    v.momentum = 0.99;
    begin(&p, "batch_stats", 37, cols, offset);
    v.sums = parity_doubles_as(&p, PARITY_IN, 2 * cols, 1000);
    v.stats = parity_out(&p, sizeof(float), 2 * cols);
    parity_run(&p, stats, &v);
    parity_same(&p, v.stats);
    parity_end(&p);
    begin(&p, "update_moving", 37, cols, offset);
    v.sums = parity_doubles_as(&p, PARITY_IN, 2 * cols, 1000);
    v.mean = parity_floats_as(&p, PARITY_INOUT, cols, 10, PARITY_PLAIN);
    v.variance = parity_floats_as(&p, PARITY_INOUT, cols, 10, PARITY_PLAIN);
    parity_run(&p, update_moving, &v);
    parity_same(&p, v.mean);
    parity_same(&p, v.variance);
    parity_end(&p);
    begin(&p, "moving_stats", 37, cols, offset);
    v.mean = parity_floats(&p, cols, 10, PARITY_ODD);
    v.variance = parity_floats(&p, cols, 10, PARITY_ODD);
    v.stats = parity_out(&p, sizeof(float), 2 * cols);
    parity_run(&p, moving_stats, &v);
    parity_same(&p, v.stats);
    parity_end(&p);
}

static void sums_and_elements_are_the_cpus(void **state)
{
    (void)state;
    for (size_t r = 0; r < ARRAY_LEN(ROWS); r++)
        for (size_t c = 0; c < ARRAY_LEN(COLS); c++)
            for (int offset = 0; offset < 2; offset++) {
                check_sums(ROWS[r], COLS[c], offset);
                check_elements(ROWS[r], COLS[c], offset, 1);
                check_elements(ROWS[r], COLS[c], offset, 0);
                check_gradients(ROWS[r], COLS[c], offset, 0.0f);
                check_gradients(ROWS[r], COLS[c], offset, 1.0f);
            }
    for (size_t c = 0; c < ARRAY_LEN(COLS); c++)
        for (int offset = 0; offset < 2; offset++)
            check_stats(COLS[c], offset);
    check_sums(20011, 3, 0); /* more rows than chunks of the least size */
    check_elements(20011, 3, 0, 1);
}

/* ---- slopes ---- */

struct slopes {
    struct batch_norm_args a;
    double *sums;
    float *y, *stats;
    const float *w;
};

static double value(const void *context)
{
    const struct slopes *s = context;
    ops_cuda.batch_moments(s->a.rows, s->a.cols, s->a.x, s->sums);
    ops_cuda.batch_stats(s->a.cols, s->sums, (double)s->a.rows, 1e-2, s->stats);
    ops_cuda.batch_normalize(&s->a, s->y);
    return slopes_value(s->a.rows * s->a.cols, s->y, s->w);
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    enum { N = 11 * 5 };
    CLEANUP(mem_freep) float *random = slopes_random(N, 1);
    CLEANUP(mem_freep) float *w = slopes_random(N, 2);
    float *x = slopes_upload(N, random), *gamma = slopes_upload(5, random + 7);
    float *beta = slopes_upload(5, random + 20), *dy = slopes_upload(N, w);
    float *dx = slopes_upload(N, NULL), *d_gamma = slopes_upload(5, NULL);
    float *d_beta = slopes_upload(5, NULL);
    struct slopes s = {.y = slopes_upload(N, NULL), .stats = slopes_upload(10, NULL), .w = w};
    s.sums = ops_cuda.alloc(10 * sizeof *s.sums);
    s.a = (struct batch_norm_args){
        .rows = 11, .cols = 5, .x = x, .stats = s.stats, .gamma = gamma, .beta = beta};
    value(&s);
    ops_cuda.batch_norm_sums(&s.a, dy, s.sums);
    ops_cuda.batch_norm_backward(&s.a, dy, s.sums, 11, dx, 0.0f, d_gamma, d_beta);
    slopes_check("dx", N, x, dx, 0x1p-8f, 3e-3, value, &s);
    slopes_check("d_gamma", 5, gamma, d_gamma, 0.25f, 1e-3, value, &s);
    slopes_check("d_beta", 5, beta, d_beta, 0.25f, 1e-3, value, &s);
    float *all[] = {x, gamma, beta, dy, dx, d_gamma, d_beta, s.y, s.stats};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        ops_cuda.release(all[i]);
    ops_cuda.release(s.sums);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_elements_are_the_cpus),
        cmocka_unit_test(gradients_are_slopes),
    };
    return parity_main(tests);
}
