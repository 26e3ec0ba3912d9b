/* pieces.c: ranges of tensors, from the arenas of one mesh to those of another. */
#include "trainer/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/part.h"

const char *piece_kind_name(enum piece_kind k)
{
    static const char *const names[] = {"parameter", "state.0", "state.1", "pending",
                                        "anchor",    "outer",   "residual"};
    return k < PIECE_KIND__MAX ? names[k] : "unknown";
}

/* ---- what to save ---- */

struct list {
    struct piece *items;
    size_t count, room;
};

static void add(struct list *l, const struct piece *p)
{
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->items = mem_realloc(l->items, l->room * sizeof *l->items);
    }
    l->items[l->count++] = *p;
}

static void list_tensor(const struct replicas *r, enum piece_kind k, const struct net_tensor *x,
                        struct list *l)
{
    size_t end = x->offset + x->elements;
    for (size_t at = x->offset, next; at < end; at = next) {
        next = replicas_stretch(r, at);
        next = next < end ? next : end;
        size_t from = at, to = next;
        replicas_clip_saved(r, k, &from, &to);
        if (from == to)
            continue;
        struct piece p = {
            .kind = k,
            .number = x->number,
            .part = x->part,
            .from = from - x->offset,
            .to = to - x->offset,
            .replica = replicas_differ(r, k) ? r->data_rank : -1,
            .replicas = r->data,
        };
        add(l, &p);
    }
}

int pieces_list(struct engine *g, struct piece **ret_list, size_t *ret_count, struct err *e)
{
    const struct net *n = &g->stage.net;
    struct list l = {0};
    int r = replicas_settle(&g->replicas, e);
    if (r < 0)
        return r;
    for (int t = 0; t < n->tensor_count; t++)
        for (int k = 0; k < PIECE_KIND__MAX && net_is_own(n, &n->tensors[t]); k++)
            if (replicas_keeps(&g->replicas, (enum piece_kind)k) &&
                (k == PIECE_PARAMETER || !n->tensors[t].is_fixed))
                list_tensor(&g->replicas, (enum piece_kind)k, &n->tensors[t], &l);
    *ret_list = l.items;
    *ret_count = l.count;
    return 0;
}

/* NULL if it is not here. */
static struct net_tensor *tensor_of(const struct engine *g, const struct piece *p)
{
    const struct net *n = &g->stage.net;
    for (int t = 0; t < n->tensor_count; t++)
        if (n->tensors[t].number == p->number)
            return &n->tensors[t];
    return NULL;
}

void piece_read(const struct engine *g, const struct piece *p, size_t from, size_t to, float *host)
{
    const struct net_tensor *x = tensor_of(g, p);
    replicas_get(&g->replicas, p->kind, x->offset + p->from + from, to - from, host);
}

const char *piece_tensor_name(const struct engine *g, const struct piece *p)
{
    const struct net_tensor *x = tensor_of(g, p);
    return x ? x->name : NULL;
}

/* ---- from one split of a tensor to another ---- */

/* Called with ranges of this rank's arena and where their values lie in the piece. */
typedef void visitor(void *context, size_t at, size_t count, size_t in_piece);

/* Elements [own, own + count) of this rank's tensor, cut where its holding changes. */
static void visit_own(const struct engine *g, const struct piece *p, const struct net_tensor *x,
                      int64_t own, int64_t count, size_t in_piece, visitor *visit, void *context)
{
    const struct replicas *r = &g->replicas;
    size_t begin = x->offset + (size_t)own, end = begin + (size_t)count;
    for (size_t at = begin, next; at < end; at = next) {
        next = replicas_stretch(r, at);
        next = next < end ? next : end;
        size_t from = at, to = next;
        replicas_clip_held(r, p->kind, &from, &to);
        if (from < to)
            visit(context, from, to - from, in_piece + (from - begin));
    }
}

static void visit_held(const struct engine *g, const struct piece *p, const struct net_tensor *x,
                       visitor *visit, void *context)
{
    const struct shape *s = &x->spec->shape;
    int64_t whole, own, run, step, end = (int64_t)p->to;
    for (int64_t at = (int64_t)p->from; at < end; at += run) {
        run = part_run_in_whole(s, &p->part, at, end - at, &whole);
        for (int64_t done = 0; whole >= 0 && done < run; done += step) {
            step = part_run_in_part(s, &x->part, whole + done, run - done, &own);
            if (own >= 0)
                visit_own(g, p, x, own, step, (size_t)(at + done) - p->from, visit, context);
        }
    }
}

/* ---- setting ---- */

/* Residuals are added up; of everything else a data rank takes one. */
static int is_for_us(const struct engine *g, const struct piece *p)
{
    const struct replicas *r = &g->replicas;
    if (!replicas_keeps(r, p->kind))
        return 0;
    if (p->replica < 0)
        return 1;
    return p->kind == PIECE_RESIDUAL ? p->replica % r->data == r->data_rank
                                     : p->replica == r->data_rank % p->replicas;
}

static int check(const struct piece *p, const struct net_tensor *x, struct err *e)
{
    const struct shape *s = &x->spec->shape;
    const struct net_part *q = &p->part;
    if (q->axis >= 0 && q->axis < s->dims && q->begin >= 0 && q->begin < q->end &&
        q->end <= s->size[q->axis] && q->extent >= q->end - q->begin &&
        q->extent <= s->size[q->axis] && p->from <= p->to && p->replica < p->replicas &&
        p->to <= (size_t)part_elements(s, q))
        return 0;
    return err_set(e, ERR_CORRUPT,
                   "There are no elements %zu to %zu in the part that is given of \"%s\".", p->from,
                   p->to, x->name);
}

