/* Ending an attempt: SIGTERM and SIGCONT to everything below us, a grace, then SIGKILL in rounds
 * until nothing is left.
 *
 * A rank's process group is signalled whole while its leader is unreaped, so that the number
 * cannot name another group; everything else below us is found by walking /proc and signalled by
 * pidfd. A round of SIGKILL may miss what is being forked, hence rounds: every 20 ms at first,
 * every second at last. Only the kernel can make one wait longer (a process in an uninterruptible
 * call), and then the device is not free either.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/procs.h"
#include "daemon/shim/shim.h"

#define KILL_PAUSE_FIRST_US 20000
#define KILL_PAUSE_LAST_US  1000000

static int is_live_group(const struct shim *s, pid_t group)
{
    if (s->prepare_pid > 0 && group == s->prepare_pid)
        return 1;
    for (int i = 0; s->pids && i < s->launch.rank_count; i++) {
        if (s->pids[i] > 0 && group == s->pids[i])
            return 1;
    }
    return 0;
}

static void signal_group(pid_t leader, int signal_number)
{
    if (leader > 0 && kill(-leader, signal_number) < 0 && errno != ESRCH)
        log_event(LOG_LEVEL_WARNING, "signal_failed", "pid=%d error=%s", (int)leader,
                  log_quote(strerror(errno)));
}

static void signal_groups(const struct shim *s, int signal_number)
{
    signal_group(s->prepare_pid, signal_number);
    for (int i = 0; s->pids && i < s->launch.rank_count; i++)
        signal_group(s->pids[i], signal_number);
}

/* Everything below us, but for members of live groups where `outside_groups`. */
static void signal_below(const struct shim *s, int signal_number, int outside_groups)
{
    struct procs p = {0};
    struct err e;
    if (procs_walk(s->record.shim.pid, &p, &e) < 0) {
        log_event(LOG_LEVEL_ERROR, "walk_failed", "error=%s", log_quote(e.text));
        return;
    }
    for (size_t i = 0; i < p.count; i++) {
        const struct procs_entry *entry = &p.items[i];
        if (!entry->below || entry->dead || (outside_groups && is_live_group(s, entry->group)))
            continue;
        if (procs_signal(entry, signal_number, &e) < 0)
            log_event(LOG_LEVEL_WARNING, "signal_failed", "pid=%d error=%s", (int)entry->pid,
                      log_quote(e.text));
    }
    procs_done(&p);
}

static void send_term(struct shim *s)
{
    s->term_sent = 1;
    signal_groups(s, SIGTERM);
    signal_below(s, SIGTERM, 1);
    signal_groups(s, SIGCONT);
    signal_below(s, SIGCONT, 1);
}

static void send_kill(struct shim *s)
{
    if (!s->kill_sent)
        log_event(LOG_LEVEL_INFO, "kill", "attempt=%s", s->launch.attempt);
    s->kill_sent = 1;
    signal_groups(s, SIGKILL);
    signal_below(s, SIGKILL, 0);
}

static void arm_kill(struct shim *s, int64_t at_us)
{
    if (sd_event_source_set_time(s->kill_timer, (uint64_t)at_us) < 0 ||
        sd_event_source_set_enabled(s->kill_timer, SD_EVENT_ONESHOT) < 0)
        BUG("the timer of the ending cannot be armed");
}

static int on_kill_time(sd_event_source *source, uint64_t usec, void *userdata)
{
    struct shim *s = userdata;
    (void)source;
    (void)usec;
    send_kill(s);
    arm_kill(s, clock_boottime_us() + (int64_t)s->kill_pause_us);
    s->kill_pause_us *= 2;
    if (s->kill_pause_us > KILL_PAUSE_LAST_US)
        s->kill_pause_us = KILL_PAUSE_LAST_US;
    return 0;
}

static int make_timer(struct shim *s)
{
    s->kill_pause_us = KILL_PAUSE_FIRST_US;
    return sd_event_add_time(s->event, &s->kill_timer, CLOCK_BOOTTIME, UINT64_MAX, 1000,
                             on_kill_time, s);
}

void shim_begin_end(struct shim *s, enum shim_end why, int64_t grace_s)
{
    int64_t kill_at = clock_boottime_us() + grace_s * 1000000;
    int first = s->end == SHIM_END_NONE;
    if (first)
        s->end = why;
    log_event(LOG_LEVEL_INFO, "ending", "attempt=%s why=%d grace_s=%lld", s->launch.attempt,
              (int)why, (long long)grace_s);
    if (!s->kill_timer && make_timer(s) < 0)
        BUG("the timer of the ending cannot be made");
    if (!s->term_sent)
        send_term(s);
    if (first || (kill_at < s->kill_at_us && !s->kill_sent)) {
        s->kill_at_us = kill_at;
        arm_kill(s, kill_at);
    }
}
