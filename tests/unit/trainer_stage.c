/* Chunks, schedules, recompute and bfloat16 in real gangs: where the order in which gradients are
 * added is the same, the weights have the same bits whatever the plan. */
#include <math.h>

#include "tests/unit/trainer_gang.h"

#define DENSE(UNITS, F) "{\"type\": \"dense\", \"units\": " #UNITS ", \"activation\": \"" F "\"},"

/* Ten layers with work; the batch divides by nothing. */
#define DEEP                                                                                       \
    "{\"name\": \"deep\", \"model\": {\"input\": [6], \"layers\": ["                               \
    "{\"type\": \"rescaling\", \"scale\": 0.5}," DENSE(13, "tanh") DENSE(11, "gelu")               \
        DENSE(17, "relu") "{\"type\": \"layer_normalization\"}," DENSE(                            \
            8, "silu") "{\"type\": \"dropout\", \"rate\": 0.25}," DENSE(19, "softplus")            \
            DENSE(9, "elu") "{\"type\": \"activation\", \"activation\": \"tanh\"}," DENSE(         \
                7, "sigmoid")                                                                      \
                DENSE(                                                                             \
                    12,                                                                            \
                    "tanh") "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"  \
                            "\"compile\": {\"optimizer\": {\"name\": \"adam\", "                   \
                            "\"learning_rate\": 0.01},"                                            \
                            "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": "         \
                            "[\"accuracy\"]},"                                                     \
                            "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 101, " \
                            "\"input\": 6,"                                                        \
                            "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 29, "        \
                            "\"seed\": 3, \"epochs\": 2,"                                          \
                            "\"shuffle\": true, \"validation_split\": 0.2}"

static const char *const PLAIN = DEEP "}";
static const char *const ROUNDED = DEEP ", \"precision\": {\"activations\": \"bfloat16\"}}";

/* What a run has to say for itself: its weights, and the losses on the way. */
struct outcome {
    struct buf weights;
    double loss[16], val_loss[4];
    size_t steps, epochs;
    double memory; /* of the heaviest rank, as reported */
};

static void run_plan(const char *job, const struct plan *p, struct outcome *ret)
{
    struct gang g;
    json_auto_t *doc = gang_job(job);
    *ret = (struct outcome){.weights = BUF_INIT};
    gang_open_plan(&g, doc, p);
    gang_run(&g);
    read_whole(&g, "model.safetensors", &ret->weights);
    ret->steps = gang_count(&g, "step");
    ret->epochs = gang_count(&g, "epoch");
    assert_in_range(ret->steps, 1, ARRAY_LEN(ret->loss));
    assert_in_range(ret->epochs, 1, ARRAY_LEN(ret->val_loss));
    for (size_t i = 0; i < ret->steps; i++)
        ret->loss[i] = gang_number(gang_line(&g, "step", 0, i), "loss");
    for (size_t i = 0; i < ret->epochs; i++)
        ret->val_loss[i] = gang_number(gang_line(&g, "epoch", 0, i), "val_loss");
    for (int r = 0; r < g.launch.plan.ranks; r++)
        ret->memory = fmax(ret->memory, gang_number(gang_line(&g, "ready", r, 0), "memory_bytes"));
    gang_close(&g);
}

static void say(const char *what, const struct plan *p)
{
    print_message("           %s: %d x %d, %d chunks, %d micro-batches, %s\n", what,
                  p->data ? p->data : 1, p->pipeline ? p->pipeline : 1, p->chunks ? p->chunks : 1,
                  p->microbatches ? p->microbatches : 1, pipeline_schedule_name(p->schedule));
}

static void check_same_bits(const char *job, const struct plan *p, const struct outcome *want)
{
    struct outcome got;
    say("same bits", p);
    run_plan(job, p, &got);
    assert_int_equal(got.steps, want->steps);
    for (size_t i = 0; i < got.steps; i++)
        assert_true(got.loss[i] == want->loss[i]);
    assert_int_equal(got.weights.len, want->weights.len);
    assert_memory_equal(got.weights.data, want->weights.data, want->weights.len);
    buf_done(&got.weights);
}

static void check_close(const char *job, const struct plan *p, const struct outcome *want)
{
    struct outcome got;
    say("close", p);
    run_plan(job, p, &got);
    assert_int_equal(got.steps, want->steps);
    for (size_t i = 0; i < got.steps; i++)
        if (!(fabs(got.loss[i] - want->loss[i]) <= 1e-6 * want->loss[i]))
            fail_msg("loss %zu is %.9g, not %.9g", i + 1, got.loss[i], want->loss[i]);
    for (size_t i = 0; i < got.epochs; i++)
        assert_true(fabs(got.val_loss[i] - want->val_loss[i]) <= 1e-6 * want->val_loss[i]);
    buf_done(&got.weights);
}

static const struct plan PIPELINES[] = {
    {.kind = STRATEGY_PIPELINE, .pipeline = 2, .schedule = SCHEDULE_GPIPE},
    {.kind = STRATEGY_PIPELINE, .pipeline = 5, .schedule = SCHEDULE_1F1B},
    {.kind = STRATEGY_PIPELINE, .pipeline = 2, .chunks = 2, .schedule = SCHEDULE_INTERLEAVED},
    {.kind = STRATEGY_PIPELINE, .pipeline = 3, .chunks = 3, .schedule = SCHEDULE_INTERLEAVED},
    {.kind = STRATEGY_PIPELINE, .pipeline = 2, .chunks = 5, .schedule = SCHEDULE_INTERLEAVED},
};

/* With the same micro-batches, gradients are added in the same order by every schedule. */
static void schedules_give_the_same_bits(void **state)
{
    (void)state;
    static const int MICROBATCHES[] = {1, 3, 5, 8, 40};
    struct outcome whole;
    run_plan(PLAIN, &(struct plan){0}, &whole);
    for (size_t m = 0; m < ARRAY_LEN(MICROBATCHES); m++) {
        struct plan alone = {.microbatches = MICROBATCHES[m]};
        struct outcome want;
        run_plan(PLAIN, &alone, &want);
        check_close(PLAIN, &alone, &whole);
        for (size_t i = 0; i < ARRAY_LEN(PIPELINES); i++) {
            struct plan p = PIPELINES[i];
            p.microbatches = MICROBATCHES[m];
            check_same_bits(PLAIN, &p, &want);
        }
        buf_done(&want.weights);
    }
    buf_done(&whole.weights);
}

static void meshes_give_the_same_losses(void **state)
{
    (void)state;
    struct outcome whole;
    run_plan(PLAIN, &(struct plan){0}, &whole);
    for (size_t i = 0; i < ARRAY_LEN(PIPELINES); i++) {
        struct plan p = PIPELINES[i];
        p.data = 2;
        p.microbatches = 3;
        check_close(PLAIN, &p, &whole);
    }
    check_close(PLAIN, &(struct plan){.kind = STRATEGY_MIRRORED, .data = 3, .microbatches = 4},
                &whole);
    check_close(PLAIN, &(struct plan){.kind = STRATEGY_MIRRORED, .data = 7, .microbatches = 7},
                &whole); /* grains of none, one and two items */
    buf_done(&whole.weights);
}

enum { LAYERS = 13 };

static void computing_again_changes_no_bit(void **state)
{
    (void)state;
    static unsigned char ALL[LAYERS], SOME[LAYERS] = {0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0};
    memset(ALL, 1, sizeof ALL);
    const char *const jobs[] = {PLAIN, ROUNDED};
    for (size_t j = 0; j < ARRAY_LEN(jobs); j++)
        for (size_t i = 0; i < ARRAY_LEN(PIPELINES); i++) {
            struct plan p = PIPELINES[i];
            struct outcome want;
            p.microbatches = 4;
            run_plan(jobs[j], &p, &want);
            p.recompute = ALL;
            check_same_bits(jobs[j], &p, &want);
            p.recompute = SOME;
            check_same_bits(jobs[j], &p, &want);
            buf_done(&want.weights);
        }
}

/* Every activation is rounded wherever it is kept or sent, so cuts do not show. */
static void rounded_activations_ignore_the_cuts(void **state)
{
    (void)state;
    struct plan alone = {.microbatches = 4};
    struct outcome want, plain;
    run_plan(PLAIN, &alone, &plain);
    run_plan(ROUNDED, &alone, &want);
    for (size_t i = 0; i < want.steps; i++) {
        assert_true(want.loss[i] != plain.loss[i]);
        assert_true(fabs(want.loss[i] - plain.loss[i]) < 0.02 * plain.loss[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(PIPELINES); i++) {
        struct plan p = PIPELINES[i];
        p.microbatches = 4;
        check_same_bits(ROUNDED, &p, &want);
    }
    buf_done(&want.weights);
    buf_done(&plain.weights);
}

/* ---- sums over the batch, and layers that others add to ---- */

#define BN        "{\"type\": \"batch_normalization\"},"
#define ADD(BACK) "{\"type\": \"add\", \"back\": " #BACK "},"

/* Adds over bars, onto one another, and two that read the same. Plain gradients: those of a bias
 * that a normalisation takes away are rounding alone, which Adam would make as large as others. */
#define RESIDUAL                                                                                   \
    "{\"name\": \"residual\", \"model\": {\"input\": [6], \"layers\": [" DENSE(8, "tanh")          \
        DENSE(8, "gelu") DENSE(8, "linear") BN "{\"type\": \"activation\", \"activation\": "       \
                                               "\"relu\"}," DENSE(8, "linear") BN ADD(4)           \
                                                   DENSE(8, "silu") DENSE(8, "tanh") ADD(2) ADD(3) \
                                                       DENSE(8, "tanh") BN                         \
        "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                      \
        "\"compile\": {\"optimizer\": {\"name\": \"sgd\", \"learning_rate\": 0.05, \"momentum\": " \
        "0.9},"                                                                                    \
        "\"loss\": \"sparse_categorical_crossentropy\"},"                                          \
        "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 101, \"input\": 6,"        \
        "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 29, \"seed\": 3, \"epochs\": 2," \
        "\"shuffle\": true, \"validation_split\": 0.2}}"

static const struct plan WITH_SUMS[] = {
    {.kind = STRATEGY_PIPELINE, .pipeline = 2, .schedule = SCHEDULE_GPIPE, .microbatches = 3},
    {.kind = STRATEGY_PIPELINE, .pipeline = 3, .schedule = SCHEDULE_GPIPE, .microbatches = 1},
    {.kind = STRATEGY_PIPELINE, .pipeline = 3, .schedule = SCHEDULE_1F1B, .microbatches = 1},
    {.kind = STRATEGY_MIRRORED, .data = 2, .microbatches = 1},
    {.kind = STRATEGY_MIRRORED, .data = 2, .microbatches = 3},
    {.kind = STRATEGY_MIRRORED, .data = 3, .microbatches = 3},
    {.kind = STRATEGY_MIRRORED, .data = 5, .microbatches = 7}, /* micro-batches of none and one */
    {.kind = STRATEGY_PIPELINE, .data = 2, .pipeline = 2, .microbatches = 3},
    {.kind = STRATEGY_PIPELINE, .data = 3, .pipeline = 2, .microbatches = 1},
};

static void batch_moments_are_the_whole_batchs(void **state)
{
    (void)state;
    struct outcome whole;
    run_plan(RESIDUAL, &(struct plan){0}, &whole);
    for (size_t i = 0; i < ARRAY_LEN(WITH_SUMS); i++)
        check_close(RESIDUAL, &WITH_SUMS[i], &whole);
    buf_done(&whole.weights);
}

static void computing_sums_again_changes_no_bit(void **state)
{
    (void)state;
    static unsigned char ALL[LAYERS + 2];
    static const unsigned char SOME[][LAYERS + 2] = {
        {1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0},
        {0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0},
    };
    memset(ALL, 1, sizeof ALL);
    for (size_t i = 0; i < ARRAY_LEN(WITH_SUMS); i++) {
        struct plan p = WITH_SUMS[i];
        struct outcome want;
        run_plan(RESIDUAL, &p, &want);
        p.recompute = ALL;
        check_same_bits(RESIDUAL, &p, &want);
        for (size_t k = 0; k < ARRAY_LEN(SOME); k++) {
            p.recompute = (unsigned char *)SOME[k];
            check_same_bits(RESIDUAL, &p, &want);
        }
        buf_done(&want.weights);
    }
}

/* Chunks that end with a normalisation, whose statistics backward begins with. */
static void chunks_that_end_with_sums_have_them_still(void **state)
{
    (void)state;
    static unsigned char all[LAYERS + 2];
    static const char job[] =
        "{\"name\": \"ends\", \"model\": {\"input\": [6], \"layers\": [" DENSE(9, "tanh")
            BN DENSE(9, "tanh") BN DENSE(9, "tanh") BN
        "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"
        "\"compile\": {\"optimizer\": {\"name\": \"sgd\", \"learning_rate\": 0.05},"
        "\"loss\": \"sparse_categorical_crossentropy\"},"
        "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 101, "
        "\"input\": 6, \"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 29, "
        "\"seed\": 3, \"epochs\": 2, \"validation_split\": 0.2}}";
    struct plan p = {.kind = STRATEGY_PIPELINE,
                     .pipeline = 2,
                     .chunks = 2,
                     .microbatches = 1,
                     .schedule = SCHEDULE_INTERLEAVED};
    struct outcome want;
    memset(all, 1, sizeof all);
    run_plan(job, &p, &want);
    p.recompute = all;
    check_same_bits(job, &p, &want);
    buf_done(&want.weights);
}

/* A schedule that starts backward passes before all forward ones are through. */
static void sums_need_all_micro_batches(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job(RESIDUAL);
    gang_open_plan(&g, doc,
                   &(struct plan){.kind = STRATEGY_PIPELINE,
                                  .pipeline = 2,
                                  .schedule = SCHEDULE_1F1B,
                                  .microbatches = 4});
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    assert_int_equal(g.status[0], TRAIN_PERMANENT);
    const char *why = gang_text(gang_line(&g, "verdict", 0, 0), "reason");
    assert_non_null(strstr(why, "gpipe"));
    assert_non_null(strstr(why, "layers.3"));
    gang_close(&g);
}

/* ---- reproducible ---- */

static const struct plan MESHES[] = {
    {.kind = STRATEGY_MIRRORED, .data = 2},
    {.kind = STRATEGY_MIRRORED, .data = 4, .zero = 2},
    {.kind = STRATEGY_MIRRORED, .data = 8, .zero = 3},
    {.kind = STRATEGY_PIPELINE, .pipeline = 3, .schedule = SCHEDULE_GPIPE},
    {.kind = STRATEGY_PIPELINE, .data = 2, .pipeline = 2, .schedule = SCHEDULE_GPIPE},
    {.kind = STRATEGY_PIPELINE, .data = 4, .pipeline = 2, .schedule = SCHEDULE_GPIPE, .zero = 1},
};

static void check_meshes(const char *job, unsigned char *recompute)
{
    struct outcome want, got;
    struct plan alone = {0};
    parallel_set_defaults(&alone.parallel);
    alone.parallel.reproducible = 1;
    run_plan(job, &alone, &want);
    for (size_t i = 0; i < ARRAY_LEN(MESHES); i++) {
        struct plan p = MESHES[i];
        p.parallel = alone.parallel;
        p.recompute = i % 2 ? recompute : NULL;
        say("reproducible", &p);
        run_plan(job, &p, &got);
        assert_int_equal(got.steps, want.steps);
        for (size_t k = 0; k < got.steps; k++)
            assert_true(got.loss[k] == want.loss[k]);
        for (size_t k = 0; k < got.epochs; k++)
            assert_true(got.val_loss[k] == want.val_loss[k]);
        assert_int_equal(got.weights.len, want.weights.len);
        assert_memory_equal(got.weights.data, want.weights.data, want.weights.len);
        buf_done(&got.weights);
    }
    buf_done(&want.weights);
}

static void reproducible_runs_have_the_same_bits(void **state)
{
    (void)state;
    static unsigned char ALL[LAYERS + 2];
    memset(ALL, 1, sizeof ALL);
    check_meshes(PLAIN, ALL);
    check_meshes(ROUNDED, ALL);
    check_meshes(RESIDUAL, ALL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_give_the_same_bits),
        cmocka_unit_test(meshes_give_the_same_losses),
        cmocka_unit_test(computing_again_changes_no_bit),
        cmocka_unit_test(rounded_activations_ignore_the_cuts),
        cmocka_unit_test(batch_moments_are_the_whole_batchs),
        cmocka_unit_test(computing_sums_again_changes_no_bit),
        cmocka_unit_test(chunks_that_end_with_sums_have_them_still),
        cmocka_unit_test(sums_need_all_micro_batches),
        cmocka_unit_test(reproducible_runs_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
