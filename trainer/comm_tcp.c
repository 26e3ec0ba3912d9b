/* comm_tcp.c: collectives of ranks on several hosts.
 *
 * A large sum is a direct exchange: of each part (comm_part) every member sends what it has to the
 * part's owner, who adds it up in the tree of comm.h, and the owners send the sums to all: each
 * byte crosses the network twice, however many members there are, and the bits are those of shared
 * memory. Small sums are sent whole by everyone to everyone, which saves a round.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "spec/plan.h"
#include "trainer/comm_tcp.h"

#define SMALL (64 * 1024) /* bytes: what a member may get at once in a small sum */
#define ALIGN 64

struct tcp_comm {
    struct comm base;
    struct tcp *t;
    int *members;           /* world ranks */
    struct tcp_link *links; /* [size], of the data lane */
    struct tcp_move *moves; /* [2 * size] */
    struct pollfd *polls;   /* [2 * size + 1] */
    int move_count;
    char *scratch;
    size_t scratch_bytes;
    struct tcp_channel
        *channels[2]; /* to the next and the previous member; one in a group of two */
};

static struct tcp_comm *self(struct comm *c)
{
    return (struct tcp_comm *)c;
}

/* ---- sets of moves ---- */

static void add(struct tcp_comm *c, int member, int is_send, void *buf, size_t bytes)
{
    struct tcp_head h = {.what = TCP_CALL, .call = c->base.call, .bytes = bytes};
    struct tcp_move *m = &c->moves[c->move_count++];
    if (is_send)
        tcp_move_send(m, &c->links[member], &h, buf);
    else
        tcp_move_recv(m, &c->links[member], &h, buf);
}

static void add_send(struct tcp_comm *c, int member, const void *buf, size_t bytes)
{
    add(c, member, 1, (void *)buf, bytes); /* only read */
}

static void add_recv(struct tcp_comm *c, int member, void *buf, size_t bytes)
{
    add(c, member, 0, buf, bytes);
}

static int run(struct tcp_comm *c, struct err *e)
{
    struct tcp_place p = {c->t, &c->base, comm_verb_name(c->base.call.verb)};
    int count = c->move_count;
    c->move_count = 0;
    return tcp_moves(&p, c->moves, count, c->polls, e);
}

static char *scratch(struct tcp_comm *c, size_t bytes)
{
    if (bytes > c->scratch_bytes) {
        free(c->scratch);
        c->scratch = mem_aligned(bytes);
        __atomic_fetch_add(&c->t->scratch_bytes, bytes - c->scratch_bytes, __ATOMIC_RELAXED);
        c->scratch_bytes = bytes;
    }
    return c->scratch;
}

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* The others, beginning behind this one, so that not all send to the same first. */
static int other(const struct tcp_comm *c, int i)
{
    return (c->base.rank + i) % c->base.size;
}

/* ---- sums ---- */

/* buf[n] into the sum of everyone's, which come from scratch rows of `stride` bytes. */
static void sum_rows(struct tcp_comm *c, char *buf, const char *rows, size_t stride, size_t n,
                     enum comm_type type)
{
    const void *in[PLAN_MAX_RANKS];
    for (int i = 0; i < c->base.size; i++)
        in[i] = rows + (size_t)i * stride;
    in[c->base.rank] = buf;
    comm_sum(type, n, c->base.size, in, buf);
}

static int reduce_small(struct tcp_comm *c, char *buf, size_t count, enum comm_type type,
                        struct err *e)
{
    size_t bytes = count * comm_type_size(type), stride = round_up(bytes);
    char *rows = scratch(c, (size_t)c->base.size * stride);
    for (int i = 1; i < c->base.size; i++) {
        int m = other(c, i);
        add_send(c, m, buf, bytes);
        add_recv(c, m, rows + (size_t)m * stride, bytes);
    }
    int r = run(c, e);
    if (r == 0)
        sum_rows(c, buf, rows, stride, count, type);
    return r;
}

/* Elements of a part that are summed at a time. */
static size_t slice_of(const struct tcp_comm *c, size_t count, size_t width)
{
    size_t most = TCP_SCRATCH / (size_t)c->base.size / width / ALIGN * ALIGN;
    size_t begin, end;
    comm_part(count, c->base.size, 0, &begin, &end); /* none is longer */
    return end < most ? end : most > ALIGN ? most : ALIGN;
}

