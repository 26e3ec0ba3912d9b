/* storage_files.c: what agents send: appended at exact offsets, and never outside its directory. */
#include "tests/unit/storage_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int append(struct fixture *f, const char *name, int64_t offset, const char *text,
                  int64_t *ret_size)
{
    return store_file_append(f->s, "job_1", 1, name, offset, text, strlen(text), ret_size, &f->e);
}

static int64_t size_of(struct fixture *f, const char *name)
{
    int64_t size = 0;
    CLEANUP(mem_closep) int fd = -1;
    int r = store_file_open(f->s, "job_1", 1, name, &fd, &size, &f->e);
    if (r != ERR_NOT_FOUND) /* never written */
        assert_ok(f, r);
    return size;
}

static void expect_content(struct fixture *f, const char *name, const char *text)
{
    int fd = -1;
    int64_t size = -1;
    char got[256];
    assert_ok(f, store_file_open(f->s, "job_1", 1, name, &fd, &size, &f->e));
    ssize_t n = read(fd, got, sizeof got - 1);
    assert_int_equal(n, size);
    got[n] = '\0';
    assert_string_equal(got, text);
    assert_int_equal(write(fd, "x", 1), -1); /* read-only */
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
}

static void path_in(const struct fixture *f, const char *relative, char out[256])
{
    snprintf(out, 256, "%s/files/%s", f->dir, relative);
}

