/* spec_layers.c: every type of layer: shapes, tensors, parameters and costs against values made by
 * hand, and what is said where a layer cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "spec/model.h"

/* "{'a': 1}" with its quotes turned. */
static json_t *json(const char *input, const char *layers)
{
    char *text = mem_printf("{'input': %s, 'layers': [%s]}", input, layers);
    for (char *p = text; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_t *doc = json_loads(text, 0, NULL);
    if (!doc)
        fail_msg("not JSON: %s", text);
    free(text);
    return doc;
}

static void good(const char *input, const char *layers, struct model *ret)
{
    struct faults f = {0};
    json_auto_t *doc = json(input, layers);
    if (model_parse(doc, "/m", ret, &f) < 0)
        fail_msg("%s: %s: %s", layers, f.items[0].pointer, f.items[0].message);
}

static void assert_shape(const struct shape *s, const char *want)
{
    char text[128];
    assert_string_equal(shape_format(s, text), want);
}

/* ---- the last layer of each model ---- */

#define DENSE(N) "{'type': 'dense', 'units': " #N "}"
#define CONV(F, REST)                                                                              \
    "{'type': 'conv2d', 'filters': " #F ", 'kernel_size': 1, 'use_bias': false}, " REST
/* One that learns, and leaves [8, 8, 3] as it is. */
#define AFTER(REST) CONV(3, REST)

static const struct {
    const char *input, *layers;
    const char *out;
    int64_t parameters;
    double forward, backward;
    int64_t bytes;
} SIZES[] = {
    {"[5]", DENSE(3), "[3]", 18, 2 * 15 + 3, 2 * 15 + 3, 12},
    {"[5]", DENSE(2) ", " DENSE(3), "[3]", 9, 2 * 6 + 3, 2 * 2 * 6 + 3, 12},
    {"[5]", "{'type': 'dense', 'units': 3, 'activation': 'silu'}", "[3]", 18, 33 + 3 * 11,
     33 + 3 * 15, 24},
    {"[4, 6]", DENSE(2), "[4, 2]", 14, 4 * (2 * 12 + 2), 4 * (2 * 12 + 2), 32},
    {"[4, 6]", DENSE(2) ", {'type': 'flatten'}", "[8]", 0, 0, 0, 0},
    {"[4, 6]", DENSE(2) ", {'type': 'reshape', 'target_shape': [-1, 4]}", "[2, 4]", 0, 0, 0, 0},
    {"[4]", DENSE(2) ", {'type': 'rescaling', 'scale': 2}", "[2]", 0, 4, 2, 8},
    {"[4]", DENSE(2) ", {'type': 'dropout', 'rate': 0.5}", "[2]", 0, 20, 20, 8},
    {"[4]", DENSE(2) ", {'type': 'activation', 'activation': 'gelu'}", "[2]", 0, 22, 40, 16},
    {"[4]", DENSE(6) ", {'type': 'layer_normalization'}", "[6]", 12, 48, 84, 24 + 8},
    {"[4]", DENSE(6) ", {'type': 'layer_normalization', 'center': false}", "[6]", 6, 48, 84, 32},
    /* 3 x 3 over 3 channels, 4 filters: 6 x 6 valid, 8 x 8 same, 4 x 4 with strides of 2 */
    {"[8, 8, 3]", "{'type': 'conv2d', 'filters': 4, 'kernel_size': 3}", "[6, 6, 4]", 112,
     144 * (2 * 27 + 1), 144 * (2 * 27 + 1), 576},
    {"[8, 8, 3]", "{'type': 'conv2d', 'filters': 4, 'kernel_size': [3, 3], 'padding': 'same'}",
     "[8, 8, 4]", 112, 256 * 55, 256 * 55, 1024},
    {"[8, 8, 3]",
     AFTER("{'type': 'conv2d', 'filters': 4, 'kernel_size': 3, 'padding': 'same', 'strides': 2,"
           "'activation': 'relu'}"),
     "[4, 4, 4]", 112, 64 * 56, 64 * (2 * 54 + 1 + 1), 256},
    {"[8, 9, 3]",
     "{'type': 'conv2d', 'filters': 2, 'kernel_size': [3, 2], 'strides': [2, 3],"
     "'padding': 'valid', 'use_bias': false}",
     "[3, 3, 2]", 36, 18 * 36, 18 * 36, 72},
    {"[2, 2, 1]", "{'type': 'conv2d', 'filters': 1, 'kernel_size': 5, 'padding': 'same'}",
     "[2, 2, 1]", 26, 4 * 51, 4 * 51, 16},
    {"[8, 8, 3]", AFTER("{'type': 'max_pooling2d'}"), "[4, 4, 3]", 0, 48 * 4, 48 * 8, 192},
    {"[9, 9, 3]",
     AFTER("{'type': 'max_pooling2d', 'pool_size': [3, 2], 'strides': 2, 'padding': 'same'}"),
     "[5, 5, 3]", 0, 75 * 6, 75 * 12, 300},
    {"[9, 9, 3]", AFTER("{'type': 'average_pooling2d', 'pool_size': 2}"), "[4, 4, 3]", 0, 48 * 4,
     48 * 8, 192},
    {"[9, 7, 3]", AFTER("{'type': 'global_max_pooling2d'}"), "[3]", 0, 3 * 63, 3 * 126, 12},
    {"[9, 7, 3]", AFTER("{'type': 'global_average_pooling2d'}"), "[3]", 0, 3 * 63, 3 * 126, 12},
    {"[8, 8, 3]", AFTER("{'type': 'batch_normalization'}"), "[8, 8, 3]", 12, 192 * 8, 192 * 14,
     768},
    {"[8, 8, 3]", AFTER("{'type': 'batch_normalization', 'center': false, 'scale': false}"),
     "[8, 8, 3]", 6, 192 * 8, 192 * 14, 768},
    {"[7]", "{'type': 'embedding', 'input_dim': 100, 'output_dim': 5}", "[7, 5]", 500, 35, 35, 140},
    {"[2, 3]", "{'type': 'embedding', 'input_dim': 10, 'output_dim': 4}", "[2, 3, 4]", 40, 24, 24,
     96},
    {"[4]", DENSE(4) ", " DENSE(4) ", {'type': 'add', 'back': 2}", "[4]", 0, 4, 4, 16},
};

static void every_layer_has_its_sizes_and_costs(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(SIZES); i++) {
        struct model m;
        good(SIZES[i].input, SIZES[i].layers, &m);
        const struct layer *l = &m.layers[m.layer_count - 1];
        print_message("%s -> %s\n", SIZES[i].input, SIZES[i].layers);
        assert_shape(&l->out, SIZES[i].out);
        assert_int_equal(l->parameters, SIZES[i].parameters);
        assert_true(l->forward_flops == SIZES[i].forward);
        assert_true(l->backward_flops == SIZES[i].backward);
        assert_int_equal(l->activation_bytes, SIZES[i].bytes);
        model_done(&m);
    }
}

