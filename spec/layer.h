/* layer.h: one layer: its fields, and what follows from them and from the shape that comes in. */
#ifndef TRAINYARD_SPEC_LAYER_H
#define TRAINYARD_SPEC_LAYER_H

#include "spec/field.h"
#include "spec/model.h"

/* A layer as it was written, before its shapes are known. */
struct layer_draft {
    struct layer layer;
    enum initializer kernel_initializer, bias_initializer, gamma_initializer, beta_initializer;
    struct shape target; /* reshape; one size may be -1 */
};

/* Decodes type, name and the fields of the type. Returns 0 if there was no fault; the draft's
 * layer must be released by layer_done() either way. */
int layer_decode(struct decoding *d, const json_t *v, const struct where *at,
                 struct layer_draft *draft);

/* Sets in, out, tensors and parameters of the draft's layer, or adds a fault and returns -1. */
int layer_infer(struct decoding *d, struct layer_draft *draft, const struct shape *in,
                const struct where *at);

/* Sets the costs. `propagates`: a layer before this one has parameters, so that the gradient of
 * this one's input is needed. */
void layer_set_costs(struct layer *l, int propagates);

void layer_done(struct layer *l);

/* The text is a data path: relative, without "..". */
void check_data_path(struct decoding *d, const struct where *at, const char *text);

/* A list of 1 to SHAPE_MAX_DIMS sizes; -1 is taken once where `one_free`. Returns 0, or -1 and a
 * fault. */
int decode_shape(struct decoding *d, const json_t *v, const struct where *at, const char *name,
                 int one_free, struct shape *ret);

#endif
