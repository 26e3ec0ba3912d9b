/* Every type of layer with every activation, by itself: what backward gives against central
 * differences of what forward gives, for the input and for every tensor; and that the items of a
 * call do not show in one another. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/layer.h"

#define ITEMS    5
#define MOST     4096 /* elements of any tensor here */
#define CHANNELS 64

/* The last layer of a model at work alone. */
struct bench {
    struct model model;
    const struct layer *layer;
    const struct layer_kind *kind;
    struct layer_pass pass;
    struct layer_call call;
    int64_t in, out; /* elements per item */
    float x[MOST], other[MOST], y[MOST], kept[MOST], weight[MOST], dy[MOST], dx[MOST];
    float parameter[LAYER_MAX_TENSORS][MOST], gradient[LAYER_MAX_TENSORS][MOST];
    double sums[2 * CHANNELS], backward_sums[2 * CHANNELS];
};

static float next_float(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return (float)(int32_t)*s * 0x1p-31f;
}

static void fill(float *x, int64_t n, uint32_t seed, float scale)
{
    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * next_float(&seed);
}

static void read_model(struct bench *b, const char *input, const char *layers)
{
    struct faults f = {0};
    char *text = mem_printf("{'input': %s, 'layers': [%s]}", input, layers);
    for (char *p = text; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    json_auto_t *doc = json_loads(text, 0, NULL);
    if (!doc || model_parse(doc, "/model", &b->model, &f) < 0)
        fail_msg("%s: %s", text, f.count ? f.items[0].message : "not JSON");
    free(text);
}

static void fill_parameters(struct bench *b)
{
    for (int t = 0; t < b->layer->tensor_count; t++) {
        const struct tensor_spec *spec = &b->layer->tensors[t];
        fill(b->parameter[t], shape_elements(&spec->shape), 71 + (uint32_t)t, 0.7f);
        for (int i = 0; i < MOST && strcmp(spec->name, "moving_variance") == 0; i++)
            b->parameter[t][i] = 0.5f + fabsf(b->parameter[t][i]);
        b->call.parameter[t] = b->parameter[t];
        b->call.gradient[t] = spec->is_fixed ? NULL : b->gradient[t];
    }
}

static void set_items(struct bench *b, int64_t items)
{
    b->call.items = items;
    b->call.rows = items * (b->in / b->call.in);
    b->call.batch_rows = (double)b->call.rows;
}

static struct bench *bench_open(const char *input, const char *layers)
{
    struct bench *b = mem_zalloc(sizeof *b);
    read_model(b, input, layers);
    b->layer = &b->model.layers[b->model.layer_count - 1];
    b->kind = layer_kinds[b->layer->type];
    b->pass = (struct layer_pass){.training = 1, .seed = 3, .step = 7};
    b->in = shape_elements(&b->layer->in);
    b->out = shape_elements(&b->layer->out);
    b->call = (struct layer_call){
        .ops = &ops_cpu,
        .layer = b->layer,
        .pass = &b->pass,
        .f = b->layer->activation,
        .index = b->model.layer_count - 1,
        .position = 2,
        .in = b->layer->in.size[b->layer->in.dims - 1],
        .out = b->layer->out.size[b->layer->out.dims - 1],
        .columns = b->layer->in.size[b->layer->in.dims - 1],
        .x = b->x,
        .other = b->layer->type == LAYER_ADD ? b->other : NULL,
        .y = b->y,
        .kept = b->kept,
    };
    set_items(b, ITEMS);
    size_t kept = b->kind->kept ? b->kind->kept(b->layer, b->call.f, ITEMS, b->call.out) : 0;
    assert_true(kept <= MOST);
    b->call.kept = kept ? b->kept : NULL;
    fill(b->x, ITEMS * b->in, 12345, 1.5f);
    for (int64_t i = 0; i < ITEMS * b->in && b->layer->type == LAYER_EMBEDDING; i++)
        b->x[i] = (float)(i * 7 % b->layer->vocabulary);
    fill(b->other, ITEMS * b->in, 321, 1);
    fill(b->weight, ITEMS * b->out, 99, 1);
    fill_parameters(b);
    return b;
}

static void bench_close(struct bench *b)
{
    model_done(&b->model);
    free(b);
}

static int wants_sums(const struct bench *b)
{
    return b->pass.training && layer_wants_sums(b->layer);
}

static void forward(struct bench *b)
{
    if (wants_sums(b)) {
        assert_int_equal(b->kind->sum_count(&b->call), 2 * b->call.in);
        b->kind->sums(&b->call, b->sums);
        b->call.batch_sums = b->sums;
    }
    b->kind->forward(&b->call);
}

/* The loss: outputs weighted, in double. */
static double loss(struct bench *b)
{
    double sum = 0;
    forward(b);
    for (int64_t i = 0; i < b->call.items * b->out; i++)
        sum += (double)b->weight[i] * (double)b->y[i];
    return sum;
}

static float *backward(struct bench *b, float beta, int wants_dx)
{
    float *dx = b->kind->dx_in_place ? b->dy : b->dx;
    forward(b);
    memcpy(b->dy, b->weight, sizeof b->dy);
    if (wants_sums(b)) {
        b->kind->backward_sums(&b->call, b->dy, b->backward_sums);
        b->call.batch_sums = b->backward_sums;
    }
    b->kind->backward(&b->call, b->dy, wants_dx ? dx : NULL, beta);
    return dx;
}

/* ---- slopes ---- */

#define H 0x1p-10f

struct count {
    int all, compared;
};

/* Where a kink lies within the step its two sides differ: as much is allowed for, and where it is
 * much nothing is compared. */
static void check_one(struct bench *b, float *at, float gradient, struct count *n, const char *what)
{
    float was = *at;
    double here = loss(b);
    *at = was + H;
    double above = loss(b), width = (double)*at;
    *at = was - H;
    double below = loss(b);
    width -= (double)*at;
    *at = was;
    n->all++;
    double right = (above - here) / (double)H, left = (here - below) / (double)H;
    double size = fmax(1, fabs((double)gradient));
    double bend = fabs(right - left);
    if (bend > 0.05 * size)
        return;
    n->compared++;
    double slope = (above - below) / width;
    if (fabs(slope - (double)gradient) > 2e-3 * size + 0.5 * bend)
        fail_msg("%s: gradient %g, but the loss rises by %g", what, (double)gradient, slope);
}

static void check_tensor(struct bench *b, float *at, const float *gradient, int64_t n,
                         const char *what)
{
    CLEANUP(mem_freep) float *g = mem_alloc((size_t)n * sizeof *g);
    struct count count = {0};
    memcpy(g, gradient, (size_t)n * sizeof *g);
    for (int64_t i = 0; i < n; i++)
        check_one(b, at + i, g[i], &count, what);
    if (count.compared * 10 < count.all * 8)
        fail_msg("%s: only %d of %d slopes could be compared", what, count.compared, count.all);
}

static void check_slopes(struct bench *b, const char *what)
{
    float *dx = backward(b, 0.0f, 1);
    if (b->layer->type == LAYER_EMBEDDING) {
        for (int64_t i = 0; i < ITEMS * b->in; i++)
            assert_true(dx[i] == 0.0f);
    } else {
        check_tensor(b, b->x, dx, ITEMS * b->in, what);
    }
    for (int t = 0; t < b->layer->tensor_count; t++) {
        backward(b, 0.0f, 1);
        if (b->call.gradient[t])
            check_tensor(b, b->parameter[t], b->gradient[t],
                         shape_elements(&b->layer->tensors[t].shape), what);
    }
}

/* ---- the table ---- */

#define D2         "{'type': 'dense', 'units': 6}, {'type': 'dense', 'units': 6}, "
#define CONV(ARGS) "{'type': 'conv2d', 'filters': 3, " ARGS
#define LEARN_3    "{'type': 'conv2d', 'filters': 3, 'kernel_size': 1}, "
#define LEARN_1    "{'type': 'dense', 'units': 6}, "

/* %s: an activation */
static const struct {
    const char *input, *layers;
} WITH_ACTIVATION[] = {
    {"[7]", "{'type': 'dense', 'units': 5, 'activation': '%s'}"},
    {"[3, 2]", "{'type': 'dense', 'units': 4, 'use_bias': false, 'activation': '%s'}"},
    {"[7]", LEARN_1 "{'type': 'activation', 'activation': '%s'}"},
    {"[5, 4, 2]", CONV("'kernel_size': [3, 2], 'padding': 'same', 'activation': '%s'}")},
    {"[5, 6, 1]",
     CONV("'kernel_size': 3, 'strides': [1, 2], 'use_bias': false, 'activation': '%s'}")},
};

static const struct {
    const char *input, *layers;
} PLAIN[] = {
    {"[7]", LEARN_1 "{'type': 'rescaling', 'scale': 1.7, 'offset': -0.3}"},
    {"[7]", LEARN_1 "{'type': 'dropout', 'rate': 0.4}"},
    {"[7]", LEARN_1 "{'type': 'layer_normalization'}"},
    {"[3, 7]", LEARN_1 "{'type': 'layer_normalization', 'center': false, 'epsilon': 0.1}"},
    {"[3, 7]", LEARN_1 "{'type': 'layer_normalization', 'scale': false}"},
    {"[7]", LEARN_1 "{'type': 'batch_normalization'}"},
    {"[2, 3, 4]", LEARN_1 "{'type': 'batch_normalization', 'epsilon': 0.1}"},
    {"[3, 7]", LEARN_1 "{'type': 'batch_normalization', 'center': false}"},
    {"[3, 7]", LEARN_1 "{'type': 'batch_normalization', 'scale': false}"},
    {"[3, 7]", LEARN_1 "{'type': 'batch_normalization', 'scale': false, 'center': false}"},
    {"[3, 7]", LEARN_1 "{'type': 'batch_normalization', 'trainable': false}"},
    {"[3, 7]", LEARN_1 "{'type': 'dense', 'units': 4, 'trainable': false}"},
    {"[6]", D2 "{'type': 'add', 'back': 2}"},
    {"[4]", "{'type': 'embedding', 'input_dim': 9, 'output_dim': 5}"},
    {"[2, 3]", "{'type': 'embedding', 'input_dim': 30, 'output_dim': 2}"},
    /* windows: 1 x 1, as large as the item, larger, with holes between them, over every edge */
    {"[4, 3, 2]", CONV("'kernel_size': 1}")},
    {"[4, 3, 2]", CONV("'kernel_size': 1, 'strides': 2}")},
    {"[4, 3, 2]", CONV("'kernel_size': [4, 3]}")},
    {"[2, 3, 2]", CONV("'kernel_size': 5, 'padding': 'same'}")},
    {"[7, 5, 1]", CONV("'kernel_size': 2, 'strides': 3}")},
    {"[7, 5, 2]", CONV("'kernel_size': 3, 'strides': 2, 'padding': 'same'}")},
    {"[6, 4, 1]", CONV("'kernel_size': [2, 4], 'strides': [3, 1], 'padding': 'same'}")},
    {"[3, 4, 2]", LEARN_3 CONV("'kernel_size': 3, 'padding': 'same', 'trainable': false}")},
    {"[7, 6, 2]", LEARN_3 "{'type': 'max_pooling2d'}"},
    {"[7, 6, 2]", LEARN_3 "{'type': 'max_pooling2d', 'pool_size': 3, 'strides': 2}"},
    {"[5, 5, 2]",
     LEARN_3 "{'type': 'max_pooling2d', 'pool_size': [3, 2], 'strides': 1, 'padding': 'same'}"},
    {"[7, 6, 2]", LEARN_3 "{'type': 'average_pooling2d'}"},
    {"[7, 6, 2]", LEARN_3 "{'type': 'average_pooling2d', 'pool_size': 3, 'strides': 2}"},
    {"[5, 5, 2]",
     LEARN_3 "{'type': 'average_pooling2d', 'pool_size': 4, 'strides': 3, 'padding': 'same'}"},
    {"[4, 3, 2]", LEARN_3 "{'type': 'global_max_pooling2d'}"},
    {"[4, 3, 2]", LEARN_3 "{'type': 'global_average_pooling2d'}"},
};

typedef void visit(struct bench *b, const char *what);

static void each_layer(visit *check)
{
    int seen[LAYER_TYPE__MAX] = {0};
    for (size_t i = 0; i < ARRAY_LEN(WITH_ACTIVATION); i++)
        for (int f = 0; f < ACTIVATION__MAX; f++) {
            char layers[300];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            snprintf(layers, sizeof layers, WITH_ACTIVATION[i].layers,
                     activation_name((enum activation)f));
#pragma GCC diagnostic pop
            struct bench *b = bench_open(WITH_ACTIVATION[i].input, layers);
            seen[b->layer->type]++;
            check(b, layers);
            bench_close(b);
        }
    for (size_t i = 0; i < ARRAY_LEN(PLAIN); i++) {
        struct bench *b = bench_open(PLAIN[i].input, PLAIN[i].layers);
        seen[b->layer->type]++;
        check(b, PLAIN[i].layers);
        bench_close(b);
    }
    for (int t = 0; t < LAYER_TYPE__MAX; t++) /* a new type belongs into the table */
        assert_true(seen[t] > 0 || layer_kinds[t]->passes_on);
}

static void gradients_are_the_slopes_of_the_loss(void **state)
{
    (void)state;
    each_layer(check_slopes);
}

/* ---- what a call must not depend on ---- */

static int is_close(float a, float b, float tolerance)
{
    return fabsf(a - b) <= tolerance * (1 + fabsf(b));
}

static void check_beta(struct bench *b, const char *what)
{
    CLEANUP(mem_freep) float *once = mem_alloc(sizeof b->gradient);
    backward(b, 0.0f, 1);
    memcpy(once, b->gradient, sizeof b->gradient);
    backward(b, 1.0f, 0); /* nobody wants dx */
    for (int t = 0; t < b->layer->tensor_count; t++)
        for (int64_t i = 0; i < shape_elements(&b->layer->tensors[t].shape); i++)
            if (!is_close(b->gradient[t][i], 2 * once[t * MOST + i], 1e-5f))
                fail_msg("%s: %s[%lld] is %g, twice %g was expected", what,
                         b->layer->tensors[t].name, (long long)i, (double)b->gradient[t][i],
                         (double)once[t * MOST + i]);
}

static void beta_one_adds_to_what_is_there(void **state)
{
    (void)state;
    each_layer(check_beta);
}

/* No items: gradients are zeroes, or stay as they are. */
static void check_no_rows(struct bench *b, const char *what)
{
    set_items(b, 0);
    for (int pass = 0; pass < 2; pass++) {
        for (int t = 0; t < LAYER_MAX_TENSORS; t++)
            for (int i = 0; i < MOST; i++)
                b->gradient[t][i] = 3.0f;
        backward(b, (float)pass, 1);
        for (int t = 0; t < b->layer->tensor_count; t++)
            for (int64_t i = 0; i < MOST; i++) {
                int inside = i < shape_elements(&b->layer->tensors[t].shape);
                float want = inside && pass == 0 && b->call.gradient[t] ? 0.0f : 3.0f;
                if (b->gradient[t][i] != want)
                    fail_msg("%s: %g", what, (double)b->gradient[t][i]);
            }
    }
}

static void no_rows_leave_zeroes_or_what_was(void **state)
{
    (void)state;
    each_layer(check_no_rows);
}

/* Points the call at item `i` alone, or at all of them again. */
static void point_at(struct bench *b, int64_t i, int64_t items)
{
    set_items(b, items);
    b->call.position = 2 + i;
    b->call.x = b->x + i * b->in;
    b->call.other = b->call.other ? b->other + i * b->in : NULL;
    b->call.y = b->y + i * b->out;
}

/* Each item by itself gives the bits of all together: outputs, input gradients, and parameter
 * gradients that are added up item after item. */
static void check_items(struct bench *b, const char *what)
{
    if (wants_sums(b))
        return;
    CLEANUP(mem_freep) struct bench *whole = mem_alloc(sizeof *whole);
    float *dx = backward(b, 0.0f, 1);
    memcpy(whole, b, sizeof *b);
    const float *whole_dx = dx == b->dy ? whole->dy : whole->dx;
    for (int64_t i = 0; i < ITEMS; i++) {
        point_at(b, i, 1);
        b->kind->forward(&b->call);
        memcpy(b->dy, b->weight + i * b->out, (size_t)b->out * sizeof *b->dy);
        b->kind->backward(&b->call, b->dy, dx, i ? 1.0f : 0.0f);
        if (memcmp(dx, whole_dx + i * b->in, (size_t)b->in * sizeof *dx) != 0)
            fail_msg("%s: the input gradient of item %lld depends on the others", what,
                     (long long)i);
    }
    if (memcmp(b->y, whole->y, sizeof b->y) != 0)
        fail_msg("%s: outputs depend on the other items", what);
    for (int t = 0; t < b->layer->tensor_count;
         t++) /* frozen batch normalisation sums in float64 */
        for (int64_t i = 0; i < MOST; i++)
            if (!is_close(b->gradient[t][i], whole->gradient[t][i], 0.0f))
                fail_msg("%s: gradients depend on how items are grouped", what);
}

static void items_do_not_show_in_one_another(void **state)
{
    (void)state;
    each_layer(check_items);
}

/* ---- batch normalisation over a batch that is cut ---- */

static void moving_statistics_rest_and_move(void **state)
{
    (void)state;
    struct bench *b = bench_open("[3]", "{'type': 'dense', 'units': 3}, {'type': "
                                        "'batch_normalization', 'momentum': 0.75}");
    float *mean = b->parameter[2], *variance = b->parameter[3], was[2] = {mean[1], variance[1]};
    forward(b);
    assert_true(mean[1] == was[0] && variance[1] == was[1]);
    b->kind->end_step(&b->call);
    double sum = 0, squares = 0;
    for (int r = 0; r < ITEMS; r++)
        sum += (double)b->x[r * 3 + 1] / ITEMS;
    for (int r = 0; r < ITEMS; r++)
        squares += pow((double)b->x[r * 3 + 1] - sum, 2) / ITEMS;
    assert_true(fabs((double)mean[1] - (0.75 * (double)was[0] + 0.25 * sum)) < 1e-6);
    assert_true(fabs((double)variance[1] - (0.75 * (double)was[1] + 0.25 * squares)) < 1e-6);
    b->pass.training = 0; /* evaluation uses them, and leaves them */
    was[0] = mean[1], was[1] = variance[1];
    b->call.batch_sums = NULL;
    forward(b);
    b->kind->end_step(&b->call);
    assert_true(mean[1] == was[0] && variance[1] == was[1]);
    double y = ((double)b->x[1] - (double)mean[1]) / sqrt((double)variance[1] + 1e-3);
    y = y * (double)b->parameter[0][1] + (double)b->parameter[1][1];
    assert_true(fabs((double)b->y[1] - y) < 1e-5);
    bench_close(b);
}

static void a_frozen_batch_normalisation_does_not_move(void **state)
{
    (void)state;
    struct bench *b = bench_open("[3]", "{'type': 'dense', 'units': 3}, {'type': "
                                        "'batch_normalization', 'trainable': false}");
    float mean[3];
    memcpy(mean, b->parameter[2], sizeof mean);
    assert_int_equal(layer_wants_sums(b->layer), 0);
    forward(b);
    b->kind->end_step(&b->call);
    assert_memory_equal(b->parameter[2], mean, sizeof mean);
    bench_close(b);
}

static void add_up(double *to, const double *from, int n)
{
    for (int i = 0; i < n; i++)
        to[i] += from[i];
}

/* Outputs and gradients of a batch in pieces are those of the whole, when the pieces' sums are
 * added. */
static void sums_of_pieces_are_those_of_the_batch(void **state)
{
    (void)state;
    struct bench *b = bench_open("[2, 5]", LEARN_1 "{'type': 'batch_normalization'}");
    struct bench *w = bench_open("[2, 5]", LEARN_1 "{'type': 'batch_normalization'}");
    static const int64_t PIECES[] = {0, 2, 2, 5};
    double sums[2 * CHANNELS] = {0}, piece[2 * CHANNELS];
    float *whole_dx = backward(w, 0.0f, 1);
    for (size_t p = 0; p + 1 < ARRAY_LEN(PIECES); p++) {
        point_at(b, PIECES[p], PIECES[p + 1] - PIECES[p]);
        b->kind->sums(&b->call, piece);
        add_up(sums, piece, 12);
    }
    double back[2 * CHANNELS] = {0};
    memcpy(b->dy, b->weight, sizeof b->dy);
    for (int turn = 0; turn < 2; turn++)
        for (size_t p = 0; p + 1 < ARRAY_LEN(PIECES); p++) {
            int64_t at = PIECES[p];
            point_at(b, at, PIECES[p + 1] - at);
            b->call.batch_rows = ITEMS * 2;
            b->call.batch_sums = turn ? back : sums;
            if (turn == 0) {
                b->kind->forward(&b->call);
                b->kind->backward_sums(&b->call, b->dy + at * b->out, piece);
                add_up(back, piece, 12);
            } else {
                b->kind->backward(&b->call, b->dy + at * b->out, b->dy + at * b->out,
                                  at ? 1.0f : 0.0f);
            }
        }
    for (int64_t i = 0; i < ITEMS * b->out; i++) {
        assert_true(is_close(b->y[i], w->y[i], 1e-6f));
        assert_true(is_close(b->dy[i], whole_dx[i], 1e-6f));
    }
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 6; i++)
            assert_true(is_close(b->gradient[t][i], w->gradient[t][i], 1e-5f));
    bench_close(b);
    bench_close(w);
}

