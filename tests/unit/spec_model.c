/* spec_model.c: shapes, tensors, parameters and costs of layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "spec/model.h"
#include "spec/names.h"

static json_t *json(const char *text)
{
    char *copy = mem_strdup(text);
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_t *doc = json_loads(copy, 0, NULL);
    assert_non_null(doc);
    free(copy);
    return doc;
}

static int parse(const char *text, struct model *ret, struct faults *f)
{
    json_t *doc = json(text);
    int r = model_parse(doc, "/m", ret, f);
    json_decref(doc);
    return r;
}

static void good(const char *text, struct model *ret)
{
    struct faults f = {0};
    if (parse(text, ret, &f) < 0)
        fail_msg("%s: %s", f.items[0].pointer, f.items[0].message);
}

static void assert_shape(const struct shape *s, const char *want)
{
    char text[128];
    assert_string_equal(shape_format(s, text), want);
}

static void test_shapes(void **state)
{
    (void)state;
    struct model m;
    good("{'input': [28, 28], 'layers': [{'type': 'rescaling', 'scale': 0.5, 'offset': -1},"
         "{'type': 'flatten'}, {'type': 'reshape', 'target_shape': [-1, 49]},"
         "{'type': 'dense', 'units': 3, 'use_bias': false}, {'type': 'dropout', 'rate': 0.25},"
         "{'type': 'layer_normalization'}, {'type': 'activation', 'activation': 'swish'},"
         "{'type': 'flatten', 'name': 'end'}]}",
         &m);
    assert_int_equal(m.layer_count, 8);
    assert_true(m.layers[0].scale == 0.5 && m.layers[0].offset == -1);
    assert_shape(&m.layers[0].out, "[28, 28]");
    assert_shape(&m.layers[1].out, "[784]");
    assert_shape(&m.layers[2].out, "[16, 49]");
    assert_shape(&m.layers[3].in, "[16, 49]");
    assert_shape(&m.layers[3].out, "[16, 3]");
    assert_int_equal(m.layers[3].parameters, 147);
    assert_int_equal(m.layers[3].tensor_count, 1);
    assert_true(m.layers[4].rate == 0.25);
    assert_int_equal(m.layers[5].parameters, 6);
    assert_true(m.layers[5].epsilon == 1e-3);
    assert_int_equal(m.layers[6].activation, ACTIVATION_SILU);
    assert_shape(&m.layers[7].out, "[48]");
    assert_string_equal(m.layers[6].name, "layers.6");
    assert_string_equal(m.layers[7].name, "end");
    assert_int_equal(model_parameters(&m), 153);
    model_done(&m);
    model_done(&m); /* again: nothing left */
}

static void test_tensors(void **state)
{
    (void)state;
    struct model m;
    good("{'input': [5], 'layers': [{'type': 'dense', 'units': 7, 'kernel_initializer':"
         "'he_normal', 'bias_initializer': 'ones'}, {'type': 'layer_normalization'}]}",
         &m);
    const struct tensor_spec *kernel = &m.layers[0].tensors[0], *bias = &m.layers[0].tensors[1];
    assert_string_equal(kernel->name, "kernel");
    assert_shape(&kernel->shape, "[5, 7]");
    assert_int_equal(kernel->init, INIT_HE_NORMAL);
    assert_int_equal(kernel->is_matrix, 1);
    assert_int_equal(kernel->fan_in, 5);
    assert_int_equal(kernel->fan_out, 7);
    assert_string_equal(bias->name, "bias");
    assert_shape(&bias->shape, "[7]");
    assert_int_equal(bias->init, INIT_ONES);
    assert_int_equal(bias->is_matrix, 0);
    const struct tensor_spec *gamma = &m.layers[1].tensors[0], *beta = &m.layers[1].tensors[1];
    assert_string_equal(gamma->name, "gamma");
    assert_int_equal(gamma->init, INIT_ONES);
    assert_string_equal(beta->name, "beta");
    assert_int_equal(beta->init, INIT_ZEROS);
    assert_shape(&beta->shape, "[7]");
    model_done(&m);
}

/* Products are exact: 2 FLOPs for a multiply-add; the first layer that learns needs no gradient of
 * its input. */
