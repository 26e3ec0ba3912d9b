/* comm_nccl.cu: the verbs, and the world. */
#include "trainer/cuda/comm_nccl_parts.h"

/* ---- device memory ---- */

typedef int collective(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                       enum comm_type type, struct err *e);

/* COMM_DATA's stream comes after what was recorded until now; the others have their turn on the
 * compute stream. */
static struct nccl_lane *begin(const struct nccl_comm *c)
{
    struct nccl_world *w = c->w;
    struct nccl_lane *l = c->base.family == COMM_DATA ? &w->beside : &w->compute;
    cudaStream_t s = device_stream();
    if (l == &w->beside) {
        device_ok(cudaEventRecord(w->asked, s), "record an event");
        device_ok(cudaStreamWaitEvent(l->stream, w->asked, 0), "wait for an event");
    }
    nccl_lane_begin(l);
    return l;
}

static int ask(struct comm *base, const char *verb, collective *f, void *buf, size_t count,
               enum comm_type type, struct err *e)
{
    struct nccl_comm *c = nccl_self(base);
    if (!c->nccl)
        BUG("%s in a line of family %d", verb, static_cast<int>(base->family));
    c->w->doing = verb;
    int r = nccl_going(c->w, e);
    if (r < 0)
        return r;
    struct nccl_lane *l = begin(c);
    if ((r = f(c, l->stream, static_cast<char *>(buf), count, type, e)) == 0)
        nccl_lane_end(l, base->call.number);
    return r;
}

static int all_reduce(struct comm *c, void *buf, size_t count, enum comm_type type, struct err *e)
{
    return ask(c, "all_reduce", nccl_sum_all, buf, count, type, e);
}

static int reduce_scatter(struct comm *c, void *buf, size_t count, enum comm_type type,
                          struct err *e)
{
    return ask(c, "reduce_scatter", nccl_sum_parts, buf, count, type, e);
}

static int all_gather(struct comm *c, void *buf, size_t count, enum comm_type type, struct err *e)
{
    return ask(c, "all_gather", nccl_gather_parts, buf, count, type, e);
}

static int settle(struct comm *base, uint64_t call, struct err *e)
{
    struct nccl_comm *c = nccl_self(base);
    int r = nccl_going(c->w, e);
    if (r == 0 && base->family == COMM_DATA)
        nccl_lane_settle(&c->w->beside, call, device_stream());
    return r;
}

/* ---- host memory ---- */

/* A gang that is over for the hosts is over for their GPUs. */
static int passed(struct comm *base, int r, struct err *e)
{
    return r < 0 ? nccl_end(nccl_self(base)->w, e) : r;
}

static int broadcast(struct comm *base, void *buf, size_t bytes, int root, struct err *e)
{
    struct comm *h = nccl_self(base)->hosts;
    return passed(base, h->verbs->broadcast(h, buf, bytes, root, e), e);
}

static int exchange(struct comm *base, const void *mine, size_t bytes, void *all, struct err *e)
{
    struct comm *h = nccl_self(base)->hosts;
    return passed(base, h->verbs->exchange(h, mine, bytes, all, e), e);
}

static int barrier(struct comm *base, struct err *e)
{
    struct comm *h = nccl_self(base)->hosts;
    return passed(base, h->verbs->barrier(h, e), e);
}

static int check(struct comm *base, const char *what, uint64_t *ret_moved, struct err *e)
{
    struct comm *h = nccl_self(base)->w->hosts;
    return passed(base, h->verbs->check(h, what, ret_moved, e), e);
}

static void give_up(struct comm *world, const char *why)
{
    struct nccl_world *w = nccl_self(world)->w;
    struct err e;
    w->hosts->verbs->give_up(w->hosts, why);
    err_set(&e, ERR_PEER, "Rank %d gave up: %s", w->hosts->rank, why);
    nccl_end(w, &e);
}

/* ---- memory ---- */

static int memory(struct comm *world, size_t bytes, void **ret, struct err *e)
{
    struct nccl_world *w = nccl_self(world)->w;
    size_t need = (bytes + 63) / 64 * 64;
    if (need > w->memory_bytes - w->memory_used)
        return err_set(e, ERR_INTERNAL, "memory of %zu bytes is asked for, %zu are left", need,
                       w->memory_bytes - w->memory_used);
    void *p = device_alloc(need > 0 ? need : 64);
    if (!p)
        return err_set(e, ERR_NO_MEMORY,
                       "The GPU %s (%s) has no %zu bytes left for what ranks share.",
                       device_traits()->name, device_traits()->uuid, need);
    w->memory = static_cast<void **>(
        mem_realloc(w->memory, (static_cast<size_t>(w->memory_count) + 1) * sizeof *w->memory));
    *ret = w->memory[w->memory_count++] = p;
    w->memory_used += need;
    return 0;
}

static void forget(struct comm *world)
{
    struct nccl_world *w = nccl_self(world)->w;
    for (int i = 0; i < w->memory_count; i++)
        device_release(w->memory[i]);
    w->memory_count = 0;
    w->memory_used = 0;
}

static size_t used(struct comm *world)
{
    struct nccl_world *w = nccl_self(world)->w;
    return comm_used(w->hosts) + w->memory_used + w->own_used;
}

/* ---- groups ---- */

static struct nccl_comm *new_comm(struct nccl_world *w, struct comm *hosts,
                                  enum comm_family family);

