/* The GPU's elementwise verbs, activations, softmax and dropout against the CPU's: odd sizes, odd
 * addresses, odd numbers, in place and not. */
#include "tests/unit/cuda_parity.h"

/* ---- one array into another ---- */

enum one {
    TO_BFLOAT16,
    FROM_BFLOAT16,
    ROUND_BFLOAT16,
    ADD,
    ADD_F64,
    AFFINE,
    AFFINE_IN_PLACE,
    ONES
};
static const char *const ONE_NAMES[] = {"to_bfloat16", "from_bfloat16", "round_bfloat16", "add",
                                        "add_f64",     "affine",        "affine in place"};

struct one_args {
    enum one kind;
    int64_t n;
    int x, y;
};

static void one_verb(struct parity_side *s, const void *args)
{
    const struct one_args *a = args;
    void *x = parity_at(s, a->x), *y = parity_at(s, a->y);
    switch (a->kind) {
    case TO_BFLOAT16: s->ops->to_bfloat16((size_t)a->n, x, y); break;
    case FROM_BFLOAT16: s->ops->from_bfloat16((size_t)a->n, x, y); break;
    case ROUND_BFLOAT16: s->ops->round_bfloat16((size_t)a->n, x, y); break;
    case ADD: s->ops->add((size_t)a->n, x, y); break;
    case ADD_F64: s->ops->add_f64((size_t)a->n, x, y); break;
    case AFFINE:
    case AFFINE_IN_PLACE: s->ops->affine(a->n, 1.7f, -0.3f, x, y); break;
    case ONES: break;
    }
}

static void fill_one(struct parity *p, struct one_args *a)
{
    if (a->kind == FROM_BFLOAT16)
        a->x = parity_bfloats_as(p, PARITY_IN, a->n, 2.0f, PARITY_ODD);
    else if (a->kind == ADD_F64)
        a->x = parity_doubles_as(p, PARITY_IN, a->n, 3.0);
    else
        a->x = parity_floats_as(p, a->kind == AFFINE_IN_PLACE ? PARITY_INOUT : PARITY_IN, a->n,
                                2.0f, PARITY_ODD);
    if (a->kind == ADD)
        a->y = parity_floats_as(p, PARITY_INOUT, a->n, 2.0f, PARITY_ODD);
    else if (a->kind == ADD_F64)
        a->y = parity_doubles_as(p, PARITY_INOUT, a->n, 3.0);
    else if (a->kind == AFFINE_IN_PLACE)
        a->y = a->x;
    else
        a->y = parity_out(p, a->kind == TO_BFLOAT16 ? 2 : 4, a->n);
}

static void elements_are_the_cpus(void **state)
{
    (void)state;
    for (int k = 0; k < ONES; k++)
        for (int i = 0; i < PARITY_SIZE_COUNT; i++)
            for (int offset = 0; offset < 4; offset++) {
                struct parity p;
                struct one_args a = {.kind = (enum one)k, .n = PARITY_SIZES[i]};
                parity_begin(&p, ONE_NAMES[k], "n %lld, offset %d", (long long)a.n, offset);
                p.offset = offset;
                fill_one(&p, &a);
                parity_run(&p, one_verb, &a);
                parity_same(&p, a.y);
                parity_end(&p);
            }
}

/* Arrays that stand differently behind a multiple of 16 bytes. */
static void shifted_verb(struct parity_side *s, const void *args)
{
    const struct one_args *a = args;
    s->ops->add((size_t)a->n, (float *)parity_at(s, a->x) + 1, parity_at(s, a->y));
}

static void add_once(parity_verb *verb, const char *name, int64_t n)
{
    struct parity p;
    struct one_args a = {.kind = ADD, .n = n};
    parity_begin(&p, name, "n %lld", (long long)n);
    a.x = parity_floats(&p, n + 1, 1.0f, PARITY_ODD);
    a.y = parity_floats_as(&p, PARITY_INOUT, n, 1.0f, PARITY_ODD);
    parity_run(&p, verb, &a);
    parity_same(&p, a.y);
    parity_end(&p);
}

