/* storage_rows.c: events, nodes, attempts and leases. */
#include "tests/unit/storage_helper.h"

/* ---- events ---- */
static int64_t put_event(struct fixture *f, const char *type, const char *job)
{
    struct event_row r = {
        .time_us = 77, .type = (char *)type, .job_id = (char *)job, .data = (char *)"{\"a\":1}"};
    int64_t seq = 0;
    assert_ok(f, store_event_append(f->s, &r, &seq, &f->e));
    return seq;
}

static void test_events(void **state)
{
    struct fixture *f = *state;
    struct event_row rows[10] = {0};
    assert_int_equal(store_event_list(f->s, NULL, 0, 10, rows, &f->e), 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(put_event(f, i % 2 ? "odd" : "even", i % 4 ? "job_a" : NULL), i + 1);
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(store_event_list(f->s, NULL, 3, 10, rows, &f->e), 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(rows[i].seq, i + 4);
        assert_int_equal(rows[i].time_us, 77);
        assert_string_equal(rows[i].type, (i + 3) % 2 ? "odd" : "even");
        assert_string_equal(rows[i].data, "{\"a\":1}");
        assert_null(rows[i].node);
        event_row_done(&rows[i]);
    }
    assert_int_equal(store_event_list(f->s, "job_a", 16, 10, rows, &f->e), 3);
    assert_int_equal(rows[0].seq, 18);
    assert_string_equal(rows[0].job_id, "job_a");
    for (int i = 0; i < 3; i++)
        event_row_done(&rows[i]);
    assert_int_equal(store_event_list(f->s, "job_none", 0, 10, rows, &f->e), 0);
    assert_int_equal(store_event_list(f->s, NULL, 20, 10, rows, &f->e), 0);
    assert_int_equal(store_event_list(f->s, NULL, INT64_MAX, 10, rows, &f->e), 0);
    assert_int_equal(store_event_list(f->s, NULL, 0, 0, rows, &f->e), ERR_INVALID);
    assert_int_equal(store_event_list(f->s, NULL, 0, 1001, rows, &f->e), ERR_INVALID);
}

static void test_event_refused(void **state)
{
    struct fixture *f = *state;
    struct event_row r = {.time_us = 1, .data = (char *)"{}"};
    int64_t seq = -1;
    assert_int_equal(store_event_append(f->s, &r, &seq, &f->e), ERR_INVALID);
    assert_int_equal(seq, -1);
    r.type = (char *)"t";
    r.data = NULL;
    assert_int_equal(store_event_append(f->s, &r, &seq, &f->e), ERR_INVALID);
    r.data = (char *)"{}";
    assert_ok(f, store_event_append(f->s, &r, NULL, &f->e));
}

/* ---- nodes ---- */
static void test_nodes(void **state)
{
    struct fixture *f = *state;
    struct node_row rows[10] = {0};
    for (int i = 9; i >= 0; i--) {
        char name[8];
        snprintf(name, sizeof name, "n%d", i);
        put_node(f, name);
    }
    struct node_row r = {.name = (char *)"n3",
                         .boot_id = (char *)"b-2",
                         .version = (char *)"0.2.0",
                         .devices = (char *)"[]",
                         .joined_us = 50,
                         .seen_us = 60};
    assert_ok(f, store_node_put(f->s, &r, &f->e));
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_int_equal(store_node_list(f->s, "n2", 1, rows, &f->e), 1);
    assert_string_equal(rows[0].name, "n3");
    assert_string_equal(rows[0].boot_id, "b-2");
    assert_string_equal(rows[0].version, "0.2.0");
    assert_string_equal(rows[0].devices, "[]");
    assert_int_equal(rows[0].joined_us, 50);
    assert_int_equal(rows[0].seen_us, 60);
    node_row_done(&rows[0]);
    assert_int_equal(store_node_list(f->s, NULL, 10, rows, &f->e), 10);
    for (int i = 0; i < 10; i++)
        node_row_done(&rows[i]);
    assert_int_equal(store_node_list(f->s, "n6", 2, rows, &f->e), 2);
    assert_string_equal(rows[0].name, "n7");
    assert_string_equal(rows[1].name, "n8");
    node_row_done(&rows[0]);
    node_row_done(&rows[1]);
    assert_int_equal(store_node_list(f->s, "n9", 10, rows, &f->e), 0);
    assert_int_equal(store_node_list(f->s, NULL, 0, rows, &f->e), ERR_INVALID);
    r.devices = NULL;
    assert_int_equal(store_node_put(f->s, &r, &f->e), ERR_INVALID);
}

/* A node that attempts and leases name can be described anew. */
static void test_node_in_use(void **state)
{
    struct fixture *f = *state;
    put_node(f, "n1");
    put_job(f, "job_1");
    struct attempt_row a = sample_attempt("att_1", "job_1", "n1");
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    put_node(f, "n1");
    assert_ok(f, store_commit(f->s, &f->e));
}

/* ---- attempts ---- */
static int fixture_node(void **state)
{
    fixture_open(state);
    struct fixture *f = *state;
    put_node(f, "n1");
    put_node(f, "n2");
    put_job(f, "job_1");
    put_job(f, "job_2");
    assert_ok(f, store_commit(f->s, &f->e));
    return 0;
}

static void test_attempt_round_trip(void **state)
{
    struct fixture *f = *state;
    struct attempt_row a = sample_attempt("att_1", "job_1", "n1"), got = {0};
    assert_int_equal(store_attempt_latest(f->s, "job_1", &got, &f->e), ERR_NOT_FOUND);
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    a.state = ATTEMPT_STOPPING;
    a.stop_code = (char *)"cancelled";
    a.stop_reason = (char *)"Cancelled by a request.";
    a.boot_id = (char *)"b-1";
    a.started_us = 8;
    a.ended_us = 9;
    a.report_offset = 4096;
    a.exit = (char *)"{}";
    assert_ok(f, store_attempt_update(f->s, &a, &f->e));
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_ok(f, store_attempt_get(f->s, "att_1", &got, &f->e));
    assert_string_equal(got.id, "att_1");
    assert_string_equal(got.job_id, "job_1");
    assert_int_equal(got.number, 1);
    assert_int_equal(got.epoch, 1);
    assert_string_equal(got.node, "n1");
    assert_int_equal(got.state, ATTEMPT_STOPPING);
    assert_int_equal(got.port, 23000);
    assert_string_equal(got.secret, "s3cret");
    assert_string_equal(got.stop_code, "cancelled");
    assert_string_equal(got.stop_reason, "Cancelled by a request.");
    assert_string_equal(got.boot_id, "b-1");
    assert_int_equal(got.created_us, 7);
    assert_int_equal(got.started_us, 8);
    assert_int_equal(got.ended_us, 9);
    assert_int_equal(got.report_offset, 4096);
    assert_string_equal(got.exit, "{}");
    attempt_row_done(&got);
    assert_string_equal(attempt_state_name(ATTEMPT_ENDED), "ended");
    assert_string_equal(attempt_state_name(ATTEMPT_STATE__MAX), "unknown");
}

static void test_attempt_refused(void **state)
{
    struct fixture *f = *state;
    struct attempt_row a = sample_attempt("att_1", "job_none", "n1");
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_NOT_FOUND);
    assert_says(f, "job_none");
    a = sample_attempt("att_1", "job_1", "n9");
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_NOT_FOUND);
    a = sample_attempt("att_1", "job_1", "n1");
    a.number = 0;
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_INVALID);
    a.number = 1;
    a.state = ATTEMPT_STATE__MAX;
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_INVALID);
    a.state = ATTEMPT_LAUNCHING;
    assert_int_equal(store_attempt_update(f->s, &a, &f->e), ERR_NOT_FOUND);
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_CONFLICT); /* id */
    a = sample_attempt("att_2", "job_1", "n2");
    a.epoch = 2;
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_CONFLICT); /* number */
    a = sample_attempt("att_2", "job_2", "n2");
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_CONFLICT); /* epoch */
    assert_says(f, "epoch 1");
    a.epoch = 2;
    a.report_offset = -1;
    assert_int_equal(store_attempt_insert(f->s, &a, &f->e), ERR_INVALID);
}

