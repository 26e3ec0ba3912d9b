/* data_idx.c: the IDX format of MNIST: two zero bytes, the element type, the number of dimensions,
 * each dimension as a big-endian u32, then the elements, big-endian, the last dimension fastest.
 * Source: yann.lecun.com/exdb/mnist, "the IDX file format". */
#include "trainer/data_parts.h"

#define DIMS_MOST 255

static int type_of(unsigned char code, enum number_type *ret)
{
    switch (code) {
    case 0x08: *ret = NUMBER_U8; return 1;
    case 0x09: *ret = NUMBER_I8; return 1;
    case 0x0b: *ret = NUMBER_I16; return 1;
    case 0x0c: *ret = NUMBER_I32; return 1;
    case 0x0d: *ret = NUMBER_F32; return 1;
    case 0x0e: *ret = NUMBER_F64; return 1;
    default: return 0;
    }
}

static int read_dimensions(struct data_column *c, int dims, struct err *e)
{
    unsigned char raw[DIMS_MOST * 4];
    uint64_t size[DIMS_MOST];
    int r = data_stream_exactly(c->stream, raw, (uint64_t)dims * 4, "header", e);
    if (r < 0)
        return r;
    for (int i = 0; i < dims; i++) {
        const unsigned char *p = raw + (size_t)i * 4;
        size[i] = (uint64_t)p[0] << 24 | (uint64_t)p[1] << 16 | (uint64_t)p[2] << 8 | p[3];
    }
    return data_column_count(c, size, dims, e);
}

static int open_idx(struct data_stream *s, struct data_column *ret, struct err *e)
{
    unsigned char magic[4];
    *ret = (struct data_column){.stream = s, .swapped = DATA_SWAPPED_BIG};
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
    if (!type_of(magic[2], &ret->type))
        return err_set(e, ERR_INVALID,
                       "%s: its element type 0x%02x is none of IDX's: 08 (unsigned bytes), 09, 0b, "
                       "0c (integers of 1, 2, 4 bytes), 0d, 0e (floats of 4, 8 bytes)",
                       s->name, magic[2]);
    if (number_width(ret->type) == 1)
        ret->swapped = 0;
    if (magic[3] == 0)
        return err_set(e, ERR_INVALID, "%s has no dimensions, so no items either", s->name);
    return read_dimensions(ret, magic[3], e);
}

int data_read_idx(struct data_stream *images, struct data_stream *labels,
                  const struct data_source *source, const struct data_need *need,
                  struct data_out *o, struct data_split *ret, struct err *e)
{
    struct data_column x, y;
    int r = open_idx(images, &x, e);
    if (r == 0)
        r = open_idx(labels, &y, e);
    return r < 0 ? r : data_read_columns(&x, &y, source, need, o, ret, e);
}
