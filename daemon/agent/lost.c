/* An attempt whose shim died without an exit record: its ranks died with it (PR_SET_PDEATHSIG);
 * what they had started is found by the mark in its environment and killed in rounds until two
 * walks in a row find nothing: a process that is just executing another program shows an empty
 * environment for a moment. Meanwhile we hold the attempt's lock, so that no shim can start into
 * it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/agent/agent.h"
#include "daemon/procs.h"

#define LOST_PAUSE_US    20000
#define LOST_EMPTY_WALKS 2

void attempt_lose(struct attempt *a, int take_lock_fd)
{
    log_event(LOG_LEVEL_WARNING, "shim_lost", "attempt=%s pid=%d", a->id, (int)a->shim.shim.pid);
    a->phase = PHASE_LOST;
    a->lost_lock_fd = take_lock_fd;
    a->lost_killed = 0;
    a->lost_empty = 0;
    a->look_again_us = 0;
}

static void say_lost(struct attempt *a)
{
    char reason[256], rest[96] = "nothing was left of the attempt";
    if (a->lost_killed > 0)
        snprintf(rest, sizeof rest, "what was left of the attempt was ended (%zu process%s)",
                 a->lost_killed, a->lost_killed == 1 ? "" : "es");
    snprintf(reason, sizeof reason, "The shim on node %s died without an exit record; %s.",
             a->agent->options.name, rest);
    if (a->stopping && !a->has_dir) /* a stop of what was never here */
        attempt_end(a, "stopped", a->stop.code, a->stop.reason, 0);
    else
        attempt_end(a, "shim_lost", "shim_lost", reason, 1);
    if (a->lost_lock_fd >= 0)
        close(a->lost_lock_fd);
    a->lost_lock_fd = -1;
}

void attempt_lose_pump(struct attempt *a)
{
    char mark[ATTEMPT_MARK_SIZE];
    struct err e;
    size_t found = 0;
    int64_t now = clock_boottime_us();
    if (now < a->look_again_us) {
        agent_wake_at(a->agent, a->look_again_us);
        return;
    }
    int r = attempt_mark(a->id, mark, &e);
    if (r == 0)
        r = procs_kill_marked(mark, &found, &e);
    if (r < 0)
        log_event(LOG_LEVEL_ERROR, "kill_failed", "attempt=%s error=%s", a->id, log_quote(e.text));
    a->lost_empty = r == 0 && found == 0 ? a->lost_empty + 1 : 0;
    if (a->lost_empty == LOST_EMPTY_WALKS) {
        say_lost(a);
        return;
    }
    if (found > a->lost_killed)
        a->lost_killed = found;
    a->look_again_us = now + (r < 0 ? AGENT_TICK_US : LOST_PAUSE_US);
    agent_wake_at(a->agent, a->look_again_us);
}