static void test_attempt_identity(void **state)
{
    struct fixture *f = *state;
    struct attempt_row a = sample_attempt("att_1", "job_1", "n1"), got = {0};
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    struct attempt_row wrong[] = {a, a, a, a, a, a};
    wrong[0].job_id = (char *)"job_2";
    wrong[1].number = 2;
    wrong[2].epoch = 2;
    wrong[3].node = (char *)"n2";
    wrong[4].secret = NULL;
    wrong[5].created_us++;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        wrong[i].state = ATTEMPT_ENDED;
        assert_int_equal(store_attempt_update(f->s, &wrong[i], &f->e), ERR_CONFLICT);
        assert_says(f, "never change");
    }
    assert_ok(f, store_attempt_get(f->s, "att_1", &got, &f->e));
    assert_int_equal(got.state, ATTEMPT_LAUNCHING);
    attempt_row_done(&got);
}

/* A port of a node belongs to one live attempt; ended ones and port 0 don't count. */
static void test_ports(void **state)
{
    struct fixture *f = *state;
    struct attempt_row a = sample_attempt("att_1", "job_1", "n1");
    struct attempt_row b = sample_attempt("att_2", "job_2", "n1");
    b.epoch = 2;
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    assert_int_equal(store_attempt_insert(f->s, &b, &f->e), ERR_CONFLICT);
    assert_says(f, "port 23000");
    b.port = 23001;
    assert_ok(f, store_attempt_insert(f->s, &b, &f->e));
    b.port = 23000;
    assert_int_equal(store_attempt_update(f->s, &b, &f->e), ERR_CONFLICT);
    a.state = ATTEMPT_ENDED;
    assert_ok(f, store_attempt_update(f->s, &a, &f->e));
    assert_ok(f, store_attempt_update(f->s, &b, &f->e));
    a.state = ATTEMPT_RUNNING;
    assert_int_equal(store_attempt_update(f->s, &a, &f->e), ERR_CONFLICT);
    for (int i = 0; i < 3; i++) {
        char id[16];
        snprintf(id, sizeof id, "att_z%d", i);
        struct attempt_row z = sample_attempt(id, "job_1", "n1");
        z.number = z.epoch = 10 + i;
        z.port = 0;
        assert_ok(f, store_attempt_insert(f->s, &z, &f->e));
    }
    struct attempt_row c = sample_attempt("att_c", "job_2", "n2"); /* another node's */
    c.epoch = c.number = 20;
    assert_ok(f, store_attempt_insert(f->s, &c, &f->e));
}

