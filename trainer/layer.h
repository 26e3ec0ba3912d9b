/* layer.h: one layer at work on one micro-batch: what each type of layer does, forward and
 * backward. A type is a row of layer_kinds[]; types live in layer_<family>.c. Their shapes, counts
 * and costs are in spec/.
 *
 * A layer over inner positions (dense, normalisations, embeddings act on the last dimension) sees
 * rows = items times positions. Sizes in a call are this rank's: a layer that is split over tensor
 * ranks sees its own columns only.
 */
#ifndef TRAINYARD_TRAINER_LAYER_H
#define TRAINYARD_TRAINER_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/model.h"
#include "trainer/ops.h"

struct layer_pass {
    int training; /* 0: dropout does nothing, batch normalisation uses the moving statistics */
    uint64_t seed;
    int64_t step;
};

/* Adds up over the tensor ranks, in place, what each of them has computed a part of. */
struct layer_partials {
    int (*sum)(void *context, float *z, size_t n, struct err *e);
    void *context;
    struct err e;
    int status; /* of the first sum that failed; then everything after is worthless */
};

struct layer_call {
    const struct ops *ops;
    const struct layer *layer;
    const struct layer_pass *pass;
    enum activation f; /* what the layer itself applies; LINEAR where that is left to the loss */
    int index;         /* of the layer in the model */
    int64_t items;     /* of the micro-batch */
    int64_t position;  /* of its first item in the global batch */
    int64_t rows;      /* items times inner positions */
    int64_t in, out;   /* last dimensions */
    int64_t first_column, columns;   /* those of the input among all of its last dimension */
    struct layer_partials *partials; /* where the kernel's or table's rows are split; else NULL */
    int64_t first_row, row_count; /* embedding: the rows of the table that are this rank's; count 0:
                                     all */
    float *parameter[LAYER_MAX_TENSORS]; /* as in layer.tensors; NULL where there are fewer */
    float *gradient[LAYER_MAX_TENSORS];  /* NULL for fixed tensors */
    const float *x;                      /* [rows, in] */
    const float *other;                  /* add: the output of the layer `back` before; else NULL */
    float *y;                            /* [items, elements of layer.out]; read in backward */
    float *kept;                         /* what kind->kept asked for */
    const double *batch_sums; /* layers with sums(): those of the whole global batch, and in
                                 backward of backward_sums(); else NULL */
    double batch_rows;        /* rows that are in batch_sums */
};

struct layer_kind {
    int passes_on;       /* y is x: no buffer, no work (flatten, reshape) */
    int takes_any_split; /* works alike on any columns of its input (elementwise, per channel) */
    /* Floats kept for backward beside x and y. */
    size_t (*kept)(const struct layer *l, enum activation f, int64_t items, int64_t out);
    int kept_is_output; /* that is a value like y, and may be rounded to bfloat16 as y may be */
    void (*forward)(const struct layer_call *c);
    /* From dy (changed on the way) to the parameters' gradients (beta 0 writes, 1 adds) and dx,
     * which may be NULL when nobody wants it; it may be dy only where dx_in_place. The dy that an
     * add layer gets is also a part of the gradient of `other`, which the caller adds up. */
    void (*backward)(const struct layer_call *c, float *dy, float *dx, float beta);
    int dx_in_place;
    /* Layers whose output needs a sum over the global batch first; NULL otherwise, and not called
     * where layer_wants_sums() is 0. `sums` [count], device, of this micro-batch are written; the
     * caller adds them over micro-batches and ranks, and passes them as batch_sums. */
    int (*sum_count)(const struct layer_call *c);
    void (*sums)(const struct layer_call *c, double *sums);
    void (*backward_sums)(const struct layer_call *c, const float *dy, double *sums);
    /* After the forward passes of a step, once, with their batch_sums: moving statistics. */
    void (*end_step)(const struct layer_call *c);
};

extern const struct layer_kind *const layer_kinds[LAYER_TYPE__MAX];

/* Where c has partials, sums z [n] over the tensor ranks. */
void layer_sum_partials(const struct layer_call *c, float *z, size_t n);

/* 1 if training needs this layer's sums over the global batch: batch normalisation that is not
 * frozen. */
int layer_wants_sums(const struct layer *l);

/* Where the model begins with an embedding: the first of n features that is not one of its token
 * ids, for the sentence about the sample that it is in. -1: there is none. */
int64_t layer_bad_id(const struct model *m, int64_t n, const float *features);

#endif
