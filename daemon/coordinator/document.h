/* document.h: rows as the JSON documents of the API. No secret is ever in one. */
#ifndef TRAINYARD_COORDINATOR_DOCUMENT_H
#define TRAINYARD_COORDINATOR_DOCUMENT_H

#include <jansson.h>

#include "base/buf.h"
#include "base/faults.h"
#include "daemon/coordinator/coordinator.h"

/* An RFC 3339 string, or null for 0. */
json_t *document_time(int64_t wall_us);

/* Appends the whole job as JSON text: id, name, user, state, reason, reason_code, strategy,
 * progress, times, attempt, devices, exit, labels, priority, version, spec. The stored texts (spec,
 * plan, exit) go in as they are: they were JSON when they were stored, and numbers stay as the user
 * wrote them. `labels`: JSON text, or NULL to read it from the store. `warnings` are added if there
 * are any. */
int document_job(struct service *c, const struct job_row *job, const char *labels,
                 const struct faults *warnings, struct buf *b, struct err *e);
/* Appends a row of a list: no spec, no exit; strategy as its name. */
void document_job_slim(struct service *c, const struct job_row *job, struct buf *b);

int document_attempt(struct service *c, const struct attempt_row *a, json_t **ret, struct err *e);
json_t *document_node(const struct node *n, int64_t now_us);
json_t *document_event(const struct event_row *row);

#endif