static void addresses_that_do_not_agree(void **state)
{
    (void)state;
    add_once(shifted_verb, "add, shifted", 777);
}

/* The largest grid has fewer threads than these have vectors, or elements. */
static void many_elements(void **state)
{
    (void)state;
    add_once(one_verb, "add", 4 * 8192 * 256 + 1027);
    add_once(shifted_verb, "add, shifted", 8192 * 256 + 1027);
}

/* ---- rows ---- */

struct matrix {
    int64_t rows, cols;
};
static const struct matrix SHAPES[] = {{0, 5},   {5, 0},   {1, 1},    {1, 4099}, {4099, 1},
                                       {3, 7},   {7, 32},  {33, 128}, {13, 31},  {5, 1025},
                                       {257, 3}, {64, 64}, {300, 12}};

enum where { APART, IN_PLACE };

struct activate_args {
    enum activation f;
    struct matrix shape;
    int bias, z, y; /* bias < 0: none; y is z in place */
};

static void activate_verb(struct parity_side *s, const void *args)
{
    const struct activate_args *a = args;
    s->ops->activate(a->f, a->shape.rows, a->shape.cols, parity_at(s, a->bias), parity_at(s, a->z),
                     parity_at(s, a->y));
}

/* Of softmax the row's sum has another order. */
static void compare_rows(struct parity *p, enum activation f, int array)
{
    if (f == ACTIVATION_SOFTMAX)
        parity_near(p, array, 4e-6, 1e-30);
    else
        parity_same(p, array);
}

static void activate_once(enum activation f, struct matrix shape, int has_bias, enum where where,
                          int offset)
{
    struct parity p;
    struct activate_args a = {.f = f, .shape = shape, .bias = -1};
    int64_t n = shape.rows * shape.cols;
    parity_begin(&p, "activate", "%s, %lld x %lld, bias %d, in place %d, offset %d",
                 activation_name(f), (long long)shape.rows, (long long)shape.cols, has_bias,
                 where == IN_PLACE, offset);
    p.offset = offset;
    /* One odd value makes all of a softmax's row one; those are tested by themselves. */
    enum parity_values kind = f == ACTIVATION_SOFTMAX ? PARITY_PLAIN : PARITY_ODD;
    if (has_bias)
        a.bias = parity_floats(&p, shape.cols, 2.0f, kind);
    a.z = parity_floats_as(&p, PARITY_INOUT, n, 6.0f, kind);
    a.y = where == IN_PLACE ? a.z : parity_out(&p, sizeof(float), n);
    parity_run(&p, activate_verb, &a);
    compare_rows(&p, f, a.y);
    if (where == APART)
        parity_same(&p, a.z);
    parity_end(&p);
}

static void activations_are_the_cpus(void **state)
{
    (void)state;
    for (int f = 0; f < ACTIVATION__MAX; f++)
        for (int i = 0; i < (int)ARRAY_LEN(SHAPES); i++)
            for (int c = 0; c < 8; c++)
                activate_once((enum activation)f, SHAPES[i], c & 1, c & 2 ? IN_PLACE : APART,
                              c >> 2);
}

static void softmax_of_odd_rows(void **state)
{
    (void)state;
    static const float rows[][5] = {
        {1, NAN, 2, 3, 4},
        {NAN, 1, 2, 3, 4},
        {INFINITY, 1, 2, 3, 4},
        {-INFINITY, 1, 2, 3, 4},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {INFINITY, -INFINITY, 0, 0, 0},
        {3e38f, -3e38f, 0, 1e-40f, -0.0f},
        {-3e38f, -3e38f, -3e38f, -3e38f, -3e38f},
        {88, -88, 1000, -1000, 0},
    };
    struct parity p;
    struct activate_args a = {ACTIVATION_SOFTMAX, {ARRAY_LEN(rows), 5}, -1, 0, 0};
    parity_begin(&p, "softmax", "odd rows");
    a.z = parity_add(&p, PARITY_INOUT, sizeof(float), ARRAY_LEN(rows) * 5, rows);
    a.y = parity_out(&p, sizeof(float), ARRAY_LEN(rows) * 5);
    parity_run(&p, activate_verb, &a);
    parity_near(&p, a.y, 4e-6, 1e-30);
    parity_end(&p);
}

