/* memory_values.c: parameters, gradients, optimizer state and what replicas keep besides, as
 * trainer/replicas.c lays them out. */
#include <math.h>

#include "spec/codec.h"
#include "spec/memory.h"

#define BUCKET_BYTES (4.0 * 1024 * 1024) /* trainer/replicas.h */

/* A rank's trained elements. */
struct values {
    const struct memory_view *view;
    double trained, fixed;
    double own;          /* of each bucket the largest part of a data rank */
    double widest;       /* bucket */
    double widest_layer; /* trained elements */
};

static double padded(double bytes)
{
    return ceil(bytes / 64) * 64;
}

static int is_alone(const struct plan *p)
{
    return p->kind == STRATEGY_SEGMENT_ENSEMBLE;
}

static int has_group(const struct plan *p)
{
    return p->data > 1 && !is_alone(p);
}

/* Data ranks have weights of their own between two means. */
static int is_apart(const struct plan *p)
{
    return p->parallel.sync == SYNC_LOCAL_SGD && !is_alone(p);
}

/* Weights at the last mean, and the momentum of the steps towards it. */
static int outer_arenas(const struct plan *p)
{
    const struct parallel *q = &p->parallel;
    if (!is_apart(p))
        return 0;
    return (q->outer_learning_rate != 1 || q->outer_momentum != 0) + (q->outer_momentum != 0);
}

/* 1 if the layer has a table whose touched rows may be listed: a bucket of its own. */
static int has_table(const struct memory_view *v, int layer)
{
    const struct layer *l = &v->job->model.layers[layer];
    const struct plan *p = v->plan;
    return l->type == LAYER_EMBEDDING && !l->frozen && has_group(p) && p->zero == 0 &&
           !is_apart(p) && p->parallel.codec == CODEC_NONE;
}

static void end_bucket(struct values *x, double elements)
{
    /* parts differ by a cache line at most */
    x->own += fmin(elements, ceil(elements / x->view->plan->data / 16) * 16);
    x->widest = fmax(x->widest, elements);
}

/* Down from the last layer of the last chunk. With zero 2 and 3 a bucket lies within one chunk, and
 * on one side of a layer that waits for all micro-batches. */
static void cut_buckets(struct values *x, int place)
{
    const struct plan *p = x->view->plan;
    double bucket = 0;
    int must_cut = 0;
    for (int s = plan_stages(p) - p->pipeline + place; s >= 0; s -= p->pipeline) {
        for (int l = p->stage_first[s + 1] - 1; l >= p->stage_first[s]; l--) {
            const struct layer_facts *f = &x->view->facts[l];
            must_cut = must_cut || (p->zero >= 2 && f->sums > 0);
            x->fixed += f->fixed;
            x->trained += f->trained;
            x->widest_layer = fmax(x->widest_layer, f->trained);
            if (f->trained <= 0)
                continue;
            must_cut = must_cut || has_table(x->view, l);
            if (bucket > 0 && (bucket * 4 >= BUCKET_BYTES || must_cut)) {
                end_bucket(x, bucket);
                bucket = 0;
            }
            bucket += f->trained;
            must_cut = (p->zero >= 2 && f->sums > 0) || has_table(x->view, l);
        }
        must_cut = must_cut || p->zero >= 2;
    }
    if (bucket > 0)
        end_bucket(x, bucket);
}

static int optimizer_states(const struct optimizer *o)
{
    if (o->kind == OPTIMIZER_SGD)
        return o->momentum > 0;
    return 2;
}

static double width(enum storage_type t)
{
    return t == STORAGE_BFLOAT16 ? 2 : 4;
}

/* Of all, or of the own parts. */
static double store(const struct values *x, double bytes, int divided)
{
    return padded(bytes * (divided ? x->own : x->trained));
}

static void add_parameters(const struct values *x, int zero, double *own, double *shared)
{
    enum storage_type type = x->view->job->precision.weights;
    int rounded = type == STORAGE_BFLOAT16, divided = zero == 3 || (zero > 0 && rounded);
    int slots = zero < 3 ? 0 : x->view->plan->parallel.overlap ? 2 : 1;
    int meets = zero > 0 || is_apart(x->view->plan);
    *(has_group(x->view->plan) && meets && !divided ? shared : own) += store(x, 4, divided);
    *own += padded(4 * x->fixed);
    if (rounded && (zero == 1 || zero == 2))
        *shared += store(x, 2, 0);
    if (rounded)
        *own += padded(4 * x->widest_layer);
    *shared += slots * padded(x->widest * width(type));
}

