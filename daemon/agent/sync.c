/* The sync: everything that we see, posted; what is wanted, answered.
 *
 * One parked request waits for news from the coordinator; one urgent request (wait_ms 0) carries
 * news to it. Only the urgent one carries report lines, so that each line is under way once. After
 * The coordinator goes by the sequence where the older of the two arrives last. What lies in the
 * checkpoint directory is told by the parked one, and by an urgent one where it has changed. After
 * a failure both pause together, 0.1 s to 5 s, doubling, of which a random half.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define URGENT_TIMEOUT_MS 15000
#define NO_PROGRESS_US    1000000
#define SYNC_BODY_MAX     1048576 /* bytes */

static json_t *ranks_to_json(const struct attempt *a)
{
    json_t *list = json_array();
    for (int i = 0; i < a->shim.rank_count; i++) {
        const struct shim_rank *k = &a->shim.ranks[i];
        json_array_append_new(list, json_pack("{s:i, s:I, s:I}", "rank", k->rank, "pid",
                                              (json_int_t)k->pid, "start_time",
                                              (json_int_t)k->start_time));
    }
    return list;
}

static json_t *attempt_to_json(struct attempt *a, int *lines, int64_t *bytes)
{
    int ended = attempt_complete(a);
    json_int_t ended_us = ended ? json_integer_value(json_object_get(a->exit, "ended_us")) : 0;
    json_t *exit = ended ? left_out_exit(a) : json_null();
    json_t *o = json_pack("{s:s, s:I, s:s, s:I, s:o, s:I, s:I, s:o, s:o}", "attempt", a->id,
                          "epoch", (json_int_t)a->epoch, "state", attempt_state(a), "shim_pid",
                          (json_int_t)a->shim.shim.pid, "ranks", ranks_to_json(a), "started_us",
                          (json_int_t)a->shim.started_us, "ended_us", ended_us, "reports",
                          reports_read(a, lines, bytes), "exit", exit);
    if (a->phase == PHASE_ENDED && a->no_room)
        json_object_set_new(o, "waits", json_string("coordinator_disk"));
    return o;
}

static json_t *request_to_json(struct agent *g, int urgent, int64_t bytes)
{
    int lines = bytes > 0 ? REPORT_LINES_MAX : 0;
    json_t *attempts = json_array();
    for (int i = 0; i < g->attempt_count; i++) {
        struct attempt *a = g->attempts[i];
        a->changed = 0; /* after a failure the parked request says it all again */
        if (a->epoch > 0)
            json_array_append_new(attempts, attempt_to_json(a, &lines, &bytes));
    }
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:I, s:I, s:o, s:o}", "node",
                  g->options.name, "version", TRAINYARD_VERSION, "boot_id", g->boot_id, "state_id",
                  g->state_id, "run", g->run, "sequence", (json_int_t)g->sequence, "wait_ms",
                  urgent || !g->ready ? 0 : AGENT_PARK_MS, "seen", (json_int_t)g->seen, "wall_us",
                  (json_int_t)clock_wall_us(), "devices", devices_to_json(g), "attempts", attempts);
    json_object_set_new(o, "trainers", devices_trainers(g));
    json_t *telemetry = gpus_telemetry(g);
    if (telemetry)
        json_object_set_new(o, "telemetry", telemetry);
    if (g->trouble[0])
        json_object_set_new(o, "trouble", json_string(g->trouble));
    if (g->options.checkpoint_share)
        json_object_set_new(o, "checkpoint_share", json_string(g->options.checkpoint_share));
    if (g->sweep.held && (!urgent || g->sweep.news))
        json_object_set(o, "checkpoints", g->sweep.held);
    return o;
}

/* "401 Unauthorized: detail", as far as the answer says it. */
static void say_refusal(const struct http_answer *answer, char *out, size_t size)
{
    json_auto_t *doc = json_loadb(answer->body, answer->size, 0, NULL);
    const char *title = json_string_value(json_object_get(doc, "title"));
    const char *detail = json_string_value(json_object_get(doc, "detail"));
    snprintf(out, size, "it answered %d%s%.100s%s%.300s", answer->status, title ? " " : "",
             title ? title : "", detail ? ": " : "", detail ? detail : "");
}

