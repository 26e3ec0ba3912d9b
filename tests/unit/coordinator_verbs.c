/* What users and broken input do: keys, wrong documents, lists, documents as text, and a full disk.
 */
#include "tests/unit/coordinator_harness.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/coordinator/text.h"

static void keys(void **state)
{
    (void)state;
    json_auto_t *first = NULL, *again = NULL;
    char code[48];
    assert_int_equal(submit(JOB(1, ""), "k", &first, NULL), 201);
    assert_int_equal(submit(JOB(1, ""), "k", &again, NULL), 200); /* also before the commit */
    assert_string_equal(json_string_value(json_object_get(first, "id")),
                        json_string_value(json_object_get(again, "id")));
    end_turn();
    assert_int_equal(submit(JOB(2, ""), "k", NULL, code), 409);
    assert_string_equal(code, "idempotency_conflict");
    assert_int_equal(submit(JOB(1, ""), "", NULL, NULL), 400);
    restart();
    json_decref(again);
    assert_int_equal(submit(JOB(1, ""), "k", &again, NULL), 200);
    assert_string_equal(json_string_value(json_object_get(first, "id")),
                        json_string_value(json_object_get(again, "id")));
}

static void wrong_documents(void **state)
{
    (void)state;
    assert_int_equal(submit("", NULL, NULL, NULL), 400);
    assert_int_equal(submit("{", NULL, NULL, NULL), 400);
    assert_int_equal(submit("[]", NULL, NULL, NULL), 422);
    assert_int_equal(submit("{}", NULL, NULL, NULL), 422);
    assert_int_equal(submit(JOB(0, ""), NULL, NULL, NULL), 422);
    assert_int_equal(store_dirty(c->store), 0);
    static const char *const bodies[] = {
        "{}",
        "{\"node\":1}",
        "{\"node\":\"../x\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":[]}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":[]}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":-1,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":[]}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":{}}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[{}],\"attempts\":[]}"};
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
        assert_null(send_body(json_loads(bodies[i], 0, NULL), 1, 0, 400));
    end_turn();
    assert_int_equal(c->nodes.count, 0);
    hello();
    json_decref(say(json_loads("[1,{},{\"attempt\":\"x\",\"state\":\"running\"},{\"attempt\":"
                               "\"att_000000000000000000000000\",\"state\":\"running\","
                               "\"epoch\":1}]",
                               0, NULL)));
}

static void documents_keep_every_byte(void **state)
{
    (void)state;
    json_auto_t *doc = NULL;
    static const char name[] = "q\"b\\n\x01\xc3\xa9\xf0\x9f\x98\x80";
    json_auto_t *job = json_pack("{s:s, s:[s], s:{s:s}, s:f, s:i}", "name", "x", "command", "true",
                                 "labels", "k", "v", "unknown_field", 0.1, "priority", -7);
    json_auto_t *resources = json_pack("{s:i}", "devices", 1);
    json_object_set(job, "resources", resources);
    CLEANUP(mem_freep) char *text = json_dumps(job, JSON_INDENT(2));
    int status = submit(text, NULL, &doc, NULL);
    assert_int_equal(status, 201);
    assert_non_null(doc);
    assert_true(json_equal(json_object_get(doc, "spec"), job));
    assert_int_equal(json_integer_value(json_object_get(doc, "priority")), -7);
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "labels"), "k")),
                        "v");
    assert_int_equal(json_array_size(json_object_get(doc, "warnings")), 1);
    assert_true(json_is_null(json_object_get(doc, "started_at")));
    struct buf b = BUF_INIT;
    static const int64_t times[] = {1,          999,        1000000000, 1000001000,
                                    1000999999, 1001000000, -5,         1790000000123456};
    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        char expected[CLOCK_TEXT_SIZE + 8], time[CLOCK_TEXT_SIZE];
        snprintf(expected, sizeof(expected), "\"t\":\"%s\"", clock_format(times[i], time));
        buf_clear(&b);
        text_time(&b, "t", times[i]);
        assert_string_equal(b.data, expected);
    }
    buf_clear(&b);
    text_open(&b, "{");
    text_string(&b, "name", name);
    text_int(&b, "least", INT64_MIN);
    text_number(&b, "third", 1.0 / 3.0);
    text_key(&b, "none");
    text_open(&b, "[");
    text_close(&b, "]");
    text_string(&b, "nothing", NULL);
    text_close(&b, "}");
    json_auto_t *read = json_loads(b.data, 0, NULL);
    buf_done(&b);
    assert_non_null(read);
    assert_string_equal(json_string_value(json_object_get(read, "name")), name);
    assert_true(json_integer_value(json_object_get(read, "least")) == INT64_MIN);
    assert_string_equal(json_string_value(json_object_get(read, "nothing")), "");
}

