/* submit: a document to the server, exactly once however often it must be sent. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/id.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/problem.h"
#include "cli/text.h"

#define SUBMIT_RETRY_S 10
#define DOCUMENT_MAX   (1024 * 1024) /* the server's limit */
#define KEY_BYTES_MAX  255

struct submit_args {
    struct cli *cli;
    const char *file;
    const char *key;
    int wait, dry_run, strict;
};

enum { KEY_WAIT = 'w', KEY_DRY_RUN = 'n', KEY_STRICT = 0x2001, KEY_KEY };

static const struct argp_option options[] = {
    {"wait", KEY_WAIT, 0, 0, "Wait for the job's end, as \"wait\" does", 0},
    {"dry-run", KEY_DRY_RUN, 0, 0, "Check the document and show the plan; submit nothing", 0},
    {"strict", KEY_STRICT, 0, 0, "Refuse unknown fields instead of warning about them", 0},
    {"key", KEY_KEY, "KEY", 0,
     "Idempotency key: submitting the same document with the same key again gives the same job", 0},
    {0}};

/* As the server has it. */
static int key_good(const char *key)
{
    size_t n = 0;
    while (key[n] > 0x20 && key[n] < 0x7f)
        n++;
    return n >= 1 && n <= KEY_BYTES_MAX && key[n] == '\0';
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct submit_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case KEY_WAIT: a->wait = 1; return 0;
    case KEY_DRY_RUN: a->dry_run = 1; return 0;
    case KEY_STRICT: a->strict = 1; return 0;
    case KEY_KEY:
        if (!key_good(arg))
            argp_error(state, "--key wants 1 to %d visible ASCII characters, without spaces",
                       KEY_BYTES_MAX);
        a->key = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            argp_error(state, "one file at a time; \"%s\" is the second", arg);
        a->file = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which file? Name one, or - for standard input");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int read_document(const char *file, struct buf *ret)
{
    struct err e;
    const char *path = strcmp(file, "-") == 0 ? "/dev/stdin" : file;
    if (file_read(path, DOCUMENT_MAX, ret, &e) < 0) {
        fprintf(stderr, "trainyard: %s\n", e.text);
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

/* "mirrored over 2 ranks: <why>" */
static void describe_plan(const json_t *plan, struct buf *out)
{
    const char *name = cli_text(plan, "name");
    const char *why = cli_text(plan, "why");
    int64_t ranks = cli_integer(plan, "ranks");
    text_escape(out, name, strlen(name), TEXT_LINE);
    if (ranks > 0)
        buf_addf(out, " over %lld rank%s", (long long)ranks, ranks == 1 ? "" : "s");
    if (*why) {
        buf_adds(out, ": ");
        text_escape(out, why, strlen(why), TEXT_LINE);
    }
}

static void print_dry_run(const json_t *doc)
{
    const json_t *plan = json_object_get(doc, "plan");
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    buf_adds(&b, "The document is valid. Plan: ");
    describe_plan(plan, &b);
    buf_adds(&b, "\n");
    if (cli_integer(plan, "memory_bytes") > 0) {
        buf_adds(&b, "Memory of the heaviest rank: ");
        text_bytes(&b, (double)cli_integer(plan, "memory_bytes"));
        buf_adds(&b, "\n");
    }
    fputs(b.data, stdout);
}

/* The id on stdout, for scripts; the rest on stderr. */
static void print_job(const json_t *job)
{
    CLEANUP(buf_done) struct buf id = BUF_INIT;
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    const char *name = cli_text(job, "name");
    text_escape(&id, cli_text(job, "id"), strlen(cli_text(job, "id")), TEXT_LINE);
    text_escape(&b, name, strlen(name), TEXT_LINE);
    buf_adds(&b, ": ");
    if (json_is_object(json_object_get(job, "strategy")))
        describe_plan(json_object_get(job, "strategy"), &b);
    else
        text_escape(&b, cli_text(job, "state"), strlen(cli_text(job, "state")), TEXT_LINE);
    fprintf(stderr, "%s\n", b.data);
    printf("%s\n", id.data);
    fflush(stdout);
}

static int finish(struct cli *c, const struct submit_args *a, const struct http_reply *r)
{
    if (r->status != 200 && r->status != 201) {
        int status = cli_refused(r);
        cli_warnings(r->doc); /* often the other half of a fault: a misspelt field */
        return status;
    }
    const char *id = cli_text(r->doc, "id");
    if (a->dry_run && json_is_object(json_object_get(r->doc, "plan"))) {
        cli_warnings(r->doc);
        if (c->json)
            cli_print_body(r);
        else
            print_dry_run(r->doc);
        return EXIT_OK;
    }
    if (a->dry_run || !id_valid("job", id)) {
        fprintf(stderr, "trainyard: what answers at %s is no Trainyard coordinator\n", c->server);
        return EXIT_NO_SERVER;
    }
    cli_warnings(r->doc);
    if (r->status == 200)
        fprintf(stderr, "This key was used before: the job is the one submitted then.\n");
    if (!c->json)
        print_job(r->doc);
    else if (!a->wait)
        cli_print_body(r);
    return a->wait ? cli_wait(c, id, 0) : EXIT_OK;
}

int verb_submit(struct cli *c, int argc, char **argv)
{
    struct submit_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {
        options,
        parse,
        "FILE|-",
        "Submits a training job. Prints its id.\vAn Idempotency-Key is always sent, "
        "so that a request whose answer got lost is repeated safely.",
        children,
        NULL,
        NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    CLEANUP(buf_done) struct buf document = BUF_INIT;
    int status = read_document(a.file, &document);
    if (status != EXIT_OK)
        return status;
    char key[ID_SIZE];
    struct http_reply r = {0};
    CLEANUP(mem_freep)
    char *path =
        mem_printf("/v1/jobs%s%s%s", a.dry_run || a.strict ? "?" : "", a.dry_run ? "dry_run=1" : "",
                   a.strict ? (a.dry_run ? "&strict=1" : "strict=1") : "");
    struct http_request q = {.method = "POST",
                             .path = path,
                             .body = document.data,
                             .body_len = document.len,
                             .idempotency_key = a.key ? a.key : id_new("key", key)};
    status = cli_send(c, &q, SUBMIT_RETRY_S, &r);
    if (status == EXIT_OK)
        status = finish(c, &a, &r);
    http_reply_done(&r);
    return status;
}
