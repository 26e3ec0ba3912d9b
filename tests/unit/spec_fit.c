/* spec_fit.c: what says how a model is fitted: wrong, and what becomes of it where it is right. */
#include "tests/unit/spec_answers.h"

static const char good[] =
    "{\"name\": \"t\", \"model\": {\"input\": [64], \"layers\": [{\"type\": \"dense\", \"units\": "
    "32, \"activation\": \"relu\"}, {\"type\": \"dense\", \"units\": 10, \"activation\": "
    "\"softmax\"}]}, \"compile\": {\"optimizer\": {\"name\": \"adam\"}, \"loss\": "
    "\"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]}, \"data\": {\"train\": "
    "{\"format\": \"csv\", \"path\": \"digits.csv.gz\"}}, \"fit\": {\"epochs\": 2, \"batch_size\": "
    "64}, \"resources\": {\"devices\": 2}, \"strategy\": \"mirrored\"}";

static const struct wrong wrongs[] = {
    /* precision */
    {.changes = {{"/precision", "\"bfloat16\""}},
     .faults = {{"/precision", "unsupported",
                 "\"bfloat16\" is not a precision of this version: sums, gradients and the "
                 "weights that the optimizer updates are always float32.",
                 "Write \"mixed_bfloat16\" or \"mixed_float16\": products are of rounded "
                 "operands, and what is updated is float32."}}},
    {.changes = {{"/precision", "\"float64\""}},
     .faults = {{"/precision", "unknown_value",
                 "\"float64\" is not a precision that this version knows.",
                 "Did you mean \"float32\"? This version has float32, mixed_bfloat16 and "
                 "mixed_float16."}}},
    {.changes = {{"/precision", "{\"compute\": \"int8\"}"}},
     .faults = {{"/precision/compute", "unknown_value",
                 "\"int8\" is not a type to compute with that this version knows.",
                 "This version has float32, tf32, bfloat16 and float16."}}},
    {.changes = {{"/precision", "{\"weights\": \"int8\"}"}},
     .faults = {{"/precision/weights", "unknown_value",
                 "\"int8\" is not a type of storage that this version knows.",
                 "This version has float32 and bfloat16."}}},
    {.changes = {{"/precision", "3"}},
     .faults = {{"/precision", "wrong_type",
                 "\"precision\" must be the name of a precision or an object, but is 3.",
                 "Put it in quotes: \"3\"."}}},
    /* checkpoints and restarts */
    {.changes = {{"/checkpoint", "true"}},
     .faults = {{"/checkpoint", "wrong_type",
                 "\"checkpoint\" must be an object or false, but is true.",
                 "For example: \"checkpoint\": {\"every\": \"10m\"}."}}},
    {.changes = {{"/checkpoint", "{\"every\": 0}"}},
     .faults = {{"/checkpoint/every", "out_of_range", "\"every\" must be 1 step or more, but is 0.",
                 "To have none, write \"checkpoint\": false."}}},
    {.changes = {{"/checkpoint", "{\"every\": 1.5}"}},
     .faults = {{"/checkpoint/every", "wrong_type",
                 "\"every\" must be a duration or a number of steps, but is 1.5.",
                 "For example: \"every\": \"10m\"."}}},
    {.changes = {{"/checkpoint", "{\"every\": \"ten\"}"}},
     .faults = {{"/checkpoint/every", "invalid",
                 "\"every\" must be a duration, but is the string \"ten\".",
                 "For example: \"10m\", or 500 for every 500 steps."}}},
    {.changes = {{"/checkpoint", "{\"every\": 5, \"every_steps\": 7}"}},
     .faults = {{"/checkpoint/every_steps", "conflict", "\"every\" as a number counts steps, too.",
                 "Leave one of the two out, or write \"every\" as a time such as \"10m\"."}}},
    {.changes = {{"/checkpoint", "{\"keep\": 65}"}},
     .faults = {{"/checkpoint/keep", "out_of_range",
                 "\"keep\" must be a whole number from 1 to 64, but is 65.",
                 "The nearest that works is 64."}}},
    {.changes = {{"/checkpoint", "{\"interval\": 5}"}},
     .warnings = {{"/checkpoint/interval", "unknown_field",
                   "\"interval\" is not a field of checkpoint and is ignored.",
                   "Did you mean \"every_steps\"?"}}},
    {.changes = {{"/max_restarts", "-1"}},
     .faults = {{"/max_restarts", "out_of_range",
                 "\"max_restarts\" must be a whole number from 0 to 1000, but is -1.",
                 "The nearest that works is 0."}}},
    /* early stopping */
    {.changes = {{"/fit/early_stopping", "{\"monitor\": \"val_loss\"}"}},
     .faults = {{"/fit/early_stopping/monitor", "conflict",
                 "Early stopping watches \"val_loss\", but there is no validation data.",
                 "Add \"validation_split\": 0.2 or /data/validation, or watch \"loss\"."}}},
    {.changes = {{"/fit/early_stopping", "{}"}},
     .faults = {{"/fit/early_stopping/monitor", "conflict",
                 "Early stopping watches \"val_loss\", but there is no validation data.",
                 "Add \"validation_split\": 0.2 or /data/validation, or watch \"loss\"."}}},
    {.changes = {{"/fit/early_stopping", "{\"monitor\": \"mae\"}"}},
     .faults = {{"/fit/early_stopping/monitor", "conflict",
                 "Early stopping watches \"mae\", but \"mae\" is not among the metrics.",
                 "Add \"mae\" to /compile/metrics, or watch \"loss\"."}}},
    {.changes = {{"/fit/early_stopping", "{\"monitor\": \"vall_loss\"}"}},
     .faults = {{"/fit/early_stopping/monitor", "unknown_value",
                 "\"vall_loss\" is not a figure to watch that this version knows.",
                 "Did you mean \"val_loss\"? This version has val_loss, val_accuracy, loss, "
                 "accuracy, val_mae and mae."}}},
    {.changes = {{"/fit/early_stopping", "{\"monitor\": \"loss\", \"patience\": -1}"}},
     .faults = {{"/fit/early_stopping/patience", "out_of_range",
                 "\"patience\" must be a whole number from 0 to 1000000000, but is -1.",
                 "The nearest that works is 0."}}},
    {.changes = {{"/fit/early_stopping", "{\"monitor\": \"loss\", \"mode\": \"min\"}"}},
     .faults = {{"/fit/early_stopping/mode", "unsupported",
                 "\"mode\" can only be \"auto\" in this version: losses and mae must fall, "
                 "accuracy must rise.",
                 "Write \"mode\": \"auto\", or leave it out."}}},
    {.changes = {{"/fit/early_stopping", "{\"monitor\": \"loss\", \"baseline\": 0.5}"}},
     .faults = {{"/fit/early_stopping/baseline", "unsupported",
                 "\"baseline\" can only be null in this version: the first epoch that is judged is "
                 "the baseline.",
                 "Write \"baseline\": null, or leave it out."}}},
    {.changes = {{"/fit/early_stopping", "true"}},
     .faults =
         {{"/fit/early_stopping", "wrong_type",
           "\"early_stopping\" must be an object or false, but is true.",
           "For example: \"early_stopping\": {\"monitor\": \"val_loss\", \"patience\": 3}."}}},
    {.changes = {{"/fit/early_stopping", "{\"monitor\": \"val_mae\"}"},
                 {"/fit/validation_split", "0.2"}},
     .faults = {{"/fit/early_stopping/monitor", "conflict",
                 "Early stopping watches \"val_mae\", but \"mae\" is not among the metrics.",
                 "Add \"mae\" to /compile/metrics, or watch \"val_loss\"."}}},
    {.changes = {{"/fit/validation_freq", "2"}},
     .warnings = {{"/fit/validation_freq", "no_effect",
                   "\"validation_freq\" has no effect without validation data.", NULL}}},
    {.changes = {{"/fit/validation_freq", "0"}},
     .faults = {{"/fit/validation_freq", "out_of_range",
                 "\"validation_freq\" must be a whole number from 1 to 1000000000, but is 0.",
                 "The nearest that works is 1."}}},
    /* class weights */
    {.changes = {{"/fit/class_weight", "{\"10\": 1}"}},
     .faults = {{"/fit/class_weight/10", "out_of_range",
                 "There is no class 10: the model tells 10 classes apart.",
                 "Classes are numbered from 0 to 9."}}},
    {.changes = {{"/fit/class_weight", "{\"01\": 1}"}},
     .faults = {{"/fit/class_weight/01", "invalid",
                 "\"class_weight\" has classes as keys, numbers from 0 to 65535.",
                 "For example: {\"0\": 1.0, \"1\": 2.5}."}}},
    {.changes = {{"/fit/class_weight", "{\"70000\": 1}"}},
     .faults = {{"/fit/class_weight/70000", "invalid",
                 "\"class_weight\" has classes as keys, numbers from 0 to 65535.",
                 "For example: {\"0\": 1.0, \"1\": 2.5}."}}},
    {.changes = {{"/fit/class_weight", "{\"0\": -1, \"1\": \"1\"}"}},
     .faults = {{"/fit/class_weight/0", "out_of_range",
                 "The weight of a class must be from 0 to 1000000, but is -1.",
                 "1 is the weight of a class that is not named."},
                {"/fit/class_weight/1", "wrong_type",
                 "\"1\" must be a number, but is the string \"1\".",
                 "Write the number 1, without quotes."}}},
    {.changes = {{"/fit/class_weight", "[1, 2]"}},
     .faults = {{"/fit/class_weight", "wrong_type",
                 "\"class_weight\" must be an object, but is a list.",
                 "For example: \"class_weight\": {\"0\": 1.0, \"1\": 2.5}."}}},
    {.changes = {{"/fit/class_weight", "{\"0\": 2}"},
                 {"/compile/loss", "\"mse\""},
                 {"/compile/metrics", "[]"}},
     .faults = {{"/fit/class_weight", "conflict",
                 "\"class_weight\" weighs classes, and mean_squared_error has none.",
                 "Leave it out, or use a cross-entropy."}}},
    /* sources */
    {.changes = {{"/data/train", "{\"format\": \"npy\", \"x\": \"a.npy\"}"}},
     .faults = {{"/data/train/y", "required", "\"y\" is missing: the npy file with the labels.",
                 "Add, for example, \"y\": \"y_train.npy\"."}}},
    {.changes = {{"/data/train", "{\"format\": \"npz\", \"path\": \"a.npz\", \"x\": \"x.npy\"}"}},
     .faults = {{"/data/train/x", "invalid", "Arrays in an npz file are named without \".npy\".",
                 "Write \"x\"."}}},
    {.changes = {{"/data/train", "{\"format\": \"csv\", \"path\": \"a\", \"missing\": \"fill\"}"}},
     .faults = {{"/data/train/fill", "required",
                 "\"fill\" is missing: what takes the place of a missing value, with \"missing\": "
                 "\"fill\".",
                 "Add, for example, \"fill\": 0."}}},
    {.changes = {{"/data/train",
                  "{\"format\": \"csv\", \"path\": \"a\", \"missing\": \"drop\", \"fill\": 3}"}},
     .warnings = {{"/data/train/fill", "no_effect",
                   "\"fill\" has no effect with \"missing\": \"drop\".",
                   "Write \"missing\": \"fill\"."}}},
    {.changes = {{"/data/train", "{\"format\": \"csv\", \"path\": \"a\", \"missing\": \"zero\"}"}},
     .faults = {{"/data/train/missing", "unknown_value",
                 "\"zero\" is not a policy for missing values that this version knows.",
                 "This version has error, drop and fill."}}},
    {.changes = {{"/data/train", "{\"format\": \"csv\", \"path\": \"a\", \"limit\": 0}"}},
     .faults = {{"/data/train/limit", "out_of_range",
                 "\"limit\" must be a whole number from 1 to 1e+15, but is 0.",
                 "The nearest that works is 1."}}},
    {.changes = {{"/data/train",
                  "{\"format\": \"csv\", \"path\": \"a\", \"memory_limit\": \"12\"}"}},
     .faults = {{"/data/train/memory_limit", "invalid",
                 "\"memory_limit\" must be an amount (a number with B, KiB, MiB, GiB, TiB, KB, MB, "
                 "GB or TB), but is the string \"12\".",
                 "For example: \"512MiB\" or \"8GiB\"."}}},
    {.changes = {{"/data/train", "{\"format\": \"csv\", \"path\": \"a\", \"memory_limit\": 512}"}},
     .faults = {{"/data/train/memory_limit", "out_of_range",
                 "\"memory_limit\" must be between 1MiB and 1024TiB, but is 512.",
                 "A number counts bytes; did you mean \"512MiB\"?"}}},
    {.changes = {{"/data/train",
                  "{\"format\": \"tokens\", \"path\": \"a\", \"dtype\": \"int32\"}"}},
     .faults = {{"/data/train/dtype", "unknown_value",
                 "\"int32\" is not a type of tokens that this version knows.",
                 "Did you mean \"uint32\"? This version has auto, uint8, uint16 and uint32."}}},
    {.changes = {{"/data/train", "{\"format\": \"tokens\", \"path\": \"a\"}"}},
     .faults =
         {{"/model/layers/0", "input_mismatch",
           "Tokens are numbers of words, not amounts: the first layer must be an embedding, but is "
           "dense.",
           "Put {\"type\": \"embedding\", \"input_dim\": 256, \"output_dim\": 64} first."},
          {"/model/layers/1", "output_mismatch",
           "The model is to tell the next token at each of 64 positions, but its output is [10].",
           "The output must be [64, number of different tokens]."}}},
    {.changes = {{"/data/train", "{\"format\": \"tokens\", \"path\": \"a\"}"},
                 {"/compile/loss", "\"categorical_crossentropy\""}},
     .faults = {{"/compile/loss", "output_mismatch",
                 "The labels of tokens are the tokens that follow, which are classes, but the loss "
                 "is categorical_crossentropy.",
                 "Write \"sparse_categorical_crossentropy\"."}}},
    {.changes = {{"/data/train", "{\"format\": \"tokens\", \"path\": \"a\"}"},
                 {"/model/input", "[8, 8]"}},
     .faults = {{"/model/input", "shape_mismatch",
                 "An item of tokens is a list of them, so the model's input must have one size, "
                 "but is [8, 8].",
                 "For example: [64]."}}},
    /* schedules */
    {.changes = {{"/compile/optimizer/schedule", "{\"name\": \"linear\", \"warmup_steps\": 5}"}},
     .faults = {{"/compile/optimizer/schedule/decay_steps", "required",
                 "\"decay_steps\" is missing: the step at which the decay ends, warmup included.",
                 "Add, for example, \"decay_steps\": 1000."}}},
    {.changes = {{"/compile/optimizer/schedule",
                  "{\"name\": \"linear\", \"decay_steps\": 5, \"warmup_steps\": 5}"}},
     .faults = {{"/compile/optimizer/schedule/decay_steps", "out_of_range",
                 "\"decay_steps\" (5) counts the warmup too, so it must be more than "
                 "\"warmup_steps\" (5).",
                 "Write a number above 5."}}},
    {.changes = {{"/compile/optimizer/schedule", "{\"name\": \"step\", \"gamma\": 2}"}},
     .faults = {{"/compile/optimizer/schedule/step_size", "required",
                 "\"step_size\" is missing: steps between two falls of the rate.",
                 "Add, for example, \"step_size\": 1000."},
                {"/compile/optimizer/schedule/gamma", "out_of_range",
                 "\"gamma\" must be a number above 0 and at most 1, but is 2.",
                 "The nearest that works is 1."}}},
    {.changes = {{"/compile/optimizer/schedule", "{\"name\": \"constant\", \"decay_steps\": 5}"}},
     .warnings = {{"/compile/optimizer/schedule/decay_steps", "unknown_field",
                   "\"decay_steps\" is not a field of the schedule constant and is ignored.",
                   "\"decay_steps\" is a field of the schedule cosine."}}},
    {.changes = {{"/compile/optimizer/schedule",
                  "{\"name\": \"step\", \"step_size\": 3, \"alpha\": 0.1}"}},
     .warnings = {{"/compile/optimizer/schedule/alpha", "unknown_field",
                   "\"alpha\" is not a field of the schedule step and is ignored.",
                   "\"alpha\" is a field of the schedule cosine."}}},
    {.changes = {{"/compile/optimizer/schedule", "{\"name\": \"exponential\"}"}},
     .faults = {{"/compile/optimizer/schedule/name", "unknown_value",
                 "\"exponential\" is not a schedule that this version knows.",
                 "This version has constant, cosine, linear and step."}}},
    {.changes = {{"/compile/optimizer/schedule", "{\"decay_steps\": 5}"}},
     .faults = {{"/compile/optimizer/schedule/name", "required",
                 "\"name\" is missing: how the learning rate changes.",
                 "Add \"name\": one of constant, cosine, linear or step."}}},
};

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        print_message("%s: %s\n", wrongs[i].changes[0].pointer, wrongs[i].changes[0].value);
        answers_expect(good, &wrongs[i]);
    }
}

