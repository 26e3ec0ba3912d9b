/* say.c: lines for people on standard output, written whole. */
#include "trainer/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"

static void say(struct buf *line)
{
    buf_adds(line, "\n");
    ssize_t n = write(STDOUT_FILENO, line->data, line->len);
    (void)n; /* a log that takes no more is no reason to stop training */
    buf_done(line);
}

void say_epoch(const struct engine *g, int64_t epoch, const struct epoch_result *x, double seconds)
{
    const struct job_spec *job = g->job;
    const struct epoch_figures *f = &x->all;
    struct buf line = BUF_INIT;
    int64_t per = g->share.steps_per_epoch;
    buf_addf(&line, "Epoch %lld/%lld - step %lld/%lld - %.1f s - loss: %.4g", (long long)epoch,
             (long long)((g->steps + per - 1) / per), (long long)g->step, (long long)g->steps,
             seconds, f->loss);
    if (job->metrics[METRIC_ACCURACY])
        buf_addf(&line, " - accuracy: %.4f", f->accuracy);
    if (job->metrics[METRIC_MAE])
        buf_addf(&line, " - mae: %.4g", f->mae);
    if (x->has_validation)
        buf_addf(&line, " - val_loss: %.4g", f->val_loss);
    if (x->has_validation && job->metrics[METRIC_ACCURACY])
        buf_addf(&line, " - val_accuracy: %.4f", f->val_accuracy);
    if (x->has_validation && job->metrics[METRIC_MAE])
        buf_addf(&line, " - val_mae: %.4g", f->val_mae);
    say(&line);
}

void say_note(const char *fmt, ...)
{
    struct buf line = BUF_INIT;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    buf_adds(&line, text);
    say(&line);
}

void say_verdict(int rank, const char *reason)
{
    struct buf line = BUF_INIT;
    if (rank < 0)
        buf_addf(&line, "Reading the data: %s", reason);
    else
        buf_addf(&line, "Rank %d: %s", rank, reason);
    say(&line);
}
