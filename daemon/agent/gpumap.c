/* devices.json: the number of each GPU that this node has ever had. NVML's own order changes with
 * each start of the driver, and the coordinator's leases go by number; so a number is its UUID's
 * for ever, and is on the disk before anybody hears of it. Failures that only a reset ends are
 * files beside it, gpu-failed.UUID: whoever has reset the GPU removes the file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define MAP_MAX (1024 * 1024)

struct gpu *gpumap_find(const struct agent *g, const char *uuid)
{
    for (int i = 0; uuid && i < g->gpus.count; i++) {
        if (strcmp(g->gpus.items[i].uuid, uuid) == 0)
            return &g->gpus.items[i];
    }
    return NULL;
}

void gpumap_done(struct gpus *s)
{
    for (int i = 0; i < s->count; i++)
        json_decref(s->items[i].look);
    free(s->items);
    s->items = NULL;
    s->count = 0;
}

static char *map_path(const struct agent *g)
{
    return mem_printf("%s/" GPUS_MAP, g->options.state_dir);
}

static struct gpu *add(struct gpus *s, int index, const char *uuid)
{
    s->items = mem_realloc(s->items, (size_t)(s->count + 1) * sizeof *s->items);
    struct gpu *d = &s->items[s->count++];
    *d = (struct gpu){.index = index, .baseline = -1};
    snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
    if (index >= s->next_index)
        s->next_index = index + 1;
    return d;
}

static void copy_text(const json_t *o, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(o, key));
    snprintf(out, size, "%s", text ? text : "");
}

/* ---- reading ---- */

/* A text as an agent writes it: printable ASCII, that fits. */
static int is_plain(const json_t *o, const char *key, size_t size)
{
    const char *text = json_string_value(json_object_get(o, key));
    if (!text || strlen(text) >= size)
        return 0;
    for (; *text; text++) {
        if (*text < ' ' || *text > '~')
            return 0;
    }
    return 1;
}

static int is_whole(const json_t *o, const char *key, json_int_t least, json_int_t most)
{
    const json_t *value = json_object_get(o, key);
    return json_is_integer(value) && json_integer_value(value) >= least &&
           json_integer_value(value) <= most;
}

/* What is not there is not known; what is there is what an agent writes. */
static int are_facts_sound(const json_t *o)
{
    static const struct {
        const char *key;
        size_t size;
    } texts[] = {{"name", LOOK_NAME_SIZE}, {"pci", 32}, {"mig_of", LOOK_UUID_SIZE}};
    const char *card = json_string_value(json_object_get(o, "mig_of"));
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (json_object_get(o, texts[i].key) && !is_plain(o, texts[i].key, texts[i].size))
            return 0;
    }
    if (json_object_get(o, "memory_bytes") && !is_whole(o, "memory_bytes", 0, INT64_MAX))
        return 0;
    return !card || !*card || look_uuid_valid(card);
}

static int load_one(struct agent *g, const json_t *o)
{
    const char *uuid = json_string_value(json_object_get(o, "uuid"));
    const json_t *index = json_object_get(o, "index");
    const json_t *baseline = json_object_get(o, "baseline_bytes");
    const char *boot = json_string_value(json_object_get(o, "boot_id"));
    json_int_t i = json_integer_value(index);
    if (!uuid || !look_uuid_valid(uuid) || !json_is_integer(index) || i < 0 || i >= GPUS_MAX ||
        gpumap_find(g, uuid) || !are_facts_sound(o))
        return -1;
    for (int k = 0; k < g->gpus.count; k++) {
        if (g->gpus.items[k].index == i)
            return -1;
    }
    struct gpu *d = add(&g->gpus, (int)i, uuid);
    copy_text(o, "name", d->name, sizeof d->name);
    copy_text(o, "pci", d->pci, sizeof d->pci);
    copy_text(o, "mig_of", d->mig_of, sizeof d->mig_of);
    d->memory = json_integer_value(json_object_get(o, "memory_bytes"));
    /* Another driver may hold more: what was learnt holds for this boot. */
    if (json_is_integer(baseline) && boot && strcmp(boot, g->boot_id) == 0)
        d->baseline = json_integer_value(baseline);
    d->saved = 1;
    return 0;
}

