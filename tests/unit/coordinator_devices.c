/* Devices that are dirty, failed, lost, swapped, doubled, divided, or gone: who gets them, what
 * happens to what runs on them, and what is said of it. */
#include "tests/unit/coordinator_gpus.h"

#include "daemon/coordinator/devices.h"

/* ---- who is given what ---- */
static void a_rank_is_given_its_gpu_by_uuid(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(2, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    const json_t *ranks = json_object_get(json_object_get(w, "launch"), "ranks");
    assert_int_equal(json_array_size(ranks), 2);
    for (int i = 0; i < 2; i++) {
        CLEANUP(mem_freep) char *uuid = mem_printf("GPU-n1-%d", i);
        const json_t *rank = json_array_get(ranks, (size_t)i);
        assert_string_equal(json_string_value(json_object_get(rank, "uuid")), uuid);
        assert_string_equal(json_string_value(json_object_get(rank, "kind")), "gpu");
        expect_device("n1", i, "state", "leased");
        expect_device("n1", i, "uuid", uuid);
    }
    json_auto_t *doc = show(id);
    const json_t *device = json_array_get(json_object_get(doc, "devices"), 1);
    assert_string_equal(json_string_value(json_object_get(device, "uuid")), "GPU-n1-1");
}

static void a_dirty_gpu_waits_until_it_is_clean(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    set_state(list, 0, "dirty", "foreign_process", "process 4711 (python3) of user ann holds 3 GB");
    set_state(list, 1, "failed", "ecc_error", "2 uncorrectable ECC errors");
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    expect_job(id, "pending", "devices_not_ready");
    expect_reason(id, "Waiting for 1 gpu device on one node: n1 has 0 that are fit for use. Node "
                      "n1: GPU 0 is dirty: process 4711 (python3) of user ann holds 3 GB; node n1: "
                      "GPU 1 is failed: 2 uncorrectable ECC errors.");
    expect_device("n1", 0, "state", "dirty");
    expect_device("n1", 0, "code", "foreign_process");
    expect_device("n1", 1, "state", "failed");
    expect_device("n1", 1, "why_not", "GPU 1 is failed: 2 uncorrectable ECC errors");
    restart(); /* known before the node has spoken again */
    expect_device("n1", 0, "state", "dirty");
    gpus_say("n1", list, NULL);
    expect_job(id, "pending", "devices_not_ready");
    set_state(list, 0, "ready", "", "");
    gpus_say("n1", list, NULL);
    expect_devices(id, "n1:0 ");
    expect_events("device_", "device_dirty 0, device_failed 1, device_ready 0, ");
}

/* What ends leaves its GPU to be looked at, in the very sync that reports the end. */
static void after_an_end_the_gpu_is_looked_at_first(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *first = new_job(GPU_JOB(1, ""));
    CLEANUP(mem_freep) char *next = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, first);
    gpus_say("n1", list, status(w, "running", NULL));
    json_auto_t *ready = json_deep_copy(list);
    json_t *late = gpu_body("n1", ready, status(w, "running", NULL));
    set_state(list, 0, "dirty", "checking", "it is looked at since attempt 1 ended");
    gpus_say("n1", list, status(w, "ended", exit_of("done", "done")));
    expect_job(first, "succeeded", "done");
    expect_job(next, "pending", "waiting_for_devices"); /* not devices_not_ready: it will be */
    json_decref(ask(late));                             /* an older request, which calls it ready */
    expect_job(next, "pending", "waiting_for_devices");
    expect_device("n1", 0, "state", "dirty");
    set_state(list, 0, "dirty", "memory_held", "2 GB are held by nobody");
    gpus_say("n1", list, NULL);
    expect_job(next, "pending", "devices_not_ready");
    set_state(list, 0, "ready", "", "");
    gpus_say("n1", list, NULL);
    expect_job(next, "starting", "starting");
    expect_events("device_", "device_dirty 0, device_ready 0, "); /* checking is no event */
}

