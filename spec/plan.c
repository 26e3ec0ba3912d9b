#include "spec/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/field_err.h"
#include "spec/model.h"
#include "spec/names.h"
#include "spec/parallel.h"

void plan_done(struct plan *p)
{
    free(p->stage_first);
    free(p->recompute);
    free(p->why);
    *p = (struct plan){0};
}

int plan_stages(const struct plan *p)
{
    return p->pipeline * p->chunks;
}

static json_t *stages_to_json(const struct plan *p)
{
    json_t *list = json_array();
    for (int i = 0; i < plan_stages(p); i++)
        json_array_append_new(list, json_pack("[ii]", p->stage_first[i], p->stage_first[i + 1]));
    return list;
}

static json_t *mesh_to_json(const struct plan *p)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:i}", "data", p->data, "pipeline",
                     p->pipeline, "tensor", p->tensor, "chunks", p->chunks, "microbatches",
                     p->microbatches, "schedule", pipeline_schedule_name(p->schedule), "zero",
                     p->zero);
}

static json_t *recompute_to_json(const struct plan *p)
{
    json_t *list = json_array();
    int layers = p->recompute ? p->stage_first[plan_stages(p)] : 0;
    for (int i = 0; i < layers; i++)
        if (p->recompute[i])
            json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *parallel_to_json(const struct parallel *p)
{
    return json_pack("{s:b, s:I, s:s, s:I, s:f, s:f, s:s, s:f, s:s, s:b, s:b}", "reproducible",
                     p->reproducible, "grains", (json_int_t)p->grains, "sync", sync_name(p->sync),
                     "local_steps", (json_int_t)p->local_steps, "outer_learning_rate",
                     p->outer_learning_rate, "outer_momentum", p->outer_momentum, "codec",
                     codec_name(p->codec), "top_k", p->top_k, "shares", shares_name(p->shares),
                     "rebalance", p->rebalance, "overlap", p->overlap);
}

json_t *plan_to_json(const struct plan *p)
{
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:I, s:s, s:s}", "name",
                     strategy_name(p->kind), "ranks", p->ranks, "mesh", mesh_to_json(p), "stages",
                     stages_to_json(p), "recompute", recompute_to_json(p), "parallel",
                     parallel_to_json(&p->parallel), "memory_bytes", (json_int_t)p->memory_bytes,
                     "chosen_by", p->chosen_by_auto ? "auto" : "user", "why", p->why ? p->why : "");
}

static const struct field parallel_fields[] = {PARALLEL_FIELDS(struct parallel, )};
const struct object parallel_object = OBJECT("a plan's parallel", parallel_fields, NULL);

void parallel_set_defaults(struct parallel *p)
{
    field_set_defaults(&parallel_object, p);
}

static const struct word choosers[] = {{"user", 0}, {"auto", 1}};
static const struct words chooser_words = WORDS("who chose", choosers);

static void decode_stages(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct plan *p = base;
    size_t n = json_array_size(v);
    if (n == 0 || n > MODEL_MAX_LAYERS) {
        field_wrong_type(d, at, "stages", "a list of [first, end] pairs", "[[0, 2], [2, 4]]", v);
        return;
    }
    p->stage_first = mem_zalloc((n + 1) * sizeof *p->stage_first);
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(v, i);
        int64_t first = -1, end = -1;
        int whole = json_array_size(pair) == 2 && field_whole(json_array_get(pair, 0), &first) &&
                    field_whole(json_array_get(pair, 1), &end);
        if (!whole || first != p->stage_first[i] || end < first || end > MODEL_MAX_LAYERS ||
            (end == first && n > 1)) {
            field_fault(d, FIELD_ITEM(at, i), "invalid", NULL,
                        "Stages must be [first, end] pairs that follow one another from layer 0.");
            return;
        }
        p->stage_first[i + 1] = (int)end;
    }
}

static const struct field mesh_fields[] = {
    {.name = "data",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, data),
     .required = 1,
     .min = 1,
     .max = PLAN_MAX_RANKS,
     .help = "data-parallel size",
     .example = "2"},
    {.name = "pipeline",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, pipeline),
     .required = 1,
     .min = 1,
     .max = PLAN_MAX_RANKS,
     .help = "number of stages",
     .example = "2"},
    {.name = "tensor",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, tensor),
     .fallback = 1,
     .min = 1,
     .max = PLAN_MAX_RANKS,
     .help = "ranks that a layer is split over",
     .example = "1"},
    {.name = "chunks",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, chunks),
     .fallback = 1,
     .min = 1,
     .max = MODEL_MAX_LAYERS,
     .help = "stages of a pipeline rank",
     .example = "1"},
    {.name = "zero",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, zero),
     .max = 3,
     .help = "what the data ranks divide among them",
     .example = "1"},
    {.name = "microbatches",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, microbatches),
     .required = 1,
     .min = 1,
     .max = PLAN_MAX_MICROBATCHES,
     .help = "micro-batches of a step",
     .example = "4"},
    {.name = "schedule",
     .kind = FIELD_ENUM,
     FIELD_AT(struct plan, schedule),
     .required = 1,
     .words = &pipeline_schedule_words,
     .help = "pipeline schedule",
     .example = "\"1f1b\""},
};
static const struct object mesh_object = OBJECT("a plan's mesh", mesh_fields, NULL);

