/* net.c: the layout of a rank's slice of the model. */
#include "trainer/net.h"

#include <limits.h>
#include <stdlib.h>

#include "base/mem.h"

#define ALIGN 16 /* elements */

static size_t padded(const struct tensor_spec *t)
{
    size_t n = (size_t)shape_elements(&t->shape);
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

size_t net_elements(const struct model *m, int first, int last)
{
    size_t sum = 0;
    for (int l = first; l < last; l++)
        for (int t = 0; t < m->layers[l].tensor_count; t++)
            sum += padded(&m->layers[l].tensors[t]);
    return sum;
}

int net_loss_fused(const struct job_spec *job)
{
    const struct layer *last = &job->model.layers[job->model.layer_count - 1];
    if (last->type != LAYER_DENSE && last->type != LAYER_ACTIVATION)
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
static int check_sizes(const struct model *m, int first, int last, struct err *e)
{
    for (int l = first; l < last; l++) {
        int64_t in = shape_elements(&m->layers[l].in), out = shape_elements(&m->layers[l].out);
        if (in > INT_MAX || out > INT_MAX)
            return err_set(
                e, ERR_TOO_LARGE,
                "Layer \"%s\" has %lld inputs and %lld outputs; at most %d are possible.",
                m->layers[l].name, (long long)in, (long long)out, INT_MAX);
    }
    return 0;
}

static void add_tensors(struct net *n)
{
    const struct model *m = n->model;
    int number = tensors_before(m, n->first);
    n->tensors = mem_zalloc((size_t)(tensors_before(m, n->last) - number + 1) * sizeof *n->tensors);
    for (int l = n->first; l < n->last; l++)
        for (int t = 0; t < m->layers[l].tensor_count; t++) {
            const struct tensor_spec *spec = &m->layers[l].tensors[t];
            n->tensors[n->tensor_count++] = (struct net_tensor){
                .spec = spec,
                .name = mem_printf("%s.%s", m->layers[l].name, spec->name),
                .layer = l,
                .number = (uint64_t)number++,
                .offset = n->elements,
                .elements = (size_t)shape_elements(&spec->shape),
            };
            n->elements += padded(spec);
        }
}

int net_init(struct net *n, const struct job_spec *job, const struct ops *ops, int first, int last,
             struct err *e)
{
    const struct model *m = &job->model;
    int r = check_sizes(m, first, last, e);
    if (r < 0)
        return r;
    *n = (struct net){.model = m, .ops = ops, .first = first, .last = last};
    add_tensors(n);
    while (first == 0 && n->folded < last && is_foldable(m->layers[n->folded].type))
        n->folded++;
    n->fused = last == m->layer_count && net_loss_fused(job);
    n->lowest = first;
    while (first == 0 && n->lowest < last && m->layers[n->lowest].tensor_count == 0)
        n->lowest++;
    return 0;
}

size_t net_bytes(const struct net *n, int states, int own_arenas)
{
    return n->elements * sizeof(float) * (size_t)(states + (own_arenas ? 2 : 0));
}

static int allocate_one(const struct net *n, float **ret, struct err *e)
{
    *ret = n->ops->alloc(n->elements * sizeof(float));
    if (!*ret)
        return err_set(e, ERR_UNAVAILABLE, "The %s device has no %zu bytes left for parameters.",
                       n->ops->name, n->elements * sizeof(float));
    return 0;
}

int net_allocate(struct net *n, int states, float *parameters, float *gradients, struct err *e)
{
    n->parameters = parameters;
    n->gradients = gradients;
    n->own_arenas = !gradients;
    int r = n->own_arenas ? allocate_one(n, &n->parameters, e) : 0;
    if (r == 0 && n->own_arenas)
        r = allocate_one(n, &n->gradients, e);
    for (int s = 0; r == 0 && s < states; s++)
        r = allocate_one(n, &n->state[s], e);
    return r;
}

void net_done(struct net *n)
{
    for (int t = 0; t < n->tensor_count; t++)
        free(n->tensors[t].name);
    free(n->tensors);
    if (n->ops) {
        if (n->own_arenas) {
            n->ops->release(n->parameters);
            n->ops->release(n->gradients);
        }
        for (int s = 0; s < NET_STATES; s++)
            n->ops->release(n->state[s]);
    }
    *n = (struct net){0};
}

size_t net_offset(const struct net *n, int layer)
{
    for (int t = 0; t < n->tensor_count; t++)
        if (n->tensors[t].layer >= layer)
            return n->tensors[t].offset;
    return n->elements;
}
