/* mirrored.h: what the data ranks of a stage do for one another in a step: their gradients are
 * summed, and the update of the parameters is divided among them.
 *
 * Sums are taken in buckets while backward goes down the layers: what the last layers have computed
 * is on its way before the first ones start. A bucket is a range of the arenas, cut at layer
 * borders; the cuts depend on the layout alone, so ranks with few or no items make the same calls.
 *
 * A rank receives the sums of its part (comm_part) of each bucket only, updates the parameters of
 * that part, and fetches the others' afterwards: all have the same bits, and the optimizer's work
 * falls with the number of ranks. Slices of at most DIVIDE_BYTES are summed and updated whole by
 * every rank, which costs less than two more meetings. A rank that has no replicas (the only one,
 * or a member of an ensemble) owns everything and calls nobody.
 */
#ifndef TRAINYARD_TRAINER_MIRRORED_H
#define TRAINYARD_TRAINER_MIRRORED_H

#include "trainer/mesh.h"
#include "trainer/net.h"

#define BUCKET_BYTES (4 * 1024 * 1024)
#define DIVIDE_BYTES (64 * 1024)

struct mirrored {
    const struct net *net;
    struct comm *replicas; /* NULL: none */
    int divided;           /* 0: every rank updates everything */
    size_t *cuts;          /* [count + 1], falling: bucket b is [cuts[b + 1], cuts[b]) */
    int count;
    int summed; /* buckets, in this step */
};

/* `n` and the mesh's groups outlive it. */
void mirrored_init(struct mirrored *m, const struct net *n, const struct mesh *mesh);
void mirrored_done(struct mirrored *m); /* safe on a zeroed struct */

void mirrored_begin(struct mirrored *m);
int mirrored_layer_done(void *mirrored, int layer, struct err *e); /* a layers_hook */
int mirrored_finish(struct mirrored *m, struct err *e);

/* What this rank updates of bucket b: [*ret_begin, *ret_end), where its sums are complete. */
void mirrored_own(const struct mirrored *m, int b, size_t *ret_begin, size_t *ret_end);
/* 1 if each of those parameters is to be counted by this rank when all ranks' counts are added. */
int mirrored_counts(const struct mirrored *m);

/* After the update: the parameters that the others own. */
int mirrored_share(struct mirrored *m, struct err *e);

#endif
