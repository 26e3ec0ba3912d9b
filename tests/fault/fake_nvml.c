/* A scripted libnvidia-ml.so.1: the calls that daemon/agent/nvml.h names, answered from the JSON
 * file $TRAINYARD_FAKE_NVML, which may be replaced (by rename) at any time.
 *
 * {"init": code, "count": number, "count_error": code, "hang": "temperature", "crash": "power",
 *  "devices": [{"uuid", "name", "name_hex", "pci": [domain, bus, device],
 *     "memory": [total, used], "processes": [[pid, bytes]], "graphics": [[pid, bytes]],
 *     "temperature", "power_mw", "utilization", "clock", "throttled", "ecc": [corrected,
 * uncorrected], "remapped": [pending, failed], "retirement_pending", "links": [[type, domain, bus,
 * device]], "handle": code, "errors": {call: code}, "processes_count": number, "mig": [{"uuid",
 * "name", "memory", "processes", …}]}], "xids": [[position, xid]]}
 *
 * A call that the device says nothing about is NOT_SUPPORTED; "errors" has "*" for all calls. Xids
 * that are there when events are registered have passed; those added later are delivered once.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/agent/nvml.h"

#define PER_CARD 100 /* handle: (position + 1) * PER_CARD + (instance + 1, or 0 for the card) */

static json_t *script;
static struct stat script_is;
static size_t events_told;
static int initialised;

/* ---- the script ---- */

static void look_at_script(void)
{
    const char *path = getenv("TRAINYARD_FAKE_NVML");
    struct stat st;
    if (!path || stat(path, &st) < 0)
        return;
    if (script && st.st_ino == script_is.st_ino && st.st_size == script_is.st_size &&
        st.st_mtim.tv_sec == script_is.st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == script_is.st_mtim.tv_nsec)
        return;
    json_error_t e;
    json_t *now = json_load_file(path, 0, &e);
    if (!now) {
        fprintf(stderr, "fake_nvml: %s: %s\n", path, e.text);
        abort();
    }
    json_decref(script);
    script = now;
    script_is = st;
}

static int is_word(const char *key, const char *call)
{
    const char *word = json_string_value(json_object_get(script, key));
    return word && strcmp(word, call) == 0;
}

/* Every call begins here. */
static void begin(const char *call)
{
    look_at_script();
    while (is_word("hang", call)) {
        usleep(20000);
        look_at_script();
    }
    if (is_word("crash", call))
        abort();
}

static json_t *card_at(size_t position)
{
    return json_array_get(json_object_get(script, "devices"), position);
}

static json_t *find_device(nvml_device handle)
{
    uintptr_t n = (uintptr_t)handle;
    json_t *card = card_at(n / PER_CARD - 1);
    return n % PER_CARD ? json_array_get(json_object_get(card, "mig"), n % PER_CARD - 1) : card;
}

/* The device, or NULL with the code that its script has for the call. */
static json_t *ask(nvml_device handle, const char *call, int *ret_code)
{
    begin(call);
    json_t *d = find_device(handle);
    const json_t *errors = json_object_get(d, "errors");
    const json_t *code = json_object_get(errors, call);
    if (!code)
        code = json_object_get(errors, "*");
    *ret_code = !initialised ? NVML_UNINITIALIZED
                : !d         ? NVML_INVALID_ARGUMENT
                : code       ? (int)json_integer_value(code)
                             : NVML_OK;
    return *ret_code == NVML_OK ? d : NULL;
}

static int number(nvml_device handle, const char *call, const char *key, unsigned long long *ret)
{
    int code;
    const json_t *value = json_object_get(ask(handle, call, &code), key);
    if (code != NVML_OK)
        return code;
    if (!value)
        return NVML_NOT_SUPPORTED;
    *ret = (unsigned long long)json_integer_value(value);
    return NVML_OK;
}

static int small(nvml_device handle, const char *call, const char *key, unsigned *ret)
{
    unsigned long long value = 0;
    int code = number(handle, call, key, &value);
    *ret = (unsigned)value;
    return code;
}

static int list_of(nvml_device handle, const char *call, const char *key, json_t **ret)
{
    int code;
    *ret = json_object_get(ask(handle, call, &code), key);
    return code != NVML_OK ? code : *ret ? NVML_OK : NVML_NOT_SUPPORTED;
}