static void expect_attempts(int n, struct attempt_row *rows, int expected, const char *first,
                            const char *last)
{
    assert_int_equal(n, expected);
    assert_string_equal(rows[0].id, first);
    assert_string_equal(rows[n - 1].id, last);
    for (int i = 0; i < n; i++)
        attempt_row_done(&rows[i]);
}

static void test_attempt_lists(void **state)
{
    struct fixture *f = *state;
    struct attempt_row rows[20] = {0}, got = {0};
    for (int i = 1; i <= 10; i++) {
        char id[16];
        snprintf(id, sizeof id, "att_%02d", i);
        struct attempt_row a = sample_attempt(id, i % 2 ? "job_1" : "job_2", i > 5 ? "n2" : "n1");
        a.number = a.epoch = i;
        a.port += i;
        a.state = i < 4 ? ATTEMPT_ENDED : ATTEMPT_RUNNING;
        assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    }
    assert_ok(f, store_attempt_latest(f->s, "job_1", &got, &f->e));
    assert_string_equal(got.id, "att_09");
    attempt_row_done(&got);
    expect_attempts(store_attempt_live(f->s, NULL, 20, rows, &f->e), rows, 7, "att_04", "att_10");
    expect_attempts(store_attempt_live(f->s, "n1", 20, rows, &f->e), rows, 2, "att_04", "att_05");
    expect_attempts(store_attempt_live(f->s, "n2", 3, rows, &f->e), rows, 3, "att_06", "att_08");
    assert_int_equal(store_attempt_live(f->s, "n3", 3, rows, &f->e), 0);
    expect_attempts(store_attempt_list(f->s, "job_2", 20, rows, &f->e), rows, 5, "att_02",
                    "att_10");
    assert_int_equal(store_attempt_list(f->s, "job_none", 20, rows, &f->e), 0);
    assert_int_equal(store_attempt_list(f->s, "job_1", 0, rows, &f->e), ERR_INVALID);
    assert_int_equal(store_attempt_live(f->s, NULL, -1, rows, &f->e), ERR_INVALID);
}

static void test_epochs_rise(void **state)
{
    struct fixture *f = *state;
    int64_t n = 0;
    for (int64_t i = 1; i <= 5; i++) {
        assert_ok(f, store_epoch_next(f->s, &n, &f->e));
        assert_int_equal(n, i);
    }
    assert_ok(f, store_commit(f->s, &f->e));
    assert_ok(f, store_epoch_next(f->s, &n, &f->e));
    reopen(f); /* 6 was never made durable, so nobody has seen it */
    assert_ok(f, store_epoch_next(f->s, &n, &f->e));
    assert_int_equal(n, 6);
}

/* ---- leases ---- */
static int take(struct fixture *f, const char *node, int64_t device, const char *attempt,
                int64_t rank)
{
    struct lease_row r = {
        .node = (char *)node, .device = device, .attempt_id = (char *)attempt, .rank = rank};
    return store_lease_take(f->s, &r, 100, &f->e);
}

static int fixture_attempts(void **state)
{
    fixture_node(state);
    struct fixture *f = *state;
    struct attempt_row a = sample_attempt("att_1", "job_1", "n1");
    struct attempt_row b = sample_attempt("att_2", "job_2", "n1");
    b.epoch = 2;
    b.port++;
    assert_ok(f, store_attempt_insert(f->s, &a, &f->e));
    assert_ok(f, store_attempt_insert(f->s, &b, &f->e));
    return 0;
}

