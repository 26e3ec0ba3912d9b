/* safetensors.c: reading the file format that weights come in, trained weights leave in and
 * checkpoints lie in.
 *
 * Reading trusts nothing: the header is at most 100 MB and no longer than the file, names are
 * unique, and the tensors' ranges, sorted, must follow each other from the first byte of the data
 * to the last. Tensor data is read with pread straight into the caller's buffer, so that a file
 * cut short while open is an error and not a signal. Writing: safetensors_write.c.
 */
#include "trainer/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

#define HEADER_MAX        (100 * 1000 * 1000) /* the format's own limit */
#define LENGTH_SIZE       8
#define NAMES_IN_SENTENCE 300 /* bytes of tensor names that a sentence lists */

struct tensor {
    const char *name;  /* borrowed from the header */
    const char *dtype; /* the same */
    json_t *shape;     /* the same */
    uint64_t begin;
    uint64_t end;
};

struct safetensors {
    int fd;
    char *file;
    json_t *header;
    struct tensor *tensors; /* in the order of the data */
    int count;
    uint64_t data_start;
    uint64_t data_size;
};

static const struct dtype {
    const char *name;
    uint64_t size;
} DTYPES[] = {
    {"F64", 8},  {"F32", 4},     {"F16", 2}, {"BF16", 2},    {"I64", 8}, {"I32", 4},
    {"I16", 2},  {"I8", 1},      {"U64", 8}, {"U32", 4},     {"U16", 2}, {"U8", 1},
    {"BOOL", 1}, {"F8_E4M3", 1}, {"C64", 8}, {"F8_E5M2", 1},
};

static uint64_t dtype_size(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(DTYPES); i++) {
        if (strcmp(DTYPES[i].name, name) == 0)
            return DTYPES[i].size;
    }
    return 0;
}

/* Fills `to` from `offset`; a short file is ERR_CORRUPT. */
static int read_at(int fd, const char *file, void *to, uint64_t n, uint64_t offset, struct err *e)
{
    char *p = to;
    while (n > 0) {
        ssize_t got = pread(fd, p, n < (1u << 30) ? n : 1u << 30, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, "cannot read %s", file);
        if (got == 0)
            return err_set(e, ERR_CORRUPT, "%s ends at byte %" PRIu64 ", before its data does",
                           file, offset);
        p += got;
        offset += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return 0;
}

static int read_header(struct safetensors *s, struct err *e)
{
    struct stat st;
    if (fstat(s->fd, &st) < 0)
        return err_errno(e, "cannot examine %s", s->file);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INVALID, "%s is not a regular file", s->file);
    uint64_t size = (uint64_t)st.st_size;
    unsigned char raw[LENGTH_SIZE];
    if (size < LENGTH_SIZE)
        return err_set(e, ERR_INVALID,
                       "%s is not a safetensors file: it has only %" PRIu64 " bytes", s->file,
                       size);
    int r = read_at(s->fd, s->file, raw, LENGTH_SIZE, 0, e);
    if (r < 0)
        return r;
    uint64_t length = 0;
    for (int i = LENGTH_SIZE - 1; i >= 0; i--)
        length = length << 8 | raw[i];
    if (length > size - LENGTH_SIZE || length > HEADER_MAX)
        return err_set(e, ERR_INVALID,
                       "%s is not a safetensors file: a header of %" PRIu64 " bytes in a file of "
                       "%" PRIu64 " bytes (at most %d are allowed)",
                       s->file, length, size, HEADER_MAX);
    CLEANUP(mem_freep) char *text = mem_alloc(length + 1);
    r = read_at(s->fd, s->file, text, length, LENGTH_SIZE, e);
    if (r < 0)
        return r;
    if (length == 0 || text[0] != '{')
        return err_set(e, ERR_INVALID, "%s is not a safetensors file: no JSON object at byte 8",
                       s->file);
    json_error_t je;
    s->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &je);
    if (!s->header)
        return err_set(e, ERR_INVALID, "%s: the header is not valid JSON: %s (byte %d)", s->file,
                       je.text, je.position);
    s->data_start = LENGTH_SIZE + length;
    s->data_size = size - s->data_start;
    return 0;
}

static int check_metadata(const struct safetensors *s, json_t *metadata, struct err *e)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return err_set(e, ERR_INVALID, "%s: __metadata__ is not an object", s->file);
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return err_set(e, ERR_INVALID, "%s: __metadata__ value of \"%s\" is not a string",
                           s->file, key);
    }
    return 0;
}

