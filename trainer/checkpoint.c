/* checkpoint.c: the ranks' agreement on checkpoints, and what is copied for them. */
#include "trainer/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "trainer/checkpoint_shard.h"
#include "trainer/say.h"

#define WAIT_MS 200 /* between two signs of life while a rank waits for its own thread */

static const struct checkpoint_word *word_of(const struct checkpoints *c, int rank)
{
    return &c->g->tallies[rank].checkpoint;
}

static int is_first(const struct checkpoints *c)
{
    return c->g->mesh.rank == 0;
}

/* ---- opening and closing ---- */

int checkpoints_open(struct checkpoints *c, struct engine *g, struct report *out, struct err *e)
{
    int count = 0;
    *c = (struct checkpoints){.g = g, .out = out, .started_us = clock_boottime_us()};
    if (!g->launch->checkpoints || !g->job->checkpoint.enabled)
        return 0;
    c->root = g->launch->checkpoints;
    int r = is_first(c) ? checkpoint_remove_leftovers(c->root, &count, e) : 0;
    if (count > 0)
        say_note("%d unfinished checkpoint%s of an earlier attempt removed", count,
                 count == 1 ? "" : "s");
    return r;
}

/* Frees what belongs to the one under way. */
static void let_go(struct checkpoints *c)
{
    shard_items_free(c->items, c->item_count);
    piece_copy_drop(c->snapshot);
    piece_copy_drop(c->best);
    c->items = NULL;
    c->item_count = 0;
    c->snapshot = c->best = NULL;
}

void checkpoints_close(struct checkpoints *c)
{
    checkpoint_writer_cancel(&c->writer);
    let_go(c);
    manifest_done(&c->manifest);
    buf_done(&c->text);
    *c = (struct checkpoints){0};
}

/* A snapshot, where checkpoints are taken beside the training; the weights of the best epoch, and
 * those of the one before, which the writer may still hold. */
int checkpoints_memory(const struct checkpoints *c, size_t *ret_bytes, struct err *e)
{
    const struct job_spec *job = c->g->job;
    const struct early_stopping *rule = &job->fit.early_stopping;
    size_t all = 0, parameters = 0;
    int beside = c->root && (job->checkpoint.every_steps > 0 || job->checkpoint.every_s > 0);
    int r = piece_copy_expect(c->g, 0, &all, e);
    if (r == 0)
        r = piece_copy_expect(c->g, 1, &parameters, e);
    if (r < 0)
        return r;
    *ret_bytes = beside ? all : 0;
    if (rule->enabled && rule->restore_best_weights)
        *ret_bytes += beside ? 2 * parameters : parameters;
    return 0;
}

/* ---- beginning one ---- */

static void fill_manifest(struct checkpoints *c, const struct checkpoint_cursor *at)
{
    const struct engine *g = c->g;
    struct manifest *m = &c->manifest;
    manifest_done(m);
    manifest_init(m, g->launch->job, g->members, g->mesh.ranks);
    m->steps = g->steps;
    m->samples = g->prepared.train.samples;
    m->batch = g->job->fit.batch_size;
    m->seed = g->job->fit.seed;
    m->data = g->plan->data;
    m->pipeline = g->plan->pipeline;
    m->tensor = g->mesh.ranks / (m->data * m->pipeline);
    m->epoch = at->epoch;
    m->step_in_epoch = at->step_in_epoch;
    m->early = at->early;
    memcpy(m->seen, g->seen, (size_t)g->members * sizeof *m->seen);
    pieces_get_scalars(g, &m->scalars);
}

static void fail(struct checkpoints *c, const struct err *e)
{
    c->phase = CHECKPOINT_FAILED;
    c->failure = *e;
    let_go(c);
    say_note("Rank %d: its part of the checkpoint of step %lld is not written: %s", c->g->mesh.rank,
             (long long)c->manifest.scalars.step, e->text);
}

/* What a shard of now is to have: copied, or to be read from the engine as it is written. */
static int list_items(struct checkpoints *c, const struct checkpoint_cursor *at, int copied,
                      struct err *e)
{
    int r = copied ? piece_copy_take(c->g, 0, &c->snapshot, e)
                   : piece_copy_list(c->g, 0, &c->snapshot, e);
    if (r < 0)
        return r;
    c->best = at->best ? piece_copy_hold(at->best) : NULL;
    c->items = shard_items(c->snapshot, c->best, &c->item_count);
    c->writer.job = (struct checkpoint_job){
        .root = c->root,
        .step = c->manifest.scalars.step,
        .rank = c->g->mesh.rank,
        .items = c->items,
        .count = c->item_count,
    };
    return 0;
}

