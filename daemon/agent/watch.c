/* inotify on attempt directories, two instances of it: renames into place (shim.json, exit.json)
 * are rare and acted on at once; writes by ranks may be endless, so after each look that instance
 * is left unread for AGENT_COALESCE_US while the kernel merges its events. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

static void note_written(struct attempt *a)
{
    a->logs_dirty = 1;
    reports_look(a);
}

static void note_all_written(struct agent *g)
{
    for (int i = 0; i < g->attempt_count; i++)
        note_written(g->attempts[i]);
}

static void moved(struct agent *g, const struct inotify_event *event)
{
    int all = (event->mask & IN_Q_OVERFLOW) != 0;
    for (int i = 0; i < g->attempt_count; i++) {
        if (all || g->attempts[i]->wd_moves == event->wd)
            attempt_refresh(g->attempts[i]);
    }
}

static void written(struct agent *g, const struct inotify_event *event)
{
    int all = (event->mask & IN_Q_OVERFLOW) != 0;
    for (int i = 0; i < g->attempt_count; i++) {
        if (all || g->attempts[i]->wd_writes == event->wd)
            note_written(g->attempts[i]);
    }
}

/* Reads all events that are there: at most 16,384, the kernel's queue. */
static void drain(struct agent *g, int fd,
                  void (*each)(struct agent *, const struct inotify_event *))
{
    _Alignas(struct inotify_event) char room[16384];
    ssize_t n;
    while ((n = read(fd, room, sizeof room)) > 0) {
        for (char *p = room; p < room + n;) {
            const struct inotify_event *event = (const struct inotify_event *)p;
            each(g, event);
            p += sizeof *event + event->len;
        }
    }
}

static int on_moves(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
    (void)source;
    (void)revents;
    drain(userdata, fd, moved);
    return 0;
}

static int on_writes(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
    struct agent *g = userdata;
    (void)revents;
    drain(g, fd, written);
    g->writes_on_us = clock_boottime_us() + AGENT_COALESCE_US;
    return sd_event_source_set_enabled(source, SD_EVENT_OFF);
}

int watch_init(struct agent *g, struct err *e)
{
    g->moves_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    g->writes_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (g->moves_fd < 0 || g->writes_fd < 0)
        return err_errno(e, "cannot set up inotify");
    if (sd_event_add_io(g->event, NULL, g->moves_fd, EPOLLIN, on_moves, g) < 0 ||
        sd_event_add_io(g->event, &g->writes_source, g->writes_fd, EPOLLIN, on_writes, g) < 0)
        return err_set(e, ERR_IO, "cannot watch attempt directories");
    return 0;
}

void watch_add(struct attempt *a)
{
    struct agent *g = a->agent;
    if (a->wd_moves >= 0)
        return;
    a->wd_moves = inotify_add_watch(g->moves_fd, a->dir, IN_MOVED_TO | IN_ONLYDIR);
    a->wd_writes = inotify_add_watch(g->writes_fd, a->dir, IN_MODIFY | IN_ONLYDIR);
    if (a->wd_moves < 0 || a->wd_writes < 0)
        log_event(LOG_LEVEL_WARNING, "not_watched",
                  "attempt=%s error=%s note=\"looking every second instead\"", a->id,
                  log_quote(strerror(errno)));
}

void watch_remove(struct attempt *a)
{
    if (a->wd_moves >= 0)
        inotify_rm_watch(a->agent->moves_fd, a->wd_moves);
    if (a->wd_writes >= 0)
        inotify_rm_watch(a->agent->writes_fd, a->wd_writes);
    a->wd_moves = a->wd_writes = -1;
}

void watch_pump(struct agent *g)
{
    int64_t now = clock_boottime_us();
    if (now >= g->tick_us) {
        g->tick_us = now + AGENT_TICK_US;
        for (int i = 0; i < g->attempt_count; i++)
            attempt_refresh(g->attempts[i]);
        note_all_written(g);
    }
    agent_wake_at(g, g->tick_us);
    if (g->writes_on_us == 0)
        return;
    if (now < g->writes_on_us) {
        agent_wake_at(g, g->writes_on_us);
        return;
    }
    g->writes_on_us = 0;
    if (sd_event_source_set_enabled(g->writes_source, SD_EVENT_ON) < 0)
        BUG("the watch on attempt directories cannot be resumed");
}
