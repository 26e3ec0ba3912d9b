/* Every layer, activation and loss: the gradients that backward computes against central
 * differences of the loss that forward computes; of all parameters, and of the input where a stage
 * passes it back. */
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
#include "trainer/layers.h"

#define ROWS 5

/* A net over layers [first, end) of a model, with one micro-batch. */
struct bench {
    struct job_spec job;
    struct net net;
    struct frame_layout layout;
    float *parameters, *gradients; /* whole arenas */
    struct frame frame;
    struct frame_work work;
    struct layer_pass pass;
    int64_t in, out;
    int32_t classes[ROWS];
    float targets[ROWS * 64];
};

static float next_float(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return (float)(int32_t)*s * 0x1p-31f;
}

static void set_targets(struct bench *b)
{
    uint32_t s = 77;
    for (int r = 0; r < ROWS; r++) {
        b->classes[r] = (int32_t)(r * 7 % b->out);
        for (int64_t c = 0; c < b->out; c++)
            b->targets[r * b->out + c] = b->job.loss == LOSS_MEAN_SQUARED_ERROR
                                             ? next_float(&s)
                                             : 0.5f + 0.45f * next_float(&s);
    }
}

static float *input_of(struct bench *b)
{
    return (float *)b->frame.memory;
}

static void bench_open(struct bench *b, const char *input, const char *layers, enum loss loss,
                       int first)
{
    struct faults f;
    struct err e;
    char text[2048];
    faults_init(&f);
    *b = (struct bench){.job = {.loss = loss}, .pass = {.training = 1, .seed = 9, .step = 3}};
    snprintf(text, sizeof text, "{\"input\": %s, \"layers\": [%s]}", input, layers);
    json_auto_t *doc = json_loads(text, 0, NULL);
    if (!doc || model_parse(doc, "/model", &b->job.model, &f) < 0)
        fail_msg("%s: %s", text, f.count ? f.items[0].message : "not JSON");
    faults_done(&f);
    int end = b->job.model.layer_count;
    struct net_chunk chunk = {first, end};
    assert_int_equal(net_init(&b->net, &b->job, &ops_cpu, &chunk, 1, 1, 0, &e), 0);
    b->net.folded = 0; /* no batch loader here */
    b->parameters = ops_cpu.alloc(b->net.elements * sizeof(float));
    b->gradients = ops_cpu.alloc(b->net.trained * sizeof(float));
    net_point(&b->net, b->parameters, b->gradients);
    struct frame_options options = {.max_rows = ROWS};
    frame_layout_init(&b->layout, &b->net, &chunk, &options);
    assert_int_equal(frame_init(&b->frame, &b->layout, &e), 0);
    assert_int_equal(frame_work_init(&b->work, &b->layout, 1, &e), 0);
    b->in = shape_elements(&b->job.model.layers[first].in);
    b->out = shape_elements(&b->job.model.layers[end - 1].out);
    assert_true(b->out <= 64);
    uint32_t s = 12345;
    for (size_t i = 0; i < b->net.elements; i++)
        b->parameters[i] = 0.7f * next_float(&s);
    for (int64_t i = 0; i < ROWS * b->in; i++)
        input_of(b)[i] = 1.5f * next_float(&s);
    b->frame.rows = ROWS;
    b->frame.position = 4;
    set_targets(b);
}

static void bench_close(struct bench *b)
{
    frame_work_done(&b->work, &b->net);
    frame_done(&b->frame, &b->net);
    frame_layout_done(&b->layout);
    net_done(&b->net);
    free(b->parameters);
    free(b->gradients);
    model_done(&b->job.model);
}

static struct layers_pass pass_of(struct bench *b, int j)
{
    return (struct layers_pass){.layout = &b->layout,
                                .frame = &b->frame,
                                .work = &b->work,
                                .pass = &b->pass,
                                .j = j,
                                .is_final = 1};
}

