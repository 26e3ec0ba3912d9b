/* joblists.c: labels, and the lists of jobs that are filtered by them, by state and by user.
 *
 * A list walks an index that has both the filter and the order, once for each state that is asked
 * for, and then fetches the rows that made the page: at most 8 * limit index entries and `limit`
 * rows. The one filter without an index of its own is a user together with a label: it walks the
 * label's entries, which hold the user, at some ten million a second.
 */
#include "storage/internal.h"

#include <inttypes.h>
#include <stdlib.h>

#define LIST_MAX 1000

/* ---- labels ---- */
static const char set_label[] = "INSERT INTO job_labels (job, key, value, state, user)"
                                " SELECT seq, ?, ?, state, user FROM jobs WHERE seq = ?"
                                " ON CONFLICT (job, key) DO UPDATE SET value = excluded.value";

static int raise_version(struct store *s, int64_t seq, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(&q, s, "UPDATE jobs SET version = version + 1 WHERE seq = ?", e);
    if (r < 0)
        return r;
    stmt_int(&q, seq);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}

/* The labels that a job is submitted with are part of its first version. */
int store_job_label(struct store *s, const char *id, const char *key, const char *value,
                    struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t seq = 0;
    int r = db_job_seq(s, id, &seq, e);
    if (r == 0)
        r = stmt_write(&q, s, set_label, e);
    if (r < 0)
        return r;
    stmt_text(&q, key);
    stmt_text(&q, value);
    stmt_int(&q, seq);
    r = stmt_run(&q, e);
    if (r < 0)
        return r;
    return seq >= s->new_from ? 0 : raise_version(s, seq, e);
}

int store_job_labels(struct store *s, const char *id, char **ret, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t seq = 0;
    int r = db_job_seq(s, id, &seq, e);
    if (r == 0)
        r = stmt_read(&q, s, "SELECT json_group_object(key, value) FROM job_labels WHERE job = ?",
                      e);
    if (r < 0)
        return r;
    stmt_int(&q, seq);
    r = stmt_step(&q, e);
    if (r < 0)
        return r;
    *ret = stmt_get_text(&q);
    return 0;
}

/* ---- lists ---- */
static const char seqs_all[] = "SELECT seq FROM jobs WHERE seq < ? ORDER BY seq DESC LIMIT ?";
static const char seqs_by_state[] =
    "SELECT seq FROM jobs WHERE state = ? AND seq < ? ORDER BY seq DESC LIMIT ?";
static const char seqs_by_user[] =
    "SELECT seq FROM jobs WHERE user = ? AND state = ? AND seq < ? ORDER BY seq DESC LIMIT ?";
static const char seqs_by_key[] =
    "SELECT job FROM job_labels WHERE key = ?1 AND state = ?3 AND job < ?4"
    " AND (?2 IS NULL OR user = ?2) ORDER BY job DESC LIMIT ?5";
static const char seqs_by_value[] =
    "SELECT job FROM job_labels WHERE key = ?1 AND value = ?6 AND state = ?3 AND job < ?4"
    " AND (?2 IS NULL OR user = ?2) ORDER BY job DESC LIMIT ?5";

static const char *seqs_sql(const struct job_filter *f, int any_state)
{
    if (f->label_key)
        return f->label_value ? seqs_by_value : seqs_by_key;
    if (f->user)
        return seqs_by_user;
    return any_state ? seqs_all : seqs_by_state;
}

/* state < 0: any, for seqs_all. */
static void bind_filter(struct stmt *q, const struct job_filter *f, int state)
{
    if (f->label_key)
        stmt_text(q, f->label_key);
    if (f->label_key || f->user)
        stmt_text(q, f->user);
    if (state >= 0)
        stmt_int(q, state);
    stmt_int(q, f->before_seq > 0 ? f->before_seq : INT64_MAX);
    stmt_int(q, f->limit);
    if (f->label_key && f->label_value)
        stmt_text(q, f->label_value);
}

/* Appends the newest seqs in one state; the number in the list afterwards. */
static int collect_seqs(struct store *s, const struct job_filter *f, int state, int64_t *seqs,
                        int n, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_read(&q, s, seqs_sql(f, state < 0), e);
    if (r < 0)
        return r;
    bind_filter(&q, f, state);
    while ((r = stmt_step(&q, e)) == 1)
        seqs[n++] = stmt_get_int(&q);
    return r < 0 ? r : n;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The page's seqs, newest first, into seqs[JOB_STATE__MAX * limit]; their number. */
static int page_seqs(struct store *s, const struct job_filter *f, int64_t *seqs, struct err *e)
{
    unsigned all = (1u << JOB_STATE__MAX) - 1;
    unsigned states = f->states ? f->states : all;
    if (states & ~all)
        return err_set(e, ERR_INVALID, "the job filter names a state that does not exist");
    if (states == all && !f->user && !f->label_key)
        return collect_seqs(s, f, -1, seqs, 0, e);
    int n = 0;
    for (int state = 0; n >= 0 && state < JOB_STATE__MAX; state++) {
        if (states & 1u << state)
            n = collect_seqs(s, f, state, seqs, n, e);
    }
    if (n > 0)
        qsort(seqs, (size_t)n, sizeof *seqs, newest_first);
    return n > f->limit ? f->limit : n;
}

static int read_seq(struct stmt *q, struct store *s, int64_t seq, struct job_row *row,
                    struct err *e)
{
    int r = stmt_read(q, s, "SELECT " JOB_SLIM JOB_FROM "WHERE j.seq = ?", e);
    if (r < 0)
        return r;
    stmt_int(q, seq);
    r = stmt_rows(q, 1, row, sizeof *row, db_job_read_slim, db_job_done, e);
    if (r == 0)
        return err_set(e, ERR_CORRUPT,
                       "%s: an index names job number %" PRId64 ", which is missing", s->path, seq);
    return r;
}

int store_job_list(struct store *s, const struct job_filter *f, struct job_row *rows, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(f->limit, LIST_MAX, e);
    if (r == 0 && f->label_value && !f->label_key)
        r = err_set(e, ERR_INVALID, "the job filter has a label's value but not its key");
    if (r < 0)
        return r;
    CLEANUP(mem_freep)
    int64_t *seqs = mem_alloc(JOB_STATE__MAX * (size_t)f->limit * sizeof *seqs);
    int n = page_seqs(s, f, seqs, e);
    for (int i = 0; i < n; i++) {
        r = read_seq(&q, s, seqs[i], &rows[i], e);
        if (r < 0) {
            while (i > 0)
                job_row_done(&rows[--i]);
            return r;
        }
    }
    return n;
}
