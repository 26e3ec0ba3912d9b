/* planner_refuse.c: a job that fits nowhere, and the nearest that would. */
#include <stdio.h>

#include "daemon/coordinator/explain.h"
#include "daemon/coordinator/planner_parts.h"

#define PLANNER_MAX_DEVICES 64 /* how far the search for a device count that works goes */

static int64_t lean(const struct planner *p, const struct job_spec *job, struct plan *plan)
{
    struct planner other = {.job = job, .limit = p->limit};
    planner_make_lean(&other, plan);
    return plan->memory_bytes;
}

/* The least that any mesh open to the job needs; INT64_MAX where there is none. */
static int64_t least_memory(const struct planner *p, const struct job_spec *job)
{
    struct planner other = {.job = job, .limit = p->limit};
    struct layout l;
    struct plan plan;
    int64_t least = INT64_MAX;
    for (int n = 0; planner_layout(job, n, &l); n++) {
        if (planner_begin(&other, &l, &plan, NULL) != 0)
            continue;
        int64_t bytes = lean(p, job, &plan);
        least = bytes < least ? bytes : least;
        plan_done(&plan);
    }
    return least;
}

/* The same job without a mesh of its own, on so many devices. */
static struct job_spec as_auto(const struct job_spec *job, int devices)
{
    struct job_spec other = *job;
    other.resources.devices = devices;
    other.strategy.kind = STRATEGY_AUTO;
    other.strategy.is_mesh = 0;
    other.strategy.zero = -1;
    other.strategy.microbatches = 0;
    other.strategy.recompute = RECOMPUTE_AUTO;
    return other;
}

/* As many as it has, or twice, four times, ... that. */
static int devices_that_fit(const struct planner *p)
{
    int from = (int)p->job->resources.devices;
    if (p->job->strategy.kind == STRATEGY_SEGMENT_ENSEMBLE)
        return 0;
    for (int devices = from; devices <= PLANNER_MAX_DEVICES; devices *= 2) {
        struct job_spec other = as_auto(p->job, devices);
        if (least_memory(p, &other) <= p->limit)
            return devices;
    }
    return 0;
}

/* The largest batch with which this mesh fits, over `least`; `least` where none does. */
static int64_t largest_batch(const struct planner *p, struct plan *plan, int64_t least)
{
    struct job_spec other = *p->job;
    int64_t fits = least, too_large = p->job->fit.batch_size;
    while (too_large - fits > 1) {
        /* the least that is worth having first: most often not even that fits */
        other.fit.batch_size = fits == least ? fits + 1 : fits + (too_large - fits) / 2;
        if (lean(p, &other, plan) <= p->limit)
            fits = other.fit.batch_size;
        else if (fits == least)
            return least;
        else
            too_large = other.fit.batch_size;
    }
    return fits;
}

/* The largest batch with which this very job fits; 0: none does. */
static int64_t batch_that_fits(const struct planner *p)
{
    struct layout l;
    struct plan plan;
    int64_t batch = 0;
    for (int n = 0; planner_layout(p->job, n, &l); n++) {
        if (planner_begin(p, &l, &plan, NULL) != 0)
            continue;
        batch = largest_batch(p, &plan, batch);
        plan_done(&plan);
    }
    return batch;
}

static void add_proposal(const struct planner *p, int64_t needed, struct buf *b)
{
    char bytes[32];
    int asked = (int)p->job->resources.devices, devices = devices_that_fit(p);
    int64_t batch = batch_that_fits(p);
    if (batch)
        buf_addf(b, "A batch_size of up to %lld fits. ", (long long)batch);
    if (devices == asked)
        buf_addf(b, "\"strategy\": \"auto\" fits %s device%s. ", asked == 1 ? "this" : "these",
                 asked == 1 ? "" : "s");
    else if (devices)
        buf_addf(b, "%d devices with \"strategy\": \"auto\" would fit. ", devices);
    buf_addf(b, "%s %lld bytes (%s) a rank with resources.memory, on devices that have them%s.",
             b->len ? "Or allow" : "Allow", (long long)needed, explain_bytes(needed, bytes),
             b->len ? "" : ", or use a smaller model");
}

int planner_refuse_memory(const struct planner *p)
{
    const struct job_spec *job = p->job;
    char memory[160], over[32];
    struct buf hint = BUF_INIT;
    int64_t needed = least_memory(p, job);
    int open = job->strategy.kind == STRATEGY_AUTO && !job->strategy.is_mesh;
    add_proposal(p, needed, &hint);
    int r =
        faults_add(p->faults, job->resources.memory ? "/resources/memory" : "/resources",
                   "does_not_fit", hint.data, "%s needs %s on its heaviest rank, %s too much.",
                   open ? "Even the leanest layout of this job" : "This layout",
                   planner_memory_text(p, needed, memory), explain_bytes(needed - p->limit, over));
    buf_done(&hint);
    return r;
}
