/* Checkpoints from report to removal; suspend, resume, retry and restarts; where a job goes on. */
#include "tests/unit/coordinator_harness.h"

#include "daemon/coordinator/kept.h"

#define TRAINING(rest)                                                                             \
    "{\"name\":\"t\",\"model\":{\"input\":[4],\"layers\":[{\"type\":\"dense\",\"units\":2}]},"     \
    "\"compile\":{\"optimizer\":\"sgd\",\"loss\":\"mean_squared_error\"},\"data\":{\"train\":{"    \
    "\"format\":\"synthetic\",\"samples\":8,\"input\":4,\"classes\":2,\"seed\":1}},"               \
    "\"resources\":{\"devices\":1,\"device\":\"cpu\"}" rest "}"

#define SUM "99aa06d3014798d86001c324468d497f"

/* ---- a node that says more ---- */
static const char *share = ""; /* of the nodes in this test */

static json_t *body_of(const char *node, json_t *take_attempts, json_t *take_held)
{
    CLEANUP(mem_freep) char *boot = mem_printf("boot-of-%s", node);
    json_t *body = sync_body(boot, take_attempts, 0);
    json_object_set_new(body, "node", json_string(node));
    if (*share)
        json_object_set_new(body, "checkpoint_share", json_string(share));
    if (take_held)
        json_object_set_new(body, "checkpoints", take_held);
    return body;
}

/* The whole answer. */
static json_t *ask(json_t *take_body)
{
    struct service_reply r;
    service_reply_init(&r);
    coordinator_clock(c);
    service_agent_sync(c, take_body, 1, 0, &r);
    json_decref(take_body);
    if (r.status != 200)
        fail_msg("%d %s %s", r.status, r.code, r.detail);
    json_t *answer = json_incref(r.body);
    last_seen = json_integer_value(json_object_get(answer, "seen"));
    service_reply_done(&r);
    end_turn();
    return answer;
}

static void node_says(const char *node, json_t *take_attempts)
{
    json_decref(ask(body_of(node, take_attempts, NULL)));
}

/* What the node is told to do for the job, or NULL. */
static json_t *wish_of(const char *node, const char *job)
{
    json_auto_t *answer = ask(body_of(node, NULL, NULL));
    const json_t *wanted = json_object_get(answer, "wanted");
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        json_t *w = json_array_get(wanted, i);
        const char *id = json_string_value(json_object_get(w, "job"));
        if (id && strcmp(id, job) == 0)
            return json_incref(w);
    }
    return NULL;
}

/* Names that the node is told to remove of what it holds, sorted by the record, as "a b "; "all"
 * for the directory as well. */
static void expect_removal(const char *node, const char *job, const char *names,
                           const char *expected)
{
    char text[400] = "";
    json_t *list = json_loads(names, 0, NULL);
    assert_non_null(list);
    json_auto_t *answer =
        ask(body_of(node, NULL, json_pack("[{s:s, s:o}]", "job", job, "names", list)));
    const json_t *item = json_array_get(json_object_get(answer, "checkpoints"), 0);
    const json_t *remove = json_object_get(item, "remove");
    for (size_t i = 0; i < json_array_size(remove); i++) {
        strcat(text, json_string_value(json_array_get(remove, i)));
        strcat(text, " ");
    }
    if (json_is_true(json_object_get(item, "all")))
        strcat(text, "all");
    assert_string_equal(text, expected);
    if (item)
        assert_string_equal(json_string_value(json_object_get(item, "job")), job);
}

#define CHECKPOINT(step, name)                                                                     \
    "{\"type\":\"checkpoint\",\"rank\":0,\"step\":" #step ",\"epoch\":1,\"name\":\"" name          \
    "\",\"bytes\":2048,\"sum\":\"" SUM "\",\"seconds\":0.1}"
#define C100        CHECKPOINT(100, "step-0000000100")
#define C200        CHECKPOINT(200, "step-0000000200")
#define C300        CHECKPOINT(300, "step-0000000300")
#define STEP(n)     "{\"type\":\"step\",\"step\":" #n ",\"epoch\":1,\"loss\":0.5,\"comm_exposed_us\":7}"
#define START(rest) "{\"type\":\"start\",\"steps\":1000,\"rank\":0" rest "}"

/* ---- a job that runs ---- */
struct run {
    char *job;
    json_t *wish;
    int64_t offset;
    const char *node;
};

