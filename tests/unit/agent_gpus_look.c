/* A look at GPUs through a library in which something is missing, unsupported or lost: whatever it
 * is, the rest is told all the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "daemon/agent/look.h"

static char dir[64];
static void *library;

static const char card_text[] =
    "{\"uuid\": \"GPU-one-1\", \"name\": \"NVIDIA H200\", \"pci\": [0, 101, 0], \"memory\": "
    "[1000000, 500], \"processes\": [[1, 77]], \"graphics\": [[2, 5], [3, 6]], \"temperature\": "
    "40, "
    "\"power_mw\": 1500, \"utilization\": 9, \"clock\": 1980, \"throttled\": 4, \"ecc\": [2, 0], "
    "\"remapped\": [0, 0], \"retirement_pending\": 0, \"links\": [[0, 0, 102, 0], []]}";

static void write_script(json_t *take_card)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/nvml.json", dir);
    json_auto_t *doc = json_pack("{s:[o, {s:s, s:[i, i, i], s:[[i, i, i, i], [i, i, i, i]]}]}",
                                 "devices", take_card, "uuid", "GPU-two-2", "pci", 0, 102, 0,
                                 "links", 0, 0, 101, 0, 2, 0, 0, 0);
    assert_non_null(doc);
    assert_int_equal(file_write_json(path, doc, 0600, NULL), 0);
}

/* The library lies beside the tests: build/tests/fault. */
static int set_up(void **state)
{
    (void)state;
    char own[PATH_MAX];
    strcpy(dir, "/tmp/agent-look-XXXXXX");
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (!mkdtemp(dir) || n < 0)
        return -1;
    own[n] = '\0';
    *strrchr(own, '/') = '\0';
    *strrchr(own, '/') = '\0';
    CLEANUP(mem_freep) char *path = mem_printf("%s/fault/libnvidia-ml.so.1", own);
    CLEANUP(mem_freep) char *script = mem_printf("%s/nvml.json", dir);
    setenv("TRAINYARD_FAKE_NVML", script, 1);
    write_script(json_loads(card_text, 0, NULL));
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    return library ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return file_remove_tree(dir, NULL);
}

/* By member, as look.c asks and the script names them; what goes when it does not answer. */
static const struct {
    const char *symbol, *member, *keys;
} calls[] = {
    {"nvmlDeviceGetName", "name", "name"},
    {"nvmlDeviceGetPciInfo_v3", "pci", "pci links"},
    {"nvmlDeviceGetMemoryInfo_v2", "memory_v2", ""}, /* the older form is asked */
    {"nvmlDeviceGetMemoryInfo", "memory", ""},
    {"nvmlDeviceGetComputeRunningProcesses_v3", "processes", ""},
    {"nvmlDeviceGetComputeRunningProcesses", "processes_v1", ""},
    {"nvmlDeviceGetGraphicsRunningProcesses_v3", "graphics", "graphics_bytes"},
    {"nvmlDeviceGetMigMode", "mig_mode", ""},
    {"nvmlDeviceGetMaxMigDeviceCount", "mig_count", ""},
    {"nvmlDeviceGetMigDeviceHandleByIndex", "mig", ""},
    {"nvmlDeviceGetTemperature", "temperature", "temperature_c"},
    {"nvmlDeviceGetPowerUsage", "power", "power_w"},
    {"nvmlDeviceGetUtilizationRates", "utilization", "utilization"},
    {"nvmlDeviceGetClockInfo", "clock", "clock_mhz"},
    {"nvmlDeviceGetCurrentClocksThrottleReasons", "throttled", "throttled"},
    {"nvmlDeviceGetEccMode", "ecc_mode", ""},
    {"nvmlDeviceGetTotalEccErrors", "ecc_errors", "ecc_corrected ecc_uncorrected"},
    {"nvmlDeviceGetRemappedRows", "remapped_rows", "remap_pending remap_failure"},
    {"nvmlDeviceGetRetiredPagesPendingStatus", "retirement_pending", "retirement_pending"},
    {"nvmlDeviceGetNvLinkState", "link_state", "links"},
    {"nvmlDeviceGetNvLinkRemoteDeviceType", "link_type", ""},
    {"nvmlDeviceGetNvLinkRemotePciInfo_v2", "link_pci", "links"},
    {"nvmlEventSetCreate", "event_set_new", ""},
    {"nvmlEventSetFree", "event_set_free", ""},
    {"nvmlDeviceRegisterEvents", "event_register", ""},
    {"nvmlEventSetWait_v2", "event_wait", ""},
    {"nvmlShutdown", "shutdown", ""},
};

