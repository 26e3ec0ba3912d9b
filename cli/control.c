/* cancel, suspend, resume, retry: what is wanted of a job; and checkpoints, which the last two go
 * on from. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "cli/text.h"

/* The job's state after the request, or that this was no answer of a coordinator. */
static int print_state(const struct cli *c, const char *id, const struct http_reply *r)
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

static int want(struct cli *c, const char *id, const char *verb, const char *body)
{
    struct http_reply r = {0};
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s/%s", id, verb);
    struct http_request q = {
        .method = "POST", .path = path, .body = body, .body_len = strlen(body)};
    int status = cli_send(c, &q, 10, &r);
    if (status == EXIT_OK && (r.status < 200 || r.status > 299))
        status = cli_refused(&r);
    else if (status == EXIT_OK)
        status = print_state(c, id, &r);
    http_reply_done(&r);
    return status;
}

static int plain(struct cli *c, int argc, char **argv, const char *verb, const char *doc)
{
    char id[CLI_ID_SIZE];
    int status = cli_parse_id(c, argc, argv, doc, id);
    return status == EXIT_OK ? want(c, id, verb, "{}") : status;
}

int verb_cancel(struct cli *c, int argc, char **argv)
{
    return plain(c, argc, argv, "cancel", "Cancels a job. Doing so again changes nothing.");
}

int verb_suspend(struct cli *c, int argc, char **argv)
{
    return plain(c, argc, argv, "suspend",
                 "Takes its devices from a job, which writes a checkpoint first. A command is told "
                 "to end, and runs again from its beginning when it is resumed.");
}

int verb_resume(struct cli *c, int argc, char **argv)
{
    return plain(c, argc, argv, "resume", "Lets a suspended job go on from its newest checkpoint.");
}

/* ---- retry ---- */
struct retry_args {
    struct cli *cli;
    const char *id;
    int scratch;
};

static const struct argp_option retry_options[] = {
    {"from-scratch", 's', 0, 0, "At step 0; the checkpoints that there are, are dropped", 0}, {0}};

static error_t parse_retry(int key, char *arg, struct argp_state *state)
{
    struct retry_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case 's': a->scratch = 1; return 0;
    case ARGP_KEY_ARG:
        if (a->id)
            argp_error(state, "one job at a time, not \"%s\" as well", arg);
        a->id = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which job? Give its id, or \"last\""); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int verb_retry(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    struct retry_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {retry_options,
                        parse_retry,
                        "ID",
                        "Starts a job again that failed or was cancelled, from its newest "
                        "checkpoint.",
                        children,
                        NULL,
                        NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    int status = cli_lookup(c, a.id, id);
    if (status != EXIT_OK)
        return status;
    return want(c, id, "retry", a.scratch ? "{\"from\":\"scratch\"}" : "{}");
}

/* ---- checkpoints ---- */
static void add_checkpoint(struct table *t, const json_t *k, int64_t now)
{
    CLEANUP(buf_done) struct buf bytes = BUF_INIT;
    CLEANUP(buf_done) struct buf age = BUF_INIT;
    char step[24], attempt[24];
    int64_t at = text_parse_time(cli_text(k, "at"));
    snprintf(step, sizeof step, "%lld", (long long)cli_integer(k, "step"));
    snprintf(attempt, sizeof attempt, "%lld", (long long)cli_integer(k, "attempt"));
    text_bytes(&bytes, (double)cli_integer(k, "bytes"));
    if (at >= 0) {
        text_duration(&age, (double)(now > at ? now - at : 0) / 1e6);
        buf_adds(&age, " ago");
    }
    table_add(t, step);
    table_add(t, attempt);
    table_add(t, bytes.data);
    table_add(t, age.data);
    table_add(t, *cli_text(k, "share") ? cli_text(k, "share") : cli_text(k, "node"));
    table_add(t, cli_text(k, "name"));
}

static void print_checkpoints(struct cli *c, const json_t *list)
{
    static const struct table_column columns[] = {
        {"STEP", 1, 0, 0},  {"ATTEMPT", 1, 0, 2}, {"SIZE", 1, 0, 0},
        {"TAKEN", 1, 0, 0}, {"WHERE", 0, 8, 0},   {"NAME", 0, 0, 1},
    };
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    size_t i;
    json_t *k;
    table_init(&t, columns, ARRAY_LEN(columns));
    json_array_foreach((json_t *)list, i, k)
    {
        add_checkpoint(&t, k, clock_wall_us());
    }
    table_print(&t, c->width, c->color, &b);
    fputs(b.data, stdout);
}

static void say_until(const json_t *doc)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    const char *until = cli_text(doc, "kept_until");
    text_escape(&b, until, strlen(until), TEXT_LINE);
    if (*until)
        fprintf(stderr, "They are kept until %s, unless the job is started again.\n", b.data);
}

int verb_checkpoints(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    struct http_reply r = {0};
    int status = cli_parse_id(c, argc, argv,
                              "Lists the checkpoints of a job that are kept, newest first.", id);
    if (status != EXIT_OK)
        return status;
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s/checkpoints", id);
    status = cli_get(c, path, 5, &r);
    const json_t *list = json_object_get(r.doc, "checkpoints");
    if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    else if (status == EXIT_OK && json_array_size(list) == 0)
        fprintf(stderr, "The job has no checkpoint%s.\n",
                cli_integer(r.doc, "keep") == 0 ? ", and takes none" : "");
    else if (status == EXIT_OK) {
        print_checkpoints(c, list);
        say_until(r.doc);
    }
    http_reply_done(&r);
    return status;
}
