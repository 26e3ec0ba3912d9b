/* storage_full.c: a full disk: the turn in which it fills fails whole, what was committed stays,
 * and the store goes on once there is room. No faults are made up here: the limit is SQLite's, the
 * process's or a small file system's. */
#include "tests/unit/storage_helper.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Everything fails with the same code until the caller has heard it. */
static void assert_turn_failed(struct fixture *f)
{
    struct job_row job = sample_job("job_more");
    struct job_row read = {0};
    struct event_row event = {.type = (char *)"t", .data = (char *)"{}"};
    int64_t n;
    assert_int_equal(store_dirty(f->s), 1);
    assert_int_equal(store_job_insert(f->s, &job, NULL, &f->e), ERR_NO_SPACE);
    assert_int_equal(store_event_append(f->s, &event, NULL, &f->e), ERR_NO_SPACE);
    assert_int_equal(store_epoch_next(f->s, &n, &f->e), ERR_NO_SPACE);
    assert_int_equal(store_mark(f->s, &f->e), ERR_NO_SPACE);
    assert_int_equal(store_job_get(f->s, "job_first", &read, &f->e), ERR_NO_SPACE);
    assert_says(f, "full");
    assert_says(f, "free some space");
}

/* Fills until a statement fails; marks are open, as they would be. */
static void run_into_wall(struct fixture *f)
{
    char *spec = mem_zalloc(100001);
    memset(spec, ' ', 100000);
    int r = 0;
    assert_ok(f, store_mark(f->s, &f->e));
    for (int i = 0; i < 1000 && r == 0; i++) {
        char id[ID_SIZE];
        struct job_row job = sample_job(id_new("job", id));
        job.spec = spec;
        r = store_mark(f->s, &f->e);
        if (r == 0)
            r = store_job_insert(f->s, &job, NULL, &f->e);
        if (r == 0)
            store_keep(f->s);
        else
            store_undo(f->s); /* of a failed turn: nothing to do, and no harm */
    }
    free(spec);
    assert_int_equal(r, ERR_NO_SPACE);
    assert_turn_failed(f);
    store_keep(f->s);
}

static void test_full_in_statement(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_first");
    assert_ok(f, store_commit(f->s, &f->e));
    for (int round = 0; round < 4; round++) {
        assert_ok(f, db_exec(f->s, "PRAGMA max_page_count = 300", &f->e));
        put_job(f, "job_second");
        run_into_wall(f);
        if (round % 2)
            store_rollback(f->s); /* either way of hearing it */
        else
            assert_int_equal(store_commit(f->s, &f->e), ERR_NO_SPACE);
        assert_int_equal(store_dirty(f->s), 0);
        assert_int_equal(pending_count(f), 1);
        assert_int_equal(has_job(f, "job_second"), 0);
    }
    assert_ok(f, db_exec(f->s, "PRAGMA max_page_count = 100000", &f->e));
    put_job(f, "job_second");
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(pending_count(f), 2);
}

/* Runs `body` in a child; it must return 0. Its failure is printed by the child. */
static int in_child(struct fixture *f, int (*body)(struct fixture *f))
{
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(body(f));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define CHILD_SKIP 77
#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, f->e.text);                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Commits until there is no room, frees some, and goes on. `free_space` makes room. */
static int fill_and_recover(struct fixture *f, void (*free_space)(struct fixture *f))
{
    char prefix[24];
    int turns = 0, r = 0;
    for (; turns < 2000 && r == 0; turns++) {
        snprintf(prefix, sizeof prefix, "job_%d", turns);
        r = insert_some(f, prefix, 20);
        if (r == 0)
            r = store_commit(f->s, &f->e);
        else
            store_rollback(f->s);
    }
    must(r == ERR_NO_SPACE);
    int64_t counts[JOB_STATE__MAX];
    must(store_job_count(f->s, counts, &f->e) == 0);
    must(counts[JOB_PENDING] == 20 * (turns - 1));
    free_space(f);
    must(insert_some(f, "job_after", 20) == 0);
    must(store_commit(f->s, &f->e) == 0);
    store_close(f->s);
    f->s = NULL;
    must(store_open(f->dir, &f->s, &f->e) == 0);
    must(store_job_count(f->s, counts, &f->e) == 0);
    must(counts[JOB_PENDING] == 20 * turns);
    store_close(f->s);
    return 0;
}

static void lift_limit(struct fixture *f)
{
    (void)f;
    struct rlimit unlimited = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &unlimited);
    unlimited.rlim_cur = unlimited.rlim_max;
    setrlimit(RLIMIT_FSIZE, &unlimited);
}

static int body_file_size_limit(struct fixture *f)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &limit);
    must(store_open(f->dir, &f->s, &f->e) == 0);
    return fill_and_recover(f, lift_limit);
}

static void test_file_size_limit(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(in_child(f, body_file_size_limit), 0);
}

static void remove_ballast(struct fixture *f)
{
    char path[128];
    snprintf(path, sizeof path, "%s/ballast", f->dir);
    unlink(path);
}

static int put_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = write(fd, text, strlen(text));
    close(fd);
    return n < 0 ? -1 : 0;
}

/* In a user namespace, where mounting needs no rights outside. */
static int become_root(void)
{
    char uids[32], gids[32];
    snprintf(uids, sizeof uids, "0 %u 1", (unsigned)getuid());
    snprintf(gids, sizeof gids, "0 %u 1", (unsigned)getgid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return -1;
    put_text("/proc/self/setgroups", "deny");
    return put_text("/proc/self/uid_map", uids) < 0 ? -1 : put_text("/proc/self/gid_map", gids);
}

/* A real full disk: a tmpfs of 8 MiB, half of it taken by a file that is then removed. */
static int body_small_disk(struct fixture *f)
{
    if (unshare(CLONE_NEWNS) < 0 && become_root() < 0)
        return CHILD_SKIP;
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("tmpfs", f->dir, "tmpfs", 0, "size=8m") < 0)
        return CHILD_SKIP;
    char path[128];
    char *bytes = mem_zalloc(4 << 20);
    snprintf(path, sizeof path, "%s/ballast", f->dir);
    must(file_write_atomic(path, bytes, 4 << 20, 0600, &f->e) == 0);
    free(bytes);
    must(store_open(f->dir, &f->s, &f->e) == 0);
    return fill_and_recover(f, remove_ballast);
}

static void test_small_disk(void **state)
{
    struct fixture *f = *state;
    int r = in_child(f, body_small_disk);
    if (r == CHILD_SKIP) {
        print_message("skipped: no right to mount a tmpfs here\n");
        skip();
    }
    assert_int_equal(r, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_full_in_statement, fixture_open, fixture_done),
        cmocka_unit_test_setup_teardown(test_file_size_limit, fixture_empty, fixture_done),
        cmocka_unit_test_setup_teardown(test_small_disk, fixture_empty, fixture_done),
    };
    return cmocka_run_group_tests_name("storage_full", tests, NULL, NULL);
}
