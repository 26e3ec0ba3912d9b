/* comm.h: the collectives that ranks speak with; a transport fills the table (comm_shm.c: one
 * node's shared memory; comm_tcp.c: connections, between nodes).
 *
 * A struct comm is one rank's end of a group. The world comes from comm_open(), its verb group()
 * makes smaller ones. All members of a group make the same calls on it in the same order with the
 * same counts.
 *
 * Sums are taken element by element in one fixed tree over the members: ((0+1)+(2+3))+((4+5)+...,
 * balanced, of the next power of two leaves, where a missing leaf is skipped (five members:
 * ((0+1)+(2+3))+4). all_reduce and reduce_scatter, every transport, every alignment and every run
 * give the same bits; and a power of two of neighbouring members summed first, then those sums over
 * the rest, is the same tree.
 *
 * Memory. What is reduced, gathered, sent and received is memory of the backend's device (ops.h);
 * broadcast and exchange are of host memory. On a device of its own, verbs return when their work
 * is asked for, and take their place among the device's verbs; only those of COMM_DATA go on beside
 * them until settle(). What goes wrong with them is told by the device (ops.h: finish()). There a
 * sum's order is the transport's own, the same in every run, unless `is_reproducible` was asked
 * for: then it is the tree above. All ranks of the world make their groups there in the same order,
 * a family at a time; messages of COMM_PIPELINE go to the next member only, those of
 * COMM_PIPELINE_BACK to the previous one.
 *
 * Nothing hangs. Every wait ends: with success; with ERR_PEER when a rank died or gave up, and the
 * sentence names it; or with ERR_TIMEOUT when nothing moved in the whole gang for the deadline: no
 * call, no comm_progress(), and no rank used its processor. Members whose calls differ get
 * ERR_INTERNAL, which says what each of them called. (On a device of its own, where no member hears
 * of the others' calls, they get ERR_TIMEOUT.)
 * After an error the gang is over: the only further call is comm_close().
 *
 * Threads. A group belongs to the thread that uses it: two threads may be in verbs of different
 * groups at the same time (the main one in a pipeline, another one in the sums of the replicas),
 * never in the same group. Groups, memory() and close are the main thread's, the one that opened
 * the world, and it closes when the others have left their verbs. comm_progress(), comm_set_step(),
 * comm_meter() and give_up are anybody's. When a verb fails in one thread, give_up ends the wait of
 * the other ones too.
 */
#ifndef TRAINYARD_TRAINER_COMM_H
#define TRAINYARD_TRAINER_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct launch; /* spec/launch.h */

/* Bytes and words of two (COMM_U8, COMM_U16) are gathered, never summed. */
enum comm_type { COMM_F32, COMM_F64, COMM_U8, COMM_U16 };

#define COMM_DEADLINE_MS  60000
#define COMM_EXCHANGE_MAX 256 /* bytes */

/* Which family of groups: each rank is in at most one group of each. The two of data ranks have the
 * same members, for two threads: sums of gradients, and sums that the passes wait for. So have the
 * two of a pipeline: what goes backward has channels of its own, so that in a ring of two, or with
 * several chunks a rank, neither overtakes the other. */
enum comm_family {
    COMM_WORLD,
    COMM_DATA,
    COMM_BATCH,
    COMM_TENSOR,
    COMM_PIPELINE,
    COMM_PIPELINE_BACK,
    COMM_FAMILY__MAX
};

struct comm;

struct comm_verbs {
    const char *name;

    /* In place: buf[count] becomes the sum over members. */
    int (*all_reduce)(struct comm *c, void *buf, size_t count, enum comm_type type, struct err *e);
    /* In place: part `rank` of buf (comm_part) becomes the sum; the rest is undefined. */
    int (*reduce_scatter)(struct comm *c, void *buf, size_t count, enum comm_type type,
                          struct err *e);
    /* In place: part i of buf (comm_part) comes from member i. Where count is size x n and n a
     * multiple of 16, all parts have n elements: payloads of equal length at equal steps. */
    int (*all_gather)(struct comm *c, void *buf, size_t count, enum comm_type type, struct err *e);
    int (*broadcast)(struct comm *c, void *buf, size_t bytes, int root, struct err *e);
    /* all[size][bytes], host memory, at most COMM_EXCHANGE_MAX bytes a member: the quick way to
     * agree on something. */
    int (*exchange)(struct comm *c, const void *mine, size_t bytes, void *all, struct err *e);
    /* Groups of the two pipeline families: to and from the next or previous member, the last one's
     * next being the first; at most the `message_bytes` that the world was opened with. A send
     * returns when the message is on its way: two may be, unreceived, from a member to another in
     * a family. Messages of a family from one member to another arrive in order. */
    int (*send)(struct comm *c, int to, const void *buf, size_t bytes, struct err *e);
    int (*recv)(struct comm *c, int from, void *buf, size_t bytes, struct err *e);
    int (*barrier)(struct comm *c, struct err *e);
    /* Verbs of the device from now on come after this group's call number `call` (c->call.number
     * once that has been asked for) and those before it. */
    int (*settle)(struct comm *c, uint64_t call, struct err *e);
    /* Waits for nothing: ERR_PEER if a rank of the world is known to have died or given up, while
     * others waited in `what`. *ret_moved changes whenever a rank makes a call or comm_progress().
     */
    int (*check)(struct comm *world, const char *what, uint64_t *ret_moved, struct err *e);

