/* show, version: one document each. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "cli/text.h"

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

/* What another attempt goes on from. */
static void row_checkpoint(struct buf *out, const json_t *job)
{
    const json_t *k = json_object_get(job, "checkpoint");
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    if (cli_integer(k, "step") < 0)
        return;
    buf_addf(&b, "step %lld, on %s%s", (long long)cli_integer(k, "step"),
             *cli_text(k, "share") ? "the shared file system " : "node ",
             *cli_text(k, "share") ? cli_text(k, "share") : cli_text(k, "node"));
    row(out, "checkpoint", b.data);
}

static void row_restarts(struct buf *out, const json_t *job)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    if (cli_integer(job, "restarts") <= 0)
        return;
    buf_addf(&b, "%lld, attempt %lld is the latest", (long long)cli_integer(job, "restarts"),
             (long long)cli_integer(job, "attempt"));
    row(out, "restarts", b.data);
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

/* "loss 0.1589, accuracy 0.9562, ..." of the last epoch. */
static void row_epoch(struct buf *out, const json_t *epoch)
{
    static const char *const keys[] = {"loss",     "accuracy",     "mae",
                                       "val_loss", "val_accuracy", "val_mae"};
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(mem_freep) char *key = mem_printf("epoch %lld", (long long)cli_integer(epoch, "epoch"));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (json_object_get(epoch, keys[i]))
            buf_addf(&b, "%s%s %.4g", b.len ? ", " : "", keys[i], cli_real(epoch, keys[i]));
    }
    row(out, key, b.data);
}

/* The last step's loss and the last epoch's figures, of a job that has made steps. */
static int show_figures(struct cli *c, const char *id, const json_t *job)
{
    struct http_reply r = {0};
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s/metrics?max_points=1", id);
    if (cli_integer(json_object_get(job, "progress"), "step") < 1)
        return EXIT_OK;
    int status = cli_get(c, path, 5, &r);
    const json_t *steps = json_object_get(r.doc, "steps");
    const json_t *epochs = json_object_get(r.doc, "epochs");
    const json_t *last = json_array_get(steps, json_array_size(steps) - 1);
    if (last) {
        CLEANUP(mem_freep)
        char *text = mem_printf("%.4g at step %lld", cli_real(last, "loss"),
                                (long long)cli_integer(last, "step"));
        row(&b, "loss", text);
    }
    if (json_array_size(epochs) > 0)
        row_epoch(&b, json_array_get(epochs, json_array_size(epochs) - 1));
    fputs(b.data ? b.data : "", stdout);
    http_reply_done(&r);
    return status;
}

/* What it left behind and what of it is not kept, of a job that was started. */
static int show_artifacts(struct cli *c, const char *id, const json_t *job)
{
    struct http_reply r = {0};
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s/artifacts", id);
    size_t i;
    json_t *entry;
    if (cli_integer(job, "attempt") < 1)
        return EXIT_OK;
    int status = cli_get(c, path, 5, &r);
    json_array_foreach(json_object_get(r.doc, "artifacts"), i, entry)
    {
        CLEANUP(buf_done) struct buf text = BUF_INIT;
        buf_addf(&text, "%s, ", cli_text(entry, "name"));
        text_bytes(&text, (double)cli_integer(entry, "bytes"));
        row(&b, i ? "" : "artifacts", text.data);
    }
    cli_left_out(r.doc, &b);
    fputs(b.data ? b.data : "", stdout);
    http_reply_done(&r);
    return status;
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
    row_checkpoint(&b, job);
    row_restarts(&b, job);
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
    int status = cli_parse_id(c, argc, argv, "Shows one job.", id);
    if (status != EXIT_OK)
        return status;
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s", id);
    status = cli_get(c, path, 5, &r);
    if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    else if (status == EXIT_OK) {
        print_job(c, r.doc);
        status = show_figures(c, id, r.doc);
        if (status == EXIT_OK)
            status = show_artifacts(c, id, r.doc);
    }
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
