/* What fit asks for beside steps: validation now and then, runs counted in steps, ensembles, and an
 * end by a loss that is not finite; each with checkpoints. */
#include <math.h>

#include "tests/unit/trainer_checkpoints.h"

static void validation_every_so_many_epochs(void **state)
{
    (void)state;
    struct store s;
    struct gang g;
    static const char job[] =
        SMALL("60", "8", "", "\"epochs\": 7, \"validation_split\": 0.2, \"validation_freq\": 3");
    store_open(&s);
    gang_open_with(&g, job, 2, 1, &s, 0);
    gang_run(&g);
    assert_int_equal(gang_count(&g, "epoch"), 7);
    for (int64_t epoch = 1; epoch <= 7; epoch++) {
        const json_t *line = epoch_line(&g, epoch);
        assert_non_null(json_object_get(line, "loss"));
        assert_int_equal(json_object_get(line, "val_loss") != NULL, epoch % 3 == 0);
        assert_int_equal(json_object_get(line, "val_accuracy") != NULL, epoch % 3 == 0);
    }
    gang_close(&g);
    store_close(&s);
}

/* Epochs without validation neither count against a val_ figure nor for it. */
static void early_stopping_waits_for_validation(void **state)
{
    (void)state;
    struct store s;
    struct gang g;
    static const char job[] = SMALL("60", "8", "",
                                    "\"epochs\": 60, \"validation_split\": 0.2, "
                                    "\"validation_freq\": 3, "
                                    "\"early_stopping\": {\"patience\": 2}");
    double best = INFINITY;
    int64_t waited = 0, epoch = 3;
    store_open(&s);
    gang_open_with(&g, job, 2, 1, &s, 0);
    gang_run(&g);
    for (; waited < 2 && epoch_line(&g, epoch); epoch += 3) {
        double x = gang_number(epoch_line(&g, epoch), "val_loss");
        waited = x < best ? 0 : waited + 1;
        best = x < best ? x : best;
    }
    assert_int_equal(waited, 2);
    assert_int_equal(gang_count(&g, "epoch"), epoch - 3);
    gang_close(&g);
    store_close(&s);
}

/* Classes that all weigh 2: the first loss and its gradient are twice what they were.
 * Adam takes the same steps, so that figures which are not weighted stay about what they were. */
static void classes_weigh_in_training_alone(void **state)
{
    (void)state;
    static const char plain[] = SMALL("60", "8", "", "\"epochs\": 1, \"validation_split\": 0.2");
    static const char twice[] =
        SMALL("60", "8", "",
              "\"epochs\": 1, \"validation_split\": 0.2, \"class_weight\": {\"0\": 2, \"1\": 2, "
              "\"2\": 2, \"3\": 2}");
    static const int MESHES[][2] = {{1, 1}, {3, 1}, {2, 2}};
    for (size_t i = 0; i < ARRAY_LEN(MESHES); i++) {
        struct store s;
        struct gang a, b;
        store_open(&s);
        gang_open_with(&a, plain, MESHES[i][0], MESHES[i][1], &s, 0);
        gang_run(&a);
        gang_open_with(&b, twice, MESHES[i][0], MESHES[i][1], &s, 0);
        gang_run(&b);
        const json_t *x = gang_line(&a, "step", 0, 0), *y = gang_line(&b, "step", 0, 0);
        for (int k = 0; k < 2; k++) {
            double once = gang_number(x, k ? "grad_norm" : "loss");
            assert_true(fabs(gang_number(y, k ? "grad_norm" : "loss") - 2 * once) < 1e-6 * once);
        }
        double v = gang_number(epoch_line(&a, 1), "val_loss");
        assert_true(fabs(gang_number(epoch_line(&b, 1), "val_loss") - v) < 0.01 * v);
        gang_close(&a);
        gang_close(&b);
        store_close(&s);
    }
}

