/* spec_plan.c: cuts against every cut there is, memory, and the plan and launch documents. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "spec/job.h"
#include "spec/launch.h"
#include "spec/memory.h"
#include "spec/plan.h"
#include "spec/schedule.h"

#define MOST_STAGES 6

/* A job whose layers are made of letters: d dense of the next size, n normalization, r rescaling,
 * f flatten, o dropout, a activation. */
static struct job_spec *job(const char *letters, const int *sizes)
{
    struct job_spec *s = NULL;
    json_t *layers = json_array();
    for (const char *p = letters; *p; p++) {
        json_t *l = *p == 'd'   ? json_pack("{s:s, s:i}", "type", "dense", "units", *sizes++)
                    : *p == 'n' ? json_pack("{s:s}", "type", "layer_normalization")
                    : *p == 'r' ? json_pack("{s:s, s:i}", "type", "rescaling", "scale", 2)
                    : *p == 'f' ? json_pack("{s:s}", "type", "flatten")
                    : *p == 'o'
                        ? json_pack("{s:s, s:f}", "type", "dropout", "rate", 0.5)
                        : json_pack("{s:s, s:s}", "type", "activation", "activation", "gelu");
        json_array_append_new(layers, l);
    }
    json_t *doc =
        json_pack("{s:{s:[i], s:o}, s:{s:s, s:s}, s:{s:{s:s, s:s}}, s:{s:i}}", "model", "input", 16,
                  "layers", layers, "compile", "optimizer", "adam", "loss", "mse", "data", "train",
                  "format", "csv", "path", "x", "fit", "batch_size", 64);
    struct faults f = {0}, w = {0};
    s = job_spec_parse(doc, 1, &f, &w);
    if (!s)
        fail_msg("%s: %s", f.items[0].pointer, f.items[0].message);
    json_decref(doc);
    return s;
}

static double flops(const struct job_spec *s, int first, int end)
{
    double sum = 0;
    for (int i = first; i < end; i++)
        sum += s->model.layers[i].forward_flops + s->model.layers[i].backward_flops;
    return sum;
}

struct judged {
    double dearest, squares;
};

static struct judged judge(const struct job_spec *s, const int *first, int stages)
{
    struct judged j = {0, 0};
    for (int i = 0; i < stages; i++) {
        double cost = flops(s, first[i], first[i + 1]);
        j.dearest = fmax(j.dearest, cost);
        j.squares += cost * cost;
    }
    return j;
}

/* Every cut before a layer with parameters, by recursion. */
static void best_cut(const struct job_spec *s, int *first, int at, int stages, struct judged *best)
{
    if (at == stages) {
        first[stages] = s->model.layer_count;
        struct judged j = judge(s, first, stages);
        if (j.dearest < best->dearest || (j.dearest == best->dearest && j.squares < best->squares))
            *best = j;
        return;
    }
    int seen = 0; /* work since the last cut */
    for (int i = at == 0 ? 0 : first[at - 1]; i < s->model.layer_count; i++) {
        int work = s->model.layers[i].parameters > 0 || s->model.layers[i].type == LAYER_RESCALING;
        if (at == 0 || (work && seen)) {
            first[at] = i;
            best_cut(s, first, at + 1, stages, best);
            if (at == 0)
                return;
        }
        seen += work;
    }
}

