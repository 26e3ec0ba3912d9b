/* storage_jobs.c: jobs, labels, lists, counts, idempotency keys. */
#include "tests/unit/storage_helper.h"

static const char *id_of(int i, char out[ID_SIZE])
{
    snprintf(out, ID_SIZE, "job_%06d", i);
    return out;
}

static void move(struct fixture *f, const char *id, enum job_state from, enum job_state to)
{
    struct job_row r = {0};
    assert_ok(f, store_job_get(f->s, id, &r, &f->e));
    r.state = to;
    assert_ok(f, store_job_move(f->s, &r, from, &f->e));
    job_row_done(&r);
}

static int64_t version_of(struct fixture *f, const char *id)
{
    struct job_row r = {0};
    assert_ok(f, store_job_get(f->s, id, &r, &f->e));
    int64_t version = r.version;
    job_row_done(&r);
    return version;
}

/* ---- one job ---- */
static void assert_same(const struct job_row *a, const struct job_row *b)
{
    assert_string_equal(a->id, b->id);
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->user, b->user);
    assert_int_equal(a->state, b->state);
    assert_string_equal(a->reason_code, b->reason_code);
    assert_string_equal(a->reason, b->reason);
    assert_string_equal(a->plan, b->plan);
    assert_int_equal(a->priority, b->priority);
    assert_int_equal(a->devices, b->devices);
    assert_int_equal(a->device_kind, b->device_kind);
    assert_int_equal(a->memory, b->memory);
    assert_int_equal(a->submitted_us, b->submitted_us);
    assert_int_equal(a->started_us, b->started_us);
    assert_int_equal(a->finished_us, b->finished_us);
    assert_int_equal(a->attempt, b->attempt);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->steps, b->steps);
    if (b->exit)
        assert_string_equal(a->exit, b->exit);
    else
        assert_null(a->exit);
}

static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    struct job_row r = sample_job("job_1"), got = {0};
    r.name = (char *)"";
    r.user = (char *)"Zoë '; DROP TABLE jobs; --";
    r.reason = (char *)"";
    r.reason_code = (char *)"";
    r.priority = INT64_MIN;
    r.memory = INT64_MAX;
    r.submitted_us = 1;
    r.started_us = 2;
    r.finished_us = 3;
    r.attempt = 4;
    r.epoch = 5;
    r.step = 6;
    r.steps = 7;
    r.exit = (char *)"{\"outcome\":\"done\"}";
    int64_t seq = 0;
    assert_ok(f, store_job_insert(f->s, &r, &seq, &f->e));
    assert_int_equal(seq, 1);
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_ok(f, store_job_get(f->s, "job_1", &got, &f->e));
    assert_same(&got, &r);
    assert_string_equal(got.spec, r.spec);
    assert_int_equal(got.seq, 1);
    assert_int_equal(got.version, 1);
    job_row_done(&got);
    job_row_done(&got); /* may be repeated */
}

static void test_missing(void **state)
{
    struct fixture *f = *state;
    struct job_row r = {.seq = 42};
    char *labels = NULL;
    assert_int_equal(store_job_get(f->s, "job_none", &r, &f->e), ERR_NOT_FOUND);
    assert_says(f, "job_none");
    assert_int_equal(r.seq, 42); /* untouched */
    assert_int_equal(store_job_get(f->s, "", &r, &f->e), ERR_NOT_FOUND);
    r = sample_job("job_none");
    assert_int_equal(store_job_move(f->s, &r, JOB_PENDING, &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_job_progress(f->s, "job_none", 1, 1, 1, &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_job_label(f->s, "job_none", "a", "b", &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_job_labels(f->s, "job_none", &labels, &f->e), ERR_NOT_FOUND);
    assert_null(labels);
    assert_int_equal(store_job_get(f->s, "job_none", &r, NULL), ERR_NOT_FOUND); /* e may be NULL */
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    char *huge = mem_alloc(STORE_TEXT_MAX + 1);
    memset(huge, 'x', STORE_TEXT_MAX);
    huge[STORE_TEXT_MAX] = '\0';
    struct job_row r = sample_job("job_1");
    r.spec = huge;
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_TOO_LARGE);
    r = sample_job("job_1");
    r.spec = NULL;
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_INVALID);
    assert_says(f, "no spec");
    r = sample_job("");
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_INVALID);
    r = sample_job("job_0123456789012345678901234567890123456789");
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_INVALID);
    r = sample_job("job_1");
    r.user = NULL;
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_INVALID);
    r = sample_job("job_1");
    r.state = JOB_STATE__MAX;
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_INVALID);
    assert_int_equal(pending_count(f), 0);
    put_job(f, "job_1");
    r = sample_job("job_1");
    assert_int_equal(store_job_insert(f->s, &r, NULL, &f->e), ERR_CONFLICT);
    assert_says(f, "job_1");
    assert_ok(f, store_commit(f->s, &f->e));
    assert_int_equal(pending_count(f), 1);
    free(huge);
}

