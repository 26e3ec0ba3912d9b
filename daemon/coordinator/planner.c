/* planner.c: requested strategies are checked, "auto" is chosen.
 *
 * auto, in order: a command job or one device -> none; every rank holds the whole model and that
 * fits the memory of a rank -> mirrored; else the fewest pipeline stages (a divisor of the devices,
 * the rest of them data-parallel) whose heaviest rank fits. What changes the mathematics (an
 * ensemble) is never chosen.
 *
 * Memory of a rank: resources.memory, else the smallest device of the kind asked for that any
 * known node has, else no limit, and the plan says so.
 *
 * Micro-batches of a pipeline, where not given: two for each stage, so that a step's bubble is
 * (S - 1) / (3S - 1), under a third; fewer where they would have under PLANNER_MIN_ROWS rows
 * (small matrices multiply slowly); more, by doubling, where memory asks for it.
 */
#include "daemon/coordinator/planner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/explain.h"
#include "daemon/coordinator/text.h"

#define PLANNER_MIN_ROWS    4
#define PLANNER_MAX_DEVICES 64 /* how far the search for a device count that works goes */

struct planner {
    const struct job_spec *job;
    struct faults *faults;
    int64_t limit; /* bytes a rank may use; INT64_MAX: no limit */
    const char *limit_source;
};

/* ---- a candidate ---- */
static int64_t rows_of(const struct job_spec *job, int data)
{
    return (job->fit.batch_size + data - 1) / data;
}

static int default_microbatches(const struct job_spec *job, int data, int stages)
{
    int64_t rows = rows_of(job, data), wanted = 2 * (int64_t)stages;
    if (stages == 1)
        return 1;
    if (wanted * PLANNER_MIN_ROWS > rows)
        wanted = rows / PLANNER_MIN_ROWS;
    return wanted < 1 ? 1 : (int)wanted;
}

/* Fills everything but chosen_by_auto and why. A pipeline's micro-batches are `microbatches`, or,
 * for 0, as above. ERR_INVALID if the layers cannot be cut so. */
static int candidate(const struct planner *p, enum strategy_kind kind, int data, int stages,
                     int64_t microbatches, struct plan *ret, struct err *e)
{
    const struct job_spec *job = p->job;
    *ret = (struct plan){.kind = kind,
                         .ranks = data * stages,
                         .data = data,
                         .pipeline = stages,
                         .tensor = 1,
                         .chunks = 1,
                         .parallel = job->strategy.parallel,
                         .schedule = job->strategy.kind == STRATEGY_AUTO && !job->strategy.is_mesh
                                         ? SCHEDULE_1F1B
                                         : job->strategy.schedule};
    ret->stage_first = mem_zalloc(((size_t)stages + 1) * sizeof(int));
    if (stages == 1)
        ret->stage_first[1] = job->model.layer_count;
    else if (plan_cut(job, stages, ret->stage_first, e) != 0) {
        plan_done(ret);
        return ERR_INVALID;
    }
    if (job->command) {
        ret->microbatches = 1;
        return 0;
    }
    int64_t m = microbatches ? microbatches : default_microbatches(job, data, stages);
    for (;; m *= 2) {
        ret->microbatches = (int)m;
        ret->memory_bytes = plan_memory(job, ret);
        int may_grow = stages > 1 && !microbatches && 2 * m <= rows_of(job, data);
        if (ret->memory_bytes <= p->limit || !may_grow)
            return 0;
    }
}

static int fits(const struct planner *p, const struct plan *plan)
{
    return plan->memory_bytes <= p->limit;
}

