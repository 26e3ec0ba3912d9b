/* train.h: what the program does, apart from reading its command line. */
#ifndef TRAINYARD_TRAINER_TRAIN_H
#define TRAINYARD_TRAINER_TRAIN_H

#include "trainer/engine.h"

#define TRAIN_DONE      0
#define TRAIN_PERMANENT 100 /* the same will fail again */
#define TRAIN_RETRY     111 /* another attempt may succeed */

/* Reads and checks the job's data into fds->data; reports `prepared` or a verdict. Returns the exit
 * status. */
int train_prepare(const struct launch *l, const struct engine_fds *fds);

/* Trains as rank `rank` of the gang and reports; *stop becomes non-zero when the gang shall stop.
 * Artifacts go to the working directory. Returns the exit status. */
int train_rank(const struct launch *l, int rank, const struct engine_fds *fds,
               const volatile int *stop);

#endif
