/* memory.c: the memory that a plan needs, and what is computed again to need less. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/job_decode.h"
#include "spec/plan.h"
#include "spec/schedule.h"

#define FLOAT 4.0 /* bytes */

/* What is counted for one rank of a pipeline. */
struct rank {
    const struct job_spec *job;
    const struct plan *plan;
    int number;   /* along the pipeline */
    double items; /* of the largest micro-batch */
};

/* ---- arenas ---- */

static int optimizer_states(const struct optimizer *o)
{
    if (o->kind == OPTIMIZER_SGD)
        return o->momentum > 0;
    return 2;
}

static double bytes_of(enum storage_type t)
{
    return t == STORAGE_BFLOAT16 ? 2 : 4;
}

/* Gradients that exist at a time: the one that is computed, and in a reproducible run those that
 * wait in the tree for their neighbours. */
static double gradient_arenas(const struct plan *p)
{
    if (!p->parallel.reproducible || p->microbatches == 1)
        return 1;
    return 2 + floor(log2(p->microbatches));
}

/* Beside parameters, gradients and optimizer state, in floats a trained parameter. */
static double extra_arenas(const struct plan *p)
{
    const struct parallel *q = &p->parallel;
    double n = 0;
    if (q->sync == SYNC_DELAYED)
        n += 1; /* the gradient that is on its way */
    if (q->sync == SYNC_LOCAL_SGD)
        n += q->outer_momentum > 0 ? 2 : 1; /* the weights at the last mean */
    if (q->codec == CODEC_INT8 || q->codec == CODEC_TOP_K)
        n += 1; /* what was lost */
    return n;
}

static double arenas(const struct rank *r, double parameters)
{
    const struct plan *p = r->plan;
    const struct precision *q = &r->job->precision;
    double share = 1.0 / p->data;
    double weights = FLOAT * (p->zero >= 3 ? share : 1);
    double gradients = FLOAT * gradient_arenas(p) * (p->zero >= 2 ? share : 1);
    double state =
        bytes_of(q->moments) * optimizer_states(&r->job->optimizer) * (p->zero >= 1 ? share : 1);
    if (q->weights == STORAGE_BFLOAT16)
        weights += 2;
    return parameters / p->tensor * (weights + gradients + state + FLOAT * extra_arenas(p));
}

/* ---- activations ---- */

static double again(const struct plan *p, int layer)
{
    return p->recompute && p->recompute[layer];
}

/* What a chunk keeps of an item in each frame, and what all its frames share. */
struct kept {
    double frame, scratch, widest;
};

static struct kept chunk_kept(const struct rank *r, int stage)
{
    const struct plan *p = r->plan;
    const struct model *m = &r->job->model;
    int first = p->stage_first[stage], end = p->stage_first[stage + 1];
    double scale = bytes_of(r->job->precision.activations) / FLOAT, stretch = 0;
    struct kept k = {0};
    for (int i = first; i < end; i++) {
        const struct layer *l = &m->layers[i];
        double bytes = scale * (double)l->activation_bytes;
        double out = FLOAT * (double)shape_elements(&l->out);
        stretch = again(p, i) ? stretch + bytes : 0;
        k.frame += again(p, i) ? 0 : bytes;
        k.scratch = fmax(k.scratch, stretch);
        k.widest = fmax(k.widest, fmax(out, FLOAT * (double)shape_elements(&l->in)));
    }
    if (first < end)
        k.frame += FLOAT * (double)shape_elements(&m->layers[first].in); /* the stage's input */
    return k;
}

static int in_flight(const struct rank *r, const struct schedule *s, int chunk)
{
    const struct plan *p = r->plan;
    int m = p->microbatches > 0 ? p->microbatches : 1, after = p->pipeline - r->number;
    if (s)
        return s->in_flight[chunk];
    if (p->schedule == SCHEDULE_GPIPE)
        return m;
    return m < after ? m : after;
}

static double activations(const struct rank *r)
{
    const struct plan *p = r->plan;
    struct schedule schedule = {0};
    double frames = 0, scratch = 0, widest = 0;
    if (p->chunks > 1)
        schedule_make(&schedule, p->schedule, p->pipeline, p->chunks, p->microbatches, r->number);
    for (int c = 0; c < p->chunks; c++) {
        struct kept k = chunk_kept(r, c * p->pipeline + r->number);
        frames += k.frame * in_flight(r, p->chunks > 1 ? &schedule : NULL, c);
        scratch = fmax(scratch, k.scratch);
        widest = fmax(widest, k.widest);
    }
    schedule_done(&schedule);
    /* two gradients of activations: the one that comes in and the one that is made of it */
    return r->items * (frames + scratch + 2 * widest);
}

/* ---- a rank ---- */

/* Items of the largest micro-batch of a rank. An ensemble's members each train on whole batches of
 * their own shard. */
static double items_at_once(const struct job_spec *job, const struct plan *p)
{
    int data = p->kind == STRATEGY_SEGMENT_ENSEMBLE || p->data < 1 ? 1 : p->data;
    int m = p->microbatches > 0 ? p->microbatches : 1;
    return ceil(ceil((double)job->fit.batch_size / data) / m);
}

