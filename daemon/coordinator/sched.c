/* sched.c: which job goes where.
 *
 * Order: priority, then age. All ranks of a job go on one node, on devices of one kind, so a job
 * fits where one ready node, without trouble and not resting (node.h), has as many free devices of
 * its kind with enough memory each, and for a training job the trainer for that kind. A device is
 * free where its node calls it ready, nobody has drained it, and no other name of the same hardware
 * is in use (node.h). Of the nodes that fit, those are preferred where the GPUs are of one model
 * and linked, then those where they are of one model (pick.h); of these the one with the fewest
 * free devices left over is taken (big holes stay whole), then the first by name. A job for any
 * kind of device gets GPUs where they fit if it trains; a command, which may not know what to do
 * with one, gets them where no CPUs are free. A job that goes on from a checkpoint fits only where
 * that checkpoint can be seen.
 *
 * The first job in the order that waits for devices, and would fit on a ready node if that were
 * empty, has one kept for it: of those nodes, the one with the most of its devices free when it
 * came to be first. Of that node jobs behind get no more devices at a time than it has beyond the
 * job's need, so that the others become free as what ran there before ends, and stay so until the
 * job fits. One node at a time is kept: all others are open to whoever fits (backfill), and so are
 * that node's devices of another kind or with too little memory.
 *
 * Guaranteed: jobs of one shape start in order; a job that can never run holds up nobody; a wide
 * job starts as soon as what ran on its node when it came first has ended, however many narrow ones
 * follow. The price: devices idle meanwhile.
 *
 * Cost of a pass: classes to try x nodes, and one look at each blocked class.
 */
#include "daemon/coordinator/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/pick.h"

/* Of a job for any kind. */
static int preferred_kind(const struct need *need)
{
    return need->trains ? DEVICE_GPU : DEVICE_CPU;
}

static int kind_that_fits(const struct node *n, const struct need *need, enum node_count which,
                          struct need *ret)
{
    const int first = preferred_kind(need);
    const int any[] = {first, first == DEVICE_GPU ? DEVICE_CPU : DEVICE_GPU};
    *ret = *need;
    if (need->kind != DEVICE_ANY)
        return node_count_fitting(n, need, which) >= need->devices;
    for (size_t i = 0; i < ARRAY_LEN(any); i++) {
        ret->kind = any[i];
        if (node_count_fitting(n, ret, which) >= need->devices)
            return 1;
    }
    return 0;
}

/* A node where the job could run. */
struct place {
    struct node *node;
    struct need need; /* with the kind it has there */
    int64_t left;     /* free devices of the kind that would be left over */
    enum pick pick;
};

static int is_better(const struct place *a, const struct place *b)
{
    if (a->need.kind != b->need.kind)
        return a->need.kind == preferred_kind(&a->need);
    return a->pick != b->pick ? a->pick < b->pick : a->left < b->left;
}

