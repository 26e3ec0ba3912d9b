/* schema.c: the tables, as numbered migrations, and whether a database is ours and whole.
 *
 * migrations[n] brings schema n to n + 1, in one transaction that also sets user_version and
 * application_id: a crash leaves the old schema or the new one. A migration that has been released
 * is never edited; the next one is appended and STORE_SCHEMA_VERSION raised.
 *
 * `events` is the append-only truth, without foreign keys, for it outlives what it speaks of. The
 * rest are projections. Rows of jobs are kept slim, since a progress report rewrites one: the
 * documents lie in job_documents. What a list filters by is stored beside each label
 * (job_labels.state, .user), so that every filter walks an index in the order of the answer.
 * job_counts is a sum kept up to date, so that counting walks nothing.
 *
 * seq is a plain rowid, which gives one more than the largest there is. Rows at the new end are
 * never deleted, so no number that anybody has seen is given twice.
 */
#include "storage/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

_Static_assert(JOB_PENDING == 0 && JOB_SUSPENDED == 7 && JOB_STATE__MAX == 8,
               "the numbers of job states are in the database: append, with a migration");
_Static_assert(ATTEMPT_LAUNCHING == 0 && ATTEMPT_ENDED == 3 && ATTEMPT_STATE__MAX == 4,
               "the numbers of attempt states are in the database: append, with a migration");

