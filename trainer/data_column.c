/* data_column.c: features and labels that lie in a file (or member) of their own, as one dense
 * array each: idx, npy and npz. They are checked block by block, and put where the ranks find them,
 * unless the ranks will read the file itself. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "trainer/data_parts.h"

#define BLOCK_NUMBERS 4096
#define WIDTH_MOST    8
#define DIMS_SHOWN    6

/* ---- form ---- */

void data_column_form(struct data_column *c, const uint64_t *size, int dims)
{
    size_t n = (size_t)snprintf(c->form, sizeof c->form, "[");
    for (int i = 1; i < dims && i <= DIMS_SHOWN && n < 80; i++)
        n += (size_t)snprintf(c->form + n, sizeof c->form - n, "%s%" PRIu64, i > 1 ? ", " : "",
                              size[i] > 9999999999 ? UINT64_C(9999999999) : size[i]);
    snprintf(c->form + n, sizeof c->form - n, "%s", dims > DIMS_SHOWN + 1 ? ", ...]" : "]");
}

int data_column_count(struct data_column *c, const uint64_t *size, int dims, struct err *e)
{
    uint64_t bytes;
    int overflow = 0;
    c->items = size[0];
    c->per_item = 1;
    for (int i = 1; i < dims; i++)
        overflow |= __builtin_mul_overflow(c->per_item, size[i], &c->per_item);
    overflow |= __builtin_mul_overflow(c->items, c->per_item, &bytes);
    overflow |= __builtin_mul_overflow(bytes, WIDTH_MOST, &bytes);
    if (overflow || bytes > INT64_MAX)
        return err_set(e, ERR_INVALID, "%s: its header promises more elements than 64 bits count",
                       c->stream->name);
    if (c->items == 0)
        return err_set(e, ERR_INVALID, "%s has no items", c->stream->name);
    data_column_form(c, size, dims);
    return 0;
}

static int check_labels_form(const struct data_column *y, const struct data_need *need,
                             struct err *e)
{
    char output[128];
    if (y->per_item == (uint64_t)need->labels)
        return 0;
    if (y->per_item == 1)
        return data_need_one_label(need, e);
    if (need->labels == 1)
        return err_set(e, ERR_INVALID,
                       "%s: an item is %s, %" PRIu64 " values, where one label is needed",
                       y->stream->name, y->form, y->per_item);
    return err_set(e, ERR_INVALID,
                   "%s: an item is %s, %" PRIu64 " values, where %s of the model's output %s needs "
                   "%" PRId64 " labels",
                   y->stream->name, y->form, y->per_item, loss_name(need->loss),
                   shape_format(&need->output, output), need->labels);
}

/* That features fit the model, labels the loss, and both can be there at all. */
static int check_forms(const struct data_column *x, const struct data_column *y,
                       const struct data_need *need, struct err *e)
{
    char input[128];
    if (x->per_item != (uint64_t)need->feature_size)
        return err_set(e, ERR_INVALID,
                       "%s: an item is %s, %" PRIu64 " values, where the model's input is %s, "
                       "%" PRId64 " values",
                       x->stream->name, x->form, x->per_item, shape_format(&need->input, input),
                       need->feature_size);
    int r = check_labels_form(y, need, e);
    if (r == 0 && x->items != y->items)
        r = err_set(e, ERR_INVALID, "%s has %" PRIu64 " items, but %s has labels for %" PRIu64,
                    x->stream->name, x->items, y->stream->name, y->items);
    if (r == 0)
        r = data_stream_promises(x->stream, x->items * x->per_item * number_width(x->type), e);
    if (r == 0)
        r = data_stream_promises(y->stream, y->items * y->per_item * number_width(y->type), e);
    return r;
}

/* ---- numbers ---- */

struct reading {
    struct data_column *c;
    const struct data_need *need;
    struct data_out *out; /* NULL: ranks read the file */
};

static int at_number(const struct reading *r, uint64_t i, struct err *e)
{
    const struct data_column *c = r->c;
    if (c->per_item == 1)
        return err_prefix(e, "%s item %" PRIu64, c->stream->name, i + 1);
    return err_prefix(e, "%s item %" PRIu64 ", number %" PRIu64, c->stream->name,
                      i / c->per_item + 1, i % c->per_item + 1);
}

static int check_booleans(const struct reading *r, const unsigned char *raw, uint64_t first,
                          uint64_t n, struct err *e)
{
    for (uint64_t i = 0; r->c->of_booleans && i < n; i++) {
        if (raw[i] > 1) {
            err_set(e, ERR_INVALID, "byte %d is neither true nor false", raw[i]);
            return at_number(r, first + i, e);
        }
    }
    return 0;
}

static int check_features(const struct reading *r, const unsigned char *raw, uint64_t first,
                          uint64_t n, struct err *e)
{
    float values[BLOCK_NUMBERS];
    const struct data_column *c = r->c;
    int is_float = c->type == NUMBER_F32 || c->type == NUMBER_F64, wrong = 0;
    if (!is_float && r->need->vocabulary == 0)
        return 0;
    numbers_to_float(c->type, c->swapped, raw, (int64_t)n, values);
    float most = r->need->vocabulary ? (float)r->need->vocabulary : INFINITY;
    for (uint64_t i = 0; i < n; i++)
        wrong |= !isfinite(values[i]) |
                 (r->need->vocabulary &&
                  !(values[i] >= 0 && values[i] < most && values[i] == floorf(values[i])));
    for (uint64_t i = 0; wrong && i < n; i++) {
        double value = number_to_double(c->type, c->swapped, raw + i * number_width(c->type));
        if (data_check_feature(r->need, value, e) < 0)
            return at_number(r, first + i, e);
    }
    return 0;
}

