/* memory.c: the memory that a plan needs. */
#include "spec/memory.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "spec/tensor.h"

#define ALIGN 16 /* elements: a cache line */

/* The transport's shared memory (trainer/comm_shm_map.h): a block a rank and the words that groups
 * meet at, then a region a rank with channels to its neighbours, stages, and what is asked for.
 * Counted is what a rank's share of it comes to, once used: two channels where there are messages,
 * one stage. */
#define PAGE        4096.0
#define CHANNELS    2
#define SLOTS       2
#define FAMILIES    6
#define STAGE       (256.0 * 1024)
#define CHANNEL     192.0
#define HEADER      128.0
#define RANK_BLOCK  3456.0
#define GROUP_WORDS 128.0

static double round_up(double n, double to)
{
    return ceil(n / to) * to;
}

static int is_fused(const struct job_spec *job, const struct layer *l)
{
    switch (job->loss) {
    case LOSS_SPARSE_CATEGORICAL_CROSSENTROPY:
    case LOSS_CATEGORICAL_CROSSENTROPY: return l->activation == ACTIVATION_SOFTMAX;
    case LOSS_BINARY_CROSSENTROPY: return l->activation == ACTIVATION_SIGMOID;
    case LOSS_MEAN_SQUARED_ERROR:
    case LOSS__MAX: break;
    }
    return 0;
}

static int gives_on(const struct job_spec *job, int i)
{
    const struct layer *l = &job->model.layers[i];
    if (l->type != LAYER_ACTIVATION)
        return l->type == LAYER_FLATTEN || l->type == LAYER_RESHAPE;
    return l->activation == ACTIVATION_LINEAR ||
           (i == job->model.layer_count - 1 && is_fused(job, l));
}

/* ---- on a tensor rank ---- */

static double part(int64_t size, int ranks)
{
    int64_t begin, end;
    return (double)tensor_part(size, ranks, 0, &begin, &end);
}

static void count_tensors(const struct layer *l, const struct tensor_cut *c, int ranks,
                          struct layer_facts *f)
{
    for (int t = 0; t < l->tensor_count; t++) {
        const struct shape *s = &l->tensors[t].shape;
        int axis = tensor_axis(l, t, c->split);
        double n = (double)shape_elements(s);
        if (axis >= 0)
            n = n / (double)s->size[axis] * part(s->size[axis], ranks);
        *(l->tensors[t].is_fixed || l->frozen ? &f->fixed : &f->trained) += round_up(n, ALIGN);
    }
}

/* What goes into an activation whose derivative needs it; mean and deviation of what is
 * normalised. `out`: elements of an item that this rank computes, `channels` of them in a row. */
static void set_kept(const struct layer *l, double out, double channels, struct layer_facts *f)
{
    double whole = (double)shape_elements(&l->out);
    switch (l->type) {
    case LAYER_DENSE:
    case LAYER_CONV2D:
        f->kept_item = ((double)l->activation_bytes / 4 - whole) / whole * out;
        f->keeps_output = 1;
        break;
    case LAYER_LAYER_NORMALIZATION:
        f->kept_item = 2 * whole / (double)l->out.size[l->out.dims - 1];
        break;
    case LAYER_BATCH_NORMALIZATION:
        f->kept_batch = 2 * channels;
        f->sums = l->frozen ? 0 : 2 * (int)channels;
        break;
    default: break;
    }
}

static void set_part(const struct layer *l, const struct tensor_cut *c, int ranks,
                     struct layer_facts *f)
{
    int64_t last = l->out.size[l->out.dims - 1];
    double whole = (double)shape_elements(&l->out);
    double channels = c->output_split || c->gather ? part(last, ranks) : (double)last;
    double out = whole / (double)last * channels;
    f->in = (double)shape_elements(&l->in);
    f->out = c->output_split ? out : whole;
    f->gathered = c->gather ? out : 0;
    count_tensors(l, c, ranks, f);
    set_kept(l, out, channels, f);
}