/* ---- backward ---- */

struct derive_args {
    enum activation f;
    struct matrix shape;
    float beta;
    int kept, dy, dx, d_bias;
};

static void derive_verb(struct parity_side *s, const void *args)
{
    const struct derive_args *a = args;
    s->ops->activate_backward(a->f, a->shape.rows, a->shape.cols, parity_at(s, a->kept),
                              parity_at(s, a->dy), parity_at(s, a->dx), a->beta,
                              parity_at(s, a->d_bias));
}

/* A softmax's outputs, so that what is added up is of the size that it is in a network. */
static int softmax_outputs(struct parity *p, struct matrix shape)
{
    int64_t n = shape.rows * shape.cols;
    CLEANUP(mem_freep) float *y = mem_alloc((size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; i < n; i++)
        y[i] = 2.0f * parity_next(p);
    ops_cpu.activate(ACTIVATION_SOFTMAX, shape.rows, shape.cols, NULL, y, y);
    return parity_given(p, sizeof *y, n, y);
}

static void derive_once(enum activation f, struct matrix shape, int has_bias, float beta,
                        enum where where, int offset)
{
    struct parity p;
    struct derive_args a = {.f = f, .shape = shape, .beta = beta, .d_bias = -1};
    int64_t n = shape.rows * shape.cols;
    parity_begin(&p, "activate_backward",
                 "%s, %lld x %lld, bias %d, beta %g, in place %d, offset %d", activation_name(f),
                 (long long)shape.rows, (long long)shape.cols, has_bias, (double)beta,
                 where == IN_PLACE, offset);
    p.offset = offset;
    a.kept = f == ACTIVATION_SOFTMAX ? softmax_outputs(&p, shape)
                                     : parity_floats(&p, n, 0.9f, PARITY_PLAIN);
    a.dy =
        parity_floats_as(&p, where == IN_PLACE ? PARITY_INOUT : PARITY_IN, n, 1.0f, PARITY_PLAIN);
    a.dx = where == IN_PLACE ? a.dy : parity_out(&p, sizeof(float), n);
    if (has_bias)
        a.d_bias = parity_floats_as(&p, PARITY_INOUT, shape.cols, 1.0f, PARITY_PLAIN);
    parity_run(&p, derive_verb, &a);
    if (f == ACTIVATION_SOFTMAX)
        parity_near(&p, a.dx, 1e-5, 1e-7);
    else
        parity_same(&p, a.dx);
    if (has_bias)
        parity_near(&p, a.d_bias, 1e-5, 1e-5 * sqrt((double)shape.rows + 1));
    parity_end(&p);
}

static void slopes_are_the_cpus(void **state)
{
    (void)state;
    for (int f = 0; f < ACTIVATION__MAX; f++)
        for (int i = 0; i < (int)ARRAY_LEN(SHAPES); i++)
            for (int c = 0; c < 6; c++)
                derive_once((enum activation)f, SHAPES[i], c > 1, c & 4 ? 1.0f : 0.0f,
                            c & 1 ? IN_PLACE : APART, c == 3);
}

/* More rows than a block's chunk, so that chunks are added up; fewer and more than 32 columns. */
static void sums_of_many_rows(void **state)
{
    (void)state;
    derive_once(ACTIVATION_LINEAR, (struct matrix){70001, 3}, 1, 0.0f, IN_PLACE, 0);
    derive_once(ACTIVATION_RELU, (struct matrix){9001, 33}, 1, 1.0f, APART, 1);
    derive_once(ACTIVATION_SOFTMAX, (struct matrix){3001, 40}, 1, 1.0f, APART, 0);
}

/* ---- columns ---- */

struct copy_args {
    struct matrix shape;
    int64_t from_width, to_width;
    int from, to;
};

static void copy_verb(struct parity_side *s, const void *args)
{
    const struct copy_args *a = args;
    s->ops->copy_columns(a->shape.rows, a->shape.cols, parity_at(s, a->from), a->from_width,
                         parity_at(s, a->to), a->to_width);
}

static void columns_are_copied(void **state)
{
    (void)state;
    static const int64_t more[][2] = {{0, 0}, {4, 8}, {3, 5}, {0, 1}};
    for (int i = 0; i < (int)ARRAY_LEN(SHAPES); i++)
        for (int w = 0; w < 4; w++)
            for (int c = 0; c < 4; c++) {
                struct parity p;
                struct copy_args a = {.shape = SHAPES[i], .from = -1};
                a.from_width = a.shape.cols + more[w][0];
                a.to_width = a.shape.cols + more[w][1];
                parity_begin(&p, "copy_columns", "%lld x %lld, widths %lld %lld, case %d",
                             (long long)a.shape.rows, (long long)a.shape.cols,
                             (long long)a.from_width, (long long)a.to_width, c);
                p.offset = c & 1;
                if (c & 2)
                    a.from = parity_floats(&p, a.shape.rows * a.from_width, 1.0f, PARITY_ODD);
                a.to =
                    parity_floats_as(&p, PARITY_INOUT, a.shape.rows * a.to_width, 1.0f, PARITY_ODD);
                parity_run(&p, copy_verb, &a);
                parity_same_bits(&p, a.to);
                parity_end(&p);
            }
}

/* ---- dropout ---- */

struct drop_args {
    struct dropout_args a;
    struct matrix shape;
    int x, y;
};

static void drop_verb(struct parity_side *s, const void *args)
{
    const struct drop_args *d = args;
    s->ops->dropout(&d->a, d->shape.rows, d->shape.cols, parity_at(s, d->x), parity_at(s, d->y));
}

static void drop_once(int64_t rows, int64_t places, struct dropout_args a)
{
    struct parity p;
    struct drop_args d = {.a = a, .shape = {rows, places * a.width}};
    int64_t n = rows * d.shape.cols;
    parity_begin(&p, "dropout",
                 "%lld rows of %lld x %lld from %lld of %lld, rate %g, position %lld",
                 (long long)rows, (long long)places, (long long)a.width, (long long)a.first_column,
                 (long long)a.columns, (double)a.rate, (long long)a.position);
    d.x = parity_floats(&p, n, 1.0f, PARITY_ODD);
    d.y = parity_out(&p, sizeof(float), n);
    parity_run(&p, drop_verb, &d);
    parity_same(&p, d.y);
    parity_end(&p);
}

static void dropout_draws_the_cpus_numbers(void **state)
{
    (void)state;
    static const int64_t lines[][3] = {/* width, first, columns */
                                       {1, 0, 1},   {3, 0, 3},      {4, 0, 4},  {5, 2, 9},
                                       {1, 7, 8},   {4, 4, 8},      {7, 0, 21}, {64, 0, 64},
                                       {31, 1, 64}, {1025, 3, 2050}};
    static const float rates[] = {0.0f, 0.1f, 0.5f, 0.9f};
    for (int i = 0; i < (int)ARRAY_LEN(lines); i++)
        for (int64_t places = 1; places < 4; places++)
            drop_once(i + 2, places,
                      (struct dropout_args){.rate = rates[i % 4],
                                            .seed = 0x123456789abcdefu + (uint64_t)i,
                                            .stream = 0xfedcba9876543210u,
                                            .position = i % 2 ? 3 : (int64_t)1 << 40,
                                            .width = lines[i][0],
                                            .first_column = lines[i][1],
                                            .columns = lines[i][2]});
    drop_once(0, 2, (struct dropout_args){.rate = 0.5f, .width = 3, .columns = 3});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_the_cpus),
        cmocka_unit_test(addresses_that_do_not_agree),
        cmocka_unit_test(many_elements),
        cmocka_unit_test(activations_are_the_cpus),
        cmocka_unit_test(softmax_of_odd_rows),
        cmocka_unit_test(slopes_are_the_cpus),
        cmocka_unit_test(sums_of_many_rows),
        cmocka_unit_test(columns_are_copied),
        cmocka_unit_test(dropout_draws_the_cpus_numbers),
    };
    return parity_main(tests);
}
