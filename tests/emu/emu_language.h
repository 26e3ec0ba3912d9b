/* emu_language.h: CUDA's device language for the host's compiler: qualifiers, built-in variables,
 * barriers, warp primitives, integer atomics and the few intrinsics that kernels use. One device
 * thread runs one block at a time, whose threads take turns (emu_block.cc); so shared memory is
 * static, and an atomic operation needs no lock.
 */
#ifndef TRAINYARD_EMU_LANGUAGE_H
#define TRAINYARD_EMU_LANGUAGE_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "emu_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__      static
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)

/* ---- where a thread is; set by emu_block.cc whenever it changes ---- */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern unsigned emu_lane; /* of the warp */
constexpr int warpSize = 32;

/* ---- kernels by address ---- */
enum emu_argument { EMU_NUMBER, EMU_POINTER, EMU_STRUCT };
typedef void emu_call(const void *kernel, void *const *arguments);
typedef void emu_clear(void *const *arguments);
struct emu_kernel {
    const char *name;
    emu_call *call;
    emu_clear *clear; /* what lies between the members of arguments */
    int count;
    const size_t *sizes;
    const enum emu_argument *kinds;
};
void emu_register(const void *address, const struct emu_kernel *k);

template <class... P, size_t... I>
static void emu_call_with(void (*kernel)(P...), void *const *a, std::index_sequence<I...>)
{
    kernel(*static_cast<std::remove_cv_t<P> *>(a[I])...);
}
template <class... P> static void emu_call_of(const void *kernel, void *const *a)
{
    emu_call_with(reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel)), a,
                  std::index_sequence_for<P...>());
}
/* Addresses of the past may lie there, which would be taken for the kernel's own. */
template <class T> static void emu_clear_one([[maybe_unused]] void *a)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(static_cast<T *>(a));
#endif
#endif
}
template <class... P, size_t... I>
static void emu_clear_each(void *const *a, std::index_sequence<I...>)
{
    (emu_clear_one<std::remove_cv_t<P>>(a[I]), ...);
}
template <class... P> static void emu_clear_of(void *const *a)
{
    emu_clear_each<P...>(a, std::index_sequence_for<P...>());
}
template <class T> constexpr enum emu_argument emu_kind()
{
    static_assert(!std::is_reference_v<T>, "a kernel's parameters are passed by value");
    return std::is_pointer_v<T> ? EMU_POINTER : std::is_class_v<T> ? EMU_STRUCT : EMU_NUMBER;
}
/* Makes a kernel known, so that it can be launched by its address. */
template <class... P> static void emu_know(void (*kernel)(P...), const char *name)
{
    static const size_t sizes[] = {sizeof(P)..., 0};
    static const enum emu_argument kinds[] = {emu_kind<P>()..., EMU_NUMBER};
    struct emu_kernel k = {
        name, emu_call_of<P...>, emu_clear_of<P...>, static_cast<int>(sizeof...(P)), sizes, kinds};
    emu_register(reinterpret_cast<const void *>(kernel), &k);
}
/* (kernel) or (kernel, its name for messages). */
#define CUDA_KERNEL_IS_KNOWN(...)     EMU_KNOWN_(__VA_ARGS__, #__VA_ARGS__)
#define EMU_KNOWN_(kernel, name, ...) emu_know(kernel, name)

void *emu_dynamic_shared(void);
#define DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(emu_dynamic_shared())

/* ---- barriers ---- */
/* `line` tells one barrier from another: threads of a block wait at the same. */
void emu_barrier(int line);
int emu_barrier_count(int line, int predicate); /* of threads where it is not 0 */
static inline void __syncthreads(int line = __builtin_LINE())
{
    emu_barrier(line);
}
static inline int __syncthreads_count(int p, int line = __builtin_LINE())
{
    return emu_barrier_count(line, p);
}
static inline int __syncthreads_or(int p, int line = __builtin_LINE())
{
    return emu_barrier_count(line, p) > 0;
}
static inline int __syncthreads_and(int p, int line = __builtin_LINE())
{
    return emu_barrier_count(line, !p) == 0;
}
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}

