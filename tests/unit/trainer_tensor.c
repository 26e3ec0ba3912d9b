/* trainer_tensor.c: layers split over tensor ranks, alone and with data and pipeline ranks, against
 * one rank: losses, norms and weights agree to float32 rounding, whatever the sizes divide by. */
#include <math.h>

#include "trainer_gang.h"

#define DATA(INPUT_, CLASSES_)                                                                     \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 61, \"input\": " INPUT_        \
    ", \"classes\": " CLASSES_ ", \"seed\": 1}}, "                                                 \
    "\"fit\": {\"batch_size\": 19, \"seed\": 3, \"epochs\": 2, \"validation_split\": 0.2}}"
#define COMPILE                                                                                    \
    "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.01, "                 \
    "\"global_clipnorm\": 0.5}, \"loss\": \"sparse_categorical_crossentropy\", "                   \
    "\"metrics\": [\"accuracy\"]}, "

/* Pairs, odd sizes, functions that are not 0 at 0, dropout between, a normalisation, a skip. */
static const char PAIRS[] =
    "{\"model\": {\"input\": [7], \"layers\": ["
    "{\"type\": \"dense\", \"units\": 11, \"activation\": \"sigmoid\"},"
    "{\"type\": \"dropout\", \"rate\": 0.25},"
    "{\"type\": \"dense\", \"units\": 9, \"activation\": \"gelu\"},"
    "{\"type\": \"layer_normalization\"},"
    "{\"type\": \"dense\", \"units\": 9, \"activation\": \"softplus\"},"
    "{\"type\": \"add\", \"back\": 2},"
    "{\"type\": \"dense\", \"units\": 13, \"activation\": \"silu\"},"
    "{\"type\": \"activation\", \"activation\": \"sigmoid\"},"
    "{\"type\": \"dense\", \"units\": 5, \"activation\": \"softmax\"}]}," COMPILE DATA("7", "5");

/* No biases before normalisations: those have no gradient but rounding. */
static const char IMAGES[] =
    "{\"model\": {\"input\": [36], \"layers\": ["
    "{\"type\": \"reshape\", \"target_shape\": [6, 6, 1]},"
    "{\"type\": \"conv2d\", \"filters\": 5, \"kernel_size\": 3, \"padding\": \"same\", "
    "\"use_bias\": false},"
    "{\"type\": \"batch_normalization\"},"
    "{\"type\": \"activation\", \"activation\": \"elu\"},"
    "{\"type\": \"max_pooling2d\"},"
    "{\"type\": \"conv2d\", \"filters\": 7, \"kernel_size\": 2, \"activation\": \"softplus\"},"
    "{\"type\": \"global_average_pooling2d\"},"
    "{\"type\": \"dense\", \"units\": 6, \"use_bias\": false},"
    "{\"type\": \"batch_normalization\"},"
    "{\"type\": \"dense\", \"units\": 3, \"activation\": \"softmax\"}]}," COMPILE DATA("36", "3");

#define STEPS_MAX 32
struct outcome {
    double loss[STEPS_MAX], norm[STEPS_MAX], val_loss;
    size_t steps;
    struct buf weights;
};

static void run(const char *job, const struct plan *p, struct outcome *ret)
{
    struct gang g;
    json_auto_t *doc = gang_job(job);
    const json_t *line;
    *ret = (struct outcome){.weights = BUF_INIT};
    gang_open_plan(&g, doc, p);
    gang_run(&g);
    for (; ret->steps < STEPS_MAX && (line = gang_line(&g, "step", 0, ret->steps)); ret->steps++) {
        ret->loss[ret->steps] = gang_number(line, "loss");
        ret->norm[ret->steps] = gang_number(line, "grad_norm");
    }
    ret->val_loss = gang_number(gang_line(&g, "epoch", 0, 1), "val_loss");
    read_whole(&g, "model.safetensors", &ret->weights);
    gang_close(&g);
}

static void check_near(double have, double want, double tolerance)
{
    if (!(fabs(have - want) <= tolerance * fmax(fabs(want), 1e-3)))
        fail_msg("%.9g instead of %.9g", have, want);
}

