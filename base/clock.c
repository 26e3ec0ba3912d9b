#include "base/clock.h"

#include <ctype.h>
#include <stdio.h>
#include <time.h>

#define DURATION_MAX_S (10LL * 365 * 24 * 3600)

static int64_t read_us(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_boottime_us(void)
{
    return read_us(CLOCK_BOOTTIME);
}

int64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

char *clock_format(int64_t wall_us, char out[CLOCK_TEXT_SIZE])
{
    time_t s = (time_t)(wall_us / 1000000);
    struct tm tm;
    gmtime_r(&s, &tm);
    size_t n = strftime(out, CLOCK_TEXT_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, CLOCK_TEXT_SIZE - n, ".%03dZ", (int)(wall_us / 1000 % 1000));
    return out;
}

static int64_t unit_seconds(char unit)
{
    switch (unit) {
    case 's': return 1;
    case 'm': return 60;
    case 'h': return 3600;
    case 'd': return 86400;
    default: return 0;
    }
}

static int bad_duration(const char *text, struct err *e)
{
    return err_set(
        e, ERR_INVALID,
        "\"%.40s\" is not a duration; write a number with s, m, h or d, such as \"90s\", "
        "\"15m\" or \"1h30m\", at most ten years",
        text);
}

int clock_parse_duration(const char *text, int64_t *ret_seconds, struct err *e)
{
    int64_t total = 0;
    const char *p = text;
    do {
        const char *number = p;
        if (!isdigit((unsigned char)*p))
            return bad_duration(text, e);
        int64_t value = 0;
        for (; isdigit((unsigned char)*p); p++) {
            value = value * 10 + (*p - '0');
            if (value > DURATION_MAX_S)
                return bad_duration(text, e);
        }
        int64_t unit = *p ? unit_seconds(*p) : 1;
        if (unit == 0)
            return bad_duration(text, e);
        if (!*p && number != text) /* "1h30": minutes or seconds? */
            return bad_duration(text, e);
        if (*p)
            p++;
        total += value * unit;
        if (total > DURATION_MAX_S)
            return bad_duration(text, e);
    } while (*p);
    *ret_seconds = total;
    return 0;
}
