#include "cli/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "base/clock.h"

/* Length of the valid UTF-8 character at p (n bytes left), 0 if there is none; its code in *ret. */
static size_t decode(const unsigned char *p, size_t n, uint32_t *ret)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (p[0] < 0x80) {
        *ret = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xf0 && p[0] < 0xf8 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc0 ? 2 : 0;
    if (len == 0 || len > n || p[0] >= 0xf8)
        return 0;
    uint32_t code = p[0] & (0xffU >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[len] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    *ret = code;
    return len;
}

static int is_hidden(uint32_t c)
{
    return (c >= 0x80 && c < 0xa0)         /* C1: some terminals take U+009B as ESC [ */
           || (c >= 0x200b && c <= 0x200f) /* zero width, direction marks */
           || (c >= 0x2028 && c <= 0x202e) /* line separators, embeddings, overrides */
           || (c >= 0x2060 && c <= 0x206f) /* isolates */
           || c == 0x061c || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
           (c >= 0xe0000 && c <= 0xe007f);
}

static void escape_control(struct buf *out, unsigned char c)
{
    switch (c) {
    case '\n': buf_adds(out, "\\n"); break;
    case '\t': buf_adds(out, "\\t"); break;
    case '\r': buf_adds(out, "\\r"); break;
    case 0x1b: buf_adds(out, "\\e"); break;
    default: buf_addf(out, "\\x%02x", c);
    }
}

void text_escape(struct buf *out, const char *bytes, size_t n, enum text_mode mode)
{
    const unsigned char *p = (const unsigned char *)bytes;
    const unsigned char *end = p + n;
    buf_reserve(out, n); /* so that data is never NULL */
    while (p < end) {
        uint32_t code = 0;
        size_t len = decode(p, (size_t)(end - p), &code);
        int passes = mode == TEXT_LOG && (code == '\n' || code == '\t');
        if (len == 0)
            buf_addf(out, "\\x%02x", *p);
        else if ((code < 0x20 || code == 0x7f) && !passes)
            escape_control(out, *p);
        else if (is_hidden(code))
            buf_addf(out, "\\u{%x}", code);
        else
            buf_add(out, p, len);
        p += len ? len : 1;
    }
}

size_t text_incomplete(const char *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = p[n - back];
        if ((c & 0xc0) == 0x80)
            continue;
        size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        return need > back ? back : 0;
    }
    return 0;
}

static int width_of(uint32_t code)
{
    int w = wcwidth((wchar_t)code);
    return w < 0 ? 1 : w;
}

int text_width(const char *s)
{
    int width = 0;
    size_t n = strlen(s);
    while (n > 0) {
        uint32_t code = 0;
        size_t len = decode((const unsigned char *)s, n, &code);
        width += len ? width_of(code) : 1;
        s += len ? len : 1;
        n -= len ? len : 1;
    }
    return width;
}

void text_cut(struct buf *out, const char *s, int width)
{
    if (width <= 0)
        return;
    if (text_width(s) <= width) {
        buf_adds(out, s);
        return;
    }
    int used = 0;
    size_t n = strlen(s);
    while (n > 0) {
        uint32_t code = 0;
        size_t len = decode((const unsigned char *)s, n, &code);
        int w = len ? width_of(code) : 1;
        if (used + w > width - 1)
            break;
        used += w;
        buf_add(out, s, len ? len : 1);
        s += len ? len : 1;
        n -= len ? len : 1;
    }
    buf_adds(out, "…");
}

void text_duration(struct buf *out, double seconds)
{
    if (!(seconds >= 0) || seconds > 1e12) {
        buf_adds(out, "?");
        return;
    }
    int64_t s = (int64_t)(seconds + 0.5);
    if (seconds < 9.95)
        buf_addf(out, "%.1f s", seconds);
    else if (s < 60)
        buf_addf(out, "%d s", (int)s);
    else if (s < 3600)
        buf_addf(out, "%d:%02d", (int)(s / 60), (int)(s % 60));
    else if (s < 48 * 3600)
        buf_addf(out, "%d:%02d:%02d", (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
    else
        buf_addf(out, "%lld d %d h", (long long)(s / 86400), (int)(s / 3600 % 24));
}

static void scaled(struct buf *out, double value, const char *unit)
{
    buf_addf(out, "%.*f%s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, unit);
}

void text_count(struct buf *out, double value)
{
    static const char *const units[] = {"k", "M", "G", "T"};
    if (!(value >= 0) || value > 1e15) {
        buf_addf(out, "%g", value);
        return;
    }
    if (value < 999.5) {
        buf_addf(out, "%.0f", value);
        return;
    }
    size_t i = 0;
    for (value /= 1000; value >= 999.5 && i < 3; i++)
        value /= 1000;
    scaled(out, value, units[i]);
}

void text_bytes(struct buf *out, double bytes)
{
    static const char *const units[] = {" KiB", " MiB", " GiB", " TiB"};
    if (!(bytes >= 1024)) {
        buf_addf(out, "%.0f B", bytes);
        return;
    }
    size_t i = 0;
    for (bytes /= 1024; bytes >= 999.5 && i < 3; i++)
        bytes /= 1024;
    scaled(out, bytes, units[i]);
}

int64_t text_parse_time(const char *s)
{
    struct tm tm = {0};
    const char *p = s ? strptime(s, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (!p)
        return -1;
    int64_t us = (int64_t)timegm(&tm) * 1000000;
    if (*p == '.') {
        int64_t unit = 100000;
        for (p++; *p >= '0' && *p <= '9'; p++, unit /= 10)
            us += (*p - '0') * unit;
    }
    return strcmp(p, "Z") == 0 ? us : -1;
}