/* ---- appending ---- */
static void test_append(void **state)
{
    struct fixture *f = *state;
    int64_t size = -1;
    assert_int_equal(size_of(f, "rank-0.log"), 0);
    assert_ok(f, append(f, "rank-0.log", 0, "hello ", &size));
    assert_int_equal(size, 6);
    assert_ok(f, append(f, "rank-0.log", 6, "world", &size));
    assert_int_equal(size, 11);
    assert_ok(f, append(f, "rank-0.log", 11, "", &size)); /* nothing */
    assert_int_equal(size, 11);
    expect_content(f, "rank-0.log", "hello world");
    reopen(f);
    assert_int_equal(size_of(f, "rank-0.log"), 11);
    char path[256];
    struct stat st;
    path_in(f, "job_1/1/rank-0.log", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    path_in(f, "job_1/1", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void test_wrong_offset(void **state)
{
    struct fixture *f = *state;
    int64_t size = -1;
    assert_int_equal(append(f, "a.log", 5, "x", &size), ERR_CONFLICT);
    assert_int_equal(size, 0);
    assert_ok(f, append(f, "a.log", 0, "abcdef", &size));
    const int64_t wrong[] = {-1, 0, 5, 7, 1000, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        size = -1;
        assert_int_equal(append(f, "a.log", wrong[i], "xyz", &size), ERR_CONFLICT);
        assert_int_equal(size, 6); /* where to go on */
        assert_says(f, "go on from 6");
    }
    expect_content(f, "a.log", "abcdef");
}

/* Attempts and jobs do not share names. */
static void test_apart(void **state)
{
    struct fixture *f = *state;
    int64_t size = 0;
    assert_ok(f, append(f, "a", 0, "one", &size));
    assert_ok(f, store_file_append(f->s, "job_1", 2, "a", 0, "two!", 4, &size, &f->e));
    assert_ok(f, store_file_append(f->s, "job_2", 1, "a", 0, "three", 5, &size, &f->e));
    expect_content(f, "a", "one");
    CLEANUP(mem_closep) int fd = -1;
    assert_ok(f, store_file_open(f->s, "job_1", 2, "a", &fd, &size, &f->e));
    assert_int_equal(size, 4);
}

/* ---- names ---- */
static void refused(struct fixture *f, const char *job, int64_t attempt, const char *name)
{
    int64_t size = -1;
    int fd = -1;
    char *list = NULL;
    assert_int_equal(store_file_append(f->s, job, attempt, name, 0, "x", 1, &size, &f->e),
                     ERR_INVALID);
    assert_int_equal(store_file_open(f->s, job, attempt, name, &fd, &size, &f->e), ERR_INVALID);
    assert_int_equal(size, -1);
    assert_int_equal(fd, -1);
    if (strcmp(name, "ok") == 0)
        assert_int_equal(store_file_list(f->s, job, attempt, &list, &f->e), ERR_INVALID);
    assert_null(list);
}

static void test_names(void **state)
{
    struct fixture *f = *state;
    char longest[257];
    memset(longest, 'a', sizeof longest);
    longest[256] = '\0';
    const char *const bad[] = {
        "",          ".",       "..",           "../x",      "a/b",   "/etc/passwd",
        "a/../../b", ".hidden", "sp ace",       "new\nline", "a\\b",  "%2e%2e",
        "ünï",       "a:b",     "rank-0.log\r", "*",         "~root", longest};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        refused(f, "job_1", 1, bad[i]);
        refused(f, bad[i], 1, "ok");
    }
    refused(f, "job_1", 0, "ok");
    refused(f, "job_1", -1, "ok");
    refused(f, "job_1", INT64_MIN, "ok");
    int64_t size;
    const char *const good[] = {"a", "A-Z_0.9", "artifact.model.safetensors", "-rf", "a..b", "_"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_ok(f, append(f, good[i], 0, "x", &size));
    longest[255] = '\0';
    assert_ok(f, append(f, longest, 0, "x", &size));
    char path[256];
    path_in(f, "..", path); /* nothing was made beside `files` */
    assert_ok(f, store_file_append(f->s, "job_1", INT64_MAX, "a", 0, "x", 1, &size, &f->e));
}

/* Links that somebody planted lead nowhere, wherever in the path they are. */
static void test_links(void **state)
{
    struct fixture *f = *state;
    char path[256], outside[300];
    int64_t size = 0;
    int fd;
    assert_ok(f, append(f, "real", 0, "x", &size));
    snprintf(outside, sizeof outside, "%s/secret", f->dir);
    assert_ok(f, file_write_atomic(outside, "s3cret", 6, 0600, &f->e));
    path_in(f, "job_1/1/link", path);
    assert_int_equal(symlink(outside, path), 0);
    path_in(f, "job_1/1/inner", path);
    assert_int_equal(symlink("real", path), 0);
    path_in(f, "job_1/2", path);
    assert_int_equal(symlink("1", path), 0);
    path_in(f, "job_evil", path);
    assert_int_equal(symlink(f->dir, path), 0);
    assert_int_equal(append(f, "link", 6, "x", &size), ERR_IO);
    assert_int_equal(append(f, "inner", 1, "x", &size), ERR_IO);
    assert_int_equal(store_file_open(f->s, "job_1", 1, "link", &fd, &size, &f->e), ERR_IO);
    assert_int_equal(store_file_append(f->s, "job_1", 2, "real", 1, "x", 1, &size, &f->e), ERR_IO);
    assert_int_equal(store_file_append(f->s, "job_evil", 1, "a", 0, "x", 1, &size, &f->e), ERR_IO);
    struct buf b = BUF_INIT;
    assert_ok(f, file_read(outside, 100, &b, &f->e));
    assert_string_equal(b.data, "s3cret");
    buf_done(&b);
}

static void test_not_regular(void **state)
{
    struct fixture *f = *state;
    char path[256], *list = NULL;
    int64_t size = 0;
    int fd;
    assert_ok(f, append(f, "real", 0, "x", &size));
    path_in(f, "job_1/1/fifo", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    path_in(f, "job_1/1/dir", path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_true(append(f, "fifo", 0, "x", &size) < 0); /* and does not wait for a reader */
    assert_int_equal(store_file_open(f->s, "job_1", 1, "fifo", &fd, &size, &f->e), ERR_CORRUPT);
    assert_true(append(f, "dir", 0, "x", &size) < 0);
    assert_int_equal(store_file_open(f->s, "job_1", 1, "dir", &fd, &size, &f->e), ERR_CORRUPT);
    assert_ok(f, store_file_list(f->s, "job_1", 1, &list, &f->e));
    assert_string_equal(list, "[{\"name\":\"real\",\"bytes\":1}]");
    free(list);
}

/* ---- lists and reading ---- */
static void test_list(void **state)
{
    struct fixture *f = *state;
    char *list = NULL;
    int64_t size;
    assert_ok(f, store_file_list(f->s, "job_1", 1, &list, &f->e));
    assert_string_equal(list, "[]");
    free(list);
    assert_ok(f, append(f, "rank-1.log", 0, "12345", &size));
    assert_ok(f, append(f, "artifact.m", 0, "", &size));
    assert_ok(f, append(f, "rank-0.log", 0, "123", &size));
    assert_ok(f, store_file_list(f->s, "job_1", 1, &list, &f->e));
    assert_string_equal(list, "[{\"name\":\"artifact.m\",\"bytes\":0},"
                              "{\"name\":\"rank-0.log\",\"bytes\":3},"
                              "{\"name\":\"rank-1.log\",\"bytes\":5}]");
    free(list);
}

static void test_missing(void **state)
{
    struct fixture *f = *state;
    int fd = -1;
    int64_t size = -1;
    assert_int_equal(store_file_open(f->s, "job_1", 1, "a", &fd, &size, &f->e), ERR_NOT_FOUND);
    assert_says(f, "attempt 1 of job job_1 has no file a");
    assert_int_equal(fd, -1);
    char path[256];
    path_in(f, "job_1", path);
    assert_int_equal(access(path, F_OK), -1); /* asking makes nothing */
}

static void test_too_many(void **state)
{
    struct fixture *f = *state;
    char name[16], *list = NULL;
    int64_t size;
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "a%d", i);
        assert_ok(f, append(f, name, 0, "x", &size));
    }
    assert_int_equal(append(f, "one-more", 0, "x", &size), ERR_TOO_LARGE);
    assert_says(f, "1000 files");
    assert_ok(f, append(f, "a7", 1, "x", &size)); /* those there go on */
    assert_ok(f, store_file_list(f->s, "job_1", 1, &list, &f->e));
    assert_non_null(strstr(list, "\"a999\""));
    free(list);
    assert_ok(f, db_files_sync(f->s, "job_1", 1, &f->e)); /* the way for many */
}

/* ---- failures ---- */
/* A write that stops half-way leaves the file as it was. */
static void test_limit(void **state)
{
    struct fixture *f = *state;
    int64_t size;
    static char bytes[5000];
    assert_ok(f, append(f, "a", 0, "start", &size));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
        signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = 1000;
        setrlimit(RLIMIT_FSIZE, &limit);
        int r = store_file_append(f->s, "job_1", 1, "a", 5, bytes, sizeof bytes, &size, &f->e);
        int64_t now = size_of(f, "a");
        _exit(r == ERR_NO_SPACE && now == 5 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_ok(f, append(f, "a", 5, " again", &size));
    expect_content(f, "a", "start again");
}

/* The end of an attempt is stored only after its files are durable; if they can't be made so, the
 * end is not stored. */
static void test_end_syncs(void **state)
{
    struct fixture *f = *state;
    int64_t size;
    put_node(f, "n1");
    put_job(f, "job_1");
    struct attempt_row a = sample_attempt("att_1", "job_1", "n1"), got = {0};
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    assert_ok(f, append(f, "rank-0.log", 0, "bye", &size));
    char path[256];
    path_in(f, "job_1/1/odd", path);
    assert_int_equal(symlink("nowhere", path), 0);
    a.state = ATTEMPT_ENDED;
    assert_true(store_attempt_update(f->s, &a, &f->e) < 0);
    assert_ok(f, store_attempt_get(f->s, "att_1", &got, &f->e));
    assert_int_equal(got.state, ATTEMPT_LAUNCHING);
    attempt_row_done(&got);
    assert_int_equal(unlink(path), 0);
    assert_ok(f, store_attempt_update(f->s, &a, &f->e));
    assert_ok(f, store_commit(f->s, &f->e));
}

static void test_end_without_files(void **state)
{
    struct fixture *f = *state;
    put_node(f, "n1");
    put_job(f, "job_1");
    struct attempt_row a = sample_attempt("att_1", "job_1", "n1");
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    a.state = ATTEMPT_ENDED;
    assert_ok(f, store_attempt_update(f->s, &a, &f->e));
}

#define T(t) cmocka_unit_test_setup_teardown(t, fixture_open, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_append),   T(test_wrong_offset), T(test_apart),     T(test_names),
        T(test_links),    T(test_not_regular),  T(test_list),      T(test_missing),
        T(test_too_many), T(test_limit),        T(test_end_syncs), T(test_end_without_files),
    };
    return cmocka_run_group_tests_name("storage_files", tests, NULL, NULL);
}
