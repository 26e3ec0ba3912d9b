/* The TCP transport among strangers: who does not know the attempt's secret, or is of an older
 * epoch, or talks rubbish, or says nothing, is refused and gets not a byte; and what is altered,
 * held back or cut off on the way ends the gang with a sentence. */
#include "tests/unit/trainer_comm.h"

#include <poll.h>
#include <time.h>

#include "tests/fault/tcp_proxy.h"
#include "trainer/comm_tcp.h"

static const char SECRET[] = "0123456789abcdef";

/* ---- proofs ---- */

static struct tcp_hello hello_of(const unsigned char *key)
{
    struct tcp_hello h = {.epoch = 7,
                          .family = COMM_WORLD,
                          .lane = LANE_CONTROL,
                          .from = 1,
                          .to = 0,
                          .size = 2,
                          .host = "127.0.0.1",
                          .node = "n1",
                          .attempt = "att_test"};
    tcp_say_hello(key, &h);
    return h;
}

static void a_proof_holds_for_one_connection(void **state)
{
    (void)state;
    unsigned char key[TCP_KEY], wrong[TCP_KEY];
    struct tcp_answer a, b;
    struct tcp_last l;
    struct tcp_keys k, m;
    tcp_key_of(SECRET, key);
    tcp_key_of("0123456789abcdeF", wrong);
    struct tcp_hello h = hello_of(key), again = hello_of(key);
    assert_int_not_equal(memcmp(h.nonce, again.nonce, sizeof h.nonce), 0);
    assert_true(tcp_is_hello(&h) && tcp_check_hello(key, &h) && !tcp_check_hello(wrong, &h));
    tcp_say_answer(key, &h, &a);
    tcp_say_answer(key, &h, &b);
    assert_true(tcp_check_answer(key, &h, &a) && !tcp_check_answer(key, &again, &a));
    assert_false(tcp_check_answer(wrong, &h, &a));
    tcp_say_last(key, &h, &a, &l);
    assert_true(tcp_check_last(key, &h, &a, &l) && !tcp_check_last(key, &h, &b, &l));
    assert_false(tcp_check_last(key, &again, &a, &l));
    /* no answer is good as a last word, nor a hello's proof as an answer's */
    assert_false(memcmp(l.proof, a.proof, sizeof l.proof) == 0);
    tcp_keys_of(key, &h, &a, &k);
    tcp_keys_of(key, &h, &b, &m);
    assert_int_not_equal(memcmp(&k, &m, sizeof k), 0);
    assert_int_not_equal(memcmp(k.dialled, k.answered, sizeof k.dialled), 0);
    for (size_t i = 0; i < sizeof h; i++) { /* every bit of a hello is proved */
        struct tcp_hello x = h;
        ((unsigned char *)&x)[i] ^= 1;
        assert_false(tcp_is_hello(&x) && tcp_check_hello(key, &x));
    }
}

static struct tcp_head head_of(uint64_t bytes)
{
    return (struct tcp_head){.what = TCP_CALL, .call = {1, 0, 3, bytes}, .bytes = bytes};
}

/* A pair of links over a socket pair. */
static void link_up(struct tcp_link *a, struct tcp_link *b)
{
    struct tcp_keys k;
    int fds[2];
    memset(&k, 0x5c, sizeof k.dialled);
    memset(k.answered, 0x36, sizeof k.answered);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    tcp_link_init(a, fds[0], 1, &k, 1);
    tcp_link_init(b, fds[1], 0, &k, 0);
}

/* A frame as it lies on the wire. */
static size_t wire_of(struct tcp_link *from, struct tcp_link *to, const struct tcp_head *h,
                      const char *payload, unsigned char *wire, size_t size)
{
    struct tcp_move m;
    int some;
    tcp_move_send(&m, from, h, payload);
    while (!m.is_done)
        assert_int_equal(tcp_push(&m, &some), 0);
    ssize_t n = recv(to->fd, wire, size, MSG_DONTWAIT);
    assert_int_equal(n, tcp_frame_bytes(h->bytes));
    return (size_t)n;
}

