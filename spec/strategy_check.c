/* strategy_check.c: whether the parts of a strategy go together, and with the rest of the job. */
#include "spec/job_decode.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "spec/codec.h"
#include "spec/names.h"
#include "spec/plan.h"

/* What a check looks at. */
struct asked {
    struct decoding *d;
    struct job_spec *job;
    struct strategy *s;
    const json_t *mesh; /* NULL: a name, or nothing */
    const struct where *at;
    int model_known;
};

static int given(const struct asked *a, const char *key)
{
    return json_object_get(a->mesh, key) != NULL;
}

static int64_t or_one(int64_t size)
{
    return size ? size : 1;
}

/* The number of data ranks; 0: to be chosen, and more than one is possible. */
static int64_t data_ranks(const struct asked *a)
{
    int64_t devices = a->job->resources.devices;
    if (a->s->is_mesh)
        return or_one(a->s->data);
    switch (a->s->kind) {
    case STRATEGY_MIRRORED:
    case STRATEGY_LOCAL_SGD: return devices;
    case STRATEGY_AUTO: return devices == 1 ? 1 : 0;
    default: return 1;
    }
}

static int has_layer(const struct asked *a, enum layer_type t)
{
    const struct model *m = &a->job->model;
    for (int i = 0; i < m->layer_count; i++)
        if (m->layers[i].type == t)
            return 1;
    return 0;
}

#define FAULT(a, key, code, hint, ...)                                                             \
    field_fault((a)->d, FIELD_WHERE((a)->at, key), code, hint, __VA_ARGS__)

/* ---- sizes ---- */

static void check_mesh(const struct asked *a)
{
    const struct strategy *m = a->s;
    long long data = or_one(m->data), pipeline = or_one(m->pipeline), tensor = or_one(m->tensor),
              devices = a->job->resources.devices, product = data * pipeline * tensor;
    char hint[160], times[64] = "";
    if (tensor > 1)
        snprintf(times, sizeof times, " times tensor %lld", tensor);
    snprintf(hint, sizeof hint, "Set /resources/devices to %lld, or the mesh to %lld.", product,
             devices);
    if (product != devices)
        field_fault(a->d, a->at, "mesh_mismatch", hint,
                    "data %lld times pipeline %lld%s is %lld, but /resources/devices is %lld.",
                    data, pipeline, times, product, devices);
    else if (m->microbatches > a->job->fit.batch_size)
        field_warn(a->d, FIELD_WHERE(a->at, "microbatches"), "wasteful", NULL,
                   "%lld micro-batches of a batch of %lld items leave some of them empty.",
                   (long long)m->microbatches, (long long)a->job->fit.batch_size);
}

static void check_named(const struct asked *a)
{
    enum strategy_kind kind = a->s->kind;
    long long devices = (long long)a->job->resources.devices;
    if (kind == STRATEGY_NONE && devices > 1)
        field_fault(a->d, a->at, "devices_mismatch",
                    "Write \"mirrored\" to use them all, or set /resources/devices to 1.",
                    "The strategy \"none\" trains on one device, but /resources/devices is %lld.",
                    devices);
    if (kind != STRATEGY_AUTO && kind != STRATEGY_NONE && devices == 1)
        field_warn(a->d, a->at, "no_effect", "Set /resources/devices to 2 or more.",
                   "The strategy \"%s\" on one device is the same as \"none\".",
                   strategy_name(kind));
}

/* ---- the pipeline ---- */

int layer_has_work(const struct layer *l)
{
    return l->parameters > 0 || l->type == LAYER_RESCALING;
}

static void check_stages(const struct asked *a)
{
    int most = plan_most_stages(&a->job->model);
    const struct strategy *m = a->s;
    int64_t ranks = m->is_mesh ? or_one(m->pipeline) : a->job->resources.devices;
    int64_t stages = ranks * or_one(m->chunks);
    char hint[256];
    if ((m->kind != STRATEGY_PIPELINE && or_one(m->pipeline) == 1) || stages <= most)
        return;
    if (m->chunks > 1)
        snprintf(hint, sizeof hint, "Use fewer \"chunks\" or pipeline ranks: up to %d stages.",
                 most);
    else
        snprintf(hint, sizeof hint,
                 "Use up to %d, or add data parallelism with a mesh such as {\"data\": 2, "
                 "\"pipeline\": %d} over %d devices.",
                 most, most, 2 * most);
    field_fault(a->d, a->at, "too_many_stages", hint,
                "A pipeline of %lld stages needs as many layers with work, but the model has "
                "%d%s.",
                (long long)stages, most, has_layer(a, LAYER_ADD) ? " that may be cut apart" : "");
}

