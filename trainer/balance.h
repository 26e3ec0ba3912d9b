/* balance.h: how evenly the work lies on the ranks, from the times that they measure, and what
 * would lie better. Pure: from the same words all ranks come to the same answers.
 *
 * A window is BALANCE_STEPS steps. At its end all ranks tell one another how long each of their
 * chunks has computed in it, without waiting for anybody. A stage's time is that of its slowest
 * data or tensor rank; a place's along the pipeline, that of its stages together; a data rank's,
 * that of its slowest place.
 *
 * Slices by speed: a data rank's speed is its items in the window by its time. The weights go half
 * the way from where they are to where that window would have them.
 *
 * Rebalancing: a window is uneven when the slowest place takes BALANCE_LIMIT times the mean. After
 * BALANCE_WINDOWS of them in a row the layers are cut anew, by what each stage has measured,
 * divided among its layers by their FLOPs. Layers move if the steps that are left gain more than
 * moving costs: what setting a rank up took when this was last done.
 */
#ifndef TRAINYARD_TRAINER_BALANCE_H
#define TRAINYARD_TRAINER_BALANCE_H

#include <stdint.h>

#include "spec/job.h"
#include "trainer/comm.h"

#define BALANCE_STEPS   8
#define BALANCE_WINDOWS 10
#define BALANCE_LIMIT   1.15
#define BALANCE_CHUNKS  48 /* per rank, at most, where times are measured */

/* What one rank says of a window. */
struct balance_word {
    float items;                   /* that it has trained on; of its data rank */
    float move_us;                 /* what setting itself up has taken */
    float busy_us[BALANCE_CHUNKS]; /* by chunk */
};
_Static_assert(sizeof(struct balance_word) <= COMM_EXCHANGE_MAX, "told in one exchange");

/* Items by time of each data rank, into ret [plan.data]; 0 where nothing was measured. */
void balance_speeds(const struct plan *p, const struct balance_word *all, double *ret);

/* The slowest place's time by the mean of all; 1 where nothing was measured. */
double balance_unevenness(const struct plan *p, const struct balance_word *all);

/* A better cut for `steps` more steps, into ret_first [stages + 1]; 1 if it pays. */
int balance_cut(const struct job_spec *job, const struct plan *p, const struct balance_word *all,
                int64_t steps, int *ret_first);

#endif
