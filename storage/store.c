/* store.c: opening the state directory: lock, database, pragmas, instance.
 *
 *   STATE_DIR/lock          flock held for the store's life; holds the owner's pid, for people
 *   STATE_DIR/instance      the instance id, written once the database that bears it is durable
 *   STATE_DIR/trainyard.db  and, while open or after a crash, trainyard.db-wal
 *   STATE_DIR/files/        what agents sent (files.c)
 *
 * The instance file is the witness that there was a database: without it an empty disk after a
 * failed mount would look like a first start, and every job would seem never to have been.
 *
 * Nothing is written before the database has been recognised as ours, of a schema that we know, and
 * whole. locking_mode EXCLUSIVE is set before the log is first read: SQLite then holds its lock on
 * the file from there to the end, no other process can read or write or checkpoint, and the
 * log's index lies on the heap instead of in a shared file.
 */
#include "storage/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define INSTANCE_FILE_MAX 256

/* ---- the directory and its lock ---- */
static int open_directory(struct store *s, const char *state_dir, struct err *e)
{
    if (!state_dir[0])
        return err_set(e, ERR_INVALID, "the state directory has an empty name");
    int r = file_mkdirs(state_dir, 0700, e);
    if (r < 0)
        return r;
    s->dir = realpath(state_dir, NULL);
    if (!s->dir)
        return err_errno(e, "cannot resolve the state directory %s", state_dir);
    s->path = mem_printf("%s/trainyard.db", s->dir);
    CLEANUP(mem_freep) char *files = mem_printf("%s/files", s->dir);
    if (mkdir(files, 0700) < 0 && errno != EEXIST)
        return err_errno(e, "cannot create the directory %s", files);
    s->files_fd = open(files, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (s->files_fd < 0)
        return err_errno(e, "cannot open the directory %s", files);
    return 0;
}

static int refuse_second(const struct store *s, struct err *e)
{
    char text[32] = "";
    ssize_t n = pread(s->lock_fd, text, sizeof text - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    char who[48] = "another process";
    if (pid > 0)
        snprintf(who, sizeof who, "another process (pid %ld)", pid);
    return err_set(e, ERR_CONFLICT,
                   "%s uses the state directory %s already: stop it first, or give this one "
                   "another directory",
                   who, s->dir);
}

static int take_lock(struct store *s, struct err *e)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/lock", s->dir);
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return err_errno(e, "cannot open the lock %s", path);
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? refuse_second(s, e) : err_errno(e, "cannot lock %s", path);
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(s->lock_fd, 0) < 0 || pwrite(s->lock_fd, text, (size_t)n, 0) != n)
        return err_errno(e, "cannot write the lock %s", path);
    return 0;
}

/* ---- the instance file ---- */
/* *ret_id is "" if there is none. */
static int read_instance_file(const struct store *s, char ret_id[ID_SIZE], struct err *e)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/instance", s->dir);
    struct buf b = BUF_INIT;
    int r = file_read(path, INSTANCE_FILE_MAX, &b, e);
    if (r == ERR_NOT_FOUND) {
        ret_id[0] = '\0';
        return 0;
    }
    if (r < 0)
        return r;
    if (b.len > 0 && b.data[b.len - 1] == '\n')
        b.data[--b.len] = '\0';
    if (b.len > 0 && strlen(b.data) == b.len && id_valid("inst", b.data))
        snprintf(ret_id, ID_SIZE, "%s", b.data);
    else
        r = err_set(e, ERR_CORRUPT,
                    "%s does not hold an instance id: restore it from a backup, or, if %s is the "
                    "right database, remove it and it is written anew",
                    path, s->path);
    buf_done(&b);
    return r;
}

static int write_instance_file(const struct store *s, struct err *e)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/instance", s->dir);
    CLEANUP(mem_freep) char *text = mem_printf("%s\n", s->instance_id);
    return file_write_atomic(path, text, strlen(text), 0600, e);
}

static int refuse_lost(const struct store *s, const char *what, const char *id, struct err *e)
{
    return err_set(e, ERR_CORRUPT,
                   "%s is %s, but %s/instance says that it held the jobs of %s: restore the "
                   "database (is its disk mounted?), or, to begin anew without them, remove "
                   "%s/instance",
                   s->path, what, s->dir, id, s->dir);
}

/* ---- the database ---- */
static int create_file(const struct store *s, struct err *e)
{
    CLEANUP(mem_closep)
    int fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fchmod(fd, 0600) < 0)
        return err_errno(e, "cannot create the database %s", s->path);
    return 0;
}

