/* The GPU's sums of squares and updates against the CPU's. Updates give the same bits, and so do
 * the sums that are taken without rounding. */
#include "tests/unit/cuda_parity.h"

/* ---- updates ---- */

enum update {
    ADAM,
    ADAM_BFLOAT16,
    SGD,
    SGD_NESTEROV,
    SGD_PLAIN,
    SGD_BFLOAT16,
    OUTER,
    OUTER_PLAIN,
    UPDATES
};
static const char *const NAMES[] = {"adam",      "adam_bfloat16", "sgd",        "sgd nesterov",
                                    "sgd plain", "sgd_bfloat16",  "outer_step", "outer_step plain"};

struct update_args {
    enum update kind;
    int64_t n;
    int g, w, m, v; /* < 0: NULL */
};

static const struct elem_adam ADAM_STEP = {.rate = 1.3e-3f,
                                           .beta_1 = 0.9f,
                                           .rest_1 = 0.1f,
                                           .beta_2 = 0.999f,
                                           .rest_2 = 0.001f,
                                           .epsilon = 1e-7f,
                                           .scale = 1.0f / 48,
                                           .decay = 0.9999f};
static const struct elem_dither DITHER = {.first = 0xfffffff0u, .update = 12345678901u};

static void update_verb(struct parity_side *s, const void *args)
{
    const struct update_args *a = args;
    struct elem_sgd sgd = {0.03f, 0.9f, 1.0f / 48, a->kind == SGD_NESTEROV};
    struct elem_outer outer = {0.7f, 0.9f};
    void *g = parity_at(s, a->g), *w = parity_at(s, a->w), *m = parity_at(s, a->m);
    void *v = parity_at(s, a->v);
    size_t n = (size_t)a->n;
    switch (a->kind) {
    case ADAM: s->ops->adam(&ADAM_STEP, n, g, w, m, v); break;
    case ADAM_BFLOAT16: s->ops->adam_bfloat16(&ADAM_STEP, &DITHER, n, g, w, m, v); break;
    case SGD:
    case SGD_NESTEROV:
    case SGD_PLAIN: s->ops->sgd(&sgd, n, g, w, m); break;
    case SGD_BFLOAT16: s->ops->sgd_bfloat16(&sgd, &DITHER, n, g, w, m); break;
    case OUTER:
    case OUTER_PLAIN: s->ops->outer_step(&outer, n, w, g, m); break;
    case UPDATES: break;
    }
}

static int moments(struct parity *p, enum update kind, int64_t n, enum parity_values values)
{
    if (kind == ADAM_BFLOAT16 || kind == SGD_BFLOAT16)
        return parity_bfloats_as(p, PARITY_INOUT, n, 0.01f, values);
    return parity_floats_as(p, PARITY_INOUT, n, 0.01f, values);
}

static void update_once(enum update kind, int64_t n, int offset, enum parity_values values)
{
    struct parity p;
    struct update_args a = {.kind = kind, .n = n, .m = -1, .v = -1};
    int is_outer = kind == OUTER || kind == OUTER_PLAIN;
    parity_begin(&p, NAMES[kind], "n %lld, offset %d, values %d", (long long)n, offset,
                 (int)values);
    p.offset = offset;
    a.g = parity_floats_as(&p, is_outer ? PARITY_INOUT : PARITY_IN, n, 3.0f, values);
    a.w = parity_floats_as(&p, PARITY_INOUT, n, 1.0f, values);
    if (kind != SGD_PLAIN && kind != OUTER_PLAIN)
        a.m = moments(&p, kind, n, values);
    if (kind == ADAM || kind == ADAM_BFLOAT16)
        a.v = moments(&p, kind, n, values);
    parity_run(&p, update_verb, &a);
    for (int i = 0; i < p.count; i++)
        parity_same(&p, i);
    parity_end(&p);
}

static void updates_give_the_cpus_bits(void **state)
{
    (void)state;
    for (int k = 0; k < UPDATES; k++)
        for (int i = 0; i < PARITY_SIZE_COUNT; i++)
            for (int c = 0; c < 6; c++)
                update_once((enum update)k, PARITY_SIZES[i], c % 4,
                            c < 3 ? PARITY_PLAIN : PARITY_ODD);
}

/* More elements than a grid has threads. */
static void a_large_model(void **state)
{
    (void)state;
    update_once(ADAM, 1200003, 0, PARITY_PLAIN);
    update_once(ADAM_BFLOAT16, 1200003, 1, PARITY_PLAIN);
}

/* ---- sums of squares ---- */

