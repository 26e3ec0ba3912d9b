/* spec_job.c: documents that are right: the reference runs, the design's example, and what each
 * member becomes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "spec/job.h"

/* The document with single quotes for double ones. */
static json_t *json(const char *text)
{
    char *copy = mem_strdup(text);
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_t *doc;
    struct err e = {0};
    if (job_spec_read(copy, strlen(copy), &doc, &e) < 0)
        fail_msg("%s", e.text);
    free(copy);
    return doc;
}

/* Parses; the counts of faults and warnings must be these. */
static struct job_spec *parse(json_t *doc, size_t fault_count, size_t warning_count)
{
    struct faults f = {0}, w = {0};
    struct job_spec *s = job_spec_parse(doc, 0, &f, &w);
    if (f.total != fault_count || w.total != warning_count) {
        json_t *list = faults_to_json(f.total ? &f : &w);
        char *text = json_dumps(list, JSON_INDENT(1));
        fail_msg("%zu faults, %zu warnings: %s", f.total, w.total, text);
    }
    faults_done(&f);
    faults_done(&w);
    return s;
}

static json_t *reference(const char *name)
{
    char *path = mem_printf("tests/reference/%s/job.json", name);
    struct buf text = BUF_INIT;
    struct err e = {0};
    json_t *doc = NULL;
    if (file_read(path, 1 << 20, &text, &e) < 0 || job_spec_read(text.data, text.len, &doc, &e) < 0)
        fail_msg("%s", e.text);
    buf_done(&text);
    free(path);
    return doc;
}

static void test_reference(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } runs[] = {
        {"digits-mlp-sgd", 64 * 32 + 32 + 32 * 10 + 10},
        {"mnist-mlp-adam", 784 * 128 + 128 + 128 * 10 + 10},
        {"synthetic-seed42", 50 * 64 + 64 + 64 * 10 + 10},
        {"digits-deep-adamw", 14218},
    };
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        json_t *doc = reference(runs[i].name);
        struct job_spec *s = parse(doc, 0, 0);
        assert_non_null(s);
        assert_string_equal(s->name, runs[i].name);
        assert_int_equal(model_parameters(&s->model), runs[i].parameters);
        assert_int_equal(s->fit.shuffle, 0);
        assert_non_null(s->model.weights);
        job_spec_free(s);
        json_decref(doc);
    }
}

static void test_mnist(void **state)
{
    (void)state;
    json_t *doc = reference("mnist-mlp-adam");
    struct job_spec *s = parse(doc, 0, 0);
    assert_int_equal(s->model.input.dims, 2);
    assert_int_equal(s->optimizer.kind, OPTIMIZER_ADAM);
    assert_true(s->optimizer.learning_rate == 0.001);
    assert_true(s->optimizer.beta_1 == 0.9 && s->optimizer.beta_2 == 0.999);
    assert_true(s->optimizer.epsilon == 1e-7);
    assert_int_equal(s->train.format, DATA_IDX);
    assert_string_equal(s->train.images, "mnist10k/train-images-idx3-ubyte.gz");
    assert_int_equal(s->has_validation, 1);
    assert_string_equal(s->validation.labels, "mnist10k/t10k-labels-idx1-ubyte.gz");
    assert_int_equal(s->metrics[METRIC_ACCURACY], 1);
    assert_int_equal(s->metrics[METRIC_MAE], 0);
    job_spec_free(s);
    json_decref(doc);
}

static void test_convolutions_and_batch_normalization(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } runs[] = {{"cancer-batchnorm-binary", 697}, {"digits-conv-nesterov", 1898}};
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        json_t *doc = reference(runs[i].name);
        struct job_spec *s = parse(doc, 0, 0);
        assert_int_equal(model_parameters(&s->model), runs[i].parameters);
        job_spec_free(s);
        json_decref(doc);
    }
}

static const char transformer[] =
    "{'name': 'gpt', 'model': {'input': [32], 'layers': ["
    "{'type': 'token_and_position_embedding', 'vocabulary_size': 256},"
    "{'type': 'transformer_decoder', 'num_heads': 2, 'repeat': 2},"
    "{'type': 'layer_normalization', 'epsilon': 1e-05},"
    "{'type': 'reverse_embedding', 'tied_to': 0}]},"
    "'compile': {'optimizer': {'name': 'adamw', 'learning_rate': 0.003, 'beta_2': 0.95,"
    "  'epsilon': 1e-08, 'weight_decay': 0.1, 'exclude_from_weight_decay': 'vectors',"
    "  'global_clipnorm': 1.0, 'schedule': {'name': 'cosine', 'warmup_steps': 5,"
    "  'decay_steps': 40, 'alpha': 0.1}}, 'loss': 'sparse_categorical_crossentropy'},"
    "'data': {'train': {'format': 'tokens', 'path': 'jargon.txt.gz', 'dtype': 'uint8'}},"
    "'fit': {'batch_size': 8, 'steps': 40}}";

