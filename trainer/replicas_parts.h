/* replicas_parts.h: what the replicas*.c files share. Others use replicas.h. */
#ifndef TRAINYARD_TRAINER_REPLICAS_PARTS_H
#define TRAINYARD_TRAINER_REPLICAS_PARTS_H

#include "trainer/replicas.h"

/* Element `at` of the layout, which lies in bucket b, and in its own part where the arena is
 * divided; NULL where there is no such arena. */
void *arena_at(const struct arena *s, const struct bucket *b, size_t at);

/* This data rank's part of a bucket, whether or not anything is divided. */
void part_of(const struct replicas *r, const struct bucket *b, size_t *ret_begin, size_t *ret_end);

/* Where the bucket's summed gradients stand, of its own part, in arena `which` of them. */
float *summed(const struct replicas *r, int which, const struct bucket *b);

#endif
