/* planner_fit.c: one mesh made to fit the memory of a rank.
 *
 * Micro-batches of a pipeline, where not given: two for each stage, so that a step's bubble is
 * (S - 1) / (3S - 1), under a third; fewer where they would have under PLANNER_MIN_ROWS rows
 * (small matrices multiply slowly). Those of a reproducible run are its grains.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/coordinator/planner_parts.h"

#define PLANNER_MIN_ROWS 4

int64_t planner_rows(const struct job_spec *job, int data)
{
    return (job->fit.batch_size + data - 1) / data;
}

int planner_takes_data(const struct job_spec *job, int data)
{
    const struct parallel *p = &job->strategy.parallel;
    return !p->reproducible || p->grains % data == 0;
}

int planner_fits(const struct planner *p, const struct plan *plan)
{
    return plan->memory_bytes <= p->limit;
}

/* ---- meshes ---- */

/* The n-th number of stages, from 1 up, that an "auto" job could have. */
static int auto_layout(const struct job_spec *job, int n, struct layout *ret)
{
    int devices = (int)job->resources.devices;
    int local = job->strategy.parallel.sync == SYNC_LOCAL_SGD;
    for (int stages = 1; stages <= devices; stages++) {
        int data = devices / stages;
        if (devices % stages != 0 || !planner_takes_data(job, data) || n-- > 0)
            continue;
        *ret = (struct layout){.data = data, .pipeline = stages, .tensor = 1};
        ret->kind = local && data > 1 ? STRATEGY_LOCAL_SGD
                    : stages > 1      ? STRATEGY_PIPELINE
                    : data > 1        ? STRATEGY_MIRRORED
                                      : STRATEGY_NONE;
        return 1;
    }
    return 0;
}

static int or_one(int64_t size)
{
    return size ? (int)size : 1;
}

int planner_layout(const struct job_spec *job, int n, struct layout *ret)
{
    const struct strategy *s = &job->strategy;
    int devices = (int)job->resources.devices;
    if (s->kind == STRATEGY_AUTO && !s->is_mesh)
        return auto_layout(job, n, ret);
    *ret = (struct layout){.kind = s->kind, .data = 1, .pipeline = 1, .tensor = 1};
    if (s->is_mesh)
        *ret = (struct layout){s->kind, or_one(s->data), or_one(s->pipeline), or_one(s->tensor)};
    else if (s->kind == STRATEGY_PIPELINE)
        ret->pipeline = devices;
    else if (s->kind == STRATEGY_TENSOR)
        ret->tensor = devices;
    else
        ret->data = devices;
    return n == 0;
}

/* ---- plans ---- */

/* What of a request has no meaning on this mesh is as if it had not been asked for. */
static void set_parallel(const struct job_spec *job, struct plan *plan)
{
    struct parallel *p = &plan->parallel;
    *p = job->strategy.parallel;
    if (plan->kind == STRATEGY_SEGMENT_ENSEMBLE)
        p->sync = SYNC_EVERY_STEP;
    if (plan->data == 1 || plan->kind == STRATEGY_SEGMENT_ENSEMBLE) {
        p->shares = SHARES_EVEN;
        p->overlap = 0;
    }
    if (plan->pipeline == 1)
        p->rebalance = 0;
}

static int default_microbatches(const struct job_spec *job, const struct plan *plan)
{
    int64_t rows = planner_rows(job, plan->data), wanted = 2 * (int64_t)plan->pipeline;
    if (plan->parallel.reproducible)
        return (int)plan->parallel.grains / plan->data;
    if (job->strategy.microbatches)
        return (int)job->strategy.microbatches;
    if (plan->pipeline == 1)
        return 1;
    if (wanted * PLANNER_MIN_ROWS > rows)
        wanted = rows / PLANNER_MIN_ROWS;
    return wanted < 1 ? 1 : (int)wanted;
}

/* How many micro-batches there may be at most, where memory asks for it. */
static int most_microbatches(const struct job_spec *job, const struct plan *plan)
{
    int64_t rows = planner_rows(job, plan->data);
    if (plan->parallel.reproducible || job->strategy.microbatches ||
        plan->kind == STRATEGY_SEGMENT_ENSEMBLE)
        return plan->microbatches;
    return rows < PLAN_MAX_MICROBATCHES ? (int)rows : PLAN_MAX_MICROBATCHES;
}