static void run_done(struct run *r)
{
    free(r->job);
    json_decref(r->wish);
}

static void report(struct run *r, const char *text)
{
    node_says(r->node, status(r->wish, "running", lines(r->offset, r->offset + 10, text)));
    r->offset += 10;
}

static void report_end(struct run *r, const char *outcome, const char *code)
{
    node_says(r->node, status(r->wish, "ended", exit_of(outcome, code)));
}

/* Its next attempt runs on that node. */
static void runs_on(struct run *r, const char *node)
{
    json_decref(r->wish);
    r->node = node;
    r->offset = 0;
    r->wish = wish_of(node, r->job);
    assert_non_null(r->wish);
    assert_string_equal(deed(r->wish), "run");
    node_says(node, status(r->wish, "running", NULL));
    expect_job(r->job, "running", "running");
}

static struct run new_run(const char *body)
{
    struct run r = {0};
    node_says("n1", NULL);
    r.job = new_job(body);
    runs_on(&r, "n1");
    return r;
}

static int post(int (*verb)(struct service *, const char *, struct service_reply *), const char *id,
                char code[48])
{
    struct service_reply r;
    service_reply_init(&r);
    verb(c, id, &r);
    int answered = r.status;
    if (code)
        snprintf(code, 48, "%s", r.code);
    service_reply_done(&r);
    end_turn();
    return answered;
}

static int retry_as(const char *id, int from_scratch, char code[48])
{
    struct service_reply r;
    service_reply_init(&r);
    service_job_retry(c, id, from_scratch, &r);
    int answered = r.status;
    if (code)
        snprintf(code, 48, "%s", r.code);
    service_reply_done(&r);
    end_turn();
    return answered;
}

static void expect_refused(int (*verb)(struct service *, const char *, struct service_reply *),
                           const char *id, const char *expected)
{
    char code[48];
    assert_int_equal(post(verb, id, code), 409);
    assert_string_equal(code, expected);
}

static json_t *checkpoints_of(const char *id)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_job_checkpoints(c, id, &r), 0);
    json_t *doc = json_incref(r.body);
    service_reply_done(&r);
    return doc;
}

/* Steps of those on the record, newest first, as "200 100 ". */
static void expect_record(const char *id, const char *expected)
{
    char text[200] = "";
    json_auto_t *doc = checkpoints_of(id);
    const json_t *list = json_object_get(doc, "checkpoints");
    for (size_t i = 0; i < json_array_size(list); i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%lld ",
                 (long long)json_integer_value(json_object_get(json_array_get(list, i), "step")));
    assert_string_equal(text, expected);
}

/* The steps that the next attempt is sent to, as "200 100 "; "-": it is told of no checkpoints. */
static void expect_resume(const struct run *r, const char *expected)
{
    char text[200] = "";
    const json_t *list = json_object_get(json_object_get(r->wish, "launch"), "resume");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(k, "sum")), SUM);
        assert_int_equal(strlen(json_string_value(json_object_get(k, "name"))), 15);
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%lld ",
                 (long long)json_integer_value(json_object_get(k, "step")));
    }
    assert_string_equal(list ? text : "-", expected);
}

static int count_events(const char *id, const char *type)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_event_list(c, id, 0, 1000, &r), 0);
    const json_t *events = json_object_get(r.body, "events");
    int count = 0;
    for (size_t i = 0; i < json_array_size(events); i++)
        count += strcmp(json_string_value(json_object_get(json_array_get(events, i), "type")),
                        type) == 0;
    service_reply_done(&r);
    return count;
}

/* ---- the record ---- */
static void the_newest_are_kept(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    expect_resume(&r, "");
    report(&r, "[" START("") "," C100 "," C200 "]");
    expect_record(r.job, "200 100 ");
    report(&r, "[" C300 "]");
    expect_record(r.job, "300 200 ");
    assert_int_equal(count_events(r.job, "checkpoint"), 3);
    json_auto_t *doc = checkpoints_of(r.job);
    const json_t *k = json_array_get(json_object_get(doc, "checkpoints"), 0);
    assert_string_equal(json_string_value(json_object_get(k, "name")), "step-0000000300");
    assert_string_equal(json_string_value(json_object_get(k, "node")), "n1");
    assert_string_equal(json_string_value(json_object_get(k, "sum")), SUM);
    assert_true(json_is_null(json_object_get(k, "share")));
    assert_int_equal(json_integer_value(json_object_get(k, "attempt")), 1);
    assert_int_equal(json_integer_value(json_object_get(k, "bytes")), 2048);
    assert_int_equal(json_integer_value(json_object_get(doc, "keep")), 2);
    assert_true(json_is_null(json_object_get(doc, "kept_until")));
    json_auto_t *job = show(r.job);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(job, "checkpoint"), "step")), 300);
    restart(); /* and the record is what is told, whatever happened in between */
    expect_record(r.job, "300 200 ");
    expect_removal("n1", r.job, "[\"step-0000000100\",\"step-0000000200\"]", "step-0000000100 ");
}

