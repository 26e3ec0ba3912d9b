/* The ways in which a gang of GPUs ends: a rank killed, stopped, giving up or failing while others
 * wait for it in each kind of wait; a GPU given twice, other versions of NCCL, errors of NCCL, and
 * an abort that does not return. */
#include "tests/unit/cuda_comm.h"

#include <time.h>

static int ready[2]; /* a pipe: a byte from each rank that has done what comes before the end */

static int say_ready(void)
{
    return write(ready[1], "x", 1) == 1 ? 0 : -1;
}

static void wait_ready(int size)
{
    char x;
    for (int r = 0; r < size; r++)
        assert_int_equal(read(ready[0], &x, 1), 1);
}

static void close_ranks(struct ranks *g)
{
    ranks_close(g);
    close(ready[0]);
    close(ready[1]);
}

static void fork_gpus(struct ranks *g, enum transport_used t, int size, int deadline_ms,
                      rank_body *body)
{
    gpus.is_reproducible = 0;
    gpus.deadline_ms = deadline_ms;
    gpus.body = body;
    assert_int_equal(pipe(ready), 0);
    ranks_make(g, t, size);
    ranks_start(g, on_gpus);
}

/* How a rank has ended: 10, 11 and 12 as step_for_ever() has them. */
static int judge(const struct comm *world, int r, const struct err *e, const char *where)
{
    int named = strstr(e->text, "Rank 1 (pid ") || strstr(e->text, "Rank 1 (node n1, 127.0.0.1)");
    if (r == ERR_PEER && ((named && strstr(e->text, where)) || strstr(e->text, "I am tired")))
        return 10;
    fprintf(stderr, "rank %d: %s\n", world->rank, e->text);
    return r == ERR_PEER ? 11 : r == ERR_TIMEOUT ? 12 : 13;
}

/* ---- kinds of waits ---- */

enum wait { WAIT_REDUCE, WAIT_BESIDE, WAIT_RECEIVE, WAIT_SEND, WAIT_EXCHANGE, WAITS };
static const char *const WHERE[] = {"in all_reduce", "in all_reduce", "in recv", "in send",
                                    "in exchange"};
static enum wait kind; /* before the fork */

/* Asks for one thing, with rank 1 or without it, and waits for the GPU. */
static int take_turn(struct comm *c, float *x, struct err *e)
{
    int64_t mine = 0, all[16];
    int r = 0;
    switch (kind) {
    case WAIT_REDUCE:
    case WAIT_BESIDE: r = c->verbs->all_reduce(c, x, 5000, COMM_F32, e); break;
    case WAIT_RECEIVE: r = c->verbs->recv(c, c->size - 1, x, 20000, e); break;
    case WAIT_SEND: r = c->verbs->send(c, (c->rank + 1) % c->size, x, 20000, e); break;
    default: return c->verbs->exchange(c, &mine, sizeof mine, all, e);
    }
    if (r == 0)
        r = c->verbs->settle(c, c->call.number, e);
    return r == 0 ? cuda_finish(e) : r;
}

/* Rank 1 does nothing more; rank 0 (and with sums all others) waits for it. */
static int wait_for_the_dead(struct comm *world, int fd)
{
    (void)fd;
    static const enum comm_family OF[] = {COMM_BATCH, COMM_DATA, COMM_PIPELINE, COMM_PIPELINE,
                                          COMM_TENSOR};
    struct err e = {0};
    struct comm *c = everyone(world, OF[kind]);
    CLEANUP(mem_freep) float *host = mem_zalloc(20000);
    float *x = on_gpu(host, 20000);
    OK(cuda_finish(&e));
    OK(world->verbs->barrier(world, &e));
    comm_set_step(world, 3);
    CHECK(say_ready() == 0);
    if (world->rank == 1)
        pause(); /* until it is killed */
    int r = 0;
    for (int i = 0; r == 0 && i < 1000; i++)
        r = take_turn(c, x, &e);
    CHECK(r == ERR_PEER && cuda_finish(NULL) == ERR_PEER); /* and so it stays */
    return judge(world, r, &e, WHERE[kind]);
}

