/* An agent that is out of file descriptors: what it cannot open is not left out, and no attempt is
 * complete before it was looked at. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"
#include "daemon/procs.h"

static char dir[64];
static struct agent agent;
static struct attempt *attempt;
static struct rlimit was;

static void put(const char *name, const char *text)
{
    CLEANUP(mem_freep) char *path = attempt_path(attempt->dir, name);
    struct err e;
    if (file_write_atomic(path, text, strlen(text), 0600, &e) != 0)
        fail_msg("%s", e.text);
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/agent-short-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    agent = (struct agent){.attempts_dir = dir, .ready = 1, .moves_fd = -1, .writes_fd = -1};
    attempt = attempt_add(&agent, "att_000000000000000000000000");
    attempt->has_dir = 1;
    attempt->epoch = 1;
    attempt->phase = PHASE_ENDED;
    CLEANUP(mem_freep) char *artifacts = attempt_path(attempt->dir, ATTEMPT_ARTIFACTS);
    mkdir(attempt->dir, 0700);
    mkdir(artifacts, 0700);
    put(ATTEMPT_REPORT, "{\"type\":\"a\"}\n");
    put("artifacts/weights", "1");
    getrlimit(RLIMIT_NOFILE, &was);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    attempt_free(attempt);
    free(agent.attempts);
    return file_remove_tree(dir, NULL);
}

static void leave(rlim_t spare)
{
    int next = dup(0);
    struct rlimit few = {.rlim_cur = (rlim_t)next + spare, .rlim_max = was.rlim_max};
    close(next);
    setrlimit(RLIMIT_NOFILE, &few);
}

static void files_are_not_left_out(void **state)
{
    (void)state;
    json_auto_t *ranks = json_pack("[{s:i}]", "rank", 0);
    uploads_add_logs(attempt, ranks);            /* of which there is no file: nothing to send */
    for (rlim_t spare = 0; spare < 2; spare++) { /* the directory, then the file */
        leave(spare);
        agent.wake_at_us = 0;
        uploads_pump(attempt);
        setrlimit(RLIMIT_NOFILE, &was);
        assert_int_equal(attempt->files_done, 0);
        assert_int_equal(attempt->upload_count, 1);
        assert_true(agent.wake_at_us > 0);
    }
    CLEANUP(mem_freep) char *weights = attempt_path(attempt->dir, "artifacts/weights");
    unlink(weights);
    uploads_pump(attempt);
    assert_int_equal(attempt->files_done, 1);
}

static void a_log_is_not_left_out(void **state)
{
    (void)state;
    json_auto_t *ranks = json_pack("[{s:i}]", "rank", 0);
    uploads_add_logs(attempt, ranks);
    attempt->artifacts_listed = 1;
    put("rank-0.log", "hello");
    leave(0);
    uploads_pump(attempt);
    setrlimit(RLIMIT_NOFILE, &was);
    assert_int_equal(attempt->files_done, 0);
    assert_int_equal(attempt->uploads[0].refused, 0);
}

static void reports_are_not_left_out(void **state)
{
    (void)state;
    reports_acked(attempt, 0);
    leave(0);
    reports_look(attempt);
    setrlimit(RLIMIT_NOFILE, &was);
    assert_int_equal(reports_done(attempt), 0);
    reports_look(attempt);
    assert_int_equal(reports_due(attempt), 1);
    assert_int_equal(reports_done(attempt), 0);
}

static void a_full_disk_is_trouble(void **state)
{
    (void)state;
    char text[TROUBLE_SIZE];
    struct statvfs fs = {.f_frsize = 4096, .f_blocks = 25600, .f_bavail = 1279}; /* of 100 MiB */
    trouble_of_disk("state directory", "/s", &fs, 0, text);
    assert_string_equal(text, "The disk of its state directory /s has 5.0 MiB free; 6.2 MiB are "
                              "needed to start jobs.");
    fs.f_bavail = 1281;
    trouble_of_disk("state directory", "/s", &fs, 0, text);
    assert_string_equal(text, "");
    trouble_of_disk("state directory", "/s", &fs, 1,
                    text); /* it was full: a little room is not enough */
    assert_true(text[0] != '\0');
    fs.f_bavail = 1601;
    trouble_of_disk("state directory", "/s", &fs, 1, text);
    assert_string_equal(text, "");
    fs.f_files = 10;
    trouble_of_disk("state directory", "/s", &fs, 0, text);
    assert_non_null(strstr(text, "inodes"));
    fs = (struct statvfs){.f_frsize = 4096, .f_blocks = 1 << 30, .f_bavail = 70000};
    trouble_of_disk("state directory", "/s", &fs, 0, text); /* of 4 TiB, 273 MiB */
    assert_string_equal(text, "");
}

static void a_write_without_room_is_trouble(void **state)
{
    (void)state;
    agent.options.state_dir = dir;
    trouble_pump(&agent);
    assert_string_equal(agent.trouble, "");
    agent.urgent_due = 0;
    trouble_no_space(&agent, "cannot write \xc3");
    assert_int_equal(agent.urgent_due, 1);
    assert_string_equal(agent.trouble, "Its state directory has no room: cannot write \\xc3.");
    agent.trouble_look_us = 0;
    trouble_pump(&agent); /* a disk with room does not end it before its time */
    assert_true(agent.trouble[0] != '\0');
    agent.trouble_look_us = agent.no_space_until_us = 0;
    trouble_pump(&agent);
    assert_string_equal(agent.trouble, "");
}

static void what_an_attempt_left_is_not_overlooked(void **state)
{
    (void)state;
    struct err e = {0};
    size_t found = 7;
    struct procs p = {0};
    leave(1); /* for the list, but for no entry of it */
    int killed = procs_kill_marked("none", &found, &e), walked = procs_walk(1, &p, &e);
    setrlimit(RLIMIT_NOFILE, &was);
    assert_int_equal(killed, ERR_IO);
    assert_int_equal(walked, ERR_IO);
    assert_non_null(strstr(e.text, strerror(EMFILE)));
    assert_int_equal(found, 7);
    assert_int_equal(procs_kill_marked("none", &found, &e), 0);
    assert_int_equal(found, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_are_not_left_out, setup, teardown),
        cmocka_unit_test_setup_teardown(a_log_is_not_left_out, setup, teardown),
        cmocka_unit_test_setup_teardown(reports_are_not_left_out, setup, teardown),
        cmocka_unit_test(a_full_disk_is_trouble),
        cmocka_unit_test_setup_teardown(a_write_without_room_is_trouble, setup, teardown),
        cmocka_unit_test_setup_teardown(what_an_attempt_left_is_not_overlooked, setup, teardown),
    };
    log_setup("agent_short", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