/* Slice number k of each part: to its owner, who adds it up. */
static int scatter_slice(struct tcp_comm *c, char *buf, size_t count, enum comm_type type,
                         size_t slice, size_t k, struct err *e)
{
    size_t width = comm_type_size(type), begin, end, mine = 0, mine_at = 0;
    size_t stride = round_up(slice * width);
    char *rows = scratch(c, (size_t)c->base.size * stride);
    for (int i = 0; i < c->base.size; i++) {
        int m = other(c, i);
        comm_part(count, c->base.size, m, &begin, &end);
        begin = begin + k * slice < end ? begin + k * slice : end;
        end = end - begin < slice ? end : begin + slice;
        if (i == 0) {
            mine_at = begin;
            mine = end - begin;
        } else if (end > begin) {
            add_send(c, m, buf + begin * width, (end - begin) * width);
        }
    }
    for (int i = 1; i < c->base.size && mine > 0; i++)
        add_recv(c, other(c, i), rows + (size_t)other(c, i) * stride, mine * width);
    int r = run(c, e);
    if (r == 0 && mine > 0)
        sum_rows(c, buf + mine_at * width, rows, stride, mine, type);
    return r;
}

static int scatter(struct tcp_comm *c, char *buf, size_t count, enum comm_type type, struct err *e)
{
    size_t slice = slice_of(c, count, comm_type_size(type)), begin, end;
    int r = 0;
    comm_part(count, c->base.size, 0, &begin, &end);
    for (size_t k = 0; r == 0 && k * slice < end; k++)
        r = scatter_slice(c, buf, count, type, slice, k, e);
    return r;
}

static int gather(struct tcp_comm *c, char *buf, size_t count, enum comm_type type, struct err *e)
{
    size_t width = comm_type_size(type), begin, end;
    comm_part(count, c->base.size, c->base.rank, &begin, &end);
    for (int i = 1; i < c->base.size && end > begin; i++)
        add_send(c, other(c, i), buf + begin * width, (end - begin) * width);
    for (int i = 1; i < c->base.size; i++) {
        comm_part(count, c->base.size, other(c, i), &begin, &end);
        if (end > begin)
            add_recv(c, other(c, i), buf + begin * width, (end - begin) * width);
    }
    return run(c, e);
}

static int tcp_all_reduce(struct comm *base, void *buf, size_t count, enum comm_type type,
                          struct err *e)
{
    struct tcp_comm *c = self(base);
    if (count * comm_type_size(type) * (size_t)(base->size - 1) <= SMALL)
        return reduce_small(c, buf, count, type, e);
    int r = scatter(c, buf, count, type, e);
    return r < 0 ? r : gather(c, buf, count, type, e);
}

static int tcp_reduce_scatter(struct comm *base, void *buf, size_t count, enum comm_type type,
                              struct err *e)
{
    return scatter(self(base), buf, count, type, e);
}

static int tcp_all_gather(struct comm *base, void *buf, size_t count, enum comm_type type,
                          struct err *e)
{
    return gather(self(base), buf, count, type, e);
}

/* ---- the other verbs ---- */

/* The root's parts to their owners, who pass them on: the root sends each byte twice at most. */
static int broadcast_large(struct tcp_comm *c, char *buf, size_t bytes, int root, struct err *e)
{
    size_t begin, end;
    for (int i = 0; i < c->base.size; i++) {
        comm_part(bytes, c->base.size, i, &begin, &end);
        if (i == root || end == begin)
            continue;
        if (c->base.rank == root)
            add_send(c, i, buf + begin, end - begin);
        else if (c->base.rank == i)
            add_recv(c, root, buf + begin, end - begin);
    }
    int r = run(c, e);
    return r < 0 ? r : gather(c, buf, bytes, COMM_U8, e);
}

static int tcp_broadcast(struct comm *base, void *buf, size_t bytes, int root, struct err *e)
{
    struct tcp_comm *c = self(base);
    if (base->size > 2 && bytes * (size_t)(base->size - 1) > SMALL)
        return broadcast_large(c, buf, bytes, root, e);
    for (int i = 0; i < base->size && base->rank == root; i++)
        if (i != root)
            add_send(c, i, buf, bytes);
    if (base->rank != root)
        add_recv(c, root, buf, bytes);
    return run(c, e);
}

