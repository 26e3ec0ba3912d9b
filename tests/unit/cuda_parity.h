/* cuda_parity.h: a verb on the CPU and on the GPU with the same inputs, and what came of it
 * compared.
 *
 *     struct parity p;
 *     parity_begin(&p, "affine", "n %lld", n);
 *     int x = parity_floats(&p, n, 1.0f, PARITY_ODD), y = parity_out(&p, sizeof(float), n);
 *     parity_run(&p, affine_verb, &args);   // calls it on both sides, waits for the device
 *     parity_same(&p, y);                   // or parity_near(&p, y, relative, absolute)
 *     parity_end(&p);
 *
 * Every array stands between guards on either side, and outputs are poisoned differently, so that
 * what a verb does not write, or writes beside, does not compare equal. Inputs must come back as
 * they were. With p.offset arrays begin that many elements behind an aligned address.
 *
 * parity_main() runs the tests with blocks in order, reversed and shuffled, each in a process of
 * its own, and compares all bits that the GPU has given.
 */
#ifndef TRAINYARD_TESTS_CUDA_PARITY_H
#define TRAINYARD_TESTS_CUDA_PARITY_H

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/ops.h"

#define PARITY      __attribute__((unused)) static
#define PARITY_MAX  16
#define PARITY_EDGE 64 /* bytes of guard on either side */

enum parity_values {
    PARITY_PLAIN, /* in [-scale, scale) */
    PARITY_ODD,   /* some are NaN, infinite, subnormal, negative zero, huge */
    PARITY_SMALL, /* some are subnormal, zero, huge; all are finite */
};

enum parity_role { PARITY_IN, PARITY_OUT, PARITY_INOUT };

struct parity_array {
    enum parity_role role;
    size_t size, n;         /* bytes of an element, elements */
    char *start;            /* what both sides began with; NULL for outputs */
    char *memory[2], *host; /* memory of the CPU and of the GPU, with guards; the GPU's, copied */
};

struct parity {
    char name[160]; /* verb and shape */
    int count;
    struct parity_array array[PARITY_MAX];
    uint32_t seed;
    int offset;            /* elements by which arrays are off an aligned address */
    double result[2][256]; /* what verbs gave to the host, CPU's and GPU's */
};

/* What a verb's caller gets: arrays of one side by their numbers. */
struct parity_side {
    struct parity *p;
    const struct ops *ops;
    int is_gpu;
    double *result;
};
typedef void parity_verb(struct parity_side *s, const void *args);

/* ---- the device ---- */

PARITY void parity_open_with(const struct ops_options *o)
{
    struct err e;
    if (ops_cuda.open(o, &e) < 0)
        fail_msg("%s", e.text);
}

PARITY int parity_open(void **state)
{
    (void)state;
    static const struct ops_options options = {.compute = COMPUTE_FLOAT32, .widest = 1 << 20};
    parity_open_with(&options);
    return 0;
}

PARITY int parity_close(void **state)
{
    (void)state;
    struct err e;
    if (ops_cuda.finish(&e) < 0)
        fail_msg("%s", e.text);
    ops_cuda.close();
    return 0;
}

/* ---- arrays ---- */

PARITY __attribute__((format(printf, 3, 4))) void parity_begin(struct parity *p, const char *verb,
                                                               const char *shape, ...)
{
    char text[128];
    va_list args;
    va_start(args, shape);
    vsnprintf(text, sizeof text, shape, args);
    va_end(args);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s, %s", verb, text);
    p->seed = 20240607;
}

PARITY size_t parity_bytes(const struct parity_array *a)
{
    return a->n * a->size;
}

PARITY size_t parity_lead(const struct parity *p, const struct parity_array *a)
{
    return PARITY_EDGE + (size_t)p->offset * a->size;
}

PARITY size_t parity_room(const struct parity *p, const struct parity_array *a)
{
    return parity_lead(p, a) + parity_bytes(a) + PARITY_EDGE;
}

