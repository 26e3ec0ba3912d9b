/* spec_wrong.c: wrong documents and their answers, but for strategies (spec_strategy.c) and for
 * what says how a model is fitted (spec_fit.c). */
#include "tests/unit/spec_answers.h"

static const char good[] =
    "{\"name\": \"t\", \"model\": {\"input\": [64], \"layers\": ["
    "{\"type\": \"dense\", \"units\": 32, \"activation\": \"relu\"},"
    "{\"type\": \"dense\", \"units\": 10, \"activation\": \"softmax\"}]},"
    "\"compile\": {\"optimizer\": {\"name\": \"adam\"},"
    " \"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"
    "\"data\": {\"train\": {\"format\": \"csv\", \"path\": \"digits.csv.gz\"}},"
    "\"fit\": {\"epochs\": 2, \"batch_size\": 64}, \"resources\": {\"devices\": 2},"
    "\"strategy\": \"mirrored\"}";

#define ALL_LAYERS                                                                                 \
    "This version has dense, flatten, reshape, rescaling, dropout, activation, "                   \
    "layer_normalization, conv2d, max_pooling2d, average_pooling2d, global_max_pooling2d, "        \
    "global_average_pooling2d, batch_normalization, embedding and add."
#define ALL_FUNCTIONS                                                                              \
    "This version has linear, relu, tanh, sigmoid, gelu, gelu_tanh, elu, silu, softplus, "         \
    "leaky_relu and softmax."

