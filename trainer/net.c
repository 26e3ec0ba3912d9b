/* net.c: the layout of what a rank holds of the model. */
#include "trainer/net.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define ALIGN 16 /* elements */

static size_t padded(const struct tensor_spec *t)
{
    size_t n = (size_t)shape_elements(&t->shape);
    return (n + ALIGN - 1) / ALIGN * ALIGN;
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

static void add_tensor(struct net *n, int l, int t, int number)
{
    const struct layer *y = &n->model->layers[l];
    const struct tensor_spec *spec = &y->tensors[t];
    n->tensors[n->tensor_count++] = (struct net_tensor){
        .spec = spec,
        .part = {.end = spec->shape.size[0], .extent = spec->shape.size[0]},
        .name = mem_printf("%s.%s", y->name, spec->name),
        .layer = l,
        .number = (uint64_t)number,
        .is_fixed = spec->is_fixed || y->frozen,
        .elements = (size_t)shape_elements(&spec->shape),
    };
}

static void add_tensors(struct net *n, const struct net_chunk *k)
{
    const struct model *m = n->model;
    int number = tensors_before(m, k->first);
    size_t count = (size_t)(n->tensor_count + tensors_before(m, k->last) - number);
    n->tensors = mem_realloc(n->tensors, (count + 1) * sizeof *n->tensors);
    for (int l = k->first; l < k->last; l++) {
        n->layers[l] = (struct net_layer){.tensor = n->tensor_count,
                                          .tensor_count = m->layers[l].tensor_count};
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
        n->elements += padded(x->spec);
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
             const struct net_chunk *chunks, int chunk_count, struct err *e)
{
    const struct model *m = &job->model;
    for (int c = 0; c < chunk_count; c++) {
        int r = check_sizes(m, &chunks[c], e);
        if (r < 0)
            return r;
    }
    *n = (struct net){.model = m, .ops = ops, .chunk_count = chunk_count};
    n->chunks = mem_alloc((size_t)chunk_count * sizeof *chunks);
    memcpy(n->chunks, chunks, (size_t)chunk_count * sizeof *chunks);
    n->layers = mem_zalloc((size_t)m->layer_count * sizeof *n->layers);
    for (int c = 0; c < chunk_count; c++)
        add_tensors(n, &chunks[c]);
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
