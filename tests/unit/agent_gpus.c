/* The rules for GPUs: which number, which state, and when a GPU is ready again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define GB 1000000000LL

static char dir[64];

static int set_up(void **state)
{
    (void)state;
    log_setup("agent_gpus", LOG_LEVEL_ERROR);
    strcpy(dir, "/tmp/agent-gpus-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return file_remove_tree(dir, NULL);
}

/* An agent that has only its devices; those that an earlier one of the same `name` has numbered. */
static void begin(struct agent *g, const char *name)
{
    struct err e;
    *g = (struct agent){.gpus.probe.to_fd = -1, .gpus.probe.from_fd = -1};
    g->options.state_dir = mem_printf("%s/%s", dir, name);
    g->options.name = mem_strdup("n1");
    g->options.gpus = mem_strdup("auto");
    g->options.trainer = mem_strdup("/trainer");
    g->options.trainer_cuda = mem_strdup("/trainer-cuda");
    g->options.cpu_devices = 2;
    strcpy(g->boot_id, "boot");
    file_mkdirs(g->options.state_dir, 0700, NULL);
    assert_int_equal(devices_find(g, &e), 0);
}

static void end(struct agent *g)
{
    gpumap_done(&g->gpus);
    json_decref(g->cpus);
    free(g->cores);
    options_done(&g->options);
}

static int64_t last_began;

/* [{"uuid", …}], with what each GPU has that nothing is wrong with. */
static void look(struct agent *g, const char *gpus)
{
    json_t *list = json_loads(gpus, 0, NULL);
    json_t *gpu;
    size_t i;
    assert_non_null(list);
    json_array_foreach(list, i, gpu)
    {
        json_auto_t *usual = json_pack("{s:s, s:I, s:I, s:[]}", "name", "H200", "memory_bytes",
                                       (json_int_t)(140 * GB), "memory_used_bytes",
                                       (json_int_t)(GB / 2), "processes");
        json_object_update_missing(gpu, usual);
    }
    last_began = clock_boottime_us();
    json_auto_t *doc = json_pack("{s:s, s:I, s:o, s:[], s:[]}", "type", "look", "began_us",
                                 (json_int_t)last_began, "gpus", list, "unidentified", "notes");
    gpus_take_look(g, doc);
}

static void expect_state(const struct agent *g, const char *uuid, enum gpu_state state,
                         const char *code)
{
    const struct gpu *d = gpumap_find(g, uuid);
    assert_non_null(d);
    assert_int_equal(d->now.state, state);
    assert_string_equal(d->now.code, code);
    assert_true((state == GPU_READY) == (d->now.reason[0] == '\0'));
}

#define ONE "[{\"uuid\": \"GPU-1\"}]"

static void test_numbers(void **state)
{
    (void)state;
    struct agent g;
    begin(&g, "numbers");
    assert_int_equal(g.cpu_first, 0);
    assert_int_equal(g.cpu_count, 2);
    look(&g, "[{\"uuid\": \"GPU-z\", \"pci\": \"0000:02:00.0\"}, {\"uuid\": \"GPU-a\", \"pci\": "
             "\"0000:01:00.0\"}, {\"uuid\": \"GPU-b\", \"pci\": \"0000:02:00.0\"}]");
    assert_int_equal(gpumap_find(&g, "GPU-a")->index, 0); /* at first by place */
    assert_int_equal(gpumap_find(&g, "GPU-b")->index, 1);
    assert_int_equal(gpumap_find(&g, "GPU-z")->index, 2);
    assert_int_equal(g.cpu_first, GPUS_MAX);
    end(&g);
    begin(&g, "numbers");
    assert_int_equal(g.cpu_first, GPUS_MAX); /* before the first look already */
    look(&g, "[{\"uuid\": \"GPU-0\", \"pci\": \"0000:00:00.0\"}, {\"uuid\": \"GPU-z\", \"pci\": "
             "\"0000:07:00.0\"}]");
    assert_int_equal(gpumap_find(&g, "GPU-0")->index, 3);
    assert_int_equal(gpumap_find(&g, "GPU-z")->index, 2);
    expect_state(&g, "GPU-z", GPU_READY, "");
    expect_state(&g, "GPU-a", GPU_LOST, "device_lost");
    end(&g);
}

