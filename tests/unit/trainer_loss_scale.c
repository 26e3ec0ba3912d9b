/* Gradients that are scaled: runs that agree with those whose are not, scales that overflow, and
 * their way through checkpoints. */
#include <math.h>

#include "tests/unit/trainer_checkpoints.h"

#include "trainer/loss_scale.h"

/* ---- the rule ---- */

static void halves_and_doubles(void **state)
{
    (void)state;
    struct loss_scale s;
    loss_scale_init(&s, COMPUTE_BFLOAT16);
    assert_false(loss_scale_can_fall(&s));
    assert_true(loss_scale_after(&s, 0) == 1 && s.factor == 1);
    loss_scale_init(&s, COMPUTE_FLOAT16);
    assert_true(s.factor == 32768);
    assert_true(loss_scale_after(&s, 0) == 0.5 && s.factor == 16384);
    for (int i = 0; i < LOSS_SCALE_STEPS - 1; i++)
        assert_true(loss_scale_after(&s, 1) == 1);
    assert_true(loss_scale_after(&s, 0) == 0.5); /* not in a row any more */
    for (int i = 0; i < LOSS_SCALE_STEPS - 1; i++)
        assert_true(loss_scale_after(&s, 1) == 1);
    assert_true(loss_scale_after(&s, 1) == 2 && s.factor == 16384 && s.good == 0);
    for (int i = 0; i < 14; i++)
        loss_scale_after(&s, 0);
    assert_true(s.factor == 1);
    assert_false(loss_scale_can_fall(&s));
    assert_true(loss_scale_after(&s, 0) == 1 && s.factor == 1);
}

/* ---- runs ---- */

struct mesh_form {
    int data, pipeline, microbatches, zero;
    enum sync_kind sync;
    enum codec_kind codec;
};

static const char clipped[] =
    "{\"name\": \"scaled\", \"model\": {\"input\": [6], \"layers\": ["
    "{\"type\": \"dense\", \"units\": 9, \"activation\": \"tanh\"},"
    "{\"type\": \"dense\", \"units\": 8, \"activation\": \"gelu\"},"
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"
    "\"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": 0.01, "
    "\"global_clipnorm\": 0.5}, \"loss\": \"sparse_categorical_crossentropy\"},"
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 700, \"input\": 6, "
    "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 160, \"seed\": 3, \"epochs\": 3}}";

static void open_form(const struct mesh_form *f, enum compute_type compute, struct gang *g)
{
    json_auto_t *doc = gang_job(clipped);
    gang_open(g, doc, f->pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, f->data, f->pipeline,
              f->microbatches, SCHEDULE_GPIPE);
    g->launch.plan.zero = f->zero;
    g->launch.plan.parallel.sync = f->sync;
    g->launch.plan.parallel.codec = f->codec;
    g->launch.plan.parallel.overlap = 1;
    g->launch.spec->precision.compute = compute;
}

static const struct mesh_form forms[] = {
    {.data = 1, .pipeline = 1, .microbatches = 1},
    {.data = 2, .pipeline = 1, .microbatches = 1, .sync = SYNC_DELAYED},
    {.data = 2, .pipeline = 1, .microbatches = 2, .zero = 2},
    {.data = 2, .pipeline = 2, .microbatches = 2, .zero = 1},
    {.data = 2, .pipeline = 1, .microbatches = 1, .codec = CODEC_INT8},
    {.data = 2, .pipeline = 1, .microbatches = 1, .sync = SYNC_LOCAL_SGD},
};

static int is_skipped(const json_t *line)
{
    return json_is_true(json_object_get(line, "skipped"));
}

/* A power of two rounds nothing: the same figures, the norm without the scale. */
static void a_scale_changes_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct gang plain, scaled;
        open_form(&forms[i], COMPUTE_FLOAT32, &plain);
        open_form(&forms[i], COMPUTE_FLOAT16, &scaled);
        gang_run(&plain);
        gang_run(&scaled);
        size_t steps = gang_count(&plain, "step");
        assert_int_equal(steps, 15);
        assert_int_equal(gang_count(&scaled, "step"), steps);
        for (size_t k = 0; k < steps; k++) {
            const json_t *a = gang_line(&plain, "step", 0, k),
                         *b = gang_line(&scaled, "step", 0, k);
            assert_null(json_object_get(a, "loss_scale"));
            assert_true(k == 0 || gang_number(b, "loss_scale") == LOSS_SCALE_FIRST);
            assert_false(is_skipped(b));
            double x = gang_number(a, "loss"), y = gang_number(b, "loss");
            assert_true(fabs(x - y) <= 1e-5 * x);
            x = gang_number(a, "grad_norm"), y = gang_number(b, "grad_norm");
            assert_true(fabs(x - y) <= 1e-4 * x);
        }
        gang_close(&plain);
        gang_close(&scaled);
    }
}