static void dry_run_stores_nothing(void **state)
{
    (void)state;
    struct service_reply r;
    const char *body = JOB(1, "");
    struct submit_request q = {.body = body, .body_len = strlen(body), .dry_run = 1};
    service_reply_init(&r);
    assert_int_equal(service_job_submit(c, &q, &r), 0);
    assert_int_equal(r.status, 200);
    assert_non_null(json_object_get(r.body, "plan"));
    service_reply_done(&r);
    assert_int_equal(store_dirty(c->store), 0);
    assert_int_equal(c->queue.jobs, 0);
}

static void lists_page_by_cursor(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        submit(i % 2 ? JOB(1, ",\"labels\":{\"team\":\"a\"}") : JOB(1, ""), NULL, NULL, NULL);
    end_turn();
    size_t seen = 0;
    char after[32] = "";
    for (int page = 0; page < 3; page++) {
        struct service_reply r;
        struct list_request q = {.limit = 2, .after = after[0] ? after : NULL};
        service_reply_init(&r);
        assert_int_equal(service_job_list(c, &q, &r), 0);
        json_auto_t *page_doc = json_loads(r.text, 0, NULL);
        seen += json_array_size(json_object_get(page_doc, "jobs"));
        const char *next = json_string_value(json_object_get(page_doc, "next"));
        assert_int_equal(next != NULL, page < 2);
        snprintf(after, sizeof(after), "%s", next ? next : "");
        service_reply_done(&r);
    }
    assert_int_equal(seen, 5);
    struct service_reply r;
    struct list_request q = {.limit = 2, .label = "team=a", .states = "pending,running"};
    service_reply_init(&r);
    assert_int_equal(service_job_list(c, &q, &r), 0);
    json_auto_t *list = json_loads(r.text, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(list, "jobs")), 2);
    assert_null(json_object_get(list, "next")); /* exactly one page */
    service_reply_done(&r);
    q.states = "pending,,x";
    assert_int_equal(service_job_list(c, &q, &r), ERR_INVALID);
    service_reply_done(&r);
    q.states = NULL;
    q.after = "7x";
    assert_int_equal(service_job_list(c, &q, &r), ERR_INVALID);
    service_reply_done(&r);
}

/* Files may not grow beyond what they are: the disk is full, as far as the store can tell. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_turn_that_fails_leaves_nothing(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    expect_job(id, "starting", "starting");
    signal(SIGXFSZ, SIG_IGN);
    limit_files(1);
    struct err e = {0};
    int statuses = submit(JOB(1, ""), "k1", NULL, NULL);
    int rc = coordinator_end_turn(c, &e);
    limit_files(RLIM_INFINITY);
    assert_true(statuses == 201 || statuses == 507 || statuses == 500);
    if (rc != 0) {
        /* the limit shows as a failed write, after which the process ends: what a new one finds
         * is the state before the turn */
        restart();
    } else {
        struct service_reply r;
        service_reply_init(&r);
        assert_int_equal(service_ready(c, &r), ERR_UNAVAILABLE);
        assert_int_equal(r.status, 503);
        service_reply_done(&r);
    }
    assert_int_equal(c->queue.jobs, 0);
    expect_job(id, "starting", "starting");
    hello();
    assert_int_equal(submit(JOB(1, ""), "k1", NULL, NULL), 201); /* the key is free */
    end_turn();
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_ready(c, &r), 0);
    service_reply_done(&r);
}

