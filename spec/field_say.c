/* field_say.c: how the faults of a document are worded: pointers, values, expectations. */
#include "spec/field_say.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

#define KEY_MAX 128 /* a longer key is left out: the pointer names what holds it */

static void add_escaped(struct buf *b, const char *key)
{
    for (const char *p = key; *p; p++) {
        if (*p == '~')
            buf_adds(b, "~0");
        else if (*p == '/')
            buf_adds(b, "~1");
        else
            buf_add(b, p, 1);
    }
}

static void add_pointer(struct buf *b, const struct where *at)
{
    if (!at->up) {
        buf_adds(b, at->key);
        return;
    }
    add_pointer(b, at->up);
    if (!at->key) {
        buf_addf(b, "/%zu", at->index);
    } else if (strlen(at->key) <= KEY_MAX) {
        buf_adds(b, "/");
        add_escaped(b, at->key);
    }
}

static void say(struct faults *f, const struct where *at, const char *code, const char *hint,
                const char *fmt, va_list ap)
{
    if (f->count == FAULTS_MAX) {
        f->total++;
        return;
    }
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    struct buf pointer = BUF_INIT;
    buf_adds(&pointer, "");
    add_pointer(&pointer, at);
    faults_add(f, pointer.data, code, hint, "%s", text);
    buf_done(&pointer);
}

void field_fault(struct decoding *d, const struct where *at, const char *code, const char *hint,
                 const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(d->faults, at, code, hint, fmt, ap);
    va_end(ap);
}

void field_warn(struct decoding *d, const struct where *at, const char *code, const char *hint,
                const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(d->warnings, at, code, hint, fmt, ap);
    va_end(ap);
}

char *field_clip(const char *text, char out[FIELD_SHOW_SIZE])
{
    size_t most = FIELD_SHOW_SIZE - 20, n = 0;
    for (; text[n] && n < most; n++)
        out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    if (text[n]) {
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
        strcpy(out + n, "...");
    } else {
        out[n] = '\0';
    }
    return out;
}

char *field_number(double x, char *out)
{
    if (fabs(x) < 1e15 && floor(x) == x) {
        snprintf(out, 32, "%.0f", x);
        return out;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, x);
        if (strtod(out, NULL) == x)
            break;
    }
    return out;
}

