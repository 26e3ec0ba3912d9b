/* keys.c: idempotency keys. A key is written in the same transaction as its job, so a client that
 * repeats an unanswered request gets the job that it made, or makes it now; never two.
 *
 * Keys are random, and an index over them would have every submission dirty a page of its own. So
 * rows are appended, and found by a 32-bit hash, whose index is a tenth of the size; of a hash's
 * few rows the one with the same user and key is it. That a key is used once is seen to by the
 * look-up before the insert, which one connection in a transaction may rely on.
 */
#include "storage/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPIRE_MAX 100000

_Static_assert(ID_SIZE == 40, "ret_job_id of store_key_get");

/* FNV-1a, 32 bits, the NULs between and after included. */
static int64_t key_hash(const char *user, const char *key)
{
    uint32_t h = 2166136261u;
    for (const char *p = user; h = (h ^ (unsigned char)*p) * 16777619u, *p; p++)
        ;
    for (const char *p = key; h = (h ^ (unsigned char)*p) * 16777619u, *p; p++)
        ;
    return h;
}

/* 1: stepped to its row (body_hash, job_id); 0: not used. */
static int key_find(struct stmt *q, struct store *s, const char *user, const char *key,
                    struct err *e)
{
    int r = stmt_read(q, s,
                      "SELECT body_hash, job_id FROM idempotency_keys"
                      " WHERE hash = ? AND user = ? AND key = ? LIMIT 1",
                      e);
    if (r < 0)
        return r;
    stmt_int(q, key_hash(user, key));
    stmt_text(q, user);
    stmt_text(q, key);
    return stmt_step(q, e);
}

int store_key_get(struct store *s, const char *user, const char *key, char ret_body_hash[65],
                  char ret_job_id[40], struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = key_find(&q, s, user, key, e);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(e, ERR_NOT_FOUND, "that idempotency key has not been used");
    CLEANUP(mem_freep) char *hash = stmt_get_text(&q);
    CLEANUP(mem_freep) char *job_id = stmt_get_text(&q);
    snprintf(ret_body_hash, 65, "%s", hash);
    snprintf(ret_job_id, ID_SIZE, "%s", job_id);
    return 0;
}

static const char insert_key[] =
    "INSERT INTO idempotency_keys (hash, user, key, body_hash, job_id, created_us)"
    " VALUES (?, ?, ?, ?, ?, ?)";

int store_key_put(struct store *s, const char *user, const char *key, const char *body_hash,
                  const char *job_id, int64_t now_us, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = key_find(&q, s, user, key, e);
    if (r == 1)
        r = err_set(e, ERR_CONFLICT, "that idempotency key has been used already");
    if (r == 0)
        r = stmt_write(&q, s, insert_key, e);
    if (r < 0)
        return r;
    stmt_int(&q, key_hash(user, key));
    stmt_text(&q, user);
    stmt_text(&q, key);
    stmt_text(&q, body_hash);
    stmt_text(&q, job_id);
    stmt_int(&q, now_us);
    r = stmt_run(&q, e);
    if (r == ERR_NOT_FOUND)
        return err_set(e, r, "there is no job %.60s for an idempotency key to name", job_id);
    return r < 0 ? r : 0;
}

/* Looks at the `limit` rows that were put first, which are the oldest. */
int store_key_expire(struct store *s, int64_t before_us, int limit, struct err *e)
{
    CLEANUP(stmt_close) struct stmt q = {0};
    int r = db_limit_check(limit, EXPIRE_MAX, e);
    if (r == 0)
        r = stmt_write(&q, s,
                       "DELETE FROM idempotency_keys WHERE created_us < ? AND seq <= (SELECT"
                       " max(seq) FROM (SELECT seq FROM idempotency_keys ORDER BY seq LIMIT ?))",
                       e);
    if (r < 0)
        return r;
    stmt_int(&q, before_us);
    stmt_int(&q, limit);
    r = stmt_run(&q, e);
    return r < 0 ? r : 0;
}
