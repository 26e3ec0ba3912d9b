/* What a shim starts: the prepare step and the ranks, with their files, descriptors and user.
 *
 * Files of the attempt directory are opened here by name (only our user can write there); what
 * belongs to the job's user is reached through descriptors that we opened first.
 */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "daemon/shim/shim.h"

#define PASSWD_MAX 16384

static int lookup(const char *name, struct passwd *pw, char *room, struct err *e)
{
    struct passwd *found = NULL;
    int r = name ? getpwnam_r(name, pw, room, PASSWD_MAX, &found)
                 : getpwuid_r(getuid(), pw, room, PASSWD_MAX, &found);
    if (found)
        return 0;
    if (r != 0) {
        errno = r;
        return err_errno(e, "cannot look up the user %s", name ? name : "of this process");
    }
    if (!name) { /* a bare container: no entry for ourselves */
        *pw = (struct passwd){.pw_dir = "/", .pw_uid = getuid(), .pw_gid = getgid()};
        return 0;
    }
    return err_set(e, ERR_NOT_FOUND, "the user \"%.100s\" that jobs run as does not exist here",
                   name);
}

static int find_user(struct shim *s, struct err *e)
{
    CLEANUP(mem_freep) char *room = mem_alloc(PASSWD_MAX);
    struct passwd pw;
    int r = lookup(s->launch.run_as, &pw, room, e);
    if (r < 0)
        return r;
    s->user = (struct shim_user){.switched = s->launch.run_as && pw.pw_uid != getuid(),
                                 .uid = pw.pw_uid,
                                 .gid = pw.pw_gid,
                                 .name = mem_strdup(s->launch.run_as ? s->launch.run_as : ""),
                                 .home = mem_strdup(pw.pw_dir && *pw.pw_dir ? pw.pw_dir : "/")};
    return 0;
}

static int give_to_user(const struct shim *s, int fd, const char *what, struct err *e)
{
    if (s->user.switched && fchown(fd, s->user.uid, s->user.gid) < 0)
        return err_errno(e, "cannot give %s to the user %s", what, s->user.name);
    return 0;
}

static int make_artifacts(const struct shim *s, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(s->dir, ATTEMPT_ARTIFACTS);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_errno(e, "cannot create %s", path);
    CLEANUP(mem_closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "cannot open %s", path);
    return give_to_user(s, fd, path, e);
}

/* ---- the job's checkpoint directory, which outlives this attempt ---- */
/* Makes and opens it with the rights that we have now. It is ours alone to name: its parent is not
 * the job's. */
static int open_directory(int parent, const char *name, int *ret)
{
    if (mkdirat(parent, name, 0700) < 0 && errno != EEXIST)
        return -1;
    *ret = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *ret < 0 ? -1 : 0;
}

/* On a shared file system root is often nobody, and only the job's user may write. */
static int open_as_user(const struct shim *s, int parent, const char *name, int *ret)
{
    if (setegid(s->user.gid) < 0 || seteuid(s->user.uid) < 0)
        return -1;
    int r = open_directory(parent, name, ret);
    int code = errno;
    if (seteuid(0) < 0 || setegid(0) < 0)
        BUG("root cannot be had back");
    errno = code;
    return r;
}

static int is_users(const struct shim *s, int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_uid == s->user.uid && (st.st_mode & 07777) == 0700;
}

