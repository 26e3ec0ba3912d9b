/* metrics.c: what trainers report of their steps and epochs.
 *
 * Keyed (job, step, attempt) without rowid, so that a job's curve lies together in the order in
 * which it is read, some 60 bytes a step. A step that an attempt reports again replaces the first
 * report. Of a step that several attempts made, the latest attempt's counts.
 */
#include "storage/internal.h"

#include <stdlib.h>

#define LIST_MAX 1000000

static const char put_step[] =
    "REPLACE INTO steps (job, step, attempt, epoch, loss, grad_norm, learning_rate, time_us,"
    " samples_per_second, comm_exposed_us, comm_hidden_us, loss_scale, skipped)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, -1), nullif(?, -1), nullif(?, 0), nullif(?, 0))";

int store_step_put(struct store *s, const char *job_id, const struct step_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0;
    int n = db_job_seq(s, job_id, &job, e);
    if (n == 0)
        n = stmt_write(&q, s, put_step, e);
    if (n < 0)
        return n;
    stmt_int(&q, job);
    stmt_int(&q, r->step);
    stmt_int(&q, r->attempt);
    stmt_int(&q, r->epoch);
    stmt_real(&q, r->loss);
    stmt_real(&q, r->grad_norm);
    stmt_real(&q, r->learning_rate);
    stmt_int(&q, r->time_us);
    stmt_real(&q, r->samples_per_second);
    stmt_int(&q, r->comm_exposed_us);
    stmt_int(&q, r->comm_hidden_us);
    stmt_real(&q, r->loss_scale);
    stmt_int(&q, r->skipped);
    n = stmt_run(&q, e);
    return n < 0 ? n : 0;
}

#define STEP_COLUMNS                                                                               \
    "attempt, step, epoch, loss, grad_norm, learning_rate, time_us, samples_per_second, "          \
    "ifnull(comm_exposed_us, -1), ifnull(comm_hidden_us, -1), ifnull(loss_scale, 0.0), "           \
    "ifnull(skipped, 0) "

static void step_read(struct stmt *q, void *row)
{
    struct step_row *r = row;
    r->attempt = stmt_get_int(q);
    r->step = stmt_get_int(q);
    r->epoch = stmt_get_int(q);
    r->loss = stmt_get_real(q);
    r->grad_norm = stmt_get_real(q);
    r->learning_rate = stmt_get_real(q);
    r->time_us = stmt_get_int(q);
    r->samples_per_second = stmt_get_real(q);
    r->comm_exposed_us = stmt_get_int(q);
    r->comm_hidden_us = stmt_get_int(q);
    r->loss_scale = stmt_get_real(q);
    r->skipped = stmt_get_int(q);
}

/* Attempts of a step come in ascending order, so the last row of a step is the one; reading stops
 * when the step after the last wanted one begins. At most limit * attempts rows. */
int store_step_list(struct store *s, const char *job_id, int64_t after, int limit,
                    struct step_row *rows, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0;
    int n = 0;
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = db_job_seq(s, job_id, &job, e);
    if (r == 0)
        r = stmt_read(&q, s,
                      "SELECT " STEP_COLUMNS "FROM steps WHERE job = ? AND step > ?"
                      " ORDER BY step, attempt",
                      e);
    if (r < 0)
        return r;
    stmt_int(&q, job);
    stmt_int(&q, after);
    while ((r = stmt_step(&q, e)) == 1) {
        struct step_row row;
        step_read(&q, &row);
        if (n > 0 && rows[n - 1].step == row.step)
            n--;
        if (n == limit)
            break;
        rows[n++] = row;
    }
    return r < 0 ? r : n;
}

int store_step_count(struct store *s, const char *job_id, int64_t *ret_last_step, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0, last = 0;
    int r = db_job_seq(s, job_id, &job, e);
    if (r == 0)
        r = stmt_read(&q, s, "SELECT step FROM steps WHERE job = ? ORDER BY step DESC LIMIT 1", e);
    if (r < 0)
        return r;
    stmt_int(&q, job);
    r = stmt_one_int(&q, &last, e);
    if (r < 0)
        return r;
    *ret_last_step = last;
    return 0;
}

