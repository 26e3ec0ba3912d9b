/* service_data.c: what a job has left: metrics, logs, artifacts, events.
 *
 * Metrics are written straight into a text: a json_t for each of 100,000 steps would take half a
 * kilobyte and an allocation per figure. One answer has at most METRICS_MAX_STEPS steps (some 15
 * MB, a third of a second on an idle machine); a longer job's says where to go on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/service.h"
#include "base/buf.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/document.h"
#include "daemon/coordinator/text.h"

#define METRICS_MAX_STEPS  SERVICE_MAX_POINTS
#define METRICS_MAX_EPOCHS 10000
#define METRICS_PAGE       1000
#define EVENTS_MAX         1000

/* ---- metrics ---- */
static void add_step(struct buf *b, const struct step_row *row)
{
    text_open(b, "{");
    text_int(b, "step", row->step);
    text_int(b, "epoch", row->epoch);
    text_number(b, "loss", row->loss);
    text_number(b, "grad_norm", row->grad_norm);
    text_number(b, "learning_rate", row->learning_rate);
    text_number(b, "samples_per_second", row->samples_per_second);
    if (row->comm_exposed_us >= 0)
        text_int(b, "comm_exposed_us", row->comm_exposed_us);
    if (row->comm_hidden_us >= 0)
        text_int(b, "comm_hidden_us", row->comm_hidden_us);
    if (row->loss_scale > 0)
        text_number(b, "loss_scale", row->loss_scale);
    if (row->skipped)
        text_raw(b, "skipped", "true");
    text_time(b, "time", row->time_us);
    text_close(b, "}");
}

/* Every step after `after`; where it had to stop in *ret_next, or 0. */
static int add_all_steps(struct service *c, const char *id, int64_t after, struct buf *b,
                         int64_t *ret_next, struct err *e)
{
    struct step_row *rows = mem_alloc(METRICS_PAGE * sizeof(*rows));
    int64_t total = 0;
    int count;
    *ret_next = 0;
    do {
        count = store_step_list(c->store, id, after, METRICS_PAGE, rows, e);
        for (int i = 0; i < count; i++)
            add_step(b, &rows[i]);
        if (count > 0)
            after = rows[count - 1].step;
        total += count > 0 ? count : 0;
    } while (count == METRICS_PAGE && total < METRICS_MAX_STEPS);
    if (count == METRICS_PAGE) {
        count = store_step_list(c->store, id, after, 1, rows, e);
        *ret_next = count > 0 ? after : 0;
    }
    free(rows);
    return count < 0 ? count : 0;
}

/* At most max_points of the steps after `after`, at equal distances, the last one among them: a
 * seek for each, whatever lies between and before. */
static int add_some_steps(struct service *c, const char *id, int64_t after, int64_t max_points,
                          struct buf *b, struct err *e)
{
    struct step_row row;
    int64_t last = 0, from = after > 0 ? after : 0;
    int rc = store_step_count(c->store, id, &last, e);
    if (rc < 0)
        return rc;
    int64_t wanted = max_points > 1 ? max_points - 1 : 1; /* the last step comes on top */
    int64_t stride = last > from ? (last - from + wanted - 1) / wanted : 1;
    while (from < last) {
        int count = store_step_list(c->store, id, from, 1, &row, e);
        if (count <= 0)
            return count;
        add_step(b, &row);
        int64_t next = row.step + stride - 1; /* seeks begin behind it */
        from = row.step < last && next >= last ? last - 1 : next;
    }
    return 0;
}

/* METRICS_MAX_EPOCHS after `after`; where it had to stop in *ret_next, or 0. */
static int add_epochs(struct service *c, const char *id, int64_t after, struct buf *b,
                      int64_t *ret_next, struct err *e)
{
    struct epoch_row *rows = mem_zalloc(METRICS_MAX_EPOCHS * sizeof(*rows));
    int count = store_epoch_list(c->store, id, after, METRICS_MAX_EPOCHS, rows, e);
    *ret_next = 0;
    for (int i = 0; i < count; i++) {
        buf_adds(b, i ? "," : "");
        buf_adds(b, rows[i].data);
        after = rows[i].epoch;
        epoch_row_done(&rows[i]);
    }
    if (count == METRICS_MAX_EPOCHS) {
        count = store_epoch_list(c->store, id, after, 1, rows, e);
        if (count > 0) {
            *ret_next = after;
            epoch_row_done(&rows[0]);
        }
    }
    free(rows);
    return count < 0 ? count : 0;
}

