/* checkpoint_shard.c: pieces as tensors of a file, and back. */
#include "trainer/checkpoint_shard.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define BEST "best"

/* ---- writing ---- */

static char *about(const struct piece *p, const char *kind, const char *tensor)
{
    json_auto_t *doc =
        json_pack("{s:s, s:s, s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:i}", "kind", kind, "tensor",
                  tensor, "number", (json_int_t)p->number, "axis", p->part.axis, "begin",
                  (json_int_t)p->part.begin, "end", (json_int_t)p->part.end, "extent",
                  (json_int_t)p->part.extent, "from", (json_int_t)p->from, "to", (json_int_t)p->to,
                  "replica", p->replica, "replicas", p->replicas);
    char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    if (!text)
        BUG("a piece that cannot be printed");
    return text;
}

static void add(struct checkpoint_item *items, int *n, const struct piece_copy *c, int is_best)
{
    for (size_t i = 0; c && i < c->count; i++, (*n)++) {
        const struct piece *p = &c->pieces[i];
        const char *kind = is_best ? BEST : piece_kind_name(p->kind);
        items[*n] = (struct checkpoint_item){
            .name = mem_printf("%s/%s/%d", kind, c->names[i], *n),
            .about = about(p, kind, c->names[i]),
            .values = c->values[i],
            .elements = (int64_t)(p->to - p->from),
        };
    }
}

struct checkpoint_item *shard_items(const struct piece_copy *snapshot,
                                    const struct piece_copy *best, int *ret_count)
{
    size_t count = snapshot->count + (best ? best->count : 0);
    struct checkpoint_item *items = mem_alloc((count + 1) * sizeof *items);
    *ret_count = 0;
    add(items, ret_count, snapshot, 0);
    add(items, ret_count, best, 1);
    return items;
}

void shard_items_free(struct checkpoint_item *items, int count)
{
    for (int i = 0; i < count; i++) {
        free((char *)items[i].name);
        free((char *)items[i].about);
    }
    free(items);
}

/* ---- reading ---- */

struct shard {
    struct safetensors *file;
    char *name;
    json_t *about; /* of the piece that was asked for last */
};

int shard_open(int take_fd, const char *name_for_errors, struct shard **ret, struct err *e)
{
    struct safetensors *file;
    int r = safetensors_open(take_fd, name_for_errors, &file, e);
    if (r < 0)
        return r;
    struct shard *s = mem_zalloc(sizeof *s);
    s->file = file;
    s->name = mem_strdup(name_for_errors);
    *ret = s;
    return 0;
}

void shard_close(struct shard *s)
{
    if (!s)
        return;
    safetensors_close(s->file);
    json_decref(s->about);
    free(s->name);
    free(s);
}

int shard_count(const struct shard *s)
{
    return safetensors_count(s->file);
}

/* *bad is set where it is missing or out of its range. */
static int64_t number(const json_t *doc, const char *name, int64_t min, int64_t max, int *bad)
{
    const json_t *x = json_object_get(doc, name);
    int64_t value = json_integer_value(x);
    if (json_is_integer(x) && value >= min && value <= max)
        return value;
    *bad = 1;
    return min;
}

static int read_kind(const char *name, struct shard_piece *ret)
{
    ret->is_best = name && strcmp(name, BEST) == 0;
    ret->piece.kind = PIECE_PARAMETER;
    if (ret->is_best)
        return 0;
    for (int k = 0; name && k < PIECE_KIND__MAX; k++)
        if (strcmp(name, piece_kind_name((enum piece_kind)k)) == 0) {
            ret->piece.kind = (enum piece_kind)k;
            return 0;
        }
    return -1;
}

static int read_piece(const json_t *doc, int64_t elements, struct shard_piece *ret)
{
    int bad = read_kind(json_string_value(json_object_get(doc, "kind")), ret) < 0;
    struct piece *p = &ret->piece;
    ret->tensor = json_string_value(json_object_get(doc, "tensor"));
    p->number = (uint64_t)number(doc, "number", 0, INT64_MAX, &bad);
    p->part.axis = (int)number(doc, "axis", 0, SHAPE_MAX_DIMS - 1, &bad);
    p->part.begin = number(doc, "begin", 0, MODEL_MAX_PARAMETERS, &bad);
    p->part.end = number(doc, "end", p->part.begin, MODEL_MAX_PARAMETERS, &bad);
    p->part.extent = number(doc, "extent", 0, MODEL_MAX_PARAMETERS, &bad);
    p->from = (size_t)number(doc, "from", 0, MODEL_MAX_PARAMETERS, &bad);
    p->to = (size_t)number(doc, "to", (int64_t)p->from, MODEL_MAX_PARAMETERS, &bad);
    p->replicas = (int)number(doc, "replicas", 1, PLAN_MAX_RANKS, &bad);
    p->replica = (int)number(doc, "replica", -1, p->replicas - 1, &bad);
    return bad || !ret->tensor || (int64_t)(p->to - p->from) != elements ? -1 : 0;
}

int shard_piece(struct shard *s, int i, struct shard_piece *ret, struct err *e)
{
    const char *name = safetensors_name(s->file, i);
    const char *text = safetensors_metadata(s->file, name);
    struct shard_piece p = {0};
    json_decref(s->about);
    s->about = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (!s->about || read_piece(s->about, safetensors_elements(s->file, i), &p) < 0)
        return err_set(e, ERR_CORRUPT,
                       "%s does not say in its __metadata__ where the %lld values of \"%.100s\" "
                       "belong",
                       s->name, (long long)safetensors_elements(s->file, i), name);
    *ret = p;
    return 0;
}

int shard_read(const struct shard *s, int i, size_t from, size_t to, float *out, struct err *e)
{
    return safetensors_read_part(s->file, i, (int64_t)from, (int64_t)to, out, e);
}

int shard_check_tensor(const struct model *m, const struct shard_piece *p, struct err *e)
{
    uint64_t number = 0;
    for (int l = 0; l < m->layer_count; l++)
        for (int t = 0; t < m->layers[l].tensor_count; t++, number++) {
            if (number != p->piece.number)
                continue;
            CLEANUP(mem_freep)
            char *name = mem_printf("%s.%s", m->layers[l].name, m->layers[l].tensors[t].name);
            if (strcmp(name, p->tensor) == 0)
                return 0;
            return err_set(e, ERR_CORRUPT,
                           "it has a tensor \"%.80s\" where this model has \"%.80s\"", p->tensor,
                           name);
        }
    return err_set(e, ERR_CORRUPT,
                   "it has a tensor \"%.80s\", number %" PRIu64 "; this model has %" PRIu64,
                   p->tensor, p->piece.number, number);
}
