/* node_devices.c: what a node says of its devices, checked and merged with what is leased there.
 *
 * A lease names (node, index), so an index stands for one device as long as it is leased: a list
 * that says otherwise is not taken, and the node gets no work, until the lease has ended or the
 * list is right again. A leased device that is not in the list stays in ours, absent.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/node.h"

/* ---- names ---- */
static const char *const state_names[] = {[DEVICE_READY] = "ready",
                                          [DEVICE_DIRTY] = "dirty",
                                          [DEVICE_FAILED] = "failed",
                                          [DEVICE_LOST] = "lost"};
_Static_assert(ARRAY_LEN(state_names) == DEVICE_STATE__MAX, "a name for each state");

const char *device_state_name(enum device_state s)
{
    return state_names[s];
}

int device_state_parse(const char *name, enum device_state *ret)
{
    for (int s = 0; s < DEVICE_STATE__MAX; s++) {
        if (strcmp(name, state_names[s]) == 0) {
            *ret = (enum device_state)s;
            return 0;
        }
    }
    return ERR_INVALID;
}

/* ---- release ---- */
static void device_done(struct device *d)
{
    free(d->name);
    free(d->uuid);
    free(d->pci);
    free(d->mig_of);
    free(d->reason);
    free(d->conflict);
    for (size_t i = 0; d->links && i < d->link_count; i++)
        free(d->links[i].uuid);
    free(d->links);
    json_decref(d->said);
}

void devices_free(struct device *devices, size_t count)
{
    for (size_t i = 0; devices && i < count; i++)
        device_done(&devices[i]);
    free(devices);
}