int service_job_metrics(struct service *c, const char *id, int64_t max_points, int64_t after_step,
                        int64_t after_epoch, struct service_reply *r)
{
    struct job_row job;
    struct err e = {0};
    struct buf b = BUF_INIT;
    int64_t next = 0, next_epoch = 0;
    if (max_points > METRICS_MAX_STEPS)
        return service_fail(r, 400, "invalid_parameter", "max_points is at most %d.",
                            METRICS_MAX_STEPS);
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    job_row_done(&job);
    buf_adds(&b, "{\"steps\":[");
    rc = max_points > 0 ? add_some_steps(c, id, after_step, max_points, &b, &e)
                        : add_all_steps(c, id, after_step, &b, &next, &e);
    buf_adds(&b, "],\"epochs\":[");
    if (rc == 0)
        rc = add_epochs(c, id, after_epoch, &b, &next_epoch, &e);
    buf_adds(&b, "]");
    if (next)
        buf_addf(&b, ",\"next_after_step\":%lld", (long long)next);
    if (next_epoch)
        buf_addf(&b, ",\"next_after_epoch\":%lld", (long long)next_epoch);
    buf_adds(&b, "}");
    if (rc != 0) {
        buf_done(&b);
        return coordinator_read_failed(&e, r);
    }
    r->status = 200;
    r->content_type = "application/json";
    r->text = buf_steal(&b);
    return 0;
}

/* ---- logs ---- */
static void empty_text(struct service_reply *r)
{
    r->status = 200;
    r->content_type = "text/plain; charset=utf-8";
    r->text = mem_strdup("");
}

static int find_log(struct service *c, const struct job_row *job, const struct log_request *q,
                    int *ret_fd, int64_t *ret_size, struct service_reply *r)
{
    struct err e = {0};
    char name[40];
    int64_t attempt = q->attempt ? q->attempt : job->attempt;
    *ret_fd = -1;
    *ret_size = 0;
    if (q->rank < 0 || q->rank >= job->devices)
        return service_fail(r, 404, "not_found", "This job has the ranks 0 to %lld.",
                            (long long)job->devices - 1);
    if (attempt < 0 || attempt > job->attempt)
        return service_fail(r, 404, "not_found", "This job has had %lld attempts.",
                            (long long)job->attempt);
    if (attempt == 0)
        return 0;
    snprintf(name, sizeof(name), "rank-%lld.log", (long long)q->rank);
    int rc = store_file_open(c->store, job->id, attempt, name, ret_fd, ret_size, &e);
    if (rc != 0 && rc != ERR_NOT_FOUND)
        return coordinator_read_failed(&e, r);
    return 0;
}

int service_job_log(struct service *c, const struct log_request *q, int64_t *ret_size,
                    struct service_reply *r)
{
    struct job_row job;
    int fd;
    int64_t size;
    int rc = coordinator_job(c, q->id, &job, r);
    if (rc != 0)
        return rc;
    rc = find_log(c, &job, q, &fd, &size, r);
    job_row_done(&job);
    if (rc != 0)
        return rc;
    int64_t offset = q->offset < 0 ? size + q->offset : q->offset;
    offset = offset < 0 ? 0 : offset > size ? size : offset;
    int64_t length = size - offset < q->limit ? size - offset : q->limit;
    *ret_size = size;
    r->file_offset = offset;
    if (length <= 0) {
        if (fd >= 0)
            close(fd);
        empty_text(r);
        return 0;
    }
    r->status = 200;
    r->content_type = "text/plain; charset=utf-8";
    r->file_fd = fd;
    r->file_length = length;
    return 0;
}

/* ---- artifacts ---- */
static const char artifact_prefix[] = "artifact.";
#define PREFIX_LENGTH (sizeof(artifact_prefix) - 1)

