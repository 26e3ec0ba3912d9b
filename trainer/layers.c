/* layers.c: what each type of layer does, forward and backward.
 *
 * A layer over inner positions (dense and normalisation act on the last dimension) sees rows =
 * items times positions. Activations that can be undone from their output keep only that.
 */
#include "trainer/layers.h"

#include <stdlib.h>

#include "base/mem.h"

static int64_t last_size(const struct shape *s)
{
    return s->size[s->dims - 1];
}

static int64_t positions(const struct shape *s)
{
    return shape_elements(s) / last_size(s);
}

/* The activation that the layer itself applies. */
static enum activation own_activation(const struct net *n, int l)
{
    return n->fused && l == n->model->layer_count - 1 ? ACTIVATION_LINEAR
                                                      : n->model->layers[l].activation;
}

static int passes_on(const struct net *n, int l)
{
    const struct layer *y = &n->model->layers[l];
    if (l < n->folded || y->type == LAYER_FLATTEN || y->type == LAYER_RESHAPE)
        return 1;
    return y->type == LAYER_ACTIVATION && own_activation(n, l) == ACTIVATION_LINEAR;
}

/* ---- frames ---- */

static size_t padded(int64_t elements)
{
    return ((size_t)elements + 15) / 16 * 16;
}

static size_t own_elements(const struct net *n, int l, int64_t rows)
{
    return passes_on(n, l) ? 0 : padded(rows * shape_elements(&n->model->layers[l].out));
}

static size_t kept_elements(const struct net *n, int l, int64_t rows)
{
    const struct layer *y = &n->model->layers[l];
    if (y->type == LAYER_DENSE && elem_keeps_input(own_activation(n, l)))
        return padded(rows * shape_elements(&y->out));
    if (y->type == LAYER_LAYER_NORMALIZATION)
        return padded(rows * positions(&y->in) * 2);
    return 0;
}

static size_t input_elements(const struct net *n, int64_t rows)
{
    return padded(rows * shape_elements(&n->model->layers[n->first].in));
}

size_t frame_bytes(const struct net *n, int64_t max_rows)
{
    size_t sum = input_elements(n, max_rows);
    for (int l = n->first; l < n->last; l++)
        sum += own_elements(n, l, max_rows) + kept_elements(n, l, max_rows);
    return sum * sizeof(float);
}

static int no_memory(const struct net *n, size_t bytes, struct err *e)
{
    return err_set(e, ERR_UNAVAILABLE, "The %s device has no %zu bytes left for activations.",
                   n->ops->name, bytes);
}

int frame_init(struct frame *f, const struct net *n, int64_t max_rows, struct err *e)
{
    *f = (struct frame){.slots = mem_zalloc((size_t)(n->last - n->first) * sizeof *f->slots)};
    f->memory = n->ops->alloc(frame_bytes(n, max_rows));
    if (!f->memory)
        return no_memory(n, frame_bytes(n, max_rows), e);
    float *at = f->memory + input_elements(n, max_rows);
    f->x = f->memory;
    for (int l = n->first; l < n->last; l++) {
        struct frame_slot *s = &f->slots[l - n->first];
        size_t own = own_elements(n, l, max_rows), kept = kept_elements(n, l, max_rows);
        s->own = own ? at : NULL;
        s->kept = kept ? at + own : NULL;
        at += own + kept;
    }
    return 0;
}

void frame_done(struct frame *f, const struct net *n)
{
    if (n->ops)
        n->ops->release(f->memory);
    free(f->slots);
    *f = (struct frame){0};
}

size_t frame_work_bytes(const struct net *n, int64_t max_rows)
{
    size_t widest = input_elements(n, max_rows);
    for (int l = n->first; l < n->last; l++) {
        size_t out = padded(max_rows * shape_elements(&n->model->layers[l].out));
        widest = out > widest ? out : widest;
    }
    return 2 * widest * sizeof(float);
}

int frame_work_init(struct frame_work *w, const struct net *n, int64_t max_rows, struct err *e)
{
    size_t bytes = frame_work_bytes(n, max_rows);
    w->buffer[0] = n->ops->alloc(bytes);
    if (!w->buffer[0])
        return no_memory(n, bytes, e);
    w->buffer[1] = w->buffer[0] + bytes / 2 / sizeof(float);
    return 0;
}

void frame_work_done(struct frame_work *w, const struct net *n)
{
    if (n->ops)
        n->ops->release(w->buffer[0]);
    *w = (struct frame_work){{NULL, NULL}};
}

/* ---- one layer ---- */

/* What a layer works with: its place in the net, its tensors, and the micro-batch. */
struct at {
    const struct net *net;
    const struct layer *layer;
    const struct frame_pass *pass;
    const struct frame *frame;
    struct frame_slot *slot;
    enum activation f;
    int index;
    int64_t rows;                        /* items times inner positions */
    int64_t in, out;                     /* last dimensions */
    float *parameter[LAYER_MAX_TENSORS]; /* NULL where the layer has none */
    float *gradient[LAYER_MAX_TENSORS];
};

static struct at place(const struct net *n, struct frame *f, const struct frame_pass *p, int l)
{
    const struct layer *y = &n->model->layers[l];
    struct at a = {
        .net = n,
        .layer = y,
        .pass = p,
        .frame = f,
        .slot = &f->slots[l - n->first],
        .f = own_activation(n, l),
        .index = l,
        .rows = f->rows * positions(&y->in),
        .in = last_size(&y->in),
        .out = last_size(&y->out),
    };
    size_t offset = net_offset(n, l);
    for (int t = 0; t < y->tensor_count; t++) {
        a.parameter[t] = n->parameters + offset;
        a.gradient[t] = n->gradients + offset;
        offset += padded(shape_elements(&y->tensors[t].shape));
    }
    return a;
}

