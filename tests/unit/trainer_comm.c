/* Collectives between real processes, on every transport: exact sums of whole numbers for sizes
 * around every border, at one, two and prime numbers of ranks; the bits of the tree; groups,
 * channels, and two threads of a rank. */
#include "tests/unit/trainer_comm.h"

#include <math.h>
#include <pthread.h>

/* ---- sums ---- */

static const size_t COUNTS[] = {0,    1,    15,   16,    17,     33,    1000,
                                4096, 4097, 5003, 70001, 131072, 200000};

static float part_of(int rank, size_t i)
{
    return (float)((int)(i * 7 % 1001) - 500 + rank * 3);
}

static float sum_of(int size, size_t i)
{
    float sum = 0;
    for (int r = 0; r < size; r++)
        sum += part_of(r, i);
    return sum;
}

static int reduce_floats(struct comm *world, float *buf)
{
    struct err e;
    for (size_t c = 0; c < ARRAY_LEN(COUNTS); c++) {
        size_t n = COUNTS[c], begin, end;
        for (int round = 0; round < 3; round++) {
            for (size_t i = 0; i < n; i++)
                buf[i] = part_of(world->rank, i);
            CHECK(world->verbs->all_reduce(world, buf, n, COMM_F32, &e) == 0);
            for (size_t i = 0; i < n; i++)
                CHECK(buf[i] == sum_of(world->size, i));
        }
        for (size_t i = 0; i < n; i++)
            buf[i] = part_of(world->rank, i);
        CHECK(world->verbs->reduce_scatter(world, buf, n, COMM_F32, &e) == 0);
        comm_part(n, world->size, world->rank, &begin, &end);
        for (size_t i = begin; i < end; i++)
            CHECK(buf[i] == sum_of(world->size, i));
        for (size_t i = begin; i < end; i++)
            buf[i] = (float)i;
        CHECK(world->verbs->all_gather(world, buf, n, COMM_F32, &e) == 0);
        for (size_t i = 0; i < n; i++)
            CHECK(buf[i] == (float)i);
    }
    return 0;
}

static int sums_shared_and_not(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    void *shared;
    CHECK(world->verbs->memory(world, 200000 * sizeof(float), &shared, &e) == 0);
    CHECK((uintptr_t)shared % 64 == 0);
    CLEANUP(mem_freep) float *own = mem_alloc(200000 * sizeof *own);
    return reduce_floats(world, shared) || reduce_floats(world, own);
}

static int sums_of_doubles(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    double x[700];
    for (size_t i = 0; i < 700; i++)
        x[i] = (double)(world->rank + 1) * ldexp(1, (int)(i % 40));
    CHECK(world->verbs->all_reduce(world, x, 700, COMM_F64, &e) == 0);
    double all = world->size * (world->size + 1) / 2.0;
    for (size_t i = 0; i < 700; i++)
        CHECK(x[i] == all * ldexp(1, (int)(i % 40)));
    return 0;
}

/* Numbers whose sums depend on the order. */
static double rough(int rank, size_t i)
{
    uint64_t x = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    return ldexp((double)(int32_t)(x >> 32) / 2147483648.0, (int)(x % 24) - 12);
}

/* The tree of comm.h, written down another way: neighbours are added, level by level. */
static float tree_f32(int size, size_t i)
{
    float x[16];
    for (int r = 0; r < size; r++)
        x[r] = (float)rough(r, i);
    for (int left = size; left > 1; left = (left + 1) / 2)
        for (int k = 0; k < (left + 1) / 2; k++)
            x[k] = 2 * k + 1 < left ? x[2 * k] + x[2 * k + 1] : x[2 * k];
    return x[0];
}

static double tree_f64(int size, size_t i)
{
    double x[16];
    for (int r = 0; r < size; r++)
        x[r] = rough(r, i);
    for (int left = size; left > 1; left = (left + 1) / 2)
        for (int k = 0; k < (left + 1) / 2; k++)
            x[k] = 2 * k + 1 < left ? x[2 * k] + x[2 * k + 1] : x[2 * k];
    return x[0];
}