static void test_transformer(void **state)
{
    (void)state;
    json_t *doc = json(transformer);
    struct job_spec *s = parse(doc, 3, 0); /* three layers */
    assert_null(s);
    json_object_set_new(json_object_get(doc, "model"), "layers",
                        json("[{'type': 'layer_normalization', 'epsilon': 1e-05},"
                             "{'type': 'dense', 'units': 256, 'activation': 'softmax'}]"));
    json_object_set_new(json_object_get(doc, "data"), "train",
                        json("{'format': 'csv', 'path': 'x.csv', 'header': false}"));
    s = parse(doc, 0, 0);
    const struct optimizer *o = &s->optimizer;
    assert_int_equal(o->kind, OPTIMIZER_ADAMW);
    assert_true(o->learning_rate == 0.003 && o->beta_2 == 0.95 && o->epsilon == 1e-8);
    assert_true(o->weight_decay == 0.1 && o->global_clipnorm == 1);
    assert_int_equal(o->decay_matrices_only, 1);
    assert_int_equal(o->schedule, SCHEDULE_COSINE);
    assert_int_equal(o->warmup_steps, 5);
    assert_int_equal(o->decay_steps, 40);
    assert_true(o->alpha == 0.1);
    assert_int_equal(s->fit.steps, 40);
    assert_int_equal(s->train.header, CSV_HEADER_NO);
    assert_int_equal(s->train.label_column, -1);
    assert_true(s->model.layers[0].epsilon == 1e-5);
    job_spec_free(s);
    json_decref(doc);
}

/* The example of the design, as it is printed there. */
static const char example[] =
    "{ 'name': 'mnist',"
    "  'model':   { 'input': [784], 'layers': [ {'type': 'dense', 'units': 128, 'activation': "
    "'relu'}, {'type': 'dense', 'units': 10, 'activation': 'softmax'} ] },"
    "  'compile': { 'optimizer': 'adam', 'loss': 'sparse_categorical_crossentropy', 'metrics': "
    "['accuracy'] },"
    "  'data':    { 'train': {'format': 'idx', 'images': '\u2026-images-idx3-ubyte.gz', 'labels': "
    "'\u2026'}, 'validation': {} },"
    "  'fit':     { 'epochs': 10, 'batch_size': 64, 'shuffle': true, 'seed': 42 },"
    "  'resources': { 'devices': 2, 'device': 'gpu' },"
    "  'strategy': 'auto', 'priority': 0, 'time_limit': '2h', 'labels': {'team': 'vision'},"
    "  'checkpoint': {'every': '10m'} }";

static void test_example(void **state)
{
    (void)state;
    json_t *doc = json(example);
    struct job_spec *s = parse(doc, 0, 0);
    assert_int_equal(s->has_validation, 0);
    assert_int_equal(s->fit.epochs, 10);
    assert_int_equal(s->fit.batch_size, 64);
    assert_int_equal(s->fit.shuffle, 1);
    assert_int_equal(s->fit.seed, 42);
    assert_int_equal(s->resources.devices, 2);
    assert_int_equal(s->resources.device, DEVICE_GPU);
    assert_int_equal(s->strategy.kind, STRATEGY_AUTO);
    assert_int_equal(s->time_limit_s, 7200);
    assert_int_equal(s->checkpoint.every_s, 600);
    assert_int_equal(s->label_count, 1);
    assert_string_equal(s->labels[0].key, "team");
    assert_string_equal(s->labels[0].value, "vision");
    assert_string_equal(s->user, "");
    assert_null(s->command);
    job_spec_free(s);
    json_decref(doc);
}

static const char least[] = "{'model': {'input': [4], 'layers': [{'type': 'dense', 'units': 1}]},"
                            "'compile': {'optimizer': 'sgd', 'loss': 'mse'},"
                            "'data': {'train': {'format': 'csv', 'path': 'a/b.csv'}}}";