static void test_no_number_is_given_twice(void **state)
{
    (void)state;
    struct agent g;
    CLEANUP(mem_freep) char *path = mem_printf("%s/full/devices.json", dir);
    CLEANUP(mem_freep) char *folder = mem_printf("%s/full", dir);
    json_auto_t *doc = json_loads("{\"next\": 511, \"gpus\": []}", 0, NULL); /* 510 is gone */
    file_mkdirs(folder, 0700, NULL);
    assert_int_equal(file_write_json(path, doc, 0600, NULL), 0);
    begin(&g, "full");
    look(&g, "[{\"uuid\": \"GPU-a\"}, {\"uuid\": \"GPU-b\"}]");
    assert_int_equal(gpumap_find(&g, "GPU-a")->index, 511);
    assert_null(gpumap_find(&g, "GPU-b"));
    assert_int_equal(gpus_count(&g), 1);
    end(&g);
}

static void test_dirty_until_two_clean_looks(void **state)
{
    (void)state;
    struct agent g;
    static const char foreign[] = "[{\"uuid\": \"GPU-1\", \"processes\": [{\"pid\": 4711}]}]";
    begin(&g, "dirty");
    look(&g, ONE);
    expect_state(&g, "GPU-1", GPU_READY, "");
    look(&g, foreign);
    expect_state(&g, "GPU-1", GPU_DIRTY, "foreign_process");
    assert_string_equal(gpumap_find(&g, "GPU-1")->now.reason,
                        "The process 4711, which is not to be seen on this node, uses it and is of "
                        "no job of this node.");
    look(&g, ONE);
    expect_state(&g, "GPU-1", GPU_DIRTY, "foreign_process");
    look(&g, foreign); /* it comes and goes */
    look(&g, ONE);
    expect_state(&g, "GPU-1", GPU_DIRTY, "foreign_process");
    look(&g, ONE);
    expect_state(&g, "GPU-1", GPU_READY, "");
    end(&g);
}

static void test_the_worst_counts(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        enum gpu_state state;
        const char *code;
    } cases[] = {
        {"\"memory_used_bytes\": 9000000000", GPU_DIRTY, "memory_held"},
        {"\"processes\": [{\"pid\": 1}]", GPU_DIRTY, "foreign_process"},
        {"\"more\": 3, \"processes\": [{\"pid\": 1}]", GPU_DIRTY, "foreign_process"},
        {"\"retirement_pending\": 1", GPU_FAILED, "page_retirement_pending"},
        {"\"remap_pending\": 1", GPU_FAILED, "row_remap_pending"},
        {"\"ecc_uncorrected\": 1, \"remap_pending\": 1", GPU_FAILED, "ecc_error"},
        {"\"ecc_uncorrected\": 1, \"remap_failure\": 1", GPU_FAILED, "row_remap_failure"},
        {"\"memory_bytes\": 0", GPU_FAILED, "memory_unknown"},
        {"\"reset_required\": \"power\", \"ecc_uncorrected\": 1", GPU_FAILED, "reset_required"},
        {"\"lost\": \"power\", \"ecc_uncorrected\": 1", GPU_LOST, "device_lost"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct agent g;
        CLEANUP(mem_freep) char *name = mem_printf("worst-%zu", i);
        CLEANUP(mem_freep)
        char *text = mem_printf("[{\"uuid\": \"GPU-1\", %s}]", cases[i].what);
        begin(&g, name);
        look(&g, ONE);
        look(&g, text);
        expect_state(&g, "GPU-1", cases[i].state, cases[i].code);
        look(&g, ONE);
        look(&g, ONE);
        expect_state(&g, "GPU-1", GPU_READY, ""); /* each ends with what it comes from */
        end(&g);
    }
}

