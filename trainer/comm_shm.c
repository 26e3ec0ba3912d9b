/* comm_shm.c: collectives of the ranks of one node, in one shared memory.
 *
 * An all-reduce is a reduce-scatter and an all-gather: each rank sums its part over all ranks,
 * straight from their memory, then fetches the other parts. What lies in memory() is
 * not copied anywhere else; other buffers go through the stage, STAGE bytes at a time. Small sums
 * are added up by every rank for itself, which saves a barrier.
 *
 * Costs of two ranks on two free cores: a barrier under 1 us, 400 KB about 40 us. With more ranks
 * than cores each barrier is a round of futex wake-ups.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "spec/plan.h"
#include "trainer/comm_parts.h"
#include "trainer/comm_shm_map.h"

#define SMALL 16384 /* bytes: up to here every rank adds up everything */

struct shm_comm {
    struct comm base;
    struct shm *s;
    struct shm_sync *sync;
    int *members; /* world ranks */
    uint32_t exchanges;
};

static struct shm_comm *self(struct comm *c)
{
    return (struct shm_comm *)c;
}

static struct shm_wait waiting(const struct shm_comm *c, const char *what)
{
    return (struct shm_wait){.what = what, .members = c->members, .count = c->base.size};
}

/* The last to arrive opens the next generation. */
static int meet(struct shm_comm *c, const char *what, struct err *e)
{
    struct shm_sync *y = c->sync;
    uint32_t generation = __atomic_load_n(&y->generation.value, __ATOMIC_ACQUIRE);
    uint32_t before = __atomic_fetch_add(&y->arrived.value, 1, __ATOMIC_ACQ_REL);
    if (before + 1 == (uint32_t)c->base.size) {
        __atomic_store_n(&y->arrived.value, 0, __ATOMIC_RELAXED);
        shm_publish(&y->generation, generation + 1);
        return 0;
    }
    struct shm_wait why = waiting(c, what);
    return shm_wait_change(c->s, &y->generation, generation, &why, e);
}

/* ---- in shared memory ---- */

static int is_shared(const struct shm_comm *c, const void *buf)
{
    const char *p = buf, *mine = shm_memory(c->s, c->s->rank);
    return p >= mine && p < mine + c->s->memory_bytes;
}

/* The first meeting of a call: it says which call this rank makes and looks at the next member's,
 * so that where calls differ at least one member sees it before any data moves. A member is at most
 * one call ahead, and then writes to the other place. */
static int meet_first(struct shm_comm *c, struct err *e)
{
    const struct comm_call *call = &c->base.call;
    enum comm_family family = c->base.family;
    int next = c->members[(c->base.rank + 1) % c->base.size];
    char who[32];
    shm_rank(c->s, c->s->rank)->calls[family][call->number & 1] = *call;
    int r = meet(c, comm_verb_name(call->verb), e);
    if (r < 0)
        return r;
    struct comm_call theirs = shm_rank(c->s, next)->calls[family][call->number & 1];
    if (memcmp(&theirs, call, sizeof theirs) == 0)
        return 0;
    snprintf(who, sizeof who, "rank %d", next);
    return comm_say_apart(&c->base, who, &theirs, e);
}

/* What is not in shared memory goes through here: of the family, so that two threads may. */
static char *stage_of(const struct shm_comm *c, int i)
{
    return shm_stage(c->s, c->members[i], c->base.family);
}

/* The same place in member i's region. */
static char *theirs(const struct shm_comm *c, const void *buf, int i)
{
    const char *mine = shm_stage(c->s, c->s->rank, COMM_WORLD);
    return shm_stage(c->s, c->members[i], COMM_WORLD) + ((const char *)buf - mine);
}

static void sum_part(const struct shm_comm *c, void *buf, size_t begin, size_t end,
                     enum comm_type type, void *out)
{
    const void *in[PLAN_MAX_RANKS];
    for (int i = 0; i < c->base.size; i++)
        in[i] = theirs(c, buf, i) + begin * comm_type_size(type);
    comm_sum(type, end - begin, c->base.size, in, out);
}