static float *forward_now(struct bench *b)
{
    struct layers_pass p = pass_of(b, 0);
    struct err e;
    int packed;
    assert_int_equal(layers_forward(&p, b->layout.first, b->layout.last, &e), 0);
    return layers_output(&p, b->layout.last - 1, &packed);
}

static double loss_now(struct bench *b, float *gradient)
{
    struct loss_sums sums = {0};
    int sparse = b->job.loss == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY;
    struct loss_args a = {
        .kind = b->job.loss,
        .from_logits = b->net.fused,
        .rows = b->frame.rows,
        .cols = b->out,
        .out = forward_now(b),
        .classes = sparse ? b->classes : NULL,
        .targets = b->targets,
        .gradient = gradient,
        .sums = &sums,
    };
    ops_cpu.loss(&a);
    return sums.loss;
}

static float *backward_now(struct bench *b, int j)
{
    struct layers_pass p = pass_of(b, j);
    struct err e;
    float *dy = b->work.gradient[0];
    loss_now(b, dy);
    assert_int_equal(layers_backward(&p, b->layout.first, b->layout.last, &dy, &e), 0);
    return dy;
}

#define H 4e-3f

/* Returns 1 if the slope was comparable: where a kink lies within the step, its two sides differ.
 */
static int check_one(struct bench *b, float *at, double gradient, const char *what)
{
    float was = *at;
    double here = loss_now(b, NULL);
    *at = was + H;
    double above = loss_now(b, NULL), width = (double)*at;
    *at = was - H;
    double below = loss_now(b, NULL);
    width -= (double)*at;
    *at = was;
    double right = (above - here) / (double)H, left = (here - below) / (double)H;
    if (fabs(right - left) > 0.05 * (1 + fabs(gradient)))
        return 0;
    double slope = (above - below) / width;
    if (fabs(slope - gradient) > 4e-3 * fmax(1, fabs(gradient)))
        fail_msg("%s: gradient %g, but the loss rises by %g", what, gradient, slope);
    return 1;
}

static void check_parameters(struct bench *b, const char *what)
{
    CLEANUP(mem_freep) float *g = mem_alloc((b->net.elements + 1) * sizeof *g);
    int checked = 0, all = 0;
    backward_now(b, 0);
    memcpy(g, b->gradients, b->net.trained * sizeof *g);
    for (int t = 0; t < b->net.tensor_count; t++)
        for (size_t i = 0; !b->net.tensors[t].is_fixed && i < b->net.tensors[t].elements;
             i++, all++) {
            size_t at = b->net.tensors[t].offset + i;
            checked += check_one(b, b->parameters + at, (double)g[at], what);
        }
    if (checked * 10 < all * 8)
        fail_msg("%s: only %d of %d slopes could be compared", what, checked, all);
}

static void check_input(struct bench *b, const char *what)
{
    CLEANUP(mem_freep) float *g = mem_alloc((size_t)(ROWS * b->in) * sizeof *g);
    float *dx = backward_now(b, 0);
    assert_non_null(dx);
    memcpy(g, dx, (size_t)(ROWS * b->in) * sizeof *g);
    for (int64_t i = 0; i < ROWS * b->in; i++)
        check_one(b, input_of(b) + i, (double)g[i], what);
}

static void check_model(const char *input, const char *layers, enum loss loss, int first)
{
    struct bench b;
    bench_open(&b, input, layers, loss, first);
    check_parameters(&b, layers);
    if (first > 0)
        check_input(&b, layers);
    bench_close(&b);
}

static const enum loss LOSSES[] = {
    LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
    LOSS_CATEGORICAL_CROSSENTROPY,
    LOSS_BINARY_CROSSENTROPY,
    LOSS_MEAN_SQUARED_ERROR,
};

static const char *last_activation(enum loss loss)
{
    static const char *names[] = {"softmax", "softmax", "sigmoid", "linear"};
    return names[loss];
}

