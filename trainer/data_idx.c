/* data_idx.c: the IDX format of MNIST: two zero bytes, the element type, the number of dimensions,
 * each dimension as a big-endian u32, then the elements, big-endian, the last dimension fastest.
 * Source: yann.lecun.com/exdb/mnist, "the IDX file format".
 *
 * Bytes go from the file into the memfd as they are; the wider types are converted to float32
 * through a small buffer. Sizes are 64-bit and compared with what the file can hold before
 * anything is allocated.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "trainer/data_parts.h"

#define CHUNK_ELEMENTS 4096
#define ELEMENT_MOST   8
#define DIMS_SHOWN     6

struct idx {
    struct data_stream *stream;
    unsigned type;
    uint64_t width; /* bytes per element */
    int dims;
    uint64_t size[255];
    uint64_t items;    /* the first dimension */
    uint64_t per_item; /* product of the others */
    uint64_t elements; /* of all items */
};

static uint64_t type_width(unsigned type)
{
    switch (type) {
    case 0x08:           /* u8 */
    case 0x09: return 1; /* i8 */
    case 0x0b: return 2; /* i16 */
    case 0x0c:           /* i32 */
    case 0x0d: return 4; /* f32 */
    case 0x0e: return 8; /* f64 */
    default: return 0;
    }
}

static uint64_t big_endian(const unsigned char *p, uint64_t width)
{
    uint64_t v = 0;
    for (uint64_t i = 0; i < width; i++)
        v = v << 8 | p[i];
    return v;
}

