#include "spec/names.h"

#include "spec/job.h"
#include "spec/model.h"
#include "spec/plan.h"

static const struct word layer_types[] = {
    {"dense", LAYER_DENSE},
    {"flatten", LAYER_FLATTEN},
    {"reshape", LAYER_RESHAPE},
    {"rescaling", LAYER_RESCALING},
    {"dropout", LAYER_DROPOUT},
    {"activation", LAYER_ACTIVATION},
    {"layer_normalization", LAYER_LAYER_NORMALIZATION},
};
const struct words layer_type_words = WORDS("a layer", layer_types);

static const struct word activations[] = {
    {"linear", ACTIVATION_LINEAR},
    {"relu", ACTIVATION_RELU},
    {"tanh", ACTIVATION_TANH},
    {"sigmoid", ACTIVATION_SIGMOID},
    {"gelu", ACTIVATION_GELU},
    {"gelu_tanh", ACTIVATION_GELU_TANH},
    {"elu", ACTIVATION_ELU},
    {"silu", ACTIVATION_SILU},
    {"swish", ACTIVATION_SILU},
    {"softplus", ACTIVATION_SOFTPLUS},
    {"leaky_relu", ACTIVATION_LEAKY_RELU},
    {"softmax", ACTIVATION_SOFTMAX},
};
const struct words activation_words = WORDS("an activation", activations);

static const struct word initializers[] = {
    {"glorot_uniform", INIT_GLOROT_UNIFORM},
    {"glorot_normal", INIT_GLOROT_NORMAL},
    {"he_uniform", INIT_HE_UNIFORM},
    {"he_normal", INIT_HE_NORMAL},
    {"lecun_uniform", INIT_LECUN_UNIFORM},
    {"lecun_normal", INIT_LECUN_NORMAL},
    {"random_uniform", INIT_RANDOM_UNIFORM},
    {"random_normal", INIT_RANDOM_NORMAL},
    {"zeros", INIT_ZEROS},
    {"ones", INIT_ONES},
};
const struct words initializer_words = WORDS("an initializer", initializers);

static const struct word losses[] = {
    {"sparse_categorical_crossentropy", LOSS_SPARSE_CATEGORICAL_CROSSENTROPY},
    {"categorical_crossentropy", LOSS_CATEGORICAL_CROSSENTROPY},
    {"binary_crossentropy", LOSS_BINARY_CROSSENTROPY},
    {"mean_squared_error", LOSS_MEAN_SQUARED_ERROR},
    {"mse", LOSS_MEAN_SQUARED_ERROR},
};
const struct words loss_words = WORDS("a loss", losses);

static const struct word metrics[] = {
    {"accuracy", METRIC_ACCURACY},
    {"acc", METRIC_ACCURACY},
    {"mae", METRIC_MAE},
    {"mean_absolute_error", METRIC_MAE},
};
const struct words metric_words = WORDS("a metric", metrics);

static const struct word optimizers[] = {
    {"sgd", OPTIMIZER_SGD},
    {"adam", OPTIMIZER_ADAM},
    {"adamw", OPTIMIZER_ADAMW},
};
const struct words optimizer_words = WORDS("an optimizer", optimizers);

static const struct word schedules[] = {
    {"constant", SCHEDULE_CONSTANT},
    {"cosine", SCHEDULE_COSINE},
};
const struct words schedule_words = WORDS("a schedule", schedules);

static const struct word device_kinds[] = {
    {"any", DEVICE_ANY},
    {"cpu", DEVICE_CPU},
    {"gpu", DEVICE_GPU},
};
const struct words device_kind_words = WORDS("a kind of device", device_kinds);

static const struct word data_formats[] = {
    {"idx", DATA_IDX},
    {"csv", DATA_CSV},
    {"synthetic", DATA_SYNTHETIC},
};
const struct words data_format_words = WORDS("a data format", data_formats);

static const struct word strategies[] = {
    {"auto", STRATEGY_AUTO},
    {"none", STRATEGY_NONE},
    {"mirrored", STRATEGY_MIRRORED},
    {"pipeline", STRATEGY_PIPELINE},
    {"segment_ensemble", STRATEGY_SEGMENT_ENSEMBLE},
};
const struct words strategy_words = WORDS("a strategy", strategies);

static const struct word pipeline_schedules[] = {
    {"gpipe", SCHEDULE_GPIPE},
    {"1f1b", SCHEDULE_1F1B},
};
const struct words pipeline_schedule_words = WORDS("a pipeline schedule", pipeline_schedules);

const char *layer_type_name(enum layer_type t)
{
    return words_name(&layer_type_words, (int)t);
}

const char *activation_name(enum activation a)
{
    return words_name(&activation_words, (int)a);
}

const char *initializer_name(enum initializer i)
{
    return words_name(&initializer_words, (int)i);
}

const char *loss_name(enum loss l)
{
    return words_name(&loss_words, (int)l);
}

const char *metric_name(enum metric m)
{
    return words_name(&metric_words, (int)m);
}

const char *optimizer_name(enum optimizer_kind k)
{
    return words_name(&optimizer_words, (int)k);
}

const char *device_kind_name(enum device_kind k)
{
    return words_name(&device_kind_words, (int)k);
}

const char *strategy_name(enum strategy_kind k)
{
    return words_name(&strategy_words, (int)k);
}

const char *pipeline_schedule_name(enum pipeline_schedule s)
{
    return words_name(&pipeline_schedule_words, (int)s);
}
