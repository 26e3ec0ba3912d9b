/* data_stream.c: a file's bytes through zlib's gzFile, which inflates gzip (several members too,
 * with their checksums) and passes everything else through; or those of a member of a zip archive,
 * through libzip. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>
#include <zlib.h>

#include "base/mem.h"
#include "trainer/data_parts.h"

#define GZ_BUFFER    (256u << 10)
#define READ_CHUNK   (UINT64_C(1) << 28)
#define DEFLATE_MOST 1032 /* deflate packs at most this many bytes into one */

int data_file_of(int fd, const char *name, struct data_file *ret, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(e, "cannot examine %s", name);
    *ret = (struct data_file){.device = st.st_dev,
                              .inode = st.st_ino,
                              .size = (uint64_t)st.st_size,
                              .changed_ns =
                                  st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec};
    return 0;
}

int data_stream_open(int take_fd, const char *name, struct data_stream *ret, struct err *e)
{
    struct data_file was;
    unsigned char magic[2] = {0, 0};
    int r = data_file_of(take_fd, name, &was, e);
    if (r == 0 && pread(take_fd, magic, 2, 0) < 0)
        r = err_errno(e, "cannot read %s", name);
    if (r < 0) {
        close(take_fd);
        return r;
    }
    gzFile gz = gzdopen(take_fd, "rb");
    if (!gz) {
        close(take_fd);
        return err_set(e, ERR_IO, "cannot set up the reading of %s", name);
    }
    gzbuffer(gz, GZ_BUFFER);
    *ret = (struct data_stream){.gz = gz,
                                .name = name,
                                .size = was.size,
                                .fd = fcntl(take_fd, F_DUPFD_CLOEXEC, 3),
                                .compressed = magic[0] == 0x1f && magic[1] == 0x8b,
                                .was = was};
    return 0;
}

static int stream_error(struct data_stream *s, struct err *e)
{
    int code = Z_OK;
    const char *why = gzerror(s->gz, &code);
    if (code == Z_ERRNO)
        return err_errno(e, "cannot read %s", s->name);
    if (code == Z_BUF_ERROR)
        return err_set(e, ERR_CORRUPT,
                       "%s ends in the middle of its gzip data, after %" PRIu64
                       " inflated bytes: was it copied whole?",
                       s->name, s->read);
    return err_set(e, ERR_CORRUPT, "%s is damaged: its gzip data cannot be inflated (%s)", s->name,
                   why);
}

/* ---- what follows the gzip data ---- */

/* zlib passes over it without a word, and it may be a part whose first bytes are damaged. One
 * member whose checksum and length are right ends the file; else it is inflated once more, to see.
 */
static int ends_right(const struct data_stream *s)
{
    unsigned char b[8];
    uint64_t is = 0, wanted = (uint64_t)(uint32_t)s->read << 32 | s->crc;
    if (pread(s->fd, b, 8, (off_t)s->size - 8) != 8)
        return 0;
    for (int i = 0; i < 8; i++)
        is |= (uint64_t)b[i] << 8 * i;
    return is == wanted;
}

/* Where the last member ends; the file's size if that cannot be told. */
static uint64_t members_end(const struct data_stream *s)
{
    unsigned char *in = mem_alloc(GZ_BUFFER), *out = mem_alloc(GZ_BUFFER);
    z_stream z = {0};
    uint64_t at = 0, end = s->size;
    int rc = inflateInit2(&z, 15 + 16);
    while (rc == Z_OK || rc == Z_BUF_ERROR) {
        if (z.avail_in == 0) {
            ssize_t n = pread(s->fd, in, GZ_BUFFER, (off_t)at);
            if (n <= 0)
                break;
            z.next_in = in;
            z.avail_in = (unsigned)n;
            at += (uint64_t)n;
        }
        z.next_out = out;
        z.avail_out = GZ_BUFFER;
        rc = inflate(&z, Z_NO_FLUSH);
        if (rc == Z_STREAM_END) {
            end = at - z.avail_in;
            rc = inflateReset(&z);
        }
    }
    inflateEnd(&z);
    free(in);
    free(out);
    return end;
}

/* Zeros may follow, as tapes have them. */
static int is_padding(const struct data_stream *s, uint64_t from)
{
    unsigned char b[4096];
    ssize_t n;
    for (; (n = pread(s->fd, b, sizeof b, (off_t)from)) > 0; from += (uint64_t)n) {
        for (ssize_t i = 0; i < n; i++) {
            if (b[i])
                return 0;
        }
    }
    return 1;
}

