/* wanted.h: what a node is told, made afresh from the store each time: state to deeds. */
#ifndef TRAINYARD_COORDINATOR_WANTED_H
#define TRAINYARD_COORDINATOR_WANTED_H

#include <jansson.h>

#include "daemon/coordinator/coordinator.h"

#define WANTED_MAX_LAUNCHES 64 /* launch documents in one answer; the rest goes in the next */

/* The answer to a sync whose attempts are `observed`; a new reference. `fresh`: they are what the
 * node holds now, not what it held when it sent a request that was parked since; only then is what
 * it takes for running, and we do not, to be stopped. Attempts that the node
 * already holds are named without their launch document. *ret_sum identifies what is to be
 * forgotten or superseded; *ret_more is 1 if some launches had to wait for the next answer. */
int wanted_answer(struct service *c, struct node *n, const json_t *observed, int fresh,
                  json_t **ret, uint64_t *ret_sum, int *ret_more, struct err *e);

#endif