/* The scale falls until gradients are finite; no skipped step has changed anything. */
static void a_scale_that_overflows(void **state)
{
    (void)state;
    loss_scale_first = LOSS_SCALE_MOST;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct gang g;
        size_t skipped = 0;
        open_form(&forms[i], COMPUTE_FLOAT16, &g);
        gang_run(&g);
        double scale = LOSS_SCALE_MOST;
        for (size_t k = 0; k < gang_count(&g, "step"); k++) {
            const json_t *line = gang_line(&g, "step", 0, k);
            if (forms[i].sync == SYNC_DELAYED) { /* a step later */
                skipped += (size_t)is_skipped(line);
                continue;
            }
            assert_true(fabs(gang_number(line, "loss_scale") - scale) < 1e-6 * scale);
            if (is_skipped(line))
                assert_true(skipped == k);
            skipped += (size_t)is_skipped(line);
            scale /= is_skipped(line) ? 2 : 1;
        }
        print_message("           %zu of 15 steps skipped\n", skipped);
        assert_in_range(skipped, 1, 10);
        gang_close(&g);
    }
    loss_scale_first = LOSS_SCALE_FIRST;
}

/* The steps after those that were skipped are what they would have been without them, but for the
 * data that they had: with every batch the same, all of it. */
static void skipped_steps_leave_no_trace(void **state)
{
    (void)state;
    struct gang plain, scaled;
    static const char job[] = SMALL("160", "160", "", "\"epochs\": 12, \"shuffle\": false");
    json_auto_t *doc = gang_job(job);
    size_t skipped = 0;
    loss_scale_first = LOSS_SCALE_MOST;
    gang_open(&plain, doc, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
    gang_open(&scaled, doc, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
    scaled.launch.spec->precision.compute = COMPUTE_FLOAT16;
    gang_run(&plain);
    gang_run(&scaled);
    while (is_skipped(gang_line(&scaled, "step", 0, skipped)))
        skipped++;
    assert_in_range(skipped, 1, 8);
    for (size_t k = 0; k + skipped < 12; k++) {
        double x = gang_number(gang_line(&plain, "step", 0, k), "loss");
        double y = gang_number(gang_line(&scaled, "step", 0, k + skipped), "loss");
        assert_true(fabs(x - y) <= 1e-5 * x);
    }
    gang_close(&plain);
    gang_close(&scaled);
    loss_scale_first = LOSS_SCALE_FIRST;
}

/* Norms that are not finite are texts. */
static void same_steps(const struct gang *whole, const struct gang *g, int64_t from)
{
    static const char *const names[] = {"loss", "grad_norm", "loss_scale", "skipped"};
    assert_int_equal(gang_count(g, "step"), 15 - from);
    for (int64_t step = from + 1; step <= 15; step++)
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            json_t *a = json_object_get(step_line(whole, step), names[i]);
            json_t *b = json_object_get(step_line(g, step), names[i]);
            if (a != b && !json_equal(a, b))
                fail_msg("step %lld has another %s", (long long)step, names[i]);
        }
}

/* A run that goes on has the scale, and what was left of it to be sent. */
static void survives_a_resume(void **state)
{
    (void)state;
    loss_scale_first = LOSS_SCALE_MOST;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct store s;
        struct gang whole, saved, g;
        struct resume_list list;
        store_open(&s);
        open_form(&forms[i], COMPUTE_FLOAT16, &whole);
        gang_run(&whole);
        open_form(&forms[i], COMPUTE_FLOAT16, &saved);
        saved.launch.checkpoints = s.root;
        gang_save_every(&saved, 4);
        list_checkpoints(&saved, &list);
        for (int k = 0; k < list.count; k++) {
            open_form(&forms[i], COMPUTE_FLOAT16, &g);
            g.launch.checkpoints = s.root;
            resume_from(&g, &list.items[k], 1);
            gang_run(&g);
            same_steps(&whole, &g, list.items[k].step);
            gang_close(&g);
        }
        assert_true(list.count >= 2);
        list_done(&list);
        gang_close(&whole);
        gang_close(&saved);
        store_close(&s);
    }
    loss_scale_first = LOSS_SCALE_FIRST;
}

/* A loss that is not finite is no matter of scale. */
static void a_loss_that_is_not_finite_ends_the_run(void **state)
{
    (void)state;
    struct gang g;
    open_form(&forms[0], COMPUTE_FLOAT16, &g);
    g.launch.spec->optimizer.kind = OPTIMIZER_SGD;
    g.launch.spec->optimizer.global_clipnorm = 0;
    g.launch.spec->optimizer.learning_rate = 1e38;
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    assert_int_equal(g.status[0], TRAIN_PERMANENT);
    assert_string_equal(gang_text(gang_line(&g, "verdict", 0, 0), "code"), "loss_not_finite");
    gang_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_and_doubles),
        cmocka_unit_test(a_scale_changes_nothing),
        cmocka_unit_test(a_scale_that_overflows),
        cmocka_unit_test(skipped_steps_leave_no_trace),
        cmocka_unit_test(survives_a_resume),
        cmocka_unit_test(a_loss_that_is_not_finite_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
