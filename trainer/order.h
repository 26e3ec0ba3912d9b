/* order.h: which samples are in which batch: a function of (seed, epoch, batch) alone, never of
 * the number of ranks. */
#ifndef TRAINYARD_TRAINER_ORDER_H
#define TRAINYARD_TRAINER_ORDER_H

#include <stdint.h>

/* The order of `samples` in an epoch (from 1) into ids[samples]: the identity without shuffle, else
 * a Fisher-Yates permutation drawn by Philox from (seed, epoch). */
void order_epoch(int64_t samples, int shuffle, uint64_t seed, int64_t epoch, int64_t *ids);

/* Part `index` of `parts` of `total` items: contiguous, sizes differ by at most one, the larger
 * ones first; [*ret_begin, *ret_end), empty when parts > total and index >= total. */
void order_slice(int64_t total, int parts, int index, int64_t *ret_begin, int64_t *ret_end);

#endif
