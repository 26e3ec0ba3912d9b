/* replicas_step.c: pointers for the layer at work, sums of what it left, and the update. */
#include <string.h>

#include "base/err.h"
#include "spec/codec.h"
#include "trainer/replicas_parts.h"

/* ---- parameters for the layer at work ---- */

/* Zero 3: every rank puts its part into the slot, then all have all. A job. */
static int gather_slot(void *context, int i, struct err *e)
{
    struct replicas *r = context;
    const struct ops *o = r->net->ops;
    const struct slot *s = &r->values[i];
    const struct bucket *b = &r->buckets[s->bucket];
    size_t n = b->own_end - b->own_begin, at = b->own_begin - b->begin;
    const float *own = arena_at(&r->master, b, b->own_begin);
    if (r->is_rounded)
        o->to_bfloat16(n, own, (uint16_t *)s->at + at);
    else
        o->copy((float *)s->at + at, own, n * sizeof *own);
    return r->group->verbs->all_gather(r->group, s->at, b->end - b->begin,
                                       r->is_rounded ? COMM_U16 : COMM_F32, e);
}

static const struct queue_work gather_work = {.ask = gather_slot};

/* Has bucket `b` gathered into the slot `i`. */
static int fill_slot(struct replicas *r, int i, int b, struct err *e)
{
    int s = queue_wait(r->queue, r->values[i].ticket, e);
    r->values[i].bucket = b;
    r->values[i].ticket = queue_submit(r->queue, &gather_work, r, i);
    return s;
}

static int slot_of(const struct replicas *r, int b)
{
    int i = 0;
    while (i < r->value_slots && r->values[i].bucket != b)
        i++;
    return i;
}

/* The bucket that the pass comes to next, -1 at an end of the chunk. */
static int next_bucket(const struct replicas *r, int b, int backward)
{
    const struct net *n = r->net;
    int next = backward ? b + 1 : b - 1;
    if (next < 0 || next >= r->count)
        return -1;
    for (int c = 0; c < n->chunk_count; c++) {
        int here = r->buckets[b].first >= n->chunks[c].first;
        if (here != (r->buckets[next].first >= n->chunks[c].first))
            return -1;
    }
    return next;
}

/* The bucket itself, waited for, and the next one beside the work. */
static int gather(struct replicas *r, int b, int backward, void **ret, struct err *e)
{
    int i = slot_of(r, b), s = 0;
    if (i == r->value_slots) {
        i = r->value_slots > 1 ? !r->value_turn : 0;
        s = fill_slot(r, i, b, e);
    }
    if (s == 0)
        s = queue_wait(r->queue, r->values[i].ticket, e);
    if (s < 0)
        return s;
    r->value_turn = i;
    int next = next_bucket(r, b, backward);
    if (queue_is_beside(r->queue) && r->value_slots > 1 && next >= 0 &&
        slot_of(r, next) == r->value_slots)
        s = fill_slot(r, !i, next, e);
    *ret = r->values[i].at;
    return s;
}

static void point_parameters(struct replicas *r, int layer, float *at)
{
    int count;
    struct net_tensor *x = net_tensors_of(r->net, layer, &count);
    for (int t = 0; t < count; t++)
        if (!x[t].is_fixed)
            x[t].parameter = at + (x[t].offset - r->net->layers[layer].begin);
}

static void unpack(struct replicas *r, int layer, const uint16_t *gathered, const struct bucket *b)
{
    const struct net_layer *y = &r->net->layers[layer];
    const struct ops *o = r->net->ops;
    size_t n = y->end - y->begin;
    if (gathered)
        o->from_bfloat16(n, gathered + (y->begin - b->begin), r->unpacked);
    else if (r->copies.at)
        o->from_bfloat16(n, (const uint16_t *)r->copies.at + y->begin, r->unpacked);
    else
        o->round_bfloat16(n, (const float *)r->master.at + y->begin, r->unpacked);
}

static int bring_parameters(struct replicas *r, int layer, int backward, struct err *e)
{
    int i = r->bucket_of[layer], s = 0;
    void *gathered = NULL;
    const struct bucket *b = &r->buckets[i];
    if (r->value_slots)
        s = gather(r, i, backward, &gathered, e);
    else
        s = queue_wait(r->queue, b->gathered, e);
    if (s < 0)
        return s;
    if (r->is_rounded) {
        unpack(r, layer, gathered, b);
        point_parameters(r, layer, r->unpacked);
    } else if (gathered) {
        point_parameters(r, layer, (float *)gathered + (r->net->layers[layer].begin - b->begin));
    }
    return 0;
}

