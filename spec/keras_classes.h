/* keras_classes.h: which layers of Keras have their like here (keras.h). */
#ifndef TRAINYARD_SPEC_KERAS_CLASSES_H
#define TRAINYARD_SPEC_KERAS_CLASSES_H

#include "spec/keras_values.h"

const struct keras_class *keras_class_find(const char *name); /* NULL: none */
extern const struct words keras_class_words;                  /* for sentences */

extern const struct keras_arg keras_common[]; /* arguments of every layer */
extern const size_t keras_common_count;

#endif
