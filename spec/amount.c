/* amount.c: durations and amounts of memory, as text or as a number. */
#include "spec/amount.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

#define DURATION_MAX (10LL * 365 * 24 * 3600)
#define BYTES_MIN    (1LL << 20)
#define BYTES_MAX    (1LL << 50)

/* "2h" for "2 hours"; NULL if that does not make a duration either. */
static const char *nearest_duration(const char *text, char out[16])
{
    int64_t seconds;
    size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits + strspn(text + digits, " ");
    if (digits < 1 || digits > 9 || !isalpha((unsigned char)*unit))
        return NULL;
    snprintf(out, 16, "%.*s%c", (int)digits, text, tolower((unsigned char)*unit));
    return clock_parse_duration(out, &seconds, NULL) == 0 ? out : NULL;
}

static int duration_fault(struct decoding *d, const json_t *v, const struct where *at,
                          const char *hint)
{
    char shown[FIELD_SHOW_SIZE], near[16], better[64];
    const char *text = json_string_value(v);
    if (text && nearest_duration(text, near)) {
        snprintf(better, sizeof better, "Did you mean \"%s\"?", near);
        hint = better;
    }
    field_fault(d, at, "invalid", hint, "\"%s\" must be a duration, but is %s.", at->key,
                field_show(v, shown));
    return -1;
}

int decode_duration(struct decoding *d, const json_t *v, const struct where *at, const char *hint,
                    int64_t *ret)
{
    char shown[FIELD_SHOW_SIZE];
    int64_t seconds = 0;
    if (json_is_string(v)) {
        if (clock_parse_duration(json_string_value(v), &seconds, NULL) < 0)
            return duration_fault(d, v, at, hint);
    } else if (!field_whole(v, &seconds)) {
        field_wrong_type(d, at, at->key, "a duration or a number of seconds", "\"2h\"", v);
        return -1;
    }
    if (seconds < 1 || seconds > DURATION_MAX) {
        field_fault(d, at, "out_of_range", hint,
                    "\"%s\" must be between 1 second and ten years, but is %s.", at->key,
                    field_show(v, shown));
        return -1;
    }
    *ret = seconds;
    return 0;
}

static const struct {
    const char *name;
    int64_t bytes;
} units[] = {
    {"B", 1},     {"KiB", 1LL << 10}, {"MiB", 1LL << 20}, {"GiB", 1LL << 30}, {"TiB", 1LL << 40},
    {"kB", 1000}, {"KB", 1000},       {"MB", 1000000},    {"GB", 1000000000}, {"TB", 1000000000000},
};

/* "512MiB", "1.5 GiB" to bytes; -1: it is neither. */
static int64_t parse_bytes(const char *text)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) || strpbrk(text, "xXeEpP"))
        return -1;
    double x = strtod(text, &end);
    end += strspn(end, " ");
    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        if (strcmp(end, units[i].name) == 0)
            return x * (double)units[i].bytes < 9e18 ? (int64_t)(x * (double)units[i].bytes) : -1;
    return -1;
}

static int range_fault(struct decoding *d, int64_t bytes, const json_t *v, const struct where *at,
                       const char *usual)
{
    char hint[160], shown[FIELD_SHOW_SIZE];
    snprintf(hint, sizeof hint, "%s", usual);
    if (json_is_integer(v) && bytes > 0 && bytes < BYTES_MIN)
        snprintf(hint, sizeof hint, "A number counts bytes; did you mean \"%lldMiB\"?",
                 (long long)bytes);
    field_fault(d, at, "out_of_range", hint, "\"%s\" must be between 1MiB and 1024TiB, but is %s.",
                at->key, field_show(v, shown));
    return -1;
}

int decode_bytes(struct decoding *d, const json_t *v, const struct where *at, const char *hint,
                 int64_t *ret)
{
    char shown[FIELD_SHOW_SIZE];
    int64_t bytes = 0;
    if (json_is_string(v)) {
        bytes = parse_bytes(json_string_value(v));
        if (bytes < 0) {
            field_fault(d, at, "invalid", "For example: \"512MiB\" or \"8GiB\".",
                        "\"%s\" must be an amount (a number with B, KiB, MiB, GiB, TiB, KB, "
                        "MB, GB or TB), but is %s.",
                        at->key, field_show(v, shown));
            return -1;
        }
    } else if (!field_whole(v, &bytes)) {
        field_wrong_type(d, at, at->key, "a number of bytes or an amount", "\"8GiB\"", v);
        return -1;
    }
    if (bytes < BYTES_MIN || bytes > BYTES_MAX)
        return range_fault(d, bytes, v, at, hint);
    *ret = bytes;
    return 0;
}
