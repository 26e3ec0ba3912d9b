/* The files of an attempt directory. Readers check every field: a state directory outlives
 * versions of us, and a wrong pid would be somebody else's process. */
#include "daemon/attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

char *attempt_path(const char *dir, const char *name)
{
    return mem_printf("%s/%s", dir, name);
}

char *attempt_log_path(const char *dir, int rank)
{
    return mem_printf("%s/rank-%d.log", dir, rank);
}

int attempt_mark(const char *attempt, char out[ATTEMPT_MARK_SIZE], struct err *e)
{
    char boot[PROC_BOOT_ID_SIZE];
    int r = proc_boot_id(boot, e);
    if (r < 0)
        return r;
    if (strlen(attempt) >= ATTEMPT_MARK_SIZE - sizeof boot - 1)
        return err_set(e, ERR_INVALID, "the attempt id %.80s is too long", attempt);
    snprintf(out, ATTEMPT_MARK_SIZE, "%s:%s", attempt, boot);
    return 0;
}

int attempt_lock(const char *dir, int *ret_fd, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(dir, ATTEMPT_LOCK);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(e, "cannot open %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int r = errno == EWOULDBLOCK
                    ? err_set(e, ERR_CONFLICT, "%s is held by another process", path)
                    : err_errno(e, "cannot lock %s", path);
        close(fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

static int write_text(int fd, const char *text)
{
    for (size_t n = strlen(text); n > 0;) {
        ssize_t w = write(fd, text, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        text += w;
        n -= (size_t)w;
    }
    return 0;
}

int attempt_write(const char *dir, const char *name, const json_t *doc, struct err *e)
{
    CLEANUP(mem_freep) char *text = json_dumps(doc, JSON_COMPACT);
    CLEANUP(mem_freep) char *path = attempt_path(dir, name);
    CLEANUP(mem_freep) char *tmp = mem_printf("%s.%d.tmp", path, (int)getpid());
    if (!text)
        return err_set(e, ERR_INTERNAL, "cannot print the document for %s as JSON", path);
    CLEANUP(mem_closep)
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(e, "cannot create %s", tmp);
    int r = 0;
    if (write_text(fd, text) < 0)
        r = err_errno(e, "cannot write %s", tmp);
    else if (rename(tmp, path) < 0)
        r = err_errno(e, "cannot rename %s to %s", tmp, path);
    if (r < 0)
        unlink(tmp);
    return r;
}

/* ---- shim.json ---- */

void shim_record_done(struct shim_record *r)
{
    free(r->ranks);
    *r = (struct shim_record){0};
}

static json_t *ranks_to_json(const struct shim_record *r)
{
    json_t *list = json_array();
    for (int i = 0; i < r->rank_count; i++) {
        const struct shim_rank *k = &r->ranks[i];
        json_array_append_new(list,
                              json_pack("{s:i, s:i, s:I}", "rank", k->rank, "pid", (int)k->pid,
                                        "start_time", (json_int_t)k->start_time));
    }
    return list;
}

int shim_record_write(const char *dir, const struct shim_record *r, struct err *e)
{
    json_auto_t *doc = json_pack("{s:s, s:i, s:I, s:I}", "boot_id", r->shim.boot_id, "pid",
                                 (int)r->shim.pid, "start_time", (json_int_t)r->shim.start_time,
                                 "started_us", (json_int_t)r->started_us);
    if (doc && r->ranks)
        json_object_set_new(doc, "ranks", ranks_to_json(r));
    if (!doc)
        return err_set(e, ERR_INTERNAL, "cannot print %s", ATTEMPT_SHIM);
    return attempt_write(dir, ATTEMPT_SHIM, doc, e);
}

static int read_ranks(const json_t *list, struct shim_record *r)
{
    size_t n = json_array_size(list);
    r->ranks = mem_zalloc(n * sizeof *r->ranks);
    for (size_t i = 0; i < n; i++) {
        json_int_t pid;
        json_int_t start;
        struct shim_rank *k = &r->ranks[r->rank_count];
        if (json_unpack(json_array_get(list, i), "{s:i, s:I, s:I}", "rank", &k->rank, "pid", &pid,
                        "start_time", &start) < 0 ||
            pid < 1 || pid > INT32_MAX || start < 0)
            return -1;
        k->pid = (pid_t)pid;
        k->start_time = (uint64_t)start;
        r->rank_count++;
    }
    return 0;
}

static int read_shim_record(const json_t *doc, struct shim_record *r)
{
    const char *boot;
    json_int_t pid;
    json_int_t start;
    json_int_t started;
    json_t *ranks = NULL;
    if (json_unpack((json_t *)doc, "{s:s, s:I, s:I, s:I, s?o}", "boot_id", &boot, "pid", &pid,
                    "start_time", &start, "started_us", &started, "ranks", &ranks) < 0)
        return -1;
    if (strlen(boot) != PROC_BOOT_ID_SIZE - 1 || pid < 1 || pid > INT32_MAX || start < 0)
        return -1;
    memcpy(r->shim.boot_id, boot, PROC_BOOT_ID_SIZE);
    r->shim.pid = (pid_t)pid;
    r->shim.start_time = (uint64_t)start;
    r->started_us = started;
    if (!ranks)
        return 0;
    return json_is_array(ranks) ? read_ranks(ranks, r) : -1;
}

int shim_record_read(const char *dir, struct shim_record *ret, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(dir, ATTEMPT_SHIM);
    json_t *doc;
    int r = file_read_json(path, ATTEMPT_JSON_MAX, &doc, e);
    if (r < 0)
        return r;
    struct shim_record record = {0};
    r = read_shim_record(doc, &record);
    json_decref(doc);
    if (r < 0) {
        shim_record_done(&record);
        return err_set(e, ERR_CORRUPT, "%s does not name a process", path);
    }
    *ret = record;
    return 0;
}

/* ---- stop.json ---- */

int stop_request_write(const char *dir, const struct stop_request *s, struct err *e)
{
    json_auto_t *doc = json_pack("{s:s, s:s, s:I}", "code", s->code, "reason", s->reason, "grace_s",
                                 (json_int_t)s->grace_s);
    if (!doc)
        return err_set(e, ERR_INTERNAL, "cannot print %s", ATTEMPT_STOP);
    return attempt_write(dir, ATTEMPT_STOP, doc, e);
}

/* Copies at most size - 1 bytes without cutting a UTF-8 sequence in two. */
static void copy_text(char *out, size_t size, const char *text)
{
    size_t n = strlen(text);
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(out, text, n);
    out[n] = '\0';
}

void stop_request_from_json(const json_t *doc, int64_t default_grace_s, struct stop_request *ret)
{
    const char *code = json_string_value(json_object_get(doc, "code"));
    const char *reason = json_string_value(json_object_get(doc, "reason"));
    const json_t *grace = json_object_get(doc, "grace_s");
    json_int_t grace_s = json_integer_value(grace);
    int fits = json_is_integer(grace) && grace_s >= 0 && grace_s <= STOP_GRACE_MAX_S;
    copy_text(ret->code, sizeof ret->code, code && *code ? code : "stopped");
    copy_text(ret->reason, sizeof ret->reason, reason ? reason : "Stopped by the coordinator.");
    ret->grace_s = fits ? grace_s : default_grace_s;
}

int stop_request_read(const char *dir, struct stop_request *ret, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(dir, ATTEMPT_STOP);
    json_t *doc;
    int r = file_read_json(path, ATTEMPT_JSON_MAX, &doc, e);
    if (r < 0)
        return r;
    stop_request_from_json(doc, 30, ret);
    json_decref(doc);
    return 0;
}

/* ---- exit.json ---- */

json_t *exit_record_new(const char *outcome, const char *code, const char *reason, int retryable,
                        int64_t started_us, int64_t ended_us)
{
    char text[ATTEMPT_REASON_MAX];
    copy_text(text, sizeof text, reason);
    return json_pack("{s:s, s:s, s:s, s:n, s:n, s:n, s:b, s:I, s:I, s:[]}", "outcome", outcome,
                     "code", code, "reason", text, "rank", "exit_code", "signal", "retryable",
                     retryable, "started_us", (json_int_t)started_us, "ended_us",
                     (json_int_t)ended_us, "ranks");
}

int exit_record_write(const char *dir, const json_t *record, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(dir, ATTEMPT_EXIT);
    return file_write_json(path, record, 0600, e);
}

int exit_record_read(const char *dir, json_t **ret, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(dir, ATTEMPT_EXIT);
    json_t *doc;
    int r = file_read_json(path, ATTEMPT_JSON_MAX, &doc, e);
    if (r < 0)
        return r;
    if (!json_is_string(json_object_get(doc, "outcome"))) {
        json_decref(doc);
        return err_set(e, ERR_CORRUPT, "%s has no outcome", path);
    }
    *ret = doc;
    return 0;
}
