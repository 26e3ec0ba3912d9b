/* reports.c: every line is hostile until checked: an agent, or a job that got hold of its report
 * file, may write anything. Steps and epochs become rows, the few other types events, types that we
 * do not know events called "report" (they cannot pose as ours), everything else is dropped and
 * counted. */
#include "daemon/coordinator/reports.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/coordinator/job.h"
#include "daemon/coordinator/kept.h"
#include "spec/launch.h"

#define MAX_STEP    1000000000000LL
#define MAX_MEMBERS PLAN_MAX_RANKS

/* What a batch of lines adds up to. */
struct batch {
    struct service *service;
    const struct attempt_row *attempt;
    int64_t epoch, step, steps; /* -1: not told */
    int dropped;
    const char *drop_reason; /* of the first one */
};

static int drop(struct batch *b, const char *reason)
{
    if (b->dropped++ == 0)
        b->drop_reason = reason;
    return 0;
}

/* ---- fields ---- */
int reports_number(const json_t *v, double *ret)
{
    if (json_is_number(v)) {
        *ret = json_number_value(v);
        return 0;
    }
    const char *s = json_string_value(v);
    if (s && strcmp(s, "nan") == 0)
        *ret = NAN;
    else if (s && strcmp(s, "inf") == 0)
        *ret = INFINITY;
    else if (s && strcmp(s, "-inf") == 0)
        *ret = -INFINITY;
    else
        return ERR_INVALID;
    return 0;
}

static int number_field(const json_t *line, const char *key, double *ret)
{
    const json_t *v = json_object_get(line, key);
    *ret = NAN;
    return v ? reports_number(v, ret) : 0;
}

static int int_field(const json_t *line, const char *key, int64_t min, int64_t max, int64_t *ret)
{
    const json_t *v = json_object_get(line, key);
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return ERR_INVALID;
    *ret = json_integer_value(v);
    return 0;
}

static int64_t time_field(const struct batch *b, const json_t *line)
{
    int64_t us;
    return int_field(line, "time_us", 1, 4102444800000000LL, &us) == 0 ? us : b->service->wall_us;
}

/* ---- the types ---- */
/* An absent field is `absent`. */
static int optional_field(const json_t *line, const char *key, int64_t max, int64_t absent,
                          int64_t *ret)
{
    *ret = absent;
    return json_object_get(line, key) ? int_field(line, key, 0, max, ret) : 0;
}

/* A later attempt goes on after a step; one that does not say so has begun at step 0. */
static int take_start(struct batch *b, const json_t *line, struct err *e)
{
    int64_t steps, from, epoch;
    if (int_field(line, "steps", 0, MAX_STEP, &steps) != 0 ||
        optional_field(line, "from_step", MAX_STEP, 0, &from) != 0 ||
        optional_field(line, "from_epoch", MAX_STEP, 0, &epoch) != 0)
        return drop(b, "start: steps, from_step or from_epoch is no whole number in range");
    b->steps = steps;
    b->step = from;
    b->epoch = from > 0 ? epoch : 0;
    int rc = kept_rewind(b->service, b->attempt, from, e);
    if (rc != 0)
        return rc;
    return job_event(b->service->store, "start", b->attempt->job_id, b->attempt->node,
                     json_deep_copy(line), b->service->wall_us, e);
}

static int take_step(struct batch *b, const json_t *line, struct err *e)
{
    struct step_row row = {.attempt = b->attempt->number, .time_us = time_field(b, line)};
    if (int_field(line, "step", 1, MAX_STEP, &row.step) != 0 ||
        int_field(line, "epoch", 0, MAX_STEP, &row.epoch) != 0)
        return drop(b, "step: step or epoch is no whole number in range");
    if (number_field(line, "loss", &row.loss) != 0 ||
        number_field(line, "grad_norm", &row.grad_norm) != 0 ||
        number_field(line, "learning_rate", &row.learning_rate) != 0 ||
        number_field(line, "samples_per_second", &row.samples_per_second) != 0 ||
        optional_field(line, "comm_exposed_us", INT64_MAX, -1, &row.comm_exposed_us) != 0 ||
        optional_field(line, "comm_hidden_us", INT64_MAX, -1, &row.comm_hidden_us) != 0 ||
        (json_object_get(line, "loss_scale") &&
         number_field(line, "loss_scale", &row.loss_scale) != 0))
        return drop(b, "step: a figure is no number");
    row.skipped = json_is_true(json_object_get(line, "skipped"));
    if (row.step > b->step) {
        b->step = row.step;
        b->epoch = row.epoch;
    }
    b->service->steps++;
    return store_step_put(b->service->store, b->attempt->job_id, &row, e);
}

