/* Going on from checkpoints: what comes after is what would have come, wherever a run was left and
 * whatever mesh goes on. */
#include <math.h>
#include <sys/syscall.h>

#include "tests/unit/trainer_checkpoints.h"
#include "trainer/safetensors.h"

/* ---- asked to stop at a line of the report ---- */

static const char *stop_at; /* what the line has; NULL: never */

/* Stands before the C library's: the report comes by here. */
ssize_t write(int fd, const void *bytes, size_t n)
{
    if (stop_at && memmem(bytes, n, stop_at, strlen(stop_at)))
        gang_stop = 1;
    return syscall(SYS_write, fd, bytes, n);
}

/* `data` x `pipeline` ranks go on from each checkpoint in turn. */
static void check_resumes(const struct gang *whole, struct resume_list *list, struct store *s,
                          int data, int pipeline, double tolerance)
{
    for (int i = 0; i < list->count; i++) {
        struct gang g;
        int64_t step = list->items[i].step;
        gang_open_with(&g, RESUMABLE, data, pipeline, s, 0);
        resume_from(&g, &list->items[i], 1);
        gang_run(&g);
        assert_int_equal(gang_number(gang_line(&g, "start", 0, 0), "from_step"), step);
        same_rest(whole, &g, step, RESUMABLE_STEPS, tolerance);
        assert_non_null(epoch_line(&g, 2));
        assert_int_equal(epoch_line(&g, 1) != NULL, step <= 13);
        if (tolerance == 0)
            same_weights(whole, &g);
        gang_close(&g);
    }
}

/* A run and one that was left and gone on with after each of its steps: in the midst of the first
 * epoch, at the border, in the second, and when all steps are done. */
static void check_every_step(int data, int pipeline)
{
    struct store s;
    struct gang whole, saved;
    struct resume_list list;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, data, pipeline, &s, 0);
    gang_run(&whole);
    gang_open_with(&saved, RESUMABLE, data, pipeline, &s, 0);
    gang_save_every(&saved, 1);
    list_checkpoints(&saved, &list);
    assert_int_equal(list.count, RESUMABLE_STEPS);
    check_resumes(&whole, &list, &s, data, pipeline, 0);
    list_done(&list);
    gang_close(&saved);
    gang_close(&whole);
    store_close(&s);
}

static void to_the_bit_after_any_step(void **state)
{
    (void)state;
    check_every_step(1, 1);
    check_every_step(3, 1);
    check_every_step(1, 2);
    check_every_step(2, 2);
}

/* Written by four ranks, gone on with by other numbers of them, and other cuts. Sums over ranks are
 * rounded otherwise, so the losses agree as they do between meshes. */
static void at_any_other_mesh(void **state)
{
    (void)state;
    static const int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {8, 1}, {1, 2}, {1, 3}, {2, 3}};
    static const int writers[][2] = {{4, 1}, {2, 2}};
    for (size_t w = 0; w < ARRAY_LEN(writers); w++) {
        struct store s;
        struct gang whole, saved;
        struct resume_list list;
        store_open(&s);
        gang_open_with(&whole, RESUMABLE, writers[w][0], writers[w][1], &s, 0);
        gang_run(&whole);
        gang_open_with(&saved, RESUMABLE, writers[w][0], writers[w][1], &s, 0);
        gang_save_every(&saved, 5);
        list_checkpoints(&saved, &list);
        for (size_t m = 0; m < ARRAY_LEN(meshes); m++)
            check_resumes(&whole, &list, &s, meshes[m][0], meshes[m][1], 2e-5);
        list_done(&list);
        gang_close(&saved);
        gang_close(&whole);
        store_close(&s);
    }
}

/* ---- read at one mesh, written at another ---- */