struct sum_args {
    int64_t n;
    int x;
    struct exact_sum *exact; /* [2]: of the CPU and of the GPU; NULL: rounded */
};

static void sum_verb(struct parity_side *s, const void *args)
{
    const struct sum_args *a = args;
    if (a->exact)
        s->ops->sum_squares_exactly((size_t)a->n, parity_at(s, a->x), &a->exact[s->is_gpu]);
    else
        s->ops->sum_squares((size_t)a->n, parity_at(s, a->x), s->result);
}

static void assert_same_number(const struct parity *p, const struct exact_sum *sums)
{
    for (int i = 0; i < EXACT_LIMBS; i++)
        if (sums[0].limb[i] != sums[1].limb[i])
            fail_msg("%s: limb %d: the GPU has %" PRIx64 ", the CPU %" PRIx64, p->name, i,
                     sums[1].limb[i], sums[0].limb[i]);
    assert_int_equal(sums[0].not_finite != 0, sums[1].not_finite != 0);
}

static void sum_once(int64_t n, float scale, enum parity_values values, int offset)
{
    struct parity p;
    struct exact_sum exact[2] = {{{7, 1}, 0}, {{7, 1}, 0}}; /* added to */
    struct sum_args a = {.n = n};
    parity_begin(&p, "sum_squares", "n %lld, scale %g, values %d, offset %d", (long long)n,
                 (double)scale, (int)values, offset);
    p.offset = offset;
    a.x = parity_floats(&p, n, scale, values);
    parity_run(&p, sum_verb, &a);
    parity_result_near(&p, 0, 1e-13, 0);
    a.exact = exact;
    parity_run(&p, sum_verb, &a);
    assert_same_number(&p, exact);
    parity_end(&p);
}

static void sums_of_squares(void **state)
{
    (void)state;
    static const int64_t more[] = {511, 512, 513, 32768, 32769, 300007};
    static const float scales[] = {1.0f, 0x1p-140f, 1e-20f, 1e19f, 0x1p127f};
    for (int s = 0; s < (int)ARRAY_LEN(scales); s++)
        for (int i = 0; i < PARITY_SIZE_COUNT + (int)ARRAY_LEN(more); i++) {
            int64_t n = i < PARITY_SIZE_COUNT ? PARITY_SIZES[i] : more[i - PARITY_SIZE_COUNT];
            sum_once(n, scales[s], PARITY_PLAIN, i % 2);
            sum_once(n, scales[s], PARITY_SMALL, 0);
        }
}

/* Every exponent there is, near and far from the largest of its tile. */
static void every_exponent(void **state)
{
    (void)state;
    enum { N = 254 * 37 };
    CLEANUP(mem_freep) float *x = mem_alloc(N * sizeof *x);
    struct exact_sum exact[2] = {{{0}, 0}, {{0}, 0}};
    struct parity p;
    struct sum_args a = {.n = N, .exact = exact};
    parity_begin(&p, "sum_squares_exactly", "every exponent");
    for (uint32_t i = 0; i < N; i++)
        x[i] = elem_from_bits((i * 101 % 255) << 23 | (i * 2654435761u >> 9) | i << 31);
    a.x = parity_given(&p, sizeof *x, N, x);
    parity_run(&p, sum_verb, &a);
    assert_same_number(&p, exact);
    assert_int_equal(exact[0].not_finite, 0);
    parity_end(&p);
}

static void what_is_not_finite_shows(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++)
        for (int64_t at = 0; at < 5000; at += 999) {
            CLEANUP(mem_freep) float *x = mem_zalloc(5000 * sizeof *x);
            struct exact_sum exact[2] = {{{0}, 0}, {{0}, 0}};
            struct parity p;
            struct sum_args a = {.n = 5000};
            parity_begin(&p, "sum_squares", "%g at %lld", (double)odd[i], (long long)at);
            x[at] = odd[i];
            a.x = parity_given(&p, sizeof *x, 5000, x);
            parity_run(&p, sum_verb, &a);
            assert_true(!isfinite(p.result[1][0]));
            a.exact = exact;
            parity_run(&p, sum_verb, &a);
            assert_int_equal(exact[1].not_finite, 1);
            assert_true(isnan(exact_to_double(&exact[1])));
            parity_end(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_give_the_cpus_bits),
        cmocka_unit_test(a_large_model),
        cmocka_unit_test(sums_of_squares),
        cmocka_unit_test(every_exponent),
        cmocka_unit_test(what_is_not_finite_shows),
    };
    return parity_main(tests);
}