/* ---- where gradients go ---- */

static void point_gradients(struct replicas *r, int layer, float *at)
{
    int count;
    struct net_tensor *x = net_tensors_of(r->net, layer, &count);
    for (int t = 0; t < count; t++)
        if (!x[t].is_fixed)
            x[t].gradient = at + (x[t].offset - r->net->layers[layer].begin);
}

/* What lies between tensors is summed and squared too. */
static void clear_padding(const struct replicas *r, const struct bucket *b, float *at)
{
    const struct net *n = r->net;
    for (int l = b->first; l <= b->last; l++) {
        int count;
        const struct net_tensor *x = net_tensors_of(n, l, &count);
        for (int t = 0; t < count; t++) {
            size_t end = x[t].offset + x[t].elements, next = (end + 15) / 16 * 16;
            if (!x[t].is_fixed && next > end)
                n->ops->zero(at + (end - b->begin), (next - end) * sizeof *at);
        }
    }
}

/* Scratch memory for a bucket that a pass begins with. */
static int open_sums(struct replicas *r, int i, struct err *e)
{
    struct slot *s = &r->sums[r->turn];
    if (s->bucket == i && r->buckets[i].left < r->buckets[i].layers)
        return 0;
    r->turn = (r->turn + 1) % r->sum_slots;
    s = &r->sums[r->turn];
    int status = queue_wait(r->queue, s->ticket, e);
    if (status < 0)
        return status;
    s->bucket = i;
    clear_padding(r, &r->buckets[i], s->at);
    return 0;
}

/* A grain's gradient, as leaf j of the rank's tree, carried up like a binary counter: the sum of
 * 2^k grains waits in level k for the one that follows it. Even leaves are written there at once.
 */
static float *leaf(const struct replicas *r, int j)
{
    return j % 2 == 0 ? r->level[0] : r->gradient[r->writes].at;
}

static void carry(const struct replicas *r, int layer, int j)
{
    const struct net_layer *y = &r->net->layers[layer];
    const struct ops *o = r->net->ops;
    float *sum = (float *)r->gradient[r->writes].at + y->begin;
    size_t n = y->end - y->begin;
    int k = 0;
    for (; j >> k & 1; k++)
        o->add(n, r->level[k] + y->begin, sum);
    if (k > 0 && j + 1 < r->grains)
        o->copy(r->level[k] + y->begin, sum, n * sizeof *sum);
}

/* Grains without items are leaves of zeroes: they count, for -0 + 0 is 0. */
static void push_nothing(struct replicas *r, int layer, int until)
{
    const struct net_layer *y = &r->net->layers[layer];
    for (; r->pushed[layer] < until; r->pushed[layer]++) {
        int j = r->pushed[layer];
        r->net->ops->zero(leaf(r, j) + y->begin, (y->end - y->begin) * sizeof(float));
        carry(r, layer, j);
    }
}

static int aim_gradients(struct replicas *r, int layer, int j, float *ret_beta, struct err *e)
{
    const struct net_layer *y = &r->net->layers[layer];
    const struct bucket *b = &r->buckets[r->bucket_of[layer]];
    int s = 0;
    *ret_beta = 0;
    if (r->grains) {
        push_nothing(r, layer, j);
        point_gradients(r, layer, leaf(r, j) + y->begin);
    } else if (r->sum_slots) {
        s = open_sums(r, r->bucket_of[layer], e);
        point_gradients(r, layer, (float *)r->sums[r->turn].at + (y->begin - b->begin));
    } else {
        point_gradients(r, layer, (float *)r->gradient[r->writes].at + y->begin);
        *ret_beta = j > 0 ? 1.0f : 0.0f;
    }
    return s;
}

/* ---- sums ---- */

float *summed(const struct replicas *r, int which, const struct bucket *b)
{
    return arena_at(&r->gradient[which], b, b->own_begin);
}

/* Jobs; the argument is 2 times a bucket or slot, plus the arena of the gradients. The first three
 * are of a bucket that lies there. */
static int sum_bucket(void *context, int argument, struct err *e)
{
    struct replicas *r = context;
    const struct bucket *b = &r->buckets[argument / 2];
    const struct comm_verbs *v = r->group->verbs;
    float *at = (float *)r->gradient[argument % 2].at + b->begin;
    return r->zero > 0 ? v->reduce_scatter(r->group, at, b->end - b->begin, COMM_F32, e)
                       : v->all_reduce(r->group, at, b->end - b->begin, COMM_F32, e);
}

