/* mt19937.c: the recurrence and tempering of the paper, and numpy's numbers made of the words. */
#include "trainer/mt19937.h"

#define SHIFT_WORDS 397

void mt19937_seed(struct mt19937 *m, uint32_t seed)
{
    m->state[0] = seed;
    for (uint32_t i = 1; i < MT19937_WORDS; i++) {
        uint32_t before = m->state[i - 1];
        m->state[i] = 1812433253u * (before ^ before >> 30) + i;
    }
    m->at = MT19937_WORDS;
}

static uint32_t twist(uint32_t upper, uint32_t lower)
{
    uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
}

static void refill(struct mt19937 *m)
{
    uint32_t *s = m->state;
    int n = MT19937_WORDS;
    for (int i = 0; i < n - SHIFT_WORDS; i++)
        s[i] = s[i + SHIFT_WORDS] ^ twist(s[i], s[i + 1]);
    for (int i = n - SHIFT_WORDS; i < n - 1; i++)
        s[i] = s[i + SHIFT_WORDS - n] ^ twist(s[i], s[i + 1]);
    s[n - 1] = s[SHIFT_WORDS - 1] ^ twist(s[n - 1], s[0]);
    m->at = 0;
}

uint32_t mt19937_word(struct mt19937 *m)
{
    if (m->at >= MT19937_WORDS)
        refill(m);
    uint32_t y = m->state[m->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

double mt19937_unit(struct mt19937 *m)
{
    uint32_t a = mt19937_word(m) >> 5;
    uint32_t b = mt19937_word(m) >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
}

uint32_t mt19937_below(struct mt19937 *m, uint32_t bound)
{
    uint32_t largest = bound - 1;
    if (largest == 0)
        return 0;
    uint32_t mask = UINT32_MAX >> __builtin_clz(largest);
    uint32_t word;
    do {
        word = mt19937_word(m) & mask;
    } while (word > largest);
    return word;
}