static char *latch_path(const struct agent *g, const struct gpu *d)
{
    char *path = mem_printf("%s/gpu-failed.%s", g->options.state_dir, d->uuid);
    for (char *p = strrchr(path, '.'); *p; p++) {
        if (*p == '/')
            *p = '_';
    }
    return path;
}

/* One of an earlier boot is over: the card has been without power, or at least was reset. */
static void load_latch(struct agent *g, struct gpu *d)
{
    CLEANUP(mem_freep) char *path = latch_path(g, d);
    json_t *loaded = NULL;
    int r = file_read_json(path, 4096, &loaded, NULL);
    json_auto_t *doc = loaded;
    const char *boot = json_string_value(json_object_get(doc, "boot_id"));
    if (r == ERR_NOT_FOUND)
        return;
    if (boot && strcmp(boot, g->boot_id) != 0) {
        unlink(path);
        return;
    }
    d->latch.state = GPU_FAILED;
    d->latch_saved = 1;
    if (is_plain(doc, "code", sizeof d->latch.code) &&
        is_plain(doc, "reason", sizeof d->latch.reason)) {
        copy_text(doc, "code", d->latch.code, sizeof d->latch.code);
        copy_text(doc, "reason", d->latch.reason, sizeof d->latch.reason);
        return;
    }
    snprintf(d->latch.code, sizeof d->latch.code, "xid"); /* what it was is not to be read */
    snprintf(d->latch.reason, sizeof d->latch.reason,
             "The agent's state directory has a file gpu-failed.%s, which cannot be read. Once the "
             "GPU has been reset or replaced, remove that.",
             d->uuid);
}

int gpumap_load(struct agent *g, struct err *e)
{
    CLEANUP(mem_freep) char *path = map_path(g);
    json_t *loaded;
    json_t *o;
    size_t i;
    struct err why;
    int r = file_read_json(path, MAP_MAX, &loaded, &why);
    if (r == ERR_NOT_FOUND)
        return 0;
    if (r == 0) {
        json_auto_t *doc = loaded;
        int bad =
            !json_is_array(json_object_get(doc, "gpus")) || !is_whole(doc, "next", 0, GPUS_MAX);
        g->gpus.next_index = (int)json_integer_value(json_object_get(doc, "next"));
        json_array_foreach(json_object_get(doc, "gpus"), i, o) bad |= load_one(g, o) < 0;
        if (bad)
            r = err_set(&why, ERR_CORRUPT, "%s is not what an agent writes", path);
    }
    if (r < 0)
        return err_set(e, ERR_CORRUPT,
                       "%.300s; leases go by the numbers in it: put it right, or remove it when no "
                       "job is on this node's GPUs",
                       why.text);
    for (int k = 0; k < g->gpus.count; k++)
        load_latch(g, &g->gpus.items[k]);
    return 0;
}

/* ---- writing ---- */

static json_t *one_to_json(const struct agent *g, const struct gpu *d)
{
    json_t *o = json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:s}", "index", d->index, "uuid", d->uuid,
                          "name", d->name, "pci", d->pci, "mig_of", d->mig_of, "memory_bytes",
                          (json_int_t)d->memory, "boot_id", g->boot_id);
    if (d->baseline >= 0)
        json_object_set_new(o, "baseline_bytes", json_integer(d->baseline));
    return o;
}

/* On a node that had no GPU, CPUs have the numbers from 0 on: until the first GPU is on the disk.
 */
static int cpus_hold_numbers(struct agent *g)
{
    int held = 0;
    for (int i = 0; i < g->gpus.count; i++) {
        if (g->gpus.items[i].saved)
            return 0;
    }
    for (int i = 0; g->cpu_first == 0 && i < g->attempt_count; i++)
        held |= g->attempts[i]->on_cpus;
    if (held && !g->gpus.waits_for_cpus)
        log_event(LOG_LEVEL_WARNING, "gpus_wait",
                  "note=\"GPUs have appeared; they are offered once the jobs on CPUs have ended, "
                  "for until then those have their numbers\"");
    g->gpus.waits_for_cpus = held;
    return held;
}

