/* cut.c: the layers cut into stages of a pipeline. */
#include "spec/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/job_decode.h"

/* Layers that stay together: one with work and those without that follow it (the first group
 * has those before it too), and all from the source of an `add` to the add. */
struct groups {
    int count;
    int *first;    /* [count + 1] layer indices */
    double *total; /* [count + 1]: FLOPs of all groups before */
};

static void groups_done(struct groups *g)
{
    free(g->first);
    free(g->total);
}

/* 1 where the model may not be cut before a layer: an `add` has its other input on the other side.
 * The caller frees it. */
static char *find_joints(const struct model *m)
{
    char *joined = mem_zalloc((size_t)m->layer_count + 1);
    for (int i = 0; i < m->layer_count; i++)
        for (int j = i; m->layers[i].type == LAYER_ADD && j > i - m->layers[i].back && j > 0; j--)
            joined[j] = 1;
    return joined;
}

/* `costs` [layers], or NULL: FLOPs. */
static void groups_make(const struct model *m, const double *costs, struct groups *g)
{
    size_t n = (size_t)m->layer_count + 1;
    char *joined = find_joints(m);
    int works = 0; /* whether the group has a layer with work already */
    *g = (struct groups){.count = 1,
                         .first = mem_zalloc((n + 1) * sizeof(int)),
                         .total = mem_zalloc((n + 1) * sizeof(double))};
    for (int i = 0; i < m->layer_count; i++) {
        const struct layer *l = &m->layers[i];
        if (layer_has_work(l) && works && !joined[i]) {
            g->first[g->count++] = i;
            g->total[g->count] = g->total[g->count - 1];
        }
        works = works || layer_has_work(l);
        g->total[g->count] += costs ? costs[i] : l->forward_flops + l->backward_flops;
    }
    g->first[g->count] = m->layer_count;
    free(joined);
}

int plan_most_stages(const struct model *m)
{
    struct groups g;
    groups_make(m, NULL, &g);
    int most = g.count;
    groups_done(&g);
    return most;
}

static double stage_cost(const struct groups *g, int first, int end)
{
    return g->total[end] - g->total[first];
}

/* How many stages it takes when none may cost more than `limit`, which no single group exceeds. */
static int stages_needed(const struct groups *g, double limit)
{
    int stages = 1, first = 0;
    for (int i = 0; i < g->count; i++) {
        if (stage_cost(g, first, i + 1) > limit) {
            stages++;
            first = i;
        }
    }
    return stages;
}

/* The least cost of the dearest stage. Costs are sums of FLOPs; bisection ends at neighbouring
 * doubles, so the limit is exact. */
static double least_limit(const struct groups *g, int stages)
{
    double low = 0, high = g->total[g->count];
    for (int i = 0; i < g->count; i++)
        low = fmax(low, stage_cost(g, i, i + 1));
    while (low < high) {
        double middle = low + (high - low) / 2;
        middle = middle < high ? middle : low; /* where they are neighbours */
        if (stages_needed(g, middle) <= stages)
            high = middle;
        else
            low = nextafter(middle, INFINITY);
    }
    return high;
}

/* 0 where the first j groups are too dear for k stages, or the others for those that are left. */
static int is_open(const struct groups *g, int stages, int k, int j, double limit)
{
    double slack = 1 + 1e-9; /* of rounding */
    return g->total[j] <= k * limit * slack &&
           g->total[g->count] - g->total[j] <= (stages - k) * limit * slack + limit * 1e-9;
}

/* Of the cuts whose dearest stage keeps to the limit, the most even: dynamic programming over
 * (stages, groups), least sum of squared costs. best[k][j] is the least for the first j groups in k
 * stages, from[k][j] where the last of these begins. At most MODEL_MAX_LAYERS groups. */
static void cut_evenly(const struct groups *g, int stages, double limit, int *ret_first)
{
    size_t width = (size_t)g->count + 1;
    double *best = mem_alloc(2 * width * sizeof *best);
    short *from = mem_zalloc(((size_t)stages + 1) * width * sizeof *from);
    for (size_t j = 0; j < width; j++)
        best[j] = j == 0 ? 0 : INFINITY;
    for (int k = 1; k <= stages; k++) {
        const double *last = best + (size_t)((k + 1) % 2) * width;
        double *now = best + (size_t)(k % 2) * width;
        for (int j = 0; j <= g->count; j++) {
            now[j] = INFINITY;
            if (!is_open(g, stages, k, j, limit))
                continue;
            for (int i = j - 1; i >= k - 1; i--) {
                double cost = stage_cost(g, i, j);
                if (cost > limit || cost * cost >= now[j])
                    break;
                if (last[i] + cost * cost < now[j]) {
                    now[j] = last[i] + cost * cost;
                    from[(size_t)k * width + (size_t)j] = (short)i;
                }
            }
        }
    }
    for (int k = stages, j = g->count; k > 0; k--) {
        ret_first[k] = g->first[j];
        j = from[(size_t)k * width + (size_t)j];
    }
    ret_first[0] = 0;
    free(best);
    free(from);
}

static int too_many(const struct groups *g, int stages, struct err *e)
{
    int most = g->count;
    return err_set(e, ERR_INVALID,
                   "the model has %d layer%s with work, so it can be cut into at most %d "
                   "stage%s, not %d",
                   most, most == 1 ? "" : "s", most, most == 1 ? "" : "s", stages);
}

int plan_cut_by(const struct job_spec *job, const double *costs, int stages, int *ret_stage_first,
                struct err *e)
{
    struct groups g;
    if (stages < 1)
        return err_set(e, ERR_INVALID, "a pipeline has at least 1 stage, not %d", stages);
    if (stages == 1) {
        ret_stage_first[0] = 0;
        ret_stage_first[1] = job->model.layer_count;
        return 0;
    }
    groups_make(&job->model, costs, &g);
    int r = stages > g.count ? too_many(&g, stages, e) : 0;
    if (r == 0)
        cut_evenly(&g, stages, least_limit(&g, stages), ret_stage_first);
    groups_done(&g);
    return r;
}

int plan_cut(const struct job_spec *job, int stages, int *ret_stage_first, struct err *e)
{
    return plan_cut_by(job, NULL, stages, ret_stage_first, e);
}
