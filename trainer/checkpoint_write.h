/* checkpoint_write.h: a checkpoint's files (docs/protocols.md, "Checkpoints"), and a thread that
 * writes them beside the training.
 *
 *   <checkpoints>/step-0000000100.tmp/rank-0.safetensors   each rank its shard, synced
 *                                     rank-1.safetensors
 *                                     manifest.json        rank 0, last, when all shards are there
 *   <checkpoints>/step-0000000100/    the same directory, renamed
 *
 * Whatever instant everything is killed at, a directory without .tmp has all its files, whole.
 * None of this touches the engine; it runs in any thread.
 */
#ifndef TRAINYARD_TRAINER_CHECKPOINT_WRITE_H
#define TRAINYARD_TRAINER_CHECKPOINT_WRITE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"

#define CHECKPOINT_SUM_SIZE 33 /* XXH3-128 as 32 lower-case hex digits, and the NUL */

struct checkpoint_sum {
    uint64_t high, low;
};
char *checkpoint_sum_text(struct checkpoint_sum s, char out[CHECKPOINT_SUM_SIZE]);
int checkpoint_sum_parse(const char *text, struct checkpoint_sum *ret); /* -1: it is none */
struct checkpoint_sum checkpoint_sum_of(const void *bytes, size_t n);

/* One tensor of a shard. All borrowed. */
struct checkpoint_item {
    const char *name;
    const char *about;   /* what __metadata__ has under the name */
    const float *values; /* NULL: the source has them */
    int64_t elements;
};

/* Where values come from that nobody has copied, and what is called for each block of them. */
struct checkpoint_source {
    void (*read)(void *context, int item, size_t from, size_t to, float *out);
    void *context;
};

struct checkpoint_shard {
    int64_t bytes;
    struct checkpoint_sum sum; /* of the whole file */
};

/* What is to be written as <root>/<name of step>.tmp/rank-<rank>.safetensors. All borrowed. */
struct checkpoint_job {
    const char *root;
    int64_t step;
    int rank;
    const struct checkpoint_item *items;
    int count;
    const struct checkpoint_source *source; /* NULL where all items have values */
};
/* Writes and syncs it; makes the directory. Gives up with ERR_STALE soon after *cancel (may be
 * NULL) becomes non-zero. */
int checkpoint_write_shard(const struct checkpoint_job *j, const atomic_int *cancel,
                           struct checkpoint_shard *ret, struct err *e);

/* Writes the manifest and gives the directory its name; what had the name before is deleted. */
int checkpoint_commit(const char *root, int64_t step, const char *manifest, size_t n,
                      struct err *e);

/* Deletes the directory of a checkpoint that was not committed. */
int checkpoint_discard(const char *root, int64_t step, struct err *e);

/* Deletes what dead attempts left unfinished: step-<digits>.tmp, nothing else. */
int checkpoint_remove_leftovers(const char *root, int *ret_count, struct err *e);

/* ---- the thread ---- */

enum checkpoint_task { CHECKPOINT_TASK_SHARD, CHECKPOINT_TASK_COMMIT };

struct checkpoint_writer {
    pthread_t thread;
    int is_running; /* there is a thread to join */
    atomic_int is_done, cancel;
    enum checkpoint_task task;
    struct checkpoint_job job; /* borrowed until joined; of a commit root and step */
    const char *manifest;      /* of a commit; borrowed until joined */
    size_t manifest_size;
    struct checkpoint_shard shard; /* what was written */
    int result;                    /* with the sentence in e */
    struct err e;
};

/* Starts the task that the fields above describe. */
int checkpoint_writer_start(struct checkpoint_writer *w, struct err *e);
/* 1 when it has ended and been joined; then w->result tells how. `wait`: at most that long. */
int checkpoint_writer_poll(struct checkpoint_writer *w, int wait_ms);
/* Ends it early and joins it. Safe on a zeroed struct. */
void checkpoint_writer_cancel(struct checkpoint_writer *w);

#endif