static void test_after_an_attempt(void **state)
{
    (void)state;
    struct agent g;
    struct attempt a = {.agent = &g, .id = "att_000000000000000000000001", .shim_pidfd = -1};
    struct attempt *list[] = {&a};
    begin(&g, "after");
    look(&g, ONE);
    a.gpus = json_pack("[{s:i, s:s}]", "rank", 0, "uuid", "GPU-1");
    a.phase = PHASE_RUNNING;
    g.attempts = list;
    g.attempt_count = 1;
    /* Its own process and memory are no fault. */
    look(&g, "[{\"uuid\": \"GPU-1\", \"memory_used_bytes\": 90000000000, \"processes\": [{\"pid\": "
             "5, \"mark\": \"att_000000000000000000000001:boot\"}]}]");
    expect_state(&g, "GPU-1", GPU_READY, "");
    a.phase = PHASE_ENDED;
    gpus_attempt_ended(&g, &a);
    expect_state(&g, "GPU-1", GPU_DIRTY, "checking");
    /* A look that began before the end proves nothing, good or bad. */
    struct gpu *d = gpumap_find(&g, "GPU-1");
    d->checking_us += 60000000;
    look(&g, ONE);
    look(&g, ONE);
    expect_state(&g, "GPU-1", GPU_DIRTY, "checking");
    look(&g, "[{\"uuid\": \"GPU-1\", \"memory_used_bytes\": 90000000000}]");
    expect_state(&g, "GPU-1", GPU_DIRTY, "checking");
    d->checking_us -= 60000000;
    look(&g, ONE);
    expect_state(&g, "GPU-1", GPU_READY, "");
    json_decref(a.gpus);
    end(&g);
}

static void test_what_idle_is(void **state)
{
    (void)state;
    struct agent g;
    begin(&g, "idle");
    /* The first look at three of a kind: one holds what two do not. */
    look(&g, "[{\"uuid\": \"GPU-1\"}, {\"uuid\": \"GPU-2\"}, {\"uuid\": \"GPU-3\", "
             "\"memory_used_bytes\": 700000000}]");
    expect_state(&g, "GPU-2", GPU_READY, "");
    expect_state(&g, "GPU-3", GPU_DIRTY, "memory_held");
    /* A display's memory is no leak. */
    look(&g, "[{\"uuid\": \"GPU-1\", \"memory_used_bytes\": 1500000000, \"graphics_bytes\": "
             "1000000000}, {\"uuid\": \"GPU-2\", \"memory_used_bytes\": 400000000}, {\"uuid\": "
             "\"GPU-3\"}]");
    expect_state(&g, "GPU-1", GPU_READY, "");
    /* The least that was seen is what idle means from then on, also for the next agent. */
    assert_int_equal(gpumap_find(&g, "GPU-2")->baseline, 400000000);
    end(&g);
    begin(&g, "idle");
    assert_int_equal(gpumap_find(&g, "GPU-2")->baseline, 400000000);
    look(&g, "[{\"uuid\": \"GPU-1\"}, {\"uuid\": \"GPU-2\", \"memory_used_bytes\": 540000000}, "
             "{\"uuid\": \"GPU-3\"}]");
    expect_state(&g, "GPU-2", GPU_DIRTY, "memory_held");
    end(&g);
}

