/* Asking the server: the connection, trying again, refusals, and reading documents leniently. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/problem.h"
#include "cli/table.h"
#include "cli/text.h"

#define TOKEN_MAX      4096
#define RETRY_FIRST_MS 100
#define RETRY_MOST_MS  2000

static int read_token(const char *path, char **ret, struct err *e)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    int r = file_read(path, TOKEN_MAX, &b, e);
    if (r < 0)
        return r;
    while (b.len > 0 && strchr(" \t\r\n", b.data[b.len - 1]))
        b.data[--b.len] = '\0';
    for (size_t i = 0; i < b.len; i++) {
        if (b.data[i] <= ' ' || b.data[i] > '~')
            return err_set(e, ERR_INVALID, "%s must hold one token of printable characters", path);
    }
    if (b.len == 0)
        return err_set(e, ERR_INVALID, "%s holds no token", path);
    *ret = mem_strdup(b.data);
    explicit_bzero(b.data, b.len);
    return 0;
}

int cli_connect(struct cli *c)
{
    struct err e;
    CLEANUP(mem_freep) char *token = NULL;
    if (c->http)
        return EXIT_OK;
    if ((c->token_file && read_token(c->token_file, &token, &e) < 0) ||
        http_open(c->server, token, &cli_interrupted, &c->http, &e) < 0) {
        fprintf(stderr, "trainyard: %s\n", e.text);
        return EXIT_USAGE;
    }
    if (token)
        explicit_bzero(token, strlen(token));
    return EXIT_OK;
}

/* 503: nothing was done, and a moment later it may be, for the coordinator is ending or starting.
 */
static int not_now(int r, const struct http_reply *reply)
{
    return r == ERR_UNAVAILABLE || (r == 0 && reply->status == 503);
}

static void say_again(const struct cli *c, int r, int64_t left_ms)
{
    fprintf(stderr, "trainyard: %s %s, trying again for %lld s\n",
            r == 0 ? "not now, says" : "cannot reach", c->server,
            (long long)(left_ms + 999) / 1000);
}

int cli_send(struct cli *c, const struct http_request *q, int64_t retry_s, struct http_reply *ret)
{
    struct err e;
    int status = cli_connect(c);
    if (status != EXIT_OK)
        return status;
    int64_t until = clock_boottime_us() + (c->retry_s >= 0 ? c->retry_s : retry_s) * 1000000;
    int r = 0;
    for (int64_t pause = RETRY_FIRST_MS, told = 0;;
         pause = pause * 2 > RETRY_MOST_MS ? RETRY_MOST_MS : pause * 2) {
        struct http_reply reply = {0};
        r = http_send(c->http, q, &reply, &e);
        int64_t left_ms = (until - clock_boottime_us()) / 1000;
        if (cli_interrupted && r != 0)
            return EXIT_INTERRUPTED;
        if (cli_interrupted || left_ms <= 0 || !not_now(r, &reply)) {
            *ret = reply;
            if (r == 0)
                return EXIT_OK;
            break;
        }
        http_reply_done(&reply);
        if (!told++)
            say_again(c, r, left_ms);
        cli_sleep(pause < left_ms ? pause : left_ms);
    }
    fprintf(stderr, "trainyard: %s\n", e.text);
    return r == ERR_IO ? EXIT_REFUSED : EXIT_NO_SERVER; /* ERR_IO: it is this machine's disk */
}

int cli_refused(const struct http_reply *r)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    problem_print(r, &b);
    fprintf(stderr, "trainyard: %s", b.data);
    if (r->status == 401 || r->status == 403)
        fprintf(stderr, "  give a token with --token-file FILE or $TRAINYARD_TOKEN_FILE\n");
    return r->status >= 500 ? EXIT_NO_SERVER : EXIT_REFUSED; /* 5xx says nothing about the job */
}

int cli_get(struct cli *c, const char *path, int64_t retry_s, struct http_reply *ret)
{
    struct http_reply r = {0};
    int status = cli_send(c, &(struct http_request){.method = "GET", .path = path}, retry_s, &r);
    if (status != EXIT_OK)
        return status;
    if (r.status == 200 && json_is_object(r.doc)) {
        *ret = r;
        return EXIT_OK;
    }
    if (r.status == 200)
        fprintf(stderr, "trainyard: what answers at %s is no Trainyard coordinator\n", c->server);
    status = r.status == 200 ? EXIT_NO_SERVER : cli_refused(&r);
    http_reply_done(&r);
    return status;
}

/* ---- documents ---- */

const char *cli_text(const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s ? s : "";
}

double cli_real(const json_t *doc, const char *key)
{
    const json_t *v = json_object_get(doc, key);
    if (json_is_string(v))
        return strtod(json_string_value(v), NULL) > 0 ? INFINITY : NAN; /* "inf", "nan" */
    return json_is_number(v) ? json_number_value(v) : NAN;
}

int64_t cli_integer(const json_t *doc, const char *key)
{
    const json_t *v = json_object_get(doc, key);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

const char *cli_strategy(const json_t *job)
{
    const json_t *s = json_object_get(job, "strategy");
    return json_is_string(s) ? json_string_value(s) : cli_text(s, "name");
}

int64_t cli_ranks(const json_t *job)
{
    int64_t n = cli_integer(json_object_get(job, "strategy"), "ranks");
    if (n < 0)
        n = cli_integer(job, "ranks"); /* of a list */
    const json_t *devices = json_object_get(job, "devices");
    if (n < 0 && json_array_size(devices) > 0)
        n = (int64_t)json_array_size(devices);
    return n;
}

int cli_state_final(const char *state)
{
    return strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0 ||
           strcmp(state, "cancelled") == 0;
}

int cli_state_color(const char *state)
{
    static const struct {
        const char *state;
        enum table_color color;
    } colors[] = {{"succeeded", TABLE_GREEN}, {"failed", TABLE_RED},
                  {"cancelled", TABLE_DIM},   {"running", TABLE_CYAN},
                  {"starting", TABLE_CYAN},   {"stopping", TABLE_YELLOW},
                  {"pending", TABLE_YELLOW},  {"suspended", TABLE_YELLOW}};
    for (size_t i = 0; i < ARRAY_LEN(colors); i++) {
        if (strcmp(colors[i].state, state) == 0)
            return (int)colors[i].color;
    }
    return TABLE_PLAIN;
}

void cli_print_json(const json_t *doc)
{
    json_dumpf(doc, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII); /* no U+009B for a terminal */
    putchar('\n');
}

void cli_print_body(const struct http_reply *r)
{
    if (r->doc)
        cli_print_json(r->doc);
}

void cli_warnings(const json_t *doc)
{
    const json_t *warnings = json_object_get(doc, "warnings");
    if (json_array_size(warnings) == 0)
        return;
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    problem_faults(warnings, &b);
    fprintf(stderr, "warnings:\n%s", b.data);
}
