/* Logs and artifacts to the coordinator, by offset: it says how much it has, we go on from there.
 *
 * One chunk in flight per attempt, AGENT_UPLOADS_MAX in all. Logs go while the job runs, artifacts
 * when nothing of it is alive. artifacts/ belongs to the job's user: names in it are opened by
 * openat without following links, and only regular files of that user are taken.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define UPLOAD_TIMEOUT_MS 60000

static void add(struct attempt *a, char *take_name, char *take_file, int is_artifact)
{
    a->uploads = mem_realloc(a->uploads, (size_t)(a->upload_count + 1) * sizeof *a->uploads);
    a->uploads[a->upload_count++] =
        (struct upload){.name = take_name, .file = take_file, .is_artifact = is_artifact};
}

static void drop_last(struct attempt *a)
{
    struct upload *u = &a->uploads[--a->upload_count];
    free(u->name);
    free(u->file);
}

void uploads_add_logs(struct attempt *a, const json_t *ranks)
{
    json_t *rank;
    size_t i;
    json_array_foreach(ranks, i, rank)
    {
        long long n = json_integer_value(json_object_get(rank, "rank"));
        char *name = mem_printf("rank-%lld.log", n);
        add(a, name, mem_strdup(name), 0);
    }
}

/* ---- artifacts ---- */

static int open_artifacts(const struct attempt *a)
{
    CLEANUP(mem_freep) char *path = attempt_path(a->dir, ATTEMPT_ARTIFACTS);
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* An artifact's descriptor and size; -1 where it is none. */
static int open_artifact(int dir_fd, const char *name, int64_t *ret_size)
{
    struct stat dir;
    struct stat st;
    int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) < 0 || fstat(dir_fd, &dir) < 0 || !S_ISREG(st.st_mode) ||
        st.st_uid != dir.st_uid) {
        close(fd);
        errno = EINVAL; /* none of the job's files */
        return -1;
    }
    *ret_size = st.st_size;
    return fd;
}

static DIR *list_open(const struct attempt *a)
{
    int fd = open_artifacts(a);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        close(fd);
    return d;
}

/* Lists one entry of artifacts/, or says why it is left out; -1 where we are out of descriptors. */
static int list_artifact(struct attempt *a, int dir_fd, const char *name, int *count)
{
    char why[120];
    int64_t size = 0;
    int fd = open_artifact(dir_fd, name, &size);
    if (fd < 0 && file_is_short(errno))
        return -1;
    if (fd < 0) {
        left_out_add(a, name,
                     errno == EINVAL || errno == ELOOP
                         ? "only regular files of the job, at the top level, are kept"
                         : strerror(errno));
        return 0;
    }
    close(fd);
    if (size > (int64_t)AGENT_ARTIFACT_GIB << 30) { /* hours, and the coordinator's disk */
        snprintf(why, sizeof why, "it has %lld bytes; at most %d GiB are kept", (long long)size,
                 AGENT_ARTIFACT_GIB);
        left_out_add(a, name, why);
    } else if (*count == AGENT_ARTIFACTS_MAX) {
        snprintf(why, sizeof why, "at most %d files are kept", AGENT_ARTIFACTS_MAX);
        left_out_add(a, name, why);
    } else {
        (*count)++;
        add(a, mem_printf("artifact.%s", name), mem_strdup(name), 1);
    }
    return 0;
}

