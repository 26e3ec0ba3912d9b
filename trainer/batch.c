/* batch.c: gathering samples. On a device with the host's memory (ops.is_host) they go straight to
 * their place, or are copied there from the loader's; otherwise by way of a host buffer and one
 * upload. */
#include "trainer/batch.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "trainer/layer.h"

#define ROWS_AT_A_TIME 8         /* from memory */
#define READ_AT_A_TIME (1 << 16) /* bytes, from a file */
#define FIRST_GUESS_NS (10 * BATCH_SLOW_NS)

/* Fetched by so many threads at most, each of which has so much to copy that it is worth its start.
 */
#define FETCHERS     8
#define FETCH_APIECE ((int64_t)4 << 20)

/* ---- setting up ---- */

static int has_first(const struct net *n)
{
    return n->chunks[0].first == 0;
}

static int has_last(const struct net *n)
{
    return n->chunks[n->chunk_count - 1].last == n->model->layer_count;
}

static int wants_loader(const struct net *n, const struct dataset *set)
{
    return (set->is_ahead || !n->ops->is_host) && (has_first(n) || has_last(n));
}

static size_t feature_bytes(const struct dataset *set, int64_t rows)
{
    return (size_t)(rows * set->feature_size) * sizeof(float);
}

static size_t target_bytes(const struct dataset *set, int64_t rows)
{
    return (size_t)(rows * set->target_size) * sizeof(float); /* int32 is as wide */
}

/* Of a device of its own: labels in their place, and the two buffers. */
static size_t device_bytes(const struct net *n, const struct dataset *set, int64_t max_rows)
{
    size_t targets = has_last(n) ? target_bytes(set, max_rows) : 0;
    size_t features = has_first(n) ? feature_bytes(set, max_rows) : 0;
    return targets + BATCH_SLOTS * (features + targets);
}

size_t batch_host_bytes(const struct net *n, const struct dataset *set, int64_t max_rows)
{
    size_t targets = has_last(n) ? target_bytes(set, max_rows) : 0, ahead = 0;
    size_t slots = n->ops->is_host ? 1 : BATCH_SLOTS + 1;
    if (wants_loader(n, set) && has_first(n))
        ahead += loader_bytes(max_rows) + slots * feature_bytes(set, max_rows);
    if (wants_loader(n, set) && has_last(n))
        ahead += loader_bytes(max_rows) + slots * targets;
    return ahead;
}

size_t batch_bytes(const struct net *n, const struct dataset *set, int64_t max_rows)
{
    if (!n->ops->is_host)
        return device_bytes(n, set, max_rows);
    return (has_last(n) ? target_bytes(set, max_rows) : 0) + batch_host_bytes(n, set, max_rows);
}

static int allocate_device(const struct ops *o, size_t bytes, void **ret, struct err *e)
{
    *ret = o->alloc(bytes);
    return *ret ? 0 : ops_no_memory(o, bytes, "samples", e);
}

static int allocate_targets(struct batch *b, const struct dataset *set, struct err *e)
{
    void *targets;
    int r = allocate_device(b->net->ops, target_bytes(set, b->max_rows), &targets, e);
    if (r == 0 && set->target_type == TARGET_CLASS)
        b->classes = targets;
    else if (r == 0)
        b->targets = targets;
    return r;
}

static loader_fetch fetch_features, fetch_targets;

/* On the host's memory one slot is enough: what is taken is copied before more is asked for. */
static int open_lane(struct batch *b, enum loader_lane which, int64_t width, loader_fetch *fetch,
                     struct err *e)
{
    const struct ops *o = b->net->ops;
    struct batch_lane *lane = &b->lanes[which];
    size_t bytes = (size_t)(b->max_rows * width) * sizeof(float); /* int32 is as wide */
    int slots = o->is_host ? 1 : BATCH_SLOTS, r = 0;
    lane->item_bytes = (size_t)width * sizeof(float);
    lane->fetch_ns = FIRST_GUESS_NS;
    loader_open(b->loader, which, b->max_rows, fetch, b);
    for (int i = 0; i < slots; i++)
        lane->slots[i] = (struct batch_slot){.host = o->alloc_host(bytes), .used_at = -1};
    for (int i = 0; r == 0 && !o->is_host && i < slots; i++)
        r = allocate_device(o, bytes, &lane->slots[i].device, e);
    if (!o->is_host)
        lane->staging = mem_alloc(bytes);
    return r;
}

