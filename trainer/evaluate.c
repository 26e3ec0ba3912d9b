/* evaluate.c: figures at the end of an epoch.
 *
 * Validation is cut over the data ranks and streams through the stages; sums and counts are added
 * up once, so they are exact at any number of ranks. An ensemble's members each see all of it, and
 * their outputs (probabilities) are averaged: the merged figures are of that mean. Without
 * validation data an ensemble's merged loss and accuracy are of the training data, since averaging
 * what the members saw in training would not be the ensemble.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "trainer/engine.h"

static void numbered(struct items *it, const struct dataset *set, int64_t begin, int64_t end,
                     int64_t *ids)
{
    for (int64_t i = begin; i < end; i++)
        ids[i - begin] = i;
    *it = (struct items){
        .set = set, .ids = ids, .count = end - begin, .position = begin, .total = set->samples};
}

/* Averages the members' outputs in place and adds the merged figures. */
static int merge(void *context, float *out, int64_t rows, struct err *e)
{
    struct engine *g = context;
    const struct ops *o = g->stage.net.ops;
    struct comm *w = g->mesh.world;
    int64_t count = rows * g->stage.out_size;
    layers_predict(&g->stage.net, rows, out);
    o->copy(g->outputs, out, (size_t)count * sizeof *out);
    int r = w->verbs->all_reduce(w, g->outputs, (size_t)count, COMM_F32, e);
    if (r < 0)
        return r;
    o->affine(count, 1.0f / (float)g->members, 0.0f, g->outputs, g->outputs);
    stage_loss(&g->stage, 0, rows, g->outputs, NULL, g->merged);
    return 0;
}

/* Afterwards g->tallies hold every rank's figures; *ret_merged an ensemble's. */
static int evaluate(struct engine *g, const struct dataset *set, struct figures *ret_merged,
                    struct err *e)
{
    int64_t begin = 0, end = set->samples;
    struct stage_visit visit = {.outputs = merge, .context = g};
    if (!g->mesh.ensemble)
        share_slice(set->samples, share_grains(g->plan), g->mesh.data, g->mesh.data_rank, &begin,
                    &end);
    CLEANUP(mem_freep) int64_t *ids = mem_alloc((size_t)(end - begin + 1) * sizeof *ids);
    struct items items;
    numbered(&items, set, begin, end, ids);
    struct layers_hook hook = replicas_hook(&g->replicas);
    backend.ops->zero(g->merged, sizeof *g->merged);
    int r = stage_evaluate(&g->stage, &items, &hook, g->mesh.ensemble ? &visit : NULL, e);
    if (r < 0)
        return r;
    engine_fetch_sums(g, g->stage.parts);
    struct tally mine = {.sums = engine_take_sums(g, g->stage.parts),
                         .items = engine_counted(g, &items)};
    if (g->mesh.ensemble) {
        stage_fetch_sums(&g->stage, g->merged, 1);
        *ret_merged = (struct figures){stage_take_sums(&g->stage, 1),
                                       (double)(set->samples * set->positions)};
    }
    return engine_exchange(g, &mine, e);
}

static void set_training(struct epoch_figures *to, const struct figures *f)
{
    to->loss = f->sums.loss / f->items; /* NaN of no items */
    to->accuracy = f->sums.accuracy / f->items;
    to->mae = f->sums.mae / f->items;
}

static void set_validation(struct epoch_figures *to, const struct figures *f)
{
    to->val_loss = f->sums.loss / f->items;
    to->val_accuracy = f->sums.accuracy / f->items;
    to->val_mae = f->sums.mae / f->items;
}

static struct figures all_seen(const struct engine *g)
{
    struct figures sum = {0};
    for (int m = 0; m < g->members; m++) {
        sum.sums.loss += g->seen[m].sums.loss;
        sum.sums.accuracy += g->seen[m].sums.accuracy;
        sum.sums.mae += g->seen[m].sums.mae;
        sum.items += g->seen[m].items;
    }
    return sum;
}

static int validate(struct engine *g, struct epoch_result *ret, struct err *e)
{
    struct figures merged = {0};
    int r = evaluate(g, &g->prepared.validation, &merged, e);
    if (r < 0)
        return r;
    struct figures all = g->mesh.ensemble ? merged : engine_sum(g, -1);
    set_validation(&ret->all, &all);
    for (int m = 0; ret->members && m < g->members; m++) {
        struct figures f = engine_sum(g, m);
        set_validation(&ret->members[m], &f);
    }
    return 0;
}

int engine_end_epoch(struct engine *g, int validate_now, struct epoch_result *ret, struct err *e)
{
    const struct epoch_figures none = {NAN, NAN, NAN, NAN, NAN, NAN};
    struct epoch_result result = {
        .has_validation = validate_now && g->prepared.validation.samples > 0, .all = none};
    struct figures all = all_seen(g), merged;
    int r = 0;
    set_training(&result.all, &all);
    if (g->mesh.ensemble)
        result.members = mem_alloc((size_t)g->members * sizeof *result.members);
    for (int m = 0; result.members && m < g->members; m++) {
        result.members[m] = none;
        set_training(&result.members[m], &g->seen[m]);
    }
    if (result.has_validation) {
        r = validate(g, &result, e);
    } else if (g->mesh.ensemble && g->prepared.validation.samples == 0) {
        r = evaluate(g, &g->prepared.train, &merged, e);
        if (r == 0)
            set_training(&result.all, &merged);
    }
    if (r < 0) {
        free(result.members);
        return r;
    }
    *ret = result;
    return 0;
}