static void the_document_says_how_many(void **state)
{
    (void)state;
    CLEANUP(run_done)
    struct run r =
        new_run(TRAINING(",\"max_restarts\":0,\"checkpoint\":{\"every\":\"10m\",\"keep\":1}"));
    report(&r, "[" C100 "," C200 "," C300 "]");
    expect_record(r.job, "300 ");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "failed", "shim_lost");
    expect_reason(r.job, "Another attempt may succeed: a retry starts one.");
}

static void hostile_checkpoints_are_dropped(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C200 "," CHECKPOINT(100, "step-0000000100") "," /* behind */
           CHECKPOINT(300, "step-0000000301") "," CHECKPOINT(300, "../../etc") "," CHECKPOINT(
               -1, "step-0000000300") ","
                                      "{\"type\":\"checkpoint\"},{\"type\":\"checkpoint\",\"step\":"
                                      "300,\"bytes\":1,"
                                      "\"name\":\"step-0000000300\",\"sum\":\"99AA\"},{\"type\":"
                                      "\"checkpoint\",\"step\":300,"
                                      "\"bytes\":-1,\"name\":\"step-0000000300\",\"sum\":\"" SUM
                                      "\"}]");
    assert_int_equal(c->dropped_lines, 7);
    expect_record(r.job, "200 ");
}

static void names(void **state)
{
    (void)state;
    int64_t step = -1;
    assert_int_equal(kept_name_step("step-0000000100", &step), 1);
    assert_int_equal(step, 100);
    assert_int_equal(kept_name_step("step-123456789012", &step), 1);
    assert_int_equal(step, 123456789012);
    assert_int_equal(kept_name_step(".step-0000000007.tmp", &step), 1);
    assert_int_equal(step, 7);
    assert_int_equal(kept_name_step("step-0000000007.partial-1", &step), 1);
    static const char *const none[] = {"",
                                       ".",
                                       "..",
                                       "step-",
                                       "step-100",
                                       "step-0000000100x",
                                       "step-0000000100/x",
                                       "step-0000000100./../x",
                                       "STEP-0000000100",
                                       "manifest.json",
                                       "step-99999999999999999999",
                                       "x-step-0000000100"};
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        if (kept_name_step(none[i], &step))
            fail_msg("taken: %s", none[i]);
}

/* ---- what is removed ---- */
static void what_a_running_job_may_write_is_left_alone(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    const char *all = "[\"step-0000000100\",\"step-0000000200\",\"step-0000000300\",\"other\","
                      "\".step-0000000150.tmp\",\".step-0000000400.tmp\",7]";
    expect_removal("n1", r.job, all, ""); /* nothing is on the record: all may be just written */
    report(&r, "[" C100 "," C200 "]");
    expect_removal("n1", r.job, all, ".step-0000000150.tmp ");
    report(&r, "[" C300 "]");
    expect_removal("n1", r.job, all, "step-0000000100 .step-0000000150.tmp ");
    expect_removal("n1", "job_01k8z4q9tw3v7m2c5xd8hbn6", all, ""); /* a job that we do not know */
    expect_removal("n1", "../..", all, "");
    report_end(&r, "failed", "loss_not_finite"); /* what is not on the record goes now */
    expect_removal("n1", r.job, all, "step-0000000100 .step-0000000150.tmp .step-0000000400.tmp ");
}

