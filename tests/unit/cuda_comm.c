/* Collectives between GPUs, against those of shared memory: all types, counts around every border,
 * one, two and prime numbers of ranks; the bits of the tree where a sum is to have them; what goes
 * on beside the verbs; messages that nobody has received yet. */
#include "tests/unit/cuda_comm.h"

#include <math.h>

static const size_t COUNTS[] = {0, 1, 15, 16, 17, 480, 4097, 1000003};

/* Numbers whose sums depend on the order. */
static double rough(int rank, size_t i)
{
    uint64_t x = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    return ldexp((double)(int32_t)(x >> 32) / 2147483648.0, (int)(x % 8) - 4);
}

static void fill(enum comm_type type, int rank, size_t n, void *host)
{
    for (size_t i = 0; i < n; i++) {
        double x = rough(rank, i);
        if (type == COMM_F32)
            ((float *)host)[i] = (float)x;
        else if (type == COMM_F64)
            ((double *)host)[i] = x;
        else if (type == COMM_U16)
            ((uint16_t *)host)[i] = (uint16_t)(i * 7 + (size_t)rank);
        else
            ((uint8_t *)host)[i] = (uint8_t)(i * 7 + (size_t)rank);
    }
}

static double number(enum comm_type type, const void *host, size_t i)
{
    return type == COMM_F32 ? ((const float *)host)[i] : ((const double *)host)[i];
}

/* Sums of reproducible gangs have shm's bits; others are as near as another order leaves them. */
static int is_same(enum comm_type type, const void *a, const void *b, size_t begin, size_t end)
{
    size_t width = comm_type_size(type);
    if (gpus.is_reproducible || type == COMM_U8 || type == COMM_U16)
        return memcmp((const char *)a + begin * width, (const char *)b + begin * width,
                      (end - begin) * width) == 0;
    double near = type == COMM_F32 ? 1e-4 : 1e-13;
    for (size_t i = begin; i < end; i++)
        if (!(fabs(number(type, a, i) - number(type, b, i)) < near))
            return 0;
    return 1;
}

typedef int verb(struct comm *c, void *buf, size_t count, enum comm_type type, struct err *e);

/* One verb of `c` on device memory and of the hosts' world on host memory. */
static int compare(struct comm *c, verb *gpu, verb *host, size_t n, enum comm_type type,
                   int is_part)
{
    struct err e;
    struct comm *world = c;
    size_t bytes = n * comm_type_size(type), begin = 0, end = n;
    CLEANUP(mem_freep) char *want = mem_alloc(bytes + 1), *got = mem_alloc(bytes + 1);
    fill(type, c->rank, n, want);
    void *p = on_gpu(want, bytes);
    OK(gpu(c, p, n, type, &e));
    OK(c->verbs->settle(c, c->call.number, &e));
    OK(host(hosts, want, n, type, &e));
    cuda_download(got, p, bytes);
    OK(cuda_finish(&e));
    cuda_release(p);
    if (is_part)
        comm_part(n, c->size, c->rank, &begin, &end);
    CHECK(is_same(type, got, want, begin, end));
    return 0;
}

static int all_verbs(struct comm *world, struct comm *c)
{
    const struct comm_verbs *g = c->verbs, *h = hosts->verbs;
    for (size_t i = 0; i < ARRAY_LEN(COUNTS); i++)
        for (enum comm_type t = COMM_F32; t <= COMM_U16; t++) {
            size_t n = COUNTS[i];
            int is_sum = t == COMM_F32 || t == COMM_F64;
            if (n > 100000 && t != COMM_F32)
                n /= 8;
            CHECK(!is_sum || compare(c, g->all_reduce, h->all_reduce, n, t, 0) == 0);
            CHECK(!is_sum || compare(c, g->reduce_scatter, h->reduce_scatter, n, t, 1) == 0);
            CHECK(compare(c, g->all_gather, h->all_gather, n, t, 0) == 0);
        }
    return 0;
}

static int families(struct comm *world, int fd)
{
    (void)fd;
    static const enum comm_family ALL[] = {COMM_DATA, COMM_BATCH, COMM_TENSOR};
    CHECK(all_verbs(world, world) == 0);
    for (size_t i = 0; i < ARRAY_LEN(ALL); i++) {
        struct comm *c = everyone(world, ALL[i]);
        CHECK(all_verbs(world, c) == 0);
        comm_close(c);
        if (world->size > 1)
            break; /* the first to close ends all */
    }
    return 0;
}

