/* Runs in which layers move between stages, and slices follow speeds: by the results nobody can
 * tell. What is slow is made up: the stages' clocks are told so. */
#include <math.h>
#include <sys/mman.h>

#include "tests/unit/trainer_gang.h"

/* Ten layers with work, of the same FLOPs but for the ends; 120 steps. */
#define DENSE "{\"type\": \"dense\", \"units\": 12, \"activation\": \"gelu\"},"
#define JOB(MORE)                                                                                  \
    "{\"name\": \"moving\", \"model\": {\"input\": [12], \"layers\": [" DENSE DENSE DENSE DENSE    \
        DENSE "{\"type\": \"dropout\", \"rate\": 0.2}," DENSE DENSE MORE DENSE DENSE               \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"adam\", \"learning_rate\": 0.003},"                 \
    "\"loss\": \"sparse_categorical_crossentropy\"},"                                              \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 100, \"input\": 12,"           \
    "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 24, \"seed\": 3, \"epochs\": 24,"    \
    "\"validation_split\": 0.2}}"

/* What ranks have seen, for the test to look at. */
struct seen {
    int first[16][4]; /* layers of each chunk, by rank: the last ones */
    int last;         /* of rank 0's first chunk */
    int moves;        /* of that */
    int64_t rows[16]; /* of the last batch, by rank */
};
static struct seen *seen;
static int slow_rank = -1; /* none */

static int setup(void **state)
{
    (void)state;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return seen == MAP_FAILED;
}

/* 0.4 seconds a pass for each layer, and one for those from the seventh on, or for those of a slow
 * rank; divided where a pass goes in parts. */
static int64_t dear_layers(const struct stage *s, int chunk)
{
    const struct net_chunk *k = &s->net.chunks[chunk];
    int dear = k->last - (k->first > 6 ? k->first : 6), all = k->last - k->first;
    dear = slow_rank >= 0 ? (slow_rank == s->mesh->rank ? all : 0) : dear > 0 ? dear : 0;
    seen->first[s->mesh->rank][chunk] = k->first;
    if (s->mesh->rank == 0 && chunk == 0) {
        seen->moves += seen->last > 0 && seen->last != k->last;
        seen->last = k->last;
    }
    return (dear * 1000000 + (all - dear) * 400000) / (s->layouts[chunk].bar_count + 1);
}

static void run_plan(const struct plan *p, const char *job, struct buf *weights, double losses[200])
{
    struct gang g;
    json_auto_t *doc = gang_job(job);
    memset(seen, 0, sizeof *seen);
    gang_open_plan(&g, doc, p);
    gang_run(&g);
    read_whole(&g, "model.safetensors", weights);
    size_t steps = gang_count(&g, "step");
    assert_in_range(steps, 90, 200);
    for (size_t i = 0; i < steps; i++)
        losses[i] = gang_number(gang_line(&g, "step", 0, i), "loss");
    gang_close(&g);
}

static void run_moving(struct plan *p, int rebalance, const char *job, struct buf *weights,
                       double losses[200])
{
    parallel_set_defaults(&p->parallel);
    p->parallel.rebalance = rebalance;
    run_plan(p, job, weights, losses);
}

static void check_moving(struct plan p, const char *job, const int *want_first)
{
    print_message("           %d x %d, %d chunks, zero %d\n", p.data, p.pipeline, p.chunks, p.zero);
    struct buf still = BUF_INIT, moved = BUF_INIT;
    double want[200] = {0}, got[200] = {0};
    stage_added_us = NULL;
    run_moving(&p, 0, job, &still, want);
    stage_added_us = dear_layers;
    run_moving(&p, 1, job, &moved, got);
    stage_added_us = NULL;
    for (int s = 0; want_first && s < p.pipeline * p.chunks; s++)
        for (int d = 0; d < p.data; d++)
            assert_int_equal(seen->first[d * p.pipeline + s % p.pipeline][s / p.pipeline],
                             want_first[s]);
    assert_int_equal(seen->moves, 1);
    assert_memory_equal(want, got, sizeof want);
    assert_int_equal(still.len, moved.len);
    assert_memory_equal(still.data, moved.data, moved.len);
    buf_done(&still);
    buf_done(&moved);
}