static const char *const figures[] = {"loss",         "accuracy", "mae",    "val_loss",
                                      "val_accuracy", "val_mae",  "seconds"};

/* Copies the figures that are there; ERR_INVALID if one is no number. */
static int copy_figures(const json_t *from, json_t *to)
{
    double number;
    for (size_t i = 0; i < ARRAY_LEN(figures); i++) {
        json_t *v = json_object_get(from, figures[i]);
        if (v && !json_is_null(v) && reports_number(v, &number) != 0)
            return ERR_INVALID;
        if (v)
            json_object_set(to, figures[i], v);
    }
    return 0;
}

/* A trainer names the members that fit into its line, and says how many do not. */
static int copy_members(const json_t *line, json_t *to)
{
    const json_t *members = json_object_get(line, "members");
    if (!members)
        return 0;
    if (!json_is_array(members) || json_array_size(members) > MAX_MEMBERS)
        return ERR_INVALID;
    json_t *list = json_array();
    json_object_set_new(to, "members", list);
    for (size_t i = 0; i < json_array_size(members); i++) {
        json_t *member = json_object();
        json_array_append_new(list, member);
        int64_t number;
        const json_t *from = json_array_get(members, i);
        if (copy_figures(from, member) != 0)
            return ERR_INVALID;
        if (!json_object_get(from, "member"))
            continue;
        if (int_field(from, "member", 0, MAX_MEMBERS - 1, &number) != 0)
            return ERR_INVALID;
        json_object_set_new(member, "member", json_integer(number));
    }
    int64_t left_out;
    if (!json_object_get(line, "members_left_out"))
        return 0;
    if (int_field(line, "members_left_out", 1, MAX_MEMBERS, &left_out) != 0)
        return ERR_INVALID;
    json_object_set_new(to, "members_left_out", json_integer(left_out));
    return 0;
}

static int take_epoch(struct batch *b, const json_t *line, struct err *e)
{
    struct epoch_row row = {.attempt = b->attempt->number};
    char time[CLOCK_TEXT_SIZE];
    if (int_field(line, "epoch", 1, MAX_STEP, &row.epoch) != 0)
        return drop(b, "epoch: epoch is no whole number in range");
    json_auto_t *data = json_pack("{s:I, s:s}", "epoch", (json_int_t)row.epoch, "time",
                                  clock_format(time_field(b, line), time));
    if (copy_figures(line, data) != 0 || copy_members(line, data) != 0)
        return drop(b, "epoch: a figure is no number");
    CLEANUP(mem_freep) char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text)
        return drop(b, "epoch: cannot be written as JSON");
    row.data = text;
    return store_epoch_put(b->service->store, b->attempt->job_id, &row, e);
}

static int sum_valid(const char *sum)
{
    return sum && strlen(sum) == 32 && strspn(sum, "0123456789abcdef") == 32;
}

/* What is put on the record is what a later attempt is sent to: all of it is checked. */
static int take_checkpoint(struct batch *b, const json_t *line, struct err *e)
{
    char name[LAUNCH_CHECKPOINT_NAME_SIZE];
    const struct node *n = nodes_find(&b->service->nodes, b->attempt->node);
    const char *said = json_string_value(json_object_get(line, "name"));
    struct checkpoint_row row = {.attempt = b->attempt->number,
                                 .name = name,
                                 .sum = (char *)json_string_value(json_object_get(line, "sum")),
                                 .node = b->attempt->node,
                                 .share = n ? n->share : (char *)"",
                                 .at_us = b->service->wall_us};
    if (int_field(line, "step", 0, MAX_STEP, &row.step) != 0 ||
        optional_field(line, "epoch", MAX_STEP, 0, &row.epoch) != 0 ||
        int_field(line, "bytes", 0, INT64_MAX, &row.bytes) != 0)
        return drop(b, "checkpoint: step, epoch or bytes is no whole number in range");
    if (!said || strcmp(said, launch_checkpoint_name(row.step, name)) != 0)
        return drop(b, "checkpoint: name is not that of its step");
    if (!sum_valid(row.sum))
        return drop(b, "checkpoint: sum is not 32 hex digits");
    int rc = kept_take(b->service, b->attempt, &row, e);
    return rc == 1 ? drop(b, "checkpoint: its step is behind that of the one before") : rc;
}

