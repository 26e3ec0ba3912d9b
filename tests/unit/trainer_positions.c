/* Items with a label at each position, trained on a token file: losses are means over positions,
 * whatever the ranks and wherever the tokens lie. */
#include "tests/unit/trainer_gang.h"

#include <math.h>

#define JOB(INIT)                                                                                  \
    "{\"name\": \"tokens\", \"model\": {\"input\": [8], \"layers\": ["                             \
    "{\"type\": \"embedding\", \"input_dim\": 20, \"output_dim\": 6},"                             \
    "{\"type\": \"dense\", \"units\": 20, \"activation\": \"softmax\"" INIT "}]},"                 \
    "\"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": 0.05},"                  \
    "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"                 \
    "\"data\": {\"train\": {\"format\": \"tokens\", \"path\": \"tokens.bin\","                     \
    "\"dtype\": \"uint16\"}}, \"fit\": {\"epochs\": 3, \"batch_size\": 16, \"seed\": 2,"           \
    "\"validation_split\": 0.25}}"

#define ITEMS 133 /* 99 to train on: the last batch is of 3 */
#define STEPS (3 * 7)

/* Each token is the one before plus 3, modulo 20: one look at it tells the next. */
static void put_tokens(const struct gang *g)
{
    uint16_t tokens[ITEMS * 8 + 1];
    char path[128];
    struct err e;
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++)
        tokens[i] = (uint16_t)(i * 3 % 20);
    snprintf(path, sizeof path, "%s/tokens.bin", g->dir);
    assert_int_equal(file_write_atomic(path, tokens, sizeof tokens, 0644, &e), 0);
}

struct seen {
    double losses[STEPS], val_loss, accuracy, val_accuracy;
};

static struct seen run(const char *text, const struct plan *plan, int64_t memory_limit)
{
    struct gang g;
    struct seen s;
    struct plan p = *plan;
    json_auto_t *doc = gang_job(text);
    parallel_set_defaults(&p.parallel);
    gang_open_plan(&g, doc, &p);
    free(g.roots[0]);
    g.roots[0] = mem_strdup(g.dir);
    put_tokens(&g);
    g.launch.spec->train.memory_limit = memory_limit;
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    for (int r = 0; r < g.launch.plan.ranks; r++)
        assert_int_equal(g.status[r], 0);
    assert_int_equal(gang_count(&g, "step"), STEPS);
    for (size_t i = 0; i < STEPS; i++)
        s.losses[i] = gang_number(gang_line(&g, "step", 0, i), "loss");
    const json_t *last = gang_line(&g, "epoch", 0, 2);
    s.val_loss = gang_number(last, "val_loss");
    s.accuracy = gang_number(last, "accuracy");
    s.val_accuracy = gang_number(last, "val_accuracy");
    gang_close(&g);
    return s;
}

static const struct plan one = {.kind = STRATEGY_NONE};

static void the_mean_is_over_positions(void **state)
{
    (void)state;
    struct seen s = run(JOB(", \"kernel_initializer\": \"zeros\""), &one, 1 << 30);
    assert_true(fabs(s.losses[0] - log(20)) < 1e-6);
    assert_in_range((int)(1000 * s.accuracy), 0, 1000);
}

static void it_learns(void **state)
{
    (void)state;
    struct seen s = run(JOB(""), &one, 1 << 30);
    assert_true(s.losses[STEPS - 1] < 0.5 * s.losses[0]);
    assert_true(s.val_loss < 0.5 * s.losses[0] && s.val_accuracy > 0.5 && s.val_accuracy <= 1);
}

static void ranks_and_places_agree(void **state)
{
    (void)state;
    static const struct plan PLANS[] = {
        {.kind = STRATEGY_NONE, .microbatches = 3},
        {.kind = STRATEGY_MIRRORED, .data = 3},
        {.kind = STRATEGY_PIPELINE, .pipeline = 2, .microbatches = 4, .schedule = SCHEDULE_1F1B},
    };
    struct seen want = run(JOB(""), &one, 1 << 30);
    struct seen streamed = run(JOB(""), &one, 500);
    assert_memory_equal(&streamed, &want, sizeof want);
    for (size_t i = 0; i < ARRAY_LEN(PLANS); i++) {
        struct seen got = run(JOB(""), &PLANS[i], i == 1 ? 500 : 1 << 30);
        for (int k = 0; k < STEPS; k++)
            if (fabs(got.losses[k] - want.losses[k]) > 1e-4)
                fail_msg("plan %zu, step %d: %.9g and %.9g", i, k + 1, got.losses[k],
                         want.losses[k]);
        assert_true(fabs(got.val_loss - want.val_loss) < 1e-4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_is_over_positions),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(ranks_and_places_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
