/* data_csv.c: tables of numbers, one sample a row, one of the columns its label.
 *
 * libcsv splits the text (RFC 4180: quotes, line ends of any kind, blank lines ignored) in chunks
 * of 64 KiB; each field is converted as it comes and each whole row, features and then the label,
 * goes where prepared data goes. Held at any time: one row of numbers, one field of text (at most
 * FIELD_MAX), one chunk.
 *
 * With "header": "auto" line 1 is a header when some field in it is neither a number nor a mark of
 * a missing value. What was decided, and what was done about missing values, is noted.
 */
#include <csv.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "trainer/data_parts.h"

#define CHUNK     (64u << 10)
#define FIELD_MAX (1u << 20)

enum first_row { FIRST_DROP, FIRST_DECIDE, FIRST_PASSED };

struct csv_reader {
    struct csv_parser parser;
    const char *name;
    const struct data_source *source;
    const struct data_need *need;
    struct data_out *out;
    struct buf *note;
    double *row; /* numbers of this row, NaN for missing ones; at most feature_size + 1 are kept */
    int64_t row_room;
    int64_t column;   /* fields of this row so far */
    int64_t columns;  /* of every row; 0 before the first */
    int64_t label_at; /* column of the label, from 0 */
    int64_t samples;
    uint64_t first_at;                    /* of the first row, in the source */
    int64_t missing;                      /* in this row */
    int64_t missing_rows, missing_values; /* dropped or filled so far */
    struct buf first_missing;             /* where, for the note */
    int full;                             /* the source's limit is reached */
    int64_t line;                         /* from 1 */
    int64_t row_line;                     /* where this row starts */
    int after_cr;
    enum first_row first;
    int has_header;     /* while FIRST_DECIDE: a field was a word */
    struct err held;    /* while FIRST_DECIDE: the fault if this is no header */
    struct err failure; /* code 0: none yet */
};

static int is_missing_mark(const char *text, size_t n)
{
    static const char *const MARKS[] = {"",    "?",    "-",   ".",    "na",
                                        "n/a", "#n/a", "nan", "null", "none"};
    while (n > 0 && (*text == ' ' || *text == '\t')) {
        text++;
        n--;
    }
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        n--;
    for (size_t i = 0; i < ARRAY_LEN(MARKS); i++) {
        if (strlen(MARKS[i]) == n && strncasecmp(MARKS[i], text, n) == 0)
            return 1;
    }
    return 0;
}

/* What else may help the reader of "... is not a number". */
static const char *hint(const struct csv_reader *c, const char *text, size_t n)
{
    if (memchr(text, ';', n) || memchr(text, '\t', n))
        return "; columns are separated by commas";
    if (c->columns == 0 && c->source->header == CSV_HEADER_NO)
        return "; if this line is a header, say \"header\": true";
    return "";
}

static void bad_field(struct csv_reader *c, const char *text, size_t n, const char *what,
                      const char *more)
{
    char quoted[DATA_QUOTE_SIZE];
    struct err *e = c->first == FIRST_DECIDE ? &c->held : &c->failure;
    if (e->code == 0)
        err_set(e, ERR_INVALID, "%s line %" PRId64 ", column %" PRId64 ": %s %s%s", c->name,
                c->row_line, c->column, data_quote(text, n, quoted), what, more);
}

/* A word in line 1 makes it the header; the note repeats the first one. */
static void found_word(struct csv_reader *c, const char *text, size_t n)
{
    char quoted[DATA_QUOTE_SIZE];
    if (c->has_header)
        return;
    c->has_header = 1;
    data_note(c->note,
              "%s: line %" PRId64 " was taken as the header, since %s in column %" PRId64
              " is not a number",
              c->name, c->row_line, data_quote(text, n, quoted), c->column);
}

/* The row grows with what the file has, not with what the model asks for. */
static void keep_number(struct csv_reader *c, double value)
{
    if (c->column - 1 > c->need->feature_size)
        return; /* too many columns: only their count matters now */
    if (c->column > c->row_room) {
        int64_t room = c->row_room ? 2 * c->row_room : 64;
        c->row = mem_realloc(c->row, (size_t)room * sizeof *c->row);
        memset(c->row + c->row_room, 0, (size_t)(room - c->row_room) * sizeof *c->row);
        c->row_room = room;
    }
    c->row[c->column - 1] = value;
}

