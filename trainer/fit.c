/* fit.c: the loop over epochs and steps. */
#include "trainer/fit.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "trainer/say.h"
#include "trainer/tensorboard.h"
#include "trainer/weights.h"

struct run {
    struct engine *g;
    struct report *out;
    struct tensorboard board; /* rank 0's */
    int stopped;
};

/* ---- telling ---- */

static void say_board(int r, const struct err *e)
{
    if (r < 0)
        say_note("TensorBoard: %s; the run goes on without further event files", e->text);
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

/* ---- training ---- */

static int run_steps(struct run *u, int64_t epoch, struct err *e)
{
    struct engine *g = u->g;
    for (int64_t k = 0; k < g->share.steps_per_epoch && g->step < g->steps; k++) {
        struct step_result s = {0};
        int r = engine_step(g, k, &s, e);
        if (r == 0 && g->mesh.rank == 0)
            r = tell_step(u, epoch, &s, e);
        if (r < 0)
            return r;
        if (s.stop && g->step < g->steps) {
            u->stopped = 1;
            return 0;
        }
    }
    return 0;
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
    free(x.members);
    return r;
}

static int run_epoch(struct run *u, int64_t epoch, struct err *e)
{
    int64_t began = clock_boottime_us();
    engine_begin_epoch(u->g, epoch);
    int r = run_steps(u, epoch, e);
    return r < 0 || u->stopped ? r : end_epoch(u, epoch, began, e);
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

static int start(struct run *u, struct err *e)
{
    struct engine *g = u->g;
    struct err late;
    int r = report_ready(u->out, g->memory_bytes, e);
    if (r == 0)
        r = g->mesh.world->verbs->barrier(g->mesh.world, e);
    if (r < 0 || g->mesh.rank != 0)
        return r;
    say_board(tensorboard_open(&u->board, g, &late), &late);
    return report_start(u->out, g, e);
}

static int run_all(struct run *u, struct err *e)
{
    struct engine *g = u->g;
    int r = start(u, e);
    for (int64_t epoch = 1; r == 0 && !u->stopped && g->step < g->steps; epoch++)
        r = run_epoch(u, epoch, e);
    if (r == 0)
        r = weights_save(g, e);
    if (r == 0 && g->mesh.rank == 0)
        r = tell_artifacts(u, e);
    return r;
}

int fit_run(struct engine *g, struct report *out, enum fit_end *ret, struct err *e)
{
    struct run u = {.g = g, .out = out};
    int r = run_all(&u, e);
    *ret = u.stopped ? FIT_STOPPED : FIT_DONE;
    tensorboard_close(&u.board);
    return r;
}
