/* Fleets of different nodes: which GPUs a job gets, trainers, drains, and figures of devices. */
#include <math.h>

#include "tests/unit/coordinator_gpus.h"

#include "daemon/coordinator/pick.h"

static void name_gpus(json_t *list, int from, int to, const char *name)
{
    for (int i = from; i < to; i++)
        json_object_set_new(json_array_get(list, (size_t)i), "name", json_string(name));
}

/* ---- models and links ---- */
static void gpus_of_one_model_come_first(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 5);
    name_gpus(list, 0, 2, "NVIDIA A100");
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *two = new_job(GPU_JOB(2, ""));
    CLEANUP(mem_freep) char *more = new_job(GPU_JOB(2, ""));
    expect_devices(two, "n1:0 n1:1 ");
    expect_devices(more, "n1:2 n1:3 ");
    json_auto_t *w = gpu_wish("n1", list, two);
    gpus_say("n1", list, status(w, "ended", exit_of("done", "done")));
    CLEANUP(mem_freep) char *mixed = new_job(GPU_JOB(3, ""));
    expect_devices(mixed, "n1:0 n1:1 n1:4 ");
    expect_reason(mixed, "Starting on node n1; its GPUs are of different models (NVIDIA A100, "
                         "NVIDIA H100), since no node has 3 free ones of one model.");
}

/* Rather another node than two models. */
static void a_node_with_one_model_is_preferred(void **state)
{
    (void)state;
    json_auto_t *mixed = gpus("a", 2), *same = gpus("b", 4);
    name_gpus(mixed, 0, 1, "NVIDIA A100");
    gpus_say("a", mixed, NULL);
    gpus_say("b", same, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(2, ""));
    expect_devices(id, "b:0 b:1 ");
    CLEANUP(mem_freep) char *one = new_job(GPU_JOB(1, ""));
    expect_devices(one, "a:0 "); /* where the fewest are left over */
}

static void linked_gpus_go_together(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 6);
    link_gpus(list, 0, 3, 4);
    link_gpus(list, 1, 4, 4);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *one = new_job(GPU_JOB(1, ""));
    expect_devices(one, "n1:2 "); /* a pair is not broken up for one */
    CLEANUP(mem_freep) char *two = new_job(GPU_JOB(2, ""));
    expect_devices(two, "n1:0 n1:3 ");
    expect_reason(two, "its GPUs are linked by NVLink");
    CLEANUP(mem_freep) char *three = new_job(GPU_JOB(3, ""));
    expect_devices(three, "n1:1 n1:4 n1:5 ");
    json_auto_t *doc = show(three);
    assert_null(strstr(json_string_value(json_object_get(doc, "reason")), "NVLink"));
}

static void four_of_eight_in_a_ring(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 8); /* 0-2-4-6-0 and 1-3-5-7-1 */
    for (int i = 0; i < 8; i++)
        link_gpus(list, i, (i + 2) % 8, 2);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *a = new_job(GPU_JOB(4, ""));
    CLEANUP(mem_freep) char *b = new_job(GPU_JOB(4, ""));
    expect_reason(a, "linked by NVLink");
    expect_reason(b, "linked by NVLink");
    json_auto_t *doc = show(a);
    for (size_t i = 0; i < 4; i++) {
        const json_t *d = json_array_get(json_object_get(doc, "devices"), i);
        assert_int_equal(json_integer_value(json_object_get(d, "device")) % 2, 0);
    }
}

/* ---- any kind, memory, trainers ---- */
static void any_device_is_a_cpu_for_a_command(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n2", 4);
    node_says("n1", NULL); /* two CPUs */
    gpus_say("n2", list, NULL);
    CLEANUP(mem_freep) char *a = new_job(JOB(1, ""));
    CLEANUP(mem_freep) char *b = new_job(JOB(4, ""));
    CLEANUP(mem_freep) char *d = new_job(JOB(2, ""));
    expect_devices(a, "n1:0 ");
    expect_devices(b, "n2:0 n2:1 n2:2 n2:3 ");       /* no node has as many CPUs */
    expect_job(d, "pending", "waiting_for_devices"); /* never two kinds */
}

