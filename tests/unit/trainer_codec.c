/* trainer_codec.c: gradients packed for their way between data ranks: nothing is lost for good, and
 * training with each codec goes where it goes without. */
#include <math.h>

#include "spec/codec.h"
#include "trainer_gang.h"

enum { MOST = 5000 };

static void fill(size_t n, float *x)
{
    uint32_t state = 7;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ((float)(state >> 8) / 8388608.0f - 1.0f) * (i % 7 == 0 ? 100.0f : 1.0f);
    }
}

static const struct parallel codecs[] = {
    {.codec = CODEC_BF16},
    {.codec = CODEC_INT8},
    {.codec = CODEC_TOP_K, .top_k = 0.03},
    {.codec = CODEC_TOP_K, .top_k = 1},
};

/* What was sent and what is left are the gradient, and the bytes are what was foretold. */
static void sent_and_left_are_all(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 5, 1023, 1024, 1025, MOST};
    float *x = mem_alloc(MOST * sizeof *x), *sent = mem_alloc(MOST * sizeof *sent);
    for (size_t c = 0; c < ARRAY_LEN(codecs); c++)
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
            size_t n = sizes[s], bytes = codec_bytes(&codecs[c], n);
            char *packed = mem_alloc(bytes + 1);
            fill(n, x);
            memset(packed, 0x5a, bytes + 1);
            memset(sent, 0, MOST * sizeof *sent);
            ops_cpu.pack(&codecs[c], n, x, packed);
            assert_int_equal(packed[bytes], 0x5a);
            ops_cpu.add_packed(&codecs[c], n, packed, 1.0f, sent);
            for (size_t i = 0; i < n; i++) {
                float lost = x[i] - sent[i];
                float most = codecs[c].codec == CODEC_BF16   ? fabsf(x[i]) / 256.0f
                             : codecs[c].codec == CODEC_INT8 ? 100.0f / 127.0f * 0.51f
                                                             : fabsf(x[i]);
                assert_true(fabsf(lost) <= most);
                assert_true(sent[i] + lost == x[i]);
            }
            free(packed);
        }
    free(x);
    free(sent);
}

/* The largest ones, the first of equal ones, as many as were asked for. */
static void top_k_takes_the_largest(void **state)
{
    (void)state;
    struct parallel p = {.codec = CODEC_TOP_K, .top_k = 0.5};
    const float x[8] = {1, -4, 2, 2, 0, -2, 3, 2};
    const float want[8] = {0, -4, 2, 2, 0, 0, 3, 0};
    float sent[8] = {0}, packed[64];
    assert_int_equal(codec_top(&p, 8), 4);
    ops_cpu.pack(&p, 8, x, packed);
    ops_cpu.add_packed(&p, 8, packed, 1.0f, sent);
    assert_memory_equal(sent, want, sizeof want);
}

/* A gradient that is not finite is not made finite by packing. */
static void what_is_not_finite_stays_so(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY};
    for (size_t c = 0; c < ARRAY_LEN(codecs); c++)
        for (size_t b = 0; b < ARRAY_LEN(bad); b++) {
            float x[200], sent[200] = {0}, packed[512];
            int spoiled = 0;
            fill(200, x);
            x[150] = bad[b];
            ops_cpu.pack(&codecs[c], 200, x, packed);
            ops_cpu.add_packed(&codecs[c], 200, packed, 1.0f, sent);
            for (int i = 0; i < 200; i++)
                spoiled += !isfinite(sent[i]);
            assert_true(spoiled > 0);
        }
}

#define JOB SMALL("300", "30", "", "\"epochs\": 12")

struct outcome {
    double loss, memory;
    struct buf weights;
};

static void run(const struct plan *p, struct outcome *ret)
{
    struct gang g;
    json_auto_t *doc = gang_job(JOB);
    *ret = (struct outcome){.weights = BUF_INIT};
    gang_open_plan(&g, doc, p);
    gang_run(&g);
    ret->loss = gang_number(gang_line(&g, "epoch", 0, 11), "loss");
    read_whole(&g, "model.safetensors", &ret->weights);
    gang_close(&g);
}

static void training_goes_where_it_goes_without(void **state)
{
    (void)state;
    struct outcome plain, have, again;
    struct plan p = {.kind = STRATEGY_MIRRORED, .data = 3};
    parallel_set_defaults(&p.parallel);
    run(&p, &plain);
    for (size_t c = 0; c < ARRAY_LEN(codecs); c++)
        for (int pipeline = 1; pipeline <= 2; pipeline++) {
            p.parallel.codec = codecs[c].codec;
            p.parallel.top_k = codecs[c].top_k > 0 ? codecs[c].top_k : 0.01;
            p.parallel.overlap = pipeline == 1;
            p.pipeline = pipeline;
            run(&p, &have);
            run(&p, &again);
            print_message("%s, %d stages: loss %g, without %g\n", codec_name(p.parallel.codec),
                          pipeline, have.loss, plain.loss);
            assert_true(fabs(have.loss - plain.loss) < 0.1 * plain.loss);
            assert_int_equal(have.weights.len, again.weights.len);
            assert_memory_equal(have.weights.data, again.weights.data, have.weights.len);
            buf_done(&have.weights);
            buf_done(&again.weights);
        }
    buf_done(&plain.weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sent_and_left_are_all),
        cmocka_unit_test(top_k_takes_the_largest),
        cmocka_unit_test(what_is_not_finite_stays_so),
        cmocka_unit_test(training_goes_where_it_goes_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
