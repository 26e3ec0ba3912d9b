/* One walk reads /proc/PID/stat of everything (some 10 us each), then marks descendants by
 * following parents upwards. */
#include "daemon/procs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"
#include "daemon/attempt.h"

#define ENVIRON_MAX (4 * 1024 * 1024) /* more than the kernel lets exec pass by default */

void procs_done(struct procs *p)
{
    free(p->items);
    *p = (struct procs){0};
}

/* The fields after the last ")": comm may hold anything. -1: it is gone, or (file_is_short(errno))
 * we could not look. */
static int read_entry(pid_t pid, struct procs_entry *ret)
{
    char path[64];
    char text[2048];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    CLEANUP(mem_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n == 0)
        errno = ESRCH;
    if (n <= 0)
        return -1;
    text[n] = '\0';
    const char *p = strrchr(text, ')');
    char state;
    int parent;
    int group;
    unsigned long long start;
    if (!p || sscanf(p + 1,
                     " %c %d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                     "%llu",
                     &state, &parent, &group, &start) != 4) {
        errno = EINVAL;
        return -1;
    }
    *ret = (struct procs_entry){.pid = pid,
                                .parent = parent,
                                .group = group,
                                .start_time = start,
                                .dead = state == 'Z' || state == 'X'};
    return 0;
}

static int by_pid(const void *a, const void *b)
{
    const struct procs_entry *x = a;
    const struct procs_entry *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

static int descends(const struct procs *p, const struct procs_entry *entry, pid_t root)
{
    /* Depth is bounded by the count: parents read at different moments could form a ring. */
    for (size_t depth = 0; entry && depth <= p->count; depth++) {
        if (entry->parent == root)
            return 1;
        struct procs_entry key = {.pid = entry->parent};
        entry = bsearch(&key, p->items, p->count, sizeof *p->items, by_pid);
    }
    return 0;
}

static DIR *open_proc(struct err *e) /* or NULL, and the code in e */
{
    DIR *d = opendir("/proc");
    if (!d)
        err_errno(e, "cannot list /proc");
    return d;
}

/* The next process in the listing, or 0. */
static pid_t next_pid(DIR *d)
{
    struct dirent *entry;
    while ((entry = readdir(d))) {
        if (isdigit((unsigned char)entry->d_name[0]))
            return (pid_t)atoi(entry->d_name);
    }
    return 0;
}

int procs_walk(pid_t root, struct procs *ret, struct err *e)
{
    DIR *d = open_proc(e);
    if (!d)
        return e ? e->code : ERR_IO;
    int r = 0;
    struct procs p = {0};
    size_t room = 0;
    pid_t pid;
    while ((pid = next_pid(d)) > 0) {
        if (p.count == room) {
            room = room ? room * 2 : 256;
            p.items = mem_realloc(p.items, room * sizeof *p.items);
        }
        if (read_entry(pid, &p.items[p.count]) == 0)
            p.count++;
        else if (file_is_short(errno))
            break;
    }
    if (pid > 0)
        r = err_errno(e, "cannot look at the process %d", (int)pid);
    closedir(d);
    if (r < 0) {
        procs_done(&p);
        return r;
    }
    if (p.count > 0)
        qsort(p.items, p.count, sizeof *p.items, by_pid);
    for (size_t i = 0; i < p.count; i++)
        p.items[i].below = descends(&p, &p.items[i], root);
    *ret = p;
    return 0;
}

int procs_signal(const struct procs_entry *p, int signal_number, struct err *e)
{
    struct proc_identity id = {.pid = p->pid, .start_time = p->start_time};
    int r = proc_boot_id(id.boot_id, e);
    if (r < 0)
        return r;
    int fd;
    r = proc_open(&id, &fd, e);
    if (r < 0)
        return r == ERR_NOT_FOUND ? 0 : r;
    r = proc_signal(fd, signal_number, e);
    int gone = r < 0 && errno == ESRCH;
    close(fd);
    return gone ? 0 : r;
}

/* 1 if the NUL-separated environment block holds the assignment. */
static int block_holds(const char *block, size_t n, const char *assignment)
{
    size_t want = strlen(assignment);
    for (size_t i = 0; i < n;) {
        size_t len = strnlen(block + i, n - i);
        if (len == want && memcmp(block + i, assignment, want) == 0)
            return 1;
        i += len + 1;
    }
    return 0;
}

/* 1, 0, or a negative code where we could not look. */
static int carries(pid_t pid, const char *assignment, struct err *e)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    struct buf b = BUF_INIT;
    int r = file_read(path, ENVIRON_MAX, &b, e);
    if (r < 0)
        return r == ERR_IO && file_is_short(errno) ? r : 0;
    int found = block_holds(b.data, b.len, assignment);
    buf_done(&b);
    return found;
}

int procs_kill_marked(const char *mark, size_t *ret_count, struct err *e)
{
    CLEANUP(mem_freep) char *assignment = mem_printf("%s=%s", ATTEMPT_MARK_VARIABLE, mark);
    DIR *d = open_proc(e);
    if (!d)
        return e ? e->code : ERR_IO;
    int r = 0;
    size_t found = 0;
    pid_t pid;
    while (r == 0 && (pid = next_pid(d)) > 0) {
        struct procs_entry entry;
        if (pid == getpid())
            continue;
        if (read_entry(pid, &entry) < 0) {
            if (file_is_short(errno))
                r = err_errno(e, "cannot look at the process %d", (int)pid);
            continue;
        }
        if (entry.dead)
            continue;
        /* Read the start time first: what carries() then reads is that process or a later one,
         * and a later one is refused by procs_signal(). */
        r = carries(pid, assignment, e);
        if (r <= 0)
            continue;
        found++;
        r = procs_signal(&entry, SIGKILL, e);
    }
    closedir(d);
    if (r == 0)
        *ret_count = found;
    return r;
}

/* ---- who one is ---- */

static void read_name(pid_t pid, char *out, size_t size)
{
    char path[64];
    struct buf b = BUF_INIT;
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    out[0] = '\0';
    if (file_read(path, 4096, &b, NULL) == 0)
        snprintf(out, size, "%.*s", (int)strcspn(b.data, "\n"), b.data);
    buf_done(&b);
}

static void read_mark(pid_t pid, char out[ATTEMPT_MARK_SIZE])
{
    static const char variable[] = ATTEMPT_MARK_VARIABLE "=";
    char path[64];
    struct buf b = BUF_INIT;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    out[0] = '\0';
    if (file_read(path, ENVIRON_MAX, &b, NULL) == 0) {
        for (size_t i = 0; i < b.len; i += strlen(b.data + i) + 1) {
            if (strncmp(b.data + i, variable, sizeof variable - 1) == 0) {
                snprintf(out, ATTEMPT_MARK_SIZE, "%s", b.data + i + sizeof variable - 1);
                break;
            }
        }
    }
    buf_done(&b);
}

int procs_facts(pid_t pid, struct procs_facts *ret)
{
    char path[64];
    struct stat st;
    struct procs_entry entry;
    struct procs_facts f = {0};
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    if (stat(path, &st) < 0 || read_entry(pid, &entry) < 0)
        return ERR_NOT_FOUND;
    f.uid = st.st_uid;
    read_name(pid, f.name, sizeof f.name);
    read_mark(pid, f.mark);
    while (f.above_count < PROCS_ABOVE_MAX && entry.parent > 0) {
        f.above[f.above_count++] = entry.parent;
        if (read_entry(entry.parent, &entry) < 0)
            break;
    }
    *ret = f;
    return 0;
}
