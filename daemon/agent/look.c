#include "daemon/agent/look.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define PROCESSES_ROOM 4096 /* of one device; a count beyond that is none */

struct view {
    const struct nvml *n;
    nvml_device handle;
    json_t *gpu;
};

/* ---- questions ---- */

static void note_unanswered(struct view *v, const char *what, const char *why)
{
    json_t *list = json_object_get(v->gpu, "unanswered");
    if (!list)
        json_object_set_new(v->gpu, "unanswered", list = json_object());
    json_object_set_new(list, what, json_string(why));
}

static int answered(struct view *v, const char *what, int r)
{
    if (r == NVML_OK)
        return 1;
    if (r == NVML_GPU_IS_LOST)
        json_object_set_new(v->gpu, "lost", json_string(what));
    else if (r == NVML_RESET_REQUIRED)
        json_object_set_new(v->gpu, "reset_required", json_string(what));
    note_unanswered(v, what, nvml_error_name(r));
    return 0;
}

#define ASK(v, member, ...)                                                                        \
    answered((v), #member, NVML_CALL((v)->n, member, (v)->handle, __VA_ARGS__))

static void set_figure(struct view *v, const char *key, unsigned long long value)
{
    if (value > INT64_MAX)
        note_unanswered(v, key, "an absurd value");
    else
        json_object_set_new(v->gpu, key, json_integer((json_int_t)value));
}

static void set_text(struct view *v, const char *key, const char *text)
{
    char plain[LOOK_NAME_SIZE];
    agent_escape(text, plain, sizeof plain);
    json_object_set_new(v->gpu, key, json_string(plain));
}

/* ---- what is asked of a whole GPU and of an instance alike ---- */

static void ask_name(struct view *v)
{
    char name[LOOK_NAME_SIZE] = "";
    if (ASK(v, name, name, sizeof name)) {
        name[sizeof name - 1] = '\0';
        set_text(v, "name", name);
    }
}

static void ask_memory(struct view *v)
{
    struct nvml_memory_v2 m2 = {.version = NVML_MEMORY_V2};
    struct nvml_memory m = {0};
    if (ASK(v, memory_v2, &m2)) {
        m.total = m2.total;
        m.used = m2.used;
    } else if (!ASK(v, memory, &m)) {
        return;
    }
    set_figure(v, "memory_bytes", m.total);
    set_figure(v, "memory_used_bytes", m.used);
}

/* A display server's memory is there for good, and is no leak. */
static void ask_graphics(struct view *v)
{
    unsigned count = PROCESSES_ROOM;
    unsigned long long bytes = 0;
    CLEANUP(mem_freep) struct nvml_process *list = mem_zalloc(count * sizeof *list);
    if (!ASK(v, graphics, &count, list) || count > PROCESSES_ROOM)
        return;
    for (unsigned i = 0; i < count; i++)
        bytes += list[i].memory < ULLONG_MAX / PROCESSES_ROOM ? list[i].memory : 0;
    set_figure(v, "graphics_bytes", bytes);
}

static int take_v1(struct view *v, unsigned *count, struct nvml_process *list)
{
    CLEANUP(mem_freep) struct nvml_process_v1 *old = mem_zalloc(PROCESSES_ROOM * sizeof *old);
    if (!ASK(v, processes_v1, count, old))
        return 0;
    for (unsigned i = 0; i < *count && i < PROCESSES_ROOM; i++) {
        list[i].pid = old[i].pid;
        list[i].memory = old[i].memory;
    }
    return 1;
}

static void ask_processes(struct view *v)
{
    unsigned count = PROCESSES_ROOM;
    unsigned count_v1 = PROCESSES_ROOM;
    CLEANUP(mem_freep) struct nvml_process *list = mem_zalloc(PROCESSES_ROOM * sizeof *list);
    if (!ASK(v, processes, &count, list)) {
        if (!take_v1(v, &count_v1, list))
            return;
        count = count_v1;
    }
    if (count > PROCESSES_ROOM)
        note_unanswered(v, "processes", "an absurd count");
    else
        look_processes(v->gpu, list, count);
}

/* ---- what is asked of a whole GPU ---- */

static void format_pci(const struct nvml_pci *p, char out[32])
{
    snprintf(out, 32, "%04x:%02x:%02x.0", p->domain, p->bus & 0xff, p->device & 0xff);
}

static void ask_place(struct view *v)
{
    struct nvml_pci p = {0};
    char pci[32];
    if (!ASK(v, pci, &p))
        return;
    format_pci(&p, pci);
    json_object_set_new(v->gpu, "pci", json_string(pci));
    look_place(v->gpu, pci);
}

static void ask_figures(struct view *v)
{
    unsigned value = 0;
    struct nvml_utilization u = {0};
    unsigned long long bits = 0;
    if (ASK(v, temperature, 0, &value))
        set_figure(v, "temperature_c", value);
    if (ASK(v, power, &value))
        json_object_set_new(v->gpu, "power_w", json_real(value / 1000.0));
    if (ASK(v, utilization, &u))
        set_figure(v, "utilization", u.gpu);
    if (ASK(v, clock, NVML_CLOCK_SM, &value))
        set_figure(v, "clock_mhz", value);
    if (ASK(v, throttled, &bits))
        set_figure(v, "throttled", bits);
}

static void ask_ecc(struct view *v)
{
    unsigned on = 0;
    unsigned next = 0;
    unsigned long long count = 0;
    if (ASK(v, ecc_mode, &on, &next) && !on)
        return;
    if (ASK(v, ecc_errors, NVML_ECC_CORRECTED, NVML_ECC_VOLATILE, &count))
        set_figure(v, "ecc_corrected", count);
    if (ASK(v, ecc_errors, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &count))
        set_figure(v, "ecc_uncorrected", count);
}

static void ask_repairs(struct view *v)
{
    unsigned corrected = 0;
    unsigned uncorrected = 0;
    unsigned pending = 0;
    unsigned failed = 0;
    if (ASK(v, remapped_rows, &corrected, &uncorrected, &pending, &failed)) {
        set_figure(v, "remap_pending", pending);
        set_figure(v, "remap_failure", failed);
    }
    if (ASK(v, retirement_pending, &pending))
        set_figure(v, "retirement_pending", pending);
}

static void add_peer(json_t *peers, const char *key, json_t *take_value)
{
    json_t *peer;
    size_t i;
    json_array_foreach(peers, i, peer)
    {
        json_t *count = json_object_get(peer, "count");
        if (json_equal(json_object_get(peer, key), take_value)) {
            json_integer_set(count, json_integer_value(count) + 1);
            json_decref(take_value);
            return;
        }
    }
    json_array_append_new(peers, json_pack("{s:o, s:i}", key, take_value, "count", 1));
}

static void ask_link(struct view *v, unsigned link, json_t *peers)
{
    unsigned type = NVML_LINK_TO_GPU;
    struct nvml_pci p = {0};
    char pci[32];
    if (NVML_CALL(v->n, link_type, v->handle, link, &type) != NVML_OK)
        type = NVML_LINK_TO_GPU; /* an old driver: the other end's address tells */
    if (type == NVML_LINK_TO_SWITCH) {
        add_peer(peers, "switch", json_true());
    } else if (type == NVML_LINK_TO_GPU &&
               NVML_CALL(v->n, link_pci, v->handle, link, &p) == NVML_OK) {
        format_pci(&p, pci);
        add_peer(peers, "pci", json_string(pci));
    }
}

static void ask_links(struct view *v)
{
    json_t *peers = json_array();
    for (unsigned link = 0; link < NVML_LINKS_MAX; link++) {
        unsigned up = 0;
        int r = NVML_CALL(v->n, link_state, v->handle, link, &up);
        if (r == NVML_GPU_IS_LOST || (r != NVML_OK && link == 0))
            answered(v, "links", r);
        if (r == NVML_INVALID_ARGUMENT || r == NVML_FUNCTION_NOT_FOUND || r == NVML_GPU_IS_LOST)
            break; /* there are no more of them */
        if (r == NVML_OK && up)
            ask_link(v, link, peers);
    }
    json_object_set_new(v->gpu, "peers", peers);
}

/* ---- instances ---- */

static int ask_uuid(const struct nvml *n, nvml_device handle, char out[LOOK_UUID_SIZE],
                    const char **ret_why)
{
    memset(out, 0, LOOK_UUID_SIZE);
    int r = n->uuid(handle, out, LOOK_UUID_SIZE);
    out[LOOK_UUID_SIZE - 1] = '\0';
    *ret_why = r != NVML_OK ? nvml_error_name(r) : "its UUID is not one";
    return r == NVML_OK && look_uuid_valid(out) ? 0 : -1;
}

static void note_unidentified(json_t *look, unsigned position, const char *why)
{
    json_array_append_new(json_object_get(look, "unidentified"),
                          json_pack("{s:i, s:s}", "position", (int)position, "error", why));
}

static void note(json_t *look, const char *fmt, unsigned long long number)
{
    char text[200];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, fmt, number);
#pragma GCC diagnostic pop
    json_array_append_new(json_object_get(look, "notes"), json_string(text));
}

