/* The two trainers as programs: a checkpoint that one has written is gone on from by the other. */
#include "tests/unit/trainer_checkpoints.h"

#define STEPS 12

static const char job[] = SMALL("60", "20", "", "\"steps\": 12");

/* build/tests/unit/cuda_programs: the programs lie two folders up. */
static char *program(int on_gpu)
{
    char here[PATH_MAX] = "";
    ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
    assert_true(n > 0);
    for (int i = 0; i < 3; i++)
        *strrchr(here, '/') = '\0';
    return mem_printf("%s/%s", here, on_gpu ? "emu/trainyard-trainer-cuda" : "trainyard-trainer");
}

static json_t *resume_json(const struct resume_list *list)
{
    json_t *all = json_array();
    for (int i = 0; list && i < list->count; i++)
        json_array_append_new(all, json_pack("{s:s, s:I, s:s}", "name", list->items[i].name, "step",
                                             (json_int_t)list->items[i].step, "sum",
                                             list->items[i].sum));
    return all;
}

static void write_launch(struct gang *g, int on_gpu, const struct store *s, int64_t every,
                         const struct resume_list *list)
{
    char path[128];
    struct err e;
    json_t *spec = gang_job(job);
    json_object_set_new(spec, "checkpoint", json_pack("{s:I}", "every_steps", (json_int_t)every));
    json_t *rank = json_pack("{s:i, s:i, s:i, s:s}", "rank", 0, "local_rank", 0, "device", 0,
                             "kind", on_gpu ? "gpu" : "cpu");
    if (on_gpu)
        json_object_set_new(rank, "uuid", json_string("GPU-00000000-0000-4000-8000-000000000000"));
    json_auto_t *doc = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:s, s:o, s:o, s:s, s:s, s:i, s:i, s:i, s:[o], s:[s, s], s:s, "
        "s:s, s:o}",
        "job", "job_test", "job_name", "test", "attempt", "att_1", "number", 1, "epoch", 1, "node",
        "n1", "spec", spec, "plan", plan_to_json(&g->launch.plan), "secret", "s3cr3t",
        "master_addr", "127.0.0.1", "master_port", 23001, "time_limit_s", 0, "grace_s", 30, "ranks",
        rank, "data_roots", g->roots[0], g->roots[1], "trainer", "/usr/bin/t", "checkpoints",
        s->root, "resume", resume_json(list));
    assert_non_null(doc);
    CLEANUP(mem_freep) char *text = json_dumps(doc, 0);
    snprintf(path, sizeof path, "%s/launch.json", g->dir);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &e), 0);
}

static void exec_program(const struct gang *g, const char *path, const char *what,
                         const char *value)
{
    alarm(GANG_ALARM);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    dup2(g->report, 13), dup2(g->memory, 14), dup2(g->data, 15);
    dup2(13, 3), dup2(14, 4), dup2(15, 5);
    if (chdir(g->dir) == 0)
        execl(path, path, "--launch", "launch.json", what, value, (char *)NULL);
    _exit(99);
}

static void run_program(struct gang *g, int on_gpu, const char *what, const char *value)
{
    CLEANUP(mem_freep) char *path = program(on_gpu);
    g->pids[0] = fork();
    assert_true(g->pids[0] >= 0);
    if (g->pids[0] == 0)
        exec_program(g, path, what, value);
    gang_wait(g);
    if (g->status[0] != 0)
        fail_msg("%s %s ended with %d: %s", path, what, g->status[0],
                 gang_text(gang_line(g, "verdict", -1, 0), "reason"));
}

/* A run from its start, or from the newest of `list`. */
static void train(struct gang *g, int on_gpu, const struct store *s, int64_t every,
                  const struct resume_list *list)
{
    json_auto_t *doc = gang_job(job);
    gang_open(g, doc, STRATEGY_NONE, 1, 1, 1, SCHEDULE_GPIPE);
    write_launch(g, on_gpu, s, every, list);
    run_program(g, on_gpu, "--prepare", NULL);
    run_program(g, on_gpu, "--rank", "0");
}

static void one_goes_on_from_the_other(void **state)
{
    (void)state;
    for (int writer = 0; writer < 2; writer++) {
        struct store s;
        struct gang saved, g;
        struct resume_list list;
        store_open(&s);
        train(&saved, writer, &s, 5, NULL);
        list_checkpoints(&saved, &list);
        assert_true(list.count >= 1); /* what comes due while one is written waits */
        int64_t from = list.items[0].step;
        train(&g, !writer, &s, STEPS, &list);
        assert_int_equal(gang_number(gang_line(&g, "start", 0, 0), "from_step"), from);
        same_rest(&saved, &g, from, STEPS, 1e-5);
        list_done(&list);
        gang_close(&saved);
        gang_close(&g);
        store_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_goes_on_from_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