PARITY int parity_add(struct parity *p, enum parity_role role, size_t size, int64_t n,
                      const void *values)
{
    struct parity_array *a = &p->array[p->count];
    assert_true(p->count < PARITY_MAX);
    *a = (struct parity_array){.role = role, .size = size, .n = (size_t)n};
    size_t room = parity_room(p, a);
    a->host = mem_alloc(room);
    a->memory[0] = ops_cpu.alloc(room);
    a->memory[1] = ops_cuda.alloc(room);
    assert_non_null(a->memory[0]);
    assert_non_null(a->memory[1]);
    if (role != PARITY_OUT) {
        a->start = mem_alloc(parity_bytes(a) + 1);
        memcpy(a->start, values, parity_bytes(a));
    }
    return p->count++;
}

PARITY int parity_given(struct parity *p, size_t size, int64_t n, const void *values)
{
    return parity_add(p, PARITY_IN, size, n, values);
}

PARITY int parity_out(struct parity *p, size_t size, int64_t n)
{
    return parity_add(p, PARITY_OUT, size, n, NULL);
}

PARITY float parity_next(struct parity *p) /* [-1, 1) */
{
    p->seed = p->seed * 1664525u + 1013904223u;
    return (float)(int32_t)p->seed * 0x1p-31f;
}

PARITY float parity_value(struct parity *p, float scale, enum parity_values kind)
{
    static const float odd[] = {NAN,   INFINITY,  -INFINITY, 0x1p-149f, -0x1.8p-130f,
                                -0.0f, 0x1p-126f, 0.0f,      0x1p127f,  -0x1.fffffep127f};
    float x = parity_next(p) * scale;
    uint32_t pick = p->seed >> 20;
    if (kind == PARITY_PLAIN || pick % 23 != 0)
        return x;
    size_t first = kind == PARITY_SMALL ? 3 : 0;
    return odd[first + pick / 23 % (ARRAY_LEN(odd) - first)];
}

PARITY int parity_floats_as(struct parity *p, enum parity_role role, int64_t n, float scale,
                            enum parity_values kind)
{
    CLEANUP(mem_freep) float *x = mem_alloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = parity_value(p, scale, kind);
    return parity_add(p, role, sizeof *x, n, x);
}

PARITY int parity_floats(struct parity *p, int64_t n, float scale, enum parity_values kind)
{
    return parity_floats_as(p, PARITY_IN, n, scale, kind);
}

PARITY int parity_doubles_as(struct parity *p, enum parity_role role, int64_t n, double scale)
{
    CLEANUP(mem_freep) double *x = mem_alloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * ((double)parity_next(p) + (double)parity_next(p) * 0x1p-30);
    return parity_add(p, role, sizeof *x, n, x);
}

PARITY int parity_bfloats_as(struct parity *p, enum parity_role role, int64_t n, float scale,
                             enum parity_values kind)
{
    CLEANUP(mem_freep) uint16_t *x = mem_alloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = elem_to_bfloat16(parity_value(p, scale, kind));
    return parity_add(p, role, sizeof *x, n, x);
}

/* The array's address on this side; NULL for a number below 0. */
PARITY void *parity_at(const struct parity_side *s, int array)
{
    if (array < 0)
        return NULL;
    struct parity_array *a = &s->p->array[array];
    return a->memory[s->is_gpu] + parity_lead(s->p, a);
}

PARITY const float *parity_host_floats(const struct parity *p, int array) /* of an input */
{
    return (const float *)(const void *)p->array[array].start;
}

/* ---- the call ---- */

PARITY int parity_poison(int side)
{
    return side ? 0xa5 : 0x5a;
}

PARITY void parity_fill(struct parity *p, int side)
{
    const struct ops *ops = side ? &ops_cuda : &ops_cpu;
    for (int i = 0; i < p->count; i++) {
        struct parity_array *a = &p->array[i];
        memset(a->host, parity_poison(side), parity_room(p, a));
        if (a->start && a->n)
            memcpy(a->host + parity_lead(p, a), a->start, parity_bytes(a));
        ops->upload(a->memory[side], a->host, parity_room(p, a));
    }
}

