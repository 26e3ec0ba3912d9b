/* trainer_memory.c: what the plan predicts of a rank's memory, against what the trainer lays out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "spec/memory.h"
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
    if (net_init(&s.net, job, &ops_cpu, chunks, p->chunks, 1, 0, &e) < 0 ||
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

static void try_mesh(const struct job_spec *job, int data, int pipeline, int chunks,
                     int microbatches, enum pipeline_schedule schedule)
{
    struct plan p = {.kind = STRATEGY_PIPELINE,
                     .ranks = data * pipeline,
                     .data = data,
                     .pipeline = pipeline,
                     .tensor = 1,
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
            try_mesh(job, 1, 1, 1, 1, SCHEDULE_1F1B);
            try_mesh(job, 3, 1, 1, 4, SCHEDULE_1F1B);
            try_mesh(job, 1, 2, 1, 4, SCHEDULE_GPIPE);
            try_mesh(job, 2, 3, 1, 5, SCHEDULE_1F1B);
            try_mesh(job, 1, 4, 1, 3, SCHEDULE_1F1B);
            try_mesh(job, 1, 2, 2, 6, SCHEDULE_INTERLEAVED);
            job_spec_free(job);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_are_predicted_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
