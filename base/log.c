#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *program_name = "trainyard";
static enum log_level max_level = LOG_LEVEL_INFO;
static int to_journal;

void log_setup(const char *program, enum log_level max)
{
    program_name = program;
    max_level = max;
    to_journal = getenv("JOURNAL_STREAM") != NULL && !isatty(STDERR_FILENO);
}

static const char *level_name(enum log_level level)
{
    switch (level) {
    case LOG_LEVEL_ERROR: return "error";
    case LOG_LEVEL_WARNING: return "warning";
    case LOG_LEVEL_INFO: return "info";
    case LOG_LEVEL_DEBUG: return "debug";
    }
    return "?";
}

static size_t put_stamp(char *out, size_t size, enum log_level level)
{
    if (to_journal)
        return (size_t)snprintf(out, size, "<%d>", (int)level);
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &tm);
    return n + (size_t)snprintf(out + n, size - n, ".%03ldZ ", now.tv_nsec / 1000000);
}

/* Copies `in`, control characters as \xNN; returns the length, always < size. */
static size_t put_escaped(char *out, size_t size, const char *in)
{
    size_t n = 0;
    for (; *in && n + 5 < size; in++) {
        unsigned char c = (unsigned char)*in;
        if (c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(out + n, size - n, "\\x%02x", c);
        else
            out[n++] = (char)c;
    }
    out[n] = '\0';
    return n;
}

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    if (level > max_level)
        return;
    char text[2048];
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t n = put_stamp(line, sizeof line, level);
    n += (size_t)snprintf(line + n, sizeof line - n, "%s %s %s%s", program_name, level_name(level),
                          event, text[0] ? " " : "");
    n += put_escaped(line + n, sizeof line - n - 1, text);
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written; /* nobody to tell */
}

const char *log_quote(const char *value)
{
    static char ring[8][512];
    static unsigned next;
    char *out = ring[next++ % 8];
    size_t n = 0;
    out[n++] = '"';
    for (; value && *value && n < 500; value++) {
        if (*value == '"' || *value == '\\')
            out[n++] = '\\';
        out[n++] = *value;
    }
    out[n++] = '"';
    out[n] = '\0';
    return out;
}