static void test_xids(void **state)
{
    (void)state;
    static const int application[] = {13, 31, 43};
    static const int hardware[] = {48, 63, 64, 74, 79, 94, 95, 119, 120};
    static const int other[] = {1, 32, 109, 65535};
    struct agent g;
    begin(&g, "xids");
    look(&g, ONE);
    for (size_t i = 0; i < ARRAY_LEN(application); i++) {
        gpus_take_xid(&g, "GPU-1", application[i]);
        expect_state(&g, "GPU-1", GPU_READY, "");
    }
    for (size_t i = 0; i < ARRAY_LEN(other); i++) {
        gpus_take_xid(&g, "GPU-1", other[i]);
        expect_state(&g, "GPU-1", GPU_DIRTY, "xid");
        look(&g, ONE);
        look(&g, ONE);
        look(&g, ONE);
        expect_state(&g, "GPU-1", GPU_READY, "");
    }
    for (size_t i = 0; i < ARRAY_LEN(hardware); i++) {
        CLEANUP(mem_freep) char *file = mem_printf("%s/xids/gpu-failed.GPU-1", dir);
        gpus_take_xid(&g, "GPU-1", hardware[i]);
        look(&g, ONE);
        look(&g, ONE);
        expect_state(&g, "GPU-1", GPU_FAILED, "xid");
        assert_int_equal(unlink(file), 0); /* whoever has reset it */
        look(&g, ONE);
        look(&g, ONE);
        expect_state(&g, "GPU-1", GPU_READY, "");
    }
    end(&g);
}

/* An Xid of a card is one of each instance; their names may have slashes. */
static void test_xid_of_a_split_card(void **state)
{
    (void)state;
    struct agent g;
    static const char split[] = "[{\"uuid\": \"GPU-1\", \"mig\": true}, {\"uuid\": "
                                "\"MIG-GPU-1/1/0\", \"mig_of\": \"GPU-1\"}, {\"uuid\": \"GPU-2\"}]";
    begin(&g, "split");
    look(&g, split);
    assert_int_equal(gpus_count(&g), 2);
    gpus_take_xid(&g, "GPU-1", 95);
    expect_state(&g, "MIG-GPU-1/1/0", GPU_FAILED, "xid");
    expect_state(&g, "GPU-2", GPU_READY, "");
    CLEANUP(mem_freep) char *file = mem_printf("%s/split/gpu-failed.MIG-GPU-1_1_0", dir);
    assert_int_equal(access(file, F_OK), 0);
    end(&g);
}

/* ---- what ranks are given ---- */

static json_t *launch_on(const char *spec, const char *ranks)
{
    json_t *doc = json_pack("{s:o, s:o}", "spec", json_loads(spec, 0, NULL), "ranks",
                            json_loads(ranks, 0, NULL));
    assert_non_null(doc);
    return doc;
}

static int core_of(const json_t *launch, size_t rank)
{
    const json_t *r = json_array_get(json_object_get(launch, "ranks"), rank);
    return (int)json_integer_value(json_object_get(r, "cpu"));
}

#define TWO_RANKS                                                                                  \
    "[{\"rank\": 0, \"device\": 0, \"kind\": \"gpu\", \"uuid\": \"GPU-1\"}, {\"rank\": 1, "        \
    "\"device\": 1, \"kind\": \"gpu\", \"uuid\": \"GPU-2\"}]"

/* Of GPUs none is bound: whatever its threads do (NCCL's, the loader's) would be on one core. */
static void test_where_ranks_run(void **state)
{
    (void)state;
    struct agent g;
    struct err e;
    static int cores[] = {8, 9, 10, 11};
    begin(&g, "cores");
    free(g.cores);
    g.cores = mem_alloc(sizeof cores);
    memcpy(g.cores, cores, sizeof cores);
    g.core_count = ARRAY_LEN(cores);
    look(&g, "[{\"uuid\": \"GPU-1\"}, {\"uuid\": \"GPU-2\"}]");
    json_auto_t *training = launch_on("{}", TWO_RANKS);
    assert_int_equal(devices_launch(&g, training, &e), 0);
    assert_int_equal(core_of(training, 0), -1);
    assert_int_equal(core_of(training, 1), -1);
    assert_string_equal(json_string_value(json_object_get(training, "trainer")), "/trainer-cuda");
    json_auto_t *cpu = launch_on("{}", "[{\"rank\": 0, \"device\": 513, \"kind\": \"cpu\"}]");
    assert_int_equal(devices_launch(&g, cpu, &e), 0);
    assert_int_equal(core_of(cpu, 0), 9);
    assert_string_equal(json_string_value(json_object_get(cpu, "trainer")), "/trainer");
    end(&g);
}