/* 0 once it is done; -1 where it must be tried again. */
static int list_artifacts(struct attempt *a)
{
    DIR *d = list_open(a);
    struct dirent *entry;
    int count = 0, logs = a->upload_count, again = !d && file_is_short(errno);
    int left_out = a->left_out_count;
    while (d && !again && (entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            again = list_artifact(a, dirfd(d), entry->d_name, &count) < 0;
    }
    if (d)
        closedir(d);
    while (again && a->upload_count > logs)
        drop_last(a);
    if (again)
        left_out_cut(a, left_out);
    a->artifacts_listed = !again;
    return again ? -1 : 0;
}

/* ---- one chunk ---- */

static int open_upload(const struct attempt *a, const struct upload *u, int64_t *ret_size)
{
    if (u->is_artifact) {
        CLEANUP(mem_closep) int dir_fd = open_artifacts(a);
        return dir_fd < 0 ? -1 : open_artifact(dir_fd, u->file, ret_size);
    }
    struct stat st;
    CLEANUP(mem_freep) char *path = attempt_path(a->dir, u->file);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    if (fd >= 0)
        *ret_size = st.st_size;
    return fd;
}

static int read_chunk(int fd, int64_t offset, int64_t size, struct buf *ret)
{
    size_t want = (size_t)(size - offset < AGENT_CHUNK ? size - offset : AGENT_CHUNK);
    buf_reserve(ret, want);
    while (ret->len < want) {
        ssize_t n = pread(fd, ret->data + ret->len, want - ret->len, offset + (off_t)ret->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -1 : 0;
        ret->len += (size_t)n;
    }
    return 0;
}

static void refuse(struct attempt *a, struct upload *u, const char *why)
{
    u->refused = 1;
    left_out_add(a, u->file, why);
}

/* What the coordinator says it has, or -1. */
static int64_t answered_size(const struct http_answer *answer)
{
    json_auto_t *doc = json_loadb(answer->body, answer->size, JSON_REJECT_DUPLICATES, NULL);
    const json_t *size = json_object_get(doc, "size");
    return json_is_integer(size) && json_integer_value(size) >= 0 ? json_integer_value(size) : -1;
}

/* The status, and the problem's own sentence where there is one. */
static void say_refusal(const struct http_answer *answer, char *out, size_t size)
{
    json_auto_t *doc = json_loadb(answer->body, answer->size, JSON_REJECT_DUPLICATES, NULL);
    const char *detail = json_string_value(json_object_get(doc, "detail"));
    snprintf(out, size, "the coordinator answered %d%s%s", answer->status, detail ? ": " : "",
             detail ? detail : "");
}

static int is_final(int status)
{
    return status >= 400 && status < 500 && status != 401 && status != 403 && status != 408 &&
           status != 429;
}

static void take_answer(struct attempt *a, struct upload *u, const struct http_answer *answer)
{
    char why[256];
    int64_t size = answer->status == 200 || answer->status == 409 ? answered_size(answer) : -1;
    say_refusal(answer, why, sizeof why);
    if (size >= 0 && (answer->status == 200 || size != u->acked)) {
        u->acked = size;
        u->told = 1;
        a->no_room = 0;
        agent_call_succeeded(a->agent);
    } else if (is_final(answer->status)) {
        refuse(a, u, why);
    } else {
        if (answer->status == 507 && !a->no_room)
            a->no_room = a->changed = 1;
        agent_call_failed(a->agent, "files", answer->status ? why : answer->error);
    }
}

struct flight { /* finds its attempt again: that may be gone by then */
    struct agent *agent;
    char id[ID_SIZE];
};

static void on_uploaded(void *arg, const struct http_answer *answer)
{
    struct flight *f = arg;
    struct agent *g = f->agent;
    struct attempt *a = attempt_find(g, f->id);
    free(f);
    g->uploads_in_flight--;
    if (!a || a->uploading < 0)
        return;
    struct upload *u = &a->uploads[a->uploading];
    a->uploading = -1;
    take_answer(a, u, answer);
    if (a->phase != PHASE_ENDED && a->uploading_size < AGENT_CHUNK)
        u->next_us = clock_boottime_us() + AGENT_LOG_PAUSE_US;
}

static void send_chunk(struct attempt *a, int index, struct buf *take_body)
{
    struct agent *g = a->agent;
    struct upload *u = &a->uploads[index];
    CLEANUP(mem_freep) char *name = http_escape(u->name);
    CLEANUP(mem_freep)
    char *path = mem_printf("/v1/agent/files?node=%s&attempt=%s&epoch=%lld&name=%s&offset=%lld",
                            g->options.name, a->id, (long long)a->epoch, name, (long long)u->acked);
    struct flight *f = mem_zalloc(sizeof *f);
    struct err e;
    f->agent = g;
    memcpy(f->id, a->id, sizeof f->id);
    a->uploading_size = (int64_t)take_body->len;
    if (http_post(g->http, path, "application/octet-stream", take_body, UPLOAD_TIMEOUT_MS,
                  on_uploaded, f, &e) < 0) {
        free(f);
        agent_call_failed(g, "files", e.text);
        return;
    }
    a->uploading = index;
    g->uploads_in_flight++;
}

enum look { LOOK_NOTHING, LOOK_LATER, LOOK_SENT };

/* Sends the file's next chunk, if there is one and its time has come. */
static enum look look_at(struct attempt *a, int index)
{
    struct upload *u = &a->uploads[index];
    int64_t size = 0;
    if (u->refused || (!u->is_artifact && a->phase == PHASE_ENDED && !a->has_dir))
        return LOOK_NOTHING;
    CLEANUP(mem_closep) int fd = open_upload(a, u, &size);
    if (fd < 0 && file_is_short(errno)) {
        agent_wake_at(a->agent, clock_boottime_us() + AGENT_TICK_US);
        return LOOK_LATER;
    }
    if (fd < 0 && errno != ENOENT) {
        refuse(a, u, strerror(errno));
        return LOOK_NOTHING;
    }
    if (fd < 0 || (size <= u->acked && (!u->is_artifact || u->told)))
        return LOOK_NOTHING;
    if (a->phase != PHASE_ENDED && clock_boottime_us() < u->next_us) {
        agent_wake_at(a->agent, u->next_us);
        return LOOK_LATER;
    }
    struct buf b = BUF_INIT;
    if (read_chunk(fd, u->acked, size, &b) < 0) {
        refuse(a, u, strerror(errno));
        buf_done(&b);
        return LOOK_NOTHING;
    }
    send_chunk(a, index, &b);
    buf_done(&b);
    return LOOK_SENT;
}

void uploads_pump(struct attempt *a)
{
    struct agent *g = a->agent;
    int ended = a->phase == PHASE_ENDED;
    if (a->files_done || a->uploading >= 0 || a->epoch == 0 || !g->ready ||
        (!ended && !a->logs_dirty))
        return;
    if (g->uploads_in_flight >= AGENT_UPLOADS_MAX || clock_boottime_us() < g->retry_us)
        return; /* the end of an upload, or of the pause, brings the next turn */
    if (ended && !a->artifacts_listed && a->has_dir && list_artifacts(a) < 0) {
        agent_wake_at(g, clock_boottime_us() + AGENT_TICK_US);
        return;
    }
    int later = 0;
    for (int i = 0; i < a->upload_count; i++) {
        enum look look = look_at(a, i);
        if (look == LOOK_SENT)
            return;
        later |= look == LOOK_LATER;
    }
    a->logs_dirty = later;
    if (ended && !later)
        a->files_done = a->changed = 1;
}
