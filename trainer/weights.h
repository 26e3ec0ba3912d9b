/* weights.h: where parameters come from and where they go. */
#ifndef TRAINYARD_TRAINER_WEIGHTS_H
#define TRAINYARD_TRAINER_WEIGHTS_H

#include "trainer/engine.h"

/* Start values of this rank's tensors: from the job's weights file, every tensor of which must be
 * one of the model's, with its shape, and the other way round; or from the initialisers, by the
 * seed (of the member, in an ensemble). Sets g->code to "weights_invalid" on failure. */
int weights_start(struct engine *g, struct err *e);

/* Writes the parameters into the working directory: "model.safetensors", gathered from all stages,
 * by rank 0; "member-<s>.safetensors" by each member of an ensemble. Collective: returns when
 * everything is written. */
int weights_save(struct engine *g, struct err *e);

#define WEIGHTS_NAME_SIZE 64
/* The name of artifact `i`; NULL from the number of artifacts on. */
const char *weights_artifact(const struct engine *g, int i, char out[WEIGHTS_NAME_SIZE]);

#endif
