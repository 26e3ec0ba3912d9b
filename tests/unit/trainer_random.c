/* Philox against the published known answers; initialisers by limits and moments. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/random.h"

/* kat_vectors of Random123, philox4x32 with 10 rounds. Use 0 leaves the key to the seed alone. */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, stream, index;
        uint32_t out[4];
    } KNOWN[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(KNOWN); i++) {
        uint32_t out[4];
        random_words(KNOWN[i].seed, (enum random_use)0, KNOWN[i].stream, KNOWN[i].index, out);
        assert_memory_equal(out, KNOWN[i].out, sizeof out);
    }
}

static void every_argument_counts(void **state)
{
    (void)state;
    uint32_t a[4], b[4];
    random_words(1, RANDOM_INIT, 2, 3, a);
    random_words(1, RANDOM_SHUFFLE, 2, 3, b);
    assert_memory_not_equal(a, b, sizeof a);
    random_words(2, RANDOM_INIT, 2, 3, b);
    assert_memory_not_equal(a, b, sizeof a);
    random_words(1, RANDOM_INIT, 3, 3, b);
    assert_memory_not_equal(a, b, sizeof a);
    random_words(1, RANDOM_INIT, 2, 4, b);
    assert_memory_not_equal(a, b, sizeof a);
    random_words(1 + (1ull << 32), RANDOM_INIT, 2, 3, b);
    assert_memory_not_equal(a, b, sizeof a);
    random_words(1, RANDOM_INIT, 2, 3, b);
    assert_memory_equal(a, b, sizeof a);
}

static void unit_is_below_one(void **state)
{
    (void)state;
    assert_true(random_unit(0) == 0.0f);
    assert_true(random_unit(UINT32_MAX) < 1.0f);
    assert_true(random_unit(UINT32_MAX) == 1.0f - 0x1p-24f);
    assert_true(random_unit(0x80000000) == 0.5f);
}

#define ROWS     300
#define COLS     500
#define ELEMENTS (ROWS * COLS)

struct moments {
    double mean, deviation, low, high;
};

static struct moments draw(enum initializer init, uint64_t seed, float *w)
{
    struct tensor_spec t = {.name = "kernel",
                            .shape = {2, {ROWS, COLS}},
                            .init = init,
                            .is_matrix = 1,
                            .fan_in = ROWS,
                            .fan_out = COLS};
    random_initialize(&t, seed, 0, w);
    struct moments m = {0, 0, w[0], w[0]};
    for (int i = 0; i < ELEMENTS; i++) {
        m.mean += (double)w[i] / ELEMENTS;
        m.low = fmin(m.low, (double)w[i]);
        m.high = fmax(m.high, (double)w[i]);
    }
    for (int i = 0; i < ELEMENTS; i++)
        m.deviation += pow((double)w[i] - m.mean, 2) / ELEMENTS;
    m.deviation = sqrt(m.deviation);
    return m;
}

/* With 150,000 elements a mean lies within deviation / 387, four of which are allowed. */
static void check(enum initializer init, double deviation, double limit)
{
    float *w = mem_alloc(ELEMENTS * sizeof *w);
    struct moments m = draw(init, 42, w);
    assert_true(fabs(m.mean) < 4 * deviation / sqrt(ELEMENTS));
    assert_true(fabs(m.deviation / deviation - 1) < 0.01);
    if (limit > 0) {
        assert_true(m.low >= -limit * 1.000001 && m.high <= limit * 1.000001);
        assert_true(m.low < -0.999 * limit && m.high > 0.999 * limit);
    } else {
        assert_true(m.low < -4 * deviation && m.high > 4 * deviation);
    }
    free(w);
}

static void uniform_initialisers(void **state)
{
    (void)state;
    double glorot = sqrt(6.0 / (ROWS + COLS)), he = sqrt(6.0 / ROWS), lecun = sqrt(3.0 / ROWS);
    check(INIT_GLOROT_UNIFORM, glorot / sqrt(3), glorot);
    check(INIT_HE_UNIFORM, he / sqrt(3), he);
    check(INIT_LECUN_UNIFORM, lecun / sqrt(3), lecun);
    check(INIT_RANDOM_UNIFORM, 0.05 / sqrt(3), 0.05);
}

static void normal_initialisers(void **state)
{
    (void)state;
    double glorot = sqrt(2.0 / (ROWS + COLS)), he = sqrt(2.0 / ROWS), lecun = sqrt(1.0 / ROWS);
    check(INIT_GLOROT_NORMAL, glorot, 2 * glorot / 0.87962566103423978);
    check(INIT_HE_NORMAL, he, 2 * he / 0.87962566103423978);
    check(INIT_LECUN_NORMAL, lecun, 2 * lecun / 0.87962566103423978);
    check(INIT_RANDOM_NORMAL, 0.05, 0);
}

static void constants(void **state)
{
    (void)state;
    float *w = mem_alloc(ELEMENTS * sizeof *w);
    struct moments m = draw(INIT_ZEROS, 1, w);
    assert_true(m.low == 0 && m.high == 0);
    m = draw(INIT_ONES, 1, w);
    assert_true(m.low == 1 && m.high == 1);
    free(w);
}

static void values_follow_seed_and_tensor_number(void **state)
{
    (void)state;
    float a[12], b[12], longer[20];
    struct tensor_spec t = {.name = "kernel",
                            .shape = {2, {3, 4}},
                            .init = INIT_GLOROT_UNIFORM,
                            .fan_in = 3,
                            .fan_out = 4};
    random_initialize(&t, 42, 1, a);
    random_initialize(&t, 42, 1, b);
    assert_memory_equal(a, b, sizeof a);
    random_initialize(&t, 42, 2, b);
    assert_memory_not_equal(a, b, sizeof a);
    random_initialize(&t, 43, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
    t.shape = (struct shape){2, {5, 4}}; /* an element does not depend on how many there are */
    random_initialize(&t, 42, 1, longer);
    assert_memory_equal(a, longer, sizeof a);
}

static void fans_of_zero_count_as_one(void **state)
{
    (void)state;
    float w[64];
    struct tensor_spec t = {.name = "kernel", .shape = {1, {64}}, .init = INIT_HE_NORMAL};
    random_initialize(&t, 42, 0, w);
    for (int i = 0; i < 64; i++)
        assert_true(isfinite(w[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(every_argument_counts),
        cmocka_unit_test(unit_is_below_one),
        cmocka_unit_test(uniform_initialisers),
        cmocka_unit_test(normal_initialisers),
        cmocka_unit_test(constants),
        cmocka_unit_test(values_follow_seed_and_tensor_number),
        cmocka_unit_test(fans_of_zero_count_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