/* Optimizer state and all, whatever the layout: the same bits. */
static void the_same_values_at_any_mesh(void **state)
{
    (void)state;
    static const int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {8, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}};
    struct store s, to;
    struct gang saved;
    struct resume_list list;
    struct whole a, b;
    store_open(&s);
    gang_open_with(&saved, RESUMABLE, 4, 1, &s, 0);
    gang_save_every(&saved, 20);
    list_checkpoints(&saved, &list);
    const struct model *m = &saved.launch.spec->model;
    whole_of(&a, &s, list.items[0].name, m);
    for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
        store_open(&to);
        const struct plan p = {.data = meshes[i][0], .pipeline = meshes[i][1], .microbatches = 2};
        move_to(RESUMABLE, &p, &s, &list, &to);
        whole_of(&b, &to, list.items[0].name, m);
        for (int k = 0; k <= PIECE_STATE_1; k++) {
            for (size_t at = 0; at < a.elements; at++)
                assert_false(isnan(a.values[k][at]));
            assert_memory_equal(a.values[k], b.values[k], a.elements * sizeof(float));
        }
        whole_done(&b);
        store_close(&to);
    }
    whole_done(&a);
    list_done(&list);
    gang_close(&saved);
    store_close(&s);
}

/* ---- suspended ---- */

/* One attempt that is asked to stop at `line`, from the newest checkpoint in the store. Returns 1
 * when it was stopped, 0 when all steps were done before. */
static int run_until(struct gang *g, const char *job, int data, int pipeline, struct store *s,
                     const char *line)
{
    struct resume_list list;
    list_store(s, &list);
    gang_open_with(g, job, data, pipeline, s, 0);
    resume_from(g, list.items, list.count);
    stop_at = line;
    assert_int_equal(gang_prepare(g), 0);
    gang_start(g);
    stop_at = NULL;
    gang_wait(g);
    list_done(&list);
    int stopped = strcmp(gang_text(gang_line(g, "verdict", 0, 0), "outcome"), "stopped") == 0;
    for (int r = 0; r < g->launch.plan.ranks; r++) {
        const json_t *v = gang_line(g, "verdict", r, 0);
        if (g->status[r] != 0)
            fail_msg("%s", gang_text(v, "reason"));
        assert_string_equal(gang_text(v, "outcome"), stopped ? "stopped" : "done");
    }
    assert_int_equal(gang_count(g, "checkpoint"), stopped);
    assert_non_null(gang_line(g, "artifact", 0, 0));
    return stopped;
}

/* A step an attempt, each on the next of the meshes. */
static void check_chain(const int (*meshes)[2], size_t count, double tolerance)
{
    struct store s;
    struct gang whole, g;
    int64_t step = 0;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, meshes[0][0], meshes[0][1], &s, 0);
    gang_run(&whole);
    for (size_t i = 0, go_on = 1; go_on; i++, step++) {
        const int *m = meshes[i % count];
        go_on = (size_t)run_until(&g, RESUMABLE, m[0], m[1], &s, "\"type\":\"start\"");
        same_rest(&whole, &g, step, step + 1, tolerance);
        if (!go_on && tolerance == 0)
            same_weights(&whole, &g);
        gang_close(&g);
    }
    assert_int_equal(step, RESUMABLE_STEPS);
    gang_close(&whole);
    store_close(&s);
}

static void suspended_after_every_step(void **state)
{
    (void)state;
    static const int one[][2] = {{2, 1}};
    static const int many[][2] = {{4, 1}, {1, 1}, {2, 2}, {3, 1}, {1, 3}, {8, 1}, {2, 1}};
    check_chain(one, 1, 0);
    check_chain(many, ARRAY_LEN(many), 2e-5);
}

/* Without a directory, or with "checkpoint": false, there is nothing to go on from. */
static void no_checkpoint_where_none_is_wanted(void **state)
{
    (void)state;
    struct store s;
    struct gang g;
    store_open(&s);
    for (int with_directory = 0; with_directory < 2; with_directory++) {
        gang_open_with(&g, RESUMABLE, 2, 1, &s, 1);
        g.launch.spec->checkpoint.enabled = !with_directory;
        g.launch.checkpoints = with_directory ? s.root : NULL;
        stop_at = "\"type\":\"start\"";
        assert_int_equal(gang_prepare(&g), 0);
        gang_start(&g);
        stop_at = NULL;
        gang_wait(&g);
        assert_string_equal(gang_text(gang_line(&g, "verdict", 1, 0), "outcome"), "stopped");
        assert_int_equal(gang_count(&g, "checkpoint"), 0);
        gang_close(&g);
    }
    assert_int_equal(rmdir(s.root), 0);
}