static void take_missing(struct csv_reader *c, const char *text, size_t n)
{
    char quoted[DATA_QUOTE_SIZE];
    if (c->source->missing == CSV_MISSING_ERROR) {
        bad_field(c, text, n, "stands for a missing value",
                  "; \"missing\": \"drop\" leaves such rows out, \"fill\" puts a number there");
        return;
    }
    if (c->first_missing.len == 0)
        buf_addf(&c->first_missing, "%s in line %" PRId64 ", column %" PRId64,
                 data_quote(text, n, quoted), c->row_line, c->column);
    c->missing++;
    keep_number(c, (double)NAN);
}

static void take_number(struct csv_reader *c, const char *text, size_t n)
{
    double value;
    if (is_missing_mark(text, n)) {
        take_missing(c, text, n);
    } else if (!data_parse_number(text, n, &value)) {
        if (c->first == FIRST_DECIDE)
            found_word(c, text, n);
        bad_field(c, text, n, "is not a number", hint(c, text, n));
    } else if (!isfinite(value)) {
        bad_field(c, text, n, "is not a finite number", "");
    } else if (!isfinite((float)value)) {
        bad_field(c, text, n, "is too large for a 32-bit float", "");
    } else {
        keep_number(c, value);
    }
}

static void take_field(void *field, size_t n, void *reader)
{
    struct csv_reader *c = reader;
    if (c->failure.code < 0 || c->full)
        return;
    const char *text = field ? field : "";
    if (c->column == 0) {
        c->row_line = c->line;
        c->missing = 0;
    }
    c->column++;
    c->after_cr = 0;
    if (c->first != FIRST_DROP)
        take_number(c, text, n);
    for (const char *p = text; (p = memchr(p, '\n', n - (size_t)(p - text))); p++)
        c->line++;
}

/* Fixes the number of columns by the first row, and with it where the label is. */
static int check_columns(struct csv_reader *c, struct err *e)
{
    int64_t wanted = c->source->label_column;
    int64_t at = wanted < 0 ? c->column + wanted : wanted;
    char input[128];
    if (at < 0 || at >= c->column)
        return err_set(e, ERR_INVALID,
                       "%s line %" PRId64 ": there is no label_column %" PRId64 " among %" PRId64
                       " columns (they count from 0, or from -1 at the end)",
                       c->name, c->row_line, wanted, c->column);
    if (c->column - 1 != c->need->feature_size)
        return err_set(e, ERR_INVALID,
                       "%s line %" PRId64 ": %" PRId64 " columns beside the label, where the "
                       "model's input is %s, %" PRId64 " values",
                       c->name, c->row_line, c->column - 1, shape_format(&c->need->input, input),
                       c->need->feature_size);
    c->columns = c->column;
    c->label_at = at;
    return 0;
}

/* Puts the fill where features are missing; a label cannot be made up. */
static int fill_row(struct csv_reader *c, struct err *e)
{
    if (isnan(c->row[c->label_at]))
        return err_set(e, ERR_INVALID,
                       "%s line %" PRId64 ": the label, column %" PRId64
                       ", is missing, and no fill can stand for it; \"missing\": \"drop\" leaves "
                       "such rows out",
                       c->name, c->row_line, c->label_at + 1);
    for (int64_t i = 0; i < c->columns; i++)
        if (isnan(c->row[i]))
            c->row[i] = c->source->fill;
    return 0;
}

static int check_row(const struct csv_reader *c, struct err *e)
{
    for (int64_t i = 0; c->need->vocabulary && i < c->columns; i++) {
        if (i == c->label_at)
            continue;
        int r = data_check_feature(c->need, c->row[i], e);
        if (r < 0)
            return err_prefix(e, "%s line %" PRId64 ", column %" PRId64, c->name, c->row_line,
                              i + 1);
    }
    int r = data_check_label(c->need, c->row[c->label_at], e);
    return r < 0 ? err_prefix(e, "%s line %" PRId64, c->name, c->row_line) : 0;
}

