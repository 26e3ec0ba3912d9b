/* spec_keras.c: models as Keras writes them: golden files of both forms against the same model in
 * our own words, and what is refused, by its path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "spec/job.h"
#include "spec/keras.h"

static json_t *load(const char *name)
{
    char path[128];
    struct buf text = BUF_INIT;
    struct err e;
    json_t *doc = NULL;
    snprintf(path, sizeof path, "tests/golden/%s.json", name);
    assert_int_equal(file_read(path, 1 << 20, &text, &e), 0);
    assert_int_equal(job_spec_read(text.data, text.len, &doc, &e), 0);
    buf_done(&text);
    return doc;
}

static void print_faults(const struct faults *f)
{
    for (size_t i = 0; i < f->count; i++)
        print_error("%s: %s\n", f->items[i].pointer, f->items[i].message);
}

static void assert_same_shape(const struct shape *a, const struct shape *b)
{
    assert_int_equal(a->dims, b->dims);
    assert_memory_equal(a->size, b->size, (size_t)a->dims * sizeof a->size[0]);
}

static void assert_same_layer(const struct layer *a, const struct layer *b)
{
    assert_int_equal(a->type, b->type);
    assert_string_equal(a->name, b->name);
    assert_same_shape(&a->in, &b->in);
    assert_same_shape(&a->out, &b->out);
    assert_int_equal(a->activation, b->activation);
    assert_int_equal(a->use_bias, b->use_bias);
    assert_true(a->scale == b->scale && a->offset == b->offset && a->rate == b->rate);
    assert_true(a->epsilon == b->epsilon && a->momentum == b->momentum);
    assert_int_equal(a->same, b->same);
    assert_memory_equal(a->strides, b->strides, sizeof a->strides);
    assert_memory_equal(a->window, b->window, sizeof a->window);
    assert_int_equal(a->frozen, b->frozen);
    assert_int_equal(a->tensor_count, b->tensor_count);
    for (int t = 0; t < a->tensor_count; t++) {
        assert_string_equal(a->tensors[t].name, b->tensors[t].name);
        assert_int_equal(a->tensors[t].init, b->tensors[t].init);
        assert_int_equal(a->tensors[t].is_fixed, b->tensors[t].is_fixed);
    }
}

static void assert_same_model(const char *keras, const char *own)
{
    struct faults faults = {0};
    struct model a, b;
    json_t *x = load(keras), *y = load(own);
    int r = model_parse(x, "/model", &a, &faults);
    print_faults(&faults);
    assert_int_equal(r, 0);
    assert_int_equal(faults.total, 0);
    assert_int_equal(model_parse(y, "/model", &b, &faults), 0);
    assert_same_shape(&a.input, &b.input);
    assert_int_equal(a.layer_count, b.layer_count);
    for (int i = 0; i < a.layer_count; i++)
        assert_same_layer(&a.layers[i], &b.layers[i]);
    model_done(&a);
    model_done(&b);
    faults_done(&faults);
    json_decref(x);
    json_decref(y);
}

static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *keras, *own;
    } pairs[] = {{"keras3-mlp", "own-mlp"},
                 {"keras2-mlp", "own-mlp"},
                 {"keras22-mlp", "own-mlp"},
                 {"keras3-conv", "own-conv"},
                 {"keras2-conv", "own-conv"}};
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        print_message("%s\n", pairs[i].keras);
        assert_same_model(pairs[i].keras, pairs[i].own);
    }
}

static const char job_rest[] =
    "{\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 64, \"input\": 784, "
    "\"classes\": 10}}}";

/* The job of a model; `model` is taken. */
static struct job_spec *job_of(json_t *take_model, const char *compile, struct faults *f,
                               struct faults *w)
{
    json_auto_t *doc = json_loads(job_rest, 0, NULL);
    json_object_set_new(doc, "model", take_model);
    if (compile)
        json_object_set_new(doc, "compile", json_loads(compile, 0, NULL));
    return job_spec_parse(doc, 0, f, w);
}