/* ---- why ---- */
static void why(struct plan *plan, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void why(struct plan *plan, const char *fmt, ...)
{
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    free(plan->why);
    plan->why = mem_strdup(text);
}

/* "12.0 MiB of the 4.0 GiB that resources.memory allows", "12.0 MiB, with no limit known" */
static const char *memory_text(const struct planner *p, int64_t bytes, char out[160])
{
    char need[32], limit[32];
    explain_bytes(bytes, need);
    if (p->limit == INT64_MAX)
        snprintf(out, 160, "%s, with no limit known since no such device has joined yet", need);
    else
        snprintf(out, 160, "%s of the %s of %s", need, explain_bytes(p->limit, limit),
                 p->limit_source);
    return out;
}

static void why_pipeline(const struct planner *p, struct plan *plan)
{
    const struct job_spec *job = p->job;
    double all = 0, worst = 0;
    for (int s = 0; s < plan->pipeline; s++) {
        double stage = 0;
        for (int l = plan->stage_first[s]; l < plan->stage_first[s + 1]; l++)
            stage += job->model.layers[l].forward_flops + job->model.layers[l].backward_flops;
        all += stage;
        worst = stage > worst ? stage : worst;
    }
    char memory[160];
    int m = plan->microbatches, s = plan->pipeline;
    why(plan,
        "%d stages cut by cost (the dearest has %.0f %% of the work), %d micro-batch%s a step, so "
        "that %.0f %% of the time is bubble; the heaviest rank needs %s.",
        s, all > 0 ? 100 * worst / all : 0, m, m == 1 ? "" : "es",
        100.0 * (s - 1) / (double)(m + s - 1), memory_text(p, plan->memory_bytes, memory));
}

/* ---- what would work instead ---- */
static int64_t least_memory(const struct planner *p, int devices)
{
    int64_t least = INT64_MAX;
    for (int s = 1; s <= devices; s++) {
        struct plan plan;
        if (devices % s != 0 || candidate(p, s == 1 ? STRATEGY_MIRRORED : STRATEGY_PIPELINE,
                                          devices / s, s, 0, &plan, NULL) != 0)
            continue;
        least = plan.memory_bytes < least ? plan.memory_bytes : least;
        plan_done(&plan);
    }
    return least;
}

static int devices_that_fit(const struct planner *p, int from)
{
    for (int devices = from; devices <= PLANNER_MAX_DEVICES; devices++)
        if (least_memory(p, devices) <= p->limit)
            return devices;
    return 0;
}

static int refuse_memory(const struct planner *p, int64_t needed, const char *what)
{
    char hint[300], bytes[32], memory[160];
    int devices = (int)p->job->resources.devices;
    int more =
        p->job->strategy.kind == STRATEGY_SEGMENT_ENSEMBLE ? 0 : devices_that_fit(p, devices);
    explain_bytes(needed, bytes);
    if (more == devices)
        snprintf(hint, sizeof(hint),
                 "\"strategy\": \"auto\" fits these %d devices; or allow %lld bytes (%s) a rank "
                 "with resources.memory, on devices that have them.",
                 devices, (long long)needed, bytes);
    else if (more)
        snprintf(hint, sizeof(hint),
                 "%d devices with \"strategy\": \"auto\" would fit; or allow %lld bytes (%s) a "
                 "rank with resources.memory, on devices that have them.",
                 more, (long long)needed, bytes);
    else
        snprintf(hint, sizeof(hint),
                 "Allow %lld bytes (%s) a rank with resources.memory, on devices that have them, "
                 "or use a smaller batch_size or model.",
                 (long long)needed, bytes);
    return faults_add(p->faults, p->job->resources.memory ? "/resources/memory" : "/resources",
                      "does_not_fit", hint, "%s needs %s on its heaviest rank.", what,
                      memory_text(p, needed, memory));
}

/* ---- requested ---- */
static int requested_pipeline(const struct planner *p, struct plan *ret)
{
    const struct strategy *s = &p->job->strategy;
    int64_t devices = p->job->resources.devices, data = s->data, stages = s->pipeline;
    char hint[200];
    struct err e = {0};
    if (!data && !stages)
        data = 1;
    if (!data)
        data = stages <= devices ? devices / stages : 1;
    if (!stages)
        stages = data <= devices ? devices / data : 1;
    if (data * stages != devices) {
        snprintf(hint, sizeof(hint), "Set resources.devices to %lld.", (long long)data * stages);
        return faults_add(p->faults, "/strategy", "mesh_mismatch", hint,
                          "A mesh of data %lld x pipeline %lld has %lld ranks, but "
                          "resources.devices is %lld.",
                          (long long)data, (long long)stages, (long long)data * stages,
                          (long long)devices);
    }
    int64_t rows = rows_of(p->job, (int)data);
    if (s->microbatches > rows) {
        snprintf(hint, sizeof(hint), "Use at most %lld.", (long long)rows);
        return faults_add(p->faults, "/strategy/microbatches", "out_of_range", hint,
                          "%lld micro-batches cannot be made of the %lld rows that a rank gets.",
                          (long long)s->microbatches, (long long)rows);
    }
    enum strategy_kind kind = stages > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED;
    if (stages == 1 && s->kind == STRATEGY_PIPELINE)
        kind = STRATEGY_PIPELINE;
    if (candidate(p, kind, (int)data, (int)stages, stages > 1 ? s->microbatches : 0, ret, &e) != 0)
        return faults_add(
            p->faults, s->is_mesh ? "/strategy/pipeline" : "/resources/devices", "too_many_stages",
            "Ask for as many stages as there are layers with work.",
            "The model cannot be cut into %lld stages: %s", (long long)stages, e.text);
    if (stages > 1)
        why_pipeline(p, ret);
    else
        why(ret, "One stage: every rank holds the whole model.");
    return 0;
}

static int requested_replicas(const struct planner *p, struct plan *ret)
{
    const struct job_spec *job = p->job;
    int devices = (int)job->resources.devices, ensemble = job->strategy.kind != STRATEGY_MIRRORED;
    char memory[160];
    if (ensemble && devices < 2)
        return faults_add(p->faults, "/resources/devices", "out_of_range",
                          "Set resources.devices to 2 or more, one for each member.",
                          "A segment_ensemble has one member for each device, and so at least 2 "
                          "devices; this job asks for %d.",
                          devices);
    int rc = candidate(p, job->strategy.kind, devices, 1, 0, ret, NULL);
    if (rc != 0)
        return rc;
    memory_text(p, ret->memory_bytes, memory);
    if (ensemble)
        why(ret, "Asked for: %d members train on disjoint shards, each with %s.", devices, memory);
    else
        why(ret,
            "Asked for: each of %d rank%s holds the whole model and takes %lld of %lld rows of "
            "a batch; a rank needs %s.",
            devices, devices == 1 ? "" : "s", (long long)rows_of(job, devices),
            (long long)job->fit.batch_size, memory);
    return 0;
}

static int requested_none(const struct planner *p, struct plan *ret)
{
    const struct job_spec *job = p->job;
    if (job->resources.devices != 1 && !job->command)
        return faults_add(p->faults, "/strategy", "out_of_range",
                          "Use \"auto\" or \"mirrored\", or set resources.devices to 1.",
                          "The strategy none is for one device; this job asks for %lld.",
                          (long long)job->resources.devices);
    int rc = candidate(p, STRATEGY_NONE, (int)job->resources.devices, 1, 0, ret, NULL);
    char memory[160];
    if (rc == 0 && !job->command)
        why(ret, "One device: there is nothing to divide; it needs %s.",
            memory_text(p, ret->memory_bytes, memory));
    return rc;
}

/* ---- auto ---- */
static int auto_pipeline(const struct planner *p, int64_t mirrored_bytes, struct plan *ret)
{
    int devices = (int)p->job->resources.devices;
    char need[160], text[600];
    for (int stages = 2; stages <= devices; stages++) {
        if (devices % stages != 0 ||
            candidate(p, STRATEGY_PIPELINE, devices / stages, stages, 0, ret, NULL) != 0)
            continue;
        if (fits(p, ret)) {
            why_pipeline(p, ret);
            snprintf(text, sizeof(text), "%s", ret->why);
            why(ret, "The whole model on every rank would need %s. %s",
                memory_text(p, mirrored_bytes, need), text);
            return 0;
        }
        plan_done(ret);
    }
    return refuse_memory(p, least_memory(p, devices), "Even the leanest layout of this job");
}

static int choose(const struct planner *p, struct plan *ret)
{
    int devices = (int)p->job->resources.devices;
    char memory[160];
    if (devices == 1)
        return requested_none(p, ret);
    int rc = candidate(p, STRATEGY_MIRRORED, devices, 1, 0, ret, NULL);
    if (rc != 0)
        return rc;
    if (!fits(p, ret)) {
        int64_t needed = ret->memory_bytes;
        plan_done(ret);
        return auto_pipeline(p, needed, ret);
    }
    why(ret,
        "The whole model fits every rank, so that each of the %d ranks takes %lld of the %lld rows "
        "of a batch and none waits for another's stage; a rank needs %s.",
        devices, (long long)rows_of(p->job, devices), (long long)p->job->fit.batch_size,
        memory_text(p, ret->memory_bytes, memory));
    return 0;
}

/* ---- */
static void set_limit(struct planner *p, const struct planner_view *view)
{
    const struct resources *r = &p->job->resources;
    p->limit = INT64_MAX;
    if (r->memory > 0) {
        p->limit = r->memory;
        p->limit_source = "resources.memory";
        return;
    }
    for (int kind = DEVICE_CPU; kind <= DEVICE_GPU; kind++) {
        int64_t smallest = view->smallest_memory[kind];
        if ((r->device == DEVICE_ANY || (int)r->device == kind) && smallest > 0 &&
            smallest < p->limit) {
            p->limit = smallest;
            p->limit_source = "the smallest such device";
        }
    }
}

static int plan_command(const struct planner *p, struct plan *ret)
{
    const struct strategy *s = &p->job->strategy;
    if (s->is_mesh || (s->kind != STRATEGY_AUTO && s->kind != STRATEGY_NONE))
        return faults_add(p->faults, "/strategy", "not_applicable", "Leave strategy out.",
                          "A command job divides its own work: a strategy other than auto or none "
                          "has no meaning for it.");
    int rc = requested_none(p, ret);
    if (rc == 0)
        why(ret, "A command job: %d rank%s start%s the command, which divides the work itself.",
            ret->ranks, ret->ranks == 1 ? "" : "s", ret->ranks == 1 ? "s" : "");
    return rc;
}

static int plan_requested(const struct planner *p, struct plan *ret)
{
    const struct strategy *s = &p->job->strategy;
    if (s->is_mesh || s->kind == STRATEGY_PIPELINE)
        return requested_pipeline(p, ret);
    switch (s->kind) {
    case STRATEGY_AUTO: return choose(p, ret);
    case STRATEGY_NONE: return requested_none(p, ret);
    case STRATEGY_MIRRORED:
    case STRATEGY_SEGMENT_ENSEMBLE: return requested_replicas(p, ret);
    default: BUG("strategy kind %d", (int)s->kind);
    }
}

int planner_plan(const struct job_spec *job, const struct planner_view *view, struct plan *ret,
                 struct faults *f)
{
    struct planner p = {.job = job, .faults = f, .limit_source = ""};
    struct plan plan = {0};
    set_limit(&p, view);
    if (job->resources.devices < 1 || job->resources.devices > PLAN_MAX_RANKS)
        return faults_add(f, "/resources/devices", "out_of_range", NULL,
                          "A job has 1 to %d devices, not %lld.", PLAN_MAX_RANKS,
                          (long long)job->resources.devices);
    int rc = job->command ? plan_command(&p, &plan) : plan_requested(&p, &plan);
    if (rc != 0)
        return rc;
    plan.chosen_by_auto = job->strategy.kind == STRATEGY_AUTO && !job->strategy.is_mesh;
    if (!job->command && !fits(&p, &plan)) {
        int64_t needed = plan.memory_bytes;
        plan_done(&plan);
        return refuse_memory(&p, needed, "This layout");
    }
    *ret = plan;
    return 0;
}

/* ---- as JSON ---- */
static void write_mesh(const struct plan *plan, struct buf *b)
{
    text_key(b, "mesh");
    text_open(b, "{");
    text_int(b, "data", plan->data);
    text_int(b, "pipeline", plan->pipeline);
    text_int(b, "tensor", plan->tensor);
    text_int(b, "chunks", plan->chunks);
    text_int(b, "microbatches", plan->microbatches);
    text_string(b, "schedule", pipeline_schedule_name(plan->schedule));
    text_int(b, "zero", plan->zero);
    text_close(b, "}");
}

static void write_stages(const struct plan *plan, struct buf *b)
{
    text_key(b, "stages");
    text_open(b, "[");
    for (int s = 0; s < plan_stages(plan); s++) {
        text_open(b, "[");
        buf_addf(b, "%d,%d", plan->stage_first[s], plan->stage_first[s + 1]);
        text_close(b, "]");
    }
    text_close(b, "]");
}

static void write_recompute(const struct plan *plan, struct buf *b)
{
    int layers = plan->recompute ? plan->stage_first[plan_stages(plan)] : 0;
    const char *comma = "";
    text_key(b, "recompute");
    buf_adds(b, "[");
    for (int i = 0; i < layers; i++) {
        if (!plan->recompute[i])
            continue;
        buf_addf(b, "%s%d", comma, i);
        comma = ",";
    }
    buf_adds(b, "]");
}

/* As the JSON library writes it. */
static void write_real(struct buf *b, const char *key, double x)
{
    json_auto_t *number = json_real(x);
    CLEANUP(mem_freep) char *text = json_dumps(number, JSON_ENCODE_ANY);
    text_raw(b, key, text);
}

static void write_parallel(const struct parallel *p, struct buf *b)
{
    text_key(b, "parallel");
    text_open(b, "{");
    text_raw(b, "reproducible", p->reproducible ? "true" : "false");
    text_int(b, "grains", p->grains);
    text_string(b, "sync", sync_name(p->sync));
    text_int(b, "local_steps", p->local_steps);
    write_real(b, "outer_learning_rate", p->outer_learning_rate);
    write_real(b, "outer_momentum", p->outer_momentum);
    text_string(b, "codec", codec_name(p->codec));
    write_real(b, "top_k", p->top_k);
    text_string(b, "shares", shares_name(p->shares));
    text_raw(b, "rebalance", p->rebalance ? "true" : "false");
    text_raw(b, "overlap", p->overlap ? "true" : "false");
    text_close(b, "}");
}

void planner_write(const struct plan *plan, struct buf *b)
{
    text_open(b, "{");
    text_string(b, "name", strategy_name(plan->kind));
    text_int(b, "ranks", plan->ranks);
    write_mesh(plan, b);
    write_stages(plan, b);
    write_recompute(plan, b);
    write_parallel(&plan->parallel, b);
    text_int(b, "memory_bytes", plan->memory_bytes);
    text_string(b, "chosen_by", plan->chosen_by_auto ? "auto" : "user");
    text_string(b, "why", plan->why);
    text_close(b, "}");
}
