/* mt19937.h: the Mersenne Twister, as numpy's legacy generator uses it. Only for the data set
 * `synthetic`; everything else draws from random.h.
 * Source: M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998. */
#ifndef TRAINYARD_TRAINER_MT19937_H
#define TRAINYARD_TRAINER_MT19937_H

#include <stdint.h>

#define MT19937_WORDS 624

struct mt19937 {
    uint32_t state[MT19937_WORDS];
    int at; /* words of `state` already given out */
};

void mt19937_seed(struct mt19937 *m, uint32_t seed); /* init_genrand */
uint32_t mt19937_word(struct mt19937 *m);
double mt19937_unit(struct mt19937 *m); /* [0, 1), 53 bits of two words */

/* Uniform in [0, bound), bound >= 1: words masked to the bits that bound - 1 has, until one is
 * below. A bound of 1 draws nothing. */
uint32_t mt19937_below(struct mt19937 *m, uint32_t bound);

#endif
