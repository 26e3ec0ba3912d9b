/* Finding and wording the cause of a failure. What ranks wrote is input from the job's user:
 * lines that are no verdicts are passed over, texts are cut to size. */
#include "daemon/shim/cause.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/proc.h"

int cause_failed(const struct rank_end *end)
{
    return end->ended && (end->signal_number != 0 || end->exit_code != 0);
}

static int is_echo(const struct rank_end *end)
{
    return end->verdict.failed && strcmp(end->verdict.code, "peer_lost") == 0;
}

/* How good a cause it is: 0 none; a rank that failed by itself, one that died of something else
 * while we were ending, one that only lost its peer. */
static int weight(const struct rank_end *end)
{
    if (!cause_failed(end) || end->by_us)
        return 0;
    if (is_echo(end))
        return 1;
    if (!end->late)
        return 3;
    return end->signal_number != 0 || end->verdict.failed ? 2 : 0;
}

int cause_find(const struct rank_end *ends, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        int w = weight(&ends[i]);
        if (w == 0)
            continue;
        int b = best < 0 ? 0 : weight(&ends[best]);
        if (w > b || (w == b && ends[i].order < ends[best].order))
            best = i;
    }
    return best;
}

/* ---- reports ---- */

/* The last `max` bytes of a file, NUL-terminated; NULL if it cannot be read. */
static char *read_tail(const char *path, long max, size_t *ret_n, int *ret_whole)
{
    CLEANUP(mem_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    off_t from = st.st_size > max ? st.st_size - max : 0;
    size_t want = (size_t)(st.st_size - from);
    char *text = mem_alloc(want + 1);
    size_t n = 0;
    while (n < want) {
        ssize_t got = pread(fd, text + n, want - n, from + (off_t)n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    text[n] = '\0';
    *ret_n = n;
    *ret_whole = from == 0;
    return text;
}

static void copy_cut(char *out, size_t size, const char *in)
{
    size_t n = strlen(in);
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)in[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(out, in, n);
    out[n] = '\0';
}

/* As the coordinator takes it: it refuses a record with any other code. */
static int is_word(const char *code)
{
    return code[strspn(code, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] ==
           '\0';
}

static void take_verdict(const json_t *doc, struct rank_end *ends, int n)
{
    const char *type = json_string_value(json_object_get(doc, "type"));
    const char *outcome = json_string_value(json_object_get(doc, "outcome"));
    const char *code = json_string_value(json_object_get(doc, "code"));
    const char *reason = json_string_value(json_object_get(doc, "reason"));
    const json_t *rank = json_object_get(doc, "rank");
    if (!type || strcmp(type, "verdict") != 0 || !json_is_integer(rank))
        return;
    for (int i = 0; i < n; i++) {
        if (ends[i].rank != json_integer_value(rank))
            continue;
        struct verdict *v = &ends[i].verdict;
        v->failed = outcome && strcmp(outcome, "failed") == 0 && code && *code && reason && *reason;
        v->stopped = outcome && strcmp(outcome, "stopped") == 0;
        copy_cut(v->code, sizeof v->code, !v->failed ? "" : is_word(code) ? code : "rank_failed");
        copy_cut(v->reason, sizeof v->reason, v->failed ? reason : "");
    }
}

void cause_read_verdicts(const char *report_path, struct rank_end *ends, int n)
{
    size_t len = 0;
    int whole = 0;
    CLEANUP(mem_freep) char *text = read_tail(report_path, CAUSE_REPORT_TAIL, &len, &whole);
    char *line = text;
    char *end = text + len;
    if (text && !whole) { /* the first line is cut */
        line = memchr(text, '\n', len);
        line = line ? line + 1 : end;
    }
    while (line && line < end) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t size = (size_t)((stop ? stop : end) - line);
        if (memmem(line, size, "\"verdict\"", 9)) {
            json_auto_t *doc = json_loadb(line, size, 0, NULL);
            take_verdict(doc, ends, n);
        }
        line = stop ? stop + 1 : end;
    }
}

/* ---- words ---- */

/* Length of the valid UTF-8 sequence at `s` (n bytes are there), 0 if it is broken. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = s[0] < 0x80       ? 1
                 : s[0] >> 5 == 6  ? 2
                 : s[0] >> 4 == 14 ? 3
                 : s[0] >> 3 == 30 ? 4
                                   : 0;
    if (len == 0 || len > n)
        return 0;
    uint32_t value = len == 1 ? s[0] : s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (s[i] & 0x3f);
    }
    int surrogate = value >= 0xd800 && value <= 0xdfff;
    return value < least[len] || value > 0x10ffff || surrogate ? 0 : len;
}

static size_t put_printable(char *out, const unsigned char *s, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length(s + i, n - i);
        if (s[i] == '\n' && i + 1 <= n) {
            w += (size_t)sprintf(out + w, "\\n");
            i++;
        } else if (len == 0 || (len == 1 && (s[i] < 0x20 || s[i] == 0x7f))) {
            w += (size_t)sprintf(out + w, "\\x%02x", s[i]);
            i++;
        } else {
            memcpy(out + w, s + i, len);
            w += len;
            i += len;
        }
    }
    out[w] = '\0';
    return w;
}

void cause_log_tail(const char *log_path, char out[CAUSE_LOG_TEXT_SIZE])
{
    size_t n = 0;
    int whole = 0;
    out[0] = '\0';
    CLEANUP(mem_freep) char *text = read_tail(log_path, CAUSE_LOG_TAIL, &n, &whole);
    if (!text)
        return;
    size_t from = 0;
    while (n > 0 && strchr("\n\r \t", text[n - 1]))
        n--;
    const char *newline = whole ? NULL : memchr(text, '\n', n);
    if (newline) /* begin with a whole line */
        from = (size_t)(newline - text) + 1;
    while (!whole && !newline && from < n && from < 3 && ((unsigned char)text[from] & 0xc0) == 0x80)
        from++; /* the rest of a character that was cut */
    put_printable(out, (const unsigned char *)text + from, n - from);
}

static void name_of(const struct rank_end *end, const char *node, char *out, size_t size)
{
    if (end->rank < 0)
        snprintf(out, size, "The prepare step on node %.200s", node);
    else
        snprintf(out, size, "Rank %d on node %.200s", end->rank, node);
}

void cause_describe(const struct rank_end *end, const char *node, const char *log_path, char *code,
                    char reason[ATTEMPT_REASON_MAX])
{
    char who[256];
    char text[CAUSE_LOG_TEXT_SIZE + 512];
    name_of(end, node, who, sizeof who);
    if (end->verdict.failed) {
        copy_cut(code, 64, end->verdict.code);
        copy_cut(reason, ATTEMPT_REASON_MAX, end->verdict.reason);
        return;
    }
    if (end->signal_number) {
        strcpy(code, "rank_killed");
        snprintf(text, sizeof text, "%s was killed by %s.", who,
                 proc_signal_name(end->signal_number));
    } else {
        char tail[CAUSE_LOG_TEXT_SIZE];
        cause_log_tail(log_path, tail);
        strcpy(code, "rank_failed");
        snprintf(text, sizeof text, "%s exited with status %d; %s%s", who, end->exit_code,
                 *tail ? "the last lines of its log: " : "its log is empty.", tail);
    }
    copy_cut(reason, ATTEMPT_REASON_MAX, text);
}
