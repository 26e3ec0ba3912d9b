/* trainer_memory.c: what the plan predicts of a rank's memory, against what the trainer lays out.
 */
#include "tests/unit/trainer_gang.h"

#include "spec/memory.h"
#include "trainer/replicas.h"
#include "trainer/stage.h"

#define DENSE(n, f) "{\"type\": \"dense\", \"units\": " #n ", \"activation\": \"" f "\"}"
#define KIND(t)     "{\"type\": \"" t "\"}"

#define ADD(n) "{\"type\": \"add\", \"with\": \"" n "\"}"

static const char *const models[] = {
    DENSE(31, "relu") "," DENSE(17, "gelu") "," DENSE(40, "tanh") "," DENSE(23, "silu") "," DENSE(
        10, "softmax"),

    "{\"type\": \"rescaling\", \"scale\": 2}," KIND("flatten") "," DENSE(33, "gelu") "," KIND(
        "layer_normalization") ",{\"type\": \"dropout\", \"rate\": "
                               "0.5}," DENSE(8, "linear") ","
                                                          "{\"type\": "
                                                          "\"activation\", "
                                                          "\"activation\": "
                                                          "\"relu\"}," DENSE(9, "relu") "," DENSE(
                                                              10, "linear") ",{"
                                                                            "\"ty"
                                                                            "pe\""
                                                                            ": "
                                                                            "\"ac"
                                                                            "tiva"
                                                                            "tion"
                                                                            "\", "
                                                                            "\"ac"
                                                                            "tiva"
                                                                            "tion"
                                                                            "\": "
                                                                            "\"so"
                                                                            "ftma"
                                                                            "x\""
                                                                            "}",

    "{\"type\": \"reshape\", \"target_shape\": [4, 6, 1]},"
    "{\"type\": \"conv2d\", \"filters\": 5, \"kernel_size\": 3, \"padding\": \"same\", "
    "\"activation\": \"gelu\"}," KIND("batch_normalization") "," KIND(
        "max_pooling2d") ","
                         "{\"type\": \"conv2d\", \"filters\": 7, \"kernel_size\": 2, "
                         "\"activation\": \"relu\"}," KIND("flatten") "," DENSE(
                             12, "silu") "," KIND("batch_normalization") "," DENSE(10, "softmax"),

    "{\"type\": \"embedding\", \"input_dim\": 30, \"output_dim\": 6, \"name\": "
    "\"e\"}," DENSE(9, "gelu") "," DENSE(6, "linear") "," ADD(
        "e") ",{\"type\": \"dense\", \"units\": 5, "
             "\"name\": \"f\"}," DENSE(8, "relu") "," KIND("layer_normalization") "," DENSE(
                 5, "linear") "," ADD("f") ",{\"type\": \"activation\", \"activation\": "
                                           "\"relu\"}," KIND("flatten") "," DENSE(
                                               11, "tanh") "," DENSE(10, "softmax"),
};

static struct job_spec *job_of(const char *layers, int bfloat16)
{
    CLEANUP(mem_freep)
    char *text = mem_printf(
        "{\"model\": {\"input\": [24], \"layers\": [%s]}, \"compile\": {\"optimizer\": \"adam\", "
        "\"loss\": \"sparse_categorical_crossentropy\"}, \"data\": {\"train\": {\"format\": "
        "\"csv\", \"path\": \"x.csv\"}}, \"fit\": "
        "{\"batch_size\": 60}, \"precision\": \"%s\"}",
        layers, bfloat16 ? "mixed_bfloat16" : "float32");
    json_auto_t *doc = json_loads(text, 0, NULL);
    struct faults f = {0}, w = {0};
    struct job_spec *s = job_spec_parse(doc, 1, &f, &w);
    if (!s)
        fail_msg("%s: %s", f.items[0].pointer, f.items[0].message);
    return s;
}

/* What frames, and what they share, take in a stage that is set up. */
static size_t laid_out(const struct job_spec *job, const struct plan *p, int place)
{
    static const struct dataset set = {.samples = 1000,
                                       .feature_size = 24,
                                       .target_type = TARGET_CLASS,
                                       .target_size = 1,
                                       .positions = 1};
    struct mesh mesh;
    struct stage s = {0};
    struct err e = {0};
    CLEANUP(mem_freep) struct net_chunk *chunks = mem_alloc((size_t)p->chunks * sizeof *chunks);
    mesh_place(&mesh, p, place * p->tensor);
    mesh_chunks(p, mesh.stage, chunks);
    if (net_init(&s.net, job, &ops_cpu, chunks, p->chunks, p->tensor, 0, &e) < 0 ||
        stage_init(&s, job, p, &mesh, &set, &e) < 0)
        fail_msg("%s", e.text);
    size_t bytes = stage_bytes(&s, &set);
    stage_done(&s);
    return bytes;
}

