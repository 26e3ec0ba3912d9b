/* Reading a report file by byte offset: whole lines only, each once. What ranks write is the job's
 * own text: a line that is no report is passed over with a warning, and never breaks a sync. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

void reports_look(struct attempt *a)
{
    struct stat st;
    if (a->report_fd < 0 && a->has_dir) {
        CLEANUP(mem_freep) char *path = attempt_path(a->dir, ATTEMPT_REPORT);
        a->report_fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        a->report_unopened = a->report_fd < 0 && file_is_short(errno);
    }
    if (a->report_fd >= 0 && fstat(a->report_fd, &st) == 0 && S_ISREG(st.st_mode))
        a->report_size = st.st_size;
}

int reports_done(const struct attempt *a)
{
    return a->report_known && !a->report_unopened && a->report_acked >= a->report_size;
}

int reports_due(struct attempt *a)
{
    if (!a->report_known || a->report_size <= a->report_acked)
        return 0;
    if (a->phase != PHASE_ENDED && a->report_stuck == a->report_size)
        return 0; /* half a line, as before */
    if (clock_boottime_us() >= a->report_hold_us)
        return 1;
    agent_wake_at(a->agent, a->report_hold_us);
    return 0;
}

/* 1 if nested at most `left` deep. */
static int is_shallow(const json_t *v, int left)
{
    const char *key;
    json_t *child;
    size_t i;
    if (!json_is_object(v) && !json_is_array(v))
        return 1;
    if (left == 0)
        return 0;
    if (json_is_array(v)) {
        json_array_foreach(v, i, child)
        {
            if (!is_shallow(child, left - 1))
                return 0;
        }
        return 1;
    }
    json_object_foreach((json_t *)v, key, child)
    {
        if (!is_shallow(child, left - 1))
            return 0;
    }
    return 1;
}

static void take_line(const struct attempt *a, const char *line, size_t n, int64_t at,
                      json_t *lines)
{
    json_error_t je;
    json_t *doc = NULL;
    if (n == 0)
        return;
    if (n <= REPORT_LINE_MAX)
        doc = json_loadb(line, n, JSON_REJECT_DUPLICATES, &je);
    if (json_is_object(doc) && is_shallow(doc, REPORT_DEPTH_MAX)) {
        json_array_append_new(lines, doc);
        return;
    }
    json_decref(doc);
    log_event(LOG_LEVEL_WARNING, "report_line",
              "attempt=%s offset=%lld bytes=%zu note=\"not a report; passed over\"", a->id,
              (long long)at, n);
}

/* Takes whole lines of the `n` bytes, of which the last may be cut where `last` says that nothing
 * will follow; returns how many bytes that were. */
static size_t take_lines(const struct attempt *a, const char *text, size_t n, int last,
                         int *lines_left, json_t *lines)
{
    size_t done = 0;
    while (done<n && * lines_left> 0) {
        const char *stop = memchr(text + done, '\n', n - done);
        size_t size = stop ? (size_t)(stop - text) - done : n - done;
        int too_long = !stop && size > REPORT_LINE_MAX;
        if (!stop && !last && !too_long)
            break;
        take_line(a, text + done, size, a->report_acked + (int64_t)done, lines);
        done += size + (stop != NULL);
        --*lines_left;
    }
    return done;
}

/* A new checkpoint is a reason to look at what there is. */
static int tells_checkpoint(const json_t *lines)
{
    json_t *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        const char *type = json_string_value(json_object_get(line, "type"));
        if (type && strcmp(type, "checkpoint") == 0)
            return 1;
    }
    return 0;
}

static size_t read_bytes(struct attempt *a, char *text, size_t want)
{
    size_t n = 0;
    while (n < want) {
        ssize_t got = pread(a->report_fd, text + n, want - n, a->report_acked + (off_t)n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    return n;
}

json_t *reports_read(struct attempt *a, int *lines, int64_t *bytes)
{
    json_t *list = json_array();
    int64_t there = a->report_size - a->report_acked;
    int64_t want = there < *bytes ? there : *bytes;
    a->report_sent = a->report_acked;
    /* A line that does not fit into what is left of this sync goes with the next one. */
    if (a->report_known && a->report_fd >= 0 && want > 0 &&
        (want == there || want > REPORT_LINE_MAX)) {
        CLEANUP(mem_freep) char *text = mem_alloc((size_t)want);
        size_t n = read_bytes(a, text, (size_t)want);
        int last = a->phase == PHASE_ENDED && (int64_t)n == there;
        size_t taken = take_lines(a, text, n, last, lines, list);
        a->report_sent += (int64_t)taken;
        a->report_stuck = taken == 0 && *lines > 0 ? a->report_size : -1;
        *bytes -= (int64_t)taken;
    }
    if (tells_checkpoint(list))
        sweep_soon(a->agent);
    return json_pack("{s:I, s:I, s:o}", "from", (json_int_t)a->report_acked, "to",
                     (json_int_t)a->report_sent, "lines", list);
}

void reports_acked(struct attempt *a, int64_t offset)
{
    if (!a->report_known || offset > a->report_acked) {
        a->report_known = 1;
        a->report_acked = offset;
        if (a->phase == PHASE_ENDED && reports_done(a))
            a->changed = 1;
    }
}