static unsigned long long item(const json_t *list, size_t i)
{
    return (unsigned long long)json_integer_value(json_array_get(list, i));
}

/* ---- the library ---- */

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    begin("init");
    int code = (int)json_integer_value(json_object_get(script, "init"));
    initialised = code == NVML_OK;
    return code;
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
    initialised = 0;
    return NVML_OK;
}

int nvmlDeviceGetCount_v2(unsigned *ret);
int nvmlDeviceGetCount_v2(unsigned *ret)
{
    begin("count");
    const json_t *count = json_object_get(script, "count");
    *ret = count ? (unsigned)json_integer_value(count)
                 : (unsigned)json_array_size(json_object_get(script, "devices"));
    return (int)json_integer_value(json_object_get(script, "count_error"));
}

int nvmlDeviceGetHandleByIndex_v2(unsigned position, nvml_device *ret);
int nvmlDeviceGetHandleByIndex_v2(unsigned position, nvml_device *ret)
{
    begin("by_position");
    const json_t *card = card_at(position);
    *ret = (nvml_device)(uintptr_t)((position + 1) * PER_CARD);
    return card ? (int)json_integer_value(json_object_get(card, "handle")) : NVML_INVALID_ARGUMENT;
}

static int text(nvml_device handle, const char *key, char *out, unsigned size)
{
    int code;
    const json_t *d = ask(handle, key, &code);
    const char *value = json_string_value(json_object_get(d, key));
    if (code == NVML_OK && value)
        snprintf(out, size, "%s", value);
    return code != NVML_OK ? code : value ? NVML_OK : NVML_NOT_SUPPORTED;
}

int nvmlDeviceGetUUID(nvml_device handle, char *out, unsigned size);
int nvmlDeviceGetUUID(nvml_device handle, char *out, unsigned size)
{
    return text(handle, "uuid", out, size);
}

int nvmlDeviceGetName(nvml_device handle, char *out, unsigned size);
int nvmlDeviceGetName(nvml_device handle, char *out, unsigned size)
{
    int code;
    const char *hex = json_string_value(json_object_get(ask(handle, "name", &code), "name_hex"));
    if (code != NVML_OK || !hex)
        return text(handle, "name", out, size);
    memset(out, 0, size);
    for (unsigned i = 0; i < size && sscanf(hex + 2 * (size_t)i, "%2hhx", &out[i]) == 1; i++)
        continue; /* no NUL, if it is long enough */
    return NVML_OK;
}

int nvmlDeviceGetPciInfo_v3(nvml_device handle, struct nvml_pci *ret);
int nvmlDeviceGetPciInfo_v3(nvml_device handle, struct nvml_pci *ret)
{
    json_t *pci;
    int code = list_of(handle, "pci", "pci", &pci);
    if (code == NVML_OK) {
        ret->domain = (unsigned)item(pci, 0);
        ret->bus = (unsigned)item(pci, 1);
        ret->device = (unsigned)item(pci, 2);
    }
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct nvml_memory_v2 *ret);
int nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct nvml_memory_v2 *ret)
{
    json_t *memory;
    int code = list_of(handle, "memory_v2", "memory", &memory);
    if (code == NVML_OK && ret->version != NVML_MEMORY_V2)
        return NVML_INVALID_ARGUMENT;
    if (code == NVML_OK) {
        ret->total = item(memory, 0);
        ret->used = item(memory, 1);
        ret->free = ret->total - ret->used;
    }
    return code;
}

int nvmlDeviceGetMemoryInfo(nvml_device handle, struct nvml_memory *ret);
int nvmlDeviceGetMemoryInfo(nvml_device handle, struct nvml_memory *ret)
{
    json_t *memory;
    int code = list_of(handle, "memory", "memory", &memory);
    if (code == NVML_OK) {
        ret->total = item(memory, 0);
        ret->used = item(memory, 1);
        ret->free = ret->total - ret->used;
    }
    return code;
}

