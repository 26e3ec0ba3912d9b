/* checkpoints.c: the checkpoints of jobs that are kept. Where a job goes on follows from the one of
 * the highest step, which is read with each job's row (JOB_FROM): there is no second place that
 * says it. */
#include "storage/internal.h"

#include <inttypes.h>
#include <stdlib.h>

#define LIST_MAX 1000

void checkpoint_row_done(struct checkpoint_row *r)
{
    free(r->name);
    free(r->sum);
    free(r->node);
    free(r->share);
    *r = (struct checkpoint_row){0};
}

static void checkpoint_done(void *row)
{
    checkpoint_row_done(row);
}

static int set_saved(struct store *s, int64_t job, int saved, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r =
        stmt_write(&q, s, "UPDATE jobs SET saved = ?1, version = version + 1 WHERE seq = ?2", e);
    if (r < 0)
        return r;
    stmt_int(&q, saved);
    stmt_int(&q, job);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}

static const char put_checkpoint[] =
    "REPLACE INTO checkpoints (job, step, attempt, epoch, name, bytes, sum, node, share, at_us)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

int store_checkpoint_put(struct store *s, const char *job_id, const struct checkpoint_row *r,
                         struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0;
    int n = db_job_seq(s, job_id, &job, e);
    if (n == 0)
        n = stmt_write(&q, s, put_checkpoint, e);
    if (n < 0)
        return n;
    stmt_int(&q, job);
    stmt_int(&q, r->step);
    stmt_int(&q, r->attempt);
    stmt_int(&q, r->epoch);
    stmt_text(&q, r->name);
    stmt_int(&q, r->bytes);
    stmt_text(&q, r->sum);
    stmt_text(&q, r->node);
    stmt_text(&q, r->share);
    stmt_int(&q, r->at_us);
    n = stmt_run(&q, e);
    if (n == ERR_NOT_FOUND)
        return err_set(e, n, "a checkpoint of job %.60s names node %.60s, which does not exist",
                       job_id, r->node);
    return n < 0 ? n : set_saved(s, job, 1, e);
}

static void checkpoint_read(struct stmt *q, void *row)
{
    struct checkpoint_row *r = row;
    *r = (struct checkpoint_row){.attempt = stmt_get_int(q)};
    r->step = stmt_get_int(q);
    r->epoch = stmt_get_int(q);
    r->name = stmt_get_text(q);
    r->bytes = stmt_get_int(q);
    r->sum = stmt_get_text(q);
    r->node = stmt_get_text(q);
    r->share = stmt_get_text(q);
    r->at_us = stmt_get_int(q);
}

int store_checkpoint_list(struct store *s, const char *job_id, int limit,
                          struct checkpoint_row *rows, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0;
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = db_job_seq(s, job_id, &job, e);
    if (r == 0)
        r = stmt_read(&q, s,
                      "SELECT attempt, step, epoch, name, bytes, sum, node, share, at_us"
                      " FROM checkpoints WHERE job = ? ORDER BY step DESC LIMIT ?",
                      e);
    if (r < 0)
        return r;
    stmt_int(&q, job);
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, checkpoint_read, checkpoint_done, e);
}

/* Runs a DELETE of (job, n). */
static int drop(struct store *s, const char *sql, const char *job_id, int64_t n, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t job = 0;
    int r = db_job_seq(s, job_id, &job, e);
    if (r == 0)
        r = stmt_write(&q, s, sql, e);
    if (r < 0)
        return r;
    stmt_int(&q, job);
    stmt_int(&q, n);
    return stmt_run(&q, e);
}

int store_checkpoint_trim(struct store *s, const char *job_id, int64_t keep, struct err *e)
{
    return drop(s,
                "DELETE FROM checkpoints WHERE job = ?1 AND step IN (SELECT step FROM checkpoints"
                " WHERE job = ?1 ORDER BY step DESC LIMIT -1 OFFSET ?2)",
                job_id, keep, e);
}

int store_checkpoint_drop(struct store *s, const char *job_id, int64_t above_step, struct err *e)
{
    return drop(s, "DELETE FROM checkpoints WHERE job = ? AND step > ?", job_id, above_step, e);
}

int store_checkpoint_forget(struct store *s, const char *job_id, struct err *e)
{
    int64_t job = 0;
    int n = store_checkpoint_drop(s, job_id, -1, e);
    int r = n < 0 ? n : db_job_seq(s, job_id, &job, e);
    if (r == 0)
        r = set_saved(s, job, 0, e);
    return r < 0 ? r : n;
}

/* Walks the table, which has a few rows for each job that could go on. */
int store_checkpoint_expired(struct store *s, int64_t before_us, int limit, char **ids,
                             struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = 0;
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = stmt_read(&q, s,
                      "SELECT id FROM jobs WHERE seq IN (SELECT DISTINCT job FROM checkpoints)"
                      " AND state IN (5, 6, 7) AND moved_us < ? LIMIT ?",
                      e);
    if (r < 0)
        return r;
    stmt_int(&q, before_us);
    stmt_int(&q, limit);
    while ((r = stmt_step(&q, e)) == 1)
        ids[n++] = stmt_get_text(&q);
    if (r == 0)
        return n;
    while (n > 0)
        free(ids[--n]);
    return r;
}