static int check_end(struct data_stream *s, struct err *e)
{
    if (s->whole || !s->compressed || s->fd < 0)
        return 0;
    s->whole = 1;
    uint64_t end = ends_right(s) ? s->size : members_end(s);
    if (is_padding(s, end))
        return 0;
    return err_set(e, ERR_CORRUPT,
                   "%s: %" PRIu64 " bytes that are no gzip data follow the first %" PRIu64
                   ": is a second part damaged?",
                   s->name, s->size - end, end);
}

static int read_gz(struct data_stream *s, unsigned char *to, uint64_t n, uint64_t *ret,
                   struct err *e)
{
    int got = gzread(s->gz, to, (unsigned)n);
    int code = Z_OK;
    if (got >= 0 && (uint64_t)got < n)
        gzerror(s->gz, &code);
    if (got < 0 || code != Z_OK)
        return stream_error(s, e);
    if (s->compressed && got > 0)
        s->crc = (uint32_t)crc32_z(s->crc, to, (size_t)got);
    *ret = (uint64_t)got;
    return 0;
}

/* libzip compares the checksum with the last byte. */
static int read_member(struct data_stream *s, unsigned char *to, uint64_t n, uint64_t *ret,
                       struct err *e)
{
    zip_int64_t got = zip_fread(s->member, to, n);
    if (got < 0)
        return err_set(e, ERR_CORRUPT, "%s is damaged after %" PRIu64 " bytes: %s", s->name,
                       s->read, zip_file_strerror(s->member));
    *ret = (uint64_t)got;
    return 0;
}

int data_stream_read(struct data_stream *s, void *to, uint64_t n, uint64_t *ret, struct err *e)
{
    uint64_t done = 0, got = 1;
    while (done < n && got > 0) {
        uint64_t want = n - done < READ_CHUNK ? n - done : READ_CHUNK;
        unsigned char *at = (unsigned char *)to + done;
        int r = s->member ? read_member(s, at, want, &got, e) : read_gz(s, at, want, &got, e);
        if (r < 0)
            return r;
        done += got;
        s->read += got;
        if (s->read > DATA_SPOOL_MAX && s->compressed)
            return err_set(e, ERR_TOO_LARGE, "%s has more than %" PRIu64 " GiB of data", s->name,
                           (uint64_t)DATA_SPOOL_MAX >> 30);
    }
    *ret = done;
    return done < n ? check_end(s, e) : 0;
}

int data_stream_exactly(struct data_stream *s, void *to, uint64_t n, const char *what,
                        struct err *e)
{
    uint64_t got = 0;
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

int data_stream_ends(struct data_stream *s, struct err *e)
{
    char extra;
    uint64_t at = s->read, got = 0;
    int r = data_stream_read(s, &extra, 1, &got, e);
    if (r < 0)
        return r;
    if (got > 0)
        return err_set(e, ERR_INVALID,
                       "%s goes on after the %" PRIu64 " bytes that its header promises", s->name,
                       at);
    return 0;
}

int data_stream_promises(const struct data_stream *s, uint64_t bytes, struct err *e)
{
    if (!s->compressed) {
        uint64_t left = s->size > s->read ? s->size - s->read : 0;
        if (bytes == left)
            return 0;
        return err_set(e, ERR_INVALID,
                       "%s: its header promises %" PRIu64 " bytes of data, but %" PRIu64
                       " bytes follow it",
                       s->name, bytes, left);
    }
    if (bytes / DEFLATE_MOST <= s->size)
        return 0;
    return err_set(e, ERR_INVALID,
                   "%s: its header promises %" PRIu64 " bytes of data, more than a gzip file of "
                   "%" PRIu64 " bytes can hold",
                   s->name, bytes, s->size);
}

int data_stream_is_plain(const struct data_stream *s)
{
    return s->gz && !s->compressed && s->fd >= 0;
}

int data_stream_unchanged(const struct data_stream *s, struct err *e)
{
    struct data_file is;
    int r = data_file_of(s->fd, s->name, &is, e);
    if (r < 0)
        return r;
    if (memcmp(&is, &s->was, sizeof is) == 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "%s was changed while it was read", s->name);
}

void data_stream_close(struct data_stream *s)
{
    if (s->gz) {
        gzclose(s->gz);
        mem_closep(&s->fd);
    }
    if (s->member)
        zip_fclose(s->member);
    s->gz = NULL;
    s->member = NULL;
}
