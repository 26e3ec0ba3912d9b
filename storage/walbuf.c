/* walbuf.c: a SQLite VFS that gathers the writes to the write-ahead log.
 *
 * SQLite appends each frame with two small writes, a 24-byte header and a page, which on ext4 cost
 * three to six times as much as the same bytes in one write. A commit here has a hundred frames and
 * more. So the log's writes are appended to a buffer as long as they are contiguous, and written
 * out as one before anything that could tell the difference: a read, a sync, a truncation, a
 * question about the size, the close. Order and content are what SQLite wrote, and nothing that
 * SQLite believes durable is ever only in the buffer, because a sync writes it out first.
 *
 * So a full disk may be told by the sync where SQLite expected it from the write; either undoes the
 * transaction. What could not be written is dropped, for a later try would bring back a transaction
 * that was reported as failed. Until SQLite writes that place anew, which it does because it
 * has undone the transaction, nothing there can be read and nothing be written behind it.
 *
 * All other files, the database among them, are opened by the system's VFS without a wrapper.
 */
#include "storage/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_SIZE (64 << 10) /* SQLite passes at most 128 KiB - 1 to one pwrite */

struct log_file {
    sqlite3_file base;
    sqlite3_file *real; /* lies behind this struct */
    char *bytes;        /* not yet written: `n` of them, for `offset` */
    sqlite3_int64 offset;
    int n;
    int error;          /* of a write that was dropped, or SQLITE_OK */
    sqlite3_int64 lost; /* where that was */
};

static sqlite3_vfs *system_vfs;

static struct log_file *log_of(sqlite3_file *f)
{
    return (struct log_file *)f;
}

/* A quota and a limit on the size of a file are lack of space too; SQLite knows ENOSPC alone. */
static int write_out(struct log_file *f, const void *bytes, int n, sqlite3_int64 offset)
{
    int os_error = 0;
    int rc = f->real->pMethods->xWrite(f->real, bytes, n, offset);
    if (rc == SQLITE_IOERR_WRITE)
        f->real->pMethods->xFileControl(f->real, SQLITE_FCNTL_LAST_ERRNO, &os_error);
    return os_error == EDQUOT || os_error == EFBIG ? SQLITE_FULL : rc;
}

static int flush(struct log_file *f)
{
    if (f->n == 0)
        return SQLITE_OK;
    int rc = write_out(f, f->bytes, f->n, f->offset);
    f->n = 0;
    if (rc != SQLITE_OK) {
        f->error = rc;
        f->lost = f->offset;
    }
    return rc;
}

/* SQLITE_OK, or the error of the dropped write that [0, end) would reach into. */
static int check_lost(const struct log_file *f, sqlite3_int64 end)
{
    return f->error != SQLITE_OK && end > f->lost ? f->error : SQLITE_OK;
}

static int log_write(sqlite3_file *file, const void *bytes, int n, sqlite3_int64 offset)
{
    struct log_file *f = log_of(file);
    if (f->n > 0 && (offset != f->offset + f->n || n > BUFFER_SIZE - f->n)) {
        int rc = flush(f);
        if (rc != SQLITE_OK)
            return rc;
    }
    int lost = check_lost(f, offset);
    if (lost != SQLITE_OK)
        return lost;
    f->error = SQLITE_OK;
    if (n > BUFFER_SIZE)
        return write_out(f, bytes, n, offset);
    if (f->n == 0)
        f->offset = offset;
    memcpy(f->bytes + f->n, bytes, (size_t)n);
    f->n += n;
    return SQLITE_OK;
}

static int log_read(sqlite3_file *file, void *bytes, int n, sqlite3_int64 offset)
{
    struct log_file *f = log_of(file);
    int rc = flush(f);
    if (rc == SQLITE_OK)
        rc = check_lost(f, offset + n);
    return rc != SQLITE_OK ? rc : f->real->pMethods->xRead(f->real, bytes, n, offset);
}

static int log_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    struct log_file *f = log_of(file);
    int rc = flush(f);
    return rc != SQLITE_OK ? rc : f->real->pMethods->xTruncate(f->real, size);
}

