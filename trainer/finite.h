/* finite.h: whether a step's numbers are numbers, and where they first were not. */
#ifndef TRAINYARD_TRAINER_FINITE_H
#define TRAINYARD_TRAINER_FINITE_H

#include "trainer/engine.h"

/* After an exchange of tallies, so all ranks decide alike. ERR_INVALID when a loss or gradient is
 * not finite: the ranks look through what they have, and the sentence names the first layer whose
 * output, or the first tensor whose gradient, is not finite, and the rank. */
int engine_check_finite(struct engine *g, struct err *e);

#endif
