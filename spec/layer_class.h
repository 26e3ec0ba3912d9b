/* layer_class.h: a type of layer as data: its fields in a document, what follows from them and the
 * shape that comes in, and what it costs. A type is a row of layer_classes[]; types stand in
 * layer_<family>.c. What they do is trainer/layer.h.
 */
#ifndef TRAINYARD_SPEC_LAYER_CLASS_H
#define TRAINYARD_SPEC_LAYER_CLASS_H

#include "spec/layer.h"
#include "spec/names.h"

struct layer_class {
    struct object object; /* its fields; decoded into a struct layer_draft */
    /* From layer.in to layer.out, tensors and parameters (layer_add_tensor), or a fault and -1. No
     * product is taken before its factors are known to keep it in range. `before`: all drafts from
     * the model's first to this one's predecessor, which are good; `index` of them. */
    int (*infer)(struct decoding *d, struct layer_draft *draft, const struct layer_draft *before,
                 int index, const struct where *at);
    /* Adds up forward_flops, backward_flops and activation_bytes, per item, which start at zero.
     * `propagates`: the gradient of the layer's input is wanted.
     *
     * Exact: the multiply-adds of products (2 FLOPs each; backward, one product for the kernel's
     * gradient and one for the input's). Estimated: elementwise functions, with 8 FLOPs for an
     * exponential or error function. */
    void (*cost)(struct layer *l, int propagates);
};

extern const struct layer_class layer_class_dense, layer_class_flatten, layer_class_reshape,
    layer_class_rescaling, layer_class_dropout, layer_class_activation,
    layer_class_layer_normalization, layer_class_conv2d, layer_class_max_pooling2d,
    layer_class_average_pooling2d, layer_class_global_max_pooling2d,
    layer_class_global_average_pooling2d, layer_class_batch_normalization, layer_class_embedding,
    layer_class_add;

/* Of all types, NULL-terminated: where a stray field may belong. */
extern const struct object *const layer_objects[LAYER_TYPE__MAX + 1];

/* ---- fields ---- */

extern const struct words padding_words;
void layer_check_name(struct decoding *d, const struct where *at, const char *text);

#define LAYER_NAME_MAX    64 /* bytes */
#define LAYER_AT(member_) FIELD_AT(struct layer_draft, member_)
#define LAYER_COMMON_FIELDS                                                                        \
    {.name = "type",                                                                               \
     .also = "class_name layer kind op",                                                           \
     .kind = FIELD_KNOWN,                                                                          \
     .required = 1,                                                                                \
     .words = &layer_type_words,                                                                   \
     .help = "which layer it is",                                                                  \
     .example = "\"dense\""},                                                                      \
        {.name = "name",                                                                           \
         .kind = FIELD_TEXT,                                                                       \
         LAYER_AT(layer.name),                                                                     \
         .min = 1,                                                                                 \
         .max = LAYER_NAME_MAX,                                                                    \
         .check = layer_check_name,                                                                \
         .help = "what its tensors are called after",                                              \
         .example = "\"hidden\""},                                                                 \
    {                                                                                              \
        .name = "trainable", .kind = FIELD_BOOL, LAYER_AT(trainable), .fallback = 1,               \
        .help = "whether training changes its parameters", .example = "false"                      \
    }
#define LAYER_INITIALIZER(name_, fallback_, help_)                                                 \
    {                                                                                              \
        .name = #name_, .kind = FIELD_ENUM, LAYER_AT(name_), .fallback = (fallback_),              \
        .words = &initializer_words, .help = (help_), .example = "\"he_normal\""                   \
    }
#define LAYER_SIZE(name_, also_, member_, help_, example_)                                         \
    {                                                                                              \
        .name = #name_, .also = (also_), .kind = FIELD_INT, LAYER_AT(member_), .required = 1,      \
        .min = 1, .max = (double)SHAPE_MAX_ELEMENTS, .help = (help_), .example = (example_)        \
    }
#define LAYER_ACTIVATION_FIELD                                                                     \
    {                                                                                              \
        .name = "activation", .also = "act nonlinearity", .kind = FIELD_ENUM,                      \
        LAYER_AT(layer.activation), .fallback = ACTIVATION_LINEAR, .words = &activation_words,     \
        .help = "applied to its output", .example = "\"relu\""                                     \
    }
#define LAYER_USE_BIAS                                                                             \
    {                                                                                              \
        .name = "use_bias", .also = "bias", .kind = FIELD_BOOL, LAYER_AT(layer.use_bias),          \
        .fallback = 1, .help = "whether a bias is added", .example = "true"                        \
    }
#define LAYER_FIXED(name_, only_, help_)                                                           \
    {                                                                                              \
        .name = (name_), .kind = FIELD_FIXED, .example = (only_), .help = (help_)                  \
    }

/* ---- inference ---- */

/* With fan_in and fan_out of a kernel [..., in, out]. */
void layer_add_tensor(struct layer *l, const char *name, struct shape shape, enum initializer init);
struct shape layer_vector(int64_t n);
int layer_infer_same(struct decoding *d, struct layer_draft *draft,
                     const struct layer_draft *before, int index, const struct where *at);
/* The layer has more parameters than a model may; says so at `field`. Returns -1. */
int layer_parameters_fault(struct decoding *d, const struct layer *l, const struct where *field,
                           const char *hint);

/* ---- costs ---- */

void layer_add_flops(struct layer *l, double forward, double backward); /* per element of out */
/* A kernel of `inputs` for each element of out, bias and activation, and the output kept. */
void layer_add_product(struct layer *l, double inputs, int propagates);
void layer_add_activation(struct layer *l, int propagates);

#endif