static void expect_same(const struct job_spec *job, const struct plan *p)
{
    struct memory_view v;
    memory_open(&v, job, p);
    for (int place = 0; place < p->pipeline; place++) {
        struct plan_bytes b;
        memory_rank(&v, place, &b);
        size_t have = laid_out(job, p, place);
        if (b.frames + b.work != (double)have)
            fail_msg("data %d, pipeline %d x %d, %d micro-batches, %d recomputed: rank %d has %zu "
                     "bytes, %.0f were predicted",
                     p->data, p->pipeline, p->chunks, p->microbatches, p->recompute_count, place,
                     have, b.frames + b.work);
    }
    memory_done(&v);
}

static void try_mesh(const struct job_spec *job, int data, int pipeline, int tensor, int chunks,
                     int microbatches, enum pipeline_schedule schedule)
{
    struct plan p = {.kind = STRATEGY_PIPELINE,
                     .ranks = data * pipeline * tensor,
                     .data = data,
                     .pipeline = pipeline,
                     .tensor = tensor,
                     .chunks = chunks,
                     .microbatches = microbatches,
                     .schedule = schedule};
    struct err e;
    parallel_set_defaults(&p.parallel);
    p.stage_first = mem_zalloc(((size_t)plan_stages(&p) + 1) * sizeof *p.stage_first);
    for (int l = 0; l < job->model.layer_count; l++) /* its sums need all micro-batches at once */
        if (job->model.layers[l].type == LAYER_BATCH_NORMALIZATION) {
            p.schedule = chunks > 1 ? p.schedule : SCHEDULE_GPIPE;
            p.microbatches = chunks > 1 ? 1 : microbatches;
        }
    if (plan_cut(job, plan_stages(&p), p.stage_first, &e) < 0)
        fail_msg("%s", e.text);
    expect_same(job, &p);
    plan_recompute(job, &p, 0);
    expect_same(job, &p);
    free(p.recompute);
    unsigned seed = (unsigned)(data * 100 + pipeline * 10 + microbatches);
    p.recompute = mem_zalloc((size_t)job->model.layer_count);
    for (int round = 0; round < 20; round++) {
        for (int l = 0; l < job->model.layer_count; l++)
            p.recompute[l] = rand_r(&seed) % 2 != 0;
        expect_same(job, &p);
    }
    plan_done(&p);
}

static void activations_are_predicted_to_the_byte(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++)
        for (int bfloat16 = 0; bfloat16 < 2; bfloat16++) {
            struct job_spec *job = job_of(models[m], bfloat16);
            try_mesh(job, 1, 1, 1, 1, 1, SCHEDULE_1F1B);
            try_mesh(job, 3, 1, 1, 1, 4, SCHEDULE_1F1B);
            try_mesh(job, 1, 2, 1, 1, 4, SCHEDULE_GPIPE);
            try_mesh(job, 2, 3, 1, 1, 5, SCHEDULE_1F1B);
            try_mesh(job, 1, 4, 1, 1, 3, SCHEDULE_1F1B);
            try_mesh(job, 1, 2, 1, 2, 6, SCHEDULE_INTERLEAVED);
            try_mesh(job, 1, 1, 3, 1, 2, SCHEDULE_1F1B);
            try_mesh(job, 2, 2, 2, 1, 3, SCHEDULE_1F1B);
            try_mesh(job, 1, 1, 64, 1, 1, SCHEDULE_1F1B);
            job_spec_free(job);
        }
}

/* ---- what replicas keep ---- */