static int write_row(struct csv_reader *c, struct err *e)
{
    void *room;
    uint64_t at;
    int64_t n = c->need->feature_size;
    int r = data_out_room(c->out, (uint64_t)(n + 1) * sizeof(float), &room, &at, e);
    if (r < 0)
        return err_prefix(e, "%s line %" PRId64, c->name, c->row_line);
    float *to = room;
    for (int64_t i = 0; i < c->label_at; i++)
        to[i] = (float)c->row[i];
    for (int64_t i = c->label_at; i < n; i++)
        to[i] = (float)c->row[i + 1];
    data_keep_label(c->need, c->row[c->label_at], to + n);
    if (c->samples == 0)
        c->first_at = at;
    c->samples++;
    c->full = c->samples == c->source->limit;
    return 0;
}

static int keep_row(struct csv_reader *c, struct err *e)
{
    int r = 0;
    if (c->missing > 0) {
        c->missing_rows++;
        c->missing_values += c->missing;
        if (c->source->missing == CSV_MISSING_DROP)
            return 0;
        r = fill_row(c, e);
    }
    if (r == 0)
        r = check_row(c, e);
    return r < 0 ? r : write_row(c, e);
}

/* 1 if the first row is a header and done with. */
static int drop_first_row(struct csv_reader *c)
{
    enum first_row was = c->first;
    c->first = FIRST_PASSED;
    if (was == FIRST_DROP)
        data_note(c->note, "%s: line %" PRId64 " was dropped as the header, as the job says",
                  c->name, c->row_line);
    if (was == FIRST_DECIDE && c->has_header)
        buf_clear(&c->first_missing);
    if (was == FIRST_DECIDE && !c->has_header) {
        data_note(c->note, "%s: no header, line %" PRId64 " has no words", c->name, c->row_line);
        c->failure = c->held;
    }
    return was == FIRST_DROP || c->has_header;
}

static void end_row(struct csv_reader *c)
{
    if (c->first != FIRST_PASSED && drop_first_row(c))
        return;
    c->has_header = 0;
    if (c->failure.code < 0)
        return;
    if (c->columns != 0 && c->column != c->columns)
        err_set(&c->failure, ERR_INVALID,
                "%s line %" PRId64 ": %" PRId64 " columns where the lines before have %" PRId64,
                c->name, c->row_line, c->column, c->columns);
    else if (c->columns != 0 || check_columns(c, &c->failure) == 0)
        keep_row(c, &c->failure);
}

static void take_line_end(int byte, void *reader)
{
    struct csv_reader *c = reader;
    if (c->failure.code < 0 || c->full)
        return;
    if (c->column > 0)
        end_row(c);
    c->column = 0;
    if (byte == '\r' || (byte == '\n' && !c->after_cr))
        c->line++;
    c->after_cr = byte == '\r';
}

static int parse_chunk(struct csv_reader *c, const char *bytes, size_t n, struct err *e)
{
    size_t parsed = csv_parse(&c->parser, bytes, n, take_field, take_line_end, c);
    if (c->failure.code < 0)
        return err_set(e, c->failure.code, "%s", c->failure.text);
    if (c->full)
        return 0;
    if (parsed < n)
        return err_set(e, ERR_INVALID,
                       "%s line %" PRId64 ", column %" PRId64 ": a quote in the wrong place (a "
                       "field with quotes is quoted whole, and a quote in it doubled)",
                       c->name, c->line, c->column + 1);
    if (c->parser.entry_pos > FIELD_MAX)
        return err_set(e, ERR_TOO_LARGE,
                       "%s line %" PRId64 ", column %" PRId64
                       ": a field of more than %u bytes; is a quote not closed?",
                       c->name, c->line, c->column + 1, FIELD_MAX);
    return 0;
}

/* Bytes to leave out at the start: a UTF-8 byte order mark. UTF-16 is refused by its mark. */
static int skip_mark(const struct csv_reader *c, const char *bytes, uint64_t n, size_t *ret,
                     struct err *e)
{
    *ret = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    if (n >= 2 && (memcmp(bytes, "\xff\xfe", 2) == 0 || memcmp(bytes, "\xfe\xff", 2) == 0))
        return err_set(e, ERR_INVALID, "%s is UTF-16 text; save it as UTF-8", c->name);
    return 0;
}

