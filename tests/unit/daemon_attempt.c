/* The files of an attempt directory, and ending processes by mark and by descent. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/id.h"
#include "base/mem.h"
#include "daemon/attempt.h"
#include "daemon/procs.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/daemon-attempt-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    return file_remove_tree(dir, NULL);
}

static void put(const char *name, const char *text)
{
    CLEANUP(mem_freep) char *path = attempt_path(dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, NULL), 0);
}

static void test_shim_record_round_trip(void **state)
{
    (void)state;
    struct shim_rank ranks[] = {{0, 101, 11}, {1, 102, UINT32_MAX + 5ULL}};
    struct shim_record w = {.started_us = 5};
    struct shim_record r = {0};
    struct err e;
    assert_int_equal(shim_record_read(dir, &r, &e), ERR_NOT_FOUND);
    assert_int_equal(proc_identify(getpid(), &w.shim, &e), 0);
    assert_int_equal(shim_record_write(dir, &w, &e), 0);
    assert_int_equal(shim_record_read(dir, &r, &e), 0);
    assert_int_equal(r.shim.pid, getpid());
    assert_int_equal(r.shim.start_time, w.shim.start_time);
    assert_null(r.ranks);
    w.ranks = ranks;
    w.rank_count = 2;
    assert_int_equal(shim_record_write(dir, &w, &e), 0);
    shim_record_done(&r);
    assert_int_equal(shim_record_read(dir, &r, &e), 0);
    assert_int_equal(r.rank_count, 2);
    assert_int_equal(r.ranks[1].start_time, UINT32_MAX + 5ULL);
    shim_record_done(&r);
}

static void test_shim_records_that_name_nobody(void **state)
{
    (void)state;
#define BOOT "\"boot_id\":\"12345678-1234-1234-1234-123456789012\""
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{" BOOT ",\"pid\":0,\"start_time\":1,\"started_us\":0}",
        "{" BOOT ",\"pid\":-1,\"start_time\":1,\"started_us\":0}",
        "{" BOOT ",\"pid\":99999999999,\"start_time\":1,\"started_us\":0}",
        "{" BOOT ",\"pid\":\"7\",\"start_time\":1,\"started_us\":0}",
        "{" BOOT ",\"pid\":7,\"start_time\":-1,\"started_us\":0}",
        "{\"boot_id\":\"short\",\"pid\":7,\"start_time\":1,\"started_us\":0}",
        "{" BOOT ",\"pid\":7,\"start_time\":1,\"started_us\":0,\"ranks\":7}",
        "{" BOOT ",\"pid\":7,\"start_time\":1,\"started_us\":0,\"ranks\":[{\"rank\":0}]}",
        "{" BOOT ",\"pid\":7,\"start_time\":1,\"started_us\":0,"
        "\"ranks\":[{\"rank\":0,\"pid\":0,\"start_time\":3}]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct shim_record r = {.shim.pid = 77};
        struct err e;
        put(ATTEMPT_SHIM, texts[i]);
        assert_int_equal(shim_record_read(dir, &r, &e), ERR_CORRUPT);
        assert_int_equal(r.shim.pid, 77); /* untouched */
    }
}

static void test_stop_requests(void **state)
{
    (void)state;
    struct stop_request s = {.code = "cancelled", .reason = "Why \"not\".", .grace_s = 7};
    struct stop_request r;
    struct err e;
    assert_int_equal(stop_request_read(dir, &r, &e), ERR_NOT_FOUND);
    assert_int_equal(stop_request_write(dir, &s, &e), 0);
    assert_int_equal(stop_request_read(dir, &r, &e), 0);
    assert_string_equal(r.code, "cancelled");
    assert_string_equal(r.reason, "Why \"not\".");
    assert_int_equal(r.grace_s, 7);
    put(ATTEMPT_STOP, "{\"code\":3,\"grace_s\":-5}");
    assert_int_equal(stop_request_read(dir, &r, &e), 0);
    assert_string_equal(r.code, "stopped");
    assert_int_equal(r.grace_s, 30);
    put(ATTEMPT_STOP, "{\"grace_s\":86401}");
    assert_int_equal(stop_request_read(dir, &r, &e), 0);
    assert_int_equal(r.grace_s, 30);
    put(ATTEMPT_STOP, "{\"grace_s\":0}");
    assert_int_equal(stop_request_read(dir, &r, &e), 0);
    assert_int_equal(r.grace_s, 0);
    put(ATTEMPT_STOP, "{");
    assert_int_equal(stop_request_read(dir, &r, &e), ERR_CORRUPT);
    stop_request_from_json(NULL, 4, &r);
    assert_int_equal(r.grace_s, 4);
}

