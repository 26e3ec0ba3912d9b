/* exact.c: a long number, added to and read. */
#include "trainer/exact.h"

#include <math.h>

#define UNIT (-298) /* the exponent of bit 0 */

/* From limb `at` on. */
static void add_at(struct exact_sum *s, int at, uint64_t value)
{
    for (int i = at; value && i < EXACT_LIMBS; i++) {
        s->limb[i] += value;
        value = s->limb[i] < value; /* the carry */
    }
}

void exact_add_shifted(struct exact_sum *s, uint64_t value, unsigned shift)
{
    int at = (int)(shift / 64);
    unsigned bits = shift % 64;
    add_at(s, at, value << bits);
    if (bits)
        add_at(s, at + 1, value >> (64 - bits));
}

void exact_add(struct exact_sum *to, const struct exact_sum *s)
{
    for (int i = 0; i < EXACT_LIMBS; i++)
        add_at(to, i, s->limb[i]);
    to->not_finite += s->not_finite;
}

double exact_to_double(const struct exact_sum *s)
{
    int top = EXACT_LIMBS - 1;
    if (s->not_finite)
        return NAN;
    while (top > 0 && s->limb[top] == 0)
        top--;
    if (s->limb[top] == 0)
        return 0;
    int zeros = __builtin_clzll(s->limb[top]);
    uint64_t below = top > 0 ? s->limb[top - 1] : 0;
    uint64_t high = zeros ? s->limb[top] << zeros | below >> (64 - zeros) : s->limb[top];
    uint64_t rest = below << zeros;
    for (int i = 0; i < top - 1; i++)
        rest |= s->limb[i];
    high |= rest != 0; /* far below the last bit of a double: enough for a tie to be none */
    return ldexp((double)high, top * 64 - zeros + UNIT);
}
