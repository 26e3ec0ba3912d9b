/* data_text.c: numbers out of text, and text into sentences and notes. */
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "trainer/data_parts.h"

#define QUOTE_MOST 40 /* bytes of text that a sentence repeats */

/* Up to 15 digits and a power of ten up to 22 are exact in a double, and so is one product or
 * quotient of them rounded once: most numbers of a table take this way. */
static int parse_short(const char *p, const char *end, double *ret)
{
    static const double TENS[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                  1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    int negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    if (end - p > 16)
        return 0;
    long long digits = 0;
    int count = 0, after_point = -1;
    for (; p < end; p++) {
        if (*p == '.' && after_point < 0) {
            after_point = 0;
            continue;
        }
        if (*p < '0' || *p > '9')
            return 0;
        digits = digits * 10 + (*p - '0');
        count++;
        after_point += after_point >= 0;
    }
    if (count == 0 || count > 15)
        return 0;
    double value = (double)digits / TENS[after_point > 0 ? after_point : 0];
    *ret = negative ? -value : value;
    return 1;
}

/* "nan", "inf" and "infinity" in any case, with a sign: numbers, but not finite ones. */
static int parse_word(const char *p, size_t n, double *ret)
{
    int negative = n > 0 && *p == '-';
    if (n > 0 && (*p == '-' || *p == '+')) {
        p++;
        n--;
    }
    if (n == 3 && strncasecmp(p, "nan", 3) == 0)
        *ret = (double)NAN;
    else if ((n == 3 && strncasecmp(p, "inf", 3) == 0) ||
             (n == 8 && strncasecmp(p, "infinity", 8) == 0))
        *ret = negative ? -HUGE_VAL : HUGE_VAL;
    else
        return 0;
    return 1;
}

/* What strtod is given is decimal, whole and short: no hexadecimal, no locale's group marks. */
static int parse_long(const char *p, size_t n, double *ret)
{
    char text[512];
    if (n == 0 || n >= sizeof text)
        return 0;
    memcpy(text, p, n);
    text[n] = 0;
    if (strspn(text, "0123456789+-.eE") < n)
        return 0;
    char *end;
    double value = strtod(text, &end);
    if (end != text + n)
        return 0;
    *ret = value;
    return 1;
}

int data_parse_number(const char *text, size_t n, double *ret)
{
    while (n > 0 && (*text == ' ' || *text == '\t')) {
        text++;
        n--;
    }
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        n--;
    return parse_short(text, text + n, ret) || parse_word(text, n, ret) || parse_long(text, n, ret);
}

static size_t utf8_cut(const char *text, size_t n)
{
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

char *data_quote(const char *text, size_t n, char out[DATA_QUOTE_SIZE])
{
    size_t shown = n > QUOTE_MOST ? utf8_cut(text, QUOTE_MOST) : n;
    json_t *valid = json_stringn(text, shown);
    char *p = out;
    *p++ = '"';
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f || (c >= 0x80 && !valid))
            p += snprintf(p, 5, "\\x%02x", c);
        else
            *p++ = (char)c;
    }
    json_decref(valid);
    snprintf(p, 5, "\"%s", shown < n ? "..." : "");
    return out;
}

void data_note(struct buf *note, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    buf_addf(note, "%s%s", note->len ? "; " : "", text);
}