static void any_device_is_a_gpu_for_a_training_job(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n2", 1);
    node_says("n1", NULL);
    gpus_say("n2", list, NULL);
    CLEANUP(mem_freep) char *spec = mem_strdup(GPU_TRAINING(""));
    memcpy(strstr(spec, "\"gpu\""), "\"any\"", 5);
    CLEANUP(mem_freep) char *a = new_job(spec);
    CLEANUP(mem_freep) char *b = new_job(spec);
    expect_devices(a, "n2:0 ");
    expect_devices(b, "n1:0 ");
}

static void a_training_job_needs_the_trainer(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    json_t *body = gpu_body("n1", list, NULL);
    json_object_del(body, "trainers"); /* an agent that does not say has the one for CPUs */
    json_decref(ask(body));
    CLEANUP(mem_freep) char *id = new_job(GPU_TRAINING(""));
    expect_job(id, "pending", "never_fits");
    expect_reason(id, "No node with 1 gpu device has the trainer for GPUs: node n1 has 1, but its "
                      "agent reports no trainyard-trainer-cuda.");
    CLEANUP(mem_freep) char *command = new_job(GPU_JOB(1, ""));
    expect_devices(command, "n1:0 ");
    json_auto_t *w = gpu_wish("n1", list, command); /* and it reports the trainer now */
    gpus_say("n1", list, status(w, "ended", exit_of("done", "done")));
    expect_devices(id, "n1:0 ");
    restart();
    expect_devices(id, "n1:0 ");
}

/* The plan is for a GPU that has room for it, less what the driver takes. */
static void the_memory_of_a_gpu_is_less_than_it_has(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    json_object_set_new(json_array_get(list, 0), "memory_bytes", json_integer(4 * GIB));
    gpus_say("n1", list, NULL);
    struct node *n = nodes_find(&c->nodes, "n1");
    assert_int_equal(node_device_memory(&n->devices[0]), 3 * GIB);
    assert_int_equal(c->view.smallest_memory[DEVICE_GPU], 3 * GIB);
    struct need need = {.devices = 1, .kind = DEVICE_GPU, .memory = 3 * GIB};
    assert_int_equal(node_device_fits(&n->devices[0], &need), 1);
    need.memory++;
    assert_int_equal(node_device_fits(&n->devices[0], &need), 0);
    n->devices[0].memory = GIB; /* as small as there is none: half of it */
    assert_int_equal(node_device_memory(&n->devices[0]), GIB / 2);
}

/* Of different sizes: within the smallest if that will do, else within one that a node has. */
static void a_large_job_is_planned_for_the_large_gpus(void **state)
{
    (void)state;
    json_auto_t *small = gpus("n1", 2), *large = gpus("n2", 1);
    for (size_t i = 0; i < 2; i++)
        json_object_set_new(json_array_get(small, i), "memory_bytes", json_integer(2 * GIB));
    gpus_say("n1", small, NULL);
    gpus_say("n2", large, NULL);
    CLEANUP(mem_freep) char *little = new_job(GPU_TRAINING(""));
    expect_devices(little, "n2:0 "); /* where the fewest are left over */
    static const char big[] =
        "{\"name\":\"big\",\"model\":{\"input\":[16384],\"layers\":[{\"type\":\"dense\",\"units\":"
        "16384},{\"type\":\"dense\",\"units\":2}]},\"compile\":{\"optimizer\":\"adam\",\"loss\":"
        "\"mean_squared_error\"},\"data\":{\"train\":{\"format\":\"synthetic\",\"samples\":8,"
        "\"input\":16384,\"classes\":2,\"seed\":1}},\"resources\":{\"devices\":%d,\"device\":"
        "\"gpu\"},\"strategy\":\"mirrored\"}";
    CLEANUP(mem_freep) char *one = mem_printf(big, 1), *two = mem_printf(big, 2);
    CLEANUP(mem_freep) char *id = new_job(one);
    expect_job(id, "pending", "waiting_for_devices");
    json_auto_t *doc = show(id);
    const char *why = json_string_value(json_object_get(json_object_get(doc, "strategy"), "why"));
    assert_non_null(strstr(why, "of the 79.0 GiB of such devices that have more than 1.0 GiB"));
    assert_int_equal(submit(two, NULL, NULL, NULL), 422); /* no node has two large ones */
    json_auto_t *w = gpu_wish("n2", large, little);
    gpus_say("n2", large, status(w, "ended", exit_of("done", "done")));
    expect_devices(id, "n2:0 ");
}

