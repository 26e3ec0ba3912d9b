/* pick.c: devices of one model that are linked to each other, as far as that goes.
 *
 * A search from each open device in turn: the one with the most links to those taken is added,
 * until there are enough. The set with the most links inside it wins, then the one that leaves the
 * fewest links from it to devices that stay free (pairs stay whole), then the lowest indices. One
 * GPU is a set as well: it comes from where it breaks up least.
 */
#include "daemon/coordinator/pick.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct group {
    struct device **items; /* open, fitting, of one model, by index */
    size_t count;
    int64_t *links; /* [count * count]; NULL: there are none, or too many devices */
};

static int64_t links_to(const struct device *from, const struct device *to)
{
    int64_t sum = 0;
    for (size_t i = 0; i < from->link_count; i++)
        if (strcmp(from->links[i].uuid, to->uuid) == 0)
            sum += from->links[i].count;
    return sum;
}

/* A link that one end alone tells of counts as well. */
static void find_links(struct group *g)
{
    int64_t any = 0;
    if (g->count > PICK_MAX_LINKED)
        return;
    g->links = mem_zalloc((g->count * g->count + 1) * sizeof(*g->links));
    for (size_t i = 0; i < g->count; i++) {
        for (size_t k = 0; k < g->count; k++) {
            int64_t there = links_to(g->items[i], g->items[k]);
            int64_t back = links_to(g->items[k], g->items[i]);
            g->links[i * g->count + k] = i == k ? 0 : there > back ? there : back;
            any |= g->links[i * g->count + k];
        }
    }
    if (!any) {
        free(g->links);
        g->links = NULL;
    }
}

/* ---- the search ---- */
struct set {
    size_t chosen[PICK_MAX_LINKED];
    size_t count;
    int64_t inside, outside; /* links between its members, and from them to the others */
    int linked;              /* each was added over a link */
};

static int64_t links_into(const struct group *g, const struct set *s, size_t device)
{
    int64_t sum = 0;
    for (size_t i = 0; i < s->count; i++)
        sum += g->links[device * g->count + s->chosen[i]];
    return sum;
}

static int set_has(const struct set *s, size_t device)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->chosen[i] == device)
            return 1;
    return 0;
}

static void set_grow(const struct group *g, struct set *s)
{
    size_t best = g->count;
    int64_t most = -1;
    for (size_t i = 0; i < g->count; i++) {
        int64_t links = set_has(s, i) ? -1 : links_into(g, s, i);
        if (links > most) {
            most = links;
            best = i;
        }
    }
    s->inside += most;
    s->linked &= most > 0;
    s->chosen[s->count++] = best;
}

static struct set set_from(const struct group *g, size_t start, size_t wanted)
{
    struct set s = {.count = 1, .linked = 1};
    s.chosen[0] = start;
    while (s.count < wanted)
        set_grow(g, &s);
    for (size_t i = 0; i < g->count; i++)
        if (!set_has(&s, i))
            s.outside += links_into(g, &s, i);
    return s;
}

static int set_better(const struct set *a, const struct set *b)
{
    if (a->linked != b->linked)
        return a->linked;
    return a->inside != b->inside ? a->inside > b->inside : a->outside < b->outside;
}

static enum pick pick_of_group(const struct group *g, size_t wanted, struct device **devices)
{
    if (!g->links) {
        for (size_t i = 0; i < wanted; i++)
            devices[i] = g->items[i];
        return wanted == 1 || g->items[0]->kind == DEVICE_CPU ? PICK_LINKED : PICK_ONE_MODEL;
    }
    struct set best = set_from(g, 0, wanted);
    for (size_t start = 1; start < g->count; start++) {
        struct set s = set_from(g, start, wanted);
        if (set_better(&s, &best))
            best = s;
    }
    for (size_t i = 0; i < wanted; i++)
        devices[i] = g->items[best.chosen[i]];
    return best.linked ? PICK_LINKED : PICK_ONE_MODEL;
}