static void test_cut_is_best(void **state)
{
    (void)state;
    unsigned seed = 7;
    for (int round = 0; round < 300; round++) {
        static const char kinds[] = "ddddnrfoa";
        char letters[12] = "";
        int sizes[12], n = 2 + rand_r(&seed) % 9, work = 0;
        for (int i = 0; i < n; i++) {
            letters[i] = kinds[(unsigned)rand_r(&seed) % (sizeof kinds - 1)];
            sizes[i] = 1 + rand_r(&seed) % 60;
            work += letters[i] == 'd' || letters[i] == 'n' || letters[i] == 'r';
        }
        if (!strpbrk(letters, "dn"))
            continue;
        struct job_spec *s = job(letters, sizes);
        for (int stages = 1; stages <= work && stages <= MOST_STAGES; stages++) {
            int first[MOST_STAGES + 1], scratch[MOST_STAGES + 1];
            struct judged best = {INFINITY, INFINITY};
            assert_int_equal(plan_cut(s, stages, first, NULL), 0);
            assert_int_equal(first[0], 0);
            assert_int_equal(first[stages], s->model.layer_count);
            best_cut(s, scratch, 0, stages, &best);
            struct judged have = judge(s, first, stages);
            assert_true(have.dearest == best.dearest);
            assert_true(have.squares == best.squares);
        }
        job_spec_free(s);
    }
}

static void test_neighbours(void **state)
{
    (void)state;
    int first[4];
    struct job_spec *s = job("rfdaodfd", (int[]){8, 64, 1});
    assert_int_equal(plan_cut(s, 3, first, NULL), 0);
    assert_int_equal(first[0], 0); /* what comes before the dear layer stays together */
    assert_int_equal(first[1], 5);
    assert_int_equal(first[2], 7);
    assert_int_equal(first[3], 8);
    job_spec_free(s);
}

static void test_too_many_stages(void **state)
{
    (void)state;
    int first[8] = {-7};
    struct err e = {0};
    struct job_spec *s = job("fdad", (int[]){8, 1});
    assert_int_equal(plan_cut(s, 3, first, &e), ERR_INVALID);
    assert_string_equal(e.text, "the model has 2 layers with work, so it can be cut into at "
                                "most 2 stages, not 3");
    assert_int_equal(plan_cut(s, 0, first, &e), ERR_INVALID);
    assert_int_equal(plan_cut(s, -1, first, &e), ERR_INVALID);
    assert_int_equal(first[0], -7);
    job_spec_free(s);
}

/* The longest model there is, with a giant among small layers: the worst case for the search. */
static void test_long_model(void **state)
{
    (void)state;
    char *letters = mem_zalloc(MODEL_MAX_LAYERS + 1);
    int *sizes = mem_alloc(MODEL_MAX_LAYERS * sizeof *sizes);
    int *first = mem_alloc((MODEL_MAX_LAYERS + 1) * sizeof *first);
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        letters[i] = 'd';
        sizes[i] = i == 500 ? 5000 : 3;
    }
    struct job_spec *s = job(letters, sizes);
    for (int stages = 1; stages <= MODEL_MAX_LAYERS; stages += 341) {
        assert_int_equal(plan_cut(s, stages, first, NULL), 0);
        for (int i = 0; i < stages; i++)
            assert_true(first[i] < first[i + 1]);
        assert_int_equal(first[stages], MODEL_MAX_LAYERS);
    }
    job_spec_free(s);
    free(letters);
    free(sizes);
    free(first);
}

static struct plan_bytes memory(const struct job_spec *s, const struct plan *wanted, int place)
{
    int first[MOST_STAGES + 1];
    struct plan p = *wanted;
    struct memory_view v;
    struct plan_bytes b;
    p.tensor = 1;
    p.chunks = p.chunks ? p.chunks : 1;
    p.ranks = p.data * p.pipeline;
    p.stage_first = first;
    assert_int_equal(plan_cut(s, plan_stages(&p), first, NULL), 0);
    memory_open(&v, s, &p);
    memory_rank(&v, place, &b);
    memory_done(&v);
    assert_true((double)plan_memory(s, &p) >= memory_total(&b));
    return b;
}

#define ONE .data = 1, .pipeline = 1, .microbatches = 1

