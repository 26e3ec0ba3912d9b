/* One attempt's life as an agent sees it. The directory is the truth; `phase` is what we last
 * read from it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define LOOK_AGAIN_US 20000

struct attempt *attempt_find(const struct agent *g, const char *id)
{
    for (int i = 0; i < g->attempt_count; i++) {
        if (strcmp(g->attempts[i]->id, id) == 0)
            return g->attempts[i];
    }
    return NULL;
}

struct attempt *attempt_add(struct agent *g, const char *id)
{
    struct attempt *a = mem_zalloc(sizeof *a);
    a->agent = g;
    strncpy(a->id, id, sizeof a->id - 1);
    a->dir = mem_printf("%s/%s", g->attempts_dir, id);
    a->phase = PHASE_LAUNCHING;
    a->default_grace_s = 30;
    a->shim_pidfd = a->lost_lock_fd = a->report_fd = a->uploading = -1;
    a->wd_moves = a->wd_writes = -1;
    a->report_stuck = -1;
    g->attempts =
        mem_realloc(g->attempts, (size_t)(g->attempt_count + 1) * sizeof(struct attempt *));
    g->attempts[g->attempt_count++] = a;
    return a;
}

void attempt_free(struct attempt *a)
{
    watch_remove(a);
    sd_event_source_disable_unref(a->shim_source);
    mem_closep(&a->shim_pidfd);
    mem_closep(&a->lost_lock_fd);
    mem_closep(&a->report_fd);
    shim_record_done(&a->shim);
    json_decref(a->exit);
    json_decref(a->left_out);
    json_decref(a->gpus);
    json_decref(a->xids);
    for (int i = 0; i < a->upload_count; i++) {
        free(a->uploads[i].name);
        free(a->uploads[i].file);
    }
    free(a->uploads);
    free(a->dir);
    free(a);
}

const char *attempt_state(const struct attempt *a)
{
    if (attempt_complete(a))
        return "ended";
    if (a->stopping)
        return "stopping";
    return a->shim.rank_count > 0 || a->phase == PHASE_ENDED ? "running" : "launching";
}

int attempt_complete(const struct attempt *a)
{
    return a->phase == PHASE_ENDED && a->files_done && reports_done(a);
}

static void set_ended(struct attempt *a, json_t *take_record)
{
    json_decref(a->exit);
    a->exit = take_record;
    a->phase = PHASE_ENDED;
    a->changed = 1;
    gpus_attempt_ended(a->agent, a);
    reports_look(a);
    log_event(LOG_LEVEL_INFO, "ended", "attempt=%s outcome=%s code=%s", a->id,
              json_string_value(json_object_get(a->exit, "outcome")),
              log_quote(json_string_value(json_object_get(a->exit, "code"))));
}

void attempt_end(struct attempt *a, const char *outcome, const char *code, const char *reason,
                 int retryable)
{
    struct err e;
    json_t *record =
        exit_record_new(outcome, code, reason, retryable, a->shim.started_us, clock_wall_us());
    if (!record)
        BUG("an exit record cannot be made");
    if (a->has_dir && exit_record_write(a->dir, record, &e) < 0)
        log_event(LOG_LEVEL_ERROR, "exit_record", "attempt=%s error=%s", a->id, log_quote(e.text));
    set_ended(a, record);
}

/* ---- the shim as a process ---- */

static void forget_shim(struct attempt *a)
{
    a->shim_source = sd_event_source_disable_unref(a->shim_source);
    mem_closep(&a->shim_pidfd);
    a->shim_pidfd = -1;
}

/* Takes what shim.json says of the shim that we know; 1 if it says something new. */
static int read_record(struct attempt *a)
{
    struct shim_record record = {0};
    if (shim_record_read(a->dir, &record, NULL) < 0)
        return 0;
    int same =
        record.shim.pid == a->shim.shim.pid && record.shim.start_time == a->shim.shim.start_time;
    int news = !same || record.rank_count != a->shim.rank_count;
    shim_record_done(&a->shim);
    a->shim = record;
    return news;
}