/* A file system of 2 MiB in a mount namespace of our own; skipped where that is not allowed. */
static int small_disk(void)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return -1;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return -1;
    return mount("none", state_dir, "tmpfs", 0, "size=2m,mode=0700");
}

static void a_full_disk_is_answered_and_survived(void **state)
{
    (void)state;
    struct err e = {0};
    c = NULL;
    snprintf(state_dir, sizeof(state_dir), "/tmp/coordinator-test.XXXXXX");
    assert_non_null(mkdtemp(state_dir));
    if (small_disk() != 0)
        skip();
    last_seen = 0;
    if (coordinator_open(state_dir, &c, &e) != 0)
        fail_msg("%s", e.text);
    hello();
    int taken = 0, full = 0;
    char key[16];
    while (!full && taken < 100000) {
        int before = taken;
        for (int i = 0; i < 20; i++) {
            snprintf(key, sizeof(key), "k%d", taken);
            int status = submit(JOB(2, ""), key, NULL, NULL);
            assert_true(status == 201 || status == 507);
            taken += status == 201;
        }
        assert_int_equal(coordinator_end_turn(c, &e), 0);
        full = c->no_space.code != 0;
        if (full)
            taken = before; /* the whole turn was refused */
    }
    assert_int_equal(full, 1);
    struct service_reply r;
    service_reply_init(&r);
    service_ready(c, &r);
    assert_int_equal(r.status, 503);
    service_reply_done(&r);
    int64_t counts[JOB_STATE__MAX];
    if (store_job_count(c->store, counts, &e) < 0)
        fail_msg("a full disk keeps from reading: %s", e.text);
    assert_int_equal(counts[JOB_PENDING] + counts[JOB_STARTING], taken);
    assert_int_equal(c->queue.jobs, counts[JOB_PENDING]);
    assert_int_equal(mount("none", state_dir, "tmpfs", MS_REMOUNT, "size=64m"), 0);
    snprintf(key, sizeof(key), "k%d", taken);
    assert_int_equal(submit(JOB(2, ""), key, NULL, NULL), 201);
    end_turn();
    service_reply_init(&r);
    assert_int_equal(service_ready(c, &r), 0);
    service_reply_done(&r);
}

static int full_disk_teardown(void **state)
{
    (void)state;
    coordinator_close(c);
    umount2(state_dir, MNT_DETACH);
    return file_remove_tree(state_dir, NULL);
}

/* A page that follows a long job asks for what is new; an agent may say any number for a step. */
static json_t *metrics_of(const char *id, int64_t after_epoch)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_job_metrics(c, id, 1, 0, after_epoch, &r), 0);
    json_t *doc = json_loads(r.text, 0, NULL);
    assert_non_null(doc);
    service_reply_done(&r);
    return doc;
}

static int64_t next_epoch_of(const json_t *metrics)
{
    return json_integer_value(json_object_get(metrics, "next_after_epoch"));
}

static void more_epochs_than_an_answer_has_are_told(void **state)
{
    (void)state;
    struct err e = {0};
    struct service_reply r;
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    for (int i = 1; i <= 10001; i++) {
        struct epoch_row row = {.attempt = 1, .epoch = i, .data = (char *)"{}"};
        assert_int_equal(store_epoch_put(c->store, id, &row, &e), 0);
        if (i == 10000) {
            json_auto_t *all = metrics_of(id, 0);
            assert_null(json_object_get(all, "next_after_epoch"));
        }
    }
    json_auto_t *first = metrics_of(id, 0);
    assert_int_equal(json_array_size(json_object_get(first, "epochs")), 10000);
    assert_int_equal(next_epoch_of(first), 10000);
    json_auto_t *rest = metrics_of(id, 10000);
    assert_int_equal(json_array_size(json_object_get(rest, "epochs")), 1);
    assert_null(json_object_get(rest, "next_after_epoch"));
    service_reply_init(&r);
    service_job_metrics(c, id, SERVICE_MAX_POINTS + 1, 0, 0, &r);
    assert_int_equal(r.status, 400);
    service_reply_done(&r);
}