/* Creates the file if this directory has never had one. */
static int find_file(const struct store *s, const char *expected_id, struct err *e)
{
    struct stat st;
    if (lstat(s->path, &st) < 0) {
        if (errno != ENOENT)
            return err_errno(e, "cannot look at the database %s", s->path);
        return expected_id[0] ? refuse_lost(s, "missing", expected_id, e) : create_file(s, e);
    }
    if (!S_ISREG(st.st_mode))
        return err_set(
            e, ERR_CONFLICT,
            "%s is not a regular file: move it away, or give Trainyard a state directory "
            "of its own",
            s->path);
    if (st.st_size == 0 && expected_id[0])
        return refuse_lost(s, "empty", expected_id, e);
    return 0;
}

static int set_config(struct store *s, int option, int on, struct err *e)
{
    int is = -1;
    int rc = sqlite3_db_config(s->db, option, on, &is);
    if (rc != SQLITE_OK || is != on)
        return err_set(e, ERR_INTERNAL, "SQLite refuses its configuration option %d", option);
    return 0;
}

/* For the process: this room is the only user of SQLite, from one thread. A process in which it has
 * been initialised before (a test) keeps what it has, which is slower but no less right.
 * STMTJRNL_SPILL: what a mark must remember of the pages changed since is kept on the heap up to
 * this size, in one piece; 250 pages are more than any one request changes. */
static void configure_sqlite(void)
{
    static int done;
    if (done)
        return;
    done = 1;
    sqlite3_config(SQLITE_CONFIG_SINGLETHREAD);
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    sqlite3_config(SQLITE_CONFIG_URI, 0);
    sqlite3_config(SQLITE_CONFIG_STMTJRNL_SPILL, 1 << 20);
}

/* Nothing here touches the file. The log stays as it is at close until the database is accepted. */
static int open_connection(struct store *s, struct err *e)
{
    int flags =
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_EXRESCODE;
    configure_sqlite();
    int rc = sqlite3_open_v2(s->path, &s->db, flags, db_walbuf_vfs());
    if (rc != SQLITE_OK)
        return err_set(e, ERR_IO, "cannot open the database %s: %s", s->path,
                       s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc));
    sqlite3_limit(s->db, SQLITE_LIMIT_LENGTH, 2 * STORE_TEXT_MAX);
    sqlite3_limit(s->db, SQLITE_LIMIT_SQL_LENGTH, 64 << 10);
    sqlite3_limit(s->db, SQLITE_LIMIT_ATTACHED, 0);
    int r = set_config(s, SQLITE_DBCONFIG_DEFENSIVE, 1, e);
    if (r == 0)
        r = set_config(s, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, e);
    if (r == 0)
        r = set_config(s, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, e);
    return r;
}

struct pragma {
    const char *name, *value;
    const char *is; /* as it reads back */
};

static const struct pragma before_reading[] = {
    {"locking_mode", "EXCLUSIVE", "exclusive"},
    {"busy_timeout", "2000", "2000"},
    {"trusted_schema", "OFF", "0"},
    {"cell_size_check", "ON", "1"},
    {"mmap_size", "0", "0"},
};

/* journal_size_limit: what one huge turn left of the log is cut off when the log is next reused. */
static const struct pragma before_writing[] = {
    {"journal_mode", "WAL", "wal"},
    {"synchronous", "FULL", "2"},
    {"foreign_keys", "ON", "1"},
    {"secure_delete", "FAST", "2"},
    {"cache_size", "-16384", "-16384"}, /* KiB; a commit may walk all of it */
    {"journal_size_limit", "67108864", "67108864"},
    {"wal_autocheckpoint", "0", "0"},
};

static int set_pragma(struct store *s, const struct pragma *p, struct err *e)
{
    char set[96], get[64];
    snprintf(set, sizeof set, "PRAGMA %s = %s", p->name, p->value);
    snprintf(get, sizeof get, "PRAGMA %s", p->name);
    CLEANUP(mem_freep) char *is = NULL;
    int r = db_exec(s, set, e);
    if (r == 0)
        r = db_text(s, get, &is, e);
    if (r == 0 && strcmp(is, p->is) != 0)
        r = err_set(e, ERR_IO, "%s: SQLite says %s = %s where %s was set", s->path, p->name, is,
                    p->is);
    return r;
}

