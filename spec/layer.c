/* layer.c: the table of the types of layers, and what they share. */
#include "spec/layer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec/layer_class.h"

static const struct layer_class *const layer_classes[LAYER_TYPE__MAX] = {
    [LAYER_DENSE] = &layer_class_dense,
    [LAYER_FLATTEN] = &layer_class_flatten,
    [LAYER_RESHAPE] = &layer_class_reshape,
    [LAYER_RESCALING] = &layer_class_rescaling,
    [LAYER_DROPOUT] = &layer_class_dropout,
    [LAYER_ACTIVATION] = &layer_class_activation,
    [LAYER_LAYER_NORMALIZATION] = &layer_class_layer_normalization,
    [LAYER_CONV2D] = &layer_class_conv2d,
    [LAYER_MAX_POOLING2D] = &layer_class_max_pooling2d,
    [LAYER_AVERAGE_POOLING2D] = &layer_class_average_pooling2d,
    [LAYER_GLOBAL_MAX_POOLING2D] = &layer_class_global_max_pooling2d,
    [LAYER_GLOBAL_AVERAGE_POOLING2D] = &layer_class_global_average_pooling2d,
    [LAYER_BATCH_NORMALIZATION] = &layer_class_batch_normalization,
    [LAYER_EMBEDDING] = &layer_class_embedding,
    [LAYER_ADD] = &layer_class_add,
};

const struct object *const layer_objects[LAYER_TYPE__MAX + 1] = {
    [LAYER_DENSE] = &layer_class_dense.object,
    [LAYER_FLATTEN] = &layer_class_flatten.object,
    [LAYER_RESHAPE] = &layer_class_reshape.object,
    [LAYER_RESCALING] = &layer_class_rescaling.object,
    [LAYER_DROPOUT] = &layer_class_dropout.object,
    [LAYER_ACTIVATION] = &layer_class_activation.object,
    [LAYER_LAYER_NORMALIZATION] = &layer_class_layer_normalization.object,
    [LAYER_CONV2D] = &layer_class_conv2d.object,
    [LAYER_MAX_POOLING2D] = &layer_class_max_pooling2d.object,
    [LAYER_AVERAGE_POOLING2D] = &layer_class_average_pooling2d.object,
    [LAYER_GLOBAL_MAX_POOLING2D] = &layer_class_global_max_pooling2d.object,
    [LAYER_GLOBAL_AVERAGE_POOLING2D] = &layer_class_global_average_pooling2d.object,
    [LAYER_BATCH_NORMALIZATION] = &layer_class_batch_normalization.object,
    [LAYER_EMBEDDING] = &layer_class_embedding.object,
    [LAYER_ADD] = &layer_class_add.object,
};

/* ---- decoding ---- */

void layer_check_name(struct decoding *d, const struct where *at, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (isalnum((unsigned char)*p) || strchr("._-", *p))
            continue;
        field_fault(d, at, "invalid", "For example: \"hidden_1\".",
                    "A layer's name has letters, digits, \"_\", \".\" and \"-\" only, because "
                    "its tensors are named after it.");
        return;
    }
}

/* Which layer `v` is, or a fault and -1. A misspelt one is a fault and the layer that was meant, so
 * that the rest of it is looked at too. */
static int decode_type(struct decoding *d, const json_t *v, const struct where *at)
{
    const json_t *type = json_object_get(v, "type");
    const struct where *at_type = FIELD_WHERE(at, "type");
    if (!json_is_object(v)) {
        field_wrong_type(d, at, NULL, "a layer", "{\"type\": \"dense\", \"units\": 10}", v);
        return -1;
    }
    if (!type) {
        const struct object *o = &layer_class_dense.object;
        field_missing(d, o, field_find(o, "type"), v, at);
        return -1;
    }
    if (!json_is_string(type)) {
        field_wrong_type(d, at_type, "type", "the name of a layer", "\"dense\"", type);
        return -1;
    }
    const char *name = json_string_value(type);
    const struct word *word = words_find(&layer_type_words, name);
    if (word)
        return word->value;
    const struct word *function = words_find(&activation_words, name);
    char hint[256];
    snprintf(hint, sizeof hint, "Write {\"type\": \"activation\", \"activation\": \"%s\"}.",
             function ? function->name : "");
    if (function)
        field_fault(d, at_type, "unknown_value", hint, "\"%s\" is an activation, not a layer.",
                    function->name);
    else
        field_unknown_word(d, at_type, &layer_type_words, name);
    const struct word *near = words_meant(&layer_type_words, name);
    return near && !function ? near->value : -1;
}

int layer_decode(struct decoding *d, const json_t *v, const struct where *at,
                 struct layer_draft *draft)
{
    size_t before = d->faults->total;
    int type = decode_type(d, v, at);
    if (type < 0)
        return -1;
    draft->layer.type = (enum layer_type)type;
    field_decode_object(d, layer_objects[type], v, at, draft);
    draft->layer.frozen = !draft->trainable;
    return d->faults->total == before ? 0 : -1;
}

