/* The GPU's losses, metrics and gradients against the CPU's: every kind, from logits and from
 * probabilities, classes and targets, weights, ties, and outputs that are no numbers. */
#include "tests/unit/cuda_parity.h"

struct case_args {
    struct loss_args a;                                 /* without pointers */
    int out, classes, targets, gradient, sums, weights; /* < 0: NULL */
};

static void loss_verb(struct parity_side *s, const void *args)
{
    const struct case_args *c = args;
    struct loss_args a = c->a;
    a.out = parity_at(s, c->out);
    a.classes = parity_at(s, c->classes);
    a.targets = parity_at(s, c->targets);
    a.gradient = parity_at(s, c->gradient);
    a.sums = parity_at(s, c->sums);
    a.weights = parity_at(s, c->weights);
    s->ops->loss(&a);
}

static int outputs(struct parity *p, const struct loss_args *a)
{
    CLEANUP(mem_freep) float *x = mem_alloc((size_t)(a->rows * a->cols + 1) * sizeof *x);
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        float u = parity_next(p);
        x[i] = a->from_logits || a->kind == LOSS_MEAN_SQUARED_ERROR ? 4.0f * u : 0.5f + 0.52f * u;
        if (i % 3 == 1)
            x[i] = x[i - 1]; /* ties */
    }
    return parity_given(p, sizeof *x, a->rows * a->cols, x);
}

static int classes(struct parity *p, const struct loss_args *a)
{
    CLEANUP(mem_freep) int32_t *x = mem_alloc((size_t)(a->rows + 1) * sizeof *x);
    for (int64_t i = 0; i < a->rows; i++)
        x[i] = (int32_t)(i * 7 % a->cols);
    return parity_given(p, sizeof *x, a->rows, x);
}

static int targets(struct parity *p, const struct loss_args *a)
{
    CLEANUP(mem_freep) float *x = mem_alloc((size_t)(a->rows * a->cols + 1) * sizeof *x);
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        float u = parity_next(p);
        x[i] = u < -0.4f ? 0.0f : 0.5f + 0.5f * u; /* ties, zeroes */
        if (a->kind == LOSS_BINARY_CROSSENTROPY && i % 2)
            x[i] = u > 0.0f ? 1.0f : 0.0f;
    }
    return parity_given(p, sizeof *x, a->rows * a->cols, x);
}

static void compare(struct parity *p, const struct case_args *c)
{
    const double *cpu = parity_of(p, c->sums, 0), *gpu = parity_of(p, c->sums, 1);
    double n = (double)c->a.rows;
    if (c->gradient >= 0)
        parity_near(p, c->gradient, 1e-5, 1e-6);
    if (cpu[1] != gpu[1])
        fail_msg("%s: %g right by the GPU, %g by the CPU", p->name, gpu[1], cpu[1]);
    for (int k = 0; k < 3; k += 2)
        if (!parity_is_near(gpu[k], cpu[k], 1e-6, 1e-7 * n))
            fail_msg("%s: sum %d: the GPU has %.17g, the CPU %.17g", p->name, k, gpu[k], cpu[k]);
}

static void finish_case(struct parity *p, struct case_args *c, int wants_gradient)
{
    static const double before[3] = {0.5, 3, 0.25};
    c->gradient = wants_gradient ? parity_out(p, sizeof(float), c->a.rows * c->a.cols) : -1;
    c->sums = parity_add(p, PARITY_INOUT, sizeof(double), 3, before);
    parity_run(p, loss_verb, c);
    compare(p, c);
    parity_end(p);
}

enum { BY_CLASS = 1, WEIGHTED = 2, GRADIENT = 4, OFFSET = 8 };

