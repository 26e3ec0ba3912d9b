/* elem.h: the mathematics of one element, written once for the C and the CUDA compiler.
 *
 * Scalars in, a scalar or a small struct out; no pointers, loops or thread numbers. Backends wrap
 * these in loops and grids, so CPU and GPU agree but for the order of sums. Nothing here branches
 * on data where a select will do: the loops around it become vectors.
 *
 * Bounds: exp, expm1, tanh and sigmoid are within 4 units in the last place of the true value over
 * all of float32 (checked by tests/unit/trainer_ops.c), but that results below the smallest normal
 * number may be zero; NaN goes in and NaN comes out.
 */
#ifndef TRAINYARD_TRAINER_ELEM_H
#define TRAINYARD_TRAINER_ELEM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "spec/model.h"

#ifdef __CUDACC__
#define ELEM static __host__ __device__ __forceinline__
#else
#define ELEM static inline __attribute__((always_inline, unused))
#endif

ELEM uint32_t elem_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

ELEM float elem_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* bfloat16: the upper half of a float32, rounded to nearest, ties to even; NaN stays NaN. */
ELEM uint16_t elem_to_bfloat16(float x)
{
    uint32_t u = elem_bits(x);
    uint32_t rounded = u + 0x7fffu + (u >> 16 & 1u);
    return (uint16_t)((x == x ? rounded : u | 0x400000u) >> 16);
}

ELEM float elem_from_bfloat16(uint16_t x)
{
    return elem_from_bits((uint32_t)x << 16);
}

/* Rounding by chance: up with the probability of what is cut off, so that a value which small steps
 * are added to moves as far as they go on average (rounded to nearest, Adam's second moment would
 * stand still). `chance` is 16 random bits. */
ELEM uint16_t elem_to_bfloat16_by_chance(float x, uint32_t chance)
{
    uint32_t u = elem_bits(x);
    return (uint16_t)((x == x ? u + chance : u | 0x400000u) >> 16);
}

/* float16 (IEEE 754 binary16): rounded to nearest, ties to even; what rounds to 65536 or more is
 * infinite, small numbers lose digits and then vanish, NaN stays NaN. */
