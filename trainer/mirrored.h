/* mirrored.h: gradients of the same stage summed over the data ranks, in buckets, while backward
 * goes down the layers: what the last layers have computed is on its way before the first ones
 * start. A bucket is a range of the gradient arena, cut at layer borders; the cuts depend on the
 * layout alone, so ranks with few or no items make the same calls. */
#ifndef TRAINYARD_TRAINER_MIRRORED_H
#define TRAINYARD_TRAINER_MIRRORED_H

#include "trainer/layers.h"
#include "trainer/mesh.h"

#define BUCKET_BYTES (4 * 1024 * 1024)

struct buckets {
    const struct net *net;
    struct comm *replicas; /* NULL: nothing to sum */
    size_t high;           /* gradients from here on are summed already */
};

void buckets_start(struct buckets *b, const struct net *n, const struct mesh *m);
int buckets_layer_done(void *buckets, int layer, struct err *e); /* a layers_hook */
int buckets_finish(struct buckets *b, struct err *e);

#endif
