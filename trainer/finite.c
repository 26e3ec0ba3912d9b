/* finite.c: where numbers went wrong first, once they have. */
#include "trainer/finite.h"

#include <limits.h>
#include <math.h>

#include "base/mem.h"
#include "trainer/replicas_parts.h"

static int is_finite(const struct ops *o, size_t n, const float *x)
{
    double squares; /* of float32 values a sum is infinite only where one of them is */
    o->sum_squares(n, x, &squares);
    return isfinite(squares);
}

/* ---- outputs of layers ---- */

/* What micro-batches have left in their frames: outputs that are computed again, or kept as
 * bfloat16, are not looked at. */
static int frame_is_finite(const struct stage *s, const struct frame_layout *y,
                           const struct frame *f, int l)
{
    const struct frame_layer *at = &y->layers[l - y->first];
    if (at->home != FRAME_KEPT || at->packed)
        return 1;
    size_t n = (size_t)(f->rows * net_out_elements(&s->net, l));
    return is_finite(s->net.ops, n, (const float *)(f->memory + at->y));
}

static int layer_is_finite(const struct stage *s, int c, int l)
{
    for (int f = 0; f < s->chunks[c].frame_count; f++)
        if (!frame_is_finite(s, &s->layouts[c], &s->chunks[c].frames[f], l))
            return 0;
    return 1;
}

/* INT_MAX: none. */
static int first_layer(const struct stage *s)
{
    for (int c = 0; c < s->net.chunk_count; c++)
        for (int l = s->layouts[c].first; l < s->layouts[c].last; l++)
            if (!layer_is_finite(s, c, l))
                return l;
    return INT_MAX;
}

/* ---- gradients of tensors ---- */

static int tensor_is_finite(const struct replicas *r, const struct net_tensor *x)
{
    for (int i = 0; i < r->count; i++) {
        const struct bucket *b = &r->buckets[i];
        size_t begin = x->offset > b->own_begin ? x->offset : b->own_begin;
        size_t end = x->offset + x->elements < b->own_end ? x->offset + x->elements : b->own_end;
        if (begin < end &&
            !is_finite(r->net->ops, end - begin, summed(r, r->ready, b) + (begin - b->own_begin)))
            return 0;
    }
    return 1;
}

static int first_tensor(const struct replicas *r)
{
    for (int t = 0; t < r->net->tensor_count; t++)
        if (!r->net->tensors[t].is_fixed && !tensor_is_finite(r, &r->net->tensors[t]))
            return (int)r->net->tensors[t].number;
    return INT_MAX;
}

/* ---- all ranks' ---- */

static int least_of(struct engine *g, int mine, int *ret_least, int *ret_rank, struct err *e)
{
    struct comm *w = g->mesh.world;
    CLEANUP(mem_freep) int *all = mem_alloc((size_t)g->mesh.ranks * sizeof *all);
    int r = w->verbs->exchange(w, &mine, sizeof mine, all, e);
    *ret_least = INT_MAX;
    for (int i = 0; r == 0 && i < g->mesh.ranks; i++)
        if (all[i] < *ret_least) {
            *ret_least = all[i];
            *ret_rank = i;
        }
    return r;
}

#define MAY_HELP "A lower learning_rate, global_clipnorm, or data scaled to about 1 may help."

static int say_loss(struct engine *g, int rank, struct err *e)
{
    long long step = (long long)g->step + 1;
    int layer;
    int r = least_of(g, first_layer(&g->stage), &layer, &rank, e);
    g->code = "loss_not_finite";
    if (r < 0)
        return r;
    if (layer == INT_MAX)
        return err_set(e, ERR_INVALID, "The loss of step %lld is not finite on rank %d. " MAY_HELP,
                       step, rank);
    return err_set(e, ERR_INVALID,
                   "The output of layer \"%s\" was not finite on rank %d (step %lld), and so the "
                   "loss. " MAY_HELP,
                   g->job->model.layers[layer].name, rank, step);
}

static int say_gradient(struct engine *g, int rank, struct err *e)
{
    const struct model *m = &g->job->model;
    long long step = (long long)(g->pending_step > 0 ? g->pending_step : g->step + 1);
    int tensor, l = 0;
    int r = least_of(g, first_tensor(&g->replicas), &tensor, &rank, e);
    g->code = "gradient_not_finite";
    if (r < 0)
        return r;
    if (tensor == INT_MAX)
        return err_set(e, ERR_INVALID,
                       "The gradient of step %lld is not finite on rank %d. " MAY_HELP, step, rank);
    for (; tensor >= m->layers[l].tensor_count; l++)
        tensor -= m->layers[l].tensor_count;
    return err_set(e, ERR_INVALID,
                   "The gradient of \"%s.%s\" was not finite on rank %d (step %lld). " MAY_HELP,
                   m->layers[l].name, m->layers[l].tensors[tensor].name, rank, step);
}

int engine_check_loss(struct engine *g, struct err *e)
{
    for (int r = 0; r < g->mesh.ranks; r++)
        if (!isfinite(g->tallies[r].sums.loss))
            return say_loss(g, r, e);
    return 0;
}

/* The first rank whose gradient is not finite; -1: none. */
static int bad_gradient(const struct engine *g)
{
    for (int r = 0; r < g->mesh.ranks; r++)
        if (!isfinite(g->tallies[r].squares) || g->tallies[r].exact.not_finite)
            return r;
    return -1;
}

int engine_check_gradient(struct engine *g, int *ret_skip, struct err *e)
{
    int rank = bad_gradient(g);
    *ret_skip = rank >= 0 && loss_scale_can_fall(&g->scale);
    return rank >= 0 && !*ret_skip ? say_gradient(g, rank, e) : 0;
}