static void assert_compiled(struct job_spec *s, struct faults *f)
{
    print_faults(f);
    assert_non_null(s);
    assert_int_equal(s->optimizer.kind, OPTIMIZER_ADAM);
    assert_float_equal(s->optimizer.learning_rate, 0.001, 1e-9);
    assert_true(s->optimizer.global_clipnorm == 1.0);
    assert_int_equal(s->loss, LOSS_SPARSE_CATEGORICAL_CROSSENTROPY);
    assert_int_equal(s->metrics[METRIC_ACCURACY], 1);
    job_spec_free(s);
}

static void test_compile(void **state)
{
    (void)state;
    struct faults f = {0}, w = {0};
    assert_compiled(job_of(load("keras3-mlp"), NULL, &f, &w), &f);
    assert_int_equal(w.total, 0);
    /* to_json() gives text, which may be put in as it is */
    json_auto_t *model = load("keras3-mlp");
    char *text = json_dumps(model, 0);
    assert_compiled(job_of(json_string(text), NULL, &f, &w), &f);
    free(text);
    /* the job's own compile goes first, and it is said */
    struct job_spec *s =
        job_of(load("keras3-mlp"),
               "{\"optimizer\": \"sgd\", \"loss\": \"categorical_crossentropy\"}", &f, &w);
    assert_non_null(s);
    assert_int_equal(s->optimizer.kind, OPTIMIZER_SGD);
    assert_true(w.total >= 1);
    assert_string_equal(w.items[0].pointer, "/model/compile_config");
    job_spec_free(s);
    faults_done(&f);
    faults_done(&w);
}

/* What is none of a list is no reason to compute no metric. */
static void test_metrics_by_output(void **state)
{
    (void)state;
    struct faults f = {0}, w = {0};
    json_t *model = load("keras3-mlp");
    json_object_set_new(json_object_get(model, "compile_config"), "metrics",
                        json_pack("{s:[s]}", "dense", "accuracy"));
    assert_null(job_of(model, NULL, &f, &w));
    assert_int_equal(f.total, 1);
    assert_string_equal(f.items[0].pointer, "/model/compile_config/metrics");
    assert_string_equal(f.items[0].code, "wrong_type");
    faults_done(&f);
    faults_done(&w);
}

/* A change of the golden file and what is said of it. */
static const struct wrong {
    const char *layer; /* index in config.layers, or NULL: at the top */
    const char *key;   /* in the layer's config (or in the model) */
    const char *value; /* JSON */
    const char *pointer, *code;
    int warns;
} wrongs[] = {
    {"1", "units", "\"128\"", "/model/config/layers/1/config/units", "wrong_type", 0},
    {"1", "units", "0", "/model/config/layers/1/config/units", "out_of_range", 0},
    {"1", "kernel_regularizer", "{\"class_name\": \"L2\", \"config\": {\"l2\": 0.01}}",
     "/model/config/layers/1/config/kernel_regularizer", "unsupported", 0},
    {"1", "lora_rank", "4", "/model/config/layers/1/config/lora_rank", "unsupported", 0},
    {"1", "no_such", "1", "/model/config/layers/1/config/no_such", "unsupported", 0},
    {"1", "dtype", "\"float16\"", "/model/config/layers/1/config/dtype", "unsupported", 0},
    {"1", "activation", "\"mish\"", "/model/config/layers/1/config/activation", "unknown_value", 0},
    {"1", "kernel_initializer", "{\"class_name\": \"Orthogonal\", \"config\": {\"gain\": 1.0}}",
     "/model/config/layers/1/config/kernel_initializer/class_name", "unknown_value", 0},
    {"1", "kernel_initializer",
     "{\"class_name\": \"RandomUniform\", \"config\": {\"minval\": -1, \"maxval\": 0.05}}",
     "/model/config/layers/1/config/kernel_initializer/config/minval", "unsupported", 0},
    {"1", "kernel_initializer", "{\"class_name\": \"GlorotUniform\", \"config\": {\"seed\": 7}}",
     "/model/config/layers/1/config/kernel_initializer/config/seed", "no_effect", 1},
    {"2", "seed", "3", "/model/config/layers/2/config/seed", "no_effect", 1},
    {"2", "rate", "1.5", "/model/config/layers/2/config/rate", "out_of_range", 0},
    {"3", "name", "\"hidden\"", "/model/config/layers/3/config/name", "duplicate", 0},
    {"0", "sparse", "true", "/model/config/layers/0/config/sparse", "unsupported", 0},
    {"0", "batch_shape", "[32, 784]", "/model/config/layers/0/config/batch_shape", "unsupported",
     0},
    {"0", "batch_shape", "[null, -3]", "/model/config/layers/0/config/batch_shape/1",
     "out_of_range", 0},
    {NULL, "class_name", "\"Functional\"", "/model/class_name", "unsupported", 0},
    {NULL, "surprise", "1", "/model/surprise", "unsupported", 0},
};

