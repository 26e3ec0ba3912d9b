/* The shim's loop: what happens to an attempt, turned into the next step. See shim.h. */
#include "daemon/shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#define RECORD_RETRY_US   1000000
#define RECORD_GIVE_UP_US (15LL * 60 * 1000000) /* a disk that is full for longer: shim_lost */
#define ROOM_BYTES(ranks) (16384 + (off_t)(ranks)*160) /* of an exit record, at most */

static void finish(struct shim *s);

/* ---- the exit record ---- */

static int on_retry(sd_event_source *source, uint64_t usec, void *userdata)
{
    (void)source;
    (void)usec;
    finish(userdata);
    return 0;
}

static int retry_later(struct shim *s)
{
    uint64_t at = (uint64_t)clock_boottime_us() + RECORD_RETRY_US;
    if (s->retry_timer) {
        int r = sd_event_source_set_time(s->retry_timer, at);
        return r < 0 ? r : sd_event_source_set_enabled(s->retry_timer, SD_EVENT_ONESHOT);
    }
    return sd_event_add_time(s->event, &s->retry_timer, CLOCK_BOOTTIME, at, 0, on_retry, s);
}

/* A job may fill the disk, and its end must be told all the same: blocks are kept from the start.
 */
static void keep_room(const struct shim *s)
{
    CLEANUP(mem_freep) char *path = attempt_path(s->dir, ATTEMPT_ROOM);
    CLEANUP(mem_closep)
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int code = fd < 0 ? errno : posix_fallocate(fd, 0, ROOM_BYTES(s->launch.rank_count));
    if (code != 0)
        log_event(LOG_LEVEL_WARNING, "no_room_kept", "error=%s", log_quote(strerror(code)));
}

static int write_record(const struct shim *s, const json_t *record, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(s->dir, ATTEMPT_ROOM);
    unlink(path);
    return exit_record_write(s->dir, record, e);
}

/* Writes the record and ends the loop: with 0, or with 1 once it is no use trying. */
static void finish(struct shim *s)
{
    struct err e;
    if (!s->exit_record) {
        s->exit_record = shim_exit_record(s);
        s->give_up_us = clock_boottime_us() + RECORD_GIVE_UP_US;
    }
    if (!s->exit_record)
        BUG("the exit record of %s cannot be made", s->launch.attempt);
    if (write_record(s, s->exit_record, &e) == 0) {
        sd_event_exit(s->event, 0);
        return;
    }
    log_event(LOG_LEVEL_ERROR, "exit_record", "error=%s", log_quote(e.text));
    if (clock_boottime_us() > s->give_up_us || retry_later(s) < 0)
        sd_event_exit(s->event, 1);
}

/* ---- children ---- */

static void note_end(struct shim *s, struct rank_end *end, const siginfo_t *info)
{
    int by_signal = info->si_code != CLD_EXITED;
    end->ended = 1;
    end->exit_code = by_signal ? -1 : info->si_status;
    end->signal_number = by_signal ? info->si_status : 0;
    end->ended_us = clock_wall_us();
    end->order = s->ended_count++;
    end->late = s->end != SHIM_END_NONE;
    end->by_us = (s->term_sent && end->signal_number == SIGTERM) ||
                 (s->kill_sent && end->signal_number == SIGKILL);
    log_event(LOG_LEVEL_INFO, "rank_ended", "rank=%d exit_code=%d signal=%d", end->rank,
              end->exit_code, end->signal_number);
}

static void note_child(struct shim *s, const siginfo_t *info)
{
    if (s->prepare_pid > 0 && info->si_pid == s->prepare_pid) {
        s->prepare_pid = 0;
        note_end(s, &s->prepare, info);
        return;
    }
    for (int i = 0; i < s->launch.rank_count; i++) {
        if (s->pids[i] > 0 && info->si_pid == s->pids[i]) {
            s->pids[i] = 0;
            note_end(s, &s->ends[i], info);
            return;
        }
    }
}

/* Reaps whatever is dead; 1 if children are left. */
static int reap(struct shim *s)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) < 0) {
            if (errno == EINTR)
                continue;
            return 0; /* ECHILD */
        }
        if (info.si_pid == 0)
            return 1;
        note_child(s, &info);
    }
}