static void measure(const struct job_spec *job, const struct plan *p, int data_rank, int place,
                    size_t *ret_private, size_t *ret_shared)
{
    struct mesh mesh;
    struct net n;
    struct replicas r;
    struct err e = {0};
    CLEANUP(mem_freep) struct net_chunk *chunks = mem_alloc((size_t)p->chunks * sizeof *chunks);
    mesh_place(&mesh, p, (data_rank * p->pipeline + place) * p->tensor);
    mesh_chunks(p, place, chunks);
    if (net_init(&n, job, &ops_cpu, chunks, p->chunks, p->tensor, 0, &e) < 0)
        fail_msg("%s", e.text);
    replicas_init(&r, job, p, &n, &mesh);
    replicas_measure(&r, ret_shared, ret_private);
    replicas_done(&r);
    net_done(&n);
}

/* Shared memory to the byte; private to a cache line for each part of a bucket. */
static void expect_values(const struct job_spec *job, const struct plan *p)
{
    struct memory_view v;
    memory_open(&v, job, p);
    for (int place = 0; place < p->pipeline; place++) {
        double own = 0, shared = 0, most = 0;
        memory_add_values(&v, place, &own, &shared);
        for (int d = 0; d < p->data; d++) {
            size_t has, has_shared;
            measure(job, p, d, place, &has, &has_shared);
            assert_true(shared == (double)has_shared);
            assert_true((double)has <= own);
            most = (double)has > most ? (double)has : most;
        }
        assert_true(own - most <= 64 * 16 + own / 1000);
    }
    memory_done(&v);
}

/* Wide enough for several buckets. */
static const char wide[] = "{\"type\": \"dense\", \"units\": 1200}," KIND(
    "batch_normalization") ","
                           "{\"type\": \"dense\", \"units\": 1100}," KIND(
                               "layer_normalization") ","
                                                      "{\"type\": \"dense\", \"units\": 1111, "
                                                      "\"trainable\": false},"
                                                      "{\"type\": \"dense\", \"units\": "
                                                      "1500}," DENSE(10, "softmax");

static void values_are_predicted(void **state)
{
    (void)state;
    static const struct {
        int data, pipeline, tensor, chunks;
    } meshes[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {7, 1, 1, 1},
                  {2, 2, 1, 1}, {4, 2, 1, 2}, {2, 2, 3, 1}};
    for (size_t i = 0; i < ARRAY_LEN(meshes); i++)
        for (unsigned bits = 0; bits < 32; bits++) {
            struct job_spec *job = job_of(bits & 16 ? models[3] : wide, bits & 1);
            struct plan p = {.kind = STRATEGY_MIRRORED,
                             .data = meshes[i].data,
                             .pipeline = meshes[i].pipeline,
                             .tensor = meshes[i].tensor,
                             .chunks = meshes[i].chunks,
                             .microbatches = 2};
            struct err e;
            parallel_set_defaults(&p.parallel);
            p.ranks = p.data * p.pipeline * p.tensor;
            p.parallel.overlap = bits >> 1 & 1;
            p.parallel.grains = p.data * 4;
            p.parallel.reproducible = bits >> 2 & 1;
            if (bits & 8)
                job->precision.moments = STORAGE_BFLOAT16;
            p.stage_first = mem_zalloc(((size_t)plan_stages(&p) + 1) * sizeof *p.stage_first);
            if (plan_cut(job, plan_stages(&p), p.stage_first, &e) < 0)
                fail_msg("%s", e.text);
            for (p.zero = 0; p.zero < 4; p.zero++)
                expect_values(job, &p);
            plan_done(&p);
            job_spec_free(job);
        }
}

/* ---- all of it ---- */

/* The heaviest rank of a real gang, as it says when it is ready. */
static void expect_gang(const json_t *doc, const struct plan *wanted)
{
    struct gang g;
    double most = 0;
    gang_open_plan(&g, doc, wanted);
    double predicted = (double)plan_memory(g.launch.spec, &g.launch.plan);
    gang_run(&g);
    for (int r = 0; r < g.launch.plan.ranks; r++) {
        double bytes = gang_number(gang_line(&g, "ready", r, 0), "memory_bytes");
        most = bytes > most ? bytes : most;
    }
    gang_close(&g);
    if (predicted < most || predicted > 1.01 * most)
        fail_msg("data %d, pipeline %d, zero %d: %.0f bytes were predicted, the heaviest rank has "
                 "%.0f",
                 wanted->data, wanted->pipeline, wanted->zero, predicted, most);
}