static void a_killed_rank_ends_every_wait(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++)
        for (kind = 0; kind < WAITS; kind++) {
            struct ranks g;
            int size = kind == WAIT_RECEIVE || kind == WAIT_SEND ? 2 : 3;
            fork_gpus(&g, t, size, 60000, wait_for_the_dead);
            wait_ready(size);
            usleep(100000);
            kill(g.pids[1], SIGKILL);
            for (int r = 0; r < size; r++)
                assert_int_equal(status_of(g.pids[r]), r == 1 ? -SIGKILL : 10);
            close_ranks(&g);
        }
}

static int sum_for_ever(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    float host[5000] = {0}, *x = on_gpu(host, sizeof host);
    int r = 0;
    for (int64_t step = 1; r == 0; step++) {
        comm_set_step(world, step);
        r = world->verbs->all_reduce(world, x, 5000, COMM_F32, &e);
        if (r == 0)
            r = cuda_finish(&e);
        CHECK(step != 5 || say_ready() == 0);
    }
    return judge(world, r, &e, "in all_reduce at step ");
}

static void a_stopped_rank_times_the_others_out(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        fork_gpus(&g, t, 3, 1500, sum_for_ever);
        wait_ready(3);
        kill(g.pids[1], SIGSTOP);
        /* Whoever times out first leaves; the other then finds it gone or times out too. */
        int a = status_of(g.pids[0]), b = status_of(g.pids[2]);
        assert_true((a == 12 && (b == 12 || b == 11)) || (b == 12 && a == 11));
        kill(g.pids[1], SIGKILL);
        status_of(g.pids[1]);
        close_ranks(&g);
    }
}

static int give_up_after_some(struct comm *world, int fd)
{
    struct err e = {0};
    float host[5000] = {0}, *x = on_gpu(host, sizeof host);
    if (world->rank != 1)
        return sum_for_ever(world, fd);
    for (int i = 0; i < 10; i++)
        OK(world->verbs->all_reduce(world, x, 5000, COMM_F32, &e));
    OK(cuda_finish(&e));
    OK(world->verbs->all_reduce(world, x, 5000, COMM_F32, &e)); /* under way when it ends */
    world->verbs->give_up(world, "I am tired");
    CHECK(cuda_finish(&e) == ERR_PEER && strstr(e.text, "I am tired"));
    return 0;
}

static void a_rank_that_gives_up_is_quoted(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        fork_gpus(&g, t, 3, 60000, give_up_after_some);
        assert_int_equal(status_of(g.pids[1]), 0);
        assert_int_equal(status_of(g.pids[0]), 10);
        assert_int_equal(status_of(g.pids[2]), 10);
        close_ranks(&g);
    }
}

/* ---- who waits long, and rightly ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Rank 1's GPU has much to do before its sum; the others wait far beyond the deadline. */
static int computes_long(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    enum { N = 400000 };
    CLEANUP(mem_freep) float *host = mem_zalloc(N * sizeof *host);
    float *x = on_gpu(host, N * sizeof *x);
    double began = seconds();
    if (world->rank == 1)
        for (int i = 0; seconds() - began < 3.5; i++) {
            cuda_affine(N, 1, 1, x, x);
            OK(cuda_finish(&e));
        }
    OK(world->verbs->all_reduce(world, x, 5000, COMM_F32, &e));
    OK(cuda_finish(&e));
    return 0;
}

static void a_gpu_at_work_is_waited_for(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        fork_gpus(&g, t, 2, 1500, computes_long);
        assert_int_equal(status_of(g.pids[0]), 0);
        assert_int_equal(status_of(g.pids[1]), 0);
        close_ranks(&g);
    }
}

/* ---- NCCL's own errors ---- */

