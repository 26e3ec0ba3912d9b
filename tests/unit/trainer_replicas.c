/* What data ranks do for one another: ZeRO stages give the bits of whole updates, and reproducible
 * runs one checksum on any mesh. Real processes. */
#include "tests/unit/trainer_forms.h"

/* ---- ZeRO ---- */

static void check_stages(const char *job, int data, int overlap)
{
    struct buf want = BUF_INIT;
    const struct form whole = {.data = data, .pipeline = 1, .microbatches = 1};
    weights_of(job, &whole, &want);
    for (int zero = 0; zero <= 3; zero++) {
        struct buf got = BUF_INIT;
        struct form f = whole;
        f.zero = zero;
        f.overlap = overlap;
        weights_of(job, &f, &got);
        check_equal(&want, &got);
        buf_done(&got);
    }
    buf_done(&want);
}

static void every_zero_stage_gives_the_same_bits(void **state)
{
    (void)state;
    static const int DATA[] = {1, 2, 3, 4, 5, 7};
    for (size_t i = 0; i < ARRAY_LEN(DATA); i++)
        check_stages(DROPPING, DATA[i], i % 2 == 0);
    check_stages(WIDE, 2, 1);
    check_stages(WIDE, 3, 0);
    check_stages(WIDE, 5, 1);
}

/* ---- reproducible ---- */

static void remember(const char *job, const struct form *f, struct buf *weights, double *loss,
                     size_t steps)
{
    struct gang g;
    run_form(job, f, &g);
    read_whole(&g, "model.safetensors", weights);
    assert_int_equal(gang_count(&g, "step"), steps);
    for (size_t i = 0; i < steps; i++) {
        loss[2 * i] = gang_number(gang_line(&g, "step", 0, i), "loss");
        loss[2 * i + 1] = gang_number(gang_line(&g, "step", 0, i), "grad_norm");
    }
    gang_close(&g);
}

static void check_reproducible(const char *job, size_t steps)
{
    struct buf want = BUF_INIT;
    double loss[64], here[64];
    const struct form one = {.data = 1, .pipeline = 1, .microbatches = 1, .reproducible = 1};
    remember(job, &one, &want, loss, steps);
    for (int data = 1; data <= 8; data *= 2)
        for (int pipeline = 1; pipeline <= 3; pipeline++)
            for (int zero = 0; zero <= 3; zero++) {
                struct buf got = BUF_INIT;
                struct form f = one;
                f.data = data;
                f.pipeline = pipeline;
                f.zero = zero;
                f.overlap = (data + pipeline + zero) % 2;
                if (data * pipeline > GANG_MAX || (data == 1 && zero > 0))
                    continue;
                remember(job, &f, &got, here, steps);
                check_equal(&want, &got);
                assert_memory_equal(loss, here, 2 * steps * sizeof *loss);
                buf_done(&got);
            }
    buf_done(&want);
}

static void reproducible_runs_have_one_checksum(void **state)
{
    (void)state;
    check_reproducible(REPRODUCIBLE("101", "22"), 10);
    check_reproducible(REPRODUCIBLE("11", "5"), 6);
}

/* More than a bucket, and a division that does not fall on their borders. */
static void reproducible_buckets_do_too(void **state)
{
    (void)state;
    struct buf want = BUF_INIT;
    static const struct form FORMS[] = {
        {.data = 1, .pipeline = 1, .microbatches = 1, .reproducible = 1},
        {.data = 2, .pipeline = 1, .microbatches = 1, .zero = 3, .reproducible = 1, .overlap = 1},
        {.data = 4, .pipeline = 1, .microbatches = 1, .zero = 2, .reproducible = 1},
        {.data = 2, .pipeline = 2, .microbatches = 1, .zero = 1, .reproducible = 1, .overlap = 1}};
    weights_of(WIDE, &FORMS[0], &want);
    for (size_t i = 1; i < ARRAY_LEN(FORMS); i++) {
        struct buf got = BUF_INIT;
        weights_of(WIDE, &FORMS[i], &got);
        check_equal(&want, &got);
        buf_done(&got);
    }
    buf_done(&want);
}

/* ---- gradient accumulation ---- */

/* Sums over ranks and micro-batches in another order: the losses of one rank, within rounding. */
static void check_like_one_rank(const char *job, const struct form *f)
{
    struct gang one, many;
    const struct form alone = {.data = 1, .pipeline = 1, .microbatches = 1};
    run_form(job, &alone, &one);
    run_form(job, f, &many);
    assert_int_equal(gang_count(&one, "step"), gang_count(&many, "step"));
    for (size_t i = 0; i < gang_count(&one, "step"); i++) {
        double a = gang_number(gang_line(&one, "step", 0, i), "loss");
        double b = gang_number(gang_line(&many, "step", 0, i), "loss");
        if (!(fabs(a - b) <= 2e-5 * fabs(a)))
            fail_msg("loss %zu is %.9g, not %.9g", i + 1, b, a);
    }
    gang_close(&one);
    gang_close(&many);
}

static void microbatches_add_up_under_every_zero_stage(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        const struct form accumulate = {
            .data = 3, .pipeline = 1, .microbatches = 4, .zero = zero, .overlap = zero % 2};
        const struct form pipeline = {
            .data = 2, .pipeline = 2, .microbatches = 3, .zero = zero, .overlap = 1};
        const struct form uneven = {/* the last batch has 13 items */
                                    .data = 7,
                                    .pipeline = 1,
                                    .microbatches = 2,
                                    .zero = zero};
        check_like_one_rank(DROPPING, &accumulate);
        check_like_one_rank(DROPPING, &pipeline);
        check_like_one_rank(DROPPING, &uneven);
        check_like_one_rank(WIDE, &accumulate);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproducible_runs_have_one_checksum),
        cmocka_unit_test(reproducible_buckets_do_too),
        cmocka_unit_test(microbatches_add_up_under_every_zero_stage),
        cmocka_unit_test(every_zero_stage_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
