/* optimizer.h: learning rates and updates. Formulas: tests/reference/README.md; per element in
 * elem.h. */
#ifndef TRAINYARD_TRAINER_OPTIMIZER_H
#define TRAINYARD_TRAINER_OPTIMIZER_H

#include "trainer/net.h"

int optimizer_states(const struct optimizer *o); /* arenas that it keeps beside the parameters */

/* The rate of step `step`, counted from 0. */
double optimizer_rate(const struct optimizer *o, int64_t step);

/* What global_clipnorm multiplies all gradients with, given their norm. */
double optimizer_clip(const struct optimizer *o, double norm);

/* One update of the parameters [begin, end) of the net's arena. `update` counts from 1; the
 * gradient arena holds sums over items, which `scale` turns into what is wanted (1 / items, times
 * the clip). */
void optimizer_update(const struct optimizer *o, struct net *n, double rate, int64_t update,
                      double scale, size_t begin, size_t end);

#endif