/* What a receiver makes of these bytes, given in pieces. */
static int take(struct tcp_link *from, struct tcp_link *to, const struct tcp_head *h,
                const unsigned char *wire, size_t bytes, size_t piece, char *payload)
{
    struct tcp_move m;
    int some, r = 0;
    tcp_move_recv(&m, to, h, payload);
    for (size_t at = 0; at < bytes && r == 0; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        assert_int_equal(send(from->fd, wire + at, n, 0), n);
        r = tcp_pull(&m, &some);
    }
    return r ? r : m.is_done ? 0 : 1;
}

static void every_altered_byte_of_a_frame_is_noticed(void **state)
{
    (void)state;
    static const size_t SIZES[] = {0, 1, 100};
    unsigned char wire[512];
    char payload[100], got[100];
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (char)i;
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        struct tcp_head h = head_of(SIZES[s]);
        size_t bytes = tcp_frame_bytes(SIZES[s]);
        for (size_t flip = 0; flip <= bytes; flip++) {
            struct tcp_link a, b;
            link_up(&a, &b);
            wire_of(&a, &b, &h, payload, wire, sizeof wire);
            if (flip < bytes)
                wire[flip] ^= 0x40;
            int r = take(&a, &b, &h, wire, bytes, flip % 7 + 1, got);
            assert_int_equal(r, flip < bytes ? TCP_ALTERED : 0);
            if (r == 0)
                assert_memory_equal(got, payload, SIZES[s]);
            tcp_link_close(&a);
            tcp_link_close(&b);
        }
    }
}

static void a_frame_counts_once_and_in_its_place(void **state)
{
    (void)state;
    unsigned char first[512], second[512];
    char got[8];
    struct tcp_head h = head_of(8), other = head_of(8);
    struct tcp_link a, b;
    link_up(&a, &b);
    size_t n = wire_of(&a, &b, &h, "12345678", first, sizeof first);
    wire_of(&a, &b, &h, "12345678", second, sizeof second);
    assert_int_not_equal(memcmp(first, second, n), 0);
    assert_int_equal(take(&a, &b, &h, first, n, n, got), 0);
    assert_int_equal(take(&a, &b, &h, first, n, n, got), TCP_ALTERED); /* again */
    tcp_link_close(&a);
    tcp_link_close(&b);
    link_up(&a, &b);
    wire_of(&a, &b, &h, "12345678", first, sizeof first);
    wire_of(&a, &b, &h, "12345678", second, sizeof second);
    assert_int_equal(take(&a, &b, &h, second, n, n, got), TCP_ALTERED); /* one left out */
    tcp_link_close(&a);
    tcp_link_close(&b);
    link_up(&a, &b);
    wire_of(&a, &b, &h, "12345678", first, sizeof first);
    other.call.count = 9;
    assert_int_equal(take(&a, &b, &other, first, n, n, got), TCP_APART);
    tcp_link_close(&a);
    tcp_link_close(&b);
}

/* ---- strangers ---- */

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (;;) { /* until rank 0 listens */
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
            return fd;
        close(fd);
        usleep(1000);
    }
}

/* 1 if the other side has closed the connection without a byte. */
static int is_refused(int fd)
{
    char c;
    return recv(fd, &c, 1, 0) <= 0;
}

/* Ranks that meet, work while strangers knock, and end well. */

static int work(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    float x[5000];
    for (int step = 0; step < 50; step++) {
        for (size_t i = 0; i < 5000; i++)
            x[i] = (float)world->rank;
        OK(world->verbs->all_reduce(world, x, 5000, COMM_F32, &e));
        CHECK(x[0] == 1 && x[4999] == 1);
        usleep(2000);
    }
    return 0;
}

static void start_rank(struct ranks *g, int rank, rank_body *body)
{
    g->pids[rank] = fork();
    assert_true(g->pids[rank] >= 0);
    if (g->pids[rank] == 0) {
        alarm(120);
        _exit(rank_main(g, rank, body));
    }
}

