/* planner.c: requested strategies are checked, "auto" is chosen.
 *
 * auto, in order: a command job or one device -> none; every rank holds the whole model and that
 * fits the memory of a rank, its state and gradients divided among the ranks (zero 1, 2) and its
 * activations computed again where memory asks for it -> mirrored; else the fewest pipeline stages
 * (a divisor of the devices, the rest of them data-parallel) whose heaviest rank fits; else the
 * same again with divided parameters (zero 3), which cost more sums. What changes the mathematics
 * (an ensemble, local SGD, delayed gradients, codecs, bfloat16) is never chosen.
 *
 * Memory of a rank: resources.memory, else the smallest device of the kind asked for that any
 * known node has, else the next larger of which a node has enough, else no limit, and the plan says
 * so. Of a GPU that is its memory less NODE_GPU_ROOM.
 */
#include "daemon/coordinator/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/explain.h"
#include "daemon/coordinator/planner_parts.h"

/* ---- requested ---- */

static int refuse_mesh(const struct planner *p, const struct layout *l)
{
    char hint[200];
    long long ranks = (long long)l->data * l->pipeline * l->tensor;
    snprintf(hint, sizeof(hint), "Set resources.devices to %lld.", ranks);
    return faults_add(p->faults, "/strategy", "mesh_mismatch", hint,
                      "A mesh of data %d x pipeline %d x tensor %d has %lld ranks, but "
                      "resources.devices is %lld.",
                      l->data, l->pipeline, l->tensor, ranks, (long long)p->job->resources.devices);
}

static int refuse_microbatches(const struct planner *p, int64_t rows)
{
    char hint[200];
    snprintf(hint, sizeof(hint), "Use at most %lld.", (long long)rows);
    return faults_add(p->faults, "/strategy/microbatches", "out_of_range", hint,
                      "%lld micro-batches cannot be made of the %lld rows that a rank gets.",
                      (long long)p->job->strategy.microbatches, (long long)rows);
}

static int refuse_stages(const struct planner *p, const struct layout *l, const struct err *e)
{
    const struct strategy *s = &p->job->strategy;
    return faults_add(p->faults, s->is_mesh ? "/strategy/pipeline" : "/resources/devices",
                      "too_many_stages", "Ask for as many stages as there are layers with work.",
                      "The model cannot be cut into %lld stages: %s",
                      (long long)l->pipeline * (s->chunks ? s->chunks : 1), e->text);
}

static int refuse_members(const struct planner *p)
{
    return faults_add(p->faults, "/resources/devices", "out_of_range",
                      "Set resources.devices to 2 or more, one for each member.",
                      "A segment_ensemble has one member for each device, and so at least 2 "
                      "devices; this job asks for %lld.",
                      (long long)p->job->resources.devices);
}

static int refuse_none(const struct planner *p)
{
    return faults_add(p->faults, "/strategy", "out_of_range",
                      "Use \"auto\" or \"mirrored\", or set resources.devices to 1.",
                      "The strategy none is for one device; this job asks for %lld.",
                      (long long)p->job->resources.devices);
}

/* The mesh as it was asked for: 0 if it can be. */
static int check_requested(const struct planner *p, const struct layout *l)
{
    const struct job_spec *job = p->job;
    int64_t ranks = (int64_t)l->data * l->pipeline * l->tensor;
    int64_t rows = planner_rows(job, l->data);
    if (l->kind == STRATEGY_SEGMENT_ENSEMBLE && job->resources.devices < 2)
        return refuse_members(p);
    if (l->kind == STRATEGY_NONE && !job->strategy.is_mesh && job->resources.devices != 1)
        return refuse_none(p);
    if (ranks != job->resources.devices)
        return refuse_mesh(p, l);
    int takes_any = job->strategy.parallel.reproducible; /* grains may be empty */
    return job->strategy.microbatches > rows && !takes_any ? refuse_microbatches(p, rows) : 0;
}