static int tcp_exchange(struct comm *base, const void *mine, size_t bytes, void *all, struct err *e)
{
    struct tcp_comm *c = self(base);
    char *rows = all;
    memcpy(rows + (size_t)base->rank * bytes, mine, bytes);
    for (int i = 1; i < base->size; i++) {
        int m = other(c, i);
        add_send(c, m, mine, bytes);
        add_recv(c, m, rows + (size_t)m * bytes, bytes);
    }
    return run(c, e);
}

static int tcp_barrier(struct comm *base, struct err *e)
{
    char nothing[1] = "";
    return tcp_exchange(base, nothing, 0, nothing, e);
}

/* ---- messages ---- */

static struct tcp_channel *channel(const struct tcp_comm *c, int with)
{
    int is_next = with == (c->base.rank + 1) % c->base.size;
    return c->channels[c->base.size == 2 || is_next ? 0 : 1];
}

static int tcp_send(struct comm *base, int to, const void *buf, size_t bytes, struct err *e)
{
    struct tcp_comm *c = self(base);
    struct tcp_place p = {c->t, base, "send"};
    return tcp_message_send(&p, channel(c, to), buf, bytes, e);
}

static int tcp_recv(struct comm *base, int from, void *buf, size_t bytes, struct err *e)
{
    struct tcp_comm *c = self(base);
    struct tcp_place p = {c->t, base, "recv"};
    return tcp_message_recv(&p, channel(c, from), buf, bytes, e);
}

/* ---- groups ---- */

static const struct comm_verbs tcp_verbs;

static struct tcp_comm *new_comm(struct tcp *t, enum comm_family family, const int *members,
                                 int size)
{
    struct tcp_comm *c = mem_zalloc(sizeof *c);
    size_t n = (size_t)size;
    comm_front(&c->base, &tcp_verbs, family);
    c->t = t;
    c->members = mem_alloc(n * sizeof *c->members);
    c->links = mem_zalloc(n * sizeof *c->links);
    c->moves = mem_alloc(2 * n * sizeof *c->moves);
    c->polls = mem_alloc((2 * n + 1) * sizeof *c->polls);
    for (int i = 0; i < size; i++) {
        c->members[i] = members ? members[i] : i;
        c->links[i].fd = -1;
        if (c->members[i] == t->rank)
            c->base.rank = i;
    }
    c->base.size = size;
    c->base.step = &t->step;
    c->base.progress = &t->progress;
    return c;
}

static void free_comm(struct tcp_comm *c)
{
    for (int i = 0; i < 2; i++)
        if (c->channels[i])
            tcp_channel_close(c->t, c->channels[i]);
    for (int i = 0; i < c->base.size; i++)
        tcp_link_close(&c->links[i]);
    free(c->members);
    free(c->links);
    free(c->moves);
    free(c->polls);
    free(c->scratch);
    free(c);
}

static int connect_neighbours(struct tcp_comm *c, int index, struct err *e)
{
    int size = c->base.size, rank = c->base.rank;
    int ring[2] = {(rank + 1) % size, (rank + size - 1) % size};
    for (int i = 0; i < 2 && ring[i] != rank && (i == 0 || ring[1] != ring[0]); i++) {
        struct tcp_link l = {.fd = -1};
        int r =
            tcp_connect(c->t, c->base.family, index, LANE_MESSAGE, &c->members[ring[i]], 1, &l, e);
        if (r < 0)
            return r;
        c->channels[i] = tcp_channel_open(c->t, &l);
    }
    return 0;
}

static int connect_group(struct tcp_comm *c, int index, struct err *e)
{
    int is_line = c->base.family == COMM_PIPELINE || c->base.family == COMM_PIPELINE_BACK;
    int r =
        tcp_connect(c->t, c->base.family, index, LANE_DATA, c->members, c->base.size, c->links, e);
    return r < 0 || !is_line ? r : connect_neighbours(c, index, e);
}

static int tcp_group(struct comm *world, enum comm_family family, int index, const int *members,
                     int size, struct comm **ret, struct err *e)
{
    struct tcp_comm *c = new_comm(self(world)->t, family, members, size);
    int r = connect_group(c, index, e);
    if (r < 0)
        free_comm(c);
    else
        *ret = &c->base;
    return r;
}

/* ---- the world ---- */

