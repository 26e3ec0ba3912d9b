/* What follows from the times that ranks measure: unevenness, speeds, and cuts that pay. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/balance.h"

static struct job_spec job;

/* Eight layers with the same FLOPs. */
static int setup(void **state)
{
    (void)state;
    struct faults f;
    faults_init(&f);
    json_auto_t *layers = json_array();
    for (int l = 0; l < 8; l++)
        json_array_append_new(layers, json_pack("{s:s,s:i}", "type", "dense", "units", 10));
    json_auto_t *doc = json_pack("{s:[i],s:O}", "input", 10, "layers", layers);
    assert_int_equal(model_parse(doc, "/model", &job.model, &f), 0);
    for (int l = 0; l < 8; l++)
        job.model.layers[l].backward_flops = 2 * job.model.layers[l].forward_flops;
    faults_done(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_done(&job.model);
    return 0;
}

static int FIRST[] = {0, 2, 4, 6, 8};

static struct plan plan_of(int data, int pipeline, int chunks)
{
    return (struct plan){.ranks = data * pipeline,
                         .data = data,
                         .pipeline = pipeline,
                         .tensor = 1,
                         .chunks = chunks,
                         .stage_first = FIRST};
}

static void the_slowest_place_is_held_against_the_mean(void **state)
{
    (void)state;
    struct plan p = plan_of(1, 4, 1);
    struct balance_word w[8] = {0};
    assert_true(balance_unevenness(&p, w) == 1);
    for (int r = 0; r < 4; r++)
        w[r].busy_us[0] = r == 2 ? 500 : 100;
    assert_true(fabs(balance_unevenness(&p, w) - 2.5) < 1e-12);
    /* two data ranks: the slower counts, place by place */
    p = plan_of(2, 4, 1);
    for (int r = 4; r < 8; r++)
        w[r].busy_us[0] = 200;
    assert_true(fabs(balance_unevenness(&p, w) - 500 / 275.0) < 1e-12);
    /* two chunks a place: together */
    p = plan_of(1, 2, 2);
    w[0].busy_us[0] = 100, w[0].busy_us[1] = 50;
    w[1].busy_us[0] = 20, w[1].busy_us[1] = 30;
    assert_true(fabs(balance_unevenness(&p, w) - 1.5) < 1e-12);
}

static void speeds_are_those_of_the_slowest_place(void **state)
{
    (void)state;
    struct plan p = plan_of(2, 2, 1);
    struct balance_word w[4] = {{.items = 64, .busy_us = {100}},
                                {.items = 64, .busy_us = {160}},
                                {.items = 32, .busy_us = {40}},
                                {.items = 32, .busy_us = {20}}};
    double speeds[2];
    balance_speeds(&p, w, speeds);
    assert_true(fabs(speeds[0] - 0.4) < 1e-6);
    assert_true(fabs(speeds[1] - 0.8) < 1e-6);
    memset(w, 0, sizeof w);
    balance_speeds(&p, w, speeds);
    assert_true(speeds[0] == 0 && speeds[1] == 0);
}

/* The first stage's two layers take as long as all others together. */
static void layers_leave_the_dear_stage(void **state)
{
    (void)state;
    struct plan p = plan_of(1, 4, 1);
    int first[5];
    struct balance_word w[4] = {{.busy_us = {6000}, .move_us = 900},
                                {.busy_us = {2000}},
                                {.busy_us = {2000}},
                                {.busy_us = {2000}, .move_us = 1000}};
    static const int WANT[] = {0, 1, 2, 5, 8};
    assert_int_equal(balance_cut(&job, &p, w, 8, first), 1);
    assert_memory_equal(first, WANT, sizeof WANT);
    /* from 6,000 to 3,000 us in eight steps: 375 us a step, and moving costs 1,000 */
    assert_int_equal(balance_cut(&job, &p, w, 3, first), 1);
    assert_int_equal(balance_cut(&job, &p, w, 2, first), 0);
    assert_int_equal(balance_cut(&job, &p, w, 0, first), 0);
}

static void an_even_cut_stays(void **state)
{
    (void)state;
    struct plan p = plan_of(1, 4, 1);
    int first[5];
    struct balance_word w[4] = {0};
    for (int r = 0; r < 4; r++)
        w[r].busy_us[0] = 1000 + (float)r;
    assert_int_equal(balance_cut(&job, &p, w, 1000000, first), 0);
}

static void interleaved_stages_are_cut_one_by_one(void **state)
{
    (void)state;
    struct plan p = plan_of(1, 2, 2);
    int first[5];
    struct balance_word w[2] = {{.busy_us = {6000, 2000}}, {.busy_us = {2000, 2000}}};
    static const int WANT[] = {0, 1, 2, 5, 8};
    assert_int_equal(balance_cut(&job, &p, w, 8, first), 1);
    assert_memory_equal(first, WANT, sizeof WANT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slowest_place_is_held_against_the_mean),
        cmocka_unit_test(speeds_are_those_of_the_slowest_place),
        cmocka_unit_test(layers_leave_the_dear_stage),
        cmocka_unit_test(an_even_cut_stays),
        cmocka_unit_test(interleaved_stages_are_cut_one_by_one),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
