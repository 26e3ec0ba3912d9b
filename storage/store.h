/* store.h: the coordinator's durable state. The only room that knows SQLite.
 *
 * One connection, one thread. All writes of a loop turn go into one transaction that the first
 * write opens and store_commit() makes durable (WAL, synchronous=FULL): nothing may be
 * acknowledged before store_commit() has returned 0. `events` is the append-only truth; the other
 * tables are projections written in the same transaction. Every query has a LIMIT.
 *
 * Rows are plain structs. Strings in a row that was read belong to it (X_row_done frees them);
 * strings in a row that is written are borrowed.
 */
#ifndef TRAINYARD_STORAGE_STORE_H
#define TRAINYARD_STORAGE_STORE_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct store;

#define STORE_APPLICATION_ID 0x54597264 /* "TYrd" */
#define STORE_SCHEMA_VERSION 3

/* Opens (or, in a state directory never used before, creates) STATE_DIR/trainyard.db, takes the
 * lock STATE_DIR/lock, migrates, checks integrity. Refuses, with a sentence that says what to do:
 * a second daemon on the same directory, a newer schema, another application's database, a damaged
 * one, and a missing or empty database where STATE_DIR/instance says that there was one. */
int store_open(const char *state_dir, struct store **ret, struct err *e);
void store_close(struct store *s); /* rolls back an open transaction; NULL is fine */

const char *store_instance_id(const struct store *s); /* "inst_...", made once */
int64_t store_instance_epoch(const struct store *s);  /* raised by one at each open, durable */

/* ---- the turn's transaction ---- */
int store_dirty(const struct store *s); /* 1 if a transaction with writes is open */
/* ERR_NO_SPACE: rolled back, nothing was written, the caller answers 507 and goes on. Any other
 * failure (an fsync that failed): rolled back, and the process must end, for the disk lies. */
int store_commit(struct store *s, struct err *e);
void store_rollback(struct store *s);

/* A part of the turn that can be taken back alone: mark, then keep or undo. They nest. */
int store_mark(struct store *s, struct err *e);
void store_keep(struct store *s);
void store_undo(struct store *s);

/* ---- events ---- */
struct event_row {
    int64_t seq;     /* given by the store */
    int64_t time_us; /* wall clock */
    char *type;      /* "job_submitted", "job_state", "attempt_started", "node_joined", ... */
    char *job_id;    /* or NULL */
    char *node;      /* or NULL */
    char *data;      /* JSON object text */
};
void event_row_done(struct event_row *r);
int store_event_append(struct store *s, const struct event_row *r, int64_t *ret_seq, struct err *e);
/* Events with seq > after, of one job if job_id is not NULL, oldest first, at most `limit`
 * (1..1000) into `rows`; returns the number, or a negative code. */
int store_event_list(struct store *s, const char *job_id, int64_t after, int limit,
                     struct event_row *rows, struct err *e);

/* ---- jobs ---- */
enum job_state {
    JOB_PENDING,
    JOB_STARTING,
    JOB_RUNNING,
    JOB_STOPPING,
    JOB_SUCCEEDED,
    JOB_FAILED,
    JOB_CANCELLED,
    JOB_SUSPENDED,
    JOB_STATE__MAX
};
const char *job_state_name(enum job_state s);
int job_state_from_name(const char *name, enum job_state *ret); /* 0 or ERR_INVALID */

struct job_row {
    int64_t seq; /* submission order, given by the store; the cursor of lists */
    char *id;    /* "job_..." */
    char *name;
    char *user;
    enum job_state state;
    char *reason_code; /* "waiting_for_devices", "rank_killed", ...; may be "" */
    char *reason;      /* a sentence; may be "" */
    char *spec;        /* JSON text as submitted */
    char *plan;        /* JSON text, plan.h */
    int64_t priority;
    int64_t devices; /* ranks */
    int device_kind; /* enum device_kind of spec/job.h */
    int64_t memory;  /* bytes a rank needs */
    int trains;      /* 1: ranks run a trainer of ours; 0: a command */
    int64_t submitted_us, started_us, finished_us; /* wall; 0: not yet */
    int64_t attempt;                               /* number of the latest attempt, 0: none yet */
    int64_t epoch;                                 /* progress as last reported */
    int64_t step, steps;
    char *exit;       /* JSON text or NULL */
    int64_t version;  /* raised at every change: the ETag */
    int64_t moved_us; /* wall, of the last move; 0: not told */