static int is_known(const json_t *look, const char *uuid)
{
    json_t *gpu;
    size_t i;
    json_array_foreach(json_object_get(look, "gpus"), i, gpu)
    {
        if (strcmp(json_string_value(json_object_get(gpu, "uuid")), uuid) == 0)
            return 1;
    }
    return 0;
}

/* What only the whole card tells holds for each of its instances. */
static void copy_of_card(json_t *instance, const json_t *card)
{
    static const char *const keys[] = {"pci",
                                       "numa",
                                       "temperature_c",
                                       "power_w",
                                       "ecc_corrected",
                                       "ecc_uncorrected",
                                       "remap_pending",
                                       "remap_failure",
                                       "lost",
                                       "reset_required",
                                       "retirement_pending"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        json_t *value = json_object_get(card, keys[i]);
        if (value && !json_object_get(instance, keys[i]))
            json_object_set(instance, keys[i], value);
    }
}

static void look_at_instance(const struct nvml *n, nvml_device handle, json_t *card, json_t *look)
{
    char uuid[LOOK_UUID_SIZE];
    const char *why;
    if (ask_uuid(n, handle, uuid, &why) < 0 || is_known(look, uuid)) {
        json_array_append_new(json_object_get(look, "notes"),
                              json_sprintf("A MIG instance of %s has no UUID of its own.",
                                           json_string_value(json_object_get(card, "uuid"))));
        return;
    }
    struct view v = {.n = n, .handle = handle, .gpu = json_pack("{s:s}", "uuid", uuid)};
    json_object_set(v.gpu, "mig_of", json_object_get(card, "uuid"));
    ask_name(&v);
    ask_memory(&v);
    ask_processes(&v);
    copy_of_card(v.gpu, card);
    json_array_append_new(json_object_get(look, "gpus"), v.gpu);
}

