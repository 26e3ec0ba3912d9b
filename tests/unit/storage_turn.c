/* storage_turn.c: the turn's transaction: what a commit promises, what a mark takes back, and what
 * a disk that fails or lies does to both. A disk that is full is in storage_full.c.
 *
 * Faults come from a VFS beneath the store's own: it counts writes and syncs, and fails the n-th.
 */
#include "tests/unit/storage_helper.h"

#include <errno.h>
#include <sys/stat.h>

/* ---- the faulty VFS ---- */
static struct {
    int writes, syncs;         /* so far */
    int fail_write, fail_sync; /* how many more succeed before one fails; -1: never */
    int fail_rc;               /* what a failing write answers */
    int stays;                 /* every later one fails too */
} fault = {.fail_write = -1, .fail_sync = -1};

static void fault_reset(void)
{
    memset(&fault, 0, sizeof fault);
    fault.fail_write = fault.fail_sync = -1;
}

struct faulty {
    sqlite3_file base;
    sqlite3_file *real;
};

static sqlite3_vfs *real_vfs;
static sqlite3_io_methods methods;

static sqlite3_file *real_of(sqlite3_file *f)
{
    return ((struct faulty *)f)->real;
}

/* 1 if this one is to fail. */
static int strikes(int *left)
{
    if (*left < 0)
        return 0;
    if (*left > 0) {
        --*left;
        return 0;
    }
    if (!fault.stays)
        *left = -1;
    return 1;
}

static int f_close(sqlite3_file *f)
{
    return real_of(f)->pMethods->xClose(real_of(f));
}
static int f_read(sqlite3_file *f, void *b, int n, sqlite3_int64 at)
{
    return real_of(f)->pMethods->xRead(real_of(f), b, n, at);
}
/* A write that fails has written half, as a real one may. */
static int f_write(sqlite3_file *f, const void *b, int n, sqlite3_int64 at)
{
    fault.writes++;
    if (!strikes(&fault.fail_write))
        return real_of(f)->pMethods->xWrite(real_of(f), b, n, at);
    if (n > 1)
        real_of(f)->pMethods->xWrite(real_of(f), b, n / 2, at);
    errno = EIO;
    return fault.fail_rc;
}
static int f_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    return real_of(f)->pMethods->xTruncate(real_of(f), n);
}
static int f_sync(sqlite3_file *f, int flags)
{
    fault.syncs++;
    if (strikes(&fault.fail_sync)) {
        errno = EIO;
        return SQLITE_IOERR_FSYNC;
    }
    return real_of(f)->pMethods->xSync(real_of(f), flags);
}
static int f_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return real_of(f)->pMethods->xFileSize(real_of(f), n);
}
static int f_lock(sqlite3_file *f, int l)
{
    return real_of(f)->pMethods->xLock(real_of(f), l);
}
static int f_unlock(sqlite3_file *f, int l)
{
    return real_of(f)->pMethods->xUnlock(real_of(f), l);
}
static int f_check(sqlite3_file *f, int *r)
{
    return real_of(f)->pMethods->xCheckReservedLock(real_of(f), r);
}
static int f_control(sqlite3_file *f, int op, void *a)
{
    return real_of(f)->pMethods->xFileControl(real_of(f), op, a);
}
static int f_sector(sqlite3_file *f)
{
    return real_of(f)->pMethods->xSectorSize(real_of(f));
}
static int f_device(sqlite3_file *f)
{
    return real_of(f)->pMethods->xDeviceCharacteristics(real_of(f));
}

static int f_open(sqlite3_vfs *v, sqlite3_filename name, sqlite3_file *file, int flags, int *ret)
{
    (void)v;
    struct faulty *f = (struct faulty *)file;
    f->base.pMethods = NULL;
    f->real = (sqlite3_file *)(f + 1);
    int rc = real_vfs->xOpen(real_vfs, name, f->real, flags, ret);
    if (rc == SQLITE_OK)
        f->base.pMethods = &methods;
    return rc;
}

