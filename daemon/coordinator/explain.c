/* explain.c: looks for the first obstacle in the order in which they matter: no node at all, none
 * large enough, none of those heard of, too few devices free, free ones kept for another. */
#include "daemon/coordinator/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EXPLAIN_UNREADY 3 /* devices whose reasons are told */

char *explain_bytes(int64_t bytes, char *out)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

static void say(struct explanation *ret, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void say(struct explanation *ret, const char *code, const char *fmt, ...)
{
    va_list ap;
    snprintf(ret->code, sizeof(ret->code), "%s", code);
    va_start(ap, fmt);
    vsnprintf(ret->text, sizeof(ret->text), fmt, ap);
    va_end(ap);
}

/* "16 devices", "1 cpu device" */
static const char *count_text(int64_t count, int kind, const char *adjective, char out[96])
{
    snprintf(out, 96, "%lld %s%s%s%s", (long long)count, adjective,
             kind == DEVICE_ANY ? "" : device_kind_name((enum device_kind)kind),
             kind == DEVICE_ANY ? "" : " ", count == 1 ? "device" : "devices");
    return out;
}

/* The node with the most devices for this need; ready ones only if asked for. */
static const struct node *largest(const struct nodes *nodes, const struct need *need,
                                  enum node_count which, int only_ready, int64_t *ret_count)
{
    const struct node *best = NULL;
    int64_t most = -1;
    for (size_t i = 0; i < nodes->count; i++) {
        const struct node *n = nodes->items[i];
        int64_t count = node_count_fitting(n, need, which);
        if (only_ready && !node_usable(n))
            continue;
        if (which != NODE_COUNT_ALL && node_count_fitting(n, need, NODE_COUNT_ALL) < need->devices)
            continue;
        if (count > most) {
            best = n;
            most = count;
        }
    }
    *ret_count = most;
    return best;
}

static void never_fits(const struct nodes *nodes, const struct need *need, int64_t most,
                       const struct node *best, struct explanation *ret)
{
    char wanted[96], memory[32];
    count_text(need->devices, need->kind, "", wanted);
    int64_t any_size, untrained;
    struct need without_memory = *need, without_trainer = *need;
    without_memory.memory = 0;
    without_trainer.trains = 0;
    const struct node *mute = largest(nodes, &without_trainer, NODE_COUNT_ALL, 0, &untrained);
    if (need->trains && untrained >= need->devices) {
        say(ret, "never_fits",
            "No node with %s has the trainer for %s: node %s has %lld, but its agent reports no "
            "%s. A command would run there; a training job needs the trainer.",
            wanted, need->kind == DEVICE_CPU ? "CPUs" : "GPUs", mute->name, (long long)untrained,
            need->kind == DEVICE_CPU ? "trainyard-trainer" : "trainyard-trainer-cuda");
        return;
    }
    const struct node *roomy = largest(nodes, &without_memory, NODE_COUNT_ALL, 0, &any_size);
    if (any_size >= need->devices)
        say(ret, "never_fits",
            "No node has %s with %s of memory each: %s has %lld, but only %lld of them with that "
            "much.",
            wanted, explain_bytes(need->memory, memory), roomy->name, (long long)any_size,
            (long long)node_count_fitting(roomy, need, NODE_COUNT_ALL));
    else if (most <= 0 && any_size <= 0)
        say(ret, "never_fits", "No node has %s; none has any of that kind.", wanted);
    else
        say(ret, "never_fits", "No node has %s; the largest, %s, has %lld.", wanted, best->name,
            (long long)most);
}

/* The node that would do is not heard of, or takes no new jobs. */
static void waits_for_node(const struct nodes *nodes, const struct need *need, int64_t now_us,
                           struct explanation *ret)
{
    char why[NODE_WHY_SIZE];
    for (size_t i = 0; i < nodes->count; i++) {
        const struct node *n = nodes->items[i];
        if (node_count_fitting(n, need, NODE_COUNT_ALL) < need->devices)
            continue;
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): all `count` items are nodes */
        if (n->health == NODE_READY && node_why_not(n, now_us, why)[0])
            say(ret, "waiting_for_node", "Waiting for node %s, which takes no new jobs now. %s",
                n->name, why);
        else if (n->seen_us == 0)
            say(ret, "waiting_for_node",
                "Waiting for node %s, which has not reported since the coordinator started.",
                n->name);
        else
            say(ret, "waiting_for_node", "Waiting for node %s, which last reported %lld s ago.",
                n->name, (long long)((now_us - n->seen_us) / 1000000));
        return;
    }
}

/* What was added last is a sentence of a node, which may end with a full stop or not. */
static void finish_sentence(struct explanation *ret)
{
    size_t n = strlen(ret->text);
    if (n > 0 && ret->text[n - 1] != '.' && n + 1 < sizeof(ret->text))
        memcpy(ret->text + n, ".", 2);
}

static int any_has_checkpoint(const struct nodes *nodes, const struct need *need)
{
    for (size_t i = 0; i < nodes->count; i++)
        if (node_has_checkpoint(nodes->items[i], need))
            return 1;
    return 0;
}