/* After the last byte. */
static int end_text(struct csv_reader *c, struct data_stream *s, struct err *e)
{
    if (csv_fini(&c->parser, take_field, take_line_end, c) != 0)
        return err_set(e, ERR_INVALID,
                       "%s line %" PRId64 ", column %" PRId64
                       ": a quote is opened and never closed",
                       c->name, c->line, c->column + 1);
    if (c->failure.code < 0)
        return err_set(e, c->failure.code, "%s", c->failure.text);
    if (s->read == 0)
        return err_set(e, ERR_INVALID, "%s is empty", c->name);
    if (c->samples == 0 && c->missing_rows > 0)
        return err_set(e, ERR_INVALID,
                       "%s has no rows of data left: all %" PRId64 " have missing values", c->name,
                       c->missing_rows);
    if (c->samples == 0)
        return err_set(e, ERR_INVALID, "%s has no rows of data", c->name);
    return 0;
}

static int parse_all(struct csv_reader *c, struct data_stream *s, struct err *e)
{
    char chunk[CHUNK];
    uint64_t got;
    int r;
    do {
        int at_start = s->read == 0;
        size_t skip = 0;
        r = data_stream_read(s, chunk, sizeof chunk, &got, e);
        if (r == 0 && at_start)
            r = skip_mark(c, chunk, got, &skip, e);
        if (r == 0)
            r = parse_chunk(c, chunk + skip, (size_t)got - skip, e);
        if (r < 0)
            return r;
    } while (got == sizeof chunk && !c->full);
    return c->full ? 0 : end_text(c, s, e);
}

static void note_missing(struct csv_reader *c)
{
    if (c->missing_rows > 0 && c->source->missing == CSV_MISSING_DROP)
        data_note(c->note,
                  "%s: %" PRId64 " of %" PRId64 " rows were dropped, as values are missing in them "
                  "(the first: %s)",
                  c->name, c->missing_rows, c->missing_rows + c->samples, c->first_missing.data);
    else if (c->missing_rows > 0)
        data_note(c->note,
                  "%s: %" PRId64 " missing values in %" PRId64 " rows were filled with %.15g (the "
                  "first: %s)",
                  c->name, c->missing_values, c->missing_rows, c->source->fill,
                  c->first_missing.data);
}

static int read_table(struct csv_reader *c, struct data_stream *s, struct data_split *ret,
                      struct err *e)
{
    struct data_split split;
    uint64_t stride = (uint64_t)(c->need->feature_size + 1) * sizeof(float);
    int r = data_need_one_label(c->need, e);
    if (r == 0 && c->source->missing == CSV_MISSING_FILL &&
        (r = data_check_feature(c->need, c->source->fill, e)) < 0)
        err_prefix(e, "%s cannot be filled with that", c->name);
    if (r == 0)
        r = data_out_source(c->out, c->source->memory_limit, e);
    if (r == 0)
        r = parse_all(c, s, e);
    if (r < 0)
        return r;
    data_split_of(c->need, &split);
    split.samples = c->samples;
    split.features = (struct data_place){
        .type = NUMBER_F32, .size = c->need->feature_size, .stride = stride, .at = c->first_at};
    data_out_place(c->out, &split.features);
    split.labels = split.features;
    split.labels.type = (int32_t)data_label_type(c->need);
    split.labels.size = 1;
    split.labels.at += stride - sizeof(float);
    note_missing(c);
    *ret = split;
    return 0;
}

int data_read_csv(struct data_stream *s, const struct data_source *source,
                  const struct data_need *need, struct data_out *o, struct buf *note,
                  struct data_split *ret, struct err *e)
{
    static const enum first_row FIRST[] = {[CSV_HEADER_NO] = FIRST_PASSED,
                                           [CSV_HEADER_YES] = FIRST_DROP,
                                           [CSV_HEADER_AUTO] = FIRST_DECIDE};
    struct csv_reader c = {.name = s->name,
                           .source = source,
                           .need = need,
                           .out = o,
                           .note = note,
                           .line = 1,
                           .first = FIRST[source->header]};
    if (csv_init(&c.parser, CSV_STRICT | CSV_STRICT_FINI | CSV_REPALL_NL | CSV_APPEND_NULL) != 0)
        return err_set(e, ERR_INTERNAL, "cannot set up the CSV parser");
    int r = read_table(&c, s, ret, e);
    csv_free(&c.parser);
    buf_done(&c.first_missing);
    free(c.row);
    return r;
}
