/* The planner: what auto chooses at which memory, what is refused and what is proposed instead; and
 * the sentences that say why a job waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/explain.h"
#include "daemon/coordinator/planner.h"

static const char template[] =
    "{\"model\":{\"input\":[512],\"layers\":["
    "{\"type\":\"dense\",\"units\":512,\"activation\":\"relu\"},"
    "{\"type\":\"dense\",\"units\":512,\"activation\":\"relu\"},"
    "{\"type\":\"dense\",\"units\":512,\"activation\":\"relu\"},"
    "{\"type\":\"dense\",\"units\":512,\"activation\":\"softmax\"}]},"
    "\"compile\":{\"optimizer\":\"adam\",\"loss\":\"sparse_categorical_crossentropy\"},"
    "\"data\":{\"train\":{\"format\":\"synthetic\",\"samples\":100,\"input\":512,\"classes\":512,"
    "\"seed\":1}},\"fit\":{\"batch_size\":64},\"resources\":{\"devices\":%d},"
    "\"strategy\":%s}";

static struct job_spec *spec(const char *text)
{
    struct faults faults = {0}, warnings = {0};
    struct err e = {0};
    json_auto_t *doc = NULL;
    if (job_spec_read(text, strlen(text), &doc, &e) != 0)
        fail_msg("%s", e.text);
    struct job_spec *s = job_spec_parse(doc, 1, &faults, &warnings);
    if (!s)
        fail_msg("%s: %s", faults.items[0].pointer, faults.items[0].message);
    faults_done(&faults);
    faults_done(&warnings);
    return s;
}

/* `memory` 0: the device's own. */
static struct job_spec *network(int devices, int64_t memory, const char *strategy)
{
    CLEANUP(mem_freep) char *text = mem_printf(template, devices, strategy);
    struct job_spec *s = spec(text);
    s->resources.memory = memory;
    return s;
}

static const struct planner_view unknown;

static void plan(int devices, int64_t memory, const char *strategy, struct plan *ret)
{
    struct job_spec *s = network(devices, memory, strategy);
    struct faults f = {0};
    if (planner_plan(s, &unknown, ret, &f) != 0)
        fail_msg("%s: %s", f.items[0].message, f.items[0].hint ? f.items[0].hint : "");
    assert_non_null(ret->why);
    assert_int_not_equal(ret->why[0], 0);
    assert_int_equal(ret->data * ret->pipeline * ret->tensor, ret->ranks);
    json_auto_t *doc = plan_to_json(ret); /* and as text, the very same */
    CLEANUP(mem_freep) char *expected = json_dumps(doc, JSON_COMPACT);
    struct buf text = BUF_INIT;
    planner_write(ret, &text);
    assert_string_equal(text.data, expected);
    buf_done(&text);
    faults_done(&f);
    job_spec_free(s);
}

static void refuse(int devices, int64_t memory, const char *strategy, const char *code,
                   const char *hint)
{
    struct job_spec *s = network(devices, memory, strategy);
    struct faults f = {0};
    struct plan p = {0};
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    assert_int_equal(f.total, 1);
    assert_string_equal(f.items[0].code, code);
    if (!f.items[0].hint || !strstr(f.items[0].hint, hint))
        fail_msg("hint \"%s\" lacks \"%s\"", f.items[0].hint ? f.items[0].hint : "", hint);
    assert_null(p.why);
    faults_done(&f);
    job_spec_free(s);
}

static void one_device_is_none(void **state)
{
    (void)state;
    struct plan p;
    plan(1, 0, "\"auto\"", &p);
    assert_int_equal(p.kind, STRATEGY_NONE);
    assert_int_equal(p.chosen_by_auto, 1);
    assert_non_null(strstr(p.why, "no limit known"));
    plan_done(&p);
}

