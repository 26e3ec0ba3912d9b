/* Removing checkpoints and listing what is left. Runs in a child of the agent (sweep.c).
 *
 * In a job's directory its user can put what it likes under any name, also while we look. So
 * nothing there is reached but through descriptors, without following links, and as that user: root
 * on a shared file system often is nobody, and as the user no more can be removed than the user
 * could have. Only names of checkpoints are listed and removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define FRESH_S 60 /* an empty directory that changed so lately stays for now */

int tidy_name_valid(const char *name)
{
    const char *p = name + (name[0] == '.');
    if (strncmp(p, "step-", 5) != 0)
        return 0;
    size_t digits = strspn(p + 5, "0123456789");
    const char *rest = p + 5 + digits;
    return digits >= 10 && digits <= 18 && (!*rest || *rest == '.') &&
           strspn(rest, "abcdefghijklmnopqrstuvwxyz0123456789.-_") == strlen(rest);
}

/* ---- as the job's user ---- */
static void become(uid_t uid, gid_t gid)
{
    if (getuid() != 0)
        return;
    if (setegid(gid) < 0 || seteuid(uid) < 0)
        _exit(1); /* as root we touch nothing of it */
}

static void become_root(void)
{
    if (getuid() != 0)
        return;
    if (seteuid(0) < 0 || setegid(0) < 0)
        _exit(1);
}

/* The job's directory, opened as its owner, who we are from then on: become_root() afterwards. */
static int open_job(int root, const char *job, int *ret, struct err *e)
{
    struct stat st;
    if (fstatat(root, job, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_errno(e, "cannot look at %s", job);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ERR_INVALID, "%s is no directory", job);
    become(st.st_uid, st.st_gid);
    int fd = openat(root, job, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "cannot open %s", job);
    *ret = fd;
    return 0;
}

/* ---- removing ---- */
static int remove_names(int dir, const json_t *names, struct err *e)
{
    json_t *item;
    size_t i;
    int r = 0;
    json_array_foreach(names, i, item)
    {
        const char *name = json_string_value(item);
        if (r == 0 && name && tidy_name_valid(name))
            r = file_remove_at(dir, name, e);
    }
    return r;
}

/* An attempt that is about to start has just made or touched it. */
static int is_fresh(const struct stat *st)
{
    return st->st_mtime > clock_wall_us() / 1000000 - FRESH_S;
}

/* By root, whose directory it lies in; where root is nobody, by the user, whose that one then is.
 */
static int remove_job(int root, const char *job, const struct stat *owner, struct err *e)
{
    if (unlinkat(root, job, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno == EACCES || errno == EPERM) {
        become(owner->st_uid, owner->st_gid);
        int r = unlinkat(root, job, AT_REMOVEDIR);
        int code = errno;
        become_root();
        errno = code;
        if (r == 0)
            return 0;
    }
    if (errno == ENOTEMPTY || errno == EEXIST)
        return err_set(e, ERR_CONFLICT, "%s holds something that is no checkpoint", job);
    return err_errno(e, "cannot remove %s", job);
}

static int remove_of(int root, const json_t *item, struct err *e)
{
    const char *job = json_string_value(json_object_get(item, "job"));
    struct stat st;
    CLEANUP(mem_closep) int dir = -1;
    int r = open_job(root, job, &dir, e);
    if (r == 0)
        r = remove_names(dir, json_object_get(item, "remove"), e);
    if (r == 0 && fstat(dir, &st) < 0)
        r = err_errno(e, "cannot look at %s", job);
    become_root();
    if (r == 0 && json_is_true(json_object_get(item, "all")) && !is_fresh(&st))
        r = remove_job(root, job, &st, e);
    return r == ERR_NOT_FOUND ? 0 : r;
}

static json_t *remove_all(int root, const json_t *removals)
{
    json_t *failed = json_object();
    json_t *item;
    size_t i;
    json_array_foreach(removals, i, item)
    {
        const char *job = json_string_value(json_object_get(item, "job"));
        struct err e;
        if (job && id_valid("job", job) && remove_of(root, item, &e) < 0)
            json_object_set_new(failed, job, json_string(e.text));
    }
    return failed;
}

/* ---- listing ---- */
static json_t *names_in(int take_dir)
{
    json_t *names = json_array();
    DIR *d = fdopendir(take_dir);
    struct dirent *entry;
    while (d && (entry = readdir(d)) && json_array_size(names) < SWEEP_NAMES_MAX)
        if (tidy_name_valid(entry->d_name))
            json_array_append_new(names, json_string(entry->d_name));
    if (d)
        closedir(d);
    else
        close(take_dir);
    return names;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Sorted; free() them. */
static char (*list_jobs(int root, size_t *ret_count))[ID_SIZE]
{
    char(*jobs)[ID_SIZE] = NULL;
    size_t count = 0, cap = 0;
    int own = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = own < 0 ? NULL : fdopendir(own);
    struct dirent *entry;
    while (d && (entry = readdir(d))) {
        if (!id_valid("job", entry->d_name))
            continue;
        if (count == cap) {
            cap = cap ? 2 * cap : 64;
            jobs = mem_realloc(jobs, cap * sizeof *jobs);
        }
        snprintf(jobs[count++], ID_SIZE, "%.39s", entry->d_name);
    }
    if (d)
        closedir(d);
    if (count > 0)
        qsort(jobs, count, sizeof *jobs, by_name);
    *ret_count = count;
    return jobs;
}

/* Returns the bytes that it adds, about. */
static size_t add_job(int root, const char *job, json_t *held)
{
    int dir = -1;
    struct err e;
    int r = open_job(root, job, &dir, &e);
    json_t *names = r == 0 ? names_in(dir) : NULL;
    size_t bytes = ID_SIZE;
    become_root();
    if (!names)
        return 0;
    for (size_t i = 0; i < json_array_size(names); i++)
        bytes += json_string_length(json_array_get(names, i));
    json_array_append_new(held, json_pack("{s:s, s:o}", "job", job, "names", names));
    return bytes;
}

/* At most SWEEP_JOBS_MAX of them, and so many that their names fit into a sync whatever users call
 * theirs; round and round. */
static void list(int root, const char *after, json_t *out)
{
    size_t count, from = 0, n = 0, bytes = 0;
    char(*jobs)[ID_SIZE] = list_jobs(root, &count);
    json_t *held = json_array();
    while (from < count && strcmp(jobs[from], after) <= 0)
        from++;
    for (; n < count && n < SWEEP_JOBS_MAX && bytes < SWEEP_BYTES_MAX; n++)
        bytes += add_job(root, jobs[(from + n) % count], held);
    json_object_set_new(out, "held", held);
    json_object_set_new(out, "after", json_string(n < count ? jobs[(from + n - 1) % count] : ""));
    free(jobs);
}

json_t *tidy(const char *root, const json_t *removals, const char *after)
{
    struct statvfs fs;
    struct err e;
    CLEANUP(mem_closep) int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        err_errno(&e, "cannot open the checkpoint directory %s", root);
        return json_pack("{s:s}", "error", e.text);
    }
    json_t *out = json_pack("{s:o}", "failed", remove_all(fd, removals));
    list(fd, after, out);
    if (fstatvfs(fd, &fs) == 0)
        json_object_set_new(out, "disk",
                            json_pack("[I, I, I, I, I]", (json_int_t)fs.f_frsize,
                                      (json_int_t)fs.f_blocks, (json_int_t)fs.f_bavail,
                                      (json_int_t)fs.f_files, (json_int_t)fs.f_favail));
    return out;
}
