/* checkpoint_manifest.c: to JSON and back. */
#include "trainer/checkpoint_manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void manifest_init(struct manifest *m, const char *job, int members, int ranks)
{
    *m = (struct manifest){.job = mem_strdup(job), .members = members, .ranks = ranks};
    m->updates = mem_zalloc((size_t)members * sizeof *m->updates);
    m->seen = mem_zalloc((size_t)members * sizeof *m->seen);
    m->shards = mem_zalloc((size_t)ranks * sizeof *m->shards);
}

void manifest_done(struct manifest *m)
{
    free(m->job);
    free(m->updates);
    free(m->seen);
    free(m->shards);
    *m = (struct manifest){0};
}

/* ---- printing ---- */

static json_t *exact(double x)
{
    char text[64];
    snprintf(text, sizeof text, "%a", x);
    return json_string(text);
}

static json_t *unsigned_number(uint64_t x)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, x);
    return json_string(text);
}

static json_t *members_json(const struct manifest *m)
{
    json_t *list = json_array();
    for (int i = 0; i < m->members; i++)
        json_array_append_new(
            list,
            json_pack("{s:I, s:o, s:o, s:o, s:o}", "updates", (json_int_t)m->updates[i], "items",
                      exact(m->seen[i].items), "loss", exact(m->seen[i].sums.loss), "accuracy",
                      exact(m->seen[i].sums.accuracy), "mae", exact(m->seen[i].sums.mae)));
    return list;
}

static json_t *shards_json(const struct manifest *m)
{
    json_t *list = json_array();
    for (int r = 0; r < m->ranks; r++) {
        char sum[CHECKPOINT_SUM_SIZE], name[48];
        snprintf(name, sizeof name, "rank-%d.safetensors", r);
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                              (json_int_t)m->shards[r].bytes, "xxh3_128",
                                              checkpoint_sum_text(m->shards[r].sum, sum)));
    }
    return list;
}

/* Only of runs that scale their gradients. */
static void add_loss_scale(const struct pieces_scalars *s, json_t *doc)
{
    if (s->loss_scale > 0)
        json_object_set_new(doc, "loss_scale",
                            json_pack("{s:o, s:I, s:o}", "factor", exact(s->loss_scale),
                                      "good_steps", (json_int_t)s->good_steps, "pending",
                                      exact(s->pending_scale)));
}

void manifest_print(const struct manifest *m, struct buf *ret)
{
    json_auto_t *doc = json_pack(
        "{s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o,"
        " s:{s:i, s:i, s:i}, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:o}, s:o, s:o}",
        "format", MANIFEST_FORMAT, "version", MANIFEST_VERSION, "job", m->job, "step",
        (json_int_t)m->scalars.step, "steps", (json_int_t)m->steps, "epoch", (json_int_t)m->epoch,
        "step_in_epoch", (json_int_t)m->step_in_epoch, "samples", (json_int_t)m->samples,
        "batch_size", (json_int_t)m->batch, "seed", unsigned_number(m->seed), "mesh", "data",
        m->data, "pipeline", m->pipeline, "tensor", m->tensor, "sync", "local_steps",
        (json_int_t)m->scalars.local_steps, "pending_items", (json_int_t)m->scalars.pending_items,
        "pending_step", (json_int_t)m->scalars.pending_step, "early_stopping", "best_epoch",
        (json_int_t)m->early.best_epoch, "waited", (json_int_t)m->early.waited, "best",
        exact(m->early.best), "members", members_json(m), "shards", shards_json(m));
    if (doc)
        add_loss_scale(&m->scalars, doc);
    CLEANUP(mem_freep) char *text = doc ? json_dumps(doc, JSON_INDENT(1)) : NULL;
    if (!text)
        BUG("a manifest that cannot be printed");
    buf_adds(ret, text);
    buf_adds(ret, "\n");
}

/* ---- parsing ---- */

/* The first fault is kept; what follows is harmless. */
struct reader {
    struct err *e;
    int result;
};

static void fault(struct reader *r, const char *name, const char *wanted)
{
    if (r->result == 0)
        r->result = err_set(r->e, ERR_CORRUPT, "\"%s\" of the manifest is not %s", name, wanted);
}

static int64_t integer(struct reader *r, const json_t *doc, const char *name, int64_t min,
                       int64_t max)
{
    const json_t *x = json_object_get(doc, name);
    int64_t value = json_integer_value(x);
    if (json_is_integer(x) && value >= min && value <= max)
        return value;
    fault(r, name, "a whole number in its range");
    return min;
}

static const char *text_of(struct reader *r, const json_t *doc, const char *name)
{
    const char *s = json_string_value(json_object_get(doc, name));
    if (!s)
        fault(r, name, "a text");
    return s ? s : "";
}

static double exact_of(struct reader *r, const json_t *doc, const char *name)
{
    const char *s = text_of(r, doc, name);
    char *end;
    double x = strtod(s, &end);
    if (end == s || *end)
        fault(r, name, "a floating-point text");
    return x;
}

static uint64_t unsigned_of(struct reader *r, const json_t *doc, const char *name)
{
    const char *s = text_of(r, doc, name);
    if (*s == '\0' || strlen(s) > 20 || strspn(s, "0123456789") != strlen(s))
        fault(r, name, "a decimal text");
    return strtoull(s, NULL, 10);
}

static const json_t *list_of(struct reader *r, const json_t *doc, const char *name, size_t most)
{
    const json_t *list = json_object_get(doc, name);
    if (!json_is_array(list) || json_array_size(list) < 1 || json_array_size(list) > most) {
        fault(r, name, "a list of its length");
        return NULL;
    }
    return list;
}

