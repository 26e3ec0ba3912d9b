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
static void devices_free(struct device *devices, size_t count)
{
    for (size_t i = 0; devices && i < count; i++)
        free(devices[i].name);
    free(devices);
}

static void node_free(struct node *n)
{
    devices_free(n->devices, n->device_count);
    free(n->name);
    free(n->boot_id);
    free(n->state_id);
    free(n->share);
    free(n->version);
    free(n->devices_text);
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
static int device_parse(const json_t *doc, size_t i, struct device *ret, struct err *e)
{
    json_int_t index, memory = 0;
    const char *kind = NULL, *name = "";
    json_error_t je;
    if (json_unpack_ex((json_t *)doc, &je, 0, "{s:I, s:s, s?I, s?s}", "index", &index, "kind",
                       &kind, "memory_bytes", &memory, "name", &name) != 0)
        return err_set(e, ERR_INVALID, "devices[%zu]: %s", i, je.text);
    if (index < 0 || index >= 1000000 || memory < 0)
        return err_set(e, ERR_INVALID, "devices[%zu]: index or memory_bytes is out of range", i);
    int is_gpu = strcmp(kind, "gpu") == 0;
    if (!is_gpu && strcmp(kind, "cpu") != 0)
        return err_set(e, ERR_INVALID, "devices[%zu]: kind is \"cpu\" or \"gpu\"", i);
    if (strlen(name) > 200)
        return err_set(e, ERR_INVALID, "devices[%zu]: name has more than 200 bytes", i);
    *ret = (struct device){.index = index,
                           .kind = is_gpu ? DEVICE_GPU : DEVICE_CPU,
                           .memory = memory,
                           .name = mem_strdup(name)};
    return 0;
}

static int device_order(const void *a, const void *b)
{
    int64_t x = ((const struct device *)a)->index, y = ((const struct device *)b)->index;
    return (x > y) - (x < y);
}

static int devices_parse(const json_t *doc, struct device **ret, size_t *ret_count, struct err *e)
{
    size_t count = json_array_size(doc);
    if (!json_is_array(doc) || count > NODE_MAX_DEVICES)
        return err_set(e, ERR_INVALID, "devices must be an array of at most %d", NODE_MAX_DEVICES);
    struct device *devices = mem_zalloc((count + 1) * sizeof(*devices));
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = device_parse(json_array_get(doc, i), i, &devices[i], e);
    qsort(devices, count, sizeof(*devices), device_order);
    for (size_t i = 1; i < count && rc == 0; i++)
        if (devices[i].index == devices[i - 1].index)
            rc = err_set(e, ERR_INVALID, "devices: index %lld is there twice",
                         (long long)devices[i].index);
    if (rc != 0) {
        devices_free(devices, count);
        return rc;
    }
    *ret = devices;
    *ret_count = count;
    return 0;
}

int node_set_devices(struct node *n, const json_t *doc, struct err *e)
{
    char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    if (!text)
        return err_set(e, ERR_INVALID, "devices cannot be written as JSON");
    if (n->devices && strcmp(text, n->devices_text) == 0) {
        free(text);
        return 0;
    }
    struct device *devices = NULL;
    size_t count = 0;
    int rc = devices_parse(doc, &devices, &count, e);
    if (rc != 0) {
        free(text);
        return rc;
    }
    for (size_t i = 0; i < count; i++) {
        const struct device *old = node_device(n, devices[i].index);
        if (old) {
            memcpy(devices[i].attempt, old->attempt, sizeof(old->attempt));
            devices[i].haunted = old->haunted;
            devices[i].behind = old->behind;
        }
    }
    devices_free(n->devices, n->device_count);
    free(n->devices_text);
    n->devices = devices;
    n->device_count = count;
    n->devices_text = text;
    return 1;
}

struct device *node_device(struct node *n, int64_t index)
{
    for (size_t i = 0; n->devices && i < n->device_count; i++)
        if (n->devices[i].index == index)
            return &n->devices[i];
    return NULL;
}

int node_device_free(const struct device *d)
{
    return d->attempt[0] == '\0' && !d->haunted;
}

int node_device_open(const struct device *d)
{
    return node_device_free(d) && !d->kept;
}

int node_device_fits(const struct device *d, const struct need *need)
{
    return (need->kind == DEVICE_ANY || (int)d->kind == need->kind) &&
           (d->memory == 0 || d->memory >= need->memory);
}

int node_release(struct node *n, const char *attempt)
{
    int released = 0;
    for (size_t i = 0; i < n->device_count; i++) {
        if (strcmp(n->devices[i].attempt, attempt) == 0) {
            n->devices[i].attempt[0] = '\0';
            n->devices[i].behind = 0;
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
        int counts = which == NODE_COUNT_ALL    ? 1
                     : which == NODE_COUNT_FREE ? node_device_free(d)
                                                : node_device_open(d);
        if (counts && node_device_fits(d, need))
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
    return n->health == NODE_READY && !n->trouble[0] && n->failed.until_us == 0;
}

const char *node_why_not(const struct node *n, int64_t now_us, char out[NODE_WHY_SIZE])
{
    int64_t left_us = n->failed.until_us - now_us;
    out[0] = '\0';
    if (n->trouble[0])
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
