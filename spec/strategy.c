/* strategy.c: a parallel strategy as asked for: a name, or a mesh. */
#include "spec/job_decode.h"

#include <stdio.h>
#include <string.h>

#include "spec/names.h"
#include "spec/parallel.h"

#define THIS_VERSION "This version runs auto, none, mirrored, pipeline and segment_ensemble"

/* Names of other versions, and what comes nearest here. */
static const struct {
    const char *name, *hint;
} absent[] = {
    {"multi_worker_mirrored", "Write \"mirrored\": data parallel on one node. " THIS_VERSION "."},
    {"tensor", "Write \"pipeline\" to spread the layers of a large model. " THIS_VERSION "."},
    {"local_sgd", "Write \"mirrored\" (the same result as one device) or \"segment_ensemble\" "
                  "(independent members). " THIS_VERSION "."},
    {"zero", "Write \"pipeline\" to spread the parameters. " THIS_VERSION "."},
    {"data", "Write \"mirrored\". " THIS_VERSION "."},
    {"data_parallel", "Write \"mirrored\". " THIS_VERSION "."},
    {"ddp", "Write \"mirrored\". " THIS_VERSION "."},
};

static void decode_name(struct decoding *d, const char *name, const struct where *at,
                        struct strategy *s)
{
    const struct word *word = words_find(&strategy_words, name);
    if (word && word->value != STRATEGY_TENSOR && word->value != STRATEGY_LOCAL_SGD) {
        s->kind = (enum strategy_kind)word->value;
        return;
    }
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        if (strcmp(name, absent[i].name) == 0) {
            field_fault(d, at, "unsupported", absent[i].hint,
                        "\"%s\" is not a strategy that this version runs.", name);
            return;
        }
    }
    field_unknown_word(d, at, &strategy_words, name);
}

#define MESH_SIZE(name_, max_, help_, example_)                                                    \
    {                                                                                              \
        .name = #name_, .kind = FIELD_INT, FIELD_AT(struct strategy, name_), .min = 1,             \
        .max = (max_), .help = (help_), .example = (example_)                                      \
    }
#define MESH_FIXED(name_, only_, help_)                                                            \
    {                                                                                              \
        .name = #name_, .kind = FIELD_FIXED, .example = (only_), .help = (help_)                   \
    }

static const struct field mesh_fields[] = {
    MESH_SIZE(data, PLAN_MAX_RANKS, "ranks that share a batch", "2"),
    MESH_SIZE(pipeline, PLAN_MAX_RANKS, "stages that the layers are cut into", "2"),
    MESH_SIZE(microbatches, PLAN_MAX_MICROBATCHES, "parts of a batch in the pipeline", "4"),
    {.name = "schedule",
     .kind = FIELD_ENUM,
     FIELD_AT(struct strategy, schedule),
     .fallback = SCHEDULE_1F1B,
     .words = &pipeline_schedule_words,
     .help = "the order of the micro-batches",
     .example = "\"1f1b\""},
    MESH_FIXED(tensor, "1", "its meshes have the sizes data and pipeline"),
    MESH_FIXED(zero, "0", "every data rank holds the whole optimizer state"),
    MESH_FIXED(recompute, "\"none\"", "activations are kept, not computed again"),
    MESH_FIXED(reproducible, "false",
               "results agree to float32 rounding between numbers of ranks, not bit by bit"),
};
static const struct object mesh_object = OBJECT("a mesh", mesh_fields, NULL);

static void set_mesh_kind(struct strategy *m)
{
    m->is_mesh = 1;
    m->kind = m->pipeline > 1 ? STRATEGY_PIPELINE : m->data > 1 ? STRATEGY_MIRRORED : STRATEGY_NONE;
}

static void decode_mesh(struct decoding *d, const json_t *v, const struct where *at,
                        struct job_spec *s)
{
    const char *name = json_string_value(json_object_get(v, "name"));
    size_t before = d->faults->total;
    if (name) {
        char hint[256], shown[FIELD_SHOW_SIZE];
        snprintf(hint, sizeof hint,
                 "Write \"strategy\": \"%s\", or a mesh such as "
                 "{\"data\": 1, \"pipeline\": 2}.",
                 field_clip(name, shown));
        field_fault(d, FIELD_WHERE(at, "name"), "invalid", hint,
                    "A strategy is a name alone or a mesh of sizes, not both.");
        return;
    }
    field_decode_object(d, &mesh_object, v, at, &s->strategy);
    if (d->faults->total == before && s->strategy.data == 0 && s->strategy.pipeline == 0)
        field_fault(d, at, "required", "For example: {\"data\": 2, \"pipeline\": 1}.",
                    "A mesh needs \"data\", \"pipeline\" or both.");
    set_mesh_kind(&s->strategy);
}