    /* The group of family `family` with these world ranks, in order, this rank among them; `index`
     * (below the ranks) tells the groups of a family apart. comm_close() it before the world. */
    int (*group)(struct comm *world, enum comm_family family, int index, const int *members,
                 int size, struct comm **ret, struct err *e);
    /* Memory that collectives need not copy: zeroed, 64-byte aligned, freed with the world. Members
     * that reduce it together must have asked for the same sizes in the same order. */
    int (*memory)(struct comm *world, size_t bytes, void **ret, struct err *e);
    /* All that memory() gave is free again; once no member is in a verb that uses any of it. */
    void (*forget)(struct comm *world);
    /* comm_used() */
    size_t (*used)(struct comm *world);
    /* Tells the gang that this rank gives up and why; then only comm_close(). */
    void (*give_up)(struct comm *world, const char *why);
    void (*close)(struct comm *c);
};

/* What a group's verbs have cost so far; only ever grows. */
struct comm_meter {
    int64_t us;    /* spent inside its verbs, waiting included */
    int64_t bytes; /* of the buffers that they were given */
};

/* A call as its members must all make it. */
struct comm_call {
    uint32_t verb, detail; /* comm_parts.h; the type of the elements, or the root */
    uint64_t number;       /* of the group's calls, from 1 */
    uint64_t count;        /* elements or bytes */
};

struct comm {
    const struct comm_verbs *verbs;     /* what is called */
    const struct comm_verbs *transport; /* what that calls, measured */
    enum comm_family family;
    int rank; /* in the group */
    int size;
    int64_t *step;           /* of the world: comm_set_step() */
    uint32_t *progress;      /* of the world: counted up by comm_progress() */
    int64_t spent_ns, moved; /* comm_meter() */
    struct comm_call call;   /* the present one, or the last */
};

/* Part `index` of `count` elements cut for `size` members: [*ret_begin, *ret_end). Parts begin at
 * multiples of 16 elements, so that members never write to the same cache line. */
void comm_part(size_t count, int size, int index, size_t *ret_begin, size_t *ret_end);

size_t comm_type_size(enum comm_type type);

/* "I am working": a rank that waits for a disk or a device for longer than the deadline between
 * collectives calls this now and then, so that its peers go on waiting. (Of one that computes the
 * transport knows.) */
void comm_progress(struct comm *c);

/* The step that sentences name. */
void comm_set_step(struct comm *c, int64_t step);

struct comm_meter comm_meter(const struct comm *c);

void comm_close(struct comm *c); /* NULL is fine */

/* ---- the world ---- */

struct comm_options {
    int rank, size;
    size_t memory_bytes;      /* what memory() may hand out, in all; the same on every rank */
    size_t message_bytes;     /* longest send; the same on every rank; 0 where none are sent */
    int is_reproducible;      /* sums in the tree above also where that is slower */
    int deadline_ms;          /* 0: COMM_DEADLINE_MS */
    const volatile int *stop; /* may be NULL; a non-zero value ends the wait for the peers to come:
                                 ERR_UNAVAILABLE */
};

/* The world of all ranks, by the launch document's transport, once all have come. `gang_fd` is the
 * memfd that the ranks of a node were given; only shm uses it. */
int comm_open(const struct launch *l, int gang_fd, const struct comm_options *o, struct comm **ret,
              struct err *e);

/* Memory that a rank's share of them comes to, memory() included: foretold. It counts two channels
 * where there are messages (a stage in the middle of a pipeline has so many) and one buffer for
 * what does not lie in memory(). */
size_t comm_bytes(const struct launch *l, const struct comm_options *o);

/* The same as it is now: of shm, this rank's share of the pages that the gang has ever touched. */
size_t comm_used(struct comm *world);

/* ---- the transports ---- */

/* Sizes and maps `fd`, and waits for the others to come. */
int comm_shm_open(int fd, const struct comm_options *o, struct comm **ret, struct err *e);

size_t comm_shm_foretold(const struct comm_options *o); /* comm_bytes() */

/* Where rank 0 listens, and what ranks prove to one another. The texts need not outlive the call.
 */
struct comm_tcp_place {
    const char *host; /* name or address */
    int port;
    const char *secret, *attempt;
    int64_t epoch;
    const char *node; /* this rank's, for sentences */
};
int comm_tcp_open(const struct comm_tcp_place *p, const struct comm_options *o, struct comm **ret,
                  struct err *e);
size_t comm_tcp_foretold(const struct comm_options *o);

#endif
