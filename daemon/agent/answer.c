/* The coordinator's answer: who it is, and what it wants of each attempt. It is checked before
 * anything is done: an id becomes a directory's name. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

/* ---- which coordinator ---- */

static void remember_instance(struct agent *g)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/instance.json", g->options.state_dir);
    json_auto_t *doc = json_pack("{s:I}", "instance_epoch", (json_int_t)g->instance_epoch);
    struct err e;
    if (doc && file_write_json(path, doc, 0600, &e) < 0)
        log_event(LOG_LEVEL_ERROR, "instance", "error=%s", log_quote(e.text));
}

/* ERR_STALE for an older coordinator than one seen before. *ret_old_wishes: its wish list is older
 * than the one applied last (two answers can overtake each other). */
static int take_instance(struct agent *g, const json_t *doc, int *ret_old_wishes, struct err *e)
{
    const char *instance = json_string_value(json_object_get(doc, "instance"));
    const json_t *epoch = json_object_get(doc, "instance_epoch");
    const json_t *seen = json_object_get(doc, "seen");
    if (!instance || !json_is_integer(epoch) || !json_is_integer(seen))
        return err_set(e, ERR_INVALID, "its answer lacks instance, instance_epoch or seen");
    if (json_integer_value(epoch) < g->instance_epoch)
        return err_set(
            e, ERR_STALE,
            "an old coordinator has come back (its epoch is %lld, %lld was seen before) and is "
            "ignored; if it is meant, remove %s/instance.json and restart this agent",
            (long long)json_integer_value(epoch), (long long)g->instance_epoch,
            g->options.state_dir);
    int same = strncmp(g->instance, instance, sizeof g->instance - 1) == 0;
    if (json_integer_value(epoch) > g->instance_epoch) {
        g->instance_epoch = json_integer_value(epoch);
        remember_instance(g);
    }
    *ret_old_wishes = same && json_integer_value(seen) < g->seen;
    if (!*ret_old_wishes)
        g->seen = json_integer_value(seen);
    snprintf(g->instance, sizeof g->instance, "%s", instance);
    return 0;
}

/* ---- wishes ---- */

struct wish {
    const char *id;
    const char *verb;
    int64_t epoch;
    int64_t report_offset; /* -1: not given */
    json_t *doc;
};

static int read_wish(json_t *doc, struct wish *ret)
{
    const json_t *epoch = json_object_get(doc, "epoch");
    const json_t *offset = json_object_get(doc, "report_offset");
    struct wish w = {
        .id = json_string_value(json_object_get(doc, "attempt")),
        .verb = json_string_value(json_object_get(doc, "do")),
        .epoch = json_integer_value(epoch),
        .report_offset = json_is_integer(offset) ? json_integer_value(offset) : -1,
        .doc = doc,
    };
    if (!w.id || !id_valid("att", w.id) || !w.verb || !json_is_integer(epoch) || w.epoch < 1)
        return -1;
    *ret = w;
    return 0;
}

/* An attempt that is not here but was begun, or is to be stopped: ends what carries its mark. */
static struct attempt *add_absent(struct agent *g, const struct wish *w)
{
    struct attempt *a = attempt_add(g, w->id);
    a->epoch = w->epoch;
    a->changed = 1;
    return a;
}

static void do_run(struct agent *g, struct attempt *a, const struct wish *w)
{
    json_t *launch = json_object_get(w->doc, "launch");
    if (a) {
        attempt_want(a);
    } else if (w->report_offset > 0) { /* it ran here: our directory is gone */
        reports_acked(a = add_absent(g, w), w->report_offset);
        attempt_lose(a, -1);
    } else if (json_is_object(launch)) {
        attempt_launch(g, w->id, w->epoch, launch);
    } else {
        log_event(LOG_LEVEL_ERROR, "wish", "attempt=%s note=\"run without a launch document\"",
                  w->id);
    }
}

static void do_stop(struct agent *g, struct attempt *a, const struct wish *w)
{
    struct stop_request stop;
    stop_request_from_json(w->doc, a ? a->default_grace_s : 0, &stop);
    if (a) {
        attempt_stop(a, &stop);
        return;
    }
    a = add_absent(g, w);
    a->stopping = 1;
    a->stop = stop;
    attempt_lose(a, -1);
}

static void do_forget(struct attempt *a)
{
    if (!a)
        return;
    if (attempt_complete(a))
        attempt_forget(a);
    else
        log_event(LOG_LEVEL_WARNING, "wish",
                  "attempt=%s note=\"asked to forget what has not ended; ignoring\"", a->id);
}

static void grant(struct agent *g, const struct wish *w)
{
    struct attempt *a = attempt_find(g, w->id);
    if (a && a->epoch == 0)
        a->epoch = w->epoch; /* its launch document could not be read */
    if (a && w->epoch < a->epoch) {
        log_event(LOG_LEVEL_WARNING, "wish", "attempt=%s epoch=%lld note=\"older than ours\"",
                  w->id, (long long)w->epoch);
        return;
    }
    if (a && w->report_offset >= 0)
        reports_acked(a, w->report_offset);
    if (strcmp(w->verb, "run") == 0)
        do_run(g, a, w);
    else if (strcmp(w->verb, "stop") == 0)
        do_stop(g, a, w);
    else if (strcmp(w->verb, "forget") == 0)
        do_forget(a);
    else
        log_event(LOG_LEVEL_WARNING, "wish", "attempt=%s verb=%s note=\"unknown; ignoring\"", w->id,
                  log_quote(w->verb));
    a = attempt_find(g, w->id);
    if (a && w->report_offset >= 0)
        reports_acked(a, w->report_offset);
}

int answer_apply(struct agent *g, const char *text, size_t n, struct err *e)
{
    json_error_t je;
    json_auto_t *doc = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    json_t *wanted = json_object_get(doc, "wanted");
    json_t *item;
    size_t i;
    int old_wishes = 0;
    if (!json_is_array(wanted))
        return err_set(e, ERR_INVALID, "its answer is not a wish list%s%s", doc ? "" : ": ",
                       doc ? "" : je.text);
    int r = take_instance(g, doc, &old_wishes, e);
    if (r < 0 || old_wishes)
        return r;
    sweep_want(g, json_object_get(doc, "checkpoints"));
    json_array_foreach(wanted, i, item)
    {
        struct wish w;
        if (read_wish(item, &w) == 0)
            grant(g, &w);
        else
            log_event(LOG_LEVEL_ERROR, "wish", "index=%zu note=\"cannot be read; ignoring\"", i);
    }
    return 0;
}
