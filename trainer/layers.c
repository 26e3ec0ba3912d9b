/* layers.c: the walk through a chunk. */
#include "trainer/layers.h"

#include <limits.h>

#include "trainer/layers_split.h"

/* ---- values ---- */

static const struct frame_layer *at(const struct layers_pass *p, int l)
{
    return &p->layout->layers[l - p->layout->first];
}

/* The layer whose output stands for that of l; first - 1: the chunk's input. */
static int source_of(const struct layers_pass *p, int l)
{
    return l < p->layout->first ? p->layout->first - 1 : at(p, l)->source;
}

static size_t elements_of(const struct layers_pass *p, int l)
{
    const struct net *n = p->layout->net;
    int64_t each = l < p->layout->first ? shape_elements(&n->model->layers[p->layout->first].in)
                                        : net_out_elements(n, l);
    return (size_t)(p->frame->rows * each);
}

static char *home_of(const struct layers_pass *p, int source)
{
    if (source < p->layout->first)
        return p->frame->memory;
    return (at(p, source)->home == FRAME_AGAIN ? p->work->scratch : p->frame->memory) +
           at(p, source)->y;
}

static int is_packed(const struct layers_pass *p, int source)
{
    return source < p->layout->first ? p->layout->x_packed : at(p, source)->packed;
}

void *layers_output(const struct layers_pass *p, int l, int *ret_packed)
{
    int source = source_of(p, l);
    *ret_packed = is_packed(p, source);
    return home_of(p, source);
}

/* ---- windows ---- */

static void close_windows(const struct layers_pass *p)
{
    for (int i = 0; i < FRAME_WINDOWS; i++)
        p->work->holds[i] = INT_MIN;
}

/* A window that none of the three values is in. */
static float *free_window(const struct layers_pass *p, const float *a, const float *b, int *ret)
{
    struct frame_work *w = p->work;
    int i = 0;
    while (w->window[i] == a || w->window[i] == b)
        i++;
    w->holds[i] = INT_MIN;
    *ret = i;
    return w->window[i];
}

/* The output of layer l as float32; windows `a` and `b` stay as they are. */
static float *value_of(const struct layers_pass *p, int l, const float *a, const float *b)
{
    struct frame_work *w = p->work;
    int source = source_of(p, l), i;
    if (!is_packed(p, source))
        return (float *)home_of(p, source);
    for (i = 0; i < FRAME_WINDOWS; i++)
        if (w->holds[i] == source)
            return w->window[i];
    float *x = free_window(p, a, b, &i);
    p->layout->net->ops->from_bfloat16(elements_of(p, source), (uint16_t *)home_of(p, source), x);
    w->holds[i] = source;
    return x;
}

/* Rounds what a layer has put into a window, and keeps it. */
static void pack(const struct layers_pass *p, size_t n, float *x, char *home)
{
    const struct ops *o = p->layout->net->ops;
    o->to_bfloat16(n, x, (uint16_t *)home);
    o->from_bfloat16(n, (uint16_t *)home, x);
}

static char *kept_home(const struct layers_pass *p, int l)
{
    const struct frame_layer *f = at(p, l);
    return (f->home == FRAME_AGAIN ? p->work->scratch : p->frame->memory) + f->kept;
}

/* ---- calls ---- */

/* All but the values. */
static struct layer_call bare_call(const struct layers_pass *p, int l)
{
    const struct net *n = p->layout->net;
    const struct layer *y = &n->model->layers[l];
    struct layer_call c = {
        .ops = n->ops,
        .layer = y,
        .pass = p->pass,
        .f = frame_activation(n, l),
        .index = l,
        .items = p->frame->rows,
        .position = p->frame->position,
        .rows = p->frame->rows * (shape_positions(&y->in)),
    };
    int count;
    split_call(p, l, &c);
    const struct net_tensor *x = net_tensors_of(n, l, &count);
    for (int t = 0; t < count; t++) {
        c.parameter[t] = x[t].parameter;
        c.gradient[t] = x[t].gradient;
    }
    return c;
}

static void set_sums(struct layer_call *c, const struct layers_pass *p, int l, int backward)
{
    const struct layers_sums *s = p->sums ? &p->sums[l - p->layout->first] : NULL;
    c->batch_sums = s ? (backward ? s->backward : s->forward) : NULL;
    c->batch_rows = s ? s->rows : 0;
}

