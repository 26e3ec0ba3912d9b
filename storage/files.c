/* files.c: what agents send, beneath STATE_DIR/files/<job>/<attempt>/<name>.
 *
 * Job and name come from outside: each must be one plain path component, and every component is
 * opened by itself without following links, so that nothing outside the directory can be reached
 * even by somebody who could plant a link in it. An attempt has at most FILES_MAX files, which
 * bounds a listing.
 *
 * An append is not synced: a log of a running job may lose its tail in a power failure, and the
 * agent sends it again from the size that is left. db_files_sync() makes all of it durable before
 * the attempt's end is written, for after that the agent deletes its copy.
 */
#include "storage/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"

#define FILES_MAX 1000
#define SYNC_EACH 32 /* so many files are synced one by one; of more, the whole file system */
/* Of the disk, 1/20 is left to the database, and at most 1 GiB. */
#define KEPT_SHARE 20
#define KEPT_MOST  (INT64_C(1) << 30)
#define OPEN_FLAGS (O_NOFOLLOW | O_NONBLOCK) /* never waits for the other end of a planted FIFO */

static const char name_bytes[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

static int check_component(const char *what, const char *name, struct err *e)
{
    size_t n = strlen(name);
    if (n >= 1 && n <= NAME_MAX && name[0] != '.' && strspn(name, name_bytes) == n)
        return 0;
    return err_set(
        e, ERR_INVALID,
        "'%.60s' cannot be the name of a %s: use 1 to %d of A-Z a-z 0-9 . _ - and no dot "
        "in front",
        name, what, NAME_MAX);
}

/* ---- directories ---- */
static int open_child(int parent, const char *name, int create, int *ret, struct err *e)
{
    if (create && mkdirat(parent, name, 0700) < 0 && errno != EEXIST)
        return err_errno(e, "cannot create the directory %s", name);
    return file_open_beneath(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, ret, e);
}

/* The attempt's directory; ERR_NOT_FOUND if it isn't there and not to be created. */
static int open_attempt(struct store *s, const char *job_id, int64_t attempt, int create, int *ret,
                        struct err *e)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRId64, attempt);
    int r = check_component("job", job_id, e);
    if (r == 0 && attempt < 1)
        r = err_set(e, ERR_INVALID, "there is no attempt %s: attempts count from 1", number);
    if (r < 0)
        return r;
    CLEANUP(mem_closep) int job = -1;
    r = open_child(s->files_fd, job_id, create, &job, e);
    return r < 0 ? r : open_child(job, number, create, ret, e);
}

/* ---- one file ---- */
static int check_regular(int fd, const char *name, int64_t *ret_size, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(e, "cannot look at %s", name);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_CORRUPT, "%s is not a regular file", name);
    *ret_size = st.st_size;
    return 0;
}

static int open_file(int dir, const char *name, int flags, int *ret_fd, int64_t *ret_size,
                     struct err *e)
{
    CLEANUP(mem_closep) int fd = -1;
    int64_t size = 0;
    int r = file_open_beneath(dir, name, flags | OPEN_FLAGS, 0600, &fd, e);
    if (r == 0)
        r = check_regular(fd, name, &size, e);
    if (r < 0)
        return r;
    *ret_fd = fd;
    fd = -1;
    *ret_size = size;
    return 0;
}

int store_file_open(struct store *s, const char *job_id, int64_t attempt, const char *name,
                    int *ret_fd, int64_t *ret_size, struct err *e)
{
    CLEANUP(mem_closep) int dir = -1;
    int r = check_component("file", name, e);
    if (r == 0)
        r = open_attempt(s, job_id, attempt, 0, &dir, e);
    if (r == 0)
        r = open_file(dir, name, O_RDONLY, ret_fd, ret_size, e);
    if (r == ERR_NOT_FOUND)
        return err_set(e, r, "attempt %" PRId64 " of job %.60s has no file %.60s", attempt, job_id,
                       name);
    return r;
}

