/* layer_dense.c: y = f(x kernel + bias) over the last dimension. Activations that can be undone
 * from their output keep only that; others keep what went into them. */
#include "trainer/layer_types.h"

static size_t dense_kept(const struct layer *l, enum activation f, int64_t items, int64_t out)
{
    return elem_keeps_input(f) ? (size_t)(items * shape_positions(&l->out) * out) : 0;
}

static void dense_forward(const struct layer_call *c)
{
    float *z = c->kept ? c->kept : c->y;
    if (!c->partials) {
        c->ops->dense(c->f, c->rows, c->out, c->in, c->x, c->parameter[0], c->parameter[1], z,
                      c->y);
        return;
    }
    c->ops->gemm(0, 0, c->rows, c->out, c->in, c->x, c->parameter[0], 0.0f, z);
    layer_sum_partials(c, z, (size_t)(c->rows * c->out));
    c->ops->activate(c->f, c->rows, c->out, c->parameter[1], z, c->y);
}

/* dz replaces dy */
static void dense_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    const float *kept = c->kept ? c->kept : c->y;
    int both = c->f == ACTIVATION_LINEAR && c->gradient[0];
    if (!both)
        c->ops->activate_backward(c->f, c->rows, c->out, kept, dy, dy, beta, c->gradient[1]);
    if (c->gradient[0])
        c->ops->dense_backward_kernel(c->rows, c->out, c->in, c->x, dy, beta, c->gradient[0],
                                      both ? c->gradient[1] : NULL);
    if (dx)
        c->ops->gemm(0, 1, c->rows, c->in, c->out, dy, c->parameter[0], 0.0f, dx);
}

const struct layer_kind layer_dense = {
    .kept = dense_kept,
    .kept_is_output = 1,
    .forward = dense_forward,
    .backward = dense_backward,
};
