/* replicas.c: buckets and memory. The step is in replicas_step.c, what outlives it in
 * replicas_values.c. */
#include "trainer/replicas.h"

#include <stdlib.h>

#include "base/mem.h"
#include "spec/codec.h"
#include "trainer/replicas_parts.h"

/* ---- buckets ---- */

static int has_group(const struct replicas *r)
{
    return r->data > 1 && !r->alone;
}

static int has_codec(const struct replicas *r)
{
    return has_group(r) && r->plan->parallel.codec != CODEC_NONE;
}

/* 1 if the layer has a table whose touched rows may be listed. */
static int has_table(const struct replicas *r, int layer)
{
    const struct layer *l = &r->net->model->layers[layer];
    return l->type == LAYER_EMBEDDING && !l->frozen && has_group(r) && r->zero == 0 &&
           !r->is_apart && !has_codec(r);
}

/* With zero 2 and 3 a bucket must be complete within one pass through its layers: it lies within
 * one chunk, and on one side of a layer that waits for all micro-batches. */
static int must_cut(const struct replicas *r, int above, int layer)
{
    const struct net *n = r->net;
    if (above >= 0 && (has_table(r, above) || has_table(r, layer)))
        return 1;
    if (r->zero < 2 || above < 0)
        return 0;
    for (int c = 0; c < n->chunk_count; c++)
        if (layer < n->chunks[c].first && n->chunks[c].first <= above)
            return 1;
    for (int l = layer; l <= above; l++)
        if (layer_wants_sums(&n->model->layers[l]))
            return 1;
    return 0;
}

static void start_bucket(struct replicas *r, size_t end, int last)
{
    r->buckets[r->count++] = (struct bucket){.begin = end, .end = end, .last = last, .first = last};
}

/* In the order of backward: down from the last layer of the last chunk. */
static void cut_buckets(struct replicas *r)
{
    const struct net *n = r->net;
    int above = -1;
    for (int l = n->model->layer_count - 1; l >= 0; l--) {
        const struct net_layer *y = &n->layers[l];
        struct bucket *b = r->count ? &r->buckets[r->count - 1] : NULL;
        r->bucket_of[l] = -1;
        if (y->begin == y->end)
            continue;
        if (!b || (b->end - b->begin) * sizeof(float) >= BUCKET_BYTES || must_cut(r, above, l))
            start_bucket(r, y->end, l);
        b = &r->buckets[r->count - 1];
        b->begin = y->begin;
        b->first = l;
        b->table = has_table(r, l) ? &n->tensors[y->tensor] : NULL;
        b->layers++;
        r->bucket_of[l] = r->count - 1;
        above = l;
    }
}

void part_of(const struct replicas *r, const struct bucket *b, size_t *ret_begin, size_t *ret_end)
{
    comm_part(b->end - b->begin, r->data, r->data_rank, ret_begin, ret_end);
    *ret_begin += b->begin;
    *ret_end += b->begin;
}

static void divide(struct replicas *r)
{
    for (int i = 0; i < r->count; i++) {
        struct bucket *b = &r->buckets[i];
        b->own_begin = b->begin;
        b->own_end = b->end;
        if (r->zero > 0)
            part_of(r, b, &b->own_begin, &b->own_end);
        b->shard = r->own;
        r->own += b->own_end - b->own_begin;
        r->widest = b->end - b->begin > r->widest ? b->end - b->begin : r->widest;
    }
}

void replicas_init(struct replicas *r, const struct job_spec *job, const struct plan *plan,
                   struct net *net, const struct mesh *mesh)
{
    int layers = net->model->layer_count;
    *r = (struct replicas){
        .net = net,
        .job = job,
        .plan = plan,
        .data = mesh->data,
        .data_rank = mesh->data_rank,
        .alone = mesh->ensemble,
        .is_rounded = job->precision.weights == STORAGE_BFLOAT16,
    };
    /* One data rank, too: what is computed may not depend on how many there are, and a run may be
     * gone on with on fewer. */
    r->is_delayed = !r->alone && plan->parallel.sync == SYNC_DELAYED;
    r->is_apart = !r->alone && plan->parallel.sync == SYNC_LOCAL_SGD;
    r->zero = has_group(r) && !r->is_apart ? plan->zero : 0;
    if (plan->parallel.reproducible && plan->parallel.grains > plan->data)
        r->grains = (int)(plan->parallel.grains / plan->data);
    r->buckets = mem_zalloc(((size_t)layers + 1) * sizeof *r->buckets);
    r->bucket_of = mem_alloc((size_t)layers * sizeof *r->bucket_of);
    r->pushed = mem_zalloc((size_t)layers * sizeof *r->pushed);
    cut_buckets(r);
    divide(r);
}

/* ---- memory ---- */

