#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

int proc_boot_id(char out[PROC_BOOT_ID_SIZE], struct err *e)
{
    struct buf b = BUF_INIT;
    int r = file_read("/proc/sys/kernel/random/boot_id", 4096, &b, e);
    if (r < 0)
        return r;
    if (b.len < PROC_BOOT_ID_SIZE - 1) {
        buf_done(&b);
        return err_set(e, ERR_IO, "/proc/sys/kernel/random/boot_id is too short");
    }
    memcpy(out, b.data, PROC_BOOT_ID_SIZE - 1);
    out[PROC_BOOT_ID_SIZE - 1] = '\0';
    buf_done(&b);
    return 0;
}

/* The state (field 3) and the start time (field 22) of /proc/PID/stat; comm may hold spaces and
 * ")", so count from behind the last. */
static int parse_stat(const char *text, char *ret_state, uint64_t *ret_start)
{
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ' || p[2] == '\0')
        return ERR_IO;
    char state = p[2], *end = NULL;
    for (int field = 3; p && field <= 22; field++)
        p = strchr(p + 1, ' ');
    uint64_t start = p ? strtoull(p + 1, &end, 10) : 0;
    if (!p || end == p + 1)
        return ERR_IO;
    *ret_state = state;
    *ret_start = start;
    return 0;
}

static int read_stat(pid_t pid, char *ret_state, uint64_t *ret_start, struct err *e)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    struct buf b = BUF_INIT;
    int r = file_read(path, 8192, &b, e);
    if (r == ERR_NOT_FOUND || (r < 0 && errno == ESRCH))
        return err_set(e, ERR_NOT_FOUND, "no process has the pid %d", (int)pid);
    if (r < 0)
        return r; /* out of descriptors, say: it may well be there */
    r = parse_stat(b.data, ret_state, ret_start);
    buf_done(&b);
    if (r < 0)
        return err_set(e, ERR_IO, "%s has an unexpected form", path);
    return 0;
}

int proc_start_time(pid_t pid, uint64_t *ret, struct err *e)
{
    char state;
    return read_stat(pid, &state, ret, e);
}

int proc_identify(pid_t pid, struct proc_identity *ret, struct err *e)
{
    struct proc_identity id = {.pid = pid};
    int r = proc_boot_id(id.boot_id, e);
    if (r == 0)
        r = proc_start_time(pid, &id.start_time, e);
    if (r == 0)
        *ret = id;
    return r;
}

int proc_open(const struct proc_identity *id, int *ret_pidfd, struct err *e)
{
    char boot[PROC_BOOT_ID_SIZE];
    int r = proc_boot_id(boot, e);
    if (r < 0)
        return r;
    if (strcmp(boot, id->boot_id) != 0)
        return err_set(e, ERR_NOT_FOUND, "process %d belongs to an earlier boot", (int)id->pid);
    int fd = (int)syscall(SYS_pidfd_open, id->pid, 0);
    if (fd < 0 && errno != ESRCH && errno != EINVAL)
        return err_errno(e, "cannot open the process %d", (int)id->pid);
    if (fd < 0)
        return err_set(e, ERR_NOT_FOUND, "no process has the pid %d", (int)id->pid);
    char state = 0;
    uint64_t start = 0;
    r = read_stat(id->pid, &state, &start, e);
    if (r == 0 && (start != id->start_time || state == 'Z' || state == 'X'))
        r = err_set(e, ERR_NOT_FOUND, "the process that had the pid %d is gone", (int)id->pid);
    if (r < 0) {
        close(fd);
        return r;
    }
    *ret_pidfd = fd;
    return 0;
}

int proc_signal(int pidfd, int signal_number, struct err *e)
{
    if (syscall(SYS_pidfd_send_signal, pidfd, signal_number, NULL, 0) < 0)
        return err_errno(e, "cannot send %s", proc_signal_name(signal_number));
    return 0;
}

/* ---- in the child, between fork and exec: only async-signal-safe calls ---- */

static int reset_signals(void)
{
    /* The kernel's own struct, all zeroes: SIG_DFL. glibc's signal() refuses the two signals that
     * it keeps for itself, but a parent may have left them ignored. */
    const unsigned long by_default[8] = {0};
    sigset_t none;
    sigemptyset(&none);
    for (int s = 1; s < NSIG; s++)
        (void)syscall(SYS_rt_sigaction, s, by_default, NULL, (size_t)(NSIG / 8));
    return sigprocmask(SIG_SETMASK, &none, NULL);
}

