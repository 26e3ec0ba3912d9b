/* jobs.c: jobs and their documents, their moves, and the sums kept beside them. */
#include "storage/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {
    [JOB_PENDING] = "pending",     [JOB_STARTING] = "starting",   [JOB_RUNNING] = "running",
    [JOB_STOPPING] = "stopping",   [JOB_SUCCEEDED] = "succeeded", [JOB_FAILED] = "failed",
    [JOB_CANCELLED] = "cancelled", [JOB_SUSPENDED] = "suspended",
};
_Static_assert(ARRAY_LEN(state_names) == JOB_STATE__MAX, "every state has a name");

const char *job_state_name(enum job_state s)
{
    return (unsigned)s < JOB_STATE__MAX ? state_names[s] : "unknown";
}

int job_state_from_name(const char *name, enum job_state *ret)
{
    for (int i = 0; i < JOB_STATE__MAX; i++) {
        if (strcmp(name, state_names[i]) == 0) {
            *ret = (enum job_state)i;
            return 0;
        }
    }
    return ERR_INVALID;
}

void job_row_done(struct job_row *r)
{
    free(r->id);
    free(r->name);
    free(r->user);
    free(r->reason_code);
    free(r->reason);
    free(r->spec);
    free(r->plan);
    free(r->exit);
    free(r->checkpoint_node);
    free(r->checkpoint_share);
    *r = (struct job_row){0};
}

void db_job_done(void *row)
{
    job_row_done(row);
}

/* ---- reading a row ---- */

void db_job_read_slim(struct stmt *q, void *row)
{
    struct job_row *r = row;
    *r = (struct job_row){.seq = stmt_get_int(q)};
    r->id = stmt_get_text(q);
    r->name = stmt_get_text(q);
    r->user = stmt_get_text(q);
    r->state = (enum job_state)stmt_get_int(q);
    r->reason_code = stmt_get_text(q);
    r->reason = stmt_get_text(q);
    r->priority = stmt_get_int(q);
    r->devices = stmt_get_int(q);
    r->device_kind = (int)stmt_get_int(q);
    r->memory = stmt_get_int(q);
    r->submitted_us = stmt_get_int(q);
    r->started_us = stmt_get_int(q);
    r->finished_us = stmt_get_int(q);
    r->attempt = stmt_get_int(q);
    r->epoch = stmt_get_int(q);
    r->step = stmt_get_int(q);
    r->steps = stmt_get_int(q);
    r->exit = stmt_get_text(q);
    r->version = stmt_get_int(q);
    r->moved_us = stmt_get_int(q);
    r->keep = stmt_get_int(q);
    r->max_restarts = stmt_get_int(q);
    r->restarts = stmt_get_int(q);
    r->failed_starts = stmt_get_int(q);
    r->saved = (int)stmt_get_int(q);
    r->trains = (int)stmt_get_int(q);
    r->checkpoint_step = stmt_get_int(q);
    r->checkpoint_node = stmt_get_text(q);
    r->checkpoint_share = stmt_get_text(q);
    r->plan = stmt_get_text(q);
}

static int no_such_job(const char *id, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no job %.60s", id);
}

void db_job_remember(struct store *s, const char *id, int64_t seq)
{
    size_t n = strlen(id);
    if (n >= sizeof s->memo_id)
        return;
    memcpy(s->memo_id, id, n + 1);
    s->memo_seq = seq;
}

int db_job_seq(struct store *s, const char *id, int64_t *ret, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t seq = 0;
    int r = db_turn_check(s, e);
    if (r == 0 && s->memo_seq != 0 && strcmp(s->memo_id, id) == 0) {
        *ret = s->memo_seq;
        return 0;
    }
    if (r == 0)
        r = stmt_read(&q, s, "SELECT seq FROM jobs WHERE id = ?", e);
    if (r < 0)
        return r;
    stmt_text(&q, id);
    r = stmt_one_int(&q, &seq, e);
    if (r <= 0)
        return r < 0 ? r : no_such_job(id, e);
    db_job_remember(s, id, seq);
    *ret = seq;
    return 0;
}