/* ---- what breaks under an attempt ---- */
static void breaks_under_an_attempt(const char *state, const char *code)
{
    json_auto_t *list = gpus("n1", 2);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    gpus_say("n1", list, status(w, "running", NULL));
    expect_devices(id, "n1:0 ");
    set_state(list, 0, state, "xid", "Xid 79: it has fallen off the bus");
    json_auto_t *answer = ask(gpu_body("n1", list, status(w, "running", NULL)));
    const json_t *stop = json_array_get(json_object_get(answer, "wanted"), 0);
    assert_string_equal(deed(stop), "stop");
    assert_string_equal(json_string_value(json_object_get(stop, "code")), code);
    const char *reason = json_string_value(json_object_get(stop, "reason"));
    assert_non_null(strstr(reason, "GPU 0 of node n1 (GPU-n1-0, NVIDIA H100)"));
    assert_non_null(strstr(reason, "Xid 79: it has fallen off the bus"));
    expect_job(id, "stopping", code);
    gpus_say("n1", list, status(w, "stopping", NULL)); /* again: nothing new */
    gpus_say("n1", list, status(w, "ended", exit_of("stopped", code)));
    expect_job(id, "pending", "restarting");
    expect_reason(id, "GPU 0 of node n1 (GPU-n1-0, NVIDIA H100)");
    advance(2);
    gpus_say("n1", list, NULL);
    expect_devices(id, "n1:1 "); /* the other one */
    CLEANUP(mem_freep) char *waits = new_job(GPU_JOB(1, ""));
    expect_job(waits, "pending", "waiting_for_devices");
    expect_reason(waits, "Node n1: GPU 0 is ");
    set_state(list, 0, "ready", "", "");
    gpus_say("n1", list, NULL);
    expect_devices(waits, "n1:0 ");
}

static void a_gpu_that_fails_stops_its_attempt(void **state)
{
    (void)state;
    breaks_under_an_attempt("failed", "device_failed");
    expect_events("device_", "device_failed 0, device_ready 0, ");
}

static void a_gpu_that_is_lost_stops_its_attempt(void **state)
{
    (void)state;
    breaks_under_an_attempt("lost", "device_lost");
    expect_events("device_", "device_lost 0, device_ready 0, ");
}

/* Its rank may have died of it before anybody asked, with a status that asks for no other try. */
static void a_rank_that_died_of_its_gpu_is_tried_again(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    gpus_say("n1", list, status(w, "running", NULL));
    set_state(list, 0, "lost", "device_lost", "NVML: GPU is lost");
    gpus_say("n1", list, status(w, "ended", exit_of("failed", "rank_failed")));
    expect_job(id, "pending", "restarting");
    expect_reason(id, "is lost: NVML: GPU is lost");
    advance(2);
    gpus_say("n1", list, NULL);
    expect_devices(id, "n1:1 ");
    /* a job that asks for no restarts has the device's word in its end */
    json_auto_t *w2 = gpu_wish("n1", list, id);
    json_decref(w2);
    w2 = NULL;
    CLEANUP(mem_freep) char *once = NULL;
    set_state(list, 0, "ready", "", "");
    gpus_say("n1", list, NULL);
    once = new_job("{\"name\":\"o\",\"command\":[\"true\"],\"resources\":{\"device\":\"gpu\"}}");
    w2 = gpu_wish("n1", list, once);
    gpus_say("n1", list, status(w2, "running", NULL));
    set_state(list, 0, "failed", "ecc_error", "an ECC error");
    gpus_say("n1", list, status(w2, "ended", exit_of("stopped", "device_failed")));
    expect_job(once, "failed", "device_failed");
    expect_reason(once, "has failed: an ECC error");
}

/* An end that a user asked for stays one. */
static void a_cancel_is_not_overruled_by_a_device(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    gpus_say("n1", list, status(w, "running", NULL));
    assert_int_equal(cancel(id), 200);
    end_turn();
    set_state(list, 0, "failed", "xid", "Xid 48");
    gpus_say("n1", list, status(w, "stopping", NULL));
    expect_job(id, "stopping", "cancelled");
    gpus_say("n1", list, status(w, "ended", exit_of("stopped", "cancelled")));
    expect_job(id, "cancelled", "cancelled");
}

