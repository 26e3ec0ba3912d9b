/* checkpoint_load.h: going on from a checkpoint, at whatever mesh.
 *
 * The launch document names checkpoints, newest first. The first that can be trusted is taken: its
 * manifest has the sum that was reported for it, and every shard has the size and sum that the
 * manifest gives; ranks divide the shards among them for that, and all hear of a fault. Then each
 * rank reads from all shards what it needs, block by block. Whatever is wrong with one is said in
 * the log, and the one before it is tried; there is no going on without one.
 */
#ifndef TRAINYARD_TRAINER_CHECKPOINT_LOAD_H
#define TRAINYARD_TRAINER_CHECKPOINT_LOAD_H

#include "trainer/checkpoint.h"

struct resumed {
    struct manifest manifest; /* of the checkpoint that was taken */
    struct piece_copy *best;  /* this rank's share of the weights of the best epoch, or NULL */
};

/* Collective. Sets the engine's values, its step and its updates from launch->resume, which is not
 * empty. When none can be taken, g->code is "checkpoint_invalid" and the sentence says what is
 * wrong with the newest. */
int checkpoint_load(struct engine *g, struct resumed *ret, struct err *e);
void resumed_done(struct resumed *r); /* safe on a zeroed struct */

#endif