void layer_draft_done(struct layer_draft *draft)
{
    free(draft->with);
    draft->with = NULL;
}

void layer_done(struct layer *l)
{
    free(l->name);
    *l = (struct layer){0};
}

/* ---- inference ---- */

int layer_infer(struct decoding *d, struct layer_draft *drafts, int index, const struct shape *in,
                const struct where *at)
{
    struct layer *l = &drafts[index].layer;
    l->in = *in;
    int r = layer_classes[l->type]->infer(d, &drafts[index], drafts, index, at);
    for (int t = 0; l->frozen && t < l->tensor_count; t++)
        l->tensors[t].is_fixed = 1;
    return r;
}

struct shape layer_vector(int64_t n)
{
    return (struct shape){.dims = 1, .size = {n}};
}

int layer_infer_same(struct decoding *d, struct layer_draft *draft,
                     const struct layer_draft *before, int index, const struct where *at)
{
    (void)d, (void)before, (void)index, (void)at;
    draft->layer.out = draft->layer.in;
    return 0;
}

void layer_add_tensor(struct layer *l, const char *name, struct shape shape, enum initializer init)
{
    int last = shape.dims - 1;
    int64_t window = 1; /* of a convolution */
    for (int i = 0; i < last - 1; i++)
        window *= shape.size[i];
    l->tensors[l->tensor_count++] = (struct tensor_spec){
        .name = name,
        .shape = shape,
        .init = init,
        .is_matrix = shape.dims >= 2,
        .fan_in = window * shape.size[last > 0 ? last - 1 : 0],
        .fan_out = window * shape.size[last],
    };
    l->parameters += shape_elements(&shape);
}

int layer_parameters_fault(struct decoding *d, const struct layer *l, const struct where *field,
                           const char *hint)
{
    field_fault(d, field, "too_large", hint,
                "This layer would have %lld parameters; a model may have at most %lld.",
                (long long)l->parameters, (long long)MODEL_MAX_PARAMETERS);
    return -1;
}

int64_t layer_trained(const struct layer *l)
{
    int64_t n = 0;
    for (int t = 0; t < l->tensor_count; t++)
        n += l->tensors[t].is_fixed ? 0 : shape_elements(&l->tensors[t].shape);
    return n;
}

/* ---- costs ---- */

struct function_cost {
    double forward, backward; /* FLOPs per element */
    int keeps_input;          /* the derivative needs the input, not only the output */
};

static const struct function_cost function_costs[ACTIVATION__MAX] = {
    [ACTIVATION_LINEAR] = {0, 0, 0},     [ACTIVATION_RELU] = {1, 1, 0},
    [ACTIVATION_TANH] = {10, 3, 0},      [ACTIVATION_SIGMOID] = {10, 3, 0},
    [ACTIVATION_GELU] = {11, 20, 1},     [ACTIVATION_GELU_TANH] = {16, 24, 1},
    [ACTIVATION_ELU] = {10, 2, 0},       [ACTIVATION_SILU] = {11, 15, 1},
    [ACTIVATION_SOFTPLUS] = {18, 10, 0}, [ACTIVATION_LEAKY_RELU] = {2, 2, 0},
    [ACTIVATION_SOFTMAX] = {12, 4, 0},
};

void layer_add_flops(struct layer *l, double forward, double backward)
{
    double out = (double)shape_elements(&l->out);
    l->forward_flops += forward * out;
    l->backward_flops += backward * out;
}

void layer_add_activation(struct layer *l, int propagates)
{
    const struct function_cost *c = &function_costs[l->activation];
    layer_add_flops(l, c->forward, propagates ? c->backward : 0);
    if (c->keeps_input)
        l->activation_bytes += shape_elements(&l->out) * 4;
}

void layer_add_product(struct layer *l, double inputs, int propagates)
{
    int products = !l->frozen + !!propagates;
    double bias = l->use_bias ? 1 : 0;
    layer_add_flops(l, 2 * inputs + bias, 2 * inputs * products + (l->frozen ? 0 : bias));
    l->activation_bytes += shape_elements(&l->out) * 4;
    layer_add_activation(l, products > 0);
}

void layer_set_costs(struct layer *l, int propagates)
{
    l->forward_flops = l->backward_flops = 0;
    l->activation_bytes = 0;
    layer_classes[l->type]->cost(l, propagates);
}

/* ---- paths ---- */

void check_data_path(struct decoding *d, const struct where *at, const char *text)
{
    char hint[256], shown[FIELD_SHOW_SIZE];
    const char *inside = text + strspn(text, "/");
    if (text[0] == '/') {
        snprintf(hint, sizeof hint, "For a data root above it, write the rest: \"%s\".",
                 field_clip(*inside ? inside : "train.csv", shown));
        field_fault(d, at, "invalid", hint,
                    "A data path is relative to the data roots of the node, but this is absolute.");
        return;
    }
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') {
            field_fault(d, at, "invalid",
                        "Write the path from a data root downwards, without \"..\".",
                        "A data path may not lead upwards out of its data root.");
            return;
        }
        p += n;
        if (!*p)
            return;
    }
}