/* What verbs keep for themselves: of matrix products (trainer/ops_cpu_gemm.c); a GPU's scratch and
 * cuBLASLt's (trainer/cuda/device_memory.cu). */
#define CPU_WORKSPACE (4.0 * 1024 * 1024)
#define GPU_SCRATCH   (64.0 * 1024 * 1024)
#define GPU_BLAS      (32.0 * 1024 * 1024)

int memory_is_apart(const struct job_spec *job)
{
    return job->resources.device == DEVICE_GPU;
}

/* ---- layers ---- */

static void set_parts(const struct job_spec *job, const struct plan *p, struct layer_facts *all)
{
    const struct model *m = &job->model;
    const struct layer *last = &m->layers[m->layer_count - 1];
    int fused = (last->type == LAYER_DENSE || last->type == LAYER_CONV2D ||
                 last->type == LAYER_ACTIVATION) &&
                is_fused(job, last);
    CLEANUP(mem_freep)
    struct tensor_cut *cuts = mem_alloc((size_t)m->layer_count * sizeof *cuts);
    for (int s = 0; s < plan_stages(p); s++) {
        int first = p->stage_first[s], end = p->stage_first[s + 1];
        tensor_cuts(m, first, end, p->tensor, fused, cuts);
        for (int l = first; l < end; l++)
            set_part(&m->layers[l], &cuts[l - first], p->tensor, &all[l]);
    }
}

static void set_facts(const struct job_spec *job, const struct plan *p, struct layer_facts *all)
{
    const struct model *m = &job->model;
    int last = m->layer_count - 1, prepared = 1;
    for (int i = 0; i <= last; i++) {
        const struct layer *l = &m->layers[i];
        struct layer_facts *f = &all[i];
        prepared = prepared && (l->type == LAYER_RESCALING || l->type == LAYER_FLATTEN ||
                                l->type == LAYER_RESHAPE);
        f->prepared = prepared;
        f->passes = gives_on(job, i);
        f->source = !f->passes ? i : i > 0 ? all[i - 1].source : -1;
    }
    if (all[last].source >= 0)
        all[all[last].source].is_output = 1;
    if (last > 0 && m->layers[last].type == LAYER_ACTIVATION && all[last - 1].source >= 0)
        all[all[last - 1].source].is_output = 1;
    set_parts(job, p, all);
}

/* ---- a plan ---- */

static int microbatches(const struct plan *p)
{
    if (!p->parallel.reproducible)
        return p->microbatches;
    return (int)(p->parallel.grains / p->data);
}

/* An ensemble's members each train on their share of a global batch. Slices by speed are at most
 * twice the even one (trainer/share.h). */
static double rows_at_once(const struct job_spec *job, const struct plan *p)
{
    double batch = (double)job->fit.batch_size, rows = ceil(batch / p->data);
    if (p->parallel.reproducible)
        return ceil(batch / (double)p->parallel.grains);
    if (p->parallel.shares == SHARES_MEASURED)
        rows = fmin(batch, 2 * rows + 1);
    return ceil(rows / p->microbatches);
}

/* The longest message between stages; where layers move, between any two layers. */
static double message_bytes(const struct memory_view *v)
{
    const struct plan *p = v->plan;
    double widest = 0;
    for (int s = 1; s < plan_stages(p) && p->pipeline > 1; s++)
        widest = fmax(widest, v->facts[p->stage_first[s]].in);
    for (int l = 1; l < v->job->model.layer_count && p->pipeline > 1 && p->parallel.rebalance; l++)
        widest = fmax(widest, v->facts[l].in);
    return 4 * widest * v->rows;
}

/* Of a GPU (trainer/cuda/comm_nccl.h): an allowance for NCCL, scratch for sums of one order, and
 * two slots in and out of each of the two lines. */
static double gpu_transport(const struct plan *p, double message)
{
    double scratch = p->parallel.reproducible ? 16.0 * 1024 * 1024 : 0;
    return p->ranks > 1 ? 512.0 * 1024 * 1024 + scratch + 2 * 4 * round_up(message, 256) : 0;
}