    /* What is done about its ends (daemon/coordinator/ending.h). */
    int64_t keep;          /* newest checkpoints that are kept; 0: it takes none */
    int64_t max_restarts;  /* of attempts that ran and failed through no fault of the job */
    int64_t restarts;      /* so many since a user last started it */
    int64_t failed_starts; /* attempts that never ran, in a row */

    /* Written by store_checkpoint_...() alone. */
    int saved;               /* it has had a checkpoint since it last began at step 0 */
    int64_t checkpoint_step; /* of the newest that is kept; -1: there is none, */
    char *checkpoint_node;   /* NULL then; where it was written */
    char *checkpoint_share;  /* and on which shared file system, "": the node's own disk */
};
void job_row_done(struct job_row *r);

/* Stores version 1, whatever r->version says; ERR_CONFLICT if the id exists. */
int store_job_insert(struct store *s, const struct job_row *r, int64_t *ret_seq, struct err *e);
int store_job_get(struct store *s, const char *id, struct job_row *ret,
                  struct err *e); /* or ERR_NOT_FOUND */
int store_job_state(struct store *s, const char *id, enum job_state *ret, struct err *e);
/* Writes state, reason, times, attempt, exit, restarts and failed_starts of `r` (by id) and raises
 * the version; ERR_CONFLICT if the stored state is not `from`. */
int store_job_move(struct store *s, const struct job_row *r, enum job_state from, struct err *e);
/* Raises the version if anything changes. */
int store_job_progress(struct store *s, const char *id, int64_t epoch, int64_t step, int64_t steps,
                       struct err *e);
/* Sets or replaces. Raises the version unless the job was inserted in this turn. */
int store_job_label(struct store *s, const char *id, const char *key, const char *value,
                    struct err *e);
/* A job's labels as a JSON object text; free() it. */
int store_job_labels(struct store *s, const char *id, char **ret, struct err *e);

struct job_filter {
    unsigned states;                     /* bit 1u << enum job_state; 0: all */
    const char *label_key, *label_value; /* or NULL; a NULL value asks for the key alone */
    const char *user;                    /* or NULL */
    int64_t before_seq;                  /* 0: from the newest; else only seq < before_seq */
    int limit;                           /* 1..1000 */
};
/* Newest first. `spec` and `plan` of the rows are NULL except plan, which is kept (its name is
 * listed). Returns the number of rows or a negative code. */
int store_job_list(struct store *s, const struct job_filter *f, struct job_row *rows,
                   struct err *e);
int store_job_count(struct store *s, int64_t counts[JOB_STATE__MAX], struct err *e);

/* Idempotency-Key: in the same transaction as the job. body_hash is 64 hex digits. */
int store_key_get(struct store *s, const char *user, const char *key, char ret_body_hash[65],
                  char ret_job_id[40], struct err *e); /* or ERR_NOT_FOUND */
/* ERR_CONFLICT if the key has been used. */
int store_key_put(struct store *s, const char *user, const char *key, const char *body_hash,
                  const char *job_id, int64_t now_us, struct err *e);
/* Drops keys put before `before_us`, looking at the `limit` oldest. */
int store_key_expire(struct store *s, int64_t before_us, int limit, struct err *e);

/* ---- attempts and leases ---- */
enum attempt_state {
    ATTEMPT_LAUNCHING, /* wanted; the node has not said yet that its ranks run */
    ATTEMPT_RUNNING,
    ATTEMPT_STOPPING, /* an end was asked for */
    ATTEMPT_ENDED,
    ATTEMPT_STATE__MAX
};
const char *attempt_state_name(enum attempt_state s);

struct attempt_row {
    char *id; /* "att_..." */
    char *job_id;
    int64_t number; /* 1, 2, ... within the job */
    int64_t epoch;  /* rises over all attempts: the fencing token */
    char *node;
    enum attempt_state state;
    int64_t port;    /* MASTER_PORT, leased with the devices */
    char *secret;    /* ID_SECRET_SIZE text */
    char *stop_code; /* why an end was asked for: "cancelled", ...; NULL: it was not */
    char *stop_reason;
    char *boot_id; /* of the node when it started; NULL before */
    int64_t created_us, started_us, ended_us;
    int64_t report_offset; /* bytes of its report file that are stored */
    char *exit;            /* JSON text or NULL */
};
void attempt_row_done(struct attempt_row *r);