/* ---- listing ---- */
struct entry {
    char name[NAME_MAX + 1];
    int64_t bytes;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* Calls `visit` for each name in the directory until it returns non-zero; takes the fd. */
static int each_name(int take_fd, int (*visit)(void *arg, int dir, const char *name), void *arg,
                     struct err *e)
{
    DIR *d = fdopendir(take_fd);
    if (!d) {
        close(take_fd);
        return err_errno(e, "cannot list an attempt's files");
    }
    int r = 0;
    struct dirent *entry;
    while (r == 0 && (errno = 0, entry = readdir(d))) {
        if (entry->d_name[0] != '.')
            r = visit(arg, dirfd(d), entry->d_name);
    }
    if (!entry && errno != 0)
        r = err_errno(e, "cannot list an attempt's files");
    closedir(d);
    return r;
}

struct listing {
    struct entry *entries;
    size_t n;
    struct err *e;
};

static int list_one(void *arg, int dir, const char *name)
{
    struct listing *l = arg;
    struct stat st;
    if (l->n == FILES_MAX)
        return err_set(l->e, ERR_TOO_LARGE, "the attempt has more than %d files", FILES_MAX);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_errno(l->e, "cannot look at %.60s", name);
    if (!S_ISREG(st.st_mode))
        return 0;
    struct entry *entry = &l->entries[l->n++];
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->bytes = st.st_size;
    return 0;
}

static char *listing_json(const struct listing *l)
{
    json_auto_t *array = json_array();
    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(array, json_pack("{s:s, s:I}", "name", l->entries[i].name, "bytes",
                                               (json_int_t)l->entries[i].bytes));
    return json_dumps(array, JSON_COMPACT);
}

int store_file_list(struct store *s, const char *job_id, int64_t attempt, char **ret, struct err *e)
{
    int dir = -1;
    int r = open_attempt(s, job_id, attempt, 0, &dir, e);
    if (r == ERR_NOT_FOUND) {
        *ret = mem_strdup("[]");
        return 0;
    }
    if (r < 0)
        return r;
    CLEANUP(mem_freep) struct entry *entries = mem_alloc(FILES_MAX * sizeof *entries);
    struct listing l = {.entries = entries, .e = e};
    r = each_name(dir, list_one, &l, e);
    if (r < 0)
        return r;
    qsort(entries, l.n, sizeof *entries, by_name);
    char *text = listing_json(&l);
    if (!text)
        return err_set(e, ERR_INTERNAL, "cannot print the list of files of job %.60s", job_id);
    *ret = text;
    return 0;
}

/* ---- appending ---- */
static int count_one(void *arg, int dir, const char *name)
{
    (void)dir;
    (void)name;
    return ++*(int *)arg > FILES_MAX;
}

/* Opens for writing; creates the file, and the directories above it, if they are not there. */
static int open_for_append(struct store *s, const char *job_id, int64_t attempt, const char *name,
                           int *ret_fd, int64_t *ret_size, struct err *e)
{
    CLEANUP(mem_closep) int dir = -1;
    int count = 0, list = -1;
    int r = open_attempt(s, job_id, attempt, 0, &dir, e);
    if (r == 0)
        r = open_file(dir, name, O_WRONLY, ret_fd, ret_size, e);
    if (r != ERR_NOT_FOUND)
        return r;
    mem_closep(&dir);
    dir = -1;
    r = open_attempt(s, job_id, attempt, 1, &dir, e);
    if (r == 0)
        r = open_attempt(s, job_id, attempt, 0, &list, e);
    if (r == 0)
        r = each_name(list, count_one, &count, e);
    if (r < 0)
        return r;
    if (count >= FILES_MAX)
        return err_set(e, ERR_TOO_LARGE,
                       "attempt %" PRId64 " of job %.60s has %d files, which is the most: put "
                       "several into one archive",
                       attempt, job_id, FILES_MAX);
    return open_file(dir, name, O_WRONLY | O_CREAT, ret_fd, ret_size, e);
}

static int write_at(int fd, const char *bytes, size_t n, int64_t offset)
{
    while (n > 0) {
        ssize_t w = pwrite(fd, bytes, n, offset);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        bytes += w;
        offset += w;
        n -= (size_t)w;
    }
    return 0;
}

/* What jobs leave behind may not take the space in which jobs are recorded. */
static int check_space(int fd, const char *name, size_t n, struct err *e)
{
    struct statvfs v;
    if (fstatvfs(fd, &v) < 0)
        return err_errno(e, "cannot ask for the free space for %s", name);
    int64_t unit = (int64_t)v.f_frsize, kept = (int64_t)v.f_blocks * unit / KEPT_SHARE;
    if (kept > KEPT_MOST)
        kept = KEPT_MOST;
    if ((int64_t)v.f_bavail * unit - (int64_t)n >= kept)
        return 0;
    return err_set(e, ERR_NO_SPACE,
                   "the disk that holds the files of jobs is full but for the %" PRId64
                   " MiB that are kept for the database: free some space",
                   kept >> 20);
}

/* A failed write leaves the old size, so that the sender's offset still holds. */
static int append(int fd, const char *name, int64_t size, const void *bytes, size_t n,
                  struct err *e)
{
    if (write_at(fd, bytes, n, size) == 0)
        return 0;
    int r = err_errno(e, "cannot append %zu bytes to %s", n, name);
    if (errno == EFBIG)
        r = err_set(e, ERR_NO_SPACE,
                    "cannot append %zu bytes to %s: it would pass the limit on the size of a file",
                    n, name);
    if (ftruncate(fd, size) < 0)
        return err_errno(e, "cannot cut %s back to %" PRId64 " bytes after a failed write", name,
                         size);
    return r;
}

int store_file_append(struct store *s, const char *job_id, int64_t attempt, const char *name,
                      int64_t offset, const void *bytes, size_t n, int64_t *ret_size, struct err *e)
{
    CLEANUP(mem_closep) int fd = -1;
    int64_t size = 0;
    int r = check_component("file", name, e);
    if (r == 0)
        r = open_for_append(s, job_id, attempt, name, &fd, &size, e);
    if (r < 0)
        return r;
    if (offset != size) {
        *ret_size = size;
        return err_set(e, ERR_CONFLICT,
                       "%s holds %" PRId64 " bytes, so an append at %" PRId64 " would leave a gap "
                       "or write over some: go on from %" PRId64,
                       name, size, offset, size);
    }
    r = n > 0 ? check_space(fd, name, n, e) : 0;
    if (r == 0)
        r = append(fd, name, size, bytes, n, e);
    if (r < 0)
        return r;
    *ret_size = size + (int64_t)n;
    return 0;
}

/* ---- durability ---- */
struct syncing {
    int synced;
    struct err *e;
};

static int sync_one(void *arg, int dir, const char *name)
{
    struct syncing *y = arg;
    CLEANUP(mem_closep) int fd = -1;
    if (++y->synced > SYNC_EACH)
        return syncfs(dir) < 0 ? err_errno(y->e, "cannot sync the files of an attempt") : 1;
    int r = file_open_beneath(dir, name, O_RDONLY | OPEN_FLAGS, 0, &fd, y->e);
    if (r == 0 && fdatasync(fd) < 0)
        r = err_errno(y->e, "cannot sync %s", name);
    return r;
}

/* The entries that lead to the files, up to the root. */
static int sync_directories(struct store *s, const char *job_id, int dir, struct err *e)
{
    CLEANUP(mem_closep) int job = -1;
    int r = open_child(s->files_fd, job_id, 0, &job, e);
    if (r < 0)
        return r;
    if (fsync(dir) < 0 || fsync(job) < 0 || fsync(s->files_fd) < 0)
        return err_errno(e, "cannot sync the directories of job %.60s", job_id);
    return 0;
}

int db_files_sync(struct store *s, const char *job_id, int64_t attempt, struct err *e)
{
    CLEANUP(mem_closep) int dir = -1;
    int list = -1;
    struct syncing y = {.e = e};
    int r = open_attempt(s, job_id, attempt, 0, &dir, e);
    if (r == ERR_NOT_FOUND)
        return 0;
    if (r == 0)
        r = open_attempt(s, job_id, attempt, 0, &list, e);
    if (r == 0)
        r = each_name(list, sync_one, &y, e);
    return r < 0 ? r : sync_directories(s, job_id, dir, e);
}
