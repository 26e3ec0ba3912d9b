/* The ways in which a gang ends, on every transport: a rank killed, stopped, giving up, never
 * coming, calling something else, or writing rubbish. */
#include "tests/unit/trainer_comm.h"

#include <time.h>

static void a_killed_rank_ends_the_others(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++)
        for (int size = 2; size <= 5; size += 3) {
            struct ranks g;
            ranks_make(&g, t, size);
            ranks_start(&g, step_for_ever);
            ranks_wait_met(&g);
            kill(g.pids[1], SIGKILL);
            for (int r = 0; r < size; r++)
                assert_int_equal(status_of(g.pids[r]), r == 1 ? -SIGKILL : 10);
            ranks_close(&g);
        }
}

static void a_stopped_rank_times_the_others_out(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        ranks_make(&g, t, 3);
        g.deadline_ms = 400;
        ranks_start(&g, step_for_ever);
        ranks_wait_met(&g);
        kill(g.pids[1], SIGSTOP);
        /* Whoever times out first leaves; the other then finds it gone or times out too. */
        int a = status_of(g.pids[0]), b = status_of(g.pids[2]);
        assert_true((a == 12 && (b == 12 || b == 11)) || (b == 12 && a == 11));
        kill(g.pids[1], SIGKILL);
        status_of(g.pids[1]);
        ranks_close(&g);
    }
}

static int give_up_at_once(struct comm *world, int fd)
{
    struct err e;
    OK(world->verbs->barrier(world, &e)); /* all have come */
    if (world->rank != 1)
        return step_for_ever(world, fd);
    world->verbs->give_up(world, "I am tired");
    return 0;
}

static void a_rank_that_gives_up_is_quoted(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        ranks_make(&g, t, 3);
        ranks_start(&g, give_up_at_once);
        assert_int_equal(status_of(g.pids[1]), 0);
        assert_int_equal(status_of(g.pids[0]), 10);
        assert_int_equal(status_of(g.pids[2]), 10);
        ranks_close(&g);
    }
}

/* Messages that nobody takes: the third send waits, and ends with the rank that does not take them.
 */
static int send_to_the_dead(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    struct comm *line = everyone(world, COMM_PIPELINE);
    CLEANUP(mem_freep) char *m = mem_zalloc(MESSAGE);
    int r = 0;
    OK(world->verbs->barrier(world, &e));
    if (world->rank == 1)
        raise(SIGKILL);
    for (int i = 0; r == 0 && i < 1000; i++)
        r = line->verbs->send(line, 1, m, MESSAGE, &e);
    CHECK(r == ERR_PEER && strstr(e.text, "Rank 1 ") && strstr(e.text, "in send"));
    comm_close(line);
    return 0;
}

static void a_send_ends_with_its_receiver(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        ranks_make(&g, t, 2);
        ranks_start(&g, send_to_the_dead);
        assert_int_equal(status_of(g.pids[1]), -SIGKILL);
        assert_int_equal(status_of(g.pids[0]), 0);
        ranks_close(&g);
    }
}

/* ---- looking without waiting ---- */

/* Rank 1 makes a call, and another later; then it dies. */
static int look_on(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    uint64_t before, moved;
    OK(world->verbs->barrier(world, &e));
    if (world->rank == 1) {
        usleep(1200000);
        comm_progress(world);
        usleep(1200000);
        raise(SIGKILL);
    }
    int changes = 0, r;
    OK(world->verbs->check(world, "a look", &before, &e));
    while ((r = world->verbs->check(world, "a look", &moved, &e)) == 0) {
        changes += moved != before;
        before = moved;
        usleep(1000);
    }
    if (r != ERR_PEER || !strstr(e.text, "Rank 1 ") || !strstr(e.text, "in a look"))
        fprintf(stderr, "rank %d: %s\n", world->rank, e.text);
    CHECK(r == ERR_PEER && strstr(e.text, "Rank 1 ") && strstr(e.text, "in a look"));
    CHECK(changes >= 1);
    return 0;
}

