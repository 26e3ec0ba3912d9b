/* document.h: rows as the JSON documents of the API. No secret is ever in one. */
#ifndef TRAINYARD_COORDINATOR_DOCUMENT_H
#define TRAINYARD_COORDINATOR_DOCUMENT_H

#include <jansson.h>

#include "daemon/coordinator/coordinator.h"

/* An RFC 3339 string, or null for 0. */
json_t *document_time(int64_t wall_us);

/* What the caller has as JSON already, to spare reading it from the store: borrowed, or NULL. */
struct document_parts {
    json_t *spec, *plan, *labels;
};

/* The whole job: id, name, user, state, reason, reason_code, spec, strategy, progress, times,
 * attempt, devices, exit, labels, priority, version. A new reference in *ret. `parts` may be NULL.
 */
int document_job(struct service *c, const struct job_row *job, const struct document_parts *parts,
                 json_t **ret, struct err *e);
/* A row of a list: no spec, no exit; strategy as its name. */
int document_job_slim(struct service *c, const struct job_row *job, json_t **ret, struct err *e);

int document_attempt(struct service *c, const struct attempt_row *a, json_t **ret, struct err *e);
json_t *document_node(const struct node *n);
json_t *document_event(const struct event_row *row);

#endif
