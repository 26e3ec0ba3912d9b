/* batch.c: gathering samples. On a device with the host's memory (ops.is_host) they go straight to
 * their place; otherwise by way of a host buffer and one upload. */
#include "trainer/batch.h"

#include <stdlib.h>

#include "base/mem.h"
#include "trainer/layer.h"

#define ROWS_AT_A_TIME 8

size_t batch_bytes(const struct net *n, const struct dataset *set, int64_t max_rows)
{
    (void)n;
    return (size_t)(max_rows * set->target_size) * sizeof(float); /* int32 is as wide */
}

static int allocate_targets(struct batch *b, const struct dataset *set, struct err *e)
{
    const struct ops *o = b->net->ops;
    size_t count = (size_t)(b->max_rows * set->target_size);
    if (set->target_type == TARGET_CLASS)
        b->classes = o->alloc(count * sizeof *b->classes);
    else
        b->targets = o->alloc(count * sizeof *b->targets);
    if (!b->classes && !b->targets)
        return err_set(e, ERR_UNAVAILABLE, "The %s device has no memory left for labels.", o->name);
    if (!o->is_host) {
        b->host_classes = mem_alloc(count * sizeof *b->host_classes);
        b->host_targets = mem_alloc(count * sizeof *b->host_targets);
    }
    return 0;
}

int batch_init(struct batch *b, const struct net *n, const struct dataset *set, int64_t max_rows,
               struct err *e)
{
    *b = (struct batch){.net = n,
                        .max_rows = max_rows,
                        .feature_size = set->feature_size,
                        .target_size = set->target_size,
                        .positions = set->positions};
    if (!n->ops->is_host && n->chunks[0].first == 0)
        b->staging = mem_alloc((size_t)(max_rows * set->feature_size) * sizeof *b->staging);
    return n->chunks[n->chunk_count - 1].last == n->model->layer_count ? allocate_targets(b, set, e)
                                                                       : 0;
}

void batch_done(struct batch *b)
{
    if (b->net && b->net->ops) {
        b->net->ops->release(b->classes);
        b->net->ops->release(b->targets);
    }
    free(b->staging);
    free(b->host_classes);
    free(b->host_targets);
    *b = (struct batch){0};
}

static void apply_folded(const struct net *n, int64_t elements, float *x)
{
    for (int l = 0; l < n->folded; l++) {
        const struct layer *y = &n->model->layers[l];
        if (y->type == LAYER_RESCALING)
            n->ops->affine(elements, (float)y->scale, (float)y->offset, x, x);
    }
}

/* Token ids are looked up without a second look. */
static int check_ids(const struct batch *b, const struct items *items, int64_t begin, int64_t n,
                     const float *x, struct err *e)
{
    int64_t bad = layer_bad_id(b->net->model, n * b->feature_size, x);
    if (bad < 0)
        return 0;
    return err_set(e, ERR_CORRUPT,
                   "Sample %lld of the prepared data has %g as its token %lld, which is not an id "
                   "that the model's embedding has: whole numbers from 0 to its input_dim less 1.",
                   (long long)items->ids[begin + bad / b->feature_size] + 1, (double)x[bad],
                   (long long)(bad % b->feature_size) + 1);
}

int batch_features(struct batch *b, const struct items *items, int64_t begin, int64_t n, float *x,
                   struct err *e)
{
    const struct ops *o = b->net->ops;
    int64_t width = b->feature_size, most = o->is_host ? ROWS_AT_A_TIME : n;
    for (int64_t at = 0; at < n; at += most) {
        int64_t rows = n - at < most ? n - at : most;
        float *to = x + at * width;
        float *host = b->staging ? b->staging : to;
        int r = data_gather(items->set, items->ids + begin + at, rows, host, NULL, NULL, e);
        if (r == 0)
            r = check_ids(b, items, begin + at, rows, host, e);
        if (r < 0)
            return r;
        if (b->staging)
            o->upload(to, b->staging, (size_t)(rows * width) * sizeof *to);
        apply_folded(b->net, rows * width, to);
    }
    return 0;
}

static int check_classes(const struct batch *b, const struct items *items, int64_t begin, int64_t n,
                         const int32_t *classes, struct err *e)
{
    const struct model *m = b->net->model;
    int64_t out = shape_elements(&m->layers[m->layer_count - 1].out) / b->positions;
    for (int64_t i = 0; i < n * b->target_size; i++)
        if (classes[i] < 0 || classes[i] >= out)
            return err_set(
                e, ERR_CORRUPT,
                "Sample %lld of the prepared data has class %d, where the model has %lld "
                "outputs: the data was changed after it was checked.",
                (long long)items->ids[begin + i / b->target_size] + 1, classes[i], (long long)out);
    return 0;
}

int batch_targets(struct batch *b, const struct items *items, int64_t begin, int64_t n,
                  struct err *e)
{
    const struct ops *o = b->net->ops;
    int32_t *classes = o->is_host ? b->classes : b->host_classes;
    float *targets = o->is_host ? b->targets : b->host_targets;
    int r = data_gather(items->set, items->ids + begin, n, NULL, b->classes ? classes : NULL,
                        b->targets ? targets : NULL, e);
    if (r == 0 && b->classes)
        r = check_classes(b, items, begin, n, classes, e);
    if (r < 0 || o->is_host)
        return r;
    if (b->classes)
        o->upload(b->classes, classes, (size_t)(n * b->target_size) * sizeof *classes);
    else
        o->upload(b->targets, targets, (size_t)(n * b->target_size) * sizeof *targets);
    return 0;
}
