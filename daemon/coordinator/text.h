/* text.h: JSON written straight into a buffer, where a document is made too often (a submission's
 * reply, a page of jobs) or is too long (metrics) to go through json_t. Commas are put as needed.
 */
#ifndef TRAINYARD_COORDINATOR_TEXT_H
#define TRAINYARD_COORDINATOR_TEXT_H

#include <stdint.h>

#include "base/buf.h"

void text_open(struct buf *b, const char *bracket); /* "{" or "[", as the next item of a list */
void text_close(struct buf *b, const char *bracket);
void text_key(struct buf *b, const char *key);                       /* not escaped */
void text_string(struct buf *b, const char *key, const char *value); /* NULL: "" */
void text_int(struct buf *b, const char *key, int64_t value);
void text_number(struct buf *b, const char *key,
                 double value); /* "nan", "inf", "-inf" as strings */
void text_time(struct buf *b, const char *key, int64_t wall_us); /* null for 0 */
void text_raw(struct buf *b, const char *key, const char *json); /* as it is; NULL, "": null */

#endif
