/* turn.c: the transaction of a loop turn, its marks, and what a failure means for it.
 *
 * The first write of a turn begins it with BEGIN IMMEDIATE; store_commit() makes it durable, which
 * is one fdatasync of the write-ahead log however many writes it holds. When the disk is full,
 * SQLite may or may not have rolled back by itself; here it is always rolled back, at once, and
 * every later call of the turn fails with the same sentence until the caller has heard it.
 *
 * The log is bounded by checkpoints, which this one connection makes itself: at the start of a
 * turn, never inside store_commit(), so that no acknowledgement waits for one. A checkpoint copies
 * at most CHECKPOINT_FRAMES frames and what one turn wrote on top. Since nobody else reads, it
 * always empties the log, which is then overwritten from its start; the file is kept, because
 * overwriting needs no new blocks and so syncs faster than growing.
 */
#include "storage/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define CHECKPOINT_FRAMES 4000 /* of 4 KiB: 16 MiB, some 25 ms */

/* ---- failures ---- */
static int copy_err(struct err *e, const struct err *from)
{
    return err_set(e, from->code, "%s", from->text);
}

int db_turn_check(const struct store *s, struct err *e)
{
    if (s->dead.code != 0)
        return copy_err(e, &s->dead);
    if (s->failed.code != 0)
        return copy_err(e, &s->failed);
    return 0;
}

/* EFBIG: the file size limit of the process. A sync that fails is never mere lack of space, for
 * what was written before it may be gone. */
static int is_no_space(int rc, int os_error)
{
    if ((rc & 0xff) == SQLITE_FULL)
        return 1;
    if (rc != SQLITE_IOERR_WRITE && rc != SQLITE_IOERR_TRUNCATE)
        return 0;
    return os_error == ENOSPC || os_error == EDQUOT || os_error == EFBIG;
}

static int constraint_code(int rc)
{
    switch (rc) {
    case SQLITE_CONSTRAINT_UNIQUE:
    case SQLITE_CONSTRAINT_PRIMARYKEY:
    case SQLITE_CONSTRAINT_ROWID: return ERR_CONFLICT;
    case SQLITE_CONSTRAINT_FOREIGNKEY: return ERR_NOT_FOUND;
    default: return ERR_INVALID;
    }
}

static int code_of(int rc, int os_error)
{
    if (is_no_space(rc, os_error))
        return ERR_NO_SPACE;
    switch (rc & 0xff) {
    case SQLITE_CONSTRAINT: return constraint_code(rc);
    case SQLITE_TOOBIG: return ERR_TOO_LARGE;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return ERR_CORRUPT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return ERR_UNAVAILABLE;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM: return ERR_IO;
    default: return ERR_INTERNAL;
    }
}

/* The statement alone has failed and was undone; the transaction goes on. */
static int concerns_statement(int rc)
{
    int primary = rc & 0xff;
    return primary == SQLITE_CONSTRAINT || primary == SQLITE_TOOBIG;
}

static void describe(const struct store *s, int code, const char *detail, struct err *ret)
{
    switch (code) {
    case ERR_NO_SPACE:
        err_set(ret, code,
                "the disk that holds %s is full, so nothing of this was stored: free some space "
                "and try again",
                s->path);
        break;
    case ERR_CORRUPT:
        err_set(ret, code,
                "%s is damaged (%s): stop, keep a copy of the directory, and restore the database "
                "from a backup",
                s->path, detail);
        break;
    case ERR_UNAVAILABLE:
        err_set(ret, code, "%s is held by another program (%s): end that program", s->path, detail);
        break;
    case ERR_IO:
        err_set(ret, code, "cannot read or write %s (%s): check the disk, then start again",
                s->path, detail);
        break;
    default: err_set(ret, code, "%s: %s", s->path, detail); break;
    }
}

static void forget_turn(struct store *s)
{
    s->in_turn = 0;
    s->writes = 0;
    s->mark_count = 0;
    s->new_from = INT64_MAX;
    s->memo_seq = 0;
}

static void roll_back(struct store *s)
{
    if (s->in_turn && !sqlite3_get_autocommit(s->db))
        stmt_fixed(s, "ROLLBACK");
    forget_turn(s);
    if (!sqlite3_get_autocommit(s->db))
        BUG("%s: a transaction is left after ROLLBACK: %s", s->path, sqlite3_errmsg(s->db));
}

static void fail_turn(struct store *s, const struct err *why)
{
    roll_back(s);
    if (why->code == ERR_NO_SPACE) {
        s->failed = *why;
        s->checkpoint_at = 1; /* an emptied log is room to write in */
    } else {
        s->dead = *why;
    }
}

int db_turn_error(struct store *s, int rc, struct err *e)
{
    char detail[200];
    struct err why;
    int os_error = sqlite3_system_errno(s->db);
    snprintf(detail, sizeof detail, "%s", sqlite3_errmsg(s->db));
    int code = code_of(rc, os_error);
    if ((rc & 0xff) == SQLITE_IOERR && os_error != 0)
        snprintf(detail, sizeof detail, "%s, %s", sqlite3_errstr(rc), strerror(os_error));
    describe(s, code, detail, &why);
    if (s->in_turn && !concerns_statement(rc))
        fail_turn(s, &why);
    return copy_err(e, &why);
}