/* Its time of change is set anew, so that nobody takes it for one that is left over. */
static int make_checkpoints(const struct shim *s, struct err *e)
{
    const char *path = s->launch.checkpoints;
    if (!path)
        return 0;
    const char *name = strrchr(path, '/') + 1;
    CLEANUP(mem_freep) char *root = mem_strndup(path, (size_t)(name - path));
    CLEANUP(mem_closep) int parent = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0)
        return err_errno(e, "cannot open the checkpoint directory %s", root);
    CLEANUP(mem_closep) int fd = -1;
    int r = open_directory(parent, name, &fd);
    if (r < 0 && s->user.switched && (errno == EACCES || errno == EPERM))
        r = open_as_user(s, parent, name, &fd);
    if (r < 0)
        return err_errno(e, "cannot make the job's checkpoint directory %s", path);
    if (!is_users(s, fd) && (fchown(fd, s->user.uid, s->user.gid) < 0 || fchmod(fd, 0700) < 0))
        return err_errno(e, "cannot give %s to the user that jobs run as", path);
    if (futimens(fd, NULL) < 0)
        log_event(LOG_LEVEL_WARNING, "checkpoints", "error=%s", log_quote(strerror(errno)));
    return 0;
}

static int open_append(const char *path, int *ret, struct err *e)
{
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, "cannot open %s", path);
    *ret = fd;
    return 0;
}

static int make_memory(const char *name, int *ret, struct err *e)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(e, "cannot make the memory file %s", name);
    *ret = fd;
    return 0;
}

/* Data that is too large for memory: a file on the attempt's disk without a name, which goes when
 * the last process that has it open does. */
static int make_spool(struct shim *s, struct err *e)
{
    int fd = open(s->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
        CLEANUP(mem_freep) char *path = attempt_path(s->dir, "spool");
        fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0)
            unlink(path);
    }
    if (fd < 0)
        return err_errno(e, "cannot make a file for large data in %s", s->dir);
    s->spool_fd = fd;
    return 0;
}

/* launch.json is 0600 and ours, and /proc/self/fd/6 checks the file's mode again: another user
 * reads a sealed copy in memory. */