/* ---- the attempt's course ---- */

static int ranks_left(const struct shim *s)
{
    int left = 0;
    for (int i = 0; i < s->launch.rank_count; i++)
        left += s->ends[i].started && !s->ends[i].ended;
    return left;
}

static int any_failed(const struct shim *s)
{
    for (int i = 0; i < s->launch.rank_count; i++) {
        if (cause_failed(&s->ends[i]))
            return 1;
    }
    return 0;
}

static int64_t short_grace(const struct shim *s)
{
    return s->launch.grace_s < SHIM_PEER_GRACE_S ? s->launch.grace_s : SHIM_PEER_GRACE_S;
}

static void give_up_start(struct shim *s, const struct err *e)
{
    s->spawn_error = *e;
    log_event(LOG_LEVEL_ERROR, "spawn_failed", "error=%s", log_quote(e->text));
    shim_begin_end(s, SHIM_END_SPAWN, 0);
}

static void start_ranks(struct shim *s)
{
    struct err e;
    if (shim_start_ranks(s, &e) < 0) {
        give_up_start(s, &e);
        return;
    }
    /* A full disk: the ranks run on, and the agent knows them by their mark. */
    if (shim_record_write(s->dir, &s->record, &e) < 0)
        log_event(LOG_LEVEL_ERROR, "shim_record", "error=%s", log_quote(e.text));
}

static void start_first(struct shim *s)
{
    struct err e;
    if (s->launch.spec->command)
        start_ranks(s);
    else if (shim_start_prepare(s, &e) < 0)
        give_up_start(s, &e);
}

static void after_prepare(struct shim *s)
{
    if (cause_failed(&s->prepare))
        shim_begin_end(s, SHIM_END_PREPARE, short_grace(s));
    else
        start_ranks(s);
}

/* Looks at what is and does what is next. */
static void step(struct shim *s)
{
    int children = reap(s);
    if (s->end == SHIM_END_NONE && s->prepare.ended && !s->record.ranks) {
        after_prepare(s);
        children = reap(s);
    }
    if (s->end == SHIM_END_NONE && any_failed(s)) {
        if (children)
            shim_begin_end(s, SHIM_END_FAILED, SHIM_PEER_GRACE_S);
        else
            s->end = SHIM_END_FAILED;
    }
    if (s->end == SHIM_END_NONE && children && s->record.ranks && !ranks_left(s))
        shim_begin_end(s, SHIM_END_LEFTOVERS, short_grace(s));
    if (!children && !s->exit_record)
        finish(s);
}

static int on_child(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata)
{
    (void)source;
    (void)info;
    step(userdata);
    return 0;
}

static int on_terminate(sd_event_source *source, const struct signalfd_siginfo *info,
                        void *userdata)
{
    struct shim *s = userdata;
    (void)source;
    (void)info;
    if (s->end == SHIM_END_NONE)
        shim_begin_end(s, SHIM_END_SIGNAL, s->launch.grace_s);
    step(s);
    return 0;
}

static void look_for_stop(struct shim *s)
{
    struct stop_request stop;
    struct err e;
    int r = stop_request_read(s->dir, &stop, &e);
    if (r == ERR_NOT_FOUND)
        return;
    if (r < 0) { /* it was meant as a stop */
        log_event(LOG_LEVEL_ERROR, "stop_unreadable", "error=%s", log_quote(e.text));
        stop_request_from_json(NULL, s->launch.grace_s, &stop);
    }
    if (s->end == SHIM_END_NONE)
        s->stop = stop;
    shim_begin_end(s, SHIM_END_STOP, stop.grace_s);
}

static int on_directory(sd_event_source *source, const struct inotify_event *event, void *userdata)
{
    struct shim *s = userdata;
    (void)source;
    if (event->mask & IN_Q_OVERFLOW || (event->len && strcmp(event->name, ATTEMPT_STOP) == 0)) {
        look_for_stop(s);
        step(s);
    }
    return 0;
}

