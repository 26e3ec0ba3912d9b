/* What a rank holds of a model, and where it lies in the arenas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/net.h"

/* Four dense layers 3-4-5-6-2 with a dropout behind the second. */
static void make_job(struct job_spec *job)
{
    struct faults f;
    faults_init(&f);
    *job = (struct job_spec){.loss = LOSS_MEAN_SQUARED_ERROR};
    json_auto_t *doc = json_loads("{\"input\": [3], \"layers\": ["
                                  "{\"type\": \"dense\", \"units\": 4},"
                                  "{\"type\": \"dense\", \"units\": 5},"
                                  "{\"type\": \"dropout\", \"rate\": 0.5},"
                                  "{\"type\": \"dense\", \"units\": 6},"
                                  "{\"type\": \"dense\", \"units\": 2}]}",
                                  0, NULL);
    assert_int_equal(model_parse(doc, "/model", &job->model, &f), 0);
    faults_done(&f);
}

static void layers_lie_in_order(void **state)
{
    (void)state;
    static const struct net_chunk ALL = {0, 5};
    struct job_spec job;
    struct net n;
    struct err e;
    make_job(&job);
    free(job.model.layers[0].name);
    job.model.layers[0].name = strdup("first");
    assert_int_equal(net_init(&n, &job, &ops_cpu, &ALL, 1, 1, 0, &e), 0);
    assert_int_equal(n.tensor_count, 8);
    assert_string_equal(n.tensors[0].name, "first.kernel");
    assert_string_equal(n.tensors[7].name, "layers.4.bias");
    for (int t = 0; t < 8; t++)
        assert_int_equal(n.tensors[t].offset % 16, 0);
    assert_int_equal(n.tensors[2].offset, 16 + 16);
    assert_int_equal(n.elements, 32 + 32 + 16 + 32 + 16 + 16 + 16);
    assert_int_equal(n.trained, n.elements);
    net_done(&n);
    model_done(&job.model);
}

static void chunks_lie_one_after_another(void **state)
{
    (void)state;
    static const struct net_chunk CHUNKS[] = {{0, 1}, {2, 4}};
    struct job_spec job;
    struct net n;
    struct err e;
    int count;
    make_job(&job);
    assert_int_equal(net_init(&n, &job, &ops_cpu, CHUNKS, 2, 1, 0, &e), 0);
    assert_int_equal(n.tensor_count, 4);
    assert_string_equal(n.tensors[2].name, "layers.3.kernel");
    assert_int_equal(n.tensors[2].number, 4);
    assert_int_equal(n.tensors[2].offset, 16 + 16);
    assert_int_equal(n.elements, 16 + 16 + 32 + 16);
    assert_int_equal(n.trained, n.elements);
    assert_int_equal(n.layers[3].begin, 32);
    assert_int_equal(n.layers[3].end, 80);
    assert_ptr_equal(net_tensors_of(&n, 3, &count), &n.tensors[2]);
    assert_int_equal(count, 2);
    static const int NONE[] = {1, 2, 4}; /* elsewhere, without tensors, elsewhere */
    for (int i = 0; i < 3; i++) {
        net_tensors_of(&n, NONE[i], &count);
        assert_int_equal(count, 0);
        assert_int_equal(n.layers[NONE[i]].begin, n.layers[NONE[i]].end);
    }
    assert_int_equal(n.fused, 0);
    net_done(&n);
    model_done(&job.model);
}

static void what_is_not_trained_lies_at_the_end(void **state)
{
    (void)state;
    static const struct net_chunk ALL = {0, 5};
    struct job_spec job;
    struct net n;
    struct err e;
    make_job(&job);
    job.model.layers[0].frozen = 1;
    job.model.layers[3].frozen = 1;
    assert_int_equal(net_init(&n, &job, &ops_cpu, &ALL, 1, 1, 0, &e), 0);
    float parameters[256], gradients[128];
    net_point(&n, parameters, gradients);
    assert_int_equal(n.trained, 32 + 16 + 16 + 16);
    assert_int_equal(n.elements, n.trained + 16 + 16 + 32 + 16);
    assert_int_equal(n.lowest, 1); /* nothing below it learns */
    for (int t = 0; t < n.tensor_count; t++) {
        const struct net_tensor *x = &n.tensors[t];
        assert_int_equal(x->is_fixed, x->layer == 0 || x->layer == 3);
        assert_int_equal(x->offset >= n.trained, x->is_fixed);
        assert_ptr_equal(x->parameter, parameters + x->offset);
        assert_ptr_equal(x->gradient, x->is_fixed ? NULL : gradients + x->offset);
        for (int u = 0; u < t; u++)
            assert_true(n.tensors[u].offset + n.tensors[u].elements <= x->offset ||
                        x->offset + x->elements <= n.tensors[u].offset);
    }
    net_done(&n);
    model_done(&job.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_lie_in_order),
        cmocka_unit_test(chunks_lie_one_after_another),
        cmocka_unit_test(what_is_not_trained_lies_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
