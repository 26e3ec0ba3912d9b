/* comm.c: what all transports share. */
#include "trainer/comm_parts.h"

#include <string.h>
#include <time.h>

#include "spec/launch.h"

#define PART_ALIGN 16

size_t comm_type_size(enum comm_type type)
{
    static const size_t SIZES[] = {
        [COMM_F32] = sizeof(float), [COMM_F64] = sizeof(double), [COMM_U8] = 1};
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
    switch (l->transport) {
    case TRANSPORT_SHM: return comm_shm_open(gang_fd, o, ret, e);
    case TRANSPORT_TCP: break;
    }
    return err_set(e, ERR_INVALID, "This trainer has no transport %s.",
                   transport_name(l->transport));
}

size_t comm_bytes(const struct launch *l, const struct comm_options *o)
{
    (void)l;
    return comm_shm_bytes(o) / (size_t)o->size;
}

/* ---- the front ---- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t begin(struct comm *c)
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
    if (type == COMM_U8)
        BUG("%s of bytes", what);
}

static int front_all_reduce(struct comm *c, void *buf, size_t count, enum comm_type type,
                            struct err *e)
{
    refuse_bytes("all_reduce", type);
    if (c->size == 1 || count == 0)
        return 0;
    int64_t began = begin(c);
    int r = c->transport->all_reduce(c, buf, count, type, e);
    return end(c, began, count * comm_type_size(type), r);
}

static int front_reduce_scatter(struct comm *c, void *buf, size_t count, enum comm_type type,
                                struct err *e)
{
    refuse_bytes("reduce_scatter", type);
    if (c->size == 1 || count == 0)
        return 0;
    int64_t began = begin(c);
    int r = c->transport->reduce_scatter(c, buf, count, type, e);
    return end(c, began, count * comm_type_size(type), r);
}

static int front_all_gather(struct comm *c, void *buf, size_t count, enum comm_type type,
                            struct err *e)
{
    if (c->size == 1 || count == 0)
        return 0;
    int64_t began = begin(c);
    int r = c->transport->all_gather(c, buf, count, type, e);
    return end(c, began, count * comm_type_size(type), r);
}

static int front_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    if (root < 0 || root >= c->size)
        BUG("a broadcast from member %d of %d", root, c->size);
    if (c->size == 1 || bytes == 0)
        return 0;
    int64_t began = begin(c);
    return end(c, began, bytes, c->transport->broadcast(c, buf, bytes, root, e));
}

static int front_exchange(struct comm *c, const void *mine, size_t bytes, void *all, struct err *e)
{
    if (bytes > COMM_EXCHANGE_MAX)
        BUG("an exchange of %zu bytes", bytes);
    int64_t began = begin(c);
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
    int64_t began = begin(c);
    return end(c, began, bytes, c->transport->send(c, to, buf, bytes, e));
}

static int front_recv(struct comm *c, int from, void *buf, size_t bytes, struct err *e)
{
    check_message(c, from);
    int64_t began = begin(c);
    return end(c, began, bytes, c->transport->recv(c, from, buf, bytes, e));
}

static int front_barrier(struct comm *c, struct err *e)
{
    int64_t began = begin(c);
    return c->size > 1 ? end(c, began, 0, c->transport->barrier(c, e)) : 0;
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
    .group = front_group,
    .memory = front_memory,
    .give_up = front_give_up,
    .close = front_close,
};

void comm_front(struct comm *c, const struct comm_verbs *transport, enum comm_family family)
{
    c->verbs = &front_verbs;
    c->transport = transport;
    c->family = family;
}