static void test_defaults(void **state)
{
    (void)state;
    json_t *doc = json(least);
    struct job_spec *s = parse(doc, 0, 0);
    assert_string_equal(s->name, "job");
    assert_int_equal(s->loss, LOSS_MEAN_SQUARED_ERROR);
    assert_true(s->optimizer.learning_rate == 0.01 && s->optimizer.momentum == 0);
    assert_int_equal(s->optimizer.schedule, SCHEDULE_CONSTANT);
    assert_int_equal(s->train.header, CSV_HEADER_AUTO);
    assert_int_equal(s->fit.epochs, 1);
    assert_int_equal(s->fit.steps, 0);
    assert_int_equal(s->fit.batch_size, 32);
    assert_int_equal(s->fit.shuffle, 1);
    assert_int_equal(s->fit.seed, 0);
    assert_int_equal(s->resources.devices, 1);
    assert_int_equal(s->resources.device, DEVICE_ANY);
    assert_int_equal(s->resources.memory, 0);
    assert_int_equal(s->strategy.kind, STRATEGY_AUTO);
    assert_int_equal(s->strategy.schedule, SCHEDULE_1F1B);
    assert_int_equal(s->strategy.zero, -1);
    assert_int_equal(s->strategy.recompute, RECOMPUTE_AUTO);
    assert_int_equal(s->strategy.parallel.reproducible, 0);
    assert_int_equal(s->strategy.parallel.grains, 8);
    assert_int_equal(s->strategy.parallel.sync, SYNC_EVERY_STEP);
    assert_int_equal(s->strategy.parallel.local_steps, 8);
    assert_true(s->strategy.parallel.outer_learning_rate == 1);
    assert_true(s->strategy.parallel.outer_momentum == 0);
    assert_int_equal(s->strategy.parallel.codec, CODEC_NONE);
    assert_true(s->strategy.parallel.top_k == 0.01);
    assert_int_equal(s->precision.weights, STORAGE_FLOAT32);
    assert_int_equal(s->checkpoint.enabled, 1);
    assert_int_equal(s->checkpoint.keep, 2);
    assert_int_equal(s->checkpoint.every_s + s->checkpoint.every_steps, 0);
    assert_int_equal(s->max_restarts, 3);
    assert_int_equal(s->fit.validation_freq, 1);
    assert_int_equal(s->fit.early_stopping.enabled, 0);
    assert_null(s->fit.class_weight);
    assert_int_equal(s->train.limit, 0);
    assert_int_equal(s->train.memory_limit, DATA_MEMORY_LIMIT);
    assert_int_equal(s->train.missing, CSV_MISSING_ERROR);
    assert_int_equal(s->time_limit_s, 0);
    assert_int_equal(s->model.layers[0].use_bias, 1);
    assert_int_equal(s->model.layers[0].activation, ACTIVATION_LINEAR);
    assert_string_equal(s->model.layers[0].name, "layers.0");
    job_spec_free(s);
    json_decref(doc);
}

/* Optimizers by name and as an object start from the same defaults. */
static void test_optimizers(void **state)
{
    (void)state;
    static const char *const forms[] = {"'adamw'", "{'name': 'adamw'}"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        json_t *doc = json(least);
        char *wrapped = mem_printf("[%s]", forms[i]);
        json_t *list = json(wrapped);
        json_object_set(json_object_get(doc, "compile"), "optimizer", json_array_get(list, 0));
        struct job_spec *s = parse(doc, 0, 0);
        assert_int_equal(s->optimizer.kind, OPTIMIZER_ADAMW);
        assert_true(s->optimizer.weight_decay == 0.004 && s->optimizer.learning_rate == 0.001);
        job_spec_free(s);
        json_decref(list);
        json_decref(doc);
        free(wrapped);
    }
}

static struct job_spec *with(const char *member, const char *value, size_t faults, size_t warnings)
{
    char *wrapped = mem_printf("[%s]", value);
    json_t *doc = json(least), *list = json(wrapped);
    json_object_set(doc, member, json_array_get(list, 0));
    struct job_spec *s = parse(doc, faults, warnings);
    json_decref(list);
    json_decref(doc);
    free(wrapped);
    return s;
}