static void gpus_sum_and_gather_as_hosts_do(void **state)
{
    (void)state;
    static const int SIZES[] = {1, 2, 3, 5};
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++)
        expect_gpus(SIZES[s], families);
}

/* ---- beside the verbs ---- */

/* Many sums are asked for, each of a buffer that a verb has just written; the second is settled
 * while the later ones are under way, and the verbs in between see what was there before. */
static int sums_beside(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    enum { N = 5000, ROUNDS = 100 };
    struct comm *data = everyone(world, COMM_DATA), *tensor = everyone(world, COMM_TENSOR);
    static float host[N];
    float *x[4], *y;
    uint64_t calls[4];
    for (size_t i = 0; i < N; i++)
        host[i] = 1;
    for (int k = 0; k < 4; k++)
        x[k] = on_gpu(host, sizeof host);
    y = on_gpu(host, sizeof host);
    for (int round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < 4; k++) {
            cuda_affine(N, 0, (float)(round + k), x[k], x[k]);
            OK(data->verbs->all_reduce(data, x[k], N, COMM_F32, &e));
            calls[k] = data->call.number;
        }
        OK(tensor->verbs->all_reduce(tensor, y, N, COMM_F32, &e));
        cuda_affine(N, 1 / (float)world->size, 0, y, y);
        OK(data->verbs->settle(data, calls[1], &e));
        cuda_download(host, x[1], sizeof host);
        for (size_t i = 0; i < N; i++)
            CHECK(host[i] == (float)((round + 1) * world->size));
        OK(data->verbs->settle(data, calls[3], &e));
    }
    for (int k = 0; k < 4; k++) {
        cuda_download(host, x[k], sizeof host);
        for (size_t i = 0; i < N; i++)
            CHECK(host[i] == (float)((ROUNDS - 1 + k) * world->size));
    }
    cuda_download(host, y, sizeof host);
    OK(cuda_finish(&e));
    for (size_t i = 0; i < N; i++)
        CHECK(host[i] == 1);
    comm_close(data);
    comm_close(tensor);
    return 0;
}

static void sums_go_on_beside_the_verbs(void **state)
{
    (void)state;
    expect_gpus(2, sums_beside);
    expect_gpus(3, sums_beside);
}

/* ---- messages ---- */

static int neighbour(const struct comm *c, int step)
{
    return (c->rank + step + c->size) % c->size;
}

/* All members send two messages each way before anybody receives one, again and again. */
static int two_each_way(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    struct comm *line = everyone(world, COMM_PIPELINE), *back = everyone(world, COMM_PIPELINE_BACK);
    CLEANUP(mem_freep) unsigned char *m = mem_zalloc(MESSAGE);
    unsigned char *out = on_gpu(m, MESSAGE), *in = on_gpu(m, MESSAGE);
    for (size_t round = 0; round < 40; round++) {
        size_t n = round == 7 ? 0 : round * 7919 % MESSAGE;
        for (int k = 0; k < 2; k++) {
            memset(m, (int)round * 2 + k + 100 * world->rank, n);
            cuda_upload(out, m, n);
            OK(line->verbs->send(line, neighbour(line, 1), out, n, &e));
            OK(back->verbs->send(back, neighbour(back, -1), out, n, &e));
        }
        for (int k = 0; k < 4; k++) {
            struct comm *c = k % 2 ? back : line;
            int from = neighbour(c, k % 2 ? 1 : -1);
            OK(c->verbs->recv(c, from, in, n, &e));
            cuda_download(m, in, n);
            for (size_t i = 0; i < n; i++)
                CHECK(m[i] == (unsigned char)((int)round * 2 + k / 2 + 100 * from));
        }
    }
    OK(cuda_finish(&e));
    comm_close(line);
    comm_close(back);
    return 0;
}

/* One forward and one backward in turn, as stages of a pipeline with m micro-batches: what goes
 * forward is counted up, and comes back. */
static int one_forward_one_backward(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    enum { N = 20000, M = 12 };
    struct comm *line = everyone(world, COMM_PIPELINE), *back = everyone(world, COMM_PIPELINE_BACK);
    static float host[N];
    float *x = on_gpu(host, sizeof host);
    int last = world->size - 1, ahead = last - world->rank;
    for (int j = 0, b = 0; b < M; j++) {
        if (j < M) {
            if (world->rank > 0)
                OK(line->verbs->recv(line, world->rank - 1, x, sizeof host, &e));
            else
                cuda_affine(N, 0, (float)j, x, x);
            cuda_affine(N, 1, 1000, x, x);
            if (world->rank < last)
                OK(line->verbs->send(line, world->rank + 1, x, sizeof host, &e));
        }
        if (j < ahead)
            continue;
        if (world->rank < last)
            OK(back->verbs->recv(back, world->rank + 1, x, sizeof host, &e));
        if (world->rank > 0)
            OK(back->verbs->send(back, world->rank - 1, x, sizeof host, &e));
        cuda_download(host, x, sizeof host);
        for (size_t i = 0; i < N; i++)
            CHECK(host[i] == (float)(b + 1000 * world->size));
        b++;
    }
    OK(cuda_finish(&e));
    comm_close(line);
    comm_close(back);
    return 0;
}

