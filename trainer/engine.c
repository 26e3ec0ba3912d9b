/* engine.c: setting a rank up, and the step. */
#include "trainer/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/weights.h"

/* ---- setting up ---- */

static size_t output_bytes(const struct engine *g, int64_t max_rows)
{
    const struct model *m = &g->job->model;
    int64_t out = shape_elements(&m->layers[m->layer_count - 1].out);
    return g->mesh.ensemble ? (size_t)(max_rows * out) * sizeof(float) : 0;
}

/* What the ranks of pipeline coordinate `place` share, and what a rank there takes besides. */
static int measure_place(const struct engine *g, int place, size_t *ret_shared, size_t *ret_private,
                         struct err *e)
{
    struct net n;
    struct replicas parts;
    CLEANUP(mem_freep)
    struct net_chunk *chunks = mem_alloc((size_t)g->plan->chunks * sizeof *chunks);
    mesh_chunks(g->plan, place, chunks);
    int r = net_init(&n, g->job, &ops_cpu, chunks, g->plan->chunks, g->plan->tensor, 0, e);
    if (r < 0)
        return r;
    replicas_init(&parts, g->job, g->plan, &n, &g->mesh);
    replicas_measure(&parts, ret_shared, ret_private);
    replicas_done(&parts);
    net_done(&n);
    return 0;
}

/* Every rank sizes the gang's memory for the largest stage, so that all agree. */
static int shared_sizes(struct engine *g, int64_t max_rows, struct comm_options *ret, struct err *e)
{
    size_t most = 0;
    for (int s = 0; s < g->plan->pipeline; s++) {
        size_t shared, private;
        int r = measure_place(g, s, &shared, &private, e);
        if (r < 0)
            return r;
        most = shared > most ? shared : most;
        g->memory_bytes += s == g->mesh.stage ? private : 0;
    }
    *ret = (struct comm_options){
        .rank = g->mesh.rank,
        .size = g->mesh.ranks,
        .memory_bytes = most + output_bytes(g, max_rows) + 4096,
        .message_bytes = stage_message_bytes(&g->job->model, g->plan, max_rows),
        .stop = g->stop,
    };
    return 0;
}

static int connect_peers(struct engine *g, int fd, int64_t max_rows, struct err *e)
{
    struct comm_options o;
    struct comm *world;
    int r = shared_sizes(g, max_rows, &o, e);
    if (r == 0)
        r = comm_open(g->launch, fd, &o, &world, e);
    if (r < 0)
        return r;
    g->memory_bytes += comm_bytes(g->launch, &o);
    return mesh_connect(&g->mesh, world, e);
}

static int allocate_merging(struct engine *g, struct err *e)
{
    struct comm *w = g->mesh.world;
    void *outputs = NULL;
    size_t bytes = output_bytes(g, g->stage.max_rows);
    int r = bytes ? w->verbs->memory(w, bytes, &outputs, e) : 0;
    g->outputs = outputs;
    g->merged = g->stage.net.ops->alloc(sizeof *g->merged);
    if (r == 0 && !g->merged)
        r = err_set(e, ERR_UNAVAILABLE, "The device has no memory left.");
    return r;
}

static int check_plan(const struct launch *l, int rank, struct err *e)
{
    const struct plan *p = &l->plan;
    if (!l->spec || l->spec->command)
        return err_set(e, ERR_INVALID, "The launch document has no training job.");
    if (rank < 0 || rank >= p->ranks)
        return err_set(e, ERR_INVALID, "There is no rank %d among %d.", rank, p->ranks);
    if (p->data < 1 || p->pipeline < 1 || p->tensor < 1 || p->chunks < 1 || p->microbatches < 1 ||
        p->ranks > PLAN_MAX_RANKS || p->ranks != p->data * p->pipeline * p->tensor ||
        (p->chunks > 1 && p->pipeline == 1) ||
        p->stage_first[plan_stages(p)] != l->spec->model.layer_count)
        return err_set(e, ERR_INVALID,
                       "The plan does not fit together: %d ranks, a mesh of %d x %d x %d, %d "
                       "chunks, %d micro-batches.",
                       p->ranks, p->data, p->pipeline, p->tensor, p->chunks, p->microbatches);
    if (p->parallel.reproducible &&
        (p->parallel.grains < p->data || p->parallel.grains % p->data != 0))
        return err_set(e, ERR_INVALID,
                       "A batch of %lld grains cannot be divided among %d data ranks.",
                       (long long)p->parallel.grains, p->data);
    return 0;
}