static void every_activation_under_every_loss(void **state)
{
    (void)state;
    for (size_t l = 0; l < ARRAY_LEN(LOSSES); l++)
        for (int f = 0; f < ACTIVATION__MAX; f++) {
            char text[512];
            const char *name = activation_name((enum activation)f);
            snprintf(text, sizeof text,
                     "{\"type\": \"dense\", \"units\": 6, \"activation\": \"%s\"},"
                     "{\"type\": \"dense\", \"units\": 4, \"activation\": \"%s\"}",
                     name, last_activation(LOSSES[l]));
            check_model("[3]", text, LOSSES[l], 0);
            snprintf(text, sizeof text,
                     "{\"type\": \"dense\", \"units\": 5, \"use_bias\": false},"
                     "{\"type\": \"activation\", \"activation\": \"%s\"},"
                     "{\"type\": \"dense\", \"units\": 3},"
                     "{\"type\": \"activation\", \"activation\": \"%s\"}",
                     name, last_activation(LOSSES[l]));
            check_model("[3]", text, LOSSES[l], 1);
        }
}

static void every_activation_last_under_squared_error(void **state)
{
    (void)state;
    for (int f = 0; f < ACTIVATION__MAX; f++) {
        char text[256];
        snprintf(text, sizeof text, "{\"type\": \"dense\", \"units\": 4, \"activation\": \"%s\"}",
                 activation_name((enum activation)f));
        check_model("[3]", text, LOSS_MEAN_SQUARED_ERROR, 0);
    }
}

static void other_layers(void **state)
{
    (void)state;
    static const char *const MIDDLES[] = {
        "{\"type\": \"layer_normalization\"}",
        "{\"type\": \"layer_normalization\"}, {\"type\": \"layer_normalization\"}",
        "{\"type\": \"dropout\", \"rate\": 0.4}",
        "{\"type\": \"rescaling\", \"scale\": 1.7, \"offset\": -0.3}",
        "{\"type\": \"flatten\"}",
        "{\"type\": \"activation\", \"activation\": \"linear\"}",
    };
    for (size_t l = 0; l < ARRAY_LEN(LOSSES); l++)
        for (size_t m = 0; m < ARRAY_LEN(MIDDLES); m++) {
            char text[768];
            snprintf(text, sizeof text,
                     "{\"type\": \"dense\", \"units\": 6, \"activation\": \"tanh\"}, %s,"
                     "{\"type\": \"dense\", \"units\": 4, \"activation\": \"%s\"}",
                     MIDDLES[m], last_activation(LOSSES[l]));
            check_model("[3]", text, LOSSES[l], 0);
            check_model("[3]", text, LOSSES[l], 1);
        }
}

static void dense_and_normalisation_over_positions(void **state)
{
    (void)state;
    const char *layers = "{\"type\": \"dense\", \"units\": 3, \"activation\": \"gelu\"},"
                         "{\"type\": \"layer_normalization\"},"
                         "{\"type\": \"reshape\", \"target_shape\": [3, 4]},"
                         "{\"type\": \"dense\", \"units\": 2, \"activation\": \"softmax\"},"
                         "{\"type\": \"flatten\"},"
                         "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}";
    check_model("[4, 2]", layers, LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 0);
    check_model("[4, 2]", layers, LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 2);
}

/* Two that read the same output, one onto another, one that reads what only passes on. */
static void gradients_that_skip_layers(void **state)
{
    (void)state;
#define D6      "{\"type\": \"dense\", \"units\": 6, \"activation\": \"tanh\"},"
#define PLUS(N) "{\"type\": \"add\", \"back\": " #N "},"
#define LINEAR  "{\"type\": \"activation\", \"activation\": \"linear\"},"
    const char *layers = D6 D6 D6 PLUS(2) PLUS(3) D6 LINEAR D6 PLUS(2) PLUS(7) D6
        "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}";
    check_model("[6]", layers, LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 0);
    check_model("[6]", layers, LOSS_CATEGORICAL_CROSSENTROPY, 1);
}

#define CONV(MORE)                                                                                 \
    "{\"type\": \"conv2d\", \"filters\": 2, \"kernel_size\": 3, \"padding\": \"same\"" MORE "},"
