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
#define NODE_MAX_DRAINS                                                                            \
    (2 * NODE_MAX_DEVICES) /* of its devices, also of those that it had once                       \
                            */

/* What of a GPU's memory is left to the driver's context of each process, NCCL and the libraries'
 * code; of one with less than twice as much, half of it. */
#define NODE_GPU_ROOM (1LL << 30)

/* Trainer programs that a node has; NODE_TRAINERS_ALL: it has not told yet. */
#define NODE_TRAINER_CPU  1u
#define NODE_TRAINER_CUDA 2u
#define NODE_TRAINERS_ALL 3u

enum node_health {
    NODE_UNKNOWN, /* in the store, but not heard of since this coordinator started */
    NODE_READY,
    NODE_SUSPECT,
    NODE_LOST,
    NODE_HEALTH__MAX
};
const char *node_health_name(enum node_health h);

/* What a node says of a device: docs/protocols.md, section 1. */
enum device_state {
    DEVICE_READY,
    DEVICE_DIRTY,  /* comes back by itself */
    DEVICE_FAILED, /* not before its node says that it is ready */
    DEVICE_LOST,   /* the same */
    DEVICE_STATE__MAX
};
const char *device_state_name(enum device_state s);
int device_state_parse(const char *name, enum device_state *ret); /* 0 or ERR_INVALID */

#define DEVICE_CODE_MAX   47  /* bytes */
#define DEVICE_REASON_MAX 500 /* bytes */
#define DEVICE_UUID_MAX   95  /* bytes */
#define DEVICE_MAX_LINKS  64

struct device_link {
    char *uuid; /* of the device at the other end */
    char kind[16];
    int64_t count;
};

/* Volatile figures; NaN: not told. */
enum device_figure {
    FIGURE_TEMPERATURE_C,
    FIGURE_POWER_W,
    FIGURE_UTILIZATION, /* percent */
    FIGURE_MEMORY_USED,
    FIGURE_CLOCK_MHZ,
    FIGURE_ECC_CORRECTED,
    FIGURE_ECC_UNCORRECTED,
    FIGURE__MAX
};

struct device {
    int64_t index;
    enum device_kind kind; /* DEVICE_CPU or DEVICE_GPU */
    int64_t memory;        /* bytes; 0: not known */
    char *name;
    char *uuid, *pci, *mig_of; /* "": none, or not told */
    int64_t numa;              /* -1: not told */
    struct device_link *links;
    size_t link_count;
    json_t *said; /* all of that, as it is stored */

    enum device_state state;
    char code[DEVICE_CODE_MAX + 1];
    char *reason;
    int told, followed; /* standing, by devices.c: in its last event, and when last looked at */
    int changes;        /* of it since that event */
    int is_broken;      /* its last word that counts was failed or lost */
    int64_t events_us;  /* boot time until when its events are paid for */
    int absent;         /* leased, and its node lists it no longer */
    int64_t absent_us;  /* boot time since when; 0: not noted yet */
    int is_drained;     /* by itself; a node's drain is the node's */
    char *conflict;     /* why it may not be used, though it is ready; NULL: it may */

    char attempt[ID_SIZE]; /* that leases it; "": none */
    int haunted;           /* the node says that an attempt which we have ended still runs here */
    int kept;              /* for the job that is next, which waits for more (sched.c) */
    int behind;            /* leased to a job behind that one since it waits for this node */

    double figures[FIGURE__MAX];
    int64_t figures_us; /* boot time; 0: there are none */
    int64_t idle_us;    /* boot time since when it is leased and does nothing; 0: not so */
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
    char *devices_text; /* as stored: what it said, and leased ones that it lists no longer */
    char *said_text;    /* the list as it was said last */
    struct device *devices;
    size_t device_count;
    char *mismatch; /* why its last list of devices was not taken; NULL: it was */
    unsigned trainers;
    struct drain_row *drains;
    size_t drain_count;
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
    int unsettled; /* devices, leases or health changed since nodes_settle() */
};

void nodes_done(struct nodes *l);
struct node *nodes_find(const struct nodes *l, const char *name);  /* or NULL */
struct node *nodes_get(struct nodes *l, const char *name);         /* made if it is not there */
void nodes_drop(struct nodes *l, struct node *n);                  /* frees it */
size_t nodes_first_after(const struct nodes *l, const char *name); /* index; NULL: 0 */

int node_name_valid(const char *name); /* [a-z0-9]([a-z0-9.-]*), at most NODE_NAME_MAX */

/* ---- node_devices.c: what it says of its devices ---- */
/* Takes over a devices array (docs/protocols.md, section 1; checked here), keeping the leases of
 * devices that are still there, and leased devices that are not. 1 if it differs from before, 0 if
 * not, negative with a sentence if it is wrong. A list that gives a leased index to another device
 * is not taken: n->mismatch says so, until one comes that does not. */
int node_set_devices(struct node *n, const json_t *devices, struct err *e);
void devices_free(struct device *devices, size_t count);
struct device *node_device(struct node *n, int64_t index); /* or NULL */

/* Says of every device whether another one stands for the same hardware, on this node (a GPU and
 * its MIG instances) or on two, and only one of them may be used. For a pass of placement. */
void nodes_settle(struct nodes *l);

/* ---- node.c ---- */
int64_t node_device_memory(const struct device *d);  /* that a rank may use; 0: not known */
int node_device_is_checking(const struct device *d); /* dirty only until it has been looked at */
int node_device_usable(const struct device *d);      /* ready, not drained, no conflict */
int node_device_free(const struct device *d);        /* usable, not leased */
int node_device_open(const struct device *d);        /* free, and not kept for another job */
int node_device_fits(const struct device *d, const struct need *need); /* kind and memory */
/* The key that its drain is stored under, and its failures: its UUID, or "index N". */
#define DEVICE_KEY_SIZE (DEVICE_UUID_MAX + 1)
const char *node_device_key(const struct device *d, char out[DEVICE_KEY_SIZE]);
/* "free", "leased", "busy", or why it is not free: "drained", "conflict", "dirty", "failed",
 * "lost". */
const char *node_device_shown(const struct device *d);
/* Why it is not usable, as "GPU 2 is dirty: process 4711 holds 3 GB"; "" where it is. */
#define DEVICE_WHY_SIZE 700
const char *node_device_why_not(const struct node *n, const struct device *d,
                                char out[DEVICE_WHY_SIZE]);
int node_release(struct node *n, const char *attempt); /* number of devices that became free */

/* 1 if it sees the checkpoint that the job goes on from, or there is none. */
int node_has_checkpoint(const struct node *n, const struct need *need);

/* 0 where it does not see the job's checkpoint; else devices of a kind (DEVICE_ANY: of the kind
 * that has more) that have enough memory. */
enum node_count {
    NODE_COUNT_ALL,
    NODE_COUNT_SOUND, /* those that become free by themselves, or are: usable, or being checked */
    NODE_COUNT_FREE,
    NODE_COUNT_OPEN
};
int64_t node_count_fitting(const struct node *n, const struct need *need, enum node_count which);

const struct absence *node_absence(const struct node *n, const char *attempt); /* or NULL */

/* 1 if it has the trainer for ranks on that kind of device, or the job needs none. */
int node_has_trainer(const struct node *n, const struct need *need, enum device_kind kind);

/* ---- drains ---- */
const struct drain_row *node_drain(const struct node *n, const char *device); /* "": its own */
void node_set_drain(struct node *n, const struct drain_row *r);               /* copies it */
void node_drop_drain(struct node *n, const char *device);

/* 1 if jobs may be placed on it: heard of, without trouble, not drained, and not resting. */
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