static void test_exit_records(void **state)
{
    (void)state;
    struct err e;
    json_t *read = NULL;
    assert_int_equal(exit_record_read(dir, &read, &e), ERR_NOT_FOUND);
    put(ATTEMPT_EXIT, "{\"code\":\"x\"}");
    assert_int_equal(exit_record_read(dir, &read, &e), ERR_CORRUPT);
    json_auto_t *w = exit_record_new("stopped", "cancelled", "Why.", 0, 1, 2);
    assert_non_null(w);
    assert_int_equal(exit_record_write(dir, w, &e), 0);
    assert_int_equal(exit_record_read(dir, &read, &e), 0);
    assert_true(json_equal(w, read));
    assert_true(json_is_null(json_object_get(read, "rank")));
    assert_true(json_is_array(json_object_get(read, "ranks")));
    json_decref(read);
}

static void test_a_lock_is_held_once(void **state)
{
    (void)state;
    int one;
    int two;
    struct err e;
    assert_int_equal(attempt_lock(dir, &one, &e), 0);
    assert_int_equal(attempt_lock(dir, &two, &e), ERR_CONFLICT);
    close(one);
    assert_int_equal(attempt_lock(dir, &two, &e), 0);
    close(two);
    assert_int_equal(attempt_lock("/nonexistent", &one, &e), ERR_NOT_FOUND);
}

static void test_marks(void **state)
{
    (void)state;
    char mark[ATTEMPT_MARK_SIZE];
    char id[100];
    assert_int_equal(attempt_mark("att_x", mark, NULL), 0);
    assert_memory_equal(mark, "att_x:", 6);
    memset(id, 'a', sizeof id - 1);
    id[sizeof id - 1] = '\0';
    assert_int_equal(attempt_mark(id, mark, NULL), ERR_INVALID);
}

static pid_t start_marked(const char *variable)
{
    char *argv[] = {"sleep", "1000", NULL};
    char *envp[] = {"A=b", (char *)variable, "Z=", NULL};
    struct proc_spawn s = {.program = "/bin/sleep",
                           .argv = argv,
                           .envp = envp,
                           .fds = {-1, -1, -1},
                           .fd_count = 3,
                           .cpu = -1,
                           .die_with_parent = 1};
    pid_t pid;
    assert_int_equal(proc_start(&s, &pid, NULL), 0);
    return pid;
}

static int is_alive(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) == 0;
}

static void test_only_the_marked_are_killed(void **state)
{
    (void)state;
    char id[ID_SIZE];
    char mark[ATTEMPT_MARK_SIZE];
    size_t n = 99;
    struct err e;
    assert_int_equal(attempt_mark(id_new("att", id), mark, &e), 0);
    CLEANUP(mem_freep) char *ours = mem_printf("TRAINYARD_ATTEMPT_MARK=%s", mark);
    CLEANUP(mem_freep) char *longer = mem_printf("TRAINYARD_ATTEMPT_MARK=%s0", mark);
    CLEANUP(mem_freep) char *other = mem_printf("XTRAINYARD_ATTEMPT_MARK=%s", mark);
    pid_t marked[] = {start_marked(ours), start_marked(ours)};
    pid_t spared[] = {start_marked(longer), start_marked(other)};
    assert_int_equal(procs_kill_marked(mark, &n, &e), 0);
    assert_int_equal(n, 2);
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(marked[i], &status, 0), marked[i]);
        assert_int_equal(WTERMSIG(status), SIGKILL);
        assert_true(is_alive(spared[i]));
    }
    assert_int_equal(procs_kill_marked(mark, &n, &e), 0);
    assert_int_equal(n, 0);
    for (int i = 0; i < 2; i++) {
        kill(spared[i], SIGKILL);
        waitpid(spared[i], NULL, 0);
    }
}

static const struct procs_entry *find(const struct procs *p, pid_t pid)
{
    for (size_t i = 0; i < p->count; i++) {
        if (p->items[i].pid == pid)
            return &p->items[i];
    }
    return NULL;
}

static void test_a_walk_finds_descendants(void **state)
{
    (void)state;
    struct procs p = {0};
    struct err e;
    pid_t child = start_marked("M=1");
    assert_int_equal(procs_walk(getpid(), &p, &e), 0);
    assert_non_null(find(&p, child));
    assert_true(find(&p, child)->below);
    assert_false(find(&p, getpid())->below);
    assert_false(find(&p, 1)->below);
    struct procs_entry later = *find(&p, child);
    later.start_time++; /* a pid used again: another process */
    assert_int_equal(procs_signal(&later, SIGKILL, &e), 0);
    assert_true(is_alive(child));
    assert_int_equal(procs_signal(find(&p, child), SIGKILL, &e), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(procs_signal(find(&p, child), SIGKILL, &e), 0); /* gone is fine */
    procs_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_shim_record_round_trip, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_shim_records_that_name_nobody, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_stop_requests, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_exit_records, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(test_a_lock_is_held_once, make_dir, drop_dir),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_only_the_marked_are_killed),
        cmocka_unit_test(test_a_walk_finds_descendants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
