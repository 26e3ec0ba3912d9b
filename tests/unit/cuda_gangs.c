/* Whole gangs on emulated GPUs: every way of dividing a run, with NCCL between the ranks. What does
 * not change the mathematics has the losses of one rank, to the rounding of sums in another order;
 * reproducible runs have its bits. */
#include "tests/unit/trainer_forms.h"

#include "spec/codec.h"

#define STEPS 10

/* 400 words, of which few are in a batch: their gradients go as lists. */
#define TABLE                                                                                      \
    "{\"model\": {\"input\": [3], \"layers\": ["                                                   \
    "{\"type\": \"embedding\", \"input_dim\": 400, \"output_dim\": 6},"                            \
    "{\"type\": \"flatten\"}, {\"type\": \"dense\", \"units\": 11, \"activation\": \"tanh\"},"     \
    "{\"type\": \"dense\", \"units\": 5, \"activation\": \"softmax\"}]}, "                         \
    "\"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": 0.02, "                  \
    "\"global_clipnorm\": 0.7}, \"loss\": \"sparse_categorical_crossentropy\"}, "                  \
    "\"data\": {\"train\": {\"format\": \"csv\", \"path\": \"words.csv\"}}, "                      \
    "\"fit\": {\"batch_size\": 10, \"seed\": 3, \"epochs\": 2}}"

struct losses {
    double at[STEPS];
    struct buf weights;
};

static struct plan plan_of(int data, int pipeline, int microbatches)
{
    struct plan p = {.kind = pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED,
                     .data = data,
                     .pipeline = pipeline,
                     .microbatches = microbatches};
    parallel_set_defaults(&p.parallel);
    return p;
}

static void write_words(struct gang *g)
{
    char path[160];
    snprintf(path, sizeof path, "%s/words.csv", g->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("a,b,c,label\n", f);
    for (int i = 0; i < 50; i++)
        fprintf(f, "%d,%d,%d,%d\n", i % 31, i * 3 % 29, 6 - i * 2 % 7, i * i % 5);
    fclose(f);
    free(g->roots[0]);
    g->roots[0] = mem_strdup(g->dir);
}

static void run(const char *job, const struct plan *p, struct losses *ret)
{
    struct gang g;
    json_auto_t *doc = gang_job(job);
    print_message("           data %d, pipeline %d, tensor %d, chunks %d, zero %d, sync %s, %s\n",
                  p->data, p->pipeline, p->tensor, p->chunks, p->zero, sync_name(p->parallel.sync),
                  codec_name(p->parallel.codec));
    *ret = (struct losses){.weights = BUF_INIT};
    gang_open_plan(&g, doc, p);
    write_words(&g);
    gang_run(&g);
    assert_int_equal(gang_count(&g, "step"), STEPS);
    for (size_t i = 0; i < STEPS; i++)
        ret->at[i] = step_number(&g, i, "loss");
    read_whole(&g, "model.safetensors", &ret->weights);
    gang_close(&g);
}

/* The first loss, before any update, hardly differs at all; those after it by what sums have lost,
 * grown by the optimizer. */
static void check_near(const struct losses *a, const struct losses *b, double near)
{
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(a->at[i] - b->at[i]) < (i == 0 ? 1e-5 : near)))
            fail_msg("step %d: loss %.7g, not %.7g", i + 1, a->at[i], b->at[i]);
}

static void expect_near(const char *job, const struct plan *p, const struct losses *one,
                        double near)
{
    struct losses x;
    run(job, p, &x);
    check_near(&x, one, near);
    buf_done(&x.weights);
}

static void data_ranks_divide_alike(void **state)
{
    (void)state;
    struct losses one;
    struct plan p = plan_of(1, 1, 1);
    run(DROPPING, &p, &one);
    for (int data = 2; data <= 3; data++)
        for (int zero = 0; zero < 4; zero++) {
            p = plan_of(data, 1, 1 + zero % 2);
            p.zero = zero;
            p.parallel.overlap = zero == 3 && data == 2;
            expect_near(DROPPING, &p, &one, 1e-3);
        }
    buf_done(&one.weights);
}

static void pipelines_and_tensor_ranks_do(void **state)
{
    (void)state;
    struct losses one;
    struct plan p = plan_of(1, 1, 1);
    run(DROPPING, &p, &one);
    static const enum pipeline_schedule ALL[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B};
    for (size_t i = 0; i < ARRAY_LEN(ALL); i++) {
        p = plan_of(1, 3, 5);
        p.schedule = ALL[i];
        expect_near(DROPPING, &p, &one, 1e-3);
    }
    p = plan_of(1, 2, 4);
    p.schedule = SCHEDULE_INTERLEAVED;
    p.chunks = 2;
    expect_near(DROPPING, &p, &one, 1e-3);
    p = plan_of(2, 2, 2);
    p.zero = 2;
    expect_near(DROPPING, &p, &one, 1e-3);
    p = plan_of(2, 1, 1);
    p.tensor = 2;
    expect_near(DROPPING, &p, &one, 1e-3);
    buf_done(&one.weights);
}

static void reproducible_runs_have_the_same_bits(void **state)
{
    (void)state;
    struct losses one, x;
    static const int MESH[][3] = {{2, 1, 0}, {4, 1, 2}, {2, 2, 3}};
    for (int i = -1; i < 3; i++) {
        int data = i < 0 ? 1 : MESH[i][0];
        struct plan p = plan_of(data, i < 0 ? 1 : MESH[i][1], 8 / data);
        p.zero = i < 0 ? 0 : MESH[i][2];
        p.parallel.reproducible = 1;
        p.parallel.grains = 8;
        run(REPRODUCIBLE("101", "22"), &p, i < 0 ? &one : &x);
        if (i < 0)
            continue;
        check_equal(&x.weights, &one.weights);
        buf_done(&x.weights);
    }
    buf_done(&one.weights);
}

static void other_ways_to_agree(void **state)
{
    (void)state;
    struct losses one;
    struct plan p = plan_of(1, 1, 1);
    p.parallel.sync = SYNC_DELAYED;
    run(DROPPING, &p, &one);
    p.data = 2;
    expect_near(DROPPING, &p, &one, 1e-3);
    buf_done(&one.weights);
    p = plan_of(1, 1, 1);
    run(DROPPING, &p, &one);
    p = plan_of(2, 1, 1);
    p.parallel.sync = SYNC_LOCAL_SGD;
    p.parallel.local_steps = 2;
    p.parallel.outer_momentum = 0.5;
    expect_near(DROPPING, &p, &one, 0.3); /* another course, to about the same place */
    static const enum codec_kind CODECS[] = {CODEC_BF16, CODEC_INT8};
    for (size_t i = 0; i < ARRAY_LEN(CODECS); i++) {
        p = plan_of(2, 1, 1);
        p.parallel.codec = CODECS[i];
        expect_near(DROPPING, &p, &one, 0.05);
    }
    buf_done(&one.weights);
    p = plan_of(1, 1, 1);
    run(TABLE, &p, &one);
    p.data = 3;
    expect_near(TABLE, &p, &one, 1e-3);
    buf_done(&one.weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_ranks_divide_alike),
        cmocka_unit_test(pipelines_and_tensor_ranks_do),
        cmocka_unit_test(reproducible_runs_have_the_same_bits),
        cmocka_unit_test(other_ways_to_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
