/* The GPU's layer normalisation against the CPU's: rows for a warp and for a block, with and
 * without gamma and beta, in place, and where the columns' sums do not fit a block's memory. */
#include "tests/unit/cuda_parity.h"

struct matrix {
    int64_t rows, cols;
};
static const struct matrix SHAPES[] = {
    {0, 5},   {5, 0},    {1, 1},    {1, 2},    {3, 7},     {7, 32},  {33, 128}, {13, 31}, {5, 1025},
    {257, 3}, {90, 600}, {9, 4099}, {3, 7001}, {4100, 17}, {9, 768}, {2, 6016}, {2, 6144}};

struct norm_args {
    struct matrix m;
    float accumulate;
    int x, gamma, beta, stats, y; /* < 0: NULL */
    int dy, dx, d_gamma, d_beta;
};

static void norm_verb(struct parity_side *s, const void *args)
{
    const struct norm_args *a = args;
    s->ops->normalize(a->m.rows, a->m.cols, 1e-3f, parity_at(s, a->x), parity_at(s, a->gamma),
                      parity_at(s, a->beta), parity_at(s, a->stats), parity_at(s, a->y));
}

/* Rows with a mean that is large beside what is around it. */
static int rows_off_zero(struct parity *p, struct matrix m)
{
    CLEANUP(mem_freep) float *x = mem_alloc((size_t)(m.rows * m.cols + 1) * sizeof *x);
    for (int64_t i = 0; i < m.rows * m.cols; i++)
        x[i] = (float)(i / m.cols % 5) * 100.0f + parity_next(p);
    return parity_given(p, sizeof *x, m.rows * m.cols, x);
}

static void normalize_once(struct matrix m, int has_gamma, int has_beta, int offset)
{
    struct parity p;
    struct norm_args a = {.m = m, .gamma = -1, .beta = -1};
    parity_begin(&p, "normalize", "%lld x %lld, gamma %d, beta %d, offset %d", (long long)m.rows,
                 (long long)m.cols, has_gamma, has_beta, offset);
    p.offset = offset;
    a.x = rows_off_zero(&p, m);
    if (has_gamma)
        a.gamma = parity_floats(&p, m.cols, 2.0f, PARITY_PLAIN);
    if (has_beta)
        a.beta = parity_floats(&p, m.cols, 2.0f, PARITY_PLAIN);
    a.stats = parity_out(&p, sizeof(float), 2 * m.rows);
    a.y = parity_out(&p, sizeof(float), m.rows * m.cols);
    parity_run(&p, norm_verb, &a);
    /* The mean of numbers near 400 is known to some units of 2^-15, and a deviation to as many. */
    parity_near(&p, a.stats, 1e-3, 4e-4);
    parity_near(&p, a.y, 2e-3, 2e-3);
    parity_end(&p);
}

/* The result by float64, to which the GPU is no less near than the CPU, but for a little. */
static double worst_error(const struct parity *p, const struct norm_args *a, int side)
{
    const float *x = parity_host_floats(p, a->x), *y = parity_of(p, a->y, side);
    double worst = 0;
    for (int64_t r = 0; r < a->m.rows; r++, x += a->m.cols, y += a->m.cols) {
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < a->m.cols; c++)
            sum += (double)x[c];
        double mean = sum / (double)a->m.cols;
        for (int64_t c = 0; c < a->m.cols; c++)
            squares += ((double)x[c] - mean) * ((double)x[c] - mean);
        double rstd = 1 / sqrt(squares / (double)a->m.cols + 1e-3);
        for (int64_t c = 0; c < a->m.cols; c++)
            worst = fmax(worst, fabs((double)y[c] - ((double)x[c] - mean) * rstd));
    }
    return worst;
}

static void as_precise_as_the_cpu(void **state)
{
    (void)state;
    static const struct matrix shapes[] = {{40, 257}, {40, 1000}, {20, 4099}};
    for (int i = 0; i < (int)ARRAY_LEN(shapes); i++) {
        struct parity p;
        struct norm_args a = {.m = shapes[i], .gamma = -1, .beta = -1};
        parity_begin(&p, "normalize", "precision %lld", (long long)a.m.cols);
        a.x = rows_off_zero(&p, a.m);
        a.stats = parity_out(&p, sizeof(float), 2 * a.m.rows);
        a.y = parity_out(&p, sizeof(float), a.m.rows * a.m.cols);
        parity_run(&p, norm_verb, &a);
        double cpu = worst_error(&p, &a, 0), gpu = worst_error(&p, &a, 1);
        if (!(gpu <= 2 * cpu + 1e-6))
            fail_msg("%s: the GPU is off by %g, the CPU by %g", p.name, gpu, cpu);
        parity_end(&p);
    }
}

static void rows_are_normalised(void **state)
{
    (void)state;
    for (int i = 0; i < (int)ARRAY_LEN(SHAPES); i++)
        for (int c = 0; c < 4; c++)
            normalize_once(SHAPES[i], c & 1, c >> 1, c == 3);
}

