/* node.h: an agent as the coordinator sees it, in memory.
 *
 * What must survive a restart (name, boot id, devices, leases) is in the store and is loaded from
 * it; the session (when it last spoke, its parked request, its wish counter) is here alone. Health
 * is what is displayed and what placement asks; it never frees a device: only the node's own word,
 * or its coming back with a new boot id, does.
 */
#ifndef TRAINYARD_COORDINATOR_NODE_H
#define TRAINYARD_COORDINATOR_NODE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "daemon/coordinator/queue.h"
#include "spec/job.h"
#include "storage/store.h"

#define NODE_SUSPECT_US   (15 * 1000000LL)
#define NODE_LOST_US      (45 * 1000000LL)
#define NODE_MAX_DEVICES  1024
#define NODE_MAX_ATTEMPTS 1024
#define NODE_NAME_MAX     QUEUE_PLACE_MAX
#define NODE_TROUBLE_MAX  300 /* bytes of what an agent says */
#define NODE_FAILED_JOBS  3   /* so many that could not be started, in a row, and it rests */
#define NODE_REST_US      (10 * 1000000LL) /* the first time; then twice as long each time */
#define NODE_REST_MAX_US  (300 * 1000000LL)
#define NODE_ABSENT_US    (30 * 1000000LL)
#define NODE_DEVICE_KINDS (DEVICE_GPU + 1)

enum node_health {
    NODE_UNKNOWN, /* in the store, but not heard of since this coordinator started */
    NODE_READY,
    NODE_SUSPECT,
    NODE_LOST,
    NODE_HEALTH__MAX
};
const char *node_health_name(enum node_health h);

struct device {
    int64_t index;
    enum device_kind kind; /* DEVICE_CPU or DEVICE_GPU */
    int64_t memory;        /* bytes; 0: not known */
    char *name;
    char attempt[ID_SIZE]; /* that leases it; "": none */
    int haunted;           /* the node says that an attempt which we have ended still runs here */
    int kept;              /* for the job that is next, which waits for more (sched.c) */
    int behind;            /* leased to a job behind that one since it waits for this node */
};

/* Which request of an agent was applied last. */
struct heard {
    char run[ID_SIZE]; /* of the agent's process; "": an agent that counts none */
    int64_t sequence;  /* of the request within it */
    int64_t wall_us;   /* when it was made */
};

/* An attempt that the node reported once and does not report now. */
struct absence {
    char attempt[ID_SIZE];
    int64_t since_us;
    int is_lost; /* missing for so long that its end is wanted */
};

/* Starts that failed through no fault of their jobs, since the last one that went well. */
struct failed_starts {
    char jobs[NODE_FAILED_JOBS][ID_SIZE]; /* different ones */
    int count;
    int rests;
    int64_t until_us; /* boot time; 0: it does not rest */
    char reason[200]; /* of the last one */
};

struct node {
    char *name, *boot_id, *version;
    char *state_id;     /* of the agent that spoke last; "": not told, or not yet */
    char *share;        /* the shared file system its checkpoints lie on; "": its own disk */
    char *devices_text; /* as stored */
    struct device *devices;
    size_t device_count;
    int64_t joined_us;      /* wall */
    int64_t seen_wall_us;   /* wall; 0: never by this coordinator */
    int64_t stored_seen_us; /* wall, as last written to the store */
    int64_t seen_us;        /* boot time; 0: never by this coordinator */
    enum node_health health;
    struct heard heard; /* the newest request that was applied: older ones are late */

    int64_t wish;        /* the `seen` counter: raised whenever what is wanted changes */
    uint64_t forget_sum; /* which attempts were last told to be forgotten or superseded */
    uint64_t remove_sum; /* which checkpoints were last told to be removed */
    uint64_t ticket;     /* of the parked request; 0: none */
    int64_t ticket_until_us;
    int64_t ticket_seen;

    char trouble[NODE_TROUBLE_MAX + 1]; /* why its agent wants no new jobs; "": it does */
    struct failed_starts failed;

    struct absence *absences;
    size_t absence_count;
    int64_t next_port; /* where the search for a free port begins */
};

struct nodes {
    struct node **items; /* by name */
    size_t count, cap;
    struct node *keeper; /* the node that is kept for the job of that seq (sched.c) */
    int64_t keeper_for;
};

void nodes_done(struct nodes *l);
struct node *nodes_find(const struct nodes *l, const char *name);  /* or NULL */
struct node *nodes_get(struct nodes *l, const char *name);         /* made if it is not there */
void nodes_drop(struct nodes *l, struct node *n);                  /* frees it */
size_t nodes_first_after(const struct nodes *l, const char *name); /* index; NULL: 0 */

int node_name_valid(const char *name); /* [a-z0-9]([a-z0-9.-]*), at most NODE_NAME_MAX */

/* Takes over a devices array ([{"index","kind","memory_bytes","name"}], checked here), keeping the
 * leases of devices that are still there. 1 if it differs from before, 0 if not, negative with a
 * sentence if it is wrong. */
int node_set_devices(struct node *n, const json_t *devices, struct err *e);
struct device *node_device(struct node *n, int64_t index); /* or NULL */
int node_device_free(const struct device *d);
int node_device_open(const struct device *d); /* free, and not kept for another job */
int node_device_fits(const struct device *d, const struct need *need); /* kind and memory */
int node_release(struct node *n, const char *attempt); /* number of devices that became free */

/* 1 if it sees the checkpoint that the job goes on from, or there is none. */
int node_has_checkpoint(const struct node *n, const struct need *need);

/* 0 where it does not see the job's checkpoint; else devices of a kind (DEVICE_ANY: of the kind
 * that has more) that have enough memory. */
enum node_count { NODE_COUNT_ALL, NODE_COUNT_FREE, NODE_COUNT_OPEN };
int64_t node_count_fitting(const struct node *n, const struct need *need, enum node_count which);

const struct absence *node_absence(const struct node *n, const char *attempt); /* or NULL */

/* 1 if jobs may be placed on it: heard of, without trouble, and not resting. */
int node_usable(const struct node *n);
/* Why it is not, where it is heard of: a sentence into `out` (NODE_WHY_SIZE), or "". */
#define NODE_WHY_SIZE 512
const char *node_why_not(const struct node *n, int64_t now_us, char out[NODE_WHY_SIZE]);

/* A job could not be started there, through no fault of its own; 1 if the node rests from now on.
 */
int node_start_failed(struct node *n, const char *job, const char *reason, int64_t now_us);
void node_start_went_well(struct node *n);
int node_wakes(struct node *n, int64_t now_us); /* 1 if its rest is over */

/* The health that its silence means now. */
enum node_health node_health_at(const struct node *n, int64_t now_us, int64_t started_us);

#endif
