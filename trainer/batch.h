/* batch.h: samples from the data set into the device's buffers. The model's leading rescaling
 * layers are applied on the way, a few rows at a time, while they are in the cache. */
#ifndef TRAINYARD_TRAINER_BATCH_H
#define TRAINYARD_TRAINER_BATCH_H

#include "trainer/net.h"
#include "trainer/share.h"

struct batch {
    const struct net *net;
    int64_t max_rows, feature_size, target_size;
    int64_t positions;     /* rows of the loss per item */
    float *staging;        /* host, where the device cannot read host memory */
    int32_t *classes;      /* device [max_rows, target_size], or NULL */
    float *targets;        /* device [max_rows, target_size], or NULL */
    int32_t *host_classes; /* where the device has memory of its own */
    float *host_targets;
};

size_t batch_bytes(const struct net *n, const struct dataset *set, int64_t max_rows);
int batch_init(struct batch *b, const struct net *n, const struct dataset *set, int64_t max_rows,
               struct err *e);
void batch_done(struct batch *b);

/* Features of items [begin, begin + n) into x [n, feature_size]; for the first stage. */
int batch_features(struct batch *b, const struct items *items, int64_t begin, int64_t n, float *x,
                   struct err *e);
/* Their labels into b->classes or b->targets; for the last stage. ERR_CORRUPT for a class that the
 * model does not have: it would index past its outputs. */
int batch_targets(struct batch *b, const struct items *items, int64_t begin, int64_t n,
                  struct err *e);

#endif