static void check_interleaved(const struct asked *a)
{
    struct strategy *s = a->s;
    if (s->schedule != SCHEDULE_INTERLEAVED) {
        if (s->chunks > 1)
            FAULT(a, "chunks", "conflict",
                  "Write \"schedule\": \"interleaved\", or leave one of the two out.",
                  "More than one chunk a rank is what \"interleaved\" means; \"%s\" has one.",
                  pipeline_schedule_name(s->schedule));
        return;
    }
    if (s->is_mesh && or_one(s->pipeline) < 2)
        FAULT(a, given(a, "schedule") ? "schedule" : "chunks", "conflict",
              "Add \"pipeline\": 2, or leave it out.",
              "Chunks of the model (\"interleaved\") are spread over 2 or more pipeline ranks, but "
              "there is one.");
    else if (s->chunks == 1)
        FAULT(a, "chunks", "conflict", "Write \"chunks\": 2, or \"schedule\": \"1f1b\".",
              "\"interleaved\" with one chunk a rank is \"1f1b\".");
    else if (s->chunks == 0)
        s->chunks = 2;
}

/* Batch normalisation takes its moments over the global batch: all micro-batches must have passed
 * through the layers before it, which is GPipe's order. */
static void check_moments(const struct asked *a)
{
    if (!a->model_known || !has_layer(a, LAYER_BATCH_NORMALIZATION) ||
        a->s->schedule == SCHEDULE_GPIPE || a->s->microbatches == 1)
        return;
    FAULT(a, "schedule", "conflict",
          "Write \"schedule\": \"gpipe\", or \"microbatches\": 1, or use layer_normalization.",
          "batch_normalization needs the moments of the whole batch before its first output, so "
          "all micro-batches must come forward first; with \"%s\" some go back before.",
          pipeline_schedule_name(a->s->schedule));
}

static void settle_schedule(const struct asked *a)
{
    if (given(a, "schedule"))
        return;
    if (a->s->chunks > 1)
        a->s->schedule = SCHEDULE_INTERLEAVED;
    else if (a->model_known && has_layer(a, LAYER_BATCH_NORMALIZATION))
        a->s->schedule = SCHEDULE_GPIPE;
}

/* ---- the same bits ---- */

static int is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static int check_grains(const struct asked *a)
{
    const struct parallel *p = &a->s->parallel;
    int64_t data = data_ranks(a);
    char hint[160];
    if (!is_power_of_two(p->grains)) {
        snprintf(hint, sizeof hint, "Write %d.", 1 << (int)lround(log2((double)p->grains)));
        FAULT(
            a, "grains", "invalid", hint,
            "The grains of a reproducible batch are added in pairs, so \"grains\" must be 1, 2, 4, "
            "8, 16, 32 or 64, but is %lld.",
            (long long)p->grains);
        return 0;
    }
    if (data == 0 || p->grains % data == 0)
        return 1;
    if (is_power_of_two(data) && data <= 64)
        snprintf(hint, sizeof hint, "Write \"grains\": %lld (other grains are other bits).",
                 (long long)data);
    else
        snprintf(hint, sizeof hint,
                 "Use 1, 2, 4, ... data ranks, up to 64, and the other ranks for a pipeline.");
    FAULT(
        a, a->s->is_mesh ? "data" : "reproducible", "conflict", hint,
        "A reproducible batch is cut into %lld grains, which %lld data ranks cannot divide evenly.",
        (long long)p->grains, (long long)data);
    return 0;
}

static void check_own_microbatches(const struct asked *a)
{
    const struct strategy *s = a->s;
    int64_t data = data_ranks(a), own = data ? s->parallel.grains / data : 0;
    char hint[96];
    if (!s->microbatches || s->microbatches == own)
        return;
    if (!own) {
        FAULT(a, "microbatches", "conflict", "Leave it out, or say \"data\" too.",
              "The micro-batches of a reproducible run are its grains: %lld by the number of data "
              "ranks, which is chosen here.",
              (long long)s->parallel.grains);
        return;
    }
    snprintf(hint, sizeof hint, "Leave it out, or write %lld.", (long long)own);
    FAULT(a, "microbatches", "conflict", hint,
          "The micro-batches of a reproducible run are its grains: %lld by %lld data rank%s makes "
          "%lld, not %lld.",
          (long long)s->parallel.grains, (long long)data, data == 1 ? "" : "s", (long long)own,
          (long long)s->microbatches);
}

#define OR_NOT "Leave it out, or \"reproducible\"."

