/* stage.c: what a rank's chunks need, before they run (stage_run.c). */
#include "trainer/stage.h"

#include <stdlib.h>

#include "base/mem.h"
#include "trainer/order.h"

/* ---- sizes ---- */

int stage_microbatches(const struct plan *p)
{
    return p->parallel.reproducible ? (int)(p->parallel.grains / p->data) : p->microbatches;
}

int64_t stage_max_rows(const struct job_spec *job, const struct plan *p, const struct mesh *m,
                       const struct dataset *set)
{
    int64_t most = share_most(set, &job->fit, m, p), parts = stage_microbatches(p);
    return (most + parts - 1) / parts;
}

size_t stage_message_bytes(const struct model *m, const struct plan *p, int64_t max_rows)
{
    int64_t widest = 0;
    for (int s = 1; s < plan_stages(p); s++) {
        int64_t in = shape_elements(&m->layers[p->stage_first[s]].in);
        widest = in > widest ? in : widest;
    }
    for (int l = 1; l < m->layer_count && p->parallel.rebalance; l++) {
        int64_t in = shape_elements(&m->layers[l].in);
        widest = in > widest ? in : widest;
    }
    return p->pipeline > 1 ? (size_t)(widest * max_rows) * sizeof(float) : 0;
}

static int has_class_weights(const struct stage *s)
{
    return s->job->fit.class_weights > 0 && s->mesh->stage == s->mesh->stages - 1;
}

size_t stage_bytes(const struct stage *s, const struct dataset *set)
{
    size_t sum = frame_work_bytes(s->layouts, s->net.chunk_count) + stage_bars_bytes(s) +
                 (size_t)s->microbatches * sizeof *s->sums;
    for (int c = 0; c < s->net.chunk_count; c++)
        sum += (size_t)s->chunks[c].frame_count * s->layouts[c].frame_bytes;
    if (has_class_weights(s))
        sum += (size_t)s->job->fit.class_weights * sizeof *s->class_weights;
    return sum + batch_bytes(&s->net, set, s->max_rows);
}

/* ---- setting up ---- */

static int take_class_weights(struct stage *s, struct err *e)
{
    const struct fit *fit = &s->job->fit;
    size_t count = (size_t)fit->class_weights;
    if (!has_class_weights(s))
        return 0;
    CLEANUP(mem_freep) float *host = mem_alloc(count * sizeof *host);
    for (size_t c = 0; c < count; c++)
        host[c] = (float)fit->class_weight[c];
    s->class_weights = s->net.ops->alloc(count * sizeof *host);
    if (!s->class_weights)
        return ops_no_memory(s->net.ops, count * sizeof *host, "class weights", e);
    s->net.ops->upload(s->class_weights, host, count * sizeof *host);
    return 0;
}

/* 1 if all passes of a chunk in one direction stand in a row. */
static int are_in_a_row(const struct schedule *s, int chunk, int microbatches)
{
    int64_t k = 0;
    while (k < s->count) {
        int64_t end = k + 1;
        while (end < s->count && s->passes[end].chunk == s->passes[k].chunk &&
               s->passes[end].is_backward == s->passes[k].is_backward)
            end++;
        if (s->passes[k].chunk == chunk && end - k != microbatches)
            return 0;
        k = end;
    }
    return 1;
}

static int check_bars(const struct stage *s, enum pipeline_schedule kind, struct err *e)
{
    for (int c = 0; c < s->net.chunk_count; c++) {
        const struct frame_layout *y = &s->layouts[c];
        if (y->bar_count > 0 && !are_in_a_row(&s->schedule, c, s->microbatches))
            return err_set(e, ERR_INVALID,
                           "Layer \"%s\" needs sums over the whole batch, so all %d micro-batches "
                           "must reach it before any goes on: that needs the schedule \"gpipe\", "
                           "not \"%s\", or one micro-batch.",
                           s->net.model->layers[y->bars[0]].name, s->microbatches,
                           pipeline_schedule_name(kind));
    }
    return 0;
}