int planner_begin(const struct planner *p, const struct layout *l, struct plan *ret, struct err *e)
{
    const struct job_spec *job = p->job;
    *ret = (struct plan){.kind = l->kind,
                         .ranks = l->data * l->pipeline * l->tensor,
                         .data = l->data,
                         .pipeline = l->pipeline,
                         .tensor = l->tensor,
                         .chunks = 1,
                         .schedule = job->strategy.schedule};
    if (ret->schedule == SCHEDULE_INTERLEAVED && l->pipeline > 1)
        ret->chunks = or_one(job->strategy.chunks);
    if (ret->chunks == 1 && ret->schedule == SCHEDULE_INTERLEAVED)
        ret->schedule = SCHEDULE_1F1B;
    set_parallel(job, ret);
    ret->stage_first = mem_zalloc(((size_t)plan_stages(ret) + 1) * sizeof(int));
    int r = plan_cut(job, plan_stages(ret), ret->stage_first, e);
    if (r < 0)
        plan_done(ret);
    else
        ret->microbatches = job->command ? 1 : default_microbatches(job, ret);
    return r;
}

static void grow(const struct planner *p, struct plan *plan)
{
    int most = most_microbatches(p->job, plan);
    while (!planner_fits(p, plan) && 2 * (int64_t)plan->microbatches <= most) {
        plan->microbatches *= 2;
        plan->memory_bytes = plan_memory(p->job, plan);
    }
}

static int least_zero(const struct planner *p, const struct plan *plan)
{
    int64_t zero = p->job->strategy.zero;
    int none = plan->data == 1 || plan->kind == STRATEGY_SEGMENT_ENSEMBLE;
    return none || zero < 0 ? 0 : (int)zero;
}

/* How far the plan may go by itself. */
static int most_zero(const struct planner *p, const struct plan *plan)
{
    const struct parallel *q = &plan->parallel;
    if (plan->data == 1 || plan->kind == STRATEGY_SEGMENT_ENSEMBLE || p->job->strategy.zero >= 0)
        return least_zero(p, plan);
    if (q->sync == SYNC_LOCAL_SGD || q->codec != CODEC_NONE)
        return 0;
    return q->sync == SYNC_DELAYED ? 2 : 3;
}

/* What recompute costs is told by the limit: none where that is no limit. */
static void recompute_to(const struct planner *p, struct plan *plan, int64_t limit)
{
    if (p->job->strategy.recompute != RECOMPUTE_NONE)
        plan_recompute(p->job, plan, limit);
    plan->memory_bytes = plan_memory(p->job, plan);
}

static void recompute_nothing(const struct planner *p, struct plan *plan)
{
    if (p->job->strategy.recompute == RECOMPUTE_ALL) {
        recompute_to(p, plan, 0);
        return;
    }
    free(plan->recompute);
    plan->recompute = NULL;
    plan->recompute_count = 0;
    plan->memory_bytes = plan_memory(p->job, plan);
}

/* More and more of what costs time; 1 as soon as it fits. */
static int try_zero(const struct planner *p, struct plan *plan, int zero)
{
    int few = default_microbatches(p->job, plan);
    plan->zero = zero;
    plan->microbatches = few;
    recompute_nothing(p, plan);
    return planner_fits(p, plan);
}

static int try_hard(const struct planner *p, struct plan *plan)
{
    int few = plan->microbatches;
    grow(p, plan);
    if (planner_fits(p, plan) || p->job->strategy.recompute != RECOMPUTE_AUTO)
        return planner_fits(p, plan);
    int many = plan->microbatches;
    for (plan->microbatches = few;; plan->microbatches = many) {
        recompute_to(p, plan, p->limit);
        if (planner_fits(p, plan) || plan->microbatches == many)
            return planner_fits(p, plan);
    }
}

int planner_fit(const struct planner *p, const struct layout *l, int with_zero_3, struct plan *ret,
                struct err *e)
{
    int r = planner_begin(p, l, ret, e);
    if (r < 0 || p->job->command)
        return r;
    int least = least_zero(p, ret), most = most_zero(p, ret);
    int free_of_cost = most < 2 || least > 2 ? most : 2; /* sums cost as much as without */
    for (int zero = least; zero <= free_of_cost; zero++)
        if (try_zero(p, ret, zero))
            return 0;
    if (try_hard(p, ret) || most <= free_of_cost || !with_zero_3)
        return 0;
    if (!try_zero(p, ret, most))
        try_hard(p, ret);
    return 0;
}

void planner_make_lean(const struct planner *p, struct plan *plan)
{
    plan->zero = most_zero(p, plan);
    plan->microbatches = default_microbatches(p->job, plan);
    plan->microbatches = most_microbatches(p->job, plan);
    recompute_to(p, plan, 0);
}
