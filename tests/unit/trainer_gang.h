/* trainer_gang.h: a gang of real processes for tests: forks the ranks of a job with the descriptors
 * that a shim would give them, and reads their reports. */
#ifndef TRAINYARD_TESTS_TRAINER_GANG_H
#define TRAINYARD_TESTS_TRAINER_GANG_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "trainer/train.h"

#define GANG_MAX   16
#define GANG_ALARM 300 /* seconds: far beyond anything; only against a test that hangs */

/* A small job on made-up data; MORE is another layer, or nothing. */
#define SMALL(SAMPLES, BATCH, MORE, FIT)                                                           \
    "{\"name\": \"small\", \"model\": {\"input\": [6], \"layers\": ["                              \
    "{\"type\": \"dense\", \"units\": 9, \"activation\": \"tanh\"}," MORE                          \
    "{\"type\": \"dense\", \"units\": 8, \"activation\": \"gelu\"},"                               \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": 0.01},"                  \
    "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"                 \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": " SAMPLES                      \
    ", \"input\": 6, \"classes\": 4, \"seed\": 1}},"                                               \
    "\"fit\": {\"batch_size\": " BATCH ", \"seed\": 3, " FIT "}}"

struct gang {
    char dir[64]; /* artifacts and the report */
    struct launch launch;
    char *roots[2];
    int first[MODEL_MAX_LAYERS + 1]; /* plan.stage_first */
    int report, memory, data, spool;
    pid_t pids[GANG_MAX];
    int status[GANG_MAX]; /* exit status, or minus the signal */
    json_t *lines;        /* the report, after gang_end */
};

static volatile int gang_stop;

static void gang_on_term(int signal_number)
{
    (void)signal_number;
    gang_stop = 1;
}

/* The job in `text`, or in the file tests/reference/<text>/job.json. */
static json_t *gang_job(const char *text)
{
    json_error_t where;
    CLEANUP(mem_freep) char *path = mem_printf("tests/reference/%s/job.json", text);
    json_t *doc = text[0] == '{' ? json_loads(text, 0, &where) : json_load_file(path, 0, &where);
    if (!doc)
        fail_msg("%s: %s (line %d)", text, where.text, where.line);
    return doc;
}

static struct job_spec *gang_spec(const json_t *doc)
{
    struct faults f, w;
    faults_init(&f);
    faults_init(&w);
    struct job_spec *s = job_spec_parse(doc, 0, &f, &w);
    if (!s)
        fail_msg("%s: %s", f.items[0].pointer, f.items[0].message);
    faults_done(&f);
    faults_done(&w);
    return s;
}