static int take_event(struct batch *b, const json_t *line, struct err *e)
{
    static const char *const known[] = {"prepared", "ready",   "memory",
                                        "artifact", "verdict", "checkpoint_failed"};
    const char *type = json_string_value(json_object_get(line, "type")), *event = "report";
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(type, known[i]) == 0)
            event = known[i];
    return job_event(b->service->store, event, b->attempt->job_id, b->attempt->node,
                     json_deep_copy(line), b->service->wall_us, e);
}

static int take_line(struct batch *b, const json_t *line, struct err *e)
{
    const char *type = json_string_value(json_object_get(line, "type"));
    if (!type)
        return drop(b, "a line is no object with a type");
    if (strcmp(type, "step") == 0)
        return take_step(b, line, e);
    /* With no more digits than a trainer writes, so that the line is as long as it was. */
    if (json_dumpb(line, NULL, 0, JSON_COMPACT | JSON_REAL_PRECISION(9)) > REPORTS_MAX_LINE)
        return drop(b, "a line is too long");
    if (strcmp(type, "start") == 0)
        return take_start(b, line, e);
    if (strcmp(type, "checkpoint") == 0)
        return take_checkpoint(b, line, e);
    return strcmp(type, "epoch") == 0 ? take_epoch(b, line, e) : take_event(b, line, e);
}

/* ---- the batch ---- */
static int write_progress(struct batch *b, struct err *e)
{
    struct job_row job;
    if (b->step < 0 && b->steps < 0)
        return 0;
    int rc = store_job_get(b->service->store, b->attempt->job_id, &job, e);
    if (rc != 0)
        return rc;
    int64_t step = b->step >= 0 ? b->step : 0;
    int64_t epoch = b->step >= 0 ? b->epoch : 0;
    int64_t steps = b->steps >= 0 ? b->steps : job.steps;
    if (job.attempt == b->attempt->number)
        rc = store_job_progress(b->service->store, job.id, epoch, step, steps, e);
    job_row_done(&job);
    return rc;
}

static void log_dropped(const struct batch *b)
{
    b->service->dropped_lines += (uint64_t)b->dropped;
    if (b->dropped)
        log_event(LOG_LEVEL_WARNING, "report_lines_dropped", "node=%s attempt=%s lines=%d first=%s",
                  b->attempt->node, b->attempt->id, b->dropped, log_quote(b->drop_reason));
}

static int is_next(const struct attempt_row *a, const json_t *reports, int64_t *ret_to)
{
    const json_t *lines = json_object_get(reports, "lines");
    int64_t from;
    return int_field(reports, "from", 0, INT64_MAX, &from) == 0 && from == a->report_offset &&
           int_field(reports, "to", from, INT64_MAX, ret_to) == 0 && json_is_array(lines) &&
           json_array_size(lines) <= REPORTS_MAX_LINES;
}

int reports_take(struct service *c, struct attempt_row *a, const json_t *reports, struct err *e)
{
    const json_t *lines = json_object_get(reports, "lines");
    struct batch b = {.service = c, .attempt = a, .epoch = 0, .step = -1, .steps = -1};
    int64_t to;
    int rc = 0;
    if (!is_next(a, reports, &to) || to == a->report_offset)
        return 0;
    for (size_t i = 0; i < json_array_size(lines) && rc == 0; i++)
        rc = take_line(&b, json_array_get(lines, i), e);
    if (rc == 0)
        rc = write_progress(&b, e);
    if (rc != 0)
        return rc;
    log_dropped(&b);
    a->report_offset = to;
    return store_attempt_update(c->store, a, e);
}