/* The most rows that a data rank has touched, where no rank has more than fit; *ret_fits 0: some
 * rank has. */
static int count_rows(struct replicas *r, const struct net_tensor *t, const float *at,
                      int64_t *ret_own, int64_t *ret_most, int *ret_fits, struct err *e)
{
    int64_t cols = t->spec->shape.size[1], rows = (int64_t)t->elements / cols;
    int64_t room = codec_table_room(r->data, rows, cols), all[PLAN_MAX_RANKS];
    *ret_own = r->net->ops->find_rows(rows, cols, at, room, r->row_ids);
    *ret_most = 0;
    int s = r->group->verbs->exchange(r->group, ret_own, sizeof *ret_own, all, e);
    for (int d = 0; s == 0 && d < r->data; d++)
        *ret_most = all[d] > *ret_most ? all[d] : *ret_most;
    *ret_fits = *ret_most <= room;
    return s;
}

/* Of a table: its touched rows as lists, where they are few. */
static int sum_table(void *context, int argument, struct err *e)
{
    struct replicas *r = context;
    struct bucket *b = &r->buckets[argument / 2];
    const float *at = (const float *)r->gradient[argument % 2].at + b->begin;
    int64_t cols = b->table->spec->shape.size[1], own, most;
    int fits;
    b->listed = 0;
    int s = count_rows(r, b->table, at, &own, &most, &fits, e);
    if (s < 0 || (fits && most == 0))
        return s;
    if (!fits)
        return sum_bucket(context, argument, e);
    size_t bytes = codec_rows_bytes(most, cols);
    b->listed = most;
    r->net->ops->pack_rows(own, most, cols, r->row_ids, at, r->rows + (size_t)r->data_rank * bytes);
    return r->group->verbs->all_gather(r->group, r->rows, (size_t)r->data * bytes, COMM_U8, e);
}

static int add_table(void *context, int argument, struct err *e)
{
    struct replicas *r = context;
    const struct bucket *b = &r->buckets[argument / 2];
    float *at = (float *)r->gradient[argument % 2].at + b->begin;
    (void)e;
    if (b->listed > 0) {
        int64_t cols = b->table->spec->shape.size[1];
        r->net->ops->sum_rows(r->data, b->listed, cols, r->rows, codec_rows_bytes(b->listed, cols),
                              at);
    }
    return 0;
}

/* Packs the bucket with what was not sent before, and then adds up what all ranks have packed. */
static int sum_packed(void *context, int argument, struct err *e)
{
    struct replicas *r = context;
    const struct bucket *b = &r->buckets[argument / 2];
    const struct parallel *p = &r->plan->parallel;
    const struct ops *o = r->net->ops;
    float *at = (float *)r->gradient[argument % 2].at + b->begin;
    size_t n = b->end - b->begin, bytes = codec_bytes(p, n);
    float *residual = arena_at(&r->residual, b, b->begin);
    char *own = r->packed + (size_t)r->data_rank * bytes;
    if (residual)
        o->add(n, residual, at);
    o->pack(p, n, at, own);
    if (residual) {
        o->copy(residual, at, n * sizeof *at);
        o->add_packed(p, n, own, -1.0f, residual);
    }
    return r->group->verbs->all_gather(r->group, r->packed, (size_t)r->data * bytes, COMM_U8, e);
}

static int add_packed(void *context, int argument, struct err *e)
{
    struct replicas *r = context;
    const struct bucket *b = &r->buckets[argument / 2];
    const struct parallel *p = &r->plan->parallel;
    const struct ops *o = r->net->ops;
    float *at = (float *)r->gradient[argument % 2].at + b->begin;
    size_t n = b->end - b->begin, bytes = codec_bytes(p, n);
    (void)e;
    o->zero(at, n * sizeof *at);
    for (int d = 0; d < r->data; d++)
        o->add_packed(p, n, r->packed + (size_t)d * bytes, 1.0f, at);
    return 0;
}

/* Of one in a slot, of which a rank keeps its part. */
static int sum_slot(void *context, int argument, struct err *e)
{
    struct replicas *r = context;
    const struct slot *s = &r->sums[argument / 2];
    const struct bucket *b = &r->buckets[s->bucket];
    return r->group->verbs->reduce_scatter(r->group, s->at, b->end - b->begin, COMM_F32, e);
}

