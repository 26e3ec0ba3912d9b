/* class_weight: a row's loss and gradient by the weight of its class, in training alone. */
#include "tests/unit/trainer_gang.h"

#include <math.h>

#define ROWS 6
#define COLS 3

static const float outputs[ROWS * COLS] = {0.5f,  -1,   2,    0.1f, 0.2f, 0.3f,  -3,   1,     0.7f,
                                           -0.2f, 0.9f, 1.1f, 4,    -4,   0.25f, 0.6f, -0.6f, 1.5f};
static const int32_t classes[ROWS] = {0, 1, 2, 2, 1, 0};
static const float weights[COLS] = {2.5f, 1, 0.25f};

static void loss_of(enum loss kind, int64_t cols, const int32_t *of, const float *targets,
                    const float *by_class, float *gradient, struct loss_sums *sums)
{
    *sums = (struct loss_sums){0};
    struct loss_args a = {.kind = kind,
                          .from_logits = 1,
                          .rows = ROWS,
                          .cols = cols,
                          .out = outputs,
                          .classes = of,
                          .targets = targets,
                          .weights = by_class,
                          .weight_count = by_class ? COLS : 0,
                          .gradient = gradient,
                          .sums = sums};
    ops_cpu.loss(&a);
}

/* Against the same rows without weights, one by one. */
static void check_rows(enum loss kind, int64_t cols, const int32_t *of, const float *targets,
                       const int32_t *class, const float *by_class)
{
    float plain[ROWS * COLS], got[ROWS * COLS];
    struct loss_sums all, sums;
    double wanted = 0;
    loss_of(kind, cols, of, targets, NULL, plain, &all);
    loss_of(kind, cols, of, targets, by_class, got, &sums);
    for (int i = 0; i < ROWS; i++) {
        struct loss_sums one = {0};
        struct loss_args a = {.kind = kind,
                              .from_logits = 1,
                              .rows = 1,
                              .cols = cols,
                              .out = outputs + i * cols,
                              .classes = of ? of + i : NULL,
                              .targets = targets ? targets + i * cols : NULL,
                              .sums = &one};
        ops_cpu.loss(&a);
        wanted += one.loss * (double)by_class[class[i]];
        for (int64_t c = 0; c < cols; c++)
            assert_true(got[i * cols + c] == plain[i * cols + c] * by_class[class[i]]);
    }
    assert_true(fabs(sums.loss - wanted) < 1e-12 * fabs(wanted));
    assert_true(sums.accuracy == all.accuracy && sums.mae == all.mae);
    assert_true(fabs(sums.loss - all.loss) > 0.1);
}

static void rows_by_their_class(void **state)
{
    (void)state;
    float one_hot[ROWS * COLS] = {0}, yes_or_no[ROWS];
    static const int32_t sides[ROWS] = {1, 0, 1, 1, 0, 0};
    for (int i = 0; i < ROWS; i++) {
        one_hot[i * COLS + classes[i]] = 1;
        yes_or_no[i] = (float)sides[i];
    }
    check_rows(LOSS_SPARSE_CATEGORICAL_CROSSENTROPY, COLS, classes, NULL, classes, weights);
    check_rows(LOSS_CATEGORICAL_CROSSENTROPY, COLS, NULL, one_hot, classes, weights);
    check_rows(LOSS_BINARY_CROSSENTROPY, 1, NULL, yes_or_no, sides, weights);
}

/* ---- runs ---- */

#define JOB(WEIGHT)                                                                                \
    "{\"name\": \"weighted\", \"model\": {\"input\": [64], \"layers\": ["                          \
    "{\"type\": \"rescaling\", \"scale\": 0.0625},"                                                \
    "{\"type\": \"dense\", \"units\": 10, \"activation\": \"softmax\","                            \
    " \"kernel_initializer\": \"zeros\"}]},"                                                       \
    "\"compile\": {\"optimizer\": \"sgd\", \"loss\": \"sparse_categorical_crossentropy\","         \
    "\"metrics\": [\"accuracy\"]}, \"data\": {\"train\": {\"format\": \"csv\","                    \
    "\"path\": \"digits.csv.gz\", \"limit\": 500}}, \"fit\": {\"epochs\": 2, \"batch_size\": 96,"  \
    "\"validation_split\": 0.2, \"shuffle\": false" WEIGHT "}}"

struct figures_seen {
    double first_loss, last_loss, val_loss;
};

