/* planner_why.c: a plan in sentences: what it is, what it costs, what it does to the mathematics.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/coordinator/explain.h"
#include "daemon/coordinator/planner_parts.h"
#include "spec/tensor.h"

const char *planner_memory_text(const struct planner *p, int64_t bytes, char out[160])
{
    char need[32], limit[32];
    explain_bytes(bytes, need);
    if (p->limit == INT64_MAX)
        snprintf(out, 160, "%s, with no limit known since no such device has joined yet", need);
    else
        snprintf(out, 160, "%s of the %s of %s", need, explain_bytes(p->limit, limit),
                 p->limit_source);
    return out;
}

static double work_of(const struct job_spec *job, int first, int end)
{
    double sum = 0;
    for (int l = first; l < end; l++)
        sum += job->model.layers[l].forward_flops + job->model.layers[l].backward_flops;
    return sum;
}

/* A step of S stages and M micro-batches takes M + S - 1 turns, of which S - 1 a rank waits; with v
 * chunks a rank the wait is a v-th of that. */
static double bubble(const struct plan *plan)
{
    double wait = (double)(plan->pipeline - 1) / plan->chunks;
    return wait / (plan->microbatches + wait);
}

static void say_pipeline(const struct planner *p, const struct plan *plan, struct buf *b)
{
    const struct job_spec *job = p->job;
    double all = work_of(job, 0, job->model.layer_count), worst = 0;
    char chunks[64] = "";
    for (int r = 0; r < plan->pipeline; r++) {
        double own = 0;
        for (int s = r; s < plan_stages(plan); s += plan->pipeline)
            own += work_of(job, plan->stage_first[s], plan->stage_first[s + 1]);
        worst = own > worst ? own : worst;
    }
    int m = plan->microbatches;
    if (plan->chunks > 1)
        snprintf(chunks, sizeof chunks, " over %d ranks", plan->pipeline);
    buf_addf(b,
             "%d stages%s cut by cost (the dearest%s has %.0f %% of the work), %d micro-batch%s a "
             "step, so that %.0f %% of the time is bubble; ",
             plan_stages(plan), chunks, plan->chunks > 1 ? " rank" : "",
             all > 0 ? 100 * worst / all : 0, m, m == 1 ? "" : "es", 100 * bubble(plan));
}

/* Which layers with parameters the tensor ranks share out, and why the first of the others is not.
 */
static void say_tensor(const struct planner *p, const struct plan *plan, struct buf *b)
{
    const struct model *m = &p->job->model;
    CLEANUP(mem_freep)
    struct tensor_cut *cuts = mem_alloc(((size_t)m->layer_count + 1) * sizeof *cuts);
    int with = 0, split = 0, whole = -1;
    for (int s = 0; s < plan_stages(plan); s++)
        tensor_cuts(m, plan->stage_first[s], plan->stage_first[s + 1], plan->tensor, 0,
                    cuts + plan->stage_first[s]);
    for (int l = 0; l < m->layer_count; l++) {
        if (m->layers[l].parameters == 0)
            continue;
        with++;
        split += cuts[l].split != TENSOR_WHOLE;
        whole = whole < 0 && cuts[l].split == TENSOR_WHOLE ? l : whole;
    }
    buf_addf(b, " The %d tensor ranks split %d of %d layers with parameters", plan->tensor, split,
             with);
    if (whole >= 0)
        buf_addf(b, "; \"%s\" is not split: %s", m->layers[whole].name, cuts[whole].why);
    buf_adds(b, ".");
}

static void say_mesh(const struct planner *p, const struct plan *plan, struct buf *b)
{
    const struct job_spec *job = p->job;
    int asked = job->strategy.kind != STRATEGY_AUTO || job->strategy.is_mesh;
    long long rows = planner_rows(job, plan->data), batch = job->fit.batch_size;
    if (plan->kind == STRATEGY_SEGMENT_ENSEMBLE)
        buf_addf(b, "Asked for: %d members train on disjoint shards; ", plan->data);
    else if (plan->ranks == 1)
        buf_adds(b, "One device: there is nothing to divide; ");
    else if (plan->pipeline > 1)
        say_pipeline(p, plan, b);
    else if (plan->tensor > 1)
        buf_addf(b, "Asked for: %d data rank%s of %d tensor ranks each; ", plan->data,
                 plan->data == 1 ? "" : "s", plan->tensor);
    else if (asked)
        buf_addf(b,
                 "Asked for: each of %d ranks holds the whole model and takes %lld of %lld rows of "
                 "a batch; ",
                 plan->data, rows, batch);
    else
        buf_addf(b,
                 "The whole model fits every rank, so that each of the %d ranks takes %lld of the "
                 "%lld rows of a batch and none waits for another's stage; ",
                 plan->data, rows, batch);
}

static void say_zero(const struct planner *p, const struct plan *plan, struct buf *b)
{
    static const char *const divided[] = {"", "optimizer state", "optimizer state and gradients",
                                          "optimizer state, gradients and parameters"};
    if (plan->zero > 0)
        buf_addf(b, " The %d data ranks divide %s among them (zero %d%s).", plan->data,
                 divided[plan->zero], plan->zero,
                 p->job->strategy.zero < 0 ? ", as memory asks for it" : "");
}

