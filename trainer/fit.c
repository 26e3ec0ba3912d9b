/* fit.c: the loop over epochs and steps. */
#include "trainer/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "trainer/checkpoint_load.h"
#include "trainer/piece_copy.h"
#include "trainer/say.h"
#include "trainer/tensorboard.h"
#include "trainer/weights.h"

struct run {
    struct engine *g;
    struct report *out;
    struct tensorboard board; /* rank 0's */
    struct checkpoints checkpoints;
    struct checkpoint_cursor at;
    struct resumed from; /* what is gone on from; manifest.job is NULL where nothing is */
    int stopped;         /* the gang was asked to */
    int is_over;         /* early stopping: enough */
    int has_checkpoint;  /* stopped, and what comes next can go on from here */
};

/* ---- telling ---- */

static void say_board(int r, const struct err *e)
{
    if (r < 0)
        say_note("TensorBoard: %s; the run goes on without further event files", e->text);
}

/* What has changed with the cut of the model, once. */
static void say_moves(struct engine *g)
{
    if (g->rebalance.said && g->mesh.rank == 0)
        say_note("%s", g->rebalance.said);
    free(g->rebalance.said);
    g->rebalance.said = NULL;
}

static int tell_step(struct run *u, int64_t epoch, const struct step_result *s, struct err *e)
{
    struct err late;
    int r = report_step(u->out, u->g->step, epoch, s, e);
    if (r == 0)
        say_board(tensorboard_step(&u->board, u->g->step, s, u->out->samples_per_second, &late),
                  &late);
    return r;
}

static int tell_epoch(struct run *u, int64_t epoch, const struct epoch_result *x, double seconds,
                      struct err *e)
{
    struct err late;
    say_epoch(u->g, epoch, x, seconds);
    say_board(tensorboard_epoch(&u->board, u->g->job, epoch, x, &late), &late);
    return report_epoch(u->out, u->g, epoch, x, seconds, e);
}

/* ---- early stopping ---- */

static const struct early_stopping *rule_of(const struct run *u)
{
    return &u->g->job->fit.early_stopping;
}

/* All ranks have the same figures; that they decide alike does not rest on it. */
static int agree_on(struct run *u, double *figure, struct err *e)
{
    struct comm *w = u->g->mesh.world;
    return w->verbs->broadcast(w, figure, sizeof *figure, 0, e);
}

static int keep_best(struct run *u, struct err *e)
{
    struct piece_copy *copy;
    if (!rule_of(u)->restore_best_weights)
        return 0;
    piece_copy_drop(u->at.best);
    u->at.best = NULL;
    int r = piece_copy_take(u->g, 1, &copy, e);
    if (r == 0)
        u->at.best = copy;
    return r;
}

static int consider_stopping(struct run *u, int64_t epoch, const struct epoch_result *x,
                             struct err *e)
{
    int has;
    double figure = early_stopping_figure(rule_of(u), x, &has);
    if (!rule_of(u)->enabled || !has)
        return 0;
    int r = agree_on(u, &figure, e);
    if (r < 0)
        return r;
    switch (early_stopping_epoch(&u->at.early, rule_of(u), epoch, figure)) {
    case EARLY_STOPPING_BEST: return keep_best(u, e);
    case EARLY_STOPPING_STOP: u->is_over = 1; break;
    case EARLY_STOPPING_GO_ON: break;
    }
    return 0;
}

/* As in Keras also where the last epoch was reached. */
static int restore_best(struct run *u, struct err *e)
{
    if (!u->at.best || u->stopped)
        return 0;
    if (u->g->mesh.rank == 0)
        say_note("The weights are those of epoch %lld, the best",
                 (long long)u->at.early.best_epoch);
    return piece_copy_restore(u->g, u->at.best, e);
}

/* ---- training ---- */

static int stop_here(struct run *u, struct err *e)
{
    u->stopped = 1;
    return checkpoints_take(&u->checkpoints, &u->at, &u->has_checkpoint, e);
}

static int run_step(struct run *u, int64_t epoch, int64_t k, struct err *e)
{
    struct engine *g = u->g;
    struct step_result s = {0};
    checkpoints_before_step(&u->checkpoints);
    int r = engine_step(g, k, &s, e);
    if (r == 0 && g->mesh.rank == 0)
        r = tell_step(u, epoch, &s, e);
    if (r < 0)
        return r;
    say_moves(g);
    u->at.epoch = epoch;
    u->at.step_in_epoch = k + 1;
    if (s.stop && g->step < g->steps)
        return stop_here(u, e);
    return checkpoints_after_step(&u->checkpoints, &u->at, e);
}

static int end_epoch(struct run *u, int64_t epoch, int64_t began, struct err *e)
{
    struct engine *g = u->g;
    struct epoch_result x = {0};
    int validate = epoch % g->job->fit.validation_freq == 0;
    int r = report_flush(u->out, e);
    if (r == 0)
        r = engine_end_epoch(g, validate, &x, e);
    if (r == 0 && g->mesh.rank == 0)
        r = tell_epoch(u, epoch, &x, (double)(clock_boottime_us() - began) * 1e-6, e);
    if (r == 0)
        r = consider_stopping(u, epoch, &x, e);
    free(x.members);
    return r;
}

/* An epoch from its step `k` on. One whose steps are all done, as a checkpoint may have it, still
 * has its end to come. */