static const struct wrong wrongs[] = {
    /* names */
    {.changes = {{"/model/layers/0/activation", "\"relluu\""}},
     .faults = {{"/model/layers/0/activation", "unknown_value",
                 "\"relluu\" is not an activation that this version knows.",
                 "Did you mean \"relu\"? " ALL_FUNCTIONS}}},
    {.changes = {{"/model/layers/0", "{\"type\": \"lstm\", \"units\": 8}"}},
     .faults = {{"/model/layers/0/type", "unknown_value",
                 "\"lstm\" is not a layer that this version knows.", ALL_LAYERS}}},
    {.changes = {{"/model/layers/0", "{\"type\": \"Dense\", \"units\": \"64\"}"}},
     .faults = {{"/model/layers/0/type", "unknown_value",
                 "\"Dense\" is not a layer that this version knows.",
                 "Did you mean \"dense\"? " ALL_LAYERS},
                {"/model/layers/0/units", "wrong_type",
                 "\"units\" must be a whole number from 1 to 134217728, but is the string \"64\".",
                 "Write the number 64, without quotes."}}},
    {.changes = {{"/model/layers/0", "{\"type\": \"relu\"}"}},
     .faults = {{"/model/layers/0/type", "unknown_value", "\"relu\" is an activation, not a layer.",
                 "Write {\"type\": \"activation\", \"activation\": \"relu\"}."}}},
    {.changes = {{"/compile/loss", "\"sparse_categorial_crossentropy\""}},
     .faults = {{"/compile/loss", "unknown_value",
                 "\"sparse_categorial_crossentropy\" is not a loss that this version knows.",
                 "Did you mean \"sparse_categorical_crossentropy\"? This version has "
                 "sparse_categorical_crossentropy, categorical_crossentropy, binary_crossentropy "
                 "and mean_squared_error."}}},
    {.changes = {{"/compile/optimizer", "\"rmsprop\""}},
     .faults = {{"/compile/optimizer", "unknown_value",
                 "\"rmsprop\" is not an optimizer that this version knows.",
                 "This version has sgd, adam and adamw."}}},
    {.changes = {{"/data/train/format", "\"parquet\""}},
     .faults = {{"/data/train/format", "unknown_value",
                 "\"parquet\" is not a data format that this version knows.",
                 "This version has idx, csv, synthetic, npy, npz and tokens."}}},

    /* fields */
    {.changes = {{"/fit/batch_size", NULL}, {"/fit/batchsize", "64"}},
     .warnings = {{"/fit/batchsize", "unknown_field",
                   "\"batchsize\" is not a field of fit and is ignored.",
                   "Did you mean \"batch_size\"?"}}},
    {.changes = {{"/fit/batch_size", NULL}, {"/fit/batchsize", "64"}},
     .strict = 1,
     .faults = {{"/fit/batchsize", "unknown_field", "\"batchsize\" is not a field of fit.",
                 "Did you mean \"batch_size\"?"}}},
    {.changes = {{"/compile/optimizer", "{\"name\": \"adam\", \"weight_decay\": 0.1}"}},
     .strict = 1,
     .faults = {{"/compile/optimizer/weight_decay", "unknown_field",
                 "\"weight_decay\" is not a field of the optimizer adam.",
                 "\"weight_decay\" is a field of the optimizer adamw."}}},
    {.changes = {{"/epochs", "3"}},
     .warnings = {{"/epochs", "unknown_field", "\"epochs\" is not a field of a job and is ignored.",
                   "\"epochs\" is a field of fit."}}},
    {.changes = {{"/model/layers/0/units", NULL}, {"/model/layers/0/unit", "32"}},
     .faults = {{"/model/layers/0/units", "required",
                 "\"units\" is missing: how many outputs the layer has.",
                 "There is \"unit\": write it as \"units\"."}},
     .warnings = {{"/model/layers/0/unit", "unknown_field",
                   "\"unit\" is not a field of a dense layer and is ignored.",
                   "Did you mean \"units\"?"}}},
    {.changes = {{"/a~0b~1c", "1"}},
     .warnings = {{"/a~0b~1c", "unknown_field", "\"a~b/c\" is not a field of a job and is ignored.",
                   "Its fields are name, command, model, compile, data, fit, resources, strategy, "
                   "priority, time_limit, labels, precision, checkpoint, max_restarts, user."}}},
    {.changes = {{"/data", NULL}},
     .faults = {{"/data", "required", "\"data\" is missing: what the model is trained on.",
                 "Add, for example, \"data\": {\"train\": {\"format\": \"csv\", \"path\": "
                 "\"iris.csv\"}}."}}},
    {.changes = {{"/data", "{\"format\": \"csv\", \"path\": \"digits.csv\"}"}},
     .faults = {{"/data/train", "required",
                 "\"train\" is missing: a source of data stands under \"train\", and another may "
                 "stand under \"validation\".",
                 "Write \"data\": {\"train\": {\"format\": ...}}."}}},

    /* types and ranges */
    {.changes = {{"/fit/epochs", "2.5"}},
     .faults = {{"/fit/epochs", "wrong_type",
                 "\"epochs\" must be a whole number from 1 to 1000000000, but is 2.5.",
                 "Write 2 or 3."}}},
    {.changes = {{"/fit/epochs", "null"}},
     .faults = {{"/fit/epochs", "wrong_type",
                 "\"epochs\" must be a whole number from 1 to 1000000000, but is null.",
                 "For example: \"epochs\": 10. To have a default, leave the field out."}}},
    {.changes = {{"/fit/shuffle", "\"true\""}},
     .faults = {{"/fit/shuffle", "wrong_type",
                 "\"shuffle\" must be true or false, but is the string \"true\".",
                 "Write true without quotes."}}},
    {.changes = {{"/fit/batch_size", "100000000"}},
     .faults = {{"/fit/batch_size", "out_of_range",
                 "\"batch_size\" must be a whole number from 1 to 16777216, but is 100000000.",
                 "The nearest that works is 16777216."}}},
    {.changes = {{"/resources/devices", "0"}},
     .faults = {{"/resources/devices", "out_of_range",
                 "\"devices\" must be a whole number from 1 to 1024, but is 0.",
                 "The nearest that works is 1."}}},
    {.changes = {{"/compile/optimizer/learning_rate", "0"}},
     .faults = {{"/compile/optimizer/learning_rate", "out_of_range",
                 "\"learning_rate\" must be a number above 0 and at most 1000, but is 0.",
                 "Write a number above 0, such as 0.001."}}},
    {.changes = {{"/model/layers/0/units", "9000000000000000000"}},
     .faults = {{"/model/layers/0/units", "out_of_range",
                 "\"units\" must be a whole number from 1 to 134217728, but is "
                 "9000000000000000000.",
                 "The nearest that works is 134217728."}}},
    {.changes = {{"/model/input", "784"}},
     .faults = {{"/model/input", "wrong_type",
                 "\"input\" must be a list of 1 to 4 sizes, but is 784.",
                 "For example: \"input\": [784]."}}},
    {.changes = {{"/model/input", "[null, 28, 28]"}},
     .faults = {{"/model/input/0", "wrong_type",
                 "A size must be a whole number from 1 to 134217728, but is null.",
                 "Leave the batch dimension out: a shape is that of one item."}}},
    {.changes = {{"/name", "\"my job!\""}},
     .faults = {{"/name", "invalid",
                 "A job's name has letters, digits, spaces, \".\", \"_\" and \"-\" only.",
                 "For example: \"my job-\"."}}},
    {.changes = {{"/labels", "{\"Team A\": \"x\", \"n\": 3}"}},
     .faults = {{"/labels/Team A", "invalid",
                 "A label's key has 1 to 63 of the characters a-z, 0-9, \".\", \"_\", \"/\" and "
                 "\"-\".",
                 "For example: \"team-a\"."},
                {"/labels/n", "wrong_type", "\"n\" must be a string, but is 3.",
                 "Put it in quotes: \"3\"."}}},
    {.changes = {{"/time_limit", "\"2 hours\""}},
     .faults = {{"/time_limit", "invalid",
                 "\"time_limit\" must be a duration, but is the string \"2 hours\".",
                 "Did you mean \"2h\"?"}}},
    {.changes = {{"/resources/memory", "512"}},
     .faults = {{"/resources/memory", "out_of_range",
                 "\"memory\" must be between 1MiB and 1024TiB, but is 512.",
                 "A number counts bytes; did you mean \"512MiB\"?"}}},

    /* paths */
    {.changes = {{"/data/train/path", "\"/data/digits.csv\""}},
     .faults = {{"/data/train/path", "invalid",
                 "A data path is relative to the data roots of the node, but this is absolute.",
                 "For a data root above it, write the rest: \"data/digits.csv\"."}}},
    {.changes = {{"/model/weights", "\"a/../../etc/passwd\""}},
     .faults = {{"/model/weights", "invalid",
                 "A data path may not lead upwards out of its data root.",
                 "Write the path from a data root downwards, without \"..\"."}}},

    /* what does not fit together */
    {.changes = {{"/model/layers/0", "{\"type\": \"reshape\", \"target_shape\": [8, 9]}"}},
     .faults = {{"/model/layers/0/target_shape", "shape_mismatch",
                 "64 elements come in ([64]); they do not fit [8, 9], which has 72.",
                 "[8, 8] has 64."}}},
    {.changes = {{"/model/layers/0", "{\"type\": \"reshape\", \"target_shape\": [7, -1]}"}},
     .faults = {{"/model/layers/0/target_shape", "shape_mismatch",
                 "64 elements come in ([64]); they do not fit [7, -1].", "[64, 1] has 64."}}},
    {.changes = {{"/model/layers/1/activation", NULL}},
     .faults = {{"/model/layers/1/activation", "output_mismatch",
                 "The loss sparse_categorical_crossentropy takes the outputs as probabilities, so "
                 "the model must end with softmax, but its last layer has \"linear\".",
                 "Write \"activation\": \"softmax\" in it."}}},
    {.changes = {{"/model/layers/1/units", "1"}},
     .faults = {{"/model/layers/1/units", "output_mismatch",
                 "The loss sparse_categorical_crossentropy needs as many outputs as there are "
                 "classes, at least 2, but the model has 1.",
                 "Write the number of classes, or use binary_crossentropy with \"activation\": "
                 "\"sigmoid\" for yes and no."}}},
    {.changes = {{"/compile/loss", "\"binary_crossentropy\""}},
     .faults = {{"/model/layers/1/activation", "output_mismatch",
                 "The loss binary_crossentropy takes the outputs as probabilities, so the model "
                 "must end with sigmoid, but its last layer has \"softmax\".",
                 "Write \"activation\": \"sigmoid\" in it, or use "
                 "sparse_categorical_crossentropy."}}},
    {.changes = {{"/compile/loss", "{\"name\": \"categorical_crossentropy\", \"from_logits\": "
                                   "true}"}},
     .faults = {{"/compile/loss", "unsupported",
                 "\"from_logits\" is not in this version; a loss after a final softmax or sigmoid "
                 "is computed from the logits in any case.",
                 "End the model with softmax (or sigmoid) and write the loss as its name."}}},
    {.changes = {{"/model/input", "[8, 8]"}},
     .faults = {{"/model/layers/1", "output_mismatch",
                 "The loss sparse_categorical_crossentropy compares one label with one row of "
                 "probabilities, but the model's output is [8, 10].",
                 "Put a flatten layer before the last dense layer."}}},
    {.changes = {{"/model/layers/0", "{\"type\": \"flatten\"}"},
                 {"/model/layers/1", "{\"type\": \"activation\", \"activation\": \"softmax\"}"}},
     .faults = {{"/model/layers", "nothing_to_train",
                 "No layer of this model has parameters, so there is nothing to train.",
                 "Add a dense layer."}}},
    {.changes = {{"/data/validation", "{\"format\": \"csv\", \"path\": \"v.csv\"}"},
                 {"/fit/validation_split", "0.2"}},
     .faults = {{"/fit/validation_split", "conflict",
                 "There is validation data already (/data/validation); \"validation_split\" would "
                 "take more from the training data.",
                 "Leave out \"validation_split\" or /data/validation."}}},
    {.changes = {{"/fit/steps", "5"}},
     .faults = {{"/fit/steps", "conflict", "\"epochs\" and \"steps\" both say when training ends.",
                 "Leave one of the two out."}}},
    {.changes = {{"/model/layers",
                  "[{\"type\": \"embedding\", \"input_dim\": 9, \"output_dim\": 2}, {\"type\": "
                  "\"flatten\"},"
                  "{\"type\": \"dense\", \"units\": 10, \"activation\": \"softmax\"}]"},
                 {"/data/train", "{\"format\": \"synthetic\", \"samples\": 100, \"input\": 64, "
                                 "\"classes\": 10, \"seed\": 1}"}},
     .faults =
         {{"/data/train/format", "conflict",
           "Synthetic features are fractions between 0 and 1, but the model's embedding takes "
           "token ids.",
           "Use tokens, or a csv or npy file of whole numbers."}}},
    {.changes = {{"/data/train", "{\"format\": \"synthetic\", \"samples\": 100, \"input\": 50, "
                                 "\"classes\": 12}"},
                 {"/fit/batch_size", "128"}},
     .faults = {{"/data/train/input", "shape_mismatch",
                 "Items of 50 numbers do not fit the model's input [64].",
                 "Write \"input\": 64 here, or [50] in /model/input."},
                {"/data/train/classes", "output_mismatch",
                 "Labels of 12 classes need as many outputs, but the model has 10.",
                 "Write \"units\": 12 in the last layer, or \"classes\": 10."}},
     .warnings = {{"/fit/batch_size", "no_effect",
                   "A batch of 128 is larger than the 100 samples, so every epoch is a single "
                   "step.",
                   "Up to 100 makes a difference."}}},
    {.changes = {{"/compile/optimizer/schedule",
                  "{\"name\": \"cosine\", \"warmup_steps\": 10, \"decay_steps\": 10}"}},
     .faults = {{"/compile/optimizer/schedule/decay_steps", "out_of_range",
                 "\"decay_steps\" (10) counts the warmup too, so it must be more than "
                 "\"warmup_steps\" (10).",
                 "Write a number above 10."}}},

    /* another kind of job, or of version */
    {.changes = {{"/command", "[\"python3\", \"train.py\"]"},
                 {"/compile", NULL},
                 {"/data", NULL},
                 {"/fit", NULL}},
     .faults = {{"/model", "conflict",
                 "A job with \"command\" has no \"model\": the program does that itself.",
                 "Leave out \"command\" to have the model trained, or this to have the program "
                 "run."}},
     .warnings = {{"/strategy", "no_effect",
                   "A command is started once on each device; \"strategy\" is ignored.", NULL}}},
    {.changes = {{"/model", "{\"class_name\": \"Sequential\", \"config\": {}}"}},
     .faults = {{"/model/config/layers", "required",
                 "A Sequential model has a list of layers here.", NULL},
                {"/model", "required", "No layer of this model says the shape of its input.",
                 "Add \"input\" beside \"class_name\", such as \"input\": [784], or give the "
                 "first layer its shape in Keras."}}},

    /* several at once */
    {.changes = {{"/fit/batch_size", "0"},
                 {"/model/layers/1/activation", "\"sofmax\""},
                 {"/compile/optimizer/name", "\"adamm\""},
                 {"/resources/devices", "\"two\""},
                 {"/priority", "5000"}},
     .faults = {{"/model/layers/1/activation", "unknown_value",
                 "\"sofmax\" is not an activation that this version knows.",
                 "Did you mean \"softmax\"? " ALL_FUNCTIONS},
                {"/compile/optimizer/name", "unknown_value",
                 "\"adamm\" is not an optimizer that this version knows.",
                 "Did you mean \"adam\"? This version has sgd, adam and adamw."},
                {"/fit/batch_size", "out_of_range",
                 "\"batch_size\" must be a whole number from 1 to 16777216, but is 0.",
                 "The nearest that works is 1."},
                {"/resources/devices", "wrong_type",
                 "\"devices\" must be a whole number from 1 to 1024, but is the string \"two\".",
                 "For example: \"devices\": 2."},
                {"/priority", "out_of_range",
                 "\"priority\" must be a whole number from -1000 to 1000, but is 5000.",
                 "The nearest that works is 1000."}}},
};

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        print_message("document %zu: %s\n", i, wrongs[i].changes[0].pointer);
        answers_expect(good, &wrongs[i]);
    }
}