/* Of three dense layers 16-32-32-32 of a batch of 64, by hand. */
static void test_memory(void **state)
{
    (void)state;
    struct job_spec *s = job("ddd", (int[]){32, 32, 32});
    int64_t parameters = model_parameters(&s->model);
    struct plan one = {ONE};
    struct plan_bytes b = memory(s, &one, 0);
    assert_true(b.values == 16.0 * (double)parameters); /* gradients and Adam's two moments, too */
    assert_true(b.frames == 64 * (4 * 16 + 3 * 4 * 32));
    assert_true(b.work ==
                64 * 4 * (2 * 32 + 32) + 24); /* two gradients, labels; sums of the loss */
    double most = memory_total(&b);
    assert_int_equal(plan_memory(s, &(struct plan){ONE, .ranks = 1, .tensor = 1, .chunks = 1,
                                                   .stage_first = (int[]){0, 3}}),
                     (int64_t)most);
    s->optimizer.kind = OPTIMIZER_SGD;
    assert_true(memory(s, &one, 0).values == 8.0 * (double)parameters);
    s->optimizer.momentum = 0.9;
    assert_true(memory(s, &one, 0).values == 12.0 * (double)parameters);
    s->precision.moments = STORAGE_BFLOAT16;
    assert_true(memory(s, &one, 0).values == 10.0 * (double)parameters);
    job_spec_free(s);
}

static void test_memory_of_data_ranks(void **state)
{
    (void)state;
    struct job_spec *s = job("dddd", (int[]){1024, 1024, 1024, 64});
    double parameters = (double)model_parameters(&s->model), slot = 4.0 * (1024 * 1024 + 1024);
    struct plan p = {.kind = STRATEGY_MIRRORED, .data = 4, .pipeline = 1, .microbatches = 1};
    struct plan_bytes b = memory(s, &p, 0);
    assert_true(b.values == 12 * parameters && b.shared >= 4 * parameters);
    assert_true(b.frames == 16 * 4 * (16 + 3 * 1024 + 64));
    p.zero = 1;
    b = memory(s, &p, 0);
    assert_true(b.values == 2 * parameters && b.shared >= 8 * parameters);
    p.zero = 2;
    b = memory(s, &p, 0);
    assert_true(b.values == 3 * parameters && b.shared >= 4 * parameters + slot);
    assert_true(b.shared < 4 * parameters + 2 * slot);
    p.zero = 3;
    b = memory(s, &p, 0);
    assert_true(b.values == 4 * parameters && b.shared >= 2 * slot && b.shared < 3 * slot);
    p.zero = 0;
    p.parallel.reproducible = 1;
    p.parallel.grains = 16;
    p.microbatches = 4; /* sums of two and of four grains wait */
    b = memory(s, &p, 0);
    assert_true(b.values == (12 + 2 * 4) * parameters && b.shared < 9 * parameters);
    job_spec_free(s);
}

static void test_memory_of_a_pipeline(void **state)
{
    (void)state;
    struct job_spec *s = job("dddd", (int[]){32, 32, 32, 32});
    double stage = 8 * 4 * (32 + 32); /* in and out of eight items */
    struct plan p = {.data = 1, .pipeline = 2, .microbatches = 8, .schedule = SCHEDULE_GPIPE};
    assert_true(memory(s, &p, 1).frames == 8 * (stage + 8 * 4 * 32));
    p.schedule = SCHEDULE_1F1B;
    assert_true(memory(s, &p, 1).frames == 1 * (stage + 8 * 4 * 32));
    assert_true(memory(s, &p, 0).frames == 2 * 8 * 4 * (16 + 32 + 32));
    p.schedule = SCHEDULE_INTERLEAVED;
    p.chunks = 2;
    struct schedule order;
    schedule_make(&order, p.schedule, 2, 2, 8, 1);
    assert_true(memory(s, &p, 1).frames == (order.in_flight[0] + order.in_flight[1]) * stage);
    schedule_done(&order);
    job_spec_free(s);
}

/* ---- recompute ---- */

/* Enough is computed again, and no more than that: without any one of those layers it would not
 * fit. */