/* Its job and node must be stored (ERR_NOT_FOUND). ERR_CONFLICT if its id, its number or its epoch
 * is taken, or its port (if not 0) by a live attempt of the node. */
int store_attempt_insert(struct store *s, const struct attempt_row *r, struct err *e);
int store_attempt_get(struct store *s, const char *id, struct attempt_row *ret, struct err *e);
int store_attempt_latest(struct store *s, const char *job_id, struct attempt_row *ret,
                         struct err *e);
/* By id. job_id, number, epoch, node, secret and created_us never change: ERR_CONFLICT if they
 * differ. When it becomes ATTEMPT_ENDED its files are synced first: afterwards the agent may forget
 * them. */
int store_attempt_update(struct store *s, const struct attempt_row *r, struct err *e);
/* Attempts that have not ended, oldest first, on `node` (NULL: all). Returns the number. */
int store_attempt_live(struct store *s, const char *node, int limit, struct attempt_row *rows,
                       struct err *e);
int store_attempt_list(struct store *s, const char *job_id, int limit, struct attempt_row *rows,
                       struct err *e);
int store_epoch_next(struct store *s, int64_t *ret, struct err *e); /* durable with the turn */

struct lease_row {
    char *node;
    int64_t device; /* index on the node */
    char *attempt_id;
    int64_t rank;
};
void lease_row_done(struct lease_row *r);
/* ERR_CONFLICT if the device is leased: a partial unique index forbids two owners. */
int store_lease_take(struct store *s, const struct lease_row *r, int64_t now_us, struct err *e);
int store_lease_release(struct store *s, const char *attempt_id, int64_t now_us, struct err *e);
/* Live leases of a node (NULL: all), or of an attempt, released or not. Return the number. */
int store_lease_live(struct store *s, const char *node, int limit, struct lease_row *rows,
                     struct err *e);
int store_lease_of(struct store *s, const char *attempt_id, int limit, struct lease_row *rows,
                   struct err *e);

/* ---- nodes ---- */
struct node_row {
    char *name;
    char *boot_id;
    char *version;     /* of its agent */
    char *devices;     /* JSON array text: docs/protocols.md, section 1 */
    int64_t joined_us; /* first ever sync */
    int64_t seen_us;   /* written now and then, not at every sync */
};
void node_row_done(struct node_row *r);
int store_node_put(struct store *s, const struct node_row *r,
                   struct err *e); /* insert or replace */
int store_node_list(struct store *s, const char *after_name, int limit, struct node_row *rows,
                    struct err *e);

/* ---- drains: nodes and devices that get no new work until somebody says otherwise ----
 * A device is named by what it keeps for ever: its UUID, or "index N" where it has none. */
struct drain_row {
    char *node;
    char *device; /* "": the whole node */
    char *reason;
    char *by; /* who asked for it; "": not told */
    int64_t at_us;
};
void drain_row_done(struct drain_row *r);
/* Insert or replace; the node must be stored (ERR_NOT_FOUND). */
int store_drain_put(struct store *s, const struct drain_row *r, struct err *e);
/* 1 if there was one, else 0. */
int store_drain_drop(struct store *s, const char *node, const char *device, struct err *e);
int store_drain_list(struct store *s, const char *node, int limit, struct drain_row *rows,
                     struct err *e);
/* Notes that the device failed at `at_us` and forgets what was before `since_us`; the number of its
 * failures from then on. */
int store_device_failed(struct store *s, const char *node, const char *device, int64_t at_us,
                        int64_t since_us, struct err *e);
int store_device_forgive(struct store *s, const char *node, const char *device, struct err *e);

/* ---- checkpoints ----
 * Those that are kept, at most one of a step. A row is the coordinator's word that the directory
 * `name` is whole; what lies on a node without a row is nobody's. */