/* ---- the log ---- */
static int count_frames(void *userdata, sqlite3 *db, const char *schema, int frames)
{
    (void)db;
    (void)schema;
    ((struct store *)userdata)->wal_frames = frames;
    return SQLITE_OK;
}

void db_turn_watch_log(struct store *s)
{
    s->checkpoint_at = CHECKPOINT_FRAMES;
    sqlite3_wal_hook(s->db, count_frames, s);
}

/* A full disk is no failure here: the log keeps what the database file cannot take yet, and the
 * next try waits until as much again has been written. */
static int checkpoint_if_due(struct store *s, struct err *e)
{
    if (s->wal_frames < s->checkpoint_at)
        return 0;
    int rc = sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    if (rc == SQLITE_OK) {
        s->wal_frames = 0;
        s->checkpoint_at = CHECKPOINT_FRAMES;
        return 0;
    }
    if (is_no_space(rc, sqlite3_system_errno(s->db))) {
        s->checkpoint_at = s->wal_frames + CHECKPOINT_FRAMES;
        return 0;
    }
    int r = db_turn_error(s, rc, &s->dead);
    copy_err(e, &s->dead);
    return r;
}

/* ---- the turn ---- */
int db_turn_begin(struct store *s, struct err *e)
{
    int r = db_turn_check(s, e);
    if (r < 0 || s->in_turn)
        return r;
    r = checkpoint_if_due(s, e);
    if (r < 0)
        return r;
    int rc = stmt_fixed(s, "BEGIN IMMEDIATE");
    if (rc != SQLITE_OK)
        return db_turn_error(s, rc, e);
    s->in_turn = 1;
    return 0;
}

int store_dirty(const struct store *s)
{
    return s->writes > 0 || s->failed.code != 0 || s->dead.code != 0;
}

void store_rollback(struct store *s)
{
    roll_back(s);
    s->failed.code = 0;
}

/* 1 if whoever starts next would not find what is written now. Costs two calls of stat. */
static int is_removed(struct store *s, struct err *ret_why)
{
    struct stat st;
    int moved = 0;
    CLEANUP(mem_freep) char *log = mem_printf("%s-wal", s->path);
    sqlite3_file_control(s->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (!moved && (stat(log, &st) == 0 || errno != ENOENT))
        return 0;
    err_set(ret_why, ERR_IO,
            "%s was removed or replaced while it was in use, so nothing more is stored in it: "
            "restore it, then start again",
            moved ? s->path : log);
    return 1;
}

int store_commit(struct store *s, struct err *e)
{
    struct err why;
    int r = db_turn_check(s, e);
    if (s->mark_count > 0)
        BUG("store_commit with %d open marks", s->mark_count);
    if (r < 0 || s->writes == 0) {
        store_rollback(s);
        return r;
    }
    if (is_removed(s, &why)) {
        fail_turn(s, &why);
        return copy_err(e, &why);
    }
    int rc = stmt_fixed(s, "COMMIT");
    if (rc != SQLITE_OK) {
        r = db_turn_error(s, rc, e);
        store_rollback(s);
        return r;
    }
    forget_turn(s);
    return 0;
}

/* ---- marks ---- */
int store_mark(struct store *s, struct err *e)
{
    int r = db_turn_begin(s, e);
    if (r < 0)
        return r;
    if (s->mark_count == STORE_MARKS_MAX)
        BUG("more than %d nested marks", STORE_MARKS_MAX);
    int rc = stmt_fixed(s, "SAVEPOINT mark");
    if (rc != SQLITE_OK)
        return db_turn_error(s, rc, e);
    s->marks[s->mark_count++] = s->writes;
    return 0;
}

/* 1 if there is a mark to end; none is left of a turn that has failed. */
static int has_mark(const struct store *s, const char *verb)
{
    if (s->failed.code != 0 || s->dead.code != 0)
        return 0;
    if (s->mark_count == 0)
        BUG("%s without a mark", verb);
    return 1;
}

/* A failure fails the turn, and store_commit() tells it. */
void store_keep(struct store *s)
{
    if (!has_mark(s, "store_keep"))
        return;
    int rc = stmt_fixed(s, "RELEASE mark");
    if (rc != SQLITE_OK)
        db_turn_error(s, rc, NULL);
    else
        s->mark_count--;
}

void store_undo(struct store *s)
{
    if (!has_mark(s, "store_undo"))
        return;
    int rc = stmt_fixed(s, "ROLLBACK TO mark");
    if (rc == SQLITE_OK)
        rc = stmt_fixed(s, "RELEASE mark");
    if (rc != SQLITE_OK) {
        db_turn_error(s, rc, NULL);
        return;
    }
    s->writes = s->marks[--s->mark_count];
    s->memo_seq = 0;
}
