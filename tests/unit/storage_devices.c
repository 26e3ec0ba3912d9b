/* storage_devices.c: drains, and when devices failed. */
#include "tests/unit/storage_helper.h"

static int fixture_node(void **state)
{
    fixture_open(state);
    put_node(*state, "n1");
    put_node(*state, "n2");
    return 0;
}

static void drain(struct fixture *f, const char *node, const char *device, const char *reason)
{
    struct drain_row r = {.node = (char *)node,
                          .device = (char *)device,
                          .reason = (char *)reason,
                          .by = (char *)"ann",
                          .at_us = 77};
    assert_ok(f, store_drain_put(f->s, &r, &f->e));
}

static void test_drains(void **state)
{
    struct fixture *f = *state;
    struct drain_row rows[4] = {0};
    drain(f, "n1", "GPU-b", "fan");
    drain(f, "n1", "", "old");
    drain(f, "n1", "", "rack 3 moves"); /* again: replaces */
    drain(f, "n2", "GPU-b", "other");
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(store_drain_list(f->s, "n1", 4, rows, &f->e), 2);
    assert_string_equal(rows[0].device, "");
    assert_string_equal(rows[0].reason, "rack 3 moves");
    assert_string_equal(rows[1].device, "GPU-b");
    assert_string_equal(rows[1].by, "ann");
    assert_int_equal(rows[1].at_us, 77);
    drain_row_done(&rows[0]);
    drain_row_done(&rows[1]);
    assert_int_equal(store_drain_drop(f->s, "n1", "GPU-b", &f->e), 1);
    assert_int_equal(store_drain_drop(f->s, "n1", "GPU-b", &f->e), 0);
    assert_int_equal(store_drain_list(f->s, "n1", 4, rows, &f->e), 1);
    drain_row_done(&rows[0]);
    struct drain_row nobody = {
        .node = (char *)"n9", .device = (char *)"", .reason = (char *)"", .by = (char *)""};
    assert_int_equal(store_drain_put(f->s, &nobody, &f->e), ERR_NOT_FOUND);
    assert_says(f, "there is no node n9");
    assert_int_equal(store_drain_list(f->s, "n1", 0, rows, &f->e), ERR_INVALID);
}

static void test_failures(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(store_device_failed(f->s, "n1", "GPU-a", 100, 0, &f->e), 1);
    assert_int_equal(store_device_failed(f->s, "n1", "GPU-a", 200, 0, &f->e), 2);
    assert_int_equal(store_device_failed(f->s, "n1", "GPU-b", 200, 0, &f->e), 1);
    assert_int_equal(store_device_failed(f->s, "n2", "GPU-a", 200, 0, &f->e), 1);
    assert_int_equal(store_device_failed(f->s, "n1", "GPU-a", 300, 150, &f->e), 2);
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(store_device_failed(f->s, "n1", "GPU-a", 300, 150, &f->e), 3);
    assert_ok(f, store_device_forgive(f->s, "n1", "GPU-a", &f->e));
    assert_int_equal(store_device_failed(f->s, "n1", "GPU-a", 400, 150, &f->e), 1);
    assert_int_equal(store_device_failed(f->s, "n9", "GPU-a", 400, 150, &f->e), ERR_NOT_FOUND);
}

static void test_whether_a_job_trains(void **state)
{
    struct fixture *f = *state;
    struct job_row r = sample_job("job_1"), got = {0};
    r.trains = 1;
    assert_ok(f, store_job_insert(f->s, &r, NULL, &f->e));
    put_job(f, "job_2");
    assert_ok(f, store_job_get(f->s, "job_1", &got, &f->e));
    assert_int_equal(got.trains, 1);
    job_row_done(&got);
    assert_ok(f, store_job_get(f->s, "job_2", &got, &f->e));
    assert_int_equal(got.trains, 0);
    job_row_done(&got);
}

#define T(name) cmocka_unit_test_setup_teardown(name, fixture_node, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_drains),
        T(test_failures),
        T(test_whether_a_job_trains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