int store_job_get(struct store *s, const char *id, struct job_row *ret, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_read(&q, s, "SELECT " JOB_SLIM ", d.spec " JOB_FROM "WHERE j.id = ?", e);
    if (r < 0)
        return r;
    stmt_text(&q, id);
    r = stmt_step(&q, e);
    if (r <= 0)
        return r < 0 ? r : no_such_job(id, e);
    db_job_read_slim(&q, ret);
    ret->spec = stmt_get_text(&q);
    return 0;
}

/* ---- the sums ---- */
static int count_state(struct store *s, enum job_state state, int by, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(&q, s, "UPDATE job_counts SET n = n + ? WHERE state = ?", e);
    if (r < 0)
        return r;
    stmt_int(&q, by);
    stmt_int(&q, state);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}

int store_job_count(struct store *s, int64_t counts[JOB_STATE__MAX], struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t n[JOB_STATE__MAX] = {0};
    int r = stmt_read(&q, s, "SELECT state, n FROM job_counts LIMIT 8", e);
    if (r < 0)
        return r;
    while ((r = stmt_step(&q, e)) == 1) {
        int64_t state = stmt_get_int(&q);
        if (state >= 0 && state < JOB_STATE__MAX)
            n[state] = stmt_get_int(&q);
    }
    if (r == 0)
        memcpy(counts, n, sizeof n);
    return r;
}

/* ---- inserting ---- */
static const char insert_job[] =
    "INSERT INTO jobs (id, name, user, state, reason_code, reason, priority, devices, device_kind,"
    " memory, submitted_us, started_us, finished_us, attempt, epoch, step, steps, exit, moved_us,"
    " keep, max_restarts, restarts, failed_starts, trains, version)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)";

static int insert_slim(struct store *s, const struct job_row *r, int64_t *ret_seq, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(&q, s, insert_job, e);
    if (n < 0)
        return n;
    stmt_text(&q, r->id);
    stmt_text(&q, r->name);
    stmt_text(&q, r->user);
    stmt_int(&q, r->state);
    stmt_text(&q, r->reason_code);
    stmt_text(&q, r->reason);
    stmt_int(&q, r->priority);
    stmt_int(&q, r->devices);
    stmt_int(&q, r->device_kind);
    stmt_int(&q, r->memory);
    stmt_int(&q, r->submitted_us);
    stmt_int(&q, r->started_us);
    stmt_int(&q, r->finished_us);
    stmt_int(&q, r->attempt);
    stmt_int(&q, r->epoch);
    stmt_int(&q, r->step);
    stmt_int(&q, r->steps);
    stmt_text(&q, r->exit);
    stmt_int(&q, r->moved_us);
    stmt_int(&q, r->keep);
    stmt_int(&q, r->max_restarts);
    stmt_int(&q, r->restarts);
    stmt_int(&q, r->failed_starts);
    stmt_int(&q, r->trains);
    n = stmt_run(&q, e);
    if (n == ERR_CONFLICT)
        return err_set(e, n, "there is a job %.60s already", r->id);
    if (n < 0)
        return n;
    *ret_seq = sqlite3_last_insert_rowid(s->db);
    return 0;
}

static int insert_documents(struct store *s, int64_t seq, const struct job_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(&q, s, "INSERT INTO job_documents (job, plan, spec) VALUES (?, ?, ?)", e);
    if (n < 0)
        return n;
    stmt_int(&q, seq);
    stmt_text(&q, r->plan);
    stmt_text(&q, r->spec);
    n = stmt_run(&q, e);
    return n < 0 ? n : 0;
}

/* Checked before the first row is written, so that a refused job leaves no part of itself. */
static int check_documents(const struct job_row *r, struct err *e)
{
    if (!r->spec || !r->plan)
        return err_set(e, ERR_INVALID, "job %.60s has no %s", r->id, r->spec ? "plan" : "spec");
    size_t bytes = strlen(r->spec) + strlen(r->plan);
    if (bytes > STORE_TEXT_MAX)
        return err_set(e, ERR_TOO_LARGE, "spec and plan of job %.60s are %zu bytes; the most is %d",
                       r->id, bytes, STORE_TEXT_MAX);
    return 0;
}