static void test_big_document(void **state)
{
    struct fixture *f = *state;
    size_t n = 2 << 20;
    char *spec = mem_alloc(n + 1);
    for (size_t i = 0; i < n; i++)
        spec[i] = (char)('a' + i % 26);
    spec[n] = '\0';
    struct job_row r = sample_job("job_1"), got = {0};
    r.spec = spec;
    assert_ok(f, store_job_insert(f->s, &r, NULL, &f->e));
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_ok(f, store_job_get(f->s, "job_1", &got, &f->e));
    assert_string_equal(got.spec, spec);
    job_row_done(&got);
    free(spec);
}

/* ---- moves ---- */
static void test_move(void **state)
{
    struct fixture *f = *state;
    struct job_row r = sample_job("job_1"), got = {0};
    put_job(f, "job_1");
    r.state = JOB_FAILED;
    r.reason_code = (char *)"rank_killed";
    r.reason = (char *)"Rank 1 on node n1 was killed by SIGKILL.";
    r.started_us = 11;
    r.finished_us = 12;
    r.attempt = 3;
    r.exit = (char *)"{}";
    r.priority = 99; /* not of a move */
    assert_int_equal(store_job_move(f->s, &r, JOB_RUNNING, &f->e), ERR_CONFLICT);
    assert_says(f, "is pending, not running");
    assert_int_equal(version_of(f, "job_1"), 1);
    assert_ok(f, store_job_move(f->s, &r, JOB_PENDING, &f->e));
    assert_ok(f, store_job_get(f->s, "job_1", &got, &f->e));
    r.priority = 0;
    assert_same(&got, &r);
    assert_int_equal(got.version, 2);
    job_row_done(&got);
    assert_int_equal(store_job_move(f->s, &r, JOB_PENDING, &f->e), ERR_CONFLICT);
    r.state = (enum job_state) - 1;
    assert_int_equal(store_job_move(f->s, &r, JOB_FAILED, &f->e), ERR_INVALID);
    int64_t counts[JOB_STATE__MAX];
    assert_ok(f, store_job_count(f->s, counts, &f->e));
    assert_int_equal(counts[JOB_PENDING], 0);
    assert_int_equal(counts[JOB_FAILED], 1);
}

static void test_move_in_place(void **state)
{
    struct fixture *f = *state;
    struct job_row r = sample_job("job_1"), got = {0};
    put_job(f, "job_1");
    r.reason = (char *)"Waits for a GPU.";
    assert_ok(f, store_job_move(f->s, &r, JOB_PENDING, &f->e));
    assert_ok(f, store_job_get(f->s, "job_1", &got, &f->e));
    assert_string_equal(got.reason, "Waits for a GPU.");
    assert_int_equal(got.version, 2);
    assert_int_equal(pending_count(f), 1);
    job_row_done(&got);
}

static void test_version(void **state)
{
    struct fixture *f = *state;
    put_job(f, "job_1");
    assert_ok(f, store_job_label(f->s, "job_1", "team", "vision", &f->e));
    assert_int_equal(version_of(f, "job_1"), 1); /* submitted with it */
    assert_ok(f, store_commit(f->s, &f->e));
    assert_ok(f, store_job_label(f->s, "job_1", "team", "audio", &f->e));
    assert_int_equal(version_of(f, "job_1"), 2);
    assert_ok(f, store_job_progress(f->s, "job_1", 1, 2, 1250, &f->e));
    assert_int_equal(version_of(f, "job_1"), 3);
    assert_ok(f, store_job_progress(f->s, "job_1", 1, 2, 1250, &f->e)); /* says nothing new */
    assert_int_equal(version_of(f, "job_1"), 3);
    struct job_row r = {0};
    assert_ok(f, store_job_get(f->s, "job_1", &r, &f->e));
    assert_int_equal(r.epoch, 1);
    assert_int_equal(r.step, 2);
    assert_int_equal(r.steps, 1250);
    job_row_done(&r);
}

