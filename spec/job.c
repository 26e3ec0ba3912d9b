/* job.c: the tables of the job document itself, and the order in which its parts are decoded. */
#include "spec/job.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/job_decode.h"
#include "spec/keras.h"
#include "spec/model_decode.h"
#include "spec/names.h"

#define NAME_CHARS   " ._-"
#define RESTARTS_MAX 1000

static void free_texts(char **list)
{
    for (char **p = list; p && *p; p++)
        free(*p);
    free(list);
}

void job_spec_free(struct job_spec *s)
{
    if (!s)
        return;
    free(s->name);
    free(s->user);
    free_texts(s->command);
    model_done(&s->model);
    data_source_done(&s->train);
    data_source_done(&s->validation);
    free(s->fit.class_weight);
    for (int i = 0; i < s->label_count; i++) {
        free(s->labels[i].key);
        free(s->labels[i].value);
    }
    free(s->labels);
    free(s);
}

static void check_name(struct decoding *d, const struct where *at, const char *text)
{
    char hint[160], better[129];
    size_t n = 0;
    int good = 1;
    for (const char *p = text; *p && n < sizeof better - 1; p++) {
        int allowed = isalnum((unsigned char)*p) || strchr(NAME_CHARS, *p);
        good = good && allowed;
        if (allowed)
            better[n++] = *p;
        else if (n > 0 && better[n - 1] != '-')
            better[n++] = '-';
    }
    better[n] = '\0';
    snprintf(hint, sizeof hint, "For example: \"%s\".", n ? better : "mnist");
    if (!good)
        field_fault(d, at, "invalid", hint,
                    "A job's name has letters, digits, spaces, \".\", \"_\" and \"-\" only.");
}

static void check_user(struct decoding *d, const struct where *at, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (isalnum((unsigned char)*p) || strchr("._@-", *p))
            continue;
        field_fault(d, at, "invalid", "For example: \"ada\".",
                    "A user's name has letters, digits, \".\", \"_\", \"@\" and \"-\" only.");
        return;
    }
}

static void decode_model(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    if (!s->command) /* with one, all of it is out of place */
        model_decode(d, v, at, &s->model);
}

static const struct field resources_fields[] = {
    {.name = "devices",
     .also = "gpus num_gpus n_gpus ranks world_size workers num_workers nproc_per_node",
     .kind = FIELD_INT,
     FIELD_AT(struct resources, devices),
     .fallback = 1,
     .min = 1,
     .max = PLAN_MAX_RANKS,
     .help = "how many devices the job runs on",
     .example = "2"},
    {.name = "device",
     .also = "kind device_type",
     .kind = FIELD_ENUM,
     FIELD_AT(struct resources, device),
     .fallback = DEVICE_ANY,
     .words = &device_kind_words,
     .help = "which kind of device",
     .example = "\"gpu\""},
    {.name = "memory",
     .also = "mem memory_bytes",
     .kind = FIELD_CUSTOM,
     .decode = decode_memory,
     .help = "what a device's share may take, in bytes or as \"512MiB\"",
     .example = "\"8GiB\""},
};
const struct object resources_object = OBJECT("resources", resources_fields, NULL);

/* "resources" and "fit" stand before "strategy", which is checked against them. */
static const struct object *const job_kin[] = {&optimizer_object, &compile_object, &fit_object,
                                               &resources_object, &model_object,   NULL};
static const struct field job_fields[] = {
    {.name = "name",
     .also = "title job_name",
     .kind = FIELD_TEXT,
     FIELD_AT(struct job_spec, name),
     .fallback_text = "job",
     .min = 1,
     .max = 128,
     .check = check_name,
     .help = "what people call the job",
     .example = "\"mnist\""},
    {.name = "command",
     .also = "cmd args argv",
     .kind = FIELD_CUSTOM,
     .decode = decode_command,
     .help = "a program to run instead of a model",
     .example = "[\"python3\", \"train.py\"]"},
    {.name = "model",
     .also = "network",
     .kind = FIELD_CUSTOM,
     .decode = decode_model,
     .help = "the layers",
     .example = "{\"input\": [784], \"layers\": [...]}"},
    {.name = "compile",
     .kind = FIELD_CUSTOM,
     .decode = decode_compile,
     .help = "optimizer, loss and metrics",
     .example = "{\"optimizer\": \"adam\", \"loss\": \"sparse_categorical_crossentropy\"}"},
    {.name = "data",
     .also = "dataset",
     .kind = FIELD_CUSTOM,
     .decode = decode_data,
     .help = "what the model is trained on",
     .example = "{\"train\": {\"format\": \"csv\", \"path\": \"iris.csv\"}}"},
    {.name = "fit",
     .also = "training",
     .kind = FIELD_OBJECT,
     .object = &fit_object,
     FIELD_AT(struct job_spec, fit),
     .help = "epochs, batch size and order",
     .example = "{\"epochs\": 10, \"batch_size\": 64}"},
    {.name = "resources",
     .kind = FIELD_OBJECT,
     .object = &resources_object,
     FIELD_AT(struct job_spec, resources),
     .help = "devices and memory",
     .example = "{\"devices\": 2}"},
    {.name = "strategy",
     .also = "parallelism distribution",
     .kind = FIELD_CUSTOM,
     .decode = decode_strategy,
     .help = "how the work is spread over the devices",
     .example = "\"auto\""},
    {.name = "priority",
     .kind = FIELD_INT,
     FIELD_AT(struct job_spec, priority),
     .min = -1000,
     .max = 1000,
     .help = "jobs with a higher one start first",
     .example = "0"},
    {.name = "time_limit",
     .also = "timeout walltime max_time",
     .kind = FIELD_CUSTOM,
     .decode = decode_time_limit,
     .help = "how long the job may run, in seconds or as \"2h\"",
     .example = "\"2h\""},
    {.name = "labels",
     .also = "tags",
     .kind = FIELD_CUSTOM,
     .decode = decode_labels,
     .help = "words to find the job by",
     .example = "{\"team\": \"vision\"}"},
    {.name = "precision",
     .also = "dtype dtype_policy mixed_precision",
     .kind = FIELD_CUSTOM,
     .decode = decode_precision,
     .help = "how weights, activations and moments are kept",
     .example = "\"mixed_bfloat16\""},
    {.name = "checkpoint",
     .also = "checkpoints checkpointing",
     .kind = FIELD_CUSTOM,
     .decode = decode_checkpoint,
     .help = "how often the state of the training is saved, or false",
     .example = "{\"every\": \"10m\"}"},
    {.name = "max_restarts",
     .also = "restarts max_retries retries backoff_limit",
     .kind = FIELD_INT,
     FIELD_AT(struct job_spec, max_restarts),
     .fallback = 3,
     .min = 0,
     .max = RESTARTS_MAX,
     .help = "how often an attempt that failed is started again",
     .example = "3"},
    {.name = "user",
     .kind = FIELD_TEXT,
     FIELD_AT(struct job_spec, user),
     .fallback_text = "",
     .max = 64,
     .check = check_user,
     .help = "whose job it is",
     .example = "\"ada\""},
};
static const struct object job_object = OBJECT("a job", job_fields, job_kin);