static int open_data(struct engine *g, const struct engine_fds *fds, struct err *e)
{
    struct data_roots roots = {(const char *const *)g->launch->data_roots,
                               g->launch->data_root_count};
    struct data_store store = {fds->data, fds->spool};
    int r = data_map(&store, &roots, &g->prepared, e);
    if (r == ERR_CONFLICT)
        g->code = "data_changed";
    return r < 0 ? r : data_check(&g->prepared, g->job, e);
}

static int build_stage(struct engine *g, struct err *e)
{
    const struct dataset *set = &g->prepared.train;
    int r = replicas_open(&g->replicas, &g->mesh, e);
    if (r == 0)
        r = stage_init(&g->stage, g->job, g->plan, &g->mesh, set, e);
    if (r == 0)
        r = allocate_merging(g, e);
    if (r == 0)
        g->memory_bytes += stage_bytes(&g->stage, set);
    return r;
}

static int lay_out(struct engine *g, struct err *e)
{
    CLEANUP(mem_freep)
    struct net_chunk *chunks = mem_alloc((size_t)g->plan->chunks * sizeof *chunks);
    mesh_chunks(g->plan, g->mesh.stage, chunks);
    return net_init(&g->stage.net, g->job, &ops_cpu, chunks, g->plan->chunks, g->mesh.tensor,
                    g->mesh.tensor_rank, e);
}

int engine_open(struct engine *g, const struct launch *l, int rank, const struct engine_fds *fds,
                const volatile int *stop, struct err *e)
{
    *g = (struct engine){.launch = l, .job = l->spec, .plan = &l->plan, .stop = stop};
    int r = check_plan(l, rank, e);
    if (r < 0)
        return r;
    mesh_place(&g->mesh, g->plan, rank);
    if ((r = open_data(g, fds, e)) < 0)
        return r;
    if ((r = lay_out(g, e)) < 0)
        return r;
    replicas_init(&g->replicas, g->job, g->plan, &g->stage.net, &g->mesh);
    r = connect_peers(g, fds->gang, stage_max_rows(g->job, g->plan, &g->mesh, &g->prepared.train),
                      e);
    if (r == 0)
        r = build_stage(g, e);
    if (r < 0)
        return r;
    share_init(&g->share, &g->prepared.train, &g->job->fit, &g->mesh, share_grains(g->plan));
    g->steps = share_steps(&g->share);
    g->members = g->mesh.ensemble ? g->mesh.data : 1;
    g->tallies = mem_zalloc((size_t)g->mesh.ranks * sizeof *g->tallies);
    g->seen = mem_zalloc((size_t)g->members * sizeof *g->seen);
    return weights_start(g, e);
}

void engine_close(struct engine *g)
{
    share_done(&g->share);
    replicas_done(&g->replicas);
    if (g->stage.net.ops)
        g->stage.net.ops->release(g->merged);
    stage_done(&g->stage);
    mesh_done(&g->mesh);
    data_unmap(&g->prepared);
    free(g->tallies);
    free(g->seen);
    free(g->arrived);
    *g = (struct engine){0};
}

void engine_begin_epoch(struct engine *g, int64_t epoch)
{
    share_epoch(&g->share, epoch);
    for (int m = 0; m < g->members; m++)
        g->seen[m] = (struct figures){0};
}

/* ---- agreeing ---- */

/* All tensor ranks of the last stage have the same sums; the first of them tells. */
struct loss_sums engine_take_sums(struct engine *g, int count)
{
    struct loss_sums all = stage_take_sums(&g->stage, g->stage.sums, count);
    return mesh_has_outputs(&g->mesh) ? all : (struct loss_sums){0};
}

double engine_counted(const struct engine *g, const struct items *items)
{
    return mesh_has_outputs(&g->mesh) ? (double)(items->count * items->set->positions) : 0.0;
}

int engine_exchange(struct engine *g, const struct tally *mine, struct err *e)
{
    struct comm *w = g->mesh.world;
    return w->verbs->exchange(w, mine, sizeof *mine, g->tallies, e);
}

static void add_figures(struct figures *to, const struct loss_sums *sums, double items)
{
    to->sums.loss += sums->loss;
    to->sums.accuracy += sums->accuracy;
    to->sums.mae += sums->mae;
    to->items += items;
}

struct figures engine_sum(const struct engine *g, int member)
{
    struct figures f[PLAN_MAX_RANKS];
    int data = g->mesh.data, each = g->mesh.ranks / data;
    memset(f, 0, (size_t)data * sizeof *f);
    for (int r = 0; r < g->mesh.ranks; r++)
        add_figures(&f[r / each], &g->tallies[r].sums, g->tallies[r].items);
    if (member >= 0)
        return f[member];
    for (int stride = 1; stride < data; stride *= 2)
        for (int d = 0; d + stride < data; d += 2 * stride)
            add_figures(&f[d], &f[d + stride].sums, f[d + stride].items);
    return f[0];
}

