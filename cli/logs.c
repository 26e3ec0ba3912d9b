/* logs: what a rank wrote, from the start or the last lines of it, and on until the job ends.
 *
 * Read in chunks by byte offset. On a terminal the bytes are escaped; into a pipe or file they go
 * as they are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/text.h"

#define CHUNK       (256 * 1024)
#define TAIL_FIRST  (64 * 1024)
#define TAIL_MOST   (1024 * 1024) /* the last lines are looked for in this much */
#define FOLLOW_MS   500
#define LOG_RETRY_S 60

struct logs {
    struct cli *cli;
    const char *given;
    char id[CLI_ID_SIZE];
    int follow;
    int64_t rank, attempt, tail; /* attempt 0: the latest; tail -1: everything */
    int64_t offset;
    struct buf held; /* the beginning of a character whose rest has not come yet */
};

static const struct argp_option options[] = {
    {"follow", 'f', 0, 0, "Go on until the job has ended", 0},
    {"rank", 'r', "N", 0, "The rank; default 0", 0},
    {"attempt", 'a', "N", 0, "The attempt, from 1; default the latest", 0},
    {"tail", 'n', "N", 0, "Begin with the last N lines", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct logs *l = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = l->cli; return 0;
    case 'f': l->follow = 1; return 0;
    case 'r': l->rank = cli_number(state, "--rank", arg); return 0;
    case 'a': l->attempt = cli_number(state, "--attempt", arg); return 0;
    case 'n': l->tail = cli_number(state, "--tail", arg); return 0;
    case ARGP_KEY_ARG:
        if (l->given)
            argp_error(state, "one job at a time; \"%s\" is the second", arg);
        l->given = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which job? Give its id, or \"last\""); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* One chunk, from `offset` on, or the last `limit` bytes where that is -1; 200 or refused. */
static int fetch(struct logs *l, int64_t offset, int64_t limit, struct http_reply *ret)
{
    struct http_reply r = {0};
    CLEANUP(buf_done) struct buf path = BUF_INIT;
    buf_addf(&path, "/v1/jobs/%s/logs?rank=%lld", l->id, (long long)l->rank);
    if (offset >= 0)
        buf_addf(&path, "&offset=%lld&limit=%lld", (long long)offset, (long long)limit);
    else
        buf_addf(&path, "&tail=%lld", (long long)limit);
    if (l->attempt > 0)
        buf_addf(&path, "&attempt=%lld", (long long)l->attempt);
    struct http_request q = {.method = "GET", .path = path.data};
    int status = cli_send(l->cli, &q, LOG_RETRY_S, &r);
    if (status != EXIT_OK)
        return status;
    if (r.status != 200) {
        status = cli_refused(&r);
        http_reply_done(&r);
        return status;
    }
    *ret = r;
    return EXIT_OK;
}

static void print_chunk_json(struct logs *l, const char *bytes, size_t n)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    json_auto_t *text = json_stringn(bytes, n);
    if (!text) { /* no UTF-8 */
        text_escape(&b, bytes, n, TEXT_LOG);
        text = json_stringn(b.data, b.len);
    }
    json_auto_t *doc = json_pack("{s:I,s:I,s:O}", "rank", (json_int_t)l->rank, "offset",
                                 (json_int_t)l->offset, "text", text);
    json_dumpf(doc, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
}

/* Prints and counts the bytes in. */
static void print_chunk(struct logs *l, const char *bytes, size_t n)
{
    if (l->cli->json) {
        if (n > 0)
            print_chunk_json(l, bytes, n);
    } else if (!isatty(STDOUT_FILENO)) {
        fwrite(bytes, 1, n, stdout);
    } else {
        CLEANUP(buf_done) struct buf b = BUF_INIT;
        buf_add(&l->held, bytes, n);
        size_t rest = text_incomplete(l->held.data, l->held.len);
        text_escape(&b, l->held.data, l->held.len - rest, TEXT_LOG);
        fwrite(b.data, 1, b.len, stdout);
        buf_drop(&l->held, l->held.len - rest);
    }
    l->offset += (int64_t)n;
    fflush(stdout);
}

/* Where the last `lines` lines of these bytes begin; -1 if they begin before. */
static int64_t tail_start(const char *bytes, size_t n, int64_t lines)
{
    size_t i = n;
    if (lines == 0)
        return (int64_t)n;
    if (i > 0 && bytes[i - 1] == '\n')
        i--;
    for (; i > 0; i--) {
        if (bytes[i - 1] == '\n' && --lines == 0)
            return (int64_t)i;
    }
    return -1;
}

/* Prints the last lines and leaves l->offset after them. */
static int print_tail(struct logs *l)
{
    for (int64_t span = TAIL_FIRST;; span *= 4) {
        struct http_reply r = {0};
        int status = fetch(l, -1, span, &r);
        if (status != EXIT_OK)
            return status;
        int64_t at = r.log_offset > 0 ? r.log_offset : 0;
        int64_t start = tail_start(r.body.data, r.body.len, l->tail);
        int last_try = at == 0 || span >= TAIL_MOST;
        if (start < 0 && last_try)
            start = 0;
        if (start >= 0) {
            l->offset = at + start;
            print_chunk(l, r.body.data + start, r.body.len - (size_t)start);
        }
        http_reply_done(&r);
        if (start >= 0)
            return EXIT_OK;
    }
}

/* Everything that is there now. */
static int print_rest(struct logs *l)
{
    for (;;) {
        struct http_reply r = {0};
        int status = fetch(l, l->offset, CHUNK, &r);
        if (status != EXIT_OK)
            return status;
        size_t n = r.body.len;
        print_chunk(l, r.body.data, n);
        int more = n > 0 && (r.log_size < 0 ? n == CHUNK : l->offset < r.log_size);
        http_reply_done(&r);
        if (!more || cli_interrupted)
            return EXIT_OK;
    }
}

/* The job's state; a later attempt than the one being read starts the reading anew. */
static int look(struct logs *l, int64_t *attempt, int *ret_final)
{
    struct http_reply r = {0};
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s", l->id);
    int status = cli_get(l->cli, path, LOG_RETRY_S, &r);
    if (status != EXIT_OK)
        return status;
    int64_t now = cli_integer(r.doc, "attempt");
    *ret_final = cli_state_final(cli_text(r.doc, "state"));
    if (l->attempt == 0 && *attempt > 0 && now > *attempt) {
        fprintf(stderr, "trainyard: attempt %lld has begun\n", (long long)now);
        l->offset = 0;
        buf_clear(&l->held);
    }
    *attempt = now;
    http_reply_done(&r);
    return EXIT_OK;
}

static int follow(struct logs *l)
{
    int64_t attempt = 0;
    for (;;) {
        int final = 0;
        int status = look(l, &attempt, &final); /* before reading: an ended job is complete */
        if (status == EXIT_OK)
            status = print_rest(l);
        if (status != EXIT_OK || final || cli_interrupted)
            return status;
        cli_sleep(FOLLOW_MS);
    }
}

int verb_logs(struct cli *c, int argc, char **argv)
{
    struct logs l = {.cli = c, .tail = -1};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {options,  parse, "ID", "Prints what a rank of a job wrote.",
                        children, NULL,  NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &l);
    int status = cli_lookup(c, l.given, l.id);
    if (status != EXIT_OK)
        return status;
    if (l.follow)
        cli_watch_interrupt();
    if (l.tail >= 0)
        status = print_tail(&l);
    if (status == EXIT_OK)
        status = l.follow ? follow(&l) : l.tail >= 0 ? EXIT_OK : print_rest(&l);
    if (isatty(STDOUT_FILENO) && l.held.len > 0) {
        CLEANUP(buf_done) struct buf b = BUF_INIT;
        text_escape(&b, l.held.data, l.held.len, TEXT_LOG);
        fwrite(b.data, 1, b.len, stdout);
    }
    buf_done(&l.held);
    return cli_interrupted ? EXIT_INTERRUPTED : status;
}