static void test_recompute(void **state)
{
    (void)state;
    struct job_spec *s = job("dadadadadad", (int[]){256, 200, 256, 100, 256, 256});
    struct plan p = {ONE, .tensor = 1, .chunks = 1, .ranks = 1, .stage_first = (int[]){0, 11}};
    s->fit.batch_size = 512;
    p.microbatches = 4;
    p.schedule = SCHEDULE_GPIPE;
    int64_t whole = plan_memory(s, &p), least;
    plan_recompute(s, &p, whole);
    assert_null(p.recompute);
    plan_recompute(s, &p, 0);
    least = plan_memory(s, &p);
    assert_true(least < whole && p.recompute_count > 0);
    for (int64_t limit = least; limit < whole; limit += (whole - least) / 7) {
        plan_recompute(s, &p, limit);
        assert_true(plan_memory(s, &p) <= limit);
        assert_true(p.recompute_count > 0);
    }
    plan_recompute(s, &p, whole - 1);
    assert_int_equal(p.recompute_count, 1);
    free(p.recompute);
    job_spec_free(s);
}

static struct plan some_plan(void)
{
    struct plan p = {.kind = STRATEGY_PIPELINE,
                     .ranks = 4,
                     .data = 2,
                     .pipeline = 2,
                     .tensor = 1,
                     .chunks = 1,
                     .microbatches = 4,
                     .schedule = SCHEDULE_1F1B,
                     .zero = 2,
                     .memory_bytes = 1LL << 40,
                     .chosen_by_auto = 1,
                     .why = mem_strdup("It fits.")};
    parallel_set_defaults(&p.parallel);
    p.parallel.top_k = 0.05;
    p.parallel.codec = CODEC_TOP_K;
    p.stage_first = mem_alloc(3 * sizeof *p.stage_first);
    memcpy(p.stage_first, (int[]){0, 1, 2}, 3 * sizeof(int));
    p.recompute = mem_zalloc(2);
    p.recompute[1] = 1;
    p.recompute_count = 1;
    return p;
}

static void test_plan_json(void **state)
{
    (void)state;
    struct plan p = some_plan(), back = {0};
    struct err e = {0};
    json_t *doc = plan_to_json(&p);
    char *text = json_dumps(doc, JSON_REAL_PRECISION(9));
    assert_string_equal(
        text, "{\"name\": \"pipeline\", \"ranks\": 4, \"mesh\": {\"data\": 2, \"pipeline\": 2, "
              "\"tensor\": 1, \"chunks\": 1, \"microbatches\": 4, \"schedule\": \"1f1b\", "
              "\"zero\": 2}, \"stages\": [[0, 1], [1, 2]], \"recompute\": [1], "
              "\"parallel\": {\"reproducible\": false, \"grains\": 8, \"sync\": \"every_step\", "
              "\"local_steps\": 8, \"outer_learning_rate\": 1.0, \"outer_momentum\": 0.0, "
              "\"codec\": \"top_k\", \"top_k\": 0.05, \"shares\": \"even\", "
              "\"rebalance\": false, \"overlap\": false}, \"memory_bytes\": 1099511627776, "
              "\"chosen_by\": \"auto\", \"why\": \"It fits.\"}");
    assert_int_equal(plan_from_json(doc, &back, &e), 0);
    assert_int_equal(back.recompute_count, 1);
    json_t *again = plan_to_json(&back);
    assert_true(json_equal(doc, again));
    json_decref(again);
    json_decref(doc);
    free(text);
    plan_done(&p);
    plan_done(&back);
    plan_done(&back);
}

