/* replicas.c: bucketed sums of gradients, and parts of parameters gathered again. */
#include "trainer/replicas.h"

#include <stdlib.h>

#include "base/mem.h"

static void cut(struct replicas *r, size_t at)
{
    r->cuts[++r->count] = at;
}

/* In the order of backward: down from the last layer of the last chunk. */
void replicas_init(struct replicas *r, struct net *n, const struct mesh *mesh)
{
    *r = (struct replicas){.net = n,
                           .data = mesh->data,
                           .data_rank = mesh->data_rank,
                           .alone = mesh->ensemble,
                           .group = mesh->replicas};
    r->divided = r->group && n->trained * sizeof(float) > DIVIDE_BYTES;
    r->cuts = mem_zalloc(((size_t)n->model->layer_count + 2) * sizeof *r->cuts);
    r->cuts[0] = n->trained;
    for (int l = n->model->layer_count - 1; l >= 0; l--) {
        const struct net_layer *y = &n->layers[l];
        if (y->begin < y->end && (r->cuts[r->count] - y->begin) * sizeof(float) >= BUCKET_BYTES)
            cut(r, y->begin);
    }
    if (r->cuts[r->count] > 0)
        cut(r, 0);
}

void replicas_done(struct replicas *r)
{
    free(r->cuts);
    *r = (struct replicas){0};
}

static size_t bucket_elements(const struct replicas *r, int b)
{
    return r->cuts[b] - r->cuts[b + 1];
}

static int sum_next(struct replicas *r, struct err *e)
{
    int b = r->summed++;
    struct comm *c = r->group;
    if (!c)
        return 0;
    float *at = r->net->gradients + r->cuts[b + 1];
    return r->divided ? c->verbs->reduce_scatter(c, at, bucket_elements(r, b), COMM_F32, e)
                      : c->verbs->all_reduce(c, at, bucket_elements(r, b), COMM_F32, e);
}

void replicas_begin(struct replicas *r)
{
    r->summed = 0;
    r->complete = r->net->trained;
}

static int before(void *context, int layer, int j, int backward, float *ret_beta, struct err *e)
{
    (void)context;
    (void)layer;
    (void)backward;
    (void)e;
    *ret_beta = j > 0 ? 1.0f : 0.0f;
    return 0;
}

/* Layers are complete in falling order. */
static int after(void *context, int layer, int j, int backward, int is_final, struct err *e)
{
    (void)j;
    struct replicas *r = context;
    const struct net_layer *y = &r->net->layers[layer];
    int status = 0;
    if (!backward || !is_final || y->begin == y->end)
        return 0;
    r->complete = y->begin;
    while (status == 0 && r->summed < r->count && r->cuts[r->summed + 1] >= r->complete)
        status = sum_next(r, e);
    return status;
}

struct layers_hook replicas_hook(struct replicas *r)
{
    return (struct layers_hook){.before = before, .after = after, .context = r};
}

int replicas_finish(struct replicas *r, struct err *e)
{
    int status = 0;
    while (status == 0 && r->summed < r->count)
        status = sum_next(r, e);
    return status;
}

void replicas_own(const struct replicas *r, int b, size_t *ret_begin, size_t *ret_end)
{
    size_t begin = 0, end = bucket_elements(r, b);
    if (r->divided)
        comm_part(end, r->group->size, r->group->rank, &begin, &end);
    *ret_begin = r->cuts[b + 1] + begin;
    *ret_end = r->cuts[b + 1] + end;
}

int replicas_counts(const struct replicas *r)
{
    return r->divided || !r->group || r->group->rank == 0;
}

int replicas_share(struct replicas *r, struct err *e)
{
    struct comm *c = r->group;
    int status = 0;
    for (int b = 0; status == 0 && r->divided && b < r->count; b++)
        status = c->verbs->all_gather(c, r->net->parameters + r->cuts[b + 1], bucket_elements(r, b),
                                      COMM_F32, e);
    return status;
}

/* ---- values that outlive a step ---- */

static float *arena(const struct replicas *r, enum piece_kind k)
{
    switch (k) {
    case PIECE_PARAMETER: return r->net->parameters;
    case PIECE_STATE_0: return r->net->state[0];
    case PIECE_STATE_1: return r->net->state[1];
    case PIECE_PENDING:
    case PIECE_ANCHOR:
    case PIECE_OUTER:
    case PIECE_RESIDUAL:
    case PIECE_KIND__MAX: break;
    }
    return NULL;
}

int replicas_keeps(const struct replicas *r, enum piece_kind k)
{
    return arena(r, k) != NULL;
}

int replicas_differ(const struct replicas *r, enum piece_kind k)
{
    (void)k;
    return r->alone;
}

static int bucket_at(const struct replicas *r, size_t at)
{
    int b = 0;
    while (r->cuts[b + 1] > at)
        b++;
    return b;
}

size_t replicas_stretch(const struct replicas *r, size_t at)
{
    return at < r->net->trained ? r->cuts[bucket_at(r, at)] : r->net->elements;
}

static void clip(size_t low, size_t high, size_t *begin, size_t *end)
{
    *begin = *begin < low ? low : *begin;
    *end = *end > high ? high : *end;
    *end = *end < *begin ? *begin : *end;
}

void replicas_clip_held(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end)
{
    size_t low, high;
    if (k == PIECE_PARAMETER || *begin >= r->net->trained)
        return;
    replicas_own(r, bucket_at(r, *begin), &low, &high);
    clip(low, high, begin, end);
}

void replicas_clip_saved(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end)
{
    size_t low = 0, high = 0;
    if (replicas_differ(r, k))
        return;
    if (*begin >= r->net->trained) {
        *end = r->data_rank == 0 ? *end : *begin;
        return;
    }
    int b = bucket_at(r, *begin);
    comm_part(bucket_elements(r, b), r->data, r->data_rank, &low, &high);
    clip(r->cuts[b + 1] + low, r->cuts[b + 1] + high, begin, end);
}

void replicas_get(const struct replicas *r, enum piece_kind k, size_t at, size_t n, float *host)
{
    r->net->ops->download(host, arena(r, k) + at, n * sizeof *host);
}

void replicas_set(struct replicas *r, enum piece_kind k, size_t at, size_t n, const float *host)
{
    r->net->ops->upload(arena(r, k) + at, host, n * sizeof *host);
}
