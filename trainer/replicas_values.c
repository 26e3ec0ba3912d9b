/* replicas_values.c: values by their place in the arenas, for whoever saves, loads or starts a run.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/replicas_parts.h"

static const struct arena *arena_of(const struct replicas *r, enum piece_kind k)
{
    static const struct arena none = {0};
    switch (k) {
    case PIECE_PARAMETER: return &r->master;
    case PIECE_STATE_0: return &r->state[0];
    case PIECE_STATE_1: return &r->state[1];
    case PIECE_PENDING: return r->is_delayed ? &r->gradient[r->writes] : &none;
    case PIECE_ANCHOR: return &r->anchor;
    case PIECE_OUTER: return &r->outer;
    case PIECE_RESIDUAL: return &r->residual;
    case PIECE_KIND__MAX: break;
    }
    return &none;
}

int replicas_keeps(const struct replicas *r, enum piece_kind k)
{
    return arena_of(r, k)->at != NULL;
}

int replicas_differ(const struct replicas *r, enum piece_kind k)
{
    int is_own = k == PIECE_PARAMETER || k == PIECE_STATE_0 || k == PIECE_STATE_1;
    return r->alone || (r->is_apart && is_own) || k == PIECE_RESIDUAL;
}

/* ---- ranges ---- */

static const struct bucket *bucket_at(const struct replicas *r, size_t at)
{
    int i = 0;
    while (r->buckets[i].begin > at)
        i++;
    return &r->buckets[i];
}

size_t replicas_stretch(const struct replicas *r, size_t at)
{
    return at < r->net->trained ? bucket_at(r, at)->end : r->net->elements;
}

static void clip(size_t low, size_t high, size_t *begin, size_t *end)
{
    *begin = *begin < low ? low : *begin;
    *end = *end > high ? high : *end;
    *end = *end < *begin ? *begin : *end;
}

static void clip_arena(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end)
{
    const struct bucket *b = bucket_at(r, *begin);
    /* Of sums in whole arenas, too, only the own part is complete. */
    if (arena_of(r, k)->is_divided || (k == PIECE_PENDING && r->zero > 0))
        clip(b->own_begin, b->own_end, begin, end);
}

void replicas_clip_held(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end)
{
    /* Copies of all parameters come of the same values as the masters of the own part. */
    int has_all = k == PIECE_PARAMETER && r->copies.at;
    if (*begin < r->net->trained && !has_all)
        clip_arena(r, k, begin, end);
}

void replicas_clip_saved(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end)
{
    size_t low, high;
    if (replicas_differ(r, k))
        return;
    if (*begin >= r->net->trained) {
        *end = r->data_rank == 0 ? *end : *begin;
        return;
    }
    part_of(r, bucket_at(r, *begin), &low, &high);
    clip(low, high, begin, end);
}

/* ---- to and from the host ---- */

static void *place_of(const struct replicas *r, enum piece_kind k, size_t at)
{
    if (at >= r->net->trained)
        return r->fixed + (at - r->net->trained);
    return arena_at(arena_of(r, k), bucket_at(r, at), at);
}

static int is_packed(const struct replicas *r, enum piece_kind k, size_t at)
{
    return at < r->net->trained && arena_of(r, k)->type == STORAGE_BFLOAT16;
}

void replicas_get(const struct replicas *r, enum piece_kind k, size_t at, size_t n, float *host)
{
    const void *from = place_of(r, k, at);
    if (!is_packed(r, k, at)) {
        r->net->ops->download(host, from, n * sizeof *host);
        return;
    }
    uint16_t *packed = (uint16_t *)host; /* the first half of the room, read from its end */
    r->net->ops->download(packed, from, n * sizeof *packed);
    for (size_t i = n; i-- > 0;) {
        uint16_t x;
        memcpy(&x, packed + i, sizeof x);
        float y = elem_from_bfloat16(x);
        memcpy(host + i, &y, sizeof y);
    }
}