static void a_look_sees_progress_and_death(void **state)
{
    (void)state;
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        ranks_make(&g, t, 3);
        ranks_start(&g, look_on);
        assert_int_equal(status_of(g.pids[1]), -SIGKILL);
        assert_int_equal(status_of(g.pids[0]), 0);
        assert_int_equal(status_of(g.pids[2]), 0);
        ranks_close(&g);
    }
}

/* ---- calls that differ ---- */

/* What the rank that sees it first says, it tells the others. */
static int come_apart(struct comm *world, int other(struct comm *, float *, struct err *),
                      const char *said)
{
    struct err e = {0};
    CLEANUP(mem_freep) float *x = mem_zalloc(40000 * sizeof *x);
    OK(world->verbs->barrier(world, &e));
    int r = world->rank == 1 ? other(world, x, &e)
                             : world->verbs->all_reduce(world, x, 5000, COMM_F32, &e);
    if (r == ERR_INTERNAL)
        world->verbs->give_up(world, e.text);
    CHECK(r == ERR_INTERNAL || r == ERR_PEER);
    if (!strstr(e.text, said) || !strstr(e.text, "all_reduce of 5000 float32"))
        fprintf(stderr, "rank %d: %s\n", world->rank, e.text);
    CHECK(strstr(e.text, said) && strstr(e.text, "all_reduce of 5000 float32"));
    return 0;
}

static int fewer(struct comm *world, float *x, struct err *e)
{
    return world->verbs->all_reduce(world, x, 4999, COMM_F32, e);
}

static int doubles(struct comm *world, float *x, struct err *e)
{
    return world->verbs->all_reduce(world, x, 5000, COMM_F64, e);
}

static int a_gather(struct comm *world, float *x, struct err *e)
{
    return world->verbs->all_gather(world, x, 20000, COMM_U8, e);
}

static int a_barrier(struct comm *world, float *x, struct err *e)
{
    (void)x;
    return world->verbs->barrier(world, e);
}

static int apart_fewer(struct comm *world, int fd)
{
    (void)fd;
    return come_apart(world, fewer, "all_reduce of 4999 float32");
}

static int apart_doubles(struct comm *world, int fd)
{
    (void)fd;
    return come_apart(world, doubles, "all_reduce of 5000 float64");
}

static int apart_gather(struct comm *world, int fd)
{
    (void)fd;
    return come_apart(world, a_gather, "all_gather of 20000 bytes");
}

static int apart_barrier(struct comm *world, int fd)
{
    (void)fd;
    return come_apart(world, a_barrier, "barrier");
}

static int apart_messages(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    char m[100] = {0};
    struct comm *line = everyone(world, COMM_PIPELINE);
    if (world->rank == 0) {
        OK(line->verbs->send(line, 1, m, 100, &e));
        CHECK(world->verbs->barrier(world, &e) == ERR_PEER);
    } else {
        CHECK(line->verbs->recv(line, 0, m, 99, &e) == ERR_INTERNAL);
        world->verbs->give_up(world, e.text);
    }
    CHECK(strstr(e.text, "sent 100 bytes where rank 1 expects 99"));
    comm_close(line);
    return 0;
}

static void calls_that_differ_are_named(void **state)
{
    (void)state;
    static rank_body *const CASES[] = {apart_fewer, apart_doubles, apart_gather, apart_barrier};
    for (size_t c = 0; c < ARRAY_LEN(CASES); c++) {
        expect_all(2, CASES[c]);
        expect_all(4, CASES[c]);
    }
    expect_all(2, apart_messages);
}

/* ---- deadlines ---- */

static int slow_but_alive(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    for (int i = 0; world->rank == 1 && i < 60; i++) {
        comm_progress(world);
        usleep(20000);
    }
    OK(world->verbs->barrier(world, &e));
    return 0;
}

static int busy_for_long(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    struct timespec t = {0};
    while (world->rank == 1 && t.tv_sec < 1) /* deadlines of processor time, without a word */
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    OK(world->verbs->barrier(world, &e));
    return 0;
}

