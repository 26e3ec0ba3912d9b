/* comm.c: what all transports share. */
#include "trainer/comm_parts.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "spec/launch.h"

#define PART_ALIGN 16

size_t comm_type_size(enum comm_type type)
{
    static const size_t SIZES[] = {
        [COMM_F32] = sizeof(float), [COMM_F64] = sizeof(double), [COMM_U8] = 1, [COMM_U16] = 2};
    return SIZES[type];
}

void comm_part(size_t count, int size, int index, size_t *ret_begin, size_t *ret_end)
{
    size_t blocks = (count + PART_ALIGN - 1) / PART_ALIGN;
    size_t each = blocks / (size_t)size, more = blocks % (size_t)size, i = (size_t)index;
    size_t begin = (i * each + (i < more ? i : more)) * PART_ALIGN;
    size_t end = begin + (each + (i < more)) * PART_ALIGN;
    *ret_begin = begin < count ? begin : count;
    *ret_end = end < count ? end : count;
}

void comm_progress(struct comm *c)
{
    __atomic_fetch_add(c->progress, 1, __ATOMIC_RELAXED);
}

void comm_set_step(struct comm *c, int64_t step)
{
    __atomic_store_n(c->step, step, __ATOMIC_RELAXED);
}

struct comm_meter comm_meter(const struct comm *c)
{
    return (struct comm_meter){.us = __atomic_load_n(&c->spent_ns, __ATOMIC_RELAXED) / 1000,
                               .bytes = __atomic_load_n(&c->moved, __ATOMIC_RELAXED)};
}

void comm_close(struct comm *c)
{
    if (c)
        c->verbs->close(c);
}

/* ---- the world ---- */

int comm_open(const struct launch *l, int gang_fd, const struct comm_options *o, struct comm **ret,
              struct err *e)
{
    if (l->transport == TRANSPORT_SHM)
        return comm_shm_open(gang_fd, o, ret, e);
    struct comm_tcp_place p = {.host = l->master_addr,
                               .port = l->master_port,
                               .secret = l->secret,
                               .attempt = l->attempt,
                               .epoch = l->epoch,
                               .node = l->node};
    return comm_tcp_open(&p, o, ret, e);
}

size_t comm_bytes(const struct launch *l, const struct comm_options *o)
{
    return l->transport == TRANSPORT_SHM ? comm_shm_foretold(o) : comm_tcp_foretold(o);
}

size_t comm_used(struct comm *world)
{
    return world->transport->used(world);
}

/* ---- the front ---- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

const char *comm_verb_name(uint32_t verb)
{
    static const char *const NAMES[] = {"?",         "all_reduce", "reduce_scatter", "all_gather",
                                        "broadcast", "exchange",   "barrier",        "send"};
    return verb < sizeof NAMES / sizeof NAMES[0] ? NAMES[verb] : NAMES[0];
}

#define CALL_SIZE 96

/* "all_reduce of 400 float32" */
static const char *call_text(const struct comm_call *c, char out[CALL_SIZE])
{
    static const char *const TYPES[] = {
        [COMM_F32] = "float32", [COMM_F64] = "float64", [COMM_U8] = "bytes"};
    unsigned long long n = c->count;
    const char *name = comm_verb_name(c->verb);
    int has_type = c->verb >= VERB_ALL_REDUCE && c->verb <= VERB_ALL_GATHER;
    if (has_type && c->detail <= COMM_U8)
        snprintf(out, CALL_SIZE, "%s of %llu %s", name, n, TYPES[c->detail]);
    else if (c->verb == VERB_BROADCAST)
        snprintf(out, CALL_SIZE, "%s of %llu bytes from member %u", name, n, c->detail);
    else if (c->verb == VERB_BARRIER)
        snprintf(out, CALL_SIZE, "%s", name);
    else
        snprintf(out, CALL_SIZE, "%s of %llu bytes", name, n);
    return out;
}

int comm_say_apart(const struct comm *c, const char *who, const struct comm_call *theirs,
                   struct err *e)
{
    static const char *const FAMILIES[] = {"world",  "data",     "batch",
                                           "tensor", "pipeline", "pipeline_back"};
    _Static_assert(sizeof FAMILIES / sizeof FAMILIES[0] == COMM_FAMILY__MAX,
                   "a family without a name");
    char here[CALL_SIZE], there[CALL_SIZE];
    return err_set(e, ERR_INTERNAL,
                   "Ranks have come apart: as call %llu of their %s group %s makes %s, where this "
                   "rank's call %llu is %s.",
                   (unsigned long long)theirs->number, FAMILIES[c->family], who,
                   call_text(theirs, there), (unsigned long long)c->call.number,
                   call_text(&c->call, here));
}

static int64_t begin(struct comm *c, enum comm_verb verb, uint32_t detail, size_t count)
{
    c->call = (struct comm_call){verb, detail, c->call.number + 1, count};
    comm_progress(c);
    return now_ns();
}

/* A message is no call of the group: only two members know of it. */
static int64_t begin_message(struct comm *c)
{
    comm_progress(c);
    return now_ns();
}

/* Only the thread that uses the group writes; others may read. */
static int end(struct comm *c, int64_t began, size_t bytes, int r)
{
    __atomic_store_n(&c->spent_ns, c->spent_ns + now_ns() - began, __ATOMIC_RELAXED);
    __atomic_store_n(&c->moved, c->moved + (int64_t)bytes, __ATOMIC_RELAXED);
    return r;
}

