/* finite.h: whether a step's numbers are numbers, and where they first were not. */
#ifndef TRAINYARD_TRAINER_FINITE_H
#define TRAINYARD_TRAINER_FINITE_H

#include "trainer/engine.h"

/* After an exchange of tallies, so all ranks decide alike. ERR_INVALID when the loss, or then the
 * gradient, is not finite: the ranks look through what they have, and the sentence names the first
 * layer whose output, or the first tensor whose gradient, is not finite, and the rank. *ret_skip:
 * the gradient is not, but was scaled so high that a lower scale may do. */
int engine_check_loss(struct engine *g, struct err *e);
int engine_check_gradient(struct engine *g, int *ret_skip, struct err *e);

#endif
