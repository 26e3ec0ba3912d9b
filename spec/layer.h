/* layer.h: one layer: its fields, and what follows from them and from the shape that comes in. What
 * each type has of these is in layer_class.h. */
#ifndef TRAINYARD_SPEC_LAYER_H
#define TRAINYARD_SPEC_LAYER_H

#include "spec/field.h"
#include "spec/model.h"
#include "spec/shape.h"

/* A layer as it was written, before its shapes are known. */
struct layer_draft {
    struct layer layer;
    enum initializer kernel_initializer, bias_initializer, gamma_initializer, beta_initializer,
        moving_mean_initializer, moving_variance_initializer, embeddings_initializer;
    struct shape target; /* reshape; one size may be -1 */
    char *with;          /* add: a layer's name; owned */
    int trainable;
};

/* Decodes type, name and the fields of the type. Returns 0 if there was no fault; the draft must be
 * released by layer_draft_done() either way. */
int layer_decode(struct decoding *d, const json_t *v, const struct where *at,
                 struct layer_draft *draft);

/* Sets in, out, tensors and parameters of drafts[index].layer, or adds a fault and returns -1. All
 * drafts before it are inferred. */
int layer_infer(struct decoding *d, struct layer_draft *drafts, int index, const struct shape *in,
                const struct where *at);

/* Sets the costs. `propagates`: a layer before this one learns, so that the gradient of this one's
 * input is needed. */
void layer_set_costs(struct layer *l, int propagates);

/* Releases all but the layer, which is the model's. */
void layer_draft_done(struct layer_draft *draft);
void layer_done(struct layer *l);

/* Parameters that training changes. */
int64_t layer_trained(const struct layer *l);

/* The text is a data path: relative, without "..". */
void check_data_path(struct decoding *d, const struct where *at, const char *text);

#endif