/* ---- drains ---- */
static void a_drained_node_gets_no_new_work(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *runs = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, runs);
    assert_int_equal(drain_as(1, "n1", -1, NULL, "rack 3 moves"), 200);
    assert_int_equal(drain_as(1, "n1", -1, NULL, "rack 3 moves"), 200); /* changes nothing */
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    expect_job(id, "pending", "waiting_for_node");
    expect_reason(id, "n1, which takes no new jobs now. It is drained by ann: rack 3 moves.");
    gpus_say("n1", list, status(w, "running", NULL)); /* what runs goes on */
    expect_job(runs, "running", "running");
    restart();
    gpus_say("n1", list, status(w, "running", NULL));
    expect_job(id, "pending", "waiting_for_node");
    json_auto_t *doc = node_document("n1");
    const json_t *drain = json_object_get(doc, "drain");
    assert_string_equal(json_string_value(json_object_get(drain, "reason")), "rack 3 moves");
    assert_string_equal(json_string_value(json_object_get(drain, "by")), "ann");
    assert_string_equal(json_string_value(json_object_get(doc, "trouble")),
                        "It is drained by ann: rack 3 moves.");
    assert_int_equal(drain_as(0, "n1", -1, NULL, ""), 200);
    assert_int_equal(drain_as(0, "n1", -1, NULL, ""), 200);
    expect_devices(id, "n1:1 ");
    expect_events("node_", "node_joined -1, node_drained -1, node_undrained -1, ");
    assert_int_equal(drain_as(1, "n9", -1, NULL, ""), 404);
}

static void a_drained_device_gets_no_new_work(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    gpus_say("n1", list, NULL);
    assert_int_equal(drain_as(1, "n1", 0, NULL, "fan"), 200);
    assert_int_equal(drain_as(1, "n1", -1, "GPU-n1-0", "its fan"), 200); /* another reason */
    assert_int_equal(drain_as(1, "n1", 7, NULL, ""), 404);
    assert_int_equal(drain_as(1, "n1", -1, "GPU-x", ""), 404);
    expect_device("n1", 0, "state", "drained");
    expect_device("n1", 0, "why_not", "GPU 0 is drained by ann: its fan");
    CLEANUP(mem_freep) char *a = new_job(GPU_JOB(1, ""));
    CLEANUP(mem_freep) char *b = new_job(GPU_JOB(2, ""));
    expect_devices(a, "n1:1 ");
    expect_job(b, "pending", "devices_not_ready");
    expect_reason(b, "Node n1: GPU 0 is drained by ann: its fan.");
    restart();
    json_auto_t *other = json_array(); /* it is pulled out, and its drain stays */
    json_array_append(other, json_array_get(list, 1));
    gpus_say("n1", other, NULL);
    gpus_say("n1", list, NULL);
    expect_device("n1", 0, "state", "drained");
    gpus_say("n1", other, NULL);
    assert_int_equal(drain_as(0, "n1", -1, "GPU-n1-0", ""), 200); /* named by its key alone */
    gpus_say("n1", list, NULL);
    expect_device("n1", 0, "state", "free");
    expect_events("device_", "device_drained 0, device_drained 0, device_undrained -1, ");
}

/* A drained device is nothing that is kept for a job. */
static void what_is_drained_holds_up_nobody(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 3);
    gpus_say("n1", list, NULL);
    assert_int_equal(drain_as(1, "n1", 0, NULL, ""), 200);
    CLEANUP(mem_freep) char *wide = new_job(GPU_JOB(3, ",\"priority\":5"));
    CLEANUP(mem_freep) char *narrow = new_job(GPU_JOB(1, ""));
    expect_job(wide, "pending", "devices_not_ready");
    expect_devices(narrow, "n1:1 ");
}

/* ---- figures ---- */
static void figures_say(json_t *list, json_t *take_figures)
{
    json_t *body = gpu_body("n1", list, NULL);
    json_object_set_new(body, "telemetry", take_figures);
    json_decref(ask(body));
}

static char *metrics(void)
{
    struct service_reply r;
    service_reply_init(&r);
    coordinator_clock(c);
    assert_int_equal(service_metrics(c, &r), 0);
    char *text = mem_strdup(r.text);
    service_reply_done(&r);
    return text;
}

