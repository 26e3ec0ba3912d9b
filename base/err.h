/* err.h: how a function says what went wrong.
 *
 * A function that can fail returns 0 or one of the negative codes below, and, where the caller
 * passed a struct err, leaves a sentence in it: what was wrong, where, and what would work.
 * Outputs (`ret_...`, always the last parameters before the err) are written only on success.
 * Rooms below daemon never log: they return the sentence and the program decides.
 */
#ifndef TRAINYARD_BASE_ERR_H
#define TRAINYARD_BASE_ERR_H

#include <stdarg.h>

enum err_code {
    ERR_OK = 0,
    ERR_INVALID = -1,      /* the caller's input is wrong: retrying the same will fail again */
    ERR_NOT_FOUND = -2,    /* the named thing does not exist */
    ERR_CONFLICT = -3,     /* the thing exists in a state that forbids this */
    ERR_TOO_LARGE = -4,    /* over a stated size limit */
    ERR_UNAUTHORIZED = -5, /* no or wrong credential */
    ERR_UNAVAILABLE = -6,  /* try again later */
    ERR_NO_SPACE = -7,     /* disk full */
    ERR_IO = -8,           /* the operating system refused */
    ERR_CORRUPT = -9,      /* stored data is not what was written */
    ERR_STALE = -10,       /* carries an epoch older than the present one */
    ERR_TIMEOUT = -11,     /* a deadline passed */
    ERR_PEER = -12,        /* another rank or process died */
    ERR_INTERNAL = -13,    /* a bug of ours */
    ERR_NO_MEMORY = -14,   /* a device's own memory is full; the host's ends the process */
};

struct err {
    int code;       /* enum err_code */
    char text[512]; /* one sentence, no trailing newline; truncated if longer */
};

/* Formats the sentence into `e` (may be NULL) and returns `code`, so that failing is one line:
 *     return err_set(e, ERR_INVALID, "line %d: ...", line); */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same with ": <strerror(errno)>" appended. ENOSPC and EDQUOT become ERR_NO_SPACE, ENOENT
 * ERR_NOT_FOUND, everything else ERR_IO. Returns the code. */
int err_errno(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "<formatted>: " before the sentence that is already in `e`. Returns e->code. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The code's short name as scripts see it ("invalid", "not_found", ...). */
const char *err_code_name(int code);

/* A broken invariant of ours: says where and aborts. Never for input. */
#define BUG(...) err_bug(__FILE__, __LINE__, __VA_ARGS__)
__attribute__((noreturn)) void err_bug(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
