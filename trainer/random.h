/* random.h: counter-based random numbers (Philox4x32-10, Random123): a value is a function of
 * (seed, stream, index), so it depends neither on the number of ranks nor on the order of calls. */
#ifndef TRAINYARD_TRAINER_RANDOM_H
#define TRAINYARD_TRAINER_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "spec/model.h"

/* Streams, so that no two uses share numbers. */
enum random_use { RANDOM_INIT = 1, RANDOM_SHUFFLE = 2, RANDOM_DROPOUT = 3 };

/* Four 32-bit words for counter (index, stream) under the key (seed, use). */
void random_words(uint64_t seed, enum random_use use, uint64_t stream, uint64_t index,
                  uint32_t out[4]);
float random_unit(uint32_t word); /* [0, 1), 24 bits */

/* Fills w with the tensor's start values: stream = tensor number in the model, index = element.
 * Keras's initialisers: limits and deviations from fan_in and fan_out, normals truncated at two
 * deviations where Keras truncates. */
void random_initialize(const struct tensor_spec *t, uint64_t seed, uint64_t tensor_number,
                       float *w);

#endif
