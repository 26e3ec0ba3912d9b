/* run_job: trains one job without daemons, on the backend that it is linked with, and prints what
 * came of it as one JSON object.
 *
 *     run_job [--ranks N | --strategy MESH] [--gpus UUID,...] [--apart] [--precision NAME]
 *             [--steps N] [--report FILE] JOB.json [EXPECTED.json]
 *
 * N data ranks, each with a process of its own and, by --gpus, a GPU; --apart tells NCCL that each
 * is a host of its own. MESH is a strategy as in a job document, with as many ranks as its sizes
 * say. `precision` and `steps` replace the job's. Data is looked for beside the job, too. All lines
 * of the ranks' reports are copied to FILE. Against EXPECTED.json
 * (tests/reference) the largest relative difference of a step's loss is given beside the tolerance.
 * steps_per_second is of the second half of the steps, evaluation left out: median over 8 stretches
 * of it. Exit status 0 when the run succeeded.
 */
#include <argp.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "trainer/train.h"

#define STRETCHES  8
#define REPORT_MAX (1 << 30)

struct options {
    const char *job, *expected, *precision, *gpus, *strategy, *report;
    int ranks, steps, apart;
};

struct run {
    struct launch launch;
    char *roots[3];
    int *stage_first;
    struct engine_fds fds;
    char dir[64], path[96];
    int status; /* the worst exit status of a rank; minus the signal that ended it */
    json_t *lines;
};

static volatile int never;

static void die(const char *why)
{
    fprintf(stderr, "run_job: %s\n", why);
    exit(2);
}

/* ---- the job ---- */

static json_t *load(const char *path)
{
    json_error_t where;
    json_t *doc = json_load_file(path, 0, &where);
    if (!doc) {
        fprintf(stderr, "run_job: %s: %s (line %d)\n", path, where.text, where.line);
        exit(2);
    }
    return doc;
}

static int64_t size_of(const json_t *mesh, const char *name)
{
    const json_t *x = json_object_get(mesh, name);
    return json_is_integer(x) ? json_integer_value(x) : 1;
}

/* The strategy of the command line, or none, and as many devices as it has ranks. */
static void set_strategy(json_t *doc, const struct options *o)
{
    json_object_del(doc, "strategy");
    if (!o->strategy)
        return;
    json_t *mesh = json_loads(o->strategy, JSON_DECODE_ANY, NULL);
    if (!mesh)
        die("--strategy is no JSON");
    int64_t ranks = size_of(mesh, "data") * size_of(mesh, "pipeline") * size_of(mesh, "tensor");
    json_object_set_new(
        doc, "resources",
        json_pack("{s:I}", "devices", (json_int_t)(json_is_object(mesh) ? ranks : o->ranks)));
    json_object_set_new(doc, "strategy", mesh);
}

static struct job_spec *read_job(const struct options *o)
{
    struct faults f, w;
    json_auto_t *doc = load(o->job);
    if (o->precision)
        json_object_set_new(doc, "precision",
                            strchr(o->precision, '{') ? json_loads(o->precision, 0, NULL)
                                                      : json_string(o->precision));
    if (o->steps) {
        json_object_del(json_object_get(doc, "fit"), "epochs");
        json_object_set_new(json_object_get(doc, "fit"), "steps", json_integer(o->steps));
    }
    set_strategy(doc, o);
    faults_init(&f);
    faults_init(&w);
    struct job_spec *s = job_spec_parse(doc, 0, &f, &w);
    if (!s) {
        fprintf(stderr, "run_job: %s%s: %s\n", o->job, f.items[0].pointer, f.items[0].message);
        exit(2);
    }
    faults_done(&f);
    faults_done(&w);
    return s;
}

static int or_one(int64_t size)
{
    return size > 0 ? (int)size : 1;
}

/* As it was asked for; what was left open is 1, and 0 for `zero`. */
static void take_mesh(struct plan *p, const struct strategy *s)
{
    p->data = or_one(s->data);
    p->pipeline = or_one(s->pipeline);
    p->tensor = or_one(s->tensor);
    p->ranks = p->data * p->pipeline * p->tensor;
    p->chunks = or_one(s->chunks);
    p->schedule = s->schedule;
    p->zero = s->zero > 0 ? (int)s->zero : 0;
    p->parallel = s->parallel;
    p->microbatches =
        p->parallel.reproducible ? (int)p->parallel.grains / p->data : or_one(s->microbatches);
    p->kind = p->parallel.sync == SYNC_LOCAL_SGD ? STRATEGY_LOCAL_SGD
              : p->pipeline > 1                  ? STRATEGY_PIPELINE
              : p->tensor > 1                    ? STRATEGY_TENSOR
                                                 : p->kind;
    p->kind = p->ranks > 1 && p->kind == STRATEGY_NONE ? STRATEGY_MIRRORED : p->kind;
}

