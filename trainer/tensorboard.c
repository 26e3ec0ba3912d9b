/* tensorboard.c: which scalars go where. */
#include "trainer/tensorboard.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"

static int check(struct tensorboard *t, int r)
{
    t->is_off |= r < 0;
    return r;
}

static int open_one(struct tensorboard_file *f, const struct engine *g, int64_t now_us,
                    const char *which, struct err *e)
{
    char name[TENSORBOARD_NAME_SIZE];
    snprintf(name, sizeof name, "events.out.tfevents.%lld.%lld.%s", (long long)(now_us / 1000000),
             (long long)g->launch->number, which);
    return tensorboard_file_open(f, name, now_us, e);
}

int tensorboard_open(struct tensorboard *t, const struct engine *g, struct err *e)
{
    int64_t now_us = clock_wall_us();
    *t = (struct tensorboard){.every = g->steps / TENSORBOARD_STEPS_MAX + 1};
    int r = open_one(&t->train, g, now_us, "train", e);
    if (r == 0 && g->prepared.validation.samples > 0)
        r = open_one(&t->validation, g, now_us, "validation", e);
    return check(t, r);
}

static int is_open(const struct tensorboard *t)
{
    return t->train.name && !t->is_off;
}

int tensorboard_step(struct tensorboard *t, int64_t step, const struct step_result *s,
                     double samples_per_second, struct err *e)
{
    if (!is_open(t) || step % t->every != 0)
        return 0;
    const struct tensorboard_scalar scalars[] = {
        {"loss", s->loss},
        {"grad_norm", s->grad_norm},
        {"learning_rate", s->learning_rate},
        {"samples_per_second", samples_per_second},
    };
    tensorboard_file_add(&t->train, clock_wall_us(), step, scalars, (int)ARRAY_LEN(scalars));
    if (clock_boottime_us() - t->wrote_us < TENSORBOARD_WRITE_US)
        return 0;
    return tensorboard_flush(t, e);
}

static void add_epoch(struct tensorboard_file *f, const struct job_spec *job, int64_t epoch,
                      double loss, double accuracy, double mae)
{
    struct tensorboard_scalar scalars[3] = {{"epoch_loss", loss}};
    int n = 1;
    if (job->metrics[METRIC_ACCURACY])
        scalars[n++] = (struct tensorboard_scalar){"epoch_accuracy", accuracy};
    if (job->metrics[METRIC_MAE])
        scalars[n++] = (struct tensorboard_scalar){"epoch_mae", mae};
    tensorboard_file_add(f, clock_wall_us(), epoch, scalars, n);
}

int tensorboard_epoch(struct tensorboard *t, const struct job_spec *job, int64_t epoch,
                      const struct epoch_result *x, struct err *e)
{
    const struct epoch_figures *f = &x->all;
    if (!is_open(t))
        return 0;
    add_epoch(&t->train, job, epoch, f->loss, f->accuracy, f->mae);
    if (x->has_validation)
        add_epoch(&t->validation, job, epoch, f->val_loss, f->val_accuracy, f->val_mae);
    return tensorboard_flush(t, e);
}

int tensorboard_flush(struct tensorboard *t, struct err *e)
{
    if (!is_open(t))
        return 0;
    int r = tensorboard_file_flush(&t->train, e);
    if (r == 0 && t->validation.name)
        r = tensorboard_file_flush(&t->validation, e);
    t->wrote_us = clock_boottime_us();
    return check(t, r);
}

void tensorboard_close(struct tensorboard *t)
{
    tensorboard_file_close(&t->train);
    tensorboard_file_close(&t->validation);
    *t = (struct tensorboard){0};
}

const char *tensorboard_artifact(const struct tensorboard *t, int i)
{
    const char *const names[] = {t->train.name, t->validation.name, NULL};
    return i < 2 ? names[i] : NULL;
}
