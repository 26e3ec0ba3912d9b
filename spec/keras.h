/* keras.h: a Sequential model as Keras's to_json() writes it, Keras 3 and 2.
 *
 * The classes and arguments that mean the same here are written anew as our own documents, and
 * those are decoded by the ordinary tables, with faults at the places of the original. Everything
 * else is a fault that names its path: no layer and no argument is dropped. What cannot change the
 * result (jit_compile, the seed of an initialiser) is a warning where it was set.
 */
#ifndef TRAINYARD_SPEC_KERAS_H
#define TRAINYARD_SPEC_KERAS_H

#include "spec/job.h"
#include "spec/layer.h"

/* 1 if the "model" of a job is Keras's: an object with "class_name", or the text of one. */
int keras_is_model(const json_t *v);

/* The object itself, also where it is text: a new reference, or NULL. */
json_t *keras_unwrap(const json_t *v, struct err *e);

/* Decodes it. Beside Keras's own members an "input" shape and a "weights" path may stand. Returns 0
 * if there was no fault; `m`, zeroed before, is to be released either way. */
int keras_decode_model(struct decoding *d, const json_t *v, const struct where *at,
                       struct model *m);

/* 1 if the model brings its compile_config along. */
int keras_has_compile(const json_t *v);
/* Decodes that into optimizer, loss and metrics. */
void keras_decode_compile(struct decoding *d, const json_t *v, const struct where *at,
                          struct job_spec *s);

#endif
