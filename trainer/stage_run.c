/* stage_run.c: the passes of a step, and of an evaluation. */
#include "base/clock.h"
#include "base/mem.h"
#include "trainer/order.h"
#include "trainer/stage.h"

/* What the passes have in common. */
struct run {
    struct stage *s;
    const struct items *items;
    struct layer_pass pass;
    const struct layers_hook *hook;
};

/* One micro-batch of one chunk. */
struct turn {
    const struct run *run;
    struct layers_pass p;
    int chunk;
    int64_t begin; /* of its items, in the rank's */
};

static int is_first(const struct turn *t)
{
    return t->run->s->chunks[t->chunk].stage == 0;
}

static int is_last(const struct turn *t)
{
    const struct mesh *m = t->run->s->mesh;
    return t->run->s->chunks[t->chunk].stage == m->stages * m->chunks - 1;
}

static struct turn turn_of(const struct run *r, int chunk, int j)
{
    struct stage *s = r->s;
    struct stage_chunk *k = &s->chunks[chunk];
    return (struct turn){
        .run = r,
        .chunk = chunk,
        .p = {.layout = &s->layouts[chunk],
              .frame = &k->frames[j % k->frame_count],
              .work = &s->work,
              .pass = &r->pass,
              .hook = r->hook,
              .sums = r->pass.training ? k->sums : NULL,
              .j = j,
              .is_final = j == s->microbatches - 1,
              .tensors = s->mesh->tensors,
              .partials = &s->partials},
    };
}

/* ---- times ---- */

int64_t (*stage_added_us)(const struct stage *s, int chunk);

void stage_measure(struct stage *s)
{
    s->times.busy_us = mem_zalloc((size_t)s->net.chunk_count * sizeof *s->times.busy_us);
}

static void start_clock(struct stage *s)
{
    s->times.hook_us = 0;
    s->times.began_us = s->times.busy_us ? clock_boottime_us() : 0;
}

static void stop_clock(struct stage *s, int chunk)
{
    if (!s->times.busy_us)
        return;
    s->times.busy_us[chunk] += clock_boottime_us() - s->times.began_us - s->times.hook_us;
    if (stage_added_us)
        s->times.busy_us[chunk] += stage_added_us(s, chunk);
}

/* Hooks wait for other ranks. */
static int timed_before(void *context, int layer, int j, int backward, float *ret_beta,
                        struct err *e)
{
    struct stage_times *t = context;
    int64_t began = clock_boottime_us();
    int r = t->hook->before(t->hook->context, layer, j, backward, ret_beta, e);
    t->hook_us += clock_boottime_us() - began;
    return r;
}

static int timed_after(void *context, int layer, int j, int backward, int is_final, struct err *e)
{
    struct stage_times *t = context;
    int64_t began = clock_boottime_us();
    int r = t->hook->after(t->hook->context, layer, j, backward, is_final, e);
    t->hook_us += clock_boottime_us() - began;
    return r;
}

/* ---- messages ---- */

static int next_of(const struct mesh *m)
{
    return (m->stage + 1) % m->stages;
}

static int previous_of(const struct mesh *m)
{
    return (m->stage + m->stages - 1) % m->stages;
}

/* Of the input, or with `out` the output of the chunk. */
static size_t bytes_of(const struct turn *t, int out, int packed)
{
    const struct frame_layout *y = t->p.layout;
    const struct model *m = y->net->model;
    const struct shape *s = out ? &m->layers[y->last - 1].out : &m->layers[y->first].in;
    return (size_t)(t->p.frame->rows * shape_elements(s)) *
           (packed ? sizeof(uint16_t) : sizeof(float));
}

/* ---- looking ahead ---- */

typedef void expect(struct batch *b, const struct items *items, int64_t begin, int64_t n);

static int expect_first(struct stage *s, const struct items *items, int from, expect *tell)
{
    for (int j = from; j < s->microbatches; j++) {
        int64_t begin, end;
        order_slice(items->count, s->microbatches, j, &begin, &end);
        if (end > begin) {
            tell(&s->batch, items, begin, end - begin);
            return 1;
        }
    }
    return 0;
}

