#include "daemon/agent/gpus.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

const char *gpu_state_name(enum gpu_state state)
{
    static const char *const names[] = {"ready", "dirty", "failed", "lost"};
    return names[state];
}

void gpus_news(struct agent *g)
{
    g->urgent_due = 1;
}

/* ---- states ---- */

static void set_state(struct agent *g, struct gpu *d, const struct gpu_finding *f)
{
    int same = d->now.state == f->state && strcmp(d->now.code, f->code) == 0;
    int usual = f->state == GPU_READY || strcmp(f->code, "checking") == 0;
    d->now = *f;
    if (same)
        return;
    gpus_news(g);
    log_event(usual ? LOG_LEVEL_INFO : LOG_LEVEL_WARNING, "gpu",
              "index=%d uuid=%s state=%s code=%s reason=%s", d->index, d->uuid,
              gpu_state_name(f->state), f->code[0] ? f->code : "none", log_quote(f->reason));
}

static int is_checking(const struct gpu *d)
{
    return d->now.state == GPU_DIRTY && strcmp(d->now.code, "checking") == 0;
}

/* What a look that began at `began_us` found. */
static void take_finding(struct agent *g, struct gpu *d, const struct gpu_finding *f,
                         int64_t began_us)
{
    int outdated = began_us < d->checking_us;
    if (f->state == GPU_FAILED || f->state == GPU_LOST || (f->state == GPU_DIRTY && !outdated)) {
        d->clean_looks = 0;
        set_state(g, d, f);
        return;
    }
    if (d->now.state == GPU_READY || outdated)
        return;
    if (++d->clean_looks >= GPUS_CLEAN_LOOKS || is_checking(d))
        set_state(g, d, f);
}

void gpus_attempt_ended(struct agent *g, const struct attempt *a)
{
    json_t *rank;
    size_t i;
    json_array_foreach(a->gpus, i, rank)
    {
        struct gpu *d = gpumap_find(g, json_string_value(json_object_get(rank, "uuid")));
        struct gpu_finding f = {.state = GPU_DIRTY, .code = "checking"};
        if (!d)
            continue;
        d->checking_us = clock_boottime_us();
        d->clean_looks = 0;
        snprintf(f.reason, sizeof f.reason, "It is being checked after the end of %s.", a->id);
        if (d->now.state == GPU_READY)
            set_state(g, d, &f);
        gpus_look_soon(g);
    }
}

/* ---- looks ---- */

static void copy_text(const json_t *o, const char *key, char *out, size_t size, int *changed)
{
    const char *text = json_string_value(json_object_get(o, key));
    if (!text || strncmp(out, text, size - 1) == 0)
        return;
    snprintf(out, size, "%s", text);
    *changed = 1;
}

/* What NVML does not tell of it is logged once, and when that changes. */
static void log_unanswered(struct gpu *d)
{
    char text[sizeof d->told] = "";
    const char *what;
    json_t *why;
    size_t n = 0;
    json_object_foreach(json_object_get(d->look, "unanswered"), what, why)
    {
        if (n < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s: %s", n ? ", " : "", what,
                                  json_string_value(why));
    }
    if (strcmp(text, d->told) != 0 && text[0])
        log_event(LOG_LEVEL_INFO, "gpu_unanswered", "index=%d figures=%s", d->index,
                  log_quote(text));
    memcpy(d->told, text, sizeof text);
}

static void log_throttled(struct gpu *d)
{
    int bits = (int)json_integer_value(json_object_get(d->look, "throttled")) &
               (NVML_SLOWDOWN | NVML_SLOWDOWN_THERMAL | NVML_SLOWDOWN_POWER_BRAKE);
    if (bits == d->throttled)
        return;
    d->throttled = bits;
    log_event(bits ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "gpu_slowed",
              "index=%d heat=%d power_brake=%d slowdown=%d", d->index,
              (bits & NVML_SLOWDOWN_THERMAL) != 0, (bits & NVML_SLOWDOWN_POWER_BRAKE) != 0,
              (bits & NVML_SLOWDOWN) != 0);
}