static int set_pragmas(struct store *s, const struct pragma *list, size_t n, struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = set_pragma(s, &list[i], e);
    return r;
}

/* *ret_id: what the instance file says, or "". */
static int open_database(struct store *s, char ret_id[ID_SIZE], struct err *e)
{
    int empty = 0;
    int r = read_instance_file(s, ret_id, e);
    if (r == 0)
        r = find_file(s, ret_id, e);
    if (r == 0)
        r = open_connection(s, e);
    if (r == 0)
        r = set_pragmas(s, before_reading, ARRAY_LEN(before_reading), e);
    if (r == 0)
        r = db_schema_recognise(s, &empty, e);
    if (r == 0 && empty && ret_id[0])
        r = refuse_lost(s, "empty", ret_id, e);
    if (r == 0 && !empty)
        r = db_schema_quick_check(s, e);
    if (r == 0)
        r = set_pragmas(s, before_writing, ARRAY_LEN(before_writing), e);
    if (r == 0)
        r = set_config(s, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, e);
    return r;
}

/* ---- the instance ---- */
static int make_instance(struct store *s, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(&q, s, "INSERT INTO instance VALUES (1, ?, 0, 0)", e);
    if (r < 0)
        return r;
    stmt_text(&q, id_new("inst", s->instance_id));
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}

static int load_instance(struct store *s, const char *expected_id, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_read(&q, s, "SELECT id, epoch FROM instance", e);
    if (r < 0)
        return r;
    r = stmt_step(&q, e);
    if (r < 0)
        return r;
    if (r == 0 && expected_id[0])
        return refuse_lost(s, "blank", expected_id, e);
    if (r == 0)
        return make_instance(s, e);
    CLEANUP(mem_freep) char *id = stmt_get_text(&q);
    if (!id_valid("inst", id))
        return err_set(e, ERR_CORRUPT,
                       "%s holds no instance id but '%.60s': restore it from a backup", s->path,
                       id);
    snprintf(s->instance_id, sizeof s->instance_id, "%s", id);
    s->instance_epoch = stmt_get_int(&q);
    return 0;
}

static int raise_epoch(struct store *s, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(&q, s, "UPDATE instance SET epoch = ?", e);
    if (r < 0)
        return r;
    stmt_int(&q, s->instance_epoch + 1);
    r = stmt_run(&q, e);
    if (r < 0)
        return r;
    r = store_commit(s, e);
    if (r == 0)
        s->instance_epoch++;
    return r;
}

static int begin_instance(struct store *s, const char *expected_id, struct err *e)
{
    int r = load_instance(s, expected_id, e);
    if (r < 0)
        return r;
    if (expected_id[0] && strcmp(expected_id, s->instance_id) != 0)
        return err_set(
            e, ERR_CONFLICT,
            "%s belongs to %s, but %s/instance names %s: one of the two was swapped. Put "
            "the matching one back, or, if the database is right, remove %s/instance",
            s->path, s->instance_id, s->dir, expected_id, s->dir);
    r = raise_epoch(s, e);
    if (r == 0 && !expected_id[0])
        r = write_instance_file(s, e);
    return r;
}

/* ---- open and close ---- */
int store_open(const char *state_dir, struct store **ret, struct err *e)
{
    char expected_id[ID_SIZE] = "";
    struct store *s = mem_zalloc(sizeof *s);
    s->lock_fd = s->files_fd = -1;
    s->new_from = INT64_MAX;
    int r = open_directory(s, state_dir, e);
    if (r == 0)
        r = take_lock(s, e);
    if (r == 0)
        r = open_database(s, expected_id, e);
    if (r == 0)
        r = db_schema_migrate(s, e);
    if (r == 0) {
        db_turn_watch_log(s);
        r = begin_instance(s, expected_id, e);
    }
    if (r < 0) {
        store_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    if (s->db) {
        store_rollback(s);
        if (s->dead.code != 0) /* what is in the log is safer there */
            set_config(s, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        stmt_finalize_all(s);
        if (sqlite3_close(s->db) != SQLITE_OK)
            BUG("%s: %s", s->path, sqlite3_errmsg(s->db));
    }
    mem_closep(&s->files_fd);
    mem_closep(&s->lock_fd); /* last: it lets the next one in */
    free(s->dir);
    free(s->path);
    free(s);
}

const char *store_instance_id(const struct store *s)
{
    return s->instance_id;
}

int64_t store_instance_epoch(const struct store *s)
{
    return s->instance_epoch;
}
