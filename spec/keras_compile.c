/* keras_compile.c: Keras's compile_config as our "compile". */
#include <string.h>

#include "base/mem.h"
#include "spec/job_decode.h"
#include "spec/keras.h"
#include "spec/keras_values.h"
#include "spec/names.h"

#define SEEN(name_) KERAS_ANY_ARG(name_) /* taken by a function of its own */

/* ---- optimizer ---- */

static const struct keras_arg optimizer_common[] = {
    KERAS_ANY_ARG("name"),
    SEEN("learning_rate"),
    SEEN("lr"),
    SEEN("weight_decay"),
    KERAS_SAME_ARG("global_clipnorm"),
    KERAS_ONLY_ARG("clipnorm", "null"),
    KERAS_ONLY_ARG("clipvalue", "null"),
    KERAS_ONLY_ARG("use_ema", "false"),
    KERAS_ANY_ARG("ema_momentum"), /* without effect unless use_ema */
    KERAS_ANY_ARG("ema_overwrite_frequency"),
    KERAS_ONLY_ARG("loss_scale_factor", "null"),
    KERAS_ONLY_ARG("gradient_accumulation_steps", "null|1"),
    KERAS_ANY_ARG("jit_compile"),
    KERAS_ANY_ARG("is_legacy_optimizer"),
    KERAS_ONLY_ARG("decay", "0|null"),
};
static const struct keras_arg sgd[] = {KERAS_SAME_ARG("momentum"), KERAS_SAME_ARG("nesterov")};
static const struct keras_arg adam[] = {KERAS_SAME_ARG("beta_1"), KERAS_SAME_ARG("beta_2"),
                                        KERAS_SAME_ARG("epsilon"),
                                        KERAS_ONLY_ARG("amsgrad", "false")};
static const struct keras_class optimizers[] = {
    KERAS_CLASS("SGD", "sgd", NULL, sgd),
    KERAS_CLASS("Adam", "adam", NULL, adam),
    KERAS_CLASS("AdamW", "adamw", NULL, adam),
};

static const struct keras_arg cosine[] = {
    SEEN("initial_learning_rate"),
    KERAS_SAME_ARG("decay_steps"),
    KERAS_SAME_ARG("alpha"),
    KERAS_ANY_ARG("name"),
    KERAS_ONLY_ARG("warmup_target", "null"),
    KERAS_ONLY_ARG("warmup_steps", "0"),
};
static const struct keras_arg polynomial[] = {
    SEEN("initial_learning_rate"), KERAS_SAME_ARG("decay_steps"), SEEN("end_learning_rate"),
    KERAS_ANY_ARG("name"),         KERAS_ONLY_ARG("power", "1"),  KERAS_ONLY_ARG("cycle", "false"),
};
static const struct keras_arg exponential[] = {
    SEEN("initial_learning_rate"),
    {.name = "decay_steps", .how = KERAS_SAME, .to = "step_size"},
    {.name = "decay_rate", .how = KERAS_SAME, .to = "gamma"},
    KERAS_ONLY_ARG("staircase", "true"),
    KERAS_ANY_ARG("name"),
};
static const struct keras_class schedules[] = {
    KERAS_CLASS("CosineDecay", "cosine", NULL, cosine),
    KERAS_CLASS("PolynomialDecay", "linear", NULL, polynomial),
    KERAS_CLASS("ExponentialDecay", "step", NULL, exponential),
};

