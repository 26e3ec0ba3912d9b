/* cost.c: FLOPs and kept bytes of a layer, per item.
 *
 * What is exact: the multiply-adds of dense layers (2 FLOPs each; backward, one product for the
 * kernel's gradient and one for the input's, the latter only if a layer before learns). What is
 * estimated: elementwise functions, with 8 FLOPs for an exponential or error function. */
#include "spec/layer.h"

struct function_cost {
    double forward, backward; /* FLOPs per element */
    int keeps_input;          /* the derivative needs the input, not only the output */
};

static const struct function_cost function_costs[ACTIVATION__MAX] = {
    [ACTIVATION_LINEAR] = {0, 0, 0},     [ACTIVATION_RELU] = {1, 1, 0},
    [ACTIVATION_TANH] = {10, 3, 0},      [ACTIVATION_SIGMOID] = {10, 3, 0},
    [ACTIVATION_GELU] = {11, 20, 1},     [ACTIVATION_GELU_TANH] = {16, 24, 1},
    [ACTIVATION_ELU] = {10, 2, 0},       [ACTIVATION_SILU] = {11, 15, 1},
    [ACTIVATION_SOFTPLUS] = {18, 10, 0}, [ACTIVATION_LEAKY_RELU] = {2, 2, 0},
    [ACTIVATION_SOFTMAX] = {12, 4, 0},
};

/* Over one row of n: mean, variance, scaling; backward, two sums and three products. */
#define NORMALIZATION_FORWARD  8
#define NORMALIZATION_BACKWARD 14

static void add_function(struct layer *l, enum activation a, double elements)
{
    const struct function_cost *c = &function_costs[a];
    l->forward_flops += c->forward * elements;
    l->backward_flops += c->backward * elements;
    if (c->keeps_input)
        l->activation_bytes += (int64_t)elements * 4;
}

static void set_dense(struct layer *l, double out, int propagates)
{
    double inputs = (double)l->in.size[l->in.dims - 1];
    double product = 2 * out * inputs;
    l->forward_flops = product + (l->use_bias ? out : 0);
    l->backward_flops = product * (propagates ? 2 : 1) + (l->use_bias ? out : 0);
    add_function(l, l->activation, out);
}

void layer_set_costs(struct layer *l, int propagates)
{
    int64_t elements = shape_elements(&l->out);
    double out = (double)elements;
    l->forward_flops = l->backward_flops = 0;
    l->activation_bytes = elements * 4;
    switch (l->type) {
    case LAYER_DENSE: set_dense(l, out, propagates); break;
    case LAYER_FLATTEN:
    case LAYER_RESHAPE: l->activation_bytes = 0; break; /* the same memory, read otherwise */
    case LAYER_RESCALING:
        l->forward_flops = 2 * out;
        l->backward_flops = propagates ? out : 0;
        break;
    case LAYER_DROPOUT:
        l->forward_flops = 10 * out; /* counter-based random numbers */
        l->backward_flops = propagates ? 10 * out : 0;
        break;
    case LAYER_ACTIVATION:
        l->activation_bytes = elements * 4;
        add_function(l, l->activation, out);
        l->backward_flops = propagates ? l->backward_flops : 0;
        break;
    case LAYER_LAYER_NORMALIZATION:
        l->forward_flops = NORMALIZATION_FORWARD * out;
        l->backward_flops = NORMALIZATION_BACKWARD * out;
        /* mean and deviation of each row, besides the output */
        l->activation_bytes += elements / l->out.size[l->out.dims - 1] * 8;
        break;
    case LAYER_CONV2D:
    case LAYER_MAX_POOLING2D:
    case LAYER_AVERAGE_POOLING2D:
    case LAYER_GLOBAL_MAX_POOLING2D:
    case LAYER_GLOBAL_AVERAGE_POOLING2D:
    case LAYER_BATCH_NORMALIZATION:
    case LAYER_EMBEDDING:
    case LAYER_ADD:
    case LAYER_TYPE__MAX: break; /* no document names these yet */
    }
}
