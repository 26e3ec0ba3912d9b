/* checkpoint_write.c: shards, manifest, rename; and the thread that does it. */
#include "trainer/checkpoint_write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "spec/launch.h"
#include "trainer/safetensors.h"

#define WRITE_PIECE (4 * 1024 * 1024) /* bytes between two looks at `cancel` */
#define SYNC_PIECE  (16 * 1024 * 1024)

/* ---- sums ---- */

char *checkpoint_sum_text(struct checkpoint_sum s, char out[CHECKPOINT_SUM_SIZE])
{
    snprintf(out, CHECKPOINT_SUM_SIZE, "%016llx%016llx", (unsigned long long)s.high,
             (unsigned long long)s.low);
    return out;
}

int checkpoint_sum_parse(const char *text, struct checkpoint_sum *ret)
{
    char half[17] = "";
    if (!text || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return -1;
    memcpy(half, text, 16);
    ret->high = strtoull(half, NULL, 16);
    ret->low = strtoull(text + 16, NULL, 16);
    return 0;
}

static struct checkpoint_sum sum_of(XXH128_hash_t h)
{
    return (struct checkpoint_sum){.high = h.high64, .low = h.low64};
}

struct checkpoint_sum checkpoint_sum_of(const void *bytes, size_t n)
{
    return sum_of(XXH3_128bits(bytes, n));
}

/* ---- paths ---- */

static char *final_path(const char *root, int64_t step)
{
    char name[LAUNCH_CHECKPOINT_NAME_SIZE];
    return mem_printf("%s/%s", root, launch_checkpoint_name(step, name));
}

static char *temporary_path(const char *root, int64_t step)
{
    char name[LAUNCH_CHECKPOINT_NAME_SIZE];
    return mem_printf("%s/%s.tmp", root, launch_checkpoint_name(step, name));
}

static int sync_directory(const char *path, struct err *e)
{
    CLEANUP(mem_closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        return err_errno(e, "cannot sync the directory %s", path);
    return 0;
}

/* ---- shards ---- */

struct output {
    int fd;
    const char *path;
    const atomic_int *cancel;
    XXH3_state_t *hash;
    int64_t bytes, synced;
};

static int write_piece(struct output *o, const char *p, size_t n, struct err *e)
{
    while (n > 0) {
        ssize_t w = write(o->fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return err_errno(e, "cannot write %s", o->path);
        p += w;
        n -= (size_t)w;
        o->bytes += w;
    }
    return 0;
}

/* The disk is kept busy on the way, so that the last fsync has little to do. What goes wrong here,
 * that fsync tells. */
static void push_out(struct output *o)
{
    if (o->bytes - o->synced < SYNC_PIECE)
        return;
    (void)sync_file_range(o->fd, o->synced, o->bytes - o->synced, SYNC_FILE_RANGE_WRITE);
    o->synced = o->bytes;
}

static int put(struct output *o, const void *bytes, size_t n, struct err *e)
{
    const char *p = bytes;
    int r = 0;
    for (size_t at = 0; r == 0 && at < n; at += WRITE_PIECE) {
        size_t piece = n - at < WRITE_PIECE ? n - at : WRITE_PIECE;
        if (o->cancel && atomic_load(o->cancel))
            return err_set(e, ERR_STALE, "the checkpoint was given up");
        XXH3_128bits_update(o->hash, p + at, piece);
        r = write_piece(o, p + at, piece, e);
        push_out(o);
    }
    return r;
}

static int make_header(const struct checkpoint_item *items, int count, struct buf *ret,
                       struct err *e)
{
    struct safetensors_item *list = mem_zalloc(((size_t)count + 1) * sizeof *list);
    const char **metadata = mem_zalloc((2 * (size_t)count + 3) * sizeof *metadata);
    int n = 0;
    metadata[n++] = "producer";
    metadata[n++] = "trainyard";
    for (int i = 0; i < count; i++) {
        list[i].name = items[i].name;
        list[i].shape = (struct shape){1, {items[i].elements}};
        metadata[n++] = items[i].name;
        metadata[n++] = items[i].about;
    }
    int r = safetensors_header(list, count, metadata, ret, e);
    free(list);
    free(metadata);
    return r;
}

static int put_from_source(struct output *o, const struct checkpoint_job *j, int item,
                           struct err *e)
{
    size_t n = (size_t)j->items[item].elements, most = WRITE_PIECE / sizeof(float);
    CLEANUP(mem_freep) float *block = mem_alloc((n < most ? n : most) * sizeof *block);
    int r = 0;
    for (size_t at = 0; r == 0 && at < n; at += most) {
        size_t end = n - at < most ? n : at + most;
        j->source->read(j->source->context, item, at, end, block);
        r = put(o, block, (end - at) * sizeof *block, e);
    }
    return r;
}

static int put_all(struct output *o, const struct checkpoint_job *j, struct err *e)
{
    struct buf header = BUF_INIT;
    int r = make_header(j->items, j->count, &header, e);
    if (r == 0)
        r = put(o, header.data, header.len, e);
    for (int i = 0; r == 0 && i < j->count; i++) {
        const struct checkpoint_item *x = &j->items[i];
        r = x->values ? put(o, x->values, (size_t)x->elements * sizeof(float), e)
                      : put_from_source(o, j, i, e);
    }
    if (r == 0 && fsync(o->fd) < 0)
        r = err_errno(e, "cannot sync %s", o->path);
    buf_done(&header);
    return r;
}

static int write_file(const char *path, const struct checkpoint_job *j, const atomic_int *cancel,
                      struct checkpoint_shard *ret, struct err *e)
{
    CLEANUP(mem_closep)
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(e, "cannot create %s", path);
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return err_set(e, ERR_UNAVAILABLE, "no memory for a checksum");
    XXH3_128bits_reset(hash);
    struct output o = {.fd = fd, .path = path, .cancel = cancel, .hash = hash};
    int r = put_all(&o, j, e);
    *ret = (struct checkpoint_shard){o.bytes, sum_of(XXH3_128bits_digest(hash))};
    XXH3_freeState(hash);
    return r;
}

int checkpoint_write_shard(const struct checkpoint_job *j, const atomic_int *cancel,
                           struct checkpoint_shard *ret, struct err *e)
{
    struct checkpoint_shard shard;
    CLEANUP(mem_freep) char *directory = temporary_path(j->root, j->step);
    CLEANUP(mem_freep) char *path = mem_printf("%s/rank-%d.safetensors", directory, j->rank);
    if (mkdir(directory, 0700) < 0 && errno != EEXIST)
        return err_errno(e, "cannot make the directory %s", directory);
    int r = write_file(path, j, cancel, &shard, e);
    if (r == 0)
        *ret = shard;
    return r;
}

/* ---- committing ---- */

static int write_manifest(const char *directory, const char *manifest, size_t n, struct err *e)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/manifest.json", directory);
    CLEANUP(mem_closep)
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(e, "cannot create %s", path);
    struct output o = {.fd = fd, .path = path};
    int r = write_piece(&o, manifest, n, e);
    if (r == 0 && fsync(fd) < 0)
        r = err_errno(e, "cannot sync %s", path);
    return r < 0 ? r : sync_directory(directory, e);
}

/* A checkpoint of this step may be there already, of an attempt that never could tell of it, or
 * damaged and passed over: the two change places, and the old one goes. */
static int take_name(const char *temporary, const char *final, struct err *e)
{
    if (rename(temporary, final) == 0)
        return 0;
    if ((errno != ENOTEMPTY && errno != EEXIST) ||
        renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) < 0)
        return err_errno(e, "cannot rename %s to %s", temporary, final);
    return file_remove_tree(temporary, e);
}

int checkpoint_commit(const char *root, int64_t step, const char *manifest, size_t n, struct err *e)
{
    CLEANUP(mem_freep) char *temporary = temporary_path(root, step);
    CLEANUP(mem_freep) char *final = final_path(root, step);
    int r = write_manifest(temporary, manifest, n, e);
    if (r == 0)
        r = take_name(temporary, final, e);
    return r < 0 ? r : sync_directory(root, e);
}

int checkpoint_discard(const char *root, int64_t step, struct err *e)
{
    CLEANUP(mem_freep) char *temporary = temporary_path(root, step);
    return file_remove_tree(temporary, e);
}

static int is_leftover(const char *name)
{
    if (strncmp(name, "step-", 5) != 0)
        return 0;
    size_t digits = strspn(name + 5, "0123456789");
    return digits >= 10 && strcmp(name + 5 + digits, ".tmp") == 0;
}

int checkpoint_remove_leftovers(const char *root, int *ret_count, struct err *e)
{
    const struct dirent *entry;
    int r = 0, count = 0;
    DIR *d = opendir(root);
    if (!d)
        return err_errno(e, "cannot read the directory %s", root);
    while (r == 0 && (entry = readdir(d)))
        if (is_leftover(entry->d_name)) {
            CLEANUP(mem_freep) char *path = mem_printf("%s/%s", root, entry->d_name);
            r = file_remove_tree(path, e);
            count++;
        }
    closedir(d);
    if (r == 0)
        *ret_count = count;
    return r;
}

/* ---- the thread ---- */

static void *work(void *context)
{
    struct checkpoint_writer *w = context;
    if (w->task == CHECKPOINT_TASK_COMMIT)
        w->result =
            checkpoint_commit(w->job.root, w->job.step, w->manifest, w->manifest_size, &w->e);
    else
        w->result = checkpoint_write_shard(&w->job, &w->cancel, &w->shard, &w->e);
    atomic_store(&w->is_done, 1);
    return NULL;
}

/* Signals are the main thread's. */
int checkpoint_writer_start(struct checkpoint_writer *w, struct err *e)
{
    sigset_t all, before;
    sigfillset(&all);
    atomic_store(&w->is_done, 0);
    atomic_store(&w->cancel, 0);
    w->result = 0;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return err_set(e, ERR_UNAVAILABLE, "cannot start a thread that writes the checkpoint: %s",
                       strerror(failed));
    w->is_running = 1;
    return 0;
}

int checkpoint_writer_poll(struct checkpoint_writer *w, int wait_ms)
{
    struct timespec until;
    if (!w->is_running)
        return 0;
    if (!atomic_load(&w->is_done)) {
        if (wait_ms <= 0)
            return 0;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += wait_ms / 1000;
        until.tv_nsec += wait_ms % 1000 * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_clockjoin_np(w->thread, NULL, CLOCK_MONOTONIC, &until) != 0)
            return 0;
    } else {
        pthread_join(w->thread, NULL);
    }
    w->is_running = 0;
    return 1;
}

void checkpoint_writer_cancel(struct checkpoint_writer *w)
{
    if (!w->is_running)
        return;
    atomic_store(&w->cancel, 1);
    pthread_join(w->thread, NULL);
    w->is_running = 0;
}
