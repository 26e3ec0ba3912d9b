/* frame.c: where the outputs of a chunk lie, and the memory for it. */
#include "trainer/frame.h"

#include <limits.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- what a layer does to its input ---- */

enum activation frame_activation(const struct net *n, int l)
{
    return n->fused && l == n->model->layer_count - 1 ? ACTIVATION_LINEAR
                                                      : n->model->layers[l].activation;
}

static int passes_on(const struct net *n, int l)
{
    const struct layer *y = &n->model->layers[l];
    if (l < n->folded || layer_kinds[y->type]->passes_on)
        return 1;
    return y->type == LAYER_ACTIVATION && frame_activation(n, l) == ACTIVATION_LINEAR;
}

/* Where what layer l gives out was computed; -1: nowhere, it is the model's input. */
static int computed_by(const struct net *n, int l)
{
    while (l >= 0 && passes_on(n, l))
        l--;
    return l;
}

/* By the model alone, so that all ranks see it alike: both what a last activation gives out and
 * what it gets are the model's output, whether or not the loss applies it. */
static int is_output(const struct net *n, int l)
{
    int last = n->model->layer_count - 1;
    return l == computed_by(n, last) ||
           (n->model->layers[last].type == LAYER_ACTIVATION && l == computed_by(n, last - 1));
}

static int is_prepared(const struct net *n, int l)
{
    for (int k = 0; k <= l; k++) {
        enum layer_type t = n->model->layers[k].type;
        if (t != LAYER_RESCALING && t != LAYER_FLATTEN && t != LAYER_RESHAPE)
            return 0;
    }
    return 1;
}

int frame_rounds(const struct net *n, int l)
{
    int from = computed_by(n, l);
    return from >= 0 && !is_prepared(n, l) && !is_output(n, from);
}

size_t frame_part(const struct net *n, int l, int64_t items)
{
    const struct shape *s = &n->model->layers[l].out;
    size_t elements = (size_t)(items * (shape_positions(s)) * n->layers[l].out);
    return (elements + 15) / 16 * 16;
}

/* ---- homes ---- */

static struct frame_layer *at(const struct frame_layout *y, int l)
{
    return &y->layers[l - y->first];
}

static int source_of(const struct frame_layout *y, int l)
{
    return l < y->first ? y->first - 1 : at(y, l)->source;
}

static void set_homes(struct frame_layout *y, const struct frame_options *o)
{
    const struct net *n = y->net;
    for (int l = y->first; l < y->last; l++) {
        struct frame_layer *f = at(y, l);
        *f = (struct frame_layer){.source = l, .stretch = -1, .skip = -1};
        if (passes_on(n, l)) {
            f->source = source_of(y, l - 1);
            continue;
        }
        f->home = o->recompute && o->recompute[l] && !is_output(n, l) ? FRAME_AGAIN : FRAME_KEPT;
        f->packed = o->bfloat16 && frame_rounds(n, l);
    }
}

static void keep(struct frame_layout *y, int l)
{
    int source = l < y->first ? l : at(y, l)->source;
    if (source >= y->first)
        at(y, source)->home = FRAME_KEPT;
}

static void find_bars(struct frame_layout *y)
{
    const struct model *m = y->net->model;
    y->bars = mem_alloc((size_t)(y->last - y->first + 1) * sizeof *y->bars);
    for (int l = y->first; l < y->last; l++)
        if (layer_wants_sums(&m->layers[l])) {
            y->bars[y->bar_count++] = l;
            keep(y, l - 1);
            if (l == y->last - 1) /* backward begins with it: no layer behind has it again */
                keep(y, l);
        }
}

/* ---- stretches ---- */

static int is_again(const struct frame_layout *y, int l)
{
    int source = source_of(y, l);
    return source >= y->first && at(y, source)->home == FRAME_AGAIN;
}

static void set_stretches(struct frame_layout *y)
{
    for (int l = y->first; l < y->last; l++) {
        struct frame_layer *f = at(y, l);
        f->stretch = -1;
        if (is_again(y, l))
            f->stretch = is_again(y, l - 1) ? at(y, l - 1)->stretch : l;
    }
}

static int is_bar(const struct frame_layout *y, int l)
{
    for (int b = 0; b < y->bar_count; b++)
        if (y->bars[b] == l)
            return 1;
    return 0;
}

/* The stretch that is in the scratch when layer l runs forward; -1: none, or another
 * micro-batch's. */
