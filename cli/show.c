/* show, cancel, version: one document each. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "cli/text.h"

struct id_args {
    struct cli *cli;
    const char *id;
    const char *verb;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct id_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case ARGP_KEY_ARG:
        if (a->id)
            argp_error(state, "one job at a time; \"%s\" is the second", arg);
        a->id = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which job? Give its id, or \"last\""); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Parses "VERB ID" and finds the job. */
static int parse_id(struct cli *c, int argc, char **argv, const char *doc, char ret[CLI_ID_SIZE])
{
    struct id_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {NULL, parse, "ID", doc, children, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    return cli_lookup(c, a.id, ret);
}

/* ---- show ---- */

static void row(struct buf *out, const char *key, const char *text)
{
    if (!text || !*text)
        return;
    buf_addf(out, "%-10s ", key);
    text_escape(out, text, strlen(text), TEXT_LINE);
    buf_adds(out, "\n");
}

static void row_time(struct buf *out, const char *key, const json_t *job, const char *field,
                     const char *since)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    int64_t at = text_parse_time(cli_text(job, field));
    int64_t from = since ? text_parse_time(cli_text(job, since)) : -1;
    if (at < 0)
        return;
    buf_adds(&b, cli_text(job, field));
    if (from >= 0 && at >= from) {
        buf_adds(&b, "  (");
        text_duration(&b, (double)(at - from) / 1e6);
        buf_addf(&b, " after it was %s)",
                 strcmp(since, "started_at") == 0 ? "started" : "submitted");
    }
    row(out, key, b.data);
}

static void row_strategy(struct buf *out, const json_t *job)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    const json_t *plan = json_object_get(job, "strategy");
    buf_adds(&b, cli_strategy(job));
    if (cli_ranks(job) > 0)
        buf_addf(&b, " over %lld rank%s", (long long)cli_ranks(job),
                 cli_ranks(job) == 1 ? "" : "s");
    row(out, "strategy", b.data);
    row(out, "why", cli_text(plan, "why"));
}

static void row_devices(struct buf *out, const json_t *job)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    size_t i;
    json_t *d;
    json_array_foreach(json_object_get(job, "devices"), i, d)
    {
        buf_addf(&b, "%s%s:%lld", i ? ", " : "", cli_text(d, "node"),
                 (long long)cli_integer(d, "device"));
    }
    row(out, "devices", b.data);
}

static void row_progress(struct buf *out, const json_t *job)
{
    const json_t *p = json_object_get(job, "progress");
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    if (cli_integer(p, "steps") <= 0)
        return;
    buf_addf(&b, "step %lld of %lld", (long long)cli_integer(p, "step"),
             (long long)cli_integer(p, "steps"));
    row(out, "progress", b.data);
}

static void row_labels(struct buf *out, const json_t *job)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    json_t *labels = json_object_get(job, "labels");
    const char *key;
    json_t *value;
    json_object_foreach(labels, key, value)
    {
        buf_addf(&b, "%s%s=%s", b.len ? ", " : "", key, cli_text(labels, key));
    }
    row(out, "labels", b.data);
}

static void print_job(struct cli *c, const json_t *job)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(buf_done) struct buf state = BUF_INIT;
    const char *text = cli_text(job, "state");
    row(&b, "id", cli_text(job, "id"));
    row(&b, "name", cli_text(job, "name"));
    text_escape(&state, text, strlen(text), TEXT_LINE);
    buf_addf(&b, "%-10s ", "state");
    table_paint(&b, c->color, (enum table_color)cli_state_color(text), state.data);
    buf_adds(&b, "\n");
    row(&b, "reason", cli_text(job, "reason"));
    row_strategy(&b, job);
    row_devices(&b, job);
    row_progress(&b, job);
    row_time(&b, "submitted", job, "submitted_at", NULL);
    row_time(&b, "started", job, "started_at", "submitted_at");
    row_time(&b, "finished", job, "finished_at", "started_at");
    row_labels(&b, job);
    fputs(b.data, stdout);
}

int verb_show(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    struct http_reply r = {0};
    int status = parse_id(c, argc, argv, "Shows one job.", id);
    if (status != EXIT_OK)
        return status;
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s", id);
    status = cli_get(c, path, 5, &r);
    if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    else if (status == EXIT_OK)
        print_job(c, r.doc);
    http_reply_done(&r);
    return status;
}

/* ---- cancel ---- */

/* The job's state after the request, or that this was no answer of a coordinator. */
static int print_cancelled(const struct cli *c, const char *id, const struct http_reply *r)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    const char *state = cli_text(r->doc, "state");
    if (!*state) {
        fprintf(stderr, "trainyard: what answers at %s is no Trainyard coordinator\n", c->server);
        return EXIT_NO_SERVER;
    }
    text_escape(&b, state, strlen(state), TEXT_LINE);
    if (c->json)
        cli_print_body(r);
    else
        printf("%s %s\n", id, b.data);
    return EXIT_OK;
}

int verb_cancel(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    struct http_reply r = {0};
    int status = parse_id(c, argc, argv, "Cancels a job. Doing so again changes nothing.", id);
    if (status != EXIT_OK)
        return status;
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s/cancel", id);
    struct http_request q = {.method = "POST", .path = path, .body = "{}", .body_len = 2};
    status = cli_send(c, &q, 10, &r);
    if (status == EXIT_OK && (r.status < 200 || r.status > 299))
        status = cli_refused(&r);
    else if (status == EXIT_OK)
        status = print_cancelled(c, id, &r);
    http_reply_done(&r);
    return status;
}

/* ---- version ---- */

static error_t parse_nothing(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = state->input; return 0;
    case ARGP_KEY_ARG: argp_error(state, "version takes no argument, not \"%s\"", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int verb_version(struct cli *c, int argc, char **argv)
{
    struct http_reply r = {0};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {NULL,
                        parse_nothing,
                        "",
                        "Prints the versions of this program and of the "
                        "server.",
                        children,
                        NULL,
                        NULL};
    argp_parse(&argp, argc, argv, 0, NULL, c);
    if (!c->json) {
        printf("trainyard %s\n", TRAINYARD_VERSION);
        fflush(stdout);
    }
    int status = cli_get(c, "/v1/version", 0, &r);
    if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    else if (status == EXIT_OK) {
        CLEANUP(buf_done) struct buf b = BUF_INIT;
        const char *version = cli_text(r.doc, "version");
        text_escape(&b, version, strlen(version), TEXT_LINE);
        printf("server    %s at %s\n", b.data, c->server);
    }
    http_reply_done(&r);
    return status;
}
