#include "spec/names.h"

#include "spec/job.h"
#include "spec/launch.h"
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
    {"conv2d", LAYER_CONV2D},
    {"max_pooling2d", LAYER_MAX_POOLING2D},
    {"average_pooling2d", LAYER_AVERAGE_POOLING2D},
    {"global_max_pooling2d", LAYER_GLOBAL_MAX_POOLING2D},
    {"global_average_pooling2d", LAYER_GLOBAL_AVERAGE_POOLING2D},
    {"batch_normalization", LAYER_BATCH_NORMALIZATION},
    {"embedding", LAYER_EMBEDDING},
    {"add", LAYER_ADD},
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
    {"linear", SCHEDULE_LINEAR},
    {"step", SCHEDULE_STEP},
};
const struct words schedule_words = WORDS("a schedule", schedules);

static const struct word device_kinds[] = {
    {"any", DEVICE_ANY},
    {"cpu", DEVICE_CPU},
    {"gpu", DEVICE_GPU},
};
const struct words device_kind_words = WORDS("a kind of device", device_kinds);

static const struct word transports[] = {
    {"shm", TRANSPORT_SHM},
    {"tcp", TRANSPORT_TCP},
};
const struct words transport_words = WORDS("a transport", transports);

static const struct word data_formats[] = {
    {"idx", DATA_IDX}, {"csv", DATA_CSV}, {"synthetic", DATA_SYNTHETIC},
    {"npy", DATA_NPY}, {"npz", DATA_NPZ}, {"tokens", DATA_TOKENS},
};
const struct words data_format_words = WORDS("a data format", data_formats);

static const struct word strategies[] = {
    {"auto", STRATEGY_AUTO},
    {"none", STRATEGY_NONE},
    {"mirrored", STRATEGY_MIRRORED},
    {"pipeline", STRATEGY_PIPELINE},
    {"segment_ensemble", STRATEGY_SEGMENT_ENSEMBLE},
    {"tensor", STRATEGY_TENSOR},
    {"local_sgd", STRATEGY_LOCAL_SGD},
};
const struct words strategy_words = WORDS("a strategy", strategies);

static const struct word pipeline_schedules[] = {
    {"gpipe", SCHEDULE_GPIPE},
    {"1f1b", SCHEDULE_1F1B},
    {"interleaved", SCHEDULE_INTERLEAVED},
};
const struct words pipeline_schedule_words = WORDS("a pipeline schedule", pipeline_schedules);

static const struct word syncs[] = {
    {"every_step", SYNC_EVERY_STEP},
    {"delayed", SYNC_DELAYED},
    {"local_sgd", SYNC_LOCAL_SGD},
};
const struct words sync_words = WORDS("a way to synchronise", syncs);

static const struct word codecs[] = {
    {"none", CODEC_NONE}, {"bf16", CODEC_BF16},   {"bfloat16", CODEC_BF16},
    {"int8", CODEC_INT8}, {"top_k", CODEC_TOP_K},
};
const struct words codec_words = WORDS("a codec", codecs);

static const struct word recomputes[] = {
    {"auto", RECOMPUTE_AUTO},
    {"none", RECOMPUTE_NONE},
    {"all", RECOMPUTE_ALL},
};
const struct words recompute_words = WORDS("a word for recompute", recomputes);

static const struct word shares[] = {
    {"even", SHARES_EVEN},
    {"measured", SHARES_MEASURED},
};
const struct words shares_words = WORDS("a word for shares", shares);

static const struct word storage_types[] = {
    {"float32", STORAGE_FLOAT32},
    {"bfloat16", STORAGE_BFLOAT16},
    {"bf16", STORAGE_BFLOAT16},
};
const struct words storage_type_words = WORDS("a type of storage", storage_types);

static const struct word compute_types[] = {
    {"float32", COMPUTE_FLOAT32},   {"tf32", COMPUTE_TF32},       {"bfloat16", COMPUTE_BFLOAT16},
    {"bf16", COMPUTE_BFLOAT16},     {"float16", COMPUTE_FLOAT16}, {"fp16", COMPUTE_FLOAT16},
    {"tensorfloat32", COMPUTE_TF32}};
const struct words compute_type_words = WORDS("a type to compute with", compute_types);

static const struct word token_types[] = {
    {"auto", TOKEN_AUTO},
    {"uint8", TOKEN_U8},
    {"uint16", TOKEN_U16},
    {"uint32", TOKEN_U32},
};
const struct words token_type_words = WORDS("a type of tokens", token_types);

static const struct word csv_missings[] = {
    {"error", CSV_MISSING_ERROR},
    {"drop", CSV_MISSING_DROP},
    {"fill", CSV_MISSING_FILL},
};
const struct words csv_missing_words = WORDS("a policy for missing values", csv_missings);

static const struct word monitors[] = {
    {"val_loss", MONITOR_VAL_LOSS},    {"val_accuracy", MONITOR_VAL_ACCURACY},
    {"val_acc", MONITOR_VAL_ACCURACY}, {"loss", MONITOR_LOSS},
    {"accuracy", MONITOR_ACCURACY},    {"acc", MONITOR_ACCURACY},
    {"val_mae", MONITOR_VAL_MAE},      {"mae", MONITOR_MAE},
};
const struct words monitor_words = WORDS("a figure to watch", monitors);

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

const char *transport_name(enum transport t)
{
    return words_name(&transport_words, (int)t);
}

const char *strategy_name(enum strategy_kind k)
{
    return words_name(&strategy_words, (int)k);
}

const char *pipeline_schedule_name(enum pipeline_schedule s)
{
    return words_name(&pipeline_schedule_words, (int)s);
}

const char *sync_name(enum sync_kind s)
{
    return words_name(&sync_words, (int)s);
}

const char *codec_name(enum codec_kind c)
{
    return words_name(&codec_words, (int)c);
}

const char *compute_name(enum compute_type c)
{
    return words_name(&compute_type_words, (int)c);
}

const char *recompute_name(enum recompute_kind r)
{
    return words_name(&recompute_words, (int)r);
}

const char *shares_name(enum shares_kind s)
{
    return words_name(&shares_words, (int)s);
}