static double rank_memory(const struct rank *r)
{
    const struct plan *p = r->plan;
    double parameters = 0;
    for (int s = r->number; s < plan_stages(p); s += p->pipeline)
        for (int l = p->stage_first[s]; l < p->stage_first[s + 1]; l++)
            parameters += (double)r->job->model.layers[l].parameters;
    return arenas(r, parameters) + activations(r);
}

int64_t plan_memory(const struct job_spec *job, const struct plan *p)
{
    struct rank r = {.job = job, .plan = p, .items = items_at_once(job, p)};
    double most = 0;
    for (; r.number < p->pipeline; r.number++)
        most = fmax(most, rank_memory(&r));
    return most < 9e18 ? (int64_t)most : INT64_MAX;
}

/* ---- recompute ---- */

/* A layer of a rank, and what the end of a stretch of layers that follow one another and are all
 * to be computed again knows of it. */
struct worth {
    int layer, stage;
    double bytes_a_flop;
};

struct search {
    const struct rank *rank;
    struct worth *list; /* those first whose output saves most bytes for the work that it costs */
    int count;
    int *other;    /* [layers]: the other end of the stretch */
    double *bytes; /* [layers]: bytes of an item in the stretch */
};

static int by_worth(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;
    if (x->bytes_a_flop != y->bytes_a_flop)
        return x->bytes_a_flop < y->bytes_a_flop ? 1 : -1;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

static void list_worth(struct search *f)
{
    const struct plan *p = f->rank->plan;
    f->count = 0;
    for (int s = f->rank->number; s < plan_stages(p); s += p->pipeline)
        for (int l = p->stage_first[s]; l < p->stage_first[s + 1]; l++) {
            const struct layer *y = &f->rank->job->model.layers[l];
            double bytes = (double)y->activation_bytes;
            if (bytes > 0)
                f->list[f->count++] = (struct worth){l, s, bytes / (y->forward_flops + 1)};
        }
    qsort(f->list, (size_t)f->count, sizeof *f->list, by_worth);
}

/* Marks a layer, unless its stretch would be longer than `longest` bytes an item. */
static void mark(struct search *f, const struct worth *w, double longest)
{
    const struct plan *p = f->rank->plan;
    int first = w->layer, last = w->layer;
    double bytes = (double)f->rank->job->model.layers[w->layer].activation_bytes;
    if (first > p->stage_first[w->stage] && p->recompute[first - 1]) {
        bytes += f->bytes[first - 1];
        first = f->other[first - 1];
    }
    if (last + 1 < p->stage_first[w->stage + 1] && p->recompute[last + 1]) {
        bytes += f->bytes[last + 1];
        last = f->other[last + 1];
    }
    if (bytes > longest)
        return;
    p->recompute[w->layer] = 1;
    f->bytes[first] = f->bytes[last] = bytes;
    f->other[first] = last;
    f->other[last] = first;
}

/* The rank's memory with the first `n` of the list marked, as far as `longest` allows. */
static double marked(struct search *f, int n, double longest)
{
    for (int i = 0; i < f->count; i++)
        f->rank->plan->recompute[f->list[i].layer] = 0;
    for (int i = 0; i < n; i++)
        mark(f, &f->list[i], longest);
    return rank_memory(f->rank);
}

/* The shortest beginning of the list that makes it fit, or all of it. */
static int enough(struct search *f, double longest, double limit)
{
    int low = 0, high = f->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (marked(f, middle, longest) <= limit)
            high = middle;
        else
            low = middle + 1;
    }
    return high;
}

/* Long stretches cost shared memory while they are computed again, short ones leave more outputs
 * kept: the longest that fits is taken, or the length with which the rank needs least. */
static void fit_rank(struct search *f, double limit)
{
    double whole = 0, best = rank_memory(f->rank), best_length = 0;
    if (best <= limit)
        return;
    list_worth(f);
    for (int i = 0; i < f->count; i++)
        whole += (double)f->rank->job->model.layers[f->list[i].layer].activation_bytes;
    for (double length = whole; length >= 1; length /= 2) {
        double least = marked(f, f->count, length);
        if (least <= limit) {
            marked(f, enough(f, length, limit), length);
            return;
        }
        best_length = least < best ? length : best_length;
        best = fmin(best, least);
    }
    marked(f, f->count, best_length);
}

void plan_recompute(const struct job_spec *job, struct plan *p, int64_t limit)
{
    size_t layers = (size_t)job->model.layer_count + 1;
    struct rank r = {.job = job, .plan = p, .items = items_at_once(job, p)};
    struct search f = {.rank = &r,
                       .list = mem_alloc(layers * sizeof *f.list),
                       .other = mem_zalloc(layers * sizeof *f.other),
                       .bytes = mem_zalloc(layers * sizeof *f.bytes)};
    free(p->recompute);
    p->recompute = mem_zalloc(layers);
    for (; r.number < p->pipeline; r.number++)
        fit_rank(&f, (double)limit);
    free(f.list);
    free(f.other);
    free(f.bytes);
    p->recompute_count = 0;
    for (size_t l = 0; l < layers; l++)
        p->recompute_count += p->recompute[l];
    if (p->recompute_count == 0) {
        free(p->recompute);
        p->recompute = NULL;
    }
}
