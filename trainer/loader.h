/* loader.h: a thread that fetches the samples a rank will want next while it works on the present
 * ones. It knows nothing of what a sample is: a lane has a function that fetches, and room for one
 * request.
 *
 * Which samples come next is a pure function of the seed (share.h), so asking is only a hint: a
 * lane that was asked for something else, or for nothing, says so, and the caller fetches by
 * itself. What was fetched is the same either way.
 */
#ifndef TRAINYARD_TRAINER_LOADER_H
#define TRAINYARD_TRAINER_LOADER_H

#include "trainer/share.h"

/* Fetches all items to `to`; on the loader's thread. */
typedef int loader_fetch(void *context, const struct items *items, void *to, struct err *e);

enum loader_lane { LOADER_FEATURES, LOADER_TARGETS, LOADER_LANES };

struct loader;

/* Starts the thread; without lanes it sleeps. */
int loader_new(struct loader **ret, struct err *e);
void loader_free(struct loader *l); /* waits for what is being fetched; NULL is fine */

/* Opens a lane for at most `items` items. Before anything is asked for. */
void loader_open(struct loader *l, enum loader_lane lane, int64_t items, loader_fetch *fetch,
                 void *context);
size_t loader_bytes(int64_t items); /* what a lane takes */

/* Items [begin, begin + n) will be wanted next, in `to`, which has room for them and is the
 * thread's until they are taken or something else has been asked for. Their ids are copied. What
 * was asked for before and not taken is forgotten. */
void loader_ask(struct loader *l, enum loader_lane lane, const struct items *items, int64_t begin,
                int64_t n, void *to);

/* Until what was asked for last is there, or cannot be had; where nothing was, at once. */
void loader_wait(struct loader *l, enum loader_lane lane);

/* 1 if what was asked for last is there, and good, and has not been taken. */
int loader_is_ready(struct loader *l, enum loader_lane lane);

/* 1 and the data, in the place that was given for it, if this is what was asked for; 0 if it is
 * not. The fetch's own error. */
int loader_take(struct loader *l, enum loader_lane lane, const struct items *items, int64_t begin,
                int64_t n, const void **ret, struct err *e);

#endif