/* What an earlier version stored: one tensor rank, one chunk, nothing sharded or computed again. */
static void test_plan_of_earlier(void **state)
{
    (void)state;
    struct plan p = some_plan(), back = {0};
    json_t *doc = plan_to_json(&p), *mesh = json_object_get(doc, "mesh");
    json_object_del(mesh, "tensor");
    json_object_del(mesh, "chunks");
    json_object_del(mesh, "zero");
    json_object_del(doc, "recompute");
    json_object_del(doc, "parallel");
    assert_int_equal(plan_from_json(doc, &back, NULL), 0);
    assert_int_equal(back.tensor, 1);
    assert_int_equal(back.chunks, 1);
    assert_int_equal(back.zero, 0);
    assert_null(back.recompute);
    assert_int_equal(back.parallel.grains, 8);
    assert_int_equal(back.parallel.codec, CODEC_NONE);
    json_decref(doc);
    plan_done(&p);
    plan_done(&back);
}

/* A stage for each of a rank's chunks, and a mesh of three sizes. */
static void test_plan_of_chunks(void **state)
{
    (void)state;
    struct plan back = {0}, p = {.kind = STRATEGY_PIPELINE,
                                 .ranks = 12,
                                 .data = 2,
                                 .pipeline = 2,
                                 .tensor = 3,
                                 .chunks = 2,
                                 .microbatches = 4,
                                 .schedule = SCHEDULE_INTERLEAVED,
                                 .stage_first = (int[]){0, 1, 2, 5, 6}};
    parallel_set_defaults(&p.parallel);
    json_t *doc = plan_to_json(&p);
    assert_int_equal(plan_from_json(doc, &back, NULL), 0);
    assert_int_equal(plan_stages(&back), 4);
    assert_int_equal(back.stage_first[4], 6);
    assert_int_equal(back.schedule, SCHEDULE_INTERLEAVED);
    plan_done(&back);
    json_decref(doc);
}

/* A command job has no layers: one empty stage. */
static void test_plan_of_command(void **state)
{
    (void)state;
    struct plan p = {.kind = STRATEGY_MIRRORED,
                     .ranks = 2,
                     .data = 2,
                     .pipeline = 1,
                     .tensor = 1,
                     .chunks = 1,
                     .microbatches = 1,
                     .stage_first = (int[]){0, 0}},
                back = {0};
    struct job_spec s = {0};
    parallel_set_defaults(&p.parallel);
    json_t *doc = plan_to_json(&p);
    assert_int_equal(plan_from_json(doc, &back, NULL), 0);
    assert_int_equal(back.stage_first[1], 0);
    assert_int_equal(plan_memory(&s, &p), 0);
    assert_int_equal(plan_cut(&s, 1, back.stage_first, NULL), 0);
    assert_int_equal(plan_cut(&s, 2, back.stage_first, NULL), ERR_INVALID);
    plan_done(&back);
    json_decref(doc);
}

static void test_plan_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *member, *value, *sentence;
    } cases[] = {
        {"name", "\"auto\"", "the plan, /name: A plan is never \"auto\"."},
        {"ranks", "3",
         "the plan, /mesh: 2 data ranks by 2 pipeline ranks by 1 tensor ranks are not 3 ranks."},
        {"ranks", "1025",
         "the plan, /ranks: \"ranks\" must be a whole number from 1 to 1024, but "
         "is 1025."},
        {"stages", "[[0, 2]]", "the plan, /stages: There must be 2 stages."},
        {"stages", "[[0, 1], [1, 1]]",
         "the plan, /stages/1: Stages must be [first, end] pairs "
         "that follow one another from layer 0."},
        {"stages", "[[0, 1], [2, 3]]",
         "the plan, /stages/1: Stages must be [first, end] pairs "
         "that follow one another from layer 0."},
        {"stages", "[[1, 2], [2, 3]]",
         "the plan, /stages/0: Stages must be [first, end] pairs "
         "that follow one another from layer 0."},
        {"stages", "[1, 2]",
         "the plan, /stages/0: Stages must be [first, end] pairs that follow "
         "one another from layer 0."},
        {"recompute", "[2]", "the plan, /recompute: There is no layer 2."},
        {"recompute", "[1, 1]",
         "the plan, /recompute/1: This must be the number of a layer that is not in the list yet."},
        {"recompute", "[-1]",
         "the plan, /recompute/0: This must be the number of a layer that is not in the list yet."},
        {"parallel", "{\"grains\": 65}",
         "the plan, /parallel/grains: \"grains\" must be a whole number from 1 to 64, but is 65."},
        {"mesh", "[]", "the plan, /mesh: \"mesh\" must be an object, but is an empty list."},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct plan p = some_plan(), back = {.ranks = 77};
        json_t *doc = plan_to_json(&p);
        struct err e = {0};
        json_object_set_new(doc, cases[i].member,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        assert_int_equal(plan_from_json(doc, &back, &e), ERR_INVALID);
        assert_string_equal(e.text, cases[i].sentence);
        assert_int_equal(back.ranks, 77);
        json_decref(doc);
        plan_done(&p);
    }
}

