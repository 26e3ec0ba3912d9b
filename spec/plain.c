/* plain.c: objects, arrays, words, numbers of up to NUMBER_MAX characters and strings without
 * escapes, read in one pass.
 *
 * Jansson's parser goes through two calls and a copy for each byte, which made it a third of what
 * a submission costs. This one makes the same values (RFC 8259) with Jansson's own constructors and
 * gives up on whatever is not plain: it refuses nothing and words nothing. A fuzz target
 * (tests/fuzz/spec_read.c) holds the two against each other.
 */
#include "spec/plain.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define NUMBER_MAX 40 /* characters */
#define DIGITS_MAX 18 /* of an integer: they fit an int64_t */

struct in {
    const char *at, *end;
};

static json_t *read_value(struct in *in);

static void skip_space(struct in *in)
{
    while (in->at < in->end &&
           (*in->at == ' ' || *in->at == '\n' || *in->at == '\r' || *in->at == '\t'))
        in->at++;
}

/* 1 and past it, if `c` is next after spaces. */
static int take(struct in *in, char c)
{
    skip_space(in);
    if (in->at == in->end || *in->at != c)
        return 0;
    in->at++;
    return 1;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* ---- strings ---- */

/* What stands between the quotes, of which the first is behind us; 0 if it is not plain. */
static int take_text(struct in *in, const char **ret, size_t *ret_len, int *ret_ascii)
{
    const char *p = in->at;
    unsigned char all = 0;
    while (p < in->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        all |= (unsigned char)*p++;
    if (p == in->end || *p != '"')
        return 0;
    *ret = in->at;
    *ret_len = (size_t)(p - in->at);
    *ret_ascii = all < 0x80;
    in->at = p + 1;
    return 1;
}

static json_t *read_string(struct in *in)
{
    const char *text;
    size_t len;
    int ascii;
    if (!take_text(in, &text, &len, &ascii))
        return NULL;
    return ascii ? json_stringn_nocheck(text, len) : json_stringn(text, len);
}

/* ---- numbers ---- */

static const char *skip_digits(const char *p, const char *end)
{
    while (p < end && is_digit(*p))
        p++;
    return p;
}

/* The end of a number's fraction and exponent, which may both be missing; NULL: wrong. */
static const char *skip_rest(const char *p, const char *end)
{
    const char *digits;
    if (p < end && *p == '.') {
        digits = p + 1;
        p = skip_digits(digits, end);
        if (p == digits)
            return NULL;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        digits = p + 1;
        digits += digits < end && (*digits == '+' || *digits == '-');
        p = skip_digits(digits, end);
        if (p == digits)
            return NULL;
    }
    return p;
}

static json_t *integer(const char *digits, const char *end, int negative)
{
    json_int_t value = 0;
    if (end - digits > DIGITS_MAX)
        return NULL;
    for (; digits < end; digits++)
        value = value * 10 + (*digits - '0');
    return json_integer(negative ? -value : value);
}

static json_t *real(const char *text, const char *end)
{
    char copy[NUMBER_MAX + 1];
    size_t n = (size_t)(end - text);
    if (n > NUMBER_MAX)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    char *stop = NULL;
    double value = strtod(copy, &stop);
    return *stop == '\0' ? json_real(value) : NULL; /* NULL for what is too large, too */
}

static json_t *read_number(struct in *in)
{
    const char *start = in->at;
    const char *digits = start + (*start == '-');
    const char *whole = skip_digits(digits, in->end);
    const char *end = skip_rest(whole, in->end);
    if (whole == digits || (*digits == '0' && whole - digits > 1) || !end)
        return NULL;
    in->at = end;
    return end == whole ? integer(digits, whole, digits > start) : real(start, end);
}

/* ---- words, lists, objects ---- */

/* What follows a word is looked at by who asked for it. */
static json_t *read_word(struct in *in)
{
    static const struct {
        const char *text;
        size_t n;
        json_t *(*make)(void);
    } words[] = {{"true", 4, json_true}, {"false", 5, json_false}, {"null", 4, json_null}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if ((size_t)(in->end - in->at) < words[i].n ||
            memcmp(in->at, words[i].text, words[i].n) != 0)
            continue;
        in->at += words[i].n;
        return words[i].make();
    }
    return NULL;
}

static json_t *read_array(struct in *in)
{
    json_auto_t *array = json_array();
    if (take(in, ']'))
        return json_incref(array);
    do {
        if (json_array_append_new(array, read_value(in)) < 0)
            return NULL;
    } while (take(in, ','));
    return take(in, ']') ? json_incref(array) : NULL;
}

/* Of a key that is there already the object would keep the later value: it does not grow. */
static int read_member(struct in *in, json_t *object)
{
    const char *key;
    size_t len, before = json_object_size(object);
    int ascii;
    if (!take(in, '"') || !take_text(in, &key, &len, &ascii) || !ascii || !take(in, ':'))
        return -1;
    if (json_object_setn_new_nocheck(object, key, len, read_value(in)) < 0)
        return -1;
    return json_object_size(object) > before ? 0 : -1;
}

static json_t *read_object(struct in *in)
{
    json_auto_t *object = json_object();
    if (take(in, '}'))
        return json_incref(object);
    do {
        if (read_member(in, object) < 0)
            return NULL;
    } while (take(in, ','));
    return take(in, '}') ? json_incref(object) : NULL;
}

static json_t *read_value(struct in *in)
{
    skip_space(in);
    if (in->at == in->end)
        return NULL;
    switch (*in->at) {
    case '{': in->at++; return read_object(in);
    case '[': in->at++; return read_array(in);
    case '"': in->at++; return read_string(in);
    default: return *in->at == '-' || is_digit(*in->at) ? read_number(in) : read_word(in);
    }
}

json_t *plain_read(const char *text, size_t n)
{
    struct in in = {text, text + n};
    skip_space(&in);
    if (in.at == in.end || (*in.at != '{' && *in.at != '['))
        return NULL;
    json_auto_t *doc = read_value(&in);
    skip_space(&in);
    return doc && in.at == in.end ? json_incref(doc) : NULL;
}
