/* Rates, clipping and updates: of whole arenas and of parts of them, with moments as float32 and as
 * bfloat16. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/optimizer.h"

/* A net of its own arenas. */
struct bench {
    struct job_spec job;
    struct net net;
    float *parameters, *gradients;
    void *state[NET_STATES];
    enum storage_type moments;
};

static void bench_open(struct bench *b, const struct optimizer *o, enum storage_type moments,
                       const struct net_chunk *chunk)
{
    struct faults f;
    struct err e;
    faults_init(&f);
    *b = (struct bench){.job = {.loss = LOSS_MEAN_SQUARED_ERROR}, .moments = moments};
    json_auto_t *doc = json_loads("{\"input\": [3], \"layers\": ["
                                  "{\"type\": \"dense\", \"units\": 20},"
                                  "{\"type\": \"dense\", \"units\": 2}]}",
                                  0, NULL);
    assert_int_equal(model_parse(doc, "/model", &b->job.model, &f), 0);
    faults_done(&f);
    assert_int_equal(net_init(&b->net, &b->job, &ops_cpu, chunk, 1, 1, 0, &e), 0);
    b->parameters = ops_cpu.alloc(b->net.elements * sizeof(float));
    b->gradients = ops_cpu.alloc(b->net.trained * sizeof(float));
    for (int s = 0; s < optimizer_states(o); s++)
        b->state[s] = ops_cpu.alloc(b->net.trained * sizeof(float));
    for (int t = 0; t < b->net.tensor_count; t++)
        for (size_t i = 0; i < b->net.tensors[t].elements; i++) {
            size_t at = b->net.tensors[t].offset + i, seed = i + 31 * b->net.tensors[t].number;
            b->parameters[at] = (float)(seed % 11) * 0.1f - 0.5f;
            b->gradients[at] = (float)(seed % 7) - 3;
        }
}

static void bench_close(struct bench *b)
{
    net_done(&b->net);
    model_done(&b->job.model);
    free(b->parameters);
    free(b->gradients);
    for (int s = 0; s < NET_STATES; s++)
        free(b->state[s]);
}

static void update(struct bench *b, const struct optimizer *o, int64_t step, size_t begin,
                   size_t end)
{
    size_t width = b->moments == STORAGE_BFLOAT16 ? 2 : 4;
    struct optimizer_range x = {.begin = begin,
                                .end = end,
                                .parameter = b->parameters + begin,
                                .gradient = b->gradients + begin};
    for (int s = 0; s < NET_STATES; s++)
        x.state[s] = b->state[s] ? (char *)b->state[s] + begin * width : NULL;
    optimizer_update(o, &b->net, 0.1, step, 0.5, b->moments, &x);
}

static void cosine_warms_up_and_falls(void **state)
{
    (void)state;
    struct optimizer o = {.learning_rate = 0.4,
                          .schedule = SCHEDULE_COSINE,
                          .warmup_steps = 4,
                          .decay_steps = 12,
                          .alpha = 0.1};
    assert_true(fabs(optimizer_rate(&o, 0) - 0.1) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 3) - 0.4) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 4) - 0.4) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 8) - 0.4 * 0.55) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 12) - 0.04) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 1000) - 0.04) < 1e-12);
    o.schedule = SCHEDULE_CONSTANT;
    assert_true(optimizer_rate(&o, 7) == 0.4);
}

static void linear_falls_to_its_floor(void **state)
{
    (void)state;
    struct optimizer o = {.learning_rate = 0.4,
                          .schedule = SCHEDULE_LINEAR,
                          .warmup_steps = 4,
                          .decay_steps = 12,
                          .alpha = 0.1};
    assert_true(fabs(optimizer_rate(&o, 1) - 0.2) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 4) - 0.4) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 6) - 0.4 * (0.1 + 0.9 * 0.75)) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 12) - 0.04) < 1e-12);
    assert_true(fabs(optimizer_rate(&o, 1000) - 0.04) < 1e-12);
}

static void steps_fall_all_at_once(void **state)
{
    (void)state;
    struct optimizer o = {.learning_rate = 0.4,
                          .schedule = SCHEDULE_STEP,
                          .warmup_steps = 2,
                          .step_size = 3,
                          .gamma = 0.5};
    static const double want[] = {0.2, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1};
    for (int64_t s = 0; s < (int64_t)ARRAY_LEN(want); s++)
        assert_true(fabs(optimizer_rate(&o, s) - want[s]) < 1e-12);
}

static void clipping_scales_down_only(void **state)
{
    (void)state;
    struct optimizer o = {.global_clipnorm = 2};
    assert_true(optimizer_clip(&o, 1.5) == 1);
    assert_true(optimizer_clip(&o, 8) == 0.25);
    o.global_clipnorm = 0;
    assert_true(optimizer_clip(&o, 8) == 1);
}

static const struct net_chunk WHOLE = {0, 2}, SECOND = {1, 2};