ELEM uint16_t elem_to_float16(float x)
{
    uint32_t u = elem_bits(x), a = u & 0x7fffffffu;
    uint32_t normal = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
    /* beside 0.5 a float32 has the last place of the smallest float16s */
    uint32_t small = elem_bits(elem_from_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t r = a < 0x38800000u ? small : normal;
    r = a >= 0x477ff000u ? 0x7c00u : r;
    r = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : r;
    return (uint16_t)((u >> 16 & 0x8000u) | r);
}

ELEM float elem_from_float16(uint16_t x)
{
    uint32_t a = (uint32_t)(x & 0x7fffu) << 13, sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t normal = a + (a >= 0x0f800000u ? 0x70000000u : 0x38000000u); /* infinity and NaN too */
    /* a small one's digits stand behind a leading 1 that is taken off */
    uint32_t small = elem_bits(elem_from_bits(a + 0x38800000u) - elem_from_bits(0x38800000u));
    return elem_from_bits(sign | (a < 0x00800000u ? small : normal));
}

/* What an element's chance hangs on: its place in the model and the update. */
struct elem_dither {
    uint64_t first; /* of element 0 of the call */
    uint64_t update;
};

/* 32 random bits for element i: the finish of SplitMix64 (Steele, Lea, Flood 2014). */
ELEM uint32_t elem_chance(struct elem_dither d, uint64_t i)
{
    uint64_t z = (d.first + i) * 0x9e3779b97f4a7c15u + d.update * 0xd1342543de82ef95u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

ELEM float elem_min(float a, float b) /* b where either is NaN */
{
    return a < b ? a : b;
}

ELEM float elem_max(float a, float b)
{
    return a > b ? a : b;
}

/* x = n ln 2 + r with |r| <= ln 2 / 2; `rest` is e^r - 1 (Taylor to r^7: the next term is below
 * 6e-9), and e^x = two_a * two_b * (1 + rest). The power is split in two so that results near both
 * ends of the range neither overflow nor vanish on the way. */
struct elem_split {
    float rest, two_a, two_b;
};

ELEM struct elem_split elem_split_exp(float x)
{
    const float magic =
        12582912.0f; /* 1.5 * 2^23: adding it leaves the rounded value in the low bits */
    float t = x * 1.44269504f + magic;
    float n = t - magic;
    uint32_t k = elem_bits(t) - elem_bits(magic);
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts, the first exact */
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    struct elem_split s;
    s.rest = p * r * r + r;
    uint32_t half = (uint32_t)((int32_t)k >> 1);
    s.two_a = elem_from_bits((half + 127u) << 23);
    s.two_b = elem_from_bits((k - half + 127u) << 23);
    return s;
}

ELEM float elem_exp(float x)
{
    float c = x > 89.0f ? 89.0f : x;
    c = c < -104.0f ? -104.0f : c;
    struct elem_split s = elem_split_exp(c);
    return (1.0f + s.rest) * s.two_a * s.two_b;
}

ELEM float elem_expm1(float x)
{
    float c = x > 89.0f ? 89.0f : x;
    c = c < -30.0f ? -30.0f : c; /* -1 to the last bit from about -17 on */
    struct elem_split s = elem_split_exp(c);
    float two = s.two_a * s.two_b;
    float near = s.rest * two + (two - 1.0f);
    return c > 80.0f ? (1.0f + s.rest) * s.two_a * s.two_b : near;
}

ELEM float elem_tanh(float x)
{
    float a = x < 0.0f ? -x : x;
    float m = elem_expm1(2.0f * (a > 15.0f ? 15.0f : a));
    float t = m / (m + 2.0f);
    return x < 0.0f ? -t : t;
}

ELEM float elem_sigmoid(float x)
{
    return 1.0f / (1.0f + elem_exp(-x));
}

/* log(1 + e^x) without overflow */
ELEM float elem_softplus(float x)
{
    float a = x < 0.0f ? x : -x;
    return elem_max(x, 0.0f) + log1pf(elem_exp(a));
}

#define ELEM_LEAKY_SLOPE 0.2f

/* gelu_tanh: u = sqrt(2 / pi) (x + 0.044715 x^3) */
#define ELEM_GELU_C 0.7978845608f
#define ELEM_GELU_K 0.044715f

/* y = f(x). Softmax is over a row and is not here. */
ELEM float elem_activate(enum activation f, float x)
{
    switch (f) {
    case ACTIVATION_RELU: return x < 0.0f ? 0.0f : x;
    case ACTIVATION_TANH: return elem_tanh(x);
    case ACTIVATION_SIGMOID: return elem_sigmoid(x);
    case ACTIVATION_GELU: return 0.5f * x * erfcf(x * -0.70710678f);
    case ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + elem_tanh(ELEM_GELU_C * (x + ELEM_GELU_K * x * x * x)));
    case ACTIVATION_ELU: return x > 0.0f ? x : elem_expm1(x);
    case ACTIVATION_SILU: return x * elem_sigmoid(x);
    case ACTIVATION_SOFTPLUS: return elem_softplus(x);
    case ACTIVATION_LEAKY_RELU: return x < 0.0f ? ELEM_LEAKY_SLOPE * x : x;
    case ACTIVATION_LINEAR:
    case ACTIVATION_SOFTMAX:
    case ACTIVATION__MAX: break;
    }
    return x;
}

/* 1 where the derivative needs the input x; elsewhere the output y tells it, and x need not be
 * kept. */
ELEM int elem_keeps_input(enum activation f)
{
    return f == ACTIVATION_GELU || f == ACTIVATION_GELU_TANH || f == ACTIVATION_SILU;
}

ELEM float elem_gelu_derivative(float x)
{
    float cdf = 0.5f * erfcf(x * -0.70710678f);
    return cdf + x * 0.3989422804f * elem_exp(-0.5f * x * x);
}

ELEM float elem_gelu_tanh_derivative(float x)
{
    float t = elem_tanh(ELEM_GELU_C * (x + ELEM_GELU_K * x * x * x));
    float du = ELEM_GELU_C * (1.0f + 3.0f * ELEM_GELU_K * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

/* f'(x), given x where elem_keeps_input(f), else y = f(x). */
ELEM float elem_derivative(enum activation f, float kept)
{
    switch (f) {
    case ACTIVATION_RELU: return kept > 0.0f ? 1.0f : 0.0f;
    case ACTIVATION_TANH: return 1.0f - kept * kept;
    case ACTIVATION_SIGMOID: return kept * (1.0f - kept);
    case ACTIVATION_GELU: return elem_gelu_derivative(kept);
    case ACTIVATION_GELU_TANH: return elem_gelu_tanh_derivative(kept);
    case ACTIVATION_ELU: return kept > 0.0f ? 1.0f : kept + 1.0f;
    case ACTIVATION_SILU: {
        float s = elem_sigmoid(kept);
        return s * (1.0f + kept * (1.0f - s));
    }
    case ACTIVATION_SOFTPLUS: return -elem_expm1(-kept);
    case ACTIVATION_LEAKY_RELU: return kept < 0.0f ? ELEM_LEAKY_SLOPE : 1.0f;
    case ACTIVATION_LINEAR:
    case ACTIVATION_SOFTMAX:
    case ACTIVATION__MAX: break;
    }
    return 1.0f;
}

/* The part of a row that softmax has seen: the largest value, and the sum of e^(x - max). Merging
 * is associative, so a row may be taken in pieces. */
struct elem_softmax {
    float max, sum;
};

ELEM struct elem_softmax elem_softmax_merge(struct elem_softmax a, struct elem_softmax b)
{
    struct elem_softmax r;
    r.max = elem_max(a.max, b.max);
    r.sum = a.sum * elem_exp(a.max - r.max) + b.sum * elem_exp(b.max - r.max);
    return r;
}

/* The larger of two, and NaN where there is one: it goes in as x and comes out. */
ELEM float elem_max_pool(float best, float x)
{
    return x > best || x != x ? x : best;
}

/* A normalisation: of a row (layer) or a column (batch). `rstd` is 1 / sqrt(variance + epsilon). */
ELEM float elem_normalize(float x, float mean, float rstd, float gamma, float beta)
{
    return (x - mean) * rstd * gamma + beta;
}

/* dx, with h = (x - mean) rstd and s = dy gamma; mean_s and mean_sh are the means of s and s h over
 * what the statistics are of. */
ELEM float elem_normalize_derivative(float h, float rstd, float s, float mean_s, float mean_sh)
{
    return rstd * (s - mean_s - h * mean_sh);
}

struct elem_moments {
    double mean, variance;
};

ELEM struct elem_moments elem_moments_of(double sum, double squares, double count)
{
    struct elem_moments m;
    m.mean = sum / count;
    double v = squares / count - m.mean * m.mean;
    m.variance = v > 0.0 ? v : v != v ? v : 0.0; /* rounding may leave less than none */
    return m;
}

ELEM float elem_rstd(double variance, double epsilon)
{
    return (float)(1.0 / sqrt(variance + epsilon));
}

/* One parameter and its optimiser state. */
struct elem_state {
    float w, m, v;
};

/* Constants of one step. `scale` turns the sum of gradients into the mean (and clips); `decay` is
 * 1 - learning_rate * weight_decay, 1 for none. Formulas: tests/reference/README.md. */
struct elem_adam {
    float rate;                           /* learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) */
    float beta_1, rest_1, beta_2, rest_2; /* rest = 1 - beta */
    float epsilon, scale, decay;
};

ELEM struct elem_state elem_adam_step(struct elem_adam a, struct elem_state s, float gradient)
{
    float g = gradient * a.scale;
    s.m = a.beta_1 * s.m + a.rest_1 * g;
    s.v = a.beta_2 * s.v + a.rest_2 * (g * g);
    s.w = s.w * a.decay - a.rate * s.m / (sqrtf(s.v) + a.epsilon);
    return s;
}

struct elem_sgd {
    float rate, momentum, scale;
    int nesterov;
};

/* Momentum's velocity is state m. */
ELEM struct elem_state elem_sgd_step(struct elem_sgd a, struct elem_state s, float gradient)
{
    float g = gradient * a.scale;
    s.m = a.momentum * s.m - a.rate * g;
    s.w = s.w + (a.nesterov ? a.momentum * s.m - a.rate * g : s.m);
    return s;
}

/* A step from the anchor towards the mean `s.w` of several ranks' weights, which is taken for a
 * gradient; Nesterov's momentum is state m. */
struct elem_outer {
    float rate, momentum;
};

ELEM struct elem_state elem_outer_step(struct elem_outer a, struct elem_state s, float anchor)
{
    float d = anchor - s.w;
    s.m = a.momentum * s.m + d;
    s.w = anchor - a.rate * (d + a.momentum * s.m);
    return s;
}

#endif