/* A row with a number that is none is lost, and no other. */
static void odd_rows(void **state)
{
    (void)state;
    static const float x[][4] = {{1, 2, 3, 4},          {1, NAN, 3, 4},      {INFINITY, 2, 3, 4},
                                 {1e-40f, 0, 0, -0.0f}, {7, 7, 7, 7},        {3e38f, 3e38f, 1, 1},
                                 {0, 0, 0, 0},          {5, 6, 7, -INFINITY}};
    struct parity p;
    struct norm_args a = {.m = {ARRAY_LEN(x), 4}, .gamma = -1, .beta = -1};
    parity_begin(&p, "normalize", "odd rows");
    a.x = parity_given(&p, sizeof(float), ARRAY_LEN(x) * 4, x);
    a.stats = parity_out(&p, sizeof(float), 2 * ARRAY_LEN(x));
    a.y = parity_out(&p, sizeof(float), ARRAY_LEN(x) * 4);
    parity_run(&p, norm_verb, &a);
    parity_near(&p, a.stats, 1e-6, 1e-6);
    parity_near(&p, a.y, 1e-5, 1e-5);
    parity_end(&p);
}

/* ---- backward ---- */

static void backward_verb(struct parity_side *s, const void *args)
{
    const struct norm_args *a = args;
    s->ops->normalize_backward(a->m.rows, a->m.cols, parity_at(s, a->x), parity_at(s, a->stats),
                               parity_at(s, a->gamma), parity_at(s, a->dy), parity_at(s, a->dx),
                               a->accumulate, parity_at(s, a->d_gamma), parity_at(s, a->d_beta));
}

static int stats_of(struct parity *p, struct matrix m, int x)
{
    CLEANUP(mem_freep) float *stats = mem_zalloc((size_t)(2 * m.rows + 1) * sizeof *stats);
    CLEANUP(mem_freep) float *y = mem_alloc((size_t)(m.rows * m.cols + 1) * sizeof *y);
    ops_cpu.normalize(m.rows, m.cols, 1e-3f, parity_host_floats(p, x), NULL, NULL, stats, y);
    return parity_given(p, sizeof *stats, 2 * m.rows, stats);
}

/* What is wanted of one call. */
enum { GAMMA = 1, DX = 2, D_GAMMA = 4, D_BETA = 8, IN_PLACE = 16, ADDED = 32, OFFSET = 64 };

static void backward_once(struct matrix m, int what)
{
    struct parity p;
    struct norm_args a = {.m = m,
                          .gamma = -1,
                          .dx = -1,
                          .d_gamma = -1,
                          .d_beta = -1,
                          .accumulate = what & ADDED ? 1.0f : 0.0f};
    int64_t n = m.rows * m.cols;
    parity_begin(&p, "normalize_backward", "%lld x %lld, case %d", (long long)m.rows,
                 (long long)m.cols, what);
    p.offset = what & OFFSET ? 1 : 0;
    a.x = parity_floats(&p, n, 1.5f, PARITY_PLAIN);
    a.stats = stats_of(&p, m, a.x);
    if (what & GAMMA)
        a.gamma = parity_floats(&p, m.cols, 1.0f, PARITY_PLAIN);
    a.dy = parity_floats_as(&p, what & IN_PLACE ? PARITY_INOUT : PARITY_IN, n, 1.0f, PARITY_PLAIN);
    if (what & DX)
        a.dx = what & IN_PLACE ? a.dy : parity_out(&p, sizeof(float), n);
    if (what & D_GAMMA)
        a.d_gamma = parity_floats_as(&p, PARITY_INOUT, m.cols, 1.0f, PARITY_PLAIN);
    if (what & D_BETA)
        a.d_beta = parity_floats_as(&p, PARITY_INOUT, m.cols, 1.0f, PARITY_PLAIN);
    parity_run(&p, backward_verb, &a);
    double room = 1e-5 * sqrt((double)m.rows + 1);
    if (what & DX)
        parity_near(&p, a.dx, 1e-4, 3e-5);
    if (what & D_GAMMA)
        parity_near(&p, a.d_gamma, 1e-5, room);
    if (what & D_BETA)
        parity_near(&p, a.d_beta, 1e-5, room);
    parity_end(&p);
}

static void gradients_are_the_cpus(void **state)
{
    (void)state;
    static const int cases[] = {DX,
                                DX | GAMMA | IN_PLACE | OFFSET,
                                D_GAMMA | D_BETA,
                                DX | D_GAMMA | D_BETA | GAMMA,
                                DX | D_GAMMA | D_BETA | GAMMA | IN_PLACE | ADDED,
                                DX | D_BETA | ADDED | OFFSET,
                                DX | D_GAMMA | IN_PLACE,
                                D_BETA | ADDED};
    for (int i = 0; i < (int)ARRAY_LEN(SHAPES); i++)
        for (int c = 0; c < (int)ARRAY_LEN(cases); c++)
            backward_once(SHAPES[i], cases[c]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_normalised),
        cmocka_unit_test(as_precise_as_the_cpu),
        cmocka_unit_test(odd_rows),
        cmocka_unit_test(gradients_are_the_cpus),
    };
    return parity_main(tests);
}
