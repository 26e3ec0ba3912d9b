/* storage_checkpoints.c: the checkpoints that are kept, what a job's row says of them, metrics of a
 * job that goes on from one, and schema 1 brought up to date. */
#include "tests/unit/storage_helper.h"

#include "tests/unit/storage_v1.h"

static int fixture_jobs(void **state)
{
    fixture_open(state);
    struct fixture *f = *state;
    put_job(f, "job_1");
    put_job(f, "job_2");
    put_node(f, "n1");
    put_node(f, "n2");
    return 0;
}

static void save(struct fixture *f, const char *job, int64_t attempt, int64_t step)
{
    char name[32];
    snprintf(name, sizeof name, "step-%010lld", (long long)step);
    struct checkpoint_row r = {.attempt = attempt,
                               .step = step,
                               .epoch = 1 + step / 100,
                               .name = name,
                               .bytes = 1000 + step,
                               .sum = (char *)"99aa06d3014798d86001c324468d497f",
                               .node = (char *)(attempt == 1 ? "n1" : "n2"),
                               .share = (char *)(attempt == 1 ? "" : "nfs"),
                               .at_us = 5000 + step};
    assert_ok(f, store_checkpoint_put(f->s, job, &r, &f->e));
}

/* Their steps, highest first, as "400 200 ". */
static void expect_steps(struct fixture *f, const char *job, const char *expected)
{
    struct checkpoint_row rows[20];
    char text[200] = "";
    int n = store_checkpoint_list(f->s, job, 20, rows, &f->e);
    assert_ok(f, n);
    for (int i = 0; i < n; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%lld ", (long long)rows[i].step);
        checkpoint_row_done(&rows[i]);
    }
    assert_string_equal(text, expected);
}

static void expect_job(struct fixture *f, const char *id, int saved, int64_t step, const char *node,
                       const char *share)
{
    struct job_row r = {0};
    assert_ok(f, store_job_get(f->s, id, &r, &f->e));
    assert_int_equal(r.saved, saved);
    assert_int_equal(r.checkpoint_step, step);
    assert_int_equal(r.checkpoint_node != NULL, node != NULL);
    if (node) {
        assert_string_equal(r.checkpoint_node, node);
        assert_string_equal(r.checkpoint_share, share);
    }
    job_row_done(&r);
}

static void test_rows(void **state)
{
    struct fixture *f = *state;
    struct checkpoint_row r = {0};
    expect_job(f, "job_1", 0, -1, NULL, NULL);
    save(f, "job_1", 1, 200);
    save(f, "job_2", 1, 7);
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(store_checkpoint_list(f->s, "job_1", 1, &r, &f->e), 1);
    assert_int_equal(r.attempt, 1);
    assert_int_equal(r.step, 200);
    assert_int_equal(r.epoch, 3);
    assert_string_equal(r.name, "step-0000000200");
    assert_int_equal(r.bytes, 1200);
    assert_string_equal(r.sum, "99aa06d3014798d86001c324468d497f");
    assert_string_equal(r.node, "n1");
    assert_string_equal(r.share, "");
    assert_int_equal(r.at_us, 5200);
    checkpoint_row_done(&r);
    expect_job(f, "job_1", 1, 200, "n1", "");
    save(f, "job_1", 2, 200); /* the same step again: the later attempt's */
    expect_steps(f, "job_1", "200 ");
    save(f, "job_1", 2, 400);
    expect_job(f, "job_1", 1, 400, "n2", "nfs");
    expect_job(f, "job_2", 1, 7, "n1", "");
    r = (struct checkpoint_row){
        .name = (char *)"x", .sum = (char *)"x", .node = (char *)"n9", .share = (char *)""};
    assert_int_equal(store_checkpoint_put(f->s, "job_1", &r, &f->e), ERR_NOT_FOUND);
    assert_says(f, "n9");
    assert_int_equal(store_checkpoint_put(f->s, "job_9", &r, &f->e), ERR_NOT_FOUND);
}

static void test_dropping(void **state)
{
    struct fixture *f = *state;
    for (int64_t step = 100; step <= 600; step += 100)
        save(f, "job_1", 1, step);
    save(f, "job_2", 1, 900);
    assert_int_equal(store_checkpoint_trim(f->s, "job_1", 64, &f->e), 0);
    assert_int_equal(store_checkpoint_trim(f->s, "job_1", 4, &f->e), 2);
    expect_steps(f, "job_1", "600 500 400 300 ");
    assert_int_equal(store_checkpoint_drop(f->s, "job_1", 400, &f->e), 2);
    expect_steps(f, "job_1", "400 300 ");
    assert_int_equal(store_checkpoint_drop(f->s, "job_1", -1, &f->e), 2);
    expect_job(f, "job_1", 1, -1, NULL, NULL); /* it had some, and that is known */
    save(f, "job_1", 1, 100);
    assert_int_equal(store_checkpoint_forget(f->s, "job_1", &f->e), 1);
    expect_job(f, "job_1", 0, -1, NULL, NULL);
    expect_steps(f, "job_2", "900 ");
    assert_int_equal(store_checkpoint_trim(f->s, "job_9", 1, &f->e), ERR_NOT_FOUND);
}