static double element(const unsigned char *p, unsigned type)
{
    switch (type) {
    case 0x08: return p[0];
    case 0x09: return (int8_t)p[0];
    case 0x0b: return (int16_t)big_endian(p, 2);
    case 0x0c: return (int32_t)big_endian(p, 4);
    case 0x0d: {
        uint32_t bits = (uint32_t)big_endian(p, 4);
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    case 0x0e: {
        uint64_t bits = big_endian(p, 8);
        double d;
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    default: BUG("idx element type %u", type);
    }
}

/* "[28, 28]": the dimensions of one item. */
static const char *item_shape(const struct idx *x, struct buf *b)
{
    buf_clear(b);
    buf_adds(b, "[");
    for (int i = 1; i < x->dims && i <= DIMS_SHOWN; i++)
        buf_addf(b, "%s%" PRIu64, i > 1 ? ", " : "", x->size[i]);
    buf_adds(b, x->dims > DIMS_SHOWN + 1 ? ", ...]" : "]");
    return b->data;
}

static int read_exactly(struct data_stream *s, void *to, uint64_t n, const char *what,
                        struct err *e)
{
    uint64_t got;
    int r = data_stream_read(s, to, n, &got, e);
    if (r < 0)
        return r;
    if (got < n)
        return err_set(e, ERR_INVALID,
                       "%s ends after %" PRIu64 " bytes, in the middle of its %s: %" PRIu64
                       " more were to come",
                       s->name, s->read, what, n - got);
    return 0;
}

static int read_dimensions(struct idx *x, struct err *e)
{
    unsigned char raw[255 * 4];
    int r = read_exactly(x->stream, raw, (uint64_t)x->dims * 4, "header", e);
    if (r < 0)
        return r;
    x->per_item = 1;
    int overflow = 0;
    for (int i = 0; i < x->dims; i++) {
        x->size[i] = big_endian(raw + (size_t)i * 4, 4);
        if (i > 0)
            overflow |= __builtin_mul_overflow(x->per_item, x->size[i], &x->per_item);
    }
    x->items = x->size[0];
    uint64_t bytes;
    overflow |= __builtin_mul_overflow(x->items, x->per_item, &x->elements);
    overflow |= __builtin_mul_overflow(x->elements, x->width, &bytes);
    if (overflow)
        return err_set(e, ERR_INVALID, "%s: its header promises more elements than 64 bits count",
                       x->stream->name);
    return 0;
}

static int open_idx(struct data_stream *s, struct idx *ret, struct err *e)
{
    unsigned char magic[4];
    *ret = (struct idx){.stream = s};
    uint64_t got;
    int r = data_stream_read(s, magic, 4, &got, e);
    if (r < 0)
        return r;
    if (got == 0)
        return err_set(e, ERR_INVALID, "%s is empty", s->name);
    if (got < 4 || magic[0] != 0 || magic[1] != 0)
        return err_set(e, ERR_INVALID,
                       "%s is not an IDX file: it does not start with two zero bytes, an element "
                       "type and the number of dimensions",
                       s->name);
    ret->type = magic[2];
    ret->width = type_width(magic[2]);
    ret->dims = magic[3];
    if (ret->width == 0)
        return err_set(e, ERR_INVALID,
                       "%s: its element type 0x%02x is none of IDX's: 08 (unsigned bytes), 09, 0b, "
                       "0c (integers of 1, 2, 4 bytes), 0d, 0e (floats of 4, 8 bytes)",
                       s->name, magic[2]);
    if (ret->dims == 0)
        return err_set(e, ERR_INVALID, "%s has no dimensions, so no items either", s->name);
    r = read_dimensions(ret, e);
    if (r < 0)
        return r;
    if (ret->items == 0)
        return err_set(e, ERR_INVALID, "%s has no items", s->name);
    return 0;
}

/* That the images fit the model, the labels are one per image, and both can be there at all. */
static int check_forms(const struct idx *images, const struct idx *labels,
                       const struct data_need *need, struct err *e)
{
    struct buf form = BUF_INIT;
    char input[128];
    int r = 0;
    if (images->per_item != (uint64_t)need->feature_size)
        r = err_set(e, ERR_INVALID,
                    "%s: an item is %s, %" PRIu64 " values, where the model's input is %s, %" PRId64
                    " values",
                    images->stream->name, item_shape(images, &form), images->per_item,
                    shape_format(&need->input, input), need->feature_size);
    else if (labels->per_item != 1)
        r = err_set(e, ERR_INVALID,
                    "%s: an item is %s, %" PRIu64 " values, where one label is needed",
                    labels->stream->name, item_shape(labels, &form), labels->per_item);
    else if (images->items != labels->items)
        r = err_set(e, ERR_INVALID, "%s has %" PRIu64 " items, but %s has %" PRIu64 " labels",
                    images->stream->name, images->items, labels->stream->name, labels->items);
    buf_done(&form);
    if (r == 0)
        r = data_stream_promises(images->stream, images->elements * images->width, e);
    if (r == 0)
        r = data_stream_promises(labels->stream, labels->elements * labels->width, e);
    return r;
}

/* Nothing may follow the data; for gzip this is also what checks the sum at its end. */
static int check_end(struct data_stream *s, struct err *e)
{
    char extra;
    uint64_t at = s->read, got;
    int r = data_stream_read(s, &extra, 1, &got, e);
    if (r < 0)
        return r;
    if (got > 0)
        return err_set(e, ERR_INVALID,
                       "%s goes on after the %" PRIu64 " bytes that its header promises", s->name,
                       at);
    return 0;
}

static int not_a_float(const struct idx *x, uint64_t i, double value, struct err *e)
{
    if (isfinite(value))
        return err_set(e, ERR_INVALID,
                       "%s: value %.15g at item %" PRIu64 " is too large for a 32-bit float",
                       x->stream->name, value, i / x->per_item + 1);
    return err_set(e, ERR_INVALID,
                   "%s: value %" PRIu64 " of item %" PRIu64 " is %f, not a finite number",
                   x->stream->name, i % x->per_item + 1, i / x->per_item + 1, value);
}

static int convert_features(const struct idx *x, float *to, struct err *e)
{
    unsigned char raw[CHUNK_ELEMENTS * ELEMENT_MOST];
    for (uint64_t done = 0; done < x->elements;) {
        uint64_t left = x->elements - done;
        uint64_t n = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
        int r = read_exactly(x->stream, raw, n * x->width, "data", e);
        if (r < 0)
            return r;
        for (uint64_t i = 0; i < n; i++) {
            double value = element(raw + i * x->width, x->type);
            to[done + i] = (float)value;
            if (!isfinite(to[done + i]))
                return not_a_float(x, done + i, value, e);
        }
        done += n;
    }
    return 0;
}

static int read_features(const struct idx *x, struct data_out *o, struct data_split *split,
                         struct err *e)
{
    enum feature_type type = x->type == 0x08 ? FEATURE_U8 : FEATURE_F32;
    uint64_t bytes;
    void *to;
    int r = data_out_align(o, e);
    if (r < 0)
        return r;
    if (__builtin_mul_overflow(x->elements, data_feature_bytes((int32_t)type), &bytes))
        bytes = UINT64_MAX;
    split->features_at = o->used;
    r = data_out_extend(o, bytes, &to, e);
    if (r < 0)
        return err_prefix(e, "%s", x->stream->name);
    r = type == FEATURE_U8 ? read_exactly(x->stream, to, bytes, "data", e)
                           : convert_features(x, to, e);
    if (r < 0)
        return r;
    split->feature_type = (int32_t)type;
    split->feature_size = (int64_t)x->per_item;
    split->samples = (int64_t)x->items;
    return check_end(x->stream, e);
}

static int read_labels(const struct idx *x, struct data_targets *t, struct err *e)
{
    unsigned char raw[CHUNK_ELEMENTS * ELEMENT_MOST];
    for (uint64_t done = 0; done < x->items;) {
        uint64_t left = x->items - done;
        uint64_t n = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
        int r = read_exactly(x->stream, raw, n * x->width, "data", e);
        for (uint64_t i = 0; r == 0 && i < n; i++) {
            double label = element(raw + i * x->width, x->type);
            r = data_targets_add(t, label, (int64_t)(done + i + 1), e);
            if (r < 0)
                err_prefix(e, "%s", x->stream->name);
        }
        if (r < 0)
            return r;
        done += n;
    }
    return check_end(x->stream, e);
}

int data_read_idx(struct data_stream *images, struct data_stream *labels,
                  const struct data_need *need, struct data_out *o, struct data_split *ret,
                  struct err *e)
{
    struct idx x = {0}, y = {0};
    int r = open_idx(images, &x, e);
    if (r == 0)
        r = open_idx(labels, &y, e);
    if (r == 0)
        r = check_forms(&x, &y, need, e);
    if (r != 0)
        return r;
    struct data_split split = {0};
    struct data_targets targets = {.need = need};
    r = read_labels(&y, &targets, e); /* first: they are small and most often what is wrong */
    if (r == 0)
        r = read_features(&x, o, &split, e);
    if (r == 0)
        r = data_targets_write(&targets, o, &split, e);
    data_targets_done(&targets);
    if (r == 0)
        *ret = split;
    return r;
}