/* All that follows each checkpoint of a run is as it was. */
static void check_job(const char *job, enum strategy_kind kind, int data, int64_t every,
                      const char *weights)
{
    struct store s;
    struct gang whole, saved, g;
    struct resume_list list;
    json_auto_t *doc = gang_job(job);
    struct buf a = BUF_INIT, b = BUF_INIT;
    store_open(&s);
    gang_open(&whole, doc, kind, data, 1, 1, SCHEDULE_GPIPE);
    gang_run(&whole);
    gang_open(&saved, doc, kind, data, 1, 1, SCHEDULE_GPIPE);
    saved.launch.checkpoints = s.root;
    gang_save_every(&saved, every);
    list_checkpoints(&saved, &list);
    int64_t steps = (int64_t)gang_number(gang_line(&whole, "start", 0, 0), "steps");
    assert_int_equal(list.count, steps / every);
    for (int i = 0; i < list.count; i++) {
        gang_open(&g, doc, kind, data, 1, 1, SCHEDULE_GPIPE);
        g.launch.checkpoints = s.root;
        resume_from(&g, &list.items[i], 1);
        gang_run(&g);
        same_rest(&whole, &g, list.items[i].step, steps, 0);
        size_t epochs = gang_count(&whole, "epoch");
        assert_true(json_equal(json_object_get(epoch_line(&whole, (int64_t)epochs), "members"),
                               json_object_get(epoch_line(&g, (int64_t)epochs), "members")) ||
                    kind != STRATEGY_SEGMENT_ENSEMBLE);
        read_whole(&whole, weights, &a);
        read_whole(&g, weights, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        buf_done(&a);
        buf_done(&b);
        gang_close(&g);
    }
    list_done(&list);
    gang_close(&whole);
    gang_close(&saved);
    store_close(&s);
}

static void runs_counted_in_steps(void **state)
{
    (void)state;
    static const char job[] = SMALL("60", "8", "", "\"steps\": 21, \"validation_split\": 0.2");
    check_job(job, STRATEGY_MIRRORED, 2, 1, "model.safetensors");
}

/* Members have counts of updates of their own: with 7 samples and a batch of 2 some have none. */
static void ensembles(void **state)
{
    (void)state;
    static const char job[] = SMALL("40", "8", "", "\"epochs\": 3, \"validation_split\": 0.2");
    static const char few[] = SMALL("7", "2", "", "\"epochs\": 3");
    check_job(job, STRATEGY_SEGMENT_ENSEMBLE, 3, 2, "member-2.safetensors");
    check_job(few, STRATEGY_SEGMENT_ENSEMBLE, 3, 1, "member-1.safetensors");
}

static void an_ensemble_keeps_its_members(void **state)
{
    (void)state;
    static const char job[] = SMALL("40", "8", "", "\"epochs\": 3");
    struct store s;
    struct gang saved, g;
    struct resume_list list;
    json_auto_t *doc = gang_job(job);
    store_open(&s);
    gang_open(&saved, doc, STRATEGY_SEGMENT_ENSEMBLE, 3, 1, 1, SCHEDULE_GPIPE);
    saved.launch.checkpoints = s.root;
    gang_save_every(&saved, 5);
    list_checkpoints(&saved, &list);
    gang_open(&g, doc, STRATEGY_SEGMENT_ENSEMBLE, 2, 1, 1, SCHEDULE_GPIPE);
    g.launch.checkpoints = s.root;
    resume_from(&g, list.items, list.count);
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    const json_t *v = gang_line(&g, "verdict", 1, 0);
    assert_string_equal(gang_text(v, "code"), "checkpoint_invalid");
    assert_non_null(strstr(gang_text(v, "reason"), "an ensemble of 3 members, and the plan has 2"));
    list_done(&list);
    gang_close(&g);
    gang_close(&saved);
    store_close(&s);
}

/* The checkpoint that was there before is named, and stays. */
static void a_loss_that_is_not_finite_names_the_last_checkpoint(void **state)
{
    (void)state;
    static const char job[] = SMALL("60", "8", "", "\"epochs\": 7");
    struct store s;
    struct gang saved, g;
    struct resume_list list, after;
    store_open(&s);
    gang_open_with(&saved, job, 2, 1, &s, 0);
    gang_save_every(&saved, 20);
    list_checkpoints(&saved, &list);
    gang_open_with(&g, job, 2, 1, &s, 0);
    resume_from(&g, list.items, list.count);
    g.launch.spec->optimizer.learning_rate = 1e30;
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    const json_t *v = gang_line(&g, "verdict", 0, 0);
    assert_string_equal(gang_text(v, "outcome"), "failed");
    assert_non_null(strstr(gang_text(v, "code"), "_not_finite"));
    assert_non_null(
        strstr(gang_text(v, "reason"), " The last checkpoint, step-0000000040, is kept."));
    list_store(&s, &after);
    assert_int_equal(after.count, list.count);
    list_done(&after);
    list_done(&list);
    gang_close(&g);
    gang_close(&saved);
    store_close(&s);
}

/* What is copied counts as memory, in the plan and in what the rank reports. */
static void copies_are_foretold(void **state)
{
    (void)state;
    static const char job[] =
        "{\"model\": {\"input\": [200], \"layers\": ["
        "{\"type\": \"dense\", \"units\": 301, \"activation\": \"relu\"},"
        "{\"type\": \"dense\", \"units\": 5, \"activation\": \"softmax\"}]},"
        "\"compile\": {\"optimizer\": \"adam\", \"loss\": \"sparse_categorical_crossentropy\"},"
        "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 40, \"input\": 200, "
        "\"classes\": 5, \"seed\": 1}}, \"fit\": {\"batch_size\": 20, \"validation_split\": 0.2}}";
    for (int data = 1; data <= 4; data += 3) {
        double reported[4], planned[4];
        for (int how = 0; how < 4; how++) {
            struct store s;
            struct gang g;
            store_open(&s);
            gang_open_with(&g, job, data, 1, &s, how & 1 ? 1000 : 0);
            g.launch.spec->fit.early_stopping = (struct early_stopping){
                .enabled = how & 2, .patience = 9, .restore_best_weights = 1};
            gang_run(&g);
            reported[how] = gang_number(gang_line(&g, "ready", 0, 0), "memory_bytes");
            planned[how] = (double)plan_memory(g.launch.spec, &g.launch.plan);
            gang_close(&g);
            store_close(&s);
        }
        for (int how = 1; how < 4; how++) {
            double have = reported[how] - reported[0], want = planned[how] - planned[0];
            print_message("           %d ranks, %d: %.0f bytes, foretold %.0f\n", data, how, have,
                          want);
            assert_true(have > 0 && fabs(have - want) < 0.05 * want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_every_so_many_epochs),
        cmocka_unit_test(early_stopping_waits_for_validation),
        cmocka_unit_test(classes_weigh_in_training_alone),
        cmocka_unit_test(runs_counted_in_steps),
        cmocka_unit_test(copies_are_foretold),
        cmocka_unit_test(ensembles),
        cmocka_unit_test(an_ensemble_keeps_its_members),
        cmocka_unit_test(a_loss_that_is_not_finite_names_the_last_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