static void a_gpu_that_is_not_listed_is_lost_after_30_s(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1), *none = json_array();
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    gpus_say("n1", list, status(w, "running", NULL));
    for (int i = 0; i < 3; i++) {
        gpus_say("n1", none, status(w, "running", NULL));
        expect_job(id, "running", "running");
        expect_device("n1", 0, "state", "leased");
        expect_device("n1", 0, "why_not", "GPU 0 is gone from what its node reports");
        advance(9);
    }
    gpus_say("n1", list, status(w, "running", NULL)); /* it is back: the time begins anew */
    expect_device("n1", 0, "why_not", NULL);
    advance(5);
    gpus_say("n1", none, status(w, "running", NULL));
    restart(); /* and with a new coordinator */
    for (int i = 0; i < 4; i++) {
        gpus_say("n1", none, status(w, "running", NULL));
        expect_job(id, "running", "running");
        advance(9);
    }
    gpus_say("n1", none, status(w, "running", NULL));
    expect_job(id, "stopping", "device_lost");
    expect_reason(id, "its node has not listed it for 30 s");
    gpus_say("n1", none, status(w, "ended", exit_of("stopped", "device_lost")));
    expect_job(id, "pending", "restarting");
    gpus_say("n1", none, NULL);
    json_auto_t *doc = node_document("n1");
    assert_int_equal(json_array_size(json_object_get(doc, "devices")), 0);
    expect_events("device_", "device_lost 0, ");
}

/* Nobody can look at it: what runs goes on, and it is no failure of the GPU. */
static void a_gpu_that_is_not_seen_stops_nothing(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    for (int i = 0; i < 4; i++) {
        for (int d = 0; d < 2; d++)
            set_state(list, d, "failed", i % 2 ? "nvml_missing" : "probe_stalled", "no driver");
        gpus_say("n1", list, status(w, "running", NULL));
        expect_job(id, "running", "running");
        expect_device("n1", 1, "state", "failed");
        for (int d = 0; d < 2; d++)
            set_state(list, d, "ready", "", "");
        gpus_say("n1", list, status(w, "running", NULL));
        expect_device("n1", 1, "state", "free");
    }
}

/* That it fails in earnest is told, and stops what runs there, though nobody saw it before. */
static void a_gpu_that_is_seen_again_may_have_failed(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    for (int i = 0; i < 3; i++) { /* the same failure, three times out of sight */
        set_state(list, 0, "failed", "probe_stalled", "The probe has said nothing for 30 s");
        gpus_say("n1", list, status(w, "running", NULL));
        if (i == 0)
            expect_job(id, "running", "running");
        set_state(list, 0, "failed", "ecc_error", "an ECC error");
        gpus_say("n1", list, status(w, i ? "stopping" : "running", NULL));
        expect_job(id, "stopping", "device_failed");
    }
    expect_device("n1", 0, "drain", NULL);
    expect_events("device_", "device_failed 0, device_failed 0, device_failed 0, "
                             "device_failed 0, device_failed 0, device_failed 0, ");
}

/* The journal of events is for ever: what flaps must not fill the disk. */
static void a_gpu_that_flaps_has_few_events(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    char expected[400] = "";
    gpus_say("n1", list, NULL);
    for (int i = 0; i < 200; i++) {
        set_state(list, 0, i % 2 ? "ready" : "dirty", i % 2 ? "" : "foreign_process", "");
        gpus_say("n1", list, NULL);
        if (i < DEVICE_EVENTS)
            snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected), "%s 0, ",
                     i % 2 ? "device_ready" : "device_dirty");
    }
    expect_events("device_", expected);
    set_state(list, 0, "dirty", "memory_held", "");
    gpus_say("n1", list, NULL);
    expect_events("device_", expected);
    pause_for(DEVICE_EVENT_US / 1000000 + 1);
    gpus_say("n1", list, NULL); /* in the end, how it is, and how often it changed */
    strcat(expected, "device_dirty 0, ");
    expect_events("device_", expected);
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_event_list(c, NULL, 0, 1000, &r), 0);
    const json_t *events = json_object_get(r.body, "events");
    const json_t *last = NULL;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (strncmp(json_string_value(json_object_get(e, "type")), "device_", 7) == 0)
            last = json_object_get(e, "data");
    }
    assert_int_equal(json_integer_value(json_object_get(last, "changes")), 191);
    service_reply_done(&r);
}

/* Each of its failures counts, told or not. */
static void a_gpu_that_flaps_is_drained_all_the_same(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    for (int i = 0; i < 40; i++) {
        const char *how = i < 20 ? "dirty" : "failed";
        set_state(list, 0, i % 2 ? "ready" : how, i % 2 ? "" : "xid", "Xid 63");
        gpus_say("n1", list, NULL);
        expect_device("n1", 0, "state", i % 2 == 0 ? how : i < 24 ? "free" : "drained");
    }
}