/* ---- beside the training ---- */

/* As many as get their turn: what is due while one is written waits. */
static void taken_beside_the_training(void **state)
{
    (void)state;
    struct store s;
    struct gang whole, g;
    struct resume_list list;
    store_open(&s);
    gang_open_with(&whole, RESUMABLE, 3, 1, &s, 1);
    gang_run(&whole);
    list_checkpoints(&whole, &list);
    assert_true(list.count > 0);
    for (int i = 0; i < list.count; i++) {
        assert_int_not_equal(list.items[i].step, RESUMABLE_STEPS);
        gang_open_with(&g, RESUMABLE, 3, 1, &s, 0);
        resume_from(&g, &list.items[i], 1);
        gang_run(&g);
        same_rest(&whole, &g, list.items[i].step, RESUMABLE_STEPS, 0);
        same_weights(&whole, &g);
        gang_close(&g);
    }
    list_done(&list);
    gang_close(&whole);
    store_close(&s);
}

/* ---- stopped between two means ---- */

static struct safetensors *file_at(const char *path)
{
    struct safetensors *s;
    struct err e;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    if (safetensors_open(fd, path, &s, &e) < 0)
        fail_msg("%s", e.text);
    return s;
}

/* The values of the tensor whose name ends so, owned by the caller; NULL: there is none. */
static float *values_at(const struct safetensors *s, const char *name, int64_t *ret_count)
{
    struct err e;
    for (int i = 0; i < safetensors_count(s); i++)
        if (strstr(safetensors_name(s, i), name)) {
            *ret_count = safetensors_elements(s, i);
            float *x = mem_alloc((size_t)*ret_count * sizeof *x);
            assert_int_equal(safetensors_read_part(s, i, 0, *ret_count, x, &e), 0);
            return x;
        }
    return NULL;
}

/* Compares a tensor of the weights with those of two shards; returns how many values differ
 * between these. */
static int64_t check_mean(struct safetensors *const of[3], const char *name)
{
    float *x[3];
    int64_t count[3], differ = 0;
    char parameter[80];
    snprintf(parameter, sizeof parameter, "parameter/%s/", name);
    for (int i = 0; i < 3; i++) {
        x[i] = values_at(of[i], i < 2 ? parameter : name, &count[i]);
        assert_non_null(x[i]);
        assert_int_equal(count[i], count[0]);
    }
    for (int64_t k = 0; k < count[0]; k++) {
        assert_true(x[2][k] == (x[0][k] + x[1][k]) * 0.5f);
        differ += x[0][k] != x[1][k];
    }
    for (int i = 0; i < 3; i++)
        free(x[i]);
    return differ;
}