#define PIPELINE(D, P, V, M, S)                                                                    \
    ((struct plan){.kind = STRATEGY_PIPELINE,                                                      \
                   .data = (D),                                                                    \
                   .pipeline = (P),                                                                \
                   .chunks = (V),                                                                  \
                   .microbatches = (M),                                                            \
                   .schedule = SCHEDULE_##S})

/* Layers 0 to 10, cut by their FLOPs at first: at 6, or at 3 and 7. */
static void layers_move_and_nobody_can_tell(void **state)
{
    (void)state;
    static const int TWO[] = {0, 7}, THREE[] = {0, 6, 8};
    check_moving(PIPELINE(1, 2, 1, 3, 1F1B), JOB(""), TWO);
    struct plan three = PIPELINE(2, 3, 1, 2, GPIPE);
    check_moving(three, JOB(""), THREE);
    three.zero = 2;
    three.recompute = (unsigned char[]){0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0};
    check_moving(three, JOB(""), THREE);
}

static void chunks_move_too(void **state)
{
    (void)state;
    slow_rank = 1;
    check_moving(PIPELINE(1, 2, 2, 3, INTERLEAVED), JOB(""), NULL);
    slow_rank = -1;
}

/* Moving statistics belong to no optimizer, and go with their layer. */
static void statistics_move_with_their_layers(void **state)
{
    (void)state;
    struct plan p = PIPELINE(2, 3, 1, 1, GPIPE);
    check_moving(p, JOB("{\"type\": \"batch_normalization\"},"), NULL);
    p.zero = 3;
    check_moving(p, JOB("{\"type\": \"batch_normalization\"},"), NULL);
}

/* ---- slices by speed ---- */

/* Data rank 0 takes a millisecond an item, the others three. */
static int64_t slow_items(const struct stage *s, int chunk)
{
    int64_t rows = s->chunks[chunk].frames[0].rows;
    seen->rows[s->mesh->rank] = rows;
    return rows * (s->mesh->data_rank == 0 ? 1000000 : 3000000);
}

static void check_slices(struct plan p, const int64_t *want)
{
    struct buf plain = BUF_INIT, cut = BUF_INIT;
    double even[200] = {0}, got[200] = {0};
    stage_added_us = NULL;
    run_moving(&p, 0, JOB(""), &plain, even);
    stage_added_us = slow_items;
    p.parallel.shares = SHARES_MEASURED;
    run_plan(&p, JOB(""), &cut, got);
    stage_added_us = NULL;
    for (int i = 0; i < 96; i++)
        if (!(fabs(got[i] - even[i]) <= 1e-5 * even[i]))
            fail_msg("loss %d is %.9g, not %.9g", i + 1, got[i], even[i]);
    for (int d = 0; d < p.data; d++)
        assert_int_equal(seen->rows[d * p.pipeline], want[d]);
    buf_done(&plain);
    buf_done(&cut);
}

/* The last batch of an epoch has eight items: 3 to 1, and 3 to 1 to 1 to the nearest item. */
static void slices_follow_the_speeds(void **state)
{
    (void)state;
    static const int64_t TWO[] = {6, 2}, THREE[] = {5, 1, 2};
    check_slices(
        (struct plan){
            .kind = STRATEGY_MIRRORED, .data = 2, .pipeline = 1, .chunks = 1, .microbatches = 1},
        TWO);
    check_slices((struct plan){.kind = STRATEGY_MIRRORED,
                               .data = 3,
                               .pipeline = 1,
                               .chunks = 1,
                               .microbatches = 1,
                               .zero = 2},
                 THREE);
    check_slices(PIPELINE(2, 2, 1, 1, GPIPE), TWO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_move_and_nobody_can_tell),
        cmocka_unit_test(chunks_move_too),
        cmocka_unit_test(statistics_move_with_their_layers),
        cmocka_unit_test(slices_follow_the_speeds),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