#define SUM "99aa06d3014798d86001c324468d497f"

static const char launch_text[] =
    "{\"job\": \"job_1\", \"job_name\": \"mnist\", \"attempt\": \"att_1\", \"number\": 2, "
    "\"epoch\": 12, \"node\": \"n1\", \"spec\": {\"model\": {\"input\": [4], \"layers\": "
    "[{\"type\": \"dense\", \"units\": 3}, {\"type\": \"dense\", \"units\": 1}]}, \"compile\": "
    "{\"optimizer\": \"sgd\", \"loss\": \"mse\"}, \"data\": {\"train\": {\"format\": \"csv\", "
    "\"path\": \"x\"}}}, \"plan\": {\"name\": \"pipeline\", \"ranks\": 2, \"mesh\": {\"data\": 1, "
    "\"pipeline\": 2, \"microbatches\": 4, \"schedule\": \"1f1b\"}, \"stages\": [[0, 1], [1, 2]], "
    "\"memory_bytes\": 1, \"chosen_by\": \"user\", \"why\": \"\"}, \"secret\": \"s3cr3t\", "
    "\"master_addr\": \"127.0.0.1\", \"master_port\": 23001, \"time_limit_s\": 7200, \"grace_s\": "
    "30, \"ranks\": [{\"rank\": 0, \"local_rank\": 0, \"device\": 0, \"kind\": \"cpu\", \"cpu\": "
    "0}, {\"rank\": 1, \"local_rank\": 1, \"device\": 1, \"kind\": \"cpu\"}], \"data_roots\": "
    "[\"/srv/data\", \"/srv/more\"], \"trainer\": \"/usr/bin/t\", \"run_as\": \"nobody\", "
    "\"checkpoints\": \"/srv/c/job_1\", \"resume\": [{\"name\": \"step-0000000400\", \"step\": "
    "400, "
    "\"sum\": \"" SUM "\"}, {\"name\": \"step-0000000200\", \"step\": 200, \"sum\": \"" SUM "\"}]}";

