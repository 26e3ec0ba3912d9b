/* batch.c: gathering samples. On a device with the host's memory (ops.is_host) they go straight to
 * their place, or are copied there from the loader's; otherwise by way of a host buffer and one
 * upload. */
#include "trainer/batch.h"

#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "trainer/layer.h"

#define ROWS_AT_A_TIME 8         /* from memory */
#define READ_AT_A_TIME (1 << 16) /* bytes, from a file */
#define FIRST_GUESS_NS (10 * BATCH_SLOW_NS)

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

size_t batch_bytes(const struct net *n, const struct dataset *set, int64_t max_rows)
{
    size_t targets = has_last(n) ? target_bytes(set, max_rows) : 0, ahead = 0;
    if (wants_loader(n, set) && has_first(n))
        ahead += loader_bytes(max_rows, feature_bytes(set, max_rows));
    if (wants_loader(n, set) && has_last(n))
        ahead += loader_bytes(max_rows, targets);
    return targets + ahead;
}

static int allocate_targets(struct batch *b, const struct dataset *set, struct err *e)
{
    const struct ops *o = b->net->ops;
    void *targets = o->alloc(target_bytes(set, b->max_rows));
    if (!targets)
        return err_set(e, ERR_UNAVAILABLE, "The %s device has no memory left for labels.", o->name);
    if (set->target_type == TARGET_CLASS)
        b->classes = targets;
    else
        b->targets = targets;
    if (!o->is_host)
        b->host_targets = mem_alloc(target_bytes(set, b->max_rows));
    return 0;
}

static loader_fetch fetch_features, fetch_targets;

static int start_loader(struct batch *b, const struct dataset *set, struct err *e)
{
    int r = loader_new(&b->loader, e);
    if (r == 0 && b->is_first)
        loader_open(b->loader, LOADER_FEATURES, b->max_rows, feature_bytes(set, b->max_rows),
                    fetch_features, b);
    for (int i = 0; i < LOADER_LANES; i++)
        b->fetch_ns[i] = FIRST_GUESS_NS;
    if (r == 0 && b->is_last)
        loader_open(b->loader, LOADER_TARGETS, b->max_rows, target_bytes(set, b->max_rows),
                    fetch_targets, b);
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
    if (!n->ops->is_host && b->is_first)
        b->staging = mem_alloc(feature_bytes(set, max_rows));
    int r = b->is_last ? allocate_targets(b, set, e) : 0;
    return r == 0 && wants_loader(n, set) ? start_loader(b, set, e) : r;
}

void batch_done(struct batch *b)
{
    loader_free(b->loader); /* first: it may be at work in the others */
    if (b->net && b->net->ops) {
        b->net->ops->release(b->classes);
        b->net->ops->release(b->targets);
    }
    free(b->staging);
    free(b->host_targets);
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
    int64_t mean = __atomic_load_n(&b->fetch_ns[lane], __ATOMIC_RELAXED);
    int64_t change = (now_ns() - began - mean) / 4;
    mean += change < mean / 4 ? change : mean / 4;
    __atomic_store_n(&b->fetch_ns[lane], mean > 1000 ? mean : 1000, __ATOMIC_RELAXED);
}

static int pays(const struct batch *b, enum loader_lane lane)
{
    return b->loader && (!b->net->ops->is_host ||
                         __atomic_load_n(&b->fetch_ns[lane], __ATOMIC_RELAXED) > BATCH_SLOW_NS);
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
static int fetch_features(void *context, const struct items *items, void *to, struct err *e)
{
    struct batch *b = context;
    int64_t width = b->feature_size, most = ROWS_AT_A_TIME, began = now_ns();
    if (!items->set->features.map && width < READ_AT_A_TIME / (4 * ROWS_AT_A_TIME))
        most = READ_AT_A_TIME / (4 * width);
    for (int64_t at = 0; at < items->count; at += most) {
        int64_t rows = items->count - at < most ? items->count - at : most;
        float *x = (float *)to + at * width;
        int r = data_gather(items->set, items->ids + at, rows, x, NULL, NULL, e);
        if (r == 0)
            r = check_ids(b, items->ids + at, rows, x, e);
        if (r < 0)
            return r;
        if (b->net->ops->is_host)
            apply_folded(b->net, rows * width, x);
    }
    took(b, LOADER_FEATURES, began);
    return 0;
}

static struct items part_of(const struct items *items, int64_t begin, int64_t n)
{
    return (struct items){.set = items->set, .ids = items->ids + begin, .count = n};
}

/* From the loader, if it has them, else fetched now: *ret is where they lie, `own` in the second
 * case. */
static int take(struct batch *b, enum loader_lane lane, const struct items *items, int64_t begin,
                int64_t n, loader_fetch *fetch, void *own, const void **ret, struct err *e)
{
    struct items part = part_of(items, begin, n);
    int r = b->loader ? loader_take(b->loader, lane, items, begin, n, ret, e) : 0;
    if (r != 0)
        return r < 0 ? r : 0;
    *ret = own;
    return fetch(b, &part, own, e);
}

int batch_features(struct batch *b, const struct items *items, int64_t begin, int64_t n, float *x,
                   struct err *e)
{
    const struct ops *o = b->net->ops;
    size_t bytes = (size_t)(n * b->feature_size) * sizeof *x;
    const void *from;
    int r = take(b, LOADER_FEATURES, items, begin, n, fetch_features, o->is_host ? x : b->staging,
                 &from, e);
    if (r < 0 || from == x)
        return r;
    o->upload(x, from, bytes);
    if (!o->is_host)
        apply_folded(b->net, n * b->feature_size, x);
    return 0;
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
    const struct ops *o = b->net->ops;
    void *to = b->classes ? (void *)b->classes : (void *)b->targets;
    const void *from;
    int r = take(b, LOADER_TARGETS, items, begin, n, fetch_targets,
                 o->is_host ? to : b->host_targets, &from, e);
    if (r == 0 && from != to)
        o->upload(to, from, (size_t)(n * b->target_size) * sizeof(float));
    return r;
}

/* ---- ahead ---- */

void batch_expect_features(struct batch *b, const struct items *items, int64_t begin, int64_t n)
{
    if (n > 0 && pays(b, LOADER_FEATURES))
        loader_ask(b->loader, LOADER_FEATURES, items, begin, n);
}

void batch_expect_targets(struct batch *b, const struct items *items, int64_t begin, int64_t n)
{
    if (n > 0 && pays(b, LOADER_TARGETS))
        loader_ask(b->loader, LOADER_TARGETS, items, begin, n);
}