/* ---- while an attempt has it ---- */

static void lease(struct agent *g, struct attempt *a, struct attempt **list, const char *uuid)
{
    *a = (struct attempt){
        .agent = g, .id = "att_000000000000000000000001", .phase = PHASE_RUNNING, .shim_pidfd = -1};
    a->gpus = json_pack("[{s:i, s:s}]", "rank", 0, "uuid", uuid);
    *list = a;
    g->attempts = list;
    g->attempt_count = 1;
}

/* In a container NVML's numbers of processes are not those that we see. */
static void test_processes_that_are_not_to_be_seen(void **state)
{
    (void)state;
    struct agent g;
    struct attempt a, *list;
    static const char unseen[] = "[{\"uuid\": \"GPU-1\", \"processes\": [{\"pid\": 4711}]}]";
    begin(&g, "unseen");
    look(&g, ONE);
    lease(&g, &a, &list, "GPU-1");
    look(&g, unseen);
    expect_state(&g, "GPU-1", GPU_READY, "");
    look(&g, "[{\"uuid\": \"GPU-1\", \"processes\": [{\"pid\": 4711}, {\"pid\": 7, \"name\": "
             "\"python3\", \"user\": \"ann\"}]}]");
    expect_state(&g, "GPU-1", GPU_DIRTY, "foreign_process");
    assert_string_equal(gpumap_find(&g, "GPU-1")->now.reason,
                        "The process 7 (\"python3\", user ann) uses it and is of no job of this "
                        "node.");
    a.phase = PHASE_ENDED;
    gpus_attempt_ended(&g, &a);
    look(&g, unseen);
    look(&g, unseen);
    expect_state(&g, "GPU-1", GPU_DIRTY, "foreign_process");
    json_decref(a.gpus);
    end(&g);
}

/* Whatever the coordinator believes, after its books were put back to an older state. */
static void test_one_owner(void **state)
{
    (void)state;
    struct agent g;
    struct attempt a, *list;
    struct err e;
    begin(&g, "owner");
    look(&g, ONE);
    lease(&g, &a, &list, "GPU-1");
    json_auto_t *other =
        launch_on("{}", "[{\"device\": 0, \"kind\": \"gpu\", \"uuid\": \"GPU-1\"}]");
    assert_int_equal(devices_launch(&g, other, &e), ERR_CONFLICT);
    assert_string_equal(e.text, "The GPU GPU-1 of node n1 (device 0) is "
                                "att_000000000000000000000001's, which runs");
    a.phase = PHASE_ENDED;
    assert_int_equal(devices_launch(&g, other, &e), 0);
    json_decref(a.gpus);
    end(&g);
}

/* What is not listed is lost to the coordinator, and its job is stopped. */
static void test_a_selection_waits_for_jobs(void **state)
{
    (void)state;
    struct agent g;
    struct attempt a, *list;
    begin(&g, "selection");
    look(&g, "[{\"uuid\": \"GPU-1\"}, {\"uuid\": \"GPU-2\"}]");
    lease(&g, &a, &list, "GPU-1");
    free(g.options.gpus);
    g.options.gpus = mem_strdup("none");
    assert_int_equal(gpus_count(&g), 1);
    a.phase = PHASE_ENDED;
    assert_int_equal(gpus_count(&g), 0);
    json_decref(a.gpus);
    end(&g);
}

static void test_a_selection_that_names_none(void **state)
{
    (void)state;
    struct agent g;
    char text[TROUBLE_SIZE];
    begin(&g, "mistyped");
    look(&g, "[{\"uuid\": \"GPU-1\"}, {\"uuid\": \"GPU-2\"}]");
    g.gpus.settled = 1;
    gpus_unknown(&g, text, sizeof text);
    assert_string_equal(text, "");
    free(g.options.gpus);
    g.options.gpus = mem_strdup("GPU-2,GPU-1");
    gpus_unknown(&g, text, sizeof text);
    assert_string_equal(text, "");
    free(g.options.gpus);
    g.options.gpus = mem_strdup("GPU-2,GPU-");
    gpus_unknown(&g, text, sizeof text);
    assert_string_equal(text, "Its --gpus names GPU-, which it has not; no GPU here has that UUID "
                              "(nvidia-smi -L lists the UUIDs).");
    end(&g);
}