/* After micro-batch j comes the next one that has items, or the first of the next step. */
static void look_ahead(const struct run *r, int j, expect *tell)
{
    if (!expect_first(r->s, r->items, j + 1, tell) && r->s->next.count > 0)
        expect_first(r->s, &r->s->next, 0, tell);
}

void stage_expect(struct stage *s, const struct items *next)
{
    s->next = next ? *next : (struct items){0};
}

/* ---- forward ---- */

/* Fills the frame with items [begin, end). */
static int take_input(struct turn *t, int64_t begin, int64_t end, struct err *e)
{
    struct stage *s = t->run->s;
    struct frame *f = t->p.frame;
    struct comm *line = s->mesh->pipeline;
    t->begin = begin;
    f->rows = end - begin;
    f->position = t->run->items->position + begin;
    if (f->rows == 0)
        return 0;
    if (is_first(t))
        return batch_features(&s->batch, t->run->items, begin, f->rows, (float *)f->memory, e);
    return line->verbs->recv(line, previous_of(s->mesh), f->memory,
                             bytes_of(t, 0, t->p.layout->x_packed), e);
}

static int pass_output_on(const struct turn *t, struct err *e)
{
    struct comm *line = t->run->s->mesh->pipeline;
    int packed;
    if (is_last(t) || t->p.frame->rows == 0)
        return 0;
    void *out = layers_output(&t->p, t->p.layout->last - 1, &packed);
    return line->verbs->send(line, next_of(t->run->s->mesh), out, bytes_of(t, 1, packed), e);
}

static float *outputs(const struct turn *t)
{
    int packed; /* never: the model's outputs are not */
    return layers_output(&t->p, t->p.layout->last - 1, &packed);
}

static void slice(const struct run *r, int j, int64_t *ret_begin, int64_t *ret_end)
{
    order_slice(r->items->count, r->s->microbatches, j, ret_begin, ret_end);
}

/* Part `i` of a chunk's forward pass: from its beginning, or from bar i - 1, up to bar i or the
 * end. */
static int forward_part(const struct run *r, int chunk, int j, int i, struct err *e)
{
    struct turn t = turn_of(r, chunk, j);
    const struct frame_layout *y = t.p.layout;
    int64_t begin, end;
    int status = 0;
    slice(r, j, &begin, &end);
    start_clock(r->s);
    if (i == 0)
        status = take_input(&t, begin, end, e);
    if (status < 0)
        return status;
    if (i == 0 && is_first(&t))
        look_ahead(r, j, batch_expect_features);
    else if (i == 0)
        start_clock(r->s); /* it has waited for the stage before */
    comm_progress(r->s->mesh->world);
    status = layers_forward(&t.p, i == 0 ? y->first : y->bars[i - 1],
                            i < y->bar_count ? y->bars[i] : y->last, e);
    if (status < 0)
        return status;
    if (i < y->bar_count)
        stage_bar_leaf(r->s, &t.p, i, NULL);
    stop_clock(r->s, chunk);
    return i < y->bar_count ? 0 : pass_output_on(&t, e);
}

static int forward_with_bars(const struct run *r, int chunk, struct err *e)
{
    int status = 0, bars = r->s->layouts[chunk].bar_count;
    for (int i = 0; status == 0 && i <= bars; i++) {
        for (int j = 0; status == 0 && j < r->s->microbatches; j++)
            status = forward_part(r, chunk, j, i, e);
        if (status == 0 && i < bars)
            status = stage_bar_add_up(r->s, chunk, i, 0, r->items->total, e);
    }
    return status;
}

/* ---- backward ---- */

/* The gradient of the output into the first work buffer: from the loss, or from the next stage. */
static int take_gradient(const struct turn *t, struct err *e)
{
    struct stage *s = t->run->s;
    const struct frame *f = t->p.frame;
    struct comm *line = s->mesh->back;
    if (f->rows == 0)
        return 0;
    if (!is_last(t))
        return line->verbs->recv(line, next_of(s->mesh), s->work.gradient[0], bytes_of(t, 1, 0), e);
    int status = batch_targets(&s->batch, t->run->items, t->begin, f->rows, e);
    if (status == 0)
        look_ahead(t->run, t->p.j, batch_expect_targets);
    if (status == 0)
        stage_loss(s, s->net.fused, f->rows, outputs(t), s->work.gradient[0], s->sums + t->p.j);
    if (status == 0 && s->loss_scale > 1)
        s->net.ops->affine(f->rows * s->out_size, s->loss_scale, 0.0f, s->work.gradient[0],
                           s->work.gradient[0]);
    return status;
}