char *field_show(const json_t *v, char out[FIELD_SHOW_SIZE])
{
    char text[FIELD_SHOW_SIZE];
    switch (json_typeof(v)) {
    case JSON_OBJECT: return strcpy(out, "an object");
    case JSON_ARRAY: return strcpy(out, json_array_size(v) ? "a list" : "an empty list");
    case JSON_STRING:
        snprintf(out, FIELD_SHOW_SIZE, "the string \"%s\"", field_clip(json_string_value(v), text));
        return out;
    case JSON_INTEGER:
        snprintf(out, FIELD_SHOW_SIZE, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return out;
    case JSON_REAL: return field_number(json_real_value(v), out);
    case JSON_TRUE: return strcpy(out, "true");
    case JSON_FALSE: return strcpy(out, "false");
    case JSON_NULL: return strcpy(out, "null");
    }
    return strcpy(out, "unknown");
}

/* The value that the quotes of "64" or "true" keep from being one; NULL: none. */
static const char *unquoted(const json_t *v, const char *example)
{
    const char *text = json_string_value(v);
    if (!text || !example)
        return NULL;
    int wants_bool = strcmp(example, "true") == 0 || strcmp(example, "false") == 0;
    if (wants_bool)
        return strcmp(text, "true") == 0 || strcmp(text, "false") == 0 ? text : NULL;
    char *end;
    double x = strtod(text, &end);
    int number = end != text && *end == '\0' && isfinite(x) && !strpbrk(text, "xXnNiI ");
    return number && strchr("-0123456789", example[0]) ? text : NULL;
}

static void type_hint(const char *name, const char *example, const json_t *v, char *out,
                      size_t size)
{
    const char *text = unquoted(v, example);
    int wants_bool = strcmp(example, "true") == 0 || strcmp(example, "false") == 0;
    if (text && wants_bool)
        snprintf(out, size, "Write %s without quotes.", text);
    else if (text)
        snprintf(out, size, "Write the number %s, without quotes.", text);
    else if (wants_bool && json_is_integer(v) && json_integer_value(v) / 2 == 0)
        snprintf(out, size, "Write %s.", json_integer_value(v) ? "true" : "false");
    else if (example[0] == '"' && json_is_integer(v))
        snprintf(out, size, "Put it in quotes: \"%" JSON_INTEGER_FORMAT "\".",
                 json_integer_value(v));
    else if (name)
        snprintf(out, size, "For example: \"%s\": %s.%s", name, example,
                 json_is_null(v) ? " To have a default, leave the field out." : "");
    else
        snprintf(out, size, "For example: %s.", example);
}

void field_wrong_type(struct decoding *d, const struct where *at, const char *name,
                      const char *expected, const char *example, const json_t *v)
{
    char shown[FIELD_SHOW_SIZE], hint[512];
    if (example)
        type_hint(name, example, v, hint, sizeof hint);
    field_show(v, shown);
    if (name)
        field_fault(d, at, "wrong_type", example ? hint : NULL, "\"%s\" must be %s, but is %s.",
                    name, expected, shown);
    else
        field_fault(d, at, "wrong_type", example ? hint : NULL, "This must be %s, but is %s.",
                    expected, shown);
}

void field_unknown_word(struct decoding *d, const struct where *at, const struct words *w,
                        const char *given)
{
    char all[512], hint[640], shown[FIELD_SHOW_SIZE];
    words_format(w, "and", all, sizeof all);
    const struct word *near = words_nearest(w, given);
    if (near)
        snprintf(hint, sizeof hint, "Did you mean \"%s\"? This version has %s.", near->name, all);
    else
        snprintf(hint, sizeof hint, "This version has %s.", all);
    field_fault(d, at, "unknown_value", hint, "\"%s\" is not %s that this version knows.",
                field_clip(given, shown), w->what);
}

/* 1 if `name` is one of the space-separated words of `list`. */
static int listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (strncmp(p, name, n) == 0 && (p[n] == ' ' || p[n] == '\0'))
            return 1;
    return 0;
}

static int distance_to(const struct field *f, const char *given)
{
    return listed(f->also, given) ? 0 : words_distance(given, f->name);
}

void field_missing(struct decoding *d, const struct object *o, const struct field *f,
                   const json_t *v, const struct where *at)
{
    const char *meant = NULL, *key;
    json_t *value;
    int best = WORDS_FAR;
    json_object_foreach((json_t *)v, key, value)
    {
        int distance = field_find(o, key) ? WORDS_FAR : distance_to(f, key);
        if (distance < best) {
            best = distance;
            meant = key;
        }
    }
    char hint[512], shown[FIELD_SHOW_SIZE];
    if (meant)
        snprintf(hint, sizeof hint, "There is \"%s\": write it as \"%s\".",
                 field_clip(meant, shown), f->name);
    else if (f->words)
        words_format(f->words, "or", hint + snprintf(hint, 100, "Add \"%s\": one of ", f->name),
                     400);
    else
        snprintf(hint, sizeof hint, "Add, for example, \"%s\": %s.", f->name, f->example);
    if (!meant && f->words)
        strcat(hint, ".");
    field_fault(d, FIELD_WHERE(at, f->name), "required", hint, "\"%s\" is missing: %s.", f->name,
                f->help);
}

/* Which of `o`'s fields `key` may stand for: one that is not given already. */
static const struct field *nearest_field(const struct object *o, const json_t *v, const char *key)
{
    const struct field *best = NULL;
    int best_distance = WORDS_FAR;
    for (size_t i = 0; i < o->count; i++) {
        if (json_object_get(v, o->fields[i].name))
            continue;
        int distance = distance_to(&o->fields[i], key);
        if (distance < best_distance) {
            best_distance = distance;
            best = &o->fields[i];
        }
    }
    return best;
}

