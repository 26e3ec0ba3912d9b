/* loss_scale.h: the factor that keeps gradients within what float16 can tell, as Keras's
 * LossScaleOptimizer has it (keras.io/api/optimizers/loss_scale_optimizer): the gradient of the
 * loss is multiplied by it, the optimizer divides. It starts at 2^15; where a gradient is not
 * finite the update is skipped and the factor halved; after 2,000 good steps in a row it is
 * doubled. It is always a power of two, so that a product with it rounds nothing, and here never
 * below 1, where a gradient that is not finite is no matter of scale.
 */
#ifndef TRAINYARD_TRAINER_LOSS_SCALE_H
#define TRAINYARD_TRAINER_LOSS_SCALE_H

#include <stdint.h>

#include "spec/job.h"

#define LOSS_SCALE_FIRST 32768.0
#define LOSS_SCALE_STEPS 2000
#define LOSS_SCALE_MOST  0x1p127 /* a float32 still; gradients overflow long before */

struct loss_scale {
    double factor; /* 1: gradients are as they are */
    int is_on;
    int64_t good; /* steps in a row */
};

void loss_scale_init(struct loss_scale *s, enum compute_type compute);

/* 1 if a step whose gradient is not finite may be skipped, and a lower factor help. */
int loss_scale_can_fall(const struct loss_scale *s);

/* After a step: what the factor is multiplied by for the next one. */
double loss_scale_after(struct loss_scale *s, int is_good);

/* What a scale starts at; tests have it overflow. */
extern double loss_scale_first;

#endif
