/* fit.c: how long and on what order a model is trained, and when that ends early. */
#include "spec/job_decode.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/names.h"

#define BATCH_MAX        (1 << 24)
#define EXACT_INT_MAX    9007199254740991.0 /* 2^53 - 1: what every JSON reader keeps exact */
#define CLASSES_MAX      65536
#define CLASS_WEIGHT_MAX 1e6

/* ---- early stopping ---- */

static const struct field stopping_fields[] = {
    {.name = "monitor",
     .also = "metric",
     .kind = FIELD_ENUM,
     FIELD_AT(struct early_stopping, monitor),
     .fallback = MONITOR_VAL_LOSS,
     .words = &monitor_words,
     .help = "the figure that must improve",
     .example = "\"val_loss\""},
    {.name = "min_delta",
     .also = "delta threshold",
     .kind = FIELD_NUMBER,
     FIELD_AT(struct early_stopping, min_delta),
     .min = 0,
     .max = 1e30,
     .help = "what counts as an improvement: more than this",
     .example = "0.001"},
    {.name = "patience",
     .kind = FIELD_INT,
     FIELD_AT(struct early_stopping, patience),
     .min = 0,
     .max = 1e9,
     .help = "how many epochs without improvement are allowed",
     .example = "3"},
    {.name = "start_from_epoch",
     .kind = FIELD_INT,
     FIELD_AT(struct early_stopping, start_from_epoch),
     .min = 0,
     .max = 1e9,
     .help = "how many epochs pass before the first is judged",
     .example = "5"},
    {.name = "restore_best_weights",
     .also = "restore_best",
     .kind = FIELD_BOOL,
     FIELD_AT(struct early_stopping, restore_best_weights),
     .help = "whether the weights of the best epoch are kept instead of the last",
     .example = "true"},
    {.name = "mode",
     .kind = FIELD_FIXED,
     .example = "\"auto\"",
     .help = "losses and mae must fall, accuracy must rise"},
    {.name = "baseline",
     .kind = FIELD_FIXED,
     .example = "null",
     .help = "the first epoch that is judged is the baseline"},
};
static const struct object stopping_object = OBJECT("early_stopping", stopping_fields, NULL);

static void decode_stopping(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct early_stopping *s = &((struct fit *)base)->early_stopping;
    if (json_is_false(v))
        return;
    if (!json_is_object(v)) {
        field_wrong_type(d, at, "early_stopping", "an object or false",
                         "{\"monitor\": \"val_loss\", \"patience\": 3}", v);
        return;
    }
    field_decode_object(d, &stopping_object, v, at, s);
    s->enabled = 1;
}

/* ---- class weights ---- */

/* The class that a key names, or -1. */
static int64_t class_of(const char *key)
{
    size_t n = strlen(key);
    if (n == 0 || n > 9 || strspn(key, "0123456789") != n || (n > 1 && key[0] == '0'))
        return -1;
    return strtoll(key, NULL, 10);
}

static int decode_weight(struct decoding *d, const char *key, const json_t *v,
                         const struct where *at, double *ret)
{
    char shown[FIELD_SHOW_SIZE];
    int64_t class = class_of(key);
    if (class < 0 || class >= CLASSES_MAX) {
        field_fault(d, at, "invalid", "For example: {\"0\": 1.0, \"1\": 2.5}.",
                    "\"class_weight\" has classes as keys, numbers from 0 to %d.", CLASSES_MAX - 1);
        return -1;
    }
    if (!json_is_number(v)) {
        field_wrong_type(d, at, key, "a number", "1.0", v);
        return -1;
    }
    if (!(json_number_value(v) >= 0 && json_number_value(v) <= CLASS_WEIGHT_MAX)) {
        field_fault(d, at, "out_of_range", "1 is the weight of a class that is not named.",
                    "The weight of a class must be from 0 to 1000000, but is %s.",
                    field_show(v, shown));
        return -1;
    }
    *ret = json_number_value(v);
    return (int)class;
}

