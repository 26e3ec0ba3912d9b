#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const code_names[] = {
    [-ERR_OK] = "ok",
    [-ERR_INVALID] = "invalid",
    [-ERR_NOT_FOUND] = "not_found",
    [-ERR_CONFLICT] = "conflict",
    [-ERR_TOO_LARGE] = "too_large",
    [-ERR_UNAUTHORIZED] = "unauthorized",
    [-ERR_UNAVAILABLE] = "unavailable",
    [-ERR_NO_SPACE] = "no_space",
    [-ERR_IO] = "io",
    [-ERR_CORRUPT] = "corrupt",
    [-ERR_STALE] = "stale",
    [-ERR_TIMEOUT] = "timeout",
    [-ERR_PEER] = "peer",
    [-ERR_INTERNAL] = "internal",
    [-ERR_NO_MEMORY] = "no_memory",
};

const char *err_code_name(int code)
{
    int i = -code;
    if (i < 0 || i >= (int)(sizeof code_names / sizeof code_names[0]))
        return "unknown";
    return code_names[i];
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
        e->code = code;
    }
    return code;
}

static int code_of_errno(int number)
{
    switch (number) {
    case ENOSPC:
    case EDQUOT: return ERR_NO_SPACE;
    case ENOENT: return ERR_NOT_FOUND;
    default: return ERR_IO;
    }
}

int err_errno(struct err *e, const char *fmt, ...)
{
    int number = errno;
    int code = code_of_errno(number);
    if (e) {
        char what[sizeof e->text];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(what, sizeof what, fmt, ap);
        va_end(ap);
        err_set(e, code, "%s: %s", what, strerror(number));
    }
    errno = number;
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_INTERNAL;
    char before[sizeof e->text];
    char after[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(before, sizeof before, fmt, ap);
    va_end(ap);
    memcpy(after, e->text, sizeof after);
    return err_set(e, e->code, "%s: %s", before, after);
}

void err_bug(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "BUG at %s:%d: ", file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}
