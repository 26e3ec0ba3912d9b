/* reports.h: report lines of a trainer (docs/protocols.md, section 5) into rows and events. */
#ifndef TRAINYARD_COORDINATOR_REPORTS_H
#define TRAINYARD_COORDINATOR_REPORTS_H

#include <jansson.h>

#include "daemon/coordinator/coordinator.h"

#define REPORTS_MAX_LINES 2000 /* in one sync */
#define REPORTS_MAX_LINE  4000 /* bytes */

/* Takes {"from", "to", "lines"} if `from` is what is stored of the attempt's report; anything else
 * is left alone (the answer tells the agent the stored offset). Lines that are wrong are counted
 * and logged, never an error: the report of a broken job must not hold up its end. Negative only
 * when the store failed. */
int reports_take(struct service *c, struct attempt_row *a, const json_t *reports, struct err *e);

/* A number, or "nan", "inf", "-inf". */
int reports_number(const json_t *v, double *ret);

#endif
