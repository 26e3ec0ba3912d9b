/* storage_helper.h: what the tests of the store share: a state directory of their own, a store in
 * it, and rows with something in every field. */
#ifndef TRAINYARD_TESTS_STORAGE_HELPER_H
#define TRAINYARD_TESTS_STORAGE_HELPER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"
#include "base/id.h"
#include "base/mem.h"
#include "storage/internal.h"
#include "storage/store.h"

struct fixture {
    char dir[64];
    struct store *s;
    struct err e;
};

/* Fails with the sentence. */
#define assert_ok(f, call)                                                                         \
    do {                                                                                           \
        int ok_r_ = (call);                                                                        \
        if (ok_r_ < 0)                                                                             \
            fail_msg("%s: %s (%d)", #call, (f)->e.text, ok_r_);                                    \
    } while (0)

#define assert_says(f, word)                                                                       \
    do {                                                                                           \
        if (!strstr((f)->e.text, word))                                                            \
            fail_msg("the sentence lacks '%s': %s", word, (f)->e.text);                            \
    } while (0)

static inline int fixture_empty(void **state)
{
    struct fixture *f = mem_zalloc(sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/trainyard-store-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    *state = f;
    return 0;
}

static inline int fixture_open(void **state)
{
    fixture_empty(state);
    struct fixture *f = *state;
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
    return 0;
}

static inline int fixture_done(void **state)
{
    struct fixture *f = *state;
    store_close(f->s);
    struct err e;
    assert_int_equal(file_remove_tree(f->dir, &e), 0);
    free(f);
    return 0;
}

static inline void reopen(struct fixture *f)
{
    store_close(f->s);
    f->s = NULL;
    assert_ok(f, store_open(f->dir, &f->s, &f->e));
}

static inline struct job_row sample_job(const char *id)
{
    return (struct job_row){.id = (char *)id,
                            .name = (char *)"mnist",
                            .user = (char *)"ada",
                            .state = JOB_PENDING,
                            .reason_code = (char *)"waiting_for_devices",
                            .reason = (char *)"Waits for 2 devices; none is free.",
                            .spec = (char *)"{\"name\":\"mnist\"}",
                            .plan = (char *)"{\"strategy\":\"mirrored\"}",
                            .priority = 0,
                            .devices = 2,
                            .device_kind = 1,
                            .memory = 1 << 20,
                            .submitted_us = 1000,
                            .steps = 1250};
}

/* Inserts a pending job without committing; its seq. */
static inline int64_t put_job(struct fixture *f, const char *id)
{
    struct job_row r = sample_job(id);
    int64_t seq = 0;
    assert_ok(f, store_job_insert(f->s, &r, &seq, &f->e));
    return seq;
}

/* Inserts n of them, as far as that goes; the code of the first that failed, or 0. */
static inline int insert_some(struct fixture *f, const char *prefix, int n)
{
    int r = 0;
    for (int i = 0; i < n && r == 0; i++) {
        char id[32];
        snprintf(id, sizeof id, "%s_%d", prefix, i);
        struct job_row job = sample_job(id);
        r = store_job_insert(f->s, &job, NULL, &f->e);
    }
    return r;
}

static inline int has_job(struct fixture *f, const char *id)
{
    struct job_row r = {0};
    int n = store_job_get(f->s, id, &r, &f->e);
    job_row_done(&r);
    assert_true(n == 0 || n == ERR_NOT_FOUND);
    return n == 0;
}

static inline int64_t pending_count(struct fixture *f)
{
    int64_t counts[JOB_STATE__MAX];
    assert_ok(f, store_job_count(f->s, counts, &f->e));
    return counts[JOB_PENDING];
}

static inline void put_node(struct fixture *f, const char *name)
{
    struct node_row r = {.name = (char *)name,
                         .boot_id = (char *)"b-1",
                         .version = (char *)"0.1.0",
                         .devices = (char *)"[{\"index\":0}]",
                         .joined_us = 5,
                         .seen_us = 6};
    assert_ok(f, store_node_put(f->s, &r, &f->e));
}

static inline struct attempt_row sample_attempt(const char *id, const char *job, const char *node)
{
    return (struct attempt_row){.id = (char *)id,
                                .job_id = (char *)job,
                                .number = 1,
                                .epoch = 1,
                                .node = (char *)node,
                                .state = ATTEMPT_LAUNCHING,
                                .port = 23000,
                                .secret = (char *)"s3cret",
                                .created_us = 7};
}

/* The database as a private connection sees it, for what the store refuses to do; closed store. */
static inline void sql_outside(struct fixture *f, const char *sql)
{
    sqlite3 *db = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/trainyard.db", f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    char *why = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

#endif