static int plan_requested(const struct planner *p, struct plan *ret)
{
    struct layout l;
    struct err e = {0};
    planner_layout(p->job, 0, &l);
    int r = check_requested(p, &l);
    if (r < 0)
        return r;
    if (planner_fit(p, &l, 1, ret, &e) < 0)
        return refuse_stages(p, &l, &e);
    if (planner_fits(p, ret)) {
        planner_why(p, ret, 0);
        return 0;
    }
    plan_done(ret);
    return planner_refuse_memory(p);
}

/* ---- auto ---- */

static int refuse_grains(const struct planner *p)
{
    return faults_add(
        p->faults, "/resources/devices", "conflict", "Use 1, 2, 4 or 8 devices, or more layers.",
        "There is no reproducible mesh of %lld devices for this model: its data "
        "ranks must divide the %lld grains, and its stages cannot be so many.",
        (long long)p->job->resources.devices, (long long)p->job->strategy.parallel.grains);
}

/* The first mesh that fits. `*ret_plain`: what the whole model on every rank would need. */
static int first_that_fits(const struct planner *p, int with_zero_3, int *ret_tried,
                           int64_t *ret_plain, struct plan *ret)
{
    struct layout l;
    for (int n = 0; planner_layout(p->job, n, &l); n++) {
        if (planner_fit(p, &l, with_zero_3, ret, NULL) < 0)
            continue;
        (*ret_tried)++;
        if (planner_fits(p, ret))
            return 1;
        if (l.pipeline == 1)
            *ret_plain = ret->memory_bytes;
        plan_done(ret);
    }
    return 0;
}

static int choose(const struct planner *p, struct plan *ret)
{
    int tried = 0;
    int64_t plain = 0;
    if (first_that_fits(p, 0, &tried, &plain, ret) || first_that_fits(p, 1, &tried, &plain, ret)) {
        planner_why(p, ret, plain);
        return 0;
    }
    return tried ? planner_refuse_memory(p) : refuse_grains(p);
}

/* ---- what there is ---- */
static int takes_kind(const struct job_spec *job, int kind)
{
    return job->resources.device == DEVICE_ANY || (int)job->resources.device == kind;
}

void planner_view_size(struct planner_view *v, enum device_kind kind, int64_t memory)
{
    int64_t *smallest = &v->smallest_memory[kind];
    struct planner_size *sizes = v->larger[kind];
    int *count = &v->larger_count[kind], at = 0;
    if (memory <= 0 || memory == *smallest)
        return;
    if (*smallest == 0 || memory < *smallest) {
        int64_t before = *smallest;
        *smallest = memory;
        planner_view_size(v, kind, before);
        return;
    }
    while (at < *count && sizes[at].memory < memory)
        at++;
    if ((at < *count && sizes[at].memory == memory) || at == PLANNER_MAX_SIZES)
        return;
    *count += *count < PLANNER_MAX_SIZES;
    for (int i = *count - 1; i > at; i--)
        sizes[i] = sizes[i - 1];
    sizes[at] = (struct planner_size){.memory = memory};
}

void planner_view_node(struct planner_view *v, enum device_kind kind, const int64_t *memories,
                       size_t count)
{
    for (int i = 0; i < v->larger_count[kind]; i++) {
        struct planner_size *size = &v->larger[kind][i];
        int64_t together = 0;
        for (size_t k = 0; k < count; k++)
            together += memories[k] >= size->memory;
        size->together = together > size->together ? together : size->together;
    }
}

static void set_limit(struct planner *p, const struct planner_view *view)
{
    const struct resources *r = &p->job->resources;
    p->limit = INT64_MAX;
    if (r->memory > 0) {
        p->limit = r->memory;
        snprintf(p->limit_source, sizeof(p->limit_source), "resources.memory");
        return;
    }
    for (int kind = DEVICE_CPU; kind <= DEVICE_GPU; kind++) {
        int64_t smallest = view->smallest_memory[kind];
        if (takes_kind(p->job, kind) && smallest > 0 && smallest < p->limit) {
            p->limit = smallest;
            snprintf(p->limit_source, sizeof(p->limit_source), "the smallest such device");
        }
    }
}

