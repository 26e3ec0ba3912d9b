/* internal.h: what the files of this room share: the struct, and statements as short readable code.
 *
 * A statement is named by its SQL text, a string literal at the place that runs it. It is prepared
 * once, kept, and found again by the literal's address. Parameters are bound and columns read in
 * order, without numbers to get wrong:
 *
 *     CLEANUP(query_close) struct query q = {0};
 *     int r = query_read(&q, s, "SELECT name FROM jobs WHERE id = ?", e);
 *     if (r < 0)
 *         return r;
 *     query_text(&q, id);
 *     r = query_step(&q, e);              1: a row, 0: no more, negative: failed
 *     if (r == 1)
 *         name = column_text(&q);
 *
 * No statement is ever left open across calls: an open reader would keep the write-ahead log from
 * being reused.
 */
#ifndef TRAINYARD_STORAGE_INTERNAL_H
#define TRAINYARD_STORAGE_INTERNAL_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/id.h"
#include "base/mem.h"
#include "storage/store.h"

#define STORE_STATEMENTS 128 /* slots for distinct SQL texts; a power of two, at most 3/4 used */
#define STORE_MARKS_MAX  8

/* The longest text or document of one column; the HTTP body cap is far below. */
#define STORE_TEXT_MAX (16 << 20)

struct statement {
    const char *sql; /* the literal; NULL: a free slot */
    sqlite3_stmt *st;
};

struct store {
    char *dir;  /* STATE_DIR, resolved */
    char *path; /* of the database: absolute, so that SQLite never takes it for a URI */
    int lock_fd;
    int files_fd; /* STATE_DIR/files */
    sqlite3 *db;
    char instance_id[ID_SIZE];
    int64_t instance_epoch;

    struct statement statements[STORE_STATEMENTS];
    size_t statement_count;

    /* The turn. `failed`: it has been rolled back and everything fails until the caller has heard
     * so from store_commit() or has called store_rollback(). `dead`: nothing works any more. */
    int in_turn;
    int64_t writes;                 /* statements that changed a row and have not been undone */
    int64_t marks[STORE_MARKS_MAX]; /* `writes` when each open mark was set */
    int mark_count;
    struct err failed, dead;

    int64_t wal_frames;    /* in the log after the last commit */
    int64_t checkpoint_at; /* the next turn checkpoints first when wal_frames has reached this */

    int64_t new_from;      /* jobs from this seq on were inserted in this turn */
    char memo_id[ID_SIZE]; /* the job looked up last, so that 5,000 steps cost one look-up */
    int64_t memo_seq;      /* 0: none */
};

/* ---- query.c ---- */
struct query {
    struct store *store;
    sqlite3_stmt *st;
    int parameter, column; /* the last one used */
    int bind_error;        /* first failure to bind, told by query_step() */
    int writes;
};

/* Both fail if the turn has failed. query_write() opens the turn's transaction. */
int query_read(struct query *q, struct store *s, const char *sql, struct err *e);
int query_write(struct query *q, struct store *s, const char *sql, struct err *e);
void query_close(struct query *q); /* may be repeated */

void query_text(struct query *q, const char *v); /* NULL is NULL; borrowed until query_close() */
void query_int(struct query *q, int64_t v);
void query_real(struct query *q, double v); /* NaN becomes NULL */

int query_step(struct query *q, struct err *e);
/* Steps a write to its end; returns the number of rows that it changed. */
int query_run(struct query *q, struct err *e);
/* For one value: 1 and the first column in *ret, or 0 and *ret as it was. */
int query_one_int(struct query *q, int64_t *ret, struct err *e);

char *column_text(struct query *q); /* yours to free; NULL for NULL */
int64_t column_int(struct query *q);
double column_real(struct query *q); /* NULL becomes NaN */

/* A statement without parameters or rows; SQLite's own result, SQLITE_OK for done. */
int statement_run(struct store *s, const char *sql);
void statements_finalize(struct store *s);

/* Fills rows[0..limit) from `q` by `read`, closes `q`; the number, or negative with none kept. */
int query_rows(struct query *q, int limit, void *rows, size_t row_size,
               void (*read)(struct query *q, void *row), void (*done)(void *row), struct err *e);
int limit_check(int limit, int max, struct err *e);

/* ---- turn.c ---- */
int turn_check(const struct store *s, struct err *e); /* 0, or the failure that stands */
int turn_begin(struct store *s, struct err *e);
/* SQLite's result as ours. Fails the turn where its transaction cannot go on. */
int turn_error(struct store *s, int rc, struct err *e);
void turn_watch_log(struct store *s); /* installs the hook that counts the log's frames */

/* ---- schema.c ---- */
int schema_migrate(struct store *s, struct err *e);
/* Refuses another application's database and a newer schema. *ret_empty: nothing is in it yet. */
int schema_recognise(struct store *s, int *ret_empty, struct err *e);
int schema_quick_check(struct store *s, struct err *e);
int sql_exec(struct store *s, const char *sql, struct err *e);
/* The first column of the first row; a text is yours to free. */
int sql_text(struct store *s, const char *sql, char **ret, struct err *e);
int sql_int(struct store *s, const char *sql, int64_t *ret, struct err *e);

/* ---- jobs.c ---- */
int job_seq(struct store *s, const char *id, int64_t *ret, struct err *e); /* or ERR_NOT_FOUND */

/* A row without its spec: select JOB_SLIM JOB_FROM, and read with these. */
#define JOB_SLIM                                                                                   \
    "j.seq, j.id, j.name, j.user, j.state, j.reason_code, j.reason, j.priority, j.devices, "       \
    "j.device_kind, j.memory, j.submitted_us, j.started_us, j.finished_us, j.attempt, j.epoch, "   \
    "j.step, j.steps, j.exit, j.version, d.plan "
#define JOB_FROM "FROM jobs j JOIN job_documents d ON d.job = j.seq "
void job_read_slim(struct query *q, void *row);
void job_done(void *row);

/* ---- files.c ---- */
/* Makes every file of an attempt durable; called when the attempt's end is written. */
int files_sync(struct store *s, const char *job_id, int64_t attempt, struct err *e);

#endif
