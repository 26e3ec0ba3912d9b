/* fit.h: a training run from the first step to the weights: epochs, what is told of them, and the
 * reasons to end. */
#ifndef TRAINYARD_TRAINER_FIT_H
#define TRAINYARD_TRAINER_FIT_H

#include "trainer/engine.h"
#include "trainer/report.h"

enum fit_end {
    FIT_DONE,    /* all steps are done */
    FIT_STOPPED, /* the gang was asked to stop */
};

/* Trains an open engine, from a checkpoint where the launch document names some, and writes the
 * weights. Rank 0 reports, says and draws; all ranks return alike. On success the sentence in `e`
 * says how it ended. */
int fit_run(struct engine *g, struct report *out, enum fit_end *ret, struct err *e);

#endif
