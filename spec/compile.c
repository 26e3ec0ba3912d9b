/* compile.c: optimizer, loss and metrics. */
#include "spec/job_decode.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "spec/names.h"

#define OPTIMIZER_NUMBER(name_, default_, min_, max_, help_, example_)                             \
    .name = #name_, .kind = FIELD_NUMBER, FIELD_AT(struct optimizer, name_),                       \
    .fallback = (default_), .min = (min_), .max = (max_), .help = (help_), .example = (example_)

#define SCHEDULE_STEPS_MAX 1e15

#define SCHEDULE_NAME                                                                              \
    {                                                                                              \
        .name = "name", .also = "type class_name", .kind = FIELD_ENUM,                             \
        FIELD_AT(struct optimizer, schedule), .required = 1, .words = &schedule_words,             \
        .help = "how the learning rate changes", .example = "\"cosine\""                           \
    }
#define SCHEDULE_STEPS(name_, also_, required_, min_, help_, example_)                             \
    {                                                                                              \
        .name = #name_, .also = (also_), .kind = FIELD_INT, FIELD_AT(struct optimizer, name_),     \
        .required = (required_), .min = (min_), .max = SCHEDULE_STEPS_MAX, .help = (help_),        \
        .example = (example_)                                                                      \
    }
#define SCHEDULE_WARMUP                                                                            \
    SCHEDULE_STEPS(warmup_steps, "warmup", 0, 0, "steps in which the rate rises from near 0", "100")

static const struct object *const schedule_objects[];

static const struct field constant_fields[] = {SCHEDULE_NAME};
/* cosine and linear: from the whole rate to its floor */
static const struct field decay_fields[] = {
    SCHEDULE_NAME,
    SCHEDULE_WARMUP,
    SCHEDULE_STEPS(decay_steps, "total_steps t_max", 1, 1,
                   "the step at which the decay ends, warmup included", "1000"),
    {OPTIMIZER_NUMBER(alpha, 0, 0, 1, "the floor, as a share of the learning rate", "0.1")},
};
static const struct field step_fields[] = {
    SCHEDULE_NAME,
    SCHEDULE_WARMUP,
    SCHEDULE_STEPS(step_size, "drop_every", 1, 1, "steps between two falls of the rate", "1000"),
    {OPTIMIZER_NUMBER(gamma, 0.1, 0, 1, "what the rate is multiplied by at each fall", "0.1"),
     .above_min = 1, .also = "factor decay_rate drop"},
};
static const struct object constant =
    OBJECT("the schedule constant", constant_fields, schedule_objects);
static const struct object cosine = OBJECT("the schedule cosine", decay_fields, schedule_objects);
static const struct object linear = OBJECT("the schedule linear", decay_fields, schedule_objects);
static const struct object step = OBJECT("the schedule step", step_fields, schedule_objects);
static const struct object *const schedule_objects[] = {[SCHEDULE_CONSTANT] = &constant,
                                                        [SCHEDULE_COSINE] = &cosine,
                                                        [SCHEDULE_LINEAR] = &linear,
                                                        [SCHEDULE_STEP] = &step,
                                                        NULL};

static void check_decay(struct decoding *d, const struct optimizer *o, const struct where *at)
{
    char hint[128];
    if (o->decay_steps > o->warmup_steps)
        return;
    snprintf(hint, sizeof hint, "Write a number above %lld.", (long long)o->warmup_steps);
    field_fault(d, FIELD_WHERE(at, "decay_steps"), "out_of_range", hint,
                "\"decay_steps\" (%lld) counts the warmup too, so it must be more than "
                "\"warmup_steps\" (%lld).",
                (long long)o->decay_steps, (long long)o->warmup_steps);
}

static void decode_schedule(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct optimizer *o = base;
    size_t before = d->faults->total;
    if (!json_is_object(v)) {
        field_wrong_type(d, at, "schedule", "an object",
                         "{\"name\": \"cosine\", \"warmup_steps\": 100, \"decay_steps\": 1000}", v);
        return;
    }
    const json_t *name = json_object_get(v, "name");
    const struct word *word =
        json_is_string(name) ? words_meant(&schedule_words, json_string_value(name)) : NULL;
    if (word)
        field_decode_object(d, schedule_objects[word->value], v, at, o);
    else if (name)
        field_decode(d, field_find(&cosine, "name"), name, FIELD_WHERE(at, "name"), o);
    else
        field_missing(d, &cosine, field_find(&cosine, "name"), v, at);
    if (d->faults->total == before &&
        (o->schedule == SCHEDULE_COSINE || o->schedule == SCHEDULE_LINEAR))
        check_decay(d, o, at);
}

