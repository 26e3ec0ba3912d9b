/* keras_classes.c: the layers of Keras that have their like here, and their arguments. */
#include "spec/keras_classes.h"

#include <string.h>

#define INIT(name_)                                                                                \
    {                                                                                              \
        .name = (name_), .how = KERAS_INITIALIZER                                                  \
    }
#define AXIS                                                                                       \
    {                                                                                              \
        .name = "axis", .how = KERAS_AXIS                                                          \
    }
#define ACT                                                                                        \
    {                                                                                              \
        .name = "activation", .how = KERAS_ACTIVATION                                              \
    }
#define CHANNELS_LAST KERAS_ONLY_ARG("data_format", "\"channels_last\"|null")

const struct keras_arg keras_common[] = {
    KERAS_SAME_ARG("name"),
    KERAS_SAME_ARG("trainable"),
    {.name = "dtype", .how = KERAS_DTYPE},
    /* read by whoever looks for the input shape */
    KERAS_ANY_ARG("batch_shape"),
    KERAS_ANY_ARG("batch_input_shape"),
    KERAS_ANY_ARG("input_shape"),
};
const size_t keras_common_count = sizeof keras_common / sizeof keras_common[0];

#define KERNEL                                                                                     \
    ACT, KERAS_SAME_ARG("use_bias"), INIT("kernel_initializer"), INIT("bias_initializer"),         \
        KERAS_ONLY_ARG("kernel_regularizer", "null"), KERAS_ONLY_ARG("bias_regularizer", "null"),  \
        KERAS_ONLY_ARG("activity_regularizer", "null"),                                            \
        KERAS_ONLY_ARG("kernel_constraint", "null"), KERAS_ONLY_ARG("bias_constraint", "null"),    \
        KERAS_ONLY_ARG("lora_rank", "null"), KERAS_ANY_ARG("lora_alpha"),                          \
        KERAS_ONLY_ARG("quantization_config", "null")

static const struct keras_arg dense[] = {KERAS_SAME_ARG("units"), KERNEL,
                                         KERAS_ANY_ARG("input_dim")};
static const struct keras_arg conv2d[] = {
    KERAS_SAME_ARG("filters"),
    KERAS_SAME_ARG("kernel_size"),
    KERAS_SAME_ARG("strides"),
    KERAS_SAME_ARG("padding"),
    CHANNELS_LAST,
    KERNEL,
    KERAS_ONLY_ARG("dilation_rate", "[1, 1]|1|null"),
    KERAS_ONLY_ARG("groups", "1"),
};
static const struct keras_arg pooling[] = {KERAS_SAME_ARG("pool_size"), KERAS_SAME_ARG("strides"),
                                           KERAS_SAME_ARG("padding"), CHANNELS_LAST};
static const struct keras_arg global_pooling[] = {CHANNELS_LAST,
                                                  KERAS_ONLY_ARG("keepdims", "false")};
static const struct keras_arg flatten[] = {CHANNELS_LAST};
static const struct keras_arg reshape[] = {KERAS_SAME_ARG("target_shape")};
static const struct keras_arg rescaling[] = {KERAS_SAME_ARG("scale"), KERAS_SAME_ARG("offset")};
static const struct keras_arg dropout[] = {KERAS_SAME_ARG("rate"),
                                           KERAS_ONLY_ARG("noise_shape", "null"),
                                           {.name = "seed", .how = KERAS_SEED}};
static const struct keras_arg activation[] = {ACT};
static const struct keras_arg relu[] = {KERAS_ONLY_ARG("max_value", "null"),
                                        KERAS_ONLY_ARG("negative_slope", "0|null"),
                                        KERAS_ONLY_ARG("threshold", "0|null")};
static const struct keras_arg leaky_relu[] = {KERAS_ONLY_ARG("negative_slope", "0.2"),
                                              KERAS_ONLY_ARG("alpha", "0.2")};
