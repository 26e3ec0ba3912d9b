/* layer_types.h: the rows of layer_kinds[], and what their files share. Others use layer.h. */
#ifndef TRAINYARD_TRAINER_LAYER_TYPES_H
#define TRAINYARD_TRAINER_LAYER_TYPES_H

#include "trainer/layer.h"

extern const struct layer_kind layer_dense, layer_flatten, layer_reshape, layer_rescaling,
    layer_dropout, layer_activation, layer_layer_normalization, layer_conv2d, layer_max_pooling2d,
    layer_average_pooling2d, layer_global_max_pooling2d, layer_global_average_pooling2d,
    layer_batch_normalization, layer_embedding, layer_add;

#endif