static const char schema_1[] =
    "CREATE TABLE instance ("
    "  one INTEGER PRIMARY KEY CHECK (one = 1),"
    "  id TEXT NOT NULL,"
    "  epoch INTEGER NOT NULL,"        /* of the instance: opens so far */
    "  attempt_epoch INTEGER NOT NULL" /* the last fencing token given */
    ") STRICT;"

    "CREATE TABLE events ("
    "  seq INTEGER PRIMARY KEY,"
    "  time_us INTEGER NOT NULL,"
    "  type TEXT NOT NULL,"
    "  job_id TEXT,"
    "  node TEXT,"
    "  data TEXT NOT NULL"
    ") STRICT;"
    "CREATE INDEX events_of_job ON events (job_id, seq) WHERE job_id IS NOT NULL;"

    "CREATE TABLE jobs ("
    "  seq INTEGER PRIMARY KEY,"
    "  id TEXT NOT NULL UNIQUE CHECK (length(id) BETWEEN 1 AND 39),"
    "  name TEXT NOT NULL,"
    "  user TEXT NOT NULL,"
    "  state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 6),"
    "  reason_code TEXT NOT NULL,"
    "  reason TEXT NOT NULL,"
    "  priority INTEGER NOT NULL,"
    "  devices INTEGER NOT NULL,"
    "  device_kind INTEGER NOT NULL,"
    "  memory INTEGER NOT NULL,"
    "  submitted_us INTEGER NOT NULL,"
    "  started_us INTEGER NOT NULL,"
    "  finished_us INTEGER NOT NULL,"
    "  attempt INTEGER NOT NULL,"
    "  epoch INTEGER NOT NULL,"
    "  step INTEGER NOT NULL,"
    "  steps INTEGER NOT NULL,"
    "  exit TEXT,"
    "  version INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX jobs_by_state ON jobs (state, seq);"
    "CREATE INDEX jobs_by_user ON jobs (user, state, seq);"

    "CREATE TABLE job_documents ("
    "  job INTEGER PRIMARY KEY REFERENCES jobs (seq),"
    "  plan TEXT NOT NULL,"
    "  spec TEXT NOT NULL"
    ") STRICT;"

    "CREATE TABLE job_labels ("
    "  job INTEGER NOT NULL REFERENCES jobs (seq),"
    "  key TEXT NOT NULL,"
    "  value TEXT NOT NULL,"
    "  state INTEGER NOT NULL,"
    "  user TEXT NOT NULL,"
    "  PRIMARY KEY (job, key)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX job_labels_by_value ON job_labels (key, value, state, job, user);"
    "CREATE INDEX job_labels_by_key ON job_labels (key, state, job, user);"

    "CREATE TABLE job_counts ("
    "  state INTEGER PRIMARY KEY,"
    "  n INTEGER NOT NULL CHECK (n >= 0)"
    ") STRICT;"
    "INSERT INTO job_counts VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0);"

    "CREATE TABLE idempotency_keys ("
    "  seq INTEGER PRIMARY KEY,"
    "  hash INTEGER NOT NULL," /* of user and key, see keys.c */
    "  user TEXT NOT NULL,"
    "  key TEXT NOT NULL,"
    "  body_hash TEXT NOT NULL CHECK (length(body_hash) = 64),"
    "  job_id TEXT NOT NULL REFERENCES jobs (id),"
    "  created_us INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX idempotency_keys_by_hash ON idempotency_keys (hash);"

    "CREATE TABLE nodes ("
    "  name TEXT PRIMARY KEY NOT NULL,"
    "  boot_id TEXT NOT NULL,"
    "  version TEXT NOT NULL,"
    "  devices TEXT NOT NULL,"
    "  joined_us INTEGER NOT NULL,"
    "  seen_us INTEGER NOT NULL"
    ") STRICT;"

    "CREATE TABLE attempts ("
    "  seq INTEGER PRIMARY KEY,"
    "  id TEXT NOT NULL UNIQUE,"
    "  job_id TEXT NOT NULL REFERENCES jobs (id),"
    "  number INTEGER NOT NULL CHECK (number >= 1),"
    "  epoch INTEGER NOT NULL UNIQUE,"
    "  node TEXT NOT NULL REFERENCES nodes (name),"
    "  state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),"
    "  port INTEGER NOT NULL,"
    "  secret TEXT NOT NULL,"
    "  stop_code TEXT,"
    "  stop_reason TEXT,"
    "  boot_id TEXT,"
    "  created_us INTEGER NOT NULL,"
    "  started_us INTEGER NOT NULL,"
    "  ended_us INTEGER NOT NULL,"
    "  report_offset INTEGER NOT NULL CHECK (report_offset >= 0),"
    "  exit TEXT,"
    "  UNIQUE (job_id, number)"
    ") STRICT;"
    "CREATE UNIQUE INDEX attempts_own_port ON attempts (node, port) WHERE state < 3 AND port > 0;"
    "CREATE INDEX attempts_live ON attempts (node, seq) WHERE state < 3;"

    "CREATE TABLE leases ("
    "  seq INTEGER PRIMARY KEY,"
    "  node TEXT NOT NULL REFERENCES nodes (name),"
    "  device INTEGER NOT NULL CHECK (device >= 0),"
    "  attempt_id TEXT NOT NULL REFERENCES attempts (id),"
    "  rank INTEGER NOT NULL CHECK (rank >= 0),"
    "  taken_us INTEGER NOT NULL,"
    "  released_us INTEGER,"
    "  UNIQUE (attempt_id, rank)"
    ") STRICT;"
    "CREATE UNIQUE INDEX leases_one_owner ON leases (node, device) WHERE released_us IS NULL;"

    "CREATE TABLE steps ("
    "  job INTEGER NOT NULL REFERENCES jobs (seq),"
    "  step INTEGER NOT NULL CHECK (step >= 1),"
    "  attempt INTEGER NOT NULL,"
    "  epoch INTEGER NOT NULL,"
    "  loss REAL," /* NULL is NaN in these four */
    "  grad_norm REAL,"
    "  learning_rate REAL,"
    "  time_us INTEGER NOT NULL,"
    "  samples_per_second REAL,"
    "  PRIMARY KEY (job, step, attempt)"
    ") STRICT, WITHOUT ROWID;"

    "CREATE TABLE epochs ("
    "  job INTEGER NOT NULL REFERENCES jobs (seq),"
    "  epoch INTEGER NOT NULL,"
    "  attempt INTEGER NOT NULL,"
    "  data TEXT NOT NULL,"
    "  PRIMARY KEY (job, epoch, attempt)"
    ") STRICT, WITHOUT ROWID;";

/* A check is part of a table's text alone, so that a new state needs no copy of the table: the text
 * is edited, as SQLite's documentation of ALTER TABLE describes it (which is why migrations run
 * without SQLITE_DBCONFIG_DEFENSIVE). Jobs of before have no restarts, for they were submitted when
 * there were none. */
