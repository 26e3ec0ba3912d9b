/* net.c: the layout of what a rank holds of the model. */
#include "trainer/net.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define ALIGN 16 /* elements */

static size_t padded(size_t elements)
{
    return (elements + ALIGN - 1) / ALIGN * ALIGN;
}

int net_loss_fused(const struct job_spec *job)
{
    const struct layer *last = &job->model.layers[job->model.layer_count - 1];
    if (last->type != LAYER_DENSE && last->type != LAYER_CONV2D && last->type != LAYER_ACTIVATION)
        return 0;
    switch (job->loss) {
    case LOSS_SPARSE_CATEGORICAL_CROSSENTROPY:
    case LOSS_CATEGORICAL_CROSSENTROPY:
        return last->activation == ACTIVATION_SOFTMAX; /* both go by rows */
    case LOSS_BINARY_CROSSENTROPY: return last->activation == ACTIVATION_SIGMOID;
    case LOSS_MEAN_SQUARED_ERROR:
    case LOSS__MAX: break;
    }
    return 0;
}

static int is_foldable(enum layer_type t)
{
    return t == LAYER_RESCALING || t == LAYER_FLATTEN || t == LAYER_RESHAPE;
}

static int tensors_before(const struct model *m, int layer)
{
    int count = 0;
    for (int l = 0; l < layer; l++)
        count += m->layers[l].tensor_count;
    return count;
}

/* BLAS counts in 32 bits. */
static int check_sizes(const struct model *m, const struct net_chunk *k, struct err *e)
{
    for (int l = k->first; l < k->last; l++) {
        int64_t in = shape_elements(&m->layers[l].in), out = shape_elements(&m->layers[l].out);
        if (in > INT_MAX || out > INT_MAX)
            return err_set(
                e, ERR_TOO_LARGE,
                "Layer \"%s\" has %lld inputs and %lld outputs; at most %d are possible.",
                m->layers[l].name, (long long)in, (long long)out, INT_MAX);
    }
    return 0;
}

/* What this rank has of tensor t, and how many elements that are. */
static struct net_part part_of(const struct net *n, int l, int t, size_t *ret_elements)
{
    const struct shape *s = &n->model->layers[l].tensors[t].shape;
    struct net_part p = {.end = s->size[0], .extent = s->size[0]};
    int axis = tensor_axis(&n->model->layers[l], t, n->layers[l].cut.split);
    if (axis >= 0) {
        p.axis = axis;
        p.extent = tensor_part(s->size[axis], n->tensor, n->tensor_rank, &p.begin, &p.end);
    }
    *ret_elements = (size_t)(shape_elements(s) / s->size[p.axis] * p.extent);
    return p;
}

static void add_tensor(struct net *n, int l, int t, int number)
{
    const struct layer *y = &n->model->layers[l];
    const struct tensor_spec *spec = &y->tensors[t];
    size_t elements;
    struct net_part part = part_of(n, l, t, &elements);
    n->tensors[n->tensor_count++] = (struct net_tensor){
        .spec = spec,
        .part = part,
        .name = mem_printf("%s.%s", y->name, spec->name),
        .layer = l,
        .number = (uint64_t)number,
        .is_fixed = spec->is_fixed || y->frozen,
        .is_split = tensor_axis(y, t, n->layers[l].cut.split) >= 0,
        .elements = elements,
    };
}

static int64_t columns(const struct net *n, int64_t size, int is_split)
{
    int64_t begin, end;
    return is_split ? tensor_part(size, n->tensor, n->tensor_rank, &begin, &end) : size;
}

static void cut_layers(struct net *n, const struct net_chunk *k, int fused)
{
    struct tensor_cut *cuts = mem_alloc((size_t)(k->last - k->first) * sizeof *cuts);
    tensor_cuts(n->model, k->first, k->last, n->tensor, fused, cuts);
    for (int l = k->first; l < k->last; l++) {
        const struct layer *y = &n->model->layers[l];
        struct tensor_cut c = cuts[l - k->first];
        n->layers[l].cut = c;
        n->layers[l].in = columns(n, shape_last(&y->in), c.input_split);
        n->layers[l].out = columns(n, shape_last(&y->out), c.output_split || c.gather);
    }
    free(cuts);
}