static void ahead_text(int64_t ahead, char out[64])
{
    if (ahead < 0)
        out[0] = '\0';
    else if (ahead == 0)
        snprintf(out, 64, "; this job is next");
    else
        snprintf(out, 64, "; %lld %s ahead", (long long)ahead, ahead == 1 ? "job is" : "jobs are");
}

/* Why it is that node which counts, and the way out. */
static void add_place(const struct need *need, struct explanation *ret)
{
    size_t n = strlen(ret->text);
    int waits = strcmp(ret->code, "never_fits") == 0 || strcmp(ret->code, "waiting_for_node") == 0;
    const char *other = waits ? " To start it at step 0 on any node, retry it with {\"from\": "
                                "\"scratch\"}."
                              : "";
    if (need->share[0])
        snprintf(ret->text + n, sizeof(ret->text) - n,
                 " Its checkpoints lie on the shared file system \"%s\", so only nodes that see it "
                 "can go on with it.%s",
                 need->share, other);
    else if (need->node[0])
        snprintf(ret->text + n, sizeof(ret->text) - n,
                 " Its checkpoints lie on node %s, so only that node can go on with it.%s",
                 need->node, other);
}

/* Up to three of the devices that would do and are not ready, with their reasons. */
static void add_unready(const struct nodes *nodes, const struct need *need, struct explanation *ret)
{
    char why[DEVICE_WHY_SIZE];
    int64_t count = 0;
    size_t size = sizeof(ret->text);
    for (size_t i = 0; i < nodes->count; i++) {
        const struct node *n = nodes->items[i];
        for (size_t k = 0; node_usable(n) && k < n->device_count; k++) {
            const struct device *d = &n->devices[k];
            size_t at = strlen(ret->text);
            if (!node_device_fits(d, need) || !node_has_trainer(n, need, d->kind) ||
                !node_device_why_not(n, d, why)[0])
                continue;
            if (count++ < EXPLAIN_UNREADY && at + 100 < size)
                snprintf(ret->text + at, size - at, "%s %s: %s", count == 1 ? " Node" : "; node",
                         n->name, why);
        }
    }
    size_t at = strlen(ret->text);
    if (count > EXPLAIN_UNREADY)
        snprintf(ret->text + at, size - at, "; and %lld more",
                 (long long)(count - EXPLAIN_UNREADY));
}

/* No node has enough devices that are ready or will be when what runs there has ended. */
static void waits_for_repair(const struct nodes *nodes, const struct need *need, int64_t most,
                             const struct node *best, struct explanation *ret)
{
    char wanted[96];
    say(ret, "devices_not_ready", "Waiting for %s on one node: %s has %lld that %s fit for use.",
        count_text(need->devices, need->kind, "", wanted), best->name, (long long)most,
        most == 1 ? "is" : "are");
    add_unready(nodes, need, ret);
    finish_sentence(ret);
}

static void explain(const struct nodes *nodes, const struct need *need, int64_t ahead,
                    int64_t now_us, struct explanation *ret)
{
    int64_t most, most_ready, most_sound, most_free, most_open;
    if (nodes->count == 0) {
        say(ret, "no_nodes", "No node has joined yet.");
        return;
    }
    if (!any_has_checkpoint(nodes, need)) {
        say(ret, "waiting_for_node", "No node that is known sees its checkpoints.");
        return;
    }
    const struct node *best = largest(nodes, need, NODE_COUNT_ALL, 0, &most);
    if (most < need->devices) {
        never_fits(nodes, need, most, best, ret);
        return;
    }
    if (!largest(nodes, need, NODE_COUNT_ALL, 1, &most_ready) || most_ready < need->devices) {
        waits_for_node(nodes, need, now_us, ret);
        return;
    }
    const struct node *sound = largest(nodes, need, NODE_COUNT_SOUND, 1, &most_sound);
    if (most_sound < need->devices) {
        waits_for_repair(nodes, need, most_sound, sound, ret);
        return;
    }
    const struct node *n = largest(nodes, need, NODE_COUNT_FREE, 1, &most_free);
    char queue[64], wanted[96];
    ahead_text(ahead, queue);
    if (most_free < need->devices) {
        say(ret, "waiting_for_devices", "Waiting for %s on one node: %s has %lld of %lld free%s.",
            count_text(need->devices, need->kind, "free ", wanted), n->name, (long long)most_free,
            (long long)node_count_fitting(n, need, NODE_COUNT_ALL), queue);
        add_unready(nodes, need, ret);
        finish_sentence(ret);
    } else if (ahead != 0 && largest(nodes, need, NODE_COUNT_OPEN, 1, &most_open) &&
               most_open < need->devices)
        say(ret, "waiting_for_devices",
            "Waiting for %s on one node: %s has %lld, but they are kept for a job that comes first "
            "and needs more%s.",
            count_text(need->devices, need->kind, "free ", wanted), n->name, (long long)most_free,
            queue);
    else
        say(ret, "ready_to_start", "Ready to start on node %s%s.", n->name, queue);
}

void explain_pending(const struct nodes *nodes, const struct need *need, int64_t ahead,
                     int64_t now_us, struct explanation *ret)
{
    explain(nodes, need, ahead, now_us, ret);
    add_place(need, ret);
}