static int take_answer(struct agent *g, const struct http_answer *answer)
{
    char why[512];
    struct err e;
    if (answer->status == 0) {
        agent_call_failed(g, "sync", answer->error);
        return -1;
    }
    if (answer->status != 200) {
        say_refusal(answer, why, sizeof why);
        agent_call_failed(g, "sync", why);
        return -1;
    }
    if (answer_apply(g, answer->body, answer->size, &e) < 0) {
        agent_call_failed(g, "sync", e.text);
        return -1;
    }
    agent_call_succeeded(g);
    return 0;
}

static void on_parked(void *arg, const struct http_answer *answer)
{
    struct agent *g = arg;
    g->parked = 0;
    take_answer(g, answer);
}

/* Lines that were sent and not taken are sent again, but not at once. */
static void hold_untaken(struct agent *g)
{
    for (int i = 0; i < g->attempt_count; i++) {
        struct attempt *a = g->attempts[i];
        if (a->report_known && a->report_sent > a->report_acked)
            a->report_hold_us = clock_boottime_us() + NO_PROGRESS_US;
    }
}

static void on_urgent(void *arg, const struct http_answer *answer)
{
    struct agent *g = arg;
    g->urgent = 0;
    if (take_answer(g, answer) == 0)
        hold_untaken(g);
    else
        g->urgent_due = 1;
}

/* Printed again, figures may be five times as long as a rank wrote them: if the body grows beyond
 * what the coordinator takes, fewer lines go into it. */
static char *request_text(struct agent *g, int urgent, int64_t bytes)
{
    for (;; bytes /= 4) {
        json_auto_t *doc = request_to_json(g, urgent, bytes);
        char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
        if (!text)
            BUG("a sync cannot be printed as JSON");
        if (strlen(text) <= SYNC_BODY_MAX || bytes / 4 <= REPORT_LINE_MAX)
            return text;
        free(text);
    }
}

static void send_sync(struct agent *g, int urgent)
{
    struct buf b = BUF_INIT;
    struct err e;
    g->sequence++;
    CLEANUP(mem_freep) char *text = request_text(g, urgent, urgent ? REPORT_BYTES_MAX : 0);
    g->gpus.telemetry_us = clock_boottime_us() + GPUS_TELEMETRY_US;
    g->sweep.news = 0; /* after a failure the parked request says it again */
    buf_adds(&b, text);
    int r = http_post(g->http, "/v1/agent/sync", "application/json", &b,
                      urgent || !g->ready ? URGENT_TIMEOUT_MS : AGENT_PARK_MS + 10000,
                      urgent ? on_urgent : on_parked, g, &e);
    if (r < 0)
        agent_call_failed(g, "sync", e.text);
    else if (urgent)
        g->urgent = 1;
    else
        g->parked = 1;
}

/* Figures of GPUs go out every few seconds, with whatever else there is. */
static int telemetry_due(struct agent *g)
{
    int64_t now = clock_boottime_us();
    if (!g->gpus.present || gpus_count(g) == 0)
        return 0;
    if (now >= g->gpus.telemetry_us)
        return 1;
    agent_wake_at(g, g->gpus.telemetry_us);
    return 0;
}

static int has_news(struct agent *g)
{
    int news = g->urgent_due | g->sweep.news | telemetry_due(g);
    for (int i = 0; i < g->attempt_count; i++) {
        struct attempt *a = g->attempts[i];
        news |= a->epoch > 0 && (a->changed || reports_due(a));
    }
    return news;
}

void sync_pump(struct agent *g)
{
    if (!g->gpus.settled)
        return; /* no GPU is offered, and none is missing, before each has been looked at */
    if (clock_boottime_us() < g->retry_us) {
        agent_wake_at(g, g->retry_us);
        return;
    }
    if (g->ready && !g->urgent && has_news(g)) {
        g->urgent_due = 0;
        send_sync(g, 1);
    }
    if (!g->parked && clock_boottime_us() >= g->retry_us)
        send_sync(g, 0);
}