static int keras_compiles(const json_t *doc)
{
    return keras_has_compile(json_object_get(doc, "model"));
}

/* A model of Keras's may bring its own compile along; the job's goes first. */
static void take_keras_compile(struct decoding *d, struct job_spec *s, const json_t *doc,
                               const struct where *at)
{
    const struct where *at_model = FIELD_WHERE(at, "model");
    if (!keras_compiles(doc))
        return;
    if (json_object_get(doc, "compile"))
        field_warn(d, FIELD_WHERE(at_model, "compile_config"), "no_effect", NULL,
                   "The job has its own \"compile\", which is used; the model's is ignored.");
    else
        keras_decode_compile(d, json_object_get(doc, "model"), at_model, s);
}

static void check_training_parts(struct decoding *d, const json_t *doc, const struct where *at)
{
    static const char *const needed[] = {"model", "compile", "data"};
    if (!json_object_get(doc, "model") && !json_object_get(doc, "compile") &&
        !json_object_get(doc, "data") && !json_object_get(doc, "fit")) {
        field_fault(d, at, "required",
                    "Add \"model\", \"compile\" and \"data\", or \"command\": [\"python3\", "
                    "\"train.py\"].",
                    "This says neither what to train (\"model\") nor what to run (\"command\").");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(needed); i++)
        if (!json_object_get(doc, needed[i]) && !(i == 1 && keras_compiles(doc)))
            field_missing(d, &job_object, field_find(&job_object, needed[i]), doc, at);
}

static void check_command_parts(struct decoding *d, struct job_spec *s, const json_t *doc,
                                const struct where *at)
{
    static const char *const others[] = {"model", "compile", "data", "fit"};
    static const char *const idle[] = {"precision", "checkpoint"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (json_object_get(doc, others[i]))
            field_fault(d, FIELD_WHERE(at, others[i]), "conflict",
                        "Leave out \"command\" to have the model trained, or this to have the "
                        "program run.",
                        "A job with \"command\" has no \"%s\": the program does that itself.",
                        others[i]);
    for (size_t i = 0; i < ARRAY_LEN(idle); i++)
        if (json_object_get(doc, idle[i]))
            field_warn(d, FIELD_WHERE(at, idle[i]), "no_effect", NULL,
                       "A command sees to that itself; \"%s\" is ignored.", idle[i]);
    if (s->strategy.kind != STRATEGY_AUTO || s->strategy.is_mesh)
        field_warn(d, FIELD_WHERE(at, "strategy"), "no_effect", NULL,
                   "A command is started once on each device; \"strategy\" is ignored.");
    strategy_set_defaults(&s->strategy);
}

static void check_whole(struct decoding *d, struct job_spec *s, const json_t *doc,
                        const struct where *at)
{
    if (json_object_get(doc, "command")) {
        check_command_parts(d, s, doc, at);
        return;
    }
    take_keras_compile(d, s, doc, at);
    check_training_parts(d, doc, at);
    check_strategy(d, s, doc, at);
    check_training(d, s, doc, at);
    check_fit(d, s, doc, at);
}

struct job_spec *job_spec_parse(const json_t *doc, int strict, struct faults *f,
                                struct faults *warnings)
{
    struct decoding d = {.faults = f, .warnings = warnings, .strict = strict};
    struct where root = {.key = ""};
    size_t before = f->total;
    if (!json_is_object(doc)) {
        field_fault(&d, &root, "wrong_type",
                    "For example: {\"name\": \"mnist\", \"model\": {...}, \"compile\": {...}, "
                    "\"data\": {...}}.",
                    "A job must be a JSON object.");
        return NULL;
    }
    struct job_spec *s = mem_zalloc(sizeof *s);
    strategy_set_defaults(&s->strategy);
    checkpoint_set_defaults(&s->checkpoint);
    field_decode_object(&d, &job_object, doc, &root, s);
    check_whole(&d, s, doc, &root);
    if (f->total == before)
        return s;
    job_spec_free(s);
    return NULL;
}
