/* engine.c: setting a rank up, and what ranks agree on. */
#include "trainer/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "spec/codec.h"
#include "trainer/piece_copy.h"
#include "trainer/resident.h"
#include "trainer/weights.h"

/* ---- setting up ---- */

static size_t output_bytes(const struct engine *g, int64_t max_rows)
{
    const struct model *m = &g->job->model;
    int64_t out = shape_elements(&m->layers[m->layer_count - 1].out);
    return g->mesh.ensemble ? (size_t)(max_rows * out) * sizeof(float) : 0;
}

/* What the ranks of pipeline coordinate `place` share, and what a rank there takes besides. */
static int measure_place(const struct engine *g, const struct plan *p, int place,
                         size_t *ret_shared, size_t *ret_private, struct replicas_bytes *ret_by,
                         struct err *e)
{
    struct net n;
    struct replicas parts;
    CLEANUP(mem_freep) struct net_chunk *chunks = mem_alloc((size_t)p->chunks * sizeof *chunks);
    mesh_chunks(p, place, chunks);
    int r = net_init(&n, g->job, backend.ops, chunks, p->chunks, p->tensor, 0, e);
    if (r < 0)
        return r;
    replicas_init(&parts, g->job, p, &n, &g->mesh);
    replicas_measure(&parts, ret_shared, ret_private);
    *ret_by = parts.by;
    replicas_done(&parts);
    net_done(&n);
    return 0;
}

int engine_values_bytes(const struct engine *g, struct replicas_bytes *ret, struct err *e)
{
    size_t shared, private;
    return measure_place(g, g->plan, g->mesh.stage, &shared, &private, ret, e);
}

int engine_shared_bytes(const struct engine *g, const struct plan *p, size_t *ret, struct err *e)
{
    size_t most = 0;
    for (int s = 0; s < p->pipeline; s++) {
        size_t shared, private;
        struct replicas_bytes by;
        int r = measure_place(g, p, s, &shared, &private, &by, e);
        if (r < 0)
            return r;
        most = shared > most ? shared : most;
    }
    *ret = most;
    return 0;
}

/* Every rank sizes the gang's memory for the largest stage, so that all agree. */
static int shared_sizes(struct engine *g, int64_t max_rows, struct comm_options *ret, struct err *e)
{
    size_t most = 0, own = 0, private = 0;
    struct replicas_bytes by;
    int r = engine_shared_bytes(g, g->plan, &most, e);
    if (r == 0)
        r = measure_place(g, g->plan, g->mesh.stage, &own, &private, &by, e);
    if (r < 0)
        return r;
    if (g->plan->parallel.rebalance)
        most = (size_t)((double)most * PLAN_REBALANCE_ROOM);
    g->rebalance.room = most;
    engine_count(g, private, 0);
    *ret = (struct comm_options){
        .rank = g->mesh.rank,
        .size = g->mesh.ranks,
        .memory_bytes = most + output_bytes(g, max_rows) + 4096,
        .message_bytes = stage_message_bytes(&g->job->model, g->plan, max_rows),
        .is_reproducible = g->plan->parallel.reproducible,
        .stop = g->stop,
    };
    return 0;
}

/* Where the device has memory of its own nothing of it goes through the hosts' transport. */
static struct comm_options hosts_options(const struct comm_options *o)
{
    struct comm_options hosts = *o;
    if (!backend.ops->is_host)
        hosts.memory_bytes = hosts.message_bytes = 0;
    return hosts;
}

static int open_world(struct engine *g, int fd, const struct comm_options *o, struct comm **ret,
                      struct err *e)
{
    struct comm_options for_hosts = hosts_options(o);
    struct comm *hosts;
    int r = comm_open(g->launch, fd, &for_hosts, &hosts, e);
    if (r < 0)
        return r;
    g->transport_bytes = backend.comm_bytes(o);
    engine_count(g, g->transport_bytes, comm_bytes(g->launch, &for_hosts));
    if ((r = backend.comm(hosts, o, ret, e)) == 0)
        return 0;
    hosts->verbs->give_up(hosts, e->text);
    comm_close(hosts);
    return r;
}