static void a_gpu_that_keeps_failing_is_drained(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    for (int i = 0; i < 3; i++) {
        set_state(list, 0, i == 1 ? "lost" : "failed", "xid", "Xid 63");
        gpus_say("n1", list, NULL);
        if (i == 1)
            restart();
        set_state(list, 0, "ready", "", "");
        gpus_say("n1", list, NULL);
        expect_device("n1", 0, "state", i < 2 ? "free" : "drained");
    }
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    expect_job(id, "pending", "devices_not_ready");
    expect_reason(id, "GPU 0 is drained by the coordinator: It has failed 3 times within a day, "
                      "the last time so: Xid 63.");
    restart();
    gpus_say("n1", list, NULL);
    expect_job(id, "pending", "devices_not_ready");
    assert_int_equal(drain_as(0, "n1", -1, "GPU-n1-0", ""), 200);
    expect_job(id, "starting", "starting");
    set_state(list, 0, "failed", "xid", "Xid 63"); /* counted from the beginning */
    gpus_say("n1", list, NULL);
    set_state(list, 0, "ready", "", "");
    gpus_say("n1", list, NULL);
    expect_device("n1", 0, "drain", NULL);
}

static void failures_of_days_ago_do_not_count(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    for (int i = 0; i < 4; i++) {
        set_state(list, 0, "failed", "xid", "Xid 63");
        gpus_say("n1", list, NULL);
        set_state(list, 0, "ready", "", "");
        gpus_say("n1", list, NULL);
        pause_for(13 * 3600);
    }
    gpus_say("n1", list, NULL);
    expect_device("n1", 0, "state", "free");
}

/* ---- one device, one owner ---- */
static void a_leased_index_stays_with_its_device(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 3);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    gpus_say("n1", list, status(w, "running", NULL));
    json_auto_t *shuffled = gpus("n1", 3);
    json_object_set_new(json_array_get(shuffled, 0), "uuid", json_string("GPU-n1-2"));
    json_object_set_new(json_array_get(shuffled, 2), "uuid", json_string("GPU-n1-0"));
    gpus_say("n1", shuffled, status(w, "running", NULL));
    expect_device("n1", 0, "uuid", "GPU-n1-0"); /* not taken */
    CLEANUP(mem_freep) char *waits = new_job(GPU_JOB(1, ""));
    expect_job(waits, "pending", "waiting_for_node");
    expect_reason(waits, "Its device 0 is leased to attempt att_");
    expect_reason(waits, "as GPU-n1-0, and it now reports GPU-n1-2 under that index");
    json_auto_t *doc = node_document("n1");
    assert_non_null(json_string_value(json_object_get(doc, "trouble")));
    expect_job(id, "running", "running"); /* what runs goes on, and may end */
    gpus_say("n1", list, status(w, "running", NULL));
    expect_devices(waits, "n1:1 "); /* right again */
    json_auto_t *w2 = gpu_wish("n1", list, waits);
    gpus_say("n1", shuffled, status(w, "ended", exit_of("done", "done")));
    expect_job(id, "succeeded", "done");
    gpus_say("n1", shuffled, status(w2, "running", NULL)); /* index 0 has no lease any more */
    expect_device("n1", 0, "uuid", "GPU-n1-2");
}

static void a_cpu_device_does_not_become_a_gpu_while_leased(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_auto_t *list = gpus("n1", 1);
    json_t *body = gpu_body("n1", list, status(w, "running", NULL));
    json_object_set_new(body, "boot_id", json_string("boot-1"));
    json_decref(ask(body));
    expect_device("n1", 0, "kind", "cpu");
    expect_job(id, "running", "running");
}