static void read_member(struct reader *r, const json_t *x, int64_t *updates, struct figures *seen)
{
    *updates = integer(r, x, "updates", 0, INT64_MAX);
    seen->items = exact_of(r, x, "items");
    seen->sums.loss = exact_of(r, x, "loss");
    seen->sums.accuracy = exact_of(r, x, "accuracy");
    seen->sums.mae = exact_of(r, x, "mae");
    if (!(seen->items >= 0 && seen->items <= 1e18))
        fault(r, "items", "a count");
}

static void read_shard(struct reader *r, const json_t *x, int rank, struct checkpoint_shard *ret)
{
    char name[48];
    snprintf(name, sizeof name, "rank-%d.safetensors", rank);
    if (strcmp(text_of(r, x, "name"), name) != 0)
        fault(r, "shards", "one shard of each rank, in order");
    ret->bytes = integer(r, x, "bytes", 1, INT64_MAX);
    if (checkpoint_sum_parse(text_of(r, x, "xxh3_128"), &ret->sum) < 0)
        fault(r, "xxh3_128", "32 hexadecimal digits");
}

static void read_scalars(struct reader *r, const json_t *doc, struct manifest *m)
{
    const json_t *sync = json_object_get(doc, "sync");
    const json_t *early = json_object_get(doc, "early_stopping");
    m->steps = integer(r, doc, "steps", 1, INT64_MAX);
    m->samples = integer(r, doc, "samples", 1, INT64_MAX);
    m->batch = integer(r, doc, "batch_size", 1, INT64_MAX);
    m->seed = unsigned_of(r, doc, "seed");
    m->epoch = integer(r, doc, "epoch", 1, INT64_MAX);
    m->step_in_epoch = integer(r, doc, "step_in_epoch", 0, INT64_MAX);
    m->scalars = (struct pieces_scalars){
        .step = integer(r, doc, "step", 1, m->steps),
        .local_steps = integer(r, sync, "local_steps", 0, INT64_MAX),
        .pending_items = integer(r, sync, "pending_items", 0, INT64_MAX),
        .pending_step = integer(r, sync, "pending_step", 0, INT64_MAX),
    };
    m->early = (struct early_stopping_state){
        .best_epoch = integer(r, early, "best_epoch", 0, m->epoch),
        .waited = integer(r, early, "waited", 0, INT64_MAX),
        .best = exact_of(r, early, "best"),
    };
}

static void read_loss_scale(struct reader *r, const json_t *doc, struct pieces_scalars *ret)
{
    const json_t *x = json_object_get(doc, "loss_scale");
    if (!x)
        return;
    ret->loss_scale = exact_of(r, x, "factor");
    ret->good_steps = integer(r, x, "good_steps", 0, INT64_MAX);
    ret->pending_scale = exact_of(r, x, "pending");
    if (!(ret->loss_scale >= 1 && ret->loss_scale <= LOSS_SCALE_MOST && ret->pending_scale >= 1 &&
          ret->pending_scale <= LOSS_SCALE_MOST))
        fault(r, "loss_scale", "a factor of 1 or more");
}

static void read_mesh(struct reader *r, const json_t *doc, struct manifest *m)
{
    const json_t *mesh = json_object_get(doc, "mesh");
    m->data = (int)integer(r, mesh, "data", 1, PLAN_MAX_RANKS);
    m->pipeline = (int)integer(r, mesh, "pipeline", 1, PLAN_MAX_RANKS);
    m->tensor = (int)integer(r, mesh, "tensor", 1, PLAN_MAX_RANKS);
    if ((int64_t)m->data * m->pipeline * m->tensor != m->ranks)
        fault(r, "mesh", "a mesh of as many ranks as there are shards");
    if (m->members != 1 && m->members != m->data)
        fault(r, "members", "one, or one of each data rank");
}

static int read_all(struct reader *r, const json_t *doc, struct manifest *ret)
{
    const json_t *members = list_of(r, doc, "members", PLAN_MAX_RANKS);
    const json_t *shards = list_of(r, doc, "shards", PLAN_MAX_RANKS);
    if (strcmp(text_of(r, doc, "format"), MANIFEST_FORMAT) != 0)
        fault(r, "format", "\"" MANIFEST_FORMAT "\"");
    integer(r, doc, "version", MANIFEST_VERSION, MANIFEST_VERSION);
    if (r->result < 0)
        return r->result;
    manifest_init(ret, text_of(r, doc, "job"), (int)json_array_size(members),
                  (int)json_array_size(shards));
    read_scalars(r, doc, ret);
    read_loss_scale(r, doc, &ret->scalars);
    read_mesh(r, doc, ret);
    for (int i = 0; i < ret->members; i++)
        read_member(r, json_array_get(members, (size_t)i), &ret->updates[i], &ret->seen[i]);
    for (int i = 0; i < ret->ranks; i++)
        read_shard(r, json_array_get(shards, (size_t)i), i, &ret->shards[i]);
    return r->result;
}

int manifest_parse(const char *text, size_t n, struct manifest *ret, struct err *e)
{
    json_error_t where;
    struct reader r = {.e = e};
    struct manifest m = {0};
    json_auto_t *doc = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    if (!doc)
        return err_set(e, ERR_CORRUPT, "the manifest is not JSON: %s (line %d)", where.text,
                       where.line);
    if (read_all(&r, doc, &m) < 0) {
        manifest_done(&m);
        return r.result;
    }
    *ret = m;
    return 0;
}
