/* stage.c: the micro-batches of one rank. */
#include "trainer/stage.h"

#include <stdlib.h>

#include "base/mem.h"
#include "trainer/order.h"

static int is_first(const struct stage *s)
{
    return s->mesh->stage == 0;
}

static int is_last(const struct stage *s)
{
    return s->mesh->stage == s->mesh->stages - 1;
}

static int64_t in_size(const struct stage *s)
{
    return shape_elements(&s->net.model->layers[s->net.chunks[0].first].in);
}

/* ---- sizes ---- */

int64_t stage_max_rows(const struct job_spec *job, const struct plan *p, const struct mesh *m,
                       const struct dataset *set)
{
    int64_t most = share_most(set, &job->fit, m);
    return (most + p->microbatches - 1) / p->microbatches;
}

size_t stage_message_bytes(const struct model *m, const struct plan *p, int64_t max_rows)
{
    int64_t widest = 0;
    for (int s = 1; s < p->pipeline; s++) {
        int64_t in = shape_elements(&m->layers[p->stage_first[s]].in);
        widest = in > widest ? in : widest;
    }
    return (size_t)(widest * max_rows) * sizeof(float);
}

/* Forward passes before the first backward one. */
static int warmup(const struct stage *s)
{
    int after = s->mesh->stages - 1 - s->mesh->stage;
    if (s->schedule == SCHEDULE_GPIPE)
        return s->microbatches;
    return after < s->microbatches ? after : s->microbatches;
}

static int in_flight(const struct stage *s)
{
    int w = warmup(s);
    return w + 1 < s->microbatches ? w + 1 : s->microbatches;
}

size_t stage_bytes(const struct stage *s, const struct dataset *set)
{
    size_t batch = is_last(s) ? batch_bytes(&s->net, set, s->max_rows) : 0;
    return (size_t)s->frame_count * frame_bytes(&s->net, s->max_rows) +
           frame_work_bytes(&s->net, s->max_rows) + batch;
}

int stage_init(struct stage *s, const struct job_spec *job, const struct plan *p,
               const struct mesh *m, const struct dataset *set, struct err *e)
{
    s->job = job;
    s->mesh = m;
    s->microbatches = p->microbatches;
    s->schedule = p->schedule;
    s->max_rows = stage_max_rows(job, p, m, set);
    s->out_size = shape_elements(&job->model.layers[s->net.chunks[0].last - 1].out);
    s->seed = job->fit.seed + (m->ensemble ? (uint64_t)m->data_rank : 0);
    s->frame_count = in_flight(s);
    s->frames = mem_zalloc((size_t)s->frame_count * sizeof *s->frames);
    s->sums = s->net.ops->alloc(sizeof *s->sums);
    int r = s->sums ? 0 : err_set(e, ERR_UNAVAILABLE, "The device has no memory left.");
    for (int f = 0; r == 0 && f < s->frame_count; f++)
        r = frame_init(&s->frames[f], &s->net, s->max_rows, e);
    if (r == 0)
        r = frame_work_init(&s->work, &s->net, s->max_rows, e);
    if (r == 0)
        r = batch_init(&s->batch, &s->net, set, s->max_rows, e);
    return r;
}

void stage_done(struct stage *s)
{
    batch_done(&s->batch);
    for (int f = 0; f < s->frame_count; f++)
        frame_done(&s->frames[f], &s->net);
    free(s->frames);
    frame_work_done(&s->work, &s->net);
    if (s->net.ops)
        s->net.ops->release(s->sums);
    net_done(&s->net);
    *s = (struct stage){0};
}

/* ---- loss ---- */

void stage_loss(const struct stage *s, int from_logits, int64_t rows, const float *out,
                float *gradient, struct loss_sums *sums)
{
    struct loss_args a = {
        .kind = s->job->loss,
        .from_logits = from_logits,
        .rows = rows * s->batch.positions,
        .cols = s->out_size / s->batch.positions,
        .out = out,
        .classes = s->batch.classes,
        .targets = s->batch.targets,
        .gradient = gradient,
        .sums = sums,
    };
    s->net.ops->loss(&a);
}

struct loss_sums stage_take_sums(const struct stage *s, struct loss_sums *sums)
{
    struct loss_sums host;
    s->net.ops->download(&host, sums, sizeof host);
    s->net.ops->zero(sums, sizeof *sums);
    return host;
}

/* ---- one micro-batch ---- */

/* What the passes of a step have in common. */
struct run {
    struct stage *s;
    const struct items *items;
    struct layer_pass pass;
    const struct layers_hook *hook;
};

static size_t bytes_of(int64_t rows, int64_t size)
{
    return (size_t)(rows * size) * sizeof(float);
}

static float *output(const struct stage *s, const struct frame *f)
{
    return f->slots[s->net.chunks[0].last - s->net.chunks[0].first - 1].y;
}