static void frozen_layers_keep_their_tensors_and_cost_less(void **state)
{
    (void)state;
    struct model m;
    good("[5]",
         "{'type': 'dense', 'units': 3, 'trainable': false}, {'type': 'layer_normalization'},"
         "{'type': 'dense', 'units': 2, 'trainable': false}",
         &m);
    for (int l = 0; l < 3; l += 2) {
        assert_int_equal(m.layers[l].frozen, 1);
        for (int t = 0; t < 2; t++)
            assert_int_equal(m.layers[l].tensors[t].is_fixed, 1);
    }
    assert_int_equal(m.layers[1].tensors[0].is_fixed, 0);
    assert_true(m.layers[0].backward_flops == 0); /* nothing before it learns */
    assert_true(m.layers[2].backward_flops == 2 * 6);
    assert_int_equal(m.layers[0].parameters, 18);
    model_done(&m);
}

static void tensors_have_kerass_names_fans_and_starts(void **state)
{
    (void)state;
    struct model m;
    good("[6, 6, 2]",
         "{'type': 'conv2d', 'filters': 5, 'kernel_size': [3, 4]}, {'type': 'batch_normalization'},"
         "{'type': 'batch_normalization', 'scale': false, 'momentum': 0.5, 'epsilon': 0.25}",
         &m);
    const struct tensor_spec *kernel = &m.layers[0].tensors[0];
    assert_string_equal(kernel->name, "kernel");
    assert_shape(&kernel->shape, "[3, 4, 2, 5]");
    assert_int_equal(kernel->fan_in, 24);
    assert_int_equal(kernel->fan_out, 60);
    assert_int_equal(kernel->is_matrix, 1);
    assert_int_equal(kernel->init, INIT_GLOROT_UNIFORM);
    static const struct {
        const char *name;
        enum initializer init;
        int fixed;
    } want[] = {{"gamma", INIT_ONES, 0},
                {"beta", INIT_ZEROS, 0},
                {"moving_mean", INIT_ZEROS, 1},
                {"moving_variance", INIT_ONES, 1}};
    for (int t = 0; t < 4; t++) {
        assert_string_equal(m.layers[1].tensors[t].name, want[t].name);
        assert_shape(&m.layers[1].tensors[t].shape, "[5]");
        assert_int_equal(m.layers[1].tensors[t].init, want[t].init);
        assert_int_equal(m.layers[1].tensors[t].is_fixed, want[t].fixed);
        assert_int_equal(m.layers[1].tensors[t].is_matrix, 0);
    }
    assert_true(m.layers[1].momentum == 0.99 && m.layers[1].epsilon == 1e-3);
    assert_true(m.layers[2].momentum == 0.5 && m.layers[2].epsilon == 0.25);
    assert_int_equal(m.layers[2].tensor_count, 3);
    assert_string_equal(m.layers[2].tensors[0].name, "beta");
    model_done(&m);
    good("[6]", "{'type': 'embedding', 'input_dim': 9, 'output_dim': 4}", &m);
    assert_string_equal(m.layers[0].tensors[0].name, "embeddings");
    assert_int_equal(m.layers[0].tensors[0].init, INIT_RANDOM_UNIFORM);
    model_done(&m);
}