void decode_strategy(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    if (json_is_string(v))
        decode_name(d, json_string_value(v), at, &s->strategy);
    else if (json_is_object(v))
        decode_mesh(d, v, at, s);
    else
        field_wrong_type(d, at, "strategy", "the name of a strategy or a mesh", "\"auto\"", v);
}

static int64_t or_one(int64_t size)
{
    return size ? size : 1;
}

static void check_mesh(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    const struct strategy *m = &s->strategy;
    long long data = or_one(m->data), pipeline = or_one(m->pipeline),
              devices = s->resources.devices;
    char hint[160];
    snprintf(hint, sizeof hint, "Set /resources/devices to %lld, or the mesh to %lld.",
             data * pipeline, devices);
    if (data * pipeline != devices)
        field_fault(d, at, "mesh_mismatch", hint,
                    "data %lld times pipeline %lld is %lld, but /resources/devices is %lld.", data,
                    pipeline, data * pipeline, devices);
    else if (m->microbatches > 1 && m->kind != STRATEGY_PIPELINE)
        field_warn(d, FIELD_WHERE(at, "microbatches"), "no_effect", NULL,
                   "\"microbatches\" has no effect without a pipeline of 2 or more stages.");
    else if (m->microbatches > s->fit.batch_size)
        field_warn(d, FIELD_WHERE(at, "microbatches"), "wasteful", NULL,
                   "%lld micro-batches of a batch of %lld items leave some of them empty.",
                   (long long)m->microbatches, (long long)s->fit.batch_size);
}

int layer_has_work(const struct layer *l)
{
    return l->parameters > 0 || l->type == LAYER_RESCALING;
}

int model_work_layers(const struct model *m)
{
    int n = 0;
    for (int i = 0; i < m->layer_count; i++)
        n += layer_has_work(&m->layers[i]);
    return n;
}

static void check_stages(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    int most = model_work_layers(&s->model);
    const struct strategy *m = &s->strategy;
    int64_t stages = m->is_mesh ? or_one(m->pipeline) : s->resources.devices;
    char hint[256];
    if (m->kind != STRATEGY_PIPELINE || stages <= most)
        return;
    snprintf(hint, sizeof hint,
             "Use up to %d, or add data parallelism with a mesh such as {\"data\": 2, "
             "\"pipeline\": %d} over %d devices.",
             most, most, 2 * most);
    field_fault(d, at, "too_many_stages", hint,
                "A pipeline of %lld stages needs as many layers with work, but the model has "
                "%d.",
                (long long)stages, most);
}

static void check_named(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    enum strategy_kind kind = s->strategy.kind;
    long long devices = (long long)s->resources.devices;
    if (kind == STRATEGY_NONE && devices > 1)
        field_fault(d, at, "devices_mismatch",
                    "Write \"mirrored\" to use them all, or set /resources/devices to 1.",
                    "The strategy \"none\" trains on one device, but /resources/devices is %lld.",
                    devices);
    if (kind != STRATEGY_AUTO && kind != STRATEGY_NONE && devices == 1)
        field_warn(d, at, "no_effect", "Set /resources/devices to 2 or more.",
                   "The strategy \"%s\" on one device is the same as \"none\".",
                   strategy_name(kind));
}

void check_strategy(struct decoding *d, const struct job_spec *s, const json_t *doc,
                    const struct where *at)
{
    const struct where *here = FIELD_WHERE(at, "strategy");
    if (!json_object_get(doc, "strategy") || !field_clean(d, "/strategy") ||
        !field_clean(d, "/resources"))
        return;
    if (s->strategy.is_mesh)
        check_mesh(d, s, here);
    else
        check_named(d, s, here);
    if (field_clean(d, "/model"))
        check_stages(d, s, here);
}
