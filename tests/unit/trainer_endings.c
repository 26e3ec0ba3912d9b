/* Ways in which training by real processes ends other than well: a rank killed, a signal to
 * stop, a loss that is not finite, and weights, data or a plan that do not fit. */
#include "tests/unit/trainer_gang.h"
#include "trainer/data_parts.h"

static const char *const LONG_JOB = SMALL("1000", "10", "", "\"epochs\": 100000");

static void wait_for_steps(struct gang *g)
{
    for (;;) {
        gang_read(g);
        if (gang_count(g, "step") > 0)
            return;
        usleep(1000); /* a poll: the loop ends by what it sees */
    }
}

static void start_long_job(struct gang *g, int data, int pipeline)
{
    json_auto_t *doc = gang_job(LONG_JOB);
    gang_open(g, doc, pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, data, pipeline, 2,
              SCHEDULE_1F1B);
    g->launch.plan.microbatches = pipeline > 1 ? 2 : 1;
    assert_int_equal(gang_prepare(g), 0);
    gang_start(g);
    wait_for_steps(g);
}

static void a_killed_rank_is_named_by_the_others(void **state)
{
    (void)state;
    static const int LAYOUT[][3] = {{2, 1, 1}, {3, 1, 0}, {1, 2, 0}, {1, 3, 1}, {2, 2, 3}};
    for (size_t i = 0; i < ARRAY_LEN(LAYOUT); i++) {
        struct gang g;
        int victim = LAYOUT[i][2];
        char named[64];
        start_long_job(&g, LAYOUT[i][0], LAYOUT[i][1]);
        kill(g.pids[victim], SIGKILL);
        gang_wait(&g);
        snprintf(named, sizeof named, "Rank %d (pid %d) died", victim, (int)g.pids[victim]);
        for (int r = 0; r < g.launch.plan.ranks; r++) {
            assert_int_equal(g.status[r], r == victim ? -SIGKILL : TRAIN_RETRY);
            if (r == victim)
                continue;
            const json_t *v = gang_line(&g, "verdict", r, 0);
            assert_string_equal(gang_text(v, "code"), "peer_lost");
            if (!strstr(gang_text(v, "reason"), named))
                fail_msg("%s", gang_text(v, "reason"));
        }
        gang_close(&g);
    }
}

static void one_sigterm_stops_all_with_weights(void **state)
{
    (void)state;
    static const int LAYOUT[][3] = {{1, 1, 0}, {3, 1, 2}, {1, 2, 0}, {2, 2, 3}};
    for (size_t i = 0; i < ARRAY_LEN(LAYOUT); i++) {
        struct gang g;
        struct buf file = BUF_INIT;
        start_long_job(&g, LAYOUT[i][0], LAYOUT[i][1]);
        kill(g.pids[LAYOUT[i][2]], SIGTERM);
        gang_wait(&g);
        for (int r = 0; r < g.launch.plan.ranks; r++) {
            assert_int_equal(g.status[r], 0);
            assert_string_equal(gang_text(gang_line(&g, "verdict", r, 0), "outcome"), "stopped");
        }
        assert_string_equal(gang_text(gang_line(&g, "artifact", 0, 0), "name"),
                            "model.safetensors");
        read_whole(&g, "model.safetensors", &file);
        buf_done(&file);
        gang_close(&g);
    }
}

static void a_loss_that_is_not_finite_ends_the_job(void **state)
{
    (void)state;
    const char *job =
        "{\"name\": \"wild\", \"model\": {\"input\": [64], \"layers\": [{\"type\": \"dense\", "
        "\"units\": 8}, {\"type\": \"dense\", \"units\": 1}]}, \"compile\": {\"optimizer\": "
        "{\"name\": \"sgd\", \"learning_rate\": 1000}, \"loss\": \"mean_squared_error\"}, "
        "\"data\": {\"train\": {\"format\": \"csv\", \"path\": \"digits.csv.gz\", \"header\": "
        "false}}, \"fit\": {\"epochs\": 4, \"batch_size\": 32}}";
    json_auto_t *doc = gang_job(job);
    for (int pipeline = 1; pipeline <= 2; pipeline++) {
        struct gang g;
        char path[128];
        gang_open(&g, doc, STRATEGY_PIPELINE, 2, pipeline, 1, SCHEDULE_GPIPE);
        assert_int_equal(gang_prepare(&g), 0);
        gang_start(&g);
        gang_wait(&g);
        for (int r = 0; r < g.launch.plan.ranks; r++) {
            const json_t *v = gang_line(&g, "verdict", r, 0);
            assert_int_equal(g.status[r], TRAIN_PERMANENT);
            assert_string_equal(gang_text(v, "outcome"), "failed");
            assert_non_null(strstr(gang_text(v, "code"), "_not_finite"));
            assert_non_null(strstr(gang_text(v, "reason"), "step "));
            assert_non_null(strstr(gang_text(v, "reason"), " on rank "));
        }
        snprintf(path, sizeof path, "%s/model.safetensors", g.dir);
        assert_int_equal(access(path, F_OK), -1);
        gang_close(&g);
    }
}