static void what_fits_is_mirrored(void **state)
{
    (void)state;
    struct plan p;
    plan(4, 0, "\"auto\"", &p);
    assert_int_equal(p.kind, STRATEGY_MIRRORED);
    assert_int_equal(p.data, 4);
    assert_int_equal(p.zero, 0);
    int64_t needed = p.memory_bytes;
    plan_done(&p);
    plan(4, needed, "\"auto\"", &p); /* exactly enough */
    assert_int_equal(p.kind, STRATEGY_MIRRORED);
    assert_int_equal(p.zero, 0);
    plan_done(&p);
    plan(4, needed - 1, "\"auto\"", &p); /* one byte too little */
    assert_int_equal(p.kind, STRATEGY_MIRRORED);
    assert_int_equal(p.zero, 1);
    assert_true(p.memory_bytes <= needed - 1);
    assert_non_null(strstr(p.why, "divide optimizer state among them (zero 1, as memory asks"));
    plan_done(&p);
}

/* With less and less memory more is divided; once nothing fits, nothing does with less. */
static void memory_asks_for_more_and_more(void **state)
{
    (void)state;
    struct plan p;
    plan(4, 0, "\"auto\"", &p);
    int64_t needed = p.memory_bytes;
    plan_done(&p);
    int seen[4] = {0}, pipelines = 0, refused = 0;
    for (int64_t limit = needed; limit > needed / 8; limit -= needed / 64) {
        struct job_spec *s = network(4, limit, "\"auto\"");
        struct faults f = {0};
        if (planner_plan(s, &unknown, &p, &f) == 0) {
            assert_int_equal(refused, 0);
            assert_true(p.memory_bytes <= limit);
            seen[p.zero]++;
            pipelines += p.pipeline > 1;
            plan_done(&p);
        } else {
            refused++;
        }
        faults_done(&f);
        job_spec_free(s);
    }
    assert_true(seen[0] > 0 && seen[1] > 0 && pipelines > 0 && refused > 0);
}

static void the_fewest_stages_that_fit(void **state)
{
    (void)state;
    struct plan two, four;
    plan(4, 0, "{\"data\":2,\"pipeline\":2}", &two);
    int64_t anyway = 4 << 20, needed = two.memory_bytes - anyway; /* what every rank takes */
    assert_int_equal(two.microbatches, 4);
    assert_int_equal(two.chosen_by_auto, 0);
    plan_done(&two);
    plan(4, anyway + needed / 2 + needed / 8, "{\"zero\": 0, \"recompute\": \"none\"}", &four);
    assert_int_equal(four.kind, STRATEGY_PIPELINE);
    assert_int_equal(four.pipeline, 4);
    assert_int_equal(four.chosen_by_auto, 1);
    assert_int_equal(four.stage_first[0], 0);
    assert_int_equal(four.stage_first[4], 4);
    assert_non_null(strstr(four.why, "whole model on every rank"));
    plan_done(&four);
}

#define WHOLE "{\"data\": 2, \"zero\": 0, \"recompute\": \"none\"}"

static void what_does_not_fit_gets_a_proposal(void **state)
{
    (void)state;
    struct plan p;
    plan(2, 0, WHOLE, &p);
    int64_t needed = p.memory_bytes;
    plan_done(&p);
    refuse(2, needed * 9 / 10, WHOLE, "does_not_fit", "\"auto\" fits these devices");
    refuse(1, needed / 2, "\"auto\"", "does_not_fit", "devices with \"strategy\": \"auto\"");
    refuse(2, 1000, "\"auto\"", "does_not_fit", "smaller model");
    refuse(2, 1000, "\"segment_ensemble\"", "does_not_fit", "smaller model");
}

/* The batch that is proposed fits, and one more item would not. */
static void the_largest_batch_that_fits(void **state)
{
    (void)state;
    struct job_spec *s =
        network(1, 0, "{\"data\": 1, \"recompute\": \"none\", \"microbatches\": 1}");
    struct faults f = {0};
    struct plan p;
    s->fit.batch_size = 100;
    assert_int_equal(planner_plan(s, &unknown, &p, &f), 0);
    s->resources.memory = p.memory_bytes;
    plan_done(&p);
    s->fit.batch_size = 250;
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    assert_non_null(strstr(f.items[0].hint, "A batch_size of up to 100 fits."));
    assert_non_null(strstr(f.items[0].message, "too much"));
    faults_done(&f);
    job_spec_free(s);
}