static int reduce_rough_floats(struct comm *world, float *buf, size_t n)
{
    struct err e;
    size_t begin, end;
    for (size_t i = 0; i < n; i++)
        buf[i] = (float)rough(world->rank, i);
    CHECK(world->verbs->all_reduce(world, buf, n, COMM_F32, &e) == 0);
    for (size_t i = 0; i < n; i++)
        CHECK(buf[i] == tree_f32(world->size, i));
    for (size_t i = 0; i < n; i++)
        buf[i] = (float)rough(world->rank, i);
    CHECK(world->verbs->reduce_scatter(world, buf, n, COMM_F32, &e) == 0);
    comm_part(n, world->size, world->rank, &begin, &end);
    for (size_t i = begin; i < end; i++)
        CHECK(buf[i] == tree_f32(world->size, i));
    return 0;
}

static int reduce_rough_doubles(struct comm *world, double *buf, size_t n)
{
    struct err e;
    for (size_t i = 0; i < n; i++)
        buf[i] = rough(world->rank, i);
    CHECK(world->verbs->all_reduce(world, buf, n, COMM_F64, &e) == 0);
    for (size_t i = 0; i < n; i++)
        CHECK(buf[i] == tree_f64(world->size, i));
    return 0;
}

static int sums_in_a_tree(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    void *shared;
    CHECK(world->verbs->memory(world, 100000 * sizeof(double), &shared, &e) == 0);
    CLEANUP(mem_freep) void *own = mem_alloc(100000 * sizeof(double));
    for (size_t n = 1; n < 100000; n = n * 5 + 3)
        if (reduce_rough_floats(world, shared, n) || reduce_rough_floats(world, own, n) ||
            reduce_rough_doubles(world, shared, n) || reduce_rough_doubles(world, own, n))
            return 1;
    return 0;
}

static void sums_have_the_bits_of_the_tree(void **state)
{
    (void)state;
    static const int SIZES[] = {2, 3, 4, 5, 6, 7, 8, 11, 16};
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++)
        expect_all(SIZES[s], sums_in_a_tree);
}

static void all_sums_are_exact(void **state)
{
    (void)state;
    static const int SIZES[] = {1, 2, 3, 5, 7};
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        expect_all(SIZES[s], sums_shared_and_not);
        expect_all(SIZES[s], sums_of_doubles);
    }
}

static void parts_cover_everything_once(void **state)
{
    (void)state;
    for (size_t count = 0; count < 300; count++)
        for (int size = 1; size < 9; size++) {
            size_t at = 0, begin, end;
            for (int i = 0; i < size; i++) {
                comm_part(count, size, i, &begin, &end);
                assert_int_equal(begin, at);
                assert_true(end >= begin && (begin % 16 == 0 || begin == count));
                at = end;
            }
            assert_int_equal(at, count);
        }
}

/* ---- the other verbs ---- */

static int broadcasts(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    size_t n = 700000; /* more than two stages */
    CLEANUP(mem_freep) char *buf = mem_alloc(n);
    for (int root = 0; root < world->size; root++) {
        memset(buf, world->rank == root ? 'a' + root : 0, n);
        CHECK(world->verbs->broadcast(world, buf, n, root, &e) == 0);
        for (size_t i = 0; i < n; i++)
            CHECK(buf[i] == 'a' + root);
    }
    return 0;
}

static int exchanges(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    int64_t all[16][2];
    for (int64_t round = 0; round < 500; round++) {
        int64_t mine[2] = {world->rank, round};
        CHECK(world->verbs->exchange(world, mine, sizeof mine, all, &e) == 0);
        for (int r = 0; r < world->size; r++)
            CHECK(all[r][0] == r && all[r][1] == round);
    }
    return 0;
}

/* A message goes up the line and comes back down, growing on the way. */
static int line_of(struct comm *world)
{
    struct err e;
    CLEANUP(mem_freep) unsigned char *m = mem_zalloc(MESSAGE);
    int up = world->rank + 1, down = world->rank - 1;
    for (size_t round = 0; round < 50; round++) {
        size_t n = round * 811 % MESSAGE;
        if (down >= 0)
            CHECK(world->verbs->recv(world, down, m, n, &e) == 0);
        else
            memset(m, (int)round, n);
        for (size_t i = 0; i < n; i++)
            m[i]++;
        if (up < world->size) {
            CHECK(world->verbs->send(world, up, m, n, &e) == 0);
            CHECK(world->verbs->recv(world, up, m, n, &e) == 0);
        }
        for (size_t i = 0; i < n; i++)
            CHECK(m[i] == (unsigned char)(round + (size_t)world->size));
        if (down >= 0)
            CHECK(world->verbs->send(world, down, m, n, &e) == 0);
    }
    return 0;
}