static void success_needs_no_checkpoints(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C100 "," C200 "]");
    report_end(&r, "done", "done");
    expect_job(r.job, "succeeded", "done");
    expect_record(r.job, "");
    assert_int_equal(count_events(r.job, "checkpoints_dropped"), 1);
    expect_removal("n1", r.job, "[\"step-0000000100\",\"step-0000000200\"]",
                   "step-0000000100 step-0000000200 all");
    expect_refused(service_job_suspend, r.job, "job_finished");
    expect_refused(service_job_resume, r.job, "job_finished");
    assert_int_equal(retry_as(r.job, 0, NULL), 409);
    assert_int_equal(retry_as(r.job, 1, NULL), 409);
}

static void removals_do_not_keep_an_agent_from_waiting(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C100 "," C200 "," C300 "]");
    int answered = 0;
    for (int i = 0; i < 6; i++) { /* an agent that cannot remove it, and says so again and again */
        json_t *held = json_pack("[{s:s, s:[s]}]", "job", r.job, "names", "step-0000000100");
        json_t *body = body_of("n1", status(r.wish, "running", NULL), i % 2 ? NULL : held);
        if (i % 2)
            json_decref(held);
        json_object_set_new(body, "wait_ms", json_integer(10000));
        json_object_set_new(body, "seen", json_integer(last_seen));
        json_auto_t *wanted = send_body(body, 5, 0, 200);
        answered += wanted != NULL;
        end_turn();
    }
    assert_in_range(answered, 1, 2);
}

static void they_expire(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    c->retention_us = 3600 * 1000000LL;
    report(&r, "[" START("") "," C100 "]");
    report_end(&r, "failed", "loss_not_finite");
    json_auto_t *doc = checkpoints_of(r.job);
    assert_true(json_is_string(json_object_get(doc, "kept_until")));
    advance(3500);
    expect_record(r.job, "100 ");
    advance(200);
    expect_record(r.job, "");
    assert_int_equal(count_events(r.job, "checkpoints_dropped"), 1);
    expect_removal("n1", r.job, "[\"step-0000000100\"]", "step-0000000100 all");
    char code[48]; /* never silently at step 0 */
    assert_int_equal(retry_as(r.job, 0, code), 409);
    assert_string_equal(code, "no_checkpoints");
    assert_int_equal(retry_as(r.job, 1, NULL), 200);
    runs_on(&r, "n1");
    expect_resume(&r, "");
}

/* ---- restarts ---- */
static void a_lost_attempt_goes_on_from_the_newest(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," STEP(1) "," C100 "," STEP(150) "," C200 "," STEP(250) "]");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "pending", "restarting");
    expect_reason(r.job, "Attempt 2 of at most 4 comes after 1 s; it resumes at step 200.");
    advance(2);
    expect_job(r.job, "starting", "starting");
    expect_reason(r.job, "attempt 2; it resumes at step 200");
    runs_on(&r, "n1");
    expect_resume(&r, "200 100 ");
    report(&r, "[" START(",\"from_step\":200,\"from_epoch\":3") "]");
    json_auto_t *job = show(r.job);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(job, "progress"), "epoch")),
                     3);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(job, "progress"), "step")),
                     200);
    assert_int_equal(json_integer_value(json_object_get(job, "restarts")), 1);
    struct service_reply reply;
    service_reply_init(&reply);
    assert_int_equal(service_job_metrics(c, r.job, 0, 0, 0, &reply), 0);
    json_auto_t *metrics = json_loads(reply.text, 0, NULL);
    service_reply_done(&reply);
    const json_t *steps = json_object_get(metrics, "steps");
    assert_int_equal(json_array_size(steps), 2); /* step 250 is of a course that is given up */
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(steps, 1), "comm_exposed_us")), 7);
    for (int64_t rest = 2; rest <= 4; rest *= 2) {
        report_end(&r, "shim_lost", "node_rebooted");
        advance(rest - 1);
        expect_job(r.job, "pending", "restarting");
        advance(2);
        runs_on(&r, "n1");
    }
    report_end(&r, "shim_lost", "node_rebooted");
    expect_job(r.job, "failed", "node_rebooted");
    expect_reason(r.job, "It was started again 3 times (\"max_restarts\")");
    expect_record(r.job, "200 100 ");
    assert_int_equal(retry_as(r.job, 0, NULL), 200); /* and has all its restarts again */
    runs_on(&r, "n1");
    expect_resume(&r, "200 100 ");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "pending", "restarting");
    expect_reason(r.job, "Attempt 6 of at most 8");
}