static const struct keras_class *find(const struct keras_class *list, size_t count,
                                      const char *name)
{
    for (size_t i = 0; name && i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

static void add_schedule(struct decoding *d, const json_t *v, const struct where *at, json_t *to)
{
    const char *name = json_string_value(json_object_get(v, "class_name"));
    const json_t *config = json_object_get(v, "config");
    const json_t *end = json_object_get(config, "end_learning_rate");
    json_t *initial = json_object_get(config, "initial_learning_rate");
    const struct keras_class *c = find(schedules, ARRAY_LEN(schedules), name);
    if (!c || !json_is_number(initial)) {
        field_fault(d, at, "unsupported",
                    "CosineDecay, PolynomialDecay (power 1) and ExponentialDecay (staircase) are, "
                    "or a number.",
                    "This schedule of the learning rate is not one that this version runs.");
        return;
    }
    json_t *schedule = json_pack("{s:s}", "name", c->type);
    keras_translate(d, c, NULL, 0, config, FIELD_WHERE(at, "config"), schedule);
    if (json_is_number(end) && json_number_value(initial) > 0)
        json_object_set_new(schedule, "alpha",
                            json_real(json_number_value(end) / json_number_value(initial)));
    json_object_set(to, "learning_rate", initial);
    json_object_set_new(to, "schedule", schedule);
}

static void add_rate(struct decoding *d, const json_t *config, const struct where *at, json_t *to)
{
    const char *key = json_object_get(config, "learning_rate") ? "learning_rate" : "lr";
    json_t *rate = json_object_get(config, key);
    if (json_is_object(rate))
        add_schedule(d, rate, FIELD_WHERE(at, key), to);
    else if (rate)
        json_object_set(to, "learning_rate", rate);
}

/* Adam with a weight_decay decays as AdamW does. */
static void add_decay(struct decoding *d, const json_t *config, const struct where *at, json_t *to)
{
    json_t *decay = json_object_get(config, "weight_decay");
    const char *name = json_string_value(json_object_get(to, "name"));
    if (!decay || json_is_null(decay) || json_is_false(decay))
        return;
    if (strcmp(name, "sgd") == 0) {
        field_fault(d, FIELD_WHERE(at, "weight_decay"), "unsupported", "Use AdamW.",
                    "This version does not decay weights with SGD.");
        return;
    }
    json_object_set_new(to, "name", json_string("adamw"));
    json_object_set(to, "weight_decay", decay);
}

static json_t *optimizer(struct decoding *d, const json_t *v, const struct where *at)
{
    char snake[64];
    const char *name = json_string_value(json_object_get(v, "class_name"));
    const json_t *config = json_object_get(v, "config");
    if (json_is_string(v))
        return json_string(keras_snake(json_string_value(v), snake, sizeof snake));
    const struct keras_class *c = find(optimizers, ARRAY_LEN(optimizers), name);
    if (!c) {
        field_unknown_word(d, FIELD_WHERE(at, "class_name"), &optimizer_words, name ? name : "");
        return NULL;
    }
    json_t *ours = json_pack("{s:s}", "name", c->type);
    const struct where *at_config = FIELD_WHERE(at, "config");
    keras_translate(d, c, optimizer_common, ARRAY_LEN(optimizer_common), config, at_config, ours);
    add_rate(d, config, at_config, ours);
    add_decay(d, config, at_config, ours);
    return ours;
}

/* ---- loss and metrics ---- */

static const struct keras_arg loss_args[] = {
    KERAS_ANY_ARG("name"),
    KERAS_ONLY_ARG("reduction", "\"sum_over_batch_size\"|\"auto\"|\"mean\""),
    KERAS_ONLY_ARG("from_logits", "false"),
    KERAS_ONLY_ARG("label_smoothing", "0"),
    KERAS_ONLY_ARG("ignore_class", "null"),
    KERAS_ONLY_ARG("axis", "-1"),
    {.name = "dtype", .how = KERAS_DTYPE},
    KERAS_ANY_ARG("fn"),
};
static const struct keras_class loss_class = KERAS_CLASS("a loss", NULL, NULL, loss_args);

static json_t *loss(struct decoding *d, const json_t *v, const struct where *at)
{
    char snake[64];
    const char *name = keras_function_name(v);
    if (!name)
        name = json_string_value(json_object_get(v, "class_name"));
    if (json_is_object(json_object_get(v, "config"))) {
        json_auto_t *unused = json_object();
        keras_translate(d, &loss_class, NULL, 0, json_object_get(v, "config"),
                        FIELD_WHERE(at, "config"), unused);
    }
    if (name)
        return json_string(keras_snake(name, snake, sizeof snake));
    field_wrong_type(d, at, "loss", "the name of a loss", "\"sparse_categorical_crossentropy\"", v);
    return NULL;
}

static const struct {
    const char *class, *name;
} metrics[] = {
    {"sparse_categorical_accuracy", "accuracy"},
    {"categorical_accuracy", "accuracy"},
    {"binary_accuracy", "accuracy"},
    {"accuracy", "accuracy"},
    {"acc", "accuracy"},
    {"mean_absolute_error", "mae"},
    {"mae", "mae"},
};

static const struct keras_arg metric_args[] = {
    KERAS_ANY_ARG("name"),
    {.name = "dtype", .how = KERAS_DTYPE},
    KERAS_ONLY_ARG("threshold", "0.5"),
};
static const struct keras_class metric_class = KERAS_CLASS("a metric", NULL, NULL, metric_args);

static json_t *metric(struct decoding *d, const json_t *v, const struct where *at)
{
    char snake[64];
    const char *name = keras_function_name(v);
    if (!name) {
        json_auto_t *unused = json_object();
        name = json_string_value(json_object_get(v, "class_name"));
        keras_translate(d, &metric_class, NULL, 0, json_object_get(v, "config"),
                        FIELD_WHERE(at, "config"), unused);
    }
    keras_snake(name ? name : "", snake, sizeof snake);
    for (size_t i = 0; i < ARRAY_LEN(metrics); i++)
        if (strcmp(metrics[i].class, snake) == 0)
            return json_string(metrics[i].name);
    field_unknown_word(d, at, &metric_words, name ? name : "");
    return NULL;
}

static json_t *metric_list(struct decoding *d, const json_t *v, const struct where *at)
{
    if (!json_is_array(v)) { /* an object of outputs, perhaps: a Sequential model has one */
        field_wrong_type(d, at, "metrics", "a list of metrics", "[\"accuracy\"]", v);
        return NULL;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *one = metric(d, json_array_get(v, i), FIELD_ITEM(at, i));
        if (one)
            json_array_append_new(list, one);
    }
    return list;
}

/* ---- compile ---- */

static const struct keras_arg compile_args[] = {
    SEEN("optimizer"),
    SEEN("loss"),
    SEEN("metrics"),
    KERAS_ONLY_ARG("loss_weights", "null"),
    KERAS_ONLY_ARG("weighted_metrics", "null|[]"),
    KERAS_ANY_ARG("run_eagerly"),
    KERAS_ANY_ARG("steps_per_execution"),
    KERAS_ANY_ARG("jit_compile"),
    KERAS_ANY_ARG("auto_scale_loss"),
};
static const struct keras_class compile_class = KERAS_CLASS("compile", NULL, NULL, compile_args);

int keras_has_compile(const json_t *v)
{
    json_auto_t *model = keras_unwrap(v, NULL);
    return json_is_object(json_object_get(model, "compile_config"));
}

static void set(json_t *to, const char *key, json_t *take_value)
{
    if (take_value)
        json_object_set_new(to, key, take_value);
}

void keras_decode_compile(struct decoding *d, const json_t *v, const struct where *at,
                          struct job_spec *s)
{
    json_auto_t *model = keras_unwrap(v, NULL);
    const json_t *config = json_object_get(model, "compile_config");
    const struct where *here = FIELD_WHERE(at, "compile_config");
    const json_t *given;
    json_auto_t *ours = json_object();
    size_t before = d->faults->total;
    keras_translate(d, &compile_class, NULL, 0, config, here, ours);
    if ((given = json_object_get(config, "optimizer")))
        set(ours, "optimizer", optimizer(d, given, FIELD_WHERE(here, "optimizer")));
    if ((given = json_object_get(config, "loss")) && !json_is_null(given))
        set(ours, "loss", loss(d, given, FIELD_WHERE(here, "loss")));
    if ((given = json_object_get(config, "metrics")) && !json_is_null(given))
        set(ours, "metrics", metric_list(d, given, FIELD_WHERE(here, "metrics")));
    if (d->faults->total == before)
        field_decode_object(d, &compile_object, ours, here, s);
}