static void lay_out(struct stage *s, const struct plan *p)
{
    int count = s->net.chunk_count;
    struct frame_options o = {
        .max_rows = s->max_rows,
        .bfloat16 = s->job->precision.activations == STORAGE_BFLOAT16,
        .recompute = p->recompute,
    };
    s->layouts = mem_zalloc((size_t)count * sizeof *s->layouts);
    s->chunks = mem_zalloc((size_t)count * sizeof *s->chunks);
    for (int c = 0; c < count; c++) {
        frame_layout_init(&s->layouts[c], &s->net, &s->net.chunks[c], &o);
        s->chunks[c].stage = c * s->mesh->stages + s->mesh->stage;
    }
}

static int make_frames(struct stage *s, struct err *e)
{
    int r = 0;
    for (int c = 0; r == 0 && c < s->net.chunk_count; c++) {
        struct stage_chunk *k = &s->chunks[c];
        k->frame_count = s->schedule.in_flight[c];
        k->frames = mem_zalloc((size_t)k->frame_count * sizeof *k->frames);
        for (int f = 0; r == 0 && f < k->frame_count; f++)
            r = frame_init(&k->frames[f], &s->layouts[c], e);
    }
    return r;
}

int stage_init(struct stage *s, const struct job_spec *job, const struct plan *p,
               const struct mesh *m, const struct dataset *set, struct err *e)
{
    s->job = job;
    s->mesh = m;
    s->microbatches = stage_microbatches(p);
    s->parts = p->parallel.reproducible ? s->microbatches : 1;
    s->max_rows = stage_max_rows(job, p, m, set);
    s->out_size = shape_elements(&job->model.layers[s->net.chunks[p->chunks - 1].last - 1].out);
    s->seed = job->fit.seed + (m->ensemble ? (uint64_t)m->data_rank : 0);
    schedule_make(&s->schedule, p->schedule, p->pipeline, p->chunks, s->microbatches, m->stage);
    lay_out(s, p);
    size_t sums = (size_t)s->microbatches * sizeof *s->sums;
    s->sums = s->net.ops->alloc(sums);
    s->host_sums = s->net.ops->alloc_host(sums);
    int r = s->sums ? check_bars(s, p->schedule, e) : ops_no_memory(s->net.ops, sums, "sums", e);
    if (r == 0)
        r = make_frames(s, e);
    if (r == 0)
        r = frame_work_init(&s->work, s->layouts, s->net.chunk_count, e);
    if (r == 0)
        r = stage_bars_init(s, e);
    if (r == 0)
        r = take_class_weights(s, e);
    if (r == 0)
        r = batch_init(&s->batch, &s->net, set, s->max_rows, e);
    return r;
}

void stage_done(struct stage *s)
{
    batch_done(&s->batch);
    stage_bars_done(s);
    for (int c = 0; s->chunks && c < s->net.chunk_count; c++) {
        for (int f = 0; f < s->chunks[c].frame_count; f++)
            frame_done(&s->chunks[c].frames[f], &s->net);
        free(s->chunks[c].frames);
        frame_layout_done(&s->layouts[c]);
    }
    free(s->chunks);
    free(s->layouts);
    free(s->times.busy_us);
    frame_work_done(&s->work, &s->net);
    schedule_done(&s->schedule);
    if (s->net.ops) {
        s->net.ops->release(s->sums);
        s->net.ops->release_host(s->host_sums);
        s->net.ops->release(s->class_weights);
    }
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
        .weights = s->class_weights,
        .weight_count = gradient ? s->job->fit.class_weights : 0,
    };
    s->net.ops->loss(&a);
}

static void add_sums(struct loss_sums *to, const struct loss_sums *x)
{
    to->loss += x->loss;
    to->accuracy += x->accuracy;
    to->mae += x->mae;
}

void stage_fetch_sums(const struct stage *s, const struct loss_sums *sums, int count)
{
    s->net.ops->fetch(s->host_sums, sums, (size_t)count * sizeof *sums);
}

/* Of a device that has failed they are nothing, which its finish() tells the engine, too. */
struct loss_sums stage_take_sums(const struct stage *s, int count)
{
    struct loss_sums *host = s->host_sums;
    s->net.ops->finish(NULL);
    for (int stride = 1; stride < count; stride *= 2)
        for (int j = 0; j + stride < count; j += 2 * stride)
            add_sums(&host[j], &host[j + stride]);
    return host[0];
}
