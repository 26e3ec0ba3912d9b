/* layer.c: the table of the types of layers. */
#include "trainer/layer_types.h"

const struct layer_kind *const layer_kinds[LAYER_TYPE__MAX] = {
    [LAYER_DENSE] = &layer_dense,
    [LAYER_FLATTEN] = &layer_flatten,
    [LAYER_RESHAPE] = &layer_reshape,
    [LAYER_RESCALING] = &layer_rescaling,
    [LAYER_DROPOUT] = &layer_dropout,
    [LAYER_ACTIVATION] = &layer_activation,
    [LAYER_LAYER_NORMALIZATION] = &layer_layer_normalization,
};

int64_t layer_positions(const struct shape *s)
{
    return shape_elements(s) / s->size[s->dims - 1];
}