/* What a stranger may say; each is refused. */
static void knock(int port)
{
    unsigned char key[TCP_KEY], wrong[TCP_KEY], junk[600];
    struct tcp_answer a;
    tcp_key_of(SECRET, key);
    tcp_key_of("another", wrong);
    int fd = dial(port);
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    assert_true(is_refused(fd));
    close(fd);
    for (int i = 0; i < 20; i++) {
        randombytes_buf(junk, sizeof junk);
        fd = dial(port);
        send(fd, junk, sizeof junk, MSG_NOSIGNAL);
        assert_true(is_refused(fd));
        close(fd);
    }
    struct tcp_hello h = hello_of(wrong);
    fd = dial(port);
    send(fd, &h, sizeof h, MSG_NOSIGNAL);
    assert_true(is_refused(fd));
    close(fd);
    /* a hello that was heard on the way: it is answered, but what must follow is not known */
    h = hello_of(key);
    h.family = COMM_TENSOR;
    h.lane = LANE_DATA;
    tcp_say_hello(key, &h);
    fd = dial(port);
    send(fd, &h, sizeof h, MSG_NOSIGNAL);
    assert_int_equal(recv(fd, &a, sizeof a, MSG_WAITALL), sizeof a);
    send(fd, a.proof, sizeof a.proof, MSG_NOSIGNAL);
    assert_true(is_refused(fd));
    close(fd);
}

static void strangers_are_refused(void **state)
{
    (void)state;
    struct ranks g;
    int silent[200];
    ranks_make(&g, TCP, 2);
    start_rank(&g, 0, work);
    knock(g.port); /* before the others come */
    for (size_t i = 0; i < ARRAY_LEN(silent); i++)
        silent[i] = dial(g.port); /* half-open: more than are kept waiting */
    start_rank(&g, 1, work);
    knock(g.port); /* and while they work */
    assert_int_equal(status_of(g.pids[0]), 0);
    assert_int_equal(status_of(g.pids[1]), 0);
    for (size_t i = 0; i < ARRAY_LEN(silent); i++) {
        assert_true(is_refused(silent[i]));
        close(silent[i]);
    }
    ranks_close(&g);
}

static void who_says_nothing_is_dropped(void **state)
{
    (void)state;
    struct ranks g;
    ranks_make(&g, TCP, 2);
    g.deadline_ms = 1000; /* and so long a stranger may take */
    start_rank(&g, 0, work);
    int fd = dial(g.port), part = dial(g.port);
    struct tcp_hello h = {.magic = "TYARD\0\0\1"};
    send(part, &h, 100, MSG_NOSIGNAL);
    assert_true(is_refused(fd) && is_refused(part));
    assert_int_equal(status_of(g.pids[0]), 99); /* rank 1 did not come */
    close(fd);
    close(part);
    ranks_close(&g);
}

/* ---- ranks that are not let in ---- */

static void expect_kept_out(struct ranks *g, const char *why_log)
{
    char line[512] = "";
    int out[2];
    assert_int_equal(pipe(out), 0);
    g->deadline_ms = 1500;
    int saved = dup(2);
    dup2(out[1], 2);
    start_rank(g, 0, work);
    dup2(saved, 2);
    start_rank(g, 1, work);
    assert_int_equal(status_of(g->pids[0]), 99);
    assert_int_equal(status_of(g->pids[1]), 99);
    ssize_t n = read(out[0], line, sizeof line - 1);
    line[n > 0 ? n : 0] = '\0';
    if (!strstr(line, why_log) || !strstr(line, "from=127.0.0.1:"))
        fail_msg("%s", line);
    close(out[0]);
    close(out[1]);
    close(saved);
    ranks_close(g);
}

static void a_wrong_secret_does_not_meet(void **state)
{
    (void)state;
    struct ranks g;
    ranks_make(&g, TCP, 2);
    g.secret[1] = "0123456789abcdeF";
    expect_kept_out(&g, "it does not know the attempt's secret");
}

static void an_older_epoch_does_not_meet(void **state)
{
    (void)state;
    struct ranks g;
    ranks_make(&g, TCP, 2);
    g.epoch[1] = 6;
    expect_kept_out(&g, "it says it is of attempt att_test, epoch 6; this is att_test, epoch 7");
}

static void a_rank_comes_once(void **state)
{
    (void)state;
    struct ranks g;
    ranks_make(&g, TCP, 2);
    start_rank(&g, 0, work);
    start_rank(&g, 1, work);
    char x;
    assert_int_equal(read(g.here[0], &x, 1), 1);
    struct ranks second = g;
    second.deadline_ms = 500;
    start_rank(&second, 1, work);
    assert_int_equal(status_of(second.pids[1]), 99);
    assert_int_equal(status_of(g.pids[0]), 0);
    assert_int_equal(status_of(g.pids[1]), 0);
    ranks_close(&g);
}

/* ---- a bad network ---- */