int net_is_own(const struct net *n, const struct net_tensor *x)
{
    return x->is_split ? x->part.begin < x->part.end : n->tensor_rank == 0;
}

int64_t net_out_elements(const struct net *n, int l)
{
    const struct shape *s = &n->model->layers[l].out;
    int64_t all = shape_elements(s);
    return n->layers[l].cut.output_split ? all / shape_last(s) * n->layers[l].out : all;
}

static void add_tensors(struct net *n, const struct net_chunk *k)
{
    const struct model *m = n->model;
    int number = tensors_before(m, k->first);
    size_t count = (size_t)(n->tensor_count + tensors_before(m, k->last) - number);
    n->tensors = mem_realloc(n->tensors, (count + 1) * sizeof *n->tensors);
    for (int l = k->first; l < k->last; l++) {
        n->layers[l].tensor = n->tensor_count;
        n->layers[l].tensor_count = m->layers[l].tensor_count;
        for (int t = 0; t < m->layers[l].tensor_count; t++)
            add_tensor(n, l, t, number++);
    }
}

/* The trained tensors first, or the fixed ones behind them. */
static void place_tensors(struct net *n, int fixed)
{
    for (int t = 0; t < n->tensor_count; t++) {
        struct net_tensor *x = &n->tensors[t];
        struct net_layer *y = &n->layers[x->layer];
        if (x->is_fixed != fixed)
            continue;
        if (!fixed && y->begin == y->end)
            y->begin = n->elements;
        x->offset = n->elements;
        n->elements += padded(x->elements);
        if (!fixed)
            y->end = n->elements;
    }
}

static void find_ends(struct net *n, const struct job_spec *job)
{
    const struct net_chunk *k = n->chunks, *end = &n->chunks[n->chunk_count - 1];
    while (k->first == 0 && n->folded < k->last && is_foldable(n->model->layers[n->folded].type))
        n->folded++;
    n->fused = end->last == n->model->layer_count && net_loss_fused(job);
    n->lowest = k->first;
    while (k->first == 0 && n->lowest < k->last &&
           n->layers[n->lowest].begin == n->layers[n->lowest].end)
        n->lowest++;
}

int net_init(struct net *n, const struct job_spec *job, const struct ops *ops,
             const struct net_chunk *chunks, int chunk_count, int tensor, int tensor_rank,
             struct err *e)
{
    const struct model *m = &job->model;
    for (int c = 0; c < chunk_count; c++) {
        int r = check_sizes(m, &chunks[c], e);
        if (r < 0)
            return r;
    }
    *n = (struct net){.model = m,
                      .ops = ops,
                      .chunk_count = chunk_count,
                      .tensor = tensor,
                      .tensor_rank = tensor_rank};
    n->chunks = mem_alloc((size_t)chunk_count * sizeof *chunks);
    memcpy(n->chunks, chunks, (size_t)chunk_count * sizeof *chunks);
    n->layers = mem_zalloc((size_t)m->layer_count * sizeof *n->layers);
    for (int c = 0; c < chunk_count; c++) {
        cut_layers(n, &chunks[c], net_loss_fused(job));
        add_tensors(n, &chunks[c]);
    }
    place_tensors(n, 0);
    n->trained = n->elements;
    place_tensors(n, 1);
    find_ends(n, job);
    return 0;
}

void net_done(struct net *n)
{
    for (int t = 0; t < n->tensor_count; t++)
        free(n->tensors[t].name);
    free(n->tensors);
    free(n->layers);
    free(n->chunks);
    *n = (struct net){0};
}

struct net_tensor *net_tensors_of(const struct net *n, int layer, int *ret_count)
{
    *ret_count = n->layers[layer].tensor_count;
    return &n->tensors[n->layers[layer].tensor];
}

void net_point(struct net *n, float *parameters, float *gradients)
{
    for (int t = 0; t < n->tensor_count; t++) {
        struct net_tensor *x = &n->tensors[t];
        x->parameter = parameters + x->offset;
        x->gradient = x->is_fixed ? NULL : gradients + x->offset;
    }
}
