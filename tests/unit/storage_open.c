/* storage_open.c: what a state directory must look like to be opened, and what is said otherwise.
 */
#include "tests/unit/storage_helper.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void path_of(const struct fixture *f, const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", f->dir, name);
}

static void write_file(const struct fixture *f, const char *name, const void *bytes, size_t n)
{
    char path[128];
    path_of(f, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

static mode_t mode_of(const struct fixture *f, const char *name)
{
    char path[128];
    struct stat st;
    path_of(f, name, path);
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

/* Opening must fail with `code`, and the sentence must hold `word`. */
static void refused(struct fixture *f, int code, const char *word)
{
    struct store *s = NULL;
    f->e.text[0] = '\0';
    int r = store_open(f->dir, &s, &f->e);
    if (r == 0)
        fail_msg("the store was opened; it should say '%s'", word);
    assert_null(s);
    if (r != code)
        fail_msg("code %d, not %d: %s", r, code, f->e.text);
    assert_says(f, word);
    assert_says(f, f->dir);
}

static void close_store(struct fixture *f)
{
    store_close(f->s);
    f->s = NULL;
}

/* ---- what is there after a first start ---- */
static void test_creates(void **state)
{
    struct fixture *f = *state;
    snprintf(f->dir + strlen(f->dir), 16, "/new/deep");
    mode_t old = umask(0);
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    umask(old);
    assert_int_equal(mode_of(f, "."), 0700);
    assert_int_equal(mode_of(f, "files"), 0700);
    assert_int_equal(mode_of(f, "trainyard.db"), 0600);
    assert_int_equal(mode_of(f, "trainyard.db-wal"), 0600);
    assert_int_equal(mode_of(f, "instance"), 0600);
    assert_int_equal(mode_of(f, "lock"), 0600);
    assert_true(id_valid("inst", store_instance_id(f->s)));
    assert_int_equal(store_instance_epoch(f->s), 1);
    f->dir[strlen(f->dir) - strlen("/new/deep")] = '\0';
}

static void test_epoch_rises(void **state)
{
    struct fixture *f = *state;
    char id[ID_SIZE];
    snprintf(id, sizeof id, "%s", store_instance_id(f->s));
    for (int64_t i = 2; i < 5; i++) {
        reopen(f);
        assert_string_equal(store_instance_id(f->s), id);
        assert_int_equal(store_instance_epoch(f->s), i);
    }
}

static void test_pragmas(void **state)
{
    struct fixture *f = *state;
    static const char *const expected[][2] = {
        {"journal_mode", "wal"},
        {"synchronous", "2"},
        {"foreign_keys", "1"},
        {"busy_timeout", "2000"},
        {"trusted_schema", "0"},
        {"secure_delete", "2"},
        {"cell_size_check", "1"},
        {"mmap_size", "0"},
        {"locking_mode", "exclusive"},
        {"wal_autocheckpoint", "0"},
        {"application_id", "1415148132"},
        {"user_version", "3"},
    };
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        char sql[64], *is = NULL;
        snprintf(sql, sizeof sql, "PRAGMA %s", expected[i][0]);
        assert_ok(f, db_text(f->s, sql, &is, &f->e));
        if (strcmp(is, expected[i][1]) != 0)
            fail_msg("%s is %s, not %s", expected[i][0], is, expected[i][1]);
        free(is);
    }
    int defensive = 0;
    sqlite3_db_config(f->s->db, SQLITE_DBCONFIG_DEFENSIVE, -1, &defensive);
    assert_int_equal(defensive, 1);
    assert_int_equal(STORE_APPLICATION_ID, 1415148132);
}

/* All tables are strict, and none is without a primary key of its own. */
static void test_strict(void **state)
{
    struct fixture *f = *state;
    int64_t loose = -1, tables = 0;
    assert_ok(f, db_int(f->s,
                        "SELECT count(*) FROM pragma_table_list WHERE type = 'table'"
                        " AND name NOT LIKE 'sqlite%' AND NOT strict",
                        &loose, &f->e));
    assert_ok(f,
              db_int(f->s, "SELECT count(*) FROM pragma_table_list WHERE strict", &tables, &f->e));
    assert_int_equal(loose, 0);
    assert_true(tables >= 12);
}

/* A name that SQLite would take for a URI with options is a directory like any other. */
static void test_no_uri(void **state)
{
    struct fixture *f = *state;
    char was[4096];
    assert_non_null(getcwd(was, sizeof was));
    assert_int_equal(chdir(f->dir), 0);
    assert_ok(f, store_open("file:x?mode=memory", &f->s, &f->e));
    assert_int_equal(chdir(was), 0);
    struct stat st;
    char path[128];
    path_of(f, "file:x?mode=memory/trainyard.db", path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0);
}

static void test_symlinked_directory(void **state)
{
    struct fixture *f = *state;
    char link[128];
    path_of(f, "link", link);
    assert_int_equal(symlink(f->dir, link), 0);
    assert_ok(f, store_open(link, &f->s, &f->e));
}

static void test_empty_name(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(store_open("", &f->s, &f->e), ERR_INVALID);
}

static void test_not_a_directory(void **state)
{
    struct fixture *f = *state;
    struct store *s = NULL;
    char path[128];
    write_file(f, "plain", "x", 1);
    path_of(f, "plain/below", path);
    assert_int_equal(store_open(path, &s, &f->e), ERR_IO);
    assert_says(f, "plain");
}

/* ---- refusals ---- */
static void test_second_process(void **state)
{
    struct fixture *f = *state;
    char who[32];
    snprintf(who, sizeof who, "pid %ld", (long)getpid());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct store *s = NULL;
        struct err e = {0};
        int r = store_open(f->dir, &s, &e);
        _exit(r == ERR_CONFLICT && strstr(e.text, who) && strstr(e.text, "stop it first") ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    put_job(f, "job_1"); /* the first is none the worse */
    assert_ok(f, store_commit(f->s, &f->e));
}

/* The lock file's text is for people: garbage in it hurts nobody. */
static void test_lock_garbage(void **state)
{
    struct fixture *f = *state;
    write_file(f, "lock", "nonsense", 8);
    refused(f, ERR_CONFLICT, "another process uses");
    close_store(f);
    write_file(f, "lock", "999999999999999999999999\n", 25);
    reopen(f);
}

static void test_held_by_sqlite(void **state)
{
    struct fixture *f = *state;
    close_store(f);
    sqlite3 *db = NULL;
    char path[128];
    path_of(f, "trainyard.db", path);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    refused(f, ERR_UNAVAILABLE, "held by another program");
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    reopen(f);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK); /* and the other way round */
    assert_int_equal(sqlite3_exec(db, "SELECT * FROM jobs", NULL, NULL, NULL), SQLITE_BUSY);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void test_newer_schema(void **state)
{
    struct fixture *f = *state;
    close_store(f);
    sql_outside(f, "PRAGMA user_version = 4");
    refused(f, ERR_CONFLICT, "newer Trainyard (schema 4; this one knows up to 3)");
    sql_outside(f, "PRAGMA user_version = 3");
    reopen(f);
}

static void test_foreign(void **state)
{
    struct fixture *f = *state;
    sql_outside(f, "PRAGMA application_id = 7; CREATE TABLE t (x); INSERT INTO t VALUES (1)");
    refused(f, ERR_CONFLICT, "another application");
    sql_outside(f, "DELETE FROM t"); /* it is as it was */
    sql_outside(f, "PRAGMA application_id = 0");
    refused(f, ERR_CONFLICT, "another application"); /* tables, but none of ours */
    struct stat st;
    char path[128];
    path_of(f, "instance", path);
    assert_int_equal(stat(path, &st), -1);
}

static void test_not_a_database(void **state)
{
    struct fixture *f = *state;
    char text[5000];
    memset(text, 'x', sizeof text);
    write_file(f, "trainyard.db", text, sizeof text);
    refused(f, ERR_CORRUPT, "not a database");
    write_file(f, "trainyard.db", "xx", 2);
    refused(f, ERR_CORRUPT, "not a database");
}

static void test_not_a_file(void **state)
{
    struct fixture *f = *state;
    char path[128], target[128];
    path_of(f, "trainyard.db", path);
    path_of(f, "elsewhere", target);
    assert_int_equal(mkdir(path, 0700), 0);
    refused(f, ERR_CONFLICT, "not a regular file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink(target, path), 0);
    refused(f, ERR_CONFLICT, "not a regular file");
    assert_int_equal(access(target, F_OK), -1);
}

static void test_missing_database(void **state)
{
    struct fixture *f = *state;
    char path[128];
    close_store(f);
    path_of(f, "trainyard.db", path);
    assert_int_equal(unlink(path), 0);
    refused(f, ERR_CORRUPT, "is missing");
    assert_says(f, "inst_");
    assert_int_equal(access(path, F_OK), -1); /* nothing was made in its place */
    write_file(f, "trainyard.db", "", 0);
    refused(f, ERR_CORRUPT, "is empty");
    path_of(f, "instance", path);
    assert_int_equal(unlink(path), 0); /* what the sentence says to do works */
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    assert_int_equal(store_instance_epoch(f->s), 1);
}

/* A database with a header but nothing in it: made by a start that crashed, if no instance file
 * says otherwise. */
static void test_blank_database(void **state)
{
    struct fixture *f = *state;
    sql_outside(f, "PRAGMA journal_mode = WAL; CREATE TABLE t (x); DROP TABLE t; VACUUM");
    write_file(f, "instance", "inst_01k8z4q9tw3v7m2c5xd8hbn6\n", 30);
    refused(f, ERR_CORRUPT, "is empty");
    char path[128];
    path_of(f, "instance", path);
    assert_int_equal(unlink(path), 0);
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
}

static void test_swapped(void **state)
{
    struct fixture *f = *state;
    close_store(f);
    write_file(f, "instance", "inst_01k8z4q9tw3v7m2c5xd8hbn6\n", 30);
    refused(f, ERR_CONFLICT, "inst_01k8z4q9tw3v7m2c5xd8hbn6");
    assert_says(f, "was swapped");
}

static void test_instance_garbage(void **state)
{
    struct fixture *f = *state;
    close_store(f);
    char big[1000];
    memset(big, 'i', sizeof big);
    write_file(f, "instance", "", 0);
    refused(f, ERR_CORRUPT, "does not hold an instance id");
    write_file(f, "instance", "inst_\0hidden", 12);
    refused(f, ERR_CORRUPT, "does not hold an instance id");
    write_file(f, "instance", big, sizeof big);
    refused(f, ERR_TOO_LARGE, "larger");
    char path[128];
    path_of(f, "instance", path);
    assert_int_equal(unlink(path), 0);
    reopen(f); /* written anew from the database */
    assert_int_equal(mode_of(f, "instance"), 0600);
}

/* ---- damage ---- */
static void fill(struct fixture *f)
{
    for (int i = 0; i < 300; i++) {
        char id[ID_SIZE];
        put_job(f, id_new("job", id));
    }
    assert_ok(f, store_commit(f->s, &f->e));
}

/* Every page's first bytes say what it is and where its cells lie; flipped, it must be noticed. */
static void test_flipped_bytes(void **state)
{
    struct fixture *f = *state;
    fill(f);
    close_store(f);
    char path[128];
    path_of(f, "trainyard.db", path);
    struct buf whole = BUF_INIT;
    assert_ok(f, file_read(path, 1 << 24, &whole, &f->e));
    size_t pages = whole.len / 4096;
    assert_true(pages > 20);
    size_t damaged[] = {2, 3, pages / 3, pages / 2, pages - 1};
    for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
        char *page = whole.data + (damaged[i] - 1) * 4096;
        for (int k = 0; k < 8; k++)
            page[k] = (char)~page[k];
        write_file(f, "trainyard.db", whole.data, whole.len);
        refused(f, ERR_CORRUPT, "damaged");
        for (int k = 0; k < 8; k++)
            page[k] = (char)~page[k];
    }
    write_file(f, "trainyard.db", whole.data, whole.len / 2 / 4096 * 4096);
    refused(f, ERR_CORRUPT, "damaged"); /* cut in half */
    write_file(f, "trainyard.db", whole.data, whole.len);
    buf_done(&whole);
    reopen(f);
    assert_int_equal(pending_count(f), 300);
}

/* Of a database too large to be checked whole, the tables that decide are. */
static void test_checks_in_parts(void **state)
{
    struct fixture *f = *state;
    fill(f);
    assert_ok(f, db_schema_check_tables(f->s, &f->e));
    assert_ok(f, db_exec(f->s,
                         "PRAGMA ignore_check_constraints = ON; UPDATE jobs SET state = 99"
                         " WHERE seq = 5; PRAGMA ignore_check_constraints = OFF",
                         &f->e));
    assert_int_equal(db_schema_check_tables(f->s, &f->e), ERR_CORRUPT);
    assert_says(f, "jobs");
}

static void test_interrupted_creation(void **state)
{
    struct fixture *f = *state;
    write_file(f, "trainyard.db", "", 0); /* created, and then the power failed */
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    close_store(f);
    char path[128];
    path_of(f, "instance", path);
    assert_int_equal(unlink(path), 0); /* failed just before the last step */
    reopen(f);
    assert_int_equal(store_instance_epoch(f->s), 2);
}

static void test_close_null(void **state)
{
    (void)state;
    store_close(NULL);
}

#define EMPTY(t) cmocka_unit_test_setup_teardown(t, fixture_empty, fixture_done)
#define OPEN(t)  cmocka_unit_test_setup_teardown(t, fixture_open, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EMPTY(test_creates),
        OPEN(test_epoch_rises),
        OPEN(test_pragmas),
        OPEN(test_strict),
        EMPTY(test_no_uri),
        EMPTY(test_symlinked_directory),
        EMPTY(test_empty_name),
        EMPTY(test_not_a_directory),
        OPEN(test_second_process),
        OPEN(test_lock_garbage),
        OPEN(test_held_by_sqlite),
        OPEN(test_newer_schema),
        EMPTY(test_foreign),
        EMPTY(test_not_a_database),
        EMPTY(test_not_a_file),
        OPEN(test_missing_database),
        EMPTY(test_blank_database),
        OPEN(test_swapped),
        OPEN(test_instance_garbage),
        OPEN(test_flipped_bytes),
        OPEN(test_checks_in_parts),
        EMPTY(test_interrupted_creation),
        cmocka_unit_test(test_close_null),
    };
    return cmocka_run_group_tests_name("storage_open", tests, NULL, NULL);
}
