/* layers.c: the walk through a slice of the model; what each type of layer does is in layer.h's
 * table. */
#include "trainer/layers.h"

#include <stdlib.h>

#include "base/mem.h"
#include "trainer/layer.h"

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
    if (l < n->folded || layer_kinds[y->type]->passes_on)
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
    const struct layer_kind *k = layer_kinds[y->type];
    return k->kept ? padded((int64_t)k->kept(y, own_activation(n, l), rows, last_size(&y->out)))
                   : 0;
}

static size_t input_elements(const struct net *n, int64_t rows)
{
    return padded(rows * shape_elements(&n->model->layers[n->chunks[0].first].in));
}

size_t frame_bytes(const struct net *n, int64_t max_rows)
{
    size_t sum = input_elements(n, max_rows);
    for (int l = n->chunks[0].first; l < n->chunks[0].last; l++)
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
    *f = (struct frame){
        .slots = mem_zalloc((size_t)(n->chunks[0].last - n->chunks[0].first) * sizeof *f->slots)};
    f->memory = n->ops->alloc(frame_bytes(n, max_rows));
    if (!f->memory)
        return no_memory(n, frame_bytes(n, max_rows), e);
    float *at = f->memory + input_elements(n, max_rows);
    f->x = f->memory;
    for (int l = n->chunks[0].first; l < n->chunks[0].last; l++) {
        struct frame_slot *s = &f->slots[l - n->chunks[0].first];
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
    for (int l = n->chunks[0].first; l < n->chunks[0].last; l++) {
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

static struct layer_call call_of(const struct net *n, const struct frame *f,
                                 const struct layer_pass *p, int l)
{
    const struct layer *y = &n->model->layers[l];
    const struct frame_slot *s = &f->slots[l - n->chunks[0].first];
    struct layer_call c = {
        .ops = n->ops,
        .layer = y,
        .pass = p,
        .f = own_activation(n, l),
        .index = l,
        .items = f->rows,
        .position = f->position,
        .rows = f->rows * positions(&y->in),
        .in = last_size(&y->in),
        .out = last_size(&y->out),
        .x = l > n->chunks[0].first ? f->slots[l - 1 - n->chunks[0].first].y : f->x,
        .y = s->own,
        .kept = s->kept,
    };
    int count;
    const struct net_tensor *x = net_tensors_of(n, l, &count);
    for (int t = 0; t < count; t++) {
        c.parameter[t] = x[t].parameter;
        c.gradient[t] = x[t].gradient;
    }
    return c;
}

/* ---- the slice ---- */

float *layers_forward(const struct net *n, struct frame *f, const struct layer_pass *p)
{
    float *x = f->x;
    for (int l = n->chunks[0].first; l < n->chunks[0].last; l++) {
        struct frame_slot *s = &f->slots[l - n->chunks[0].first];
        int idle = !s->own || (n->model->layers[l].type == LAYER_DROPOUT && !p->training);
        if (!idle) {
            struct layer_call c = call_of(n, f, p, l);
            layer_kinds[c.layer->type]->forward(&c);
            x = s->own;
        }
        s->y = x;
    }
    return x;
}

int layers_backward(const struct net *n, struct frame *f, struct frame_work *w,
                    const struct layer_pass *p, int j, int is_final, const struct layers_hook *hook,
                    float **ret_dx, struct err *e)
{
    int first = n->chunks[0].first;
    float *dy = w->buffer[0], beta = j > 0 ? 1.0f : 0.0f;
    for (int l = n->chunks[0].last - 1, r = 0; l >= n->lowest; l--) {
        int hooked = hook && n->layers[l].tensor_count > 0;
        if (hooked && (r = hook->before(hook->context, l, j, 1, &beta, e)) < 0)
            return r;
        if (f->slots[l - first].own) {
            struct layer_call c = call_of(n, f, p, l);
            const struct layer_kind *k = layer_kinds[c.layer->type];
            float *other = dy == w->buffer[0] ? w->buffer[1] : w->buffer[0];
            float *dx = k->dx_in_place ? dy : other;
            int want = first > 0 || l > n->lowest;
            k->backward(&c, dy, want ? dx : NULL, beta);
            dy = dx;
        }
        if (hooked && (r = hook->after(hook->context, l, j, 1, is_final, e)) < 0)
            return r;
    }
    *ret_dx = first > 0 ? dy : NULL;
    return 0;
}

void layers_predict(const struct net *n, int64_t rows, float *out)
{
    const struct layer *last = &n->model->layers[n->model->layer_count - 1];
    if (n->fused)
        n->ops->activate(last->activation, rows * positions(&last->out), last_size(&last->out),
                         NULL, out, out);
}
