/* Training by real processes: every strategy against the reference runs, step by step; against
 * itself twice; and with more ranks than items. The other ways to end are in trainer_endings.c. */
#include <math.h>
#include <sys/resource.h>

#include "tests/unit/trainer_reference.h"
#include "trainer/share.h"

static const char *const REFERENCES[] = {"digits-mlp-sgd", "mnist-mlp-adam", "synthetic-seed42",
                                         "digits-deep-adamw"};

/* ---- against the references ---- */

static void mirrored_follows_the_references(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(REFERENCES); i++)
        for (int ranks = 1; ranks <= 4; ranks++)
            check_reference(REFERENCES[i], ranks, 1, 1, SCHEDULE_GPIPE);
}

/* Moments of the whole batch, whatever the split; micro-batches without a pipeline. */
static void batch_normalisation_follows_the_references(void **state)
{
    (void)state;
    static const char *const WITH_SUMS[] = {"digits-conv-nesterov"};
    for (size_t i = 0; i < ARRAY_LEN(WITH_SUMS); i++) {
        check_reference(WITH_SUMS[i], 1, 1, 1, SCHEDULE_GPIPE);
        check_reference(WITH_SUMS[i], 2, 1, 1, SCHEDULE_GPIPE);
        check_reference(WITH_SUMS[i], 3, 1, 2, SCHEDULE_GPIPE);
        check_reference(WITH_SUMS[i], 1, 2, 3, SCHEDULE_GPIPE);
        check_reference(WITH_SUMS[i], 2, 2, 2, SCHEDULE_GPIPE);
        check_reference(WITH_SUMS[i], 1, 2, 1, SCHEDULE_1F1B);
    }
}

static void pipelines_follow_the_references(void **state)
{
    (void)state;
    static const int MICROBATCHES[] = {1, 4, 7};
    for (size_t i = 0; i < ARRAY_LEN(REFERENCES); i++)
        for (size_t m = 0; m < ARRAY_LEN(MICROBATCHES); m++)
            for (int s = SCHEDULE_GPIPE; s <= SCHEDULE_1F1B; s++) {
                check_reference(REFERENCES[i], 1, 2, MICROBATCHES[m], (enum pipeline_schedule)s);
                if (strstr(REFERENCES[i], "deep"))
                    check_reference(REFERENCES[i], 1, 3, MICROBATCHES[m],
                                    (enum pipeline_schedule)s);
            }
}

static void meshes_follow_the_references(void **state)
{
    (void)state;
    check_reference("digits-mlp-sgd", 2, 2, 4, SCHEDULE_GPIPE);
    check_reference("mnist-mlp-adam", 2, 2, 3, SCHEDULE_1F1B);
    check_reference("digits-deep-adamw", 2, 2, 4, SCHEDULE_1F1B);
    check_reference("digits-deep-adamw", 2, 3, 2, SCHEDULE_GPIPE);
    check_reference("digits-deep-adamw", 1, 7, 3, SCHEDULE_1F1B);
}

/* ---- against itself ---- */

static void run_job(struct gang *g, const char *job, enum strategy_kind kind, int data,
                    int pipeline, int microbatches)
{
    json_auto_t *doc = gang_job(job);
    gang_open(g, doc, kind, data, pipeline, microbatches, SCHEDULE_1F1B);
    gang_run(g);
}

static void check_same_bits(const char *job, enum strategy_kind kind, int data, int pipeline,
                            int microbatches, const char *artifact)
{
    struct gang a, b;
    struct buf x = BUF_INIT, y = BUF_INIT;
    run_job(&a, job, kind, data, pipeline, microbatches);
    run_job(&b, job, kind, data, pipeline, microbatches);
    read_whole(&a, artifact, &x);
    read_whole(&b, artifact, &y);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    for (size_t i = 0; i < gang_count(&a, "step"); i++) {
        const json_t *s = gang_line(&a, "step", 0, i), *t = gang_line(&b, "step", 0, i);
        assert_true(gang_number(s, "loss") == gang_number(t, "loss"));
        assert_true(gang_number(s, "grad_norm") == gang_number(t, "grad_norm"));
    }
    buf_done(&x);
    buf_done(&y);
    gang_close(&a);
    gang_close(&b);
}