/* A plan says what it is, and what it does to the mathematics. */
static void expect_why(const char *strategy, const char *sentence)
{
    struct plan p;
    plan(4, 0, strategy, &p);
    if (!strstr(p.why, sentence))
        fail_msg("%s: \"%s\" lacks \"%s\"", strategy, p.why, sentence);
    plan_done(&p);
}

static void what_a_plan_says(void **state)
{
    (void)state;
    expect_why("\"mirrored\"", "each of 4 ranks holds the whole model and takes 16 of 64 rows");
    expect_why("\"tensor\"", "The 4 tensor ranks split 4 of 4 layers with parameters.");
    expect_why("{\"pipeline\": 4, \"microbatches\": 5}", "so that 38 % of the time is bubble");
    expect_why("{\"pipeline\": 2, \"data\": 2, \"schedule\": \"interleaved\", \"microbatches\": 4}",
               "4 stages over 2 ranks cut by cost (the dearest rank has 55 % of the work), 4 "
               "micro-batches a step, so that 11 % of the time is bubble");
    expect_why("{\"zero\": 2}", "divide optimizer state and gradients among them (zero 2).");
    expect_why("{\"reproducible\": true}", "a batch is always 8 grains, 2 a data rank");
    expect_why("\"local_sgd\"",
               "other mathematics: each of the 4 data ranks takes 8 steps on its own "
               "rows, then the weights become their mean.");
    expect_why("{\"sync\": \"local_sgd\", \"outer_momentum\": 0.9}",
               "a step of an outer optimizer");
    expect_why("{\"sync\": \"delayed\"}", "a step applies the gradient of the step before");
    expect_why("{\"recompute\": \"all\", \"data\": 4, \"microbatches\": 8}",
               "are computed again in backward instead of kept");
}

static void precision_is_said(void **state)
{
    (void)state;
    struct job_spec *s = network(1, 0, "\"auto\"");
    struct faults f = {0};
    struct plan p;
    s->precision = (struct precision){
        .weights = STORAGE_BFLOAT16, .activations = STORAGE_BFLOAT16, .moments = STORAGE_BFLOAT16};
    assert_int_equal(planner_plan(s, &unknown, &p, &f), 0);
    assert_non_null(strstr(p.why, "weights, activations and the optimizer's moments are kept as "
                                  "bfloat16."));
    plan_done(&p);
    job_spec_free(s);
}