static int stretch_before(const struct frame_layout *y, int l)
{
    while (l >= y->first && at(y, l)->stretch < 0 && !is_bar(y, l))
        l--;
    return l < y->first ? -1 : at(y, l)->stretch;
}

/* Keeps an output that an `add` reads from another stretch. Returns 1 if there was one. */
static int keep_one_for_adds(struct frame_layout *y)
{
    const struct model *m = y->net->model;
    for (int l = y->first; l < y->last; l++) {
        int from = l - m->layers[l].back;
        if (m->layers[l].back == 0 || from < y->first || !is_again(y, from))
            continue;
        if (at(y, from)->stretch != stretch_before(y, l)) {
            keep(y, from);
            return 1;
        }
    }
    return 0;
}

/* ---- offsets ---- */

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t value_bytes(size_t elements, int packed)
{
    return padded(elements * (packed ? sizeof(uint16_t) : sizeof(float)));
}

static size_t out_elements(const struct frame_layout *y, int l)
{
    return (size_t)(y->max_rows * net_out_elements(y->net, l));
}

static size_t in_elements(const struct frame_layout *y)
{
    return (size_t)(y->max_rows * shape_elements(&y->net->model->layers[y->first].in));
}

static size_t take(size_t *used, size_t bytes)
{
    size_t offset = *used;
    *used += bytes;
    return offset;
}

/* Layers of a stretch share the scratch with those of others. */
static void place_outputs(struct frame_layout *y)
{
    size_t scratch = 0;
    for (int l = y->first; l < y->last; l++) {
        struct frame_layer *f = at(y, l);
        const struct layer *x = &y->net->model->layers[l];
        const struct layer_kind *k = layer_kinds[x->type];
        if (f->home == FRAME_PASSED)
            continue;
        if (f->stretch == l)
            scratch = 0;
        size_t *used = f->home == FRAME_AGAIN ? &scratch : &y->frame_bytes;
        if (k->kept)
            f->kept_elements =
                k->kept(x, frame_activation(y->net, l), y->max_rows, y->net->layers[l].out);
        f->kept_packed = f->packed && f->kept_elements > 0 && k->kept_is_output;
        f->y = take(used, value_bytes(out_elements(y, l), f->packed));
        f->kept = take(used, value_bytes(f->kept_elements, f->kept_packed));
        y->scratch_bytes = scratch > y->scratch_bytes ? scratch : y->scratch_bytes;
        y->windows = f->packed || f->kept_packed ? FRAME_WINDOWS : y->windows;
    }
}

static void find_widest(struct frame_layout *y)
{
    y->widest = in_elements(y);
    for (int l = y->first; l < y->last; l++)
        y->widest = out_elements(y, l) > y->widest ? out_elements(y, l) : y->widest;
}

/* For the parts of all tensor ranks of a layer whose output is gathered; backward needs two. */
static void find_gathered(struct frame_layout *y)
{
    const struct net *n = y->net;
    for (int l = y->first; l < y->last; l++) {
        size_t bytes = frame_part(n, l, y->max_rows) * sizeof(float) * (size_t)n->tensor;
        if (n->layers[l].cut.gather && bytes > y->gathered_bytes)
            y->gathered_bytes = bytes;
    }
}

static void place_edge(struct frame_layout *y)
{
    size_t most = 0;
    for (int b = 0; b < y->bar_count; b++) {
        size_t bytes = value_bytes(out_elements(y, y->bars[b]), 0);
        most = bytes > most ? bytes : most;
    }
    y->edge = take(&y->frame_bytes, most);
}

/* ---- gradients that skip layers ---- */

/* Slots of which some are in use. */
struct slots {
    size_t *bytes;
    int *taken;
    int count;
};

static int take_slot(struct slots *s, size_t bytes)
{
    int slot = 0;
    while (slot < s->count && s->taken[slot])
        slot++;
    if (slot == s->count)
        s->bytes[s->count++] = 0;
    s->bytes[slot] = bytes > s->bytes[slot] ? bytes : s->bytes[slot];
    s->taken[slot] = 1;
    return slot;
}

/* A slot is in use from the last `add` that reads an output down to the layer that made it. */
static void assign_skips(struct frame_layout *y, struct slots *s)
{
    for (int l = y->last - 1; l >= y->first; l--) {
        int from = l - y->net->model->layers[l].back;
        if (at(y, l)->skip >= 0)
            s->taken[at(y, l)->skip] = 0;
        if (from < l && from >= y->first && from >= y->net->lowest && at(y, from)->skip < 0)
            at(y, from)->skip = take_slot(s, value_bytes(out_elements(y, from), 0));
    }
}

