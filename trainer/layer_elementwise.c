/* layer_elementwise.c: layers that have no parameters and keep the shape, or only its reading. */
#include "trainer/layer_types.h"

/* The same memory, read otherwise. */
const struct layer_kind layer_flatten = {.passes_on = 1};
const struct layer_kind layer_reshape = {.passes_on = 1};

static void rescaling_forward(const struct layer_call *c)
{
    c->ops->affine(c->rows * c->in, (float)c->layer->scale, (float)c->layer->offset, c->x, c->y);
}

static void rescaling_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    (void)beta;
    if (dx)
        c->ops->affine(c->rows * c->in, (float)c->layer->scale, 0.0f, dy, dx);
}

const struct layer_kind layer_rescaling = {
    .takes_any_split = 1,
    .forward = rescaling_forward,
    .backward = rescaling_backward,
    .dx_in_place = 1,
};

static void drop(const struct layer_call *c, const float *x, float *y)
{
    struct dropout_args d = {
        .rate = (float)c->layer->rate,
        .seed = c->pass->seed,
        .stream = (uint64_t)c->pass->step * MODEL_MAX_LAYERS + (uint64_t)c->index,
        .position = c->position,
        .width = c->in,
        .first_column = c->first_column,
        .columns = c->columns,
    };
    c->ops->dropout(&d, c->items, shape_positions(&c->layer->in) * c->in, x, y);
}

static void dropout_forward(const struct layer_call *c)
{
    drop(c, c->x, c->y);
}

static void dropout_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    (void)beta;
    if (dx)
        drop(c, dy, dx);
}

const struct layer_kind layer_dropout = {
    .takes_any_split = 1,
    .forward = dropout_forward,
    .backward = dropout_backward,
    .dx_in_place = 1,
};

static void activation_forward(const struct layer_call *c)
{
    c->ops->activate(c->f, c->rows, c->in, NULL, (float *)c->x, c->y);
}

static void activation_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    (void)beta;
    if (dx)
        c->ops->activate_backward(c->f, c->rows, c->in, elem_keeps_input(c->f) ? c->x : c->y, dy,
                                  dx, 0.0f, NULL);
}

const struct layer_kind layer_activation = {
    .forward = activation_forward,
    .backward = activation_backward,
    .dx_in_place = 1,
};

static void add_forward(const struct layer_call *c)
{
    size_t n = (size_t)(c->rows * c->in);
    c->ops->copy(c->y, c->x, n * sizeof *c->y);
    c->ops->add(n, c->other, c->y);
}

/* Both inputs get dy as it is: dx is its place, and the other's part is the caller's. */
static void add_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    (void)beta;
    if (dx && dx != dy)
        c->ops->copy(dx, dy, (size_t)(c->rows * c->in) * sizeof *dx);
}

const struct layer_kind layer_add = {
    .takes_any_split = 1,
    .forward = add_forward,
    .backward = add_backward,
    .dx_in_place = 1,
};