static void move(struct fixture *f, const char *id, enum job_state to, int64_t at)
{
    struct job_row r = {0};
    assert_ok(f, store_job_get(f->s, id, &r, &f->e));
    enum job_state from = r.state;
    r.state = to;
    r.moved_us = at;
    assert_ok(f, store_job_move(f->s, &r, from, &f->e));
    job_row_done(&r);
}

static void test_expired(void **state)
{
    struct fixture *f = *state;
    static const enum job_state states[] = {JOB_FAILED, JOB_CANCELLED, JOB_SUSPENDED};
    char *ids[10];
    put_job(f, "job_3"); /* without one */
    move(f, "job_3", JOB_FAILED, 100);
    save(f, "job_1", 1, 5);
    save(f, "job_1", 1, 6);
    save(f, "job_2", 1, 5);
    move(f, "job_2", JOB_RUNNING, 100);
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        move(f, "job_1", states[i], 100);
        assert_int_equal(store_checkpoint_expired(f->s, 100, 10, ids, &f->e), 0);
        assert_int_equal(store_checkpoint_expired(f->s, 101, 10, ids, &f->e), 1);
        assert_string_equal(ids[0], "job_1");
        free(ids[0]);
    }
    move(f, "job_2", JOB_FAILED, 100);
    assert_int_equal(store_checkpoint_expired(f->s, 101, 1, ids, &f->e), 1);
    free(ids[0]);
}

static void test_restarts_move_with_the_job(void **state)
{
    struct fixture *f = *state;
    struct job_row r = sample_job("job_3"), got = {0};
    r.keep = 5;
    r.max_restarts = 3;
    assert_ok(f, store_job_insert(f->s, &r, NULL, &f->e));
    r.restarts = 2;
    r.failed_starts = 1;
    r.moved_us = 77;
    r.keep = 99; /* not of a move */
    r.state = JOB_SUSPENDED;
    assert_ok(f, store_job_move(f->s, &r, JOB_PENDING, &f->e));
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_ok(f, store_job_get(f->s, "job_3", &got, &f->e));
    assert_int_equal(got.state, JOB_SUSPENDED);
    assert_int_equal(got.keep, 5);
    assert_int_equal(got.max_restarts, 3);
    assert_int_equal(got.restarts, 2);
    assert_int_equal(got.failed_starts, 1);
    assert_int_equal(got.moved_us, 77);
    job_row_done(&got);
    struct job_filter q = {.states = 1u << JOB_SUSPENDED, .limit = 5};
    assert_int_equal(store_job_list(f->s, &q, &got, &f->e), 1);
    assert_string_equal(got.id, "job_3");
    job_row_done(&got);
}

/* ---- metrics ---- */
static void put_step(struct fixture *f, const char *job, int64_t attempt, int64_t step)
{
    struct step_row r = {.attempt = attempt,
                         .step = step,
                         .epoch = 1 + (step - 1) / 10,
                         .loss = (double)attempt,
                         .time_us = 1,
                         .comm_exposed_us = step == 1 ? -1 : 10 * step,
                         .comm_hidden_us = step == 1 ? -1 : 0,
                         .loss_scale = step == 1 ? 0 : 32768,
                         .skipped = step == 2};
    assert_ok(f, store_step_put(f->s, job, &r, &f->e));
}

static void put_epoch(struct fixture *f, const char *job, int64_t attempt, int64_t epoch)
{
    struct epoch_row r = {.attempt = attempt, .epoch = epoch, .data = (char *)"{}"};
    assert_ok(f, store_epoch_put(f->s, job, &r, &f->e));
}

static void run(struct fixture *f, const char *job, int64_t attempt, int64_t from, int64_t to)
{
    for (int64_t step = from; step <= to; step++) {
        put_step(f, job, attempt, step);
        if (step % 10 == 0)
            put_epoch(f, job, attempt, step / 10);
    }
}

static void expect_curve(struct fixture *f, const char *job, int steps, int64_t first_of_2,
                         int epochs)
{
    struct step_row rows[100];
    struct epoch_row e[20];
    assert_int_equal(store_step_list(f->s, job, 0, 100, rows, &f->e), steps);
    for (int i = 0; i < steps; i++) {
        assert_int_equal(rows[i].step, i + 1);
        assert_int_equal(rows[i].attempt, rows[i].step < first_of_2 ? 1 : 2);
    }
    int n = store_epoch_list(f->s, job, 0, 20, e, &f->e);
    assert_int_equal(n, epochs);
    for (int i = 0; i < n; i++)
        epoch_row_done(&e[i]);
}