static void one_gpu_on_two_nodes_has_one_owner(void **state)
{
    (void)state;
    json_auto_t *mine = gpus("n1", 1), *theirs = gpus("n1", 1);
    gpus_say("n1", mine, NULL);
    gpus_say("n2", theirs, NULL);
    expect_device("n1", 0, "state", "free");
    expect_device("n2", 0, "state", "conflict");
    expect_device("n2", 0, "why_not",
                  "GPU 0 is not used: node n1 reports the same device, GPU-n1-0, as its device 0");
    CLEANUP(mem_freep) char *a = new_job(GPU_JOB(1, ""));
    CLEANUP(mem_freep) char *b = new_job(GPU_JOB(1, ""));
    expect_devices(a, "n1:0 ");
    expect_job(b, "pending", "waiting_for_devices");
    json_auto_t *w = gpu_wish("n1", mine, a);
    gpus_say("n1", mine, status(w, "running", NULL));
    advance(50); /* n1 falls silent; what it leases stays leased */
    gpus_say("n2", theirs, NULL);
    expect_job(b, "pending", "devices_not_ready");
    expect_reason(b, "node n1 reports the same device, GPU-n1-0, as its device 0");
    gpus_say("n1", mine, status(w, "ended", exit_of("done", "done")));
    expect_devices(b, "n1:0 ");
}

static void a_gpu_that_moved_is_used_where_it_is(void **state)
{
    (void)state;
    json_auto_t *mine = gpus("n1", 1), *theirs = gpus("n1", 1);
    gpus_say("n1", mine, NULL);
    advance(50); /* n1 was switched off */
    gpus_say("n2", theirs, NULL);
    CLEANUP(mem_freep) char *a = new_job(GPU_JOB(1, ""));
    expect_devices(a, "n2:0 ");
    gpus_say("n1", mine, NULL); /* two say so, and one leases it */
    expect_device("n1", 0, "state", "conflict");
}

/* From one node that runs to another; the first has it in its devices.json still. */
static void a_card_that_was_moved_is_used_where_it_is(void **state)
{
    (void)state;
    json_auto_t *mine = gpus("n1", 1), *theirs = gpus("n1", 1);
    gpus_say("n1", mine, NULL);
    set_state(mine, 0, "lost", "device_lost", "NVML no longer lists it");
    gpus_say("n1", mine, NULL);
    gpus_say("n2", theirs, NULL);
    expect_device("n1", 0, "state", "lost");
    expect_device("n2", 0, "state", "free");
    CLEANUP(mem_freep) char *a = new_job(GPU_JOB(1, ""));
    expect_devices(a, "n2:0 ");
}

static void one_uuid_twice_on_a_node_is_refused(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    gpus_say("n1", list, NULL);
    json_object_set_new(json_array_get(list, 1), "uuid", json_string("GPU-n1-0"));
    assert_null(send_body(gpu_body("n1", list, NULL), 1, 0, 400));
    expect_device("n1", 1, "uuid", "GPU-n1-1");
}

static void a_gpu_and_its_instances_are_not_both_used(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 3);
    json_object_set_new(json_array_get(list, 1), "mig_of", json_string("GPU-n1-0"));
    json_object_set_new(json_array_get(list, 2), "mig_of", json_string("GPU-n1-0"));
    gpus_say("n1", list, NULL);
    expect_device("n1", 0, "state", "conflict");
    expect_device("n1", 0, "why_not",
                  "GPU 0 is not used: it is divided into MIG instances, such as device 1");
    CLEANUP(mem_freep) char *a = new_job(GPU_JOB(1, ""));
    CLEANUP(mem_freep) char *b = new_job(GPU_JOB(1, ""));
    CLEANUP(mem_freep) char *more = new_job(GPU_JOB(1, ""));
    expect_devices(a, "n1:1 ");
    expect_devices(b, "n1:2 ");
    expect_job(more, "pending", "waiting_for_devices");
}

static void instances_wait_for_what_has_the_whole(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *a = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, a);
    json_array_append_new(list, gpu("n1", 1));
    json_object_set_new(json_array_get(list, 1), "mig_of", json_string("GPU-n1-0"));
    gpus_say("n1", list, status(w, "running", NULL));
    CLEANUP(mem_freep) char *b = new_job(GPU_JOB(1, ""));
    expect_job(b, "pending", "devices_not_ready");
    expect_device("n1", 1, "why_not",
                  "GPU 1 is not used: device 0, which it is a part of, is leased as a whole");
    gpus_say("n1", list, status(w, "ended", exit_of("done", "done")));
    expect_devices(b, "n1:1 ");
}

