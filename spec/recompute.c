/* recompute.c: which outputs are computed again, so that a rank needs less memory. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "spec/memory.h"

/* A layer of a rank, and what the end of a stretch of layers that follow one another and are all
 * to be computed again knows of it. */
struct worth {
    int layer, stage;
    double bytes_a_flop;
};

struct search {
    const struct memory_view *view;
    int place;          /* of the rank along the pipeline */
    struct worth *list; /* those first whose output saves most bytes for the work that it costs */
    int count;
    int *other;    /* [layers]: the other end of the stretch */
    double *bytes; /* [layers]: bytes of an item in the stretch */
};

static double rank_memory(const struct search *f)
{
    struct plan_bytes b;
    memory_rank(f->view, f->place, &b);
    return memory_total(&b);
}

static int by_worth(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;
    if (x->bytes_a_flop != y->bytes_a_flop)
        return x->bytes_a_flop < y->bytes_a_flop ? 1 : -1;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

static void list_worth(struct search *f)
{
    const struct plan *p = f->view->plan;
    f->count = 0;
    for (int s = f->place; s < plan_stages(p); s += p->pipeline)
        for (int l = p->stage_first[s]; l < p->stage_first[s + 1]; l++) {
            const struct layer *y = &f->view->job->model.layers[l];
            double bytes = (double)y->activation_bytes;
            if (bytes > 0)
                f->list[f->count++] = (struct worth){l, s, bytes / (y->forward_flops + 1)};
        }
    qsort(f->list, (size_t)f->count, sizeof *f->list, by_worth);
}

/* Marks a layer, unless its stretch would be longer than `longest` bytes an item. */
static void mark(struct search *f, const struct worth *w, double longest)
{
    const struct plan *p = f->view->plan;
    int first = w->layer, last = w->layer;
    double bytes = (double)f->view->job->model.layers[w->layer].activation_bytes;
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
        f->view->plan->recompute[f->list[i].layer] = 0;
    for (int i = 0; i < n; i++)
        mark(f, &f->list[i], longest);
    return rank_memory(f);
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
    double whole = 0, best = rank_memory(f), best_length = 0;
    if (best <= limit)
        return;
    list_worth(f);
    for (int i = 0; i < f->count; i++)
        whole += (double)f->view->job->model.layers[f->list[i].layer].activation_bytes;
    double length = whole;
    while (length >= 1) {
        double least = marked(f, f->count, length);
        if (least <= limit) {
            marked(f, enough(f, length, limit), length);
            return;
        }
        best_length = least < best ? length : best_length;
        best = fmin(best, least);
        length /= 2;
    }
    marked(f, f->count, best_length);
}

void plan_recompute(const struct job_spec *job, struct plan *p, int64_t limit)
{
    size_t layers = (size_t)job->model.layer_count + 1;
    struct memory_view v;
    memory_open(&v, job, p);
    struct search f = {.view = &v,
                       .list = mem_alloc(layers * sizeof *f.list),
                       .other = mem_zalloc(layers * sizeof *f.other),
                       .bytes = mem_zalloc(layers * sizeof *f.bytes)};
    free(p->recompute);
    p->recompute = mem_zalloc(layers);
    for (; f.place < p->pipeline; f.place++)
        fit_rank(&f, (double)limit);
    free(f.list);
    free(f.other);
    free(f.bytes);
    memory_done(&v);
    p->recompute_count = 0;
    for (size_t l = 0; l < layers; l++)
        p->recompute_count += p->recompute[l];
    if (p->recompute_count == 0) {
        free(p->recompute);
        p->recompute = NULL;
    }
}
