/* telemetry.h: volatile figures of devices (docs/protocols.md, section 1): in memory alone, shown
 * with their age, never decided by. */
#ifndef TRAINYARD_COORDINATOR_TELEMETRY_H
#define TRAINYARD_COORDINATOR_TELEMETRY_H

#include <jansson.h>

#include "base/buf.h"
#include "daemon/coordinator/node.h"

#define TELEMETRY_STALE_US    (60 * 1000000LL)      /* older figures are no metrics any more */
#define TELEMETRY_IDLE_US     (10 * 60 * 1000000LL) /* leased and idle for so long: worth telling */
#define TELEMETRY_IDLE_BELOW  5                     /* percent of utilization */
#define TELEMETRY_MAX_DEVICES 4096                  /* in /metrics */

/* Takes what a sync says; NULL: it says nothing. What makes no sense (no number, negative, beyond
 * what any device has, of a device that is not there) is left out: the number of such things. */
uint64_t telemetry_take(struct node *n, const json_t *list, int64_t now_us);

/* {"temperature_c", ..., "age_s"}, with what is known; null where nothing is. */
json_t *telemetry_document(const struct device *d, int64_t now_us);
/* For how many seconds it has been leased and idle; -1 where that is not so, or not for long. */
int64_t telemetry_idle_s(const struct device *d, int64_t now_us);

/* Gauges of all devices that have figures which are not stale. */
void telemetry_metrics(const struct nodes *l, int64_t now_us, struct buf *b);

#endif