static int processes(nvml_device handle, const char *call, const char *key, unsigned *count,
                     struct nvml_process *ret)
{
    json_t *list;
    int code = list_of(handle, call, key, &list);
    const json_t *absurd = json_object_get(find_device(handle), "processes_count");
    if (code != NVML_OK)
        return code;
    unsigned room = *count;
    *count = absurd ? (unsigned)json_integer_value(absurd) : (unsigned)json_array_size(list);
    if (!absurd && *count > room)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < room && i < json_array_size(list); i++) {
        ret[i].pid = (unsigned)item(json_array_get(list, i), 0);
        ret[i].memory = item(json_array_get(list, i), 1);
    }
    return NVML_OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device, unsigned *, struct nvml_process *);
int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device handle, unsigned *count,
                                            struct nvml_process *ret)
{
    return processes(handle, "processes", "processes", count, ret);
}

int nvmlDeviceGetComputeRunningProcesses(nvml_device, unsigned *, struct nvml_process_v1 *);
int nvmlDeviceGetComputeRunningProcesses(nvml_device handle, unsigned *count,
                                         struct nvml_process_v1 *ret)
{
    unsigned room = *count;
    struct nvml_process *list = calloc(room, sizeof *list);
    int code = processes(handle, "processes_v1", "processes", count, list);
    for (unsigned i = 0; code == NVML_OK && i < room && i < *count; i++) {
        ret[i].pid = list[i].pid;
        ret[i].memory = list[i].memory;
    }
    free(list);
    return code;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device, unsigned *, struct nvml_process *);
int nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device handle, unsigned *count,
                                             struct nvml_process *ret)
{
    return processes(handle, "graphics", "graphics", count, ret);
}