/* The one place where any is taken: what is measured is what is allocated. */
static int take(struct replicas *r, size_t bytes, int is_shared, void *ret, struct err *e)
{
    void **at = ret;
    size_t rounded = (bytes + 63) / 64 * 64;
    *(is_shared ? &r->shared_bytes : &r->private_bytes) += rounded;
    if (r->is_measuring)
        return 0;
    if (is_shared)
        return r->world->verbs->memory(r->world, bytes, at, e);
    *at = r->net->ops->alloc(bytes);
    return *at ? 0 : ops_no_memory(r->net->ops, bytes, "parameters", e);
}

static int take_arena(struct replicas *r, struct arena *s, enum storage_type type, int is_divided,
                      int is_shared, struct err *e)
{
    size_t width = type == STORAGE_BFLOAT16 ? sizeof(uint16_t) : sizeof(float);
    *s = (struct arena){.type = type, .is_divided = is_divided, .is_shared = is_shared};
    return take(r, (is_divided ? r->own : r->net->trained) * width, is_shared, &s->at, e);
}

static size_t widest_layer(const struct net *n)
{
    size_t widest = 0;
    for (int l = 0; l < n->model->layer_count; l++) {
        size_t here = n->layers[l].end - n->layers[l].begin;
        widest = here > widest ? here : widest;
    }
    return widest;
}

static int take_parameters(struct replicas *r, struct err *e)
{
    size_t width = r->is_rounded ? sizeof(uint16_t) : sizeof(float);
    int divided = r->zero == 3 || (r->zero > 0 && r->is_rounded);
    int s = take_arena(r, &r->master, STORAGE_FLOAT32, divided,
                       has_group(r) && ((r->zero > 0 && !divided) || r->is_apart), e);
    if (s == 0)
        s = take(r, (r->net->elements - r->net->trained) * sizeof(float), 0, &r->fixed, e);
    if (s == 0 && r->is_rounded && (r->zero == 1 || r->zero == 2))
        s = take_arena(r, &r->copies, STORAGE_BFLOAT16, 0, 1, e);
    if (s == 0 && r->is_rounded)
        s = take(r, widest_layer(r->net) * sizeof(float), 0, &r->unpacked, e);
    r->value_slots = r->zero < 3 ? 0 : r->plan->parallel.overlap ? 2 : 1;
    for (int i = 0; s == 0 && i < r->value_slots; i++)
        s = take(r, r->widest * width, 1, &r->values[i].at, e);
    return s;
}

static int take_gradients(struct replicas *r, struct err *e)
{
    int divided = r->zero >= 2 && !r->grains, s = 0;
    int shared = has_group(r) && !r->is_apart && !divided;
    for (int i = 0; s == 0 && i <= r->is_delayed; i++)
        s = take_arena(r, &r->gradient[i], STORAGE_FLOAT32, divided, shared, e);
    r->sum_slots = !divided ? 0 : r->plan->parallel.overlap ? 2 : 1;
    for (int i = 0; s == 0 && i < r->sum_slots; i++)
        s = take(r, r->widest * sizeof(float), 1, &r->sums[i].at, e);
    for (int i = 0; s == 0 && r->grains >> (i + 1); i++)
        s = take(r, r->net->trained * sizeof(float), 0, &r->level[i], e);
    return s;
}

static int take_codec(struct replicas *r, struct err *e)
{
    const struct parallel *p = &r->plan->parallel;
    int s = 0;
    if (!has_codec(r))
        return 0;
    if (r->widest > UINT32_MAX)
        return err_set(e, ERR_TOO_LARGE,
                       "A layer of this model has %zu parameters; a codec counts to %u.", r->widest,
                       UINT32_MAX);
    if (codec_keeps_residual(p->codec))
        s = take_arena(r, &r->residual, STORAGE_FLOAT32, 0, 0, e);
    if (s == 0)
        s = take(r, (size_t)r->data * codec_bytes(p, r->widest), 1, &r->packed, e);
    return s;
}

static int64_t table_rows(const struct net_tensor *t)
{
    return (int64_t)t->elements / t->spec->shape.size[1];
}

static int take_rows(struct replicas *r, struct err *e)
{
    size_t bytes = 0;
    int64_t most = 0;
    for (int i = 0; i < r->count; i++) {
        const struct net_tensor *t = r->buckets[i].table;
        if (!t)
            continue;
        int64_t cols = t->spec->shape.size[1],
                room = codec_table_room(r->data, table_rows(t), cols);
        size_t here = codec_rows_bytes(room, cols);
        bytes = here > bytes ? here : bytes;
        most = room > most ? room : most;
    }
    if (most == 0)
        return 0;
    int s = take(r, (size_t)r->data * bytes, 1, &r->rows, e);
    return s < 0 ? s : take(r, (size_t)most * sizeof *r->row_ids, 0, &r->row_ids, e);
}

