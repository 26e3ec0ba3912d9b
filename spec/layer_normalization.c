/* layer_normalization.c: layer_normalization over the last dimension of every item, and
 * batch_normalization of every channel over all items and positions. */
#include "spec/layer_class.h"

#include "spec/shape.h"

#define EPSILON                                                                                    \
    {                                                                                              \
        .name = "epsilon", .also = "eps", .kind = FIELD_NUMBER, LAYER_AT(layer.epsilon),           \
        .fallback = 1e-3, .min = 0, .above_min = 1, .max = 1,                                      \
        .help = "what is added to the variance", .example = "0.001"                                \
    }
#define CENTER                                                                                     \
    {                                                                                              \
        .name = "center", .kind = FIELD_BOOL, LAYER_AT(layer.has_beta), .fallback = 1,             \
        .help = "whether an offset is learned", .example = "true"                                  \
    }
#define SCALE                                                                                      \
    {                                                                                              \
        .name = "scale", .kind = FIELD_BOOL, LAYER_AT(layer.has_gamma), .fallback = 1,             \
        .help = "whether a factor is learned", .example = "true"                                   \
    }

static void add_scale_and_offset(struct layer_draft *draft)
{
    struct layer *l = &draft->layer;
    int64_t n = l->in.size[l->in.dims - 1];
    if (l->has_gamma)
        layer_add_tensor(l, "gamma", layer_vector(n), draft->gamma_initializer);
    if (l->has_beta)
        layer_add_tensor(l, "beta", layer_vector(n), draft->beta_initializer);
}

/* ---- layer_normalization ---- */

static const struct field layer_fields[] = {
    LAYER_COMMON_FIELDS,
    EPSILON,
    CENTER,
    SCALE,
    LAYER_INITIALIZER(gamma_initializer, INIT_ONES, "how the factor starts"),
    LAYER_INITIALIZER(beta_initializer, INIT_ZEROS, "how the offset starts"),
    LAYER_FIXED("axis", "-1", "it normalises over the last dimension"),
};

static int layer_normalization_infer(struct decoding *d, struct layer_draft *draft,
                                     const struct layer_draft *before, int index,
                                     const struct where *at)
{
    layer_infer_same(d, draft, before, index, at);
    add_scale_and_offset(draft);
    return 0;
}

/* Over one row of n: mean, variance, scaling; backward, two sums and three products. */
static void layer_normalization_cost(struct layer *l, int propagates)
{
    (void)propagates;
    int64_t elements = shape_elements(&l->out);
    layer_add_flops(l, 8, 14);
    /* the output, and mean and deviation of each row */
    l->activation_bytes = elements * 4 + elements / l->out.size[l->out.dims - 1] * 8;
}

const struct layer_class layer_class_layer_normalization = {
    .object = OBJECT("a layer_normalization layer", layer_fields, layer_objects),
    .infer = layer_normalization_infer,
    .cost = layer_normalization_cost,
};

/* ---- batch_normalization ---- */

static const struct field batch_fields[] = {
    LAYER_COMMON_FIELDS,
    EPSILON,
    {.name = "momentum",
     .also = "decay",
     .kind = FIELD_NUMBER,
     LAYER_AT(layer.momentum),
     .fallback = 0.99,
     .min = 0,
     .max = 1,
     .help = "how much of the moving statistics a step keeps",
     .example = "0.9"},
    CENTER,
    SCALE,
    LAYER_INITIALIZER(gamma_initializer, INIT_ONES, "how the factor starts"),
    LAYER_INITIALIZER(beta_initializer, INIT_ZEROS, "how the offset starts"),
    LAYER_INITIALIZER(moving_mean_initializer, INIT_ZEROS, "how the moving mean starts"),
    LAYER_INITIALIZER(moving_variance_initializer, INIT_ONES, "how the moving variance starts"),
    LAYER_FIXED("axis", "-1", "it normalises every channel, which is the last dimension"),
};

static int batch_normalization_infer(struct decoding *d, struct layer_draft *draft,
                                     const struct layer_draft *before, int index,
                                     const struct where *at)
{
    struct layer *l = &draft->layer;
    struct shape channels = layer_vector(l->in.size[l->in.dims - 1]);
    layer_infer_same(d, draft, before, index, at);
    add_scale_and_offset(draft);
    layer_add_tensor(l, "moving_mean", channels, draft->moving_mean_initializer);
    layer_add_tensor(l, "moving_variance", channels, draft->moving_variance_initializer);
    for (int t = l->tensor_count - 2; t < l->tensor_count; t++)
        l->tensors[t].is_fixed = 1;
    return 0;
}

/* Two sums for the moments, then scaling; backward, two sums and their products. */
static void batch_normalization_cost(struct layer *l, int propagates)
{
    (void)propagates;
    layer_add_flops(l, 8, 14);
    l->activation_bytes = shape_elements(&l->out) * 4;
}

const struct layer_class layer_class_batch_normalization = {
    .object = OBJECT("a batch_normalization layer", batch_fields, layer_objects),
    .infer = batch_normalization_infer,
    .cost = batch_normalization_cost,
};