/* Data ranks divide the grains, so that the rest of the devices become stages. */
static void reproducible_meshes(void **state)
{
    (void)state;
    static const struct {
        int devices, data, pipeline, microbatches;
    } cases[] = {{1, 1, 1, 8}, {2, 2, 1, 4}, {3, 1, 3, 8},
                 {4, 4, 1, 2}, {6, 2, 3, 4}, {8, 8, 1, 1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct plan p;
        plan(cases[i].devices, 0, "{\"reproducible\": true}", &p);
        assert_int_equal(p.data, cases[i].data);
        assert_int_equal(p.pipeline, cases[i].pipeline);
        assert_int_equal(p.microbatches, cases[i].microbatches);
        plan_done(&p);
    }
    struct job_spec *s = network(7, 0, "{\"reproducible\": true}"); /* 4 layers */
    struct faults f = {0};
    struct plan p;
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    assert_string_equal(f.items[0].pointer, "/resources/devices");
    faults_done(&f);
    job_spec_free(s);
}

/* What has no meaning on a mesh is not in its plan. */
static void what_has_no_meaning_is_dropped(void **state)
{
    (void)state;
    struct plan p;
    struct job_spec *s = network(2, 0, "\"auto\"");
    struct faults f = {0};
    s->strategy.kind = STRATEGY_PIPELINE;
    s->strategy.zero = 1;
    s->strategy.parallel.shares = SHARES_MEASURED;
    s->strategy.parallel.overlap = 1;
    assert_int_equal(planner_plan(s, &unknown, &p, &f), 0);
    assert_int_equal(p.zero, 0);
    assert_int_equal(p.parallel.shares, SHARES_EVEN);
    assert_int_equal(p.parallel.overlap, 0);
    plan_done(&p);
    job_spec_free(s);
}

static void requests_that_contradict_themselves(void **state)
{
    (void)state;
    struct job_spec *s = network(4, 0, "\"mirrored\"");
    struct faults f = {0};
    struct plan p = {0};
    s->strategy =
        (struct strategy){.kind = STRATEGY_PIPELINE, .is_mesh = 1, .data = 3, .pipeline = 2};
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    assert_string_equal(f.items[0].code, "mesh_mismatch");
    assert_string_equal(f.items[0].hint, "Set resources.devices to 6.");
    s->strategy = (struct strategy){.kind = STRATEGY_NONE};
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    s->resources.devices = 1;
    s->strategy = (struct strategy){.kind = STRATEGY_SEGMENT_ENSEMBLE};
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    s->resources.devices = 5; /* 4 layers */
    s->strategy = (struct strategy){.kind = STRATEGY_PIPELINE};
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    assert_string_equal(f.items[3].code, "too_many_stages");
    s->resources.devices = 2;
    s->strategy = (struct strategy){.kind = STRATEGY_PIPELINE, .microbatches = 65};
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    assert_string_equal(f.items[4].pointer, "/strategy/microbatches");
    assert_int_equal(f.total, 5);
    faults_done(&f);
    job_spec_free(s);
}

static void microbatches_follow_the_rows(void **state)
{
    (void)state;
    struct plan p;
    struct job_spec *s = network(2, 0, "\"pipeline\"");
    struct faults f = {0};
    const int64_t batch[] = {1, 3, 8, 16, 64}, expected[] = {1, 1, 2, 4, 4};
    for (size_t i = 0; i < ARRAY_LEN(batch); i++) {
        s->fit.batch_size = batch[i];
        assert_int_equal(planner_plan(s, &unknown, &p, &f), 0);
        assert_int_equal(p.microbatches, expected[i]);
        plan_done(&p);
    }
    s->strategy.microbatches = 7;
    assert_int_equal(planner_plan(s, &unknown, &p, &f), 0);
    assert_int_equal(p.microbatches, 7);
    plan_done(&p);
    job_spec_free(s);
}

static void memory_of_the_smallest_device(void **state)
{
    (void)state;
    struct planner_view view = {.smallest_memory = {[DEVICE_CPU] = 1000, [DEVICE_GPU] = 1 << 30}};
    struct job_spec *s = network(2, 0, "\"auto\"");
    struct faults f = {0};
    struct plan p;
    s->resources.device = DEVICE_GPU;
    assert_int_equal(planner_plan(s, &view, &p, &f), 0);
    assert_non_null(strstr(p.why, "smallest such device"));
    plan_done(&p);
    s->resources.device = DEVICE_ANY;
    assert_int_equal(planner_plan(s, &view, &p, &f), ERR_INVALID);
    assert_string_equal(f.items[0].pointer, "/resources");
    faults_done(&f);
    job_spec_free(s);
}

static void commands_divide_their_own_work(void **state)
{
    (void)state;
    struct faults f = {0};
    struct plan p;
    struct job_spec *s = spec("{\"command\":[\"true\"],\"resources\":{\"devices\":3}}");
    assert_int_equal(planner_plan(s, &unknown, &p, &f), 0);
    assert_int_equal(p.kind, STRATEGY_NONE);
    assert_int_equal(p.ranks, 3);
    json_auto_t *doc = plan_to_json(&p);
    plan_done(&p);
    struct err e = {0};
    assert_int_equal(plan_from_json(doc, &p, &e), 0); /* the trainer's side reads it */
    plan_done(&p);
    s->strategy.kind = STRATEGY_MIRRORED;
    assert_int_equal(planner_plan(s, &unknown, &p, &f), ERR_INVALID);
    assert_string_equal(f.items[0].code, "not_applicable");
    faults_done(&f);
    job_spec_free(s);
}

/* ---- why it waits ---- */
static struct nodes cluster;

static struct node *join(const char *name, const char *devices)
{
    struct node *n = nodes_get(&cluster, name);
    json_auto_t *doc = json_loads(devices, 0, NULL);
    struct err e = {0};
    assert_int_equal(node_set_devices(n, doc, &e), 1);
    n->health = NODE_READY;
    n->seen_us = 1000000;
    return n;
}

#define CPU(i, memory) "{\"index\":" #i ",\"kind\":\"cpu\",\"memory_bytes\":" #memory "}"

static void expect(int64_t devices, int kind, int64_t memory, int64_t ahead, const char *code,
                   const char *text)
{
    struct need need = {.devices = devices, .kind = kind, .memory = memory};
    struct explanation x;
    explain_pending(&cluster, &need, ahead, 61000000, &x);
    assert_string_equal(x.text, text);
    assert_string_equal(x.code, code);
}

static void why_a_job_waits(void **state)
{
    (void)state;
    expect(1, DEVICE_ANY, 0, 0, "no_nodes", "No node has joined yet.");
    struct node *n = join("n1", "[" CPU(0, 1073741824) "," CPU(1, 1073741824) "]");
    expect(1, DEVICE_ANY, 0, 0, "ready_to_start", "Ready to start on node n1; this job is next.");
    expect(16, DEVICE_ANY, 0, 0, "never_fits", "No node has 16 devices; the largest, n1, has 2.");
    expect(1, DEVICE_GPU, 0, 0, "never_fits",
           "No node has 1 gpu device; none has any of that kind.");
    expect(2, DEVICE_CPU, 2147483648, 0, "never_fits",
           "No node has 2 cpu devices with 2.0 GiB of memory each: n1 has 2, but only 0 of them "
           "with that much.");
    snprintf(n->devices[0].attempt, ID_SIZE, "att");
    expect(2, DEVICE_CPU, 0, 3, "waiting_for_devices",
           "Waiting for 2 free cpu devices on one node: n1 has 1 of 2 free; 3 jobs are ahead.");
    expect(2, DEVICE_CPU, 0, 1, "waiting_for_devices",
           "Waiting for 2 free cpu devices on one node: n1 has 1 of 2 free; 1 job is ahead.");
    n->health = NODE_LOST;
    expect(2, DEVICE_CPU, 0, 3, "waiting_for_node",
           "Waiting for node n1, which last reported 60 s ago.");
    n->seen_us = 0;
    expect(2, DEVICE_CPU, 0, 3, "waiting_for_node",
           "Waiting for node n1, which has not reported since the coordinator started.");
    nodes_done(&cluster);
}

static void bytes_in_words(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(explain_bytes(0, out), "0 bytes");
    assert_string_equal(explain_bytes(1023, out), "1023 bytes");
    assert_string_equal(explain_bytes(1536, out), "1.5 KiB");
    assert_string_equal(explain_bytes(INT64_MAX, out), "8.0 EiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_is_none),
        cmocka_unit_test(what_fits_is_mirrored),
        cmocka_unit_test(memory_asks_for_more_and_more),
        cmocka_unit_test(the_fewest_stages_that_fit),
        cmocka_unit_test(the_largest_batch_that_fits),
        cmocka_unit_test(what_does_not_fit_gets_a_proposal),
        cmocka_unit_test(what_a_plan_says),
        cmocka_unit_test(precision_is_said),
        cmocka_unit_test(reproducible_meshes),
        cmocka_unit_test(what_has_no_meaning_is_dropped),
        cmocka_unit_test(requests_that_contradict_themselves),
        cmocka_unit_test(microbatches_follow_the_rows),
        cmocka_unit_test(memory_of_the_smallest_device),
        cmocka_unit_test(commands_divide_their_own_work),
        cmocka_unit_test(why_a_job_waits),
        cmocka_unit_test(bytes_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
