/* storage_metrics.c: steps and epochs as trainers report them. */
#include "tests/unit/storage_helper.h"

#include <float.h>
#include <math.h>

static int fixture_job(void **state)
{
    fixture_open(state);
    struct fixture *f = *state;
    put_job(f, "job_1");
    put_job(f, "job_2");
    return 0;
}

static void put(struct fixture *f, const char *job, int64_t attempt, int64_t step, double loss)
{
    struct step_row r = {.attempt = attempt,
                         .step = step,
                         .epoch = 1 + step / 100,
                         .loss = loss,
                         .grad_norm = loss / 2,
                         .learning_rate = 1e-3,
                         .time_us = step,
                         .samples_per_second = 1234.5};
    assert_ok(f, store_step_put(f->s, job, &r, &f->e));
}

static int same_double(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b;
}

static void test_odd_numbers(void **state)
{
    struct fixture *f = *state;
    const double odd[] = {NAN,     INFINITY, -INFINITY, 0.0, 1.0,   -1.0,
                          DBL_MAX, DBL_MIN,  5e-324,    0.1, 1e300, 9007199254740993.0,
                          1.0 / 3};
    int n = (int)ARRAY_LEN(odd);
    struct step_row rows[20];
    for (int i = 0; i < n; i++) {
        struct step_row r = {.attempt = 1, .step = i + 1, .epoch = 1, .time_us = INT64_MAX};
        r.loss = odd[i];
        r.grad_norm = odd[(i + 1) % n];
        r.learning_rate = odd[(i + 2) % n];
        r.samples_per_second = odd[(i + 3) % n];
        assert_ok(f, store_step_put(f->s, "job_1", &r, &f->e));
    }
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(store_step_list(f->s, "job_1", 0, 20, rows, &f->e), n);
    for (int i = 0; i < n; i++) {
        assert_true(same_double(rows[i].loss, odd[i]));
        assert_true(same_double(rows[i].grad_norm, odd[(i + 1) % n]));
        assert_true(same_double(rows[i].learning_rate, odd[(i + 2) % n]));
        assert_true(same_double(rows[i].samples_per_second, odd[(i + 3) % n]));
        assert_int_equal(rows[i].time_us, INT64_MAX);
    }
}