int store_job_insert(struct store *s, const struct job_row *r, int64_t *ret_seq, struct err *e)
{
    int64_t seq = 0;
    int n = check_documents(r, e);
    if (n == 0)
        n = insert_slim(s, r, &seq, e);
    if (n < 0)
        return n;
    if (seq < s->new_from)
        s->new_from = seq;
    db_job_remember(s, r->id, seq);
    n = insert_documents(s, seq, r, e);
    if (n == 0)
        n = count_state(s, r->state, 1, e);
    if (n < 0)
        return n;
    if (ret_seq)
        *ret_seq = seq;
    return 0;
}

/* ---- moving ---- */
struct standing {
    int64_t seq, state;
};

static int job_standing(struct store *s, const char *id, struct standing *ret, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_read(&q, s, "SELECT seq, state FROM jobs WHERE id = ?", e);
    if (r < 0)
        return r;
    stmt_text(&q, id);
    r = stmt_step(&q, e);
    if (r <= 0)
        return r < 0 ? r : no_such_job(id, e);
    ret->seq = stmt_get_int(&q);
    ret->state = stmt_get_int(&q);
    return 0;
}

int store_job_state(struct store *s, const char *id, enum job_state *ret, struct err *e)
{
    struct standing is = {0};
    int r = job_standing(s, id, &is, e);
    if (r == 0)
        *ret = (enum job_state)is.state;
    return r;
}

static const char move_job[] =
    "UPDATE jobs SET state = ?, reason_code = ?, reason = ?, submitted_us = ?, started_us = ?,"
    " finished_us = ?, attempt = ?, exit = ?, moved_us = ?, restarts = ?, failed_starts = ?,"
    " version = version + 1 WHERE seq = ?";
/* Of a job whose state stays: no index needs to change. */
static const char restate_job[] =
    "UPDATE jobs SET reason_code = ?, reason = ?, submitted_us = ?, started_us = ?,"
    " finished_us = ?, attempt = ?, exit = ?, moved_us = ?, restarts = ?, failed_starts = ?,"
    " version = version + 1 WHERE seq = ?";

static int move_slim(struct store *s, const struct job_row *r, int64_t seq, int stays,
                     struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(&q, s, stays ? restate_job : move_job, e);
    if (n < 0)
        return n;
    if (!stays)
        stmt_int(&q, r->state);
    stmt_text(&q, r->reason_code);
    stmt_text(&q, r->reason);
    stmt_int(&q, r->submitted_us);
    stmt_int(&q, r->started_us);
    stmt_int(&q, r->finished_us);
    stmt_int(&q, r->attempt);
    stmt_text(&q, r->exit);
    stmt_int(&q, r->moved_us);
    stmt_int(&q, r->restarts);
    stmt_int(&q, r->failed_starts);
    stmt_int(&q, seq);
    n = stmt_run(&q, e);
    return n < 0 ? n : 0;
}

static int move_labels(struct store *s, int64_t seq, enum job_state to, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(&q, s, "UPDATE job_labels SET state = ? WHERE job = ?", e);
    if (r < 0)
        return r;
    stmt_int(&q, to);
    stmt_int(&q, seq);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}

int store_job_move(struct store *s, const struct job_row *r, enum job_state from, struct err *e)
{
    struct standing is = {0};
    int n = job_standing(s, r->id, &is, e);
    if (n < 0)
        return n;
    if (is.state != (int64_t)from)
        return err_set(e, ERR_CONFLICT, "job %.60s is %s, not %s", r->id,
                       job_state_name((enum job_state)is.state), job_state_name(from));
    int stays = r->state == from;
    n = move_slim(s, r, is.seq, stays, e);
    if (n < 0 || stays)
        return n;
    n = move_labels(s, is.seq, r->state, e);
    if (n == 0)
        n = count_state(s, from, -1, e);
    if (n == 0)
        n = count_state(s, r->state, 1, e);
    return n;
}

int store_job_progress(struct store *s, const char *id, int64_t epoch, int64_t step, int64_t steps,
                       struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t seq = 0;
    int r = db_job_seq(s, id, &seq, e);
    if (r == 0)
        r = stmt_write(&q, s,
                       "UPDATE jobs SET epoch = ?1, step = ?2, steps = ?3, version = version + 1"
                       " WHERE seq = ?4 AND (epoch, step, steps) IS NOT (?1, ?2, ?3)",
                       e);
    if (r < 0)
        return r;
    stmt_int(&q, epoch);
    stmt_int(&q, step);
    stmt_int(&q, steps);
    stmt_int(&q, seq);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}