static void twice_the_same_bits(void **state)
{
    (void)state;
    const char *job =
        SMALL("203", "16", "{\"type\": \"dropout\", \"rate\": 0.3},", "\"epochs\": 3");
    check_same_bits(job, STRATEGY_MIRRORED, 1, 1, 1, "model.safetensors");
    check_same_bits(job, STRATEGY_MIRRORED, 3, 1, 1, "model.safetensors");
    check_same_bits(job, STRATEGY_PIPELINE, 2, 2, 3, "model.safetensors");
    check_same_bits(job, STRATEGY_SEGMENT_ENSEMBLE, 2, 1, 1, "member-1.safetensors");
    check_same_bits("mnist-mlp-adam", STRATEGY_MIRRORED, 4, 1, 1, "model.safetensors");
}

/* Whatever the layout, the losses are those of one rank. */
static void check_like_one_rank(const char *job, int data, int pipeline, int microbatches)
{
    struct gang one, many;
    print_message("           %d x %d, %d micro-batches\n", data, pipeline, microbatches);
    run_job(&one, job, STRATEGY_NONE, 1, 1, 1);
    run_job(&many, job, pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, data, pipeline,
            microbatches);
    assert_true(gang_count(&one, "step") > 0);
    assert_int_equal(gang_count(&one, "step"), gang_count(&many, "step"));
    for (size_t i = 0; i < gang_count(&one, "step"); i++) {
        const json_t *a = gang_line(&one, "step", 0, i), *b = gang_line(&many, "step", 0, i);
        check_number("loss", i, gang_number(b, "loss"), gang_number(a, "loss"), 2e-5);
        check_number("grad_norm", i, gang_number(b, "grad_norm"), gang_number(a, "grad_norm"),
                     4e-4);
    }
    const json_t *a = gang_line(&one, "epoch", 0, 0), *b = gang_line(&many, "epoch", 0, 0);
    assert_true(fabs(gang_number(a, "accuracy") - gang_number(b, "accuracy")) < 0.02);
    gang_close(&one);
    gang_close(&many);
}

static void odd_numbers_of_ranks_and_items(void **state)
{
    (void)state;
    const char *plain = SMALL("101", "10", "", "\"epochs\": 2");
    check_like_one_rank(plain, 3, 1, 1);
    check_like_one_rank(plain, 5, 1, 1);
    check_like_one_rank(plain, 7, 1, 1);  /* the last batch has one item for seven ranks */
    check_like_one_rank(plain, 1, 3, 13); /* more micro-batches than items */
    check_like_one_rank(plain, 3, 2, 5);
    check_like_one_rank(SMALL("11", "2", "", "\"epochs\": 3"), 5, 1, 1); /* batch < ranks */
    check_like_one_rank(SMALL("3", "64", "", "\"epochs\": 4"), 4, 2, 2); /* data < ranks */
    check_like_one_rank(SMALL("1", "1", "", "\"epochs\": 4"), 3, 1, 1);
}

static void shuffle_and_dropout_ignore_the_layout(void **state)
{
    (void)state;
    const char *job = SMALL("90", "16", "{\"type\": \"dropout\", \"rate\": 0.4},",
                            "\"epochs\": 3, \"shuffle\": true");
    check_like_one_rank(job, 3, 1, 1);
    check_like_one_rank(job, 1, 2, 3);
    check_like_one_rank(job, 2, 3, 2);
}

/* Large enough that ranks divide the update, in more than one bucket, with vectors that do not
 * decay and a norm that is summed over parts. */
static void ranks_divide_the_update(void **state)
{
    (void)state;
    const char *job =
        "{\"name\": \"wide\", \"model\": {\"input\": [6], \"layers\": ["
        "{\"type\": \"dense\", \"units\": 1100, \"activation\": \"tanh\"},"
        "{\"type\": \"dense\", \"units\": 1100, \"activation\": \"tanh\"},"
        "{\"type\": \"dense\", \"units\": 1000, \"activation\": \"tanh\"},"
        "{\"type\": \"layer_normalization\"},"
        "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"
        "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.001, "
        "\"weight_decay\": 0.1, \"exclude_from_weight_decay\": \"vectors\", \"global_clipnorm\": "
        "1},"
        "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"
        "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 36, \"input\": 6, "
        "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 12, \"seed\": 3, \"epochs\": 2}}";
    check_like_one_rank(job, 2, 1, 1);
    check_like_one_rank(job, 3, 1, 1);
    check_like_one_rank(job, 2, 2, 2);
}

