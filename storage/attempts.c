/* attempts.c: tries at running a job. What is not over is found through a partial index that holds
 * only that, however long the history grows; the same kind of index forbids two live attempts on
 * one port of a node. */
#include "storage/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 100000

static const char *const state_names[] = {
    [ATTEMPT_LAUNCHING] = "launching",
    [ATTEMPT_RUNNING] = "running",
    [ATTEMPT_STOPPING] = "stopping",
    [ATTEMPT_ENDED] = "ended",
};
_Static_assert(ARRAY_LEN(state_names) == ATTEMPT_STATE__MAX, "every state has a name");

const char *attempt_state_name(enum attempt_state s)
{
    return (unsigned)s < ATTEMPT_STATE__MAX ? state_names[s] : "unknown";
}

void attempt_row_done(struct attempt_row *r)
{
    free(r->id);
    free(r->job_id);
    free(r->node);
    free(r->secret);
    free(r->stop_code);
    free(r->stop_reason);
    free(r->boot_id);
    free(r->exit);
    *r = (struct attempt_row){0};
}

static void attempt_done(void *row)
{
    attempt_row_done(row);
}

#define SELECT_ATTEMPT                                                                             \
    "SELECT id, job_id, number, epoch, node, state, port, secret, stop_code, stop_reason, "        \
    "boot_id, created_us, started_us, ended_us, report_offset, exit FROM attempts "

static void attempt_read(struct stmt *q, void *row)
{
    struct attempt_row *r = row;
    r->id = stmt_get_text(q);
    r->job_id = stmt_get_text(q);
    r->number = stmt_get_int(q);
    r->epoch = stmt_get_int(q);
    r->node = stmt_get_text(q);
    r->state = (enum attempt_state)stmt_get_int(q);
    r->port = stmt_get_int(q);
    r->secret = stmt_get_text(q);
    r->stop_code = stmt_get_text(q);
    r->stop_reason = stmt_get_text(q);
    r->boot_id = stmt_get_text(q);
    r->created_us = stmt_get_int(q);
    r->started_us = stmt_get_int(q);
    r->ended_us = stmt_get_int(q);
    r->report_offset = stmt_get_int(q);
    r->exit = stmt_get_text(q);
}

static const char insert_attempt[] =
    "INSERT INTO attempts (id, job_id, number, epoch, node, state, port, secret, stop_code,"
    " stop_reason, boot_id, created_us, started_us, ended_us, report_offset, exit)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

int store_attempt_insert(struct store *s, const struct attempt_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(&q, s, insert_attempt, e);
    if (n < 0)
        return n;
    stmt_text(&q, r->id);
    stmt_text(&q, r->job_id);
    stmt_int(&q, r->number);
    stmt_int(&q, r->epoch);
    stmt_text(&q, r->node);
    stmt_int(&q, r->state);
    stmt_int(&q, r->port);
    stmt_text(&q, r->secret);
    stmt_text(&q, r->stop_code);
    stmt_text(&q, r->stop_reason);
    stmt_text(&q, r->boot_id);
    stmt_int(&q, r->created_us);
    stmt_int(&q, r->started_us);
    stmt_int(&q, r->ended_us);
    stmt_int(&q, r->report_offset);
    stmt_text(&q, r->exit);
    n = stmt_run(&q, e);
    if (n == ERR_CONFLICT)
        return err_set(e, n,
                       "attempt %.60s cannot be stored: its id, its number %" PRId64
                       " within the job, its epoch %" PRId64 ", or port %" PRId64
                       " of node %.60s is taken",
                       r->id, r->number, r->epoch, r->port, r->node);
    if (n == ERR_NOT_FOUND)
        return err_set(e, n, "attempt %.60s names job %.60s and node %.60s; one does not exist",
                       r->id, r->job_id, r->node);
    return n < 0 ? n : 0;
}

static int read_one(struct stmt *q, struct attempt_row *ret, struct err *e)
{
    struct attempt_row row = {0};
    int n = stmt_rows(q, 1, &row, sizeof row, attempt_read, attempt_done, e);
    if (n == 1)
        *ret = row;
    return n;
}

int store_attempt_get(struct store *s, const char *id, struct attempt_row *ret, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_read(&q, s, SELECT_ATTEMPT "WHERE id = ?", e);
    if (r < 0)
        return r;
    stmt_text(&q, id);
    r = read_one(&q, ret, e);
    if (r == 0)
        return err_set(e, ERR_NOT_FOUND, "there is no attempt %.60s", id);
    return r < 0 ? r : 0;
}