static void decode_mesh(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    field_decode_object(d, &mesh_object, v, at, base);
}

/* After "stages", the last of which tells how many layers there are. */
static void decode_recompute(struct decoding *d, const json_t *v, const struct where *at,
                             void *base)
{
    struct plan *p = base;
    if (!json_is_array(v) || json_array_size(v) > MODEL_MAX_LAYERS) {
        field_wrong_type(d, at, "recompute", "a list of layers", "[0, 1]", v);
        return;
    }
    free(p->recompute);
    p->recompute = NULL;
    p->recompute_count = 0;
    if (json_array_size(v) == 0)
        return;
    p->recompute = mem_zalloc(MODEL_MAX_LAYERS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        int64_t layer = -1;
        if (!field_whole(json_array_get(v, i), &layer) || layer < 0 || layer >= MODEL_MAX_LAYERS ||
            p->recompute[layer]) {
            field_fault(d, FIELD_ITEM(at, i), "invalid", NULL,
                        "This must be the number of a layer that is not in the list yet.");
            return;
        }
        p->recompute[layer] = 1;
        p->recompute_count++;
    }
}

static const struct field plan_fields[] = {
    {.name = "name",
     .kind = FIELD_ENUM,
     FIELD_AT(struct plan, kind),
     .required = 1,
     .words = &strategy_words,
     .help = "the strategy",
     .example = "\"mirrored\""},
    {.name = "ranks",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, ranks),
     .required = 1,
     .min = 1,
     .max = PLAN_MAX_RANKS,
     .help = "number of ranks",
     .example = "2"},
    {.name = "mesh",
     .kind = FIELD_CUSTOM,
     .decode = decode_mesh,
     .required = 1,
     .help = "sizes by axis",
     .example = "{}"},
    {.name = "stages",
     .kind = FIELD_CUSTOM,
     .decode = decode_stages,
     .required = 1,
     .help = "layers by stage",
     .example = "[[0, 2]]"},
    {.name = "recompute",
     .kind = FIELD_CUSTOM,
     .decode = decode_recompute,
     .help = "layers whose output is computed again",
     .example = "[0]"},
    {.name = "parallel",
     .kind = FIELD_OBJECT,
     .object = &parallel_object,
     FIELD_AT(struct plan, parallel),
     .help = "how the ranks work together",
     .example = "{}"},
    {.name = "memory_bytes",
     .kind = FIELD_INT,
     FIELD_AT(struct plan, memory_bytes),
     .min = 0,
     .max = (double)INT64_MAX,
     .help = "predicted peak of a rank",
     .example = "0"},
    {.name = "chosen_by",
     .kind = FIELD_ENUM,
     FIELD_AT(struct plan, chosen_by_auto),
     .words = &chooser_words,
     .help = "who chose",
     .example = "\"user\""},
    {.name = "why",
     .kind = FIELD_TEXT,
     FIELD_AT(struct plan, why),
     .max = 4096,
     .fallback_text = "",
     .help = "why it was chosen",
     .example = "\"\""},
};
static const struct object plan_object = OBJECT("a plan", plan_fields, NULL);

static void check_plan(struct decoding *d, const struct plan *p, const json_t *doc,
                       const struct where *at)
{
    if (d->faults->total > 0)
        return;
    if (p->kind == STRATEGY_AUTO)
        field_fault(d, FIELD_WHERE(at, "name"), "invalid", NULL, "A plan is never \"auto\".");
    if ((int64_t)p->data * p->pipeline * p->tensor != p->ranks)
        field_fault(d, FIELD_WHERE(at, "mesh"), "invalid", NULL,
                    "%d data ranks by %d pipeline ranks by %d tensor ranks are not %d ranks.",
                    p->data, p->pipeline, p->tensor, p->ranks);
    if (json_array_size(json_object_get(doc, "stages")) != (size_t)p->pipeline * (size_t)p->chunks)
        field_fault(d, FIELD_WHERE(at, "stages"), "invalid", NULL, "There must be %lld stages.",
                    (long long)p->pipeline * p->chunks);
    else
        for (int i = p->stage_first[plan_stages(p)]; p->recompute && i < MODEL_MAX_LAYERS; i++)
            if (p->recompute[i])
                field_fault(d, FIELD_WHERE(at, "recompute"), "invalid", NULL,
                            "There is no layer %d.", i);
}

int plan_from_json(const json_t *doc, struct plan *ret, struct err *e)
{
    struct faults faults = {0}, warnings = {0};
    struct decoding d = {.faults = &faults, .warnings = &warnings};
    struct where root = {.key = ""};
    struct plan p = {0};
    field_decode_object(&d, &plan_object, doc, &root, &p);
    check_plan(&d, &p, doc, &root);
    int r = field_first_fault(&faults, "the plan", e);
    faults_done(&faults);
    faults_done(&warnings);
    if (r < 0)
        plan_done(&p);
    else
        *ret = p;
    return r;
}
