/* The checkpoint directory: a child process removes what the coordinator no longer keeps and lists
 * what there is, which the next sync tells. At most one child at a time, and one a second; without
 * a reason, one every ten. One that takes longer than PATIENCE_US is trouble (no new jobs here)
 * until it ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define PERIOD_US   10000000
#define PAUSE_US    1000000
#define PATIENCE_US 30000000
#define REAP_US     20000
#define FRESH_US    5000000   /* what was wanted longer ago is not done any more */
#define TEXT_MAX    (4 << 20) /* bytes that a child may say */

void sweep_soon(struct agent *g)
{
    g->sweep.due = 1;
}

/* ---- what is wanted ---- */
/* An answer that was made before an attempt of ours knows nothing of what that one writes. */
static int is_outdated(const struct agent *g, const char *job, int64_t epoch)
{
    for (int i = 0; i < g->attempt_count; i++)
        if (strcmp(g->attempts[i]->job, job) == 0 && g->attempts[i]->epoch > epoch)
            return 1;
    return 0;
}

static json_t *not_outdated(const struct agent *g, const json_t *list)
{
    json_t *item;
    size_t i;
    json_t *wanted = json_array();
    json_array_foreach(list, i, item)
    {
        const char *job = json_string_value(json_object_get(item, "job"));
        int64_t epoch = json_integer_value(json_object_get(item, "epoch"));
        if (job && id_valid("job", job) && !is_outdated(g, job, epoch))
            json_array_append(wanted, item);
    }
    return wanted;
}

static void set_removals(struct agent *g, json_t *take_list)
{
    json_decref(g->sweep.removals);
    g->sweep.removals = take_list;
}

void sweep_want(struct agent *g, const json_t *list)
{
    json_t *wanted = not_outdated(g, list);
    if (json_array_size(wanted) == 0) {
        json_decref(wanted);
        return;
    }
    set_removals(g, wanted);
    g->sweep.wanted_us = clock_boottime_us();
    sweep_soon(g);
}

/* They may have waited for a child that hung. Meanwhile an attempt of the job may have begun, here
 * or, on a shared file system, on another node, and may write under the same names. What is still
 * to go is wanted again after the next look. */
static void drop_outdated(struct agent *g, int64_t now)
{
    int is_old = now - g->sweep.wanted_us > FRESH_US;
    set_removals(g, is_old ? NULL : not_outdated(g, g->sweep.removals));
}

/* ---- the child ---- */
static void close_between(unsigned first, unsigned last)
{
    if (first <= last)
        close_range(first, last, 0);
}

/* It has nothing of ours: neither the lock of the state directory nor a connection. */
_Noreturn static void run_child(const struct agent *g, int out)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_between(3, (unsigned)out - 1);
    close_between((unsigned)out + 1, ~0u);
    json_t *doc = tidy(g->options.checkpoint_dir, g->sweep.removals, g->sweep.after);
    char *text = json_dumps(doc, JSON_COMPACT);
    for (size_t n = text ? strlen(text) : 0, done = 0; done < n;) {
        ssize_t w = write(out, text + done, n - done);
        if (w < 0 && errno != EINTR)
            _exit(1);
        done += w > 0 ? (size_t)w : 0;
    }
    _exit(0);
}

/* ---- what it says ---- */
static void log_failures(struct agent *g, const json_t *failed)
{
    const char *job;
    json_t *why;
    if (!g->sweep.told)
        g->sweep.told = json_object();
    json_object_foreach((json_t *)failed, job, why)
    {
        if (json_equal(json_object_get(g->sweep.told, job), why))
            continue;
        json_object_set(g->sweep.told, job, why);
        log_event(LOG_LEVEL_WARNING, "not_removed", "job=%s reason=%s", job,
                  log_quote(json_string_value(why)));
    }
}

static void look_at_disk(struct agent *g, const json_t *disk)
{
    struct statvfs fs = {
        .f_frsize = (unsigned long)json_integer_value(json_array_get(disk, 0)),
        .f_blocks = (fsblkcnt_t)json_integer_value(json_array_get(disk, 1)),
        .f_bavail = (fsblkcnt_t)json_integer_value(json_array_get(disk, 2)),
        .f_files = (fsfilcnt_t)json_integer_value(json_array_get(disk, 3)),
        .f_favail = (fsfilcnt_t)json_integer_value(json_array_get(disk, 4)),
    };
    char text[TROUBLE_SIZE];
    trouble_of_disk("checkpoint directory", g->options.checkpoint_dir, &fs,
                    g->sweep.trouble[0] != '\0', text);
    snprintf(g->sweep.trouble, sizeof g->sweep.trouble, "%s", text);
}

