/* layer_window.c: layers that move a window over rows and columns: conv2d and poolings. Poolings
 * work on every channel by itself; global ones have a window of all that there is.
 */
#include "trainer/layer_types.h"

static struct window_args window_of(const struct layer_call *c)
{
    const struct layer *l = c->layer;
    int is_map = l->out.dims == 3; /* a global pooling leaves one place */
    return (struct window_args){
        .items = c->items,
        .in = {l->in.size[0], l->in.size[1]},
        .out = {is_map ? l->out.size[0] : 1, is_map ? l->out.size[1] : 1},
        .channels = c->in,
        .window = {l->window[0], l->window[1]},
        .strides = {l->strides[0], l->strides[1]},
        .pad = {l->pad_before[0], l->pad_before[1]},
    };
}

/* ---- conv2d ---- */

static size_t conv_kept(const struct layer *l, enum activation f, int64_t items, int64_t out)
{
    return elem_keeps_input(f) ? (size_t)(items * shape_positions(&l->out) * out) : 0;
}

static void conv_forward(const struct layer_call *c)
{
    struct window_args a = window_of(c);
    float *z = c->kept ? c->kept : c->y;
    c->ops->conv(&a, c->out, c->x, c->parameter[0], z);
    c->ops->activate(c->f, c->items * shape_positions(&c->layer->out), c->out, c->parameter[1], z,
                     c->y);
}

/* dz replaces dy */
static void conv_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    struct window_args a = window_of(c);
    c->ops->activate_backward(c->f, c->items * shape_positions(&c->layer->out), c->out,
                              c->kept ? c->kept : c->y, dy, dy, beta, c->gradient[1]);
    if (c->gradient[0])
        c->ops->conv_backward_kernel(&a, c->out, c->x, dy, beta, c->gradient[0]);
    if (dx)
        c->ops->conv_backward_input(&a, c->out, dy, c->parameter[0], dx);
}

const struct layer_kind layer_conv2d = {
    .kept = conv_kept,
    .kept_is_output = 1,
    .forward = conv_forward,
    .backward = conv_backward,
};

/* ---- poolings ---- */

static void max_forward(const struct layer_call *c)
{
    struct window_args a = window_of(c);
    c->ops->max_pool(&a, c->x, c->y);
}

static void max_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    struct window_args a = window_of(c);
    (void)beta;
    if (dx)
        c->ops->max_pool_backward(&a, c->x, c->y, dy, dx);
}

static void mean_forward(const struct layer_call *c)
{
    struct window_args a = window_of(c);
    c->ops->mean_pool(&a, c->x, c->y);
}

static void mean_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    struct window_args a = window_of(c);
    (void)beta;
    if (dx)
        c->ops->mean_pool_backward(&a, dy, dx);
}

#define MAX_POOLING                                                                                \
    {                                                                                              \
        .takes_any_split = 1, .forward = max_forward, .backward = max_backward                     \
    }
#define MEAN_POOLING                                                                               \
    {                                                                                              \
        .takes_any_split = 1, .forward = mean_forward, .backward = mean_backward                   \
    }

const struct layer_kind layer_max_pooling2d = MAX_POOLING;
const struct layer_kind layer_average_pooling2d = MEAN_POOLING;
const struct layer_kind layer_global_max_pooling2d = MAX_POOLING;
const struct layer_kind layer_global_average_pooling2d = MEAN_POOLING;