/* The next size above p->limit of which a node has enough: 1, and p->limit is that. */
static int raise_limit(struct planner *p, const struct planner_view *view)
{
    int64_t next = INT64_MAX;
    char had[32];
    if (p->job->resources.memory > 0 || p->limit == INT64_MAX)
        return 0;
    for (int kind = DEVICE_CPU; kind <= DEVICE_GPU; kind++) {
        for (int i = 0; takes_kind(p->job, kind) && i < view->larger_count[kind]; i++) {
            const struct planner_size *size = &view->larger[kind][i];
            if (size->memory > p->limit && size->memory < next &&
                size->together >= p->job->resources.devices)
                next = size->memory;
        }
    }
    if (next == INT64_MAX)
        return 0;
    explain_bytes(p->limit, had);
    snprintf(p->limit_source, sizeof(p->limit_source), "such devices that have more than %s", had);
    p->limit = next;
    return 1;
}

static int plan_command(const struct planner *p, struct plan *ret)
{
    const struct strategy *s = &p->job->strategy;
    struct layout l = {STRATEGY_NONE, (int)p->job->resources.devices, 1, 1};
    if (s->is_mesh || (s->kind != STRATEGY_AUTO && s->kind != STRATEGY_NONE))
        return faults_add(p->faults, "/strategy", "not_applicable", "Leave strategy out.",
                          "A command job divides its own work: a strategy other than auto or none "
                          "has no meaning for it.");
    int r = planner_fit(p, &l, 0, ret, NULL);
    if (r == 0)
        ret->why =
            mem_printf("A command job: %d rank%s start%s the command, which divides the work "
                       "itself.",
                       ret->ranks, ret->ranks == 1 ? "" : "s", ret->ranks == 1 ? "s" : "");
    return r;
}

static int plan_within(const struct planner *p, struct plan *ret)
{
    const struct strategy *s = &p->job->strategy;
    if (p->job->command)
        return plan_command(p, ret);
    return s->kind == STRATEGY_AUTO && !s->is_mesh ? choose(p, ret) : plan_requested(p, ret);
}

static int lacks_memory(const struct faults *f)
{
    return f->count > 0 && strcmp(f->items[0].code, "does_not_fit") == 0;
}

/* Within the smallest device, so that it can run anywhere; else within the next larger ones. What
 * is said of a job that fits in none is said of the largest. */
static int plan_somewhere(struct planner *p, const struct planner_view *view, struct faults *f,
                          struct plan *ret)
{
    for (;;) {
        struct faults found = {0};
        p->faults = &found;
        int r = plan_within(p, ret);
        if (r != 0 && lacks_memory(&found) && raise_limit(p, view)) {
            faults_done(&found);
            continue;
        }
        for (size_t i = 0; i < found.count; i++)
            faults_add(f, found.items[i].pointer, found.items[i].code, found.items[i].hint, "%s",
                       found.items[i].message);
        faults_done(&found);
        return r;
    }
}

int planner_plan(const struct job_spec *job, const struct planner_view *view, struct plan *ret,
                 struct faults *f)
{
    struct planner p = {.job = job};
    struct plan plan = {0};
    set_limit(&p, view);
    if (job->resources.devices < 1 || job->resources.devices > PLAN_MAX_RANKS)
        return faults_add(f, "/resources/devices", "out_of_range", NULL,
                          "A job has 1 to %d devices, not %lld.", PLAN_MAX_RANKS,
                          (long long)job->resources.devices);
    int r = plan_somewhere(&p, view, f, &plan);
    if (r != 0)
        return r;
    plan.chosen_by_auto = job->strategy.kind == STRATEGY_AUTO && !job->strategy.is_mesh;
    *ret = plan;
    return 0;
}