static void test_costs(void **state)
{
    (void)state;
    struct model m;
    good("{'input': [4, 10], 'layers': [{'type': 'dense', 'units': 6, 'use_bias': false},"
         "{'type': 'flatten'}, {'type': 'dense', 'units': 3}]}",
         &m);
    assert_true(m.layers[0].forward_flops == 2 * 4 * 10 * 6);
    assert_true(m.layers[0].backward_flops == 2 * 4 * 10 * 6);
    assert_int_equal(m.layers[0].activation_bytes, 4 * 6 * 4);
    assert_true(m.layers[1].forward_flops == 0 && m.layers[1].backward_flops == 0);
    assert_int_equal(m.layers[1].activation_bytes, 0);
    assert_true(m.layers[2].forward_flops == 2 * 24 * 3 + 3);
    assert_true(m.layers[2].backward_flops == 2 * (2 * 24 * 3) + 3);
    assert_true(model_forward_flops(&m) == 480 + 147);
    model_done(&m);
}

/* A derivative that needs what went in keeps it too. */
static void test_kept(void **state)
{
    (void)state;
    struct model m;
    good("{'input': [8], 'layers': [{'type': 'dense', 'units': 8, 'activation': 'relu'},"
         "{'type': 'dense', 'units': 8, 'activation': 'gelu'}]}",
         &m);
    assert_int_equal(m.layers[0].activation_bytes, 32);
    assert_int_equal(m.layers[1].activation_bytes, 64);
    assert_true(m.layers[1].forward_flops > m.layers[0].forward_flops);
    model_done(&m);
}

static void test_every_name(void **state)
{
    (void)state;
    for (int a = 0; a < ACTIVATION__MAX; a++) {
        char *text = mem_printf("{'input': [2], 'layers': [{'type': 'dense', 'units': 2},"
                                "{'type': 'activation', 'activation': '%s'}]}",
                                activation_name((enum activation)a));
        struct model m;
        good(text, &m);
        assert_int_equal(m.layers[1].activation, a);
        model_done(&m);
        free(text);
    }
    for (int i = 0; i < INITIALIZER__MAX; i++) {
        char *text = mem_printf("{'input': [2], 'layers': [{'type': 'dense', 'units': 2,"
                                "'kernel_initializer': '%s'}]}",
                                initializer_name((enum initializer)i));
        struct model m;
        good(text, &m);
        assert_int_equal(m.layers[0].tensors[0].init, i);
        model_done(&m);
        free(text);
    }
    for (int t = 0; t < LAYER_TYPE__MAX; t++)
        assert_int_equal(words_find(&layer_type_words, layer_type_name((enum layer_type)t))->value,
                         t);
}

static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *pointer, *code;
    } cases[] = {
        {"[]", "/m", "wrong_type"},
        {"{'layers': [{'type': 'dense', 'units': 1}]}", "/m/input", "required"},
        {"{'input': [2]}", "/m/layers", "required"},
        {"{'input': [2], 'layers': []}", "/m/layers", "wrong_type"},
        {"{'input': [2], 'layers': {}}", "/m/layers", "wrong_type"},
        {"{'input': [2], 'layers': [3]}", "/m/layers/0", "wrong_type"},
        {"{'input': [2], 'layers': [{}]}", "/m/layers/0/type", "required"},
        {"{'input': [2], 'layers': [{'type': 3}]}", "/m/layers/0/type", "wrong_type"},
        {"{'input': [], 'layers': [{'type': 'dense', 'units': 1}]}", "/m/input", "wrong_type"},
        {"{'input': [1,1,1,1,1], 'layers': [{'type': 'dense', 'units': 1}]}", "/m/input",
         "wrong_type"},
        {"{'input': [0], 'layers': [{'type': 'dense', 'units': 1}]}", "/m/input/0", "out_of_range"},
        {"{'input': [2, -1], 'layers': [{'type': 'dense', 'units': 1}]}", "/m/input/1",
         "out_of_range"},
        {"{'input': [100000, 100000], 'layers': [{'type': 'dense', 'units': 1}]}", "/m/input",
         "too_large"},
        {"{'input': [2], 'layers': [{'type': 'dense', 'units': 0}]}", "/m/layers/0/units",
         "out_of_range"},
        {"{'input': [134217728], 'layers': [{'type': 'dense', 'units': 134217728}]}",
         "/m/layers/0/units", "too_large"},
        {"{'input': [1000, 1000], 'layers': [{'type': 'dense', 'units': 1000000}]}",
         "/m/layers/0/units", "too_large"},
        {"{'input': [4], 'layers': [{'type': 'reshape', 'target_shape': [-1, -1]}]}",
         "/m/layers/0/target_shape/1", "out_of_range"},
        {"{'input': [4], 'layers': [{'type': 'reshape', 'target_shape': [2, 3]}]}",
         "/m/layers/0/target_shape", "shape_mismatch"},
        {"{'input': [4], 'layers': [{'type': 'reshape', 'target_shape': [3, -1]}]}",
         "/m/layers/0/target_shape", "shape_mismatch"},
        {"{'input': [4], 'layers': [{'type': 'reshape', 'target_shape': [134217728, 134217728]}]}",
         "/m/layers/0/target_shape", "too_large"},
        {"{'input': [4], 'layers': [{'type': 'dropout', 'rate': 1}]}", "/m/layers/0/rate",
         "out_of_range"},
        {"{'input': [4], 'layers': [{'type': 'dense', 'units': 2, 'name': 'a b'}]}",
         "/m/layers/0/name", "invalid"},
        {"{'input': [4], 'layers': [{'type': 'dense', 'units': 2, 'name': 'layers.1'},"
         "{'type': 'dense', 'units': 2}]}",
         "/m/layers/1/name", "duplicate"},
        {"{'input': [4], 'layers': [{'type': 'layer_normalization', 'axis': 1}]}",
         "/m/layers/0/axis", "unsupported"},
        {"{'input': [4], 'layers': [{'type': 'layer_normalization', 'epsilon': 0}]}",
         "/m/layers/0/epsilon", "out_of_range"},
        {"{'input': [4], 'layers': [{'type': 'dense', 'units': 2, 'rate': 0.1}]}",
         "/m/layers/0/rate", "unknown_field"},
        {"{'input': [4], 'layers': [{'type': 'flatten'}]}", "/m/layers", "nothing_to_train"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct faults f = {0};
        struct model m = {.layer_count = 77}; /* left as it is */
        print_message("%s\n", cases[i].text);
        assert_true(parse(cases[i].text, &m, &f) < 0);
        assert_int_equal(m.layer_count, 77);
        assert_string_equal(f.items[0].pointer, cases[i].pointer);
        assert_string_equal(f.items[0].code, cases[i].code);
        faults_done(&f);
    }
}

