/* balance.c: times of stages, places and data ranks; cuts by them. */
#include "trainer/balance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int rank_at(const struct plan *p, int data, int place, int tensor)
{
    return (data * p->pipeline + place) * p->tensor + tensor;
}

/* Of the slowest rank that has it. */
static double stage_us(const struct plan *p, const struct balance_word *all, int stage)
{
    double most = 0;
    for (int d = 0; d < p->data; d++)
        for (int t = 0; t < p->tensor; t++) {
            const struct balance_word *w = &all[rank_at(p, d, stage % p->pipeline, t)];
            most = fmax(most, (double)w->busy_us[stage / p->pipeline]);
        }
    return most;
}

static double rank_us(const struct plan *p, const struct balance_word *w)
{
    double sum = 0;
    for (int c = 0; c < p->chunks; c++)
        sum += (double)w->busy_us[c];
    return sum;
}

void balance_speeds(const struct plan *p, const struct balance_word *all, double *ret)
{
    for (int d = 0; d < p->data; d++) {
        double slowest = 0;
        for (int i = 0; i < p->pipeline * p->tensor; i++)
            slowest = fmax(slowest, rank_us(p, &all[d * p->pipeline * p->tensor + i]));
        ret[d] = slowest > 0 ? (double)all[rank_at(p, d, 0, 0)].items / slowest : 0;
    }
}

/* The slowest place, and all of them together, by the times of stages. */
static double slowest_place(const struct plan *p, const double *stages, double *ret_sum)
{
    double most = 0, sum = 0;
    for (int place = 0; place < p->pipeline; place++) {
        double here = 0;
        for (int c = 0; c < p->chunks; c++)
            here += stages[c * p->pipeline + place];
        most = fmax(most, here);
        sum += here;
    }
    *ret_sum = sum;
    return most;
}

static double *measured(const struct plan *p, const struct balance_word *all)
{
    int count = plan_stages(p);
    double *us = mem_alloc((size_t)count * sizeof *us);
    for (int s = 0; s < count; s++)
        us[s] = stage_us(p, all, s);
    return us;
}

double balance_unevenness(const struct plan *p, const struct balance_word *all)
{
    CLEANUP(mem_freep) double *stages = measured(p, all);
    double sum, most = slowest_place(p, stages, &sum);
    return sum > 0 ? most * p->pipeline / sum : 1;
}

/* ---- cutting anew ---- */

static double flops(const struct layer *l)
{
    return l->forward_flops + l->backward_flops;
}

/* A stage's time divided among its layers; whole nanoseconds, so that sums are exact. */
static void spread(const struct model *m, int first, int last, double us, double *costs)
{
    double all = 0;
    for (int l = first; l < last; l++)
        all += flops(&m->layers[l]);
    for (int l = first; l < last; l++) {
        double share = all > 0 ? flops(&m->layers[l]) / all : 1.0 / (last - first);
        costs[l] = floor(us * share * 1000);
    }
}

static double move_us(const struct plan *p, const struct balance_word *all)
{
    double most = 0;
    for (int r = 0; r < p->ranks; r++)
        most = fmax(most, (double)all[r].move_us);
    return most;
}

/* What the slowest place would take with layers cut at `first`. */
static double predicted_us(const struct plan *p, const int *first, const double *costs)
{
    int count = plan_stages(p);
    CLEANUP(mem_freep) double *stages = mem_zalloc((size_t)count * sizeof *stages);
    double sum;
    for (int s = 0; s < count; s++)
        for (int l = first[s]; l < first[s + 1]; l++)
            stages[s] += costs[l] / 1000;
    return slowest_place(p, stages, &sum);
}

int balance_cut(const struct job_spec *job, const struct plan *p, const struct balance_word *all,
                int64_t steps, int *ret_first)
{
    int count = plan_stages(p);
    CLEANUP(mem_freep) double *stages = measured(p, all);
    CLEANUP(mem_freep)
    double *costs = mem_alloc((size_t)job->model.layer_count * sizeof *costs);
    double sum, now = slowest_place(p, stages, &sum);
    for (int s = 0; s < count; s++)
        spread(&job->model, p->stage_first[s], p->stage_first[s + 1], stages[s], costs);
    if (plan_cut_by(job, costs, count, ret_first, NULL) < 0)
        return 0;
    if (memcmp(ret_first, p->stage_first, ((size_t)count + 1) * sizeof *ret_first) == 0)
        return 0;
    double gain = (now - predicted_us(p, ret_first, costs)) / BALANCE_STEPS * (double)steps;
    return gain > move_us(p, all);
}
