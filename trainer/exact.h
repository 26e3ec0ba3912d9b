/* exact.h: sums of squares of float32 values without any rounding, so that they do not depend on an
 * order: the same over any number of ranks, buckets or parts.
 *
 * A float32 is m 2^(x - 150) with a 24-bit m and x in 1..254, so its square is m^2 2^(2 x - 300),
 * a whole number of units of 2^-298. The sum is kept as such a number, of EXACT_LIMBS x 64 bits:
 * enough for more than 2^60 of the largest squares.
 */
#ifndef TRAINYARD_TRAINER_EXACT_H
#define TRAINYARD_TRAINER_EXACT_H

#include <stddef.h>
#include <stdint.h>

#define EXACT_LIMBS 10

struct exact_sum {
    uint64_t limb[EXACT_LIMBS]; /* least first */
    int64_t not_finite;         /* values that were left out: infinities and NaN */
};

/* Adds value << shift. */
void exact_add_shifted(struct exact_sum *s, uint64_t value, unsigned shift);
void exact_add(struct exact_sum *to, const struct exact_sum *s);

/* Rounded once, to nearest; NaN where a value was not finite. */
double exact_to_double(const struct exact_sum *s);

#endif
