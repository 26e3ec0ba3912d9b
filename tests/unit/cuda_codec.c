/* Gradients packed on the GPU are the CPU's bytes: of top_k the same elements, of equal ones the
 * first. */
#include "cuda_parity.h"
#include "spec/codec.h"

struct codec {
    struct parallel parallel;
    int64_t n;
    float sign;
    int x, packed, y;
};

static void pack(struct parity_side *s, const void *args)
{
    const struct codec *v = args;
    s->ops->pack(&v->parallel, (size_t)v->n, parity_at(s, v->x), parity_at(s, v->packed));
}

static void add_packed(struct parity_side *s, const void *args)
{
    const struct codec *v = args;
    s->ops->add_packed(&v->parallel, (size_t)v->n, parity_at(s, v->packed), v->sign,
                       parity_at(s, v->y));
}

static const struct parallel CODECS[] = {
    {.codec = CODEC_NONE},
    {.codec = CODEC_BF16},
    {.codec = CODEC_INT8},
    {.codec = CODEC_TOP_K, .top_k = 0.001},
    {.codec = CODEC_TOP_K, .top_k = 0.31},
    {.codec = CODEC_TOP_K, .top_k = 1},
};

/* Of codec_bytes(), without what only rounds them up. */
static int64_t bytes_of(const struct parallel *p, int64_t n)
{
    switch (p->codec) {
    case CODEC_NONE: return n * 4;
    case CODEC_BF16: return n * 2;
    case CODEC_INT8: return (n + CODEC_CHUNK - 1) / CODEC_CHUNK * 4 + n;
    case CODEC_TOP_K: return (int64_t)codec_top(p, (size_t)n) * 8;
    }
    return 0;
}

enum values { PLAIN, ODD, TIES, ZEROES, TINY };

static float *values_of(int64_t n, enum values kind)
{
    struct parity p = {.seed = 99};
    float *x = mem_alloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        float u = parity_value(&p, i % 7 ? 1 : 100, kind == ODD ? PARITY_ODD : PARITY_PLAIN);
        x[i] = kind == TIES     ? roundf(u * 3)
               : kind == ZEROES ? 0.0f * u
               : kind == TINY   ? u * 0x1p-148f
                                : u;
    }
    return x;
}

static void begin(struct parity *p, const char *verb, const struct codec *v, int kind, int offset)
{
    parity_begin(p, verb, "%s %g of %lld, values %d, offset %d", codec_name(v->parallel.codec),
                 v->parallel.top_k, (long long)v->n, kind, offset);
    p->offset = offset;
}

static void check(const struct parallel *parallel, int64_t n, enum values kind, int offset)
{
    struct codec v = {.parallel = *parallel, .n = n, .sign = offset ? -1.0f : 1.0f};
    struct parity p;
    int64_t bytes = bytes_of(parallel, n);
    CLEANUP(mem_freep) float *x = values_of(n, kind);
    CLEANUP(mem_freep) char *packed = mem_zalloc(codec_bytes(parallel, (size_t)n) + 64);
    begin(&p, "pack", &v, kind, offset);
    v.x = parity_given(&p, sizeof *x, n, x);
    v.packed = parity_out(&p, 1, bytes);
    parity_run(&p, pack, &v);
    parity_same_bits(&p, v.packed);
    parity_end(&p);
    ops_cpu.pack(parallel, (size_t)n, x, packed);
    begin(&p, "add_packed", &v, kind, offset);
    v.packed = parity_given(&p, 1, bytes, packed);
    v.y = parity_floats_as(&p, PARITY_INOUT, n, 1, PARITY_ODD);
    parity_run(&p, add_packed, &v);
    parity_same(&p, v.y);
    parity_end(&p);
}

/* Packed bytes stand at multiples of 64 and, with the second offset, of 4. */
static void bytes_are_the_cpus(void **state)
{
    (void)state;
    for (size_t c = 0; c < ARRAY_LEN(CODECS); c++)
        for (int s = 0; s < PARITY_SIZE_COUNT; s++)
            for (int kind = PLAIN; kind <= TINY; kind++) {
                check(&CODECS[c], PARITY_SIZES[s], (enum values)kind, 0);
                check(&CODECS[c], PARITY_SIZES[s], (enum values)kind, 4);
            }
}

/* Values of one magnitude in many tiles, more than are sent, and larger ones behind them. */
static void top_k_takes_the_first_of_equal_ones(void **state)
{
    (void)state;
    enum { N = 70001 };
    struct codec v = {.parallel = {.codec = CODEC_TOP_K, .top_k = 0.25}, .n = N};
    struct parity p;
    CLEANUP(mem_freep) float *x = mem_alloc(N * sizeof *x);
    for (int i = 0; i < N; i++)
        x[i] = i % 3 == 0 ? 0.5f : i % 3 == 1 ? -0.5f : i % 100 == 2 ? 2.0f : 0.25f;
    begin(&p, "pack", &v, 5, 0);
    v.x = parity_given(&p, sizeof *x, N, x);
    v.packed = parity_out(&p, 1, bytes_of(&v.parallel, N));
    parity_run(&p, pack, &v);
    parity_same_bits(&p, v.packed);
    parity_end(&p);
}

static void floats_may_be_unaligned(void **state)
{
    (void)state;
    for (size_t c = 0; c < ARRAY_LEN(CODECS); c++) {
        struct codec v = {.parallel = CODECS[c], .n = 4096, .sign = 1};
        struct parity p;
        begin(&p, "pack", &v, 6, 1);
        v.x = parity_floats(&p, v.n, 1, PARITY_PLAIN);
        v.packed = parity_out(&p, 4, bytes_of(&v.parallel, v.n) / 4);
        parity_run(&p, pack, &v);
        parity_same_bits(&p, v.packed);
        parity_end(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_the_cpus),
        cmocka_unit_test(top_k_takes_the_first_of_equal_ones),
        cmocka_unit_test(floats_may_be_unaligned),
    };
    return parity_main(tests);
}
