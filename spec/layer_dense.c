/* layer_dense.c: dense and activation layers. */
#include "spec/layer_class.h"

#include <stdio.h>

#include "spec/shape.h"

/* ---- dense ---- */

static const struct field dense_fields[] = {
    LAYER_COMMON_FIELDS,
    LAYER_SIZE(units, "size neurons out_features output_dim", layer.units,
               "how many outputs the layer has", "64"),
    LAYER_ACTIVATION_FIELD,
    LAYER_USE_BIAS,
    LAYER_INITIALIZER(kernel_initializer, INIT_GLOROT_UNIFORM, "how the kernel starts"),
    LAYER_INITIALIZER(bias_initializer, INIT_ZEROS, "how the bias starts"),
};

static int dense_infer(struct decoding *d, struct layer_draft *draft,
                       const struct layer_draft *before, int index, const struct where *at)
{
    (void)before, (void)index;
    struct layer *l = &draft->layer;
    char text[160];
    int64_t inputs = l->in.size[l->in.dims - 1];
    l->out = l->in;
    l->out.size[l->out.dims - 1] = l->units;
    if (!shape_valid(&l->out)) {
        field_fault(d, FIELD_WHERE(at, "units"), "too_large",
                    "Put a flatten layer before it, or use fewer units.",
                    "The output %s would have more than %lld elements.",
                    shape_format(&l->out, text), (long long)SHAPE_MAX_ELEMENTS);
        return -1;
    }
    struct shape kernel = {.dims = 2, .size = {inputs, l->units}}; /* at most 2^54 elements */
    layer_add_tensor(l, "kernel", kernel, draft->kernel_initializer);
    if (l->use_bias)
        layer_add_tensor(l, "bias", layer_vector(l->units), draft->bias_initializer);
    if (l->parameters <= MODEL_MAX_PARAMETERS)
        return 0;
    snprintf(text, sizeof text, "With %lld inputs, up to %lld units fit.", (long long)inputs,
             (long long)(MODEL_MAX_PARAMETERS / (inputs + 1)));
    return layer_parameters_fault(d, l, FIELD_WHERE(at, "units"), text);
}

static void dense_cost(struct layer *l, int propagates)
{
    layer_add_product(l, (double)l->in.size[l->in.dims - 1], propagates);
}

const struct layer_class layer_class_dense = {
    .object = OBJECT("a dense layer", dense_fields, layer_objects),
    .infer = dense_infer,
    .cost = dense_cost,
};

/* ---- activation ---- */

static const struct field activation_fields[] = {
    LAYER_COMMON_FIELDS,
    {.name = "activation",
     .also = "function act",
     .kind = FIELD_ENUM,
     LAYER_AT(layer.activation),
     .required = 1,
     .words = &activation_words,
     .help = "which function is applied",
     .example = "\"relu\""},
};

static void activation_cost(struct layer *l, int propagates)
{
    l->activation_bytes = shape_elements(&l->out) * 4;
    layer_add_activation(l, propagates);
}

const struct layer_class layer_class_activation = {
    .object = OBJECT("an activation layer", activation_fields, layer_objects),
    .infer = layer_infer_same,
    .cost = activation_cost,
};