static int lines(struct comm *world, int fd)
{
    (void)fd;
    struct comm *line = everyone(world, COMM_PIPELINE);
    int r = line_of(line);
    comm_close(line);
    return r;
}

/* Chunks on a ring: each round two messages go round forward and two backward, all sent before any
 * is received; in a ring of two both families go from and to the same member. */
static int rings(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    struct comm *way[2] = {everyone(world, COMM_PIPELINE), everyone(world, COMM_PIPELINE_BACK)};
    int next = (world->rank + 1) % world->size;
    int previous = (world->rank + world->size - 1) % world->size;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 4; i++) {
            int m[3] = {world->rank, i, round};
            struct comm *c = way[i & 1];
            CHECK(c->verbs->send(c, i & 1 ? previous : next, m, sizeof m, &e) == 0);
        }
        for (int i = 3; i >= 0; i--) { /* each family in its order, backward first */
            int m[3], sent = i & 1 ? (i == 3 ? 1 : 3) : (i == 2 ? 0 : 2);
            struct comm *c = way[i & 1];
            int from = i & 1 ? next : previous;
            CHECK(c->verbs->recv(c, from, m, sizeof m, &e) == 0);
            CHECK(m[0] == from && m[1] == sent && m[2] == round);
        }
    }
    comm_close(way[0]);
    comm_close(way[1]);
    return 0;
}

/* Payloads of equal length at equal steps, and bytes at any length. */
static int gathers_bytes(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    CLEANUP(mem_freep) unsigned char *buf = mem_zalloc(600000);
    static const size_t EACH[] = {16, 48, 16000, 70000 / 16 * 16};
    for (size_t i = 0; i < ARRAY_LEN(EACH); i++) {
        size_t n = EACH[i], size = (size_t)world->size;
        memset(buf + (size_t)world->rank * n, world->rank + 1, n);
        CHECK(world->verbs->all_gather(world, buf, size * n, COMM_U8, &e) == 0);
        for (size_t at = 0; at < size * n; at++)
            CHECK(buf[at] == at / n + 1);
    }
    size_t begin, end, odd = 1237;
    memset(buf, 0, odd);
    comm_part(odd, world->size, world->rank, &begin, &end);
    memset(buf + begin, 7, end - begin);
    CHECK(world->verbs->all_gather(world, buf, odd, COMM_U8, &e) == 0);
    for (size_t at = 0; at < odd; at++)
        CHECK(buf[at] == 7);
    return 0;
}

/* ---- two threads ---- */

struct other {
    struct comm *group;
    float *buf;
    int failed;
};

/* Buckets of gradients on the replicas' group, while the main thread uses the others. */
static void *sum_buckets(void *context)
{
    struct other *o = context;
    struct err e;
    for (int round = 1; round <= 300; round++) {
        size_t n = (size_t)(round * 37 % 6000) + 1;
        for (size_t i = 0; i < n; i++)
            o->buf[i] = (float)(round + (int)(i % 5));
        if (o->group->verbs->all_reduce(o->group, o->buf, n, COMM_F32, &e) < 0)
            o->failed = 1;
        for (size_t i = 0; i < n && !o->failed; i++)
            o->failed |= o->buf[i] != (float)(o->group->size * (round + (int)(i % 5)));
    }
    return NULL;
}

static int two_threads_on(struct comm *world, float *buckets, float *own)
{
    struct err e;
    struct other o = {.group = everyone(world, COMM_DATA), .buf = buckets};
    struct comm *line = everyone(world, COMM_PIPELINE), *tensor = everyone(world, COMM_TENSOR);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sum_buckets, &o) == 0);
    for (int round = 0; round < 300; round++) {
        size_t n = (size_t)(round * 53 % 5000) + 1;
        comm_set_step(world, round);
        for (size_t i = 0; i < n; i++)
            own[i] = 1;
        CHECK(tensor->verbs->all_reduce(tensor, own, n, COMM_F32, &e) == 0);
        for (size_t i = 0; i < n; i++)
            CHECK(own[i] == (float)world->size);
        if (round % 100 == 0)
            CHECK(line_of(line) == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0 && !o.failed);
    struct comm_meter m = comm_meter(o.group);
    CHECK(m.us > 0 && m.bytes > 300 * 4);
    comm_close(o.group);
    comm_close(line);
    comm_close(tensor);
    return 0;
}

