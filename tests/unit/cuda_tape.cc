/* The tape: what is replayed as a graph does what was recorded, whatever arguments have changed. */
#include "tests/unit/emu_child.h"

#include "trainer/cuda/device_parts.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/tape.h"

#define N 700

__global__ static void scale_add(int64_t n, float scale, const float *x, float *y)
{
    GRID_STRIDE(i, n)
    y[i] = y[i] * 0.5f + scale * x[i];
}

struct pair {
    const float *x;
    float *y;
    int64_t n;
};
__global__ static void add_pair(pair p)
{
    GRID_STRIDE(i, p.n)
    p.y[i] += p.x[i];
}

struct bench {
    float *x[3], *y; /* [N] */
};

static int begin(struct bench *b, int is_plain)
{
    struct ops_options o = {COMPUTE_FLOAT32, 1 << 16, is_plain};
    struct err e = {};
    float host[N];
    if (cuda_open(&o, &e))
        return 0;
    for (int i = 0; i < N; i++)
        host[i] = static_cast<float>(i) * 0.25f - 7.0f;
    for (float *&x : b->x) {
        x = static_cast<float *>(cuda_alloc(N * sizeof(float)));
        cuda_upload(x, host, sizeof host);
    }
    b->y = static_cast<float *>(cuda_alloc(N * sizeof(float)));
    return cuda_finish(NULL) == 0;
}

/* A step as training has them: kernels whose arguments change, copies, zeroes and products. */
static void step(const struct bench *b, int t, int product)
{
    TAPE_LAUNCH(scale_add, tape_grid(N), TAPE_THREADS, 0, N, 1.0f / static_cast<float>(t + 1),
                b->x[t % 2], b->y);
    tape_copy(b->x[2], b->y, N * sizeof(float));
    if (product)
        cuda_gemm(0, 0, 10, 10, 10, b->x[0], b->x[1], 0.0f, b->x[2]);
    pair p = {b->x[2], b->y, N - t % 3};
    TAPE_LAUNCH(add_pair, tape_grid(N), TAPE_THREADS, 0, p);
    tape_zero(b->x[2], 64);
    TAPE_LAUNCH(add_pair, tape_grid(N), TAPE_THREADS, 0, p);
}

static float results[2][N];
static int run_steps(int is_plain, int count, float *ret)
{
    struct bench b;
    MUST(begin(&b, is_plain));
    struct tape_counts before = tape_counts();
    for (int t = 0; t < count; t++) {
        step(&b, t, t % 4 == 3);
        MUST(cuda_finish(NULL) == 0);
    }
    struct tape_counts c = tape_counts();
    cuda_download(ret, b.y, N * sizeof *ret);
    MUST(cuda_finish(NULL) == 0);
    MUST(c.refused == 0 && c.evicted == 0);
    MUST(c.captured == (is_plain ? 0 : 2)); /* with the product and without */
    MUST(c.replayed == (is_plain ? 0 : count - 2));
    MUST(c.direct - before.direct == (is_plain ? count : 2));
    cuda_close();
    return 0;
}

static int graphs_do_what_was_recorded(void)
{
    MUST(run_steps(0, 12, results[0]) == 0);
    MUST(run_steps(1, 12, results[1]) == 0);
    MUST(memcmp(results[0], results[1], sizeof results[0]) == 0);
    for (float y : results[0])
        MUST(y == y);
    return 0;
}

/* Sequences [first, end) take turns: i is the one with i + 4 kernels. */
static int take_turns(const struct bench *b, int first, int end)
{
    for (int i = first; i < end; i++) {
        for (int k = 0; k < i + 4; k++)
            TAPE_LAUNCH(scale_add, 1, 32, 0, 1, 1.0f, b->x[0], b->y);
        MUST(cuda_finish(NULL) == 0);
    }
    return 0;
}

static int few_graphs_are_kept(void)
{
    struct bench b;
    MUST(begin(&b, 0));
    for (int round = 0; round < 4; round++)
        MUST(take_turns(&b, 0, 50) == 0);
    struct tape_counts c = tape_counts();
    MUST(c.captured == 32 && c.evicted == 0); /* the rest goes as it is, round after round */
    MUST(c.replayed == 3 * 32);
    for (int round = 0; round < 200; round++) /* all but the first are out of use by now */
        MUST(take_turns(&b, 0, 1) == 0);
    MUST(take_turns(&b, 32, 40) == 0);
    c = tape_counts();
    MUST(c.captured == 40 && c.evicted == 8);
    MUST(take_turns(&b, 0, 1) == 0 && take_turns(&b, 9, 40) == 0); /* the least recent eight went */
    MUST(tape_counts().replayed == c.replayed + 32 && tape_counts().captured == 40);
    cuda_close();
    return 0;
}

static int short_ones_are_issued_as_they_are(void)
{
    struct bench b;
    MUST(begin(&b, 0));
    for (int round = 0; round < 5; round++) {
        for (int k = 0; k < 3; k++)
            TAPE_LAUNCH(scale_add, 1, 32, 0, 1, 1.0f, b.x[0], b.y);
        MUST(cuda_finish(NULL) == 0);
    }
    MUST(tape_counts().captured == 0 && tape_counts().replayed == 0);
    cuda_close();
    return 0;
}

/* Longer than a tape may be: it comes in pieces, in order. */
static int long_ones_come_in_pieces(void)
{
    struct bench b;
    float y = 0.0f;
    MUST(begin(&b, 0));
    tape_zero(b.y, sizeof y);
    for (int round = 0; round < 3; round++)
        for (int k = 0; k < 5000; k++) {
            pair p = {b.x[0], b.y, 1};
            TAPE_LAUNCH(add_pair, 1, 1, 0, p);
        }
    cuda_download(&y, b.y, sizeof y);
    MUST(y == 3 * 5000 * -7.0f);
    TAPE_LAUNCH(scale_add, tape_grid(0), 32, 0, 0, 1.0f, b.x[0], b.y); /* no block, no launch */
    MUST(cuda_finish(NULL) == 0);
    cuda_close();
    return 0;
}

/* No graph can be had: the same numbers come without, and nobody fails. */
static int capture_fails(void)
{
    struct bench b;
    MUST(begin(&b, 0));
    for (int t = 0; t < 12; t++) {
        step(&b, t, 0);
        MUST(cuda_finish(NULL) == 0);
    }
    struct tape_counts c = tape_counts();
    MUST(c.refused == 1 && c.captured == 0 && c.replayed == 0);
    cuda_download(results[0], b.y, sizeof results[0]);
    cuda_close();
    MUST(begin(&b, 1));
    for (int t = 0; t < 12; t++)
        step(&b, t, 0);
    cuda_download(results[1], b.y, sizeof results[1]);
    MUST(cuda_finish(NULL) == 0);
    MUST(memcmp(results[0], results[1], sizeof results[0]) == 0);
    cuda_close();
    return 0;
}

static void graphs(void **)
{
    expect_well_in_any_order(graphs_do_what_was_recorded);
    expect_well(few_graphs_are_kept, NULL);
    expect_well(short_ones_are_issued_as_they_are, NULL);
    expect_well(long_ones_come_in_pieces, NULL);
}

static void graphs_that_cannot_be_had(void **)
{
    expect_well(capture_fails, "TRAINYARD_EMU_FAIL=CAPTURE:1:cudaErrorStreamCaptureUnsupported");
    expect_well(capture_fails, "TRAINYARD_EMU_FAIL=GRAPH:1:cudaErrorNotSupported");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs),
        cmocka_unit_test(graphs_that_cannot_be_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