static void add_gradients(const struct values *x, int zero, double *own, double *shared)
{
    const struct plan *p = x->view->plan;
    int grains = p->parallel.reproducible && x->view->microbatches > 1 ? x->view->microbatches : 0;
    int divided = zero >= 2 && !grains;
    int slots = !divided ? 0 : p->parallel.overlap ? 2 : 1;
    int arenas = p->parallel.sync == SYNC_DELAYED && !is_alone(p) ? 2 : 1;
    *(has_group(p) && !is_apart(p) && !divided ? shared : own) += arenas * store(x, 4, divided);
    *shared += slots * padded(4 * x->widest);
    for (; grains > 1; grains /= 2) /* sums that wait in the tree */
        *own += store(x, 4, 0);
}

/* Lists of touched rows, of all data ranks, and of this one's ids. */
static void add_rows(const struct values *x, int place, double *own, double *shared)
{
    const struct plan *p = x->view->plan;
    double lists = 0, ids = 0;
    for (int s = place; s < plan_stages(p); s += p->pipeline)
        for (int l = p->stage_first[s]; l < p->stage_first[s + 1]; l++) {
            const struct shape *t = &x->view->job->model.layers[l].tensors[0].shape;
            if (!has_table(x->view, l))
                continue;
            int64_t rows = (t->size[0] + p->tensor - 1) / p->tensor;
            int64_t room = codec_table_room(p->data, rows, t->size[1]);
            lists = fmax(lists, (double)codec_rows_bytes(room, t->size[1]));
            ids = fmax(ids, 4.0 * (double)room);
        }
    *shared += padded(p->data * lists);
    *own += padded(ids);
}

/* What a codec keeps, and all ranks' gradients of a bucket on their way. */
static void add_codec(const struct values *x, double *own, double *shared)
{
    const struct plan *p = x->view->plan;
    if (!has_group(p) || p->parallel.codec == CODEC_NONE)
        return;
    if (codec_keeps_residual(p->parallel.codec))
        *own += store(x, 4, 0);
    *shared += padded(p->data * (double)codec_bytes(&p->parallel, (size_t)x->widest));
}

/* What a checkpoint beside the training is written from, and what layers move from: also gradients
 * and weights that are the same on all data ranks, and residuals, which are not; and the weights
 * of the best epoch, the last of which a checkpoint under way may still hold. Bfloat16 is float32
 * there. */
static double copies(const struct values *x)
{
    const struct job_spec *job = x->view->job;
    const struct plan *p = x->view->plan;
    const struct early_stopping *rule = &job->fit.early_stopping;
    int alone = !has_group(p) || p->parallel.sync == SYNC_LOCAL_SGD;
    double elements = alone ? x->trained : x->own, parameters = 4 * (elements + x->fixed);
    double others = outer_arenas(p) + (p->parallel.sync == SYNC_DELAYED && !is_alone(p));
    double rest = 4 * others * x->own;
    if (has_group(p) && codec_keeps_residual(p->parallel.codec))
        rest += 4 * x->trained;
    int beside =
        job->checkpoint.enabled && (job->checkpoint.every_steps > 0 || job->checkpoint.every_s > 0);
    double bytes = (beside + (p->parallel.rebalance != 0)) *
                   (parameters + 4 * elements * optimizer_states(&job->optimizer) + rest);
    if (rule->enabled && rule->restore_best_weights)
        bytes += (beside ? 2 : 1) * parameters;
    return bytes;
}

void memory_add_values(const struct memory_view *v, int place, double *ret_private,
                       double *ret_shared)
{
    const struct plan *p = v->plan;
    struct values x = {.view = v};
    int zero = has_group(p) && !is_apart(p) ? p->zero : 0;
    cut_buckets(&x, place);
    add_parameters(&x, zero, ret_private, ret_shared);
    add_gradients(&x, zero, ret_private, ret_shared);
    add_codec(&x, ret_private, ret_shared);
    add_rows(&x, place, ret_private, ret_shared);
    *ret_private += outer_arenas(p) * store(&x, 4, 0);
    *ret_private += optimizer_states(&v->job->optimizer) *
                    store(&x, width(v->job->precision.moments), zero > 0);
    if (!memory_is_apart(v->job))
        *ret_private += copies(&x);
}