static int on_shim_gone(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
    struct attempt *a = userdata;
    (void)source;
    (void)fd;
    (void)revents;
    /* ECHILD where an earlier agent was its parent. */
    while (waitpid(a->shim.shim.pid, NULL, WNOHANG) < 0 && errno == EINTR)
        continue;
    forget_shim(a);
    if (a->phase != PHASE_ENDED)
        attempt_examine(a);
    return 0;
}

/* Watches the shim that a->shim names; ERR_NOT_FOUND if that process is gone. */
static int watch_shim(struct attempt *a, struct err *e)
{
    int fd;
    int r = proc_open(&a->shim.shim, &fd, e);
    if (r < 0)
        return r;
    r = sd_event_add_io(a->agent->event, &a->shim_source, fd, EPOLLIN, on_shim_gone, a);
    if (r < 0) {
        close(fd);
        return err_set(e, ERR_IO, "cannot watch the shim");
    }
    a->shim_pidfd = fd;
    a->phase = a->shim.rank_count > 0 ? PHASE_RUNNING : PHASE_LAUNCHING;
    a->changed = 1;
    return 0;
}

static void look_again(struct attempt *a, int64_t pause_us)
{
    a->phase = PHASE_WAITING;
    a->look_again_us = clock_boottime_us() + pause_us;
}

static int take_exit_record(struct attempt *a)
{
    json_t *record;
    struct err e;
    int r = exit_record_read(a->dir, &record, &e);
    if (r == 0) {
        read_record(a);
        set_ended(a, record);
        return 1;
    }
    if (r != ERR_NOT_FOUND)
        log_event(LOG_LEVEL_ERROR, "exit_record", "attempt=%s error=%s", a->id, log_quote(e.text));
    return 0;
}

/* No shim that we know lives, and the lock is ours (`take_lock_fd`). */
static void examine_dead(struct attempt *a, int take_lock_fd, int had_shim)
{
    if (take_exit_record(a)) { /* written between our first look and its end */
        close(take_lock_fd);
    } else if (had_shim || a->starts >= AGENT_SHIM_STARTS || a->epoch == 0) {
        attempt_lose(a, take_lock_fd);
    } else {
        close(take_lock_fd);
        a->phase = PHASE_LAUNCHING;
        if (a->wanted)
            attempt_want(a);
    }
}

void attempt_examine(struct attempt *a)
{
    struct err e;
    struct shim_record record = {0};
    int lock_fd;
    if (take_exit_record(a)) {
        /* Its shim may be on its last instructions; if so, see it go. */
        if (a->shim_pidfd < 0 && a->shim.shim.pid > 0 && watch_shim(a, NULL) == 0)
            a->phase = PHASE_ENDED;
        return;
    }
    int r = shim_record_read(a->dir, &record, &e);
    int had_shim = r != ERR_NOT_FOUND;
    if (r == 0) {
        shim_record_done(&a->shim);
        a->shim = record;
        if (watch_shim(a, &e) == 0)
            return;
    }
    r = attempt_lock(a->dir, &lock_fd, &e);
    if (r == 0) {
        examine_dead(a, lock_fd, had_shim);
        return;
    }
    if (r != ERR_CONFLICT)
        log_event(LOG_LEVEL_ERROR, "lock", "attempt=%s error=%s", a->id, log_quote(e.text));
    look_again(a, r == ERR_CONFLICT ? LOOK_AGAIN_US : AGENT_TICK_US);
}

void attempt_refresh(struct attempt *a)
{
    if (!a->has_dir || a->phase == PHASE_ENDED || a->shim_pidfd < 0)
        return;
    if (take_exit_record(a) || !read_record(a))
        return;
    if (a->shim.rank_count > 0)
        a->phase = PHASE_RUNNING;
    a->changed = 1;
}

/* ---- starting ---- */

/* The attempt could not be begun, through no fault of its job. */
static void not_begun(struct attempt *a, const struct err *e)
{
    if (e->code == ERR_NO_SPACE)
        trouble_no_space(a->agent, e->text);
    attempt_end(a, "spawn_failed", "spawn_failed", e->text, 1);
}

