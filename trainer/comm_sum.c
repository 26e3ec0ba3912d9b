/* comm_sum.c: sums over members in one fixed tree, a block at a time so that what lies between two
 * additions stays in the first cache. */
#include "base/err.h"
#include "spec/plan.h"
#include "trainer/comm_parts.h"
#include "trainer/cpu_loops.h"

#define BLOCK 512 /* elements */

/* Blocks that a sum over PLAN_MAX_RANKS members keeps in between: one a level of the tree. */
#define LEVELS 10
_Static_assert(PLAN_MAX_RANKS <= 1 << LEVELS, "a level of the tree has no block");

/* The left side of a tree of `count` leaves: the greatest power of two below it. */
static int left_of(int count)
{
    int left = 1;
    while (2 * left < count)
        left *= 2;
    return left;
}

#define DEFINE_SUM(T, NAME)                                                                        \
    CPU_CLONES static void add_two_##NAME(size_t n, const T *a, const T *b, T *out)                \
    {                                                                                              \
        CPU_INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++)                                                             \
            out[i] = a[i] + b[i];                                                                  \
    }                                                                                              \
    CPU_CLONES static void add_four_##NAME(size_t n, const T *a, const T *b, const T *c,           \
                                           const T *d, T *out)                                     \
    {                                                                                              \
        CPU_INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++)                                                             \
            out[i] = (a[i] + b[i]) + (c[i] + d[i]);                                                \
    }                                                                                              \
    /* Elements [at, at + n) of the tree over in[count]: into `out`, which is no input, or where   \
     * the only leaf has them. `room` is for what lies in between. */                              \
    static const T *tree_##NAME(const T *const *in, int count, size_t at, size_t n, T *out,        \
                                T *room)                                                           \
    {                                                                                              \
        if (count == 1)                                                                            \
            return in[0] + at;                                                                     \
        if (count == 4) {                                                                          \
            add_four_##NAME(n, in[0] + at, in[1] + at, in[2] + at, in[3] + at, out);               \
            return out;                                                                            \
        }                                                                                          \
        int left = left_of(count);                                                                 \
        const T *a = tree_##NAME(in, left, at, n, out, room);                                      \
        const T *b = tree_##NAME(in + left, count - left, at, n, room, room + BLOCK);              \
        add_two_##NAME(n, a, b, out);                                                              \
        return out;                                                                                \
    }                                                                                              \
    /* The root: an input is written over only once it has been read. */                           \
    static void sum_##NAME(size_t total, int count, const T *const *in, T *out)                    \
    {                                                                                              \
        T room[(LEVELS + 2) * BLOCK];                                                              \
        int left = left_of(count);                                                                 \
        for (size_t at = 0; at < total; at += BLOCK) {                                             \
            size_t n = total - at < BLOCK ? total - at : BLOCK;                                    \
            const T *a = tree_##NAME(in, left, at, n, room, room + 2 * BLOCK);                     \
            const T *b =                                                                           \
                tree_##NAME(in + left, count - left, at, n, room + BLOCK, room + 2 * BLOCK);       \
            add_two_##NAME(n, a, b, out + at);                                                     \
        }                                                                                          \
    }

DEFINE_SUM(float, f32)
DEFINE_SUM(double, f64)

void comm_sum(enum comm_type type, size_t n, int count, const void *const *in, void *out)
{
    if (type == COMM_U8 || type == COMM_U16)
        BUG("a sum of bytes");
    if (n == 0 || count == 1)
        return;
    const float *const *floats = (const float *const *)in;
    if (type == COMM_F64)
        sum_f64(n, count, (const double *const *)in, out);
    else if (count == 2)
        add_two_f32(n, floats[0], floats[1], out);
    else if (count == 4)
        add_four_f32(n, floats[0], floats[1], floats[2], floats[3], out);
    else
        sum_f32(n, count, floats, out);
}