static int take_outer(struct replicas *r, struct err *e)
{
    const struct parallel *p = &r->plan->parallel;
    int s = 0;
    if (r->is_apart && (p->outer_learning_rate != 1 || p->outer_momentum != 0))
        s = take_arena(r, &r->anchor, STORAGE_FLOAT32, 0, 0, e);
    if (s == 0 && r->is_apart && p->outer_momentum != 0)
        s = take_arena(r, &r->outer, STORAGE_FLOAT32, 0, 0, e);
    return s;
}

/* What has been taken since `before`, which becomes what has been taken. */
static size_t since(const struct replicas *r, size_t *before)
{
    size_t now = r->private_bytes + r->shared_bytes, took = now - *before;
    *before = now;
    return took;
}

static int take_all(struct replicas *r, struct err *e)
{
    size_t before = 0;
    int s = take_parameters(r, e);
    r->by.parameters = since(r, &before);
    if (s == 0)
        s = take_gradients(r, e);
    r->by.gradients = since(r, &before);
    if (s == 0)
        s = take_outer(r, e);
    if (s == 0)
        s = take_codec(r, e);
    if (s == 0)
        s = take_rows(r, e);
    r->by.rest = since(r, &before);
    for (int i = 0; s == 0 && i < optimizer_states(&r->job->optimizer); i++)
        s = take_arena(r, &r->state[i], r->job->precision.moments, r->zero > 0, 0, e);
    r->by.state = since(r, &before);
    return s;
}

void replicas_measure(struct replicas *r, size_t *ret_shared, size_t *ret_private)
{
    r->is_measuring = 1;
    take_all(r, NULL);
    *ret_shared = r->shared_bytes;
    *ret_private = r->private_bytes;
    r->is_measuring = 0;
    r->shared_bytes = r->private_bytes = 0;
}

/* ---- opening ---- */

/* Slots and copies are pointed to when a layer is at work. */
static void point(struct replicas *r)
{
    struct net *n = r->net;
    float *master = r->master.is_divided || r->is_rounded ? NULL : r->master.at;
    float *gradient = r->gradient[0].is_divided ? NULL : r->gradient[0].at;
    for (int t = 0; t < n->tensor_count; t++) {
        struct net_tensor *x = &n->tensors[t];
        if (x->is_fixed)
            x->parameter = r->fixed + (x->offset - n->trained);
        else
            x->parameter = master ? master + x->offset : NULL;
        x->gradient = x->is_fixed || !gradient ? NULL : gradient + x->offset;
    }
}

static uint64_t last_call(void *group)
{
    return ((const struct comm *)group)->call.number;
}

static int settle_call(void *group, uint64_t call, struct err *e)
{
    struct comm *c = group;
    return c->verbs->settle(c, call, e);
}

/* A device of its own sums beside its verbs by itself, which costs nobody a thread. */
static int open_queue(struct replicas *r, struct err *e)
{
    struct queue_device d = {r->group, last_call, settle_call, 1};
    if (!r->group || r->net->ops->is_host)
        return queue_open(&r->queue, r->group && r->plan->parallel.overlap, e);
    r->queue = queue_open_on(&d);
    return 0;
}

int replicas_open(struct replicas *r, const struct mesh *mesh, struct err *e)
{
    r->world = mesh->world;
    r->group = mesh->replicas;
    int s = take_all(r, e);
    if (s == 0)
        s = open_queue(r, e);
    for (int i = 0; i < 2; i++)
        r->values[i].bucket = r->sums[i].bucket = -1;
    point(r);
    return s;
}

static void give_back(const struct replicas *r, void *at, int is_shared)
{
    if (!is_shared)
        r->net->ops->release(at);
}

void replicas_done(struct replicas *r)
{
    queue_close(r->queue);
    if (r->net) {
        give_back(r, r->master.at, r->master.is_shared);
        give_back(r, r->copies.at, r->copies.is_shared);
        for (int i = 0; i < 2; i++)
            give_back(r, r->gradient[i].at, r->gradient[i].is_shared);
        give_back(r, r->row_ids, 0);
        give_back(r, r->residual.at, r->residual.is_shared);
        give_back(r, r->anchor.at, r->anchor.is_shared);
        give_back(r, r->outer.at, r->outer.is_shared);
        for (int i = 0; i < NET_STATES; i++)
            give_back(r, r->state[i].at, r->state[i].is_shared);
        for (int i = 0; i < BUCKET_LEVELS; i++)
            give_back(r, r->level[i], 0);
        give_back(r, r->fixed, 0);
        give_back(r, r->unpacked, 0);
    }
    free(r->buckets);
    free(r->bucket_of);
    free(r->pushed);
    *r = (struct replicas){0};
}

/* ---- places ---- */

void *arena_at(const struct arena *s, const struct bucket *b, size_t at)
{
    size_t width = s->type == STORAGE_BFLOAT16 ? sizeof(uint16_t) : sizeof(float);
    size_t i = s->is_divided ? b->shard + (at - b->own_begin) : at;
    return s->at ? (char *)s->at + i * width : NULL;
}