/* Both files have the same header; the values behind it are float32. */
static void check_weights(const struct buf *have, const struct buf *want)
{
    uint64_t header;
    assert_int_equal(have->len, want->len);
    memcpy(&header, want->data, sizeof header);
    size_t at = sizeof header + (size_t)header;
    assert_memory_equal(have->data, want->data, at);
    for (; at + sizeof(float) <= want->len; at += sizeof(float)) {
        float a, b;
        memcpy(&a, have->data + at, sizeof a);
        memcpy(&b, want->data + at, sizeof b);
        if (!(fabsf(a - b) <= 1e-4f + 1e-3f * fabsf(b)))
            fail_msg("byte %zu: %g instead of %g", at, (double)a, (double)b);
    }
}

static void check(const char *job, const struct plan *p, const struct outcome *want)
{
    struct outcome have;
    print_message("data %d, pipeline %d, tensor %d, micro-batches %d, zero %d\n", p->data,
                  p->pipeline, p->tensor, p->microbatches, p->zero);
    run(job, p, &have);
    assert_int_equal(have.steps, want->steps);
    for (size_t i = 0; i < want->steps; i++) {
        check_near(have.loss[i], want->loss[i], 3e-5);
        check_near(have.norm[i], want->norm[i], 3e-4);
    }
    check_near(have.val_loss, want->val_loss, 1e-4);
    check_weights(&have.weights, &want->weights);
    buf_done(&have.weights);
}

static const struct plan meshes[] = {
    {.kind = STRATEGY_TENSOR, .data = 1, .pipeline = 1, .tensor = 2, .microbatches = 1},
    {.kind = STRATEGY_TENSOR, .data = 1, .pipeline = 1, .tensor = 3, .microbatches = 1},
    {.kind = STRATEGY_TENSOR, .data = 1, .pipeline = 1, .tensor = 7, .microbatches = 2},
    {.kind = STRATEGY_TENSOR, .data = 2, .pipeline = 1, .tensor = 2, .microbatches = 1},
    {.kind = STRATEGY_TENSOR, .data = 2, .pipeline = 1, .tensor = 2, .microbatches = 1, .zero = 1},
    {.kind = STRATEGY_TENSOR, .data = 2, .pipeline = 1, .tensor = 3, .microbatches = 2, .zero = 3},
    {.kind = STRATEGY_TENSOR, .data = 1, .pipeline = 2, .tensor = 2, .microbatches = 3},
    {.kind = STRATEGY_TENSOR, .data = 2, .pipeline = 2, .tensor = 2, .microbatches = 2, .zero = 2},
};

static void check_table(const char *job)
{
    struct plan one = {.kind = STRATEGY_NONE, .microbatches = 1};
    struct outcome want;
    parallel_set_defaults(&one.parallel);
    run(job, &one, &want);
    for (size_t i = 0; i < ARRAY_LEN(meshes); i++) {
        struct plan p = meshes[i];
        parallel_set_defaults(&p.parallel);
        p.schedule = SCHEDULE_GPIPE;
        check(job, &p, &want);
    }
    buf_done(&want.weights);
}

static void pairs_of_dense_layers(void **state)
{
    (void)state;
    check_table(PAIRS);
}

static void channels(void **state)
{
    (void)state;
    check_table(IMAGES);
}

/* Rounded outputs and layers that are computed again, split alike. */
static void rounded_and_again(void **state)
{
    (void)state;
    unsigned char all[16];
    memset(all, 1, sizeof all);
    CLEANUP(mem_freep)
    char *job = mem_printf("%.*s, \"precision\": {\"activations\": \"bfloat16\"}}",
                           (int)strlen(PAIRS) - 1, PAIRS);
    struct plan p = meshes[0];
    struct outcome want, have;
    parallel_set_defaults(&p.parallel);
    run(job, &p, &want);
    p.recompute = all;
    run(job, &p, &have);
    assert_int_equal(have.weights.len, want.weights.len);
    assert_memory_equal(have.weights.data, want.weights.data, want.weights.len);
    buf_done(&have.weights);
    buf_done(&want.weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_of_dense_layers),
        cmocka_unit_test(channels),
        cmocka_unit_test(rounded_and_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