static void place_skips(struct frame_layout *y)
{
    size_t count = (size_t)(y->last - y->first), *used = &y->frame_bytes;
    CLEANUP(mem_freep) size_t *bytes = mem_zalloc(count * sizeof *bytes);
    CLEANUP(mem_freep) int *taken = mem_zalloc(count * sizeof *taken);
    struct slots s = {.bytes = bytes, .taken = taken};
    assign_skips(y, &s);
    y->skip_count = s.count;
    y->skips = mem_zalloc((count + 1) * sizeof *y->skips);
    if (y->bar_count == 0)
        used = &y->shared_skips;
    for (int i = 0; i < s.count; i++)
        y->skips[i] = take(used, bytes[i]);
}

void frame_layout_init(struct frame_layout *y, const struct net *n, const struct net_chunk *chunk,
                       const struct frame_options *o)
{
    *y = (struct frame_layout){
        .net = n,
        .first = chunk->first,
        .last = chunk->last,
        .max_rows = o->max_rows,
        .x_packed = o->bfloat16 && frame_rounds(n, chunk->first - 1),
    };
    y->layers = mem_alloc((size_t)(y->last - y->first) * sizeof *y->layers);
    y->windows = y->x_packed ? FRAME_WINDOWS : 0;
    set_homes(y, o);
    find_bars(y);
    set_stretches(y);
    while (keep_one_for_adds(y))
        set_stretches(y);
    take(&y->frame_bytes, value_bytes(in_elements(y), y->x_packed));
    place_outputs(y);
    place_edge(y);
    place_skips(y);
    find_widest(y);
    find_gathered(y);
}

void frame_layout_done(struct frame_layout *y)
{
    free(y->layers);
    free(y->bars);
    free(y->skips);
    *y = (struct frame_layout){0};
}

/* ---- memory ---- */

static int allocate(const struct net *n, size_t bytes, char **ret, struct err *e)
{
    *ret = n->ops->alloc(bytes);
    return *ret ? 0 : ops_no_memory(n->ops, bytes, "activations", e);
}

int frame_init(struct frame *f, const struct frame_layout *y, struct err *e)
{
    *f = (struct frame){0};
    return allocate(y->net, y->frame_bytes, &f->memory, e);
}

void frame_done(struct frame *f, const struct net *n)
{
    if (n->ops)
        n->ops->release(f->memory);
    *f = (struct frame){0};
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The largest of each, over the chunks. */
static struct frame_layout largest(const struct frame_layout *layouts, int count)
{
    struct frame_layout m = {0};
    for (int i = 0; i < count; i++) {
        m.widest = most(m.widest, layouts[i].widest);
        m.shared_skips = most(m.shared_skips, layouts[i].shared_skips);
        m.scratch_bytes = most(m.scratch_bytes, layouts[i].scratch_bytes);
        m.gathered_bytes = most(m.gathered_bytes, layouts[i].gathered_bytes);
        m.windows = layouts[i].windows > m.windows ? layouts[i].windows : m.windows;
    }
    return m;
}

size_t frame_work_bytes(const struct frame_layout *layouts, int count)
{
    struct frame_layout m = largest(layouts, count);
    return (size_t)(2 + m.windows) * value_bytes(m.widest, 0) + m.shared_skips + m.scratch_bytes +
           m.gathered_bytes;
}

int frame_work_init(struct frame_work *w, const struct frame_layout *layouts, int count,
                    struct err *e)
{
    struct frame_layout m = largest(layouts, count);
    size_t wide = value_bytes(m.widest, 0), used = 0;
    *w = (struct frame_work){0};
    int r = allocate(layouts->net, frame_work_bytes(layouts, count), &w->memory, e);
    if (r < 0)
        return r;
    for (int i = 0; i < 2; i++)
        w->gradient[i] = (float *)(w->memory + take(&used, wide));
    for (int i = 0; i < m.windows; i++)
        w->window[i] = (float *)(w->memory + take(&used, wide));
    w->skips = w->memory + take(&used, m.shared_skips);
    w->scratch = w->memory + take(&used, m.scratch_bytes);
    w->gathered = (float *)(w->memory + take(&used, m.gathered_bytes));
    for (int i = 0; i < FRAME_WINDOWS; i++)
        w->holds[i] = INT_MIN;
    return 0;
}

void frame_work_done(struct frame_work *w, const struct net *n)
{
    if (n->ops)
        n->ops->release(w->memory);
    *w = (struct frame_work){0};
}