static void apply(json_t *model, const struct wrong *c)
{
    json_t *to = model;
    if (c->layer)
        to = json_object_get(
            json_array_get(json_object_get(json_object_get(model, "config"), "layers"),
                           (size_t)atoi(c->layer)),
            "config");
    json_object_set_new(to, c->key, json_loads(c->value, JSON_DECODE_ANY, NULL));
}

static void test_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        struct faults f = {0}, w = {0};
        json_t *model = load("keras3-mlp");
        apply(model, &wrongs[i]);
        print_message("%s\n", wrongs[i].pointer);
        struct job_spec *s = job_of(model, NULL, &f, &w);
        struct faults *said = wrongs[i].warns ? &w : &f;
        assert_int_equal(s != NULL, wrongs[i].warns);
        print_faults(said);
        assert_int_equal(said->total, 1);
        assert_string_equal(said->items[0].pointer, wrongs[i].pointer);
        assert_string_equal(said->items[0].code, wrongs[i].code);
        job_spec_free(s);
        faults_done(&f);
        faults_done(&w);
    }
}

/* Whole layers in place of the dropout. */
static const struct {
    const char *layer, *pointer, *code;
} strange[] = {
    {"{\"class_name\": \"LSTM\", \"config\": {\"units\": 4}}", "/model/config/layers/2/class_name",
     "unknown_value"},
    {"{\"class_name\": \"Dens\", \"config\": {\"units\": 4}}", "/model/config/layers/2/class_name",
     "unknown_value"},
    {"{\"class_name\": \"LeakyReLU\", \"config\": {\"negative_slope\": 0.3}}",
     "/model/config/layers/2/config/negative_slope", "unsupported"},
    {"{\"class_name\": \"Dense\", \"config\": {\"output_dim\": 5, \"init\": \"uniform\"}}",
     "/model/config/layers/2/config", "unsupported"},
    {"{\"class_name\": \"Dense\", \"config\": {\"units\": 5}, \"registered_name\": \"Mine>Dense\"}",
     "/model/config/layers/2/registered_name", "unsupported"},
    {"{\"class_name\": \"Dense\", \"config\": {\"units\": 5}, \"inbound_nodes\": []}",
     "/model/config/layers/2/inbound_nodes", "unsupported"},
    {"{\"class_name\": \"LayerNormalization\", \"config\": {\"axis\": [2]}}",
     "/model/config/layers/2/config/axis", "unsupported"},
    {"{\"class_name\": \"Dense\"}", "/model/config/layers/2", "wrong_type"},
    {"17", "/model/config/layers/2", "wrong_type"},
    {"{\"class_name\": \"Sequential\", \"config\": {\"name\": \"s\", \"layers\": [{\"class_name\": "
     "\"Nope\", \"config\": {}}]}}",
     "/model/config/layers/2/config/layers/0/class_name", "unknown_value"},
};

