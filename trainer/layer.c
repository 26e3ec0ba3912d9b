/* layer.c: the table of the types of layers. */
#include "trainer/layer_types.h"

#include <math.h>

const struct layer_kind *const layer_kinds[LAYER_TYPE__MAX] = {
    [LAYER_DENSE] = &layer_dense,
    [LAYER_FLATTEN] = &layer_flatten,
    [LAYER_RESHAPE] = &layer_reshape,
    [LAYER_RESCALING] = &layer_rescaling,
    [LAYER_DROPOUT] = &layer_dropout,
    [LAYER_ACTIVATION] = &layer_activation,
    [LAYER_LAYER_NORMALIZATION] = &layer_layer_normalization,
    [LAYER_CONV2D] = &layer_conv2d,
    [LAYER_MAX_POOLING2D] = &layer_max_pooling2d,
    [LAYER_AVERAGE_POOLING2D] = &layer_average_pooling2d,
    [LAYER_GLOBAL_MAX_POOLING2D] = &layer_global_max_pooling2d,
    [LAYER_GLOBAL_AVERAGE_POOLING2D] = &layer_global_average_pooling2d,
    [LAYER_BATCH_NORMALIZATION] = &layer_batch_normalization,
    [LAYER_EMBEDDING] = &layer_embedding,
    [LAYER_ADD] = &layer_add,
};

int layer_wants_sums(const struct layer *l)
{
    return layer_kinds[l->type]->sums && !l->frozen;
}

int64_t layer_bad_id(const struct model *m, int64_t n, const float *features)
{
    const struct layer *l = model_embedding(m);
    for (int64_t i = 0; l && i < n; i++)
        if (!(features[i] >= 0.0f && features[i] < (float)l->vocabulary &&
              features[i] == truncf(features[i])))
            return i;
    return -1;
}

void layer_sum_partials(const struct layer_call *c, float *z, size_t n)
{
    struct layer_partials *p = c->partials;
    if (p && p->status == 0)
        p->status = p->sum(p->context, z, n, &p->e);
}