static void test_memory(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes; /* 0: a fault */
    } cases[] = {
        {"{'memory': 1048576}", 1 << 20},
        {"{'memory': '512MiB'}", 512 << 20},
        {"{'memory': '1.5 GiB'}", 3LL << 29},
        {"{'memory': '2GB'}", 2000000000},
        {"{'memory': '512'}", 0},
        {"{'memory': '512 mib'}", 0},
        {"{'memory': '1e30GiB'}", 0},
        {"{'memory': '99999999999TiB'}", 0},
        {"{'memory': -1}", 0},
        {"{'memory': 0.5}", 0},
        {"{'memory': '0x10MiB'}", 0},
        {"{'memory': ''}", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct job_spec *s = with("resources", cases[i].text, cases[i].bytes == 0, 0);
        if (cases[i].bytes)
            assert_int_equal(s->resources.memory, cases[i].bytes);
        job_spec_free(s);
    }
}

static void test_time_limit(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t seconds;
    } cases[] = {{"90", 90},        {"90.0", 90}, {"'1h30m'", 5400}, {"'2d'", 172800},
                 {"0", 0},          {"-5", 0},    {"'0s'", 0},       {"'forever'", 0},
                 {"'9999999h'", 0}, {"1e300", 0}, {"1.5", 0},        {"true", 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct job_spec *s = with("time_limit", cases[i].text, cases[i].seconds == 0, 0);
        if (cases[i].seconds)
            assert_int_equal(s->time_limit_s, cases[i].seconds);
        job_spec_free(s);
    }
}