/* Bytes that dtype and shape ask for. */
static int tensor_bytes(const struct safetensors *s, const struct tensor *t, uint64_t *ret,
                        struct err *e)
{
    uint64_t bytes = dtype_size(t->dtype);
    if (bytes == 0)
        return err_set(e, ERR_INVALID, "%s: tensor \"%s\" has the unknown dtype \"%s\"", s->file,
                       t->name, t->dtype);
    size_t i;
    json_t *dim;
    json_array_foreach(t->shape, i, dim)
    {
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(e, ERR_INVALID,
                           "%s: dimension %zu of tensor \"%s\" is not a whole number from 0",
                           s->file, i, t->name);
        if (__builtin_mul_overflow(bytes, (uint64_t)json_integer_value(dim), &bytes))
            return err_set(e, ERR_INVALID, "%s: the shape of tensor \"%s\" is too large", s->file,
                           t->name);
    }
    *ret = bytes;
    return 0;
}

static int parse_tensor(const struct safetensors *s, const char *name, json_t *doc,
                        struct tensor *ret, struct err *e)
{
    json_t *offsets = json_object_get(doc, "data_offsets");
    json_t *begin = json_array_get(offsets, 0);
    json_t *end = json_array_get(offsets, 1);
    struct tensor t = {.name = name,
                       .dtype = json_string_value(json_object_get(doc, "dtype")),
                       .shape = json_object_get(doc, "shape")};
    if (!t.dtype || !json_is_array(t.shape) || json_array_size(offsets) != 2 ||
        !json_is_integer(begin) || !json_is_integer(end) || json_object_size(doc) != 3)
        return err_set(
            e, ERR_INVALID,
            "%s: tensor \"%s\" is not described by exactly dtype, shape and data_offsets "
            "[begin, end]",
            s->file, name);
    int64_t b = json_integer_value(begin);
    int64_t n = json_integer_value(end);
    if (b < 0 || n < b || (uint64_t)n > s->data_size)
        return err_set(e, ERR_INVALID,
                       "%s: tensor \"%s\" lies at bytes %" PRId64 " to %" PRId64
                       " of data that has %" PRIu64 " bytes",
                       s->file, name, b, n, s->data_size);
    uint64_t bytes = 0;
    int r = tensor_bytes(s, &t, &bytes, e);
    if (r < 0)
        return r;
    if (bytes != (uint64_t)(n - b))
        return err_set(e, ERR_INVALID,
                       "%s: tensor \"%s\" takes %" PRIu64 " bytes by dtype and shape, but its "
                       "data_offsets span %" PRId64,
                       s->file, name, bytes, n - b);
    t.begin = (uint64_t)b;
    t.end = (uint64_t)n;
    *ret = t;
    return 0;
}

static int compare_tensors(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return 0;
}

static int check_layout(const struct safetensors *s, struct err *e)
{
    uint64_t at = 0;
    for (int i = 0; i < s->count; i++) {
        const struct tensor *t = &s->tensors[i];
        if (t->begin != at)
            return err_set(
                e, ERR_INVALID,
                "%s: tensor \"%s\" starts at byte %" PRIu64 " of the data, %s the end of "
                "the one before at %" PRIu64,
                s->file, t->name, t->begin, t->begin < at ? "before" : "leaving a hole after", at);
        at = t->end;
    }
    if (at != s->data_size)
        return err_set(e, ERR_INVALID,
                       "%s: the tensors end at byte %" PRIu64 " of data that has %" PRIu64 " bytes",
                       s->file, at, s->data_size);
    return 0;
}

static int parse_tensors(struct safetensors *s, struct err *e)
{
    const char *name;
    json_t *doc;
    int r;
    s->tensors = mem_alloc((json_object_size(s->header) + 1) * sizeof *s->tensors);
    json_object_foreach(s->header, name, doc)
    {
        if (strcmp(name, "__metadata__") == 0)
            r = check_metadata(s, doc, e);
        else
            r = parse_tensor(s, name, doc, &s->tensors[s->count], e);
        if (r < 0)
            return r;
        s->count += strcmp(name, "__metadata__") != 0;
    }
    qsort(s->tensors, (size_t)s->count, sizeof *s->tensors, compare_tensors);
    return check_layout(s, e);
}