/* In blocks: into place where the form stays as it is, else by way of the stack. */
static int read_features(const struct reading *r, uint64_t count, struct data_place *place,
                         struct err *e)
{
    unsigned char block[BLOCK_NUMBERS * WIDTH_MOST];
    const struct data_column *c = r->c;
    uint64_t width = number_width(c->type), at, kept = number_width((enum number_type)place->type);
    int in_place = r->out && width == kept && !c->swapped;
    for (uint64_t done = 0; done < count; done += BLOCK_NUMBERS) {
        uint64_t n = count - done < BLOCK_NUMBERS ? count - done : BLOCK_NUMBERS;
        void *to = NULL;
        int s = r->out ? data_out_room(r->out, n * kept, &to, &at, e) : 0;
        if (s < 0)
            return err_prefix(e, "%s", c->stream->name);
        unsigned char *raw = in_place ? to : block;
        s = data_stream_exactly(c->stream, raw, n * width, "data", e);
        if (s == 0)
            s = check_booleans(r, raw, done, n, e);
        if (s == 0)
            s = check_features(r, raw, done, n, e);
        if (s < 0)
            return s;
        if (r->out && !in_place)
            numbers_keep(c->type, c->swapped, raw, (int64_t)n, to);
        if (r->out && done == 0)
            place->at = at;
    }
    return 0;
}

static int read_labels(const struct reading *r, uint64_t count, struct data_place *place,
                       struct err *e)
{
    unsigned char block[BLOCK_NUMBERS * WIDTH_MOST];
    const struct data_column *c = r->c;
    uint64_t width = number_width(c->type), at;
    for (uint64_t done = 0; done < count; done += BLOCK_NUMBERS) {
        uint64_t n = count - done < BLOCK_NUMBERS ? count - done : BLOCK_NUMBERS;
        void *to = NULL;
        int s = r->out ? data_out_room(r->out, n * 4, &to, &at, e) : 0;
        if (s == 0)
            s = data_stream_exactly(c->stream, block, n * width, "data", e);
        if (s == 0)
            s = check_booleans(r, block, done, n, e);
        for (uint64_t i = 0; s == 0 && i < n; i++) {
            double label = number_to_double(c->type, c->swapped, block + i * width);
            if ((s = data_check_label(r->need, label, e)) < 0)
                at_number(r, done + i, e);
            else if (r->out)
                data_keep_label(r->need, label, (char *)to + i * 4);
        }
        if (s < 0)
            return s;
        if (r->out && done == 0)
            place->at = at;
    }
    return 0;
}

/* ---- a column ---- */

typedef int column_reader(const struct reading *r, uint64_t count, struct data_place *place,
                          struct err *e);

/* `kept` is the form that the numbers take in `out`; without out, the file's own is noted. */
static int read_column(struct data_column *c, column_reader *read, const struct reading *r,
                       struct data_out *files, int64_t samples, enum number_type kept,
                       struct data_place *ret, struct err *e)
{
    enum number_type type = r->out ? kept : c->type;
    struct data_place place = {.type = (int32_t)type,
                               .swapped = !r->out && c->swapped,
                               .size = (int64_t)c->per_item,
                               .stride = c->per_item * number_width(type),
                               .at = c->stream->read};
    int s = r->out ? data_out_align(r->out, e) : 0;
    if (s == 0)
        s = read(r, (uint64_t)samples * c->per_item, &place, e);
    if (s == 0 && (uint64_t)samples == c->items)
        s = data_stream_ends(c->stream, e);
    if (s == 0 && !r->out)
        s = data_stream_unchanged(c->stream, e);
    if (s < 0)
        return s;
    if (!r->out)
        place.in = data_out_file(files, c->stream);
    data_out_place(files, &place);
    *ret = place;
    return 0;
}

static uint64_t bytes_of(const struct data_column *c, int64_t samples, enum number_type kept)
{
    return (uint64_t)samples * c->per_item * number_width(kept);
}

int data_read_columns(struct data_column *x, struct data_column *y,
                      const struct data_source *source, const struct data_need *need,
                      struct data_out *o, struct data_split *ret, struct err *e)
{
    struct data_split split;
    int r = check_forms(x, y, need, e);
    if (r < 0)
        return r;
    int64_t n = data_limited(source, (int64_t)x->items);
    enum number_type kept_x = number_kept(x->type), kept_y = data_label_type(need);
    uint64_t bytes_x = bytes_of(x, n, kept_x), bytes_y = bytes_of(y, n, kept_y);
    r = data_out_source(o, source->memory_limit, e);
    int is_large = bytes_x + bytes_y > o->source_limit;
    int own_x = is_large && data_stream_is_plain(x->stream);
    int own_y = is_large && data_stream_is_plain(y->stream);
    if (r == 0)
        r = data_out_expect(o, (own_x ? 0 : bytes_x) + (own_y ? 0 : bytes_y) + DATA_ALIGN, e);
    if (r < 0)
        return err_prefix(e, "%s", x->stream->name);
    data_split_of(need, &split);
    split.samples = n;
    struct reading rx = {x, need, own_x ? NULL : o}, ry = {y, need, own_y ? NULL : o};
    /* labels first: they are small and most often what is wrong */
    r = read_column(y, read_labels, &ry, o, n, kept_y, &split.labels, e);
    if (r == 0)
        r = read_column(x, read_features, &rx, o, n, kept_x, &split.features, e);
    if (r == 0)
        *ret = split;
    return r;
}