void gpumap_save(struct agent *g)
{
    struct gpus *s = &g->gpus;
    CLEANUP(mem_freep) char *path = map_path(g);
    struct err e;
    if (!s->wrong_map || (s->count > 0 && cpus_hold_numbers(g)))
        return;
    json_t *list = json_array();
    for (int i = 0; i < s->count; i++)
        json_array_append_new(list, one_to_json(g, &s->items[i]));
    json_auto_t *doc = json_pack("{s:i, s:o}", "next", s->next_index, "gpus", list);
    if (!doc || file_write_json(path, doc, 0600, &e) < 0) {
        log_event(LOG_LEVEL_ERROR, "gpu_map", "error=%s note=\"new GPUs are not offered\"",
                  log_quote(doc ? e.text : "it cannot be printed"));
        return;
    }
    s->wrong_map = 0;
    for (int i = 0; i < s->count; i++)
        s->items[i].saved = 1;
}

/* ---- new ones ---- */

static int by_place(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a;
    const json_t *y = *(json_t *const *)b;
    const char *pci_x = json_string_value(json_object_get(x, "pci"));
    const char *pci_y = json_string_value(json_object_get(y, "pci"));
    int order = strcmp(pci_x ? pci_x : "", pci_y ? pci_y : "");
    return order ? order
                 : strcmp(json_string_value(json_object_get(x, "uuid")),
                          json_string_value(json_object_get(y, "uuid")));
}

static void add_new(struct agent *g, const char *uuid)
{
    struct gpus *s = &g->gpus;
    if (s->next_index >= GPUS_MAX) {
        log_event(LOG_LEVEL_ERROR, "gpu_map",
                  "gpu=%s note=\"all %d numbers are taken; it is not offered. Remove " GPUS_MAP
                  " when no job is on this node's GPUs\"",
                  uuid, GPUS_MAX);
        return;
    }
    struct gpu *d = add(s, s->next_index, uuid);
    s->wrong_map = 1;
    load_latch(g, d);
    log_event(LOG_LEVEL_INFO, "gpu_found", "index=%d uuid=%s", d->index, d->uuid);
}

void gpumap_add(struct agent *g, const json_t *look_gpus)
{
    json_t *unknown[LOOK_GPUS_MAX * (1 + LOOK_MIG_MAX)];
    size_t count = 0;
    json_t *gpu;
    size_t i;
    json_array_foreach(look_gpus, i, gpu)
    {
        const char *uuid = json_string_value(json_object_get(gpu, "uuid"));
        if (uuid && look_uuid_valid(uuid) && !gpumap_find(g, uuid) && count < ARRAY_LEN(unknown))
            unknown[count++] = gpu;
    }
    if (count == 0 || cpus_hold_numbers(g))
        return;
    qsort(unknown, count, sizeof unknown[0], by_place);
    for (size_t k = 0; k < count; k++) {
        const char *uuid = json_string_value(json_object_get(unknown[k], "uuid"));
        if (!gpumap_find(g, uuid))
            add_new(g, uuid);
    }
}

/* ---- failures ---- */

void gpumap_latch(struct agent *g, struct gpu *d)
{
    CLEANUP(mem_freep) char *path = latch_path(g, d);
    struct err e;
    json_auto_t *doc = json_pack("{s:s, s:s, s:s}", "boot_id", g->boot_id, "code", d->latch.code,
                                 "reason", d->latch.reason);
    d->latch_saved = doc && file_write_json(path, doc, 0600, &e) == 0;
    if (!d->latch_saved)
        log_event(LOG_LEVEL_ERROR, "gpu_latch", "gpu=%s error=%s", d->uuid,
                  log_quote(doc ? e.text : "it cannot be printed"));
}

void gpumap_check_latches(struct agent *g)
{
    for (int i = 0; i < g->gpus.count; i++) {
        struct gpu *d = &g->gpus.items[i];
        CLEANUP(mem_freep) char *path = latch_path(g, d);
        if (d->latch.state != GPU_FAILED)
            continue;
        if (!d->latch_saved) {
            gpumap_latch(g, d);
        } else if (access(path, F_OK) < 0 && errno == ENOENT) {
            log_event(LOG_LEVEL_INFO, "gpu_cleared", "index=%d uuid=%s", d->index, d->uuid);
            d->latch = (struct gpu_finding){.state = GPU_READY};
            d->latch_saved = 0;
        }
    }
}