static void refuse_bytes(const char *what, enum comm_type type)
{
    if (type == COMM_U8 || type == COMM_U16)
        BUG("%s of bytes", what);
}

static int front_all_reduce(struct comm *c, void *buf, size_t count, enum comm_type type,
                            struct err *e)
{
    refuse_bytes("all_reduce", type);
    if (c->size == 1 || count == 0)
        return 0;
    int64_t began = begin(c, VERB_ALL_REDUCE, type, count);
    int r = c->transport->all_reduce(c, buf, count, type, e);
    return end(c, began, count * comm_type_size(type), r);
}

static int front_reduce_scatter(struct comm *c, void *buf, size_t count, enum comm_type type,
                                struct err *e)
{
    refuse_bytes("reduce_scatter", type);
    if (c->size == 1 || count == 0)
        return 0;
    int64_t began = begin(c, VERB_REDUCE_SCATTER, type, count);
    int r = c->transport->reduce_scatter(c, buf, count, type, e);
    return end(c, began, count * comm_type_size(type), r);
}

static int front_all_gather(struct comm *c, void *buf, size_t count, enum comm_type type,
                            struct err *e)
{
    if (c->size == 1 || count == 0)
        return 0;
    int64_t began = begin(c, VERB_ALL_GATHER, type, count);
    int r = c->transport->all_gather(c, buf, count, type, e);
    return end(c, began, count * comm_type_size(type), r);
}

static int front_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    if (root < 0 || root >= c->size)
        BUG("a broadcast from member %d of %d", root, c->size);
    if (c->size == 1 || bytes == 0)
        return 0;
    int64_t began = begin(c, VERB_BROADCAST, (uint32_t)root, bytes);
    return end(c, began, bytes, c->transport->broadcast(c, buf, bytes, root, e));
}

static int front_exchange(struct comm *c, const void *mine, size_t bytes, void *all, struct err *e)
{
    if (bytes > COMM_EXCHANGE_MAX)
        BUG("an exchange of %zu bytes", bytes);
    int64_t began = begin(c, VERB_EXCHANGE, 0, bytes);
    if (c->size > 1)
        return end(c, began, bytes, c->transport->exchange(c, mine, bytes, all, e));
    memcpy(all, mine, bytes);
    return 0;
}

static void check_message(const struct comm *c, int with)
{
    int is_line = c->family == COMM_PIPELINE || c->family == COMM_PIPELINE_BACK;
    int ahead = (c->rank + 1) % c->size, behind = (c->rank + c->size - 1) % c->size;
    if (!is_line || with == c->rank || (with != ahead && with != behind))
        BUG("a message between members %d and %d of %d, family %d", c->rank, with, c->size,
            (int)c->family);
}

static int front_send(struct comm *c, int to, const void *buf, size_t bytes, struct err *e)
{
    check_message(c, to);
    int64_t began = begin_message(c);
    return end(c, began, bytes, c->transport->send(c, to, buf, bytes, e));
}

static int front_recv(struct comm *c, int from, void *buf, size_t bytes, struct err *e)
{
    check_message(c, from);
    int64_t began = begin_message(c);
    return end(c, began, bytes, c->transport->recv(c, from, buf, bytes, e));
}

static int front_barrier(struct comm *c, struct err *e)
{
    int64_t began = begin(c, VERB_BARRIER, 0, 0);
    return c->size > 1 ? end(c, began, 0, c->transport->barrier(c, e)) : 0;
}

static int front_settle(struct comm *c, uint64_t call, struct err *e)
{
    return c->size > 1 ? c->transport->settle(c, call, e) : 0;
}

static int front_check(struct comm *world, const char *what, uint64_t *ret_moved, struct err *e)
{
    return world->transport->check(world, what, ret_moved, e);
}

static int front_group(struct comm *world, enum comm_family family, int index, const int *members,
                       int size, struct comm **ret, struct err *e)
{
    if (family <= COMM_WORLD || family >= COMM_FAMILY__MAX || index < 0 || index >= world->size)
        BUG("group %d of family %d", index, (int)family);
    return world->transport->group(world, family, index, members, size, ret, e);
}

static int front_memory(struct comm *world, size_t bytes, void **ret, struct err *e)
{
    return world->transport->memory(world, bytes, ret, e);
}

static void front_forget(struct comm *world)
{
    world->transport->forget(world);
}

static void front_give_up(struct comm *world, const char *why)
{
    world->transport->give_up(world, why);
}

static void front_close(struct comm *c)
{
    c->transport->close(c);
}

static const struct comm_verbs front_verbs = {
    .name = "front",
    .all_reduce = front_all_reduce,
    .reduce_scatter = front_reduce_scatter,
    .all_gather = front_all_gather,
    .broadcast = front_broadcast,
    .exchange = front_exchange,
    .send = front_send,
    .recv = front_recv,
    .barrier = front_barrier,
    .settle = front_settle,
    .check = front_check,
    .group = front_group,
    .memory = front_memory,
    .forget = front_forget,
    .give_up = front_give_up,
    .close = front_close,
};

int comm_settled(struct comm *c, uint64_t call, struct err *e)
{
    (void)c;
    (void)call;
    (void)e;
    return 0;
}

void comm_front(struct comm *c, const struct comm_verbs *transport, enum comm_family family)
{
    c->verbs = &front_verbs;
    c->transport = transport;
    c->family = family;
}
