#include "spec/field.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "spec/field_say.h"

#define EXACT_MAX 9007199254740992.0 /* 2^53: whole numbers up to here are exact in a double */

const struct field *field_find(const struct object *o, const char *name)
{
    for (size_t i = 0; i < o->count; i++)
        if (strcmp(o->fields[i].name, name) == 0)
            return &o->fields[i];
    return NULL;
}

int field_whole(const json_t *v, int64_t *ret)
{
    if (json_is_integer(v)) {
        *ret = json_integer_value(v);
        return 1;
    }
    if (!json_is_real(v))
        return 0;
    double x = json_real_value(v);
    if (floor(x) != x || fabs(x) > EXACT_MAX)
        return 0;
    *ret = (int64_t)x;
    return 1;
}

static void store_whole(const struct field *f, void *base, int64_t value)
{
    char *target = (char *)base + f->offset;
    if (f->size == sizeof(int64_t)) {
        memcpy(target, &value, sizeof value);
    } else if (f->size == sizeof(int32_t)) {
        int32_t narrow = (int32_t)(uint32_t)value; /* also for uint32_t above INT32_MAX */
        memcpy(target, &narrow, sizeof narrow);
    } else {
        BUG("field %s: no whole number of %zu bytes", f->name, f->size);
    }
}

static char *text_at(const struct field *f, const void *base)
{
    char *text;
    memcpy(&text, (const char *)base + f->offset, sizeof text);
    return text;
}

static void set_default(const struct field *f, void *base)
{
    switch (f->kind) {
    case FIELD_INT:
    case FIELD_BOOL:
    case FIELD_ENUM: store_whole(f, base, (int64_t)f->fallback); break;
    case FIELD_NUMBER: memcpy((char *)base + f->offset, &f->fallback, sizeof f->fallback); break;
    case FIELD_TEXT:
        if (f->fallback_text && !text_at(f, base)) {
            char *copy = mem_strdup(f->fallback_text);
            memcpy((char *)base + f->offset, &copy, sizeof copy);
        }
        break;
    case FIELD_OBJECT: field_set_defaults(f->object, (char *)base + f->offset); break;
    case FIELD_CUSTOM:
    case FIELD_FIXED:
    case FIELD_KNOWN: break;
    }
}

void field_set_defaults(const struct object *o, void *base)
{
    for (size_t i = 0; i < o->count; i++)
        set_default(&o->fields[i], base);
}

static void decode_whole(struct decoding *d, const struct field *f, const json_t *v,
                         const struct where *at, void *base)
{
    int64_t value;
    if (!field_whole(v, &value))
        field_not_a_number(d, f, v, at);
    else if ((double)value < f->min || (double)value > f->max)
        field_out_of_range(d, f, (double)value, v, at);
    else
        store_whole(f, base, value);
}

static void decode_number(struct decoding *d, const struct field *f, const json_t *v,
                          const struct where *at, void *base)
{
    if (!json_is_number(v)) {
        field_not_a_number(d, f, v, at);
        return;
    }
    double x = json_number_value(v);
    int low = f->above_min ? x <= f->min : x < f->min;
    int high = f->below_max ? x >= f->max : x > f->max;
    if (low || high)
        field_out_of_range(d, f, x, v, at);
    else
        memcpy((char *)base + f->offset, &x, sizeof x);
}

static void decode_text(struct decoding *d, const struct field *f, const json_t *v,
                        const struct where *at, void *base)
{
    const char *text = json_string_value(v);
    if (!text) {
        field_wrong_type(d, at, f->name, "a string", f->example, v);
        return;
    }
    size_t n = json_string_length(v);
    if (strlen(text) != n) {
        field_fault(d, at, "invalid", NULL, "\"%s\" has a NUL character in it.", f->name);
    } else if ((double)n < f->min) {
        char hint[256];
        snprintf(hint, sizeof hint, "For example: \"%s\": %s.", f->name, f->example);
        field_fault(d, at, "out_of_range", hint, "\"%s\" is empty.", f->name);
    } else if ((double)n > f->max) {
        field_fault(d, at, "out_of_range", NULL, "\"%s\" may have at most %.0f bytes, but has %zu.",
                    f->name, f->max, n);
    } else {
        char *copy = mem_strdup(text);
        free(text_at(f, base));
        memcpy((char *)base + f->offset, &copy, sizeof copy);
        if (f->check)
            f->check(d, at, text);
    }
}

