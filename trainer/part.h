/* part.h: between the elements of a whole tensor and those of a rank's part of it (struct
 * net_part), both row-major. */
#ifndef TRAINYARD_TRAINER_PART_H
#define TRAINYARD_TRAINER_PART_H

#include "trainer/net.h"

int64_t part_elements(const struct shape *s, const struct net_part *p); /* padding included */

/* The run of elements from `at` of the part on, at most `most`, that is also one of the whole
 * tensor: *ret_whole is its place there, -1 for padding. Returns its length. */
int64_t part_run_in_whole(const struct shape *s, const struct net_part *p, int64_t at, int64_t most,
                          int64_t *ret_whole);

/* The other way round: -1 where the elements are not of the part. */
int64_t part_run_in_part(const struct shape *s, const struct net_part *p, int64_t at, int64_t most,
                         int64_t *ret_own);

#endif
