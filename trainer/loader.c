/* loader.c: one thread, two lanes. A lane goes from idle to asked, loading, ready and back. */
#include "trainer/loader.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum lane_state { LANE_IDLE, LANE_ASKED, LANE_LOADING, LANE_READY };

struct lane {
    enum lane_state state;
    struct items items; /* ids are the lane's own copy */
    int64_t *ids, room;
    void *data;
    loader_fetch *fetch; /* NULL: the lane is closed */
    void *context;
    int status;
    struct err error;
};

struct loader {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked, loaded;
    int is_over;
    struct lane lanes[LOADER_LANES];
};

/* ---- the thread ---- */

static struct lane *next_asked(struct loader *l)
{
    for (int i = 0; i < LOADER_LANES; i++)
        if (l->lanes[i].state == LANE_ASKED)
            return &l->lanes[i];
    return NULL;
}

static void *load(void *context)
{
    struct loader *l = context;
    pthread_mutex_lock(&l->lock);
    while (!l->is_over) {
        struct lane *lane = next_asked(l);
        if (!lane) {
            pthread_cond_wait(&l->asked, &l->lock);
            continue;
        }
        lane->state = LANE_LOADING;
        pthread_mutex_unlock(&l->lock);
        int status = lane->fetch(lane->context, &lane->items, lane->data, &lane->error);
        pthread_mutex_lock(&l->lock);
        lane->status = status;
        lane->state = LANE_READY;
        pthread_cond_signal(&l->loaded);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Signals are the rank's own thread's. */
static int start_thread(struct loader *l)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&l->thread, NULL, load, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int loader_new(struct loader **ret, struct err *e)
{
    struct loader *l = mem_zalloc(sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->asked, NULL);
    pthread_cond_init(&l->loaded, NULL);
    int rc = start_thread(l);
    if (rc == 0) {
        *ret = l;
        return 0;
    }
    free(l);
    return err_set(e, ERR_UNAVAILABLE, "No thread can be started to load data: %s.", strerror(rc));
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->is_over = 1;
    pthread_cond_signal(&l->asked);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    for (int i = 0; i < LOADER_LANES; i++)
        free(l->lanes[i].ids);
    pthread_cond_destroy(&l->asked);
    pthread_cond_destroy(&l->loaded);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- the rank ---- */

size_t loader_bytes(int64_t items)
{
    return (size_t)items * sizeof(int64_t);
}

void loader_open(struct loader *l, enum loader_lane lane, int64_t items, loader_fetch *fetch,
                 void *context)
{
    l->lanes[lane] = (struct lane){.ids = mem_alloc((size_t)items * sizeof(int64_t)),
                                   .room = items,
                                   .fetch = fetch,
                                   .context = context};
}

/* Until the thread has its hands off the lane. */
static void wait_for(struct loader *l, const struct lane *lane)
{
    while (lane->state == LANE_LOADING)
        pthread_cond_wait(&l->loaded, &l->lock);
}

void loader_ask(struct loader *l, enum loader_lane which, const struct items *items, int64_t begin,
                int64_t n, void *to)
{
    struct lane *lane = &l->lanes[which];
    if (!lane->fetch || n > lane->room)
        return;
    pthread_mutex_lock(&l->lock);
    wait_for(l, lane);
    memcpy(lane->ids, items->ids + begin, (size_t)n * sizeof *lane->ids);
    lane->items = (struct items){.set = items->set, .ids = lane->ids, .count = n};
    lane->data = to;
    lane->state = LANE_ASKED;
    pthread_cond_signal(&l->asked);
    pthread_mutex_unlock(&l->lock);
}

void loader_wait(struct loader *l, enum loader_lane which)
{
    const struct lane *lane = &l->lanes[which];
    pthread_mutex_lock(&l->lock);
    while (lane->state == LANE_ASKED || lane->state == LANE_LOADING)
        pthread_cond_wait(&l->loaded, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

int loader_is_ready(struct loader *l, enum loader_lane which)
{
    const struct lane *lane = &l->lanes[which];
    pthread_mutex_lock(&l->lock);
    int is_ready = lane->state == LANE_READY && lane->status == 0;
    pthread_mutex_unlock(&l->lock);
    return is_ready;
}

static int is_it(const struct lane *lane, const struct items *items, int64_t begin, int64_t n)
{
    return lane->state != LANE_IDLE && lane->items.set == items->set && lane->items.count == n &&
           memcmp(lane->ids, items->ids + begin, (size_t)n * sizeof *lane->ids) == 0;
}

int loader_take(struct loader *l, enum loader_lane which, const struct items *items, int64_t begin,
                int64_t n, const void **ret, struct err *e)
{
    struct lane *lane = &l->lanes[which];
    int r = 0;
    pthread_mutex_lock(&l->lock);
    if (is_it(lane, items, begin, n)) {
        while (lane->state != LANE_READY)
            pthread_cond_wait(&l->loaded, &l->lock);
        r = lane->status < 0 ? err_set(e, lane->error.code, "%s", lane->error.text) : 1;
        *ret = lane->data;
        lane->state = LANE_IDLE;
    }
    pthread_mutex_unlock(&l->lock);
    return r;
}
