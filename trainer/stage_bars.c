/* stage_bars.c: sums over the whole batch, for layers that need them before they can go on. */
#include <stdlib.h>

#include "base/mem.h"
#include "trainer/stage.h"

static struct layers_sums *sums_of(const struct stage *s, int chunk, int bar)
{
    return &s->chunks[chunk].sums[bar - s->layouts[chunk].first];
}

/* How many sums a bar has, asked with an empty micro-batch. */
static int count_of(const struct stage *s, int chunk, int bar)
{
    static const struct layer_pass nothing = {0};
    struct frame frame = {.memory = s->chunks[chunk].frames[0].memory};
    struct frame_work work = s->work;
    struct layers_pass p = {
        .layout = &s->layouts[chunk], .frame = &frame, .work = &work, .pass = &nothing};
    struct layer_call c = layers_call(&p, bar);
    return layer_kinds[c.layer->type]->sum_count(&c);
}

static int bars_of(const struct stage *s)
{
    int bars = 0;
    for (int c = 0; c < s->net.chunk_count; c++)
        bars += s->layouts[c].bar_count;
    return bars;
}

size_t stage_bars_bytes(const struct stage *s)
{
    size_t elements = (size_t)s->microbatches * (size_t)s->leaf;
    for (int c = 0; c < s->net.chunk_count; c++)
        for (int b = 0; b < s->layouts[c].bar_count; b++)
            elements += 2 * (size_t)count_of(s, c, s->layouts[c].bars[b]);
    return bars_of(s) > 0 ? elements * sizeof(double) : 0;
}

static int allocate(const struct stage *s, size_t count, double **ret, struct err *e)
{
    *ret = s->net.ops->alloc(count * sizeof **ret);
    return *ret ? 0 : ops_no_memory(s->net.ops, count * sizeof **ret, "sums", e);
}

static int init_bar(struct stage *s, int chunk, int bar, struct err *e)
{
    struct layers_sums *x = sums_of(s, chunk, bar);
    int count = count_of(s, chunk, bar);
    s->leaf = count > s->leaf ? count : s->leaf;
    int r = allocate(s, (size_t)count, &x->forward, e);
    return r < 0 ? r : allocate(s, (size_t)count, &x->backward, e);
}

int stage_bars_init(struct stage *s, struct err *e)
{
    int r = 0;
    for (int c = 0; r == 0 && c < s->net.chunk_count; c++) {
        const struct frame_layout *y = &s->layouts[c];
        if (y->bar_count > 0)
            s->chunks[c].sums = mem_zalloc((size_t)(y->last - y->first) * sizeof *s->chunks->sums);
        for (int b = 0; r == 0 && b < y->bar_count; b++)
            r = init_bar(s, c, y->bars[b], e);
    }
    if (r == 0 && bars_of(s) > 0)
        r = allocate(s, (size_t)s->microbatches * (size_t)s->leaf, &s->leaves, e);
    return r;
}

void stage_bars_done(struct stage *s)
{
    for (int c = 0; s->chunks && c < s->net.chunk_count; c++) {
        for (int b = 0; s->chunks[c].sums && b < s->layouts[c].bar_count; b++) {
            struct layers_sums *x = sums_of(s, c, s->layouts[c].bars[b]);
            s->net.ops->release(x->forward);
            s->net.ops->release(x->backward);
        }
        free(s->chunks[c].sums);
    }
    if (s->net.ops)
        s->net.ops->release(s->leaves);
}

static double *leaf(const struct stage *s, int j)
{
    return s->leaves + (size_t)j * (size_t)s->leaf;
}

void stage_bar_leaf(struct stage *s, const struct layers_pass *p, int b, const float *dy)
{
    struct layer_call c = layers_call(p, p->layout->bars[b]);
    const struct layer_kind *k = layer_kinds[c.layer->type];
    if (dy)
        k->backward_sums(&c, dy, leaf(s, p->j));
    else
        k->sums(&c, leaf(s, p->j));
}

/* Moving statistics go by what the batch had, once. */
static void end_step(const struct stage *s, int chunk, int bar)
{
    static const struct layer_pass training = {.training = 1};
    struct frame frame = {.memory = s->chunks[chunk].frames[0].memory};
    struct frame_work work = s->work;
    struct layers_pass p = {.layout = &s->layouts[chunk],
                            .frame = &frame,
                            .work = &work,
                            .pass = &training,
                            .sums = s->chunks[chunk].sums};
    struct layer_call c = layers_call(&p, bar);
    const struct layer_kind *k = layer_kinds[c.layer->type];
    if (k->end_step)
        k->end_step(&c);
}

int stage_bar_add_up(struct stage *s, int chunk, int b, int backward, int64_t total, struct err *e)
{
    const struct ops *o = s->net.ops;
    int bar = s->layouts[chunk].bars[b], m = s->microbatches, r = 0;
    const struct shape *in = &s->net.model->layers[bar].in;
    struct layers_sums *x = sums_of(s, chunk, bar);
    double *sums = backward ? x->backward : x->forward;
    size_t count = (size_t)count_of(s, chunk, bar);
    for (int stride = 1; stride < m; stride *= 2)
        for (int j = 0; j + stride < m; j += 2 * stride)
            o->add_f64(count, leaf(s, j + stride), leaf(s, j));
    o->copy(sums, leaf(s, 0), count * sizeof *sums);
    x->rows = (double)(total * shape_positions(in));
    if (s->mesh->batch)
        r = s->mesh->batch->verbs->all_reduce(s->mesh->batch, sums, count, COMM_F64, e);
    if (r == 0 && !backward)
        end_step(s, chunk, bar);
    return r;
}