static int start_loader(struct batch *b, struct err *e)
{
    int r = loader_new(&b->loader, e);
    if (r == 0 && b->is_first)
        r = open_lane(b, LOADER_FEATURES, b->feature_size, fetch_features, e);
    if (r == 0 && b->is_last)
        r = open_lane(b, LOADER_TARGETS, b->target_size, fetch_targets, e);
    return r;
}

int batch_init(struct batch *b, const struct net *n, const struct dataset *set, int64_t max_rows,
               struct err *e)
{
    *b = (struct batch){.net = n,
                        .max_rows = max_rows,
                        .feature_size = set->feature_size,
                        .target_size = set->target_size,
                        .positions = set->positions,
                        .is_first = has_first(n),
                        .is_last = has_last(n)};
    int r = b->is_last ? allocate_targets(b, set, e) : 0;
    return r == 0 && wants_loader(n, set) ? start_loader(b, e) : r;
}

static void close_lane(const struct ops *o, struct batch_lane *lane)
{
    for (int i = 0; i < BATCH_SLOTS; i++) {
        o->release(lane->slots[i].device);
        o->release_host(lane->slots[i].host);
    }
    free(lane->staging);
}

void batch_done(struct batch *b)
{
    loader_free(b->loader); /* first: it may be at work in the others */
    if (b->net && b->net->ops) {
        b->net->ops->release(b->classes);
        b->net->ops->release(b->targets);
        for (int i = 0; i < LOADER_LANES; i++)
            close_lane(b->net->ops, &b->lanes[i]);
    }
    *b = (struct batch){0};
}

/* ---- how long it takes ---- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* By the rank's thread or the loader's. It rises by a quarter at most, for once another process
 * has the core a fetch seems to take milliseconds. */
static void took(struct batch *b, enum loader_lane lane, int64_t began)
{
    int64_t mean = __atomic_load_n(&b->lanes[lane].fetch_ns, __ATOMIC_RELAXED);
    int64_t change = (now_ns() - began - mean) / 4;
    mean += change < mean / 4 ? change : mean / 4;
    __atomic_store_n(&b->lanes[lane].fetch_ns, mean > 1000 ? mean : 1000, __ATOMIC_RELAXED);
}

static int pays(const struct batch *b, enum loader_lane lane)
{
    return b->loader &&
           (!b->net->ops->is_host ||
            __atomic_load_n(&b->lanes[lane].fetch_ns, __ATOMIC_RELAXED) > BATCH_SLOW_NS);
}

/* ---- features ---- */

static void apply_folded(const struct net *n, int64_t elements, float *x)
{
    for (int l = 0; l < n->folded; l++) {
        const struct layer *y = &n->model->layers[l];
        if (y->type == LAYER_RESCALING)
            n->ops->affine(elements, (float)y->scale, (float)y->offset, x, x);
    }
}

/* Token ids are looked up without a second look. */
static int check_ids(const struct batch *b, const int64_t *ids, int64_t n, const float *x,
                     struct err *e)
{
    int64_t bad = layer_bad_id(b->net->model, n * b->feature_size, x);
    if (bad < 0)
        return 0;
    return err_set(e, ERR_CORRUPT,
                   "Sample %lld of the prepared data has %g as its token %lld, which is not an id "
                   "that the model's embedding has: whole numbers from 0 to its input_dim less 1.",
                   (long long)ids[bad / b->feature_size] + 1, (double)x[bad],
                   (long long)(bad % b->feature_size) + 1);
}

/* All of them to host memory; rescaled there where that is the device's as well. */
static int fetch_rows(const struct batch *b, const struct items *items, float *to, struct err *e)
{
    int64_t width = b->feature_size, most = ROWS_AT_A_TIME;
    if (!items->set->features.map && width < READ_AT_A_TIME / (4 * ROWS_AT_A_TIME))
        most = READ_AT_A_TIME / (4 * width);
    for (int64_t at = 0; at < items->count; at += most) {
        int64_t rows = items->count - at < most ? items->count - at : most;
        float *x = to + at * width;
        int r = data_gather(items->set, items->ids + at, rows, x, NULL, NULL, e);
        if (r == 0)
            r = check_ids(b, items->ids + at, rows, x, e);
        if (r < 0)
            return r;
        if (b->net->ops->is_host)
            apply_folded(b->net, rows * width, x);
    }
    return 0;
}

