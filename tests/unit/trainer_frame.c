/* Frames: what is predicted is what is taken, what is computed again takes less, what is rounded
 * half; and which outputs must be at hand whatever the plan asks for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "trainer/stage.h"

#define DENSE(N, F) "{\"type\": \"dense\", \"units\": " #N ", \"activation\": \"" F "\"},"
#define BN          "{\"type\": \"batch_normalization\"},"
#define ADD(BACK)   "{\"type\": \"add\", \"back\": " #BACK "},"
#define LAST        "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}"

/* A stage over a whole model, or one of a pipeline, on a device that counts. */
static size_t taken;

static void *counting_alloc(size_t bytes)
{
    taken += bytes;
    return ops_cpu.alloc(bytes);
}

struct bench {
    struct job_spec job;
    struct ops ops;
    struct plan plan;
    int first[MODEL_MAX_LAYERS + 1];
    struct mesh mesh;
    struct stage stage;
};

static const struct dataset SET = {.samples = 1000,
                                   .feature_size = 8,
                                   .target_type = TARGET_CLASS,
                                   .target_size = 1,
                                   .positions = 1};

static struct bench *bench_open(const char *layers, const struct plan *plan, int place,
                                int bfloat16)
{
    struct bench *b = mem_zalloc(sizeof *b);
    struct faults f;
    struct err e;
    CLEANUP(mem_freep)
    char *text = mem_printf("{\"input\": [8], \"layers\": [%s]}", layers);
    json_auto_t *doc = json_loads(text, 0, NULL);
    faults_init(&f);
    b->job = (struct job_spec){.loss = LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
                               .fit = {.batch_size = 64, .epochs = 1}};
    b->job.precision.activations = bfloat16 ? STORAGE_BFLOAT16 : STORAGE_FLOAT32;
    if (!doc || model_parse(doc, "/model", &b->job.model, &f) < 0)
        fail_msg("%s: %s", text, f.count ? f.items[0].message : "not JSON");
    faults_done(&f);
    b->ops = ops_cpu;
    b->ops.alloc = counting_alloc;
    b->plan = *plan;
    b->plan.data = b->plan.tensor = 1;
    b->plan.stage_first = b->first;
    assert_int_equal(plan_cut(&b->job, plan_stages(plan), b->first, &e), 0);
    mesh_place(&b->mesh, &b->plan, place);
    struct net_chunk *chunks = mem_alloc((size_t)plan->chunks * sizeof *chunks);
    mesh_chunks(&b->plan, place, chunks);
    assert_int_equal(net_init(&b->stage.net, &b->job, &b->ops, chunks, plan->chunks, 1, 0, &e), 0);
    free(chunks);
    taken = 0;
    if (stage_init(&b->stage, &b->job, &b->plan, &b->mesh, &SET, &e) < 0)
        fail_msg("%s", e.text);
    return b;
}

static void bench_close(struct bench *b)
{
    stage_done(&b->stage);
    model_done(&b->job.model);
    free(b);
}

#define PLAN(P, V, M, S)                                                                           \
    ((struct plan){.pipeline = (P), .chunks = (V), .microbatches = (M), .schedule = (S)})

static const char *const MODELS[] = {
    DENSE(9, "gelu") DENSE(33, "relu") "{\"type\": \"layer_normalization\"}," DENSE(21, "tanh")
        DENSE(7, "silu") DENSE(12, "linear") LAST,
    DENSE(9, "gelu") DENSE(9, "linear") BN ADD(2) DENSE(9, "relu") ADD(2) DENSE(9, "relu")
        BN DENSE(9, "silu") ADD(3) DENSE(5, "tanh") LAST,
};

static size_t bytes_of(const char *layers, const struct plan *p, int place, int bfloat16)
{
    struct bench *b = bench_open(layers, p, place, bfloat16);
    size_t bytes = stage_bytes(&b->stage, &SET);
    assert_int_equal(bytes, taken);
    bench_close(b);
    return bytes;
}

static void what_is_predicted_is_taken(void **state)
{
    (void)state;
    unsigned seed = 5;
    unsigned char again[16];
    for (int round = 0; round < 40; round++) {
        for (size_t l = 0; l < sizeof again; l++)
            again[l] = round > 0 && rand_r(&seed) % 2;
        for (int bfloat16 = 0; bfloat16 < 2; bfloat16++)
            for (int place = 0; place < 2; place++) {
                struct plan gpipe = PLAN(2, 1, 5, SCHEDULE_GPIPE),
                            one = PLAN(2, 1, 5, SCHEDULE_1F1B),
                            many = PLAN(2, 3, 7, SCHEDULE_INTERLEAVED);
                gpipe.recompute = one.recompute = many.recompute = again;
                for (size_t m = 0; m < ARRAY_LEN(MODELS); m++)
                    bytes_of(MODELS[m], &gpipe, place, bfloat16);
                size_t less = bytes_of(MODELS[0], &one, place, bfloat16);
                assert_true(less < bytes_of(MODELS[0], &gpipe, place, bfloat16));
                bytes_of(MODELS[0], &many, place, bfloat16);
            }
    }
}

