/* The exit record: what the attempt came to, in the words of docs/protocols.md section 3. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/proc.h"
#include "daemon/shim/shim.h"

struct summary {
    const char *outcome;
    char code[64];
    char reason[ATTEMPT_REASON_MAX];
    int retryable;
    const struct rank_end *culprit; /* or NULL */
    int spawn_rank;                 /* or -1 */
};

static void say(struct summary *m, const char *outcome, const char *code, const char *reason)
{
    m->outcome = outcome;
    snprintf(m->code, sizeof m->code, "%s", code);
    snprintf(m->reason, sizeof m->reason, "%s", reason);
}

/* It asked for another attempt, or somebody else ended it: the kernel for want of memory, a machine
 * that goes down. What dies of its own fault (SIGSEGV, SIGABRT) would do so again. */
static int is_retryable(const struct rank_end *end)
{
    return end->exit_code == 111 || end->signal_number == SIGKILL || end->signal_number == SIGTERM;
}

static void blame(const struct shim *s, struct summary *m, const char *outcome,
                  const struct rank_end *end)
{
    CLEANUP(mem_freep) char *log = attempt_log_path(s->dir, end->rank < 0 ? 0 : end->rank);
    m->outcome = outcome;
    m->culprit = end;
    m->retryable = is_retryable(end);
    cause_describe(end, s->launch.node, log, m->code, m->reason);
}

static void say_limit(const struct shim *s, struct summary *m)
{
    char text[128];
    snprintf(text, sizeof text, "The time limit of %lld s was reached.",
             (long long)s->launch.time_limit_s);
    say(m, "time_limit", "time_limit", text);
}

/* The ranks agree to stop when one of them gets SIGTERM: if it was not ours, all ended well, but
 * the training did not. Which one got it they do not say. */
static int has_stopped(const struct shim *s)
{
    int count = 0;
    for (int i = 0; s->ends && i < s->launch.rank_count; i++)
        count += s->ends[i].verdict.stopped;
    return count > 0;
}

static void say_stopped(const struct shim *s, struct summary *m)
{
    char text[384];
    snprintf(text, sizeof text,
             "A rank on node %.200s got a SIGTERM that is not Trainyard's, so the training ended "
             "before its last step; its weights are written.",
             s->launch.node);
    say(m, "failed", "rank_stopped", text);
    m->retryable = 1;
}

static void say_done(const struct shim *s, struct summary *m)
{
    char text[64];
    if (has_stopped(s)) {
        say_stopped(s, m);
        return;
    }
    if (s->launch.rank_count == 1)
        snprintf(text, sizeof text, "The rank finished.");
    else
        snprintf(text, sizeof text, "All %d ranks finished.", s->launch.rank_count);
    say(m, "done", "done", text);
}

static void say_failed(const struct shim *s, struct summary *m)
{
    int cause = cause_find(s->ends, s->launch.rank_count);
    if (cause < 0)
        say(m, "failed", "rank_failed", "A rank failed, and all died of the ending that followed.");
    else
        blame(s, m, "failed", &s->ends[cause]);
}

static void say_spawn(const struct shim *s, struct summary *m)
{
    char text[ATTEMPT_REASON_MAX];
    const char *node = s->launch.node ? s->launch.node : "", *on = *node ? " on node " : "";
    size_t n = strlen(s->spawn_error.text);
    const char *stop = n > 0 && s->spawn_error.text[n - 1] == '.' ? "" : ".";
    if (s->spawn_rank >= 0)
        snprintf(text, sizeof text, "Rank %d could not be started%s%.200s: %s%s", s->spawn_rank, on,
                 node, s->spawn_error.text, stop);
    else
        snprintf(text, sizeof text, "The attempt could not be started%s%.200s: %s%s", on, node,
                 s->spawn_error.text, stop);
    say(m, "spawn_failed", "spawn_failed", text);
    m->spawn_rank = s->spawn_rank;
    m->retryable = !s->spawn_final;
}

static void say_signal(const struct shim *s, struct summary *m)
{
    char text[256];
    snprintf(text, sizeof text, "The shim on node %.200s was told to end by SIGTERM.",
             s->launch.node);
    say(m, "failed", "shim_terminated", text);
    m->retryable = 1;
}

static void summarise(const struct shim *s, struct summary *m)
{
    switch (s->end) {
    case SHIM_END_NONE:
    case SHIM_END_LEFTOVERS: say_done(s, m); break;
    case SHIM_END_FAILED: say_failed(s, m); break;
    case SHIM_END_PREPARE: blame(s, m, "prepare_failed", &s->prepare); break;
    case SHIM_END_SPAWN: say_spawn(s, m); break;
    case SHIM_END_STOP: say(m, "stopped", s->stop.code, s->stop.reason); break;
    case SHIM_END_TIME: say_limit(s, m); break;
    case SHIM_END_SIGNAL: say_signal(s, m); break;
    }
}

/* exit_code and signal of one end; whichever does not apply is null. */
static void put_end(json_t *o, const struct rank_end *end)
{
    int by_signal = end->signal_number != 0;
    json_object_set_new(o, "exit_code", by_signal ? json_null() : json_integer(end->exit_code));
    json_object_set_new(
        o, "signal", by_signal ? json_string(proc_signal_name(end->signal_number)) : json_null());
}

static json_t *ranks_to_json(const struct shim *s)
{
    json_t *list = json_array();
    for (int i = 0; s->ends && i < s->launch.rank_count; i++) {
        const struct rank_end *end = &s->ends[i];
        if (!end->ended)
            continue;
        json_t *o =
            json_pack("{s:i, s:I}", "rank", end->rank, "ended_us", (json_int_t)end->ended_us);
        put_end(o, end);
        json_array_append_new(list, o);
    }
    return list;
}

json_t *shim_exit_record(struct shim *s)
{
    CLEANUP(mem_freep) char *report = attempt_path(s->dir, ATTEMPT_REPORT);
    struct summary m = {.spawn_rank = -1};
    if (s->ends)
        cause_read_verdicts(report, s->ends, s->launch.rank_count);
    cause_read_verdicts(report, &s->prepare, 1);
    summarise(s, &m);
    json_t *o = exit_record_new(m.outcome, m.code, m.reason, m.retryable, s->record.started_us,
                                clock_wall_us());
    if (!o)
        return NULL;
    if (m.culprit && m.culprit->rank >= 0)
        json_object_set_new(o, "rank", json_integer(m.culprit->rank));
    if (m.culprit)
        put_end(o, m.culprit);
    if (m.spawn_rank >= 0)
        json_object_set_new(o, "rank", json_integer(m.spawn_rank));
    json_object_set_new(o, "ranks", ranks_to_json(s));
    return o;
}