static int run_epoch(struct run *u, int64_t epoch, int64_t k, struct err *e)
{
    struct engine *g = u->g;
    int64_t began = clock_boottime_us();
    int r = 0;
    engine_begin_epoch(g, epoch);
    if (k > 0)
        memcpy(g->seen, u->from.manifest.seen, (size_t)g->members * sizeof *g->seen);
    for (; r == 0 && !u->stopped && k < g->share.steps_per_epoch && g->step < g->steps; k++)
        r = run_step(u, epoch, k, e);
    return r < 0 || u->stopped ? r : end_epoch(u, epoch, began, e);
}

static int run_epochs(struct run *u, struct err *e)
{
    struct engine *g = u->g;
    int64_t epoch = u->at.epoch, k = u->at.step_in_epoch;
    int r = 0;
    while (r == 0 && !u->stopped && !u->is_over && (g->step < g->steps || k > 0)) {
        r = run_epoch(u, epoch++, k, e);
        k = 0;
    }
    return r;
}

/* ---- what it leaves behind ---- */

static int tell_artifact(struct run *u, const char *name, struct err *e)
{
    struct stat st;
    if (stat(name, &st) < 0)
        return err_errno(e, "cannot see the artifact %s", name);
    return report_artifact(u->out, name, st.st_size, e);
}

static int tell_artifacts(struct run *u, struct err *e)
{
    char name[WEIGHTS_NAME_SIZE];
    const char *events;
    struct err late;
    int r = 0;
    say_board(tensorboard_flush(&u->board, &late), &late);
    for (int i = 0; r == 0 && weights_artifact(u->g, i, name); i++)
        r = tell_artifact(u, name, e);
    for (int i = 0; r == 0 && (events = tensorboard_artifact(&u->board, i)); i++)
        r = tell_artifact(u, events, e);
    return r;
}

/* ---- the run ---- */

static int go_on(struct run *u, struct err *e)
{
    struct engine *g = u->g;
    if (g->launch->resume_count == 0)
        return 0;
    int r = checkpoint_load(g, &u->from, e);
    if (r < 0)
        return r;
    u->at = (struct checkpoint_cursor){
        .epoch = u->from.manifest.epoch,
        .step_in_epoch = u->from.manifest.step_in_epoch,
        .early = u->from.manifest.early,
        .best = u->from.best ? piece_copy_hold(u->from.best) : NULL,
    };
    return 0;
}

static int start(struct run *u, struct err *e)
{
    struct engine *g = u->g;
    struct err late;
    size_t copies = 0;
    int r = checkpoints_open(&u->checkpoints, g, u->out, e);
    if (r == 0)
        r = checkpoints_memory(&u->checkpoints, &copies, e);
    engine_count(g, 0, copies);
    if (r == 0)
        r = go_on(u, e);
    if (r == 0)
        r = report_ready(u->out, g->memory_bytes, e);
    if (r == 0)
        r = g->mesh.world->verbs->barrier(g->mesh.world, e);
    if (r < 0 || g->mesh.rank != 0)
        return r;
    say_board(tensorboard_open(&u->board, g, &late), &late);
    return report_start(u->out, g, u->at.epoch, e);
}

static int finish(struct run *u, struct err *e)
{
    struct engine *g = u->g;
    int r = report_memory(u->out, g->memory_bytes, engine_measured_bytes(g), e);
    if (r == 0)
        r = checkpoints_finish(&u->checkpoints, e);
    if (r == 0)
        r = restore_best(u, e);
    if (r == 0)
        r = engine_meet(g, e);
    if (r == 0)
        r = weights_save(g, e);
    if (r == 0 && g->mesh.rank == 0)
        r = tell_artifacts(u, e);
    return r;
}

/* ---- how it ended ---- */

static void say_end(const struct run *u, struct err *e)
{
    const struct early_stopping_state *s = &u->at.early;
    if (u->stopped && u->has_checkpoint)
        err_set(e, ERR_OK, "The gang was asked to stop; a checkpoint and its weights are written.");
    else if (u->stopped)
        err_set(e, ERR_OK, "The gang was asked to stop; its weights are written.");
    else if (u->is_over)
        err_set(e, ERR_OK,
                "Early stopping: %s has not been better than %.6g, of epoch %lld, for %lld "
                "epochs.",
                early_stopping_monitor(rule_of(u)), s->best, (long long)s->best_epoch,
                (long long)s->waited);
    else
        err_set(e, ERR_OK, "All steps are done.");
}

/* Weights that a diverging run had before are worth naming. */
static void name_last_checkpoint(const struct run *u, struct err *e)
{
    const struct engine *g = u->g;
    char name[LAUNCH_CHECKPOINT_NAME_SIZE];
    int64_t step = g->tallies[0].checkpoint.committed;
    if (step == 0)
        step = u->from.manifest.scalars.step;
    size_t n = strlen(e->text);
    if (step > 0 && g->code && strstr(g->code, "not_finite"))
        snprintf(e->text + n, sizeof e->text - n, " The last checkpoint, %s, is kept.",
                 launch_checkpoint_name(step, name));
}

static void run_done(struct run *u)
{
    checkpoints_close(&u->checkpoints);
    tensorboard_close(&u->board);
    piece_copy_drop(u->at.best);
    resumed_done(&u->from);
}

int fit_run(struct engine *g, struct report *out, enum fit_end *ret, struct err *e)
{
    struct run u = {.g = g, .out = out, .at = {.epoch = 1}};
    early_stopping_init(&u.at.early, &g->job->fit.early_stopping);
    int r = start(&u, e);
    if (r == 0)
        r = run_epochs(&u, e);
    if (r == 0)
        r = finish(&u, e);
    if (r == 0)
        say_end(&u, e);
    else
        name_last_checkpoint(&u, e);
    *ret = u.stopped ? FIT_STOPPED : FIT_DONE;
    run_done(&u);
    return r;
}