static int copy_launch(struct shim *s, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(s->dir, ATTEMPT_LAUNCH);
    struct buf b = BUF_INIT;
    int r = file_read(path, ATTEMPT_LAUNCH_MAX, &b, e);
    if (r == 0)
        r = make_memory("trainyard-launch", &s->launch_fd, e);
    if (r == 0 && (write(s->launch_fd, b.data, b.len) != (ssize_t)b.len ||
                   fcntl(s->launch_fd, F_ADD_SEALS,
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0))
        r = err_errno(e, "cannot copy %s into memory", path);
    buf_done(&b);
    return r;
}

int shim_make_room(struct shim *s, struct err *e)
{
    CLEANUP(mem_freep) char *report = attempt_path(s->dir, ATTEMPT_REPORT);
    int r = find_user(s, e);
    if (r == 0)
        r = make_artifacts(s, e);
    if (r == 0)
        r = make_checkpoints(s, e);
    if (r == 0)
        r = open_append(report, &s->report_fd, e);
    if (r == 0)
        r = make_memory("trainyard-gang", &s->shm_fd, e);
    if (r == 0)
        r = make_memory("trainyard-data", &s->data_fd, e);
    if (r == 0 && !s->launch.spec->command)
        r = make_spool(s, e);
    if (r == 0 && s->user.switched)
        r = copy_launch(s, e);
    return r;
}

/* ---- starting ---- */

/* `argv` words of the trainer; at most 6 with the NULL. */
static void trainer_words(const struct shim *s, const char *launch_path, const char *number,
                          const char **argv)
{
    int n = 0;
    argv[n++] = s->launch.trainer;
    argv[n++] = "--launch";
    argv[n++] = s->user.switched ? "/proc/self/fd/6" : launch_path;
    argv[n++] = number ? "--rank" : "--prepare";
    if (number)
        argv[n++] = number;
    argv[n] = NULL;
}

/* Starts one program as rank `rank` (NULL: the prepare step) with its log as fds 1 and 2. */
static int start(struct shim *s, const struct launch_rank *rank, const char *program,
                 char *const *argv, pid_t *ret_pid, struct err *e)
{
    CLEANUP(mem_freep) char *log = attempt_log_path(s->dir, rank ? rank->rank : 0);
    CLEANUP(mem_freep) char *cwd = attempt_path(s->dir, ATTEMPT_ARTIFACTS);
    CLEANUP(mem_closep) int log_fd = -1;
    char mark[ATTEMPT_MARK_SIZE];
    int r = open_append(log, &log_fd, e);
    if (r == 0) /* so that a program may open /dev/stdout */
        r = give_to_user(s, log_fd, log, e);
    if (r == 0)
        r = attempt_mark(s->launch.attempt, mark, e);
    if (r < 0)
        return r;
    int command = s->launch.spec->command != NULL;
    char **env = environment_new(s, rank, mark);
    struct proc_spawn p = {
        .program = program,
        .argv = argv,
        .envp = env,
        .cwd = cwd,
        .fds = {-1, log_fd, log_fd, s->report_fd, s->shm_fd, s->data_fd, s->launch_fd, s->spool_fd},
        .fd_count = command ? 3 : 8,
        .new_session = 1,
        .die_with_parent = 1,
        .cpu = rank ? rank->cpu : -1,
        .uid = s->user.uid,
        .gid = s->user.gid,
        .switch_user = s->user.switched,
        .user_name = s->user.name,
    };
    r = proc_start(&p, ret_pid, e);
    environment_free(env);
    return r;
}

int shim_start_prepare(struct shim *s, struct err *e)
{
    CLEANUP(mem_freep) char *launch_path = attempt_path(s->dir, ATTEMPT_LAUNCH);
    const char *argv[6];
    trainer_words(s, launch_path, NULL, argv);
    int r = start(s, NULL, s->launch.trainer, (char *const *)argv, &s->prepare_pid, e);
    s->prepare.started = r == 0;
    return r;
}

static int start_trainer(struct shim *s, const struct launch_rank *rank, pid_t *ret, struct err *e)
{
    CLEANUP(mem_freep) char *launch_path = attempt_path(s->dir, ATTEMPT_LAUNCH);
    char number[16];
    const char *argv[6];
    snprintf(number, sizeof number, "%d", rank->rank);
    trainer_words(s, launch_path, number, argv);
    return start(s, rank, s->launch.trainer, (char *const *)argv, ret, e);
}

static int start_command(struct shim *s, const struct launch_rank *rank, pid_t *ret, struct err *e)
{
    CLEANUP(mem_freep) char *program = NULL;
    const char *name = s->launch.spec->command[0];
    int r = environment_find(name, &program, e);
    if (r < 0) {
        s->spawn_final = 1;
        return r;
    }
    r = start(s, rank, program, s->launch.spec->command, ret, e);
    if (r == ERR_INVALID) {
        s->spawn_final = 1;
        if (name[0] != '/' && strchr(name, '/')) {
            CLEANUP(mem_freep) char *from = attempt_path(s->dir, ATTEMPT_ARTIFACTS);
            err_prefix(e, "the command \"%.100s\", looked for in %s", name, from);
        }
    }
    return r;
}

static int start_rank(struct shim *s, int i, struct err *e)
{
    const struct launch_rank *rank = &s->launch.ranks[i];
    pid_t pid;
    int r =
        s->launch.spec->command ? start_command(s, rank, &pid, e) : start_trainer(s, rank, &pid, e);
    if (r < 0)
        return r;
    s->pids[i] = pid;
    s->ends[i].started = 1;
    struct shim_rank *k = &s->record.ranks[s->record.rank_count];
    *k = (struct shim_rank){.rank = rank->rank, .pid = pid};
    r = proc_start_time(pid, &k->start_time, e); /* ours, unreaped: it has one */
    if (r == 0)
        s->record.rank_count++;
    return r;
}

int shim_start_ranks(struct shim *s, struct err *e)
{
    s->record.ranks = mem_zalloc((size_t)s->launch.rank_count * sizeof *s->record.ranks);
    s->record.started_us = clock_wall_us();
    for (int i = 0; i < s->launch.rank_count; i++) {
        int r = start_rank(s, i, e);
        if (r < 0) {
            s->spawn_rank = s->launch.ranks[i].rank;
            return r;
        }
    }
    return 0;
}