/* ---- what lies on the disk ---- */

static void write_state(const char *name, const char *file, const char *text)
{
    CLEANUP(mem_freep) char *folder = mem_printf("%s/%s", dir, name);
    CLEANUP(mem_freep) char *path = mem_printf("%s/%s", folder, file);
    file_mkdirs(folder, 0700, NULL);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_damaged_maps(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "[]",
        "{\"next\": 1}",
        "{\"gpus\": []}",
        "{\"next\": -1, \"gpus\": []}",
        "{\"next\": 513, \"gpus\": []}",
        "{\"next\": 4294967296, \"gpus\": []}",
        "{\"next\": 1, \"gpus\": [{\"uuid\": \"GPU-1\", \"index\": -1}]}",
        "{\"next\": 1, \"gpus\": [{\"uuid\": \"GPU-1\", \"index\": 0, \"memory_bytes\": -5}]}",
        "{\"next\": 1, \"gpus\": [{\"uuid\": \"GPU-1\", \"index\": 0, \"name\": \"\\u00e9\"}]}",
        "{\"next\": 1, \"gpus\": [{\"uuid\": \"GPU-1\", \"index\": 0, \"mig_of\": \"a b\"}]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct err e = {0};
        CLEANUP(mem_freep) char *name = mem_printf("damaged-%zu", i);
        struct agent g = {.gpus.probe.to_fd = -1};
        g.options.state_dir = mem_printf("%s/%s", dir, name);
        write_state(name, "devices.json", texts[i]);
        if (devices_find(&g, &e) != ERR_CORRUPT)
            fail_msg("%s was taken", texts[i]);
        assert_non_null(strstr(e.text, "leases go by the numbers in it"));
        end(&g);
    }
}

/* An operator who knows why a GPU holds memory says so in the map. */
static void test_a_baseline_that_was_raised(void **state)
{
    (void)state;
    struct agent g;
    static const char holds[] = "[{\"uuid\": \"GPU-1\", \"memory_used_bytes\": 9000000000}]";
    begin(&g, "raised");
    look(&g, holds);
    expect_state(&g, "GPU-1", GPU_DIRTY, "memory_held");
    end(&g);
    write_state("raised", "devices.json",
                "{\"next\": 1, \"gpus\": [{\"uuid\": \"GPU-1\", \"index\": 0, \"baseline_bytes\": "
                "9000000000, \"boot_id\": \"boot\"}]}");
    begin(&g, "raised");
    look(&g, holds);
    expect_state(&g, "GPU-1", GPU_READY, "");
    look(&g, "[{\"uuid\": \"GPU-1\", \"memory_used_bytes\": 9900000000}]");
    expect_state(&g, "GPU-1", GPU_DIRTY, "memory_held");
    end(&g);
}

/* Whatever it says: somebody wrote that the GPU has failed. */
static void test_a_damaged_failure_is_one(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "{", "[]", "{\"code\": 7}",
                                        "{\"boot_id\": \"boot\", \"code\": \"xid\"}"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct agent g;
        CLEANUP(mem_freep) char *name = mem_printf("latch-%zu", i);
        CLEANUP(mem_freep) char *file = mem_printf("%s/%s/gpu-failed.GPU-1", dir, name);
        write_state(name, "gpu-failed.GPU-1", texts[i]);
        begin(&g, name);
        look(&g, ONE);
        expect_state(&g, "GPU-1", GPU_FAILED, "xid");
        assert_int_equal(unlink(file), 0);
        look(&g, ONE);
        look(&g, ONE);
        expect_state(&g, "GPU-1", GPU_READY, "");
        end(&g);
    }
}

