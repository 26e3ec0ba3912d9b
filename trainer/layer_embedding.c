/* layer_embedding.c: a row of a table for every token id that comes in. Ids are data, so there is
 * no gradient of them. That they are in range is looked at where samples are read. */
#include "trainer/layer_types.h"

static int64_t own_rows(const struct layer_call *c)
{
    return c->row_count ? c->row_count : c->layer->vocabulary;
}

static void embedding_forward(const struct layer_call *c)
{
    c->ops->gather(c->rows * c->in, c->out, c->first_row, own_rows(c), c->x, c->parameter[0], c->y);
    layer_sum_partials(c, c->y, (size_t)(c->rows * c->in * c->out));
}

static void embedding_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    if (c->gradient[0])
        c->ops->scatter_add(c->rows * c->in, c->out, c->first_row, own_rows(c), c->x, dy, beta,
                            c->gradient[0]);
    if (dx)
        c->ops->zero(dx, (size_t)(c->rows * c->in) * sizeof *dx);
}

const struct layer_kind layer_embedding = {
    .forward = embedding_forward,
    .backward = embedding_backward,
};