struct layer_call layers_call(const struct layers_pass *p, int l)
{
    struct layer_call c = bare_call(p, l);
    const struct frame_layer *f = at(p, l);
    c.x = value_of(p, l - 1, NULL, NULL);
    c.kept = f->kept_elements && !f->kept_packed ? (float *)kept_home(p, l) : NULL;
    set_sums(&c, p, l, 0);
    return c;
}

/* ---- forward ---- */

static int hook_before(const struct layers_pass *p, int l, int backward, float *ret_beta,
                       struct err *e)
{
    *ret_beta = p->j > 0 ? 1.0f : 0.0f;
    if (!p->hook || p->layout->net->layers[l].tensor_count == 0)
        return 0;
    return p->hook->before(p->hook->context, l, p->j, backward, ret_beta, e);
}

static int hook_after(const struct layers_pass *p, int l, int backward, struct err *e)
{
    if (!p->hook || p->layout->net->layers[l].tensor_count == 0)
        return 0;
    return p->hook->after(p->hook->context, l, p->j, backward, backward && p->is_final, e);
}

static void run_layer(const struct layer_call *c)
{
    if (c->layer->type == LAYER_DROPOUT && !c->pass->training)
        c->ops->copy(c->y, c->x, (size_t)(c->rows * c->in) * sizeof(float));
    else
        layer_kinds[c->layer->type]->forward(c);
}

/* The layer's output into y; by way of this rank's part where it is gathered. */
static int run_forward(const struct layers_pass *p, struct layer_call *c, float *y, struct err *e)
{
    int gathers = p->layout->net->layers[c->index].cut.gather;
    c->y = gathers ? split_part(p, c->index) : y;
    run_layer(c);
    if (c->partials && c->partials->status < 0) {
        *e = c->partials->e;
        return c->partials->status;
    }
    split_mask(p, c->index, c->y);
    return gathers ? split_gather(p, c->index, y, e) : 0;
}

static int work_forward(const struct layers_pass *p, int l, struct err *e)
{
    const struct frame_layer *f = at(p, l);
    struct layer_call c = bare_call(p, l);
    int i = 0, z = 0;
    c.x = value_of(p, l - 1, NULL, NULL);
    if (c.layer->back > 0)
        c.other = value_of(p, l - c.layer->back, c.x, NULL);
    float *y = f->packed ? free_window(p, c.x, c.other, &i) : (float *)home_of(p, l);
    if (f->kept_elements)
        c.kept = f->kept_packed ? free_window(p, c.x, y, &z) : (float *)kept_home(p, l);
    set_sums(&c, p, l, 0);
    int r = run_forward(p, &c, y, e);
    if (f->packed) {
        pack(p, elements_of(p, l), y, home_of(p, l));
        p->work->holds[i] = l;
    }
    if (f->kept_packed)
        c.ops->to_bfloat16(split_elements(p, l), c.kept, (uint16_t *)kept_home(p, l));
    return r;
}

static int forward_one(const struct layers_pass *p, int l, struct err *e)
{
    float beta;
    int r = hook_before(p, l, 0, &beta, e);
    if (r < 0)
        return r;
    if (at(p, l)->home != FRAME_PASSED)
        r = work_forward(p, l, e);
    return r < 0 ? r : hook_after(p, l, 0, e);
}

static int forward_layers(const struct layers_pass *p, int from, int to, struct err *e)
{
    int r = 0;
    for (int l = from; r == 0 && l < to; l++)
        r = forward_one(p, l, e);
    return r;
}

int layers_forward(const struct layers_pass *p, int from, int to, struct err *e)
{
    close_windows(p);
    return forward_layers(p, from, to, e);
}

/* ---- backward ---- */

/* Runs stretch `s` again, to its last layer. */
static int compute_again(const struct layers_pass *p, int s, struct err *e)
{
    int end = s;
    while (end < p->layout->last && at(p, end)->stretch == s)
        end++;
    return forward_layers(p, s, end, e);
}

/* The stretch that layer l's backward reads from: its output's, or its input's. */
static int stretch_for(const struct layers_pass *p, int l)
{
    int own = at(p, l)->stretch;
    return own >= 0 || l == p->layout->first ? own : at(p, l - 1)->stretch;
}

static float *other_buffer(const struct layers_pass *p, const float *dy)
{
    return p->work->gradient[dy == p->work->gradient[0]];
}