/* ---- models ---- */
/* Cores are named one by one: CPUs of a node are one model. */
static int is_of(const struct device *d, const struct device *first)
{
    return d->kind == DEVICE_CPU || strcmp(d->name, first->name) == 0;
}

static size_t open_devices(struct node *n, const struct need *need, struct device **ret)
{
    size_t count = 0;
    for (size_t i = 0; i < n->device_count; i++)
        if (node_device_fits(&n->devices[i], need) && node_device_open(&n->devices[i]))
            ret[count++] = &n->devices[i];
    return count;
}

/* Those of `all` that are of the model of all[first]; none if an earlier one is. */
static void group_of(struct device *const *all, size_t count, size_t first, struct group *g)
{
    g->count = 0;
    for (size_t i = 0; i < first; i++)
        if (is_of(all[i], all[first]))
            return;
    for (size_t i = first; i < count; i++)
        if (is_of(all[i], all[first]))
            g->items[g->count++] = all[i];
}

enum pick pick_devices(struct node *n, const struct need *need, struct device **devices)
{
    CLEANUP(mem_freep) struct device **all = mem_alloc((n->device_count + 1) * sizeof(*all));
    CLEANUP(mem_freep) struct device **items = mem_alloc((n->device_count + 1) * sizeof(*items));
    CLEANUP(mem_freep) struct device **tried = mem_alloc((n->device_count + 1) * sizeof(*tried));
    size_t count = open_devices(n, need, all), wanted = (size_t)need->devices;
    enum pick best = PICK_MIXED;
    for (size_t i = 0; i < wanted; i++)
        devices[i] = all[i];
    for (size_t first = 0; first < count && best != PICK_LINKED; first++) {
        struct group g = {.items = items};
        group_of(all, count, first, &g);
        if (g.count < wanted)
            continue;
        find_links(&g);
        enum pick is = pick_of_group(&g, wanted, tried);
        free(g.links);
        if (is < best) {
            best = is;
            memcpy(devices, tried, wanted * sizeof(*tried));
        }
    }
    return best;
}

/* ---- what is told of it ---- */
static int all_linked(struct device *const *devices, int64_t count, const char **ret_kind)
{
    for (int64_t i = 1; i < count; i++) {
        int64_t links = 0;
        for (int64_t k = 0; k < i && links == 0; k++)
            links = links_to(devices[i], devices[k]) + links_to(devices[k], devices[i]);
        if (links == 0)
            return 0;
    }
    *ret_kind = devices[0]->link_count ? devices[0]->links[0].kind : "";
    return count > 1;
}

static void say_models(struct device *const *devices, int64_t count, char *out)
{
    int n = snprintf(out, PICK_TEXT_SIZE, "; its GPUs are of different models (");
    const char *join = "";
    for (int64_t i = 0; i < count; i++) {
        int64_t k = 0;
        while (k < i && strcmp(devices[k]->name, devices[i]->name) != 0)
            k++;
        if (k < i || n >= PICK_TEXT_SIZE - 160)
            continue;
        n += snprintf(out + n, (size_t)(PICK_TEXT_SIZE - n), "%s%.60s", join, devices[i]->name);
        join = ", ";
    }
    snprintf(out + n, (size_t)(PICK_TEXT_SIZE - n),
             "), since no node has %lld free ones of one model", (long long)count);
}

const char *pick_say(struct device *const *devices, int64_t count, char out[PICK_TEXT_SIZE])
{
    const char *kind = "";
    out[0] = '\0';
    if (count < 2 || devices[0]->kind != DEVICE_GPU)
        return out;
    for (int64_t i = 1; i < count; i++) {
        if (strcmp(devices[i]->name, devices[0]->name) != 0) {
            say_models(devices, count, out);
            return out;
        }
    }
    if (all_linked(devices, count, &kind))
        snprintf(out, PICK_TEXT_SIZE, "; its GPUs are linked by %s",
                 strcmp(kind, "nvlink") == 0 || !kind[0] ? "NVLink" : kind);
    return out;
}
