/* storage_crash.c: kill -9 at any moment loses nothing that was acknowledged and doubles nothing.
 *
 * A child submits jobs in turns, as the coordinator does, and after each commit writes the ids of
 * the turn to a pipe: those are acknowledged. The parent kills it after a random number of
 * acknowledgements, at a random moment within the next, opens the store again and compares. The
 * page cache survives a kill, so what a power failure adds is tested apart: that every commit syncs
 * by storage_turn, and that a log torn anywhere gives the state after some commit, here.
 */
#include "tests/unit/storage_helper.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define ROUNDS_DEFAULT 20
#define TURN_MAX       32

struct known {
    char id[ID_SIZE];
};

struct ledger {
    struct known *jobs;
    size_t n, cap;
};

static void ledger_add(struct ledger *l, const char *id)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 1024;
        l->jobs = mem_realloc(l->jobs, l->cap * sizeof *l->jobs);
    }
    memcpy(l->jobs[l->n++].id, id, ID_SIZE);
}

/* ---- the child ---- */
static int submit(struct store *s, char ret_id[ID_SIZE], struct err *e)
{
    char hash[ID_SECRET_SIZE];
    struct job_row job = sample_job(id_new("job", ret_id));
    struct event_row event = {
        .type = (char *)"job_submitted", .job_id = ret_id, .data = (char *)"{}"};
    id_secret(hash);
    int r = store_mark(s, e);
    if (r == 0)
        r = store_job_insert(s, &job, NULL, e);
    if (r == 0)
        r = store_job_label(s, ret_id, "team", "vision", e);
    if (r == 0)
        r = store_key_put(s, "ada", ret_id, hash, ret_id, 1, e);
    if (r == 0)
        r = store_event_append(s, &event, NULL, e);
    if (r == 0)
        store_keep(s);
    return r;
}

/* Small turns and large ones; now and then what was submitted also starts. */
static void child(const char *dir, int acknowledge)
{
    struct store *s;
    struct err e = {0};
    int r = store_open(dir, &s, &e);
    for (unsigned turn = 0; r == 0; turn++) {
        static char ids[TURN_MAX][ID_SIZE];
        int n = 1 + (int)(turn * 7 % TURN_MAX);
        for (int i = 0; r == 0 && i < n; i++)
            r = submit(s, ids[i], &e);
        struct job_row started = sample_job(ids[0]);
        started.state = JOB_STARTING;
        if (r == 0 && turn % 3 == 0)
            r = store_job_move(s, &started, JOB_PENDING, &e);
        if (r == 0)
            r = store_commit(s, &e);
        if (r == 0 && write(acknowledge, ids, (size_t)n * ID_SIZE) < 0)
            r = ERR_IO;
    }
    fprintf(stderr, "the child ended: %s\n", e.text);
    _exit(1);
}

/* ---- the parent ---- */
static int64_t number(struct fixture *f, const char *sql)
{
    int64_t n = -1;
    assert_ok(f, db_int(f->s, sql, &n, &f->e));
    return n;
}

/* Kills it a random while after at least `wanted` acknowledgements were read. */
static void run_and_kill(struct fixture *f, struct ledger *l, int wanted)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(ends[0]);
        child(f->dir, ends[1]);
    }
    close(ends[1]);
    char id[ID_SIZE];
    int got = 0;
    while (read(ends[0], id, sizeof id) == (ssize_t)sizeof id) {
        ledger_add(l, id);
        if (++got != wanted)
            continue;
        struct timespec moment = {.tv_nsec = rand() % 5000000};
        nanosleep(&moment, NULL); /* any moment will do: this only varies where it dies */
        kill(pid, SIGKILL);
    }
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(got >= wanted);
}