#define TANH   ", \"activation\": \"tanh\""
#define FROZEN TANH ", \"trainable\": false"
#define ADD(N) "{\"type\": \"add\", \"back\": " #N "},"
#define LAST   "{\"type\": \"dense\", \"units\": 3, \"activation\": \"softmax\"}"

/* Residual blocks of convolutions, and layers that do not learn among those that do. */
static void whole_networks(void **state)
{
    (void)state;
    static const struct {
        const char *input, *layers;
    } NETS[] = {
        {"[5, 4, 2]", CONV(TANH) CONV(TANH) CONV("") ADD(
                          2) "{\"type\": \"average_pooling2d\"}, {\"type\": \"flatten\"}," LAST},
        {"[4, 4, 1]", CONV(TANH) CONV(TANH) CONV(TANH) ADD(2) CONV(TANH) ADD(4) ADD(
                          5) "{\"type\": \"average_pooling2d\"}, {\"type\": \"flatten\"}," LAST},
        {"[4, 4, 1]",
         CONV(TANH) CONV(FROZEN) CONV(TANH) "{\"type\": \"global_average_pooling2d\"}," LAST},
        {"[4, 4, 1]", CONV(FROZEN) CONV(FROZEN) CONV(TANH)
                          ADD(2) "{\"type\": \"global_average_pooling2d\"}," LAST},
    };
    for (size_t i = 0; i < ARRAY_LEN(NETS); i++)
        for (int first = 0; first < 2; first++)
            check_model(NETS[i].input, NETS[i].layers, LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, first);
}

static void a_first_layer_that_learns_nothing(void **state)
{
    (void)state;
    check_model("[2, 2]",
                "{\"type\": \"rescaling\", \"scale\": 0.5}, {\"type\": \"flatten\"},"
                "{\"type\": \"dropout\", \"rate\": 0.2},"
                "{\"type\": \"dense\", \"units\": 3, \"activation\": \"softmax\"}",
                LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 0);
}

static void beta_one_adds_to_what_is_there(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, "[3]",
               "{\"type\": \"dense\", \"units\": 6, \"activation\": \"silu\"},"
               "{\"type\": \"layer_normalization\"},"
               "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}",
               LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, 0);
    backward_now(&b, 0);
    CLEANUP(mem_freep) float *once = mem_alloc(b.net.elements * sizeof *once);
    memcpy(once, b.gradients, b.net.elements * sizeof *once);
    backward_now(&b, 1);
    for (size_t i = 0; i < b.net.elements; i++)
        assert_true(fabsf(b.gradients[i] - 2 * once[i]) <= 1e-5f * (1 + fabsf(once[i])));
    bench_close(&b);
}

static void dropout_rests_outside_training(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, "[3]",
               "{\"type\": \"dropout\", \"rate\": 0.5}, {\"type\": \"flatten\"},"
               "{\"type\": \"dropout\", \"rate\": 0.5}, {\"type\": \"dense\", \"units\": 2}",
               LOSS_MEAN_SQUARED_ERROR, 0);
    b.pass.training = 0;
    struct layers_pass p = pass_of(&b, 0);
    int packed;
    forward_now(&b);
    assert_memory_equal(layers_output(&p, 2, &packed), input_of(&b), ROWS * 3 * sizeof(float));
    b.pass.training = 1;
    forward_now(&b);
    assert_memory_not_equal(layers_output(&p, 2, &packed), input_of(&b), ROWS * 3 * sizeof(float));
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_activation_under_every_loss),
        cmocka_unit_test(every_activation_last_under_squared_error),
        cmocka_unit_test(other_layers),
        cmocka_unit_test(dense_and_normalisation_over_positions),
        cmocka_unit_test(gradients_that_skip_layers),
        cmocka_unit_test(whole_networks),
        cmocka_unit_test(a_first_layer_that_learns_nothing),
        cmocka_unit_test(beta_one_adds_to_what_is_there),
        cmocka_unit_test(dropout_rests_outside_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