static void test_launch(void **state)
{
    (void)state;
    json_t *doc = json_loads(launch_text, 0, NULL);
    struct launch l;
    struct err e = {0};
    if (launch_from_json(doc, &l, &e) < 0)
        fail_msg("%s", e.text);
    assert_string_equal(l.job, "job_1");
    assert_string_equal(l.job_name, "mnist");
    assert_int_equal(l.number, 2);
    assert_int_equal(l.epoch, 12);
    assert_int_equal(l.spec->model.layer_count, 2);
    assert_int_equal(l.plan.stage_first[1], 1);
    assert_string_equal(l.secret, "s3cr3t");
    assert_int_equal(l.master_port, 23001);
    assert_int_equal(l.time_limit_s, 7200);
    assert_int_equal(l.grace_s, 30);
    assert_int_equal(l.rank_count, 2);
    assert_int_equal(l.ranks[0].cpu, 0);
    assert_int_equal(l.ranks[1].cpu, -1);
    assert_int_equal(l.ranks[1].kind, DEVICE_CPU);
    assert_int_equal(l.data_root_count, 2);
    assert_string_equal(l.data_roots[1], "/srv/more");
    assert_string_equal(l.run_as, "nobody");
    assert_string_equal(l.checkpoints, "/srv/c/job_1");
    assert_int_equal(l.resume_count, 2);
    assert_string_equal(l.resume[0].name, "step-0000000400");
    assert_int_equal(l.resume[0].step, 400);
    assert_string_equal(l.resume[1].sum, SUM);
    launch_done(&l);
    launch_done(&l);
    /* as the coordinator makes it, before the agent has added its part */
    json_object_del(doc, "data_roots");
    json_object_del(doc, "trainer");
    json_object_del(doc, "run_as");
    json_object_del(doc, "checkpoints");
    json_object_set_new(doc, "resume", json_array());
    assert_int_equal(launch_from_json(doc, &l, &e), 0);
    assert_int_equal(l.data_root_count, 0);
    assert_null(l.trainer);
    assert_null(l.run_as);
    assert_null(l.checkpoints);
    assert_int_equal(l.resume_count, 0);
    assert_int_equal(l.transport, TRANSPORT_SHM);
    assert_null(l.ranks[0].node);
    launch_done(&l);
    json_object_set_new(doc, "transport", json_string("tcp"));
    json_object_set_new(json_array_get(json_object_get(doc, "ranks"), 1), "node",
                        json_string("n2"));
    assert_int_equal(launch_from_json(doc, &l, &e), 0);
    assert_int_equal(l.transport, TRANSPORT_TCP);
    assert_int_equal(l.rank_count, 1); /* the other one is n2's */
    assert_int_equal(l.ranks[0].rank, 0);
    assert_int_equal(l.plan.ranks, 2);
    launch_done(&l);
    json_object_set_new(doc, "transport", json_string("shm"));
    assert_int_equal(launch_from_json(doc, &l, &e), ERR_INVALID);
    assert_string_equal(e.text, "the launch document, /ranks: Ranks of several nodes need "
                                "\"transport\": \"tcp\".");
    json_object_set_new(doc, "node", json_string("n3"));
    json_object_set_new(json_array_get(json_object_get(doc, "ranks"), 0), "node",
                        json_string("n1"));
    assert_int_equal(launch_from_json(doc, &l, &e), ERR_INVALID);
    assert_string_equal(e.text, "the launch document, /ranks: No rank is of this node, n3.");
    json_decref(doc);
}

/* A GPU goes by its UUID, and a rank on one must have it. */
static void test_launch_on_gpus(void **state)
{
    (void)state;
    json_t *doc = json_loads(launch_text, 0, NULL);
    json_t *rank = json_array_get(json_object_get(doc, "ranks"), 1);
    struct launch l;
    struct err e = {0};
    json_object_set_new(rank, "kind", json_string("gpu"));
    assert_int_equal(launch_from_json(doc, &l, &e), ERR_INVALID);
    assert_string_equal(e.text, "the launch document, /ranks/1: Rank 1 is to run on GPU 1 of node "
                                "n1, but its \"uuid\" is missing: without it the rank could not be "
                                "given that GPU and no other.");
    json_object_set_new(rank, "uuid", json_string("GPU-1,GPU-2"));
    assert_int_equal(launch_from_json(doc, &l, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "letters, digits"));
    json_object_set_new(rank, "uuid", json_string("MIG-GPU-5a2c8f10-3d4e/1/0"));
    assert_int_equal(launch_from_json(doc, &l, &e), 0);
    assert_string_equal(l.ranks[1].uuid, "MIG-GPU-5a2c8f10-3d4e/1/0");
    assert_null(l.ranks[0].uuid);
    launch_done(&l);
    json_object_set_new(rank, "kind", json_string("cpu"));
    assert_int_equal(launch_from_json(doc, &l, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "device 1 is no GPU"));
    json_decref(doc);
}