static void computing_again_and_rounding_save_memory(void **state)
{
    (void)state;
    unsigned char all[16];
    memset(all, 1, sizeof all);
    struct plan p = PLAN(1, 1, 16, SCHEDULE_GPIPE);
    size_t plain = bytes_of(MODELS[0], &p, 0, 0), rounded = bytes_of(MODELS[0], &p, 0, 1);
    p.recompute = all;
    size_t again = bytes_of(MODELS[0], &p, 0, 0);
    assert_true(again < plain / 3);
    assert_true(rounded < plain * 3 / 4);
}

static enum frame_home home(const struct bench *b, int l)
{
    return b->stage.layouts[0].layers[l - b->stage.layouts[0].first].home;
}

/* Two stretches with a kept layer between; an add right behind a stretch may read from it, one
 * further on may not. */
static void what_must_be_at_hand_is_kept(void **state)
{
    (void)state;
    unsigned char again[] = {1, 1, 0, 1, 1, 0, 1, 1, 0};
    struct plan p = PLAN(1, 1, 2, SCHEDULE_GPIPE);
    p.recompute = again;
    struct bench *b = bench_open(DENSE(9, "tanh") DENSE(9, "tanh") DENSE(9, "tanh") DENSE(9, "tanh")
                                     DENSE(9, "tanh") ADD(2) ADD(5) DENSE(9, "tanh") LAST,
                                 &p, 0, 0);
    static const enum frame_home WANT[] = {FRAME_AGAIN, FRAME_KEPT,  FRAME_KEPT,
                                           FRAME_AGAIN, FRAME_AGAIN, FRAME_KEPT,
                                           FRAME_AGAIN, FRAME_AGAIN, FRAME_KEPT};
    for (int l = 0; l < 9; l++)
        assert_int_equal(home(b, l), WANT[l]);
    assert_int_equal(b->stage.layouts[0].layers[3].stretch, 3);
    assert_int_equal(b->stage.layouts[0].layers[4].stretch, 3);
    assert_int_equal(b->stage.layouts[0].layers[7].stretch, 6);
    assert_int_equal(b->stage.layouts[0].skip_count, 2);
    bench_close(b);
}

static void bars_keep_their_input(void **state)
{
    (void)state;
    unsigned char all[8];
    memset(all, 1, sizeof all);
    struct plan p = PLAN(1, 1, 2, SCHEDULE_GPIPE);
    p.recompute = all;
    struct bench *b = bench_open(
        DENSE(9, "tanh") "{\"type\": \"flatten\"}," BN DENSE(9, "tanh") BN ADD(2) LAST, &p, 0, 0);
    static const enum frame_home WANT[] = {FRAME_KEPT,  FRAME_PASSED, FRAME_AGAIN, FRAME_KEPT,
                                           FRAME_AGAIN, FRAME_AGAIN,  FRAME_KEPT};
    for (int l = 0; l < 7; l++)
        assert_int_equal(home(b, l), WANT[l]);
    assert_int_equal(b->stage.layouts[0].bar_count, 2);
    assert_int_equal(b->stage.layouts[0].bars[1], 4);
    bench_close(b);
}

/* Token numbers and features are not rounded, nor what the loss sees. */
static void the_ends_of_a_model_are_exact(void **state)
{
    (void)state;
    struct plan p = PLAN(1, 1, 1, SCHEDULE_GPIPE);
    struct bench *b =
        bench_open("{\"type\": \"rescaling\", \"scale\": 0.1}," DENSE(
                       9, "gelu") "{\"type\": \"dense\", \"units\": 4},"
                                  "{\"type\": \"activation\", \"activation\": \"softmax\"}",
                   &p, 0, 1);
    static const int ROUNDS[] = {0, 1, 0, 0};
    for (int l = 0; l < 4; l++)
        assert_int_equal(frame_rounds(&b->stage.net, l), ROUNDS[l]);
    assert_int_equal(frame_rounds(&b->stage.net, -1), 0);
    assert_true(b->stage.layouts[0].layers[1].kept_packed);
    bench_close(b);
}

static void ranks_sit_as_the_plan_says(void **state)
{
    (void)state;
    int first[] = {0, 1, 2, 3, 4, 5, 6};
    const struct plan p = {
        .ranks = 12, .data = 2, .pipeline = 3, .tensor = 2, .chunks = 2, .stage_first = first};
    for (int r = 0; r < 12; r++) {
        struct mesh m;
        struct net_chunk chunks[2];
        mesh_place(&m, &p, r);
        assert_int_equal(m.tensor_rank, r % 2);
        assert_int_equal(m.stage, r / 2 % 3);
        assert_int_equal(m.data_rank, r / 6);
        mesh_chunks(&p, m.stage, chunks);
        assert_int_equal(chunks[0].first, m.stage);
        assert_int_equal(chunks[1].first, m.stage + 3);
        assert_int_equal(chunks[1].last, m.stage + 4);
        assert_int_equal(mesh_has_outputs(&m), r % 6 == 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_predicted_is_taken),
        cmocka_unit_test(computing_again_and_rounding_save_memory),
        cmocka_unit_test(what_must_be_at_hand_is_kept),
        cmocka_unit_test(bars_keep_their_input),
        cmocka_unit_test(the_ends_of_a_model_are_exact),
        cmocka_unit_test(ranks_sit_as_the_plan_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
