/* problem.h: what a server answers when it refuses (RFC 9457), as a person would say it. */
#ifndef TRAINYARD_CLI_PROBLEM_H
#define TRAINYARD_CLI_PROBLEM_H

#include "base/buf.h"
#include "cli/http.h"

/* Appends the detail, then one line per fault "  /fit/batch_size: message (hint)". An answer that
 * is no problem document gives a line with its status and the start of its text. All escaped. */
void problem_print(const struct http_reply *r, struct buf *out);

/* The faults of an `errors` or `warnings` array, one indented line each. */
void problem_faults(const json_t *faults, struct buf *out);

#endif
