/* internal.h: what the files of this room share: the struct, and statements as short readable code.
 *
 * A statement is named by its SQL text, a string literal at the place that runs it. It is prepared
 * once, kept, and found again by the literal's address. Parameters are bound and columns read in
 * order, without numbers to get wrong:
 *
 *     CLEANUP(stmt_close) struct stmt q = {0};
 *     int r = stmt_read(&q, s, "SELECT name FROM jobs WHERE id = ?", e);
 *     if (r < 0)
 *         return r;
 *     stmt_text(&q, id);
 *     r = stmt_step(&q, e);              1: a row, 0: no more, negative: failed
 *     if (r == 1)
 *         name = stmt_get_text(&q);
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

/* ---- stmt.c ---- */
struct stmt {
    struct store *store;
    sqlite3_stmt *st;
    int parameter, column; /* the last one used */
    int bind_error;        /* first failure to bind, told by stmt_step() */
    int writes;
};

/* Both fail if the turn has failed. stmt_write() opens the turn's transaction. */
int stmt_read(struct stmt *q, struct store *s, const char *sql, struct err *e);
int stmt_write(struct stmt *q, struct store *s, const char *sql, struct err *e);
void stmt_close(struct stmt *q); /* may be repeated */

void stmt_text(struct stmt *q, const char *v); /* NULL is NULL; borrowed until stmt_close() */
void stmt_int(struct stmt *q, int64_t v);
void stmt_real(struct stmt *q, double v); /* NaN becomes NULL */

int stmt_step(struct stmt *q, struct err *e);
/* Steps a write to its end; returns the number of rows that it changed. */
int stmt_run(struct stmt *q, struct err *e);
/* For one value: 1 and the first column in *ret, or 0 and *ret as it was. */
int stmt_one_int(struct stmt *q, int64_t *ret, struct err *e);

char *stmt_get_text(struct stmt *q); /* yours to free; NULL for NULL */
int64_t stmt_get_int(struct stmt *q);
double stmt_get_real(struct stmt *q); /* NULL becomes NaN */

/* A statement without parameters or rows; SQLite's own result, SQLITE_OK for done. */
int stmt_fixed(struct store *s, const char *sql);
void stmt_finalize_all(struct store *s);

/* Fills rows[0..limit) from `q` by `read`, closes `q`; the number, or negative with none kept. */
int stmt_rows(struct stmt *q, int limit, void *rows, size_t row_size,
              void (*read)(struct stmt *q, void *row), void (*done)(void *row), struct err *e);
int db_limit_check(int limit, int max, struct err *e);

/* ---- turn.c ---- */
int db_turn_check(const struct store *s, struct err *e); /* 0, or the failure that stands */
int db_turn_begin(struct store *s, struct err *e);
/* SQLite's result as ours. Fails the turn where its transaction cannot go on. */
int db_turn_error(struct store *s, int rc, struct err *e);
void db_turn_watch_log(struct store *s); /* installs the hook that counts the log's frames */

/* ---- walbuf.c ---- */
const char *db_walbuf_vfs(void); /* registered at the first call; its name */

/* ---- schema.c ---- */
int db_schema_migrate(struct store *s, struct err *e);
/* Refuses another application's database and a newer schema. *ret_empty: nothing is in it yet. */
int db_schema_recognise(struct store *s, int *ret_empty, struct err *e);
int db_schema_quick_check(struct store *s, struct err *e);
int db_schema_check_tables(struct store *s, struct err *e); /* its part for a large database */
int db_exec(struct store *s, const char *sql, struct err *e);
/* The first column of the first row; a text is yours to free, "" for NULL. */
int db_text(struct store *s, const char *sql, char **ret, struct err *e);
int db_int(struct store *s, const char *sql, int64_t *ret, struct err *e);

/* ---- jobs.c ---- */
int db_job_seq(struct store *s, const char *id, int64_t *ret, struct err *e); /* or ERR_NOT_FOUND */
void db_job_remember(struct store *s, const char *id, int64_t seq); /* for the next db_job_seq() */

/* A row without its spec: select JOB_SLIM JOB_FROM, and read with these. */
#define JOB_SLIM                                                                                   \
    "j.seq, j.id, j.name, j.user, j.state, j.reason_code, j.reason, j.priority, j.devices, "       \
    "j.device_kind, j.memory, j.submitted_us, j.started_us, j.finished_us, j.attempt, j.epoch, "   \
    "j.step, j.steps, j.exit, j.version, j.moved_us, j.keep, j.max_restarts, j.restarts, "         \
    "j.failed_starts, j.saved, j.trains, ifnull(k.step, -1), k.node, k.share, d.plan "
#define JOB_FROM                                                                                   \
    "FROM jobs j JOIN job_documents d ON d.job = j.seq LEFT JOIN checkpoints k ON k.job = j.seq "  \
    "AND k.step = (SELECT max(step) FROM checkpoints WHERE job = j.seq) "
void db_job_read_slim(struct stmt *q, void *row);
void db_job_done(void *row);

/* ---- files.c ---- */
/* Makes every file of an attempt durable; called when the attempt's end is written. */
int db_files_sync(struct store *s, const char *job_id, int64_t attempt, struct err *e);

#endif