/* The document that the others are made of has nothing wrong with it. */
static void test_good(void **state)
{
    (void)state;
    json_t *doc = json_loads(good, 0, NULL);
    struct faults faults = {0}, warnings = {0};
    struct job_spec *s = job_spec_parse(doc, 1, &faults, &warnings);
    assert_non_null(s);
    assert_int_equal(faults.total + warnings.total, 0);
    job_spec_free(s);
    json_decref(doc);
}

/* More faults than are listed: counted, and quickly. */
static void test_many(void **state)
{
    (void)state;
    json_t *doc = json_loads(good, 0, NULL);
    for (int i = 0; i < 20000; i++) {
        char key[16];
        snprintf(key, sizeof key, "f%d", i);
        json_object_set_new(doc, key, json_true());
    }
    struct faults faults = {0}, warnings = {0};
    assert_null(job_spec_parse(doc, 1, &faults, &warnings));
    assert_int_equal(faults.total, 20000);
    assert_int_equal(faults.count, FAULTS_MAX);
    faults_done(&faults);
    json_decref(doc);
}

/* Anything in place of any member is answered with a fault or taken, never worse. */
static void test_odd_values(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "null", "true", "-1",   "1e300", "\"\"",   "\"x\"",           "[]",
        "{}",   "[[]]", "[{}]", "0.5",   "[null]", "9007199254740993"};
    static const char *const members[] = {"/name",
                                          "/model",
                                          "/model/input",
                                          "/model/layers",
                                          "/model/layers/0",
                                          "/compile",
                                          "/fit",
                                          "/compile/loss",
                                          "/compile/metrics",
                                          "/compile/optimizer",
                                          "/data",
                                          "/data/train",
                                          "/data/validation",
                                          "/resources",
                                          "/resources/memory",
                                          "/strategy",
                                          "/time_limit",
                                          "/labels",
                                          "/user",
                                          "/precision",
                                          "/checkpoint",
                                          "/max_restarts",
                                          "/fit/early_stopping",
                                          "/fit/class_weight",
                                          "/data/train/limit",
                                          "/data/train/memory_limit",
                                          "/command",
                                          "/priority",
                                          "/model/layers/0/type",
                                          "/compile/optimizer/schedule",
                                          "/data/train/header",
                                          "/fit/seed",
                                          "/model/layers/1/units"};
    for (size_t m = 0; m < ARRAY_LEN(members); m++) {
        for (size_t o = 0; o < ARRAY_LEN(odd); o++) {
            json_t *doc = json_loads(good, 0, NULL);
            change(doc, &(struct change){members[m], odd[o]});
            struct faults faults = {0}, warnings = {0};
            struct job_spec *s = job_spec_parse(doc, 0, &faults, &warnings);
            assert_int_equal(s != NULL, faults.total == 0);
            for (size_t i = 0; i < faults.count; i++)
                assert_non_null(strchr(faults.items[i].message, '.'));
            job_spec_free(s);
            faults_done(&faults);
            faults_done(&warnings);
            json_decref(doc);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_odd_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
