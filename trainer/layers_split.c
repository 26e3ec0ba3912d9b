#include "trainer/layers_split.h"

static const struct net_layer *layer_at(const struct layers_pass *p, int l)
{
    return &p->layout->net->layers[l];
}

static int64_t rows_of(const struct layers_pass *p, int l)
{
    const struct shape *s = &p->layout->net->model->layers[l].out;
    return p->frame->rows * (shape_positions(s));
}

size_t split_elements(const struct layers_pass *p, int l)
{
    return (size_t)(rows_of(p, l) * layer_at(p, l)->out);
}

/* ---- calls ---- */

static int sum_partials(void *context, float *z, size_t n, struct err *e)
{
    struct comm *c = context;
    return c->verbs->all_reduce(c, z, n, COMM_F32, e);
}

void split_call(const struct layers_pass *p, int l, struct layer_call *c)
{
    const struct net *n = p->layout->net;
    const struct net_layer *y = layer_at(p, l);
    enum tensor_split split = y->cut.split;
    c->in = y->in;
    c->out = y->out;
    c->columns = shape_last(&c->layer->in);
    c->first_column = y->cut.input_split ? n->tensor_rank * y->in : 0;
    if (split == TENSOR_VOCABULARY) {
        int64_t begin, end; /* no id is as large as the padding of the last part */
        c->row_count = tensor_part(c->layer->vocabulary, n->tensor, n->tensor_rank, &begin, &end);
        c->first_row = n->tensor_rank * c->row_count;
    }
    if (split == TENSOR_VOCABULARY || split == TENSOR_ROWS) {
        *p->partials = (struct layer_partials){.sum = sum_partials, .context = p->tensors};
        c->partials = p->partials;
    }
}

/* ---- gathering ---- */

float *split_part(const struct layers_pass *p, int l)
{
    const struct net *n = p->layout->net;
    return p->work->gathered + (size_t)n->tensor_rank * frame_part(n, l, p->frame->rows);
}

/* Columns of part `rank` that are not padding, and where they begin. */
static int64_t own_columns(const struct layers_pass *p, int l, int rank, int64_t *ret_begin)
{
    const struct net *n = p->layout->net;
    int64_t end;
    tensor_part(shape_last(&n->model->layers[l].out), n->tensor, rank, ret_begin, &end);
    return end - *ret_begin;
}

int split_gather(const struct layers_pass *p, int l, float *whole, struct err *e)
{
    const struct net *n = p->layout->net;
    size_t part = frame_part(n, l, p->frame->rows);
    int64_t width = shape_last(&n->model->layers[l].out), begin;
    int r = p->tensors->verbs->all_gather(p->tensors, p->work->gathered, part * (size_t)n->tensor,
                                          COMM_F32, e);
    for (int t = 0; r == 0 && t < n->tensor; t++) {
        int64_t cols = own_columns(p, l, t, &begin);
        n->ops->copy_columns(rows_of(p, l), cols, p->work->gathered + (size_t)t * part,
                             layer_at(p, l)->out, whole + begin, width);
    }
    return r;
}

static void zero_padding(const struct layers_pass *p, int l, int64_t from, float *y)
{
    const struct net *n = p->layout->net;
    int64_t out = layer_at(p, l)->out;
    if (from < out)
        n->ops->copy_columns(rows_of(p, l), out - from, NULL, 0, y + from, out);
}

float *split_take(const struct layers_pass *p, int l, const float *whole, enum split_use use)
{
    const struct net *n = p->layout->net;
    float *to = p->work->gathered + (size_t)use * frame_part(n, l, p->frame->rows);
    int64_t begin, cols = own_columns(p, l, n->tensor_rank, &begin);
    n->ops->copy_columns(rows_of(p, l), cols, whole + begin, shape_last(&n->model->layers[l].out),
                         to, layer_at(p, l)->out);
    zero_padding(p, l, cols, to);
    return to;
}

void split_mask(const struct layers_pass *p, int l, float *y)
{
    const struct tensor_cut *c = &layer_at(p, l)->cut;
    int64_t begin;
    if (c->output_split || c->gather)
        zero_padding(p, l, own_columns(p, l, p->layout->net->tensor_rank, &begin), y);
}

int split_sum_gradient(const struct layers_pass *p, int l, float *dx, size_t n, struct err *e)
{
    const struct tensor_cut *c = &layer_at(p, l)->cut;
    if (c->split != TENSOR_COLUMNS || c->input_split)
        return 0;
    return p->tensors->verbs->all_reduce(p->tensors, dx, n, COMM_F32, e);
}