static int tcp_memory(struct comm *world, size_t bytes, void **ret, struct err *e)
{
    struct tcp *t = self(world)->t;
    size_t need = round_up(bytes);
    if (need > t->memory_bytes - t->memory_used)
        return err_set(e, ERR_INTERNAL, "memory of %zu bytes is asked for, %zu are left", need,
                       t->memory_bytes - t->memory_used);
    t->memory = mem_realloc(t->memory, ((size_t)t->memory_count + 1) * sizeof *t->memory);
    *ret = t->memory[t->memory_count++] = mem_aligned(need > 0 ? need : ALIGN);
    t->memory_used += need;
    return 0;
}

static size_t tcp_used(struct comm *world)
{
    struct tcp *t = self(world)->t;
    size_t bytes = t->memory_used;
    for (int i = 0; i < TCP_CHANNELS; i++)
        for (int q = 0; q < TCP_QUEUE; q++)
            bytes += t->channels[i].queue[q].wire ? tcp_frame_bytes(t->message_bytes) : 0;
    return bytes + __atomic_load_n(&t->scratch_bytes, __ATOMIC_RELAXED);
}

/* As far as signs of life have told. */
static int tcp_check(struct comm *world, const char *what, uint64_t *ret_moved, struct err *e)
{
    struct tcp *t = self(world)->t;
    uint64_t moved = __atomic_load_n(&t->progress, __ATOMIC_RELAXED);
    for (int r = 0; r < t->size; r++)
        moved += __atomic_load_n(&t->peers[r].progress, __ATOMIC_RELAXED);
    *ret_moved = moved;
    return tcp_is_over(t) ? tcp_say_over(t, what, e) : 0;
}

static void tcp_give_up(struct comm *world, const char *why)
{
    struct tcp *t = self(world)->t;
    tcp_set_over(t, OVER_GAVE_UP, t->rank, why);
}

static int all_sent(struct tcp *t)
{
    int left = 0, n;
    for (int r = 0; r < t->size; r++) {
        int fd = t->peers[r].control.fd;
        if (fd >= 0 && !__atomic_load_n(&t->peers[r].is_closed, __ATOMIC_RELAXED) &&
            ioctl(fd, SIOCOUTQ, &n) == 0)
            left |= n;
    }
    return !left;
}

/* What this rank has said last must have arrived before the sockets close: a socket that still has
 * bytes to read takes with it what it had to send. */
static void say_goodbye(struct tcp *t)
{
    int64_t until = clock_boottime_us() + TCP_FLUSH_US;
    if (!tcp_is_over(t))
        tcp_tell_all(t, TCP_BYE, NULL, 0);
    while (!all_sent(t) && clock_boottime_us() < until)
        poll(NULL, 0, 1);
}

static void free_channels(struct tcp *t)
{
    for (int i = 0; i < TCP_CHANNELS; i++) {
        struct tcp_channel *h = &t->channels[i];
        for (int q = 0; q < TCP_QUEUE; q++)
            free(h->queue[q].wire);
        pthread_mutex_destroy(&h->mutex);
        pthread_cond_destroy(&h->room);
    }
}

static void close_sockets(struct tcp *t)
{
    for (int r = 0; r < t->size; r++) {
        tcp_link_close(&t->peers[r].control);
        free(t->peers[r].payload);
    }
    for (int i = 0; i < t->arrival_count; i++)
        mem_closep(&t->arrivals[i].fd);
    for (int i = 0; i < t->pending_count; i++)
        mem_closep(&t->pending[i].fd);
    mem_closep(&t->listener);
    mem_closep(&t->over_fd);
    mem_closep(&t->wake_fd);
}

static void forget_memory(struct tcp *t)
{
    for (int i = 0; i < t->memory_count; i++)
        free(t->memory[i]);
    t->memory_count = 0;
    t->memory_used = 0;
}

static void tcp_forget(struct comm *world)
{
    forget_memory(self(world)->t);
}

static void close_world(struct tcp *t)
{
    if (t->is_watched)
        say_goodbye(t);
    tcp_watch_stop(t);
    free_channels(t);
    close_sockets(t);
    forget_memory(t);
    pthread_mutex_destroy(&t->mutex);
    pthread_mutex_destroy(&t->control);
    pthread_cond_destroy(&t->changed);
    sodium_memzero(t->key, sizeof t->key);
    free(t->master_host);
    free(t->memory);
    free(t->peers);
    free(t->arrivals);
    free(t->pending);
    free(t);
}