PARITY void parity_guards(const struct parity *p, int side, const struct parity_array *a,
                          const char *memory)
{
    size_t lead = parity_lead(p, a), end = lead + parity_bytes(a);
    for (size_t i = 0; i < parity_room(p, a); i++)
        if ((i < lead || i >= end) && (unsigned char)memory[i] != parity_poison(side))
            fail_msg("%s: the %s has written %zu bytes %s array %d", p->name, side ? "GPU" : "CPU",
                     i < lead ? lead - i : i - end + 1, i < lead ? "before" : "behind",
                     (int)(a - p->array));
}

PARITY void parity_log(const struct parity *p);

PARITY void parity_run(struct parity *p, parity_verb *verb, const void *args)
{
    struct err e;
    memset(p->result, 0, sizeof p->result);
    for (int side = 0; side < 2; side++) {
        struct parity_side s = {p, side ? &ops_cuda : &ops_cpu, side, p->result[side]};
        parity_fill(p, side);
        verb(&s, args);
    }
    for (int i = 0; i < p->count; i++)
        ops_cuda.download(p->array[i].host, p->array[i].memory[1], parity_room(p, &p->array[i]));
    if (ops_cuda.finish(&e) < 0)
        fail_msg("%s: %s", p->name, e.text);
    for (int i = 0; i < p->count; i++) {
        struct parity_array *a = &p->array[i];
        parity_guards(p, 0, a, a->memory[0]);
        parity_guards(p, 1, a, a->host);
        if (a->role == PARITY_IN && a->n &&
            memcmp(a->host + parity_lead(p, a), a->start, parity_bytes(a)) != 0)
            fail_msg("%s: the GPU has changed its input, array %d", p->name, i);
    }
    parity_log(p);
}

/* ---- what came of it ---- */

PARITY const void *parity_of(const struct parity *p, int array, int side)
{
    const struct parity_array *a = &p->array[array];
    return (side ? a->host : a->memory[0]) + parity_lead(p, a);
}

PARITY const float *parity_gpu_floats(const struct parity *p, int array)
{
    return parity_of(p, array, 1);
}

/* The value at i for a person; bfloat16 where elements have two bytes. */
PARITY double parity_number(const struct parity *p, int array, int side, size_t i)
{
    const char *at = (const char *)parity_of(p, array, side) + i * p->array[array].size;
    if (p->array[array].size == 8) {
        double d;
        memcpy(&d, at, sizeof d);
        return d;
    }
    if (p->array[array].size == 2) {
        uint16_t h;
        memcpy(&h, at, sizeof h);
        return (double)elem_from_bfloat16(h);
    }
    float f;
    memcpy(&f, at, sizeof f);
    return (double)f;
}

PARITY void parity_differs(const struct parity *p, int array, size_t i)
{
    fail_msg("%s: array %d [%zu of %zu]: the GPU has %.17g, the CPU %.17g", p->name, array, i,
             p->array[array].n, parity_number(p, array, 1, i), parity_number(p, array, 0, i));
}

/* Equal bits; of NaN any. */
PARITY void parity_same(const struct parity *p, int array)
{
    size_t size = p->array[array].size;
    for (size_t i = 0; i < p->array[array].n; i++) {
        const char *cpu = (const char *)parity_of(p, array, 0) + i * size;
        const char *gpu = (const char *)parity_of(p, array, 1) + i * size;
        if (memcmp(cpu, gpu, size) != 0 &&
            !(isnan(parity_number(p, array, 0, i)) && isnan(parity_number(p, array, 1, i))))
            parity_differs(p, array, i);
    }
}

/* Equal bits, NaN's too: of what is no number. */
PARITY void parity_same_bits(const struct parity *p, int array)
{
    size_t size = p->array[array].size;
    for (size_t i = 0; i < p->array[array].n; i++)
        if (memcmp((const char *)parity_of(p, array, 0) + i * size,
                   (const char *)parity_of(p, array, 1) + i * size, size) != 0)
            parity_differs(p, array, i);
}

PARITY int parity_is_near(double got, double want, double relative, double absolute)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= absolute + relative * fabs(want);
}

PARITY void parity_near(const struct parity *p, int array, double relative, double absolute)
{
    for (size_t i = 0; i < p->array[array].n; i++)
        if (!parity_is_near(parity_number(p, array, 1, i), parity_number(p, array, 0, i), relative,
                            absolute))
            parity_differs(p, array, i);
}