/* iVersion 1: no shared memory, so only a store that needs none can use WAL on it. */
static int install_faulty(void **state)
{
    (void)state;
    static sqlite3_vfs vfs;
    methods = (sqlite3_io_methods){
        .iVersion = 1,
        .xClose = f_close,
        .xRead = f_read,
        .xWrite = f_write,
        .xTruncate = f_truncate,
        .xSync = f_sync,
        .xFileSize = f_size,
        .xLock = f_lock,
        .xUnlock = f_unlock,
        .xCheckReservedLock = f_check,
        .xFileControl = f_control,
        .xSectorSize = f_sector,
        .xDeviceCharacteristics = f_device,
    };
    real_vfs = sqlite3_vfs_find(NULL);
    vfs = *real_vfs;
    vfs.zName = "faulty";
    vfs.pNext = NULL;
    vfs.szOsFile += (int)sizeof(struct faulty);
    vfs.xOpen = f_open;
    return sqlite3_vfs_register(&vfs, 1);
}

static int open_faultless(void **state)
{
    fault_reset();
    return fixture_open(state);
}

/* ---- commits ---- */
static void test_commit_syncs(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 20; i++) {
        char id[ID_SIZE];
        put_job(f, id_new("job", id));
        int before = fault.syncs;
        assert_ok(f, store_commit(f->s, &f->e));
        assert_true(fault.syncs > before); /* nothing is acknowledged without one */
    }
}

static void test_group_commit(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_warm");
    assert_ok(f, store_commit(f->s, &f->e));
    int before = fault.syncs, writes = fault.writes;
    for (int i = 0; i < 100; i++) {
        char id[ID_SIZE];
        put_job(f, id_new("job", id));
    }
    assert_int_equal(fault.writes, writes); /* nothing leaves before the commit */
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(fault.syncs, before + 1);
}

static void test_dirty(void **state)
{
    struct fixture *f = *state;
    int64_t epoch;
    assert_int_equal(store_dirty(f->s), 0);
    assert_ok(f, store_commit(f->s, &f->e));  /* an empty turn */
    assert_int_equal(has_job(f, "job_1"), 0); /* a read opens nothing */
    assert_int_equal(store_dirty(f->s), 0);
    assert_ok(f, store_mark(f->s, &f->e));
    store_keep(f->s);
    assert_int_equal(store_dirty(f->s), 0); /* nor does a mark alone */
    assert_ok(f, store_lease_release(f->s, "att_none", 1, &f->e));
    assert_int_equal(store_dirty(f->s), 0); /* nor a write that changed nothing */
    assert_ok(f, store_epoch_next(f->s, &epoch, &f->e));
    assert_int_equal(store_dirty(f->s), 1);
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(store_dirty(f->s), 0);
}

static void test_rollback(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_1");
    store_rollback(f->s);
    store_rollback(f->s);
    assert_int_equal(store_dirty(f->s), 0);
    assert_int_equal(has_job(f, "job_1"), 0);
    assert_int_equal(pending_count(f), 0);
    int64_t seq = put_job(f, "job_1");
    assert_int_equal(seq, 1);
    assert_ok(f, store_commit(f->s, &f->e));
}

static void test_uncommitted_is_gone(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_kept");
    assert_ok(f, store_commit(f->s, &f->e));
    put_job(f, "job_lost");
    reopen(f);
    assert_int_equal(has_job(f, "job_kept"), 1);
    assert_int_equal(has_job(f, "job_lost"), 0);
}

/* ---- marks ---- */
static void test_marks(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_1");
    assert_ok(f, store_mark(f->s, &f->e));
    put_job(f, "job_2");
    assert_ok(f, store_mark(f->s, &f->e));
    put_job(f, "job_3");
    store_undo(f->s);
    put_job(f, "job_4");
    store_keep(f->s);
    assert_ok(f, store_mark(f->s, &f->e));
    put_job(f, "job_5");
    assert_ok(f, store_mark(f->s, &f->e));
    put_job(f, "job_6");
    store_keep(f->s);
    store_undo(f->s); /* takes back what an inner mark had kept */
    assert_ok(f, store_commit(f->s, &f->e));
    const int there[] = {1, 1, 0, 1, 0, 0};
    for (int i = 0; i < 6; i++) {
        char id[16];
        snprintf(id, sizeof id, "job_%d", i + 1);
        assert_int_equal(has_job(f, id), there[i]);
    }
    assert_int_equal(pending_count(f), 3);
}

static void test_undo_of_everything(void **state)
{
    struct fixture *f = *state;
    assert_ok(f, store_mark(f->s, &f->e));
    put_job(f, "job_1");
    assert_int_equal(store_dirty(f->s), 1);
    store_undo(f->s);
    assert_int_equal(store_dirty(f->s), 0);
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(has_job(f, "job_1"), 0);
}