int store_attempt_latest(struct store *s, const char *job_id, struct attempt_row *ret,
                         struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_read(&q, s, SELECT_ATTEMPT "WHERE job_id = ? ORDER BY number DESC LIMIT 1", e);
    if (r < 0)
        return r;
    stmt_text(&q, job_id);
    r = read_one(&q, ret, e);
    if (r == 0)
        return err_set(e, ERR_NOT_FOUND, "job %.60s has had no attempt", job_id);
    return r < 0 ? r : 0;
}

static int same_text(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

/* Refuses a row that is not the stored one a while later. *ret_state: as stored. */
static int check_identity(struct store *s, const struct attempt_row *r,
                          enum attempt_state *ret_state, struct err *e)
{
    struct attempt_row is = {0};
    int n = store_attempt_get(s, r->id, &is, e);
    if (n < 0)
        return n;
    int same = same_text(is.job_id, r->job_id) && is.number == r->number && is.epoch == r->epoch &&
               same_text(is.node, r->node) && same_text(is.secret, r->secret) &&
               is.created_us == r->created_us;
    *ret_state = is.state;
    attempt_row_done(&is);
    if (same)
        return 0;
    return err_set(e, ERR_CONFLICT,
                   "attempt %.60s: its job, number, epoch, node, secret and time of making never "
                   "change, but the row to store has others",
                   r->id);
}

static const char update_attempt[] =
    "UPDATE attempts SET state = ?, port = ?, stop_code = ?, stop_reason = ?, boot_id = ?,"
    " started_us = ?, ended_us = ?, report_offset = ?, exit = ? WHERE id = ?";

/* Its files are made durable first: once the end is stored, the agent may delete its copies. */
int store_attempt_update(struct store *s, const struct attempt_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    enum attempt_state was = ATTEMPT_LAUNCHING;
    int n = check_identity(s, r, &was, e);
    if (n == 0 && r->state == ATTEMPT_ENDED && was != ATTEMPT_ENDED)
        n = db_files_sync(s, r->job_id, r->number, e);
    if (n == 0)
        n = stmt_write(&q, s, update_attempt, e);
    if (n < 0)
        return n;
    stmt_int(&q, r->state);
    stmt_int(&q, r->port);
    stmt_text(&q, r->stop_code);
    stmt_text(&q, r->stop_reason);
    stmt_text(&q, r->boot_id);
    stmt_int(&q, r->started_us);
    stmt_int(&q, r->ended_us);
    stmt_int(&q, r->report_offset);
    stmt_text(&q, r->exit);
    stmt_text(&q, r->id);
    n = stmt_run(&q, e);
    if (n == ERR_CONFLICT)
        return err_set(e, n, "attempt %.60s: port %" PRId64 " of node %.60s is taken", r->id,
                       r->port, r->node);
    return n < 0 ? n : 0;
}

static const char live_all[] = SELECT_ATTEMPT "WHERE state < 3 ORDER BY seq LIMIT ?";
static const char live_of_node[] =
    SELECT_ATTEMPT "WHERE state < 3 AND node = ? ORDER BY seq LIMIT ?";

int store_attempt_live(struct store *s, const char *node, int limit, struct attempt_row *rows,
                       struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = stmt_read(&q, s, node ? live_of_node : live_all, e);
    if (r < 0)
        return r;
    if (node)
        stmt_text(&q, node);
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, attempt_read, attempt_done, e);
}

int store_attempt_list(struct store *s, const char *job_id, int limit, struct attempt_row *rows,
                       struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = stmt_read(&q, s, SELECT_ATTEMPT "WHERE job_id = ? ORDER BY number LIMIT ?", e);
    if (r < 0)
        return r;
    stmt_text(&q, job_id);
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, attempt_read, attempt_done, e);
}

int store_epoch_next(struct store *s, int64_t *ret, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t epoch = 0;
    int r = stmt_write(&q, s, "UPDATE instance SET attempt_epoch = attempt_epoch + 1", e);
    if (r == 0)
        r = stmt_run(&q, e);
    if (r >= 0)
        r = stmt_read(&q, s, "SELECT attempt_epoch FROM instance", e);
    if (r < 0)
        return r;
    r = stmt_one_int(&q, &epoch, e);
    if (r < 0)
        return r;
    *ret = epoch;
    return 0;
}