static void take_one(struct agent *g, json_t *seen)
{
    struct gpu *d = gpumap_find(g, json_string_value(json_object_get(seen, "uuid")));
    int changed = 0;
    if (!d)
        return; /* it has no number */
    json_int_t memory = json_integer_value(json_object_get(seen, "memory_bytes"));
    json_decref(d->look);
    d->look = json_incref(seen);
    copy_text(seen, "name", d->name, sizeof d->name, &changed);
    copy_text(seen, "pci", d->pci, sizeof d->pci, &changed);
    copy_text(seen, "mig_of", d->mig_of, sizeof d->mig_of, &changed);
    if (memory > 0 && memory != d->memory) {
        d->memory = memory;
        changed = 1;
    }
    g->gpus.wrong_map |= changed;
    log_unanswered(d);
    log_throttled(d);
}

static void log_notes(struct agent *g, const json_t *look)
{
    char text[sizeof g->gpus.logged] = "";
    json_t *item;
    size_t i;
    size_t n = 0;
    json_array_foreach(json_object_get(look, "unidentified"), i, item)
    {
        if (n < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n,
                                  "NVML's device %lld cannot be identified (%s). ",
                                  (long long)json_integer_value(json_object_get(item, "position")),
                                  json_string_value(json_object_get(item, "error")));
    }
    json_array_foreach(json_object_get(look, "notes"), i, item)
    {
        if (n < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s ", json_string_value(item));
    }
    if (strcmp(text, g->gpus.logged) != 0 && text[0])
        log_event(LOG_LEVEL_WARNING, "gpus", "note=%s", log_quote(text));
    memcpy(g->gpus.logged, text, sizeof text);
}

static void learn(struct agent *g, struct gpu *d)
{
    int64_t before = d->baseline;
    gpu_learn(g, d);
    if (before < 0 ? d->baseline >= 0 : before - d->baseline > GPUS_MEMORY_SLACK / 8)
        g->gpus.wrong_map = 1;
}

void gpus_take_look(struct agent *g, json_t *look)
{
    struct gpus *s = &g->gpus;
    json_t *list = json_object_get(look, "gpus");
    json_t *seen;
    size_t i;
    int64_t began = json_integer_value(json_object_get(look, "began_us"));
    int before = gpus_count(g);
    s->without[0] = '\0';
    for (int k = 0; k < s->count; k++) {
        json_decref(s->items[k].look);
        s->items[k].look = NULL;
    }
    gpumap_add(g, list);
    json_array_foreach(list, i, seen) take_one(g, seen);
    for (int k = 0; k < s->count; k++)
        learn(g, &s->items[k]);
    gpumap_save(g);
    gpumap_check_latches(g);
    for (int k = 0; k < s->count; k++) {
        struct gpu_finding f;
        gpu_judge(g, &s->items[k], &f);
        take_finding(g, &s->items[k], &f, began);
        s->items[k].xid = 0;
    }
    log_notes(g, look);
    if (!s->present || before != gpus_count(g))
        gpus_news(g);
    s->settled = s->present = 1;
    s->stalled = 0;
    devices_number(g);
}

/* ---- Xids ---- */

/* Into the rank's own log, where its user will look. */
static void tell_rank(struct attempt *a, int rank, const struct gpu *d, int xid, const char *what)
{
    CLEANUP(mem_freep) char *path = attempt_log_path(a->dir, rank);
    CLEANUP(mem_closep) int fd = open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
    json_t *told =
        json_pack("{s:i, s:i, s:s, s:i, s:s*, s:I}", "rank", rank, "device", d->index, "uuid",
                  d->uuid, "xid", xid, "what", what, "time_us", (json_int_t)clock_wall_us());
    if (!a->xids)
        a->xids = json_array();
    if (json_array_size(a->xids) < LEFT_OUT_MAX)
        json_array_append(a->xids, told);
    json_decref(told);
    if (fd >= 0 && dprintf(fd, "trainyard-agent: GPU %d (%s) reports Xid %d%s%s.\n", d->index,
                           d->uuid, xid, what ? ": " : "", what ? what : "") > 0)
        a->logs_dirty = 1;
}

static void take_xid(struct agent *g, struct gpu *d, int xid)
{
    const char *what;
    int rank = -1;
    enum xid_kind kind = xid_kind(xid, &what);
    struct attempt *a = gpu_lessee(g, d->uuid, &rank);
    struct gpu_finding f = {.state = GPU_FAILED, .code = "xid"};
    log_event(kind == XID_APPLICATION ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, "xid",
              "index=%d uuid=%s xid=%d what=%s attempt=%s", d->index, d->uuid, xid,
              log_quote(what ? what : "unknown"), a ? a->id : "none");
    if (a && a->has_dir)
        tell_rank(a, rank, d, xid, what);
    if (kind == XID_OTHER)
        d->xid = xid;
    if (kind != XID_HARDWARE)
        return;
    snprintf(f.reason, sizeof f.reason,
             "It has reported Xid %d: %s. Once it has been reset or replaced, remove the file "
             "gpu-failed.%s in the agent's state directory.",
             xid, what, d->uuid);
    d->latch = f;
    gpumap_latch(g, d);
}

void gpus_take_xid(struct agent *g, const char *uuid, int xid)
{
    for (int i = 0; i < g->gpus.count; i++) {
        struct gpu *d = &g->gpus.items[i];
        struct gpu_finding f;
        if (strcmp(d->uuid, uuid) != 0 && strcmp(d->mig_of, uuid) != 0)
            continue;
        take_xid(g, d, xid);
        if (!d->look)
            continue;
        gpu_judge(g, d, &f);
        if (f.state != GPU_READY)
            take_finding(g, d, &f, clock_boottime_us());
    }
    gpus_look_soon(g);
}

/* ---- what is told ---- */

static int is_listed(const char *list, const char *uuid)
{
    size_t n = strlen(uuid);
    for (const char *p = list; n > 0 && (p = strstr(p, uuid)); p += n) {
        if ((p == list || p[-1] == ',') && (p[n] == '\0' || p[n] == ','))
            return 1;
    }
    return 0;
}

static int is_selected(const struct agent *g, const struct gpu *d)
{
    const char *list = g->options.gpus;
    return strcmp(list, "auto") == 0 || is_listed(list, d->uuid) || is_listed(list, d->mig_of);
}

/* One that an attempt has is, whatever --gpus says by now: the coordinator takes what is not listed
 * for lost. A card that is split is not offered, its instances are; and an instance that is no more
 * while its card is there was taken away by somebody. */
int gpus_offered(const struct agent *g, const struct gpu *d)
{
    if (d->saved && gpu_lessee(g, d->uuid, NULL))
        return 1;
    if (!d->saved || !is_selected(g, d))
        return 0;
    if (d->look)
        return !json_object_get(d->look, "mig");
    const struct gpu *card = d->mig_of[0] ? gpumap_find(g, d->mig_of) : NULL;
    return !card || !card->look;
}

int gpus_count(const struct agent *g)
{
    int n = 0;
    for (int i = 0; i < g->gpus.count; i++)
        n += gpus_offered(g, &g->gpus.items[i]);
    return n;
}

/* 1 if the node has, or has had, one that the first `n` bytes of `uuid` name. */
static int is_known(const struct agent *g, const char *uuid, size_t n)
{
    for (int i = 0; i < g->gpus.count; i++) {
        const struct gpu *d = &g->gpus.items[i];
        if ((strlen(d->uuid) == n && memcmp(d->uuid, uuid, n) == 0) ||
            (strlen(d->mig_of) == n && memcmp(d->mig_of, uuid, n) == 0))
            return 1;
    }
    return 0;
}

void gpus_unknown(const struct agent *g, char *out, size_t size)
{
    const char *list = g->options.gpus;
    out[0] = '\0';
    if (!g->gpus.settled || strcmp(list, "auto") == 0 || strcmp(list, "none") == 0)
        return;
    for (const char *p = list; *p && !out[0]; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        if (!is_known(g, p, n))
            snprintf(out, size,
                     "Its --gpus names %.*s, which it has not; %s (nvidia-smi -L lists the UUIDs).",
                     n < 100 ? (int)n : 100, p,
                     g->gpus.without[0] ? g->gpus.without : "no GPU here has that UUID");
        p += n;
    }
}

void gpu_report(const struct agent *g, const struct gpu *d, struct gpu_finding *ret)
{
    const struct gpus *s = &g->gpus;
    *ret = d->now;
    if (s->present || ret->state == GPU_FAILED || ret->state == GPU_LOST)
        return;
    *ret = (struct gpu_finding){.state = GPU_FAILED};
    if (s->without[0]) {
        snprintf(ret->code, sizeof ret->code, "nvml_missing");
        snprintf(ret->reason, sizeof ret->reason, "%.290s.", s->without);
    } else if (s->stalled) {
        snprintf(ret->code, sizeof ret->code, "probe_stalled");
        snprintf(ret->reason, sizeof ret->reason,
                 "The probe of this node's GPUs has said nothing for %d s; it is %s.",
                 (int)(s->probe.patience_us / 1000000),
                 s->probe.ended ? "being ended, which takes as long as it hangs in the driver"
                                : "at work on a look");
    } else {
        ret->state = GPU_DIRTY;
        snprintf(ret->code, sizeof ret->code, "checking");
        snprintf(ret->reason, sizeof ret->reason,
                 "The probe of this node's GPUs has ended and is started again.");
    }
}

static json_t *to_json(const struct agent *g, const struct gpu *d)
{
    static const char *const copied[] = {"numa", "links"};
    struct gpu_finding f;
    gpu_report(g, d, &f);
    json_t *o = json_pack("{s:i, s:s, s:s, s:s, s:I, s:s}", "index", d->index, "kind", "gpu",
                          "uuid", d->uuid, "name", d->name[0] ? d->name : "GPU", "memory_bytes",
                          (json_int_t)d->memory, "state", gpu_state_name(f.state));
    if (f.state != GPU_READY) {
        json_object_set_new(o, "code", json_string(f.code));
        json_object_set_new(o, "reason", json_string(f.reason));
    }
    if (d->pci[0])
        json_object_set_new(o, "pci", json_string(d->pci));
    if (d->mig_of[0])
        json_object_set_new(o, "mig_of", json_string(d->mig_of));
    for (size_t i = 0; i < ARRAY_LEN(copied); i++) {
        json_t *value = json_object_get(d->look, copied[i]);
        if (value)
            json_object_set(o, copied[i], value);
    }
    return o;
}

void gpus_to_json(const struct agent *g, json_t *devices)
{
    for (int i = 0; i < g->gpus.count; i++) {
        if (gpus_offered(g, &g->gpus.items[i]))
            json_array_append_new(devices, to_json(g, &g->gpus.items[i]));
    }
}

json_t *gpus_telemetry(const struct agent *g)
{
    static const char *const figures[] = {"temperature_c",     "power_w",   "utilization",
                                          "memory_used_bytes", "clock_mhz", "ecc_corrected",
                                          "ecc_uncorrected"};
    json_t *list = json_array();
    for (int i = 0; g->gpus.present && i < g->gpus.count; i++) {
        const struct gpu *d = &g->gpus.items[i];
        if (!d->look || !gpus_offered(g, d))
            continue;
        json_t *o = json_pack("{s:i}", "index", d->index);
        for (size_t k = 0; k < ARRAY_LEN(figures); k++) {
            json_t *value = json_object_get(d->look, figures[k]);
            if (value)
                json_object_set(o, figures[k], value);
        }
        json_array_append_new(list, o);
    }
    if (json_array_size(list) > 0)
        return list;
    json_decref(list);
    return NULL;
}
