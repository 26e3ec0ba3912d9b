/* The floor: ids, clocks, buffers, faults, files and processes. */
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/faults.h"
#include "base/file.h"
#include "base/id.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/base-floor-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    return file_remove_tree(dir, NULL);
}

static char *path(const char *name)
{
    static char ring[4][256];
    static unsigned next;
    char *out = ring[next++ % 4];
    snprintf(out, sizeof ring[0], "%s/%s", dir, name);
    return out;
}

static void ids_sort_by_time_and_are_valid(void **state)
{
    (void)state;
    char a[ID_SIZE], b[ID_SIZE];
    int64_t before = clock_wall_us() / 1000;
    id_new("job", a);
    while (clock_wall_us() / 1000 <= before + 1)
        continue;
    id_new("job", b);
    assert_true(strcmp(a, b) < 0);
    assert_true(id_valid("job", a));
    assert_false(id_valid("att", a));
    assert_false(id_valid("job", "job_"));
    assert_false(id_valid("job", "job_01k8z4q9tw3v7m2c5xd8hbn6r"));
    assert_false(id_valid("job", "job_01k8z4q9tw3v7m2c5xd8hb/6"));
    char s[ID_SECRET_SIZE];
    id_secret(s);
    assert_int_equal(strlen(s), 64);
}

static void durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t seconds; /* -1: refused */
    } cases[] = {{"90", 90},    {"90s", 90},        {"15m", 900},
                 {"2h", 7200},  {"1h30m", 5400},    {"1d", 86400},
                 {"0s", 0},     {"", -1},           {"h", -1},
                 {"-5s", -1},   {"5x", -1},         {"1.5h", -1},
                 {"5s ", -1},   {" 5s", -1},        {"99999999999999999999s", -1},
                 {"4000d", -1}, {"3000d3000d", -1}, {"1h30", -1},
                 {"0h30", -1},  {"1m90s", 150}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int64_t got = -1;
        struct err e = {0};
        int r = clock_parse_duration(cases[i].text, &got, &e);
        if (cases[i].seconds < 0) {
            assert_int_equal(r, ERR_INVALID);
            assert_non_null(strstr(e.text, "duration"));
        }
        assert_int_equal(got, cases[i].seconds);
    }
    char text[CLOCK_TEXT_SIZE];
    assert_string_equal(clock_format(1790000000123456, text), "2026-09-21T14:13:20.123Z");
}

static void buffers_grow_and_shrink(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    for (int i = 0; i < 1000; i++)
        buf_addf(&b, "%d,", i);
    assert_int_equal(strlen(b.data), b.len);
    buf_drop(&b, 4);
    assert_memory_equal(b.data, "2,3,", 4);
    buf_drop(&b, 1 << 20);
    assert_int_equal(b.len, 0);
    char *s = buf_steal(&b);
    assert_string_equal(s, "");
    free(s);
    s = buf_steal(&b);
    assert_string_equal(s, "");
    free(s);
}

static void faults_are_capped_and_counted(void **state)
{
    (void)state;
    struct faults f;
    faults_init(&f);
    for (int i = 0; i < FAULTS_MAX + 3; i++)
        faults_add(&f, "/a", "wrong", i % 2 ? "hint" : NULL, "fault %d", i);
    json_t *list = faults_to_json(&f);
    assert_int_equal(json_array_size(list), FAULTS_MAX + 1);
    const char *last =
        json_string_value(json_object_get(json_array_get(list, FAULTS_MAX), "message"));
    assert_non_null(strstr(last, "3 more faults"));
    json_decref(list);
    faults_done(&f);
    faults_done(&f);
}

static void files_are_whole_or_not_there(void **state)
{
    (void)state;
    struct err e;
    struct buf b = BUF_INIT;
    assert_int_equal(file_write_atomic(path("a"), "hello", 5, 0600, &e), 0);
    assert_int_equal(file_read(path("a"), 5, &b, &e), 0);
    assert_string_equal(b.data, "hello");
    assert_int_equal(file_read(path("a"), 4, &b, &e), ERR_TOO_LARGE);
    assert_string_equal(b.data, "hello"); /* untouched by a failure */
    assert_int_equal(file_read(path("none"), 4, &b, &e), ERR_NOT_FOUND);
    assert_int_equal(file_write_atomic(path("no/such/dir"), "x", 1, 0600, &e), ERR_NOT_FOUND);
    buf_done(&b);
    json_t *doc;
    assert_int_equal(file_write_atomic(path("j"), "{\"a\":1,\"a\":2}", 13, 0600, &e), 0);
    assert_int_equal(file_read_json(path("j"), 100, &doc, &e), ERR_CORRUPT);
}