/* ---- warps: all lanes of `mask` come to the same primitive ---- */
/* Returns `bits` of lane `source`. */
uint64_t emu_shuffle(unsigned mask, uint64_t bits, unsigned source);
unsigned emu_ballot(unsigned mask, int predicate);

static inline void __syncwarp(unsigned mask = 0xffffffffU)
{
    emu_ballot(mask, 0);
}
static inline unsigned __ballot_sync(unsigned mask, int p)
{
    return emu_ballot(mask, p);
}
static inline int __any_sync(unsigned mask, int p)
{
    return emu_ballot(mask, p) != 0;
}
static inline int __all_sync(unsigned mask, int p)
{
    return emu_ballot(mask, !p) == 0;
}

template <class T> static inline T emu_exchange(unsigned mask, T v, unsigned source)
{
    static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                  "shuffles are of numbers of 4 or 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof v);
    bits = emu_shuffle(mask, bits, source);
    std::memcpy(&v, &bits, sizeof v);
    return v;
}
/* A warp falls into segments of `width` lanes; a source beyond the segment is the lane itself. */
template <class T> static inline T __shfl_sync(unsigned mask, T v, int source, int width = warpSize)
{
    unsigned w = static_cast<unsigned>(width);
    return emu_exchange(mask, v, (emu_lane & ~(w - 1)) | (static_cast<unsigned>(source) & (w - 1)));
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = warpSize)
{
    unsigned in = emu_lane & (static_cast<unsigned>(width) - 1);
    return emu_exchange(mask, v, delta > in ? emu_lane : emu_lane - delta);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = warpSize)
{
    unsigned w = static_cast<unsigned>(width), in = emu_lane & (w - 1);
    return emu_exchange(mask, v, delta >= w - in ? emu_lane : emu_lane + delta);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int other, int width = warpSize)
{
    unsigned from = emu_lane ^ static_cast<unsigned>(other);
    unsigned last = emu_lane | (static_cast<unsigned>(width) - 1);
    return emu_exchange(mask, v, from > last ? emu_lane : from);
}

/* ---- atomics, on integers ---- */
#define EMU_ATOMICS(type)                                                                          \
    static inline type atomicAdd(type *p, type v)                                                  \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = static_cast<type>(static_cast<unsigned long long>(old) +                              \
                               static_cast<unsigned long long>(v));                                \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicMax(type *p, type v)                                                  \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = old < v ? v : old;                                                                    \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicMin(type *p, type v)                                                  \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = v < old ? v : old;                                                                    \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicOr(type *p, type v)                                                   \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = old | v;                                                                              \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicAnd(type *p, type v)                                                  \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = old & v;                                                                              \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicExch(type *p, type v)                                                 \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = v;                                                                                    \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicCAS(type *p, type compare, type v)                                    \
    {                                                                                              \
        type old = *p;                                                                             \
        *p = old == compare ? v : old;                                                             \
        return old;                                                                                \
    }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)

/* ---- numbers ---- */
template <class To, class From> static inline To emu_bits(From v)
{
    static_assert(sizeof(To) == sizeof(From));
    To r;
    std::memcpy(&r, &v, sizeof r);
    return r;
}
#define EMU_FUNCTION(type, name, parameters, value)                                                \
    static inline type name parameters                                                             \
    {                                                                                              \
        return value;                                                                              \
    }
EMU_FUNCTION(int, __popc, (unsigned v), __builtin_popcount(v))
EMU_FUNCTION(int, __popcll, (unsigned long long v), __builtin_popcountll(v))
EMU_FUNCTION(int, __ffs, (int v), __builtin_ffs(v))
EMU_FUNCTION(int, __ffsll, (long long v), __builtin_ffsll(v))
EMU_FUNCTION(int, __clz, (int v), v ? __builtin_clz(static_cast<unsigned>(v)) : 32)
EMU_FUNCTION(int, __clzll, (long long v),
             v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64)
EMU_FUNCTION(unsigned, __umulhi, (unsigned a, unsigned b),
             static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32))
EMU_FUNCTION(unsigned long long, __umul64hi, (unsigned long long a, unsigned long long b),
             static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64))
