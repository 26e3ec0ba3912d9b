/* batch.h: samples from the data set into the device's buffers. The model's leading rescaling
 * layers are applied on the way, a few rows at a time, while they are in the cache.
 *
 * Where data is streamed, or the device has memory of its own, a thread (loader.h) fetches and
 * rescales what was announced while the rank works on what it has. Ranks are bound to their cores,
 * so that the thread gives only what fetching waits for, and takes two switches: of data in memory
 * it would cost a seventh of the time of a small step. Streamed data is therefore fetched ahead as
 * long as fetching is slow; what the page cache has is not. A thread of a device's rank has the
 * core to itself, and is always used; large batches in memory it fetches with the help of others,
 * for one core copies more slowly than a GPU trains.
 *
 * To a device of its own data goes in two steps. What was announced is fetched into page-locked
 * memory and uploaded beside what the device does, into one of two buffers in turn; when its turn
 * comes it is copied to its place by a verb like others. So a buffer is free once that verb is
 * done, the frames know nothing of it, and what the verbs work on lies at the same place in every
 * step. What was not announced is fetched and uploaded when it is asked for.
 */
#ifndef TRAINYARD_TRAINER_BATCH_H
#define TRAINYARD_TRAINER_BATCH_H

#include "trainer/loader.h"
#include "trainer/net.h"
#include "trainer/share.h"

#define BATCH_SLOTS 2

/* Room for what was announced. */
struct batch_slot {
    void *host;               /* alloc_host() */
    void *device;             /* NULL where that is the same memory */
    int is_sent;              /* its upload has been asked for */
    int is_busy;              /* the upload may read `host` until the device has been waited for */
    int64_t sent_at, used_at; /* joins of uploads until then */
};

/* Features or targets. */
struct batch_lane {
    size_t item_bytes;
    struct batch_slot slots[BATCH_SLOTS];
    int slot;         /* that something was asked for last */
    size_t bytes;     /* of it */
    void *staging;    /* host, for what was not announced; NULL: it goes straight to its place */
    int64_t fetch_ns; /* what a fetch takes of late */
};

struct batch {
    const struct net *net;
    int64_t max_rows, feature_size, target_size;
    int64_t positions;     /* rows of the loss per item */
    int is_first, is_last; /* this rank has the model's first chunk, the last */
    int32_t *classes;      /* device [max_rows, target_size], or NULL */
    float *targets;        /* device [max_rows, target_size], or NULL */
    struct loader *loader; /* NULL: none */
    struct batch_lane lanes[LOADER_LANES];
    int64_t joins; /* of uploads with the device's verbs */
};

/* Of one rank: on the device, which where that is the host's is all; and besides. */
size_t batch_bytes(const struct net *n, const struct dataset *set, int64_t max_rows);
size_t batch_host_bytes(const struct net *n, const struct dataset *set, int64_t max_rows);
int batch_init(struct batch *b, const struct net *n, const struct dataset *set, int64_t max_rows,
               struct err *e);
void batch_done(struct batch *b);

/* Features of items [begin, begin + n) into x [n, feature_size]; for the first stage. ERR_CORRUPT
 * for a token id that the model's embedding does not have: it would be looked up past its table. */
int batch_features(struct batch *b, const struct items *items, int64_t begin, int64_t n, float *x,
                   struct err *e);
/* Their labels into b->classes or b->targets; for the last stage. ERR_CORRUPT for a class that the
 * model does not have: it would index past its outputs. */
int batch_targets(struct batch *b, const struct items *items, int64_t begin, int64_t n,
                  struct err *e);

#define BATCH_SLOW_NS 200000 /* fetches that take longer are worth the thread */

/* The next call for features, or for targets, will be for these; n 0: nothing is known. */
void batch_expect_features(struct batch *b, const struct items *items, int64_t begin, int64_t n);
void batch_expect_targets(struct batch *b, const struct items *items, int64_t begin, int64_t n);

/* Uploads what has been fetched meanwhile; after each pass. */
void batch_send_ahead(struct batch *b);
/* And what is still being fetched, once it is there; after the last pass of a step, before the
 * device is waited for: what is uploaded then costs no time. */
void batch_send_all(struct batch *b);
/* The device has been waited for. */
void batch_waited(struct batch *b);

#endif