int nvmlDeviceGetMigMode(nvml_device, unsigned *, unsigned *);
int nvmlDeviceGetMigMode(nvml_device handle, unsigned *ret_now, unsigned *ret_next)
{
    json_t *mig;
    int code = list_of(handle, "mig_mode", "mig", &mig);
    *ret_now = *ret_next = code == NVML_OK;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(nvml_device, unsigned *);
int nvmlDeviceGetMaxMigDeviceCount(nvml_device handle, unsigned *ret)
{
    json_t *mig;
    int code = list_of(handle, "mig_count", "mig", &mig);
    const json_t *absurd = json_object_get(find_device(handle), "mig_count");
    *ret = absurd ? (unsigned)json_integer_value(absurd) : 7;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(nvml_device, unsigned, nvml_device *);
int nvmlDeviceGetMigDeviceHandleByIndex(nvml_device handle, unsigned i, nvml_device *ret)
{
    json_t *mig;
    int code = list_of(handle, "mig", "mig", &mig);
    *ret = (nvml_device)((uintptr_t)handle + i + 1);
    return code != NVML_OK ? code : i < json_array_size(mig) ? NVML_OK : NVML_NOT_FOUND;
}

int nvmlDeviceGetTemperature(nvml_device, int, unsigned *);
int nvmlDeviceGetTemperature(nvml_device handle, int sensor, unsigned *ret)
{
    return sensor ? NVML_INVALID_ARGUMENT : small(handle, "temperature", "temperature", ret);
}

int nvmlDeviceGetPowerUsage(nvml_device, unsigned *);
int nvmlDeviceGetPowerUsage(nvml_device handle, unsigned *ret)
{
    return small(handle, "power", "power_mw", ret);
}

int nvmlDeviceGetUtilizationRates(nvml_device, struct nvml_utilization *);
int nvmlDeviceGetUtilizationRates(nvml_device handle, struct nvml_utilization *ret)
{
    return small(handle, "utilization", "utilization", &ret->gpu);
}

int nvmlDeviceGetClockInfo(nvml_device, int, unsigned *);
int nvmlDeviceGetClockInfo(nvml_device handle, int type, unsigned *ret)
{
    return type != NVML_CLOCK_SM ? NVML_INVALID_ARGUMENT : small(handle, "clock", "clock", ret);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(nvml_device, unsigned long long *);
int nvmlDeviceGetCurrentClocksThrottleReasons(nvml_device handle, unsigned long long *ret)
{
    return number(handle, "throttled", "throttled", ret);
}

int nvmlDeviceGetEccMode(nvml_device, unsigned *, unsigned *);
int nvmlDeviceGetEccMode(nvml_device handle, unsigned *ret_now, unsigned *ret_next)
{
    json_t *ecc;
    int code = list_of(handle, "ecc_mode", "ecc", &ecc);
    *ret_now = *ret_next = json_array_size(ecc) > 0;
    return code;
}

int nvmlDeviceGetTotalEccErrors(nvml_device, int, int, unsigned long long *);
int nvmlDeviceGetTotalEccErrors(nvml_device handle, int type, int counter, unsigned long long *ret)
{
    json_t *ecc;
    int code = list_of(handle, "ecc_errors", "ecc", &ecc);
    *ret = item(ecc, (size_t)type);
    return counter != NVML_ECC_VOLATILE ? NVML_INVALID_ARGUMENT : code;
}

int nvmlDeviceGetRemappedRows(nvml_device, unsigned *, unsigned *, unsigned *, unsigned *);
int nvmlDeviceGetRemappedRows(nvml_device handle, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    json_t *rows;
    int code = list_of(handle, "remapped_rows", "remapped", &rows);
    *corrected = *uncorrected = 0;
    *pending = (unsigned)item(rows, 0);
    *failed = (unsigned)item(rows, 1);
    return code;
}

int nvmlDeviceGetRetiredPagesPendingStatus(nvml_device, unsigned *);
int nvmlDeviceGetRetiredPagesPendingStatus(nvml_device handle, unsigned *ret)
{
    return small(handle, "retirement_pending", "retirement_pending", ret);
}

/* ---- links ---- */

static int link_of(nvml_device handle, const char *call, unsigned link, json_t **ret)
{
    json_t *list;
    int code = list_of(handle, call, "links", &list);
    *ret = json_array_get(list, link);
    return code == NVML_OK && !*ret ? NVML_INVALID_ARGUMENT : code;
}

int nvmlDeviceGetNvLinkState(nvml_device, unsigned, unsigned *);
int nvmlDeviceGetNvLinkState(nvml_device handle, unsigned link, unsigned *ret)
{
    json_t *l;
    int code = link_of(handle, "link_state", link, &l);
    *ret = code == NVML_OK && json_array_size(l) > 0; /* []: a link that is down */
    return code;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(nvml_device, unsigned, unsigned *);
int nvmlDeviceGetNvLinkRemoteDeviceType(nvml_device handle, unsigned link, unsigned *ret)
{
    json_t *l;
    int code = link_of(handle, "link_type", link, &l);
    *ret = (unsigned)item(l, 0);
    return code;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_device, unsigned, struct nvml_pci *);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_device handle, unsigned link, struct nvml_pci *ret)
{
    json_t *l;
    int code = link_of(handle, "link_pci", link, &l);
    ret->domain = (unsigned)item(l, 1);
    ret->bus = (unsigned)item(l, 2);
    ret->device = (unsigned)item(l, 3);
    return code;
}

/* ---- events ---- */

int nvmlEventSetCreate(nvml_event_set *);
int nvmlEventSetCreate(nvml_event_set *ret)
{
    begin("event_set_new");
    *ret = (nvml_event_set)(uintptr_t)1;
    events_told = json_array_size(json_object_get(script, "xids"));
    return NVML_OK;
}

int nvmlEventSetFree(nvml_event_set);
int nvmlEventSetFree(nvml_event_set set)
{
    (void)set;
    return NVML_OK;
}

int nvmlDeviceRegisterEvents(nvml_device, unsigned long long, nvml_event_set);
int nvmlDeviceRegisterEvents(nvml_device handle, unsigned long long types, nvml_event_set set)
{
    int code;
    (void)set;
    ask(handle, "event_register", &code);
    return types == NVML_EVENT_XID ? code : NVML_NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(nvml_event_set, struct nvml_event *, unsigned);
int nvmlEventSetWait_v2(nvml_event_set set, struct nvml_event *ret, unsigned timeout_ms)
{
    (void)set;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 10) {
        begin("event_wait");
        const json_t *event = json_array_get(json_object_get(script, "xids"), events_told);
        if (event) {
            events_told++;
            ret->device = (nvml_device)(uintptr_t)((item(event, 0) + 1) * PER_CARD);
            ret->type = NVML_EVENT_XID;
            ret->data = item(event, 1);
            return NVML_OK;
        }
        usleep(10000);
    }
    return NVML_TIMEOUT;
}