/* What "same" adds more than evenly lies below and to the right. */
static void same_pads_less_above_than_below(void **state)
{
    (void)state;
    static const struct {
        int in, window, stride, out, before;
    } cases[] = {{8, 3, 1, 8, 1}, {8, 3, 2, 4, 0}, {7, 3, 2, 4, 1}, {8, 2, 1, 8, 0},
                 {8, 4, 1, 8, 1}, {8, 5, 3, 3, 1}, {8, 1, 3, 3, 0}, {3, 7, 2, 2, 3}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model m;
        char input[32], layer[200];
        snprintf(input, sizeof input, "[%d, 8, 1]", cases[i].in);
        snprintf(layer, sizeof layer,
                 "{'type': 'conv2d', 'filters': 1, 'kernel_size': [%d, 1], 'strides': [%d, 1],"
                 "'padding': 'same'}",
                 cases[i].window, cases[i].stride);
        good(input, layer, &m);
        assert_int_equal(m.layers[0].out.size[0], cases[i].out);
        assert_int_equal(m.layers[0].pad_before[0], cases[i].before);
        assert_int_equal(m.layers[0].pad_before[1], 0);
        model_done(&m);
    }
}

static void add_finds_its_layer(void **state)
{
    (void)state;
    static const struct {
        const char *add;
        int back;
    } cases[] = {
        {"'back': 2", 2}, {"'back': 3", 3}, {"'with': 'first'", 3}, {"'with': 'layers.1'", 2}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model m;
        char layers[300];
        snprintf(layers, sizeof layers,
                 "{'type': 'dense', 'units': 4, 'name': 'first'}, " DENSE(4) ", " DENSE(
                     4) ","
                        "{'type': 'add', %s}",
                 cases[i].add);
        good("[4]", layers, &m);
        assert_int_equal(m.layers[3].back, cases[i].back);
        model_done(&m);
    }
}

/* ---- what cannot be ---- */

#define C3    "{'type': 'conv2d', 'filters': 2, 'kernel_size': 3"
#define EMBED "{'type': 'embedding', 'input_dim': 9, 'output_dim': "

