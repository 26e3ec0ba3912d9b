/* devices.c: what is known of nodes and devices beyond what they say of themselves: who has drained
 * them, and when a device failed. */
#include "storage/internal.h"

#include <stdlib.h>

#define LIST_MAX 10000

void drain_row_done(struct drain_row *r)
{
    free(r->node);
    free(r->device);
    free(r->reason);
    free(r->by);
    *r = (struct drain_row){0};
}

static void drain_done(void *row)
{
    drain_row_done(row);
}

static int no_such_node(const char *node, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no node %.60s", node);
}

int store_drain_put(struct store *s, const struct drain_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(
        &q, s, "REPLACE INTO drains (node, device, reason, asked_by, at_us) VALUES (?, ?, ?, ?, ?)",
        e);
    if (n < 0)
        return n;
    stmt_text(&q, r->node);
    stmt_text(&q, r->device);
    stmt_text(&q, r->reason);
    stmt_text(&q, r->by);
    stmt_int(&q, r->at_us);
    n = stmt_run(&q, e);
    if (n == ERR_NOT_FOUND)
        return no_such_node(r->node, e);
    return n < 0 ? n : 0;
}

/* Runs a DELETE of (node, device); the number of rows. */
static int drop(struct store *s, const char *sql, const char *node, const char *device,
                struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = stmt_write(&q, s, sql, e);
    if (r < 0)
        return r;
    stmt_text(&q, node);
    stmt_text(&q, device);
    return stmt_run(&q, e);
}

int store_drain_drop(struct store *s, const char *node, const char *device, struct err *e)
{
    return drop(s, "DELETE FROM drains WHERE node = ? AND device = ?", node, device, e);
}

static void drain_read(struct stmt *q, void *row)
{
    struct drain_row *r = row;
    *r = (struct drain_row){.node = stmt_get_text(q)};
    r->device = stmt_get_text(q);
    r->reason = stmt_get_text(q);
    r->by = stmt_get_text(q);
    r->at_us = stmt_get_int(q);
}

int store_drain_list(struct store *s, const char *node, int limit, struct drain_row *rows,
                     struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = stmt_read(&q, s,
                      "SELECT node, device, reason, asked_by, at_us FROM drains WHERE node = ?"
                      " ORDER BY device LIMIT ?",
                      e);
    if (r < 0)
        return r;
    stmt_text(&q, node);
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, drain_read, drain_done, e);
}

/* ---- failures ---- */
static int forget_before(struct store *s, const char *node, const char *device, int64_t since_us,
                         struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(
        &q, s, "DELETE FROM device_failures WHERE node = ? AND device = ? AND at_us < ?", e);
    if (n < 0)
        return n;
    stmt_text(&q, node);
    stmt_text(&q, device);
    stmt_int(&q, since_us);
    n = stmt_run(&q, e);
    return n < 0 ? n : 0;
}

static int note_failure(struct store *s, const char *node, const char *device, int64_t at_us,
                        struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n =
        stmt_write(&q, s, "INSERT INTO device_failures (node, device, at_us) VALUES (?, ?, ?)", e);
    if (n < 0)
        return n;
    stmt_text(&q, node);
    stmt_text(&q, device);
    stmt_int(&q, at_us);
    n = stmt_run(&q, e);
    if (n == ERR_NOT_FOUND)
        return no_such_node(node, e);
    return n < 0 ? n : 0;
}

int store_device_failed(struct store *s, const char *node, const char *device, int64_t at_us,
                        int64_t since_us, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int64_t count = 0;
    int r = forget_before(s, node, device, since_us, e);
    if (r == 0)
        r = note_failure(s, node, device, at_us, e);
    if (r == 0)
        r = stmt_read(&q, s, "SELECT count(*) FROM device_failures WHERE node = ? AND device = ?",
                      e);
    if (r < 0)
        return r;
    stmt_text(&q, node);
    stmt_text(&q, device);
    r = stmt_one_int(&q, &count, e);
    return r < 0 ? r : (int)count;
}

int store_device_forgive(struct store *s, const char *node, const char *device, struct err *e)
{
    int n = drop(s, "DELETE FROM device_failures WHERE node = ? AND device = ?", node, device, e);
    return n < 0 ? n : 0;
}