/* The look-up that was remembered must not outlive the job that it found. */
static void test_undo_forgets_look_up(void **state)
{
    struct fixture *f = *state;
    struct step_row step = {.attempt = 1, .step = 1, .epoch = 1};
    assert_ok(f, store_mark(f->s, &f->e));
    put_job(f, "job_1");
    assert_ok(f, store_step_put(f->s, "job_1", &step, &f->e));
    store_undo(f->s);
    assert_int_equal(store_step_put(f->s, "job_1", &step, &f->e), ERR_NOT_FOUND);
    put_job(f, "job_2");
    store_rollback(f->s);
    assert_int_equal(store_step_put(f->s, "job_2", &step, &f->e), ERR_NOT_FOUND);
}

static void test_deep_marks(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < STORE_MARKS_MAX; i++) {
        char id[16];
        snprintf(id, sizeof id, "job_%d", i);
        assert_ok(f, store_mark(f->s, &f->e));
        put_job(f, id);
    }
    for (int i = 0; i < STORE_MARKS_MAX; i++) {
        if (i % 2)
            store_keep(f->s);
        else
            store_undo(f->s);
    }
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(pending_count(f), 1); /* the outermost was kept, the next undone */
    assert_int_equal(has_job(f, "job_0"), 1);
}

/* A refused statement costs the turn nothing. */
static void test_constraint_goes_on(void **state)
{
    struct fixture *f = *state;
    struct job_row r = sample_job("job_1");
    put_job(f, "job_1");
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_CONFLICT);
    r.id = (char *)"job_2";
    r.state = (enum job_state)99;
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_INVALID);
    r.state = JOB_PENDING;
    r.plan = NULL;
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_INVALID);
    put_job(f, "job_3");
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(pending_count(f), 2);
    assert_int_equal(has_job(f, "job_2"), 0);
}

/* ---- the n-th write fails ---- */
#define COMMITTED 40

/* One turn of some jobs with the n-th write failing, for every n until none fails any more. */
static void each_write_fails(struct fixture *f, int rc, int code)
{
    int64_t expected = 0;
    fault.fail_rc = rc;
    int failed = 1;
    for (int n = 0; failed; n++) {
        char prefix[24];
        snprintf(prefix, sizeof prefix, "job_%d_%d", rc, n);
        assert_true(n < 200);
        f->s->checkpoint_at = n % 3 ? f->s->checkpoint_at : 1; /* some with a checkpoint first */
        fault.fail_write = n;
        int r = insert_some(f, prefix, COMMITTED);
        if (r == 0)
            r = store_commit(f->s, &f->e);
        else
            store_rollback(f->s);
        failed = fault.fail_write < 0;
        fault.fail_write = -1;
        if (r == 0)
            expected += COMMITTED; /* a checkpoint may fail without the turn */
        else
            assert_int_equal(r, code);
        assert_int_equal(pending_count(f), expected);
    }
    reopen(f);
    assert_int_equal(pending_count(f), expected);
    assert_true(expected > 0);
}

static void test_nth_write_full(void **state)
{
    each_write_fails(*state, SQLITE_FULL, ERR_NO_SPACE);
}

/* What failed is not brought back by whatever is written later, even if the process then dies. */
static void test_failed_stays_failed(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_first");
    assert_ok(f, store_commit(f->s, &f->e));
    fault.fail_rc = SQLITE_FULL;
    fault.fail_write = 0;
    assert_int_equal(insert_some(f, "job_refused", 5), 0);
    assert_int_equal(store_commit(f->s, &f->e), ERR_NO_SPACE);
    assert_int_equal(has_job(f, "job_first"), 1);
    f->s->dead = (struct err){.code = ERR_IO}; /* closes without a checkpoint, as a kill would */
    reopen(f);
    assert_int_equal(has_job(f, "job_first"), 1);
    assert_int_equal(has_job(f, "job_refused_0"), 0);
}