struct node *sched_place(const struct nodes *nodes, const struct need *need,
                         struct device **devices)
{
    struct place best = {0};
    size_t bytes = (size_t)need->devices * sizeof(*devices);
    CLEANUP(mem_freep) struct device **tried = mem_alloc(bytes + 1);
    for (size_t i = 0; i < nodes->count; i++) {
        struct place p = {.node = nodes->items[i]};
        if (!node_usable(p.node) || !kind_that_fits(p.node, need, NODE_COUNT_OPEN, &p.need))
            continue;
        p.left = node_count_fitting(p.node, &p.need, NODE_COUNT_OPEN) - need->devices;
        if (best.node && best.pick == PICK_LINKED && p.need.kind == best.need.kind &&
            p.left >= best.left)
            continue;
        p.pick = pick_devices(p.node, &p.need, tried);
        if (best.node && !is_better(&p, &best))
            continue;
        best = p;
        memcpy(devices, tried, bytes);
    }
    return best.node;
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

/* ---- what is kept for the job that is next ---- */
/* The node that comes nearest to fitting; *ret_here is the need with the kind it has there. */
static struct node *node_to_keep(const struct nodes *nodes, const struct need *need,
                                 struct need *ret_here)
{
    struct node *best = NULL;
    int64_t most = -1;
    for (size_t i = 0; i < nodes->count; i++) {
        struct node *n = nodes->items[i];
        struct need here;
        if (!node_usable(n) || !kind_that_fits(n, need, NODE_COUNT_SOUND, &here))
            continue;
        int64_t count = node_count_fitting(n, &here, NODE_COUNT_FREE);
        if (count > most) {
            best = n;
            most = count;
            *ret_here = here;
        }
    }
    return best;
}

static void keep_nothing(struct nodes *nodes)
{
    for (size_t i = 0; i < nodes->count; i++)
        for (size_t k = 0; k < nodes->items[i]->device_count; k++)
            nodes->items[i]->devices[k].kept = 0;
}

/* The job's node stays the same while it can be: what ran there before it becomes less. */
static struct node *keeper_of(struct nodes *nodes, const struct candidate *c, struct need *ret_here)
{
    struct node *n = nodes->keeper;
    if (n && nodes->keeper_for == c->seq && node_usable(n) &&
        kind_that_fits(n, &c->need, NODE_COUNT_SOUND, ret_here))
        return n;
    n = node_to_keep(nodes, &c->need, ret_here);
    for (size_t i = 0; n && i < n->device_count; i++)
        n->devices[i].behind = 0;
    nodes->keeper = n;
    nodes->keeper_for = c->seq;
    return n;
}

/* 1 if a node is kept for it now; 0 if no ready one could ever run it. */
static int keep(struct nodes *nodes, const struct candidate *c)
{
    struct need here;
    struct node *n = keeper_of(nodes, c, &here);
    if (!n)
        return 0;
    int64_t spare = node_count_fitting(n, &here, NODE_COUNT_SOUND) - here.devices;
    for (size_t i = 0; i < n->device_count; i++)
        spare -= n->devices[i].behind && node_device_fits(&n->devices[i], &here);
    for (size_t i = 0; i < n->device_count; i++) {
        struct device *d = &n->devices[i];
        if (node_device_fits(d, &here) && node_device_free(d) && spare-- <= 0)
            d->kept = 1;
    }
    return 1;
}

/* The first of the blocked classes for which there is something to keep; 0 if none. */
static int first_blocked(const struct queue *q, const struct nodes *nodes, struct candidate *ret)
{
    int found = 0;
    struct need here;
    for (size_t i = 0; i < q->count; i++) {
        const struct queue_class *k = &q->classes[i];
        struct candidate one = {k->priority, k->need, queue_class_head(k)->seq};
        if (found && k->priority < ret->priority)
            break;
        if (k->blocked && (!found || candidate_order(&one, ret) < 0) &&
            node_to_keep(nodes, &k->need, &here)) {
            *ret = one;
            found = 1;
        }
    }
    return found;
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
    struct candidate *list = all, waiting;
    if (nodes->unsettled)
        nodes_settle(nodes);
    int is_waiting = first_blocked(q, nodes, &waiting), kept = 0;
    keep_nothing(nodes);
    for (int placed = 0; count > 0;) {
        if (!kept && is_waiting && candidate_order(&waiting, list) < 0)
            kept = keep(nodes, &waiting);
        struct queue_class *k = queue_find(q, list->priority, &list->need);
        struct node *n = NULL;
        if (k && k->need.devices <= NODE_MAX_DEVICES)
            n = sched_place(nodes, &k->need, devices);
        if (!n) {
            if (k)
                k->blocked = 1;
            if (k && !kept)
                kept = keep(nodes, list);
            list++;
            count--;
            continue;
        }
        if (placed++ == SCHED_MAX_PLACEMENTS)
            return 1;
        struct queued job = *queue_class_head(k);
        int64_t wanted = k->need.devices;
        int rc = assign(ctx, &job, n, devices, wanted, e);
        if (rc != 0)
            return rc;
        for (int64_t i = 0; kept && n == nodes->keeper && i < wanted; i++)
            devices[i]->behind = 1;
        k = queue_find(q, list->priority, &list->need);
        if (k) {
            list->seq = queue_class_head(k)->seq;
            settle(list, count);
        } else {
            list++;
            count--;
        }
    }
    if (!kept && is_waiting)
        keep(nodes, &waiting);
    return 0;
}