/* Projections agree with each other and with the truth. */
static void check_consistent(struct fixture *f)
{
    char *verdict = NULL;
    assert_ok(f, db_text(f->s, "PRAGMA integrity_check", &verdict, &f->e));
    assert_string_equal(verdict, "ok");
    free(verdict);
    assert_int_equal(number(f, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
    int64_t jobs = number(f, "SELECT count(*) FROM jobs");
    assert_int_equal(number(f, "SELECT count(*) FROM job_documents"), jobs);
    assert_int_equal(number(f, "SELECT count(*) FROM job_labels"), jobs);
    assert_int_equal(number(f, "SELECT count(*) FROM idempotency_keys"), jobs);
    assert_int_equal(number(f, "SELECT count(DISTINCT job_id) FROM events"), jobs);
    assert_int_equal(number(f, "SELECT count(*) FROM events"), jobs);
    assert_int_equal(number(f, "SELECT sum(n) FROM job_counts"), jobs);
    assert_int_equal(number(f, "SELECT n FROM job_counts WHERE state = 0"),
                     number(f, "SELECT count(*) FROM jobs WHERE state = 0"));
    assert_int_equal(number(f, "SELECT count(*) FROM jobs j JOIN job_labels l ON l.job = j.seq"
                               " WHERE l.state <> j.state"),
                     0);
}

static void check_acknowledged(struct fixture *f, const struct ledger *l)
{
    for (size_t i = 0; i < l->n; i++) {
        struct job_row r = {0};
        assert_ok(f, store_job_get(f->s, l->jobs[i].id, &r, &f->e));
        assert_string_equal(r.spec, "{\"name\":\"mnist\"}");
        job_row_done(&r);
    }
    /* A turn that was committed but not told may be there besides; never more than one a kill. */
    assert_true(number(f, "SELECT count(*) FROM jobs") >= (int64_t)l->n);
}

static void test_kill(void **state)
{
    struct fixture *f = *state;
    struct ledger l = {0};
    const char *text = getenv("CRASH_ROUNDS");
    int rounds = text ? atoi(text) : ROUNDS_DEFAULT;
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u, %d rounds\n", seed, rounds);
    srand(seed);
    for (int i = 0; i < rounds; i++) {
        run_and_kill(f, &l, 1 + rand() % 300);
        reopen(f);
        assert_int_equal(store_instance_epoch(f->s), 2 * i + 2);
        check_acknowledged(f, &l);
        check_consistent(f);
        assert_true(number(f, "SELECT count(*) FROM jobs") <=
                    (int64_t)l.n + (int64_t)(i + 1) * TURN_MAX);
        store_close(f->s);
        f->s = NULL;
    }
    free(l.jobs);
}

/* ---- a power failure ---- */
/* The state directory as it was at a moment, in another one. */
static void copy_state(const struct fixture *f, const char *to)
{
    static const char *const names[] = {"trainyard.db", "trainyard.db-wal", "instance"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char from_path[160], to_path[160];
        struct buf b = BUF_INIT;
        struct err e = {0};
        snprintf(from_path, sizeof from_path, "%s/%s", f->dir, names[i]);
        snprintf(to_path, sizeof to_path, "%s/%s", to, names[i]);
        if (file_read(from_path, 1 << 26, &b, &e) == 0)
            assert_int_equal(file_write_atomic(to_path, b.data, b.len, 0600, &e), 0);
        buf_done(&b);
    }
}

/* The log torn at any byte gives the state after some commit, never a mixture. */
static void test_torn_log(void **state)
{
    struct fixture *f = *state;
    struct fixture copy = {.dir = "/tmp/trainyard-store-XXXXXX"};
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    for (int turn = 0; turn < 5; turn++) {
        char id[ID_SIZE];
        for (int i = 0; i < 10; i++)
            assert_ok(f, submit(f->s, id, &f->e));
        assert_ok(f, store_commit(f->s, &f->e));
    }
    assert_non_null(mkdtemp(copy.dir));
    char log[160];
    struct buf whole = BUF_INIT;
    snprintf(log, sizeof log, "%s/trainyard.db-wal", f->dir);
    assert_ok(f, file_read(log, 1 << 26, &whole, &f->e));
    snprintf(log, sizeof log, "%s/trainyard.db-wal", copy.dir);
    int seen[6] = {0};
    for (size_t cut = 40000; cut <= whole.len;
         cut += cut + 2111 > whole.len ? 1 + whole.len : 2111) {
        copy_state(f, copy.dir);
        assert_int_equal(truncate(log, (off_t)cut), 0);
        int r = store_open(copy.dir, &copy.s, &copy.e);
        if (r < 0) { /* so short that not even the schema is whole */
            assert_int_equal(r, ERR_CORRUPT);
            continue;
        }
        int64_t jobs = number(&copy, "SELECT count(*) FROM jobs");
        assert_int_equal(jobs % 10, 0);
        check_consistent(&copy);
        seen[jobs / 10]++;
        store_close(copy.s);
    }
    assert_true(seen[0] > 0 && seen[2] > 0 && seen[4] > 0);
    struct err e;
    assert_int_equal(file_remove_tree(copy.dir, &e), 0);
    buf_done(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kill, fixture_empty, fixture_done),
        cmocka_unit_test_setup_teardown(test_torn_log, fixture_empty, fixture_done),
    };
    return cmocka_run_group_tests_name("storage_crash", tests, NULL, NULL);
}