static void decode_enum(struct decoding *d, const struct field *f, const json_t *v,
                        const struct where *at, void *base)
{
    const char *text = json_string_value(v);
    if (!text) {
        char expected[128];
        snprintf(expected, sizeof expected, "a string with the name of %s", f->words->what);
        field_wrong_type(d, at, f->name, expected, f->example, v);
        return;
    }
    const struct word *word = words_find(f->words, text);
    if (word)
        store_whole(f, base, word->value);
    else
        field_unknown_word(d, at, f->words, text);
}

static void decode_fixed(struct decoding *d, const struct field *f, const json_t *v,
                         const struct where *at)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    char hint[256];
    snprintf(hint, sizeof hint, "Write \"%s\": %s, or leave it out.", f->name, f->example);
    if (!text || strcmp(text, f->example) != 0)
        field_fault(d, at, "unsupported", hint, "\"%s\" can only be %s in this version: %s.",
                    f->name, f->example, f->help);
    free(text);
}

void field_decode(struct decoding *d, const struct field *f, const json_t *v,
                  const struct where *at, void *base)
{
    switch (f->kind) {
    case FIELD_INT: decode_whole(d, f, v, at, base); break;
    case FIELD_NUMBER: decode_number(d, f, v, at, base); break;
    case FIELD_BOOL:
        if (json_is_boolean(v))
            store_whole(f, base, json_is_true(v));
        else
            field_wrong_type(d, at, f->name, "true or false", f->example, v);
        break;
    case FIELD_TEXT: decode_text(d, f, v, at, base); break;
    case FIELD_ENUM: decode_enum(d, f, v, at, base); break;
    case FIELD_OBJECT: field_decode_object(d, f->object, v, at, (char *)base + f->offset); break;
    case FIELD_CUSTOM: f->decode(d, v, at, base); break;
    case FIELD_FIXED: decode_fixed(d, f, v, at); break;
    case FIELD_KNOWN: break;
    }
}

static void report_unknown(struct decoding *d, const struct object *o, const json_t *v,
                           const struct where *at)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        if (!field_find(o, key))
            field_unknown(d, o, v, key, at);
    }
}

void field_decode_object(struct decoding *d, const struct object *o, const json_t *v,
                         const struct where *at, void *base)
{
    field_set_defaults(o, base);
    if (!json_is_object(v)) {
        field_not_object(d, o, v, at);
        return;
    }
    size_t met = 0;
    for (size_t i = 0; i < o->count; i++) {
        const struct field *f = &o->fields[i];
        const json_t *member = json_object_get(v, f->name);
        met += member != NULL;
        if (member)
            field_decode(d, f, member, FIELD_WHERE(at, f->name), base);
        else if (f->required)
            field_missing(d, o, f, v, at);
    }
    if (met < json_object_size(v))
        report_unknown(d, o, v, at);
}

/* 1 if `inner` is `outer` or lies below it. */
static int lies_in(const char *inner, const char *outer)
{
    size_t n = strlen(outer);
    return strncmp(inner, outer, n) == 0 && (inner[n] == '/' || inner[n] == '\0');
}

int field_clean(const struct decoding *d, const char *pointer)
{
    for (size_t i = 0; i < d->faults->count; i++) {
        const char *fault = d->faults->items[i].pointer;
        if (lies_in(fault, pointer) || lies_in(pointer, fault))
            return 0;
    }
    return d->faults->count == d->faults->total; /* else there are some that are not listed */
}
