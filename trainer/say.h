/* say.h: what the rank's log says to people: a line an epoch, as Keras prints it, and the last
 * word. Programs read the report file instead. */
#ifndef TRAINYARD_TRAINER_SAY_H
#define TRAINYARD_TRAINER_SAY_H

#include "trainer/engine.h"

/* "Epoch 2/5 - 125 steps - 0.4 s - loss: 0.3114 - accuracy: 0.9125 - val_loss: ...". */
void say_epoch(const struct engine *g, int64_t epoch, const struct epoch_result *x, double seconds);

/* Any other line. */
void say_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* "Rank 0: All steps are done." Nothing reads it if standard output is closed or full. */
void say_verdict(int rank, const char *reason);

#endif