/* What a strategy becomes. `chunks` and `schedule` are as settled by the rest of the job. */
static void test_strategies(void **state)
{
    (void)state;
    static const char resources[] =
        "{'model': {'input': [4], 'layers': [{'type': 'dense', 'units': 3},"
        "{'type': 'activation', 'activation': 'gelu'}, {'type': 'dense', 'units': 3},"
        "{'type': 'dense', 'units': 3}, {'type': 'dense', 'units': 1}]},"
        "'compile': {'optimizer': 'sgd', 'loss': 'mse'}, 'resources': {'devices': 4},"
        "'data': {'train': {'format': 'csv', 'path': 'a/b.csv'}}, 'strategy': 0}";
    static const struct {
        const char *text;
        int kind; /* -1: a fault */
        size_t warnings;
        int is_mesh, schedule, chunks, zero;
    } cases[] = {
        {"'mirrored'", STRATEGY_MIRRORED, 0, 0, SCHEDULE_1F1B, 0, -1},
        {"'segment_ensemble'", STRATEGY_SEGMENT_ENSEMBLE, 0, 0, SCHEDULE_1F1B, 0, -1},
        {"'pipeline'", STRATEGY_PIPELINE, 0, 0, SCHEDULE_1F1B, 0, -1},
        {"'tensor'", STRATEGY_TENSOR, 0, 0, SCHEDULE_1F1B, 0, -1},
        {"'local_sgd'", STRATEGY_LOCAL_SGD, 0, 0, SCHEDULE_1F1B, 0, -1},
        {"'multi_worker_mirrored'", STRATEGY_MIRRORED, 1, 0, SCHEDULE_1F1B, 0, -1},
        {"{'data': 2, 'pipeline': 2}", STRATEGY_PIPELINE, 0, 1, SCHEDULE_1F1B, 0, -1},
        {"{'data': 2, 'pipeline': 2, 'tensor': 1, 'zero': 0, 'recompute': 'none',"
         " 'reproducible': false, 'schedule': 'gpipe', 'microbatches': 8}",
         STRATEGY_PIPELINE, 0, 1, SCHEDULE_GPIPE, 0, 0},
        {"{'data': 4}", STRATEGY_MIRRORED, 0, 1, SCHEDULE_1F1B, 0, -1},
        {"{'data': 4, 'zero': 3}", STRATEGY_MIRRORED, 0, 1, SCHEDULE_1F1B, 0, 3},
        {"{'data': 2, 'tensor': 2}", STRATEGY_TENSOR, 0, 1, SCHEDULE_1F1B, 0, -1},
        {"{'pipeline': 2, 'tensor': 2}", STRATEGY_PIPELINE, 0, 1, SCHEDULE_1F1B, 0, -1},
        {"{'pipeline': 2, 'data': 2, 'schedule': 'interleaved'}", STRATEGY_PIPELINE, 0, 1,
         SCHEDULE_INTERLEAVED, 2, -1},
        {"{'pipeline': 2, 'data': 2, 'chunks': 2}", STRATEGY_PIPELINE, 0, 1, SCHEDULE_INTERLEAVED,
         2, -1},
        {"{'pipeline': 2, 'data': 2, 'chunks': 3}", -1, 0, 0, 0, 0, 0}, /* 6 stages of 4 layers */
        {"{'data': 4, 'pipeline': 1, 'microbatches': 8}", STRATEGY_MIRRORED, 0, 1, SCHEDULE_1F1B, 0,
         -1},
        {"{'data': 2, 'pipeline': 2, 'microbatches': 64}", STRATEGY_PIPELINE, 1, 1, SCHEDULE_1F1B,
         0, -1},
        {"{'data': 4, 'sync': 'local_sgd', 'local_steps': 3}", STRATEGY_LOCAL_SGD, 0, 1,
         SCHEDULE_1F1B, 0, -1},
        {"{'schedule': 'gpipe'}", STRATEGY_AUTO, 0, 0, SCHEDULE_GPIPE, 0, -1},
        {"{'reproducible': true}", STRATEGY_AUTO, 0, 0, SCHEDULE_1F1B, 0, -1},
        {"{'zero': 1}", STRATEGY_AUTO, 0, 0, SCHEDULE_1F1B, 0, 1},
        {"{'data': 2}", -1, 0, 0, 0, 0, 0},
        {"{'pipeline': 3}", -1, 0, 0, 0, 0, 0},
        {"{}", -1, 0, 0, 0, 0, 0},
        {"{'data': 4, 'zero': 4}", -1, 0, 0, 0, 0, 0},
        {"{'data': 4, 'recompute': 'full'}", -1, 0, 0, 0, 0, 0},
        {"'zero'", -1, 0, 0, 0, 0, 0},
        {"4", -1, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        print_message("%s\n", cases[i].text);
        char *wrapped = mem_printf("[%s]", cases[i].text);
        json_t *doc = json(resources), *list = json(wrapped);
        json_object_set(doc, "strategy", json_array_get(list, 0));
        struct job_spec *s = parse(doc, cases[i].kind < 0, cases[i].warnings);
        if (cases[i].kind >= 0) {
            assert_int_equal(s->strategy.kind, cases[i].kind);
            assert_int_equal(s->strategy.is_mesh, cases[i].is_mesh);
            assert_int_equal(s->strategy.schedule, cases[i].schedule);
            assert_int_equal(s->strategy.chunks, cases[i].chunks);
            assert_int_equal(s->strategy.zero, cases[i].zero);
            assert_int_equal(s->strategy.parallel.sync == SYNC_LOCAL_SGD,
                             cases[i].kind == STRATEGY_LOCAL_SGD);
        }
        job_spec_free(s);
        json_decref(list);
        json_decref(doc);
        free(wrapped);
    }
}

/* Fault counts of a job with these members beside `least`. */
static void test_members(void **state)
{
    (void)state;
    static const struct {
        const char *member, *value;
        size_t faults, warnings;
    } cases[] = {
        {"name", "'A job-1_x.y'", 0, 0},
        {"name", "''", 1, 0},
        {"name", "'a/b'", 1, 0},
        {"name", "'\u00e9'", 1, 0},
        {"user", "'ada@x'", 0, 0},
        {"user", "'a b'", 1, 0},
        {"priority", "-1000", 0, 0},
        {"priority", "-1001", 1, 0},
        {"labels", "{}", 0, 0},
        {"labels", "{'a.b/c_d-1': ''}", 0, 0},
        {"labels", "{'': 'x'}", 1, 0},
        {"labels", "[]", 1, 0},
        {"strategy", "'mirrored'", 0, 1}, /* on one device */
        {"strategy", "'none'", 0, 0},
        {"fit", "{'validation_split': 0}", 0, 0},
        {"fit", "{'validation_split': 0.999}", 0, 0},
        {"fit", "{'validation_split': 1}", 1, 0},
        {"fit", "{'seed': 9007199254740991}", 0, 0},
        {"fit", "{'seed': 9007199254740992}", 1, 0},
        {"fit", "{'steps': 10}", 0, 0},
        {"resources", "{'devices': 1024}", 0, 0},
        {"resources", "{'devices': 1025}", 1, 0},
        {"data", "{'train': {'format': 'csv', 'path': ''}}", 1, 0},
        {"data", "{'train': {'format': 'csv', 'path': 'a..b/..c'}}", 0, 0},
        {"data", "{'train': {'format': 'csv', 'path': 'a/..'}}", 1, 0},
        {"data", "{'train': {'format': 'csv', 'path': '..'}}", 1, 0},
        {"data", "{'train': {'format': 'csv', 'path': 'x', 'header': 'yes'}}", 1, 0},
        {"data", "{'train': {'format': 'csv', 'path': 'x', 'images': 'y'}}", 0, 1},
        {"data", "{'train': {'format': 'idx', 'path': 'x'}}", 2, 1},
        {"data",
         "{'train': {'format': 'synthetic', 'samples': 10, 'input': 4, 'classes': 2,"
         " 'seed': 4294967295}}",
         0, 1}, /* the batch */
        {"data",
         "{'train': {'format': 'synthetic', 'samples': 100, 'input': 4, 'classes': 2,"
         " 'seed': 4294967296}}",
         1, 0},
        {"compile", "{'optimizer': 'sgd', 'loss': 'mse', 'metrics': ['mae']}", 0, 0},
        {"compile", "{'optimizer': 'sgd', 'loss': 'mse', 'metrics': ['accuracy']}", 1, 0},
        {"compile", "{'optimizer': 'sgd', 'loss': 'mse', 'metrics': [1]}", 1, 0},
        {"compile",
         "{'optimizer': {'name': 'sgd', 'momentum': 0.9, 'nesterov': true},"
         " 'loss': 'mse'}",
         0, 0},
        {"compile", "{}", 2, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        print_message("%s: %s\n", cases[i].member, cases[i].value);
        job_spec_free(with(cases[i].member, cases[i].value, cases[i].faults, cases[i].warnings));
    }
}

static void test_long_path(void **state)
{
    (void)state;
    for (size_t n = 4096; n <= 4097; n++) {
        json_t *doc = json(least);
        char *path = mem_alloc(n + 1);
        memset(path, 'a', n);
        path[n] = '\0';
        json_t *train = json_object_get(json_object_get(doc, "data"), "train");
        json_object_set_new(train, "path", json_string(path));
        job_spec_free(parse(doc, n > 4096, 0));
        json_object_set_new(train, "path", json_stringn("a\0b", 3));
        job_spec_free(parse(doc, 1, 0));
        free(path);
        json_decref(doc);
    }
}

static void test_a_long_command_is_told_its_length(void **state)
{
    (void)state;
    json_auto_t *list = json_array();
    for (int i = 0; i < 1025; i++)
        json_array_append_new(list, json_string("a"));
    json_auto_t *doc = json_pack("{s:O}", "command", list);
    struct faults faults = {0}, warnings = {0};
    assert_null(job_spec_parse(doc, 0, &faults, &warnings));
    assert_string_equal(faults.items[0].message,
                        "\"command\" may have at most 1024 strings, but has 1025.");
    faults_done(&faults);
    faults_done(&warnings);
}

static void test_command(void **state)
{
    (void)state;
    json_t *doc = json("{'command': ['python3', 'train.py', ''], 'resources': {'devices': 2}}");
    struct job_spec *s = parse(doc, 0, 0);
    assert_string_equal(s->command[0], "python3");
    assert_string_equal(s->command[1], "train.py");
    assert_string_equal(s->command[2], "");
    assert_null(s->command[3]);
    assert_int_equal(s->model.layer_count, 0);
    job_spec_free(s);
    json_decref(doc);
    static const char *const wrong[] = {"{'command': []}", "{'command': 'python3'}",
                                        "{'command': ['']}", "{'command': [1, 'a']}",
                                        "{'command': ['a'], 'data': 3}"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        doc = json(wrong[i]);
        assert_null(parse(doc, 1, 0));
        json_decref(doc);
    }
}

/* What was given to the lists before stays there and does not count. */
static void test_lists_kept(void **state)
{
    (void)state;
    struct faults f = {0}, w = {0};
    faults_add(&f, "/else", "x", NULL, "A fault of another document.");
    json_t *doc = json(least);
    struct job_spec *s = job_spec_parse(doc, 0, &f, &w);
    assert_non_null(s);
    assert_int_equal(f.total, 1);
    job_spec_free(s);
    faults_done(&f);
    json_decref(doc);
    job_spec_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_mnist),
        cmocka_unit_test(test_convolutions_and_batch_normalization),
        cmocka_unit_test(test_transformer),
        cmocka_unit_test(test_example),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_time_limit),
        cmocka_unit_test(test_strategies),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_long_path),
        cmocka_unit_test(test_a_long_command_is_told_its_length),
        cmocka_unit_test(test_command),
        cmocka_unit_test(test_lists_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