static void expect_in_time(int size, int deadline_ms, rank_body *body)
{
    for (enum transport_used t = 0; t < TRANSPORTS; t++) {
        struct ranks g;
        ranks_make(&g, t, size);
        g.deadline_ms = deadline_ms;
        ranks_start(&g, body);
        for (int r = 0; r < size; r++)
            assert_int_equal(status_of(g.pids[r]), 0);
        ranks_close(&g);
    }
}

static void progress_keeps_the_deadline_away(void **state)
{
    (void)state;
    expect_in_time(2, 500, slow_but_alive); /* less than the slow rank takes in all */
}

static void who_computes_is_waited_for(void **state)
{
    (void)state;
    expect_in_time(3, 300, busy_for_long);
}

static void who_never_comes_is_named(void **state)
{
    (void)state;
    struct comm *world;
    struct err e;
    volatile int stop = 0;
    struct comm_options o = {.rank = 0, .size = 3, .deadline_ms = 150, .stop = &stop};
    struct ranks g;
    ranks_make(&g, SHM, 3);
    assert_int_equal(comm_shm_open(g.fd, &o, &world, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "Rank 1 did not come"));
    ranks_close(&g);
    ranks_make(&g, SHM, 3);
    stop = 1;
    assert_int_equal(comm_shm_open(g.fd, &o, &world, &e), ERR_UNAVAILABLE);
    assert_int_equal(comm_shm_open(g.fd, &o, &world, &e), ERR_CONFLICT); /* rank 0 twice */
    ranks_close(&g);
    ranks_make(&g, TCP, 3);
    struct comm_tcp_place p = place_of(&g, 0);
    stop = 0;
    assert_int_equal(comm_tcp_open(&p, &o, &world, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "Rank 1 did not come"));
    o.rank = 2;
    assert_int_equal(comm_tcp_open(&p, &o, &world, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "Rank 0 did not come"));
    assert_non_null(strstr(e.text, "127.0.0.1, port "));
    stop = 1;
    for (o.rank = 0; o.rank < 3; o.rank++)
        assert_int_equal(comm_tcp_open(&p, &o, &world, &e), ERR_UNAVAILABLE);
    ranks_close(&g);
}

/* ---- rubbish ---- */

/* Rank 1 scribbles over all that the gang shares. The others may fail or not, but they end by
 * themselves, and not by a signal. */
static int scribble(struct comm *world, int fd)
{
    if (world->rank != 1) {
        int r = step_for_ever(world, fd);
        return r >= 10 ? 0 : r;
    }
    off_t bytes = lseek(fd, 0, SEEK_END);
    uint32_t s = 4711;
    for (int round = 0; round < 3; round++)
        for (off_t at = 0; at + 4 <= bytes; at += 4) {
            s = s * 1664525u + 1013904223u;
            if (pwrite(fd, &s, 4, at) < 0)
                return 1;
            if (at > 60000) /* the control part lies in front */
                break;
        }
    return 0;
}

static void rubbish_crashes_nobody(void **state)
{
    (void)state;
    struct ranks g;
    ranks_make(&g, SHM, 3);
    g.deadline_ms = 1000;
    ranks_start(&g, scribble);
    for (int r = 0; r < 3; r++) {
        int status = status_of(g.pids[r]);
        assert_true(status == 0 || status == 99);
    }
    ranks_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_ends_the_others),
        cmocka_unit_test(a_stopped_rank_times_the_others_out),
        cmocka_unit_test(a_rank_that_gives_up_is_quoted),
        cmocka_unit_test(a_send_ends_with_its_receiver),
        cmocka_unit_test(a_look_sees_progress_and_death),
        cmocka_unit_test(calls_that_differ_are_named),
        cmocka_unit_test(progress_keeps_the_deadline_away),
        cmocka_unit_test(who_computes_is_waited_for),
        cmocka_unit_test(who_never_comes_is_named),
        cmocka_unit_test(rubbish_crashes_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