static void test_list(void **state)
{
    struct fixture *f = *state;
    struct step_row rows[50];
    int64_t last = -1;
    assert_ok(f, store_step_count(f->s, "job_1", &last, &f->e));
    assert_int_equal(last, 0);
    assert_int_equal(store_step_list(f->s, "job_1", 0, 50, rows, &f->e), 0);
    for (int i = 40; i >= 1; i--) /* any order */
        put(f, "job_1", 1, i, i);
    put(f, "job_2", 1, 7, 99);
    assert_int_equal(store_step_list(f->s, "job_1", 0, 50, rows, &f->e), 40);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(rows[i].step, i + 1);
        assert_true(rows[i].loss == i + 1);
    }
    assert_int_equal(store_step_list(f->s, "job_1", 10, 5, rows, &f->e), 5);
    assert_int_equal(rows[0].step, 11);
    assert_int_equal(rows[4].step, 15);
    assert_int_equal(store_step_list(f->s, "job_1", 40, 5, rows, &f->e), 0);
    assert_ok(f, store_step_count(f->s, "job_1", &last, &f->e));
    assert_int_equal(last, 40);
    assert_int_equal(store_step_list(f->s, "job_2", 0, 5, rows, &f->e), 1);
    assert_int_equal(store_step_list(f->s, "job_9", 0, 5, rows, &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_step_count(f->s, "job_9", &last, &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_step_list(f->s, "job_1", 0, 0, rows, &f->e), ERR_INVALID);
}

/* A second attempt went back to step 11 and got to 20; the first had got to 30. */
static void test_latest_attempt_counts(void **state)
{
    struct fixture *f = *state;
    struct step_row rows[50];
    for (int i = 1; i <= 30; i++)
        put(f, "job_1", 1, i, 1);
    for (int i = 11; i <= 20; i++)
        put(f, "job_1", 2, i, 2);
    put(f, "job_1", 10, 15, 10);
    for (int limit = 1; limit <= 31; limit++) {
        int n = store_step_list(f->s, "job_1", 0, limit, rows, &f->e);
        assert_int_equal(n, limit < 30 ? limit : 30);
        for (int i = 0; i < n; i++) {
            int step = i + 1;
            assert_int_equal(rows[i].step, step);
            assert_int_equal(rows[i].attempt, step == 15 ? 10 : step > 10 && step <= 20 ? 2 : 1);
            assert_true(rows[i].loss == (double)rows[i].attempt);
        }
    }
    assert_int_equal(store_step_sample(f->s, "job_1", 7, 50, rows, &f->e), 6);
    assert_int_equal(rows[2].step, 15);
    assert_int_equal(rows[2].attempt, 10);
}

static void test_again_replaces(void **state)
{
    struct fixture *f = *state;
    struct step_row rows[3];
    put(f, "job_1", 1, 1, 5);
    put(f, "job_1", 1, 1, 6);
    assert_int_equal(store_step_list(f->s, "job_1", 0, 3, rows, &f->e), 1);
    assert_true(rows[0].loss == 6);
}

static void expect_steps(struct fixture *f, int64_t stride, int limit, const int64_t *steps, int n)
{
    struct step_row rows[100];
    int got = store_step_sample(f->s, "job_1", stride, limit, rows, &f->e);
    assert_ok(f, got);
    assert_int_equal(got, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(rows[i].step, steps[i]);
}

static void test_sample(void **state)
{
    struct fixture *f = *state;
    struct step_row rows[5];
    expect_steps(f, 3, 10, NULL, 0);
    put(f, "job_1", 1, 1, 1);
    expect_steps(f, 3, 10, (int64_t[]){1}, 1);
    expect_steps(f, 3, 1, (int64_t[]){1}, 1);
    for (int i = 2; i <= 11; i++)
        put(f, "job_1", 1, i, i);
    expect_steps(f, 5, 10, (int64_t[]){1, 6, 11}, 3);
    expect_steps(f, 4, 10, (int64_t[]){1, 5, 9, 11}, 4);
    expect_steps(f, 1, 100, (int64_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 11);
    expect_steps(f, 100, 10, (int64_t[]){1, 11}, 2);
    expect_steps(f, INT64_MAX, 10, (int64_t[]){1, 11}, 2);
    expect_steps(f, 2, 3, (int64_t[]){1, 3, 11}, 3); /* the last one keeps its place */
    expect_steps(f, 2, 1, (int64_t[]){11}, 1);
    assert_int_equal(store_step_sample(f->s, "job_1", 0, 5, rows, &f->e), ERR_INVALID);
    assert_int_equal(store_step_sample(f->s, "job_1", -3, 5, rows, &f->e), ERR_INVALID);
    assert_int_equal(store_step_sample(f->s, "job_1", 1, 0, rows, &f->e), ERR_INVALID);
    assert_int_equal(store_step_sample(f->s, "job_9", 1, 1, rows, &f->e), ERR_NOT_FOUND);
    put(f, "job_1", 1, INT64_MAX, 1); /* no sum overflows */
    expect_steps(f, 100, 10, (int64_t[]){1, INT64_MAX}, 2);
    put(f, "job_1", 1, 500, 1); /* gaps */
    expect_steps(f, 100, 10, (int64_t[]){1, 500, INT64_MAX}, 3);
}

/* Steps of many jobs in one turn, interleaved: each under its own. */
static void test_many(void **state)
{
    struct fixture *f = *state;
    static struct step_row rows[5000];
    for (int i = 1; i <= 5000; i++)
        put(f, i % 2 ? "job_1" : "job_2", 1, i, i);
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(store_step_list(f->s, "job_1", 0, 5000, rows, &f->e), 2500);
    assert_int_equal(rows[2499].step, 4999);
    assert_int_equal(store_step_list(f->s, "job_2", 0, 5000, rows, &f->e), 2500);
    assert_int_equal(rows[0].step, 2);
    struct step_row r = {.attempt = 1, .step = 1};
    assert_int_equal(store_step_put(f->s, "job_9", &r, &f->e), ERR_NOT_FOUND);
    r.step = 0;
    assert_int_equal(store_step_put(f->s, "job_1", &r, &f->e), ERR_INVALID);
    put(f, "job_1", 1, 1, 3); /* after a failed look-up, the right job again */
    assert_int_equal(store_step_list(f->s, "job_1", 0, 1, rows, &f->e), 1);
    assert_true(rows[0].loss == 3);
}

static void put_epoch(struct fixture *f, int64_t attempt, int64_t epoch, const char *data)
{
    struct epoch_row r = {.attempt = attempt, .epoch = epoch, .data = (char *)data};
    assert_ok(f, store_epoch_put(f->s, "job_1", &r, &f->e));
}

static void test_epochs(void **state)
{
    struct fixture *f = *state;
    struct epoch_row rows[10] = {0};
    assert_int_equal(store_epoch_list(f->s, "job_1", 0, 10, rows, &f->e), 0);
    put_epoch(f, 1, 2, "{\"a\":2}");
    put_epoch(f, 1, 1, "{\"a\":1}");
    put_epoch(f, 1, 3, "{\"a\":3}");
    put_epoch(f, 2, 2, "{\"b\":2}");
    put_epoch(f, 2, 2, "{\"b\":22}");
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    for (int limit = 1; limit <= 4; limit++) {
        int n = store_epoch_list(f->s, "job_1", 0, limit, rows, &f->e);
        assert_int_equal(n, limit < 3 ? limit : 3);
        static const char *const data[] = {"{\"a\":1}", "{\"b\":22}", "{\"a\":3}"};
        for (int i = 0; i < n; i++) {
            assert_int_equal(rows[i].epoch, i + 1);
            assert_int_equal(rows[i].attempt, i == 1 ? 2 : 1);
            assert_string_equal(rows[i].data, data[i]);
            epoch_row_done(&rows[i]);
        }
    }
    struct epoch_row r = {.attempt = 1, .epoch = 1};
    assert_int_equal(store_epoch_put(f->s, "job_1", &r, &f->e), ERR_INVALID); /* no data */
    assert_int_equal(store_epoch_put(f->s, "job_9", &r, &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_epoch_list(f->s, "job_9", 0, 1, rows, &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_epoch_list(f->s, "job_1", 0, 0, rows, &f->e), ERR_INVALID);
}

#define T(t) cmocka_unit_test_setup_teardown(t, fixture_job, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_odd_numbers),    T(test_list),   T(test_latest_attempt_counts),
        T(test_again_replaces), T(test_sample), T(test_many),
        T(test_epochs),
    };
    return cmocka_run_group_tests_name("storage_metrics", tests, NULL, NULL);
}