PARITY void parity_result_near(const struct parity *p, int k, double relative, double absolute)
{
    if (!parity_is_near(p->result[1][k], p->result[0][k], relative, absolute))
        fail_msg("%s: result %d: the GPU has %.17g, the CPU %.17g", p->name, k, p->result[1][k],
                 p->result[0][k]);
}

PARITY void parity_end(struct parity *p)
{
    for (int i = 0; i < p->count; i++) {
        struct parity_array *a = &p->array[i];
        ops_cpu.release(a->memory[0]);
        ops_cuda.release(a->memory[1]);
        free(a->start);
        free(a->host);
    }
    p->count = 0;
}

/* ---- the same bits in any order of blocks ---- */

PARITY uint64_t parity_hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *c = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ c[i]) * 0x100000001b3u; /* FNV-1a */
    return h;
}

/* One line for each call, of what the GPU gave, where the parent asks for it. */
PARITY void parity_log(const struct parity *p)
{
    const char *path = getenv("PARITY_LOG");
    if (!path)
        return;
    uint64_t h = parity_hash(0xcbf29ce484222325u, p->result[1], sizeof p->result[1]);
    for (int i = 0; i < p->count; i++)
        h = parity_hash(h, parity_of(p, i, 1), parity_bytes(&p->array[i]));
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fprintf(f, "%s: %016" PRIx64 "\n", p->name, h);
    assert_int_equal(fclose(f), 0);
}

PARITY int parity_child(const char *order, const char *log)
{
    pid_t child = fork();
    if (child == 0) {
        setenv("TRAINYARD_EMU_ORDER", order, 1);
        setenv("PARITY_LOG", log, 1);
        execl("/proc/self/exe", "parity", (char *)NULL);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    if (status != 0)
        fprintf(stderr, "these tests fail with blocks in order %s\n", order);
    return status != 0;
}

/* 0 if the two logs have the same lines, and any. */
PARITY int parity_logs_differ(const char *first, const char *second, const char *order)
{
    char a[512], b[512];
    FILE *f = fopen(first, "r"), *g = fopen(second, "r");
    int lines = 0, differ = !f || !g;
    while (!differ) {
        char *x = fgets(a, sizeof a, f), *y = fgets(b, sizeof b, g);
        if (!x && !y)
            break;
        lines++;
        differ = !x || !y || strcmp(x, y) != 0;
        if (differ)
            fprintf(stderr, "other bits in order %s:\n%s%s", order, x ? x : "(nothing)\n",
                    y ? y : "(nothing)\n");
    }
    if (f)
        fclose(f);
    if (g)
        fclose(g);
    return differ || lines == 0;
}

/* Returns -1 in a child, which then runs its tests; else the program's exit status. */
PARITY int parity_orders(void)
{
    static const char *const orders[] = {"forward", "reverse", "shuffle:7"};
    char log[3][64];
    int failures = 0;
    if (getenv("PARITY_LOG"))
        return -1;
    for (int i = 0; i < 3; i++) {
        snprintf(log[i], sizeof log[i], "/tmp/parity-XXXXXX");
        int fd = mkstemp(log[i]);
        if (fd < 0)
            return 1;
        close(fd);
        failures += parity_child(orders[i], log[i]);
    }
    for (int i = 1; i < 3 && !failures; i++)
        failures += parity_logs_differ(log[0], log[i], orders[i]);
    for (int i = 0; i < 3; i++)
        unlink(log[i]);
    return failures != 0;
}

/* int main(void) { return parity_main(tests); } */
#define parity_main(tests)                                                                         \
    ({                                                                                             \
        int status_ = parity_orders();                                                             \
        status_ < 0 ? cmocka_run_group_tests(tests, parity_open, parity_close) : status_;          \
    })

/* Sizes around those of warps, blocks and vectors; and none at all. */
PARITY const int64_t PARITY_SIZES[] = {0, 1, 2, 3, 5, 31, 32, 33, 127, 256, 1025, 4099};
#define PARITY_SIZE_COUNT ((int)ARRAY_LEN(PARITY_SIZES))

#endif