struct checkpoint_row {
    int64_t attempt; /* number */
    int64_t step, epoch;
    char *name;
    int64_t bytes;
    char *sum;
    char *node;
    char *share; /* name of the shared file system; "": the node's own disk */
    int64_t at_us;
};
void checkpoint_row_done(struct checkpoint_row *r);
/* Replaces that of the same step. The node must be stored (ERR_NOT_FOUND). */
int store_checkpoint_put(struct store *s, const char *job_id, const struct checkpoint_row *r,
                         struct err *e);
/* Highest step first; returns the number. */
int store_checkpoint_list(struct store *s, const char *job_id, int limit,
                          struct checkpoint_row *rows, struct err *e);
/* Drop all but the `keep` of the highest steps; all above a step. They return the number. */
int store_checkpoint_trim(struct store *s, const char *job_id, int64_t keep, struct err *e);
int store_checkpoint_drop(struct store *s, const char *job_id, int64_t above_step, struct err *e);
/* Drops all, and job_row.saved: it begins at step 0, as it is meant to. Returns the number. */
int store_checkpoint_forget(struct store *s, const char *job_id, struct err *e);
/* Jobs with checkpoints that failed, were cancelled or suspended before `before_us`: their ids, at
 * most `limit`, each free()d by the caller; returns the number. */
int store_checkpoint_expired(struct store *s, int64_t before_us, int limit, char **ids,
                             struct err *e);

/* ---- metrics ---- */
struct step_row {
    int64_t attempt;                       /* number */
    int64_t step;                          /* from 1 */
    int64_t epoch;                         /* from 1 */
    double loss, grad_norm, learning_rate; /* NaN is stored as such */
    int64_t time_us;                       /* wall */
    double samples_per_second;
    int64_t comm_exposed_us, comm_hidden_us; /* -1: not told */
    double loss_scale;                       /* 0: gradients were not scaled */
    int64_t skipped;                         /* 1: nothing was updated */
};
/* Again for the same attempt and step: replaces. */
int store_step_put(struct store *s, const char *job_id, const struct step_row *r, struct err *e);
/* `attempt` goes on after `step`: what earlier ones made after it, steps and epochs, is dropped.
 * Some 350,000 steps a second. */
int store_metrics_rewind(struct store *s, const char *job_id, int64_t attempt, int64_t step,
                         struct err *e);
/* Steps of the latest attempt that has each step, ascending, step > after, at most limit. */
int store_step_list(struct store *s, const char *job_id, int64_t after, int limit,
                    struct step_row *rows, struct err *e);
int store_step_count(struct store *s, const char *job_id, int64_t *ret_last_step, struct err *e);
/* The first step, then each first one at least `stride` further on, and always the last one; at
 * most `limit`. Where every step was reported: 1, 1 + stride, 1 + 2 * stride, ..., last. */
int store_step_sample(struct store *s, const char *job_id, int64_t stride, int limit,
                      struct step_row *rows, struct err *e);

struct epoch_row {
    int64_t attempt, epoch;
    char *data; /* JSON object text as the trainer reported it */
};
void epoch_row_done(struct epoch_row *r);
int store_epoch_put(struct store *s, const char *job_id, const struct epoch_row *r, struct err *e);
/* Of the latest attempt that has each epoch, ascending, epoch > after, at most limit. */
int store_epoch_list(struct store *s, const char *job_id, int64_t after, int limit,
                     struct epoch_row *rows, struct err *e);

/* ---- files that agents send: logs and artifacts, beneath STATE_DIR/files/<job>/<attempt>/ ----
 * `name` is one path component of [A-Za-z0-9._-], not starting with a dot. */
/* An attempt has at most 1,000 files (ERR_TOO_LARGE). */
/* Appends at `offset`, which must be the present size, else ERR_CONFLICT; the size afterwards (or
 * the present one with ERR_CONFLICT) is in *ret_size. Not part of the transaction. */
int store_file_append(struct store *s, const char *job_id, int64_t attempt, const char *name,
                      int64_t offset, const void *bytes, size_t n, int64_t *ret_size,
                      struct err *e);
/* A read-only fd of it. ERR_NOT_FOUND if it was never written. */
int store_file_open(struct store *s, const char *job_id, int64_t attempt, const char *name,
                    int *ret_fd, int64_t *ret_size, struct err *e);
/* JSON array text [{"name","bytes"}], sorted by name; free() it. */
int store_file_list(struct store *s, const char *job_id, int64_t attempt, char **ret,
                    struct err *e);

#endif