static int keep_part(void *context, int argument, struct err *e)
{
    struct replicas *r = context;
    const struct slot *s = &r->sums[argument / 2];
    const struct bucket *b = &r->buckets[s->bucket];
    const struct ops *o = r->net->ops;
    size_t n = b->own_end - b->own_begin;
    const float *own = (const float *)s->at + (b->own_begin - b->begin);
    float *sum = summed(r, argument % 2, b);
    (void)e;
    if (s->adds)
        o->add(n, own, sum);
    else
        o->copy(sum, own, n * sizeof *own);
    return 0;
}

/* Lists and packed gradients of all buckets have the same memory. */
static const struct queue_work bucket_work = {.ask = sum_bucket};
static const struct queue_work table_work = {sum_table, add_table, .in_turn = 1};
static const struct queue_work packed_work = {sum_packed, add_packed, .in_turn = 1};
static const struct queue_work slot_work = {.ask = sum_slot, .finish = keep_part};

static const struct queue_work *work_of(const struct replicas *r, const struct bucket *b)
{
    if (r->packed)
        return &packed_work;
    return b->table && r->row_ids ? &table_work : &bucket_work;
}

/* All ranks sum the buckets of an arena in the same order, however their layers end. */
static void sum_complete(struct replicas *r)
{
    for (; r->next < r->count && r->buckets[r->next].left == 0; r->next++)
        if (r->group && !r->is_apart)
            r->summed[r->writes] = queue_submit(r->queue, work_of(r, &r->buckets[r->next]), r,
                                                2 * r->next + r->writes);
}

static void sum_scratch(struct replicas *r, struct bucket *b)
{
    struct slot *s = &r->sums[r->turn];
    s->adds = b->rounds++ > 0;
    s->ticket = queue_submit(r->queue, &slot_work, r, 2 * r->turn + r->writes);
    r->summed[r->writes] = s->ticket;
    b->left = b->layers;
}

/* A layer's gradients of one micro-batch stand where they were to go. */
static void take_gradients(struct replicas *r, int layer, int j, int is_final)
{
    struct bucket *b = &r->buckets[r->bucket_of[layer]];
    if (r->grains) {
        carry(r, layer, j);
        r->pushed[layer] = j + 1;
        if (is_final)
            push_nothing(r, layer, r->grains);
    }
    if (r->sum_slots) {
        if (--b->left == 0)
            sum_scratch(r, b);
    } else if (is_final) {
        b->left--;
        sum_complete(r);
    }
}

/* ---- the hook ---- */

static int before(void *context, int layer, int j, int backward, float *ret_beta, struct err *e)
{
    struct replicas *r = context;
    const struct net_layer *y = &r->net->layers[layer];
    *ret_beta = 0;
    if (y->begin == y->end)
        return 0;
    int s = bring_parameters(r, layer, backward, e);
    return s == 0 && backward ? aim_gradients(r, layer, j, ret_beta, e) : s;
}

static int after(void *context, int layer, int j, int backward, int is_final, struct err *e)
{
    struct replicas *r = context;
    const struct net_layer *y = &r->net->layers[layer];
    (void)e;
    if (backward && y->begin < y->end)
        take_gradients(r, layer, j, is_final);
    return 0;
}

struct layers_hook replicas_hook(struct replicas *r)
{
    return (struct layers_hook){.before = before, .after = after, .context = r};
}

/* ---- the step ---- */

void replicas_begin(struct replicas *r)
{
    r->next = 0;
    r->writes ^= r->is_delayed;
    for (int i = 0; i < r->count; i++) {
        r->buckets[i].left = r->buckets[i].layers;
        r->buckets[i].rounds = 0;
    }
    memset(r->pushed, 0, (size_t)r->net->model->layer_count * sizeof *r->pushed);
}

int replicas_finish(struct replicas *r, struct err *e)
{
    for (int i = 0; i < r->count; i++)
        if (!r->sum_slots && r->buckets[i].left > 0)
            BUG("backward has left out %d layers of bucket %d", r->buckets[i].left, i);
    r->ready = r->writes ^ r->is_delayed;
    return r->is_delayed ? queue_wait(r->queue, r->summed[r->ready], e) : replicas_settle(r, e);
}

int replicas_flush(struct replicas *r, struct err *e)
{
    r->ready = r->writes;
    return replicas_settle(r, e);
}

/* Without a division all ranks have all sums, and the first one counts. */
static int counts(const struct replicas *r)
{
    return r->zero > 0 || !r->group || r->is_apart || r->data_rank == 0;
}

