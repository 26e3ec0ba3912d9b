/* pieces.h: the values that a run cannot be gone on with without: what each rank is the one to
 * save, and how they are set again, on any mesh.
 *
 * A piece is a range of one tensor's elements of one kind. Over all ranks each element of each kind
 * that the run has is in exactly one piece, but for the kinds and runs in which data ranks differ
 * from one another: there each data rank saves its own (`replica`).
 *
 *   kind             where there is one                           saved by
 *   parameter        always; float32 masters under bfloat16       one data rank; local_sgd and
 *                                                                 ensembles: each
 *   state.0, .1      by the optimizer (Adam's moments, a velocity)   likewise
 *   pending          delayed: the sum that the next step applies  one data rank
 *   anchor, outer    local_sgd: weights at the last mean, and the
 *                    momentum of the steps towards it             one data rank
 *   residual         codecs with error feedback                   each data rank
 *
 * Values are float32 whatever they are kept as. Not of tensors: struct pieces_scalars.
 */
#ifndef TRAINYARD_TRAINER_PIECES_H
#define TRAINYARD_TRAINER_PIECES_H

#include "trainer/engine.h"

const char *piece_kind_name(enum piece_kind k); /* "parameter", "state.0", ... */

/* Where values belong, in the terms of the rank that saved them; a checkpoint keeps all of it. */
struct piece {
    enum piece_kind kind;
    uint64_t number;      /* of the tensor in the model */
    struct net_part part; /* what of the tensor that rank had */
    size_t from, to;      /* row-major elements of that part */
    int replica;          /* the data rank whose own they are; -1: the same on all */
    int replicas;         /* data ranks there were */
};

/* What this rank is to save now, between two steps, in an order that only depends on the mesh. Not
 * collective, but waits for sums that are on their way. *ret_list is the caller's to free. */
int pieces_list(struct engine *g, struct piece **ret_list, size_t *ret_count, struct err *e);

/* Elements [from, to) of a listed piece, counted from its beginning, into host memory. */
void piece_read(const struct engine *g, const struct piece *p, size_t from, size_t to, float *host);

/* The name that a weights file has for the tensor: "<layer name>.<tensor>". */
const char *piece_tensor_name(const struct engine *g, const struct piece *p);

/* Before the first put, and to start over. */
void pieces_begin(struct engine *g);

/* 1 if this rank needs any of those values. Data ranks of their own (`replica`) come from data rank
 * d modulo those that there were; residuals of all r with r modulo the data ranks now = d are added
 * up, so that nothing unsent is lost. */
int pieces_want(const struct engine *g, const struct piece *p);

/* Sets what this rank needs of values [to - from] in host memory. ERR_CORRUPT if they cannot belong
 * to the job's model. Every kind starts at zero where nothing was set, residuals too. */
int pieces_put(struct engine *g, const struct piece *p, const float *values, struct err *e);

/* What belongs to no tensor; the same on all ranks. */
struct pieces_scalars {
    int64_t step;          /* done */
    int64_t updates;       /* done; an ensemble's: by this member */
    int64_t local_steps;   /* local_sgd: since the last mean */
    int64_t pending_items; /* delayed: items behind the pending gradient; 0: there is none */
    int64_t pending_step;  /* delayed: the step that it is of */
    double loss_scale;     /* of the gradients that come next; 0: they are not scaled */
    double pending_scale;  /* of the pending gradient */
    int64_t good_steps;    /* in a row, at that scale */
};
void pieces_get_scalars(const struct engine *g, struct pieces_scalars *ret);

/* After the last put: checks that every parameter and state came (ERR_CORRUPT names the tensor and
 * how many are missing), and makes what is derived from them. */
int pieces_finish(struct engine *g, const struct pieces_scalars *s, struct err *e);
/* The same in the midst of a run, after puts of parameters alone. */
int pieces_finish_parameters(struct engine *g, struct err *e);

#endif