static const struct keras_arg elu[] = {KERAS_ONLY_ARG("alpha", "1")};
static const struct keras_arg softmax[] = {KERAS_ONLY_ARG("axis", "-1|[-1]")};
static const struct keras_arg batch_normalization[] = {
    AXIS,
    KERAS_SAME_ARG("momentum"),
    KERAS_SAME_ARG("epsilon"),
    KERAS_SAME_ARG("center"),
    KERAS_SAME_ARG("scale"),
    INIT("beta_initializer"),
    INIT("gamma_initializer"),
    {.name = "moving_mean_initializer", .how = KERAS_INITIALIZER, .only = "zeros"},
    {.name = "moving_variance_initializer", .how = KERAS_INITIALIZER, .only = "ones"},
    KERAS_ONLY_ARG("beta_regularizer", "null"),
    KERAS_ONLY_ARG("gamma_regularizer", "null"),
    KERAS_ONLY_ARG("beta_constraint", "null"),
    KERAS_ONLY_ARG("gamma_constraint", "null"),
    KERAS_ANY_ARG("synchronized"), /* moments are always over the global batch */
    KERAS_ONLY_ARG("renorm", "false"),
    KERAS_ANY_ARG("fused"),
    KERAS_ONLY_ARG("virtual_batch_size", "null"),
};
static const struct keras_arg layer_normalization[] = {
    AXIS,
    KERAS_SAME_ARG("epsilon"),
    KERAS_SAME_ARG("center"),
    KERAS_SAME_ARG("scale"),
    INIT("beta_initializer"),
    INIT("gamma_initializer"),
    KERAS_ONLY_ARG("beta_regularizer", "null"),
    KERAS_ONLY_ARG("gamma_regularizer", "null"),
    KERAS_ONLY_ARG("beta_constraint", "null"),
    KERAS_ONLY_ARG("gamma_constraint", "null"),
    KERAS_ONLY_ARG("rms_scaling", "false"),
};
static const struct keras_arg embedding[] = {
    KERAS_SAME_ARG("input_dim"),
    KERAS_SAME_ARG("output_dim"),
    INIT("embeddings_initializer"),
    KERAS_ONLY_ARG("embeddings_regularizer", "null"),
    KERAS_ONLY_ARG("activity_regularizer", "null"),
    KERAS_ONLY_ARG("embeddings_constraint", "null"),
    KERAS_ONLY_ARG("mask_zero", "false"),
    KERAS_ONLY_ARG("lora_rank", "null"),
    KERAS_ANY_ARG("lora_alpha"),
    KERAS_ONLY_ARG("quantization_config", "null"),
    KERAS_ANY_ARG("input_length"),
};

static const struct keras_class classes[] = {
    KERAS_CLASS("Dense", "dense", NULL, dense),
    KERAS_CLASS("Conv2D", "conv2d", NULL, conv2d),
    KERAS_CLASS("MaxPooling2D", "max_pooling2d", NULL, pooling),
    KERAS_CLASS("AveragePooling2D", "average_pooling2d", NULL, pooling),
    KERAS_CLASS("GlobalMaxPooling2D", "global_max_pooling2d", NULL, global_pooling),
    KERAS_CLASS("GlobalAveragePooling2D", "global_average_pooling2d", NULL, global_pooling),
    KERAS_CLASS("Flatten", "flatten", NULL, flatten),
    KERAS_CLASS("Reshape", "reshape", NULL, reshape),
    KERAS_CLASS("Rescaling", "rescaling", NULL, rescaling),
    KERAS_CLASS("Dropout", "dropout", NULL, dropout),
    KERAS_CLASS("Activation", "activation", NULL, activation),
    KERAS_CLASS("ReLU", "activation", "{\"activation\": \"relu\"}", relu),
    KERAS_CLASS("LeakyReLU", "activation", "{\"activation\": \"leaky_relu\"}", leaky_relu),
    KERAS_CLASS("ELU", "activation", "{\"activation\": \"elu\"}", elu),
    KERAS_CLASS("Softmax", "activation", "{\"activation\": \"softmax\"}", softmax),
    KERAS_CLASS("BatchNormalization", "batch_normalization", NULL, batch_normalization),
    KERAS_CLASS("LayerNormalization", "layer_normalization", NULL, layer_normalization),
    KERAS_CLASS("Embedding", "embedding", NULL, embedding),
};

/* The numbers only tell them apart: equal ones would count as two spellings of one word. */
static const struct word names[] = {
    {"InputLayer", 0},
    {"Sequential", 1},
    {"Dense", 2},
    {"Conv2D", 3},
    {"MaxPooling2D", 4},
    {"AveragePooling2D", 5},
    {"GlobalMaxPooling2D", 6},
    {"GlobalAveragePooling2D", 7},
    {"Flatten", 8},
    {"Reshape", 9},
    {"Rescaling", 10},
    {"Dropout", 11},
    {"Activation", 12},
    {"ReLU", 13},
    {"LeakyReLU", 14},
    {"ELU", 15},
    {"Softmax", 16},
    {"BatchNormalization", 17},
    {"LayerNormalization", 18},
    {"Embedding", 19},
};
const struct words keras_class_words = WORDS("a layer of Keras", names);

const struct keras_class *keras_class_find(const char *name)
{
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(classes[i].name, name) == 0)
            return &classes[i];
    return NULL;
}