/* Where bits depend on the norm, it may depend on no order. */
static int needs_exact_norm(const struct engine *g)
{
    return g->job->optimizer.global_clipnorm > 0 || g->plan->parallel.reproducible;
}

static double squares_of(const struct engine *g, int member)
{
    struct exact_sum exact = {.not_finite = 0};
    double sum = 0;
    for (int r = 0; r < g->mesh.ranks; r++)
        if (member < 0 || r == member) {
            sum += g->tallies[r].squares;
            exact_add(&exact, &g->tallies[r].exact);
        }
    return needs_exact_norm(g) ? exact_to_double(&exact) : sum;
}

static int check_finite(struct engine *g, struct err *e)
{
    for (int r = 0; r < g->mesh.ranks; r++) {
        const struct tally *t = &g->tallies[r];
        int bad_loss = !isfinite(t->sums.loss);
        if (!bad_loss && isfinite(t->squares) && !t->exact.not_finite)
            continue;
        g->code = bad_loss ? "loss_not_finite" : "gradient_not_finite";
        return err_set(e, ERR_INVALID,
                       "The %s of step %lld is not finite on rank %d. A lower learning_rate, "
                       "global_clipnorm, or data scaled to about 1 may help.",
                       bad_loss ? "loss" : "gradient", (long long)g->step + 1, r);
    }
    return 0;
}

/* ---- the step ---- */

static int train_share(struct engine *g, const struct items *items, struct err *e)
{
    struct layers_hook hook = replicas_hook(&g->replicas);
    replicas_begin(&g->replicas);
    int r = stage_train(&g->stage, items, g->step + 1, &hook, e);
    return r < 0 ? r : replicas_finish(&g->replicas, e);
}

static void take_tally(struct engine *g, const struct items *items, struct tally *ret)
{
    *ret = (struct tally){.sums = engine_take_sums(g, g->stage.microbatches),
                          .items = engine_counted(g, items),
                          .stop = g->stop && *g->stop,
                          .checkpoint = g->checkpoint};
    replicas_squares(&g->replicas, needs_exact_norm(g), &ret->exact, &ret->squares);
}

/* The norm of the mean gradient: of all stages, or of this member. */
static double norm_of(const struct engine *g, int member)
{
    double items = engine_sum(g, member).items;
    return items > 0 ? sqrt(squares_of(g, member)) / items : 0;
}

/* An ensemble's: the mean over its members, weighted by their items, as the loss is. */
static double reported_norm(const struct engine *g)
{
    double sum = 0, items = 0;
    if (!g->mesh.ensemble)
        return norm_of(g, -1);
    for (int m = 0; m < g->members; m++) {
        sum += norm_of(g, m) * g->tallies[m].items;
        items += g->tallies[m].items;
    }
    return items > 0 ? sum / items : 0;
}

static int update(struct engine *g, double rate, struct err *e)
{
    const struct optimizer *o = &g->job->optimizer;
    int member = g->mesh.ensemble ? g->mesh.rank : -1;
    double items = engine_sum(g, member).items;
    if (items == 0) /* a member whose shard has none in this batch */
        return 0;
    double clip = optimizer_clip(o, norm_of(g, member));
    return replicas_update(&g->replicas, rate, ++g->updates, clip / items, e);
}

static void remember_seen(struct engine *g)
{
    for (int m = 0; m < g->members; m++) {
        struct figures f = engine_sum(g, g->mesh.ensemble ? m : -1);
        add_figures(&g->seen[m], &f.sums, f.items);
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
    comm_set_step(g->mesh.world, g->step + 1);
    share_items(&g->share, step_in_epoch, &items);
    expect_step(g, step_in_epoch + 1);
    int r = train_share(g, &items, e);
    if (r < 0)
        return r;
    take_tally(g, &items, &mine);
    if ((r = engine_exchange(g, &mine, e)) < 0 || (r = check_finite(g, e)) < 0)
        return r;
    double rate = optimizer_rate(&g->job->optimizer, g->step);
    if ((r = update(g, rate, e)) < 0)
        return r;
    remember_seen(g);
    struct figures all = engine_sum(g, -1);
    g->step++;
    *ret = (struct step_result){
        .loss = all.sums.loss / all.items,
        .grad_norm = reported_norm(g),
        .learning_rate = rate,
        .items = (int64_t)all.items / g->prepared.train.positions,
        .stop = any_stop(g),
    };
    return 0;
}