static int open_group(struct nccl_comm *c, int index, struct err *e)
{
    enum comm_family f = c->base.family;
    if (c->base.size == 1)
        return 0;
    if (f == COMM_PIPELINE || f == COMM_PIPELINE_BACK)
        return nccl_line_open(c, index, e);
    return nccl_split(c->w, index, c->base.rank, &c->nccl, e);
}

static void close_comm(struct nccl_comm *c)
{
    nccl_line_close(c);
    free(c);
}

static int group(struct comm *world, enum comm_family family, int index, const int *members,
                 int size, struct comm **ret, struct err *e)
{
    struct nccl_world *w = nccl_self(world)->w;
    struct comm *hosts;
    int r = nccl_going(w, e);
    if (r == 0)
        r = passed(world, w->hosts->verbs->group(w->hosts, family, index, members, size, &hosts, e),
                   e);
    if (r < 0)
        return r;
    struct nccl_comm *c = new_comm(w, hosts, family);
    if ((r = open_group(c, index, e)) < 0) {
        close_comm(c);
        comm_close(hosts);
    } else {
        *ret = &c->base;
    }
    return r;
}

static void close_world(struct nccl_comm *c)
{
    struct nccl_world *w = c->w;
    device_watch(NULL, NULL);
    forget(&c->base);
    if (!device_failed()) {
        device_release(w->scratch);
        nccl_lane_close(&w->compute);
        nccl_lane_close(&w->beside);
        if (w->asked)
            cudaEventDestroy(w->asked);
        if (w->beside.stream)
            cudaStreamDestroy(w->beside.stream);
    }
    free(w->memory);
    if (!device_failed()) /* else an abort that hangs may still write to `arriving` */
        free(w);
}

static void close_any(struct comm *base)
{
    struct nccl_comm *c = nccl_self(base);
    struct comm *hosts = c->hosts;
    nccl_leave(c->w);
    if (base->family == COMM_WORLD)
        close_world(c);
    close_comm(c);
    comm_close(hosts);
}

static const struct comm_verbs nccl_verbs = {
    .name = "nccl",
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .exchange = exchange,
    .send = nccl_send,
    .recv = nccl_recv,
    .barrier = barrier,
    .settle = settle,
    .check = check,
    .group = group,
    .memory = memory,
    .forget = forget,
    .used = used,
    .give_up = give_up,
    .close = close_any,
};

static struct nccl_comm *new_comm(struct nccl_world *w, struct comm *hosts, enum comm_family family)
{
    struct nccl_comm *c = static_cast<struct nccl_comm *>(mem_zalloc(sizeof *c));
    comm_front(&c->base, &nccl_verbs, family);
    c->w = w;
    c->hosts = hosts;
    c->base.rank = hosts->rank;
    c->base.size = hosts->size;
    c->base.step = hosts->step;
    c->base.progress = hosts->progress;
    return c;
}

/* ---- the world ---- */

size_t comm_nccl_foretold(const struct comm_options *o)
{
    size_t scratch = o->is_reproducible ? NCCL_SCRATCH : 0;
    size_t own = COMM_NCCL_OWN + scratch + nccl_line_bytes(o->message_bytes);
    return o->memory_bytes + (o->size > 1 ? own : 0);
}

/* The compute lane's stream is the device's, which it is asked for at each call. */
static int open_streams(struct nccl_world *w)
{
    if (!device_ok(cudaStreamCreateWithFlags(&w->beside.stream, cudaStreamNonBlocking),
                   "make a stream") ||
        !device_ok(cudaEventCreateWithFlags(&w->asked, cudaEventDisableTiming), "make an event"))
        return -1;
    return nccl_lane_open(w, &w->compute, device_stream()) ||
                   nccl_lane_open(w, &w->beside, w->beside.stream)
               ? -1
               : 0;
}

static int open_world(struct nccl_world *w, struct err *e)
{
    if (w->size == 1)
        return 0;
    int r = nccl_meet(w, e);
    if (r == 0 && open_streams(w) < 0)
        r = device_finish(e);
    if (r == 0 && w->is_reproducible && !(w->scratch = device_alloc(NCCL_SCRATCH)))
        r = err_set(e, ERR_NO_MEMORY, "The GPU %s (%s) has no %zu bytes left for sums.",
                    device_traits()->name, device_traits()->uuid, NCCL_SCRATCH);
    w->own_used += w->scratch ? NCCL_SCRATCH : 0;
    return r;
}

int comm_nccl_open(struct comm *hosts, const struct comm_options *o, struct comm **ret,
                   struct err *e)
{
    struct nccl_world *w = static_cast<struct nccl_world *>(mem_zalloc(sizeof *w));
    w->hosts = hosts;
    w->size = o->size;
    w->is_reproducible = o->is_reproducible;
    w->deadline_us = 1000LL * (o->deadline_ms > 0 ? o->deadline_ms : COMM_DEADLINE_MS);
    w->memory_bytes = (o->memory_bytes + 63) / 64 * 64;
    w->message_bytes = o->message_bytes;
    w->doing = "meeting";
    struct nccl_comm *c = new_comm(w, hosts, COMM_WORLD);
    int r = open_world(w, e);
    if (r < 0) {
        nccl_end(w, e);
        close_world(c);
        close_comm(c);
        return r;
    }
    c->nccl = w->comms[0];
    device_watch(nccl_watch, w);
    *ret = &c->base;
    return 0;
}
