/* queue.c: classes in a sorted array, each a sorted run of jobs. New jobs have the highest seq, so
 * adding is appending; jobs that come back from a failed start go to their old place, which is
 * mostly the front, and loading adds the newest first: both ends have room. */
#include "daemon/coordinator/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int compare_int(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int class_compare(const struct queue_class *k, int64_t priority, const struct need *n)
{
    int by_priority = compare_int(priority, k->priority);
    if (by_priority != 0)
        return by_priority;
    int by_devices = compare_int(k->need.devices, n->devices);
    if (by_devices != 0)
        return by_devices;
    int by_kind = compare_int(k->need.kind, n->kind);
    if (by_kind != 0)
        return by_kind;
    int by_memory = compare_int(k->need.memory, n->memory);
    if (by_memory != 0)
        return by_memory;
    int by_trains = compare_int(k->need.trains, n->trains);
    if (by_trains != 0)
        return by_trains;
    int by_node = strcmp(k->need.node, n->node);
    return by_node != 0 ? by_node : strcmp(k->need.share, n->share);
}

/* The first class not before (priority, need); 1 in *ret_found if it is that very one. */
static size_t class_find(const struct queue *q, int64_t priority, const struct need *n,
                         int *ret_found)
{
    size_t low = 0, high = q->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (class_compare(&q->classes[middle], priority, n) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_found = low < q->count && class_compare(&q->classes[low], priority, n) == 0;
    return low;
}

/* The first item of the class, counted from its head, with at least that seq. */
static size_t item_find(const struct queue_class *k, int64_t seq)
{
    size_t low = 0, high = k->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (k->items[k->head + middle].seq < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct need queue_need(const struct job_row *job)
{
    struct need n = {.devices = job->devices,
                     .kind = job->device_kind,
                     .memory = job->memory,
                     .trains = job->trains};
    if (job->checkpoint_share && job->checkpoint_share[0])
        snprintf(n.share, sizeof(n.share), "%s", job->checkpoint_share);
    else if (job->checkpoint_node)
        snprintf(n.node, sizeof(n.node), "%s", job->checkpoint_node);
    return n;
}

static struct queue_class *class_insert(struct queue *q, size_t at, int64_t priority,
                                        const struct need *n)
{
    if (q->count == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 8;
        q->classes = mem_realloc(q->classes, q->cap * sizeof(*q->classes));
    }
    memmove(&q->classes[at + 1], &q->classes[at], (q->count - at) * sizeof(*q->classes));
    q->count++;
    q->classes[at] = (struct queue_class){.priority = priority, .need = *n};
    return &q->classes[at];
}

/* Room for one more item behind the last: moves the items to the front when half is unused. */
static void class_reserve(struct queue_class *k)
{
    if (k->head + k->count < k->cap)
        return;
    if (k->head > k->cap / 2) {
        memmove(k->items, k->items + k->head, k->count * sizeof(*k->items));
        k->head = 0;
        return;
    }
    k->cap = k->cap ? 2 * k->cap : 8;
    k->items = mem_realloc(k->items, k->cap * sizeof(*k->items));
}

/* Room for one more item before the first, of which there is as much as there are items. */
static void class_reserve_front(struct queue_class *k)
{
    if (k->head > 0)
        return;
    size_t room = k->count + 8;
    k->cap = k->count + room;
    k->items = mem_realloc(k->items, k->cap * sizeof(*k->items));
    memmove(k->items + room, k->items, k->count * sizeof(*k->items));
    k->head = room;
}

void queue_add(struct queue *q, const struct job_row *job)
{
    struct need n = queue_need(job);
    int found;
    size_t at = class_find(q, job->priority, &n, &found);
    struct queue_class *k = found ? &q->classes[at] : class_insert(q, at, job->priority, &n);
    size_t place = item_find(k, job->seq);
    if (place < k->count && k->items[k->head + place].seq == job->seq)
        return;
    if (place == 0 && k->count > 0) {
        class_reserve_front(k);
        k->head--;
    } else {
        class_reserve(k);
    }
    struct queued *item = &k->items[k->head + place];
    if (place > 0)
        memmove(item + 1, item, (k->count - place) * sizeof(*item));
    item->seq = job->seq;
    snprintf(item->id, sizeof(item->id), "%s", job->id);
    k->count++;
    q->jobs++;
}

int queue_remove(struct queue *q, const struct job_row *job)
{
    struct need n = queue_need(job);
    int found;
    size_t at = class_find(q, job->priority, &n, &found);
    if (!found)
        return 0;
    struct queue_class *k = &q->classes[at];
    size_t place = item_find(k, job->seq);
    if (place == k->count || k->items[k->head + place].seq != job->seq)
        return 0;
    struct queued *item = &k->items[k->head + place];
    if (place == 0)
        k->head++;
    else
        memmove(item, item + 1, (k->count - place - 1) * sizeof(*item));
    k->count--;
    q->jobs--;
    if (k->count == 0) {
        free(k->items);
        q->count--;
        memmove(k, k + 1, (q->count - at) * sizeof(*k));
    }
    return 1;
}

int64_t queue_ahead(const struct queue *q, int64_t priority, int64_t seq)
{
    size_t ahead = 0;
    for (size_t i = 0; i < q->count && q->classes[i].priority >= priority; i++) {
        const struct queue_class *k = &q->classes[i];
        ahead += k->priority > priority ? k->count : item_find(k, seq);
    }
    return (int64_t)ahead;
}

void queue_unblock(struct queue *q)
{
    for (size_t i = 0; i < q->count; i++)
        q->classes[i].blocked = 0;
}

int queue_has_candidates(const struct queue *q)
{
    for (size_t i = 0; i < q->count; i++)
        if (!q->classes[i].blocked)
            return 1;
    return 0;
}

struct queue_class *queue_find(const struct queue *q, int64_t priority, const struct need *n)
{
    int found;
    size_t at = class_find(q, priority, n, &found);
    return found ? &q->classes[at] : NULL;
}

const struct queued *queue_class_head(const struct queue_class *k)
{
    return &k->items[k->head];
}

void queue_done(struct queue *q)
{
    for (size_t i = 0; i < q->count; i++)
        free(q->classes[i].items);
    free(q->classes);
    *q = (struct queue){0};
}