static const struct {
    const char *input, *layers, *pointer, *code, *message, *hint;
} WRONG[] = {
    {"[28, 28]", C3 "}", "/m/layers/0", "shape_mismatch",
     "A conv2d layer takes items of [rows, columns, channels], but [28, 28] comes in.",
     "Put {\"type\": \"reshape\", \"target_shape\": [28, 28, 1]} before it."},
    {"[64]", "{'type': 'max_pooling2d'}", "/m/layers/0", "shape_mismatch",
     "A max_pooling2d layer takes items of [rows, columns, channels], but [64] comes in.",
     "Put {\"type\": \"reshape\", \"target_shape\": [8, 8, 1]} before it."},
    {"[10]", "{'type': 'global_average_pooling2d'}", "/m/layers/0", "shape_mismatch",
     "A global_average_pooling2d layer takes items of [rows, columns, channels], but [10] comes "
     "in.",
     "Put {\"type\": \"reshape\", \"target_shape\": [10, 1, 1]} before it."},
    {"[2, 8, 1]", C3 "}", "/m/layers/0/kernel_size", "shape_mismatch",
     "A window of 3 x 3 does not fit into the [2, 8, 1] that comes in.",
     "Write a smaller one, or \"padding\": \"same\"."},
    {"[2, 1, 1]", "{'type': 'average_pooling2d'}", "/m/layers/0/pool_size", "shape_mismatch",
     "A window of 2 x 2 does not fit into the [2, 1, 1] that comes in.",
     "Write a smaller one, or \"padding\": \"same\"."},
    {"[8, 8, 1]", C3 ", 'strides': 0}", "/m/layers/0/strides", "out_of_range",
     "\"strides\" must be from 1 to 134217728, but is 0.",
     "Write how many rows and columns it is."},
    {"[8, 8, 1]", C3 ", 'strides': [1, -2]}", "/m/layers/0/strides/1", "out_of_range",
     "\"strides\" must be from 1 to 134217728, but is -2.",
     "Write how many rows and columns it is."},
    {"[8, 8, 1]", "{'type': 'conv2d', 'filters': 1, 'kernel_size': [3, 3, 3]}",
     "/m/layers/0/kernel_size", "wrong_type",
     "\"kernel_size\" must be a whole number, or a list of two for rows and columns, but is a "
     "list.",
     "For example: \"kernel_size\": 3."},
    {"[8, 8, 1]", "{'type': 'conv2d', 'filters': 1, 'kernel_size': '3'}", "/m/layers/0/kernel_size",
     "wrong_type",
     "\"kernel_size\" must be a whole number, or a list of two for rows and columns, but is the "
     "string \"3\".",
     "Write the number 3, without quotes."},
    {"[8, 8, 1]", "{'type': 'conv2d', 'filters': 1}", "/m/layers/0/kernel_size", "required",
     "\"kernel_size\" is missing: rows and columns that each output sees.",
     "Add, for example, \"kernel_size\": 3."},
    {"[8, 8, 1]", "{'type': 'conv2d', 'units': 1, 'kernel_size': 3}", "/m/layers/0/filters",
     "required", "\"filters\" is missing: how many channels come out.",
     "There is \"units\": write it as \"filters\"."},
    {"[8, 8, 1]", C3 ", 'padding': 'full'}", "/m/layers/0/padding", "unknown_value",
     "\"full\" is not a padding that this version knows.", "This version has valid and same."},
    {"[8, 8, 1]", C3 ", 'data_format': 'channels_first'}", "/m/layers/0/data_format", "unsupported",
     "\"data_format\" can only be \"channels_last\" in this version: items are [rows, columns, "
     "channels].",
     "Write \"data_format\": \"channels_last\", or leave it out."},
    {"[8, 8, 1]", C3 ", 'dilation_rate': 2}", "/m/layers/0/dilation_rate", "unsupported",
     "\"dilation_rate\" can only be 1 in this version: kernels have no holes.",
     "Write \"dilation_rate\": 1, or leave it out."},
    {"[4096, 4096, 4]", "{'type': 'conv2d', 'filters': 9, 'kernel_size': 1}", "/m/layers/0/filters",
     "too_large", "The output [4096, 4096, 9] would have more than 134217728 elements.",
     "Use fewer filters, or larger strides."},
    {"[1, 1, 1024]",
     "{'type': 'conv2d', 'filters': 1024, 'kernel_size': 134217728, 'padding': 'same'}",
     "/m/layers/0/kernel_size", "too_large",
     "1024 filters of 134217728 x 134217728 over 1024 channels have more parameters than the "
     "17179869184 that a model may have.",
     "Use a smaller kernel or fewer filters."},
    {"[4]", "{'type': 'batch_normalization', 'axis': 1}", "/m/layers/0/axis", "unsupported",
     "\"axis\" can only be -1 in this version: it normalises every channel, which is the last "
     "dimension.",
     "Write \"axis\": -1, or leave it out."},
    {"[4]", "{'type': 'batch_normalization', 'momentum': 1.5}", "/m/layers/0/momentum",
     "out_of_range", "\"momentum\" must be a number from 0 to 1, but is 1.5.",
     "The nearest that works is 1."},
    {"[4]", EMBED "3, 'mask_zero': true}", "/m/layers/0/mask_zero", "unsupported",
     "\"mask_zero\" can only be false in this version: every token takes part.",
     "Write \"mask_zero\": false, or leave it out."},
    {"[4]", "{'type': 'embedding', 'input_dim': 20000000, 'output_dim': 3}",
     "/m/layers/0/input_dim", "out_of_range",
     "\"input_dim\" must be a whole number from 1 to 16777216, but is 20000000.",
     "The nearest that works is 16777216."},
    {"[4]", "{'type': 'embedding', 'input_dim': 16000000, 'output_dim': 10000}",
     "/m/layers/0/output_dim", "too_large",
     "This layer would have 160000000000 parameters; a model may have at most 17179869184.",
     "With 16000000 tokens, up to 1073 fit."},
    {"[40000000]", EMBED "4}", "/m/layers/0/output_dim", "too_large",
     "The output [40000000, 4] would have more than 134217728 elements.",
     "Use a smaller output_dim."},
    {"[1, 1, 1, 4]", EMBED "4}", "/m/layers/0", "shape_mismatch",
     "An embedding adds a dimension, but [1, 1, 1, 4] has 4 already, the most there can be.",
     "Put a flatten or reshape layer before it."},
    {"[4]", "{'type': 'rescaling', 'scale': 2}, " EMBED "4}", "/m/layers/1", "invalid",
     "An embedding takes token ids from the data, so only reshape and flatten may stand before "
     "it, but layer 0 is rescaling.",
     "Put the embedding first."},
    {"[4]", DENSE(4) ", {'type': 'add', 'back': 2}", "/m/layers/1", "invalid",
     "An add layer needs two layers before it, but there is 1.",
     "Put it after the layers that it reaches around."},
    {"[4]", DENSE(4) ", " DENSE(4) ", {'type': 'add'}", "/m/layers/2", "required",
     "An add layer says which earlier output it adds, but neither \"back\" nor \"with\" is there.",
     "Add \"with\" and a layer's name, or \"back\" and how many layers before this one it stands."},
    {"[4]", DENSE(4) ", " DENSE(4) ", {'type': 'add', 'back': 2, 'with': 'layers.0'}",
     "/m/layers/2/with", "conflict", "\"back\" and \"with\" both say which output is added.",
     "Leave one of the two out."},
    {"[4]", DENSE(4) ", " DENSE(4) ", {'type': 'add', 'back': 3}", "/m/layers/2/back",
     "out_of_range", "\"back\" is 3, but only 2 layers stand before this one.", "Write 2 to 2."},
    {"[4]", DENSE(4) ", " DENSE(4) ", {'type': 'add', 'with': 'layers.1'}", "/m/layers/2/with",
     "invalid",
     "There is no layer \"layers.1\" among those that end at least two places before this one.",
     "Or write \"back\": 2 to 2, counted from here."},
    {"[4]", DENSE(3) ", " DENSE(4) ", {'type': 'add', 'back': 2}", "/m/layers/2/back",
     "shape_mismatch",
     "[4] comes in, but the layer that is added gives [3]; only equal shapes can be added.",
     "Give the layers between them as many units or filters, strides of 1 and padding \"same\"."},
    {"[4]", "{'type': 'dense', 'units': 2, 'trainable': 'no'}", "/m/layers/0/trainable",
     "wrong_type", "\"trainable\" must be true or false, but is the string \"no\".",
     "For example: \"trainable\": false."},
    {"[4]", "{'type': 'dense', 'units': 2, 'trainable': false}", "/m/layers", "nothing_to_train",
     "No layer of this model has parameters that may change, so there is nothing to train.",
     "Leave \"trainable\": false out of one that has."},
};

static void a_layer_that_cannot_be_is_answered_in_sentences(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(WRONG); i++) {
        struct faults f = {0};
        struct model m = {.layer_count = 77};
        json_auto_t *doc = json(WRONG[i].input, WRONG[i].layers);
        print_message("%s\n", WRONG[i].layers);
        assert_true(model_parse(doc, "/m", &m, &f) < 0);
        assert_string_equal(f.items[0].message, WRONG[i].message);
        assert_string_equal(f.items[0].pointer, WRONG[i].pointer);
        assert_string_equal(f.items[0].code, WRONG[i].code);
        assert_string_equal(f.items[0].hint ? f.items[0].hint : "", WRONG[i].hint);
        assert_int_equal(m.layer_count, 77);
        faults_done(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_has_its_sizes_and_costs),
        cmocka_unit_test(frozen_layers_keep_their_tensors_and_cost_less),
        cmocka_unit_test(tensors_have_kerass_names_fans_and_starts),
        cmocka_unit_test(same_pads_less_above_than_below),
        cmocka_unit_test(add_finds_its_layer),
        cmocka_unit_test(a_layer_that_cannot_be_is_answered_in_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