static void look_at_instances(struct view *v, json_t *look)
{
    unsigned on = 0;
    unsigned next = 0;
    unsigned count = LOOK_MIG_MAX;
    if (!ASK(v, mig_mode, &on, &next) || !on)
        return;
    json_object_set_new(v->gpu, "mig", json_true());
    if (ASK(v, mig_count, &count) && count > LOOK_MIG_MAX) {
        note(look, "NVML counts %llu MIG instances of one GPU; the first 16 are used.", count);
        count = LOOK_MIG_MAX;
    }
    for (unsigned i = 0; i < count; i++) {
        nvml_device handle;
        if (NVML_CALL(v->n, mig, v->handle, i, &handle) == NVML_OK)
            look_at_instance(v->n, handle, v->gpu, look);
    }
}

/* ---- all of them ---- */

static void look_at(const struct nvml *n, unsigned position, struct look_handles *h, json_t *look)
{
    nvml_device handle;
    char *uuid = h->uuid[h->count];
    const char *why;
    int r = n->by_position(position, &handle);
    if (r != NVML_OK) {
        note_unidentified(look, position, nvml_error_name(r));
        return;
    }
    if (ask_uuid(n, handle, uuid, &why) < 0) {
        note_unidentified(look, position, why);
        return;
    }
    if (is_known(look, uuid)) {
        note_unidentified(look, position, "another one has its UUID");
        return;
    }
    h->handle[h->count++] = handle;
    struct view v = {.n = n, .handle = handle, .gpu = json_pack("{s:s}", "uuid", uuid)};
    json_array_append_new(json_object_get(look, "gpus"), v.gpu);
    ask_name(&v);
    ask_place(&v);
    ask_memory(&v);
    ask_graphics(&v);
    ask_processes(&v);
    ask_figures(&v);
    ask_ecc(&v);
    ask_repairs(&v);
    ask_links(&v);
    look_at_instances(&v, look);
}

json_t *look_take(const struct nvml *n, struct look_handles *ret_handles, struct err *e)
{
    unsigned count = 0;
    int64_t began = clock_boottime_us();
    int r = n->count(&count);
    if (r != NVML_OK) {
        err_set(e, ERR_UNAVAILABLE, "NVML does not count this node's GPUs (%s)",
                nvml_error_name(r));
        return NULL;
    }
    json_t *look = json_pack("{s:s, s:I, s:[], s:[], s:[]}", "type", "look", "began_us",
                             (json_int_t)began, "gpus", "unidentified", "notes");
    if (count > LOOK_GPUS_MAX) {
        note(look, "NVML counts %llu GPUs; the first 64 are used.", count);
        count = LOOK_GPUS_MAX;
    }
    ret_handles->count = 0;
    for (unsigned i = 0; i < count; i++)
        look_at(n, i, ret_handles, look);
    look_links(json_object_get(look, "gpus"));
    return look;
}