static void read_live(void *context, int item, size_t from, size_t to, float *out)
{
    const struct checkpoints *c = context;
    piece_read(c->g, &c->snapshot->pieces[item], from, to, out);
}

/* `copied` 0: nothing changes before it is written. */
static void begin(struct checkpoints *c, const struct checkpoint_cursor *at, int copied)
{
    struct err e;
    c->is_due = 0;
    c->started_us = clock_boottime_us();
    c->phase = CHECKPOINT_WRITING;
    c->live = (struct checkpoint_source){.read = read_live, .context = c};
    fill_manifest(c, at);
    int r = list_items(c, at, copied, &e);
    c->writer.task = CHECKPOINT_TASK_SHARD;
    c->writer.job.source = copied ? NULL : &c->live;
    if (r == 0)
        r = checkpoint_writer_start(&c->writer, &e);
    if (r < 0)
        fail(c, &e);
}

/* ---- ending one ---- */

static int tell_failure(struct checkpoints *c, const char *reason, struct err *e)
{
    struct err late;
    int64_t step = c->manifest.scalars.step;
    say_note("The checkpoint of step %lld could not be written: %s. Training goes on; earlier "
             "checkpoints stay.",
             (long long)step, reason);
    if (checkpoint_discard(c->root, step, &late) < 0)
        say_note("What there is of it could not be removed: %s", late.text);
    return report_checkpoint_failed(c->out, step, reason, e);
}

/* Rank 0, when nobody writes any more and somebody failed. */
static int give_up(struct checkpoints *c, struct err *e)
{
    char reason[sizeof c->failure.text + 64];
    for (int r = 0; r < c->g->mesh.ranks; r++) {
        if (word_of(c, r)->phase != CHECKPOINT_FAILED)
            continue;
        if (r == 0)
            snprintf(reason, sizeof reason, "%s", c->failure.text);
        else
            snprintf(reason, sizeof reason, "rank %d says why in its log", r);
        return tell_failure(c, reason, e);
    }
    return 0;
}

/* Rank 0, when all shards are on the disk. */
static int commit(struct checkpoints *c, struct err *e)
{
    struct manifest *m = &c->manifest;
    struct err late;
    for (int r = 0; r < m->ranks; r++) {
        const struct checkpoint_word *w = word_of(c, r);
        m->shards[r] = (struct checkpoint_shard){w->bytes, {w->sum[0], w->sum[1]}};
        if (r < m->members)
            m->updates[r] = w->updates;
    }
    buf_clear(&c->text);
    manifest_print(m, &c->text);
    c->writer.task = CHECKPOINT_TASK_COMMIT;
    c->writer.job = (struct checkpoint_job){.root = c->root, .step = m->scalars.step};
    c->writer.manifest = c->text.data;
    c->writer.manifest_size = c->text.len;
    c->phase = CHECKPOINT_COMMITTING;
    if (checkpoint_writer_start(&c->writer, &late) == 0)
        return 0;
    c->phase = CHECKPOINT_NONE;
    return tell_failure(c, late.text, e);
}

/* Rank 0, when its thread has renamed the directory or failed to. */
static int end_commit(struct checkpoints *c, struct err *e)
{
    struct manifest *m = &c->manifest;
    struct checkpoint_line line = {
        .step = m->scalars.step,
        .epoch = m->epoch,
        .seconds = (double)(clock_boottime_us() - c->started_us) * 1e-6,
        .bytes = (int64_t)c->text.len,
        .sum = checkpoint_sum_of(c->text.data, c->text.len),
    };
    c->phase = CHECKPOINT_NONE;
    if (c->writer.result < 0)
        return tell_failure(c, c->writer.e.text, e);
    for (int r = 0; r < m->ranks; r++)
        line.bytes += m->shards[r].bytes;
    c->g->checkpoint.committed = line.step;
    return report_checkpoint(c->out, &line, e);
}

/* ---- each step ---- */

