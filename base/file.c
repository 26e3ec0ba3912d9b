#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

int file_is_short(int errno_value)
{
    return errno_value == EMFILE || errno_value == ENFILE || errno_value == ENOMEM;
}

int file_read(const char *path, size_t max, struct buf *ret, struct err *e)
{
    CLEANUP(mem_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "cannot open %s", path);
    struct buf b = BUF_INIT;
    for (;;) {
        buf_reserve(&b, 65536);
        ssize_t n = read(fd, b.data + b.len, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            buf_done(&b);
            return err_errno(e, "cannot read %s", path);
        }
        if (n == 0)
            break;
        b.len += (size_t)n;
        b.data[b.len] = '\0';
        if (b.len > max) {
            buf_done(&b);
            return err_set(e, ERR_TOO_LARGE, "%s is larger than the limit of %zu bytes", path, max);
        }
    }
    buf_done(ret);
    *ret = b;
    return 0;
}

static int write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, bytes, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        bytes += w;
        n -= (size_t)w;
    }
    return 0;
}

static int sync_directory_of(const char *path, struct err *e)
{
    CLEANUP(mem_freep) char *copy = mem_strdup(path);
    const char *dir = dirname(copy);
    CLEANUP(mem_closep) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return err_errno(e, "cannot sync the directory %s", dir);
    return 0;
}

static int write_and_sync(const char *tmp, const void *bytes, size_t n, mode_t mode, struct err *e)
{
    CLEANUP(mem_closep)
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return err_errno(e, "cannot create %s", tmp);
    if (write_all(fd, bytes, n) < 0 || fsync(fd) < 0)
        return err_errno(e, "cannot write %s", tmp);
    return 0;
}

int file_write_atomic(const char *path, const void *bytes, size_t n, mode_t mode, struct err *e)
{
    CLEANUP(mem_freep) char *tmp = mem_printf("%s.%d.tmp", path, (int)getpid());
    int r = write_and_sync(tmp, bytes, n, mode, e);
    if (r == 0 && rename(tmp, path) < 0)
        r = err_errno(e, "cannot rename %s to %s", tmp, path);
    if (r < 0) {
        unlink(tmp);
        return r;
    }
    return sync_directory_of(path, e);
}

int file_write_json(const char *path, const json_t *doc, mode_t mode, struct err *e)
{
    CLEANUP(mem_freep) char *text = json_dumps(doc, JSON_COMPACT);
    if (!text)
        return err_set(e, ERR_INTERNAL, "cannot print the document for %s as JSON", path);
    return file_write_atomic(path, text, strlen(text), mode, e);
}

int file_read_json(const char *path, size_t max, json_t **ret, struct err *e)
{
    struct buf b = BUF_INIT;
    int r = file_read(path, max, &b, e);
    if (r < 0)
        return r;
    json_error_t je;
    json_t *doc = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES, &je);
    buf_done(&b);
    if (!doc)
        return err_set(e, ERR_CORRUPT, "%s is not JSON: line %d column %d: %s", path, je.line,
                       je.column, je.text);
    *ret = doc;
    return 0;
}

int file_open_beneath(int root_fd, const char *relative, int flags, mode_t mode, int *ret,
                      struct err *e)
{
    struct open_how how = {
        .flags = (unsigned long long)(flags | O_CLOEXEC),
        .mode = flags & O_CREAT ? mode : 0,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    long fd = syscall(SYS_openat2, root_fd, relative, &how, sizeof how);
    if (fd < 0 && errno == EXDEV)
        return err_set(e, ERR_INVALID, "%s leads outside its root directory", relative);
    if (fd < 0)
        return err_errno(e, "cannot open %s", relative);
    *ret = (int)fd;
    return 0;
}

int file_mkdirs(const char *path, mode_t mode, struct err *e)
{
    CLEANUP(mem_freep) char *copy = mem_strdup(path);
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char was = *p;
        *p = '\0';
        if (mkdir(copy, mode) < 0 && errno != EEXIST)
            return err_errno(e, "cannot create the directory %s", copy);
        *p = was;
        if (was == '\0')
            return 0;
    }
}

/* A tree may be deeper than we have descriptors and stack: at REMOVE_DEPTH a directory is moved up,
 * to the top of the tree, where a later round finds it. */
#define REMOVE_DEPTH 32

struct removal {
    int top_fd; /* -1 above the tree */
    int depth;
    unsigned long moved;
};

static int remove_children(struct removal *m, int dir_fd, struct err *e);

static int move_up(struct removal *m, int dir_fd, const char *name, struct err *e)
{
    char up[48];
    do {
        snprintf(up, sizeof up, ".removed-%lu", m->moved++);
    } while (faccessat(m->top_fd, up, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
    if (renameat(dir_fd, name, m->top_fd, up) < 0 && errno != ENOENT)
        return err_errno(e, "cannot move %s", name);
    return 0;
}

static int remove_entry(struct removal *m, int dir_fd, const char *name, struct err *e)
{
    if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_errno(e, "cannot remove %s", name);
    if (m->depth >= REMOVE_DEPTH)
        return move_up(m, dir_fd, name, e);
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "cannot open %s", name);
    int is_top = m->top_fd < 0;
    int r;
    if (is_top)
        m->top_fd = fd;
    do { /* once more where directories were moved up into it meanwhile */
        unsigned long moved = m->moved;
        m->depth++;
        r = remove_children(m, fd, e);
        m->depth--;
        if (!is_top || moved == m->moved)
            break;
    } while (r == 0);
    close(fd);
    if (is_top)
        m->top_fd = -1;
    if (r == 0 && unlinkat(dir_fd, name, AT_REMOVEDIR) < 0)
        r = err_errno(e, "cannot remove %s", name);
    return r;
}

static int remove_children(struct removal *m, int dir_fd, struct err *e)
{
    int own = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* reads from the start */
    DIR *d = own < 0 ? NULL : fdopendir(own);
    if (!d) {
        int r = err_errno(e, "cannot list a directory");
        mem_closep(&own);
        return r;
    }
    int r = 0;
    struct dirent *entry;
    while (r == 0 && (entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            r = remove_entry(m, dirfd(d), entry->d_name, e);
    }
    closedir(d);
    return r;
}

int file_remove_at(int dir_fd, const char *name, struct err *e)
{
    struct removal m = {.top_fd = -1};
    int r = remove_entry(&m, dir_fd, name, e);
    return r < 0 ? err_prefix(e, "%s", name) : 0;
}

int file_remove_tree(const char *path, struct err *e)
{
    return file_remove_at(AT_FDCWD, path, e);
}