static struct items part_of(const struct items *items, int64_t begin, int64_t n)
{
    return (struct items){.set = items->set, .ids = items->ids + begin, .count = n};
}

/* ---- by several threads ---- */

struct fetcher {
    const struct batch *b;
    struct items items;
    float *to;
    pthread_t thread;
    int has_thread, status;
    struct err error;
};

static void *fetch_share(void *context)
{
    struct fetcher *f = context;
    f->status = fetch_rows(f->b, &f->items, f->to, &f->error);
    return NULL;
}

/* Where the device's memory is the host's, other ranks compute on the cores. */
static int fetchers_for(const struct batch *b, const struct items *items)
{
    cpu_set_t cores;
    int64_t n = items->count * b->feature_size * (int64_t)sizeof(float) / FETCH_APIECE;
    if (b->net->ops->is_host || n < 2 || sched_getaffinity(0, sizeof cores, &cores) < 0)
        return 1;
    int64_t most = CPU_COUNT(&cores) < FETCHERS ? CPU_COUNT(&cores) : FETCHERS;
    return (int)(n < most ? n : most);
}

/* Signals are the rank's own thread's. Where no thread can be had, the caller does its share. */
static void start_fetchers(struct fetcher *f, int count)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < count; i++)
        f[i].has_thread = pthread_create(&f[i].thread, NULL, fetch_share, &f[i]) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* The first share's failure, as one thread alone would have met it. */
static int fetch_by(struct fetcher *f, int count, struct err *e)
{
    int r = 0;
    start_fetchers(f, count);
    for (int i = 0; i < count; i++)
        if (!f[i].has_thread)
            fetch_share(&f[i]);
    for (int i = 0; i < count; i++) {
        if (f[i].has_thread)
            pthread_join(f[i].thread, NULL);
        if (r == 0 && f[i].status < 0)
            r = err_set(e, f[i].error.code, "%s", f[i].error.text);
    }
    return r;
}

static int fetch_features(void *context, const struct items *items, void *to, struct err *e)
{
    struct batch *b = context;
    struct fetcher f[FETCHERS];
    int64_t began = now_ns();
    int count = fetchers_for(b, items);
    for (int i = 0; i < count; i++) {
        int64_t begin = items->count * i / count, end = items->count * (i + 1) / count;
        f[i] = (struct fetcher){.b = b,
                                .items = part_of(items, begin, end - begin),
                                .to = (float *)to + begin * b->feature_size};
    }
    int r = fetch_by(f, count, e);
    if (r == 0)
        took(b, LOADER_FEATURES, began);
    return r;
}

/* ---- to their place ---- */

static void join(struct batch *b)
{
    b->net->ops->join_uploads();
    b->joins++;
}

/* Into the slot's buffer, which the verb that used it last has left once the uploads after it are
 * joined. */
static void send(struct batch *b, struct batch_lane *lane, struct batch_slot *s)
{
    if (s->used_at == b->joins)
        join(b);
    b->net->ops->upload_beside(s->device, s->host, lane->bytes);
    s->is_sent = s->is_busy = 1;
    s->sent_at = b->joins;
}

/* What the loader has fetched, to where it is used. */
static void bring(struct batch *b, struct batch_lane *lane, void *to)
{
    struct batch_slot *s = &lane->slots[lane->slot];
    if (!s->device) {
        b->net->ops->upload(to, s->host, lane->bytes);
        return;
    }
    if (!s->is_sent)
        send(b, lane, s);
    if (s->sent_at == b->joins)
        join(b);
    b->net->ops->copy(to, s->device, lane->bytes);
    s->used_at = b->joins;
}

/* From the loader, if it has them, else fetched now. */
static int take(struct batch *b, enum loader_lane which, const struct items *items, int64_t begin,
                int64_t n, loader_fetch *fetch, void *to, struct err *e)
{
    struct batch_lane *lane = &b->lanes[which];
    struct items part = part_of(items, begin, n);
    const void *from;
    int r = b->loader ? loader_take(b->loader, which, items, begin, n, &from, e) : 0;
    if (r > 0)
        bring(b, lane, to);
    if (r != 0)
        return r < 0 ? r : 0;
    void *own = lane->staging ? lane->staging : to;
    r = fetch(b, &part, own, e);
    if (r == 0 && own != to)
        b->net->ops->upload(to, own, (size_t)n * lane->item_bytes);
    return r;
}