static int connect_peers(struct engine *g, int fd, int64_t max_rows, struct err *e)
{
    struct comm_options o;
    struct comm *world;
    int r = shared_sizes(g, max_rows, &o, e);
    if (r == 0)
        r = open_world(g, fd, &o, &world, e);
    return r < 0 ? r : mesh_connect(&g->mesh, world, e);
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
        r = ops_no_memory(backend.ops, sizeof *g->merged, "sums", e);
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
    if (p->parallel.codec != CODEC_NONE && (p->zero > 0 || p->parallel.reproducible))
        return err_set(e, ERR_INVALID,
                       "The codec \"%s\" goes neither with zero nor with reproducible.",
                       codec_name(p->parallel.codec));
    if (codec_keeps_residual(p->parallel.codec) && p->tensor > 1)
        return err_set(e, ERR_INVALID, "The codec \"%s\" does not go with tensor ranks.",
                       codec_name(p->parallel.codec));
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

static int lay_out(struct engine *g, struct err *e)
{
    CLEANUP(mem_freep)
    struct net_chunk *chunks = mem_alloc((size_t)g->plan->chunks * sizeof *chunks);
    mesh_chunks(g->plan, g->mesh.stage, chunks);
    int r = net_init(&g->stage.net, g->job, backend.ops, chunks, g->plan->chunks, g->mesh.tensor,
                     g->mesh.tensor_rank, e);
    if (r == 0)
        replicas_init(&g->replicas, g->job, g->plan, &g->stage.net, &g->mesh);
    return r;
}

int engine_set_up(struct engine *g, struct err *e)
{
    int r = g->stage.net.model ? 0 : lay_out(g, e);
    if (r == 0)
        r = replicas_open(&g->replicas, &g->mesh, e);
    return r < 0 ? r : stage_init(&g->stage, g->job, g->plan, &g->mesh, &g->prepared.train, e);
}

void engine_take_down(struct engine *g)
{
    replicas_done(&g->replicas);
    stage_done(&g->stage);
}

/* A copy of what this rank saves is made when layers move. */
static int add_copies(struct engine *g, struct err *e)
{
    size_t bytes = 0;
    int r = g->plan->parallel.rebalance ? piece_copy_expect(g, 0, &bytes, e) : 0;
    engine_count(g, 0, bytes);
    return r;
}

static int build(struct engine *g, struct err *e)
{
    int64_t began = clock_boottime_us();
    int r = engine_set_up(g, e);
    if (r == 0)
        r = allocate_merging(g, e);
    if (r == 0)
        r = add_copies(g, e);
    if (r < 0)
        return r;
    engine_count(g, backend.ops->workspace(&g->options), 0);
    const struct dataset *set = &g->prepared.train;
    engine_count(g, stage_bytes(&g->stage, set), 0);
    share_init(&g->share, &g->prepared.train, &g->job->fit, &g->mesh, share_grains(g->plan));
    g->steps = share_steps(&g->share);
    loss_scale_init(&g->scale, g->job->precision.compute);
    g->pending_scale = g->scale.factor;
    g->members = g->mesh.ensemble ? g->mesh.data : 1;
    g->tallies = mem_zalloc((size_t)g->mesh.ranks * sizeof *g->tallies);
    g->seen = mem_zalloc((size_t)g->members * sizeof *g->seen);
    rebalance_init(g);
    r = weights_start(g, e);
    g->rebalance.set_up_us = clock_boottime_us() - began;
    return r;
}

/* Layers that move change the cut of this run, not the launch document's. */
static void take_plan(struct engine *g)
{
    size_t bytes = ((size_t)plan_stages(g->plan) + 1) * sizeof *g->plan->stage_first;
    if (!g->plan->parallel.rebalance)
        return;
    g->current = *g->plan;
    g->current.stage_first = mem_alloc(bytes);
    memcpy(g->current.stage_first, g->plan->stage_first, bytes);
    g->plan = &g->current;
}

int engine_open(struct engine *g, const struct launch *l, int rank, const struct engine_fds *fds,
                const volatile int *stop, struct err *e)
{
    *g = (struct engine){.launch = l, .job = l->spec, .plan = &l->plan, .stop = stop};
    int r = check_plan(l, rank, e);
    if (r < 0)
        return r;
    take_plan(g);
    g->resident_before = resident_bytes();
    mesh_place(&g->mesh, g->plan, rank);
    if ((r = rebalance_check(g, e)) < 0 || (r = open_data(g, fds, e)) < 0 ||
        (r = lay_out(g, e)) < 0)
        return r;
    int64_t max_rows = stage_max_rows(g->job, g->plan, &g->mesh, &g->prepared.train);
    if ((r = engine_open_device(g, max_rows, e)) == 0)
        r = connect_peers(g, fds->gang, max_rows, e);
    if (r == 0)
        r = build(g, e);
    if (r == ERR_NO_MEMORY && !engine_device_failed(g, e))
        engine_explain_no_memory(g, e);
    return r;
}

void engine_close(struct engine *g)
{
    share_done(&g->share);
    rebalance_done(g);
    if (g->stage.net.ops)
        g->stage.net.ops->release(g->merged);
    engine_take_down(g);
    mesh_done(&g->mesh);
    engine_close_device(g);
    data_unmap(&g->prepared);
    free(g->tallies);
    free(g->seen);
    free(g->arrived);
    free(g->current.stage_first);
    *g = (struct engine){0};
}

void engine_begin_epoch(struct engine *g, int64_t epoch)
{
    share_epoch(&g->share, epoch);
    for (int m = 0; m < g->members; m++)
        g->seen[m] = (struct figures){0};
}

int64_t engine_measured_bytes(const struct engine *g)
{
    int64_t used = backend.ops->used();
    if (used >= 0)
        return used;
    int64_t now = resident_bytes(), data = (int64_t)(g->prepared.map_size / (size_t)g->mesh.ranks);
    return now < 0 || g->resident_before < 0 ? -1 : now - g->resident_before - data;
}

/* ---- agreeing ---- */

void engine_fetch_sums(struct engine *g, int count)
{
    stage_fetch_sums(&g->stage, g->stage.sums, count);
}

/* All tensor ranks of the last stage have the same sums; the first of them tells. */
struct loss_sums engine_take_sums(struct engine *g, int count)
{
    struct loss_sums all = stage_take_sums(&g->stage, count);
    return mesh_has_outputs(&g->mesh) ? all : (struct loss_sums){0};
}

double engine_counted(const struct engine *g, const struct items *items)
{
    return mesh_has_outputs(&g->mesh) ? (double)(items->count * items->set->positions) : 0.0;
}

int engine_exchange(struct engine *g, const struct tally *mine, struct err *e)
{
    struct comm *w = g->mesh.world;
    int r = backend.ops->finish(e);
    batch_waited(&g->stage.batch);
    return r < 0 ? r : w->verbs->exchange(w, mine, sizeof *mine, g->tallies, e);
}

void figures_add(struct figures *to, const struct figures *x)
{
    to->sums.loss += x->sums.loss;
    to->sums.accuracy += x->sums.accuracy;
    to->sums.mae += x->sums.mae;
    to->items += x->items;
}

/* Only ranks that give out outputs have anything. */
struct figures engine_sum(const struct engine *g, int member)
{
    struct figures f[PLAN_MAX_RANKS];
    int data = g->mesh.data, each = g->mesh.ranks / data;
    memset(f, 0, (size_t)data * sizeof *f);
    for (int r = 0; r < g->mesh.ranks; r++)
        figures_add(&f[r / each], &(struct figures){g->tallies[r].sums, g->tallies[r].items});
    if (member >= 0)
        return f[member];
    for (int stride = 1; stride < data; stride *= 2)
        for (int d = 0; d + stride < data; d += 2 * stride)
            figures_add(&f[d], &f[d + stride]);
    return f[0];
}