static void fetch_parts(const struct shm_comm *c, void *buf, size_t count, enum comm_type type)
{
    size_t width = comm_type_size(type), begin, end;
    for (int step = 1; step < c->base.size; step++) {
        int i = (c->base.rank + step) % c->base.size;
        comm_part(count, c->base.size, i, &begin, &end);
        if (end > begin)
            memcpy((char *)buf + begin * width, theirs(c, buf, i) + begin * width,
                   (end - begin) * width);
    }
}

static int reduce_small(struct shm_comm *c, void *buf, size_t count, enum comm_type type,
                        struct err *e)
{
    char out[SMALL] __attribute__((aligned(LINE)));
    int r = meet_first(c, e);
    if (r < 0)
        return r;
    sum_part(c, buf, 0, count, type, out);
    if ((r = meet(c, "all_reduce", e)) < 0)
        return r;
    memcpy(buf, out, count * comm_type_size(type));
    return 0;
}

static int scatter_shared(struct shm_comm *c, void *buf, size_t count, enum comm_type type,
                          const char *what, struct err *e)
{
    size_t begin, end;
    int r = meet_first(c, e);
    if (r < 0)
        return r;
    comm_part(count, c->base.size, c->base.rank, &begin, &end);
    sum_part(c, buf, begin, end, type, (char *)buf + begin * comm_type_size(type));
    return meet(c, what, e);
}

static int reduce_shared(struct shm_comm *c, void *buf, size_t count, enum comm_type type,
                         struct err *e)
{
    if (count * comm_type_size(type) <= SMALL)
        return reduce_small(c, buf, count, type, e);
    int r = scatter_shared(c, buf, count, type, "all_reduce", e);
    if (r < 0)
        return r;
    fetch_parts(c, buf, count, type);
    return meet(c, "all_reduce", e); /* nobody reads my part any more: it may be written again */
}

/* ---- the verbs ---- */

static int shm_all_reduce(struct comm *base, void *buf, size_t count, enum comm_type type,
                          struct err *e)
{
    struct shm_comm *c = self(base);
    if (is_shared(c, buf))
        return reduce_shared(c, buf, count, type, e);
    size_t width = comm_type_size(type), most = STAGE / width;
    char *stage = stage_of(c, base->rank), *p = buf;
    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;
        memcpy(stage, p + at * width, n * width);
        int r = reduce_shared(c, stage, n, type, e);
        if (r < 0)
            return r;
        memcpy(p + at * width, stage, n * width);
    }
    return 0;
}

static int shm_reduce_scatter(struct comm *base, void *buf, size_t count, enum comm_type type,
                              struct err *e)
{
    struct shm_comm *c = self(base);
    if (!is_shared(c, buf))
        return shm_all_reduce(base, buf, count, type, e);
    return scatter_shared(c, buf, count, type, "reduce_scatter", e);
}

static int broadcast_piece(struct shm_comm *c, char *buf, size_t n, int root, struct err *e)
{
    char *stage = stage_of(c, root);
    if (c->base.rank == root)
        memcpy(stage, buf, n);
    int r = meet_first(c, e);
    if (r < 0)
        return r;
    if (c->base.rank != root)
        memcpy(buf, stage, n);
    return meet(c, "broadcast", e);
}

