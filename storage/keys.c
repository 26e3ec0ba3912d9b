/* keys.c: idempotency keys. A key is written in the same transaction as its job, so a client that
 * repeats an unanswered request gets the job that it made, or makes it now; never two. */
#include "storage/internal.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert(ID_SIZE == 40, "ret_job_id of store_key_get");

int store_key_get(struct store *s, const char *user, const char *key, char ret_body_hash[65],
                  char ret_job_id[40], struct err *e)
{
    CLEANUP(query_close) struct query q = {0};
    int r = query_read(
        &q, s, "SELECT body_hash, job_id FROM idempotency_keys WHERE user = ? AND key = ?", e);
    if (r < 0)
        return r;
    query_text(&q, user);
    query_text(&q, key);
    r = query_step(&q, e);
    if (r <= 0)
        return r < 0 ? r : err_set(e, ERR_NOT_FOUND, "that idempotency key has not been used");
    CLEANUP(mem_freep) char *hash = column_text(&q);
    CLEANUP(mem_freep) char *job_id = column_text(&q);
    snprintf(ret_body_hash, 65, "%s", hash);
    snprintf(ret_job_id, ID_SIZE, "%s", job_id);
    return 0;
}

int store_key_put(struct store *s, const char *user, const char *key, const char *body_hash,
                  const char *job_id, int64_t now_us, struct err *e)
{
    CLEANUP(query_close) struct query q = {0};
    int r = query_write(&q, s,
                        "INSERT INTO idempotency_keys (user, key, body_hash, job_id, created_us)"
                        " VALUES (?, ?, ?, ?, ?)",
                        e);
    if (r < 0)
        return r;
    query_text(&q, user);
    query_text(&q, key);
    query_text(&q, body_hash);
    query_text(&q, job_id);
    query_int(&q, now_us);
    r = query_run(&q, e);
    if (r == ERR_CONFLICT)
        return err_set(e, r, "that idempotency key has been used already");
    if (r == ERR_NOT_FOUND)
        return err_set(e, r, "there is no job %.60s for an idempotency key to name", job_id);
    return r < 0 ? r : 0;
}

int store_key_expire(struct store *s, int64_t before_us, int limit, struct err *e)
{
    CLEANUP(query_close) struct query q = {0};
    int r = limit_check(limit, 100000, e);
    if (r == 0)
        r = query_write(&q, s,
                        "DELETE FROM idempotency_keys WHERE (user, key) IN (SELECT user, key"
                        " FROM idempotency_keys WHERE created_us < ? ORDER BY created_us LIMIT ?)",
                        e);
    if (r < 0)
        return r;
    query_int(&q, before_us);
    query_int(&q, limit);
    r = query_run(&q, e);
    return r < 0 ? r : 0;
}