/* local_sgd: the checkpoint has the weights of both ranks, the job leaves their mean. */
static void a_run_stopped_between_means_leaves_the_mean(void **state)
{
    (void)state;
    struct plan p = {.kind = STRATEGY_MIRRORED, .data = 2, .pipeline = 1, .microbatches = 1};
    struct store s;
    struct gang g;
    struct safetensors *of[3];
    char path[160];
    parallel_set_defaults(&p.parallel);
    p.parallel.sync = SYNC_LOCAL_SGD;
    p.parallel.local_steps = 100;
    store_open(&s);
    gang_open_as(&g, RESUMABLE, &p, &s, 0);
    assert_int_equal(gang_prepare(&g), 0);
    stop_at = "\"type\":\"start\"";
    gang_start(&g);
    stop_at = NULL;
    gang_wait(&g);
    const json_t *saved = gang_line(&g, "checkpoint", 0, 0);
    assert_string_equal(gang_text(gang_line(&g, "verdict", 0, 0), "outcome"), "stopped");
    assert_true(gang_number(saved, "step") < RESUMABLE_STEPS / 2);
    for (int r = 0; r < 2; r++) {
        snprintf(path, sizeof path, "%s/%s/rank-%d.safetensors", s.root, gang_text(saved, "name"),
                 r);
        of[r] = file_at(path);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", g.dir);
    of[2] = file_at(path);
    for (int i = 0; i < safetensors_count(of[2]); i++)
        assert_true(check_mean(of, safetensors_name(of[2], i)) > 0);
    for (int i = 0; i < 3; i++)
        safetensors_close(of[i]);
    gang_close(&g);
    store_close(&s);
}

/* ---- early stopping ---- */

#define STOPPING(RULE)                                                                             \
    SMALL("100", "8", "{\"type\": \"dropout\", \"rate\": 0.25},",                                  \
          "\"epochs\": 40, \"validation_split\": 0.3, \"early_stopping\": {" RULE "}")

/* The last epoch and the best by Keras's rule, from the figures that were reported. */
static void expect_end(const struct gang *g, int64_t patience, int64_t *ret_last, int64_t *ret_best)
{
    double best = INFINITY;
    int64_t waited = 0;
    for (int64_t epoch = 1; epoch_line(g, epoch); epoch++) {
        double x = gang_number(epoch_line(g, epoch), "val_loss");
        waited = x < best ? 0 : waited + 1;
        *ret_best = x < best ? epoch : *ret_best;
        best = x < best ? x : best;
        *ret_last = epoch;
        if (waited >= patience)
            return;
    }
}

static void check_stopping(int data, int pipeline)
{
    struct store s;
    struct gang whole, best, g;
    int64_t last = 0, best_epoch = 0;
    static const char job[] = STOPPING("\"patience\": 3, \"restore_best_weights\": true");
    store_open(&s);
    gang_open_with(&whole, job, data, pipeline, &s, 0);
    gang_run(&whole);
    expect_end(&whole, 3, &last, &best_epoch);
    assert_int_equal(gang_count(&whole, "epoch"), last);
    assert_true(last < 40 && best_epoch == last - 3 && best_epoch > 1);
    assert_non_null(
        strstr(gang_text(gang_line(&whole, "verdict", data * pipeline - 1, 0), "reason"),
               "Early stopping: val_loss has not been better than "));

    json_auto_t *doc = gang_job(STOPPING("\"patience\": 30"));
    gang_open(&best, doc, pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, data, pipeline,
              pipeline, SCHEDULE_1F1B);
    best.launch.spec->fit.epochs = best_epoch;
    gang_run(&best);
    same_weights(&whole, &best);

    /* left after the best epoch, and gone on with by others */
    char line[64];
    snprintf(line, sizeof line, "\"type\":\"epoch\",\"rank\":0,\"epoch\":%d", (int)last - 1);
    assert_int_equal(run_until(&g, job, data, pipeline, &s, line), 1);
    gang_close(&g);
    static const int meshes[][2] = {{1, 1}, {3, 1}, {2, 2}};
    struct resume_list list;
    list_store(&s, &list);
    for (size_t i = 0; i <= ARRAY_LEN(meshes); i++) {
        int is_same = i == ARRAY_LEN(meshes);
        gang_open_with(&g, job, is_same ? data : meshes[i][0], is_same ? pipeline : meshes[i][1],
                       &s, 0);
        resume_from(&g, list.items, list.count);
        gang_run(&g);
        assert_non_null(epoch_line(&g, last));
        assert_null(epoch_line(&g, last + 1));
        same_weights(&whole, &g); /* the best epoch was before: whatever goes on, its bits */
        gang_close(&g);
    }
    list_done(&list);
    gang_close(&best);
    gang_close(&whole);
    store_close(&s);
}

static void stopping_early_with_the_best_weights(void **state)
{
    (void)state;
    check_stopping(1, 1);
    check_stopping(3, 1);
    check_stopping(1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_the_bit_after_any_step),
        cmocka_unit_test(at_any_other_mesh),
        cmocka_unit_test(the_same_values_at_any_mesh),
        cmocka_unit_test(suspended_after_every_step),
        cmocka_unit_test(no_checkpoint_where_none_is_wanted),
        cmocka_unit_test(taken_beside_the_training),
        cmocka_unit_test(a_run_stopped_between_means_leaves_the_mean),
        cmocka_unit_test(stopping_early_with_the_best_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