static void decode_exclude(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct optimizer *o = base;
    const char *text = json_string_value(v);
    if (text && strcmp(text, "vectors") == 0)
        o->decay_matrices_only = 1;
    else
        field_fault(d, at, "unknown_value",
                    "Write \"vectors\", or leave it out to have weight decay on all of them.",
                    "\"exclude_from_weight_decay\" can only be \"vectors\": biases and other "
                    "parameters of one dimension are not decayed.");
}

#define COMMON_FIELDS(rate_)                                                                       \
    {.name = "name",                                                                               \
     .also = "type class_name",                                                                    \
     .kind = FIELD_ENUM,                                                                           \
     FIELD_AT(struct optimizer, kind),                                                             \
     .required = 1,                                                                                \
     .words = &optimizer_words,                                                                    \
     .help = "which optimizer it is",                                                              \
     .example = "\"adam\""},                                                                       \
        {OPTIMIZER_NUMBER(learning_rate, rate_, 0, 1000, "how far a step goes", "0.001"),          \
         .above_min = 1, .also = "lr eta learning_rate_init"},                                     \
        {OPTIMIZER_NUMBER(global_clipnorm, 0, 0, 1e30,                                             \
                          "the norm that all gradients together are scaled down to", "1.0"),       \
         .above_min = 1, .also = "clipnorm clip_norm max_grad_norm grad_clip"},                    \
    {                                                                                              \
        .name = "schedule", .also = "lr_schedule scheduler", .kind = FIELD_CUSTOM,                 \
        .decode = decode_schedule, .help = "how the learning rate changes",                        \
        .example = "{\"name\": \"cosine\", \"decay_steps\": 1000}"                                 \
    }
#define ADAM_FIELDS                                                                                \
    {OPTIMIZER_NUMBER(beta_1, 0.9, 0, 1, "decay of the first moment", "0.9"), .below_max = 1,      \
     .also = "beta1"},                                                                             \
        {OPTIMIZER_NUMBER(beta_2, 0.999, 0, 1, "decay of the second moment", "0.999"),             \
         .below_max = 1, .also = "beta2"},                                                         \
    {                                                                                              \
        OPTIMIZER_NUMBER(epsilon, 1e-7, 0, 1, "added to the root of the second moment", "1e-7"),   \
            .above_min = 1, .also = "eps"                                                          \
    }

static const struct object *const optimizer_objects[OPTIMIZER__MAX + 1];

static const struct field sgd_fields[] = {
    COMMON_FIELDS(0.01),
    {OPTIMIZER_NUMBER(momentum, 0, 0, 1, "the share of the last step that is repeated", "0.9"),
     .below_max = 1},
    {.name = "nesterov",
     .kind = FIELD_BOOL,
     FIELD_AT(struct optimizer, nesterov),
     .help = "whether the momentum looks ahead",
     .example = "true"},
};
static const struct field adam_fields[] = {COMMON_FIELDS(0.001), ADAM_FIELDS};
static const struct field adamw_fields[] = {
    COMMON_FIELDS(0.001),
    ADAM_FIELDS,
    {OPTIMIZER_NUMBER(weight_decay, 0.004, 0, 1000, "decay of the weights per unit of rate",
                      "0.01"),
     .also = "decay wd"},
    {.name = "exclude_from_weight_decay",
     .kind = FIELD_CUSTOM,
     .decode = decode_exclude,
     .help = "which parameters are not decayed",
     .example = "\"vectors\""},
};