int batch_features(struct batch *b, const struct items *items, int64_t begin, int64_t n, float *x,
                   struct err *e)
{
    int r = take(b, LOADER_FEATURES, items, begin, n, fetch_features, x, e);
    if (r == 0 && !b->net->ops->is_host)
        apply_folded(b->net, n * b->feature_size, x);
    return r;
}

/* ---- labels ---- */

static int check_classes(const struct batch *b, const struct items *items, const int32_t *classes,
                         struct err *e)
{
    const struct model *m = b->net->model;
    int64_t out = shape_elements(&m->layers[m->layer_count - 1].out) / b->positions;
    for (int64_t i = 0; i < items->count * b->target_size; i++)
        if (classes[i] < 0 || classes[i] >= out)
            return err_set(
                e, ERR_CORRUPT,
                "Sample %lld of the prepared data has class %d, where the model has %lld "
                "outputs: the data was changed after it was checked.",
                (long long)items->ids[i / b->target_size] + 1, classes[i], (long long)out);
    return 0;
}

static int fetch_targets(void *context, const struct items *items, void *to, struct err *e)
{
    struct batch *b = context;
    int64_t began = now_ns();
    int r = data_gather(items->set, items->ids, items->count, NULL, b->classes ? to : NULL,
                        b->targets ? to : NULL, e);
    took(b, LOADER_TARGETS, began);
    return r == 0 && b->classes ? check_classes(b, items, to, e) : r;
}

int batch_targets(struct batch *b, const struct items *items, int64_t begin, int64_t n,
                  struct err *e)
{
    void *to = b->classes ? (void *)b->classes : (void *)b->targets;
    return take(b, LOADER_TARGETS, items, begin, n, fetch_targets, to, e);
}

/* ---- ahead ---- */

void batch_waited(struct batch *b)
{
    for (int l = 0; l < LOADER_LANES; l++)
        for (int i = 0; i < BATCH_SLOTS; i++) {
            struct batch_slot *s = &b->lanes[l].slots[i];
            s->is_busy = s->is_busy && s->sent_at == b->joins;
        }
}

/* The slot's host memory is about to be written to. A failure of the device is told elsewhere. */
static void wait_for(struct batch *b, struct batch_slot *s)
{
    if (s->is_busy && s->sent_at == b->joins)
        join(b);
    if (s->is_busy)
        b->net->ops->finish(NULL);
    batch_waited(b);
}

static void expect(struct batch *b, enum loader_lane which, const struct items *items,
                   int64_t begin, int64_t n)
{
    struct batch_lane *lane = &b->lanes[which];
    if (n <= 0 || n > b->max_rows || !pays(b, which))
        return;
    lane->slot = lane->slots[1].host ? !lane->slot : 0;
    lane->bytes = (size_t)n * lane->item_bytes;
    struct batch_slot *s = &lane->slots[lane->slot];
    if (s->is_busy)
        wait_for(b, s);
    s->is_sent = 0;
    loader_ask(b->loader, which, items, begin, n, s->host);
}

void batch_expect_features(struct batch *b, const struct items *items, int64_t begin, int64_t n)
{
    expect(b, LOADER_FEATURES, items, begin, n);
}

void batch_expect_targets(struct batch *b, const struct items *items, int64_t begin, int64_t n)
{
    expect(b, LOADER_TARGETS, items, begin, n);
}

static int has_unsent(const struct batch *b, int l)
{
    const struct batch_lane *lane = &b->lanes[l];
    return b->loader && !b->net->ops->is_host && !lane->slots[lane->slot].is_sent;
}

void batch_send_ahead(struct batch *b)
{
    for (int l = 0; l < LOADER_LANES; l++) {
        struct batch_lane *lane = &b->lanes[l];
        if (has_unsent(b, l) && loader_is_ready(b->loader, (enum loader_lane)l))
            send(b, lane, &lane->slots[lane->slot]);
    }
}

void batch_send_all(struct batch *b)
{
    b->net->ops->start();
    for (int l = 0; l < LOADER_LANES; l++)
        if (has_unsent(b, l))
            loader_wait(b->loader, (enum loader_lane)l);
    batch_send_ahead(b);
}
