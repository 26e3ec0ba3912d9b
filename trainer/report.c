/* report.c: report lines. Steps are formatted by hand: there may be thousands a second. */
#include "trainer/report.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

#define LINES_MAX 32768 /* bytes gathered before they are written in any case */

void report_init(struct report *r, int fd, int rank)
{
    *r = (struct report){.fd = fd, .rank = rank, .step_us = clock_boottime_us()};
}

void report_done(struct report *r)
{
    buf_done(&r->lines);
}

int report_flush(struct report *r, struct err *e)
{
    while (r->lines.len > 0) {
        ssize_t n = write(r->fd, r->lines.data, r->lines.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "cannot write to the report file");
        buf_drop(&r->lines, (size_t)n);
    }
    r->wrote_us = clock_boottime_us();
    return 0;
}

/* ,"name":value with numbers that JSON has no word for as strings */
static void add_number(struct buf *b, const char *name, double x)
{
    if (isfinite(x))
        buf_addf(b, ",\"%s\":%.9g", name, x);
    else
        buf_addf(b, ",\"%s\":\"%s\"", name, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

static void add_string(struct buf *b, const char *name, const char *value)
{
    json_auto_t *s = json_string(value);
    char *text = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    buf_addf(b, ",\"%s\":%s", name, text ? text : "\"(not UTF-8)\"");
    free(text);
}

static void begin(struct report *r, const char *type)
{
    buf_addf(&r->lines, "{\"type\":\"%s\",\"rank\":%d", type, r->rank);
}

static int end_and_write(struct report *r, struct err *e)
{
    buf_adds(&r->lines, "}\n");
    return report_flush(r, e);
}

int report_prepared(struct report *r, const struct prepared *p, const struct job_spec *job,
                    double seconds, struct err *e)
{
    begin(r, "prepared");
    buf_addf(&r->lines, ",\"train_samples\":%lld,\"validation_samples\":%lld,\"input\":[",
             (long long)p->train.samples, (long long)p->validation.samples);
    for (int d = 0; d < job->model.input.dims; d++)
        buf_addf(&r->lines, "%s%lld", d ? "," : "", (long long)job->model.input.size[d]);
    buf_adds(&r->lines, "]");
    add_number(&r->lines, "seconds", seconds);
    add_string(&r->lines, "note", p->note);
    return end_and_write(r, e);
}

int report_ready(struct report *r, size_t memory_bytes, struct err *e)
{
    begin(r, "ready");
    buf_addf(&r->lines, ",\"memory_bytes\":%zu", memory_bytes);
    return end_and_write(r, e);
}

int report_start(struct report *r, const struct engine *g, int64_t epoch, struct err *e)
{
    int64_t per = g->share.steps_per_epoch;
    begin(r, "start");
    buf_addf(&r->lines, ",\"steps\":%lld,\"epochs\":%lld,\"parameters\":%lld", (long long)g->steps,
             (long long)((g->steps + per - 1) / per), (long long)model_parameters(&g->job->model));
    if (g->step > 0)
        buf_addf(&r->lines, ",\"from_step\":%lld,\"from_epoch\":%lld", (long long)g->step,
                 (long long)epoch);
    r->step_us = clock_boottime_us();
    return end_and_write(r, e);
}

int report_step(struct report *r, int64_t step, int64_t epoch, const struct step_result *s,
                struct err *e)
{
    int64_t now = clock_boottime_us(), took = now - r->step_us;
    begin(r, "step");
    buf_addf(&r->lines, ",\"step\":%lld,\"epoch\":%lld", (long long)step, (long long)epoch);
    add_number(&r->lines, "loss", s->loss);
    add_number(&r->lines, "grad_norm", s->grad_norm);
    add_number(&r->lines, "learning_rate", s->learning_rate);
    if (s->loss_scale > 0)
        add_number(&r->lines, "loss_scale", s->loss_scale);
    if (s->skipped)
        buf_adds(&r->lines, ",\"skipped\":true");
    r->samples_per_second = (double)s->items * 1e6 / (double)(took > 0 ? took : 1);
    if (s->has_comm)
        buf_addf(&r->lines, ",\"comm_exposed_us\":%lld,\"comm_hidden_us\":%lld",
                 (long long)s->comm_exposed_us, (long long)s->comm_hidden_us);
    buf_addf(&r->lines, ",\"time_us\":%lld,\"samples_per_second\":%.1f}\n",
             (long long)clock_wall_us(), r->samples_per_second);
    r->step_us = now;
    if (now - r->wrote_us < REPORT_WRITE_US && r->lines.len < LINES_MAX)
        return 0;
    return report_flush(r, e);
}

static void add_figures(struct buf *b, const struct job_spec *job, const struct epoch_figures *f,
                        int has_validation)
{
    add_number(b, "loss", f->loss);
    if (job->metrics[METRIC_ACCURACY])
        add_number(b, "accuracy", f->accuracy);
    if (job->metrics[METRIC_MAE])
        add_number(b, "mae", f->mae);
    if (!has_validation)
        return;
    add_number(b, "val_loss", f->val_loss);
    if (job->metrics[METRIC_ACCURACY])
        add_number(b, "val_accuracy", f->val_accuracy);
    if (job->metrics[METRIC_MAE])
        add_number(b, "val_mae", f->val_mae);
}

/* At most 4,000 bytes a line: an ensemble of more members than fit says how many it left out. */
static void add_members(struct buf *b, const struct engine *g, const struct epoch_result *x,
                        size_t line_begin)
{
    int m = 0;
    buf_adds(b, ",\"members\":[");
    for (; m < g->members && b->len - line_begin < 3500; m++) {
        buf_addf(b, "%s{\"member\":%d", m ? "," : "", m);
        add_figures(b, g->job, &x->members[m], x->has_validation);
        buf_adds(b, "}");
    }
    buf_adds(b, "]");
    if (m < g->members)
        buf_addf(b, ",\"members_left_out\":%d", g->members - m);
}

int report_epoch(struct report *r, const struct engine *g, int64_t epoch,
                 const struct epoch_result *x, double seconds, struct err *e)
{
    size_t line_begin = r->lines.len;
    begin(r, "epoch");
    buf_addf(&r->lines, ",\"epoch\":%lld", (long long)epoch);
    add_figures(&r->lines, g->job, &x->all, x->has_validation);
    buf_addf(&r->lines, ",\"time_us\":%lld", (long long)clock_wall_us());
    add_number(&r->lines, "seconds", seconds);
    if (x->members)
        add_members(&r->lines, g, x, line_begin);
    r->step_us = clock_boottime_us(); /* the next step's time does not include the evaluation */
    return end_and_write(r, e);
}

int report_checkpoint(struct report *r, const struct checkpoint_line *c, struct err *e)
{
    char name[LAUNCH_CHECKPOINT_NAME_SIZE], sum[CHECKPOINT_SUM_SIZE];
    begin(r, "checkpoint");
    buf_addf(&r->lines,
             ",\"step\":%lld,\"epoch\":%lld,\"name\":\"%s\",\"bytes\":%lld,\"sum\":\"%s\"",
             (long long)c->step, (long long)c->epoch, launch_checkpoint_name(c->step, name),
             (long long)c->bytes, checkpoint_sum_text(c->sum, sum));
    add_number(&r->lines, "seconds", c->seconds);
    return end_and_write(r, e);
}

int report_checkpoint_failed(struct report *r, int64_t step, const char *reason, struct err *e)
{
    begin(r, "checkpoint_failed");
    buf_addf(&r->lines, ",\"step\":%lld", (long long)step);
    add_string(&r->lines, "reason", reason);
    return end_and_write(r, e);
}

int report_artifact(struct report *r, const char *name, int64_t bytes, struct err *e)
{
    begin(r, "artifact");
    add_string(&r->lines, "name", name);
    buf_addf(&r->lines, ",\"bytes\":%lld", (long long)bytes);
    return end_and_write(r, e);
}

int report_memory(struct report *r, size_t memory_bytes, int64_t measured_bytes, struct err *e)
{
    begin(r, "memory");
    buf_addf(&r->lines, ",\"memory_bytes\":%zu,\"measured_bytes\":%lld", memory_bytes,
             (long long)measured_bytes);
    return end_and_write(r, e);
}

int report_verdict(struct report *r, const char *outcome, const char *code, const char *reason,
                   struct err *e)
{
    begin(r, "verdict");
    add_string(&r->lines, "outcome", outcome);
    add_string(&r->lines, "code", code);
    add_string(&r->lines, "reason", reason);
    return end_and_write(r, e);
}