static void a_bad_checkpoint_is_given_up(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "," C200 "]");
    report_end(&r, "shim_lost", "shim_lost");
    advance(2);
    runs_on(&r, "n1");
    report(&r, "[" START(",\"from_step\":100") "]"); /* the newest could not be loaded */
    expect_record(r.job, "100 ");
    assert_int_equal(count_events(r.job, "checkpoints_dropped"), 1);
    expect_removal("n1", r.job, "[\"step-0000000200\"]", ""); /* it may be written again */
    report(&r, "[" C200 "," C300 "]");
    expect_record(r.job, "300 200 ");
}

static void without_a_checkpoint_it_says_step_0(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," STEP(1) "," STEP(2) "]");
    report_end(&r, "shim_lost", "shim_lost");
    expect_reason(r.job, "it starts at step 0, since no checkpoint was taken.");
    advance(2);
    runs_on(&r, "n1");
    expect_resume(&r, "");
    report(&r, "[" START("") "," STEP(1) "]");
    struct service_reply reply;
    service_reply_init(&reply);
    service_job_metrics(c, r.job, 0, 0, 0, &reply);
    json_auto_t *metrics = json_loads(reply.text, 0, NULL);
    service_reply_done(&reply);
    assert_int_equal(json_array_size(json_object_get(metrics, "steps")), 1);
}

static void a_command_is_not_run_twice_unasked(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(JOB(1, ""));
    expect_resume(&r, "-");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "failed", "shim_lost");
    expect_reason(r.job, "a retry starts one");
    CLEANUP(run_done) struct run again = new_run(JOB(1, ",\"max_restarts\":1"));
    report_end(&again, "shim_lost", "shim_lost");
    expect_job(again.job, "pending", "restarting");
    expect_reason(again.job, "it runs its command from the beginning.");
}

/* ---- suspend, resume ---- */
static void suspended_and_resumed(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    expect_job(r.job, "stopping", "suspended");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    expect_refused(service_job_resume, r.job, "job_stopping");
    assert_int_equal(retry_as(r.job, 0, NULL), 409);
    json_auto_t *answer = ask(body_of("n1", status(r.wish, "running", NULL), NULL));
    const json_t *w = json_array_get(json_object_get(answer, "wanted"), 0);
    assert_string_equal(deed(w), "stop");
    assert_string_equal(json_string_value(json_object_get(w, "code")), "suspended");
    assert_int_equal(json_integer_value(json_object_get(w, "grace_s")), 300);
    report(&r, "[" CHECKPOINT(137, "step-0000000137") "]");
    report_end(&r, "stopped", "suspended");
    expect_job(r.job, "suspended", "suspended");
    expect_reason(r.job, "The next attempt resumes at step 137.");
    assert_int_equal(free_devices(), 2);
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    restart();
    node_says("n1", NULL);
    expect_job(r.job, "suspended", "suspended"); /* it does not start by itself */
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    runs_on(&r, "n1");
    expect_resume(&r, "137 100 ");
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    assert_int_equal(retry_as(r.job, 0, NULL), 200); /* it is under way */
    assert_int_equal(retry_as(r.job, 1, NULL), 409);
    report_end(&r, "done", "done");
    expect_job(r.job, "succeeded", "done");
}

static void what_waits_is_suspended_at_once(void **state)
{
    (void)state;
    CLEANUP(mem_freep) char *id = new_job(TRAINING(""));
    assert_int_equal(post(service_job_suspend, id, NULL), 200);
    expect_job(id, "suspended", "suspended");
    assert_int_equal(c->queue.jobs, 0);
    node_says("n1", NULL);
    expect_job(id, "suspended", "suspended");
    assert_int_equal(post(service_job_resume, id, NULL), 200);
    expect_job(id, "starting", "starting");
    CLEANUP(mem_freep) char *other = new_job(JOB(2, ""));
    assert_int_equal(post(service_job_suspend, other, NULL), 200);
    assert_int_equal(cancel(other), 200);
    expect_job(other, "cancelled", "cancelled");
}

static void what_has_not_begun_is_suspended_as_well(void **state)
{
    (void)state;
    node_says("n1", NULL);
    CLEANUP(mem_freep) char *id = new_job(TRAINING(""));
    expect_job(id, "starting", "starting");
    assert_int_equal(post(service_job_suspend, id, NULL), 200);
    expect_job(id, "stopping", "suspended");
    json_auto_t *wish = wish_of("n1", id); /* it had not heard of it */
    if (wish)
        assert_string_equal(deed(wish), "stop");
    node_says("n1", NULL);
    expect_job(id, "suspended", "suspended");
    assert_int_equal(free_devices(), 2);
}