static const char schema_2[] =
    "PRAGMA writable_schema = ON;"
    "UPDATE sqlite_schema SET sql = replace(sql, 'state BETWEEN 0 AND 6', 'state BETWEEN 0 AND 7')"
    " WHERE type = 'table' AND name = 'jobs';"
    "PRAGMA writable_schema = RESET;"
    "INSERT INTO job_counts VALUES (7, 0);"

    "ALTER TABLE jobs ADD COLUMN moved_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN keep INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN max_restarts INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN failed_starts INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN saved INTEGER NOT NULL DEFAULT 0;"
    "UPDATE jobs SET keep = 2 WHERE seq IN (SELECT job FROM job_documents WHERE"
    " CASE WHEN json_valid(spec) THEN json_type(spec, '$.command') IS NULL ELSE 0 END);"

    "ALTER TABLE steps ADD COLUMN comm_exposed_us INTEGER;" /* NULL: not told */
    "ALTER TABLE steps ADD COLUMN comm_hidden_us INTEGER;"

    "CREATE TABLE checkpoints ("
    "  job INTEGER NOT NULL REFERENCES jobs (seq),"
    "  step INTEGER NOT NULL CHECK (step >= 0),"
    "  attempt INTEGER NOT NULL,"
    "  epoch INTEGER NOT NULL,"
    "  name TEXT NOT NULL,"
    "  bytes INTEGER NOT NULL,"
    "  sum TEXT NOT NULL,"
    "  node TEXT NOT NULL REFERENCES nodes (name),"
    "  share TEXT NOT NULL," /* "": the node's own disk */
    "  at_us INTEGER NOT NULL,"
    "  PRIMARY KEY (job, step)"
    ") STRICT, WITHOUT ROWID;";

static const char schema_3[] =
    "ALTER TABLE steps ADD COLUMN loss_scale REAL;" /* NULL: gradients were not scaled */
    "ALTER TABLE steps ADD COLUMN skipped INTEGER;" /* 1, or NULL */

    "ALTER TABLE jobs ADD COLUMN trains INTEGER NOT NULL DEFAULT 0;"
    "UPDATE jobs SET trains = 1 WHERE seq IN (SELECT job FROM job_documents WHERE"
    " CASE WHEN json_valid(spec) THEN json_type(spec, '$.command') IS NULL ELSE 0 END);"

    "CREATE TABLE drains ("
    "  node TEXT NOT NULL REFERENCES nodes (name),"
    "  device TEXT NOT NULL," /* "": the whole node */
    "  reason TEXT NOT NULL,"
    "  asked_by TEXT NOT NULL,"
    "  at_us INTEGER NOT NULL,"
    "  PRIMARY KEY (node, device)"
    ") STRICT, WITHOUT ROWID;"

    "CREATE TABLE device_failures ("
    "  seq INTEGER PRIMARY KEY,"
    "  node TEXT NOT NULL REFERENCES nodes (name),"
    "  device TEXT NOT NULL,"
    "  at_us INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX device_failures_of ON device_failures (node, device, at_us);";

static const char *const migrations[] = {schema_1, schema_2, schema_3};
_Static_assert(ARRAY_LEN(migrations) == STORE_SCHEMA_VERSION, "one migration a version");

/* ---- statements that run once ---- */
int db_exec(struct store *s, const char *sql, struct err *e)
{
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : db_turn_error(s, rc, e);
}

int db_text(struct store *s, const char *sql, char **ret, struct err *e)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    int r = 0;
    const char *text = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
    if (rc == SQLITE_ROW)
        *ret = mem_strdup(text ? text : "");
    else
        r = db_turn_error(s, rc, e);
    sqlite3_finalize(st);
    return r;
}

int db_int(struct store *s, const char *sql, int64_t *ret, struct err *e)
{
    CLEANUP(mem_freep) char *text = NULL;
    int r = db_text(s, sql, &text, e);
    if (r == 0 && text)
        *ret = strtoll(text, NULL, 10);
    return r;
}

