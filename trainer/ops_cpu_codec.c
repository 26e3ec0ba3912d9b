/* ops_cpu_codec.c: gradients packed for their way, and added up from what came. Forms:
 * spec/codec.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/codec.h"
#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

/* ---- int8 ---- */

/* NaN where there is one among the values, so that it is not lost. */
static float scale_of(size_t n, const float *x)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most;
    return isfinite(most) ? most / 127.0f : NAN;
}

static void pack_chunk(size_t n, const float *x, float scale, int8_t *q)
{
    if (!(scale > 0.0f))
        memset(q, 0, n);
    for (size_t i = 0; i < n && scale > 0.0f; i++)
        q[i] = (int8_t)fmaxf(-127.0f, fminf(127.0f, rintf(x[i] / scale)));
}

static size_t chunks_of(size_t n)
{
    return (n + CODEC_CHUNK - 1) / CODEC_CHUNK;
}

static size_t chunk_size(size_t n, size_t c)
{
    return n - c * CODEC_CHUNK < CODEC_CHUNK ? n - c * CODEC_CHUNK : CODEC_CHUNK;
}

static void pack_int8(size_t n, const float *x, char *to)
{
    float *scales = (float *)to;
    int8_t *q = (int8_t *)(scales + chunks_of(n));
    for (size_t c = 0; c < chunks_of(n); c++) {
        size_t at = c * CODEC_CHUNK, here = chunk_size(n, c);
        scales[c] = scale_of(here, x + at);
        pack_chunk(here, x + at, scales[c], q + at);
    }
}

static void add_int8(size_t n, const char *from, float sign, float *y)
{
    const float *scales = (const float *)from;
    const int8_t *q = (const int8_t *)(scales + chunks_of(n));
    for (size_t c = 0; c < chunks_of(n); c++) {
        float scale = sign * scales[c];
        size_t end = c * CODEC_CHUNK + chunk_size(n, c);
        for (size_t i = c * CODEC_CHUNK; i < end; i++)
            y[i] += scale * (float)q[i];
    }
}

/* ---- top_k ---- */

/* Magnitudes in the order of their bits; NaN is the largest. */
static uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The digit that the k-th largest has, of counts by digit; *k becomes its rank among those. */
static uint32_t digit_of(const size_t *counts, size_t *k)
{
    uint32_t d = 0xffff;
    while (counts[d] < *k)
        *k -= counts[d--];
    return d;
}

/* The magnitude of the k-th largest, and how many of that magnitude are among the k. */
static uint32_t threshold_of(size_t n, const float *x, size_t k, size_t *ret_equal)
{
    size_t *counts = mem_zalloc(65536 * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[magnitude(x[i]) >> 16]++;
    uint32_t high = digit_of(counts, &k);
    memset(counts, 0, 65536 * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        if (magnitude(x[i]) >> 16 == high)
            counts[magnitude(x[i]) & 0xffff]++;
    uint32_t low = digit_of(counts, &k);
    free(counts);
    *ret_equal = k;
    return high << 16 | low;
}

/* Of equal ones, the first. */
static void pack_top(size_t n, size_t k, const float *x, char *to)
{
    uint32_t *places = (uint32_t *)to;
    float *values = (float *)(places + k);
    size_t equal, count = 0;
    uint32_t least = n > 0 ? threshold_of(n, x, k, &equal) : 0;
    for (size_t i = 0; i < n && count < k; i++) {
        uint32_t m = magnitude(x[i]);
        if (m < least || (m == least && equal == 0))
            continue;
        equal -= m == least;
        places[count] = (uint32_t)i;
        values[count++] = x[i];
    }
}

static void add_top(size_t k, const char *from, float sign, float *y)
{
    const uint32_t *places = (const uint32_t *)from;
    const float *values = (const float *)(places + k);
    for (size_t i = 0; i < k; i++)
        y[places[i]] += sign * values[i];
}

/* ---- bf16 ---- */

static void add_bf16(size_t n, const uint16_t *from, float sign, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] += sign * elem_from_bfloat16(from[i]);
}

/* ---- verbs ---- */

void cpu_pack(const struct parallel *p, size_t n, const float *x, void *packed)
{
    switch (p->codec) {
    case CODEC_BF16: ops_cpu.to_bfloat16(n, x, packed); break;
    case CODEC_INT8: pack_int8(n, x, packed); break;
    case CODEC_TOP_K: pack_top(n, codec_top(p, n), x, packed); break;
    case CODEC_NONE: memcpy(packed, x, n * sizeof *x); break;
    }
}

void cpu_add_packed(const struct parallel *p, size_t n, const void *packed, float sign, float *y)
{
    const float *x = packed;
    switch (p->codec) {
    case CODEC_BF16: add_bf16(n, packed, sign, y); break;
    case CODEC_INT8: add_int8(n, packed, sign, y); break;
    case CODEC_TOP_K: add_top(codec_top(p, n), packed, sign, y); break;
    case CODEC_NONE:
        for (size_t i = 0; i < n; i++)
            y[i] += sign * x[i];
        break;
    }
}
