/* node.c: the list of nodes, sorted by name, and their devices. At most a few hundred nodes, so
 * that a sorted array of pointers serves. */
#include "daemon/coordinator/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *node_health_name(enum node_health h)
{
    static const char *const names[] = {[NODE_UNKNOWN] = "unknown",
                                        [NODE_READY] = "ready",
                                        [NODE_SUSPECT] = "suspect",
                                        [NODE_LOST] = "lost"};
    _Static_assert(ARRAY_LEN(names) == NODE_HEALTH__MAX, "a name for each health");
    return names[h];
}

/* ---- the list ---- */
static void node_free(struct node *n)
{
    devices_free(n->devices, n->device_count);
    free(n->name);
    free(n->boot_id);
    free(n->state_id);
    free(n->share);
    free(n->version);
    free(n->devices_text);
    free(n->said_text);
    free(n->mismatch);
    for (size_t i = 0; i < n->drain_count; i++)
        drain_row_done(&n->drains[i]);
    free(n->drains);
    free(n->absences);
    free(n);
}

void nodes_done(struct nodes *l)
{
    for (size_t i = 0; i < l->count; i++)
        node_free(l->items[i]);
    free(l->items);
    *l = (struct nodes){0};
}

static size_t place_of(const struct nodes *l, const char *name, int after)
{
    size_t low = 0, high = l->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(l->items[middle]->name, name);
        if (order < 0 || (after && order == 0))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t nodes_first_after(const struct nodes *l, const char *name)
{
    return name ? place_of(l, name, 1) : 0;
}

struct node *nodes_find(const struct nodes *l, const char *name)
{
    size_t at = place_of(l, name, 0);
    return at < l->count && strcmp(l->items[at]->name, name) == 0 ? l->items[at] : NULL;
}

struct node *nodes_get(struct nodes *l, const char *name)
{
    size_t at = place_of(l, name, 0);
    if (at < l->count && strcmp(l->items[at]->name, name) == 0)
        return l->items[at];
    if (l->count == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 8;
        l->items = mem_realloc(l->items, l->cap * sizeof(struct node *));
    }
    memmove(&l->items[at + 1], &l->items[at], (l->count - at) * sizeof(struct node *));
    l->count++;
    struct node *n = mem_zalloc(sizeof(*n));
    n->name = mem_strdup(name);
    n->boot_id = mem_strdup("");
    n->state_id = mem_strdup("");
    n->share = mem_strdup("");
    n->version = mem_strdup("");
    n->devices_text = mem_strdup("[]");
    n->said_text = mem_strdup("");
    n->trainers = NODE_TRAINERS_ALL;
    l->items[at] = n;
    return n;
}

void nodes_drop(struct nodes *l, struct node *n)
{
    size_t at = place_of(l, n->name, 0);
    l->count--;
    memmove(&l->items[at], &l->items[at + 1], (l->count - at) * sizeof(struct node *));
    node_free(n);
}

int node_name_valid(const char *name)
{
    size_t length = strlen(name);
    return length > 0 && length <= NODE_NAME_MAX && name[0] != '.' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == length;
}

/* ---- devices ---- */
int64_t node_device_memory(const struct device *d)
{
    if (d->kind != DEVICE_GPU)
        return d->memory;
    return d->memory >= 2 * NODE_GPU_ROOM ? d->memory - NODE_GPU_ROOM : d->memory / 2;
}

int node_device_is_checking(const struct device *d)
{
    return d->state == DEVICE_DIRTY && strcmp(d->code, "checking") == 0;
}

int node_device_usable(const struct device *d)
{
    return d->state == DEVICE_READY && !d->absent && !d->is_drained && !d->conflict;
}

/* It is, or will be without anybody's doing, once what leases it has ended. */
static int device_sound(const struct device *d)
{
    return (d->state == DEVICE_READY || node_device_is_checking(d)) && !d->absent &&
           !d->is_drained && !d->conflict;
}

int node_device_free(const struct device *d)
{
    return d->attempt[0] == '\0' && !d->haunted && node_device_usable(d);
}

int node_device_open(const struct device *d)
{
    return node_device_free(d) && !d->kept;
}

int node_device_fits(const struct device *d, const struct need *need)
{
    return (need->kind == DEVICE_ANY || (int)d->kind == need->kind) &&
           (d->memory == 0 || node_device_memory(d) >= need->memory);
}

const char *node_device_key(const struct device *d, char out[DEVICE_KEY_SIZE])
{
    if (d->uuid[0])
        snprintf(out, DEVICE_KEY_SIZE, "%s", d->uuid);
    else
        snprintf(out, DEVICE_KEY_SIZE, "index %lld", (long long)d->index);
    return out;
}

const char *node_device_shown(const struct device *d)
{
    if (d->attempt[0])
        return "leased";
    if (d->haunted)
        return "busy";
    if (d->state != DEVICE_READY)
        return device_state_name(d->state);
    if (d->is_drained)
        return "drained";
    return d->conflict ? "conflict" : "free";
}

static void say_drain(const struct drain_row *r, char *out, size_t size)
{
    snprintf(out, size, "is drained%s%s%s%s", r->by[0] ? " by " : "", r->by,
             r->reason[0] ? ": " : "", r->reason);
}

const char *node_device_why_not(const struct node *n, const struct device *d,
                                char out[DEVICE_WHY_SIZE])
{
    char key[DEVICE_KEY_SIZE], why[DEVICE_WHY_SIZE - 32];
    const struct drain_row *drain = d->is_drained ? node_drain(n, node_device_key(d, key)) : NULL;
    out[0] = '\0';
    if (d->state != DEVICE_READY)
        snprintf(why, sizeof(why), "is %s: %s", device_state_name(d->state),
                 d->reason[0] ? d->reason
                 : d->code[0] ? d->code
                              : "its node does not say why");
    else if (d->absent)
        snprintf(why, sizeof(why), "is gone from what its node reports");
    else if (drain)
        say_drain(drain, why, sizeof(why));
    else if (d->conflict)
        snprintf(why, sizeof(why), "is not used: %s", d->conflict);
    else
        return out;
    size_t length = strlen(why);
    while (length > 0 && why[length - 1] == '.') /* more may follow */
        why[--length] = '\0';
    snprintf(out, DEVICE_WHY_SIZE, "%s %lld %s", d->kind == DEVICE_GPU ? "GPU" : "CPU device",
             (long long)d->index, why);
    return out;
}

int node_has_trainer(const struct node *n, const struct need *need, enum device_kind kind)
{
    unsigned wanted = kind == DEVICE_GPU ? NODE_TRAINER_CUDA : NODE_TRAINER_CPU;
    return !need->trains || (n->trainers & wanted);
}

/* ---- drains ---- */
const struct drain_row *node_drain(const struct node *n, const char *device)
{
    for (size_t i = 0; i < n->drain_count; i++)
        if (strcmp(n->drains[i].device, device) == 0)
            return &n->drains[i];
    return NULL;
}

static void mark_drained(struct node *n, const char *device, int is_drained)
{
    char key[DEVICE_KEY_SIZE];
    for (size_t i = 0; i < n->device_count; i++)
        if (strcmp(node_device_key(&n->devices[i], key), device) == 0)
            n->devices[i].is_drained = is_drained;
}

void node_drop_drain(struct node *n, const char *device)
{
    for (size_t i = n->drain_count; i-- > 0;) {
        if (strcmp(n->drains[i].device, device) == 0) {
            drain_row_done(&n->drains[i]);
            n->drains[i] = n->drains[--n->drain_count];
        }
    }
    mark_drained(n, device, 0);
}

void node_set_drain(struct node *n, const struct drain_row *r)
{
    struct drain_row copy = {.node = mem_strdup(r->node),
                             .device = mem_strdup(r->device),
                             .reason = mem_strdup(r->reason),
                             .by = mem_strdup(r->by),
                             .at_us = r->at_us};
    node_drop_drain(n, copy.device);
    n->drains = mem_realloc(n->drains, (n->drain_count + 1) * sizeof(*n->drains));
    n->drains[n->drain_count++] = copy;
    mark_drained(n, copy.device, 1);
}

int node_release(struct node *n, const char *attempt)
{
    int released = 0;
    for (size_t i = 0; i < n->device_count; i++) {
        if (strcmp(n->devices[i].attempt, attempt) == 0) {
            n->devices[i].attempt[0] = '\0';
            n->devices[i].behind = 0;
            n->devices[i].idle_us = 0;
            released++;
        }
    }
    return released;
}

int node_has_checkpoint(const struct node *n, const struct need *need)
{
    if (need->share[0])
        return strcmp(n->share, need->share) == 0;
    return !need->node[0] || strcmp(n->name, need->node) == 0;
}

int64_t node_count_fitting(const struct node *n, const struct need *need, enum node_count which)
{
    int64_t count[NODE_DEVICE_KINDS] = {0};
    if (!node_has_checkpoint(n, need))
        return 0;
    for (size_t i = 0; i < n->device_count; i++) {
        const struct device *d = &n->devices[i];
        int counts = which == NODE_COUNT_ALL     ? 1
                     : which == NODE_COUNT_SOUND ? device_sound(d)
                     : which == NODE_COUNT_FREE  ? node_device_free(d)
                                                 : node_device_open(d);
        if (counts && node_device_fits(d, need) && node_has_trainer(n, need, d->kind))
            count[d->kind]++;
    }
    if (need->kind != DEVICE_ANY)
        return count[need->kind];
    return count[DEVICE_GPU] > count[DEVICE_CPU] ? count[DEVICE_GPU] : count[DEVICE_CPU];
}

const struct absence *node_absence(const struct node *n, const char *attempt)
{
    for (size_t i = 0; i < n->absence_count; i++)
        if (strcmp(n->absences[i].attempt, attempt) == 0)
            return &n->absences[i];
    return NULL;
}

enum node_health node_health_at(const struct node *n, int64_t now_us, int64_t started_us)
{
    int64_t silence = now_us - (n->seen_us ? n->seen_us : started_us);
    if (silence >= NODE_LOST_US)
        return NODE_LOST;
    if (n->seen_us == 0)
        return NODE_UNKNOWN;
    return silence >= NODE_SUSPECT_US ? NODE_SUSPECT : NODE_READY;
}

/* ---- whether it takes jobs ---- */
int node_usable(const struct node *n)
{
    return n->health == NODE_READY && !n->trouble[0] && n->failed.until_us == 0 && !n->mismatch &&
           !node_drain(n, "");
}

const char *node_why_not(const struct node *n, int64_t now_us, char out[NODE_WHY_SIZE])
{
    int64_t left_us = n->failed.until_us - now_us;
    const struct drain_row *drain = node_drain(n, "");
    char how[NODE_WHY_SIZE - 8];
    out[0] = '\0';
    if (drain) {
        say_drain(drain, how, sizeof(how));
        snprintf(out, NODE_WHY_SIZE, "It %s.", how);
    } else if (n->mismatch)
        snprintf(out, NODE_WHY_SIZE, "%s", n->mismatch);
    else if (n->trouble[0])
        snprintf(out, NODE_WHY_SIZE, "%s", n->trouble);
    else if (n->failed.until_us)
        snprintf(out, NODE_WHY_SIZE,
                 "It rests for %lld s more, since the last %d jobs could not be started there: %s",
                 (long long)(left_us > 0 ? (left_us + 999999) / 1000000 : 0), n->failed.count,
                 n->failed.reason);
    return out;
}

/* Without cutting a UTF-8 sequence in two. */
static void copy_cut(char *out, size_t size, const char *text)
{
    size_t n = strlen(text) < size ? strlen(text) : size - 1;
    while (text[n] && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    memcpy(out, text, n);
    out[n] = '\0';
}

static void note_failed_job(struct failed_starts *f, const char *job)
{
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->jobs[i], job) == 0)
            return;
    if (f->count < NODE_FAILED_JOBS)
        snprintf(f->jobs[f->count++], ID_SIZE, "%s", job);
}

int node_start_failed(struct node *n, const char *job, const char *reason, int64_t now_us)
{
    struct failed_starts *f = &n->failed;
    note_failed_job(f, job);
    copy_cut(f->reason, sizeof(f->reason), reason);
    if (f->count < NODE_FAILED_JOBS || f->until_us)
        return 0; /* what was under way when the rest began says nothing new */
    int64_t rest_us = NODE_REST_US << (f->rests < 5 ? f->rests : 5);
    f->until_us = now_us + (rest_us < NODE_REST_MAX_US ? rest_us : NODE_REST_MAX_US);
    f->rests++;
    return 1;
}

void node_start_went_well(struct node *n)
{
    n->failed = (struct failed_starts){0};
}

int node_wakes(struct node *n, int64_t now_us)
{
    if (n->failed.until_us == 0 || n->failed.until_us > now_us)
        return 0;
    n->failed.until_us = 0;
    return 1;
}