/* `p` without ranks, stages and what else follows; sizes of 0 are 1. */
static void gang_open_plan(struct gang *g, const json_t *doc, const struct plan *p)
{
    struct err e;
    *g = (struct gang){.dir = "/tmp/trainyard-test-XXXXXX"};
    assert_non_null(mkdtemp(g->dir));
    assert_non_null(g->roots[0] = realpath("examples/data", NULL));
    assert_non_null(g->roots[1] = realpath("tests/reference", NULL));
    g->launch = (struct launch){
        .job = "job_test", .spec = gang_spec(doc), .data_roots = g->roots, .data_root_count = 2};
    struct plan *x = &g->launch.plan;
    *x = *p;
    x->data = p->data ? p->data : 1;
    x->pipeline = p->pipeline ? p->pipeline : 1;
    x->tensor = p->tensor ? p->tensor : 1;
    x->chunks = p->chunks ? p->chunks : 1;
    x->microbatches = p->microbatches ? p->microbatches : 1;
    x->ranks = x->data * x->pipeline * x->tensor;
    x->stage_first = g->first;
    if (plan_cut(g->launch.spec, plan_stages(x), g->first, &e) < 0)
        fail_msg("%s", e.text);
    char path[128];
    snprintf(path, sizeof path, "%s/report", g->dir);
    g->report = open(path, O_CREAT | O_APPEND | O_RDWR | O_CLOEXEC, 0600);
    g->memory = memfd_create("gang", MFD_CLOEXEC);
    g->data = memfd_create("data", MFD_CLOEXEC);
    g->spool = open(g->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(g->report >= 0 && g->memory >= 0 && g->data >= 0 && g->spool >= 0);
}

/* A mesh of data x pipeline; `kind` says what the data coordinate means. */
static inline void gang_open(struct gang *g, const json_t *doc, enum strategy_kind kind, int data,
                             int pipeline, int microbatches, enum pipeline_schedule schedule)
{
    struct plan p = {.kind = kind,
                     .data = data,
                     .pipeline = pipeline,
                     .microbatches = microbatches,
                     .schedule = schedule};
    parallel_set_defaults(&p.parallel);
    gang_open_plan(g, doc, &p);
}

static struct engine_fds gang_fds(const struct gang *g)
{
    return (struct engine_fds){
        .report = g->report, .gang = g->memory, .data = g->data, .spool = g->spool};
}

static int gang_prepare(struct gang *g)
{
    struct engine_fds fds = gang_fds(g);
    return train_prepare(&g->launch, &fds);
}

/* Its own GPU, where a test runs on emulated ones. */
static inline void gang_take_device(int rank)
{
    char number[16];
    snprintf(number, sizeof number, "%d", rank);
    setenv("CUDA_VISIBLE_DEVICES", number, 1);
}

static void gang_start(struct gang *g)
{
    struct engine_fds fds = gang_fds(g);
    for (int r = 0; r < g->launch.plan.ranks; r++) {
        g->pids[r] = fork();
        assert_true(g->pids[r] >= 0);
        if (g->pids[r] == 0) {
            alarm(GANG_ALARM);
            signal(SIGTERM, gang_on_term);
            gang_take_device(r);
            int status = chdir(g->dir) == 0 ? train_rank(&g->launch, r, &fds, &gang_stop) : 98;
            _exit(status);
        }
    }
}

/* Whole lines only: while ranks run, the reader may see the beginning of a write. Returns what is
 * left over behind the last line, 0 once every rank has ended. */
static size_t gang_read(struct gang *g)
{
    struct buf text = BUF_INIT;
    struct err e;
    char path[128];
    snprintf(path, sizeof path, "%s/report", g->dir);
    assert_int_equal(file_read(path, 64 << 20, &text, &e), 0);
    json_decref(g->lines);
    g->lines = json_array();
    char *line = text.data;
    for (char *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        assert_true(strlen(line) < 4000);
        json_t *x = json_loads(line, 0, NULL);
        if (!x)
            fail_msg("not a report line: %s", line);
        json_array_append_new(g->lines, x);
    }
    size_t left = line ? strlen(line) : 0;
    buf_done(&text);
    return left;
}

static void gang_wait(struct gang *g)
{
    for (int r = 0; r < g->launch.plan.ranks; r++) {
        int status;
        assert_int_equal(waitpid(g->pids[r], &status, 0), g->pids[r]);
        g->status[r] = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    }
    size_t left = gang_read(g);
    for (int r = 0; r < g->launch.plan.ranks; r++)
        if (g->status[r] < 0)
            return; /* a killed rank may have left part of a line */
    assert_int_equal(left, 0);
}

static void gang_close(struct gang *g)
{
    struct err e;
    json_decref(g->lines);
    job_spec_free(g->launch.spec);
    free(g->roots[0]);
    free(g->roots[1]);
    close(g->report);
    close(g->memory);
    close(g->data);
    close(g->spool);
    file_remove_tree(g->dir, &e);
}

static const json_t *gang_line(const struct gang *g, const char *type, int rank, size_t nth)
{
    size_t i;
    const json_t *x;
    json_array_foreach(g->lines, i, x)
    {
        const json_t *from = json_object_get(x, "rank");
        if (strcmp(json_string_value(json_object_get(x, "type")), type) == 0 &&
            (rank < 0 || json_integer_value(from) == rank) && nth-- == 0)
            return x;
    }
    return NULL;
}

static inline size_t gang_count(const struct gang *g, const char *type)
{
    size_t n = 0;
    while (gang_line(g, type, -1, n))
        n++;
    return n;
}

static inline double gang_number(const json_t *line, const char *name)
{
    const json_t *x = json_object_get(line, name);
    if (!json_is_number(x))
        fail_msg("no number \"%s\" in a report line", name);
    return json_number_value(x);
}

static const char *gang_text(const json_t *line, const char *name)
{
    const char *s = json_string_value(json_object_get(line, name));
    return s ? s : "";
}

/* From start to an end that must be good. */
static inline void gang_run(struct gang *g)
{
    assert_int_equal(gang_prepare(g), 0);
    gang_start(g);
    gang_wait(g);
    for (int r = 0; r < g->launch.plan.ranks; r++) {
        const json_t *v = gang_line(g, "verdict", r, 0);
        if (g->status[r] != 0)
            fail_msg("rank %d: status %d, %s", r, g->status[r], v ? gang_text(v, "reason") : "");
        assert_string_equal(gang_text(v, "outcome"), "done");
    }
}

/* A file that the gang has left. */
static inline void read_whole(const struct gang *g, const char *name, struct buf *ret)
{
    char path[160];
    struct err e;
    snprintf(path, sizeof path, "%s/%s", g->dir, name);
    if (file_read(path, 64 << 20, ret, &e) < 0)
        fail_msg("%s", e.text);
}

#endif
