/* stmt.c: prepared statements, found again by the address of their SQL.
 *
 * The table is open addressing over STORE_STATEMENTS slots. A statement is reset and its parameters
 * cleared whenever its query is closed, so none keeps a read transaction open and none keeps a
 * borrowed string.
 */
#include "storage/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct statement *find_slot(struct store *s, const char *sql)
{
    size_t i = (size_t)((uintptr_t)sql * 0x9e3779b97f4a7c15u >> 40);
    for (;; i++) {
        struct statement *slot = &s->statements[i % STORE_STATEMENTS];
        if (slot->sql == sql || !slot->sql)
            return slot;
    }
}

static int statement_get(struct store *s, const char *sql, sqlite3_stmt **ret)
{
    struct statement *slot = find_slot(s, sql);
    if (!slot->sql) {
        if (s->statement_count >= STORE_STATEMENTS / 4 * 3)
            BUG("more than %zu statements: raise STORE_STATEMENTS", s->statement_count);
        int rc = sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &slot->st, NULL);
        if (rc == SQLITE_ERROR)
            BUG("%s: in %s", sqlite3_errmsg(s->db), sql);
        if (rc != SQLITE_OK)
            return rc;
        slot->sql = sql;
        s->statement_count++;
    }
    *ret = slot->st;
    return SQLITE_OK;
}

int stmt_fixed(struct store *s, const char *sql)
{
    sqlite3_stmt *st;
    int rc = statement_get(s, sql, &st);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_step(st);
    return sqlite3_reset(st);
}

void stmt_finalize_all(struct store *s)
{
    for (size_t i = 0; i < STORE_STATEMENTS; i++) {
        sqlite3_finalize(s->statements[i].st);
        s->statements[i] = (struct statement){0};
    }
    s->statement_count = 0;
}

static int stmt_open(struct stmt *q, struct store *s, const char *sql, struct err *e)
{
    int rc = statement_get(s, sql, &q->st);
    q->store = s;
    return rc == SQLITE_OK ? 0 : db_turn_error(s, rc, e);
}

int stmt_read(struct stmt *q, struct store *s, const char *sql, struct err *e)
{
    stmt_close(q);
    int r = db_turn_check(s, e);
    return r < 0 ? r : stmt_open(q, s, sql, e);
}

int stmt_write(struct stmt *q, struct store *s, const char *sql, struct err *e)
{
    stmt_close(q);
    int r = db_turn_begin(s, e);
    if (r < 0)
        return r;
    q->writes = 1;
    return stmt_open(q, s, sql, e);
}

void stmt_close(struct stmt *q)
{
    if (q->st) {
        sqlite3_reset(q->st);
        if (q->parameter > 0)
            sqlite3_clear_bindings(q->st);
    }
    *q = (struct stmt){0};
}

static void note_bind(struct stmt *q, int rc)
{
    if (rc != SQLITE_OK && q->bind_error == SQLITE_OK)
        q->bind_error = rc;
}

void stmt_text(struct stmt *q, const char *v)
{
    if (v)
        note_bind(q, sqlite3_bind_text(q->st, ++q->parameter, v, -1, SQLITE_STATIC));
    else
        note_bind(q, sqlite3_bind_null(q->st, ++q->parameter));
}

void stmt_int(struct stmt *q, int64_t v)
{
    note_bind(q, sqlite3_bind_int64(q->st, ++q->parameter, v));
}

void stmt_real(struct stmt *q, double v)
{
    note_bind(q, sqlite3_bind_double(q->st, ++q->parameter, v));
}

static int step_failed(struct stmt *q, int rc, struct err *e)
{
    struct store *s = q->store;
    if (rc == SQLITE_RANGE || rc == SQLITE_MISUSE)
        BUG("a parameter that the statement does not have: %s", sqlite3_sql(q->st));
    int r = db_turn_error(s, rc, e);
    stmt_close(q);
    return r;
}

int stmt_step(struct stmt *q, struct err *e)
{
    if (q->bind_error != SQLITE_OK)
        return step_failed(q, q->bind_error, e);
    int rc = sqlite3_step(q->st);
    q->column = -1;
    if (rc == SQLITE_ROW)
        return 1;
    if (rc != SQLITE_DONE)
        return step_failed(q, rc, e);
    if (q->writes && sqlite3_changes(q->store->db) > 0)
        q->store->writes++;
    return 0;
}

int stmt_run(struct stmt *q, struct err *e)
{
    sqlite3 *db = q->store->db;
    int r = stmt_step(q, e);
    while (r == 1)
        r = stmt_step(q, e);
    stmt_close(q);
    return r < 0 ? r : sqlite3_changes(db);
}

int stmt_one_int(struct stmt *q, int64_t *ret, struct err *e)
{
    int r = stmt_step(q, e);
    if (r == 1)
        *ret = stmt_get_int(q);
    stmt_close(q);
    return r;
}

char *stmt_get_text(struct stmt *q)
{
    int i = ++q->column;
    const char *text = (const char *)sqlite3_column_text(q->st, i);
    if (!text)
        return NULL;
    return mem_strndup(text, (size_t)sqlite3_column_bytes(q->st, i));
}

int64_t stmt_get_int(struct stmt *q)
{
    return sqlite3_column_int64(q->st, ++q->column);
}

double stmt_get_real(struct stmt *q)
{
    int i = ++q->column;
    if (sqlite3_column_type(q->st, i) == SQLITE_NULL)
        return NAN;
    return sqlite3_column_double(q->st, i);
}

int stmt_rows(struct stmt *q, int limit, void *rows, size_t row_size,
              void (*read)(struct stmt *q, void *row), void (*done)(void *row), struct err *e)
{
    char *base = rows;
    int n = 0, r = 0;
    while (n < limit && (r = stmt_step(q, e)) == 1)
        read(q, base + row_size * (size_t)n++);
    stmt_close(q);
    if (r >= 0)
        return n;
    while (n > 0 && done)
        done(base + row_size * (size_t)--n);
    return r;
}

int db_limit_check(int limit, int max, struct err *e)
{
    if (limit >= 1 && limit <= max)
        return 0;
    return err_set(e, ERR_INVALID, "a limit of %d rows was asked for; it must be 1 to %d", limit,
                   max);
}
