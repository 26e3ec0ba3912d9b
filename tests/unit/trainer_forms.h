/* trainer_forms.h: jobs for tests of what data ranks do for one another, and gangs that run them in
 * a given form. */
#ifndef TRAINYARD_TESTS_TRAINER_FORMS_H
#define TRAINYARD_TESTS_TRAINER_FORMS_H

#include <math.h>

#include "tests/unit/trainer_gang.h"

/* Buckets of their own for two layers, one for the rest; vectors that do not decay; a clipped norm
 * that is summed over parts. */
#define WIDE                                                                                       \
    "{\"name\": \"wide\", \"model\": {\"input\": [6], \"layers\": ["                               \
    "{\"type\": \"dense\", \"units\": 1100, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dense\", \"units\": 1000, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dense\", \"units\": 1080, \"activation\": \"tanh\"},"                            \
    "{\"type\": \"dropout\", \"rate\": 0.3}, {\"type\": \"layer_normalization\"},"                 \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.001, "                \
    "\"weight_decay\": 0.1, \"exclude_from_weight_decay\": \"vectors\", \"global_clipnorm\": 1},"  \
    "\"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"                 \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 31, \"input\": 6, "            \
    "\"classes\": 4, \"seed\": 1}, \"validation\": {\"format\": \"synthetic\", \"samples\": 13, "  \
    "\"input\": 6, \"classes\": 4, \"seed\": 2}},"                                                 \
    "\"fit\": {\"batch_size\": 12, \"seed\": 3, \"epochs\": 2}}"

#define DROPPING                                                                                   \
    SMALL("101", "22",                                                                             \
          "{\"type\": \"dropout\", \"rate\": 0.3}, "                                               \
          "{\"type\": \"layer_normalization\"},",                                                  \
          "\"epochs\": 2")

struct form {
    int data, pipeline, microbatches, zero, reproducible, overlap;
    enum sync_kind sync;
    int local_steps;
    double outer_rate, outer_momentum;
    struct precision precision;
};

static inline void say(const struct form *f)
{
    print_message("           %d x %d, %d micro-batches, zero %d, %s%s%s%s%s\n", f->data,
                  f->pipeline, f->microbatches, f->zero, sync_name(f->sync),
                  f->reproducible ? ", reproducible" : "", f->overlap ? ", overlap" : "",
                  f->precision.weights ? ", bfloat16 weights" : "",
                  f->precision.moments ? ", bfloat16 moments" : "");
}

static inline void run_form(const char *job, const struct form *f, struct gang *g)
{
    json_auto_t *doc = gang_job(job);
    say(f);
    gang_open(g, doc, f->pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, f->data, f->pipeline,
              f->microbatches, SCHEDULE_GPIPE);
    g->launch.plan.zero = f->zero;
    g->launch.plan.parallel.reproducible = f->reproducible;
    g->launch.plan.parallel.grains = 8;
    g->launch.plan.parallel.overlap = f->overlap;
    g->launch.plan.parallel.sync = f->sync;
    g->launch.plan.parallel.local_steps = f->local_steps;
    g->launch.plan.parallel.outer_learning_rate = f->outer_rate > 0 ? f->outer_rate : 1;
    g->launch.plan.parallel.outer_momentum = f->outer_momentum;
    g->launch.spec->precision = f->precision;
    gang_run(g);
}

static inline void weights_of(const char *job, const struct form *f, struct buf *ret)
{
    struct gang g;
    run_form(job, f, &g);
    read_whole(&g, "model.safetensors", ret);
    gang_close(&g);
}

static inline void check_equal(const struct buf *a, const struct buf *b)
{
    assert_int_equal(a->len, b->len);
    if (memcmp(a->data, b->data, a->len) != 0)
        fail_msg("other bits");
}

/* Batches of 22 and, the last one, 13 items in eight grains; an item alone in the last batch of
 * the second job, and batches smaller than the grains. */
#define REPRODUCIBLE(SAMPLES, BATCH)                                                               \
    "{\"name\": \"same\", \"model\": {\"input\": [6], \"layers\": ["                               \
    "{\"type\": \"dense\", \"units\": 19, \"activation\": \"tanh\"},"                              \
    "{\"type\": \"dropout\", \"rate\": 0.3},"                                                      \
    "{\"type\": \"dense\", \"units\": 33, \"activation\": \"gelu\"}, "                             \
    "{\"type\": \"layer_normalization\"},"                                                         \
    "{\"type\": \"dense\", \"units\": 4, \"activation\": \"softmax\"}]},"                          \
    "\"compile\": {\"optimizer\": {\"name\": \"adamw\", \"learning_rate\": 0.01, "                 \
    "\"weight_decay\": 0.1, \"exclude_from_weight_decay\": \"vectors\", \"global_clipnorm\": "     \
    "0.5}, \"loss\": \"sparse_categorical_crossentropy\", \"metrics\": [\"accuracy\"]},"           \
    "\"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": " SAMPLES                      \
    ", \"input\": 6, \"classes\": 4, \"seed\": 1}},"                                               \
    "\"fit\": {\"batch_size\": " BATCH ", \"seed\": 3, \"epochs\": 2}}"

static inline double step_number(const struct gang *g, size_t i, const char *name)
{
    return gang_number(gang_line(g, "step", 0, i), name);
}

#endif
