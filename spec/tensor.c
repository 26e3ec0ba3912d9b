#include "spec/tensor.h"

#include <string.h>

/* Those that only hand their input on are left out: nothing of theirs could be gathered. */
static int is_elementwise(const struct layer *l, int is_fused)
{
    return l->type == LAYER_DROPOUT ||
           (l->type == LAYER_ACTIVATION && l->activation != ACTIVATION_SOFTMAX &&
            l->activation != ACTIVATION_LINEAR && !is_fused);
}

/* Works on each channel by itself. */
static int is_per_channel(const struct layer *l)
{
    switch (l->type) {
    case LAYER_MAX_POOLING2D:
    case LAYER_AVERAGE_POOLING2D:
    case LAYER_GLOBAL_MAX_POOLING2D:
    case LAYER_GLOBAL_AVERAGE_POOLING2D:
    case LAYER_BATCH_NORMALIZATION: return 1;
    default: return 0;
    }
}

static const char *why_whole(const struct layer *l)
{
    switch (l->type) {
    case LAYER_LAYER_NORMALIZATION: return "it normalises over the whole row";
    case LAYER_FLATTEN:
    case LAYER_RESHAPE: return "it reads whole rows in another shape";
    case LAYER_ADD: return "its two inputs must be whole";
    case LAYER_ACTIVATION:
        return l->activation == ACTIVATION_SOFTMAX ? "softmax is over the whole row"
                                                   : "it does nothing of its own";
    default: return "its input is whole";
    }
}

/* A dense layer whose own softmax is over the row cannot leave columns. */
static int softmax_stays(const struct layer *l, int is_fused)
{
    return l->activation == ACTIVATION_SOFTMAX && !is_fused;
}

static struct tensor_cut cut_dense(const struct layer *l, int is_fused, int split)
{
    if (split)
        return (struct tensor_cut){.split = TENSOR_ROWS, .input_split = 1};
    if (softmax_stays(l, is_fused))
        return (struct tensor_cut){.why = "its softmax is over the whole row"};
    return (struct tensor_cut){.split = TENSOR_COLUMNS, .output_split = 1};
}

/* One layer, of whose input `split` tells; the caller gathers before where input_split is not. */
static struct tensor_cut cut_layer(const struct layer *l, int is_fused, int split)
{
    if (l->type == LAYER_DENSE)
        return cut_dense(l, is_fused, split);
    if (l->type == LAYER_CONV2D && !softmax_stays(l, is_fused))
        return (struct tensor_cut){.split = TENSOR_COLUMNS, .output_split = 1};
    if (l->type == LAYER_EMBEDDING)
        return (struct tensor_cut){.split = TENSOR_VOCABULARY};
    if (split && (is_elementwise(l, is_fused) || is_per_channel(l)))
        return (struct tensor_cut){.split = TENSOR_CHANNELS, .input_split = 1, .output_split = 1};
    return (struct tensor_cut){.why = why_whole(l)};
}

/* 1 if a later layer of the stage adds this one's output. */
static int is_added(const struct model *m, int layer, int last)
{
    for (int l = layer + 1; l < last; l++)
        if (m->layers[l].type == LAYER_ADD && l - m->layers[l].back == layer)
            return 1;
    return 0;
}

/* Has the output of layer l, which is split, whole. Where sums over the batch are taken of a
 * layer's gradient it is better whole than gathered. */
static void gather_output(const struct model *m, int first, int l, struct tensor_cut *cuts)
{
    struct tensor_cut *c = &cuts[l - first];
    if (m->layers[l].type == LAYER_BATCH_NORMALIZATION) {
        *c = (struct tensor_cut){.why = "its output is needed whole"};
        gather_output(m, first, l - 1, cuts);
        return;
    }
    c->gather = 1;
    c->output_split = 0;
}

void tensor_cuts(const struct model *m, int first, int last, int ranks, int fused,
                 struct tensor_cut *ret)
{
    int split = 0;
    memset(ret, 0, (size_t)(last - first) * sizeof *ret);
    for (int l = first; l < last && ranks > 1; l++) {
        struct tensor_cut *c = &ret[l - first];
        *c = cut_layer(&m->layers[l], fused && l == m->layer_count - 1, split);
        if (split && !c->input_split)
            gather_output(m, first, l - 1, ret);
        if (c->output_split && (l == last - 1 || is_added(m, l, last)))
            gather_output(m, first, l, ret);
        split = c->output_split;
    }
}

int tensor_axis(const struct layer *l, int t, enum tensor_split split)
{
    const struct tensor_spec *s = &l->tensors[t];
    switch (split) {
    case TENSOR_WHOLE: return -1;
    case TENSOR_COLUMNS:
    case TENSOR_CHANNELS: return s->shape.dims - 1;
    case TENSOR_ROWS:
    case TENSOR_VOCABULARY: return s->shape.dims >= 2 ? 0 : -1; /* the bias is added once, whole */
    }
    return -1;
}

int64_t tensor_part(int64_t size, int ranks, int rank, int64_t *ret_begin, int64_t *ret_end)
{
    int64_t each = (size + ranks - 1) / ranks;
    *ret_begin = each * rank < size ? each * rank : size;
    *ret_end = *ret_begin + each < size ? *ret_begin + each : size;
    return each;
}