static void figures_are_shown_with_their_age(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 2);
    figures_say(list, json_pack("[{s:i, s:f, s:i, s:n}]", "index", 0, "temperature_c", 41.5,
                                "utilization", 97, "power_w"));
    advance(7);
    json_auto_t *d = device_document("n1", 0);
    json_auto_t *none = device_document("n1", 1);
    const json_t *t = json_object_get(d, "telemetry");
    assert_int_equal(json_integer_value(json_object_get(t, "age_s")), 7);
    assert_true(json_real_value(json_object_get(t, "temperature_c")) == 41.5);
    assert_int_equal(json_integer_value(json_object_get(t, "utilization")), 97);
    assert_null(json_object_get(t, "power_w"));
    assert_true(json_is_null(json_object_get(none, "telemetry")));
    CLEANUP(mem_freep) char *text = metrics();
    assert_non_null(strstr(text, "trainyard_device_temperature_celsius{node=\"n1\",device=\"0\","
                                 "uuid=\"GPU-n1-0\"} 41.5\n"));
    assert_null(strstr(text, "trainyard_device_power_watts"));
    assert_null(strstr(text, "device=\"1\""));
    advance(60); /* stale */
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *later = metrics();
    assert_null(strstr(later, "trainyard_device_temperature_celsius"));
}

static void absurd_figures_are_left_out(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    figures_say(list,
                json_pack("[{s:i, s:i, s:f, s:s, s:i, s:i}, {s:i, s:i}, s]", "index", 0,
                          "temperature_c", -3, "power_w", 1e300, "utilization", "hot", "clock_mhz",
                          1980, "unheard_of", 1, "index", 99, "clock_mhz", 5, "x"));
    json_auto_t *d = device_document("n1", 0);
    const json_t *t = json_object_get(d, "telemetry");
    assert_int_equal(json_object_size(t), 2);
    assert_int_equal(json_integer_value(json_object_get(t, "clock_mhz")), 1980);
    assert_int_equal(c->dropped_figures, 5);
    figures_say(list, json_string("none"));
    figures_say(list, json_object());
    assert_int_equal(c->dropped_figures, 7);
    expect_device("n1", 0, "state", "free"); /* and nothing is decided by it */
}

static void allocated_and_idle_is_told(void **state)
{
    (void)state;
    json_auto_t *list = gpus("n1", 1);
    gpus_say("n1", list, NULL);
    CLEANUP(mem_freep) char *id = new_job(GPU_JOB(1, ""));
    json_auto_t *w = gpu_wish("n1", list, id);
    for (int minute = 0; minute <= 11; minute++) {
        json_t *body = gpu_body("n1", list, status(w, "running", NULL));
        json_object_set_new(body, "telemetry",
                            json_pack("[{s:i, s:i}]", "index", 0, "utilization", 4));
        json_decref(ask(body));
        json_auto_t *d = device_document("n1", 0);
        const json_t *idle = json_object_get(d, "idle_s");
        if (minute < 10)
            assert_true(json_is_null(idle));
        else
            assert_int_equal(json_integer_value(idle), 60 * minute);
        pause_for(60);
    }
    json_t *body = gpu_body("n1", list, status(w, "running", NULL));
    json_object_set_new(body, "telemetry", json_pack("[{s:i, s:i}]", "index", 0, "utilization", 5));
    json_decref(ask(body));
    json_auto_t *d = device_document("n1", 0);
    assert_true(json_is_null(json_object_get(d, "idle_s")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(gpus_of_one_model_come_first),
        T(a_node_with_one_model_is_preferred),
        T(linked_gpus_go_together),
        T(four_of_eight_in_a_ring),
        T(any_device_is_a_cpu_for_a_command),
        T(any_device_is_a_gpu_for_a_training_job),
        T(a_training_job_needs_the_trainer),
        T(the_memory_of_a_gpu_is_less_than_it_has),
        T(a_large_job_is_planned_for_the_large_gpus),
        T(a_drained_node_gets_no_new_work),
        T(a_drained_device_gets_no_new_work),
        T(what_is_drained_holds_up_nobody),
        T(figures_are_shown_with_their_age),
        T(absurd_figures_are_left_out),
        T(allocated_and_idle_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