static void plan(struct run *r, int ranks)
{
    struct err e;
    struct plan *p = &r->launch.plan;
    *p = (struct plan){.kind = ranks > 1 ? STRATEGY_MIRRORED : STRATEGY_NONE,
                       .ranks = ranks,
                       .data = ranks,
                       .pipeline = 1,
                       .tensor = 1,
                       .chunks = 1,
                       .microbatches = 1,
                       .stage_first = r->stage_first};
    parallel_set_defaults(&p->parallel);
    if (r->launch.spec->strategy.kind != STRATEGY_AUTO)
        p->kind = r->launch.spec->strategy.kind;
    if (r->launch.spec->strategy.is_mesh)
        take_mesh(p, &r->launch.spec->strategy);
    if (plan_cut(r->launch.spec, plan_stages(p), r->stage_first, &e) < 0)
        die(e.text);
    if (r->launch.spec->strategy.recompute == RECOMPUTE_ALL)
        plan_recompute(r->launch.spec, p, 0);
}

static char *folder_of(const char *path)
{
    CLEANUP(mem_freep) char *copy = mem_strdup(path);
    return realpath(dirname(copy), NULL);
}

static void open_run(struct run *r, const struct options *o)
{
    r->launch = (struct launch){.job = "job_check", .attempt = "att_check", .node = "here"};
    r->launch.spec = read_job(o);
    r->stage_first = mem_zalloc((MODEL_MAX_LAYERS + 1) * sizeof(int));
    plan(r, o->ranks);
    r->roots[0] = realpath("tests/reference", NULL);
    r->roots[1] = realpath("examples/data", NULL);
    if (!r->roots[0] || !r->roots[1])
        die("run it where tests/reference and examples/data are");
    r->roots[2] = folder_of(o->job);
    r->launch.data_roots = r->roots;
    r->launch.data_root_count = 3;
    snprintf(r->dir, sizeof r->dir, "/tmp/trainyard-run-XXXXXX");
    if (!mkdtemp(r->dir))
        die("cannot make a folder in /tmp");
    snprintf(r->path, sizeof r->path, "%s/report", r->dir);
    r->fds =
        (struct engine_fds){.report = open(r->path, O_CREAT | O_APPEND | O_RDWR | O_CLOEXEC, 0600),
                            .gang = memfd_create("gang", MFD_CLOEXEC),
                            .data = memfd_create("data", MFD_CLOEXEC),
                            .spool = open(r->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
}

/* ---- its ranks ---- */

/* The rank's environment, as a shim would set it. */
static void set_device(const struct options *o, int rank)
{
    const char *p = o->gpus;
    CLEANUP(mem_freep) char *host = mem_printf("rank-%d", rank);
    for (int i = 0; p && i < rank; i++)
        p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL;
    if (o->gpus && !p)
        die("--gpus names fewer than there are ranks");
    CLEANUP(mem_freep) char *gpu = p ? mem_strndup(p, strcspn(p, ",")) : NULL;
    if (gpu)
        setenv("CUDA_VISIBLE_DEVICES", gpu, 1);
    if (o->apart)
        setenv("NCCL_HOSTID", host, 1);
}

/* As a child, for what a process does to a device stays with it. */
static pid_t start(struct run *r, const struct options *o, int rank)
{
    pid_t pid = fork();
    if (pid < 0)
        die("cannot fork");
    if (pid == 0 && rank >= 0)
        set_device(o, rank);
    if (pid == 0)
        _exit(rank < 0             ? train_prepare(&r->launch, &r->fds)
              : chdir(r->dir) == 0 ? train_rank(&r->launch, rank, &r->fds, &never)
                                   : 98);
    return pid;
}

static void end(struct run *r, pid_t pid)
{
    int status;
    waitpid(pid, &status, 0);
    int s = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    r->status = s ? s : r->status;
}

static void train(struct run *r, const struct options *o)
{
    pid_t pids[PLAN_MAX_RANKS];
    end(r, start(r, o, -1));
    for (int i = 0; r->status == 0 && i < r->launch.plan.ranks; i++)
        pids[i] = start(r, o, i);
    for (int i = 0, failed = r->status; failed == 0 && i < r->launch.plan.ranks; i++)
        end(r, pids[i]);
}

static void read_report(struct run *r, const char *copy)
{
    struct buf text = BUF_INIT;
    struct err e;
    if (file_read(r->path, REPORT_MAX, &text, &e) < 0)
        die(e.text);
    if (copy && file_write_atomic(copy, text.data, text.len, 0600, &e) < 0)
        die(e.text);
    r->lines = json_array();
    char *line = text.data;
    for (char *stop; line && (stop = strchr(line, '\n')); line = stop + 1)
        json_array_append_new(r->lines, json_loadb(line, (size_t)(stop - line), 0, NULL));
    buf_done(&text);
}

/* ---- what came of it ---- */

static json_t *lines_of(const struct run *r, const char *type)
{
    json_t *found = json_array(), *x;
    size_t i;
    json_array_foreach(r->lines, i, x)
    {
        const char *t = json_string_value(json_object_get(x, "type"));
        if (t && strcmp(t, type) == 0)
            json_array_append(found, x);
    }
    return found;
}

static double number(const json_t *x, const char *name)
{
    const json_t *v = json_object_get(x, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double speed(const json_t *steps)
{
    size_t n = json_array_size(steps), each = n / 2 / STRETCHES;
    double s[STRETCHES];
    if (each < 1)
        return NAN;
    for (size_t i = 0; i < STRETCHES; i++) {
        size_t to = n - 1 - i * each;
        double took = number(json_array_get(steps, to), "time_us") -
                      number(json_array_get(steps, to - each), "time_us");
        s[i] = (double)each * 1e6 / took;
    }
    qsort(s, STRETCHES, sizeof *s, by_size);
    return (s[STRETCHES / 2 - 1] + s[STRETCHES / 2]) / 2;
}

/* The largest relative difference of a loss; infinite where there are not as many steps. */
static double difference(const json_t *steps, const json_t *expected)
{
    const json_t *want = json_object_get(expected, "steps"), *x;
    double most = 0;
    size_t i;
    if (json_array_size(want) != json_array_size(steps))
        return INFINITY;
    json_array_foreach(want, i, x)
    {
        double w = number(x, "loss"), d = fabs(number(json_array_get(steps, i), "loss") - w) / w;
        most = d <= most ? most : d; /* NaN stays */
    }
    return most;
}

static void set(json_t *o, const char *name, double x)
{
    json_object_set_new(o, name, isfinite(x) ? json_real(x) : json_null());
}

static int tell(const struct run *r, const struct options *o)
{
    json_auto_t *steps = lines_of(r, "step"), *memory = lines_of(r, "memory"),
                *verdicts = lines_of(r, "verdict"), *out = json_object();
    const json_t *last = json_array_get(steps, json_array_size(steps) - 1);
    json_object_set_new(out, "backend", json_string(backend.ops->name));
    json_object_set_new(out, "status", json_integer(r->status));
    json_object_set_new(out, "steps", json_integer((json_int_t)json_array_size(steps)));
    json_object_set(out, "reason", json_object_get(json_array_get(verdicts, 0), "reason"));
    set(out, "steps_per_second", speed(steps));
    set(out, "first_loss", number(json_array_get(steps, 0), "loss"));
    set(out, "last_loss", number(last, "loss"));
    set(out, "memory_bytes", number(json_array_get(memory, 0), "memory_bytes"));
    set(out, "measured_bytes", number(json_array_get(memory, 0), "measured_bytes"));
    if (o->expected) {
        json_auto_t *expected = load(o->expected);
        set(out, "difference", difference(steps, expected));
        set(out, "tolerance", number(expected, "tolerance"));
    }
    json_dumpf(out, stdout, JSON_REAL_PRECISION(9));
    printf("\n");
    return r->status == 0 ? 0 : 1;
}

/* ---- the command line ---- */

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case 'r': o->ranks = atoi(value); return 0;
    case 'g': o->gpus = value; return 0;
    case 'a': o->apart = 1; return 0;
    case 'm': o->strategy = value; return 0;
    case 'o': o->report = value; return 0;
    case 's': o->steps = atoi(value); return 0;
    case 'p': o->precision = value; return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 1)
            argp_usage(state);
        *(state->arg_num ? &o->expected : &o->job) = value;
        return 0;
    case ARGP_KEY_END:
        if (!o->job || o->ranks < 1 || o->ranks > 16)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option rows[] = {
    {.name = "ranks", .key = 'r', .arg = "N", .doc = "Data ranks, 1 to 16; default 1"},
    {.name = "gpus", .key = 'g', .arg = "UUIDS", .doc = "Of the ranks, between commas"},
    {.name = "strategy",
     .key = 'm',
     .arg = "MESH",
     .doc = "As in a job document; instead of --ranks"},
    {.name = "report", .key = 'o', .arg = "FILE", .doc = "Where the reports' lines go, too"},
    {.name = "apart", .key = 'a', .doc = "Each rank a host of its own to NCCL"},
    {.name = "steps", .key = 's', .arg = "N", .doc = "Instead of the job's"},
    {.name = "precision",
     .key = 'p',
     .arg = "NAME",
     .doc = "Instead of the job's; may be an object"},
    {0},
};

int main(int argc, char **argv)
{
    struct options o = {.ranks = 1};
    struct argp argp = {
        .options = rows, .parser = parse_option, .args_doc = "JOB.json [EXPECTED.json]"};
    struct run r = {.status = 0};
    struct err e;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    log_setup("run_job", LOG_LEVEL_WARNING);
    open_run(&r, &o);
    train(&r, &o);
    read_report(&r, o.report);
    if (file_remove_tree(r.dir, &e) < 0)
        die(e.text);
    return tell(&r, &o);
}
