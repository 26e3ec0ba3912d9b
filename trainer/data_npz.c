/* data_npz.c: numpy's archives: a zip file with an npy file for each array, stored or deflated, of
 * any size (zip64). libzip reads it; what it would hold in memory is bounded before. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "base/mem.h"
#include "trainer/data_parts.h"

#define DIRECTORY_MOST (UINT64_C(16) << 20) /* bytes: some 300,000 arrays */
#define DEFLATE_MOST   1032                 /* deflate packs at most this many bytes into one */
#define END_SIZE       22
#define END_MOST       (END_SIZE + 65535) /* with a comment */
#define NAMES_SHOWN    8

/* ---- the directory's size ---- */

static uint64_t little_endian(const unsigned char *p, int width)
{
    uint64_t v = 0;
    for (int i = width; i > 0; i--)
        v = v << 8 | p[i - 1];
    return v;
}

/* The 64-bit end record stands where the locator before the old one says. */
static uint64_t directory_size_64(int fd, uint64_t end_at)
{
    unsigned char locator[20], end[56];
    if (end_at < sizeof locator ||
        pread(fd, locator, sizeof locator, (off_t)(end_at - sizeof locator)) !=
            (ssize_t)sizeof locator ||
        memcmp(locator, "PK\6\7", 4) != 0)
        return 0;
    uint64_t at = little_endian(locator + 8, 8);
    if (at > INT64_MAX || pread(fd, end, sizeof end, (off_t)at) != (ssize_t)sizeof end)
        return 0;
    return little_endian(end + 40, 8);
}

static int check_directory(int fd, const char *name, struct err *e)
{
    CLEANUP(mem_freep) unsigned char *tail = mem_alloc(END_MOST);
    struct data_file file;
    int r = data_file_of(fd, name, &file, e);
    if (r < 0)
        return r;
    uint64_t length = file.size < END_MOST ? file.size : END_MOST, from = file.size - length;
    ssize_t got = pread(fd, tail, length, (off_t)from), at = got - END_SIZE;
    while (at >= 0 && memcmp(tail + at, "PK\5\6", 4) != 0)
        at--;
    if (at < 0)
        return err_set(e, ERR_INVALID,
                       "%s is not a file of numpy.savez, or was not copied whole: a zip archive's "
                       "end is not there",
                       name);
    uint64_t size = little_endian(tail + at + 12, 4);
    if (size == UINT32_MAX)
        size = directory_size_64(fd, from + (uint64_t)at);
    if (size > DIRECTORY_MOST)
        return err_set(e, ERR_TOO_LARGE,
                       "%s: its list of arrays has %" PRIu64 " MiB; at most %" PRIu64
                       " MiB can be read",
                       name, size >> 20, (uint64_t)DIRECTORY_MOST >> 20);
    return 0;
}

/* ---- members ---- */

static int open_zip(int take_fd, const char *name, zip_t **ret, struct err *e)
{
    int code = 0, r = check_directory(take_fd, name, e);
    zip_t *zip = r == 0 ? zip_fdopen(take_fd, 0, &code) : NULL;
    if (zip) {
        *ret = zip;
        return 0;
    }
    close(take_fd);
    if (r < 0)
        return r;
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    r = err_set(e, ERR_CORRUPT, "%s cannot be read as a zip archive: %s", name,
                zip_error_strerror(&error));
    zip_error_fini(&error);
    return r;
}

static int no_such_array(zip_t *zip, const char *path, const char *array, struct err *e)
{
    struct buf names = BUF_INIT;
    char quoted[DATA_QUOTE_SIZE];
    zip_int64_t count = zip_get_num_entries(zip, 0);
    for (zip_int64_t i = 0; i < count && i < NAMES_SHOWN; i++) {
        const char *name = zip_get_name(zip, (zip_uint64_t)i, 0);
        size_t n = name ? strlen(name) : 0;
        n -= n > 4 && strcmp(name + n - 4, ".npy") == 0 ? 4 : 0;
        buf_addf(&names, "%s%s", i ? ", " : "", data_quote(name ? name : "", n, quoted));
    }
    buf_adds(&names, count > NAMES_SHOWN ? ", ..." : "");
    int r = err_set(e, ERR_INVALID, "%s has no array \"%s\"; it has %s", path, array,
                    count > 0 ? names.data : "none at all");
    buf_done(&names);
    return r;
}

static int check_member(const zip_stat_t *st, const char *name, struct err *e)
{
    const zip_uint64_t wanted =
        ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if ((st->valid & wanted) != wanted)
        return err_set(e, ERR_CORRUPT, "%s: the archive does not say how large it is", name);
    if (st->encryption_method != ZIP_EM_NONE)
        return err_set(e, ERR_INVALID, "%s is encrypted", name);
    if (st->comp_method != ZIP_CM_STORE && st->comp_method != ZIP_CM_DEFLATE)
        return err_set(e, ERR_INVALID,
                       "%s is compressed by method %d; save it with numpy.savez or "
                       "numpy.savez_compressed",
                       name, st->comp_method);
    if (st->size > DATA_SPOOL_MAX)
        return err_set(e, ERR_TOO_LARGE, "%s has %" PRIu64 " GiB; at most %" PRIu64 " can be read",
                       name, (uint64_t)st->size >> 30, (uint64_t)DATA_SPOOL_MAX >> 30);
    if (st->size / DEFLATE_MOST > st->comp_size)
        return err_set(e, ERR_INVALID,
                       "%s: its header promises %" PRIu64 " bytes of data, more than %" PRIu64
                       " compressed bytes can hold",
                       name, (uint64_t)st->size, (uint64_t)st->comp_size);
    return 0;
}

/* `name`, of "file: array", outlives the stream. */
static int open_member(zip_t *zip, const char *path, const char *array, const char *name,
                       struct data_stream *ret, struct err *e)
{
    CLEANUP(mem_freep) char *member = mem_printf("%s.npy", array);
    zip_stat_t st;
    zip_int64_t index = zip_name_locate(zip, member, 0);
    if (index < 0)
        return no_such_array(zip, path, array, e);
    if (zip_stat_index(zip, (zip_uint64_t)index, 0, &st) < 0)
        return err_set(e, ERR_CORRUPT, "%s cannot be found: %s", name, zip_strerror(zip));
    int r = check_member(&st, name, e);
    if (r < 0)
        return r;
    zip_file_t *file = zip_fopen_index(zip, (zip_uint64_t)index, 0);
    if (!file)
        return err_set(e, ERR_CORRUPT, "%s cannot be opened: %s", name, zip_strerror(zip));
    *ret = (struct data_stream){.member = file, .name = name, .size = st.size, .fd = -1};
    return 0;
}

int data_read_npz(int take_fd, const struct data_source *source, const struct data_need *need,
                  struct data_out *o, struct data_split *ret, struct err *e)
{
    const char *x = source->x ? source->x : "x", *y = source->y ? source->y : "y";
    CLEANUP(mem_freep) char *x_name = mem_printf("%s: %s", source->path, x);
    CLEANUP(mem_freep) char *y_name = mem_printf("%s: %s", source->path, y);
    struct data_stream xs = {0}, ys = {0};
    zip_t *zip = NULL;
    int r = open_zip(take_fd, source->path, &zip, e);
    if (r < 0)
        return r;
    r = open_member(zip, source->path, x, x_name, &xs, e);
    if (r == 0)
        r = open_member(zip, source->path, y, y_name, &ys, e);
    if (r == 0)
        r = data_read_npy(&xs, &ys, source, need, o, ret, e);
    data_stream_close(&xs);
    data_stream_close(&ys);
    zip_discard(zip);
    return r;
}