static void gangs_take_what_was_predicted(void **state)
{
    (void)state;
    json_auto_t *doc = gang_job(SMALL("200", "30", "", "\"steps\": 2"));
    static const struct plan plans[] = {
        {.kind = STRATEGY_NONE},
        {.kind = STRATEGY_MIRRORED, .data = 3},
        {.kind = STRATEGY_MIRRORED, .data = 2, .zero = 3, .microbatches = 2},
        {.kind = STRATEGY_PIPELINE, .data = 2, .pipeline = 2, .zero = 1, .microbatches = 4},
        {.kind = STRATEGY_PIPELINE, .pipeline = 3, .microbatches = 3, .schedule = SCHEDULE_1F1B},
        {.kind = STRATEGY_SEGMENT_ENSEMBLE, .data = 2},
        {.kind = STRATEGY_TENSOR, .tensor = 2},
        {.kind = STRATEGY_PIPELINE, .data = 2, .pipeline = 2, .tensor = 2, .zero = 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(plans); i++) {
        struct plan p = plans[i];
        parallel_set_defaults(&p.parallel);
        expect_gang(doc, &p);
    }
}

#ifndef TRAINYARD_SANITIZED /* which keep memory of their own */
/* Large enough that what a process takes anyway does not count: 9.8 million parameters. */
static const char large[] =
    "{\"model\": {\"input\": [6], \"layers\": ["
    "{\"type\": \"dense\", \"units\": 2300, \"activation\": \"relu\"},"
    "{\"type\": \"dense\", \"units\": 2000, \"activation\": \"gelu\"},"
    "{\"type\": \"dense\", \"units\": 2000, \"activation\": \"tanh\"},"
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"
    "\"compile\": {\"optimizer\": \"adam\", \"loss\": \"sparse_categorical_crossentropy\"},"
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 96, \"input\": 6, "
    "\"classes\": 4, \"seed\": 1}}, \"fit\": {\"batch_size\": 48, \"seed\": 3, \"steps\": 3}}";

/* The ranks' pages, all of them together, against what all of them foretold. */
static void expect_pages(const json_t *doc, const struct plan *wanted)
{
    struct gang g;
    double predicted = 0, measured = 0;
    gang_open_plan(&g, doc, wanted);
    gang_run(&g);
    for (int r = 0; r < g.launch.plan.ranks; r++) {
        const json_t *line = gang_line(&g, "memory", r, 0);
        predicted += gang_number(line, "memory_bytes");
        measured += gang_number(line, "measured_bytes");
    }
    print_message("           %d x %d x %d, zero %d, %s: %.1f MiB predicted, %.1f measured\n",
                  g.launch.plan.data, g.launch.plan.pipeline, g.launch.plan.tensor, wanted->zero,
                  pipeline_schedule_name(wanted->schedule), predicted / 1048576,
                  measured / 1048576);
    gang_close(&g);
    assert_true(measured > 0);
    if (predicted < 0.95 * measured || predicted > 1.05 * measured)
        fail_msg("%.0f bytes were predicted, %.0f measured", predicted, measured);
}

static void pages_are_what_was_predicted(void **state)
{
    (void)state;
    json_auto_t *doc = gang_job(large);
    static const struct plan plans[] = {
        {.kind = STRATEGY_NONE},
        {.kind = STRATEGY_MIRRORED, .data = 2},
        {.kind = STRATEGY_MIRRORED, .data = 3, .zero = 1},
        {.kind = STRATEGY_MIRRORED, .data = 2, .zero = 2, .microbatches = 2},
        {.kind = STRATEGY_MIRRORED, .data = 4, .zero = 3},
        {.kind = STRATEGY_PIPELINE, .pipeline = 2, .microbatches = 4, .schedule = SCHEDULE_GPIPE},
        {.kind = STRATEGY_PIPELINE, .pipeline = 3, .microbatches = 4, .schedule = SCHEDULE_1F1B},
        {.kind = STRATEGY_TENSOR, .tensor = 2},
        {.kind = STRATEGY_TENSOR, .tensor = 3},
        {.kind = STRATEGY_PIPELINE, .data = 2, .pipeline = 2, .tensor = 2, .microbatches = 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(plans); i++) {
        struct plan p = plans[i];
        parallel_set_defaults(&p.parallel);
        expect_pages(doc, &p);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_are_predicted_to_the_byte),
        cmocka_unit_test(values_are_predicted),
        cmocka_unit_test(gangs_take_what_was_predicted),
#ifndef TRAINYARD_SANITIZED
        cmocka_unit_test(pages_are_what_was_predicted),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