/* The third kernel of rank 1 fails; nobody has died. */
static int nccl_fails(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    float host[5000] = {0}, *x = on_gpu(host, sizeof host);
    int r = 0;
    for (int i = 0; r == 0 && i < 10; i++) {
        r = world->verbs->all_reduce(world, x, 5000, COMM_F32, &e);
        if (r == 0)
            r = cuda_finish(&e);
    }
    if (world->rank == 1) {
        if (r != ERR_IO)
            fprintf(stderr, "rank 1: %s\n", e.text);
        CHECK(r == ERR_IO && strstr(e.text, "NCCL could not") && strstr(e.text, "system error"));
        world->verbs->give_up(world, e.text);
        return 0;
    }
    CHECK(r == ERR_PEER && strstr(e.text, "Rank 1 ") && strstr(e.text, "system error"));
    return 0;
}

static void an_error_of_nccl_ends_all_with_its_words(void **state)
{
    (void)state;
    struct ranks g;
    setenv("TRAINYARD_EMU_NCCL_FAIL", "1:3:2", 1);
    fork_gpus(&g, SHM, 3, 60000, nccl_fails);
    for (int r = 0; r < 3; r++)
        assert_int_equal(status_of(g.pids[r]), 0);
    close_ranks(&g);
    unsetenv("TRAINYARD_EMU_NCCL_FAIL");
}

static void an_abort_that_hangs_is_left_behind(void **state)
{
    (void)state;
    struct ranks g;
    setenv("TRAINYARD_EMU_NCCL_ABORT", "hang", 1);
    fork_gpus(&g, SHM, 3, 60000, sum_for_ever);
    wait_ready(3);
    kill(g.pids[1], SIGKILL);
    for (int r = 0; r < 3; r++)
        assert_int_equal(status_of(g.pids[r]), r == 1 ? -SIGKILL : 10);
    close_ranks(&g);
    unsetenv("TRAINYARD_EMU_NCCL_ABORT");
}

/* ---- who may not begin ---- */

static const char *wanted; /* in the sentence of every rank */

/* A rank_body over the hosts: NCCL's world must not come to be. */
static int is_refused(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    struct comm *nccl;
    struct comm_options o = {.rank = world->rank, .size = world->size, .deadline_ms = 20000};
    if (world->rank == 2)
        setenv("TRAINYARD_EMU_NCCL_VERSION", gpus.body ? "22907" : "22809", 1);
    OK(open_gpu(gpus.body ? world->rank : world->rank % 2, &e));
    CHECK(comm_nccl_open(world, &o, &nccl, &e) < 0);
    if (!strstr(e.text, wanted))
        fprintf(stderr, "rank %d: %s\n", world->rank, e.text);
    CHECK(strstr(e.text, wanted));
    OK(world->verbs->barrier(world, &e)); /* the hosts' world is as it was */
    return 0;
}

static void one_gpu_is_for_one_rank(void **state)
{
    (void)state;
    gpus.body = NULL;
    wanted = "Ranks 0 and 2 were given the same GPU, GPU-00000000-0000-4000-8000-000000000000 of "
             "node ";
    for (enum transport_used t = 0; t < TRANSPORTS; t++)
        expect_on(t, 3, is_refused);
    setenv("TRAINYARD_NCCL_SHARE_GPU", "1", 1); /* this NCCL is too old for that, and says so */
    wanted = "invalid usage: Duplicate GPU detected";
    expect_on(SHM, 3, is_refused);
    unsetenv("TRAINYARD_NCCL_SHARE_GPU");
}

static void all_have_the_same_nccl(void **state)
{
    (void)state;
    gpus.body = is_refused;
    wanted = "rank 2 on node ";
    expect_on(SHM, 3, is_refused);
    wanted = "2.29.7; all ranks of a job need the same";
    expect_on(SHM, 3, is_refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_ends_every_wait),
        cmocka_unit_test(a_stopped_rank_times_the_others_out),
        cmocka_unit_test(a_rank_that_gives_up_is_quoted),
        cmocka_unit_test(a_gpu_at_work_is_waited_for),
        cmocka_unit_test(an_error_of_nccl_ends_all_with_its_words),
        cmocka_unit_test(an_abort_that_hangs_is_left_behind),
        cmocka_unit_test(one_gpu_is_for_one_rank),
        cmocka_unit_test(all_have_the_same_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