static void a_job_at_rest_can_be_suspended(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "pending", "restarting");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    advance(3);
    expect_job(r.job, "suspended", "suspended");
    assert_int_equal(post(service_job_resume, r.job, NULL), 200); /* and needs no rest */
    expect_job(r.job, "starting", "starting");
}

static void a_cancel_overtakes_a_suspend(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C100 "]");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    assert_int_equal(cancel(r.job), 200);
    end_turn();
    expect_job(r.job, "stopping", "cancelled");
    expect_refused(service_job_suspend, r.job, "job_stopping");
    report_end(&r, "stopped", "suspended"); /* as its shim heard it first */
    expect_job(r.job, "cancelled", "cancelled");
    expect_refused(service_job_suspend, r.job, "job_finished");
    struct service_reply said;
    service_reply_init(&said);
    service_job_suspend(c, r.job, &said);
    assert_non_null(strstr(said.detail, "has been cancelled already"));
    service_reply_done(&said);
    expect_refused(service_job_resume, r.job, "job_finished");
    expect_record(r.job, "100 ");
    assert_int_equal(retry_as(r.job, 0, NULL), 200);
    runs_on(&r, "n1");
    expect_resume(&r, "100 ");
    json_auto_t *job = show(r.job);
    assert_true(json_is_null(json_object_get(job, "finished_at")));
    assert_true(json_is_null(json_object_get(job, "exit")));
}

static void what_would_lose_its_work_is_not_suspended(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(",\"checkpoint\":false"));
    json_auto_t *doc = checkpoints_of(r.job);
    assert_int_equal(json_integer_value(json_object_get(doc, "keep")), 0);
    expect_resume(&r, "-");
    expect_refused(service_job_suspend, r.job, "no_checkpoints");
    report_end(&r, "shim_lost", "shim_lost");
    expect_reason(r.job, "since it takes no checkpoints");
    CLEANUP(run_done) struct run command = new_run(JOB(1, ""));
    assert_int_equal(post(service_job_suspend, command.job, NULL), 200);
    report_end(&command, "stopped", "suspended");
    expect_job(command.job, "suspended", "suspended");
    expect_reason(command.job, "The next attempt runs its command from the beginning.");
}

/* ---- where it goes on ---- */
static void it_waits_for_the_node_that_has_it(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    node_says("n2", NULL);
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    report_end(&r, "stopped", "suspended");
    for (int i = 0; i < 50; i++) { /* n1 falls silent, n2 does not */
        advance(1);
        node_says("n2", NULL);
    }
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    expect_job(r.job, "pending", "waiting_for_node");
    expect_reason(r.job, "Waiting for node n1, which last reported");
    expect_reason(r.job, "Its checkpoints lie on node n1, so only that node can go on with it. To "
                         "start it at step 0 on any node, retry it with {\"from\": \"scratch\"}.");
    CLEANUP(mem_freep) char *other = new_job(TRAINING("")); /* which needs not wait behind it */
    expect_job(other, "starting", "starting");
    restart();
    node_says("n2", NULL);
    expect_job(r.job, "pending", "waiting_for_node");
    assert_int_equal(retry_as(r.job, 0, NULL), 200); /* it waits already */
    expect_job(r.job, "pending", "waiting_for_node");
    assert_int_equal(retry_as(r.job, 1, NULL), 200);
    expect_record(r.job, "");
    runs_on(&r, "n2");
    expect_resume(&r, "");
}

static void with_a_share_any_node_that_sees_it_will_do(void **state)
{
    (void)state;
    share = "nfs";
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    report_end(&r, "shim_lost", "shim_lost");
    share = "";
    node_says("n1", NULL); /* no longer */
    node_says("n2", NULL);
    advance(3);
    expect_job(r.job, "pending", "waiting_for_node");
    expect_reason(r.job, "No node that is known sees its checkpoints.");
    expect_reason(r.job, "Its checkpoints lie on the shared file system \"nfs\"");
    share = "nfs";
    node_says("n2", NULL);
    runs_on(&r, "n2");
    expect_resume(&r, "100 ");
    share = "";
}