static void tcp_close(struct comm *base)
{
    struct tcp_comm *c = self(base);
    struct tcp *t = base->family == COMM_WORLD ? c->t : NULL;
    free_comm(c);
    if (t)
        close_world(t);
}

static const struct comm_verbs tcp_verbs = {
    .name = "tcp",
    .all_reduce = tcp_all_reduce,
    .reduce_scatter = tcp_reduce_scatter,
    .all_gather = tcp_all_gather,
    .broadcast = tcp_broadcast,
    .exchange = tcp_exchange,
    .send = tcp_send,
    .recv = tcp_recv,
    .barrier = tcp_barrier,
    .settle = comm_settled,
    .check = tcp_check,
    .group = tcp_group,
    .memory = tcp_memory,
    .forget = tcp_forget,
    .used = tcp_used,
    .give_up = tcp_give_up,
    .close = tcp_close,
};

static void set_up_locks(struct tcp *t)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->mutex, NULL);
    pthread_mutex_init(&t->control, NULL);
    pthread_cond_init(&t->changed, &attr);
    for (int i = 0; i < TCP_CHANNELS; i++) {
        t->channels[i].link.fd = -1;
        pthread_mutex_init(&t->channels[i].mutex, NULL);
        pthread_cond_init(&t->channels[i].room, &attr);
    }
    pthread_condattr_destroy(&attr);
}

static void set_up(struct tcp *t, const struct comm_tcp_place *p, const struct comm_options *o)
{
    set_up_locks(t);
    t->rank = o->rank;
    t->size = o->size;
    t->memory_bytes = round_up(o->memory_bytes);
    t->message_bytes = o->message_bytes;
    t->stop = o->stop;
    t->deadline_us = 1000LL * (o->deadline_ms > 0 ? o->deadline_ms : COMM_DEADLINE_MS);
    t->prove_us = 1000LL * TCP_PROVE_MS < t->deadline_us ? 1000LL * TCP_PROVE_MS : t->deadline_us;
    t->epoch = (uint64_t)p->epoch;
    t->master_host = mem_strdup(p->host);
    t->master_port = p->port;
    t->peers = mem_zalloc((size_t)o->size * sizeof *t->peers);
    for (int r = 0; r < o->size; r++)
        t->peers[r].control.fd = -1;
    t->pending = mem_alloc((TCP_PENDING + (size_t)o->size) * sizeof *t->pending);
    t->listener = -1;
    t->over_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    strncpy(t->attempt, p->attempt, sizeof t->attempt - 1);
    strncpy(t->peers[0].address.host, p->host, TCP_HOST_SIZE - 1); /* until it tells itself */
    strncpy(t->peers[o->rank].address.node, p->node, TCP_NODE_SIZE - 1);
    tcp_key_of(p->secret, t->key);
}

static int connect_world(struct tcp_comm *c, struct err *e)
{
    struct tcp *t = c->t;
    if (t->over_fd < 0 || t->wake_fd < 0)
        return err_errno(e, "cannot make an eventfd");
    int r = tcp_meet(t, e);
    if (r == 0)
        r = tcp_connect(t, COMM_WORLD, 0, LANE_DATA, c->members, t->size, c->links, e);
    if (r < 0 && r != ERR_PEER && t->is_watched)
        tcp_set_over(t, OVER_GAVE_UP, t->rank, e->text);
    return r;
}

int comm_tcp_open(const struct comm_tcp_place *p, const struct comm_options *o, struct comm **ret,
                  struct err *e)
{
    if (sodium_init() < 0)
        return err_set(e, ERR_INTERNAL, "libsodium does not start");
    struct tcp *t = mem_zalloc(sizeof *t);
    set_up(t, p, o);
    struct tcp_comm *c = new_comm(t, COMM_WORLD, NULL, o->size);
    int r = o->size > 1 ? connect_world(c, e) : 0;
    if (r < 0)
        tcp_close(&c->base);
    else
        *ret = &c->base;
    return r;
}

size_t comm_tcp_foretold(const struct comm_options *o)
{
    size_t queues = o->message_bytes > 0 ? 2 * TCP_QUEUE * tcp_frame_bytes(o->message_bytes) : 0;
    size_t sums = round_up(o->memory_bytes); /* a rank's parts of all that others add to */
    return round_up(o->memory_bytes) + (sums < TCP_SCRATCH ? sums : TCP_SCRATCH) + queues;
}
