/* text.c: numbers are printed with 9 significant digits, which is what tells two float32 apart. */
#include "daemon/coordinator/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static void comma(struct buf *b)
{
    char last = b->len ? b->data[b->len - 1] : '[';
    if (last != '{' && last != '[' && last != ':')
        buf_add(b, ",", 1);
}

void text_open(struct buf *b, const char *bracket)
{
    comma(b);
    buf_add(b, bracket, 1);
}

void text_close(struct buf *b, const char *bracket)
{
    buf_add(b, bracket, 1);
}

static void escape(struct buf *b, unsigned char c)
{
    char text[8];
    if (c == '"' || c == '\\')
        snprintf(text, sizeof(text), "\\%c", c);
    else
        snprintf(text, sizeof(text), "\\u%04x", c);
    buf_adds(b, text);
}

static void quote(struct buf *b, const char *value)
{
    buf_add(b, "\"", 1);
    for (const char *p = value; *p;) {
        size_t plain = 0;
        while ((unsigned char)p[plain] >= 0x20 && p[plain] != '"' && p[plain] != '\\')
            plain++;
        buf_add(b, p, plain);
        p += plain;
        if (*p)
            escape(b, (unsigned char)*p++);
    }
    buf_add(b, "\"", 1);
}

void text_key(struct buf *b, const char *key)
{
    comma(b);
    quote(b, key);
    buf_add(b, ":", 1);
}

void text_string(struct buf *b, const char *key, const char *value)
{
    text_key(b, key);
    quote(b, value ? value : "");
}

void text_int(struct buf *b, const char *key, int64_t value)
{
    char digits[24], *p = digits + sizeof(digits);
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    text_key(b, key);
    do {
        *--p = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0)
        *--p = '-';
    buf_add(b, p, (size_t)(digits + sizeof(digits) - p));
}

void text_number(struct buf *b, const char *key, double value)
{
    char text[40];
    if (isnan(value))
        snprintf(text, sizeof(text), "\"nan\"");
    else if (isinf(value))
        snprintf(text, sizeof(text), value > 0 ? "\"inf\"" : "\"-inf\"");
    else
        snprintf(text, sizeof(text), "%.9g", value);
    text_key(b, key);
    buf_adds(b, text);
}

/* The steps of a job come many to a second, and breaking a time down is slow: only its milliseconds
 * are written anew while the second stays the same. */
static const char *format_time(int64_t wall_us)
{
    static char text[CLOCK_TEXT_SIZE];
    static int64_t second = -1;
    static const size_t at = sizeof("2026-11-30T08:45:00.") - 1;
    if (wall_us / 1000000 != second || wall_us < 0) {
        clock_format(wall_us, text);
        second = strlen(text) == at + 4 ? wall_us / 1000000 : -1;
        return text;
    }
    int64_t ms = wall_us / 1000 % 1000;
    text[at] = (char)('0' + ms / 100);
    text[at + 1] = (char)('0' + ms / 10 % 10);
    text[at + 2] = (char)('0' + ms % 10);
    return text;
}

void text_time(struct buf *b, const char *key, int64_t wall_us)
{
    if (wall_us)
        text_string(b, key, format_time(wall_us));
    else
        text_raw(b, key, NULL);
}

void text_raw(struct buf *b, const char *key, const char *json)
{
    text_key(b, key);
    buf_adds(b, json && json[0] ? json : "null");
}