/* ---- many, and at once ---- */
/* What an agent writes beside it is not kept. */
static void a_device_is_kept_as_it_is_known(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    link_gpus(list, 0, 1, 4);
    CLEANUP(mem_freep) char *junk = mem_zalloc(100001);
    memset(junk, 'x', 100000);
    json_t *first = json_array_get(list, 0);
    json_object_set_new(first, "junk", json_string(junk));
    json_object_set_new(json_array_get(json_object_get(first, "links"), 0), "junk",
                        json_string(junk));
    gpus_say("n1", list, NULL);
    assert_true(strlen(nodes_find(&c->nodes, "n1")->devices_text) < 1000);
    restart();
    expect_device("n1", 0, "uuid", "GPU-n1-0");
    const struct device *d = &nodes_find(&c->nodes, "n1")->devices[0];
    assert_int_equal(d->link_count, 1);
    assert_string_equal(d->links[0].uuid, "GPU-n1-1");
    assert_int_equal(d->links[0].count, 4);
    assert_int_equal(d->memory, 80 * GIB);
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_event_list(c, NULL, 0, 1000, &r), 0);
    CLEANUP(mem_freep) char *events = json_dumps(r.body, JSON_COMPACT);
    assert_true(strlen(events) < 10000);
    service_reply_done(&r);
}

static void states_that_flip_within_a_turn(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = NULL;
    json_auto_t *doc = NULL;
    assert_int_equal(submit(GPU_JOB(1, ""), NULL, &doc, NULL), 201);
    id = mem_strdup(json_string_value(json_object_get(doc, "id")));
    set_state(list, 0, "failed", "xid", "Xid 79"); /* two syncs before the pass */
    json_decref(send_body(gpu_body("n1", list, NULL), 1, 0, 200));
    set_state(list, 0, "dirty", "checking", "");
    json_decref(send_body(gpu_body("n1", list, NULL), 1, 0, 200));
    end_turn();
    expect_job(id, "pending", "waiting_for_devices");
    set_state(list, 0, "ready", "", "");
    json_decref(send_body(gpu_body("n1", list, NULL), 1, 0, 200));
    set_state(list, 0, "dirty", "foreign_process", "process 7");
    json_decref(send_body(gpu_body("n1", list, NULL), 1, 0, 200));
    end_turn();
    expect_job(id, "pending", "devices_not_ready");
    expect_events("device_", "device_failed 0, device_ready 0, device_dirty 0, ");
}

static void a_thousand_gpus(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1024);
    gpus_say("n1", list, NULL);
    set_state(list, 500, "failed", "xid", "Xid 79");
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *all = new_job(GPU_JOB(1024, ""));
    CLEANUP(mem_freep) char *most = new_job(GPU_JOB(1023, ""));
    expect_job(all, "pending", "devices_not_ready");
    expect_job(most, "starting", "starting");
    expect_device("n1", 500, "attempt", NULL);
    json_array_append_new(list, gpu("n1", 1024));
    assert_null(send_body(gpu_body("n1", list, NULL), 1, 0, 400));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_rank_is_given_its_gpu_by_uuid),
        T(a_dirty_gpu_waits_until_it_is_clean),
        T(after_an_end_the_gpu_is_looked_at_first),
        T(a_gpu_that_fails_stops_its_attempt),
        T(a_gpu_that_is_lost_stops_its_attempt),
        T(a_rank_that_died_of_its_gpu_is_tried_again),
        T(a_cancel_is_not_overruled_by_a_device),
        T(a_gpu_that_is_not_listed_is_lost_after_30_s),
        T(a_gpu_that_is_not_seen_stops_nothing),
        T(a_gpu_that_is_seen_again_may_have_failed),
        T(a_gpu_that_flaps_has_few_events),
        T(a_gpu_that_flaps_is_drained_all_the_same),
        T(a_gpu_that_keeps_failing_is_drained),
        T(failures_of_days_ago_do_not_count),
        T(a_leased_index_stays_with_its_device),
        T(a_cpu_device_does_not_become_a_gpu_while_leased),
        T(one_gpu_on_two_nodes_has_one_owner),
        T(a_gpu_that_moved_is_used_where_it_is),
        T(a_card_that_was_moved_is_used_where_it_is),
        T(one_uuid_twice_on_a_node_is_refused),
        T(a_gpu_and_its_instances_are_not_both_used),
        T(instances_wait_for_what_has_the_whole),
        T(a_device_is_kept_as_it_is_known),
        T(states_that_flip_within_a_turn),
        T(a_thousand_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