static void test_one_owner(void **state)
{
    struct fixture *f = *state;
    assert_ok(f, take(f, "n1", 0, "att_1", 0));
    assert_int_equal(take(f, "n1", 0, "att_2", 0), ERR_CONFLICT);
    assert_says(f, "device 0 of node n1 is leased to attempt att_1");
    assert_int_equal(take(f, "n1", 0, "att_1", 1), ERR_CONFLICT);
    assert_int_equal(take(f, "n1", 1, "att_1", 0), ERR_CONFLICT);
    assert_says(f, "rank 0");
    assert_ok(f, take(f, "n2", 0, "att_2", 0));
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(take(f, "n1", 0, "att_2", 1), ERR_CONFLICT);
    assert_ok(f, store_lease_release(f->s, "att_1", 200, &f->e));
    assert_ok(f, take(f, "n1", 0, "att_2", 1));
    assert_int_equal(take(f, "n9", 0, "att_2", 2), ERR_NOT_FOUND);
    assert_int_equal(take(f, "n1", 3, "att_9", 0), ERR_NOT_FOUND);
    assert_int_equal(take(f, "n1", -1, "att_2", 3), ERR_INVALID);
}

/* Not even a statement written around this room can give a device two owners. */
static void test_one_owner_in_schema(void **state)
{
    struct fixture *f = *state;
    assert_ok(f, take(f, "n1", 0, "att_1", 0));
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(db_exec(f->s,
                             "INSERT INTO leases (node, device, attempt_id, rank, taken_us)"
                             " VALUES ('n1', 0, 'att_2', 0, 1)",
                             &f->e),
                     ERR_CONFLICT);
    assert_int_equal(db_exec(f->s, "UPDATE attempts SET state = 7", &f->e), ERR_INVALID);
    assert_int_equal(db_exec(f->s, "DELETE FROM jobs", &f->e), ERR_NOT_FOUND); /* foreign keys */
    assert_int_equal(db_exec(f->s, "UPDATE jobs SET devices = 'many'", &f->e), ERR_INVALID);
}

static void test_lease_lists(void **state)
{
    struct fixture *f = *state;
    struct lease_row rows[10] = {0};
    assert_ok(f, take(f, "n2", 1, "att_1", 2));
    assert_ok(f, take(f, "n2", 0, "att_1", 1));
    assert_ok(f, take(f, "n1", 5, "att_1", 0));
    assert_ok(f, take(f, "n1", 6, "att_2", 0));
    assert_int_equal(store_lease_live(f->s, NULL, 10, rows, &f->e), 4);
    assert_string_equal(rows[0].node, "n1");
    assert_int_equal(rows[0].device, 5);
    assert_string_equal(rows[0].attempt_id, "att_1");
    assert_int_equal(rows[0].rank, 0);
    assert_int_equal(rows[3].device, 1);
    for (int i = 0; i < 4; i++)
        lease_row_done(&rows[i]);
    assert_ok(f, store_lease_release(f->s, "att_1", 300, &f->e));
    assert_ok(f, store_lease_release(f->s, "att_1", 301, &f->e)); /* again: nothing */
    assert_int_equal(store_lease_live(f->s, "n2", 10, rows, &f->e), 0);
    assert_int_equal(store_lease_live(f->s, "n1", 10, rows, &f->e), 1);
    lease_row_done(&rows[0]);
    assert_int_equal(store_lease_of(f->s, "att_1", 10, rows, &f->e), 3); /* history */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rows[i].rank, i);
        lease_row_done(&rows[i]);
    }
    assert_int_equal(store_lease_of(f->s, "att_1", 2, rows, &f->e), 2);
    lease_row_done(&rows[0]);
    lease_row_done(&rows[1]);
    assert_int_equal(store_lease_of(f->s, "att_9", 2, rows, &f->e), 0);
    assert_int_equal(store_lease_of(f->s, "att_1", 0, rows, &f->e), ERR_INVALID);
}

#define T(t, setup) cmocka_unit_test_setup_teardown(t, setup, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_events, fixture_open),
        T(test_event_refused, fixture_open),
        T(test_nodes, fixture_open),
        T(test_node_in_use, fixture_open),
        T(test_attempt_round_trip, fixture_node),
        T(test_attempt_refused, fixture_node),
        T(test_attempt_identity, fixture_node),
        T(test_ports, fixture_node),
        T(test_attempt_lists, fixture_node),
        T(test_epochs_rise, fixture_open),
        T(test_one_owner, fixture_attempts),
        T(test_one_owner_in_schema, fixture_attempts),
        T(test_lease_lists, fixture_attempts),
    };
    return cmocka_run_group_tests_name("storage_rows", tests, NULL, NULL);
}