/* The good document with a member set to `value`, without fault or warning. */
static struct job_spec *with(const char *pointer, const char *value)
{
    json_t *doc = json_loads(good, 0, NULL);
    struct faults faults = {0}, warnings = {0};
    change(doc, &(struct change){pointer, value});
    struct job_spec *s = job_spec_parse(doc, 1, &faults, &warnings);
    if (!s || warnings.total > 0)
        fail_msg("%s", faults.total ? faults.items[0].message : warnings.items[0].message);
    json_decref(doc);
    return s;
}

static void test_precision(void **state)
{
    (void)state;
    struct job_spec *s = with("/precision", "\"mixed_bfloat16\"");
    assert_int_equal(s->precision.weights, STORAGE_BFLOAT16);
    assert_int_equal(s->precision.activations, STORAGE_BFLOAT16);
    assert_int_equal(s->precision.moments, STORAGE_FLOAT32);
    assert_int_equal(s->precision.compute, COMPUTE_BFLOAT16);
    job_spec_free(s);
    s = with("/precision", "\"mixed_float16\"");
    assert_int_equal(s->precision.weights, STORAGE_FLOAT32);
    assert_int_equal(s->precision.activations, STORAGE_FLOAT32);
    assert_int_equal(s->precision.compute, COMPUTE_FLOAT16);
    job_spec_free(s);
    s = with("/precision", "{\"activations\": \"bfloat16\", \"compute\": \"tf32\"}");
    assert_int_equal(s->precision.activations, STORAGE_BFLOAT16);
    assert_int_equal(s->precision.compute, COMPUTE_TF32);
    job_spec_free(s);
    s = with("/precision", "{\"moments\": \"bfloat16\"}");
    assert_int_equal(s->precision.weights, STORAGE_FLOAT32);
    assert_int_equal(s->precision.moments, STORAGE_BFLOAT16);
    job_spec_free(s);
    s = with("/precision", "\"float32\"");
    assert_int_equal(s->precision.activations, STORAGE_FLOAT32);
    job_spec_free(s);
}

