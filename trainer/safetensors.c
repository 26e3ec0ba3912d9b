/* safetensors.c: the file format that start weights come in and trained weights leave in.
 *
 * Reading trusts nothing: the header is at most 100 MB and no longer than the file, names are
 * unique, and the tensors' ranges, sorted, must follow each other from the first byte of the data
 * to the last. Tensor data is read with pread straight into the caller's buffer, so that a file
 * cut short while open is an error and not a signal.
 * Writing goes to a temporary name beside the file, with a dot in front: what a killed writer
 * leaves is nobody's artifact. The header is padded with spaces to 8 bytes.
 */
#include "trainer/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

#define HEADER_MAX        (100 * 1000 * 1000) /* the format's own limit */
#define LENGTH_SIZE       8
#define WRITE_PIECE       (16 * 1024 * 1024)
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

/* ---- writing ---- */

static json_t *metadata_json(const char *const *metadata, struct err *e)
{
    json_t *doc = json_object();
    for (int i = 0; metadata[i]; i += 2) {
        if (!metadata[i + 1])
            BUG("metadata key %s without a value", metadata[i]);
        if (json_object_set_new(doc, metadata[i], json_string(metadata[i + 1])) < 0) {
            json_decref(doc);
            err_set(e, ERR_INVALID, "metadata that is not valid UTF-8");
            return NULL;
        }
    }
    return doc;
}

static json_t *item_json(const struct safetensors_item *item, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (int i = 0; i < item->shape.dims; i++)
        json_array_append_new(shape, json_integer(item->shape.size[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

static uint64_t item_bytes(const struct safetensors_item *item)
{
    return (uint64_t)shape_elements(&item->shape) * sizeof(float);
}

/* The length and the padded header, as they stand at the start of the file. */
static int format_header(const struct safetensors_item *items, int count,
                         const char *const *metadata, struct buf *ret, struct err *e)
{
    json_auto_t *doc = json_object();
    json_t *about = metadata ? metadata_json(metadata, e) : NULL;
    if (metadata && !about)
        return ERR_INVALID;
    if (about)
        json_object_set_new(doc, "__metadata__", about);
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        uint64_t end = at + item_bytes(&items[i]);
        if (json_object_get(doc, items[i].name) || strcmp(items[i].name, "__metadata__") == 0)
            return err_set(e, ERR_INVALID, "two tensors are named \"%s\"", items[i].name);
        if (json_object_set_new(doc, items[i].name, item_json(&items[i], at, end)) < 0)
            return err_set(e, ERR_INVALID, "a tensor's name is not valid UTF-8");
        at = end;
    }
    CLEANUP(mem_freep) char *text = json_dumps(doc, JSON_COMPACT);
    if (!text)
        return err_set(e, ERR_INTERNAL, "cannot print the header as JSON");
    uint64_t length = (strlen(text) + 7) / 8 * 8;
    for (int i = 0; i < LENGTH_SIZE; i++)
        buf_add(ret, &(char){(char)(length >> (8 * i) & 0xff)}, 1);
    buf_addf(ret, "%-*s", (int)length, text);
    return 0;
}

/* On the disk piece by piece, so that the last fsync has little to do and whoever waits hears of
 * each; what goes wrong with a piece, that fsync tells. */
static int write_all(int fd, const void *bytes, uint64_t n, const struct safetensors_pulse *pulse)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t w = write(fd, p, n < WRITE_PIECE ? n : WRITE_PIECE);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        p += w;
        n -= (uint64_t)w;
        if (w == WRITE_PIECE)
            (void)sync_file_range(fd, 0, 0,
                                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                      SYNC_FILE_RANGE_WAIT_AFTER);
        if (pulse)
            pulse->beat(pulse->context);
    }
    return 0;
}

/* `path` is whose contents they are, for sentences. */
static int write_temporary(const char *temporary, const char *path, const struct buf *header,
                           const struct safetensors_item *items, int count,
                           const struct safetensors_pulse *pulse, struct err *e)
{
    CLEANUP(mem_closep)
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return err_errno(e, "cannot create %s", path);
    int failed = write_all(fd, header->data, header->len, pulse) < 0;
    for (int i = 0; i < count && !failed; i++)
        failed = write_all(fd, items[i].data, item_bytes(&items[i]), pulse) < 0;
    if (failed || fsync(fd) < 0)
        return err_errno(e, "cannot write %s", path);
    return 0;
}

static int sync_directory_of(const char *path, struct err *e)
{
    CLEANUP(mem_freep) char *copy = mem_strdup(path);
    const char *directory = dirname(copy);
    CLEANUP(mem_closep) int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return err_errno(e, "cannot sync the directory %s", directory);
    return 0;
}

static char *temporary_beside(const char *path)
{
    const char *slash = strrchr(path, '/');
    int directory = slash ? (int)(slash + 1 - path) : 0;
    return mem_printf("%.*s.%s.%d.tmp", directory, path, path + directory, (int)getpid());
}

int safetensors_write(const char *path, const struct safetensors_item *items, int count,
                      const char *const *metadata, const struct safetensors_pulse *pulse,
                      struct err *e)
{
    struct buf header = BUF_INIT;
    int r = format_header(items, count, metadata, &header, e);
    if (r == 0) {
        CLEANUP(mem_freep) char *temporary = temporary_beside(path);
        r = write_temporary(temporary, path, &header, items, count, pulse, e);
        if (r == 0 && rename(temporary, path) < 0)
            r = err_errno(e, "cannot rename %s to %s", temporary, path);
        if (r < 0)
            unlink(temporary);
        else
            r = sync_directory_of(path, e);
    }
    buf_done(&header);
    return r < 0 ? r : 0;
}