/* A job may leave a tree behind that is deeper than we have descriptors. */
static void a_deep_tree_is_removed(void **state)
{
    (void)state;
    struct err e;
    struct rlimit was, few = {.rlim_cur = 100};
    int at = open(path(""), O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(mkdirat(at, "d", 0700), 0);
        assert_int_equal(mkdirat(at, ".removed-0", 0700), 0);
        int next = openat(at, "d", O_RDONLY | O_DIRECTORY);
        close(openat(at, "f", O_WRONLY | O_CREAT, 0600));
        close(at);
        at = next;
    }
    close(at);
    getrlimit(RLIMIT_NOFILE, &was);
    few.rlim_max = was.rlim_max;
    setrlimit(RLIMIT_NOFILE, &few);
    int r = file_remove_tree(path("d"), &e);
    setrlimit(RLIMIT_NOFILE, &was);
    if (r != 0)
        fail_msg("%s", e.text);
    assert_int_not_equal(access(path("d"), F_OK), 0);
    assert_int_equal(access(path("f"), F_OK), 0); /* beside it */
}

static void paths_cannot_leave_their_root(void **state)
{
    (void)state;
    struct err e;
    int fd;
    assert_int_equal(file_mkdirs(path("root/in"), 0700, &e), 0);
    assert_int_equal(file_write_atomic(path("outside"), "secret", 6, 0600, &e), 0);
    assert_int_equal(file_write_atomic(path("root/in/f"), "ok", 2, 0600, &e), 0);
    assert_int_equal(symlink("../../outside", path("root/in/link")), 0);
    assert_int_equal(symlink("f", path("root/in/good")), 0);
    int root = open(path("root"), O_RDONLY | O_DIRECTORY);
    static const char *const bad[] = {"../outside", "in/../../outside", "/etc/passwd", "in/link"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(file_open_beneath(root, bad[i], O_RDONLY, 0, &fd, &e), ERR_INVALID);
    static const char *const good[] = {"in/f", "in/good", "in/../in/f"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_int_equal(file_open_beneath(root, good[i], O_RDONLY, 0, &fd, &e), 0);
        close(fd);
    }
    close(root);
    assert_int_equal(symlink("/tmp", path("root/tmp")), 0);
    assert_int_equal(file_remove_tree(path("root"), &e), 0);
    assert_int_equal(access("/tmp", F_OK), 0);
    assert_int_equal(access(path("outside"), F_OK), 0);
    assert_int_equal(file_remove_tree(path("root"), &e), 0);
}

static pid_t start(const char *program, char *const *argv, struct proc_spawn *extra, struct err *e)
{
    static char *const env[] = {(char *)"A=b", NULL};
    struct proc_spawn s =
        extra ? *extra : (struct proc_spawn){.fds = {-1, 1, 2}, .fd_count = 3, .cpu = -1};
    s.program = program;
    s.argv = argv;
    s.envp = env;
    pid_t pid = -1;
    return proc_start(&s, &pid, e) < 0 ? -1 : pid;
}

static void processes_start_with_nothing_inherited(void **state)
{
    (void)state;
    struct err e;
    int fds[2];
    static const struct {
        void *handler;
        unsigned long rest[7];
    } ignore = {.handler = SIG_IGN}; /* as the kernel has it: glibc keeps signal 32 for itself */
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(syscall(SYS_rt_sigaction, 32, &ignore, NULL, (size_t)8), 0);
    assert_int_equal(pipe(fds), 0);
    int leaked = open("/dev/null", O_RDONLY); /* no CLOEXEC on purpose */
    assert_true(leaked > 2);
    char *argv[] = {(char *)"sh", (char *)"-c",
                    (char *)"env; ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status", NULL};
    struct proc_spawn s = {.fds = {-1, fds[1], 2}, .fd_count = 3, .cpu = -1, .new_session = 1};
    pid_t pid = start("/bin/sh", argv, &s, &e);
    assert_true(pid > 0);
    close(fds[1]);
    struct buf b = BUF_INIT;
    char chunk[512];
    ssize_t n;
    while ((n = read(fds[0], chunk, sizeof chunk)) > 0)
        buf_add(&b, chunk, (size_t)n);
    close(fds[0]);
    close(leaked);
    waitpid(pid, NULL, 0);
    print_message("%s", b.data); /* what a failure below is about */
    assert_non_null(strstr(b.data, "A=b"));
    assert_null(strstr(b.data, "HOME="));
    assert_non_null(strstr(b.data, "\n4\n")); /* 0 1 2 and ls's own directory */
    assert_non_null(strstr(b.data, "SigIgn:\t0000000000000000"));
    buf_done(&b);
}

static void a_program_that_cannot_start_says_why(void **state)
{
    (void)state;
    struct err e;
    char *argv[] = {(char *)"x", NULL};
    assert_int_equal(start("/no/such/program", argv, NULL, &e), -1);
    assert_non_null(strstr(e.text, "/no/such/program"));
    assert_non_null(strstr(e.text, "No such file"));
    assert_int_equal(start("/etc/passwd", argv, NULL, &e), -1);
    assert_non_null(strstr(e.text, "Permission denied"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void a_pid_alone_names_nobody(void **state)
{
    (void)state;
    struct err e;
    char *argv[] = {(char *)"sleep", (char *)"100", NULL};
    pid_t pid = start("/bin/sleep", argv, NULL, &e);
    struct proc_identity id, other;
    int fd;
    assert_int_equal(proc_identify(pid, &id, &e), 0);
    other = id;
    other.start_time++;
    assert_int_equal(proc_open(&other, &fd, &e), ERR_NOT_FOUND);
    other = id;
    other.boot_id[0] = other.boot_id[0] == '0' ? '1' : '0';
    assert_int_equal(proc_open(&other, &fd, &e), ERR_NOT_FOUND);
    assert_int_equal(proc_open(&id, &fd, &e), 0);
    assert_int_equal(proc_signal(fd, SIGKILL, &e), 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    close(fd);
    assert_int_equal(proc_open(&id, &fd, &e), ERR_NOT_FOUND); /* a zombie is gone */
    waitpid(pid, NULL, 0);
    assert_string_equal(proc_signal_name(SIGKILL), "SIGKILL");
    assert_string_equal(proc_signal_name(SIGRTMIN + 3), "signal 37");
}

/* Who cannot look must not say that it is gone: its device would be given away. */
static void without_descriptors_nobody_is_declared_dead(void **state)
{
    (void)state;
    struct err e = {0};
    struct proc_identity id;
    uint64_t start_time;
    int fd, free_fd = dup(0);
    assert_int_equal(proc_identify(getpid(), &id, &e), 0);
    close(free_fd);
    struct rlimit was, none;
    getrlimit(RLIMIT_NOFILE, &was);
    none = was;
    for (rlim_t spare = 0; spare < 2; spare++) { /* none at all, then one: for the pidfd */
        none.rlim_cur = (rlim_t)free_fd + spare;
        setrlimit(RLIMIT_NOFILE, &none);
        int time = proc_start_time(id.pid, &start_time, &e), open = proc_open(&id, &fd, &e);
        setrlimit(RLIMIT_NOFILE, &was);
        assert_int_equal(time, spare ? 0 : ERR_IO);
        assert_int_equal(open, ERR_IO);
        assert_non_null(strstr(e.text, strerror(EMFILE)));
    }
    assert_int_equal(proc_start_time(999999999, &start_time, &e), ERR_NOT_FOUND);
}

static void a_log_is_printable_whatever_names_hold(void **state)
{
    (void)state;
    char text[600] = {0};
    int pipe_fds[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipe_fds), 0);
    dup2(pipe_fds[1], STDERR_FILENO);
    log_event(LOG_LEVEL_ERROR, "e", "%s",
              "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xff \xc2\x9b \xc0\xaf \xe0\x80\xaf "
              "\xed\xa0\x80 \xf5\x80\x80\x80 \x1b\n\x7f \xe2\x82");
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_true(read(pipe_fds[0], text, sizeof text - 1) > 0);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    assert_non_null(strstr(text, "e \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \\xff \\xc2\\x9b "
                                 "\\xc0\\xaf \\xe0\\x80\\xaf \\xed\\xa0\\x80 "
                                 "\\xf5\\x80\\x80\\x80 \\x1b\\x0a\\x7f \\xe2\\x82\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_sort_by_time_and_are_valid),
        cmocka_unit_test(durations),
        cmocka_unit_test(a_log_is_printable_whatever_names_hold),
        cmocka_unit_test(buffers_grow_and_shrink),
        cmocka_unit_test(faults_are_capped_and_counted),
        cmocka_unit_test_setup_teardown(files_are_whole_or_not_there, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_deep_tree_is_removed, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(paths_cannot_leave_their_root, make_dir, drop_dir),
        cmocka_unit_test(processes_start_with_nothing_inherited),
        cmocka_unit_test(a_program_that_cannot_start_says_why),
        cmocka_unit_test(a_pid_alone_names_nobody),
        cmocka_unit_test(without_descriptors_nobody_is_declared_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
