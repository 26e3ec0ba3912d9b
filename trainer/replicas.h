/* replicas.h: what the data ranks of a stage do for one another in a step: their gradients are
 * summed, and the update of the parameters is divided among them.
 *
 * Sums are taken in buckets while backward goes down the layers: what the last layers have computed
 * is on its way before the first ones start. A bucket is a range of the arenas, cut at layer
 * borders, and complete when the last micro-batch has left its last layer; the cuts depend on the
 * layout alone, so ranks with few or no items make the same calls.
 *
 * A rank receives the sums of its part (comm_part) of each bucket only, updates the parameters of
 * that part, and fetches the others' afterwards: all have the same bits, and the optimizer's work
 * falls with the number of ranks. Slices of at most DIVIDE_BYTES are summed and updated whole by
 * every rank, which costs less than two more meetings. A rank that has no replicas (the only one,
 * or a member of an ensemble) owns everything and calls nobody.
 */
#ifndef TRAINYARD_TRAINER_REPLICAS_H
#define TRAINYARD_TRAINER_REPLICAS_H

#include "trainer/layers.h"
#include "trainer/mesh.h"
#include "trainer/net.h"

/* Values that outlive a step (pieces.h). */
enum piece_kind {
    PIECE_PARAMETER,
    PIECE_STATE_0,
    PIECE_STATE_1,
    PIECE_PENDING,
    PIECE_ANCHOR,
    PIECE_OUTER,
    PIECE_RESIDUAL,
    PIECE_KIND__MAX
};

#define BUCKET_BYTES (4 * 1024 * 1024)
#define DIVIDE_BYTES (64 * 1024)

struct replicas {
    struct net *net;
    int data, data_rank; /* of the mesh: an ensemble's members, too */
    int alone;           /* data ranks have nothing in common: members */
    struct comm *group;  /* NULL: none */
    int divided;         /* 0: every rank updates everything */
    size_t *cuts;        /* [count + 1], falling: bucket b is [cuts[b + 1], cuts[b]) */
    int count;
    int summed;      /* buckets, in this step */
    size_t complete; /* gradients from here on are, in this step */
};

/* `n` and the mesh's groups outlive it. */
void replicas_init(struct replicas *r, struct net *n, const struct mesh *mesh);
void replicas_done(struct replicas *r); /* safe on a zeroed struct */

void replicas_begin(struct replicas *r);
/* What the passes of this step call. */
struct layers_hook replicas_hook(struct replicas *r);
int replicas_finish(struct replicas *r, struct err *e);

/* What this rank updates of bucket b: [*ret_begin, *ret_end), where its sums are complete. */
void replicas_own(const struct replicas *r, int b, size_t *ret_begin, size_t *ret_end);
/* 1 if each of those parameters is to be counted by this rank when all ranks' counts are added. */
int replicas_counts(const struct replicas *r);

/* After the update: the parameters that the others own. */
int replicas_share(struct replicas *r, struct err *e);

/* ---- values that outlive a step, by their place in the arenas ---- */

int replicas_keeps(const struct replicas *r, enum piece_kind k); /* 1 if there are any such */
/* 1 if each data rank has its own. */
int replicas_differ(const struct replicas *r, enum piece_kind k);

/* The part of [*begin, *end), which lies within one bucket or among the fixed tensors, that this
 * rank holds; or that it is the one to save. Empty ones have *begin == *end. */
void replicas_clip_held(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end);
void replicas_clip_saved(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end);
/* The end of the bucket, or of the fixed tensors, that `at` lies in. */
size_t replicas_stretch(const struct replicas *r, size_t at);

/* To and from host memory; the range is held. */
void replicas_get(const struct replicas *r, enum piece_kind k, size_t at, size_t n, float *host);
void replicas_set(struct replicas *r, enum piece_kind k, size_t at, size_t n, const float *host);

#endif