static void *all_but(void *context, const char *name)
{
    const char *hidden = context;
    return hidden && strcmp(name, hidden) == 0 ? NULL : dlsym(library, name);
}

/* The first card, as a look sees it; its own reference. */
static json_t *look_without(const char *hidden)
{
    struct nvml n = {0};
    struct err e;
    struct look_handles *handles = mem_zalloc(sizeof *handles);
    assert_int_equal(nvml_resolve(&n, all_but, (void *)hidden, &e), 0);
    assert_int_equal(n.init(), NVML_OK);
    json_auto_t *look = look_take(&n, handles, &e);
    assert_non_null(look);
    assert_int_equal(handles->count, 2);
    free(handles);
    json_t *gpu = json_array_get(json_object_get(look, "gpus"), 0);
    return json_incref(gpu);
}

static json_t *whole(void)
{
    json_t *gpu = json_loads(
        "{\"uuid\": \"GPU-one-1\", \"name\": \"NVIDIA H200\", \"pci\": \"0000:65:00.0\", "
        "\"memory_bytes\": 1000000, \"memory_used_bytes\": 500, \"graphics_bytes\": 11, "
        "\"temperature_c\": 40, \"power_w\": 1.5, \"utilization\": 9, \"clock_mhz\": 1980, "
        "\"throttled\": 4, \"ecc_corrected\": 2, \"ecc_uncorrected\": 0, \"remap_pending\": 0, "
        "\"remap_failure\": 0, \"retirement_pending\": 0, \"links\": [{\"uuid\": \"GPU-two-2\", "
        "\"kind\": \"nvlink\", \"count\": 1}]}",
        0, NULL);
    assert_non_null(gpu);
    return gpu;
}

static void drop_keys(json_t *gpu, const char *keys)
{
    char key[64];
    for (const char *p = keys; sscanf(p, "%63s", key) == 1; p = strstr(p, key) + strlen(key))
        assert_int_equal(json_object_del(gpu, key), 0);
}

static void expect_gpu(json_t *gpu, json_t *want, const char *what)
{
    json_object_del(gpu, "unanswered");
    json_t *process = json_array_get(json_object_get(gpu, "processes"), 0);
    assert_int_equal(json_integer_value(json_object_get(process, "pid")), 1);
    assert_int_equal(json_integer_value(json_object_get(process, "memory_bytes")), 77);
    json_object_del(gpu, "processes");
    json_object_del(gpu, "numa"); /* of whatever sits there in this machine */
    if (!json_equal(gpu, want)) {
        CLEANUP(mem_freep) char *has = json_dumps(gpu, JSON_SORT_KEYS);
        CLEANUP(mem_freep) char *should = json_dumps(want, JSON_SORT_KEYS);
        fail_msg("%s:\n%s\n%s", what, has, should);
    }
}

static void test_whole(void **state)
{
    (void)state;
    json_auto_t *gpu = look_without(NULL);
    json_auto_t *want = whole();
    expect_gpu(gpu, want, "whole");
}

static void test_each_symbol_missing(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        assert_non_null(dlsym(library, calls[i].symbol)); /* the name is one that there is */
        json_auto_t *gpu = look_without(calls[i].symbol);
        json_auto_t *want = whole();
        drop_keys(want, calls[i].keys);
        expect_gpu(gpu, want, calls[i].symbol);
    }
}

