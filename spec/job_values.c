/* job_values.c: members of a job that are neither a number nor a name: command, labels, time and
 * memory. */
#include "spec/job_decode.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define ARGS_MAX        1024
#define ARG_BYTES_MAX   65536 /* of one; the kernel takes 128 KiB */
#define LABELS_MAX      32
#define LABEL_VALUE_MAX 256
#define TIME_LIMIT_MAX  (10LL * 365 * 24 * 3600)
#define MEMORY_MIN      (1LL << 20)
#define MEMORY_MAX      (1LL << 50)

static int decode_argument(struct decoding *d, const json_t *v, const struct where *at, char **ret)
{
    const char *text = json_string_value(v);
    if (!text) {
        char example[64] = "\"--epochs=10\"";
        field_wrong_type(d, at, NULL, "a string", example, v);
        return -1;
    }
    if (strlen(text) != json_string_length(v) || strlen(text) > ARG_BYTES_MAX) {
        field_fault(d, at, "out_of_range", NULL,
                    "An argument has at most %d bytes, none of them NUL.", ARG_BYTES_MAX);
        return -1;
    }
    *ret = mem_strdup(text);
    return 0;
}

void decode_command(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    size_t n = json_array_size(v);
    if (n == 0) {
        field_wrong_type(d, at, "command", "a list of strings: program and arguments",
                         "[\"python3\", \"train.py\"]", v);
        return;
    }
    if (n > ARGS_MAX) {
        field_fault(d, at, "out_of_range", NULL,
                    "\"command\" may have at most %d strings, but has %zu.", ARGS_MAX, n);
        return;
    }
    s->command = mem_zalloc((n + 1) * sizeof *s->command);
    for (size_t i = 0, kept = 0; i < n; i++)
        kept += decode_argument(d, json_array_get(v, i), FIELD_ITEM(at, i), &s->command[kept]) == 0;
    if (s->command[0] && !s->command[0][0])
        field_fault(d, FIELD_ITEM(at, 0), "invalid", "For example: \"python3\".",
                    "The program's name is empty.");
}

static int label_key_good(const char *key)
{
    size_t n = 0;
    for (; key[n]; n++)
        if (!(islower((unsigned char)key[n]) || isdigit((unsigned char)key[n]) ||
              strchr("._/-", key[n])))
            return 0;
    return n >= 1 && n <= 63;
}

/* What the key would be with the nearest allowed characters. */
static void label_key_hint(const char *key, char *out, size_t size)
{
    char better[64];
    size_t n = 0;
    for (; key[n] && n < 63; n++) {
        char c = (char)tolower((unsigned char)key[n]);
        better[n] =
            islower((unsigned char)c) || isdigit((unsigned char)c) || strchr("._/-", c) ? c : '-';
    }
    better[n] = '\0';
    snprintf(out, size, "For example: \"%s\".", n ? better : "team");
}

static void decode_label(struct decoding *d, const char *key, const json_t *v,
                         const struct where *at, struct job_spec *s)
{
    char hint[128];
    const char *text = json_string_value(v);
    if (!label_key_good(key)) {
        label_key_hint(key, hint, sizeof hint);
        field_fault(d, at, "invalid", hint,
                    "A label's key has 1 to 63 of the characters a-z, 0-9, \".\", \"_\", \"/\" and "
                    "\"-\".");
    } else if (!text) {
        field_wrong_type(d, at, key, "a string", "\"vision\"", v);
    } else if (strlen(text) != json_string_length(v) || strlen(text) > LABEL_VALUE_MAX) {
        field_fault(d, at, "out_of_range", NULL,
                    "A label's value has at most %d bytes, none of them NUL.", LABEL_VALUE_MAX);
    } else {
        s->labels[s->label_count++] = (struct label){mem_strdup(key), mem_strdup(text)};
    }
}

void decode_labels(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    size_t n = json_object_size(v);
    if (!json_is_object(v)) {
        field_wrong_type(d, at, "labels", "an object of strings", "{\"team\": \"vision\"}", v);
        return;
    }
    if (n > LABELS_MAX) {
        field_fault(d, at, "out_of_range", NULL, "A job has at most %d labels, but this has %zu.",
                    LABELS_MAX, n);
        return;
    }
    s->labels = mem_zalloc((n + 1) * sizeof *s->labels);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        decode_label(d, key, value, FIELD_WHERE(at, key), s);
    }
}

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

static void duration_fault(struct decoding *d, const json_t *v, const struct where *at,
                           const char *hint)
{
    char shown[FIELD_SHOW_SIZE], near[16], better[64];
    const char *text = json_string_value(v);
    if (text && nearest_duration(text, near)) {
        snprintf(better, sizeof better, "Did you mean \"%s\"?", near);
        hint = better;
    }
    field_fault(d, at, "invalid", hint, "\"time_limit\" must be a duration, but is %s.",
                field_show(v, shown));
}

void decode_time_limit(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    const char *hint = "For example: \"90s\", \"15m\" or \"2h\". To have no limit, leave it out.";
    char shown[FIELD_SHOW_SIZE];
    int64_t seconds = 0;
    if (json_is_string(v)) {
        if (clock_parse_duration(json_string_value(v), &seconds, NULL) < 0) {
            duration_fault(d, v, at, hint);
            return;
        }
    } else if (!field_whole(v, &seconds)) {
        field_wrong_type(d, at, "time_limit", "a duration or a number of seconds", "\"2h\"", v);
        return;
    }
    if (seconds < 1 || seconds > TIME_LIMIT_MAX)
        field_fault(d, at, "out_of_range", hint,
                    "\"time_limit\" must be between 1 second and ten years, but is %s.",
                    field_show(v, shown));
    else
        s->time_limit_s = seconds;
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

static void memory_fault(struct decoding *d, int64_t bytes, const json_t *v, const struct where *at)
{
    char hint[128] = "For example: \"8GiB\". To have all of the device, leave it out.";
    char shown[FIELD_SHOW_SIZE];
    if (json_is_integer(v) && bytes > 0 && bytes < MEMORY_MIN)
        snprintf(hint, sizeof hint, "A number counts bytes; did you mean \"%lldMiB\"?",
                 (long long)bytes);
    field_fault(d, at, "out_of_range", hint,
                "\"memory\" must be between 1MiB and 1024TiB, but is %s.", field_show(v, shown));
}

void decode_memory(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct resources *r = base;
    char shown[FIELD_SHOW_SIZE];
    int64_t bytes = 0;
    if (json_is_string(v)) {
        bytes = parse_bytes(json_string_value(v));
        if (bytes < 0) {
            field_fault(d, at, "invalid", "For example: \"512MiB\" or \"8GiB\".",
                        "\"memory\" must be an amount (a number with B, KiB, MiB, GiB, TiB, KB, "
                        "MB, GB or TB), but is %s.",
                        field_show(v, shown));
            return;
        }
    } else if (!field_whole(v, &bytes)) {
        field_wrong_type(d, at, "memory", "a number of bytes or an amount", "\"8GiB\"", v);
        return;
    }
    if (bytes < MEMORY_MIN || bytes > MEMORY_MAX)
        memory_fault(d, bytes, v, at);
    else
        r->memory = bytes;
}