/* A commit into a file that has no name any more would be gone with this process. */
static void removed_file(struct fixture *f, const char *suffix)
{
    char path[160], aside[160];
    snprintf(path, sizeof path, "%s/trainyard.db%s", f->dir, suffix);
    snprintf(aside, sizeof aside, "%s/aside", f->dir);
    put_job(f, "job_kept");
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(rename(path, aside), 0);
    put_job(f, "job_refused");
    assert_int_equal(store_commit(f->s, &f->e), ERR_IO);
    assert_non_null(strstr(f->e.text, "was removed or replaced"));
    assert_int_equal(store_commit(f->s, &f->e), ERR_IO); /* and stays so */
    assert_int_equal(rename(aside, path), 0);
    reopen(f);
    assert_int_equal(has_job(f, "job_kept"), 1);
    assert_int_equal(has_job(f, "job_refused"), 0);
}

static void test_database_removed(void **state)
{
    removed_file(*state, "");
}

static void test_log_removed(void **state)
{
    removed_file(*state, "-wal");
}

/* ---- a disk that lies ---- */
static void test_failed_sync(void **state)
{
    struct fixture *f = *state;
    int64_t n;
    put_job(f, "job_first");
    assert_ok(f, store_commit(f->s, &f->e));
    put_job(f, "job_second");
    fault.fail_sync = 0;
    assert_int_equal(store_commit(f->s, &f->e), ERR_IO);
    assert_says(f, "check the disk");
    /* The next sync would succeed, and means nothing: no more is accepted. */
    assert_int_equal(store_dirty(f->s), 1);
    assert_int_equal(store_epoch_next(f->s, &n, &f->e), ERR_IO);
    store_rollback(f->s);
    assert_int_equal(store_commit(f->s, &f->e), ERR_IO);
    int writes = fault.writes;
    store_close(f->s);
    f->s = NULL;
    assert_int_equal(fault.writes, writes); /* the log is left as it is */
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    assert_int_equal(has_job(f, "job_first"), 1);
}

static void test_failed_write(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_first");
    assert_ok(f, store_commit(f->s, &f->e));
    put_job(f, "job_second");
    fault.fail_rc = SQLITE_IOERR_WRITE;
    fault.fail_write = 0;
    assert_int_equal(store_commit(f->s, &f->e), ERR_IO);
    assert_int_equal(store_mark(f->s, &f->e), ERR_IO);
    reopen(f);
    assert_int_equal(has_job(f, "job_first"), 1);
    assert_int_equal(has_job(f, "job_second"), 0);
}

static void test_failed_sync_of_checkpoint(void **state)
{
    struct fixture *f = *state;
    int64_t n;
    put_job(f, "job_first");
    assert_ok(f, store_commit(f->s, &f->e));
    f->s->checkpoint_at = 1;
    fault.fail_sync = 1; /* the log's succeeds, the database's fails */
    assert_int_equal(store_epoch_next(f->s, &n, &f->e), ERR_IO);
    assert_int_equal(store_commit(f->s, &f->e), ERR_IO);
    reopen(f);
    assert_int_equal(has_job(f, "job_first"), 1);
}

/* ---- the log ---- */
static off_t log_size(const struct fixture *f)
{
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/trainyard.db-wal", f->dir);
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void test_log_is_bounded(void **state)
{
    struct fixture *f = *state;
    off_t most = 0;
    for (int turn = 0; turn < 400; turn++) {
        for (int i = 0; i < 32; i++) {
            char id[ID_SIZE];
            put_job(f, id_new("job", id));
        }
        assert_ok(f, store_commit(f->s, &f->e));
        most = log_size(f) > most ? log_size(f) : most;
    }
    assert_true(most > 12 << 20);
    assert_true(most < 20 << 20);
    assert_int_equal(pending_count(f), 400 * 32);
}

#define T(t) cmocka_unit_test_setup_teardown(t, open_faultless, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_commit_syncs),
        T(test_group_commit),
        T(test_dirty),
        T(test_rollback),
        T(test_uncommitted_is_gone),
        T(test_marks),
        T(test_undo_of_everything),
        T(test_undo_forgets_look_up),
        T(test_deep_marks),
        T(test_constraint_goes_on),
        T(test_nth_write_full),
        T(test_failed_stays_failed),
        T(test_database_removed),
        T(test_log_removed),
        T(test_failed_sync),
        T(test_failed_write),
        T(test_failed_sync_of_checkpoint),
        T(test_log_is_bounded),
    };
    return cmocka_run_group_tests_name("storage_turn", tests, install_faulty, NULL);
}
