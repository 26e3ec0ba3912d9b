/* order.c: permutations and slices. Nothing here knows of ranks, steps or files. */
#include "trainer/order.h"

#include "trainer/random.h"

/* Draw i of the epoch, in [0, bound): the high half of a 128-bit product. Its bias is below
 * bound / 2^64. */
static int64_t draw_below(uint64_t seed, int64_t epoch, int64_t i, int64_t bound)
{
    uint32_t words[4];
    random_words(seed, RANDOM_SHUFFLE, (uint64_t)epoch, (uint64_t)i, words);
    uint64_t number = (uint64_t)words[1] << 32 | words[0];
    return (int64_t)(((unsigned __int128)number * (uint64_t)bound) >> 64);
}

void order_epoch(int64_t samples, int shuffle, uint64_t seed, int64_t epoch, int64_t *ids)
{
    for (int64_t i = 0; i < samples; i++)
        ids[i] = i;
    if (!shuffle)
        return;
    for (int64_t i = samples - 1; i > 0; i--) {
        int64_t j = draw_below(seed, epoch, i, i + 1);
        int64_t t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
}

void order_slice(int64_t total, int parts, int index, int64_t *ret_begin, int64_t *ret_end)
{
    int64_t size = total / parts;
    int64_t larger = total % parts;
    int64_t begin = size * index + (index < larger ? index : larger);
    *ret_begin = begin;
    *ret_end = begin + size + (index < larger ? 1 : 0);
}
