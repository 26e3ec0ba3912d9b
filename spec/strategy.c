/* strategy.c: a parallel strategy as asked for: a name, or a mesh. */
#include "spec/job_decode.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "spec/names.h"
#include "spec/parallel.h"

/* Names of other systems, and how the same is said here. */
static const struct {
    const char *name, *hint;
} elsewhere[] = {
    {"zero", "Write a mesh such as {\"data\": 4, \"zero\": 1}."},
    {"fsdp", "Write a mesh such as {\"data\": 4, \"zero\": 3}."},
    {"data", "Write \"mirrored\"."},
    {"data_parallel", "Write \"mirrored\"."},
    {"ddp", "Write \"mirrored\"."},
    {"model_parallel", "Write \"pipeline\" or \"tensor\"."},
    {"delayed", "Write {\"sync\": \"delayed\"}."},
    {"interleaved", "Write a mesh such as {\"pipeline\": 2, \"schedule\": \"interleaved\"}."},
    {"gpipe", "Write a mesh such as {\"pipeline\": 2, \"schedule\": \"gpipe\"}."},
    {"1f1b", "Write a mesh such as {\"pipeline\": 2, \"schedule\": \"1f1b\"}."},
};

static int is_elsewhere(struct decoding *d, const char *name, const struct where *at)
{
    for (size_t i = 0; i < ARRAY_LEN(elsewhere); i++) {
        if (strcmp(name, elsewhere[i].name) != 0)
            continue;
        field_fault(d, at, "unsupported", elsewhere[i].hint,
                    "\"%s\" is not the name of a strategy here.", name);
        return 1;
    }
    return 0;
}

static void decode_name(struct decoding *d, const char *name, const struct where *at,
                        struct strategy *s)
{
    const struct word *word = words_find(&strategy_words, name);
    if (word) {
        s->kind = (enum strategy_kind)word->value;
        if (s->kind == STRATEGY_LOCAL_SGD)
            s->parallel.sync = SYNC_LOCAL_SGD;
    } else if (strcmp(name, "multi_worker_mirrored") == 0) {
        s->kind = STRATEGY_MIRRORED;
        field_warn(d, at, "unsupported", "Write \"mirrored\" to be spared this warning.",
                   "This version places all ranks on one node, so \"%s\" runs as \"mirrored\", "
                   "with the same result.",
                   name);
    } else if (!is_elsewhere(d, name, at)) {
        field_unknown_word(d, at, &strategy_words, name);
    }
}

#define MESH_SIZE(name_, max_, help_, example_)                                                    \
    {                                                                                              \
        .name = #name_, .kind = FIELD_INT, FIELD_AT(struct strategy, name_), .min = 1,             \
        .max = (max_), .help = (help_), .example = (example_)                                      \
    }

static const struct field mesh_fields[] = {
    MESH_SIZE(data, PLAN_MAX_RANKS, "ranks that share a batch", "2"),
    MESH_SIZE(pipeline, PLAN_MAX_RANKS, "ranks that the layers are spread over", "2"),
    MESH_SIZE(tensor, PLAN_MAX_RANKS, "ranks that each layer is split over", "2"),
    {.name = "zero",
     .also = "zero_stage sharding",
     .kind = FIELD_INT,
     FIELD_AT(struct strategy, zero),
     .fallback = -1,
     .min = 0,
     .max = 3,
     .help = "what the data ranks divide among them: nothing, optimizer state, gradients too, "
             "parameters too",
     .example = "1"},
    MESH_SIZE(microbatches, PLAN_MAX_MICROBATCHES,
              "parts that a rank's share of a batch is cut into", "4"),
    {.name = "schedule",
     .kind = FIELD_ENUM,
     FIELD_AT(struct strategy, schedule),
     .fallback = SCHEDULE_1F1B,
     .words = &pipeline_schedule_words,
     .help = "the order of the micro-batches",
     .example = "\"1f1b\""},
    MESH_SIZE(chunks, MODEL_MAX_LAYERS, "interleaved: stages of each pipeline rank", "2"),
    {.name = "recompute",
     .also = "activation_checkpointing gradient_checkpointing remat",
     .kind = FIELD_ENUM,
     FIELD_AT(struct strategy, recompute),
     .fallback = RECOMPUTE_AUTO,
     .words = &recompute_words,
     .help = "which layers' outputs are computed again in backward instead of kept",
     .example = "\"all\""},
    PARALLEL_FIELDS(struct strategy, parallel.),
};
static const struct object mesh_object = OBJECT("a mesh", mesh_fields, NULL);

void strategy_set_defaults(struct strategy *s)
{
    *s = (struct strategy){.kind = STRATEGY_AUTO};
    field_set_defaults(&mesh_object, s);
}

/* A mesh without any size leaves the sizes to be chosen. */
static void set_mesh_kind(struct strategy *m)
{
    m->is_mesh = m->data > 0 || m->pipeline > 0 || m->tensor > 0;
    if (!m->is_mesh)
        m->kind = STRATEGY_AUTO;
    else if (m->parallel.sync == SYNC_LOCAL_SGD && m->data > 1)
        m->kind = STRATEGY_LOCAL_SGD;
    else if (m->pipeline > 1)
        m->kind = STRATEGY_PIPELINE;
    else if (m->tensor > 1)
        m->kind = STRATEGY_TENSOR;
    else
        m->kind = m->data > 1 ? STRATEGY_MIRRORED : STRATEGY_NONE;
}

static void decode_mesh(struct decoding *d, const json_t *v, const struct where *at,
                        struct job_spec *s)
{
    const char *name = json_string_value(json_object_get(v, "name"));
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
    if (json_object_size(v) == 0)
        field_fault(d, at, "required", "For example: {\"data\": 2, \"pipeline\": 1}.",
                    "This mesh is empty.");
    field_decode_object(d, &mesh_object, v, at, &s->strategy);
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