static void clipping_counts_all_stages(void **state)
{
    (void)state;
    const char *job = SMALL("90", "16", "", "\"epochs\": 3");
    json_auto_t *doc = gang_job(job);
    json_object_set_new(json_object_get(json_object_get(doc, "compile"), "optimizer"),
                        "global_clipnorm", json_real(0.05));
    char *text = json_dumps(doc, 0);
    check_like_one_rank(text, 2, 1, 1);
    check_like_one_rank(text, 1, 3, 2);
    check_like_one_rank(text, 2, 2, 2);
    free(text);
}

static void steps_may_end_within_an_epoch(void **state)
{
    (void)state;
    struct gang g;
    run_job(&g, SMALL("100", "10", "", "\"steps\": 13"), STRATEGY_MIRRORED, 2, 1, 1);
    assert_int_equal(gang_count(&g, "step"), 13);
    assert_int_equal(gang_count(&g, "epoch"), 2);
    assert_int_equal(gang_number(gang_line(&g, "start", 0, 0), "epochs"), 2);
    assert_int_equal(gang_number(gang_line(&g, "step", 0, 12), "epoch"), 2);
    gang_close(&g);
}

static void validation_split_is_exact_at_any_layout(void **state)
{
    (void)state;
    const char *job = SMALL("103", "10", "", "\"epochs\": 1, \"validation_split\": 0.3");
    double want = 0;
    for (int i = 0; i < 4; i++) {
        static const int LAYOUT[4][3] = {{1, 1, 1}, {3, 1, 1}, {1, 3, 2}, {2, 2, 3}};
        struct gang g;
        run_job(&g, job, LAYOUT[i][1] > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, LAYOUT[i][0],
                LAYOUT[i][1], LAYOUT[i][2]);
        double got = gang_number(gang_line(&g, "epoch", 0, 0), "val_loss");
        assert_int_equal(gang_number(gang_line(&g, "prepared", -1, 0), "validation_samples"), 31);
        if (i == 0)
            want = got;
        check_number("val_loss", 0, got, want, 1e-5);
        gang_close(&g);
    }
}

#ifndef TRAINYARD_SANITIZED /* which count every freed byte as used */
/* What needs five stages must not lie whole in each of their ranks when the weights are written. */
static void stages_hold_their_own_weights_only(void **state)
{
    (void)state;
    struct gang g;
    struct buf text = BUF_INIT;
    buf_adds(&text, "{\"name\": \"deep\", \"model\": {\"input\": [2000], \"layers\": [");
    for (int l = 0; l < 6; l++)
        buf_addf(&text, "{\"type\": \"dense\", \"units\": %d}%s", l < 5 ? 2000 : 1,
                 l < 5 ? "," : "");
    buf_adds(&text,
             "]}, \"compile\": {\"optimizer\": {\"name\": \"sgd\", \"learning_rate\": 1e-9}, "
             "\"loss\": \"mean_squared_error\"}, \"data\": {\"train\": {\"format\": "
             "\"synthetic\", \"samples\": 4, \"input\": 2000, \"classes\": 4, \"seed\": 1}}, "
             "\"fit\": {\"batch_size\": 4}}");
    json_auto_t *doc = gang_job(text.data);
    gang_open(&g, doc, STRATEGY_PIPELINE, 1, 5, 1, SCHEDULE_GPIPE);
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    for (int r = 0; r < 5; r++) {
        struct rusage used;
        int status;
        assert_int_equal(wait4(g.pids[r], &status, 0, &used), g.pids[r]);
        assert_int_equal(status, 0);
        /* 16 MB each of parameters, gradients and start values; the model has 80 */
        if (r > 0 && used.ru_maxrss > 90 * 1024)
            fail_msg("rank %d took %ld KiB", r, used.ru_maxrss);
    }
    buf_done(&text);
    gang_close(&g);
}
#endif

/* ---- ensembles ---- */