int safetensors_open(int take_fd, const char *name_for_errors, struct safetensors **ret,
                     struct err *e)
{
    struct safetensors *s = mem_zalloc(sizeof *s);
    s->fd = take_fd;
    s->file = mem_strdup(name_for_errors);
    int r = read_header(s, e);
    if (r == 0)
        r = parse_tensors(s, e);
    if (r < 0) {
        safetensors_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    json_decref(s->header);
    free(s->tensors);
    free(s->file);
    free(s);
}

int safetensors_count(const struct safetensors *s)
{
    return s->count;
}

const char *safetensors_name(const struct safetensors *s, int i)
{
    if (i < 0 || i >= s->count)
        BUG("tensor %d of %d", i, s->count);
    return s->tensors[i].name;
}

static int no_such_tensor(const struct safetensors *s, const char *name, struct err *e)
{
    struct buf names = BUF_INIT;
    buf_adds(&names, "");
    for (int i = 0; i < s->count; i++) {
        if (names.len > NAMES_IN_SENTENCE) {
            buf_addf(&names, " and %d more", s->count - i);
            break;
        }
        buf_addf(&names, "%s%s", i ? ", " : "", s->tensors[i].name);
    }
    int r = err_set(e, ERR_NOT_FOUND, "%s has no tensor \"%s\"; it has %s", s->file, name,
                    s->count ? names.data : "none");
    buf_done(&names);
    return r;
}

static int same_shape(const json_t *in_file, const struct shape *wanted)
{
    if (json_array_size(in_file) != (size_t)wanted->dims)
        return 0;
    for (int i = 0; i < wanted->dims; i++) {
        if (json_integer_value(json_array_get(in_file, (size_t)i)) != wanted->size[i])
            return 0;
    }
    return 1;
}

static int wrong_shape(const struct safetensors *s, const struct tensor *t,
                       const struct shape *wanted, struct err *e)
{
    char text[128];
    struct buf found = BUF_INIT;
    for (size_t i = 0; i < json_array_size(t->shape) && i < 2 * SHAPE_MAX_DIMS; i++)
        buf_addf(&found, "%s%" JSON_INTEGER_FORMAT, i ? ", " : "",
                 json_integer_value(json_array_get(t->shape, i)));
    int r = err_set(e, ERR_INVALID, "%s: tensor \"%s\" has the shape [%s%s], the model needs %s",
                    s->file, t->name, found.data ? found.data : "",
                    json_array_size(t->shape) > 2 * SHAPE_MAX_DIMS ? ", ..." : "",
                    shape_format(wanted, text));
    buf_done(&found);
    return r;
}

int safetensors_read(const struct safetensors *s, const char *name, const struct shape *shape,
                     float *out, struct err *e)
{
    const struct tensor *t = NULL;
    for (int i = 0; i < s->count && !t; i++) {
        if (strcmp(s->tensors[i].name, name) == 0)
            t = &s->tensors[i];
    }
    if (!t)
        return no_such_tensor(s, name, e);
    if (strcmp(t->dtype, "F32") != 0)
        return err_set(e, ERR_INVALID, "%s: tensor \"%s\" has the dtype %s; only F32 is read",
                       s->file, name, t->dtype);
    if (!same_shape(t->shape, shape))
        return wrong_shape(s, t, shape, e);
    return read_at(s->fd, s->file, out, t->end - t->begin, s->data_start + t->begin, e);
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    return json_string_value(json_object_get(json_object_get(s->header, "__metadata__"), key));
}

int64_t safetensors_elements(const struct safetensors *s, int i)
{
    if (i < 0 || i >= s->count)
        BUG("tensor %d of %d", i, s->count);
    const struct tensor *t = &s->tensors[i];
    return strcmp(t->dtype, "F32") == 0 ? (int64_t)((t->end - t->begin) / sizeof(float)) : -1;
}

int safetensors_read_part(const struct safetensors *s, int i, int64_t from, int64_t to, float *out,
                          struct err *e)
{
    int64_t elements = safetensors_elements(s, i);
    if (from < 0 || to < from || to > elements)
        BUG("elements %lld to %lld of %lld", (long long)from, (long long)to, (long long)elements);
    uint64_t at = s->data_start + s->tensors[i].begin + (uint64_t)from * sizeof(float);
    return read_at(s->fd, s->file, out, (uint64_t)(to - from) * sizeof(float), at, e);
}