/* Looks at this rank's thread, without waiting or for as long as it takes. */
static int look(struct checkpoints *c, int wait, struct err *e)
{
    while (!checkpoint_writer_poll(&c->writer, wait ? WAIT_MS : 0)) {
        if (!wait || !c->writer.is_running)
            return 0;
        comm_progress(c->g->mesh.world);
    }
    if (c->phase == CHECKPOINT_COMMITTING)
        return end_commit(c, e);
    if (c->writer.result < 0) {
        fail(c, &c->writer.e);
    } else {
        let_go(c);
        c->phase = CHECKPOINT_WRITTEN;
    }
    return 0;
}

static void fill_word(struct checkpoints *c)
{
    const struct checkpoint_shard *s = &c->writer.shard;
    struct checkpoint_word *w = &c->g->checkpoint;
    int64_t every_us = c->g->job->checkpoint.every_s * 1000000;
    *w = (struct checkpoint_word){.phase = c->phase, .committed = w->committed};
    w->is_wanted = is_first(c) && every_us > 0 && clock_boottime_us() - c->started_us >= every_us;
    if (c->phase != CHECKPOINT_WRITTEN)
        return;
    w->bytes = s->bytes;
    w->sum[0] = s->sum.high;
    w->sum[1] = s->sum.low;
    w->updates = c->manifest.scalars.updates;
}

void checkpoints_before_step(struct checkpoints *c)
{
    if (c->root)
        fill_word(c);
}

static int count(const struct checkpoints *c, enum checkpoint_phase phase)
{
    int n = 0;
    for (int r = 0; r < c->g->mesh.ranks; r++)
        n += word_of(c, r)->phase == (int32_t)phase;
    return n;
}

/* What all ranks know from the words of one exchange. *ret_is_idle: nothing was under way. */
static int settle(struct checkpoints *c, int *ret_is_idle, struct err *e)
{
    int ranks = c->g->mesh.ranks, r = 0;
    *ret_is_idle = count(c, CHECKPOINT_NONE) == ranks;
    if (count(c, CHECKPOINT_WRITTEN) == ranks) {
        c->phase = CHECKPOINT_NONE;
        r = is_first(c) ? commit(c, e) : 0;
    } else if (count(c, CHECKPOINT_FAILED) > 0 && count(c, CHECKPOINT_WRITING) == 0) {
        c->phase = CHECKPOINT_NONE;
        r = is_first(c) ? give_up(c, e) : 0;
    }
    return r;
}

int checkpoints_after_step(struct checkpoints *c, const struct checkpoint_cursor *at, struct err *e)
{
    int64_t every = c->g->job->checkpoint.every_steps;
    int is_idle;
    if (!c->root)
        return 0;
    int r = settle(c, &is_idle, e);
    int was_due = c->is_due;
    c->is_due |= word_of(c, 0)->is_wanted || (every > 0 && c->g->step % every == 0);
    if (c->is_due && c->g->step == c->g->steps)
        c->is_due = 0; /* the weights themselves come next */
    if (r == 0 && c->is_due && is_idle)
        begin(c, at, 1);
    else if (c->is_due && !was_due && is_first(c))
        say_note("The checkpoint of step %lld waits for that of step %lld", (long long)c->g->step,
                 (long long)c->manifest.scalars.step);
    return r < 0 ? r : look(c, 0, e);
}

/* ---- at an end ---- */

int checkpoints_finish(struct checkpoints *c, struct err *e)
{
    int is_idle = 0, r = 0;
    while (r == 0 && c->root && !is_idle) {
        r = look(c, 1, e);
        if (r < 0)
            break;
        fill_word(c);
        struct tally mine = {.checkpoint = c->g->checkpoint};
        r = engine_exchange(c->g, &mine, e);
        if (r == 0)
            r = settle(c, &is_idle, e);
    }
    return r;
}

int checkpoints_take(struct checkpoints *c, const struct checkpoint_cursor *at, int *ret_is_whole,
                     struct err *e)
{
    *ret_is_whole = 0;
    if (!c->root)
        return 0;
    int r = checkpoints_finish(c, e);
    if (r == 0 && word_of(c, 0)->committed != c->g->step) {
        begin(c, at, !c->g->stage.net.ops->is_host); /* a device is its rank's thread's alone */
        r = checkpoints_finish(c, e);
    }
    *ret_is_whole = r == 0 && word_of(c, 0)->committed == c->g->step;
    return r;
}