static void members_share_the_samples(void **state)
{
    (void)state;
    for (int members = 1; members <= 5; members++)
        for (int64_t n = 1; n < 40; n += 6)
            for (int64_t batch = 1; batch < 12; batch += 3) {
                char seen[64] = {0};
                struct dataset set = {.samples = n};
                struct fit fit = {.epochs = 1, .batch_size = batch, .shuffle = 1, .seed = 9};
                const struct plan plan = {.data = members};
                for (int m = 0; m < members; m++) {
                    struct mesh mesh = {.data_rank = m, .data = members, .ensemble = 1};
                    struct share s;
                    struct items it;
                    share_init(&s, &set, &fit, &mesh, 0);
                    share_epoch(&s, 1);
                    assert_int_equal(share_steps(&s), (n + batch - 1) / batch);
                    for (int64_t k = 0; k < s.steps_per_epoch; k++) {
                        share_items(&s, k, &it);
                        assert_in_range(it.count, 0, share_most(&set, &fit, &mesh, &plan));
                        for (int64_t i = 0; i < it.count; i++) {
                            assert_int_equal(it.ids[i] % members, m);
                            assert_int_equal(seen[it.ids[i]]++, 0);
                        }
                    }
                    share_done(&s);
                }
                for (int64_t i = 0; i < n; i++)
                    assert_int_equal(seen[i], 1);
            }
}

/* The loss of a mean of probabilities is never above the mean of the losses (Jensen). */
static void check_ensemble(const char *job, int members, const char *loss_name_)
{
    struct gang g;
    char name[64];
    struct buf file = BUF_INIT;
    run_job(&g, job, STRATEGY_SEGMENT_ENSEMBLE, members, 1, 1);
    const json_t *epoch = gang_line(&g, "epoch", 0, gang_count(&g, "epoch") - 1);
    const json_t *list = json_object_get(epoch, "members"), *m;
    double sum = 0;
    size_t i;
    assert_int_equal(json_array_size(list), members);
    json_array_foreach(list, i, m) sum += gang_number(m, loss_name_);
    assert_true(gang_number(epoch, loss_name_) <= sum / members * 1.05);
    int event_files = strncmp(loss_name_, "val_", 4) == 0 ? 2 : 1;
    assert_int_equal(gang_count(&g, "artifact"), members + event_files);
    for (int k = 0; k < members; k++) {
        snprintf(name, sizeof name, "member-%d.safetensors", k);
        read_whole(&g, name, &file);
        assert_int_equal(file.len, gang_number(gang_line(&g, "artifact", 0, (size_t)k), "bytes"));
        buf_clear(&file);
    }
    buf_done(&file);
    gang_close(&g);
}

static void ensembles_merge_what_members_say(void **state)
{
    (void)state;
    check_ensemble(SMALL("203", "16", "", "\"epochs\": 6"), 3, "loss");
    check_ensemble(SMALL("203", "16", "", "\"epochs\": 2, \"validation_split\": 0.25"), 2,
                   "val_loss");
}

/* Whoever has no samples has no loss to tell, and still meets the others at every step. */
/* Seven samples, two a step, for five members: in most steps most of them have nothing to do. */
static void members_without_samples_keep_step(void **state)
{
    (void)state;
    struct gang g;
    run_job(&g, SMALL("7", "2", "", "\"epochs\": 2"), STRATEGY_SEGMENT_ENSEMBLE, 5, 1, 1);
    assert_int_equal(gang_count(&g, "step"), 8);
    const json_t *epoch = gang_line(&g, "epoch", 0, 1);
    assert_true(isfinite(gang_number(epoch, "loss")));
    for (size_t m = 0; m < 5; m++)
        assert_true(
            isfinite(gang_number(json_array_get(json_object_get(epoch, "members"), m), "loss")));
    gang_close(&g);
}

static void each_member_needs_a_sample(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job(SMALL("4", "2", "", "\"epochs\": 2"));
    gang_open(&g, doc, STRATEGY_SEGMENT_ENSEMBLE, 5, 1, 1, SCHEDULE_GPIPE);
    assert_int_equal(gang_prepare(&g), TRAIN_PERMANENT);
    gang_read(&g);
    const json_t *v = gang_line(&g, "verdict", -1, 0);
    assert_string_equal(gang_text(v, "code"), "data_invalid");
    assert_non_null(strstr(gang_text(v, "reason"), "5 members"));
    gang_close(&g);
}

