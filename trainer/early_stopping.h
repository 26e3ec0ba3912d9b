/* early_stopping.h: whether training goes on after an epoch, as Keras's EarlyStopping decides:
 * after `patience` epochs in a row whose monitored figure is not better than the best by more than
 * min_delta. Epochs before start_from_epoch (counted from 0, as in Keras), and those without the
 * figure, do not count; the first epoch of all never ends a run. */
#ifndef TRAINYARD_TRAINER_EARLY_STOPPING_H
#define TRAINYARD_TRAINER_EARLY_STOPPING_H

#include "trainer/engine.h"

/* Kept in checkpoints. */
struct early_stopping_state {
    int64_t best_epoch; /* from 1; 0: no epoch has counted yet */
    int64_t waited;     /* epochs since */
    double best;        /* the figure of the best epoch; before there is one the worst there is */
};
void early_stopping_init(struct early_stopping_state *s, const struct early_stopping *rule);

/* The monitored figure of an epoch; *ret_has is 0 where it was not measured. */
double early_stopping_figure(const struct early_stopping *rule, const struct epoch_result *x,
                             int *ret_has);

const char *early_stopping_monitor(const struct early_stopping *rule); /* "val_loss" */

enum early_stopping_verdict {
    EARLY_STOPPING_GO_ON = 0,
    EARLY_STOPPING_BEST = 1, /* and this is the best epoch so far */
    EARLY_STOPPING_STOP = 2,
};
/* Takes the figure of an epoch (from 1) into account. */
enum early_stopping_verdict early_stopping_epoch(struct early_stopping_state *s,
                                                 const struct early_stopping *rule, int64_t epoch,
                                                 double figure);

#endif
