/* data_npy.c: numpy's array format: "\x93NUMPY", version, length of the header, the header as a
 * Python dictionary with descr, fortran_order and shape, then the numbers.
 * Source: numpy.lib.format, "NPY format", versions 1.0 to 3.0. */
#include <inttypes.h>
#include <string.h>

#include "trainer/data_parts.h"

#define HEADER_MOST 65535 /* what version 1 can say; numpy itself reads no more than 10,000 */
#define DIMS_MOST   32    /* numpy's own limit */

struct header {
    const char *at; /* what is not yet read; ends with NUL */
    char descr[16];
    int fortran, dims;
    uint64_t size[DIMS_MOST];
    int has_descr, has_order, has_shape;
    int of_records; /* descr is a list */
};

/* ---- the dictionary ---- */

static void skip_spaces(struct header *h)
{
    while (*h->at == ' ' || *h->at == '\n')
        h->at++;
}

static int take(struct header *h, char c)
{
    skip_spaces(h);
    if (*h->at != c)
        return 0;
    h->at++;
    return 1;
}

static int take_word(struct header *h, const char *word)
{
    size_t n = strlen(word);
    skip_spaces(h);
    if (strncmp(h->at, word, n) != 0)
        return 0;
    h->at += n;
    return 1;
}

/* 'text' or "text", without escapes. */
static int take_text(struct header *h, char *out, size_t room)
{
    skip_spaces(h);
    char quote = *h->at;
    size_t n = 0;
    if (quote != '\'' && quote != '"')
        return 0;
    for (h->at++; *h->at && *h->at != quote && *h->at != '\\' && n + 1 < room; h->at++)
        out[n++] = *h->at;
    out[n] = '\0';
    if (*h->at != quote)
        return 0;
    h->at++;
    return 1;
}

static int take_size(struct header *h, uint64_t *ret)
{
    skip_spaces(h);
    uint64_t value = 0;
    const char *start = h->at;
    for (; *h->at >= '0' && *h->at <= '9'; h->at++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*h->at - '0'), &value))
            return 0;
    }
    *ret = value;
    return h->at > start;
}

/* (), (3,) or (3, 4) with or without a last comma. */
static int take_shape(struct header *h)
{
    if (!take(h, '('))
        return 0;
    while (!take(h, ')')) {
        if (h->dims == DIMS_MOST || !take_size(h, &h->size[h->dims]))
            return 0;
        h->dims++;
        if (!take(h, ','))
            return h->dims > 1 && take(h, ')');
    }
    return 1;
}

static int take_member(struct header *h)
{
    char key[16];
    if (!take_text(h, key, sizeof key) || !take(h, ':'))
        return 0;
    if (strcmp(key, "descr") == 0 && !h->has_descr) {
        h->of_records = take(h, '[');
        return h->has_descr = take_text(h, h->descr, sizeof h->descr);
    }
    if (strcmp(key, "shape") == 0 && !h->has_shape)
        return h->has_shape = take_shape(h);
    if (strcmp(key, "fortran_order") != 0 || h->has_order)
        return 0;
    h->fortran = take_word(h, "True");
    return h->has_order = h->fortran || take_word(h, "False");
}

static int take_dictionary(struct header *h)
{
    if (!take(h, '{'))
        return 0;
    while (!take(h, '}')) {
        if (!take_member(h))
            return 0;
        if (!take(h, ','))
            return take(h, '}') && h->has_descr && h->has_order && h->has_shape;
    }
    return h->has_descr && h->has_order && h->has_shape;
}

/* ---- what it means ---- */

static int check_kind(const char *name, const struct header *h, struct err *e)
{
    const char *kind = h->has_descr && h->descr[0] ? h->descr + 1 : "";
    if (h->of_records)
        return err_set(e, ERR_INVALID,
                       "%s is an array of records; save its numbers as a plain array", name);
    if (*kind == 'O')
        return err_set(e, ERR_INVALID,
                       "%s is an array of Python objects, which only Python can read; save it with "
                       "a number for its dtype",
                       name);
    return 0;
}

static int number_of(const char *kind, enum number_type *ret, int *ret_booleans)
{
    static const struct {
        char kind[3];
        enum number_type type;
    } TYPES[] = {{"f4", NUMBER_F32}, {"f8", NUMBER_F64}, {"i1", NUMBER_I8}, {"i2", NUMBER_I16},
                 {"i4", NUMBER_I32}, {"i8", NUMBER_I64}, {"u1", NUMBER_U8}, {"u2", NUMBER_U16},
                 {"u4", NUMBER_U32}, {"u8", NUMBER_U64}, {"b1", NUMBER_U8}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (strcmp(TYPES[i].kind, kind) == 0) {
            *ret = TYPES[i].type;
            *ret_booleans = kind[0] == 'b';
            return 1;
        }
    }
    return 0;
}