static void an_ensemble_of_one_is_plain_training(void **state)
{
    (void)state;
    struct gang a, b;
    const char *job = SMALL("103", "10", "", "\"epochs\": 2, \"validation_split\": 0.3");
    run_job(&a, job, STRATEGY_NONE, 1, 1, 1);
    run_job(&b, job, STRATEGY_SEGMENT_ENSEMBLE, 1, 1, 1);
    for (size_t i = 0; i < gang_count(&a, "step"); i++)
        assert_true(gang_number(gang_line(&a, "step", 0, i), "loss") ==
                    gang_number(gang_line(&b, "step", 0, i), "loss"));
    check_number("val_loss", 0, gang_number(gang_line(&b, "epoch", 0, 1), "val_loss"),
                 gang_number(gang_line(&a, "epoch", 0, 1), "val_loss"), 1e-5);
    gang_close(&a);
    gang_close(&b);
}

/* ---- other losses, end to end ---- */

static void regression_and_yes_or_no_learn(void **state)
{
    (void)state;
    static const char *const JOBS[] = {
        "{\"name\": \"cancer\", \"model\": {\"input\": [30], \"layers\": ["
        "{\"type\": \"layer_normalization\"}, {\"type\": \"dense\", \"units\": 16, "
        "\"activation\": \"relu\"}, {\"type\": \"dense\", \"units\": 1, \"activation\": "
        "\"sigmoid\"}]}, \"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": "
        "0.02}, \"loss\": \"binary_crossentropy\","
        "\"metrics\": [\"accuracy\"]}, \"data\": {\"train\": {\"format\": \"csv\", \"path\": "
        "\"breast_cancer.csv\"}}, \"fit\": {\"epochs\": 4, \"batch_size\": 32}}",
        "{\"name\": \"numbers\", \"model\": {\"input\": [64], \"layers\": [{\"type\": "
        "\"rescaling\", \"scale\": 0.0625}, {\"type\": \"dense\", \"units\": 16, \"activation\": "
        "\"silu\"}, {\"type\": \"dense\", \"units\": 1}]}, \"compile\": {\"optimizer\": {\"name\": "
        "\"sgd\", \"momentum\": 0.9, \"nesterov\": true, \"learning_rate\": 0.005}, \"loss\": "
        "\"mean_squared_error\", \"metrics\": [\"mae\"]}, \"data\": {\"train\": {\"format\": "
        "\"csv\", \"path\": \"digits.csv.gz\", \"header\": false}}, \"fit\": {\"epochs\": 4, "
        "\"batch_size\": 32}}",
    };
    for (size_t i = 0; i < ARRAY_LEN(JOBS); i++) {
        struct gang g;
        run_job(&g, JOBS[i], STRATEGY_MIRRORED, 2, 1, 1);
        assert_true(gang_number(gang_line(&g, "epoch", 0, 3), "loss") <
                    0.9 * gang_number(gang_line(&g, "epoch", 0, 0), "loss"));
        gang_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mirrored_follows_the_references),
        cmocka_unit_test(batch_normalisation_follows_the_references),
        cmocka_unit_test(pipelines_follow_the_references),
        cmocka_unit_test(meshes_follow_the_references),
        cmocka_unit_test(twice_the_same_bits),
        cmocka_unit_test(odd_numbers_of_ranks_and_items),
        cmocka_unit_test(shuffle_and_dropout_ignore_the_layout),
        cmocka_unit_test(ranks_divide_the_update),
        cmocka_unit_test(clipping_counts_all_stages),
        cmocka_unit_test(steps_may_end_within_an_epoch),
        cmocka_unit_test(validation_split_is_exact_at_any_layout),
#ifndef TRAINYARD_SANITIZED
        cmocka_unit_test(stages_hold_their_own_weights_only),
#endif
        cmocka_unit_test(members_share_the_samples),
        cmocka_unit_test(ensembles_merge_what_members_say),
        cmocka_unit_test(members_without_samples_keep_step),
        cmocka_unit_test(each_member_needs_a_sample),
        cmocka_unit_test(an_ensemble_of_one_is_plain_training),
        cmocka_unit_test(regression_and_yes_or_no_learn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
