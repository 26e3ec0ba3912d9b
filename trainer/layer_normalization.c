/* layer_normalization.c: numbers brought to mean 0 and variance 1, then scaled: of every row
 * (layer_normalization), or of every column over the global batch (batch_normalization). */
#include "trainer/layer_types.h"

/* The layer's tensors are those of gamma, beta, moving mean and variance that it has, in this
 * order. */
static int beta_of(const struct layer *l)
{
    return l->has_gamma;
}

static int moving_of(const struct layer *l)
{
    return l->has_gamma + l->has_beta;
}

static float *gamma_in(const struct layer_call *c, float *const tensors[])
{
    return c->layer->has_gamma ? tensors[0] : NULL;
}

static float *beta_in(const struct layer_call *c, float *const tensors[])
{
    return c->layer->has_beta ? tensors[beta_of(c->layer)] : NULL;
}

/* ---- layer_normalization: keeps mean and inverse deviation of each row ---- */

static size_t normalization_kept(const struct layer *l, enum activation f, int64_t items,
                                 int64_t out)
{
    (void)f, (void)out;
    return (size_t)(items * shape_positions(&l->in) * 2);
}

static void normalization_forward(const struct layer_call *c)
{
    c->ops->normalize(c->rows, c->in, (float)c->layer->epsilon, c->x, gamma_in(c, c->parameter),
                      beta_in(c, c->parameter), c->kept, c->y);
}

static void normalization_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    c->ops->normalize_backward(c->rows, c->in, c->x, c->kept, gamma_in(c, c->parameter), dy, dx,
                               beta, gamma_in(c, c->gradient), beta_in(c, c->gradient));
}

const struct layer_kind layer_layer_normalization = {
    .kept = normalization_kept,
    .forward = normalization_forward,
    .backward = normalization_backward,
    .dx_in_place = 1,
};

/* ---- batch_normalization: keeps mean and inverse deviation of each column ---- */

static size_t batch_kept(const struct layer *l, enum activation f, int64_t items, int64_t out)
{
    (void)l, (void)f, (void)items;
    return 2 * (size_t)out;
}

/* As Keras does it, a frozen one works as in evaluation. */
static int uses_moving(const struct layer_call *c)
{
    return !c->pass->training || c->layer->frozen;
}

static struct batch_norm_args batch_args(const struct layer_call *c)
{
    return (struct batch_norm_args){
        .rows = c->rows,
        .cols = c->in,
        .x = c->x,
        .stats = c->kept,
        .gamma = gamma_in(c, c->parameter),
        .beta = beta_in(c, c->parameter),
    };
}

static int batch_sum_count(const struct layer_call *c)
{
    return (int)(2 * c->in);
}

static void batch_sums(const struct layer_call *c, double *sums)
{
    c->ops->batch_moments(c->rows, c->in, c->x, sums);
}

static void batch_forward(const struct layer_call *c)
{
    struct batch_norm_args a = batch_args(c);
    float *const *moving = c->parameter + moving_of(c->layer);
    if (uses_moving(c))
        c->ops->moving_stats(c->in, moving[0], moving[1], c->layer->epsilon, c->kept);
    else
        c->ops->batch_stats(c->in, c->batch_sums, c->batch_rows, c->layer->epsilon, c->kept);
    c->ops->batch_normalize(&a, c->y);
}

static void batch_backward_sums(const struct layer_call *c, const float *dy, double *sums)
{
    struct batch_norm_args a = batch_args(c);
    c->ops->batch_norm_sums(&a, dy, sums);
}

static void batch_backward(const struct layer_call *c, float *dy, float *dx, float beta)
{
    struct batch_norm_args a = batch_args(c);
    c->ops->batch_norm_backward(&a, dy, uses_moving(c) ? NULL : c->batch_sums, c->batch_rows, dx,
                                beta, gamma_in(c, c->gradient), beta_in(c, c->gradient));
}

static void batch_end_step(const struct layer_call *c)
{
    float *const *moving = c->parameter + moving_of(c->layer);
    if (!uses_moving(c) && c->batch_rows > 0)
        c->ops->update_moving(c->in, c->batch_sums, c->batch_rows, c->layer->momentum, moving[0],
                              moving[1]);
}

const struct layer_kind layer_batch_normalization = {
    .takes_any_split = 1,
    .kept = batch_kept,
    .forward = batch_forward,
    .backward = batch_backward,
    .dx_in_place = 1,
    .sum_count = batch_sum_count,
    .sums = batch_sums,
    .backward_sums = batch_backward_sums,
    .end_step = batch_end_step,
};
