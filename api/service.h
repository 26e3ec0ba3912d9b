/* service.h: the verbs that the API needs, and nothing of who answers them.
 *
 * daemon/coordinator/service.c defines them; tests link tests/unit/fake_service.c. Each verb fills
 * a struct service_reply and returns 0, or returns a negative err code with the reply's problem
 * filled (status, code, detail, faults). Verbs never block and never answer by themselves.
 *
 * A verb that wrote leaves service_dirty() true until the turn's transaction commits: the API holds
 * back every answer made while it is true, until api_turn_done().
 */
#ifndef TRAINYARD_API_SERVICE_H
#define TRAINYARD_API_SERVICE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/faults.h"

struct service; /* the coordinator */

struct service_reply {
    int status;        /* 200, 201, ...; with a failure 4xx or 5xx */
    json_t *body;      /* owned by the reply; NULL when `file_fd` or `text` is used */
    int exact;         /* 1: numbers with all their digits, for programs that compute with them */
    char *location;    /* Location header or NULL; owned */
    char *etag;        /* or NULL; owned */
    int retry_after_s; /* 0: none */
    int file_fd;       /* -1, or a file to send: owned by the reply */
    int64_t file_offset, file_length;
    const char *content_type; /* static; NULL: application/json */
    char *text;               /* a text body of that content type, or NULL; owned */
    int wait; /* 1: nothing to say yet; the API parks the connection and calls the verb again
                 after api_wake(ticket) */
    /* a failure, answered as application/problem+json (RFC 9457) */
    char code[48];          /* "not_found", "invalid_spec", "idempotency_conflict", ... */
    char detail[600];       /* a sentence */
    struct faults faults;   /* errors[] */
    struct faults warnings; /* warnings[], also on success (added to the body) */
};
void service_reply_init(struct service_reply *r);
void service_reply_done(struct service_reply *r);

/* Fills the failure fields; returns a negative code, so that failing is one line. */
int service_fail(struct service_reply *r, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

int service_dirty(struct service *s);

/* ---- jobs ---- */
struct submit_request {
    const char *body; /* the raw JSON text: hashed for the idempotency key, then parsed */
    size_t body_len;
    const char *idempotency_key; /* or NULL */
    int dry_run;                 /* 200 with {"plan": ...} and nothing stored */
    int strict;
};
/* 201 with the job document and its Location; 200 when the key repeats (the same job);
 * 400, 422, 409 idempotency_conflict, 429. */
int service_job_submit(struct service *s, const struct submit_request *q, struct service_reply *r);

struct list_request {
    const char *states; /* "pending,running" or NULL */
    const char *label;  /* "team=vision" or "team" or NULL */
    const char *user;
    int limit;         /* 1..1000; the API has checked it */
    const char *after; /* cursor or NULL */
};
int service_job_list(struct service *s, const struct list_request *q, struct service_reply *r);
int service_job_show(struct service *s, const char *id, struct service_reply *r);
int service_job_cancel(struct service *s, const char *id, struct service_reply *r); /* idempotent */
/* Idempotent; 409 with a sentence where the job's state makes no sense of it. */
int service_job_suspend(struct service *s, const char *id, struct service_reply *r);
int service_job_resume(struct service *s, const char *id, struct service_reply *r);
int service_job_retry(struct service *s, const char *id, int from_scratch, struct service_reply *r);
/* {"checkpoints": [...], "keep", "kept_until"}: those that are kept, newest first. */
int service_job_checkpoints(struct service *s, const char *id, struct service_reply *r);
int service_job_plan(struct service *s, const char *id, struct service_reply *r);
int service_job_attempts(struct service *s, const char *id, struct service_reply *r);
/* {"events": [...], "next": "seq"}; job NULL: all events. */
int service_event_list(struct service *s, const char *job, int64_t after, int limit,
                       struct service_reply *r);
#define SERVICE_MAX_POINTS 100000 /* steps of one answer */
/* max_points 0: every step, else at most SERVICE_MAX_POINTS; after_step and after_epoch: only later
 * ones. */
int service_job_metrics(struct service *s, const char *id, int64_t max_points, int64_t after_step,
                        int64_t after_epoch, struct service_reply *r);

struct log_request {
    const char *id;
    int64_t rank;
    int64_t attempt; /* 0: the latest */
    int64_t offset;  /* negative: that many bytes from the end */
    int64_t limit;   /* bytes */
};
/* text/plain from a file, with the headers X-Log-Offset and X-Log-Size (file_offset, full size in
 * `log_size`); an attempt that has written nothing yet answers an empty body. */
int service_job_log(struct service *s, const struct log_request *q, int64_t *ret_size,
                    struct service_reply *r);
int service_artifact_list(struct service *s, const char *id, struct service_reply *r);
int service_artifact_get(struct service *s, const char *id, const char *name,
                         struct service_reply *r);

/* ---- nodes, health ---- */
int service_node_list(struct service *s, int limit, const char *after, struct service_reply *r);
int service_node_show(struct service *s, const char *name, struct service_reply *r);
#define SERVICE_REASON_MAX 200 /* bytes of a drain's reason */
#define SERVICE_BY_MAX     60  /* and of who asked for it */
struct drain_request {
    const char *reason; /* "": none */
    const char *by;     /* "": not told */
    const char *uuid;   /* of one device; NULL: see index */
    int64_t index;      /* of one device; negative: the whole node */
};
/* Idempotent; 200 with the node, 404 where it or the device is unknown. Of an undrain the reason is
 * not looked at. */
int service_node_drain(struct service *s, const char *name, const struct drain_request *q,
                       struct service_reply *r);
int service_node_undrain(struct service *s, const char *name, const struct drain_request *q,
                         struct service_reply *r);
int service_version(struct service *s, struct service_reply *r);
int service_ready(struct service *s, struct service_reply *r);   /* 200 or 503 with the reason */
int service_metrics(struct service *s, struct service_reply *r); /* Prometheus text */

/* ---- agents; docs/protocols.md ---- */
/* `ticket` names this request for api_wake(); `resumed` counts the calls after the first. */
int service_agent_sync(struct service *s, const json_t *body, uint64_t ticket, int resumed,
                       struct service_reply *r);
struct agent_file {
    const char *node;
    const char *attempt_id;
    int64_t epoch;
    const char *name;
    int64_t offset;
    const void *bytes;
    size_t n;
};
/* 200 {"size": n}; 409 offset_mismatch with {"size": present}; 409 stale_epoch. */
int service_agent_file(struct service *s, const struct agent_file *q, struct service_reply *r);

#endif