/* Fills the frame with items [begin, end) and runs it; the output goes to the next stage. */
static int forward_frame(const struct run *r, struct frame *f, int64_t begin, int64_t end,
                         struct err *e)
{
    struct stage *s = r->s;
    struct comm *line = s->mesh->pipeline;
    int status = 0;
    f->rows = end - begin;
    f->position = r->items->position + begin;
    if (is_first(s))
        status = batch_features(&s->batch, r->items, begin, f->rows, f->x, e);
    else
        status =
            line->verbs->recv(line, s->mesh->stage - 1, f->x, bytes_of(f->rows, in_size(s)), e);
    if (status < 0)
        return status;
    comm_progress(s->mesh->world);
    float *out = layers_forward(&s->net, f, &r->pass);
    if (is_last(s))
        return 0;
    return line->verbs->send(line, s->mesh->stage + 1, out, bytes_of(f->rows, s->out_size), e);
}

static int forward(const struct run *r, int j, struct err *e)
{
    int64_t begin, end;
    order_slice(r->items->count, r->s->microbatches, j, &begin, &end);
    if (begin == end)
        return 0;
    return forward_frame(r, &r->s->frames[j % r->s->frame_count], begin, end, e);
}

/* The gradient of the output into the first work buffer: from the loss, or from the next stage. */
static int start_backward(const struct run *r, const struct frame *f, int64_t begin, struct err *e)
{
    struct stage *s = r->s;
    struct comm *line = s->mesh->pipeline;
    if (!is_last(s))
        return line->verbs->recv(line, s->mesh->stage + 1, s->work.buffer[0],
                                 bytes_of(f->rows, s->out_size), e);
    int status = batch_targets(&s->batch, r->items, begin, f->rows, e);
    if (status == 0)
        stage_loss(s, s->net.fused, f->rows, output(s, f), s->work.buffer[0], s->sums);
    return status;
}

static int backward(const struct run *r, int j, struct err *e)
{
    struct stage *s = r->s;
    struct frame *f = &s->frames[j % s->frame_count];
    int64_t begin, end;
    order_slice(r->items->count, s->microbatches, j, &begin, &end);
    if (begin == end)
        return 0;
    int status = start_backward(r, f, begin, e);
    if (status < 0)
        return status;
    comm_progress(s->mesh->world);
    float *dx;
    int is_final = end == r->items->count; /* slices are in order, empty ones last */
    status = layers_backward(&s->net, f, &s->work, &r->pass, j, is_final, r->hook, &dx, e);
    if (status < 0 || is_first(s))
        return status;
    struct comm *line = s->mesh->pipeline;
    return line->verbs->send(line, s->mesh->stage - 1, dx, bytes_of(f->rows, in_size(s)), e);
}

/* ---- a step ---- */

static int layer_of_nothing(const struct net *n, const struct layers_hook *hook, int layer,
                            struct err *e)
{
    float beta = 0;
    int count, r = hook->before(hook->context, layer, 0, 1, &beta, e);
    const struct net_tensor *x = net_tensors_of(n, layer, &count);
    for (int t = 0; r == 0 && t < count; t++)
        if (!x[t].is_fixed && beta == 0)
            n->ops->zero(x[t].gradient, x[t].elements * sizeof(float));
    return r < 0 ? r : hook->after(hook->context, layer, 0, 1, 1, e);
}

/* A rank without items adds nothing, but takes part in what its peers do after each layer. */
static int train_nothing(const struct stage *s, const struct layers_hook *hook, struct err *e)
{
    int r = 0;
    for (int l = s->net.chunks[0].last - 1; r == 0 && l >= s->net.lowest; l--)
        if (s->net.layers[l].tensor_count > 0)
            r = layer_of_nothing(&s->net, hook, l, e);
    return r;
}

int stage_train(struct stage *s, const struct items *items, int64_t step,
                const struct layers_hook *hook, struct err *e)
{
    struct run r = {
        .s = s,
        .items = items,
        .pass = {.training = 1, .seed = s->seed, .step = step},
        .hook = hook,
    };
    if (items->count == 0)
        return train_nothing(s, hook, e);
    int w = warmup(s), status = 0;
    for (int j = 0; status == 0 && j < s->microbatches + w; j++) {
        if (j < s->microbatches)
            status = forward(&r, j, e);
        if (status == 0 && j >= w)
            status = backward(&r, j - w, e);
    }
    return status;
}

/* ---- evaluation ---- */

static int finish_outputs(const struct run *r, const struct frame *f, int64_t begin,
                          const struct stage_visit *visit, struct err *e)
{
    struct stage *s = r->s;
    float *out = output(s, f);
    int status = batch_targets(&s->batch, r->items, begin, f->rows, e);
    if (status < 0)
        return status;
    stage_loss(s, s->net.fused, f->rows, out, NULL, s->sums);
    return visit ? visit->outputs(visit->context, out, f->rows, e) : 0;
}

int stage_evaluate(struct stage *s, const struct items *items, const struct stage_visit *visit,
                   struct err *e)
{
    struct run r = {.s = s, .items = items};
    struct frame *f = &s->frames[0];
    int status = 0;
    for (int64_t at = 0; status == 0 && at < items->count; at += s->max_rows) {
        int64_t end = at + s->max_rows < items->count ? at + s->max_rows : items->count;
        status = forward_frame(&r, f, at, end, e);
        if (status == 0 && is_last(s))
            status = finish_outputs(&r, f, at, visit, e);
    }
    return status;
}