static void decode_class_weight(struct decoding *d, const json_t *v, const struct where *at,
                                void *base)
{
    struct fit *f = base;
    const char *key;
    json_t *value;
    if (!json_is_object(v)) {
        field_wrong_type(d, at, "class_weight", "an object", "{\"0\": 1.0, \"1\": 2.5}", v);
        return;
    }
    double *all = mem_alloc(CLASSES_MAX * sizeof *all);
    for (int i = 0; i < CLASSES_MAX; i++)
        all[i] = 1;
    json_object_foreach((json_t *)v, key, value)
    {
        double weight;
        int class = decode_weight(d, key, value, FIELD_WHERE(at, key), &weight);
        if (class < 0)
            continue;
        all[class] = weight;
        f->class_weights = class >= f->class_weights ? class + 1 : f->class_weights;
    }
    free(f->class_weight);
    f->class_weight = NULL;
    if (f->class_weights > 0)
        f->class_weight = mem_realloc(all, (size_t)f->class_weights * sizeof *all);
    else
        free(all);
}

static const struct object *const fit_kin[] = {&optimizer_object, &compile_object,
                                               &resources_object, NULL};
static const struct field fit_fields[] = {
    {.name = "epochs",
     .also = "num_epochs n_epochs max_epochs",
     .kind = FIELD_INT,
     FIELD_AT(struct fit, epochs),
     .fallback = 1,
     .min = 1,
     .max = 1e9,
     .help = "how often all data is passed",
     .example = "10"},
    {.name = "steps",
     .also = "max_steps num_steps iterations",
     .kind = FIELD_INT,
     FIELD_AT(struct fit, steps),
     .min = 1,
     .max = 1e15,
     .help = "how many optimizer steps are taken in all, instead of epochs",
     .example = "1000"},
    {.name = "batch_size",
     .also = "batch bs global_batch_size",
     .kind = FIELD_INT,
     FIELD_AT(struct fit, batch_size),
     .fallback = 32,
     .min = 1,
     .max = BATCH_MAX,
     .help = "how many items a step takes, over all devices",
     .example = "64"},
    {.name = "shuffle",
     .kind = FIELD_BOOL,
     FIELD_AT(struct fit, shuffle),
     .fallback = 1,
     .help = "whether each epoch has its own order",
     .example = "true"},
    {.name = "seed",
     .also = "random_seed random_state",
     .kind = FIELD_INT,
     FIELD_AT(struct fit, seed),
     .max = EXACT_INT_MAX,
     .help = "what start weights, order and dropout are drawn from",
     .example = "42"},
    {.name = "validation_split",
     .also = "val_split",
     .kind = FIELD_NUMBER,
     FIELD_AT(struct fit, validation_split),
     .max = 1,
     .below_max = 1,
     .help = "the last share of the training data, which is kept for validation",
     .example = "0.2"},
    {.name = "validation_freq",
     .also = "val_freq validate_every",
     .kind = FIELD_INT,
     FIELD_AT(struct fit, validation_freq),
     .fallback = 1,
     .min = 1,
     .max = 1e9,
     .help = "how many epochs lie between two validations",
     .example = "1"},
    {.name = "early_stopping",
     .also = "earlystopping",
     .kind = FIELD_CUSTOM,
     .decode = decode_stopping,
     .help = "when to end before all epochs are done",
     .example = "{\"monitor\": \"val_loss\", \"patience\": 3}"},
    {.name = "class_weight",
     .also = "class_weights",
     .kind = FIELD_CUSTOM,
     .decode = decode_class_weight,
     .help = "how much an item of each class counts in the loss",
     .example = "{\"0\": 1.0, \"1\": 2.5}"},
};
const struct object fit_object = OBJECT("fit", fit_fields, fit_kin);

/* ---- with the rest of the job ---- */