/* An empty list would make the trainer begin at step 0, and what it had would be given up. */
static void a_share_that_is_lost_on_the_way_begins_nothing_anew(void **state)
{
    (void)state;
    share = "nfs";
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    report_end(&r, "shim_lost", "shim_lost");
    advance(2);
    expect_job(r.job, "starting", "starting");
    c->rebuild = 1; /* a turn that was rolled back */
    end_turn();
    assert_string_equal(nodes_find(&c->nodes, "n1")->share, "nfs");
    share = "";
    runs_on(&r, "n1");
    expect_resume(&r, "100 ");
}

/* ---- late syncs ---- */
static json_t *numbered(json_t *take_attempts, const char *run, int64_t sequence, int64_t wall_us)
{
    json_t *body = body_of("n1", take_attempts, NULL);
    json_object_set_new(body, "run", json_string(run));
    json_object_set_new(body, "sequence", json_integer(sequence));
    json_object_set_new(body, "wall_us", json_integer(5000000 + wall_us));
    return body;
}

#define RUN_1 "run_01k8z4q9tw3v7m2c5xd8hbn6"
#define RUN_2 "run_01k8z4q9tw3v7m2c5xd8hbn7"

/* How many devices the node is believed to have something on that we have ended. */
static int haunted(void)
{
    const struct node *n = nodes_find(&c->nodes, "n1");
    int count = 0;
    for (size_t i = 0; i < n->device_count; i++)
        count += n->devices[i].haunted;
    return count;
}

static void an_older_request_is_not_believed(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    json_auto_t *running = status(r.wish, "running", NULL);
    json_auto_t *ended = status(r.wish, "ended", exit_of("done", "done"));
    json_decref(ask(numbered(json_incref(running), RUN_1, 7, 500)));
    json_decref(ask(numbered(json_incref(ended), RUN_1, 9, 900)));
    expect_job(r.job, "succeeded", "done");
    json_decref(ask(numbered(NULL, RUN_1, 11, 800))); /* its clock was set back */
    /* sent before, come after: what it saw then does not make a device busy */
    json_decref(ask(numbered(json_incref(running), RUN_1, 8, 950)));
    assert_int_equal(haunted(), 0);
    json_decref(ask(numbered(json_incref(running), RUN_1, 12, 960)));
    assert_int_equal(haunted(), 1);
    json_decref(ask(numbered(NULL, RUN_1, 13, 970)));
    assert_int_equal(haunted(), 0);
    c->rebuild = 1; /* a turn that was rolled back: what was heard is still known */
    end_turn();
    json_decref(ask(numbered(json_incref(running), RUN_1, 12, 980)));
    assert_int_equal(haunted(), 0);
    json_decref(ask(numbered(json_incref(running), RUN_2, 1, 990))); /* the agent's next run */
    assert_int_equal(haunted(), 1);
}

static void a_wrong_run_is_no_sync(void **state)
{
    (void)state;
    json_decref(send_body(numbered(NULL, "7", 1, 1), 1, 0, 400));
    json_decref(send_body(numbered(NULL, RUN_1, -1, 1), 1, 0, 400));
    json_t *body = body_of("n1", NULL, json_object());
    json_decref(send_body(body, 1, 0, 400));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(the_newest_are_kept),
        T(the_document_says_how_many),
        T(hostile_checkpoints_are_dropped),
        cmocka_unit_test(names),
        T(what_a_running_job_may_write_is_left_alone),
        T(success_needs_no_checkpoints),
        T(removals_do_not_keep_an_agent_from_waiting),
        T(they_expire),
        T(a_lost_attempt_goes_on_from_the_newest),
        T(a_bad_checkpoint_is_given_up),
        T(without_a_checkpoint_it_says_step_0),
        T(a_command_is_not_run_twice_unasked),
        T(suspended_and_resumed),
        T(what_waits_is_suspended_at_once),
        T(what_has_not_begun_is_suspended_as_well),
        T(a_job_at_rest_can_be_suspended),
        T(a_cancel_overtakes_a_suspend),
        T(what_would_lose_its_work_is_not_suspended),
        T(it_waits_for_the_node_that_has_it),
        T(with_a_share_any_node_that_sees_it_will_do),
        T(a_share_that_is_lost_on_the_way_begins_nothing_anew),
        T(an_older_request_is_not_believed),
        T(a_wrong_run_is_no_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