static const struct object sgd = OBJECT("the optimizer sgd", sgd_fields, optimizer_objects);
static const struct object adam = OBJECT("the optimizer adam", adam_fields, optimizer_objects);
static const struct object adamw = OBJECT("the optimizer adamw", adamw_fields, optimizer_objects);
static const struct object *const optimizer_objects[OPTIMIZER__MAX + 1] = {
    [OPTIMIZER_SGD] = &sgd,
    [OPTIMIZER_ADAM] = &adam,
    [OPTIMIZER_ADAMW] = &adamw,
};

static void decode_optimizer_name(struct decoding *d, const char *name, const struct where *at,
                                  struct optimizer *o)
{
    const struct word *word = words_find(&optimizer_words, name);
    if (!word) {
        field_unknown_word(d, at, &optimizer_words, name);
        return;
    }
    field_set_defaults(optimizer_objects[word->value], o);
    o->kind = (enum optimizer_kind)word->value;
}

static void decode_optimizer(struct decoding *d, const json_t *v, const struct where *at,
                             void *base)
{
    struct optimizer *o = &((struct job_spec *)base)->optimizer;
    const char *name = json_string_value(v);
    if (name) {
        decode_optimizer_name(d, name, at, o);
        return;
    }
    if (!json_is_object(v)) {
        field_wrong_type(d, at, "optimizer", "the name of an optimizer or an object",
                         "{\"name\": \"adam\", \"learning_rate\": 0.001}", v);
        return;
    }
    const json_t *given = json_object_get(v, "name");
    const struct word *word =
        json_is_string(given) ? words_meant(&optimizer_words, json_string_value(given)) : NULL;
    if (word)
        field_decode_object(d, optimizer_objects[word->value], v, at, o);
    else if (given)
        field_decode(d, field_find(&sgd, "name"), given, FIELD_WHERE(at, "name"), o);
    else
        field_missing(d, &sgd, field_find(&sgd, "name"), v, at);
}

static void decode_loss(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    const char *name = json_string_value(v);
    if (json_is_object(v) && json_is_true(json_object_get(v, "from_logits"))) {
        field_fault(d, at, "unsupported",
                    "End the model with softmax (or sigmoid) and write the loss as its name.",
                    "\"from_logits\" is not in this version; a loss after a final softmax or "
                    "sigmoid is computed from the logits in any case.");
        return;
    }
    if (!name) {
        field_wrong_type(d, at, "loss", "a string with the name of a loss",
                         "\"sparse_categorical_crossentropy\"", v);
        return;
    }
    const struct word *word = words_find(&loss_words, name);
    if (word)
        s->loss = (enum loss)word->value;
    else
        field_unknown_word(d, at, &loss_words, name);
}

static void decode_metrics(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    if (!json_is_array(v)) {
        field_wrong_type(d, at, "metrics", "a list of names", "[\"accuracy\"]", v);
        return;
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        const struct where *at_item = FIELD_ITEM(at, i);
        const char *name = json_string_value(item);
        const struct word *word = name ? words_find(&metric_words, name) : NULL;
        if (word)
            s->metrics[word->value] = 1;
        else if (name)
            field_unknown_word(d, at_item, &metric_words, name);
        else
            field_wrong_type(d, at_item, NULL, "the name of a metric", "\"accuracy\"", item);
    }
}

const struct object optimizer_object =
    OBJECT("the optimizer (/compile/optimizer)", adamw_fields, optimizer_objects);
static const struct object *const compile_kin[] = {&optimizer_object, &sgd, NULL};
static const struct field compile_fields[] = {
    {.name = "optimizer",
     .kind = FIELD_CUSTOM,
     .decode = decode_optimizer,
     .required = 1,
     .help = "sgd, adam or adamw, by name or as an object with its settings",
     .example = "\"adam\""},
    {.name = "loss",
     .also = "criterion objective",
     .kind = FIELD_CUSTOM,
     .decode = decode_loss,
     .required = 1,
     .help = "what is minimised",
     .example = "\"sparse_categorical_crossentropy\""},
    {.name = "metrics",
     .kind = FIELD_CUSTOM,
     .decode = decode_metrics,
     .help = "what is reported besides the loss",
     .example = "[\"accuracy\"]"},
};
const struct object compile_object = OBJECT("compile", compile_fields, compile_kin);

void decode_compile(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    if (!((struct job_spec *)base)->command)
        field_decode_object(d, &compile_object, v, at, base);
}