static void start_weights_must_fit(void **state)
{
    (void)state;
    static const char *const WRONG[][2] = {
        {"digits-mlp-sgd/init.safetensors", ""},
        {"digits-mlp-sgd/nothing.safetensors", "nothing.safetensors"},
        {"digits-mlp-sgd/job.json", "job.json"},
    };
    for (size_t i = 0; i < ARRAY_LEN(WRONG); i++) {
        struct gang g;
        json_auto_t *doc = gang_job("synthetic-seed42");
        json_object_set_new(json_object_get(doc, "model"), "weights", json_string(WRONG[i][0]));
        gang_open(&g, doc, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
        assert_int_equal(gang_prepare(&g), 0);
        gang_start(&g);
        gang_wait(&g);
        assert_true(g.status[0] == TRAIN_PERMANENT || g.status[1] == TRAIN_PERMANENT);
        int r = g.status[0] == TRAIN_PERMANENT ? 0 : 1;
        const json_t *v = gang_line(&g, "verdict", r, 0);
        assert_string_equal(gang_text(v, "code"), "weights_invalid");
        assert_non_null(strstr(gang_text(v, "reason"), WRONG[i][1]));
        gang_close(&g);
    }
}

static void bad_data_ends_the_prepare_step(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job("digits-mlp-sgd");
    json_object_set_new(json_object_get(json_object_get(doc, "data"), "train"), "path",
                        json_string("no-such-file.csv"));
    gang_open(&g, doc, STRATEGY_NONE, 1, 1, 1, SCHEDULE_GPIPE);
    assert_int_equal(gang_prepare(&g), TRAIN_PERMANENT);
    gang_read(&g);
    const json_t *v = gang_line(&g, "verdict", -1, 0);
    assert_string_equal(gang_text(v, "code"), "data_invalid");
    assert_non_null(strstr(gang_text(v, "reason"), "no-such-file.csv"));
    gang_close(&g);
}

/* Prepared for another model, or with a class that the model lacks: the ranks say so. */
static void prepared_data_is_not_trusted(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job(SMALL("40", "8", "", "\"epochs\": 1"));
    for (int i = 0; i < 4; i++) {
        gang_open(&g, doc, STRATEGY_NONE, 1, 1, 1, SCHEDULE_GPIPE);
        struct data_header h;
        struct model *m = &g.launch.spec->model;
        g.data = memfd_create("data", MFD_CLOEXEC); /* cannot be sealed */
        assert_int_equal(gang_prepare(&g), 0);
        assert_int_equal(pread(g.data, &h, sizeof h, 0), sizeof h);
        int32_t class = i == 0 ? 1 << 28 : -1;
        if (i < 2)
            assert_int_equal(pwrite(g.data, &class, 4, (off_t)h.train.labels.at + 4 * 17), 4);
        else if (i == 2)
            m->input.size[0] = 3;
        else
            g.launch.spec->loss = LOSS_CATEGORICAL_CROSSENTROPY;
        gang_start(&g);
        gang_wait(&g);
        assert_int_equal(g.status[0], TRAIN_PERMANENT);
        const char *why = gang_text(gang_line(&g, "verdict", 0, 0), "reason");
        if (!strstr(why, i < 2 ? "Sample 18" : "6 features and 1 class"))
            fail_msg("%s", why);
        m->input.size[0] = 6;
        gang_close(&g);
    }
}

static void a_plan_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job("digits-mlp-sgd");
    gang_open(&g, doc, STRATEGY_NONE, 1, 1, 1, SCHEDULE_GPIPE);
    assert_int_equal(gang_prepare(&g), 0);
    struct engine_fds fds = gang_fds(&g);
    assert_int_equal(train_rank(&g.launch, 1, &fds, NULL), TRAIN_PERMANENT);
    g.launch.plan.data = 2;
    assert_int_equal(train_rank(&g.launch, 0, &fds, NULL), TRAIN_PERMANENT);
    gang_close(&g);
}

#define BURSTING(SCALES)                                                                           \
    "{\"name\": \"burst\", \"model\": {\"input\": [6], \"layers\": ["                              \
    "{\"type\": \"dense\", \"units\": 9, \"activation\": \"tanh\", \"name\": \"d1\"},"             \
    "{\"type\": \"dense\", \"units\": 1, \"name\": \"d2\"}," SCALES "]},"                          \
    "\"compile\": {\"optimizer\": \"sgd\", \"loss\": \"mean_squared_error\"},"                     \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 20, \"input\": 6, "            \
    "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 10}}"

/* The second factor is too much for a float32; in the other job the loss is not, in float64, but
 * the gradient that goes back through the factor. */
static void what_is_not_finite_first_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *job, *reason, *code;
    } CASES[] = {
        {BURSTING("{\"type\": \"rescaling\", \"scale\": 1e30, \"name\": \"big\"},"
                  "{\"type\": \"rescaling\", \"scale\": 1e30, \"name\": \"burst\"}"),
         "The output of layer \"burst\" was not finite on rank 0 (step 1)", "loss_not_finite"},
        {BURSTING("{\"type\": \"rescaling\", \"scale\": 1e30, \"name\": \"big\"}"),
         "The gradient of \"d1.kernel\" was not finite on rank 0 (step 1)", "gradient_not_finite"},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct gang g;
        json_auto_t *doc = gang_job(CASES[i].job);
        gang_open(&g, doc, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
        assert_int_equal(gang_prepare(&g), 0);
        gang_start(&g);
        gang_wait(&g);
        for (int r = 0; r < 2; r++) {
            const json_t *v = gang_line(&g, "verdict", r, 0);
            assert_int_equal(g.status[r], TRAIN_PERMANENT);
            assert_string_equal(gang_text(v, "code"), CASES[i].code);
            if (!strstr(gang_text(v, "reason"), CASES[i].reason))
                fail_msg("%s", gang_text(v, "reason"));
        }
        gang_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_by_the_others),
        cmocka_unit_test(one_sigterm_stops_all_with_weights),
        cmocka_unit_test(a_loss_that_is_not_finite_ends_the_job),
        cmocka_unit_test(what_is_not_finite_first_is_named),
        cmocka_unit_test(start_weights_must_fit),
        cmocka_unit_test(bad_data_ends_the_prepare_step),
        cmocka_unit_test(prepared_data_is_not_trusted),
        cmocka_unit_test(a_plan_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
