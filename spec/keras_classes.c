/* keras_classes.c: the layers of Keras that have their like here, and their arguments. */
#include "spec/keras_classes.h"

#include <string.h>

#define SAME(name_)                                                                                \
    {                                                                                              \
        .name = (name_), .how = KERAS_SAME                                                         \
    }
#define ONLY(name_, v_)                                                                            \
    {                                                                                              \
        .name = (name_), .how = KERAS_ONLY, .only = (v_)                                           \
    }
#define INIT(name_)                                                                                \
    {                                                                                              \
        .name = (name_), .how = KERAS_INITIALIZER                                                  \
    }
#define ANY(name_)                                                                                 \
    {                                                                                              \
        .name = (name_), .how = KERAS_ANY                                                          \
    }
#define AXIS                                                                                       \
    {                                                                                              \
        .name = "axis", .how = KERAS_AXIS                                                          \
    }
#define ACT                                                                                        \
    {                                                                                              \
        .name = "activation", .how = KERAS_ACTIVATION                                              \
    }
#define CHANNELS_LAST ONLY("data_format", "\"channels_last\"|null")

const struct keras_arg keras_common[] = {
    SAME("name"),
    SAME("trainable"),
    {.name = "dtype", .how = KERAS_DTYPE},
    /* read by whoever looks for the input shape */
    ANY("batch_shape"),
    ANY("batch_input_shape"),
    ANY("input_shape"),
};
const size_t keras_common_count = sizeof keras_common / sizeof keras_common[0];

#define KERNEL                                                                                     \
    ACT, SAME("use_bias"), INIT("kernel_initializer"), INIT("bias_initializer"),                   \
        ONLY("kernel_regularizer", "null"), ONLY("bias_regularizer", "null"),                      \
        ONLY("activity_regularizer", "null"), ONLY("kernel_constraint", "null"),                   \
        ONLY("bias_constraint", "null"), ONLY("lora_rank", "null"), ANY("lora_alpha"),             \
        ONLY("quantization_config", "null")

static const struct keras_arg dense[] = {SAME("units"), KERNEL, ANY("input_dim")};
static const struct keras_arg conv2d[] = {
    SAME("filters"),
    SAME("kernel_size"),
    SAME("strides"),
    SAME("padding"),
    CHANNELS_LAST,
    KERNEL,
    ONLY("dilation_rate", "[1, 1]|1|null"),
    ONLY("groups", "1"),
};
static const struct keras_arg pooling[] = {SAME("pool_size"), SAME("strides"), SAME("padding"),
                                           CHANNELS_LAST};
static const struct keras_arg global_pooling[] = {CHANNELS_LAST, ONLY("keepdims", "false")};
static const struct keras_arg flatten[] = {CHANNELS_LAST};
static const struct keras_arg reshape[] = {SAME("target_shape")};
static const struct keras_arg rescaling[] = {SAME("scale"), SAME("offset")};
static const struct keras_arg dropout[] = {
    SAME("rate"), ONLY("noise_shape", "null"), {.name = "seed", .how = KERAS_SEED}};
static const struct keras_arg activation[] = {ACT};
static const struct keras_arg relu[] = {ONLY("max_value", "null"), ONLY("negative_slope", "0|null"),
                                        ONLY("threshold", "0|null")};
static const struct keras_arg leaky_relu[] = {ONLY("negative_slope", "0.2"), ONLY("alpha", "0.2")};
static const struct keras_arg elu[] = {ONLY("alpha", "1")};
static const struct keras_arg softmax[] = {ONLY("axis", "-1|[-1]")};
static const struct keras_arg batch_normalization[] = {
    AXIS,
    SAME("momentum"),
    SAME("epsilon"),
    SAME("center"),
    SAME("scale"),
    INIT("beta_initializer"),
    INIT("gamma_initializer"),
    {.name = "moving_mean_initializer", .how = KERAS_INITIALIZER, .only = "zeros"},
    {.name = "moving_variance_initializer", .how = KERAS_INITIALIZER, .only = "ones"},
    ONLY("beta_regularizer", "null"),
    ONLY("gamma_regularizer", "null"),
    ONLY("beta_constraint", "null"),
    ONLY("gamma_constraint", "null"),
    ANY("synchronized"), /* moments are always over the global batch */
    ONLY("renorm", "false"),
    ANY("fused"),
    ONLY("virtual_batch_size", "null"),
};
static const struct keras_arg layer_normalization[] = {
    AXIS,
    SAME("epsilon"),
    SAME("center"),
    SAME("scale"),
    INIT("beta_initializer"),
    INIT("gamma_initializer"),
    ONLY("beta_regularizer", "null"),
    ONLY("gamma_regularizer", "null"),
    ONLY("beta_constraint", "null"),
    ONLY("gamma_constraint", "null"),
    ONLY("rms_scaling", "false"),
};
static const struct keras_arg embedding[] = {
    SAME("input_dim"),
    SAME("output_dim"),
    INIT("embeddings_initializer"),
    ONLY("embeddings_regularizer", "null"),
    ONLY("activity_regularizer", "null"),
    ONLY("embeddings_constraint", "null"),
    ONLY("mask_zero", "false"),
    ONLY("lora_rank", "null"),
    ANY("lora_alpha"),
    ONLY("quantization_config", "null"),
    ANY("input_length"),
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
