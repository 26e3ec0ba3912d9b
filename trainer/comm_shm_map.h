/* comm_shm_map.h: the layout of a gang's shared memory, and how ranks wait on its words.
 *
 * A fresh memfd is all zeroes and that is a valid start, so ranks may come in any order:
 *
 *   header | a block per rank | a sync block per group | for each rank: channels, stages, memory
 *
 * Whatever another rank wrote is data: it is compared or added up, never used as an index, a
 * length or a pointer without a check. A mad peer can spoil sums and make waits end with an error,
 * no more.
 *
 * Waiting. A word is watched by spinning when every rank has a core of its own (each is bound to
 * one, all different), for at most SPIN_US; then, or else at once, by futex in slices of TICK_MS.
 * Only the thread that opened the world spins: another one would take the core from it. Between
 * slices the waiter looks at the abort word, at the members it waits for (pidfds) and at the clock.
 */
#ifndef TRAINYARD_TRAINER_COMM_SHM_MAP_H
#define TRAINYARD_TRAINER_COMM_SHM_MAP_H

#include <pthread.h>
#include <stdint.h>

#include "trainer/comm.h"

#define LINE     64           /* bytes of a cache line */
#define SLOTS    2            /* messages on their way in a channel */
#define CHANNELS 4            /* of a rank: a pipeline's two families, to the next and previous */
#define STAGE    (256 * 1024) /* bytes: what is not in shared memory goes through in such pieces */
#define WHY_SIZE 256

/* A word that others sleep on. */
struct word {
    uint32_t value;
    uint32_t sleepers;
    char pad[LINE - 8];
};

struct shm_header {
    struct word met; /* ranks that have come */
    uint32_t abort;  /* 0, or rank + 1 of whoever ended the gang, with GAVE_UP where it said so */
    char pad[LINE - 4];
};
#define GAVE_UP 0x80000000u

struct shm_rank {
    uint64_t start_time;
    int32_t pid;
    int32_t cpu; /* the one core it is bound to, or -1 */
    char pad[LINE - 16];
    uint32_t progress;
    char pad2[LINE - 4];
    char why[WHY_SIZE];
    struct comm_call calls[COMM_FAMILY__MAX][2]; /* twice: two calls may overlap */
    char pad3[LINE - COMM_FAMILY__MAX * 2 * sizeof(struct comm_call) % LINE];
    char exchange[COMM_FAMILY__MAX][2][COMM_EXCHANGE_MAX]; /* likewise */
};

struct shm_sync {
    struct word arrived;
    struct word generation;
};

struct shm_channel {
    struct word sent; /* messages, modulo 2^32 */
    struct word taken;
    uint64_t bytes[SLOTS];
    char pad[LINE - SLOTS * 8];
    /* then SLOTS messages */
};

/* One rank's view. */
struct shm {
    char *map;
    int fd; /* the caller's */
    size_t bytes;
    int rank, size;
    size_t ranks_at, syncs_at, regions_at; /* offsets */
    size_t region_bytes, channel_bytes;    /* a region: channels, a stage per family, the memory */
    size_t memory_bytes, memory_used, message_bytes;
    int64_t deadline_us;
    int spin;
    pthread_t owner;       /* who opened the world */
    pthread_mutex_t mutex; /* over pidfds and over giving up */
    int *pidfds;           /* [size], -1 where not opened yet */
    int64_t step;
    int gave_up;
    char boot_id[40];
    const volatile int *stop;
};

void shm_layout(struct shm *s, const struct comm_options *o);
struct shm_header *shm_head(const struct shm *s);
struct shm_rank *shm_rank(const struct shm *s, int rank);
struct shm_sync *shm_sync(const struct shm *s, enum comm_family family, int index);
/* The channel from `rank` to its next or previous member in a pipeline's first or backward family.
 */
struct shm_channel *shm_channel(const struct shm *s, int rank, int is_back, int is_next);
char *shm_stage(const struct shm *s, int rank, enum comm_family family);
char *shm_memory(const struct shm *s, int rank);

/* Where a wait stands, for its sentence: "all_reduce", and the world ranks that can end it. */
struct shm_wait {
    const char *what;
    const int *members;
    int count;
};

/* Returns when w->value is no longer `old`. */
int shm_wait_change(struct shm *s, struct word *w, uint32_t old, const struct shm_wait *why,
                    struct err *e);
void shm_publish(struct word *w, uint32_t value); /* stores, and wakes who sleeps on it */

/* Fills this rank's block, says that it has come and waits for all others. */
int shm_meet(struct shm *s, struct err *e);
void shm_give_up(struct shm *s, const char *why);
int shm_check(struct shm *s, const char *what, uint64_t *ret_moved, struct err *e);

#endif