static void add_transport(struct memory_view *v)
{
    const struct plan *p = v->plan;
    const struct model *m = &v->job->model;
    double ranks = p->ranks, merged = 0;
    for (int place = 0; place < p->pipeline; place++) {
        double own = 0, shared = 0;
        memory_add_values(v, place, &own, &shared);
        v->shared = fmax(v->shared, shared);
    }
    if (p->kind == STRATEGY_SEGMENT_ENSEMBLE) /* outputs that are averaged */
        merged = 4 * v->rows * (double)shape_elements(&m->layers[m->layer_count - 1].out);
    if (p->parallel.rebalance)
        v->shared *= PLAN_REBALANCE_ROOM;
    v->shared = round_up(v->shared + merged + PAGE, PAGE);
    if (memory_is_apart(v->job)) {
        v->transport = gpu_transport(p, message_bytes(v));
        return;
    }
    double before = HEADER + RANK_BLOCK * ranks + GROUP_WORDS * (1 + (FAMILIES - 1) * ranks);
    double message = round_up(message_bytes(v), 64);
    v->transport = round_up(before, PAGE) / ranks + STAGE +
                   (message > 0 ? CHANNELS * (CHANNEL + SLOTS * message) : 0);
}

void memory_open(struct memory_view *v, const struct job_spec *job, const struct plan *p)
{
    *v = (struct memory_view){
        .job = job, .plan = p, .microbatches = microbatches(p), .rows = rows_at_once(job, p)};
    v->facts = mem_zalloc(((size_t)job->model.layer_count + 1) * sizeof *v->facts);
    set_facts(job, p, v->facts);
    add_transport(v);
}

void memory_done(struct memory_view *v)
{
    free(v->facts);
    *v = (struct memory_view){0};
}

/* The largest operand of a product that a rank at `place` has: an input or output of a layer, or a
 * matrix. Where layers move any may come there. */
static double widest_operand(const struct memory_view *v, int place)
{
    const struct plan *p = v->plan;
    double widest = 0;
    for (int s = 0; s < plan_stages(p); s++)
        for (int l = p->stage_first[s]; l < p->stage_first[s + 1]; l++) {
            const struct layer *x = &v->job->model.layers[l];
            if (s % p->pipeline != place && !p->parallel.rebalance)
                continue;
            widest = fmax(widest, v->rows * (double)shape_elements(&x->in));
            widest = fmax(widest, v->rows * (double)shape_elements(&x->out));
            for (int t = 0; t < x->tensor_count; t++)
                widest = fmax(widest, (double)shape_elements(&x->tensors[t].shape));
        }
    return widest;
}

static double workspace(const struct memory_view *v, int place)
{
    enum compute_type c = v->job->precision.compute;
    if (!memory_is_apart(v->job))
        return CPU_WORKSPACE;
    double operand = c == COMPUTE_BFLOAT16 || c == COMPUTE_FLOAT16
                         ? fmax(widest_operand(v, place), GPU_SCRATCH / 4)
                         : 0;
    return GPU_SCRATCH + GPU_BLAS + 2 * 2 * operand;
}

void memory_rank(const struct memory_view *v, int place, struct plan_bytes *ret)
{
    double shared = 0;
    *ret = (struct plan_bytes){
        .shared = v->shared, .transport = v->transport, .workspace = workspace(v, place)};
    memory_add_values(v, place, &ret->values, &shared);
    memory_add_frames(v, place, ret);
}

double memory_total(const struct plan_bytes *b)
{
    return b->values + b->shared + b->frames + b->work + b->transport + b->workspace;
}

int64_t plan_memory(const struct job_spec *job, const struct plan *p)
{
    struct memory_view v;
    double most = 0;
    if (job->model.layer_count == 0) /* a command */
        return 0;
    memory_open(&v, job, p);
    for (int place = 0; place < p->pipeline; place++) {
        struct plan_bytes b;
        memory_rank(&v, place, &b);
        most = fmax(most, memory_total(&b));
    }
    memory_done(&v);
    return most < 9e18 ? (int64_t)most : INT64_MAX;
}
