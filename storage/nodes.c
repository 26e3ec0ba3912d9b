/* nodes.c: nodes as they last described themselves. */
#include "storage/internal.h"

#include <stdlib.h>

#define LIST_MAX 10000

void node_row_done(struct node_row *r)
{
    free(r->name);
    free(r->boot_id);
    free(r->version);
    free(r->devices);
    *r = (struct node_row){0};
}

static void node_done(void *row)
{
    node_row_done(row);
}

#define SELECT_NODE "SELECT name, boot_id, version, devices, joined_us, seen_us FROM nodes "

static void node_read(struct stmt *q, void *row)
{
    struct node_row *r = row;
    r->name = stmt_get_text(q);
    r->boot_id = stmt_get_text(q);
    r->version = stmt_get_text(q);
    r->devices = stmt_get_text(q);
    r->joined_us = stmt_get_int(q);
    r->seen_us = stmt_get_int(q);
}

/* An upsert, for REPLACE would delete the row that attempts and leases refer to. */
int store_node_put(struct store *s, const struct node_row *r, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(&q, s,
                       "INSERT INTO nodes (name, boot_id, version, devices, joined_us, seen_us)"
                       " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                       " (boot_id, version, devices, joined_us, seen_us) = (excluded.boot_id,"
                       " excluded.version, excluded.devices, excluded.joined_us, excluded.seen_us)",
                       e);
    if (n < 0)
        return n;
    stmt_text(&q, r->name);
    stmt_text(&q, r->boot_id);
    stmt_text(&q, r->version);
    stmt_text(&q, r->devices);
    stmt_int(&q, r->joined_us);
    stmt_int(&q, r->seen_us);
    n = stmt_run(&q, e);
    return n < 0 ? n : 0;
}

int store_node_list(struct store *s, const char *after_name, int limit, struct node_row *rows,
                    struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = stmt_read(&q, s, SELECT_NODE "WHERE name > ? ORDER BY name LIMIT ?", e);
    if (r < 0)
        return r;
    stmt_text(&q, after_name ? after_name : "");
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, node_read, node_done, e);
}