static int spawn_shim(struct attempt *a, pid_t *ret, struct err *e)
{
    const struct agent *g = a->agent;
    char mark[ATTEMPT_MARK_SIZE];
    int r = attempt_mark(a->id, mark, e);
    if (r < 0)
        return r;
    CLEANUP(mem_freep) char *log_path = attempt_path(a->dir, ATTEMPT_SHIM_LOG);
    CLEANUP(mem_freep) char *mark_variable = mem_printf("%s=%s", ATTEMPT_MARK_VARIABLE, mark);
    CLEANUP(mem_closep)
    int log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (log_fd < 0)
        return err_errno(e, "cannot open %s", log_path);
    char *argv[] = {"trainyard-shim", "--dir", a->dir, NULL};
    char *envp[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", mark_variable, NULL};
    struct proc_spawn s = {
        .program = g->options.shim,
        .argv = argv,
        .envp = envp,
        .cwd = "/",
        .fds = {-1, log_fd, log_fd},
        .fd_count = 3,
        .new_session = 1,
        .cpu = -1,
    };
    return proc_start(&s, ret, e);
}

static int start_shim(struct attempt *a, struct err *e)
{
    pid_t pid = -1;
    int r = spawn_shim(a, &pid, e);
    if (r < 0)
        return r;
    a->starts++;
    shim_record_done(&a->shim);
    log_event(LOG_LEVEL_INFO, "shim_started", "attempt=%s pid=%d", a->id, (int)pid);
    r = proc_identify(pid, &a->shim.shim, e); /* our child, unreaped: it is there */
    if (r == 0)
        r = watch_shim(a, e);
    if (r == ERR_NOT_FOUND) { /* dead already, and a zombie */
        waitpid(pid, NULL, WNOHANG);
        attempt_examine(a);
    } else if (r < 0) {
        /* It runs all the same: to call its start a failure would have it run twice. */
        log_event(LOG_LEVEL_ERROR, "not_watched", "attempt=%s error=%s", a->id, log_quote(e->text));
        look_again(a, AGENT_TICK_US);
    }
    return 0;
}

void attempt_want(struct attempt *a)
{
    struct err e;
    a->wanted = 1;
    if (a->phase != PHASE_LAUNCHING || a->shim_pidfd >= 0 || a->stopping || !a->has_dir)
        return;
    if (devices_check(a, &e) < 0 || start_shim(a, &e) < 0)
        not_begun(a, &e);
}

/* A job that takes checkpoints is told of those that there are, if only by an empty list. */
static int add_checkpoints(const struct attempt *a, json_t *launch, struct err *e)
{
    if (!json_object_get(launch, "resume"))
        return 0;
    if (!id_valid("job", a->job)) /* it becomes a directory's name */
        return err_set(e, ERR_INVALID,
                       "the launch document names no job, so there is no place for "
                       "its checkpoints");
    json_object_set_new(launch, "checkpoints",
                        json_sprintf("%s/%s", a->agent->options.checkpoint_dir, a->job));
    return 0;
}

/* What only this node knows, put into the coordinator's document. */
static int complete_launch(const struct agent *g, json_t *launch, struct err *e)
{
    json_t *roots = json_array();
    for (int r = 0; r < g->options.data_root_count; r++)
        json_array_append_new(roots, json_string(g->options.data_roots[r]));
    json_object_set_new(launch, "data_roots", roots);
    json_object_set_new(launch, "boot_id", json_string(g->boot_id));
    if (g->options.run_as)
        json_object_set_new(launch, "run_as", json_string(g->options.run_as));
    else
        json_object_del(launch, "run_as");
    return devices_launch(g, launch, e);
}

static int make_directory(struct attempt *a, const json_t *launch, struct err *e)
{
    if (mkdir(a->dir, 0711) < 0)
        return err_errno(e, "cannot create %s", a->dir);
    a->has_dir = 1;
    if (chmod(a->dir, 0711) < 0) /* whatever our umask is */
        return err_errno(e, "cannot set the mode of %s", a->dir);
    /* After a crash of the machine the attempt is lost in any case, whatever of this was kept. */
    return attempt_write(a->dir, ATTEMPT_LAUNCH, launch, e);
}

void attempt_launch(struct agent *g, const char *id, int64_t epoch, json_t *launch)
{
    struct err e;
    struct attempt *a = attempt_add(g, id);
    const json_t *grace = json_object_get(launch, "grace_s");
    a->epoch = epoch;
    if (json_is_integer(grace))
        a->default_grace_s = json_integer_value(grace);
    a->changed = 1;
    const char *job = json_string_value(json_object_get(launch, "job"));
    snprintf(a->job, sizeof a->job, "%.39s", job ? job : "");
    int r = complete_launch(g, launch, &e);
    devices_take(a, json_object_get(launch, "ranks"));
    uploads_add_logs(a, json_object_get(launch, "ranks"));
    if (r == 0)
        r = add_checkpoints(a, launch, &e);
    if (r == 0)
        r = make_directory(a, launch, &e);
    if (r < 0) {
        log_event(LOG_LEVEL_ERROR, "launch_failed", "attempt=%s error=%s", id, log_quote(e.text));
        not_begun(a, &e);
        return;
    }
    watch_add(a);
    attempt_want(a);
}

/* ---- ending ---- */

static int same_stop(const struct stop_request *x, const struct stop_request *y)
{
    return x->grace_s == y->grace_s && strcmp(x->code, y->code) == 0 &&
           strcmp(x->reason, y->reason) == 0;
}

void attempt_stop(struct attempt *a, const struct stop_request *stop)
{
    struct err e;
    if (a->phase == PHASE_ENDED || a->phase == PHASE_LOST)
        return;
    if (a->stopping && same_stop(&a->stop, stop))
        return;
    if (a->has_dir && stop_request_write(a->dir, stop, &e) < 0) {
        /* Not noted as done, so that the next answer tries again. It may be this very job that has
         * filled the disk: a signal needs no room. */
        log_event(LOG_LEVEL_ERROR, "stop", "attempt=%s error=%s", a->id, log_quote(e.text));
        if (a->shim_pidfd >= 0 && proc_signal(a->shim_pidfd, SIGTERM, &e) < 0)
            log_event(LOG_LEVEL_ERROR, "stop", "attempt=%s error=%s", a->id, log_quote(e.text));
        return;
    }
    log_event(LOG_LEVEL_INFO, "stop", "attempt=%s code=%s", a->id, log_quote(stop->code));
    a->stopping = a->changed = 1;
    a->stop = *stop;
}

void attempt_forget(struct attempt *a)
{
    struct agent *g = a->agent;
    struct err e;
    if (a->shim_pidfd >= 0) {
        a->forgotten = 1;
        return;
    }
    if (a->has_dir && file_remove_tree(a->dir, &e) < 0)
        log_event(LOG_LEVEL_ERROR, "remove", "attempt=%s error=%s", a->id, log_quote(e.text));
    for (int i = 0; i < g->attempt_count; i++) {
        if (g->attempts[i] == a)
            g->attempts[i] = g->attempts[--g->attempt_count];
    }
    attempt_free(a);
}

/* A shim that somebody has stopped (SIGSTOP) would never hear that it is to end. */
static void wake_shim(const struct attempt *a)
{
    struct err e;
    if (a->stopping && a->phase != PHASE_ENDED && a->shim_pidfd >= 0)
        proc_signal(a->shim_pidfd, SIGCONT, &e); /* it may be gone, which is heard elsewhere */
}

void attempt_pump(struct attempt *a)
{
    wake_shim(a);
    if (a->phase == PHASE_WAITING) {
        if (clock_boottime_us() >= a->look_again_us)
            attempt_examine(a);
        if (a->phase == PHASE_WAITING)
            agent_wake_at(a->agent, a->look_again_us);
    }
    if (a->phase == PHASE_LOST)
        attempt_lose_pump(a);
    if (a->phase == PHASE_LAUNCHING && a->shim_pidfd < 0 && a->stopping)
        attempt_end(a, "stopped", a->stop.code, a->stop.reason, 0); /* it never started */
    uploads_pump(a);
}
