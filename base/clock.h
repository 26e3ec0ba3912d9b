/* clock.h: intervals on CLOCK_BOOTTIME, wall time only for display and ids. */
#ifndef TRAINYARD_BASE_CLOCK_H
#define TRAINYARD_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

int64_t clock_boottime_us(void); /* microseconds since boot, suspended time included */
int64_t clock_wall_us(void);     /* microseconds since 1970 UTC */

#define CLOCK_TEXT_SIZE 32
/* RFC 3339 in UTC with milliseconds, "2026-11-30T08:45:00.123Z"; returns `out`. */
char *clock_format(int64_t wall_us, char out[CLOCK_TEXT_SIZE]);

/* "90", "90s", "15m", "2h", "1d", "1h30m" to seconds; a JSON number of seconds is the caller's
 * case. ERR_INVALID with a sentence for anything else, and for more than ten years. */
int clock_parse_duration(const char *text, int64_t *ret_seconds, struct err *e);

#endif