/* Through a switch each reaches the other with as many links as both have there. */
static void test_switches(void **state)
{
    (void)state;
    json_auto_t *gpus = json_loads(
        "[{\"uuid\": \"a\", \"pci\": \"x\", \"peers\": [{\"switch\": true, \"count\": 18}]}, "
        "{\"uuid\": \"b\", \"pci\": \"y\", \"peers\": [{\"switch\": true, \"count\": 12}, "
        "{\"pci\": \"x\", \"count\": 2}]}, {\"uuid\": \"c\", \"mig_of\": \"a\", \"pci\": "
        "\"x\"}]",
        0, NULL);
    json_auto_t *want =
        json_loads("[{\"uuid\": \"a\", \"pci\": \"x\", \"links\": [{\"uuid\": \"b\", \"kind\": "
                   "\"nvlink\", \"count\": 12}]}, {\"uuid\": \"b\", \"pci\": \"y\", \"links\": "
                   "[{\"uuid\": \"a\", \"kind\": \"nvlink\", \"count\": 14}]}, {\"uuid\": \"c\", "
                   "\"mig_of\": \"a\", \"pci\": \"x\"}]",
                   0, NULL);
    look_links(gpus);
    assert_true(json_equal(gpus, want));
}

static void test_needed_symbols(void **state)
{
    (void)state;
    static const char *const needed[] = {"nvmlInit_v2", "nvmlDeviceGetCount_v2",
                                         "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"};
    for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
        struct nvml n = {0};
        struct err e = {0};
        assert_int_equal(nvml_resolve(&n, all_but, (void *)needed[i], &e), ERR_UNAVAILABLE);
        assert_non_null(strstr(e.text, needed[i]));
    }
}

static json_t *look_with_error(const char *member, int code)
{
    json_t *card = json_loads(card_text, 0, NULL);
    json_object_set_new(card, "errors", json_pack("{s:i}", member, code));
    write_script(card);
    return look_without(NULL);
}

/* Each value in turn, by each of the answers that say "not this one". */
static void test_each_value_refused(void **state)
{
    (void)state;
    static const int codes[] = {NVML_NOT_SUPPORTED, NVML_NO_PERMISSION, NVML_UNKNOWN, 4711};
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        for (size_t k = 0; k < ARRAY_LEN(codes); k++) {
            json_auto_t *gpu = look_with_error(calls[i].member, codes[k]);
            json_auto_t *want = whole();
            /* The other card still says where its own links lead from. */
            drop_keys(want, strcmp(calls[i].member, "pci") == 0 ? "pci" : calls[i].keys);
            expect_gpu(gpu, want, calls[i].member);
        }
    }
}

static void test_lost_and_reset(void **state)
{
    (void)state;
    static const char *const asked[] = {"name",     "pci",         "memory_v2",  "processes",
                                        "clock",    "temperature", "ecc_errors", "remapped_rows",
                                        "mig_mode", "link_state"};
    for (size_t i = 0; i < ARRAY_LEN(asked); i++) {
        json_auto_t *gpu = look_with_error(asked[i], NVML_GPU_IS_LOST);
        assert_true(json_is_string(json_object_get(gpu, "lost")));
        json_auto_t *other = look_with_error("temperature", NVML_RESET_REQUIRED);
        assert_string_equal(json_string_value(json_object_get(other, "reset_required")),
                            "temperature");
    }
    write_script(json_loads(card_text, 0, NULL));
}

static void test_no_library(void **state)
{
    (void)state;
    struct nvml n;
    struct err e = {0};
    assert_int_equal(nvml_open("/nonexistent/libnvidia-ml.so.1", &n, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "/nonexistent/libnvidia-ml.so.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_each_symbol_missing),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_needed_symbols),
        cmocka_unit_test(test_each_value_refused),
        cmocka_unit_test(test_lost_and_reset),
        cmocka_unit_test(test_no_library),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
