/* events.c: the append-only truth. Written once, never changed; a reader goes on from the last seq
 * it has seen. */
#include "storage/internal.h"

#include <stdlib.h>

#define LIST_MAX 1000

void event_row_done(struct event_row *r)
{
    free(r->type);
    free(r->job_id);
    free(r->node);
    free(r->data);
    *r = (struct event_row){0};
}

static void event_done(void *row)
{
    event_row_done(row);
}

static void event_read(struct stmt *q, void *row)
{
    struct event_row *r = row;
    r->seq = stmt_get_int(q);
    r->time_us = stmt_get_int(q);
    r->type = stmt_get_text(q);
    r->job_id = stmt_get_text(q);
    r->node = stmt_get_text(q);
    r->data = stmt_get_text(q);
}

int store_event_append(struct store *s, const struct event_row *r, int64_t *ret_seq, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int n = stmt_write(
        &q, s, "INSERT INTO events (time_us, type, job_id, node, data) VALUES (?, ?, ?, ?, ?)", e);
    if (n < 0)
        return n;
    stmt_int(&q, r->time_us);
    stmt_text(&q, r->type);
    stmt_text(&q, r->job_id);
    stmt_text(&q, r->node);
    stmt_text(&q, r->data);
    n = stmt_run(&q, e);
    if (n < 0)
        return n;
    if (ret_seq)
        *ret_seq = sqlite3_last_insert_rowid(s->db);
    return 0;
}

static const char list_all[] = "SELECT seq, time_us, type, job_id, node, data FROM events"
                               " WHERE seq > ? ORDER BY seq LIMIT ?";
static const char list_of_job[] = "SELECT seq, time_us, type, job_id, node, data FROM events"
                                  " WHERE job_id = ? AND seq > ? ORDER BY seq LIMIT ?";

int store_event_list(struct store *s, const char *job_id, int64_t after, int limit,
                     struct event_row *rows, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(limit, LIST_MAX, e);
    if (r == 0)
        r = stmt_read(&q, s, job_id ? list_of_job : list_all, e);
    if (r < 0)
        return r;
    if (job_id)
        stmt_text(&q, job_id);
    stmt_int(&q, after);
    stmt_int(&q, limit);
    return stmt_rows(&q, limit, rows, sizeof *rows, event_read, event_done, e);
}
