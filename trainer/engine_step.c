/* engine_step.c: one optimiser step: passes, the tally, the update. */
#include <math.h>

#include "base/mem.h"
#include "trainer/finite.h"

/* ---- norms ---- */

/* Where bits depend on the norm, it may depend on no order. */
static int needs_exact_norm(const struct engine *g)
{
    return g->job->optimizer.global_clipnorm > 0 || g->plan->parallel.reproducible;
}

/* 1 where each data coordinate has a gradient of its own: members, and local_sgd. */
static int is_apart(const struct engine *g)
{
    return g->mesh.ensemble || replicas_are_apart(&g->replicas);
}

/* What the gradients that were told of last, and are applied next, are multiplied by. */
static double ready_scale(const struct engine *g)
{
    return replicas_are_delayed(&g->replicas) ? g->pending_scale : g->scale.factor;
}

/* Of all ranks, or of data coordinate `d`; without the scale. */
static double norm_of(const struct engine *g, int d, double items)
{
    struct exact_sum exact = {.not_finite = 0};
    double sum = 0;
    int each = g->mesh.ranks / g->mesh.data;
    for (int r = 0; r < g->mesh.ranks; r++)
        if (d < 0 || r / each == d) {
            sum += g->tallies[r].squares;
            exact_add(&exact, &g->tallies[r].exact);
        }
    double squares = needs_exact_norm(g) ? exact_to_double(&exact) : sum;
    return items > 0 ? sqrt(squares) / items / ready_scale(g) : 0;
}

/* What a data coordinate's sum of gradients is divided by: a member's own items; with local_sgd an
 * equal share of the batch's, so that the mean of all updates is that of the whole batch. */
static double divisor(const struct engine *g, int d, double items)
{
    if (g->mesh.ensemble)
        return engine_sum(g, d).items;
    return is_apart(g) ? items / g->mesh.data : items;
}

/* The mean over coordinates that are apart, members weighted by their items, as the loss is. */
static double reported_norm(const struct engine *g, double items)
{
    double sum = 0, weights = 0;
    if (!is_apart(g))
        return norm_of(g, -1, items);
    for (int d = 0; d < g->mesh.data; d++) {
        double weight = divisor(g, d, items);
        sum += norm_of(g, d, weight) * weight;
        weights += weight;
    }
    return weights > 0 ? sum / weights : 0;
}

/* ---- the step ---- */

static int train_share(struct engine *g, const struct items *items, struct err *e)
{
    struct layers_hook hook = replicas_hook(&g->replicas);
    replicas_begin(&g->replicas);
    g->stage.loss_scale = (float)g->scale.factor;
    int r = stage_train(&g->stage, items, g->step + 1, &hook, e);
    return r < 0 ? r : replicas_finish(&g->replicas, e);
}

/* What the host needs of the device: one wait, after which there is nothing left to finish. */
static void take_tally(struct engine *g, const struct items *items, struct tally *ret)
{
    *ret = (struct tally){.items = engine_counted(g, items),
                          .stop = g->stop && *g->stop,
                          .checkpoint = g->checkpoint};
    engine_fetch_sums(g, g->stage.microbatches);
    replicas_squares(&g->replicas, needs_exact_norm(g), &ret->exact, &ret->squares);
    ret->sums = engine_take_sums(g, g->stage.microbatches);
}

/* The summed gradient of step `of` (from 1), of a batch of `items`, is applied; or skipped, which
 * its ret->skipped says. */
static int apply(struct engine *g, int64_t of, double items, struct step_result *ret, struct err *e)
{
    double own = divisor(g, g->mesh.data_rank, items);
    ret->learning_rate = optimizer_rate(&g->job->optimizer, of - 1);
    ret->grad_norm = reported_norm(g, items);
    ret->loss_scale = g->scale.is_on ? ready_scale(g) : 0;
    if (own == 0 || ret->skipped) /* a member whose shard has none in this batch */
        return 0;
    double norm = norm_of(g, is_apart(g) ? g->mesh.data_rank : -1, own);
    double clip = optimizer_clip(&g->job->optimizer, norm);
    return replicas_update(&g->replicas, ret->learning_rate, ++g->updates,
                           clip / own / ready_scale(g), e);
}

/* What a codec has not sent yet is of the scale of the gradient it will be added to; of a gradient
 * that was not finite it is nothing. */
static int rescale(struct engine *g, int skipped, struct err *e)
{
    double change = loss_scale_after(&g->scale, !skipped);
    int r = skipped || change != 1 ? replicas_settle(&g->replicas, e) : 0;
    if (r == 0 && skipped)
        replicas_drop_gradient(&g->replicas);
    else if (r == 0)
        replicas_scale_residual(&g->replicas, change);
    return r;
}