static void weight_decay_spares_vectors_when_asked(void **state)
{
    (void)state;
    for (int spare = 0; spare < 2; spare++) {
        struct bench b;
        struct optimizer o = {.kind = OPTIMIZER_ADAMW,
                              .beta_1 = 0.9,
                              .beta_2 = 0.999,
                              .epsilon = 1e-7,
                              .weight_decay = 0.5,
                              .decay_matrices_only = spare};
        bench_open(&b, &o, STORAGE_FLOAT32, &WHOLE);
        CLEANUP(mem_freep) float *given = mem_alloc(b.net.elements * sizeof *given);
        memcpy(given, b.parameters, b.net.elements * sizeof *given);
        memset(b.gradients, 0, b.net.trained * sizeof *given);
        update(&b, &o, 1, 0, b.net.trained);
        for (int t = 0; t < b.net.tensor_count; t++)
            for (size_t i = 0; i < b.net.tensors[t].elements; i++) {
                size_t at = b.net.tensors[t].offset + i;
                float decay = spare && !b.net.tensors[t].spec->is_matrix ? 1.0f : 0.95f;
                assert_true(fabsf(b.parameters[at] - given[at] * decay) < 1e-6f);
            }
        bench_close(&b);
    }
}

static const struct optimizer KINDS[] = {
    {.kind = OPTIMIZER_ADAMW,
     .beta_1 = 0.9,
     .beta_2 = 0.999,
     .epsilon = 1e-7,
     .weight_decay = 0.5,
     .decay_matrices_only = 1},
    {.kind = OPTIMIZER_SGD, .momentum = 0.9, .nesterov = 1},
    {.kind = OPTIMIZER_SGD},
};

/* What data ranks do: each updates a part of the arena, cut wherever. */
static void an_update_in_parts_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(KINDS); k++)
        for (int m = STORAGE_FLOAT32; m <= STORAGE_BFLOAT16; m++) {
            struct bench whole, parts;
            bench_open(&whole, &KINDS[k], (enum storage_type)m, &WHOLE);
            bench_open(&parts, &KINDS[k], (enum storage_type)m, &WHOLE);
            size_t n = whole.net.trained;
            for (int64_t step = 1; step < 4; step++) {
                update(&whole, &KINDS[k], step, 0, n);
                for (size_t at = 0; at < n; at += 16)
                    update(&parts, &KINDS[k], step, at, at + 16);
            }
            update(&parts, &KINDS[k], 4, n, n); /* an empty part */
            assert_memory_equal(whole.parameters, parts.parameters, n * sizeof(float));
            bench_close(&whole);
            bench_close(&parts);
        }
}

/* What is rounded by chance hangs on the place in the model, not in the arena. */
static void a_stage_of_its_own_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(KINDS); k++) {
        struct bench whole, stage;
        bench_open(&whole, &KINDS[k], STORAGE_BFLOAT16, &WHOLE);
        bench_open(&stage, &KINDS[k], STORAGE_BFLOAT16, &SECOND);
        for (int64_t step = 1; step < 4; step++) {
            update(&whole, &KINDS[k], step, 0, whole.net.trained);
            update(&stage, &KINDS[k], step, 0, stage.net.trained);
        }
        assert_memory_equal(whole.parameters + whole.net.layers[1].begin, stage.parameters,
                            stage.net.trained * sizeof(float));
        bench_close(&whole);
        bench_close(&stage);
    }
}

/* Against float32 moments: no drift, though each step changes the second moment by less than
 * half of what bfloat16 can tell apart. */
static void moments_of_bfloat16_follow_those_of_float32(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float w[2][N], g[N], m[N], v[N];
    static uint16_t m16[N], v16[N];
    struct elem_adam a = {.rate = 1e-3f,
                          .beta_1 = 0.9f,
                          .rest_1 = 0.1f,
                          .beta_2 = 0.999f,
                          .rest_2 = 0.001f,
                          .epsilon = 1e-7f,
                          .scale = 1,
                          .decay = 1};
    for (int i = 0; i < N; i++)
        g[i] = 0.5f;
    for (uint64_t step = 1; step <= 1000; step++) {
        struct elem_dither d = {.update = step};
        ops_cpu.adam(&a, N, g, w[0], m, v);
        ops_cpu.adam_bfloat16(&a, &d, N, g, w[1], m16, v16);
    }
    double moment = 0, weight = 0;
    for (int i = 0; i < N; i++) {
        moment += (double)elem_from_bfloat16(v16[i]) / N;
        weight += (double)w[1][i] / N;
        assert_true(fabsf(elem_from_bfloat16(v16[i]) - v[i]) < 0.2f * v[i]);
    }
    assert_true(fabs(moment - (double)v[0]) < 0.01 * (double)v[0]);
    assert_true(fabs(weight - (double)w[0][0]) < 0.01 * fabs((double)w[0][0]));
}

static void rounding_by_chance_keeps_what_cannot_be_rounded(void **state)
{
    (void)state;
    assert_true(isnan((double)elem_from_bfloat16(elem_to_bfloat16_by_chance(NAN, 0xffff))));
    assert_true(elem_from_bfloat16(elem_to_bfloat16_by_chance(-INFINITY, 0xffff)) == -INFINITY);
    assert_true(elem_from_bfloat16(elem_to_bfloat16_by_chance(1.5f, 0xffff)) == 1.5f);
    assert_true(elem_from_bfloat16(elem_to_bfloat16_by_chance(0.0f, 0xffff)) == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_warms_up_and_falls),
        cmocka_unit_test(linear_falls_to_its_floor),
        cmocka_unit_test(steps_fall_all_at_once),
        cmocka_unit_test(clipping_scales_down_only),
        cmocka_unit_test(weight_decay_spares_vectors_when_asked),
        cmocka_unit_test(an_update_in_parts_gives_the_same_bits),
        cmocka_unit_test(a_stage_of_its_own_gives_the_same_bits),
        cmocka_unit_test(moments_of_bfloat16_follow_those_of_float32),
        cmocka_unit_test(rounding_by_chance_keeps_what_cannot_be_rounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