static void take(struct agent *g, json_t *doc)
{
    struct sweep *s = &g->sweep;
    const char *error = json_string_value(json_object_get(doc, "error"));
    json_t *held = json_object_get(doc, "held");
    if (error || !json_is_array(held)) {
        snprintf(s->trouble, sizeof s->trouble, "%.250s.",
                 error ? error : "Looking at the checkpoint directory failed");
        return;
    }
    look_at_disk(g, json_object_get(doc, "disk"));
    log_failures(g, json_object_get(doc, "failed"));
    snprintf(s->after, sizeof s->after, "%s", json_string_value(json_object_get(doc, "after")));
    s->news |= !json_equal(held, s->held);
    json_decref(s->held);
    s->held = json_incref(held);
}

/* It has said all, or is to say no more; one that hangs in a file system outlasts SIGKILL, and is
 * reaped when it goes. */
static void leave_child(struct sweep *s)
{
    s->source = sd_event_source_disable_unref(s->source);
    mem_closep(&s->fd);
    s->fd = -1;
    buf_done(&s->text);
}

static void reap(struct agent *g, int64_t now)
{
    struct sweep *s = &g->sweep;
    pid_t r = waitpid(s->pid, NULL, WNOHANG);
    if (r == 0 || (r < 0 && errno == EINTR))
        agent_wake_at(g, now + REAP_US);
    else
        s->pid = 0;
}

static int on_output(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
    struct agent *g = userdata;
    struct sweep *s = &g->sweep;
    char room[65536];
    (void)source;
    (void)revents;
    ssize_t n = read(fd, room, sizeof room);
    if (n > 0 && s->text.len + (size_t)n <= TEXT_MAX) {
        buf_add(&s->text, room, (size_t)n);
        return 0;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n > 0)
        kill(s->pid, SIGKILL); /* it says too much */
    json_auto_t *doc = json_loadb(s->text.data ? s->text.data : "", s->text.len, 0, NULL);
    leave_child(s);
    take(g, doc);
    return 0;
}

static int start(struct agent *g)
{
    struct sweep *s = &g->sweep;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        run_child(g, fds[1]);
    close(fds[1]);
    s->fd = fds[0];
    s->pid = pid > 0 ? pid : 0;
    if (pid > 0 && fcntl(s->fd, F_SETFL, O_NONBLOCK) == 0 &&
        sd_event_add_io(g->event, &s->source, s->fd, EPOLLIN, on_output, g) >= 0)
        return 0;
    if (pid > 0)
        kill(pid, SIGKILL);
    leave_child(s);
    return -1;
}

void sweep_pump(struct agent *g)
{
    struct sweep *s = &g->sweep;
    int64_t now = clock_boottime_us();
    if (s->pid > 0 && s->fd < 0)
        reap(g, now);
    if (s->pid > 0) {
        if (now - s->started_us >= PATIENCE_US)
            snprintf(s->trouble, sizeof s->trouble,
                     "Its checkpoint directory %.150s has not answered for %d s.",
                     g->options.checkpoint_dir, PATIENCE_US / 1000000);
        else
            agent_wake_at(g, s->started_us + PATIENCE_US);
        return;
    }
    int64_t at =
        s->due && s->started_us + PAUSE_US < s->next_us ? s->started_us + PAUSE_US : s->next_us;
    if (now < at) {
        agent_wake_at(g, at);
        return;
    }
    s->started_us = now;
    s->next_us = now + PERIOD_US;
    s->due = 0;
    drop_outdated(g, now);
    if (start(g) < 0)
        log_event(LOG_LEVEL_WARNING, "not_swept", "reason=%s", log_quote(strerror(errno)));
    else
        agent_wake_at(g, now + PATIENCE_US);
    json_decref(
        STEAL(s->removals)); /* the child has its own; what it fails to do is wanted again */
}

/* A child that hangs in a file system may outlast SIGKILL: nobody waits for it. */
void sweep_done(struct agent *g)
{
    struct sweep *s = &g->sweep;
    if (s->pid > 0)
        kill(s->pid, SIGKILL);
    leave_child(s);
    json_decref(s->held);
    json_decref(s->removals);
    json_decref(s->told);
}