static void test_state_names(void **state)
{
    (void)state;
    for (int i = 0; i < JOB_STATE__MAX; i++) {
        enum job_state s = JOB_STATE__MAX;
        assert_int_equal(job_state_from_name(job_state_name((enum job_state)i), &s), 0);
        assert_int_equal(s, i);
    }
    enum job_state s = JOB_RUNNING;
    assert_int_equal(job_state_from_name("Pending", &s), ERR_INVALID);
    assert_int_equal(job_state_from_name("", &s), ERR_INVALID);
    assert_int_equal(s, JOB_RUNNING);
    assert_string_equal(job_state_name((enum job_state)77), "unknown");
}

/* ---- labels ---- */
static void test_labels(void **state)
{
    struct fixture *f = *state;
    char *text = NULL;
    put_job(f, "job_1");
    assert_ok(f, store_job_labels(f->s, "job_1", &text, &f->e));
    assert_string_equal(text, "{}");
    free(text);
    assert_ok(f, store_job_label(f->s, "job_1", "team", "vision", &f->e));
    assert_ok(f, store_job_label(f->s, "job_1", "odd \"key\"\n", "", &f->e));
    assert_ok(f, store_job_label(f->s, "job_1", "team", "ünï", &f->e)); /* the last one counts */
    assert_int_equal(store_job_label(f->s, "job_1", "team", NULL, &f->e), ERR_INVALID);
    assert_ok(f, store_job_labels(f->s, "job_1", &text, &f->e));
    assert_string_equal(text, "{\"odd \\\"key\\\"\\n\":\"\",\"team\":\"ünï\"}");
    free(text);
}

/* ---- lists, against a plain loop over what was put in ---- */
#define MANY 600

struct known {
    enum job_state state;
    int user, team, urgent; /* team 0: no label */
    int64_t priority;
};

static unsigned dice_state = 12345;

static int dice(int sides)
{
    dice_state = dice_state * 1103515245u + 12345u;
    return (int)(dice_state >> 16) % sides;
}

static const char *const users[] = {"ada", "bob", "eve"};
static const char *const teams[] = {NULL, "vision", "audio", "text"};

static void put_many(struct fixture *f, struct known *k, int n)
{
    char id[ID_SIZE];
    for (int i = 0; i < n; i++) {
        k[i] = (struct known){.state = (enum job_state)dice(JOB_STATE__MAX - 1),
                              .user = dice(3),
                              .team = dice(4),
                              .urgent = dice(10) == 0,
                              .priority = dice(5) - 2};
        struct job_row r = sample_job(id_of(i + 1, id));
        r.user = (char *)users[k[i].user];
        r.priority = k[i].priority;
        assert_ok(f, store_job_insert(f->s, &r, NULL, &f->e));
        if (k[i].team)
            assert_ok(f, store_job_label(f->s, id, "team", teams[k[i].team], &f->e));
        if (k[i].urgent)
            assert_ok(f, store_job_label(f->s, id, "urgent", "yes", &f->e));
        if (k[i].state != JOB_PENDING)
            move(f, id, JOB_PENDING, k[i].state);
    }
    assert_ok(f, store_commit(f->s, &f->e));
}

static int matches(const struct known *k, const struct job_filter *q)
{
    if (q->states && !(q->states & 1u << k->state))
        return 0;
    if (q->user && strcmp(q->user, users[k->user]) != 0)
        return 0;
    if (!q->label_key)
        return 1;
    if (strcmp(q->label_key, "urgent") == 0)
        return k->urgent && (!q->label_value || strcmp(q->label_value, "yes") == 0);
    if (strcmp(q->label_key, "team") != 0 || !k->team)
        return 0;
    return !q->label_value || strcmp(q->label_value, teams[k->team]) == 0;
}

/* Reads all pages and compares each row. */
static void compare_list(struct fixture *f, const struct known *k, int n, struct job_filter q)
{
    struct job_row *rows = mem_zalloc((size_t)q.limit * sizeof *rows);
    int at = n - 1, got;
    do {
        got = store_job_list(f->s, &q, rows, &f->e);
        assert_ok(f, got);
        for (int i = 0; i < got; i++) {
            while (at >= 0 && !matches(&k[at], &q))
                at--;
            assert_int_equal(rows[i].seq, at + 1);
            assert_int_equal(rows[i].state, k[at].state);
            assert_null(rows[i].spec);
            assert_string_equal(rows[i].plan, "{\"strategy\":\"mirrored\"}");
            q.before_seq = rows[i].seq;
            at--;
            job_row_done(&rows[i]);
        }
    } while (got == q.limit);
    while (at >= 0 && !matches(&k[at], &q))
        at--;
    assert_int_equal(at, -1); /* none was left out */
    free(rows);
}

