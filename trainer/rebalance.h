/* rebalance.h: slices and stages that follow the times that ranks measure (balance.h).
 *
 * Layers move between two steps: every rank copies what it is the one to save (pieces.h) into host
 * memory, lays itself out for the new cut, and takes what it needs of what all ranks have copied,
 * just as when a run goes on from a checkpoint. So the run goes on with the same bits. Nothing else
 * changes: the mesh, the order of the data and the schedule stay.
 *
 * A cut is not taken where a stage would share more through the transport than was made room for at
 * the start (PLAN_REBALANCE_ROOM), or where the plan's memory would pass the job's limit.
 */
#ifndef TRAINYARD_TRAINER_REBALANCE_H
#define TRAINYARD_TRAINER_REBALANCE_H

#include "trainer/balance.h"

struct engine;

struct rebalance {
    struct balance_word *words; /* [ranks]; NULL: nothing is measured */
    int steps;                  /* of this window */
    int uneven;                 /* windows in a row that were */
    double items;               /* of this rank's data rank, in this window */
    int64_t set_up_us;          /* what setting this rank up took when it was last done */
    size_t room;                /* bytes that stages may share */
    int64_t moves;
    char *said; /* what the last window changed, for the log; whoever says it frees it */
};

/* Whether the plan asks for times; refuses a plan for which they cannot be told. */
int rebalance_wanted(const struct engine *g);
int rebalance_check(const struct engine *g, struct err *e);

/* From now on steps are measured. */
void rebalance_init(struct engine *g);
void rebalance_done(struct engine *g);

/* After a step on `items`: at the end of a window what follows from it. Collective. */
int rebalance_after_step(struct engine *g, int64_t items, struct err *e);

#endif
