/* layers.h: forward and backward through a slice of the model, for one micro-batch.
 *
 * A frame holds what one micro-batch keeps between its forward and its backward pass; a rank has
 * as many frames as it has micro-batches in flight. All buffers are sized once for the largest
 * micro-batch.
 */
#ifndef TRAINYARD_TRAINER_LAYERS_H
#define TRAINYARD_TRAINER_LAYERS_H

#include <stdint.h>

#include "trainer/layer.h"
#include "trainer/net.h"

struct frame_slot {
    float *own;  /* the layer's output buffer, NULL where it only passes its input on */
    float *kept; /* pre-activation, or statistics of a normalisation; NULL where not needed */
    float *y;    /* where the output of the last forward pass lies */
};

struct frame {
    int64_t rows;     /* items of the micro-batch now in it */
    int64_t position; /* of its first item in the global batch */
    float *x;         /* [rows, elements of the slice's input] */
    float *memory;    /* one allocation, x included */
    struct frame_slot *slots;
};

/* Gradients on their way down: two buffers, each wide enough for every layer of the slice. */
struct frame_work {
    float *buffer[2];
};

size_t frame_bytes(const struct net *n, int64_t max_rows);
int frame_init(struct frame *f, const struct net *n, int64_t max_rows, struct err *e);
void frame_done(struct frame *f, const struct net *n);

size_t frame_work_bytes(const struct net *n, int64_t max_rows);
int frame_work_init(struct frame_work *w, const struct net *n, int64_t max_rows, struct err *e);
void frame_work_done(struct frame_work *w, const struct net *n);

/* From f->x to the slice's output [rows, out], which is returned and stays in the frame. */
float *layers_forward(const struct net *n, struct frame *f, const struct layer_pass *p);

/* Called round the work of every layer with tensors. All data ranks of a stage make the same calls
 * in the same order, whatever items they have: for a micro-batch without any a rank calls both, and
 * between them sets the gradients to zero where they are to be written. Returning an error ends the
 * pass. */
struct layers_hook {
    /* Before a layer works on micro-batch j: parameters stand at tensors[].parameter and, in
     * backward, gradients go to tensors[].gradient; *ret_beta 0: they are written, 1: added. */
    int (*before)(void *context, int layer, int j, int backward, float *ret_beta, struct err *e);
    /* `is_final`: no further micro-batch will touch the layer in this step. */
    int (*after)(void *context, int layer, int j, int backward, int is_final, struct err *e);
    void *context;
};

/* From the gradient of the output, in w->buffer[0], to the gradients of all parameters and of the
 * slice's input: *ret_dx, NULL in the first slice, where nobody wants it. `hook` may be NULL: the
 * first micro-batch then writes gradients, the others add theirs. */
int layers_backward(const struct net *n, struct frame *f, struct frame_work *w,
                    const struct layer_pass *p, int j, int is_final, const struct layers_hook *hook,
                    float **ret_dx, struct err *e);

/* What the net predicts: the fused activation, applied in place to the output [rows, out]. */
void layers_predict(const struct net *n, int64_t rows, float *out);

#endif