static void test_lists(void **state)
{
    struct fixture *f = *state;
    static struct known k[MANY];
    put_many(f, k, MANY);
    static const char *const keys[] = {NULL, "team", "urgent", "none"};
    static const char *const values[] = {NULL, "vision", "yes", "nothing"};
    static const char *const who[] = {NULL, "ada", "nobody"};
    const unsigned states[] = {0, 1u << JOB_PENDING, 1u << JOB_FAILED | 1u << JOB_RUNNING,
                               1u << JOB_CANCELLED, (1u << JOB_STATE__MAX) - 1};
    const int limits[] = {1, 7, 100, 1000};
    for (size_t a = 0; a < ARRAY_LEN(keys); a++)
        for (size_t b = 0; b < (keys[a] ? ARRAY_LEN(values) : 1); b++)
            for (size_t c = 0; c < ARRAY_LEN(who); c++)
                for (size_t d = 0; d < ARRAY_LEN(states); d++)
                    for (size_t l = (a + b + c + d) % 2; l < ARRAY_LEN(limits); l += 2)
                        compare_list(f, k, MANY,
                                     (struct job_filter){.states = states[d],
                                                         .label_key = keys[a],
                                                         .label_value = values[b],
                                                         .user = who[c],
                                                         .limit = limits[l]});
}

static void test_list_refused(void **state)
{
    struct fixture *f = *state;
    struct job_row rows[1];
    struct job_filter q = {.limit = 0};
    assert_int_equal(store_job_list(f->s, &q, rows, &f->e), ERR_INVALID);
    q.limit = 1001;
    assert_int_equal(store_job_list(f->s, &q, rows, &f->e), ERR_INVALID);
    assert_says(f, "1 to 1000");
    q = (struct job_filter){.limit = 1, .label_value = "x"};
    assert_int_equal(store_job_list(f->s, &q, rows, &f->e), ERR_INVALID);
    q = (struct job_filter){.limit = 1, .states = 1u << JOB_STATE__MAX};
    assert_int_equal(store_job_list(f->s, &q, rows, &f->e), ERR_INVALID);
    q = (struct job_filter){.limit = 1, .before_seq = 1};
    assert_int_equal(store_job_list(f->s, &q, rows, &f->e), 0);
}

static void test_counts(void **state)
{
    struct fixture *f = *state;
    static struct known k[MANY];
    put_many(f, k, MANY);
    int64_t expected[JOB_STATE__MAX] = {0}, counts[JOB_STATE__MAX];
    for (int i = 0; i < MANY; i++)
        expected[k[i].state]++;
    reopen(f);
    assert_ok(f, store_job_count(f->s, counts, &f->e));
    for (int i = 0; i < JOB_STATE__MAX; i++)
        assert_int_equal(counts[i], expected[i]);
}

/* No list may walk a table from end to end or sort what it found: with 100,000 jobs that is the
 * difference between one millisecond and a hundred. */
static void test_no_scans(void **state)
{
    struct fixture *f = *state;
    static struct known k[MANY];
    put_many(f, k, MANY);
    compare_list(f, k, MANY, (struct job_filter){.limit = 10});
    compare_list(f, k, MANY, (struct job_filter){.limit = 10, .states = 1u << JOB_FAILED});
    compare_list(f, k, MANY, (struct job_filter){.limit = 10, .user = "ada"});
    compare_list(f, k, MANY, (struct job_filter){.limit = 10, .label_key = "team"});
    compare_list(f, k, MANY,
                 (struct job_filter){.limit = 10, .label_key = "team", .label_value = "text"});
    struct event_row events[5];
    assert_ok(f, store_event_list(f->s, NULL, 0, 5, events, &f->e));
    assert_ok(f, store_event_list(f->s, "job_000001", 0, 5, events, &f->e));
    for (size_t i = 0; i < STORE_STATEMENTS; i++) {
        sqlite3_stmt *st = f->s->statements[i].st;
        if (!st)
            continue;
        int sorts = sqlite3_stmt_status(st, SQLITE_STMTSTATUS_SORT, 0);
        int scans = sqlite3_stmt_status(st, SQLITE_STMTSTATUS_FULLSCAN_STEP, 0);
        int indexes = sqlite3_stmt_status(st, SQLITE_STMTSTATUS_AUTOINDEX, 0);
        if (sorts || indexes || scans > 10)
            fail_msg("%d sorts, %d rows scanned, %d indexes made: %s", sorts, scans, indexes,
                     sqlite3_sql(st));
    }
}