EMU_FUNCTION(unsigned, __float_as_uint, (float v), emu_bits<unsigned>(v))
EMU_FUNCTION(float, __uint_as_float, (unsigned v), emu_bits<float>(v))
EMU_FUNCTION(int, __float_as_int, (float v), emu_bits<int>(v))
EMU_FUNCTION(float, __int_as_float, (int v), emu_bits<float>(v))
EMU_FUNCTION(long long, __double_as_longlong, (double v), emu_bits<long long>(v))
EMU_FUNCTION(double, __longlong_as_double, (long long v), emu_bits<double>(v))
EMU_FUNCTION(float, __fmaf_rn, (float a, float b, float c), fmaf(a, b, c))
EMU_FUNCTION(float, __fadd_rn, (float a, float b), a + b)
EMU_FUNCTION(float, __fsub_rn, (float a, float b), a - b)
EMU_FUNCTION(float, __fmul_rn, (float a, float b), a *b)
EMU_FUNCTION(float, __fdiv_rn, (float a, float b), a / b)
EMU_FUNCTION(float, __fsqrt_rn, (float v), sqrtf(v))
EMU_FUNCTION(float, __frcp_rn, (float v), 1.0F / v)
EMU_FUNCTION(double, __fma_rn, (double a, double b, double c), fma(a, b, c))
EMU_FUNCTION(double, __dadd_rn, (double a, double b), a + b)
EMU_FUNCTION(double, __dsub_rn, (double a, double b), a - b)
EMU_FUNCTION(double, __dmul_rn, (double a, double b), a *b)
EMU_FUNCTION(double, __ddiv_rn, (double a, double b), a / b)
EMU_FUNCTION(double, __dsqrt_rn, (double v), sqrt(v))
EMU_FUNCTION(float, __double2float_rn, (double v), static_cast<float>(v))
EMU_FUNCTION(int, __float2int_rn, (float v), static_cast<int>(rintf(v)))
EMU_FUNCTION(int, __float2int_rz, (float v), static_cast<int>(v))
EMU_FUNCTION(float, __int2float_rn, (int v), static_cast<float>(v))
EMU_FUNCTION(float, __uint2float_rn, (unsigned v), static_cast<float>(v))
EMU_FUNCTION(float, rsqrtf, (float v), 1.0F / sqrtf(v))
EMU_FUNCTION(double, rsqrt, (double v), 1.0 / sqrt(v))

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

#define EMU_MIN_MAX(type, a_type, b_type)                                                          \
    EMU_FUNCTION(type, min, (a_type a, b_type b),                                                  \
                 static_cast<type>(a) < static_cast<type>(b) ? static_cast<type>(a)                \
                                                             : static_cast<type>(b))               \
    EMU_FUNCTION(type, max, (a_type a, b_type b),                                                  \
                 static_cast<type>(a) < static_cast<type>(b) ? static_cast<type>(b)                \
                                                             : static_cast<type>(a))
EMU_MIN_MAX(int, int, int)
EMU_MIN_MAX(unsigned, unsigned, unsigned)
EMU_MIN_MAX(unsigned, int, unsigned)
EMU_MIN_MAX(unsigned, unsigned, int)
EMU_MIN_MAX(long, long, long)
EMU_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMU_MIN_MAX(unsigned long, long, unsigned long)
EMU_MIN_MAX(unsigned long, unsigned long, long)
EMU_MIN_MAX(long long, long long, long long)
EMU_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
EMU_MIN_MAX(unsigned long long, long long, unsigned long long)
EMU_MIN_MAX(unsigned long long, unsigned long long, long long)
/* Of a NaN and a number, the number, as on the device. */
EMU_FUNCTION(float, min, (float a, float b), fminf(a, b))
EMU_FUNCTION(float, max, (float a, float b), fmaxf(a, b))
EMU_FUNCTION(double, min, (double a, double b), fmin(a, b))
EMU_FUNCTION(double, max, (double a, double b), fmax(a, b))
EMU_FUNCTION(double, min, (float a, double b), fmin(a, b))
EMU_FUNCTION(double, max, (float a, double b), fmax(a, b))
EMU_FUNCTION(double, min, (double a, float b), fmin(a, b))
EMU_FUNCTION(double, max, (double a, float b), fmax(a, b))

#endif