static int wants_validation(enum monitor m)
{
    return m == MONITOR_VAL_LOSS || m == MONITOR_VAL_ACCURACY || m == MONITOR_VAL_MAE;
}

/* The metric that a monitor is of, or METRIC__MAX for the loss. */
static enum metric monitored(enum monitor m)
{
    if (m == MONITOR_ACCURACY || m == MONITOR_VAL_ACCURACY)
        return METRIC_ACCURACY;
    return m == MONITOR_MAE || m == MONITOR_VAL_MAE ? METRIC_MAE : METRIC__MAX;
}

static void check_stopping(struct decoding *d, const struct job_spec *s, const struct where *fit)
{
    const struct early_stopping *e = &s->fit.early_stopping;
    const struct where *at = FIELD_WHERE(FIELD_WHERE(fit, "early_stopping"), "monitor");
    enum metric metric = monitored(e->monitor);
    const char *name = words_name(&monitor_words, (int)e->monitor);
    char hint[160];
    if (wants_validation(e->monitor) && !s->has_validation && s->fit.validation_split <= 0) {
        snprintf(hint, sizeof hint,
                 "Add \"validation_split\": 0.2 or /data/validation, or watch \"%s\".",
                 name + strlen("val_"));
        field_fault(d, at, "conflict", hint,
                    "Early stopping watches \"%s\", but there is no validation data.", name);
    }
    if (metric != METRIC__MAX && field_clean(d, "/compile") && !s->metrics[metric]) {
        snprintf(hint, sizeof hint, "Add \"%s\" to /compile/metrics, or watch \"%s\".",
                 metric_name(metric), wants_validation(e->monitor) ? "val_loss" : "loss");
        field_fault(d, at, "conflict", hint,
                    "Early stopping watches \"%s\", but \"%s\" is not among the metrics.", name,
                    metric_name(metric));
    }
}

static int64_t classes_of(const struct job_spec *s)
{
    const struct layer *last = &s->model.layers[s->model.layer_count - 1];
    return s->loss == LOSS_BINARY_CROSSENTROPY ? 2 : last->out.size[last->out.dims - 1];
}

static void check_class_weight(struct decoding *d, const struct job_spec *s,
                               const struct where *fit)
{
    const struct where *at = FIELD_WHERE(fit, "class_weight");
    char hint[96], key[24];
    if (s->loss == LOSS_MEAN_SQUARED_ERROR) {
        field_fault(d, at, "conflict", "Leave it out, or use a cross-entropy.",
                    "\"class_weight\" weighs classes, and mean_squared_error has none.");
        return;
    }
    int64_t classes = classes_of(s);
    if (s->fit.class_weights <= classes)
        return;
    snprintf(hint, sizeof hint, "Classes are numbered from 0 to %lld.", (long long)classes - 1);
    snprintf(key, sizeof key, "%lld", (long long)s->fit.class_weights - 1);
    field_fault(d, FIELD_WHERE(at, key), "out_of_range", hint,
                "There is no class %s: the model tells %lld classes apart.", key,
                (long long)classes);
}

void check_fit(struct decoding *d, const struct job_spec *s, const json_t *doc,
               const struct where *at)
{
    const struct where *fit = FIELD_WHERE(at, "fit");
    const json_t *given = json_object_get(doc, "fit");
    int model_known = field_clean(d, "/model") && field_clean(d, "/compile/loss");
    if (!field_clean(d, "/fit") || !field_clean(d, "/data"))
        return;
    if (json_object_get(given, "validation_freq") && !s->has_validation &&
        s->fit.validation_split <= 0)
        field_warn(d, FIELD_WHERE(fit, "validation_freq"), "no_effect", NULL,
                   "\"validation_freq\" has no effect without validation data.");
    if (s->fit.early_stopping.enabled)
        check_stopping(d, s, fit);
    if (s->fit.class_weight && model_known)
        check_class_weight(d, s, fit);
}