static float *kept_value(const struct layers_pass *p, int l, const struct layer_call *c)
{
    const struct frame_layer *f = at(p, l);
    int z;
    if (!f->kept_packed)
        return f->kept_elements ? (float *)kept_home(p, l) : NULL;
    float *kept = free_window(p, c->x, c->y, &z);
    c->ops->from_bfloat16(split_elements(p, l), (uint16_t *)kept_home(p, l), kept);
    return kept;
}

/* From the gradient of the output to that of the input, in the same buffer or the other one; this
 * rank's columns of a gathered output are taken first. */
static int work_backward(const struct layers_pass *p, int l, float **dy, float beta, struct err *e)
{
    const struct net *n = p->layout->net;
    struct layer_call c = bare_call(p, l);
    const struct layer_kind *k = layer_kinds[c.layer->type];
    int gathers = n->layers[l].cut.gather, want = p->layout->first > 0 || l > n->lowest;
    size_t in = (size_t)(c.rows * c.in);
    c.y = value_of(p, l, NULL, NULL);
    c.x = value_of(p, l - 1, c.y, NULL);
    c.kept = kept_value(p, l, &c);
    set_sums(&c, p, l, 1);
    float *from = *dy, *to = k->dx_in_place ? *dy : other_buffer(p, *dy);
    if (gathers) {
        c.y = split_take(p, l, c.y, SPLIT_OUTPUT);
        from = split_take(p, l, *dy, SPLIT_GRADIENT);
    }
    float *dx = k->dx_in_place ? from : to;
    k->backward(&c, from, want ? dx : NULL, beta);
    if (want && dx != to)
        c.ops->copy(to, dx, in * sizeof *dx);
    *dy = to;
    return want ? split_sum_gradient(p, l, to, in, e) : 0;
}

static float *skip_of(const struct layers_pass *p, int l)
{
    const struct frame_layout *y = p->layout;
    char *memory = y->bar_count > 0 ? p->frame->memory : p->work->skips;
    return (float *)(memory + y->skips[at(p, l)->skip]);
}

static int has_skip(const struct layers_pass *p, int l)
{
    return l >= p->layout->first && at(p, l)->skip >= 0;
}

/* The last of the layers that read the output of l beside the one behind it. */
static int last_reader(const struct layers_pass *p, int l)
{
    const struct model *m = p->layout->net->model;
    int reader = p->layout->last - 1;
    while (m->layers[reader].back == 0 || reader - m->layers[reader].back != l)
        reader--;
    return reader;
}

/* An `add` gives its gradient to the layer that it reads from, too. */
static void leave_skip(const struct layers_pass *p, int l, const float *dy)
{
    const struct ops *o = p->layout->net->ops;
    int from = l - p->layout->net->model->layers[l].back;
    if (from == l || !has_skip(p, from))
        return;
    if (last_reader(p, from) == l)
        o->copy(skip_of(p, from), dy, elements_of(p, from) * sizeof *dy);
    else
        o->add(elements_of(p, from), dy, skip_of(p, from));
}

static int backward_one(const struct layers_pass *p, int l, float **dy, struct err *e)
{
    float beta;
    int r = hook_before(p, l, 1, &beta, e);
    if (r < 0)
        return r;
    if (at(p, l)->home != FRAME_PASSED)
        r = work_backward(p, l, dy, beta, e);
    return r < 0 ? r : hook_after(p, l, 1, e);
}

int layers_backward(const struct layers_pass *p, int from, int to, float **dy, struct err *e)
{
    const struct net *n = p->layout->net;
    int computed = -1, r = 0;
    close_windows(p);
    for (int l = to - 1; r == 0 && l >= from && l >= n->lowest; l--) {
        int s = stretch_for(p, l);
        if (s >= 0 && s != computed) {
            r = compute_again(p, s, e);
            computed = s;
        }
        leave_skip(p, l, *dy);
        if (r == 0)
            r = backward_one(p, l, dy, e);
        if (has_skip(p, l - 1))
            n->ops->add(elements_of(p, l - 1), skip_of(p, l - 1), *dy);
    }
    return r;
}

void layers_predict(const struct net *n, int64_t rows, float *out)
{
    const struct layer *last = &n->model->layers[n->model->layer_count - 1];
    if (n->fused)
        n->ops->activate(last->activation, rows * (shape_positions(&last->out)),
                         shape_last(&last->out), NULL, out, out);
}