/* ---- one device ---- */
static int wrong(struct err *e, size_t i, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int wrong(struct err *e, size_t i, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(e, ERR_INVALID, "devices[%zu]: %s", i, text);
}

static int is_uuid(const char *s)
{
    return strlen(s) <= DEVICE_UUID_MAX &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:") ==
               strlen(s);
}

static int parse_links(const json_t *list, size_t i, struct device *d, struct err *e)
{
    size_t count = json_array_size(list);
    if (list && !json_is_array(list))
        return wrong(e, i, "links is an array of {\"uuid\", \"kind\", \"count\"}");
    if (count > DEVICE_MAX_LINKS)
        return wrong(e, i, "there are at most %d links", DEVICE_MAX_LINKS);
    d->links = mem_zalloc((count + 1) * sizeof(*d->links));
    for (; d->link_count < count; d->link_count++) {
        struct device_link *l = &d->links[d->link_count];
        const char *uuid, *kind = "";
        json_int_t number = 1;
        if (json_unpack(json_array_get(list, d->link_count), "{s:s, s?s, s?I}", "uuid", &uuid,
                        "kind", &kind, "count", &number) != 0 ||
            !is_uuid(uuid) || strlen(kind) >= sizeof(l->kind) || number < 0 || number > 1024)
            return wrong(e, i,
                         "links[%zu] is {\"uuid\", \"kind\": at most %zu bytes, \"count\": 0 to "
                         "1024}",
                         d->link_count, sizeof(l->kind) - 1);
        l->uuid = mem_strdup(uuid);
        snprintf(l->kind, sizeof(l->kind), "%s", kind);
        l->count = number;
    }
    return 0;
}

static int check_texts(size_t i, const char *name, const char *uuid, const char *mig_of,
                       const char *pci, const char *code, const char *reason, struct err *e)
{
    if (strlen(name) > 200)
        return wrong(e, i, "name has more than 200 bytes");
    if (!is_uuid(uuid) || !is_uuid(mig_of))
        return wrong(e, i,
                     "uuid and mig_of have at most %d of A-Z, a-z, 0-9 and '-', '_', '.', '/', ':'",
                     DEVICE_UUID_MAX);
    if (strlen(pci) > 40)
        return wrong(e, i, "pci has more than 40 bytes");
    if (strlen(code) > DEVICE_CODE_MAX ||
        strspn(code, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(code))
        return wrong(e, i, "code has at most %d of a-z, 0-9 and '_'", DEVICE_CODE_MAX);
    if (strlen(reason) > DEVICE_REASON_MAX)
        return wrong(e, i, "reason has more than %d bytes", DEVICE_REASON_MAX);
    return 0;
}

/* As it is kept: what is known of it, and nothing else that its node may have written. */
static json_t *device_written(const struct device *d)
{
    json_t *o = json_pack("{s:I, s:s, s:I, s:s, s:s, s:s, s:I, s:s, s:s, s:s, s:s}", "index",
                          (json_int_t)d->index, "kind", device_kind_name(d->kind), "memory_bytes",
                          (json_int_t)d->memory, "name", d->name, "uuid", d->uuid, "pci", d->pci,
                          "numa", (json_int_t)d->numa, "mig_of", d->mig_of, "state",
                          device_state_name(d->state), "code", d->code, "reason", d->reason);
    json_t *links = json_array();
    for (size_t i = 0; i < d->link_count; i++)
        json_array_append_new(links,
                              json_pack("{s:s, s:s, s:I}", "uuid", d->links[i].uuid, "kind",
                                        d->links[i].kind, "count", (json_int_t)d->links[i].count));
    json_object_set_new(o, "links", links);
    if (d->absent)
        json_object_set_new(o, "absent", json_true());
    return o;
}

static int parse_device(const json_t *doc, size_t i, struct device *d, struct err *e)
{
    json_int_t index, memory = 0, numa = -1;
    const char *kind, *name = "", *uuid = "", *pci = "", *mig_of = "", *state = "ready";
    const char *code = "", *reason = "";
    const json_t *links = NULL;
    int absent = 0;
    json_error_t je;
    if (json_unpack_ex((json_t *)doc, &je, 0,
                       "{s:I, s:s, s?I, s?s, s?s, s?s, s?I, s?s, s?s, s?s, s?s, s?o, s?b}", "index",
                       &index, "kind", &kind, "memory_bytes", &memory, "name", &name, "uuid", &uuid,
                       "pci", &pci, "numa", &numa, "mig_of", &mig_of, "state", &state, "code",
                       &code, "reason", &reason, "links", &links, "absent", &absent) != 0)
        return wrong(e, i, "%s", je.text);
    if (index < 0 || index >= 1000000 || memory < 0 || numa < -1 || numa > 65535)
        return wrong(e, i, "index, memory_bytes or numa is out of range");
    int is_gpu = strcmp(kind, "gpu") == 0;
    if (!is_gpu && strcmp(kind, "cpu") != 0)
        return wrong(e, i, "kind is \"cpu\" or \"gpu\"");
    if (device_state_parse(state, &d->state) != 0)
        return wrong(e, i, "state is \"ready\", \"dirty\", \"failed\" or \"lost\"");
    if (check_texts(i, name, uuid, mig_of, pci, code, reason, e) != 0)
        return ERR_INVALID;
    d->index = index;
    d->kind = is_gpu ? DEVICE_GPU : DEVICE_CPU;
    d->memory = memory;
    d->numa = numa;
    d->absent = absent;
    mem_replace(&d->name, name);
    mem_replace(&d->uuid, uuid);
    mem_replace(&d->pci, pci);
    mem_replace(&d->mig_of, mig_of);
    mem_replace(&d->reason, reason);
    snprintf(d->code, sizeof(d->code), "%s", code);
    for (int f = 0; f < FIGURE__MAX; f++)
        d->figures[f] = NAN;
    int rc = parse_links(links, i, d, e);
    if (rc == 0)
        d->said = device_written(d);
    return rc;
}

/* ---- the list ---- */
static int by_index(const void *a, const void *b)
{
    int64_t x = ((const struct device *)a)->index, y = ((const struct device *)b)->index;
    return (x > y) - (x < y);
}

static int by_uuid(const void *a, const void *b)
{
    const struct device *const *x = a, *const *y = b;
    return strcmp((*x)->uuid, (*y)->uuid);
}

static int check_unique(const struct device *devices, size_t count, struct err *e)
{
    for (size_t i = 1; i < count; i++)
        if (devices[i].index == devices[i - 1].index)
            return err_set(e, ERR_INVALID, "devices: index %lld is there twice",
                           (long long)devices[i].index);
    CLEANUP(mem_freep) const struct device **all = mem_alloc((count + 1) * sizeof(*all));
    for (size_t i = 0; i < count; i++)
        all[i] = &devices[i];
    qsort(all, count, sizeof(*all), by_uuid);
    for (size_t i = 1; i < count; i++)
        if (all[i]->uuid[0] && strcmp(all[i]->uuid, all[i - 1]->uuid) == 0)
            return err_set(e, ERR_INVALID,
                           "devices: indices %lld and %lld have one uuid, %s; a device has one "
                           "index",
                           (long long)all[i - 1]->index, (long long)all[i]->index, all[i]->uuid);
    return 0;
}

static int parse_list(const json_t *doc, struct device **ret, size_t *ret_count, struct err *e)
{
    size_t count = json_array_size(doc);
    if (!json_is_array(doc) || count > NODE_MAX_DEVICES)
        return err_set(e, ERR_INVALID, "devices must be an array of at most %d", NODE_MAX_DEVICES);
    struct device *devices = mem_zalloc((count + 1) * sizeof(*devices));
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = parse_device(json_array_get(doc, i), i, &devices[i], e);
    qsort(devices, count, sizeof(*devices), by_index);
    if (rc == 0)
        rc = check_unique(devices, count, e);
    if (rc != 0) {
        devices_free(devices, count);
        return rc;
    }
    *ret = devices;
    *ret_count = count;
    return 0;
}

/* ---- merging ---- */
struct device *node_device(struct node *n, int64_t index)
{
    for (size_t i = 0; n->devices && i < n->device_count; i++)
        if (n->devices[i].index == index)
            return &n->devices[i];
    return NULL;
}

/* "GPU-1f…", or its kind where it has no UUID. */
static const char *what_it_is(const struct device *d)
{
    return d->uuid[0] ? d->uuid : d->kind == DEVICE_GPU ? "a GPU" : "a CPU device";
}

/* A leased index that would be another device: the sentence, yours; NULL if there is none. */
static char *find_mismatch(struct node *n, const struct device *devices, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct device *d = &devices[i], *old = node_device(n, d->index);
        if (!old || !old->attempt[0])
            continue;
        int other = old->uuid[0] && d->uuid[0] && strcmp(old->uuid, d->uuid) != 0;
        if (other || old->kind != d->kind)
            return mem_printf("Its device %lld is leased to attempt %s as %s, and it now reports "
                              "%s under that index. An index stays with a device: put the agent's "
                              "devices.json back, or wait until the attempt has ended.",
                              (long long)d->index, old->attempt, what_it_is(old), what_it_is(d));
    }
    return NULL;
}

/* What we know of it beyond what its node says. */
static void inherit(struct device *d, const struct device *old)
{
    memcpy(d->attempt, old->attempt, sizeof(old->attempt));
    d->haunted = old->haunted;
    d->behind = old->behind;
    if (strcmp(d->uuid, old->uuid) != 0 && old->uuid[0])
        return; /* another one has that index */
    d->told = old->told;
    d->followed = old->followed;
    d->changes = old->changes;
    d->is_broken = old->is_broken;
    d->events_us = old->events_us;
    d->idle_us = old->idle_us;
    d->figures_us = old->figures_us;
    memcpy(d->figures, old->figures, sizeof(old->figures));
    if (d->absent)
        d->absent_us = old->absent_us;
}

/* A copy of a leased device that the list lacks. */
static void keep_absent(struct device *d, const struct device *old)
{
    struct err e;
    json_t *said = json_copy(old->said);
    json_object_set_new(said, "absent", json_true());
    if (parse_device(said, 0, d, &e) != 0)
        BUG("a device that was taken cannot be read again: %s", e.text);
    json_decref(said);
    inherit(d, old);
    d->state = old->state;
    snprintf(d->code, sizeof(d->code), "%s", old->code);
    mem_replace(&d->reason, old->reason);
}

static int has_index(const struct device *devices, size_t count, int64_t index)
{
    struct device key = {.index = index};
    return bsearch(&key, devices, count, sizeof(*devices), by_index) != NULL;
}

/* The new list with the leased ones that it lacks; takes `devices`. */
static struct device *merge(struct node *n, struct device *devices, size_t *count)
{
    size_t all = *count;
    for (size_t i = 0; i < *count; i++) {
        const struct device *old = node_device(n, devices[i].index);
        if (old)
            inherit(&devices[i], old);
    }
    for (size_t i = 0; i < n->device_count; i++) {
        const struct device *old = &n->devices[i];
        if (!old->attempt[0] || has_index(devices, *count, old->index))
            continue;
        devices = mem_realloc(devices, (all + 1) * sizeof(*devices));
        devices[all] = (struct device){0};
        keep_absent(&devices[all++], old);
    }
    *count = all;
    qsort(devices, all, sizeof(*devices), by_index);
    return devices;
}

/* One that was kept for its lease alone, which has ended. */
static int has_left_over(const struct node *n)
{
    for (size_t i = 0; i < n->device_count; i++)
        if (n->devices[i].absent && !n->devices[i].attempt[0])
            return 1;
    return 0;
}

static void set_stored_text(struct node *n)
{
    json_auto_t *list = json_array();
    for (size_t i = 0; i < n->device_count; i++)
        json_array_append(list, n->devices[i].said);
    free(n->devices_text);
    n->devices_text = json_dumps(list, JSON_COMPACT | JSON_SORT_KEYS);
    if (!n->devices_text)
        BUG("devices cannot be written as JSON");
}

static void note_drains(struct node *n)
{
    char key[DEVICE_KEY_SIZE];
    for (size_t i = 0; i < n->device_count; i++)
        n->devices[i].is_drained = node_drain(n, node_device_key(&n->devices[i], key)) != NULL;
}

/* As it was said last: 1 if nothing is to be done. */
static int is_known(struct node *n, const char *text)
{
    if (!n->devices || strcmp(text, n->said_text) != 0 || has_left_over(n))
        return 0;
    free(n->mismatch);
    n->mismatch = NULL;
    return 1;
}

int node_set_devices(struct node *n, const json_t *doc, struct err *e)
{
    CLEANUP(mem_freep)
    char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    struct device *devices = NULL;
    size_t count = 0;
    if (!text)
        return err_set(e, ERR_INVALID, "devices cannot be written as JSON");
    if (is_known(n, text))
        return 0;
    int rc = parse_list(doc, &devices, &count, e);
    if (rc != 0)
        return rc;
    free(n->mismatch);
    n->mismatch = find_mismatch(n, devices, count);
    if (n->mismatch) {
        devices_free(devices, count);
        return 0;
    }
    devices = merge(n, devices, &count);
    devices_free(n->devices, n->device_count);
    n->devices = devices;
    n->device_count = count;
    free(n->said_text);
    n->said_text = STEAL(text);
    set_stored_text(n);
    note_drains(n);
    return 1;
}

/* ---- one piece of hardware under two names ---- */
struct claim {
    struct node *node;
    struct device *device;
};

static int is_heard(const struct node *n)
{
    return n->health == NODE_READY || n->health == NODE_SUSPECT;
}

/* Of two claims to a device the first has it: who leases it, who does not call it lost (a card that
 * was moved), who can be heard of, who came first. */
static int claim_order(const void *a, const void *b)
{
    const struct claim *x = a, *y = b;
    int order = strcmp(x->device->uuid, y->device->uuid);
    if (order == 0)
        order = !x->device->attempt[0] - !y->device->attempt[0];
    if (order == 0)
        order = (x->device->state == DEVICE_LOST) - (y->device->state == DEVICE_LOST);
    if (order == 0)
        order = !is_heard(x->node) - !is_heard(y->node);
    if (order == 0)
        order =
            (x->node->joined_us > y->node->joined_us) - (x->node->joined_us < y->node->joined_us);
    return order ? order : strcmp(x->node->name, y->node->name);
}

static void settle_claims(struct claim *claims, size_t count)
{
    qsort(claims, count, sizeof(*claims), claim_order);
    for (size_t i = 1, first = 0; i < count; i++) {
        const struct claim *owner = &claims[first];
        if (strcmp(claims[i].device->uuid, owner->device->uuid) != 0)
            first = i;
        else
            claims[i].device->conflict =
                mem_printf("node %s reports the same device, %s, as its device %lld",
                           owner->node->name, owner->device->uuid, (long long)owner->device->index);
    }
}

static struct device *find_uuid(struct node *n, const char *uuid)
{
    for (size_t i = 0; i < n->device_count; i++)
        if (strcmp(n->devices[i].uuid, uuid) == 0)
            return &n->devices[i];
    return NULL;
}

/* A GPU that is divided into MIG instances is not used as a whole, and they are not while it is. */
static void settle_mig(struct node *n)
{
    for (size_t i = 0; i < n->device_count; i++) {
        struct device *d = &n->devices[i];
        struct device *whole = d->mig_of[0] ? find_uuid(n, d->mig_of) : NULL;
        if (!whole || whole == d)
            continue;
        if (whole->attempt[0] && !d->conflict)
            d->conflict = mem_printf("device %lld, which it is a part of, is leased as a whole",
                                     (long long)whole->index);
        if (!whole->conflict)
            whole->conflict = mem_printf("it is divided into MIG instances, such as device %lld",
                                         (long long)d->index);
    }
}

void nodes_settle(struct nodes *l)
{
    struct claim *claims = NULL;
    size_t count = 0, cap = 0;
    l->unsettled = 0;
    for (size_t i = 0; i < l->count; i++) {
        struct node *n = l->items[i];
        for (size_t k = 0; k < n->device_count; k++) {
            struct device *d = &n->devices[k];
            free(d->conflict);
            d->conflict = NULL;
            if (!d->uuid[0] && d->kind == DEVICE_GPU)
                d->conflict = mem_strdup("it has no uuid, by which a rank is given its GPU");
            if (!d->uuid[0])
                continue;
            if (count == cap) {
                cap = cap ? 2 * cap : 64;
                claims = mem_realloc(claims, cap * sizeof(*claims));
            }
            claims[count++] = (struct claim){n, d};
        }
    }
    if (count > 0)
        settle_claims(claims, count);
    free(claims);
    for (size_t i = 0; i < l->count && count > 0; i++)
        settle_mig(l->items[i]);
}
