/* tensorboard.h: a run's scalars as TensorBoard event files, written by rank 0 into the working
 * directory: events.out.tfevents.<unix seconds>.<attempt>.train and ….validation. Keras's
 * TensorBoard callback has a directory train/ and one validation/; artifacts are flat, so the last
 * part of the name says which.
 *
 *   train       by step: loss, grad_norm, learning_rate, samples_per_second
 *               by epoch: epoch_loss, and epoch_accuracy and epoch_mae where they are measured
 *   validation  by epoch: the same three
 *
 * Each attempt writes files of its own; one that resumes goes on with the next step. A run of very
 * many steps is thinned: of at most TENSORBOARD_STEPS_MAX steps, evenly spaced, there is a point.
 * Event files are for looking at: when the disk has no room for them the run goes on without, and
 * says so.
 */
#ifndef TRAINYARD_TRAINER_TENSORBOARD_H
#define TRAINYARD_TRAINER_TENSORBOARD_H

#include "trainer/engine.h"
#include "trainer/tensorboard_file.h"

#define TENSORBOARD_STEPS_MAX 1000000
#define TENSORBOARD_WRITE_US  200000
#define TENSORBOARD_NAME_SIZE 96

struct tensorboard {
    struct tensorboard_file train, validation; /* without a name: not open */
    int64_t every;                             /* steps from point to point */
    int64_t wrote_us;                          /* boot time of the last write */
    int is_off;                                /* something failed: nothing more is written */
};

/* On a failure of any of these the struct is off, the sentence tells why, and further calls do
 * nothing. Safe on a zeroed struct. */
int tensorboard_open(struct tensorboard *t, const struct engine *g, struct err *e);
int tensorboard_step(struct tensorboard *t, int64_t step, const struct step_result *s,
                     double samples_per_second, struct err *e);
int tensorboard_epoch(struct tensorboard *t, const struct job_spec *job, int64_t epoch,
                      const struct epoch_result *x, struct err *e);
int tensorboard_flush(struct tensorboard *t, struct err *e);
void tensorboard_close(struct tensorboard *t);

/* The name of open file `i`, or NULL from their number on. */
const char *tensorboard_artifact(const struct tensorboard *t, int i);

#endif