static int is_artifact(const char *name)
{
    return name && strncmp(name, artifact_prefix, PREFIX_LENGTH) == 0;
}

static json_t *only_artifacts(const json_t *files)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(file, "name"));
        if (is_artifact(name))
            json_array_append_new(list, json_pack("{s:s, s:O}", "name", name + PREFIX_LENGTH,
                                                  "bytes", json_object_get(file, "bytes")));
    }
    return list;
}

/* What the job left and its node could not hand over, by the exit record. */
static void add_left_out(json_t *body, const char *exit)
{
    json_auto_t *record = exit ? json_loads(exit, 0, NULL) : NULL;
    json_t *list = json_object_get(record, "left_out");
    json_t *count = json_object_get(record, "left_out_count");
    json_object_set_new(body, "left_out", list ? json_incref(list) : json_array());
    json_object_set_new(body, "left_out_count", count ? json_incref(count) : json_integer(0));
}

int service_artifact_list(struct service *c, const char *id, struct service_reply *r)
{
    struct job_row job;
    struct err e = {0};
    CLEANUP(mem_freep) char *text = NULL;
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    if (job.attempt > 0)
        rc = store_file_list(c->store, job.id, job.attempt, &text, &e);
    CLEANUP(mem_freep) char *exit = STEAL(job.exit);
    job_row_done(&job);
    if (rc != 0)
        return coordinator_read_failed(&e, r);
    json_auto_t *files = text ? json_loads(text, 0, NULL) : NULL;
    r->status = 200;
    r->body = json_pack("{s:o}", "artifacts", only_artifacts(files));
    add_left_out(r->body, exit);
    return 0;
}

static int artifact_name_valid(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 200 &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

int service_artifact_get(struct service *c, const char *id, const char *name,
                         struct service_reply *r)
{
    struct job_row job;
    struct err e = {0};
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    CLEANUP(mem_freep) char *file = mem_printf("%s%s", artifact_prefix, name);
    rc = ERR_NOT_FOUND;
    if (job.attempt > 0 && artifact_name_valid(name))
        rc = store_file_open(c->store, job.id, job.attempt, file, &r->file_fd, &r->file_length, &e);
    job_row_done(&job);
    if (rc == ERR_NOT_FOUND)
        return service_fail(r, 404, "not_found", "Job %s has left no artifact \"%.100s\".", id,
                            name);
    if (rc != 0)
        return coordinator_read_failed(&e, r);
    r->status = 200;
    r->file_offset = 0;
    r->content_type = "application/octet-stream";
    return 0;
}

/* ---- events ---- */
static int add_next_event(struct service *c, const char *job_id, int64_t after, json_t *body,
                          struct err *e)
{
    struct event_row row;
    char next[24];
    int count = store_event_list(c->store, job_id, after, 1, &row, e);
    if (count <= 0)
        return count;
    event_row_done(&row);
    snprintf(next, sizeof(next), "%lld", (long long)after);
    json_object_set_new(body, "next", json_string(next));
    return 0;
}

int service_event_list(struct service *c, const char *job_id, int64_t after, int limit,
                       struct service_reply *r)
{
    struct err e = {0};
    struct job_row job;
    if (limit < 1 || limit > EVENTS_MAX)
        return service_fail(r, 400, "invalid_parameter", "limit is 1 to %d.", EVENTS_MAX);
    if (job_id) {
        int rc = coordinator_job(c, job_id, &job, r);
        if (rc != 0)
            return rc;
        job_row_done(&job);
    }
    struct event_row *rows = mem_zalloc((size_t)limit * sizeof(*rows));
    int count = store_event_list(c->store, job_id, after, limit, rows, &e);
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, document_event(&rows[i]));
        after = rows[i].seq;
        event_row_done(&rows[i]);
    }
    free(rows);
    r->body = json_pack("{s:o}", "events", list);
    r->status = 200;
    int rc = count < 0 ? count : 0;
    if (count == limit)
        rc = add_next_event(c, job_id, after, r->body, &e);
    return rc == 0 ? 0 : coordinator_read_failed(&e, r);
}