static void note(void *context, size_t at, size_t count, size_t in_piece)
{
    (void)at;
    (void)in_piece;
    *(size_t *)context += count;
}

int pieces_want(const struct engine *g, const struct piece *p)
{
    const struct net_tensor *x = tensor_of(g, p);
    size_t count = 0;
    if (x && check(p, x, NULL) == 0 && is_for_us(g, p))
        visit_held(g, p, x, note, &count);
    return count > 0;
}

struct setting {
    struct replicas *replicas;
    enum piece_kind kind;
    const float *values;
    size_t count;
};

/* Residuals of several ranks may come to one. */
static void add_up(struct replicas *r, size_t at, size_t count, const float *values)
{
    CLEANUP(mem_freep) float *sum = mem_alloc(count * sizeof *sum + 1);
    replicas_get(r, PIECE_RESIDUAL, at, count, sum);
    for (size_t i = 0; i < count; i++)
        sum[i] += values[i];
    replicas_set(r, PIECE_RESIDUAL, at, count, sum);
}

static void set(void *context, size_t at, size_t count, size_t in_piece)
{
    struct setting *s = context;
    if (s->kind == PIECE_RESIDUAL)
        add_up(s->replicas, at, count, s->values + in_piece);
    else
        replicas_set(s->replicas, s->kind, at, count, s->values + in_piece);
    s->count += count;
}

void pieces_begin(struct engine *g)
{
    free(g->arrived);
    g->arrived = NULL;
    replicas_clear_residual(&g->replicas); /* what comes is added up */
}

/* How many values of each kind have come for a tensor. */
static size_t *arrived(struct engine *g, const struct net_tensor *x)
{
    const struct net *n = &g->stage.net;
    if (!g->arrived)
        g->arrived = mem_zalloc((size_t)n->tensor_count * PIECE_KIND__MAX * sizeof *g->arrived);
    return g->arrived + (size_t)(x - n->tensors) * PIECE_KIND__MAX;
}

int pieces_put(struct engine *g, const struct piece *p, const float *values, struct err *e)
{
    const struct net_tensor *x = tensor_of(g, p);
    int r = x ? check(p, x, e) : 0;
    if (r < 0 || !x || !is_for_us(g, p))
        return r;
    struct setting s = {.replicas = &g->replicas, .kind = p->kind, .values = values};
    visit_held(g, p, x, set, &s);
    arrived(g, x)[p->kind] += s.count;
    return 0;
}

/* ---- the rest ---- */

void pieces_get_scalars(const struct engine *g, struct pieces_scalars *ret)
{
    *ret = (struct pieces_scalars){.step = g->step,
                                   .updates = g->updates,
                                   .local_steps = g->local_steps,
                                   .pending_items = g->pending_items,
                                   .pending_step = g->pending_step};
    if (g->scale.is_on) {
        ret->loss_scale = g->scale.factor;
        ret->good_steps = g->scale.good;
        ret->pending_scale = g->pending_scale;
    }
}

static size_t held(const struct engine *g, enum piece_kind k, const struct net_tensor *x)
{
    struct piece all = {.kind = k, .part = x->part, .to = x->elements};
    size_t count = 0;
    visit_held(g, &all, x, note, &count);
    return count;
}

/* A set of kinds. */
#define OF(kind) (1u << (kind))

static int check_tensor(struct engine *g, const struct net_tensor *x, unsigned kinds, struct err *e)
{
    for (int k = 0; k < PIECE_KIND__MAX; k++) {
        enum piece_kind kind = (enum piece_kind)k;
        if (!(kinds & OF(k)) || !replicas_keeps(&g->replicas, kind) ||
            (x->is_fixed && k != PIECE_PARAMETER))
            continue;
        size_t want = held(g, kind, x), have = arrived(g, x)[k];
        if (have != want)
            return err_set(e, ERR_CORRUPT, "There are %zu values (%s) for the %zu of \"%s\".", have,
                           piece_kind_name(kind), want, x->name);
    }
    return 0;
}

/* Of these kinds everything must be here; the count starts anew. */
static int check_arrived(struct engine *g, unsigned kinds, struct err *e)
{
    const struct net *n = &g->stage.net;
    int r = 0;
    for (int t = 0; r == 0 && t < n->tensor_count; t++)
        r = check_tensor(g, &n->tensors[t], kinds, e);
    free(g->arrived);
    g->arrived = NULL;
    return r;
}

int pieces_finish(struct engine *g, const struct pieces_scalars *s, struct err *e)
{
    unsigned kinds = OF(PIECE_PARAMETER) | OF(PIECE_STATE_0) | OF(PIECE_STATE_1) |
                     OF(PIECE_ANCHOR) | OF(PIECE_OUTER);
    int r = check_arrived(g, kinds | (s->pending_items > 0 ? OF(PIECE_PENDING) : 0), e);
    if (r < 0)
        return r;
    g->step = s->step;
    g->updates = s->updates;
    g->local_steps = s->local_steps;
    g->pending_items = s->pending_items;
    g->pending_step = s->pending_step;
    if (g->scale.is_on && s->loss_scale > 0) {
        g->scale.factor = s->loss_scale;
        g->scale.good = s->good_steps;
        g->pending_scale = s->pending_scale;
    }
    return 0;
}

int pieces_finish_parameters(struct engine *g, struct err *e)
{
    return check_arrived(g, OF(PIECE_PARAMETER), e);
}
