/* trainer_reference.h: gangs against the reference runs: step by step, epoch by epoch, and the
 * weights that are left. */
#ifndef TRAINYARD_TESTS_TRAINER_REFERENCE_H
#define TRAINYARD_TESTS_TRAINER_REFERENCE_H

#include <math.h>

#include "tests/unit/trainer_gang.h"
#include "trainer/safetensors.h"

static inline void check_number(const char *what, size_t at, double got, double want,
                                double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s %zu is %.9g, not %.9g", what, at + 1, got, want);
}

/* A rectified unit whose input is nearly 0 goes one way or the other by how a product was rounded,
 * and the gradient with it: digits-mlp-sgd has an input of 4e-8 in its second step. A backend that
 * rounds it otherwise is off by more from there on, so many times. */
static double slack = 1;

static inline void check_steps(const struct gang *g, const json_t *expected, double tolerance)
{
    const json_t *steps = json_object_get(expected, "steps"), *want;
    size_t i;
    assert_int_equal(gang_count(g, "step"), json_array_size(steps));
    json_array_foreach(steps, i, want)
    {
        const json_t *got = gang_line(g, "step", 0, i);
        assert_int_equal(gang_number(got, "step"), i + 1);
        check_number("loss", i, gang_number(got, "loss"), gang_number(want, "loss"),
                     tolerance * slack);
        check_number("grad_norm", i, gang_number(got, "grad_norm"), gang_number(want, "grad_norm"),
                     tolerance * 20 * slack);
        check_number("learning_rate", i, gang_number(got, "learning_rate"),
                     gang_number(want, "learning_rate"), 1e-8);
    }
}

static inline void check_epochs(const struct gang *g, const json_t *expected, double tolerance)
{
    const json_t *epochs = json_object_get(expected, "epochs"), *want, *value;
    const char *name;
    size_t i;
    assert_int_equal(gang_count(g, "epoch"), json_array_size(epochs));
    json_array_foreach(epochs, i, want)
    {
        json_object_foreach((json_t *)want, name, value)
        {
            double got = gang_number(gang_line(g, "epoch", 0, i), name);
            if (strstr(name, "accuracy"))
                assert_true(fabs(got - json_number_value(value)) < 1.5e-3);
            else
                check_number(name, i, got, json_number_value(value), tolerance);
        }
    }
}

static inline struct safetensors *open_weights(const char *path)
{
    struct safetensors *s = NULL;
    struct err e;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || safetensors_open(fd, path, &s, &e) < 0)
        fail_msg("cannot open %s", path);
    return s;
}

static inline void check_weights(const struct gang *g, const char *reference)
{
    char ours[160], theirs[160];
    struct err e;
    snprintf(ours, sizeof ours, "%s/model.safetensors", g->dir);
    snprintf(theirs, sizeof theirs, "tests/reference/%s/final.safetensors", reference);
    struct safetensors *a = open_weights(ours), *b = open_weights(theirs);
    const struct model *m = &g->launch.spec->model;
    assert_int_equal(safetensors_count(a), safetensors_count(b));
    for (int l = 0; l < m->layer_count; l++)
        for (int t = 0; t < m->layers[l].tensor_count; t++) {
            const struct tensor_spec *spec = &m->layers[l].tensors[t];
            size_t n = (size_t)shape_elements(&spec->shape);
            float *x = mem_alloc(n * sizeof *x), *y = mem_alloc(n * sizeof *y);
            char name[128];
            snprintf(name, sizeof name, "%s.%s", m->layers[l].name, spec->name);
            assert_int_equal(safetensors_read(a, name, &spec->shape, x, &e), 0);
            assert_int_equal(safetensors_read(b, name, &spec->shape, y, &e), 0);
            for (size_t i = 0; i < n; i++)
                if (!(fabsf(x[i] - y[i]) <= (1e-4f + 1e-3f * fabsf(y[i])) * (float)slack))
                    fail_msg("%s[%zu] is %g, not %g", name, i, (double)x[i], (double)y[i]);
            free(x);
            free(y);
        }
    safetensors_close(a);
    safetensors_close(b);
}

/* All that a gang that has run the reference has told and left. */
static inline void check_gang(const struct gang *g, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/reference/%s/expected.json", name);
    json_auto_t *expected = json_load_file(path, 0, NULL);
    assert_non_null(expected);
    double tolerance = gang_number(expected, "tolerance");
    check_steps(g, expected, tolerance);
    check_epochs(g, expected, tolerance);
    check_weights(g, name);
}

static inline void check_reference(const char *name, int data, int pipeline, int microbatches,
                                   enum pipeline_schedule schedule)
{
    struct gang g;
    json_auto_t *doc = gang_job(name);
    print_message("           %s: %d x %d, %d micro-batches, %s\n", name, data, pipeline,
                  microbatches, pipeline_schedule_name(schedule));
    gang_open(&g, doc, pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED, data, pipeline,
              microbatches, schedule);
    gang_run(&g);
    check_gang(&g, name);
    gang_close(&g);
}

#endif