static int pass_gradient_on(const struct turn *t, const float *dx, struct err *e)
{
    struct comm *line = t->run->s->mesh->back;
    if (is_first(t) || t->p.frame->rows == 0)
        return 0;
    return line->verbs->send(line, previous_of(t->run->s->mesh), dx, bytes_of(t, 0, 0), e);
}

/* Where a micro-batch's gradient waits at bar `b`. */
static float *edge(const struct turn *t)
{
    return (float *)(t->p.frame->memory + t->p.layout->edge);
}

static size_t bar_bytes(const struct turn *t, int b)
{
    const struct frame_layout *y = t->p.layout;
    return (size_t)(t->p.frame->rows * net_out_elements(y->net, y->bars[b])) * sizeof(float);
}

static void wait_at_bar(const struct turn *t, int b, const float *dy)
{
    struct stage *s = t->run->s;
    s->net.ops->copy(edge(t), dy, bar_bytes(t, b));
    if (t->p.layout->bars[b] >= s->net.lowest)
        stage_bar_leaf(s, &t->p, b, dy);
}

/* Part `i` of a chunk's backward pass: from its end, or from bar i, which is done first, down to
 * the layer above bar i - 1 or the beginning. */
static int backward_part(const struct run *r, int chunk, int j, int i, struct err *e)
{
    struct turn t = turn_of(r, chunk, j);
    const struct frame_layout *y = t.p.layout;
    float *dy = r->s->work.gradient[0];
    int64_t end;
    int status = 0;
    slice(r, j, &t.begin, &end);
    start_clock(r->s);
    if (i == y->bar_count)
        status = take_gradient(&t, e);
    else
        r->s->net.ops->copy(dy, edge(&t), bar_bytes(&t, i));
    if (status < 0)
        return status;
    if (i == y->bar_count && !is_last(&t))
        start_clock(r->s); /* it has waited for the stage behind */
    comm_progress(r->s->mesh->world);
    status = layers_backward(&t.p, i == 0 ? y->first : y->bars[i - 1] + 1,
                             i < y->bar_count ? y->bars[i] + 1 : y->last, &dy, e);
    if (status < 0)
        return status;
    if (i > 0)
        wait_at_bar(&t, i - 1, dy);
    stop_clock(r->s, chunk);
    return i > 0 ? 0 : pass_gradient_on(&t, dy, e);
}

static int backward_with_bars(const struct run *r, int chunk, struct err *e)
{
    const struct frame_layout *y = &r->s->layouts[chunk];
    int status = 0;
    for (int i = y->bar_count; status == 0 && i >= 0; i--) {
        for (int j = 0; status == 0 && j < r->s->microbatches; j++)
            status = backward_part(r, chunk, j, i, e);
        if (status == 0 && i > 0 && y->bars[i - 1] >= r->s->net.lowest)
            status = stage_bar_add_up(r->s, chunk, i - 1, 1, r->items->total, e);
    }
    return status;
}

/* Where they are read the device has nothing left to do: they start at zero when the next pass
 * begins. */
static void start_sums(struct stage *s)
{
    s->net.ops->zero(s->sums, (size_t)s->microbatches * sizeof *s->sums);
}

/* ---- a step ---- */

/* One pass, or where there are bars all that stand in a row; *ret_done of them. */
static int take_pass(const struct run *r, const struct schedule_pass *pass, int *ret_done,
                     struct err *e)
{
    int bars = r->s->layouts[pass->chunk].bar_count;
    *ret_done = bars > 0 ? r->s->microbatches : 1;
    if (bars > 0)
        return pass->is_backward ? backward_with_bars(r, pass->chunk, e)
                                 : forward_with_bars(r, pass->chunk, e);
    return pass->is_backward ? backward_part(r, pass->chunk, pass->microbatch, 0, e)
                             : forward_part(r, pass->chunk, pass->microbatch, 0, e);
}