/* Delayed: the last gradient of the run has no next step to be applied in. */
static int apply_last(struct engine *g, struct step_result *ret, struct err *e)
{
    struct tally mine = {.checkpoint = g->checkpoint}; /* as the step has told it */
    int r = replicas_flush(&g->replicas, e);
    if (r < 0)
        return r;
    replicas_squares(&g->replicas, needs_exact_norm(g), &mine.exact, &mine.squares);
    if ((r = engine_exchange(g, &mine, e)) == 0)
        r = engine_check_gradient(g, &ret->skipped, e);
    if (r == 0)
        r = apply(g, g->pending_step, (double)g->pending_items, ret, e);
    g->pending_items = g->pending_step = 0;
    return r;
}

/* `scale`: of this step's gradient, which is the next one's to apply. */
static int apply_delayed(struct engine *g, double items, double scale, struct step_result *ret,
                         struct err *e)
{
    int r = 0;
    if (g->pending_items > 0)
        r = apply(g, g->pending_step, (double)g->pending_items, ret, e);
    g->pending_items = (int64_t)items;
    g->pending_step = g->step + 1;
    g->pending_scale = scale;
    return r == 0 && g->step + 1 == g->steps ? apply_last(g, ret, e) : r;
}

/* After so many local steps, and wherever weights are looked at. */
static int average(struct engine *g, int64_t step_in_epoch, struct err *e)
{
    int is_last = step_in_epoch + 1 == g->share.steps_per_epoch || g->step + 1 == g->steps;
    if (++g->local_steps < g->plan->parallel.local_steps && !is_last)
        return 0;
    g->local_steps = 0;
    return replicas_average(&g->replicas, e);
}

int engine_meet(struct engine *g, struct err *e)
{
    if (g->local_steps == 0)
        return 0;
    g->local_steps = 0;
    return replicas_average(&g->replicas, e);
}

static int update(struct engine *g, int64_t step_in_epoch, double items, struct step_result *ret,
                  struct err *e)
{
    double scale = g->scale.factor;
    if (replicas_are_delayed(&g->replicas)) {
        int rc = rescale(g, ret->skipped, e);
        return rc < 0 ? rc : apply_delayed(g, items, scale, ret, e);
    }
    int r = apply(g, g->step + 1, items, ret, e);
    if (r == 0)
        r = rescale(g, ret->skipped, e);
    return r == 0 && replicas_are_apart(&g->replicas) ? average(g, step_in_epoch, e) : r;
}

static void remember_seen(struct engine *g)
{
    for (int m = 0; m < g->members; m++) {
        struct figures f = engine_sum(g, g->mesh.ensemble ? m : -1);
        figures_add(&g->seen[m], &f);
    }
}

static int any_stop(const struct engine *g)
{
    for (int r = 0; r < g->mesh.ranks; r++)
        if (g->tallies[r].stop)
            return 1;
    return 0;
}

/* Its data may be fetched beside this step's work. */
static void expect_step(struct engine *g, int64_t step_in_epoch)
{
    struct items next;
    if (step_in_epoch >= g->share.steps_per_epoch || g->step + 1 >= g->steps) {
        stage_expect(&g->stage, NULL);
        return;
    }
    share_items(&g->share, step_in_epoch, &next);
    stage_expect(&g->stage, &next);
}

int engine_step(struct engine *g, int64_t step_in_epoch, struct step_result *ret, struct err *e)
{
    struct items items;
    struct tally mine;
    int skip = 0;
    comm_set_step(g->mesh.world, g->step + 1);
    share_items(&g->share, step_in_epoch, &items);
    expect_step(g, step_in_epoch + 1);
    int r = train_share(g, &items, e);
    if (r < 0)
        return r;
    batch_send_all(&g->stage.batch);
    take_tally(g, &items, &mine);
    if ((r = engine_exchange(g, &mine, e)) < 0 || (r = engine_check_loss(g, e)) < 0 ||
        (r = engine_check_gradient(g, &skip, e)) < 0)
        return r;
    remember_seen(g);
    struct figures all = engine_sum(g, -1);
    *ret = (struct step_result){
        .loss = all.sums.loss / all.items,
        .items = (int64_t)all.items / g->prepared.train.positions,
        .stop = any_stop(g),
        .skipped = skip,
    };
    if ((r = update(g, step_in_epoch, all.items, ret, e)) < 0)
        return r;
    ret->has_comm = replicas_times(&g->replicas, &ret->comm_exposed_us, &ret->comm_hidden_us);
    g->step++;
    return rebalance_after_step(g, items.count, e);
}