/* A first GPU whose number could not be written takes none from jobs on CPUs later. */
static void test_a_number_that_was_not_saved(void **state)
{
    (void)state;
    struct agent g;
    struct attempt a = {.agent = &g, .phase = PHASE_RUNNING, .on_cpus = 1, .shim_pidfd = -1};
    struct attempt *list = &a;
    CLEANUP(mem_freep) char *path = mem_printf("%s/unsaved/devices.json", dir);
    begin(&g, "unsaved");
    file_mkdirs(path, 0700, NULL); /* in the file's place */
    look(&g, ONE);
    assert_int_equal(gpus_count(&g), 0);
    assert_int_equal(g.cpu_first, 0);
    g.attempts = &list;
    g.attempt_count = 1;
    assert_int_equal(rmdir(path), 0);
    look(&g, ONE);
    assert_int_equal(gpus_count(&g), 0);
    assert_int_equal(g.cpu_first, 0);
    g.attempt_count = 0;
    look(&g, ONE);
    assert_int_equal(gpus_count(&g), 1);
    assert_int_equal(g.cpu_first, GPUS_MAX);
    end(&g);
}

static void test_wrong_launches(void **state)
{
    (void)state;
    struct agent g;
    static const struct {
        const char *ranks, *want;
    } cases[] = {
        {"[{\"device\": 0, \"kind\": \"gpu\", \"uuid\": \"GPU-2\"}]", "is its device 1, not 0"},
        {"[{\"device\": 0, \"kind\": \"gpu\"}]", "offers no GPU"},
        {"[{\"device\": 0, \"kind\": \"gpu\", \"uuid\": \"GPU-9\"}]", "offers no GPU GPU-9"},
        {"[{\"device\": 0, \"kind\": \"cpu\"}]", "its device 0 is no CPU any more"},
        {"[{\"device\": 512, \"kind\": \"cpu\"}, {\"device\": 0, \"kind\": \"gpu\", \"uuid\": "
         "\"GPU-1\"}]",
         "on GPUs and on CPUs"},
    };
    begin(&g, "wrong");
    look(&g, "[{\"uuid\": \"GPU-1\"}, {\"uuid\": \"GPU-2\"}]");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = {0};
        json_auto_t *doc = launch_on("{}", cases[i].ranks);
        assert_int_equal(devices_launch(&g, doc, &e), ERR_CONFLICT);
        if (!strstr(e.text, cases[i].want))
            fail_msg("\"%s\" does not hold \"%s\"", e.text, cases[i].want);
    }
    /* What is another node's is not ours to judge. */
    struct err e;
    json_auto_t *other = launch_on(
        "{}", "[{\"device\": 7, \"kind\": \"gpu\", \"uuid\": \"GPU-far\", \"node\": \"n2\"}, "
              "{\"device\": 0, \"kind\": \"gpu\", \"uuid\": \"GPU-1\", \"node\": \"n1\"}]");
    assert_int_equal(devices_launch(&g, other, &e), 0);
    end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_no_number_is_given_twice),
        cmocka_unit_test(test_dirty_until_two_clean_looks),
        cmocka_unit_test(test_the_worst_counts),
        cmocka_unit_test(test_after_an_attempt),
        cmocka_unit_test(test_what_idle_is),
        cmocka_unit_test(test_xids),
        cmocka_unit_test(test_xid_of_a_split_card),
        cmocka_unit_test(test_where_ranks_run),
        cmocka_unit_test(test_processes_that_are_not_to_be_seen),
        cmocka_unit_test(test_one_owner),
        cmocka_unit_test(test_a_selection_waits_for_jobs),
        cmocka_unit_test(test_damaged_maps),
        cmocka_unit_test(test_a_baseline_that_was_raised),
        cmocka_unit_test(test_a_selection_that_names_none),
        cmocka_unit_test(test_a_damaged_failure_is_one),
        cmocka_unit_test(test_a_number_that_was_not_saved),
        cmocka_unit_test(test_wrong_launches),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
