/* What data ranks do for one another: ZeRO stages give the bits of whole updates, reproducible runs
 * one checksum on any mesh, and the forms of storage what they promise. Real processes. */
#include <math.h>

#include "tests/unit/trainer_gang.h"

/* Buckets of their own for two layers, one for the rest; vectors that do not decay; a clipped norm
 * that is summed over parts. */
#define WIDE                                                                                       \
    "{\"name\": \"wide\", \"model\": {\"input\": [6], \"layers\": ["                               \
    "{\"type\": \"dense\", \"units\": 1100, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dense\", \"units\": 1000, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dense\", \"units\": 1080, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dropout\", \"rate\": 0.3}, {\"type\": \"layer_normalization\"},"                 \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.001, "                \
    "\"weight_decay\": 0.1, \"exclude_from_weight_decay\": \"vectors\", \"global_clipnorm\": 1},"  \
    "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"                 \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 31, \"input\": 6, "            \
    "\"classes\": 4, \"seed\": 1}, \"validation\": {\"format\": \"synthetic\", \"samples\": 13, "  \
    "\"input\": 6, \"classes\": 4, \"seed\": 2}},"                                                 \
    "\"fit\": {\"batch_size\": 12, \"seed\": 3, \"epochs\": 2}}"

#define DROPPING                                                                                   \
    SMALL("101", "22",                                                                             \
          "{\"type\": \"dropout\", \"rate\": 0.3}, "                                               \
          "{\"type\": \"layer_normalization\"},",                                                  \
          "\"epochs\": 2")

struct form {
    int data, pipeline, microbatches, zero, reproducible, overlap;
};

static void say(const struct form *f)
{
    print_message("           %d x %d, %d micro-batches, zero %d%s%s\n", f->data, f->pipeline,
                  f->microbatches, f->zero, f->reproducible ? ", reproducible" : "",
                  f->overlap ? ", overlap" : "");
}

static void run_form(const char *job, const struct form *f, struct gang *g)
{
    json_auto_t *doc = gang_job(job);
    say(f);
    gang_open(g, doc, f->pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, f->data, f->pipeline,
              f->microbatches, SCHEDULE_GPIPE);
    g->launch.plan.zero = f->zero;
    g->launch.plan.parallel.reproducible = f->reproducible;
    g->launch.plan.parallel.grains = 8;
    g->launch.plan.parallel.overlap = f->overlap;
    gang_run(g);
}

static void weights_of(const char *job, const struct form *f, struct buf *ret)
{
    struct gang g;
    run_form(job, f, &g);
    read_whole(&g, "model.safetensors", ret);
    gang_close(&g);
}

static void check_equal(const struct buf *a, const struct buf *b)
{
    assert_int_equal(a->len, b->len);
    if (memcmp(a->data, b->data, a->len) != 0)
        fail_msg("other bits");
}

/* ---- ZeRO ---- */

static void check_stages(const char *job, int data, int overlap)
{
    struct buf want = BUF_INIT;
    const struct form whole = {.data = data, .pipeline = 1, .microbatches = 1};
    weights_of(job, &whole, &want);
    for (int zero = 0; zero <= 3; zero++) {
        struct buf got = BUF_INIT;
        struct form f = whole;
        f.zero = zero;
        f.overlap = overlap;
        weights_of(job, &f, &got);
        check_equal(&want, &got);
        buf_done(&got);
    }
    buf_done(&want);
}

static void every_zero_stage_gives_the_same_bits(void **state)
{
    (void)state;
    static const int DATA[] = {1, 2, 3, 4, 5, 7};
    for (size_t i = 0; i < ARRAY_LEN(DATA); i++)
        check_stages(DROPPING, DATA[i], i % 2 == 0);
    check_stages(WIDE, 2, 1);
    check_stages(WIDE, 3, 0);
    check_stages(WIDE, 5, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_zero_stage_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