/* ---- idempotency keys ---- */
#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_keys(void **state)
{
    struct fixture *f = *state;
    char hash[65] = "untouched", job[ID_SIZE] = "untouched";
    assert_int_equal(store_key_get(f->s, "ada", "k", hash, job, &f->e), ERR_NOT_FOUND);
    assert_string_equal(hash, "untouched");
    assert_int_equal(store_key_put(f->s, "ada", "k", HASH, "job_1", 10, &f->e), ERR_NOT_FOUND);
    put_job(f, "job_1");
    put_job(f, "job_2");
    assert_ok(f, store_key_put(f->s, "ada", "k", HASH, "job_1", 10, &f->e));
    assert_int_equal(store_key_put(f->s, "ada", "k", HASH, "job_2", 11, &f->e), ERR_CONFLICT);
    assert_ok(f, store_key_put(f->s, "bob", "k", HASH, "job_2", 11, &f->e)); /* his own */
    assert_ok(f, store_key_put(f->s, "", "", HASH, "job_2", 12, &f->e));
    assert_int_equal(store_key_put(f->s, "eve", "k", "short", "job_1", 10, &f->e), ERR_INVALID);
    assert_ok(f, store_commit(f->s, &f->e));
    reopen(f);
    assert_ok(f, store_key_get(f->s, "ada", "k", hash, job, &f->e));
    assert_string_equal(hash, HASH);
    assert_string_equal(job, "job_1");
    assert_ok(f, store_key_get(f->s, "bob", "k", hash, job, &f->e));
    assert_string_equal(job, "job_2");
    /* The boundary between user and key counts. */
    assert_int_equal(store_key_get(f->s, "bobk", "", hash, job, &f->e), ERR_NOT_FOUND);
    assert_int_equal(store_key_get(f->s, "", "bobk", hash, job, &f->e), ERR_NOT_FOUND);
}

/* Two keys of one hash (found by search) are two keys. */
static void test_keys_of_one_hash(void **state)
{
    struct fixture *f = *state;
    char job[ID_SIZE], hash[65];
    put_job(f, "job_1");
    put_job(f, "job_2");
    assert_ok(f, store_key_put(f->s, "ada", "a", HASH, "job_1", 1, &f->e));
    assert_ok(f, db_exec(f->s, "UPDATE idempotency_keys SET key = 'other'", &f->e));
    assert_int_equal(store_key_get(f->s, "ada", "a", hash, job, &f->e), ERR_NOT_FOUND);
    assert_ok(f, store_key_put(f->s, "ada", "a", HASH, "job_2", 1, &f->e));
    assert_ok(f, store_key_get(f->s, "ada", "a", hash, job, &f->e));
    assert_string_equal(job, "job_2");
}

static void test_keys_expire(void **state)
{
    struct fixture *f = *state;
    char hash[65], job[ID_SIZE], key[8];
    put_job(f, "job_1");
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_ok(f, store_key_put(f->s, "ada", key, HASH, "job_1", i, &f->e));
    }
    assert_int_equal(store_key_expire(f->s, 100, 0, &f->e), ERR_INVALID);
    assert_ok(f, store_key_expire(f->s, 10, 3, &f->e)); /* bounded: the three oldest */
    assert_int_equal(store_key_get(f->s, "ada", "k2", hash, job, &f->e), ERR_NOT_FOUND);
    assert_ok(f, store_key_get(f->s, "ada", "k3", hash, job, &f->e));
    assert_ok(f, store_key_expire(f->s, 10, 1000, &f->e));
    assert_int_equal(store_key_get(f->s, "ada", "k9", hash, job, &f->e), ERR_NOT_FOUND);
    assert_ok(f, store_key_get(f->s, "ada", "k10", hash, job, &f->e));
    assert_ok(f, store_key_expire(f->s, 100, 1000, &f->e));
    assert_ok(f, store_key_expire(f->s, 100, 1000, &f->e)); /* none is left */
    assert_ok(f, store_key_put(f->s, "ada", "k0", HASH, "job_1", 200, &f->e));
}

#define T(t) cmocka_unit_test_setup_teardown(t, fixture_open, fixture_done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_round_trip),
        T(test_missing),
        T(test_refused),
        T(test_big_document),
        T(test_move),
        T(test_move_in_place),
        T(test_version),
        cmocka_unit_test(test_state_names),
        T(test_labels),
        T(test_lists),
        T(test_list_refused),
        T(test_counts),
        T(test_no_scans),
        T(test_keys),
        T(test_keys_of_one_hash),
        T(test_keys_expire),
    };
    return cmocka_run_group_tests_name("storage_jobs", tests, NULL, NULL);
}