static int place_fds(const struct proc_spawn *s, int *status_fd)
{
    int moved[16];
    int high = fcntl(*status_fd, F_DUPFD_CLOEXEC, 64);
    if (high < 0)
        return -1;
    *status_fd = high;
    for (int i = 0; i < s->fd_count; i++) {
        int from = s->fds[i] >= 0 ? s->fds[i] : open("/dev/null", O_RDWR | O_CLOEXEC);
        moved[i] = fcntl(from, F_DUPFD_CLOEXEC, 65);
        if (moved[i] < 0)
            return -1;
    }
    for (int i = 0; i < s->fd_count; i++) {
        if (dup2(moved[i], i) < 0)
            return -1;
    }
    /* CLOSE_RANGE_CLOEXEC: the status pipe must live until exec. */
    return (int)syscall(SYS_close_range, (unsigned)s->fd_count, ~0U, 4U);
}

static int switch_user(const struct proc_spawn *s)
{
    if (!s->switch_user)
        return 0;
    if (initgroups(s->user_name, s->gid) < 0 || setgid(s->gid) < 0 || setuid(s->uid) < 0)
        return -1;
    if (s->uid != 0 && setuid(0) == 0) {
        errno = EPERM;
        return -1;
    }
    return 0;
}

static int bind_cpu(int cpu)
{
    if (cpu < 0)
        return 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static const char *prepare_child(const struct proc_spawn *s, pid_t parent, int *status_fd)
{
    if (s->new_session && setsid() < 0)
        return "setsid";
    if (place_fds(s, status_fd) < 0)
        return "placing file descriptors";
    if (bind_cpu(s->cpu) < 0)
        return "binding to a CPU";
    if (switch_user(s) < 0)
        return "switching to the job's user";
    if (s->cwd && chdir(s->cwd) < 0)
        return "entering the working directory";
    if (s->die_with_parent) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
            return "PR_SET_PDEATHSIG";
        if (getppid() != parent)
            _exit(111);
    }
    return reset_signals() < 0 ? "resetting signals" : NULL;
}

struct child_failure {
    int number;
    char what[48];
};

_Noreturn static void run_child(const struct proc_spawn *s, pid_t parent, int status_fd)
{
    struct child_failure f = {0};
    const char *what = prepare_child(s, parent, &status_fd);
    if (!what) {
        execve(s->program, s->argv, s->envp);
        what = "exec";
    }
    f.number = errno;
    strncpy(f.what, what, sizeof f.what - 1);
    ssize_t n = write(status_fd, &f, sizeof f);
    (void)n; /* the parent sees the exit code if not this */
    _exit(127);
}

/* It is not there, or is nothing that can be run: no other try would find it so. */
static int is_no_program(int number)
{
    return number == ENOENT || number == EACCES || number == ENOEXEC || number == ENOTDIR ||
           number == EISDIR || number == ELOOP || number == ENAMETOOLONG;
}

int proc_start(const struct proc_spawn *s, pid_t *ret_pid, struct err *e)
{
    int pipe_fds[2];
    if (s->fd_count > (int)ARRAY_LEN(s->fds))
        BUG("proc_start with %d fds", s->fd_count);
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_errno(e, "cannot make a pipe");
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* no handler of ours may run in the child */
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        run_child(s, parent, pipe_fds[1]);
    int fork_errno = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(pipe_fds[1]);
    if (pid < 0) {
        close(pipe_fds[0]);
        errno = fork_errno;
        return err_errno(e, "cannot fork for %s", s->program);
    }
    struct child_failure f;
    ssize_t n;
    do {
        n = read(pipe_fds[0], &f, sizeof f);
    } while (n < 0 && errno == EINTR);
    close(pipe_fds[0]);
    if (n == (ssize_t)sizeof f) {
        waitpid(pid, NULL, 0);
        if (strcmp(f.what, "exec") == 0 && is_no_program(f.number))
            return err_set(e, ERR_INVALID, "cannot run %s: %s", s->program, strerror(f.number));
        errno = f.number;
        return err_errno(e, "cannot start %s (%.47s)", s->program, f.what);
    }
    *ret_pid = pid;
    return 0;
}

const char *proc_signal_name(int signal_number)
{
    static char other[24];
    static char named[32];
    const char *abbreviation = sigabbrev_np(signal_number);
    if (abbreviation) {
        snprintf(named, sizeof named, "SIG%s", abbreviation);
        return named;
    }
    snprintf(other, sizeof other, "signal %d", signal_number);
    return other;
}
