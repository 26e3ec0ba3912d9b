/* safetensors_write.c: the header of a file, and whole files.
 *
 * Writing goes to a temporary name beside the file, with a dot in front: what a killed writer
 * leaves is nobody's artifact. The header is padded with spaces to 8 bytes.
 */
#include "trainer/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

#define LENGTH_SIZE 8
#define WRITE_PIECE (16 * 1024 * 1024)

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

int safetensors_header(const struct safetensors_item *items, int count, const char *const *metadata,
                       struct buf *ret, struct err *e)
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

struct safetensors_writer {
    char *path, *temporary;
    int fd;
    uint64_t *at; /* [count]: where the items begin in the file */
};

/* On the disk piece by piece, so that the last fsync has little to do and whoever waits hears of
 * each; what goes wrong with a piece, that fsync tells. */
static int write_all(int fd, uint64_t at, const void *bytes, uint64_t n,
                     const struct safetensors_pulse *pulse)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t w = pwrite(fd, p, n < WRITE_PIECE ? n : WRITE_PIECE, (off_t)at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        p += w;
        at += (uint64_t)w;
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

/* Its header, and its length: what is never put reads as zeroes. */
static int start_file(struct safetensors_writer *w, const struct buf *header,
                      const struct safetensors_item *items, int count, struct err *e)
{
    uint64_t at = header->len;
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (w->fd < 0)
        return err_errno(e, "cannot create %s", w->path);
    for (int i = 0; i < count; i++) {
        w->at[i] = at;
        at += item_bytes(&items[i]);
    }
    if (write_all(w->fd, 0, header->data, header->len, NULL) < 0 || ftruncate(w->fd, (off_t)at) < 0)
        return err_errno(e, "cannot write %s", w->path);
    return 0;
}

static void writer_free(struct safetensors_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    free(w->path);
    free(w->temporary);
    free(w->at);
    free(w);
}

int safetensors_create(const char *path, const struct safetensors_item *items, int count,
                       const char *const *metadata, struct safetensors_writer **ret, struct err *e)
{
    struct buf header = BUF_INIT;
    struct safetensors_writer *w = mem_zalloc(sizeof *w);
    w->fd = -1;
    w->path = mem_strdup(path);
    w->temporary = temporary_beside(path);
    w->at = mem_alloc(((size_t)count + 1) * sizeof *w->at);
    int r = safetensors_header(items, count, metadata, &header, e);
    if (r == 0)
        r = start_file(w, &header, items, count, e);
    buf_done(&header);
    if (r < 0)
        safetensors_abandon(w);
    else
        *ret = w;
    return r;
}

int safetensors_put(struct safetensors_writer *w, int i, size_t from, size_t n, const float *values,
                    const struct safetensors_pulse *pulse, struct err *e)
{
    if (write_all(w->fd, w->at[i] + from * sizeof *values, values, n * sizeof *values, pulse) < 0)
        return err_errno(e, "cannot write %s", w->path);
    return 0;
}

int safetensors_finish(struct safetensors_writer *w, struct err *e)
{
    int r = fsync(w->fd) < 0 ? err_errno(e, "cannot write %s", w->path) : 0;
    if (r == 0 && rename(w->temporary, w->path) < 0)
        r = err_errno(e, "cannot rename %s to %s", w->temporary, w->path);
    if (r < 0) {
        safetensors_abandon(w);
        return r;
    }
    r = sync_directory_of(w->path, e);
    writer_free(w);
    return r;
}

void safetensors_abandon(struct safetensors_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        unlink(w->temporary);
    writer_free(w);
}

int safetensors_write(const char *path, const struct safetensors_item *items, int count,
                      const char *const *metadata, const struct safetensors_pulse *pulse,
                      struct err *e)
{
    struct safetensors_writer *w;
    int r = safetensors_create(path, items, count, metadata, &w, e);
    if (r < 0)
        return r;
    if (pulse)
        pulse->beat(pulse->context);
    for (int i = 0; i < count && r == 0; i++)
        r = safetensors_put(w, i, 0, (size_t)shape_elements(&items[i].shape), items[i].data, pulse,
                            e);
    if (r < 0) {
        safetensors_abandon(w);
        return r;
    }
    return safetensors_finish(w, e);
}