static void test_checkpoint(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        struct checkpoint want;
    } cases[] = {
        {"false", {.enabled = 0, .keep = 2}},
        {"{}", {.enabled = 1, .keep = 2}},
        {"{\"every\": \"10m\"}", {.enabled = 1, .every_s = 600, .keep = 2}},
        {"{\"every\": 500, \"keep\": 5}", {.enabled = 1, .every_steps = 500, .keep = 5}},
        {"{\"every_steps\": 7, \"every\": \"1h\"}",
         {.enabled = 1, .every_steps = 7, .every_s = 3600, .keep = 2}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct job_spec *s = with("/checkpoint", cases[i].text);
        assert_int_equal(s->checkpoint.enabled, cases[i].want.enabled);
        assert_int_equal(s->checkpoint.every_steps, cases[i].want.every_steps);
        assert_int_equal(s->checkpoint.every_s, cases[i].want.every_s);
        assert_int_equal(s->checkpoint.keep, cases[i].want.keep);
        job_spec_free(s);
    }
}

static void test_stopping(void **state)
{
    (void)state;
    struct job_spec *s = with("/fit/early_stopping",
                              "{\"monitor\": \"accuracy\", \"min_delta\": 0.01, \"patience\": 3,"
                              "\"start_from_epoch\": 2, \"restore_best_weights\": true,"
                              "\"mode\": \"auto\", \"baseline\": null}");
    const struct early_stopping *e = &s->fit.early_stopping;
    assert_int_equal(e->enabled, 1);
    assert_int_equal(e->monitor, MONITOR_ACCURACY);
    assert_true(e->min_delta == 0.01);
    assert_int_equal(e->patience, 3);
    assert_int_equal(e->start_from_epoch, 2);
    assert_int_equal(e->restore_best_weights, 1);
    job_spec_free(s);
    s = with("/fit/early_stopping", "false");
    assert_int_equal(s->fit.early_stopping.enabled, 0);
    job_spec_free(s);
}