/* ---- is it ours? ---- */
int db_schema_recognise(struct store *s, int *ret_empty, struct err *e)
{
    int64_t application = 0, version = 0, tables = 0;
    int r = db_int(s, "PRAGMA application_id", &application, e);
    if (r == 0)
        r = db_int(s, "PRAGMA user_version", &version, e);
    if (r == 0)
        r = db_int(s, "SELECT count(*) FROM sqlite_schema", &tables, e);
    if (r < 0)
        return r;
    int empty = application == 0 && version == 0 && tables == 0;
    if (!empty && application != STORE_APPLICATION_ID)
        return err_set(e, ERR_CONFLICT,
                       "%s is a database of another application (application_id %lld): give "
                       "Trainyard a state directory of its own",
                       s->path, (long long)application);
    if (version > STORE_SCHEMA_VERSION)
        return err_set(
            e, ERR_CONFLICT,
            "%s was written by a newer Trainyard (schema %lld; this one knows up to %d): "
            "start that version or a newer one",
            s->path, (long long)version, STORE_SCHEMA_VERSION);
    *ret_empty = empty;
    return 0;
}

/* ---- migrations ---- */
static int migrate_one(struct store *s, int64_t from, struct err *e)
{
    char pragmas[128];
    snprintf(pragmas, sizeof pragmas, "PRAGMA user_version = %lld; PRAGMA application_id = %d;",
             (long long)from + 1, STORE_APPLICATION_ID);
    int r = db_exec(s, "BEGIN IMMEDIATE", e);
    if (r == 0)
        r = db_exec(s, migrations[from], e);
    if (r == 0)
        r = db_exec(s, pragmas, e);
    if (r == 0)
        r = db_exec(s, "COMMIT", e);
    if (r < 0 && !sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return r;
}

int db_schema_migrate(struct store *s, struct err *e)
{
    int64_t version = 0;
    int r = db_int(s, "PRAGMA user_version", &version, e);
    if (r < 0 || version == STORE_SCHEMA_VERSION)
        return r;
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    for (; r == 0 && version < STORE_SCHEMA_VERSION; version++)
        r = migrate_one(s, version, e);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    return r;
}

/* ---- is it whole? ---- */
static int check_with(struct store *s, const char *sql, struct err *e)
{
    CLEANUP(mem_freep) char *verdict = NULL;
    int r = db_text(s, sql, &verdict, e);
    if (r < 0 || (verdict && strcmp(verdict, "ok") == 0))
        return r;
    return err_set(e, ERR_CORRUPT,
                   "%s is damaged (%.200s): keep a copy of the directory and restore the database "
                   "from a backup",
                   s->path, verdict);
}

/* What decides who owns what is checked before what is merely read. */
static const char *const checks[] = {
    "PRAGMA quick_check(instance)",
    "PRAGMA quick_check(nodes)",
    "PRAGMA quick_check(leases)",
    "PRAGMA quick_check(attempts)",
    "PRAGMA quick_check(drains)",
    "PRAGMA quick_check(job_counts)",
    "PRAGMA quick_check(jobs)",
    "PRAGMA quick_check(checkpoints)",
    "PRAGMA quick_check(idempotency_keys)",
    "PRAGMA quick_check(job_labels)",
};

/* quick_check walks every page and every row and can't be interrupted within a b-tree, so it is the
 * size that bounds it: CHECK_PAGES says up to which the whole file is checked. A larger file is one
 * with many events, documents and metrics; of it the tables above are checked, in their order,
 * until CHECK_US are used (one table may overrun it). Damage in what was left out is found by the
 * statement that meets it, for every page is checked as it is read (cell_size_check). */
#define CHECK_PAGES (24 * 1024) /* of 4 KiB: 96 MiB, some 0.2 to 0.5 s */
#define CHECK_US    300000

int db_schema_check_tables(struct store *s, struct err *e)
{
    int64_t end = clock_boottime_us() + CHECK_US;
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(checks) && clock_boottime_us() < end; i++)
        r = check_with(s, checks[i], e);
    return r;
}

int db_schema_quick_check(struct store *s, struct err *e)
{
    int64_t pages = 0;
    int r = db_int(s, "PRAGMA page_count", &pages, e);
    if (r < 0)
        return r;
    if (pages > CHECK_PAGES)
        return db_schema_check_tables(s, e);
    return check_with(s, "PRAGMA quick_check(1)", e);
}
