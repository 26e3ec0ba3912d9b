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

/* Bytes of the printable UTF-8 character at `s` (NUL-terminated); 0 for a control character, C1
 * among them, and for what is no UTF-8: names of files may be any bytes. */
static size_t printable(const unsigned char *s)
{
    static const unsigned char least[] = {0xa0, 0xa0,
                                          0x90}; /* of the second byte after C2, E0, F0 */
    static const unsigned char first[] = {0xc2, 0xe0, 0xf0};
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || (s[0] == first[n - 2] && s[1] < least[n - 2]) ||
        (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    return n;
}

/* Copies `in`, what is not printable as \xNN; returns the length, always < size. */
static size_t put_escaped(char *out, size_t size, const char *in)
{
    size_t n = 0;
    while (*in && n + 5 < size) {
        size_t length = printable((const unsigned char *)in);
        if (length == 0)
            n += (size_t)snprintf(out + n, size - n, "\\x%02x", (unsigned char)*in);
        memcpy(out + n, in, length);
        n += length;
        in += length ? length : 1;
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