static void test_strange(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(strange); i++) {
        struct faults f = {0}, w = {0};
        json_t *model = load("keras3-mlp");
        json_t *list = json_object_get(json_object_get(model, "config"), "layers");
        json_array_set_new(list, 2, json_loads(strange[i].layer, JSON_DECODE_ANY, NULL));
        print_message("%s\n", strange[i].layer);
        assert_null(job_of(model, NULL, &f, &w));
        print_faults(&f);
        assert_int_equal(f.total, 1);
        assert_string_equal(f.items[0].pointer, strange[i].pointer);
        assert_string_equal(f.items[0].code, strange[i].code);
        if (strcmp(strange[i].code, "unknown_value") == 0)
            assert_non_null(strstr(f.items[0].hint, "Dense, Conv2D, ")); /* each layer there is */
        faults_done(&f);
        faults_done(&w);
    }
}

/* Optimizers and losses of compile_config: what they become, or the path of the fault. */
static const struct {
    const char *optimizer, *loss;
    enum optimizer_kind kind;
    const char *pointer;
} compiles[] = {
    {"\"adam\"", "\"sparse_categorical_crossentropy\"", OPTIMIZER_ADAM, NULL},
    {"{\"class_name\": \"SGD\", \"config\": {\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true}}",
     "{\"class_name\": \"SparseCategoricalCrossentropy\", \"config\": {\"from_logits\": false}}",
     OPTIMIZER_SGD, NULL},
    {"{\"class_name\": \"Adam\", \"config\": {\"weight_decay\": 0.01}}",
     "{\"class_name\": \"function\", \"config\": \"sparse_categorical_crossentropy\"}",
     OPTIMIZER_ADAMW, NULL},
    {"{\"class_name\": \"Adam\", \"config\": {\"learning_rate\": {\"class_name\": \"CosineDecay\", "
     "\"config\": {\"initial_learning_rate\": 0.1, \"decay_steps\": 50, \"alpha\": 0.1}}}}",
     "\"sparse_categorical_crossentropy\"", OPTIMIZER_ADAM, NULL},
    {"{\"class_name\": \"Adam\", \"config\": {\"amsgrad\": true}}",
     "\"sparse_categorical_crossentropy\"", 0, "/model/compile_config/optimizer/config/amsgrad"},
    {"{\"class_name\": \"Lion\", \"config\": {}}", "\"sparse_categorical_crossentropy\"", 0,
     "/model/compile_config/optimizer/class_name"},
    {"\"adam\"",
     "{\"class_name\": \"SparseCategoricalCrossentropy\", \"config\": {\"from_logits\": true}}", 0,
     "/model/compile_config/loss/config/from_logits"},
    {"{\"class_name\": \"Adam\", \"config\": {\"clipvalue\": 0.5}}",
     "\"sparse_categorical_crossentropy\"", 0, "/model/compile_config/optimizer/config/clipvalue"},
};

static void test_compile_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(compiles); i++) {
        struct faults f = {0}, w = {0};
        json_t *model = load("keras3-mlp");
        json_t *c = json_object_get(model, "compile_config");
        json_object_set_new(c, "optimizer",
                            json_loads(compiles[i].optimizer, JSON_DECODE_ANY, NULL));
        json_object_set_new(c, "loss", json_loads(compiles[i].loss, JSON_DECODE_ANY, NULL));
        print_message("%s\n", compiles[i].optimizer);
        struct job_spec *s = job_of(model, NULL, &f, &w);
        print_faults(&f);
        assert_int_equal(s == NULL, compiles[i].pointer != NULL);
        if (s)
            assert_int_equal(s->optimizer.kind, compiles[i].kind);
        else
            assert_string_equal(f.items[0].pointer, compiles[i].pointer);
        job_spec_free(s);
        faults_done(&f);
        faults_done(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_compile),
        cmocka_unit_test(test_metrics_by_output),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_strange),
        cmocka_unit_test(test_compile_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