static const struct object *kin_with(const struct object *o, const char *key)
{
    for (const struct object *const *k = o->kin; k && *k; k++)
        if (*k != o && (field_find(*k, key)))
            return *k;
    return NULL;
}

static void list_fields(const struct object *o, char *out, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < o->count && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", o->fields[i].name);
}

void field_unknown(struct decoding *d, const struct object *o, const json_t *v, const char *key,
                   const struct where *at)
{
    struct faults *list = d->strict ? d->faults : d->warnings;
    if (list->count == FAULTS_MAX) {
        list->total++;
        return;
    }
    char hint[512], shown[FIELD_SHOW_SIZE], all[400];
    const struct object *kin = kin_with(o, key);
    const struct field *near = nearest_field(o, v, key);
    field_clip(key, shown);
    if (kin)
        snprintf(hint, sizeof hint, "\"%s\" is a field of %s.", shown, kin->what);
    else if (near)
        snprintf(hint, sizeof hint, "Did you mean \"%s\"?", near->name);
    else {
        list_fields(o, all, sizeof all);
        snprintf(hint, sizeof hint, "Its fields are %s.", all);
    }
    if (d->strict)
        field_fault(d, FIELD_WHERE(at, key), "unknown_field", hint, "\"%s\" is not a field of %s.",
                    shown, o->what);
    else
        field_warn(d, FIELD_WHERE(at, key), "unknown_field", hint,
                   "\"%s\" is not a field of %s and is ignored.", shown, o->what);
}

/* "a number above 0 and at most 1000" */
static void expectation(const struct field *f, char *out, size_t size)
{
    char low[32], high[32];
    field_number(f->min, low);
    field_number(f->max, high);
    const char *what = f->kind == FIELD_INT ? "a whole number" : "a number";
    if (f->above_min || f->below_max)
        snprintf(out, size, "%s %s %s and %s %s", what, f->above_min ? "above" : "of at least", low,
                 f->below_max ? "below" : "at most", high);
    else
        snprintf(out, size, "%s from %s to %s", what, low, high);
}

void field_not_a_number(struct decoding *d, const struct field *f, const json_t *v,
                        const struct where *at)
{
    char expected[160], hint[128], shown[FIELD_SHOW_SIZE];
    expectation(f, expected, sizeof expected);
    double x = json_number_value(v);
    if (!json_is_real(v) || x < f->min || x > f->max) {
        field_wrong_type(d, at, f->name, expected, f->example, v);
        return;
    }
    snprintf(hint, sizeof hint, "Write %.0f or %.0f.", floor(x), ceil(x));
    field_fault(d, at, "wrong_type", hint, "\"%s\" must be %s, but is %s.", f->name, expected,
                field_show(v, shown));
}

void field_out_of_range(struct decoding *d, const struct field *f, double x, const json_t *v,
                        const struct where *at)
{
    char expected[160], hint[160], limit[32], shown[FIELD_SHOW_SIZE];
    expectation(f, expected, sizeof expected);
    int low = x <= f->min;
    field_number(low ? f->min : f->max, limit);
    if (low ? f->above_min : f->below_max)
        snprintf(hint, sizeof hint, "Write a number %s %s, such as %s.", low ? "above" : "below",
                 limit, f->example);
    else
        snprintf(hint, sizeof hint, "The nearest that works is %s.", limit);
    field_fault(d, at, "out_of_range", hint, "\"%s\" must be %s, but is %s.", f->name, expected,
                field_show(v, shown));
}

void field_not_object(struct decoding *d, const struct object *o, const json_t *v,
                      const struct where *at)
{
    char hint[448], all[400], shown[FIELD_SHOW_SIZE];
    list_fields(o, all, sizeof all);
    snprintf(hint, sizeof hint, "Its fields are %s.", all);
    field_show(v, shown);
    if (at->up && at->key)
        field_fault(d, at, "wrong_type", hint, "\"%s\" must be an object, but is %s.", at->key,
                    shown);
    else
        field_fault(d, at, "wrong_type", hint, "This must be an object (%s), but is %s.", o->what,
                    shown);
}