/* A faulty layer does not hide the faults of those after it. */
static void test_all_faults(void **state)
{
    (void)state;
    struct faults f = {0};
    struct model m;
    assert_true(parse("{'input': 'x', 'layers': [{'type': 'dense', 'units': '3'},"
                      "{'type': 'what'}, {'type': 'dropout', 'rate': 7}]}",
                      &m, &f) < 0);
    assert_int_equal(f.total, 4);
    assert_string_equal(f.items[3].pointer, "/m/layers/2/rate");
    faults_done(&f);
}

/* Many layers, each within the limit of parameters, over it together: counted without overflow. */
static void test_total_parameters(void **state)
{
    (void)state;
    json_t *doc = json("{'input': [100000]}"), *layers = json_array();
    for (int i = 0; i < MODEL_MAX_LAYERS; i++)
        json_array_append_new(layers, json_pack("{s:s, s:i}", "type", "dense", "units", 100000));
    json_object_set_new(doc, "layers", layers);
    struct faults f = {0};
    struct model m;
    assert_true(model_parse(doc, "/m", &m, &f) < 0);
    assert_int_equal(f.total, 1);
    assert_string_equal(f.items[0].code, "too_large");
    json_array_append_new(layers, json_pack("{s:s}", "type", "flatten"));
    faults_done(&f);
    assert_true(model_parse(doc, "/m", &m, &f) < 0);
    assert_non_null(strstr(f.items[0].message, "1025"));
    faults_done(&f);
    json_decref(doc);
}

static void test_nearest(void **state)
{
    (void)state;
    static const struct {
        const char *given, *near;
    } cases[] = {{"relluu", "relu"},          {"RELU", "relu"},      {"leaky-relu", "leaky_relu"},
                 {"LeakyReLU", "leaky_relu"}, {"sigmod", "sigmoid"}, {"sofmtax", "softmax"},
                 {"tanhh", "tanh"},           {"soft", "softmax"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct word *w = words_nearest(&activation_words, cases[i].given);
        assert_non_null(w);
        if (strcmp(cases[i].given, "soft") != 0) /* softmax or softplus */
            assert_string_equal(w->name, cases[i].near);
    }
    assert_null(words_nearest(&activation_words, "conv2d"));
    assert_null(words_nearest(&activation_words, ""));
    assert_null(words_nearest(&activation_words, "_"));
    char longest[4000];
    memset(longest, 'r', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_null(words_nearest(&activation_words, longest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_costs),      cmocka_unit_test(test_kept),
        cmocka_unit_test(test_every_name), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_all_faults), cmocka_unit_test(test_total_parameters),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