static void say_recompute(const struct planner *p, const struct plan *plan, struct buf *b)
{
    const struct model *m = &p->job->model;
    double again = 0;
    for (int l = 0; plan->recompute && l < m->layer_count; l++)
        again += plan->recompute[l] ? m->layers[l].forward_flops : 0;
    if (plan->recompute_count > 0)
        buf_addf(b,
                 " The outputs of %d of %d layers are computed again in backward instead of kept, "
                 "%s%.0f %% more work.",
                 plan->recompute_count, m->layer_count,
                 p->job->strategy.recompute == RECOMPUTE_AUTO ? "as memory asks for it, for " : "",
                 100 * again / work_of(p->job, 0, m->layer_count));
}

static void say_grown(const struct planner *p, const struct plan *plan, struct buf *b)
{
    if (plan->pipeline > 1 || plan->microbatches == 1 || p->job->strategy.microbatches ||
        plan->parallel.reproducible)
        return;
    buf_addf(b,
             " A rank's share of a batch goes through in %d micro-batches, as memory asks for it.",
             plan->microbatches);
}

/* ---- what changes the mathematics, or is promised of it ---- */

static void say_sync(const struct plan *plan, struct buf *b)
{
    const struct parallel *p = &plan->parallel;
    if (p->sync == SYNC_DELAYED)
        buf_adds(b, " Asked for, and other mathematics: a step applies the gradient of the step "
                    "before, taken at weights that are one update older.");
    if (p->sync == SYNC_LOCAL_SGD)
        buf_addf(b,
                 " Asked for, and other mathematics: each of the %d data ranks takes %lld steps on "
                 "its own rows, then the weights become their mean%s.",
                 plan->data, (long long)p->local_steps,
                 p->outer_momentum > 0 || p->outer_learning_rate != 1
                     ? " by a step of an outer optimizer"
                     : "");
}

static void say_codec(const struct plan *plan, struct buf *b)
{
    const struct parallel *p = &plan->parallel;
    if (p->codec == CODEC_BF16)
        buf_adds(b, " Asked for, and lossy: gradients are rounded to bfloat16 where data ranks "
                    "exchange them.");
    if (p->codec == CODEC_INT8)
        buf_adds(b, " Asked for, and lossy: gradients are rounded to 8 bits where data ranks "
                    "exchange them; what is lost is added to the next gradient.");
    if (p->codec == CODEC_TOP_K)
        buf_addf(b,
                 " Asked for, and lossy: data ranks exchange the largest %.3g %% of their "
                 "gradients' elements; the others wait and are added to the next gradient.",
                 100 * p->top_k);
}

static void say_precision(const struct planner *p, struct buf *b)
{
    const struct precision *q = &p->job->precision;
    const char *what[3], *join = "";
    int n = 0;
    if (q->weights == STORAGE_BFLOAT16)
        what[n++] = "weights";
    if (q->activations == STORAGE_BFLOAT16)
        what[n++] = "activations";
    if (q->moments == STORAGE_BFLOAT16)
        what[n++] = "the optimizer's moments";
    if (n == 0)
        return;
    buf_adds(b, " Asked for, and lossy: ");
    for (int i = 0; i < n; i++, join = i == n - 1 ? " and " : ", ")
        buf_addf(b, "%s%s", join, what[i]);
    buf_adds(b, " are kept as bfloat16.");
}

/* What a device makes of it is not the plan's to choose. */
static void say_compute(const struct planner *p, struct buf *b)
{
    enum compute_type c = p->job->precision.compute;
    if (c == COMPUTE_FLOAT32)
        return;
    buf_addf(b,
             " Asked for%s: GPUs round the operands of products to %s and add up in float32; CPUs "
             "go on in float32.",
             p->job->resources.device == DEVICE_CPU ? "" : ", and lossy", compute_name(c));
    if (c == COMPUTE_FLOAT16)
        buf_adds(b, " Gradients are scaled, and steps whose gradient overflows are skipped.");
}

static void say_reproducible(const struct plan *plan, struct buf *b)
{
    const struct parallel *p = &plan->parallel;
    if (p->reproducible)
        buf_addf(
            b,
            " Reproducible: a batch is always %lld grains, %d a data rank, whose gradients are "
            "added in one fixed tree.",
            (long long)p->grains, plan->microbatches);
}

void planner_why(const struct planner *p, struct plan *plan, int64_t plain)
{
    struct buf b = BUF_INIT;
    char memory[160];
    if (plain > 0)
        buf_addf(&b, "The whole model on every rank would need at least %s. ",
                 planner_memory_text(p, plain, memory));
    say_mesh(p, plan, &b);
    buf_addf(&b, "%s needs %s.",
             plan->pipeline > 1 ? "the heaviest rank"
             : plan->ranks == 1 ? "it"
                                : "a rank",
             planner_memory_text(p, plan->memory_bytes, memory));
    if (plan->tensor > 1)
        say_tensor(p, plan, &b);
    say_zero(p, plan, &b);
    say_grown(p, plan, &b);
    say_recompute(p, plan, &b);
    say_reproducible(plan, &b);
    say_sync(plan, &b);
    say_codec(plan, &b);
    say_precision(p, &b);
    say_compute(p, &b);
    free(plan->why);
    plan->why = mem_strdup(b.data);
    buf_done(&b);
}
