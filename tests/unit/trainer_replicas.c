/* What data ranks do for one another: ZeRO stages give the bits of whole updates, reproducible runs
 * one checksum on any mesh, and the forms of storage what they promise. Real processes. */
#include <math.h>

#include "tests/unit/trainer_gang.h"

/* Buckets of their own for two layers, one for the rest; vectors that do not decay; a clipped norm
 * that is summed over parts. */
#define WIDE                                                                                       \
    "{\"name\": \"wide\", \"model\": {\"input\": [6], \"layers\": ["                               \
    "{\"type\": \"dense\", \"units\": 1100, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dense\", \"units\": 1000, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dense\", \"units\": 1080, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dropout\", \"rate\": 0.3}, {\"type\": \"layer_normalization\"},"                 \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.001, "                \
    "\"weight_decay\": 0.1, \"exclude_from_weight_decay\": \"vectors\", \"global_clipnorm\": 1},"  \
    "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"                 \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 31, \"input\": 6, "            \
    "\"classes\": 4, \"seed\": 1}, \"validation\": {\"format\": \"synthetic\", \"samples\": 13, "  \
    "\"input\": 6, \"classes\": 4, \"seed\": 2}},"                                                 \
    "\"fit\": {\"batch_size\": 12, \"seed\": 3, \"epochs\": 2}}"

#define DROPPING                                                                                   \
    SMALL("101", "22",                                                                             \
          "{\"type\": \"dropout\", \"rate\": 0.3}, "                                               \
          "{\"type\": \"layer_normalization\"},",                                                  \
          "\"epochs\": 2")

struct form {
    int data, pipeline, microbatches, zero, reproducible, overlap;
};

static void say(const struct form *f)
{
    print_message("           %d x %d, %d micro-batches, zero %d%s%s\n", f->data, f->pipeline,
                  f->microbatches, f->zero, f->reproducible ? ", reproducible" : "",
                  f->overlap ? ", overlap" : "");
}

static void run_form(const char *job, const struct form *f, struct gang *g)
{
    json_auto_t *doc = gang_job(job);
    say(f);
    gang_open(g, doc, f->pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, f->data, f->pipeline,
              f->microbatches, SCHEDULE_GPIPE);
    g->launch.plan.zero = f->zero;
    g->launch.plan.parallel.reproducible = f->reproducible;
    g->launch.plan.parallel.grains = 8;
    g->launch.plan.parallel.overlap = f->overlap;
    gang_run(g);
}

static void weights_of(const char *job, const struct form *f, struct buf *ret)
{
    struct gang g;
    run_form(job, f, &g);
    read_whole(&g, "model.safetensors", ret);
    gang_close(&g);
}

static void check_equal(const struct buf *a, const struct buf *b)
{
    assert_int_equal(a->len, b->len);
    if (memcmp(a->data, b->data, a->len) != 0)
        fail_msg("other bits");
}

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

/* Batches of 22 and, the last one, 13 items in eight grains; an item alone in the last batch of
 * the second job, and batches smaller than the grains. */
#define REPRODUCIBLE(SAMPLES, BATCH)                                                               \
    "{\"name\": \"same\", \"model\": {\"input\": [6], \"layers\": ["                               \
    "{\"type\": \"dense\", \"units\": 19, \"activation\": \"tanh\"},"                              \
    "{\"type\": \"dropout\", \"rate\": 0.3},"                                                      \
    "{\"type\": \"dense\", \"units\": 33, \"activation\": \"gelu\"}, "                             \
    "{\"type\": \"layer_normalization\"},"                                                         \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.01, "                 \
    "\"weight_decay\": 0.1, \"exclude_from_weight_decay\": \"vectors\", \"global_clipnorm\": "     \
    "0.5}, \"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"           \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": " SAMPLES                      \
    ", \"input\": 6, \"classes\": 4, \"seed\": 1}},"                                               \
    "\"fit\": {\"batch_size\": " BATCH ", \"seed\": 3, \"epochs\": 2}}"

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
        {1, 1, 1, 0, 1, 0}, {2, 1, 1, 3, 1, 1}, {4, 1, 1, 2, 1, 0}, {2, 2, 1, 1, 1, 1}};
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
        const struct form accumulate = {3, 1, 4, zero, 0, zero % 2};
        const struct form pipeline = {2, 2, 3, zero, 0, 1};
        const struct form uneven = {7, 1, 2, zero, 0, 0}; /* the last batch has 13 items */
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