static int shm_broadcast(struct comm *base, void *buf, size_t bytes, int root, struct err *e)
{
    for (size_t at = 0; at < bytes; at += STAGE) {
        size_t n = bytes - at < STAGE ? bytes - at : STAGE;
        int r = broadcast_piece(self(base), (char *)buf + at, n, root, e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int gather_staged(struct comm *base, void *buf, size_t count, enum comm_type type,
                         struct err *e)
{
    size_t width = comm_type_size(type), begin, end;
    for (int i = 0; i < base->size; i++) {
        comm_part(count, base->size, i, &begin, &end);
        int r = shm_broadcast(base, (char *)buf + begin * width, (end - begin) * width, i, e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int shm_all_gather(struct comm *base, void *buf, size_t count, enum comm_type type,
                          struct err *e)
{
    struct shm_comm *c = self(base);
    if (!is_shared(c, buf))
        return gather_staged(base, buf, count, type, e);
    int r = meet_first(c, e);
    if (r < 0)
        return r;
    fetch_parts(c, buf, count, type);
    return meet(c, "all_gather", e);
}

/* Two sets of slots in turn: a rank that writes the same set again has seen everyone pass the
 * exchange in between, so nobody still reads it. */
static int shm_exchange(struct comm *base, const void *mine, size_t bytes, void *all, struct err *e)
{
    struct shm_comm *c = self(base);
    uint32_t set = c->exchanges++ & 1;
    memcpy(shm_rank(c->s, c->s->rank)->exchange[c->base.family][set], mine, bytes);
    int r = meet_first(c, e);
    if (r < 0)
        return r;
    for (int i = 0; i < base->size; i++)
        memcpy((char *)all + (size_t)i * bytes,
               shm_rank(c->s, c->members[i])->exchange[c->base.family][set], bytes);
    return 0;
}

static char *slot(const struct shm_comm *c, struct shm_channel *h, uint32_t message)
{
    return (char *)(h + 1) + (message % SLOTS) * c->s->message_bytes;
}

/* From one member to another: a ring of two has one channel each way, as both are next. */
static struct shm_channel *channel(const struct shm_comm *c, int from, int to)
{
    int is_next = to == (from + 1) % c->base.size;
    return shm_channel(c->s, c->members[from], c->base.family == COMM_PIPELINE_BACK, is_next);
}

static int shm_send(struct comm *base, int to, const void *buf, size_t bytes, struct err *e)
{
    struct shm_comm *c = self(base);
    if (bytes > c->s->message_bytes)
        BUG("a message of %zu bytes", bytes);
    struct shm_channel *h = channel(c, base->rank, to);
    uint32_t sent = h->sent.value; /* only this rank writes it */
    struct shm_wait why = {.what = "send", .members = &c->members[to], .count = 1};
    while (sent - __atomic_load_n(&h->taken.value, __ATOMIC_ACQUIRE) >= SLOTS) {
        int r = shm_wait_change(c->s, &h->taken, sent - SLOTS, &why, e);
        if (r < 0)
            return r;
        if (sent - __atomic_load_n(&h->taken.value, __ATOMIC_ACQUIRE) > SLOTS)
            return err_set(e, ERR_PEER, "Rank %d spoiled the channel from rank %d.", c->members[to],
                           c->s->rank);
    }
    h->bytes[sent % SLOTS] = bytes;
    memcpy(slot(c, h, sent), buf, bytes);
    shm_publish(&h->sent, sent + 1);
    return 0;
}

static int shm_recv(struct comm *base, int from, void *buf, size_t bytes, struct err *e)
{
    struct shm_comm *c = self(base);
    if (bytes > c->s->message_bytes)
        BUG("a message of %zu bytes", bytes);
    struct shm_channel *h = channel(c, from, base->rank);
    uint32_t taken = h->taken.value; /* only this rank writes it */
    struct shm_wait why = {.what = "recv", .members = &c->members[from], .count = 1};
    int r = shm_wait_change(c->s, &h->sent, taken, &why, e);
    if (r < 0)
        return r;
    if (h->bytes[taken % SLOTS] != bytes)
        return err_set(e, ERR_INTERNAL, "Rank %d sent %llu bytes where rank %d expects %zu.",
                       c->members[from], (unsigned long long)h->bytes[taken % SLOTS], c->s->rank,
                       bytes);
    memcpy(buf, slot(c, h, taken), bytes);
    shm_publish(&h->taken, taken + 1);
    return 0;
}

static int shm_barrier(struct comm *base, struct err *e)
{
    return meet_first(self(base), e);
}

static struct shm_comm *new_comm(struct shm *s, enum comm_family family, int index,
                                 const int *members, int size);

static int shm_group(struct comm *world, enum comm_family family, int index, const int *members,
                     int size, struct comm **ret, struct err *e)
{
    (void)e;
    struct shm_comm *g = new_comm(self(world)->s, family, index, members, size);
    *ret = &g->base;
    return 0;
}

static int shm_memory_verb(struct comm *world, size_t bytes, void **ret, struct err *e)
{
    struct shm *s = self(world)->s;
    size_t need = (bytes + LINE - 1) / LINE * LINE;
    if (need > s->memory_bytes - s->memory_used)
        return err_set(e, ERR_INTERNAL, "shared memory of %zu bytes is asked for, %zu are left",
                       need, s->memory_bytes - s->memory_used);
    *ret = shm_memory(s, s->rank) + s->memory_used;
    s->memory_used += need;
    return 0;
}

static size_t shm_used(struct comm *world)
{
    struct shm *s = self(world)->s;
    struct stat st;
    if (fstat(s->fd, &st) < 0)
        BUG("the gang's memory has no descriptor any more");
    return (size_t)st.st_blocks * 512 / (size_t)s->size;
}

static void shm_forget(struct comm *world)
{
    struct shm *s = self(world)->s;
    memset(shm_memory(s, s->rank), 0, s->memory_used);
    s->memory_used = 0;
}

static int shm_check_verb(struct comm *world, const char *what, uint64_t *ret_moved, struct err *e)
{
    return shm_check(self(world)->s, what, ret_moved, e);
}

static void shm_give_up_verb(struct comm *world, const char *why)
{
    shm_give_up(self(world)->s, why);
}

static void close_world(struct shm *s)
{
    for (int r = 0; r < s->size; r++)
        if (s->pidfds[r] >= 0)
            close(s->pidfds[r]);
    free(s->pidfds);
    munmap(s->map, s->bytes);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static void shm_close(struct comm *base)
{
    struct shm_comm *c = self(base);
    if (c->base.family == COMM_WORLD)
        close_world(c->s);
    free(c->members);
    free(c);
}

static const struct comm_verbs shm_verbs = {
    .name = "shm",
    .all_reduce = shm_all_reduce,
    .reduce_scatter = shm_reduce_scatter,
    .all_gather = shm_all_gather,
    .broadcast = shm_broadcast,
    .exchange = shm_exchange,
    .send = shm_send,
    .recv = shm_recv,
    .barrier = shm_barrier,
    .settle = comm_settled,
    .check = shm_check_verb,
    .group = shm_group,
    .memory = shm_memory_verb,
    .forget = shm_forget,
    .used = shm_used,
    .give_up = shm_give_up_verb,
    .close = shm_close,
};

static struct shm_comm *new_comm(struct shm *s, enum comm_family family, int index,
                                 const int *members, int size)
{
    struct shm_comm *c = mem_zalloc(sizeof *c);
    c->s = s;
    comm_front(&c->base, &shm_verbs, family);
    c->sync = shm_sync(s, family, index);
    c->members = mem_alloc((size_t)size * sizeof *c->members);
    for (int i = 0; i < size; i++) {
        c->members[i] = members ? members[i] : i;
        if (c->members[i] == s->rank)
            c->base.rank = i;
    }
    c->base.size = size;
    c->base.step = &s->step;
    c->base.progress = &shm_rank(s, s->rank)->progress;
    return c;
}

static int map(struct shm *s, int fd, struct err *e)
{
    if (ftruncate(fd, (off_t)s->bytes) < 0)
        return err_errno(e, "cannot size the gang's shared memory to %zu bytes", s->bytes);
    void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_errno(e, "cannot map the gang's shared memory, %zu bytes", s->bytes);
    s->map = p;
    s->fd = fd;
    return 0;
}

int comm_shm_open(int fd, const struct comm_options *o, struct comm **ret, struct err *e)
{
    struct shm *s = mem_zalloc(sizeof *s);
    shm_layout(s, o);
    s->deadline_us = 1000LL * (o->deadline_ms > 0 ? o->deadline_ms : COMM_DEADLINE_MS);
    s->stop = o->stop;
    s->owner = pthread_self();
    pthread_mutex_init(&s->mutex, NULL);
    int r = map(s, fd, e);
    if (r < 0) {
        pthread_mutex_destroy(&s->mutex);
        free(s);
        return r;
    }
    s->pidfds = mem_alloc((size_t)o->size * sizeof *s->pidfds);
    for (int i = 0; i < o->size; i++)
        s->pidfds[i] = -1;
    if ((r = shm_meet(s, e)) < 0) {
        close_world(s);
        return r;
    }
    *ret = &new_comm(s, COMM_WORLD, 0, NULL, o->size)->base;
    return 0;
}