static void check_reproducible(const struct asked *a)
{
    const struct parallel *p = &a->s->parallel;
    if (a->s->tensor > 1)
        FAULT(a, "tensor", "conflict", "Use data or pipeline ranks instead.",
              "Layers split over tensor ranks add their parts in another order than a whole layer, "
              "so the bits cannot be the same.");
    if (p->sync != SYNC_EVERY_STEP)
        FAULT(a, "sync", "conflict", OR_NOT,
              "The same bits are promised where data ranks agree at every step; \"%s\" is other "
              "mathematics.",
              sync_name(p->sync));
    if (p->codec != CODEC_NONE)
        FAULT(a, "codec", "conflict", OR_NOT,
              "The codec \"%s\" rounds what each data rank sends, so the bits depend on how many "
              "there are.",
              codec_name(p->codec));
    if (p->shares == SHARES_MEASURED)
        FAULT(a, "shares", "conflict", OR_NOT,
              "Measured shares follow the ranks' speeds, but grains are always cut alike.");
    if (check_grains(a))
        check_own_microbatches(a);
}

/* ---- what data ranks do for one another ---- */

static void check_sync(const struct asked *a)
{
    const struct strategy *s = a->s;
    const struct parallel *p = &s->parallel;
    if (p->sync == SYNC_LOCAL_SGD && s->zero > 0)
        FAULT(a, "zero", "conflict", "Write \"zero\": 0, or leave \"sync\" out.",
              "With local_sgd each data rank has weights and optimizer state of its own, so there "
              "is nothing that they could divide.");
    if (p->sync == SYNC_DELAYED && s->zero == 3)
        FAULT(a, "zero", "conflict", "Write \"zero\": 2 or less, or leave \"sync\" out.",
              "With \"zero\": 3 the next step must wait for the new parameters of every layer, so "
              "that delayed gradients hide nothing.");
    if (p->codec != CODEC_NONE && s->zero > 0)
        FAULT(a, "zero", "conflict", "Write \"zero\": 0, or leave \"codec\" out.",
              "Packed gradients are added up whole on every data rank, so there is nothing that "
              "they could divide.");
    if (codec_keeps_residual(p->codec) && s->tensor > 1)
        FAULT(a, "codec", "conflict", "Write \"codec\": \"bf16\", or leave one of the two out.",
              "What the codec \"%s\" rounds an element to depends on its neighbours, which differ "
              "between tensor ranks, so parameters that all of them have would become unlike.",
              codec_name(p->codec));
    if (p->codec != CODEC_NONE && p->sync == SYNC_LOCAL_SGD)
        FAULT(
            a, "codec", "conflict", "Leave one of the two out.",
            "A codec packs gradients, and with local_sgd none travel: only weights do, every %lld "
            "steps.",
            (long long)p->local_steps);
}

struct idle {
    const char *key, *of;
    int works;
};

/* Fields that were written, but belong to something that was not asked for. */
static void warn_idle(const struct asked *a)
{
    const struct strategy *s = a->s;
    const struct parallel *p = &s->parallel;
    int one = data_ranks(a) == 1, local = p->sync == SYNC_LOCAL_SGD;
    int stages = s->kind == STRATEGY_AUTO ? a->job->resources.devices > 1 : s->pipeline > 1;
    const struct idle list[] = {
        {"grains", "\"reproducible\": true", p->reproducible},
        {"local_steps", "\"sync\": \"local_sgd\"", local},
        {"outer_learning_rate", "\"sync\": \"local_sgd\"", local},
        {"outer_momentum", "\"sync\": \"local_sgd\"", local},
        {"top_k", "\"codec\": \"top_k\"", p->codec == CODEC_TOP_K},
        {"zero", "2 or more data ranks", !one || s->zero <= 0},
        {"codec", "2 or more data ranks", !one || p->codec == CODEC_NONE},
        {"shares", "2 or more data ranks", !one || p->shares == SHARES_EVEN},
        {"overlap", "data ranks that exchange gradients", (!one && !local) || !p->overlap},
        {"rebalance", "a pipeline of 2 or more stages", stages || !p->rebalance},
    };
    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        if (given(a, list[i].key) && !list[i].works)
            field_warn(a->d, FIELD_WHERE(a->at, list[i].key), "no_effect", NULL,
                       "\"%s\" has no effect without %s.", list[i].key, list[i].of);
}

void check_strategy(struct decoding *d, struct job_spec *s, const json_t *doc,
                    const struct where *at)
{
    const json_t *strategy = json_object_get(doc, "strategy");
    struct asked a = {.d = d,
                      .job = s,
                      .s = &s->strategy,
                      .mesh = json_is_object(strategy) ? strategy : NULL,
                      .at = FIELD_WHERE(at, "strategy"),
                      .model_known = field_clean(d, "/model")};
    if (!field_clean(d, "/strategy") || !field_clean(d, "/resources"))
        return;
    settle_schedule(&a);
    if (!strategy)
        return;
    if (s->strategy.is_mesh)
        check_mesh(&a);
    else
        check_named(&a);
    if (a.mesh) {
        warn_idle(&a);
        check_interleaved(&a);
        check_moments(&a);
        check_sync(&a);
        if (s->strategy.parallel.reproducible)
            check_reproducible(&a);
    }
    if (a.model_known)
        check_stages(&a);
}
