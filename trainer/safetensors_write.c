/* safetensors_write.c: the header of a file, and whole files of tensors in host memory.
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
    int r = safetensors_header(items, count, metadata, &header, e);
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
