/* leases.c: who owns which device. A lease is a row; the partial unique index leases_one_owner
 * makes a second owner impossible to write, whatever the scheduler believes. A released row stays
 * as history. */
#include "storage/internal.h"

#include <inttypes.h>
#include <stdlib.h>

#define LIST_MAX 100000

void lease_row_done(struct lease_row *r)
{
    free(r->node);
    free(r->attempt_id);
    *r = (struct lease_row){0};
}

static void lease_done(void *row)
{
    lease_row_done(row);
}

static void lease_read(struct stmt *q, void *row)
{
    struct lease_row *r = row;
    r->node = stmt_get_text(q);
    r->device = stmt_get_int(q);
    r->attempt_id = stmt_get_text(q);
    r->rank = stmt_get_int(q);
}

static int refuse_taken(struct store *s, const struct lease_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_read(&q, s,
                      "SELECT attempt_id FROM leases"
                      " WHERE node = ? AND device = ? AND released_us IS NULL",
                      e);
    if (n < 0)
        return n;
    stmt_text(&q, r->node);
    stmt_int(&q, r->device);
    n = stmt_step(&q, e);
    if (n < 0)
        return n;
    if (n == 0)
        return err_set(e, ERR_CONFLICT, "rank %" PRId64 " of attempt %.60s has a device already",
                       r->rank, r->attempt_id);
    CLEANUP(mem_freep) char *owner = stmt_get_text(&q);
    return err_set(e, ERR_CONFLICT, "device %" PRId64 " of node %.60s is leased to attempt %.60s",
                   r->device, r->node, owner);
}

int store_lease_take(struct store *s, const struct lease_row *r, int64_t now_us, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(
        &q, s,
        "INSERT INTO leases (node, device, attempt_id, rank, taken_us) VALUES (?, ?, ?, ?, ?)", e);
    if (n < 0)
        return n;
    stmt_text(&q, r->node);
    stmt_int(&q, r->device);
    stmt_text(&q, r->attempt_id);
    stmt_int(&q, r->rank);
    stmt_int(&q, now_us);
    n = stmt_run(&q, e);
    if (n == ERR_CONFLICT)
        return refuse_taken(s, r, e);
    if (n == ERR_NOT_FOUND)
        return err_set(e, n, "a lease names attempt %.60s and node %.60s; one does not exist",
                       r->attempt_id, r->node);
    return n < 0 ? n : 0;
}

int store_lease_release(struct store *s, const char *attempt_id, int64_t now_us, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(
        &q, s, "UPDATE leases SET released_us = ? WHERE attempt_id = ? AND released_us IS NULL", e);
    if (r < 0)
        return r;
    stmt_int(&q, now_us);
    stmt_text(&q, attempt_id);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}

static const char live_all[] = "SELECT node, device, attempt_id, rank FROM leases"
                               " WHERE released_us IS NULL ORDER BY node, device LIMIT ?";
static const char live_of_node[] =
    "SELECT node, device, attempt_id, rank FROM leases"
    " WHERE released_us IS NULL AND node = ? ORDER BY node, device LIMIT ?";
static const char of_attempt[] = "SELECT node, device, attempt_id, rank FROM leases"
                                 " WHERE attempt_id = ? ORDER BY rank LIMIT ?";

static int list(struct store *s, const char *sql, const char *what, int limit,
                struct lease_row *rows, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = stmt_read(&q, s, sql, e);
    if (r < 0)
        return r;
    if (what)
        stmt_text(&q, what);
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, lease_read, lease_done, e);
}

int store_lease_live(struct store *s, const char *node, int limit, struct lease_row *rows,
                     struct err *e)
{
    return list(s, node ? live_of_node : live_all, node, limit, rows, e);
}

int store_lease_of(struct store *s, const char *attempt_id, int limit, struct lease_row *rows,
                   struct err *e)
{
    return list(s, of_attempt, attempt_id, limit, rows, e);
}