int stage_train(struct stage *s, const struct items *items, int64_t step,
                const struct layers_hook *hook, struct err *e)
{
    const struct layers_hook timed = {
        .before = timed_before, .after = timed_after, .context = &s->times};
    s->times.hook = hook;
    struct run r = {
        .s = s,
        .items = items,
        .pass = {.training = 1, .seed = s->seed, .step = step},
        .hook = s->times.busy_us && hook ? &timed : hook,
    };
    int status = 0, done = 0;
    start_sums(s);
    for (int64_t k = 0; status == 0 && k < s->schedule.count; k += done) {
        status = take_pass(&r, &s->schedule.passes[k], &done, e);
        batch_send_ahead(&s->batch);
    }
    return status;
}

/* ---- evaluation ---- */

/* How an evaluation is cut: parts, each in pieces of at most max_rows items; as many on every data
 * rank, so that all make the same calls. */
struct pieces {
    int parts, of_part;
};

static struct pieces pieces_of(const struct stage *s, const struct items *items)
{
    int64_t slices = (int64_t)s->parts * (s->mesh->ensemble ? 1 : s->mesh->data);
    int64_t largest = (items->total + slices - 1) / slices;
    return (struct pieces){s->parts, (int)((largest + s->max_rows - 1) / s->max_rows)};
}

/* Items [*ret_begin, *ret_end) of piece k. */
static void piece(const struct run *r, const struct pieces *cut, int k, int64_t *ret_begin,
                  int64_t *ret_end)
{
    int64_t begin, end;
    order_slice(r->items->count, cut->parts, k / cut->of_part, &begin, &end);
    begin += k % cut->of_part * r->s->max_rows;
    *ret_begin = begin < end ? begin : end;
    *ret_end = *ret_begin + r->s->max_rows < end ? *ret_begin + r->s->max_rows : end;
}

static void look_past_piece(const struct run *r, const struct pieces *cut, int k, expect *tell)
{
    int64_t begin = 0, end = 0;
    while (++k < cut->parts * cut->of_part && begin == end)
        piece(r, cut, k, &begin, &end);
    tell(&r->s->batch, r->items, begin, end - begin);
}

static int finish_outputs(const struct turn *t, const struct pieces *cut, int k,
                          const struct stage_visit *visit, struct err *e)
{
    struct stage *s = t->run->s;
    int64_t rows = t->p.frame->rows;
    if (!is_last(t) || rows == 0)
        return 0;
    int status = batch_targets(&s->batch, t->run->items, t->begin, rows, e);
    if (status < 0)
        return status;
    look_past_piece(t->run, cut, k, batch_expect_targets);
    stage_loss(s, s->net.fused, rows, outputs(t), NULL, s->sums + k / cut->of_part);
    return visit ? visit->outputs(visit->context, outputs(t), rows, e) : 0;
}

static int evaluate_piece(const struct run *r, const struct pieces *cut,
                          const struct schedule_pass *pass, const struct stage_visit *visit,
                          struct err *e)
{
    struct turn t = turn_of(r, pass->chunk, 0);
    int64_t begin, end;
    piece(r, cut, pass->microbatch, &begin, &end);
    int status = take_input(&t, begin, end, e);
    if (status < 0)
        return status;
    if (is_first(&t))
        look_past_piece(r, cut, pass->microbatch, batch_expect_features);
    comm_progress(r->s->mesh->world);
    status = layers_forward(&t.p, t.p.layout->first, t.p.layout->last, e);
    if (status == 0)
        status = pass_output_on(&t, e);
    return status < 0 ? status : finish_outputs(&t, cut, pass->microbatch, visit, e);
}

int stage_evaluate(struct stage *s, const struct items *items, const struct layers_hook *hook,
                   const struct stage_visit *visit, struct err *e)
{
    struct run r = {.s = s, .items = items, .hook = hook};
    struct pieces cut = pieces_of(s, items);
    struct schedule list = {0};
    int status = 0;
    start_sums(s);
    if (cut.of_part == 0)
        return 0;
    schedule_make_forward(&list, s->mesh->stages, s->mesh->chunks, cut.parts * cut.of_part);
    for (int64_t k = 0; status == 0 && k < list.count; k++) {
        status = evaluate_piece(&r, &cut, &list.passes[k], visit, e);
        batch_send_ahead(&s->batch);
    }
    schedule_done(&list);
    return status;
}