static void test_rewind(void **state)
{
    struct fixture *f = *state;
    struct step_row row;
    run(f, "job_1", 1, 1, 35);
    run(f, "job_2", 1, 1, 35);
    assert_ok(f, store_metrics_rewind(f->s, "job_1", 2, 20, &f->e));
    expect_curve(f, "job_1", 20, 21, 2); /* epoch 2 ended with step 20 */
    run(f, "job_1", 2, 21, 25);
    expect_curve(f, "job_1", 25, 21, 2);
    assert_ok(f, store_metrics_rewind(f->s, "job_1", 2, 20, &f->e)); /* its own stay */
    expect_curve(f, "job_1", 25, 21, 2);
    assert_ok(f, store_metrics_rewind(f->s, "job_1", 3, 19, &f->e));
    expect_curve(f, "job_1", 19, 20, 1); /* epoch 2 ended after step 19 */
    expect_curve(f, "job_2", 35, 99, 3);
    assert_ok(f, store_metrics_rewind(f->s, "job_2", 2, 99, &f->e));
    expect_curve(f, "job_2", 35, 99, 3);
    assert_int_equal(store_step_list(f->s, "job_2", 0, 1, &row, &f->e), 1);
    assert_int_equal(row.comm_exposed_us, -1);
    assert_int_equal(row.comm_hidden_us, -1);
    assert_true(row.loss_scale == 0);
    assert_int_equal(row.skipped, 0);
    assert_int_equal(store_step_list(f->s, "job_2", 1, 1, &row, &f->e), 1);
    assert_true(row.loss_scale == 32768);
    assert_int_equal(row.skipped, 1);
    assert_int_equal(row.comm_exposed_us, 20);
    assert_int_equal(row.comm_hidden_us, 0);
    assert_ok(f, store_metrics_rewind(f->s, "job_2", 2, 0, &f->e));
    expect_curve(f, "job_2", 0, 1, 0);
}

/* ---- migration ---- */
static void test_from_schema_1(void **state)
{
    struct fixture *f = *state;
    struct job_row r = {0};
    struct step_row step;
    struct lease_row lease;
    sql_outside(f, v1_schema);
    sql_outside(f, v1_rows);
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    assert_int_equal(store_instance_epoch(f->s), 5);
    assert_ok(f, store_job_get(f->s, "job_1", &r, &f->e));
    assert_int_equal(r.state, JOB_FAILED);
    assert_int_equal(r.step, 20);
    assert_int_equal(r.version, 7);
    assert_int_equal(r.keep, 2); /* started again by a user, it takes checkpoints */
    assert_int_equal(r.max_restarts, 0);
    assert_int_equal(r.trains, 1);
    assert_int_equal(r.checkpoint_step, -1);
    job_row_done(&r);
    assert_ok(f, store_job_get(f->s, "job_2", &r, &f->e));
    assert_int_equal(r.keep, 0); /* a command */
    assert_int_equal(r.trains, 0);
    job_row_done(&r);
    assert_int_equal(store_step_list(f->s, "job_1", 0, 1, &step, &f->e), 1);
    assert_true(step.samples_per_second == 8.5);
    assert_int_equal(step.comm_exposed_us, -1);
    assert_int_equal(store_lease_live(f->s, "n1", 1, &lease, &f->e), 1);
    lease_row_done(&lease);
    /* the new state can be written, and a state that there is none of can't */
    move(f, "job_1", JOB_SUSPENDED, 5);
    save(f, "job_1", 1, 30);
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    expect_job(f, "job_1", 1, 30, "n1", "");
    assert_ok(f, store_job_get(f->s, "job_1", &r, &f->e));
    r.state = JOB_STATE__MAX;
    assert_int_equal(store_job_move(f->s, &r, JOB_SUSPENDED, &f->e), ERR_INVALID);
    job_row_done(&r);
    int64_t counts[JOB_STATE__MAX];
    store_rollback(f->s);
    assert_ok(f, store_job_count(f->s, counts, &f->e));
    assert_int_equal(counts[JOB_SUSPENDED], 1);
    assert_int_equal(counts[JOB_FAILED], 0);
    assert_int_equal(counts[JOB_RUNNING], 1);
}

static void test_the_migrated_schema_is_the_new_one(void **state)
{
    struct fixture *f = *state, *fresh = NULL;
    const char *sql = "SELECT group_concat(sql, char(10)) FROM (SELECT sql FROM sqlite_schema"
                      " ORDER BY name)";
    CLEANUP(mem_freep) char *old = NULL, *new = NULL;
    sql_outside(f, v1_schema);
    sql_outside(f, v1_rows);
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    assert_int_equal(fixture_open((void **)&fresh), 0);
    assert_ok(f, db_text(f->s, sql, &old, &f->e));
    assert_ok(f, db_text(fresh->s, sql, &new, &f->e));
    assert_string_equal(old, new);
    CLEANUP(mem_freep) char *whole = NULL;
    assert_ok(f, db_text(f->s, "PRAGMA integrity_check", &whole, &f->e));
    assert_string_equal(whole, "ok");
    assert_int_equal(fixture_done((void **)&fresh), 0);
}

#define T(name, setup) cmocka_unit_test_setup_teardown(name, setup, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_rows, fixture_jobs),
        T(test_dropping, fixture_jobs),
        T(test_expired, fixture_jobs),
        T(test_restarts_move_with_the_job, fixture_jobs),
        T(test_rewind, fixture_jobs),
        T(test_from_schema_1, fixture_empty),
        T(test_the_migrated_schema_is_the_new_one, fixture_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
