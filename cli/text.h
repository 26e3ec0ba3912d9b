/* text.h: text for people and terminals. What a server sends is hostile until it has been through
 * text_escape(): job names, reasons and log lines are written by whoever submits jobs. */
#ifndef TRAINYARD_CLI_TEXT_H
#define TRAINYARD_CLI_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum text_mode {
    TEXT_LINE, /* newline and tab are escaped as well */
    TEXT_LOG,  /* newline and tab pass */
};

/* Appends `bytes` with every control character (C0, DEL, C1), every character that reorders text
 * (bidirectional controls), line separators and invalid UTF-8 as \n, \t, \r, \e, \xNN or \u{NNNN}.
 */
void text_escape(struct buf *out, const char *bytes, size_t n, enum text_mode mode);

/* How many bytes at the end belong to a UTF-8 character that is not complete yet: 0 to 3. */
size_t text_incomplete(const char *bytes, size_t n);

/* Columns that escaped text takes on a terminal. */
int text_width(const char *s);

/* Appends at most `width` columns of `s`, with "…" as the last one where something was cut. */
void text_cut(struct buf *out, const char *s, int width);

/* "48 s", "3:07", "1:02:09", "3 d 4 h"; "?" for a negative number. */
void text_duration(struct buf *out, double seconds);

/* 812, 61.2k, 1.4M: three significant digits. */
void text_count(struct buf *out, double value);

/* "407 KB", "12.0 GiB" style: bytes in binary units. */
void text_bytes(struct buf *out, double bytes);

/* RFC 3339 in UTC, with or without a fraction, to microseconds since 1970; -1 for anything else. */
int64_t text_parse_time(const char *s);

#endif