static void metrics_cost_what_they_show(void **state)
{
    (void)state;
    json_decref(say(NULL));
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(w, "running",
                           lines(0, 9,
                                 "[{\"type\":\"step\",\"step\":1,\"epoch\":1},"
                                 "{\"type\":\"step\",\"step\":2,\"epoch\":1},"
                                 "{\"type\":\"step\",\"step\":3,\"epoch\":1},"
                                 "{\"type\":\"step\",\"step\":999999999999,\"epoch\":1},"
                                 "{\"type\":\"step\",\"step\":1000000000000,\"epoch\":1}]"))));
    static const struct {
        int64_t max, after, first, count;
    } cases[] = {{1000, 999999999990, 999999999999, 2},
                 {1000, 1000000000000, 0, 0},
                 {2, 0, 1, 2},
                 {1, 0, 1, 2},
                 {100000, 0, 1, 3},
                 {3, 999999999998, 999999999999, 2}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct service_reply r;
        service_reply_init(&r);
        assert_int_equal(service_job_metrics(c, id, cases[i].max, cases[i].after, 0, &r), 0);
        json_auto_t *doc = json_loads(r.text, 0, NULL);
        const json_t *steps = json_object_get(doc, "steps");
        assert_int_equal(json_array_size(steps), cases[i].count);
        if (cases[i].count)
            assert_int_equal(json_integer_value(json_object_get(json_array_get(steps, 0), "step")),
                             cases[i].first);
        service_reply_done(&r);
    }
}

static void reading_what_is_damaged_costs_no_rebuild(void **state)
{
    (void)state;
    struct err e = {0};
    struct service_reply r;
    struct job_row job = {.id = (char *)"job_01k8z4q9tw3v7m2c5xd8hbn6",
                          .name = (char *)"x",
                          .user = (char *)"",
                          .reason = (char *)"",
                          .reason_code = (char *)"",
                          .spec = (char *)"{}",
                          .plan = (char *)"{",
                          .devices = 1};
    if (store_job_insert(c->store, &job, &job.seq, &e) != 0)
        fail_msg("%s", e.text);
    service_reply_init(&r);
    assert_int_not_equal(service_job_plan(c, job.id, &r), 0);
    assert_int_equal(r.status, 500);
    assert_int_equal(c->rebuild, 0);
    service_reply_done(&r);
}

static void keys_outlive_a_clock_set_ahead(void **state)
{
    (void)state;
    json_auto_t *first = NULL, *again = NULL;
    assert_int_equal(submit(JOB(1, ""), "key", &first, NULL), 201);
    end_turn();
    c->wall_ahead_us = 10 * 365 * 24 * 3600 * 1000000LL;
    advance(120);
    assert_int_equal(submit(JOB(1, ""), "key", &again, NULL), 200);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(keys),
        TEST(wrong_documents),
        TEST(documents_keep_every_byte),
        TEST(dry_run_stores_nothing),
        TEST(lists_page_by_cursor),
        TEST(more_epochs_than_an_answer_has_are_told),
        TEST(metrics_cost_what_they_show),
        TEST(reading_what_is_damaged_costs_no_rebuild),
        TEST(keys_outlive_a_clock_set_ahead),
        TEST(a_turn_that_fails_leaves_nothing),
        cmocka_unit_test_teardown(a_full_disk_is_answered_and_survived, full_disk_teardown),
    };
    log_setup("coordinator_verbs", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
