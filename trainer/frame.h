/* frame.h: what one micro-batch keeps of one chunk between its forward and its backward pass.
 *
 * A layout says where the output of every layer lies: in the frame of the micro-batch; nowhere of
 * its own, where the layer only passes its input on; or, where it is to be computed again, in the
 * scratch that all frames of a rank share. A rank has as many frames of a chunk as micro-batches in
 * flight. All is sized once, for the largest micro-batch, so memory is known before any is taken.
 *
 * Computed again. Layers that follow one another and are to be computed again form a stretch, whose
 * outputs lie in the scratch together. Backward, before it needs any of them, runs the stretch
 * forward once more from the output before it, which is kept. What must be at hand at other times
 * is kept though the plan asks for the contrary: the output of the model, the input of a bar (see
 * below), and what an `add` reads that does not follow in the same stretch or right
 * behind it.
 *
 * bfloat16. Every output that a layer computes is then rounded as soon as it is there, kept or not,
 * and everything that comes after reads the rounded value; so neither where a pipeline is cut nor
 * what is computed again shows in a result. Rounded values are kept as 16 bits and widened into
 * windows when they are used. Not rounded: the input of the model and what only rescales or
 * reshapes it (it may hold token numbers), the output of the model, gradients, and small values
 * beside an output such as the moments of a normalisation.
 *
 * Bars. A layer that needs sums over the whole batch before it has an output (batch normalisation)
 * is a bar across the chunk: all micro-batches come as far as there before any goes on, in backward
 * too, where their gradients wait in the frames.
 */
#ifndef TRAINYARD_TRAINER_FRAME_H
#define TRAINYARD_TRAINER_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "trainer/layer.h"
#include "trainer/net.h"

enum frame_home {
    FRAME_PASSED, /* the output of `source` */
    FRAME_KEPT,
    FRAME_AGAIN,
};

struct frame_layer {
    enum frame_home home;
    int source;  /* the layer whose output this one's is: itself unless FRAME_PASSED; the one before
                    the chunk stands for its input */
    int stretch; /* the first layer of its stretch; -1: of none */
    int packed;  /* the output is kept as bfloat16 */
    int kept_packed;
    size_t y, kept;       /* byte offsets in the frame, with FRAME_AGAIN in the scratch */
    size_t kept_elements; /* per item, at most; 0: keeps nothing beside */
    int skip;             /* where gradients of `add` layers further on gather; -1: nowhere */
};

struct frame_layout {
    const struct net *net;
    int first, last; /* the chunk's layers */
    int64_t max_rows;
    struct frame_layer *layers; /* [last - first] */
    int x_packed;
    int *bars; /* [bar_count] layers, rising */
    int bar_count;
    size_t edge;   /* offset in a frame with bars: the gradient that waits, float32 */
    size_t *skips; /* [skip_count] offsets: with bars in the frame, else in the work */
    int skip_count;
    size_t frame_bytes;  /* of one frame */
    size_t shared_skips; /* bytes of skips in the work */
    size_t scratch_bytes;
    size_t gathered_bytes; /* of outputs on their way from tensor ranks */
    size_t widest;         /* elements of the widest value, its input included */
    int windows;           /* that it needs: 0 or FRAME_WINDOWS */
};

/* `recompute` [layers of the model] may be NULL. The net outlives the layout. */
struct frame_options {
    int64_t max_rows;
    int bfloat16;
    const unsigned char *recompute;
};
void frame_layout_init(struct frame_layout *y, const struct net *n, const struct net_chunk *chunk,
                       const struct frame_options *o);
void frame_layout_done(struct frame_layout *y); /* safe on a zeroed struct */

/* 1 if bfloat16 activations round the output of layer l; of -1, the model's input, they do not. */
int frame_rounds(const struct net *n, int l);

/* The activation that the layer itself applies; LINEAR where it is left to the loss. */
enum activation frame_activation(const struct net *n, int l);

/* Elements of this rank's part of what layer l gives out before it is gathered, rounded up so that
 * comm_part() cuts equal parts for all tensor ranks. */
size_t frame_part(const struct net *n, int l, int64_t items);

struct frame {
    int64_t rows;     /* items of the micro-batch now in it */
    int64_t position; /* of its first item in the global batch */
    char *memory;     /* one allocation; it begins with the chunk's input */
};

int frame_init(struct frame *f, const struct frame_layout *y, struct err *e);
void frame_done(struct frame *f, const struct net *n); /* safe on a zeroed struct */

#define FRAME_WINDOWS 3

/* What all frames of a rank share while one is worked on. */
struct frame_work {
    float *gradient[2]; /* on its way down; each wide enough for every layer */
    float *window[FRAME_WINDOWS];
    int holds[FRAME_WINDOWS]; /* the layer whose output is in it; INT_MIN: none */
    char *skips, *scratch;
    float *gathered; /* parts of frame_part(), one of each tensor rank */
    char *memory;    /* one allocation */
};

size_t frame_work_bytes(const struct frame_layout *layouts, int count);
int frame_work_init(struct frame_work *w, const struct frame_layout *layouts, int count,
                    struct err *e);
void frame_work_done(struct frame_work *w, const struct net *n); /* safe on a zeroed struct */

#endif
