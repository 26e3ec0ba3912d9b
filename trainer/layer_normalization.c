/* layer_normalization.c: every row to mean 0 and variance 1, then scaled. Keeps mean and inverse
 * deviation of each row. */
#include "trainer/layer_types.h"

static size_t normalization_kept(const struct layer *l, enum activation f, int64_t items,
                                 int64_t out)
{
    (void)f, (void)out;
    return (size_t)(items * layer_positions(&l->in) * 2);
}

static void normalization_forward(const struct layer_call *c)
{
    c->ops->normalize(c->rows, c->in, (float)c->layer->epsilon, c->x, c->parameter[0],
                      c->parameter[1], c->kept, c->y);
}

static void normalization_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    c->ops->normalize_backward(c->rows, c->in, c->x, c->kept, c->parameter[0], dy, dx, beta,
                               c->gradient[0], c->gradient[1]);
}

const struct layer_kind layer_layer_normalization = {
    .kept = normalization_kept,
    .forward = normalization_forward,
    .backward = normalization_backward,
    .dx_in_place = 1,
};
