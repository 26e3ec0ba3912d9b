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

/* Parameters [begin, end) of the arenas' trained elements, with what goes with them: each pointer
 * is of the first one. */
struct optimizer_range {
    size_t begin, end;
    float *parameter;
    const float *gradient;
    void *state[NET_STATES]; /* float32 or bfloat16; NULL where the optimiser has none */
};

/* One update of a range. `update` counts from 1; gradients are sums over items, which `scale` turns
 * into what is wanted (1 / items, times the clip). The net tells which tensors decay. */
void optimizer_update(const struct optimizer *o, const struct net *n, double rate, int64_t update,
                      double scale, enum storage_type moments, const struct optimizer_range *x);

#endif
