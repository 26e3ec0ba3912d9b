/* rebalance.c: windows of steps, and layers on the move. */
#include "trainer/rebalance.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "trainer/engine.h"
#include "trainer/piece_copy.h"

static int wants_shares(const struct engine *g)
{
    return g->plan->parallel.shares == SHARES_MEASURED && g->mesh.data > 1 && !g->mesh.ensemble;
}

static int wants_moves(const struct engine *g)
{
    return g->plan->parallel.rebalance && g->mesh.stages > 1;
}

int rebalance_wanted(const struct engine *g)
{
    return wants_shares(g) || wants_moves(g);
}

int rebalance_check(const struct engine *g, struct err *e)
{
    if (!rebalance_wanted(g) || g->plan->chunks <= BALANCE_CHUNKS)
        return 0;
    return err_set(e, ERR_INVALID,
                   "Times are measured for at most %d chunks a rank, and the plan has %d: fewer "
                   "chunks, or neither \"rebalance\" nor measured \"shares\".",
                   BALANCE_CHUNKS, g->plan->chunks);
}

void rebalance_init(struct engine *g)
{
    if (!rebalance_wanted(g))
        return;
    g->rebalance.words = mem_zalloc((size_t)g->mesh.ranks * sizeof *g->rebalance.words);
    stage_measure(&g->stage);
}

void rebalance_done(struct engine *g)
{
    free(g->rebalance.words);
    free(g->rebalance.said);
    g->rebalance = (struct rebalance){0};
}

/* ---- a window ---- */

static int tell_window(struct engine *g, struct err *e)
{
    struct balance_word mine = {.items = (float)g->rebalance.items,
                                .move_us = (float)g->rebalance.set_up_us};
    struct comm *w = g->mesh.world;
    for (int c = 0; c < g->plan->chunks; c++) {
        mine.busy_us[c] = (float)g->stage.times.busy_us[c];
        g->stage.times.busy_us[c] = 0;
    }
    g->rebalance.items = 0;
    g->rebalance.steps = 0;
    return w->verbs->exchange(w, &mine, sizeof mine, g->rebalance.words, e);
}

/* Half the way from the present weights, which are even at first. A rank that was not measured,
 * having had no items, keeps its weight. */
static void weigh(struct engine *g)
{
    struct share *s = &g->share;
    int data = g->mesh.data;
    double sum = 0;
    CLEANUP(mem_freep) double *speeds = mem_alloc((size_t)data * sizeof *speeds);
    balance_speeds(g->plan, g->rebalance.words, speeds);
    for (int d = 0; d < data; d++) {
        if (speeds[d] <= 0)
            return;
        sum += speeds[d];
    }
    for (int d = 0; d < data; d++)
        speeds[d] = 0.5 * speeds[d] / sum + 0.5 * (s->weights ? s->weights[d] : 1.0 / data);
    share_weigh(s, speeds);
}

/* ---- moving ---- */

static int fits(struct engine *g, const int *first, int *ret, struct err *e)
{
    struct plan p = *g->plan;
    size_t most;
    p.stage_first = (int *)first;
    int r = engine_shared_bytes(g, &p, &most, e);
    *ret = r == 0 && most <= g->rebalance.room &&
           (g->job->resources.memory == 0 || plan_memory(g->job, &p) <= g->job->resources.memory);
    return r;
}

static void say_cut(struct buf *b, const struct plan *p)
{
    for (int s = 1; s < plan_stages(p); s++)
        buf_addf(b, "%s%d", s > 1 ? ", " : "", p->stage_first[s]);
}

/* From a copy of what every rank saves, into new arenas for g->plan. */
static int lay_out_anew(struct engine *g, const struct piece_copy *copy, struct err *e)
{
    struct comm *w = g->mesh.world;
    struct pieces_scalars scalars;
    pieces_get_scalars(g, &scalars);
    int r = w->verbs->barrier(w, e); /* nobody reads what is about to go */
    if (r < 0)
        return r;
    engine_take_down(g);
    w->verbs->forget(w);
    if ((r = engine_set_up(g, e)) < 0)
        return r;
    stage_measure(&g->stage);
    return piece_copy_restore_all(g, copy, &scalars, e);
}

static int move(struct engine *g, const int *first, struct err *e)
{
    int64_t began = clock_boottime_us();
    int count = plan_stages(g->plan);
    struct piece_copy *copy;
    struct buf said = BUF_INIT;
    int r = piece_copy_take(g, 0, &copy, e);
    if (r < 0)
        return r;
    buf_adds(&said, "Stages were uneven: they begin with layers ");
    say_cut(&said, g->plan);
    memcpy(g->current.stage_first, first, ((size_t)count + 1) * sizeof *first);
    buf_adds(&said, " no more, but with ");
    say_cut(&said, g->plan);
    r = lay_out_anew(g, copy, e);
    piece_copy_drop(copy);
    g->rebalance.set_up_us = clock_boottime_us() - began;
    g->rebalance.moves++;
    buf_addf(&said, "; moving took %.3f s", (double)g->rebalance.set_up_us * 1e-6);
    free(g->rebalance.said);
    g->rebalance.said = mem_strdup(said.data);
    buf_done(&said);
    return r;
}

static int consider_moving(struct engine *g, struct err *e)
{
    struct rebalance *b = &g->rebalance;
    int count = plan_stages(g->plan), fit = 0, r = 0;
    CLEANUP(mem_freep) int *first = mem_alloc(((size_t)count + 1) * sizeof *first);
    b->uneven = balance_unevenness(g->plan, b->words) > BALANCE_LIMIT ? b->uneven + 1 : 0;
    if (b->uneven < BALANCE_WINDOWS)
        return 0;
    b->uneven = 0;
    if (!balance_cut(g->job, g->plan, b->words, g->steps - g->step, first))
        return 0;
    if ((r = fits(g, first, &fit, e)) < 0 || !fit)
        return r;
    return move(g, first, e);
}

int rebalance_after_step(struct engine *g, int64_t items, struct err *e)
{
    struct rebalance *b = &g->rebalance;
    if (!b->words)
        return 0;
    b->items += (double)items;
    if (++b->steps < BALANCE_STEPS)
        return 0;
    int r = tell_window(g, e);
    if (r < 0)
        return r;
    if (wants_shares(g))
        weigh(g);
    return wants_moves(g) ? consider_moving(g, e) : 0;
}