static int set_type(struct data_column *c, const struct header *h, struct err *e)
{
    char order = h->descr[0];
    int known =
        order && strchr("<>|=", order) && number_of(h->descr + 1, &c->type, &c->of_booleans);
    if (!known || (order == '|' && number_width(c->type) > 1)) {
        char quoted[DATA_QUOTE_SIZE];
        return err_set(e, ERR_INVALID,
                       "%s: its dtype %s is none that can be read: f4, f8, i1, i2, i4, i8, u1, u2, "
                       "u4, u8 and b1, with < or > before it",
                       c->stream->name, data_quote(h->descr, strlen(h->descr), quoted));
    }
    c->swapped = number_width(c->type) > 1 && order != '=' &&
                 (order == '>' ? DATA_SWAPPED_BIG : DATA_SWAPPED_LITTLE);
    return 0;
}

/* Column by column is the same as row by row where only one dimension has more than one place. */
static int check_order(const char *name, const struct header *h, struct err *e)
{
    int wide = 0;
    for (int i = 0; i < h->dims; i++)
        wide += h->size[i] > 1;
    if (!h->fortran || wide <= 1)
        return 0;
    return err_set(e, ERR_INVALID,
                   "%s is in Fortran order, so that an item is scattered over the file; save it "
                   "with numpy.ascontiguousarray",
                   name);
}

static int use_header(struct data_column *c, char *text, struct err *e)
{
    struct header h = {.at = text};
    const char *name = c->stream->name;
    int whole = take_dictionary(&h);
    skip_spaces(&h);
    int r = check_kind(name, &h, e);
    if (r < 0)
        return r;
    if (!whole || *h.at)
        return err_set(e, ERR_INVALID,
                       "%s: its header is no dictionary of \"descr\", \"fortran_order\" and "
                       "\"shape\", as numpy writes it",
                       name);
    r = set_type(c, &h, e);
    if (r == 0)
        r = check_order(name, &h, e);
    if (r == 0 && h.dims == 0)
        r = err_set(e, ERR_INVALID, "%s is a single number, not an array of items", name);
    return r < 0 ? r : data_column_count(c, h.size, h.dims, e);
}

static int header_length(struct data_stream *s, uint64_t *ret, struct err *e)
{
    unsigned char b[12];
    uint64_t got;
    int r = data_stream_read(s, b, 8, &got, e);
    if (r < 0)
        return r;
    if (got == 0)
        return err_set(e, ERR_INVALID, "%s is empty", s->name);
    if (got < 8 || memcmp(b, "\x93NUMPY", 6) != 0)
        return err_set(e, ERR_INVALID,
                       "%s is not a file of numpy.save: it does not start with \"\\x93NUMPY\"",
                       s->name);
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        return err_set(e, ERR_INVALID, "%s has version %d.%d; versions 1.0 to 3.0 can be read",
                       s->name, b[6], b[7]);
    uint64_t width = b[6] == 1 ? 2 : 4, length = 0;
    r = data_stream_exactly(s, b + 8, width, "header", e);
    for (uint64_t i = width; i > 0; i--)
        length = length << 8 | b[8 + i - 1];
    *ret = length;
    return r;
}

static int open_npy(struct data_stream *s, struct data_column *ret, struct err *e)
{
    static const char too_long[] =
        "%s: its header is said to have %" PRIu64 " bytes; at most %d can be right";
    char text[HEADER_MOST + 1];
    uint64_t length = 0;
    *ret = (struct data_column){.stream = s};
    int r = header_length(s, &length, e);
    if (r < 0)
        return r;
    if (length > HEADER_MOST)
        return err_set(e, ERR_TOO_LARGE, too_long, s->name, length, HEADER_MOST);
    r = data_stream_exactly(s, text, length, "header", e);
    if (r < 0)
        return r;
    text[length] = '\0';
    if (strlen(text) < length)
        return err_set(e, ERR_INVALID, "%s: there are NUL bytes in its header", s->name);
    return use_header(ret, text, e);
}

int data_read_npy(struct data_stream *xs, struct data_stream *ys, const struct data_source *source,
                  const struct data_need *need, struct data_out *o, struct data_split *ret,
                  struct err *e)
{
    struct data_column x, y;
    int r = open_npy(xs, &x, e);
    if (r == 0)
        r = open_npy(ys, &y, e);
    return r < 0 ? r : data_read_columns(&x, &y, source, need, o, ret, e);
}