static void add_squares(const struct ops *o, size_t n, const float *x, int exact,
                        struct exact_sum *ret_exact, double *ret_sum)
{
    double here = 0;
    if (exact)
        o->sum_squares_exactly(n, x, ret_exact);
    else
        o->sum_squares(n, x, &here);
    *ret_sum += here;
}

/* What other tensor ranks have the same of is left to the first of them. */
static void add_own_squares(const struct replicas *r, const struct bucket *b, int exact,
                            struct exact_sum *ret_exact, double *ret_sum)
{
    const struct net *n = r->net;
    for (int t = 0; t < n->tensor_count; t++) {
        const struct net_tensor *x = &n->tensors[t];
        size_t begin = x->offset > b->own_begin ? x->offset : b->own_begin;
        size_t end = x->offset + x->elements < b->own_end ? x->offset + x->elements : b->own_end;
        if (begin < end && !x->is_fixed && net_is_own(n, x))
            add_squares(n->ops, end - begin, summed(r, r->ready, b) + (begin - b->own_begin), exact,
                        ret_exact, ret_sum);
    }
}

/* In one call where they lie in a row: a result for the host is waited for. */
void replicas_squares(const struct replicas *r, int exact, struct exact_sum *ret_exact,
                      double *ret_sum)
{
    *ret_exact = (struct exact_sum){.not_finite = 0};
    *ret_sum = 0;
    const struct arena *sums = &r->gradient[r->ready];
    if (counts(r) && r->net->tensor_rank == 0 && (r->zero == 0 || sums->is_divided)) {
        add_squares(r->net->ops, sums->is_divided ? r->own : r->net->trained, sums->at, exact,
                    ret_exact, ret_sum);
        return;
    }
    for (int i = 0; i < r->count && counts(r); i++) {
        const struct bucket *b = &r->buckets[i];
        if (r->net->tensor_rank > 0)
            add_own_squares(r, b, exact, ret_exact, ret_sum);
        else
            add_squares(r->net->ops, b->own_end - b->own_begin, summed(r, r->ready, b), exact,
                        ret_exact, ret_sum);
    }
}

/* Zero 1 and 2: what the others have updated. A job. */
static int share_bucket(void *context, int i, struct err *e)
{
    struct replicas *r = context;
    const struct bucket *b = &r->buckets[i];
    size_t n = b->end - b->begin;
    if (!r->is_rounded)
        return r->group->verbs->all_gather(r->group, (float *)r->master.at + b->begin, n, COMM_F32,
                                           e);
    uint16_t *copies = r->copies.at;
    r->net->ops->to_bfloat16(b->own_end - b->own_begin, arena_at(&r->master, b, b->own_begin),
                             copies + b->own_begin);
    return r->group->verbs->all_gather(r->group, copies + b->begin, n, COMM_U16, e);
}

static const struct queue_work share_work = {.ask = share_bucket};

/* The layers that the next pass begins with come first. */
static int share(struct replicas *r, struct err *e)
{
    for (int i = 0; i < r->value_slots; i++)
        r->values[i].bucket = -1;
    for (int i = r->count - 1; i >= 0 && (r->zero == 1 || r->zero == 2); i--)
        r->buckets[i].gathered = queue_submit(r->queue, &share_work, r, i);
    return queue_wait(r->queue, 0, e);
}

int replicas_update(struct replicas *r, double rate, int64_t update, double scale, struct err *e)
{
    for (int i = 0; i < r->count; i++) {
        const struct bucket *b = &r->buckets[i];
        struct optimizer_range x = {.begin = b->own_begin,
                                    .end = b->own_end,
                                    .parameter = arena_at(&r->master, b, b->own_begin),
                                    .gradient = summed(r, r->ready, b)};
        for (int s = 0; s < NET_STATES; s++)
            x.state[s] = arena_at(&r->state[s], b, b->own_begin);
        optimizer_update(&r->job->optimizer, r->net, rate, update, scale, r->job->precision.moments,
                         &x);
    }
    return share(r, e);
}

int replicas_settle(struct replicas *r, struct err *e)
{
    return queue_wait_all(r->queue, e);
}

int replicas_times(struct replicas *r, int64_t *ret_exposed_us, int64_t *ret_hidden_us)
{
    struct queue_times now = queue_times(r->queue);
    int64_t busy = now.busy - r->seen.busy, waited = now.waited - r->seen.waited;
    *ret_exposed_us = waited;
    *ret_hidden_us = busy > waited ? busy - waited : 0;
    r->seen = now;
    return r->group && r->net->ops->is_host;
}