static void set_packed(const struct replicas *r, uint16_t *at, size_t n, const float *host)
{
    CLEANUP(mem_freep) uint16_t *packed = mem_alloc(n * sizeof *packed + 1);
    for (size_t i = 0; i < n; i++)
        packed[i] = elem_to_bfloat16(host[i]);
    r->net->ops->upload(at, packed, n * sizeof *packed);
}

/* Within one stretch. */
static void set_stretch(struct replicas *r, enum piece_kind k, size_t at, size_t n,
                        const float *host)
{
    size_t begin = at, end = at + n;
    if (at >= r->net->trained) {
        r->net->ops->upload(place_of(r, k, at), host, n * sizeof *host);
        return;
    }
    if (k == PIECE_PARAMETER && r->copies.at)
        set_packed(r, (uint16_t *)r->copies.at + at, n, host);
    clip_arena(r, k, &begin, &end);
    if (begin == end)
        return;
    host += begin - at;
    if (is_packed(r, k, begin))
        set_packed(r, place_of(r, k, begin), end - begin, host);
    else
        r->net->ops->upload(place_of(r, k, begin), host, (end - begin) * sizeof *host);
}

void replicas_set(struct replicas *r, enum piece_kind k, size_t at, size_t n, const float *host)
{
    for (size_t from = at, next; from < at + n; from = next) {
        next = replicas_stretch(r, from);
        next = next < at + n ? next : at + n;
        set_stretch(r, k, from, next - from, host + (from - at));
    }
    for (int i = 0; i < r->value_slots; i++) /* gathered before */
        r->values[i].bucket = -1;
}

void replicas_clear_residual(struct replicas *r)
{
    if (r->residual.at)
        r->net->ops->zero(r->residual.at, r->net->trained * sizeof(float));
}

/* Codecs spread what is not finite over their chunks, and so into the padding between tensors. */
void replicas_drop_gradient(struct replicas *r)
{
    replicas_clear_residual(r);
    if (r->packed)
        r->net->ops->zero(r->gradient[r->ready].at, r->net->trained * sizeof(float));
}

void replicas_scale_residual(struct replicas *r, double factor)
{
    if (r->residual.at && factor != 1)
        r->net->ops->affine((int64_t)r->net->trained, (float)factor, 0.0f, r->residual.at,
                            r->residual.at);
}

/* ---- masters of all data ranks ---- */

struct collecting {
    struct replicas *r;
    float *at; /* device memory for the bucket */
};

static int collect(void *context, int i, struct err *e)
{
    struct collecting *c = context;
    const struct replicas *r = c->r;
    const struct bucket *b = &r->buckets[i];
    r->net->ops->copy(c->at + (b->own_begin - b->begin), arena_at(&r->master, b, b->own_begin),
                      (b->own_end - b->own_begin) * sizeof(float));
    return r->group->verbs->all_gather(r->group, c->at, b->end - b->begin, COMM_F32, e);
}

static const struct queue_work collect_work = {.ask = collect};

int replicas_collect(struct replicas *r, int i, float *host, struct err *e)
{
    const struct bucket *b = &r->buckets[i];
    const struct ops *o = r->net->ops;
    size_t n = b->end - b->begin;
    int s = replicas_settle(r, e);
    if (s < 0)
        return s;
    if (!r->master.is_divided) {
        replicas_get(r, PIECE_PARAMETER, b->begin, n, host);
        return 0;
    }
    struct collecting c = {.r = r, .at = o->is_host ? host : o->alloc(n * sizeof *host)};
    if (!c.at)
        return ops_no_memory(o, n * sizeof *host, "weights on their way to a file", e);
    s = queue_wait(r->queue, queue_submit(r->queue, &collect_work, &c, i), e);
    if (!o->is_host) {
        o->download(host, c.at, n * sizeof *host);
        o->release(c.at);
    }
    return s;
}