static void dense_forward(const struct at *a, const float *x, float *y)
{
    const struct ops *o = a->net->ops;
    float *z = a->slot->kept ? a->slot->kept : y;
    o->gemm(0, 0, a->rows, a->out, a->in, x, a->parameter[0], 0.0f, z);
    o->activate(a->f, a->rows, a->out, a->parameter[1], z, y);
}

/* dz replaces dy */
static void dense_backward(const struct at *a, const float *x, float *dy, float *dx, float beta)
{
    const struct ops *o = a->net->ops;
    const float *kept = a->slot->kept ? a->slot->kept : a->slot->y;
    o->activate_backward(a->f, a->rows, a->out, kept, dy, dy, beta, a->gradient[1]);
    o->gemm(1, 0, a->in, a->out, a->rows, x, dy, beta, a->gradient[0]);
    if (dx)
        o->gemm(0, 1, a->rows, a->in, a->out, dy, a->parameter[0], 0.0f, dx);
}

static void drop(const struct at *a, const float *x, float *y)
{
    struct dropout_args d = {
        .rate = (float)a->layer->rate,
        .seed = a->pass->seed,
        .stream = (uint64_t)a->pass->step * MODEL_MAX_LAYERS + (uint64_t)a->index,
        .position = a->frame->position,
    };
    a->net->ops->dropout(&d, a->frame->rows, shape_elements(&a->layer->in), x, y);
}

static void forward_one(const struct at *a, float *x, float *y)
{
    const struct ops *o = a->net->ops;
    switch (a->layer->type) {
    case LAYER_DENSE: dense_forward(a, x, y); break;
    case LAYER_RESCALING:
        o->affine(a->rows * a->in, (float)a->layer->scale, (float)a->layer->offset, x, y);
        break;
    case LAYER_DROPOUT: drop(a, x, y); break;
    case LAYER_ACTIVATION: o->activate(a->f, a->rows, a->in, NULL, x, y); break;
    case LAYER_LAYER_NORMALIZATION:
        o->normalize(a->rows, a->in, (float)a->layer->epsilon, x, a->parameter[0], a->parameter[1],
                     a->slot->kept, y);
        break;
    case LAYER_FLATTEN:
    case LAYER_RESHAPE:
    case LAYER_TYPE__MAX: break;
    }
}

/* Returns where the gradient of the input lies: dy's own buffer, or `other`. */
static float *backward_one(const struct at *a, const float *x, float *dy, float *other, int want,
                           float beta)
{
    const struct ops *o = a->net->ops;
    switch (a->layer->type) {
    case LAYER_DENSE: dense_backward(a, x, dy, want ? other : NULL, beta); return other;
    case LAYER_RESCALING: o->affine(a->rows * a->in, (float)a->layer->scale, 0.0f, dy, dy); break;
    case LAYER_DROPOUT: drop(a, dy, dy); break;
    case LAYER_ACTIVATION:
        o->activate_backward(a->f, a->rows, a->in, elem_keeps_input(a->f) ? x : a->slot->y, dy, dy,
                             0.0f, NULL);
        break;
    case LAYER_LAYER_NORMALIZATION:
        o->normalize_backward(a->rows, a->in, x, a->slot->kept, a->parameter[0], dy,
                              want ? dy : NULL, beta, a->gradient[0], a->gradient[1]);
        break;
    case LAYER_FLATTEN:
    case LAYER_RESHAPE:
    case LAYER_TYPE__MAX: break;
    }
    return dy;
}

/* ---- the slice ---- */

float *layers_forward(const struct net *n, struct frame *f, const struct frame_pass *p)
{
    float *x = f->x;
    for (int l = n->first; l < n->last; l++) {
        struct frame_slot *s = &f->slots[l - n->first];
        int idle = !s->own || (n->model->layers[l].type == LAYER_DROPOUT && !p->training);
        if (!idle) {
            struct at a = place(n, f, p, l);
            forward_one(&a, x, s->own);
            x = s->own;
        }
        s->y = x;
    }
    return x;
}

int layers_backward(const struct net *n, struct frame *f, struct frame_work *w,
                    const struct frame_pass *p, float beta, const struct layers_hook *hook,
                    float **ret_dx, struct err *e)
{
    float *dy = w->buffer[0];
    for (int l = n->last - 1; l >= n->lowest; l--) {
        if (f->slots[l - n->first].own) {
            struct at a = place(n, f, p, l);
            const float *x = l > n->first ? f->slots[l - 1 - n->first].y : f->x;
            int want = n->first > 0 || l > n->lowest;
            dy = backward_one(&a, x, dy, dy == w->buffer[0] ? w->buffer[1] : w->buffer[0], want,
                              beta);
        }
        int r = hook ? hook->done(hook->context, l, e) : 0;
        if (r < 0)
            return r;
    }
    *ret_dx = n->first > 0 ? dy : NULL;
    return 0;
}

void layers_predict(const struct net *n, int64_t rows, float *out)
{
    const struct layer *last = &n->model->layers[n->model->layer_count - 1];
    if (n->fused)
        n->ops->activate(last->activation, rows * positions(&last->out), last_size(&last->out),
                         NULL, out, out);
}