/* Rank 1 reaches rank 0 through a proxy. Statuses: 0 well, 20 ERR_IO with "was changed", 21
 * ERR_PEER with the other's name, 22 a deadline. */
static int step_through(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    CLEANUP(mem_freep) float *x = mem_zalloc(50000 * sizeof *x);
    int r = 0;
    for (int step = 0; r == 0 && step < 40; step++) {
        comm_set_step(world, step + 1);
        for (size_t i = 0; i < 50000; i++)
            x[i] = (float)(step + world->rank);
        r = world->verbs->all_reduce(world, x, 50000, COMM_F32, &e);
        for (size_t i = 0; r == 0 && i < 50000; i++)
            CHECK(x[i] == (float)(2 * step + 1));
    }
    if (r == 0)
        return 0;
    if (r != ERR_PEER)
        world->verbs->give_up(world, e.text);
    if (strstr(e.text, "was changed on its way"))
        return 20;
    if (r == ERR_TIMEOUT || strstr(e.text, "nothing moved"))
        return 22;
    if (r == ERR_PEER && strstr(e.text, world->rank == 0 ? "Rank 1 (node n1, 127.0.0.1)"
                                                         : "Rank 0 (node n0, 127.0.0.1)"))
        return 21;
    fprintf(stderr, "rank %d: %s\n", world->rank, e.text);
    return 23;
}

static pid_t start_proxy(const struct proxy_options *o)
{
    static struct proxy p;
    if (proxy_open(&p, o) < 0)
        fail_msg("the proxy cannot listen");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(120);
        for (;;)
            proxy_turn(&p);
    }
    close(p.listener);
    return pid;
}

/* Returns the larger status; both must be 0 or both not. */
static int through(struct proxy_options o, int deadline_ms)
{
    struct ranks g, far;
    ranks_make(&g, TCP, 2);
    g.deadline_ms = deadline_ms;
    far = g;
    far.port = free_port();
    o.listen_host = o.host = "127.0.0.1";
    o.listen_port = far.port;
    o.port = g.port;
    start_rank(&g, 0, step_through);
    close(dial(g.port)); /* it listens */
    pid_t proxy = start_proxy(&o);
    start_rank(&far, 1, step_through);
    int a = status_of(g.pids[0]), b = status_of(far.pids[1]);
    kill(proxy, SIGKILL);
    status_of(proxy);
    ranks_close(&g);
    if (!a != !b)
        fail_msg("rank 0 ended with %d, rank 1 with %d", a, b);
    return a > b ? a : b;
}

static const struct proxy_options NO_FAULT = {.flip_at = -1, .cut_after = -1, .stall_after = -1};

static void a_slow_network_changes_nothing(void **state)
{
    (void)state;
    struct proxy_options o = NO_FAULT;
    o.delay_ms = 3;
    assert_int_equal(through(o, 20000), 0);
}

static void what_is_altered_on_the_way_is_noticed(void **state)
{
    (void)state;
    struct proxy_options o = NO_FAULT;
    o.flip_at = 1000000;
    assert_int_equal(through(o, 20000), 20);
    o.flip_at = 100; /* in the first hello: refused, and the next try goes well */
    assert_int_equal(through(o, 20000), 0);
}

static void a_cut_ends_both_sides(void **state)
{
    (void)state;
    struct proxy_options o = NO_FAULT;
    o.cut_after = 1000000;
    assert_int_equal(through(o, 20000), 21);
}

static void silence_ends_both_sides(void **state)
{
    (void)state;
    struct proxy_options o = NO_FAULT;
    o.stall_after = 1000000;
    assert_int_equal(through(o, 700), 22);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proof_holds_for_one_connection),
        cmocka_unit_test(every_altered_byte_of_a_frame_is_noticed),
        cmocka_unit_test(a_frame_counts_once_and_in_its_place),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(who_says_nothing_is_dropped),
        cmocka_unit_test(a_wrong_secret_does_not_meet),
        cmocka_unit_test(an_older_epoch_does_not_meet),
        cmocka_unit_test(a_rank_comes_once),
        cmocka_unit_test(a_slow_network_changes_nothing),
        cmocka_unit_test(what_is_altered_on_the_way_is_noticed),
        cmocka_unit_test(a_cut_ends_both_sides),
        cmocka_unit_test(silence_ends_both_sides),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