static int log_sync(sqlite3_file *file, int flags)
{
    struct log_file *f = log_of(file);
    int rc = flush(f);
    return rc != SQLITE_OK ? rc : f->real->pMethods->xSync(f->real, flags);
}

static int log_size(sqlite3_file *file, sqlite3_int64 *ret)
{
    struct log_file *f = log_of(file);
    int rc = flush(f);
    return rc != SQLITE_OK ? rc : f->real->pMethods->xFileSize(f->real, ret);
}

static int log_close(sqlite3_file *file)
{
    struct log_file *f = log_of(file);
    int flushed = flush(f);
    int closed = f->real->pMethods->xClose(f->real);
    free(f->bytes);
    f->bytes = NULL;
    return flushed != SQLITE_OK ? flushed : closed;
}

static int log_lock(sqlite3_file *file, int level)
{
    sqlite3_file *real = log_of(file)->real;
    return real->pMethods->xLock(real, level);
}

static int log_unlock(sqlite3_file *file, int level)
{
    sqlite3_file *real = log_of(file)->real;
    return real->pMethods->xUnlock(real, level);
}

static int log_check_lock(sqlite3_file *file, int *ret)
{
    sqlite3_file *real = log_of(file)->real;
    return real->pMethods->xCheckReservedLock(real, ret);
}

static int log_control(sqlite3_file *file, int op, void *arg)
{
    sqlite3_file *real = log_of(file)->real;
    return real->pMethods->xFileControl(real, op, arg);
}

static int log_sector(sqlite3_file *file)
{
    sqlite3_file *real = log_of(file)->real;
    return real->pMethods->xSectorSize(real);
}

static int log_device(sqlite3_file *file)
{
    sqlite3_file *real = log_of(file)->real;
    return real->pMethods->xDeviceCharacteristics(real);
}

static const sqlite3_io_methods log_methods = {
    .iVersion = 1,
    .xClose = log_close,
    .xRead = log_read,
    .xWrite = log_write,
    .xTruncate = log_truncate,
    .xSync = log_sync,
    .xFileSize = log_size,
    .xLock = log_lock,
    .xUnlock = log_unlock,
    .xCheckReservedLock = log_check_lock,
    .xFileControl = log_control,
    .xSectorSize = log_sector,
    .xDeviceCharacteristics = log_device,
};

/* pMethods stays NULL after a failure: SQLite then does not close the file. */
static int open_log(sqlite3_filename name, struct log_file *f, int flags, int *ret_flags)
{
    memset(f, 0, sizeof *f);
    f->real = (sqlite3_file *)(f + 1);
    f->real->pMethods = NULL;
    int rc = system_vfs->xOpen(system_vfs, name, f->real, flags, ret_flags);
    if (rc != SQLITE_OK) {
        if (f->real->pMethods)
            f->real->pMethods->xClose(f->real);
        return rc;
    }
    f->bytes = mem_alloc(BUFFER_SIZE);
    f->base.pMethods = &log_methods;
    return SQLITE_OK;
}

static int vfs_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *file, int flags,
                    int *ret_flags)
{
    (void)vfs;
    if (flags & SQLITE_OPEN_WAL)
        return open_log(name, log_of(file), flags, ret_flags);
    return system_vfs->xOpen(system_vfs, name, file, flags, ret_flags);
}

/* Beneath it lies the VFS that is the default now, so that a test can put its own there. */
const char *db_walbuf_vfs(void)
{
    static sqlite3_vfs vfs;
    if (!system_vfs) {
        system_vfs = sqlite3_vfs_find(NULL);
        if (!system_vfs)
            BUG("SQLite has no default VFS");
        vfs = *system_vfs;
        vfs.pNext = NULL;
        vfs.zName = "trainyard";
        vfs.szOsFile = (int)sizeof(struct log_file) + system_vfs->szOsFile;
        vfs.xOpen = vfs_open;
        if (sqlite3_vfs_register(&vfs, 0) != SQLITE_OK)
            BUG("SQLite refuses a VFS");
    }
    return vfs.zName;
}
