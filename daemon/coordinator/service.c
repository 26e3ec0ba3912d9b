/* service.c: the verbs that are about the coordinator itself, and what the others share. The other
 * verbs are in service_jobs.c (submit, show, list, cancel, ...), service_data.c (metrics, logs,
 * artifacts, events), service_nodes.c and service_agent.c. */
#include "api/service.h"

#include <string.h>

#include "base/buf.h"
#include "base/id.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/telemetry.h"

int coordinator_job(struct service *c, const char *id, struct job_row *ret, struct service_reply *r)
{
    struct err e = {0};
    if (!id_valid("job", id))
        return service_fail(r, 404, "not_found",
                            "\"%.60s\" is no job id; they look like "
                            "job_01k8z4q9tw3v7m2c5xd8hbn6.",
                            id);
    int rc = store_job_get(c->store, id, ret, &e);
    if (rc == ERR_NOT_FOUND)
        return service_fail(r, 404, "not_found", "There is no job %s.", id);
    return rc == 0 ? 0 : coordinator_read_failed(&e, r);
}

int service_dirty(struct service *c)
{
    return store_dirty(c->store);
}

int service_version(struct service *c, struct service_reply *r)
{
    r->status = 200;
    r->body = json_pack("{s:s, s:s, s:s, s:s, s:I}", "name", "trainyard", "version",
                        TRAINYARD_VERSION, "api", "v1", "instance", store_instance_id(c->store),
                        "instance_epoch", (json_int_t)store_instance_epoch(c->store));
    return 0;
}

int service_ready(struct service *c, struct service_reply *r)
{
    if (c->no_space.code != 0) {
        r->retry_after_s = 5;
        return service_fail(r, 503, "disk_full",
                            "The last change could not be written, since the disk is full: %s",
                            c->no_space.text);
    }
    r->status = 200;
    r->body = json_pack("{s:s}", "status", "ready");
    return 0;
}

/* ---- Prometheus ---- */
static void family(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_addf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void counter(struct buf *b, const char *name, const char *help, uint64_t value)
{
    family(b, name, "counter", help);
    buf_addf(b, "%s %llu\n", name, (unsigned long long)value);
}

static void jobs_text(struct buf *b, const int64_t counts[JOB_STATE__MAX])
{
    family(b, "trainyard_jobs", "gauge", "Jobs by state.");
    for (int s = 0; s < JOB_STATE__MAX; s++)
        buf_addf(b, "trainyard_jobs{state=\"%s\"} %lld\n", job_state_name((enum job_state)s),
                 (long long)counts[s]);
}

static void nodes_text(struct buf *b, const struct nodes *l)
{
    static const char *const states[] = {"free",     "leased", "busy",   "drained",
                                         "conflict", "dirty",  "failed", "lost"};
    int64_t health[NODE_HEALTH__MAX] = {0}, devices[ARRAY_LEN(states)] = {0};
    for (size_t i = 0; i < l->count; i++) {
        const struct node *n = l->items[i];
        health[n->health]++;
        for (size_t k = 0; k < n->device_count; k++) {
            const char *shown = node_device_shown(&n->devices[k]);
            for (size_t s = 0; s < ARRAY_LEN(states); s++)
                devices[s] += strcmp(shown, states[s]) == 0;
        }
    }
    family(b, "trainyard_nodes", "gauge", "Nodes by state.");
    for (int h = 0; h < NODE_HEALTH__MAX; h++)
        buf_addf(b, "trainyard_nodes{state=\"%s\"} %lld\n", node_health_name((enum node_health)h),
                 (long long)health[h]);
    family(b, "trainyard_devices", "gauge", "Devices by state.");
    for (size_t s = 0; s < ARRAY_LEN(states); s++)
        buf_addf(b, "trainyard_devices{state=\"%s\"} %lld\n", states[s], (long long)devices[s]);
}

int service_metrics(struct service *c, struct service_reply *r)
{
    int64_t counts[JOB_STATE__MAX];
    struct buf b = BUF_INIT;
    struct err e = {0};
    if (store_job_count(c->store, counts, &e) < 0)
        return coordinator_read_failed(&e, r);
    jobs_text(&b, counts);
    nodes_text(&b, &c->nodes);
    family(&b, "trainyard_build_info", "gauge", "Version of the coordinator.");
    buf_addf(&b, "trainyard_build_info{version=\"%s\"} 1\n", TRAINYARD_VERSION);
    counter(&b, "trainyard_turns_total", "Turns of the loop.", c->turns);
    counter(&b, "trainyard_commits_total", "Turns that committed a transaction.", c->commits);
    counter(&b, "trainyard_failed_commits_total", "Turns that were rolled back.",
            c->failed_commits);
    counter(&b, "trainyard_submissions_total", "Jobs taken.", c->submissions);
    counter(&b, "trainyard_agent_syncs_total", "Syncs of agents.", c->syncs);
    counter(&b, "trainyard_steps_total", "Optimiser steps reported.", c->steps);
    counter(&b, "trainyard_checkpoints_total", "Checkpoints reported.", c->checkpoints);
    counter(&b, "trainyard_restarts_total", "Attempts that were started again by themselves.",
            c->restarts);
    counter(&b, "trainyard_dropped_report_lines_total", "Report lines that were wrong.",
            c->dropped_lines);
    counter(&b, "trainyard_dropped_figures_total", "Figures of devices that were wrong.",
            c->dropped_figures);
    telemetry_metrics(&c->nodes, c->now_us, &b);
    r->status = 200;
    r->content_type = "text/plain; version=0.0.4; charset=utf-8";
    r->text = buf_steal(&b);
    return 0;
}
