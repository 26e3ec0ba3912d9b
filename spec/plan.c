#include "spec/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/field_err.h"
#include "spec/model.h"
#include "spec/names.h"

void plan_done(struct plan *p)
{
    free(p->stage_first);
    free(p->why);
    *p = (struct plan){0};
}

static json_t *stages_to_json(const struct plan *p)
{
    json_t *list = json_array();
    for (int i = 0; i < p->pipeline; i++)
        json_array_append_new(list, json_pack("[ii]", p->stage_first[i], p->stage_first[i + 1]));
    return list;
}

json_t *plan_to_json(const struct plan *p)
{
    return json_pack("{s:s, s:i, s:{s:i, s:i, s:i, s:s}, s:o, s:I, s:s, s:s}", "name",
                     strategy_name(p->kind), "ranks", p->ranks, "mesh", "data", p->data, "pipeline",
                     p->pipeline, "microbatches", p->microbatches, "schedule",
                     pipeline_schedule_name(p->schedule), "stages", stages_to_json(p),
                     "memory_bytes", (json_int_t)p->memory_bytes, "chosen_by",
                     p->chosen_by_auto ? "auto" : "user", "why", p->why ? p->why : "");
}

static const struct word choosers[] = {{"user", 0}, {"auto", 1}};
static const struct words chooser_words = WORDS("who chose", choosers);

static void decode_stages(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct plan *p = base;
    size_t n = json_array_size(v);
    if (n == 0 || n > PLAN_MAX_RANKS) {
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
    if (p->data * p->pipeline != p->ranks)
        field_fault(d, FIELD_WHERE(at, "mesh"), "invalid", NULL,
                    "%d data ranks by %d stages are not %d ranks.", p->data, p->pipeline, p->ranks);
    if (json_array_size(json_object_get(doc, "stages")) != (size_t)p->pipeline)
        field_fault(d, FIELD_WHERE(at, "stages"), "invalid", NULL, "There must be %d stages.",
                    p->pipeline);
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