static void test_class_weight(void **state)
{
    (void)state;
    struct job_spec *s = with("/fit/class_weight", "{\"3\": 0.5, \"1\": 0, \"9\": 1e6}");
    static const double want[] = {1, 0, 1, 0.5, 1, 1, 1, 1, 1, 1e6};
    assert_int_equal(s->fit.class_weights, ARRAY_LEN(want));
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        assert_true(s->fit.class_weight[i] == want[i]);
    job_spec_free(s);
    s = with("/fit/class_weight", "{}");
    assert_null(s->fit.class_weight);
    assert_int_equal(s->fit.class_weights, 0);
    job_spec_free(s);
}

static void test_sources(void **state)
{
    (void)state;
    struct job_spec *s = with("/data/train", "{\"format\": \"npy\", \"x\": \"a.npy\", \"y\": "
                                             "\"b.npy\", \"limit\": 7, \"memory_limit\": "
                                             "\"2GiB\"}");
    assert_int_equal(s->train.format, DATA_NPY);
    assert_string_equal(s->train.x, "a.npy");
    assert_string_equal(s->train.y, "b.npy");
    assert_int_equal(s->train.limit, 7);
    assert_int_equal(s->train.memory_limit, 2LL << 30);
    job_spec_free(s);
    s = with("/data/train", "{\"format\": \"npz\", \"path\": \"a.npz\", \"y\": \"labels\"}");
    assert_int_equal(s->train.format, DATA_NPZ);
    assert_string_equal(s->train.path, "a.npz");
    assert_string_equal(s->train.x, "x");
    assert_string_equal(s->train.y, "labels");
    job_spec_free(s);
    s = with("/data/train", "{\"format\": \"csv\", \"path\": \"a\", \"missing\": \"fill\", "
                            "\"fill\": -1.5}");
    assert_int_equal(s->train.missing, CSV_MISSING_FILL);
    assert_true(s->train.fill == -1.5);
    assert_int_equal(s->train.header, CSV_HEADER_AUTO);
    job_spec_free(s);
}

static void test_schedules(void **state)
{
    (void)state;
    struct job_spec *s = with("/compile/optimizer/schedule",
                              "{\"name\": \"linear\", \"decay_steps\": 9, \"alpha\": 0.1}");
    assert_int_equal(s->optimizer.schedule, SCHEDULE_LINEAR);
    assert_int_equal(s->optimizer.decay_steps, 9);
    assert_true(s->optimizer.alpha == 0.1);
    job_spec_free(s);
    s = with("/compile/optimizer/schedule",
             "{\"name\": \"step\", \"step_size\": 4, \"warmup_steps\": 2}");
    assert_int_equal(s->optimizer.schedule, SCHEDULE_STEP);
    assert_int_equal(s->optimizer.step_size, 4);
    assert_int_equal(s->optimizer.warmup_steps, 2);
    assert_true(s->optimizer.gamma == 0.1);
    job_spec_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),      cmocka_unit_test(test_precision),
        cmocka_unit_test(test_checkpoint),   cmocka_unit_test(test_stopping),
        cmocka_unit_test(test_class_weight), cmocka_unit_test(test_sources),
        cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
