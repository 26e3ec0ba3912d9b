/* train.c: a rank's life, and how it ended. */
#include "trainer/train.h"

#include "base/clock.h"
#include "trainer/fit.h"
#include "trainer/say.h"

/* ---- how it ended ---- */

struct ending {
    const char *outcome, *code;
    int status;
};

static struct ending ending_of(const struct err *e, const char *code)
{
    switch (e->code) {
    case ERR_PEER: return (struct ending){"failed", "peer_lost", TRAIN_RETRY};
    case ERR_TIMEOUT: return (struct ending){"failed", "peer_silent", TRAIN_RETRY};
    case ERR_NO_SPACE: return (struct ending){"failed", "disk_full", TRAIN_RETRY};
    case ERR_IO: return (struct ending){"failed", code ? code : "io_error", TRAIN_RETRY};
    case ERR_NO_MEMORY: return (struct ending){"failed", "device_out_of_memory", TRAIN_PERMANENT};
    case ERR_UNAVAILABLE: return (struct ending){"failed", "out_of_memory", TRAIN_PERMANENT};
    case ERR_INTERNAL: return (struct ending){"failed", "internal", TRAIN_PERMANENT};
    default: return (struct ending){"failed", code ? code : "invalid", TRAIN_PERMANENT};
    }
}

/* A rank that fails by itself tells the others, who would wait for it in vain. */
static void tell_peers(struct engine *g, const struct err *e)
{
    if (g->mesh.world && e->code != ERR_PEER)
        g->mesh.world->verbs->give_up(g->mesh.world, e->text);
}

/* A device that is not there, or broke, said so when it was opened, or says so again. */
static const char *blame(const struct engine *g, const struct err *e)
{
    struct err of_device = {0};
    if (g->code || e->code != ERR_IO || !g->has_device)
        return g->code;
    return backend.ops->finish(&of_device) < 0 ? "device_failed" : NULL;
}

/* The verdict's ending and reason. Being asked to stop while the others still come is no failure.
 */
static struct ending judge(int r, int met, enum fit_end end, const volatile int *stop,
                           const char *code, struct err *e)
{
    if (r == 0 && end == FIT_DONE)
        return (struct ending){"done", "done", TRAIN_DONE};
    if (r == 0 || (!met && stop && *stop))
        return (struct ending){"stopped", "stopped", TRAIN_DONE};
    return ending_of(e, code);
}

int train_rank(const struct launch *l, int rank, const struct engine_fds *fds,
               const volatile int *stop)
{
    struct engine g;
    struct report out;
    struct err e = {0}, late;
    enum fit_end how = FIT_DONE;
    report_init(&out, fds->report, rank);
    int r = engine_open(&g, l, rank, fds, stop, &e);
    if (r == 0)
        r = fit_run(&g, &out, &how, &e);
    if (r < 0)
        tell_peers(&g, &e);
    struct ending end = judge(r, g.mesh.world != NULL, how, stop, blame(&g, &e), &e);
    if (report_verdict(&out, end.outcome, end.code, e.text, &late) < 0 && end.status == TRAIN_DONE)
        end.status = TRAIN_RETRY;
    say_verdict(rank, e.text);
    engine_close(&g);
    report_done(&out);
    return end.status;
}

/* ---- preparing ---- */

/* A member without samples would stay as it was made, and spoil the average of the outputs. */
static int check_members(const struct launch *l, const struct prepared *p, struct err *e)
{
    if (l->plan.kind != STRATEGY_SEGMENT_ENSEMBLE || p->train.samples >= l->plan.data)
        return 0;
    return err_set(e, ERR_INVALID,
                   "an ensemble of %d members needs as many samples to train on, but there are "
                   "%lld",
                   l->plan.data, (long long)p->train.samples);
}

int train_prepare(const struct launch *l, const struct engine_fds *fds)
{
    struct data_roots roots = {.paths = (const char *const *)l->data_roots,
                               .count = l->data_root_count};
    struct data_store store = {fds->data, fds->spool};
    struct report out;
    struct prepared p = {0};
    struct err e = {0};
    int64_t began = clock_boottime_us();
    report_init(&out, fds->report, -1);
    int r = l->spec && !l->spec->command
                ? data_prepare(l->spec, &roots, &store, &e)
                : err_set(&e, ERR_INVALID, "The launch document has no training job.");
    if (r == 0)
        r = data_map(&store, &roots, &p, &e);
    if (r == 0)
        r = check_members(l, &p, &e);
    if (r == 0)
        r = report_prepared(&out, &p, l->spec, (double)(clock_boottime_us() - began) * 1e-6, &e);
    if (r == 0)
        say_note("Reading the data: %lld samples to train on, %lld to validate on%s%s",
                 (long long)p.train.samples, (long long)p.validation.samples, p.note[0] ? "; " : "",
                 p.note);
    struct ending end = {"done", "done", TRAIN_DONE};
    if (r < 0) {
        end = ending_of(&e, "data_invalid");
        report_verdict(&out, end.outcome, end.code, e.text, NULL);
        say_verdict(-1, e.text);
    }
    data_unmap(&p);
    report_done(&out);
    return end.status;
}
