/* layers.h: one micro-batch forward and backward through layers of a chunk. What a layer does is in
 * layer.h, where its values lie in frame.h; here is the walk from one to the next.
 */
#ifndef TRAINYARD_TRAINER_LAYERS_H
#define TRAINYARD_TRAINER_LAYERS_H

#include <stdint.h>

#include "trainer/comm.h"
#include "trainer/frame.h"
#include "trainer/layer.h"
#include "trainer/net.h"

/* Called round the work of every layer with tensors. All data ranks of a stage make the same calls
 * in the same order, whatever items they have: a micro-batch without any is worked on like others,
 * and gives gradients of zero. Returning an error ends the pass. */
struct layers_hook {
    /* Before a layer works on micro-batch j: parameters stand at tensors[].parameter and, in
     * backward, gradients go to tensors[].gradient; *ret_beta 0: they are written, 1: added. Layers
     * that are computed again are asked for once more as forward, in the middle of backward. */
    int (*before)(void *context, int layer, int j, int backward, float *ret_beta, struct err *e);
    /* `is_final`: no further micro-batch will touch the layer in this step. */
    int (*after)(void *context, int layer, int j, int backward, int is_final, struct err *e);
    void *context;
};

/* Sums over the global batch, of the layers that need them: [layers of the chunk]. */
struct layers_sums {
    double *forward, *backward; /* device; NULL where the layer needs none */
    double rows;
};

/* A micro-batch on its way. */
struct layers_pass {
    const struct frame_layout *layout;
    struct frame *frame;
    struct frame_work *work;
    const struct layer_pass *pass;
    const struct layers_hook *hook; /* NULL: the first micro-batch writes gradients, others add */
    const struct layers_sums *sums; /* NULL outside training */
    int j, is_final;
    struct comm *tensors;            /* the group that layers are split over, or NULL */
    struct layer_partials *partials; /* of the layer at work */
};

/* From the frame's input, or what layer `from` - 1 has left in the frame, to the output of layer
 * `to` - 1. */
int layers_forward(const struct layers_pass *p, int from, int to, struct err *e);

/* Backward through layers [from, to): *dy, one of the two work buffers, is the gradient of the
 * output of `to` - 1 and becomes that of the output of `from` - 1, in one of the two. It ends with
 * net.lowest; nobody wants the gradient of the model's input, and then *dy is undefined. */
int layers_backward(const struct layers_pass *p, int from, int to, float **dy, struct err *e);

/* The output of the last layer that ran forward, or of layer l while it is there: where it lies, as
 * float32 or, where *ret_packed, as bfloat16. */
void *layers_output(const struct layers_pass *p, int l, int *ret_packed);

/* The call that layer l of the micro-batch is made with; for the sums of a batch. */
struct layer_call layers_call(const struct layers_pass *p, int l);

/* What the net predicts: the fused activation, applied in place to the output [rows, out]. */
void layers_predict(const struct net *n, int64_t rows, float *out);

#endif