/* The first step there is from `from` on, of its latest attempt; 1, or 0 if there is none. */
static int step_from(struct store *s, int64_t job, int64_t from, struct step_row *ret,
                     struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_read(&q, s,
                      "SELECT " STEP_COLUMNS "FROM steps WHERE job = ?1 AND step = (SELECT step"
                      " FROM steps WHERE job = ?1 AND step >= ?2 ORDER BY step LIMIT 1)"
                      " ORDER BY attempt DESC LIMIT 1",
                      e);
    if (r < 0)
        return r;
    stmt_int(&q, job);
    stmt_int(&q, from);
    return stmt_rows(&q, 1, ret, sizeof *ret, step_read, NULL, e);
}

/* The first step there is, then the first at least `stride` further on, and so forth; the last one
 * has its place kept. A seek for each row, whatever lies between. */
int store_step_sample(struct store *s, const char *job_id, int64_t stride, int limit,
                      struct step_row *rows, struct err *e)
{
    int64_t job = 0, last = 0;
    int n = 0;
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0 && stride < 1)
        r = err_set(e, ERR_INVALID, "a stride of %lld steps was asked for; it must be at least 1",
                    (long long)stride);
    if (r == 0)
        r = store_step_count(s, job_id, &last, e);
    if (r == 0)
        r = db_job_seq(s, job_id, &job, e);
    if (r < 0)
        return r;
    for (int64_t from = INT64_MIN; n < limit - 1;) {
        r = step_from(s, job, from, &rows[n], e);
        if (r <= 0)
            return r < 0 ? r : n;
        int64_t taken = rows[n++].step;
        if (taken == last)
            return n;
        if (taken > last - stride)
            break;
        from = taken + stride;
    }
    r = step_from(s, job, last, &rows[n], e);
    return r < 0 ? r : n + r;
}

/* ---- epochs ---- */
void epoch_row_done(struct epoch_row *r)
{
    free(r->data);
    *r = (struct epoch_row){0};
}

int store_epoch_put(struct store *s, const char *job_id, const struct epoch_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0;
    int n = db_job_seq(s, job_id, &job, e);
    if (n == 0)
        n = stmt_write(&q, s, "REPLACE INTO epochs (job, epoch, attempt, data) VALUES (?, ?, ?, ?)",
                       e);
    if (n < 0)
        return n;
    stmt_int(&q, job);
    stmt_int(&q, r->epoch);
    stmt_int(&q, r->attempt);
    stmt_text(&q, r->data);
    n = stmt_run(&q, e);
    return n < 0 ? n : 0;
}

static void epoch_read(struct stmt *q, void *row)
{
    struct epoch_row *r = row;
    *r = (struct epoch_row){.attempt = stmt_get_int(q)};
    r->epoch = stmt_get_int(q);
    r->data = stmt_get_text(q);
}

static void epoch_done(void *row)
{
    epoch_row_done(row);
}

/* Beside max(), SQLite takes the other columns from the row that has it. */
int store_epoch_list(struct store *s, const char *job_id, int64_t after, int limit,
                     struct epoch_row *rows, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0;
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = db_job_seq(s, job_id, &job, e);
    if (r == 0)
        r = stmt_read(&q, s,
                      "SELECT max(attempt), epoch, data FROM epochs WHERE job = ? AND epoch > ?"
                      " GROUP BY epoch ORDER BY epoch LIMIT ?",
                      e);
    if (r < 0)
        return r;
    stmt_int(&q, job);
    stmt_int(&q, after);
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, epoch_read, epoch_done, e);
}

/* ---- going on from an earlier step ---- */
static const char drop_steps[] = "DELETE FROM steps WHERE job = ? AND step > ? AND attempt < ?";
/* The epoch of the first step after that one, and those that follow, had not ended by then. */
static const char drop_epochs[] =
    "DELETE FROM epochs WHERE job = ?1 AND attempt < ?3 AND epoch >= (SELECT epoch FROM steps"
    " WHERE job = ?1 AND step > ?2 AND attempt < ?3 ORDER BY step LIMIT 1)";

static int drop_from(struct store *s, const char *sql, int64_t job, int64_t attempt, int64_t step,
                     struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(&q, s, sql, e);
    if (r < 0)
        return r;
    stmt_int(&q, job);
    stmt_int(&q, step);
    stmt_int(&q, attempt);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}

int store_metrics_rewind(struct store *s, const char *job_id, int64_t attempt, int64_t step,
                         struct err *e)
{
    int64_t job = 0;
    int r = db_job_seq(s, job_id, &job, e);
    if (r == 0)
        r = drop_from(s, drop_epochs, job, attempt, step, e);
    if (r == 0)
        r = drop_from(s, drop_steps, job, attempt, step, e);
    return r;
}