static void test_launch_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *member, *value, *sentence;
    } cases[] = {
        {"job", "3", "the launch document, /job: \"job\" must be a string, but is 3."},
        {"epoch", "-1", "the launch document, /epoch: \"epoch\" must be"},
        {"ranks", "[]",
         "the launch document, /ranks: \"ranks\" must be a list of 1 to 1024 "
         "ranks."},
        {"ranks", "[{\"rank\": 2, \"local_rank\": 0, \"device\": 0, \"kind\": \"cpu\"}]",
         "the launch document, /ranks/0: Rank 2 is not one of the plan's 2."},
        {"ranks",
         "[{\"rank\": 1, \"local_rank\": 0, \"device\": 0, \"kind\": \"cpu\"}, {\"rank\": 1, "
         "\"local_rank\": 1, \"device\": 1, \"kind\": \"cpu\"}]",
         "the launch document, /ranks/1: Rank 1 is there twice."},
        {"plan", "{}", "the launch document, /plan: the plan, /name: \"name\" is missing"},
        {"spec", "{\"command\": [\"x\"]}",
         "the launch document, /plan: The plan's stages end at layer 2, but the model has 0."},
        {"spec", "{}", "the launch document, /spec: the job: This says neither"},
        {"ranks",
         "[{\"rank\": 1, \"local_rank\": 0, \"device\": 0, \"kind\": \"cpu\", \"node\": 4}]",
         "the launch document, /ranks/0/node: \"node\" must be a string, but is 4."},
        {"transport", "\"rdma\"", "the launch document, /transport: "},
        {"trainer", "\"t\"", "the launch document, /trainer: This must be an absolute path."},
        {"data_roots", "[\"x\"]", "the launch document, /data_roots/0: A data root is"},
        {"checkpoints", "\"c\"",
         "the launch document, /checkpoints: This must be an absolute path."},
        {"resume", "{}", "the launch document, /resume: \"resume\" must be a list of at most 64"},
        {"resume", "[{\"name\": \"step-0000000400\", \"step\": 401, \"sum\": \"" SUM "\"}]",
         "the launch document, /resume/0: The checkpoint of step 401 is named step-0000000401."},
        {"resume", "[{\"name\": \"step-0000000400\", \"step\": 400, \"sum\": \"99aa\"}]",
         "the launch document, /resume/0/sum: A checkpoint's sum is 32 hex digits."},
        {"resume", "[{\"name\": \"step-0000000400\", \"step\": 400}]",
         "the launch document, /resume/0/sum: \"sum\" is missing"},
        {"master_port", "70000", "the launch document, /master_port:"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        json_t *doc = json_loads(launch_text, 0, NULL);
        struct launch l = {.number = 77};
        struct err e = {0};
        json_object_set_new(doc, cases[i].member,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        assert_int_equal(launch_from_json(doc, &l, &e), ERR_INVALID);
        if (strncmp(e.text, cases[i].sentence, strlen(cases[i].sentence)) != 0)
            fail_msg("%s", e.text);
        assert_null(strstr(e.text, "s3cr3t"));
        assert_int_equal(l.number, 77);
        json_decref(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_is_best),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_plan_of_earlier),
        cmocka_unit_test(test_plan_of_chunks),
        cmocka_unit_test(test_too_many_stages),
        cmocka_unit_test(test_long_model),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_of_data_ranks),
        cmocka_unit_test(test_memory_of_a_pipeline),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_plan_json),
        cmocka_unit_test(test_plan_wrong),
        cmocka_unit_test(test_plan_of_command),
        cmocka_unit_test(test_launch),
        cmocka_unit_test(test_launch_on_gpus),
        cmocka_unit_test(test_launch_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