static void messages_wait_for_nobody(void **state)
{
    (void)state;
    static const int SIZES[] = {2, 3, 4, 5};
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        expect_gpus(SIZES[s], two_each_way);
        expect_gpus(SIZES[s], one_forward_one_backward);
    }
}

/* Six ranks as a mesh of 3 x 2: groups of every kind at work in turn. */
static int meshes(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    struct comm *data, *line, *tensor;
    int d = world->rank / 2, s = world->rank % 2, agreed[6];
    int column[3] = {s, 2 + s, 4 + s}, row[2] = {2 * d, 2 * d + 1};
    OK(world->verbs->group(world, COMM_DATA, s, column, 3, &data, &e));
    OK(world->verbs->group(world, COMM_PIPELINE, d, row, 2, &line, &e));
    OK(world->verbs->group(world, COMM_TENSOR, d, row, 2, &tensor, &e));
    CHECK(data->rank == d && line->rank == s && tensor->rank == s);
    float x[3] = {(float)world->rank, (float)world->rank, 0};
    for (int i = 0; i < 50; i++) {
        float *a = on_gpu(&x[0], sizeof *x), *b = on_gpu(&x[1], sizeof *x);
        OK(data->verbs->all_reduce(data, a, 1, COMM_F32, &e));
        OK(tensor->verbs->all_reduce(tensor, b, 1, COMM_F32, &e));
        OK(line->verbs->send(line, !s, b, sizeof *b, &e));
        OK(data->verbs->settle(data, data->call.number, &e));
        OK(line->verbs->recv(line, !s, b, sizeof *b, &e));
        OK(data->verbs->exchange(data, &i, sizeof i, agreed, &e));
        CHECK(agreed[0] == i && agreed[2] == i);
        float got[2];
        cuda_download(&got[0], a, sizeof *a);
        cuda_download(&got[1], b, sizeof *b);
        OK(cuda_finish(&e));
        CHECK(got[0] == (float)(6 + 3 * s) && got[1] == (float)(4 * d + 1));
        cuda_release(a);
        cuda_release(b);
    }
    comm_close(data);
    comm_close(line);
    comm_close(tensor);
    return 0;
}

static void groups_of_a_mesh(void **state)
{
    (void)state;
    expect_gpus(6, meshes);
}

/* ---- memory ---- */

static int memory_of_the_gpu(struct comm *world, int fd)
{
    (void)fd;
    struct err e;
    void *p, *q;
    float host[100], zero[100] = {0};
    OK(world->verbs->memory(world, GPU_MEMORY - 4096, &p, &e));
    CHECK(world->verbs->memory(world, 2 * 4096, &q, &e) == ERR_INTERNAL);
    cuda_download(host, p, sizeof host);
    OK(cuda_finish(&e));
    CHECK(memcmp(host, zero, sizeof host) == 0 && (uintptr_t)p % 64 == 0);
    CHECK(comm_used(world) >= GPU_MEMORY - 4096);
    world->verbs->forget(world);
    OK(world->verbs->memory(world, GPU_MEMORY - 4096, &p, &e));
    return 0;
}

static void memory_is_the_gpus(void **state)
{
    (void)state;
    struct comm_options o = {.size = 2, .memory_bytes = 1000, .message_bytes = 1000};
    expect_gpus(2, memory_of_the_gpu);
    size_t plain = comm_nccl_foretold(&o);
    assert_true(plain >= 1000 + 8 * 1000 + COMM_NCCL_OWN);
    o.is_reproducible = 1;
    assert_true(comm_nccl_foretold(&o) > plain);
    o.size = 1;
    assert_int_equal(comm_nccl_foretold(&o), 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_sum_and_gather_as_hosts_do),
        cmocka_unit_test(sums_go_on_beside_the_verbs),
        cmocka_unit_test(messages_wait_for_nobody),
        cmocka_unit_test(groups_of_a_mesh),
        cmocka_unit_test(memory_is_the_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