static int two_threads(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    void *shared;
    CHECK(world->verbs->memory(world, 6000 * sizeof(float), &shared, &e) == 0);
    CLEANUP(mem_freep) float *a = mem_alloc(6000 * sizeof *a), *b = mem_alloc(6000 * sizeof *b);
    return two_threads_on(world, shared, a) || two_threads_on(world, a, b);
}

static void *wait_in_vain(void *context)
{
    struct other *o = context;
    struct err e;
    o->failed = o->group->verbs->barrier(o->group, &e);
    return NULL;
}

/* The main thread of rank 0 gives up while its other thread waits: both ranks' threads end. */
static int giving_up_ends_the_other_thread(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    struct other o = {.group = everyone(world, COMM_DATA)};
    pthread_t thread;
    if (world->rank == 1) {
        CHECK(world->verbs->barrier(world, &e) == ERR_PEER);
        CHECK(strstr(e.text, "gave up: enough"));
        return 0;
    }
    CHECK(pthread_create(&thread, NULL, wait_in_vain, &o) == 0);
    usleep(100000);
    world->verbs->give_up(world, "enough");
    CHECK(pthread_join(thread, NULL) == 0 && o.failed == ERR_PEER);
    comm_close(o.group);
    return 0;
}

static void two_threads_of_a_rank(void **state)
{
    (void)state;
    expect_all(2, two_threads);
    expect_all(3, two_threads);
    expect_all(2, giving_up_ends_the_other_thread);
}

/* Six ranks as a mesh of 3 x 2: both families at work in turn. */
static int meshes(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    struct comm *rows, *columns;
    int d = world->rank / 2, s = world->rank % 2;
    int column[3] = {s, 2 + s, 4 + s}, row[2] = {2 * d, 2 * d + 1};
    CHECK(world->verbs->group(world, COMM_DATA, s, column, 3, &columns, &e) == 0);
    CHECK(world->verbs->group(world, COMM_PIPELINE, d, row, 2, &rows, &e) == 0);
    CHECK(columns->rank == d && rows->rank == s);
    for (int i = 0; i < 200; i++) {
        float a = (float)world->rank, b = (float)world->rank;
        CHECK(columns->verbs->all_reduce(columns, &a, 1, COMM_F32, &e) == 0);
        CHECK(a == (float)(6 + 3 * s));
        CHECK(rows->verbs->all_reduce(rows, &b, 1, COMM_F32, &e) == 0);
        CHECK(b == (float)(4 * d + 1));
    }
    comm_close(rows);
    comm_close(columns);
    return 0;
}

static void verbs_between_processes(void **state)
{
    (void)state;
    expect_all(1, broadcasts);
    expect_all(3, broadcasts);
    expect_all(5, exchanges);
    expect_all(1, lines);
    expect_all(2, lines);
    expect_all(4, lines);
    expect_all(2, rings);
    expect_all(3, rings);
    expect_all(1, gathers_bytes);
    expect_all(2, gathers_bytes);
    expect_all(5, gathers_bytes);
    expect_all(6, meshes);
}

/* What is touched is counted, what is not is not. */
static int uses_memory(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    void *p;
    size_t before = comm_used(world);
    OK(world->verbs->barrier(world, &e));
    OK(world->verbs->memory(world, MEMORY / 2, &p, &e));
    memset(p, 1, MEMORY / 2);
    OK(world->verbs->barrier(world, &e));
    size_t used = comm_used(world);
    OK(world->verbs->barrier(world, &e));
    CHECK(used - before >= MEMORY / 4 && used < MEMORY + 65536);
    return 0;
}

static int memory_runs_out(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    void *p;
    CHECK(world->verbs->memory(world, MEMORY - 4096, &p, &e) == 0);
    CHECK(world->verbs->memory(world, 2 * 4096, &p, &e) == ERR_INTERNAL);
    CHECK(world->verbs->memory(world, 4096, &p, &e) == 0);
    return 0;
}

static void memory_is_bounded(void **state)
{
    (void)state;
    expect_all(2, memory_runs_out);
    expect_all(3, uses_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cover_everything_once),    cmocka_unit_test(all_sums_are_exact),
        cmocka_unit_test(sums_have_the_bits_of_the_tree), cmocka_unit_test(two_threads_of_a_rank),
        cmocka_unit_test(verbs_between_processes),        cmocka_unit_test(memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