/* ---- token ids ---- */

static void ids_that_are_none_are_found(void **state)
{
    (void)state;
    struct bench *b =
        bench_open("[2, 3]", "{'type': 'flatten'}, {'type': 'reshape', 'target_shape': [6]},"
                             "{'type': 'embedding', 'input_dim': 9, 'output_dim': 2}");
    float ids[] = {0, 8, 3, 5};
    assert_int_equal(layer_bad_id(&b->model, 4, ids), -1);
    static const float BAD[] = {9, -1, 2.5f, NAN, INFINITY, -0.25f, 1e30f};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        ids[2] = BAD[i];
        assert_int_equal(layer_bad_id(&b->model, 4, ids), 2);
    }
    bench_close(b);
    b = bench_open("[4]", "{'type': 'dense', 'units': 2}");
    assert_int_equal(layer_bad_id(&b->model, 4, ids), -1); /* any number will do */
    bench_close(b);
}

/* A rank with a part of the table: its rows alone, zeroes elsewhere; parts add up to the whole. */
static void parts_of_a_table_add_up(void **state)
{
    (void)state;
    const char *layer = "{'type': 'embedding', 'input_dim': 9, 'output_dim': 5}";
    struct bench *w = bench_open("[4]", layer), *b = bench_open("[4]", layer);
    float y[MOST] = {0};
    backward(w, 0.0f, 0);
    static const int64_t FIRST[] = {0, 4, 5, 9};
    for (int p = 0; p < 3; p++) {
        b->call.first_row = FIRST[p];
        b->call.row_count = FIRST[p + 1] - FIRST[p];
        memcpy(b->parameter[0], w->parameter[0] + FIRST[p] * 5,
               (size_t)b->call.row_count * 5 * sizeof(float));
        backward(b, 0.0f, 0);
        for (int64_t i = 0; i < ITEMS * b->out; i++)
            y[i] += b->y[i];
        assert_memory_equal(b->gradient[0], w->gradient[0] + FIRST[p] * 5,
                            (size_t)b->call.row_count * 5 * sizeof(float));
    }
    assert_memory_equal(y, w->y, (size_t)(ITEMS * b->out) * sizeof *y);
    bench_close(b);
    bench_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_slopes_of_the_loss),
        cmocka_unit_test(beta_one_adds_to_what_is_there),
        cmocka_unit_test(no_rows_leave_zeroes_or_what_was),
        cmocka_unit_test(items_do_not_show_in_one_another),
        cmocka_unit_test(moving_statistics_rest_and_move),
        cmocka_unit_test(a_frozen_batch_normalisation_does_not_move),
        cmocka_unit_test(sums_of_pieces_are_those_of_the_batch),
        cmocka_unit_test(ids_that_are_none_are_found),
        cmocka_unit_test(parts_of_a_table_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