static void loss_once(enum loss kind, int from_logits, int64_t rows, int64_t cols, int what)
{
    struct parity p;
    struct case_args c = {
        .a = {.kind = kind, .from_logits = from_logits, .rows = rows, .cols = cols},
        .classes = -1,
        .targets = -1,
        .weights = -1};
    parity_begin(&p, "loss", "kind %d, logits %d, %lld x %lld, case %d", (int)kind, from_logits,
                 (long long)rows, (long long)cols, what);
    p.offset = what & OFFSET ? 1 : 0;
    c.out = outputs(&p, &c.a);
    if (what & BY_CLASS)
        c.classes = classes(&p, &c.a);
    else
        c.targets = targets(&p, &c.a);
    if (what & WEIGHTED) {
        c.a.weight_count = cols > 4 ? 3 : 2; /* others have 1 */
        c.weights = parity_floats(&p, c.a.weight_count, 2.0f, PARITY_PLAIN);
    }
    finish_case(&p, &c, what & GRADIENT);
}

static const int64_t SHAPES[][2] = {{0, 3},  {1, 1},   {1, 2},    {7, 1},    {1025, 1}, {33, 10},
                                    {5, 31}, {13, 32}, {9, 1025}, {3, 4099}, {257, 5}};

static void every_loss(enum loss kind, int from_logits)
{
    static const int cases[] = {GRADIENT,
                                BY_CLASS | GRADIENT,
                                WEIGHTED | GRADIENT,
                                BY_CLASS | WEIGHTED | GRADIENT | OFFSET,
                                BY_CLASS,
                                0};
    for (int i = 0; i < (int)ARRAY_LEN(SHAPES); i++)
        for (int c = 0; c < (int)ARRAY_LEN(cases); c++)
            loss_once(kind, from_logits, SHAPES[i][0], SHAPES[i][1], cases[c]);
}

static void from_logits(void **state)
{
    (void)state;
    every_loss(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1);
    every_loss(LOSS_CATEGORICAL_CROSSENTROPY, 1);
    every_loss(LOSS_BINARY_CROSSENTROPY, 1);
}

static void from_outputs(void **state)
{
    (void)state;
    every_loss(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 0);
    every_loss(LOSS_CATEGORICAL_CROSSENTROPY, 0);
    every_loss(LOSS_BINARY_CROSSENTROPY, 0);
    every_loss(LOSS_MEAN_SQUARED_ERROR, 0);
}

/* More rows than one pass of all blocks takes. */
static void many_rows(void **state)
{
    (void)state;
    loss_once(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 1, 20011, 3, BY_CLASS | GRADIENT);
    loss_once(LOSS_MEAN_SQUARED_ERROR, 0, 2050, 1030, GRADIENT);
}

/* One row each, so that what a row does to the sums is seen. */
static void odd_outputs(void **state)
{
    (void)state;
    static const float rows[][5] = {{NAN, 1, 2, 3, 4},
                                    {1, NAN, 2, 3, 4},
                                    {1, 2, 3, 4, NAN},
                                    {INFINITY, 1, 2, 3, 4},
                                    {1, 2, 3, 4, -INFINITY},
                                    {-INFINITY, 1, 2, 3, 4},
                                    {1e4f, -1e4f, 0, 0, 0},
                                    {0, 0, 0, 0, 0},
                                    {3e38f, 3e38f, -3e38f, 1, 1},
                                    {1e-40f, 0, -0.0f, 0, 0},
                                    {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    for (int kind = 0; kind < LOSS__MAX; kind++)
        for (int i = 0; i < (int)ARRAY_LEN(rows) * 4; i++) {
            struct parity p;
            struct case_args c = {.a = {.kind = (enum loss)kind,
                                        .from_logits = kind == LOSS_MEAN_SQUARED_ERROR ? 0 : i & 1,
                                        .rows = 1,
                                        .cols = 5},
                                  .classes = -1,
                                  .targets = -1,
                                  .weights = -1};
            parity_begin(&p, "loss", "kind %d, odd row %d, case %d", kind, i / 4, i % 4);
            c.out = parity_given(&p, sizeof(float), 5, rows[i / 4]);
            if (i & 2)
                c.classes = classes(&p, &c.a);
            else
                c.targets = targets(&p, &c.a);
            finish_case(&p, &c, 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_logits),
        cmocka_unit_test(from_outputs),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(odd_outputs),
    };
    return parity_main(tests);
}