static struct figures_seen run(const char *text, int data, int microbatches)
{
    struct gang g;
    json_auto_t *doc = gang_job(text);
    gang_open(&g, doc, data > 1 ? STRATEGY_MIRRORED : STRATEGY_NONE, data, 1, microbatches,
              SCHEDULE_GPIPE);
    assert_int_equal(gang_prepare(&g), 0);
    gang_start(&g);
    gang_wait(&g);
    for (int r = 0; r < data; r++)
        assert_int_equal(g.status[r], 0);
    size_t steps = gang_count(&g, "step");
    assert_int_equal(steps, 10);
    struct figures_seen f = {gang_number(gang_line(&g, "step", 0, 0), "loss"),
                             gang_number(gang_line(&g, "step", 0, steps - 1), "loss"),
                             gang_number(gang_line(&g, "epoch", 0, 0), "val_loss")};
    gang_close(&g);
    return f;
}

/* Without weights to start from, every item's loss is log 10: a batch's is its mean weight times
 * that. The first 96 digits of the file have 11 sixes and as many threes. */
static void the_mean_is_over_items(void **state)
{
    (void)state;
    struct figures_seen plain = run(JOB(""), 1, 1);
    assert_true(fabs(plain.first_loss - log(10)) < 1e-6);
    struct figures_seen none = run(JOB(", \"class_weight\": {\"6\": 0, \"3\": 5}"), 1, 1);
    double wanted = log(10) * (96 - 11 - 11 + 11 * 5) / 96;
    if (fabs(none.first_loss - wanted) > 1e-6)
        fail_msg("the first loss is %.9g where %.9g was wanted", none.first_loss, wanted);
}

static void ones_change_nothing_and_ranks_agree(void **state)
{
    (void)state;
    struct figures_seen plain = run(JOB(""), 1, 1);
    struct figures_seen ones = run(JOB(", \"class_weight\": {\"0\": 1, \"4\": 1.0}"), 1, 1);
    assert_true(plain.last_loss == ones.last_loss && plain.val_loss == ones.val_loss);
    const char *uneven = JOB(", \"class_weight\": {\"0\": 3, \"9\": 0.5}");
    struct figures_seen one = run(uneven, 1, 1), three = run(uneven, 3, 1),
                        four = run(uneven, 1, 4);
    assert_true(fabs(one.last_loss - plain.last_loss) > 1e-3);
    assert_true(fabs(one.last_loss - three.last_loss) < 1e-5);
    assert_true(fabs(one.last_loss - four.last_loss) < 1e-5);
    assert_true(fabs(one.val_loss - three.val_loss) < 1e-5);
}

/* With all weights 2 and half the rate, the steps are the same; validation is not weighted. */
static void validation_is_not_weighted(void **state)
{
    (void)state;
    struct figures_seen plain = run(JOB(""), 1, 1);
    char *twice =
        mem_strdup(JOB(", \"class_weight\": {\"0\": 2, \"1\": 2, \"2\": 2, \"3\": 2, \"4\": "
                       "2, \"5\": 2, \"6\": 2, \"7\": 2, \"8\": 2, \"9\": 2}"));
    char *rate = strstr(twice, "\"sgd\"");
    CLEANUP(mem_freep)
    char *text = mem_printf("%.*s{\"name\": \"sgd\", \"learning_rate\": 0.005}%s",
                            (int)(rate - twice), twice, rate + 5);
    free(twice);
    struct figures_seen f = run(text, 1, 1);
    assert_true(f.val_loss == plain.val_loss);
    assert_true(fabs(f.first_loss - 2 * plain.first_loss) < 1e-6);
}

static void classes_that_the_model_lacks(void **state)
{
    (void)state;
    struct gang g;
    json_auto_t *doc = gang_job(JOB(", \"class_weight\": {\"9\": 3}"));
    gang_open(&g, doc, STRATEGY_NONE, 1, 1, 1, SCHEDULE_GPIPE);
    g.launch.spec->fit.class_weights = 12; /* past the check of the document */
    assert_int_equal(gang_prepare(&g), TRAIN_PERMANENT);
    gang_read(&g);
    const char *why = gang_text(gang_line(&g, "verdict", -1, 0), "reason");
    if (!strstr(why,
                "class_weight has a weight for class 11, but the model tells 10 classes apart"))
        fail_msg("%s", why);
    gang_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_by_their_class),
        cmocka_unit_test(the_mean_is_over_items),
        cmocka_unit_test(ones_change_nothing_and_ranks_agree),
        cmocka_unit_test(validation_is_not_weighted),
        cmocka_unit_test(classes_that_the_model_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
