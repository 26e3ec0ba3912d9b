/* sched.c: which job goes where.
 *
 * Order: priority, then age. All ranks of a job go on one node, on devices of one kind, so a job
 * fits where one ready node has as many free devices of its kind with enough memory each. Of the
 * nodes that fit, the one with the fewest free devices left over is taken (big holes stay whole),
 * then the first by name; of its devices, those with the lowest index. A job for any kind of
 * device gets GPUs where they fit.
 *
 * Guaranteed: a job starts as soon as it fits and no job before it in the order fits. A job that
 * does not fit, now or ever, holds up nobody (plain backfill, no reservations), and jobs of one
 * shape start in order. Not guaranteed: that a wide job ever finds its devices free at one time
 * while narrow ones keep coming; it does when they stop, or when it has the higher priority and a
 * node runs empty.
 *
 * Cost of a pass: classes to try x nodes, and nothing when every class is blocked.
 */
#include "daemon/coordinator/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int kind_that_fits(const struct node *n, const struct need *need, struct need *ret)
{
    static const int any[] = {DEVICE_GPU, DEVICE_CPU};
    *ret = *need;
    if (need->kind != DEVICE_ANY)
        return node_count_fitting(n, need, 1) >= need->devices;
    for (size_t i = 0; i < ARRAY_LEN(any); i++) {
        ret->kind = any[i];
        if (node_count_fitting(n, ret, 1) >= need->devices)
            return 1;
    }
    return 0;
}

static void take_devices(struct node *n, const struct need *need, struct device **devices)
{
    int64_t taken = 0;
    for (size_t i = 0; i < n->device_count && taken < need->devices; i++) {
        struct device *d = &n->devices[i];
        if ((int)d->kind == need->kind && node_device_free(d) &&
            (d->memory == 0 || d->memory >= need->memory))
            devices[taken++] = d;
    }
}

struct node *sched_place(const struct nodes *nodes, const struct need *need,
                         struct device **devices)
{
    struct node *best = NULL;
    struct need best_need = *need;
    int64_t best_left = 0;
    for (size_t i = 0; i < nodes->count; i++) {
        struct node *n = nodes->items[i];
        struct need here;
        if (n->health != NODE_READY || !kind_that_fits(n, need, &here))
            continue;
        int64_t left = node_count_fitting(n, &here, 1) - need->devices;
        if (!best || left < best_left) {
            best = n;
            best_need = here;
            best_left = left;
        }
    }
    if (best)
        take_devices(best, &best_need, devices);
    return best;
}

/* ---- the pass ---- */
/* Classes are named by what identifies them, since placing changes the queue's arrays. */
struct candidate {
    int64_t priority;
    struct need need;
    int64_t seq; /* of its head */
};

static int candidate_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

static struct candidate *candidates_of(const struct queue *q, size_t *ret_count)
{
    struct candidate *list = mem_alloc((q->count + 1) * sizeof(*list));
    size_t count = 0;
    for (size_t i = 0; i < q->count; i++) {
        const struct queue_class *k = &q->classes[i];
        if (!k->blocked)
            list[count++] = (struct candidate){k->priority, k->need, queue_class_head(k)->seq};
    }
    qsort(list, count, sizeof(*list), candidate_order);
    *ret_count = count;
    return list;
}

/* list[0]'s head was placed: moves it to where its next job belongs. */
static void settle(struct candidate *list, size_t count)
{
    struct candidate moved = list[0];
    size_t at = 0;
    while (at + 1 < count && candidate_order(&list[at + 1], &moved) < 0) {
        list[at] = list[at + 1];
        at++;
    }
    list[at] = moved;
}

int sched_pass(struct queue *q, struct nodes *nodes, sched_assign_fn *assign, void *ctx,
               struct err *e)
{
    size_t count;
    CLEANUP(mem_freep) struct candidate *all = candidates_of(q, &count);
    CLEANUP(mem_freep)
    struct device **devices = mem_alloc((NODE_MAX_DEVICES + 1) * sizeof(*devices));
    struct candidate *list = all;
    for (int placed = 0; count > 0;) {
        struct queue_class *k = queue_find(q, list->priority, &list->need);
        struct node *n = NULL;
        if (k && k->need.devices <= NODE_MAX_DEVICES)
            n = sched_place(nodes, &k->need, devices);
        if (!n) {
            if (k)
                k->blocked = 1;
            list++;
            count--;
            continue;
        }
        if (placed++ == SCHED_MAX_PLACEMENTS)
            return 1;
        struct queued job = *queue_class_head(k);
        int rc = assign(ctx, &job, n, devices, k->need.devices, e);
        if (rc != 0)
            return rc;
        k = queue_find(q, list->priority, &list->need);
        if (k) {
            list->seq = queue_class_head(k)->seq;
            settle(list, count);
        } else {
            list++;
            count--;
        }
    }
    return 0;
}