static int on_time_limit(sd_event_source *source, uint64_t usec, void *userdata)
{
    struct shim *s = userdata;
    (void)source;
    (void)usec;
    if (s->end == SHIM_END_NONE)
        shim_begin_end(s, SHIM_END_TIME, s->launch.grace_s);
    step(s);
    return 0;
}

/* ---- setting up ---- */

static int watch_signals(struct shim *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    int r = sd_event_add_signal(s->event, NULL, SIGCHLD, on_child, s);
    return r < 0 ? r : sd_event_add_signal(s->event, NULL, SIGTERM, on_terminate, s);
}

static int watch(struct shim *s, struct err *e)
{
    int64_t limit = s->launch.time_limit_s;
    int r = sd_event_new(&s->event);
    if (r >= 0)
        r = watch_signals(s);
    if (r >= 0)
        r = sd_event_add_inotify(s->event, &s->directory, s->dir, IN_MOVED_TO | IN_CLOSE_WRITE,
                                 on_directory, s);
    if (r >= 0 && limit > 0)
        r = sd_event_add_time(s->event, NULL, CLOCK_BOOTTIME,
                              (uint64_t)(clock_boottime_us() + limit * 1000000), 0, on_time_limit,
                              s);
    if (r >= 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        r = -errno;
    if (r >= 0)
        return 0;
    errno = -r;
    return err_errno(e, "cannot set up the event loop");
}

static int read_launch(struct shim *s, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(s->dir, ATTEMPT_LAUNCH);
    json_t *doc;
    int r = file_read_json(path, ATTEMPT_LAUNCH_MAX, &doc, e);
    if (r < 0)
        return r;
    r = launch_from_json(doc, &s->launch, e);
    json_decref(doc);
    if (r < 0)
        return r;
    if (s->launch.rank_count < 1)
        return err_set(e, ERR_INVALID, "the launch document names no rank");
    s->ends = mem_zalloc((size_t)s->launch.rank_count * sizeof *s->ends);
    s->pids = mem_zalloc((size_t)s->launch.rank_count * sizeof *s->pids);
    for (int i = 0; i < s->launch.rank_count; i++)
        s->ends[i].rank = s->launch.ranks[i].rank;
    return 0;
}

static int set_up(struct shim *s, struct err *e)
{
    int r = proc_identify(getpid(), &s->record.shim, e);
    if (r == 0)
        r = read_launch(s, e);
    if (r == 0)
        r = watch(s, e);
    if (r == 0) /* from here on whoever finds us dead without an exit record calls us lost */
        r = shim_record_write(s->dir, &s->record, e);
    if (r == 0)
        keep_room(s);
    if (r == 0)
        r = shim_make_room(s, e);
    return r;
}

/* Nothing was started: say so in the exit record. */
static int run_failed(struct shim *s, struct err *e)
{
    s->end = SHIM_END_SPAWN;
    s->spawn_error = *e;
    json_auto_t *record = shim_exit_record(s);
    return record ? write_record(s, record, e)
                  : err_set(e, ERR_INTERNAL, "the exit record cannot be made");
}

int shim_run(struct shim *s, struct err *e)
{
    s->spawn_rank = -1;
    s->prepare.rank = -1;
    s->report_fd = s->shm_fd = s->data_fd = s->launch_fd = s->spool_fd = -1;
    if (set_up(s, e) < 0)
        return run_failed(s, e);
    look_for_stop(s);
    if (s->end == SHIM_END_NONE)
        start_first(s);
    step(s);
    int r = sd_event_loop(s->event);
    if (r == 0)
        return 0;
    return err_set(e, ERR_IO,
                   r > 0 ? "the exit record could not be written" : "the event loop failed");
}

void shim_done(struct shim *s)
{
    int *fds[] = {&s->report_fd, &s->shm_fd, &s->data_fd, &s->launch_fd, &s->spool_fd};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        mem_closep(fds[i]);
    json_decref(s->exit_record);
    sd_event_source_disable_unref(s->kill_timer);
    sd_event_source_disable_unref(s->retry_timer);
    sd_event_source_disable_unref(s->directory);
    sd_event_unref(s->event);
    free(s->ends);
    free(s->pids);
    free(s->user.name);
    free(s->user.home);
    shim_record_done(&s->record);
    launch_done(&s->launch);
}
