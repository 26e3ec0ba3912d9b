/* events: what happened to a job, oldest first, page by page. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"

#define PAGE 1000

/* All pages as one document of the server's form. */
static int fetch(struct cli *c, const char *id, json_t **ret)
{
    json_auto_t *events = json_array();
    for (int64_t after = 0;;) {
        struct http_reply r = {0};
        CLEANUP(mem_freep)
        char *path =
            mem_printf("/v1/jobs/%s/events?after=%lld&limit=%d", id, (long long)after, PAGE);
        int status = cli_get(c, path, 5, &r);
        if (status != EXIT_OK)
            return status;
        const json_t *page = json_object_get(r.doc, "events");
        int64_t last = cli_integer(json_array_get(page, json_array_size(page) - 1), "seq");
        int more = json_array_size(page) == PAGE && last > after;
        json_array_extend(events, (json_t *)page);
        http_reply_done(&r);
        after = last;
        if (!more)
            break;
    }
    *ret = json_pack("{s:O}", "events", events);
    return EXIT_OK;
}

/* "pending > starting: <reason>", "rank 0: <reason>", or without a reason the figures:
 * "train_samples 8000, ...". */
static void describe(const json_t *data, struct buf *out)
{
    const char *reason = cli_text(data, "reason");
    const char *key;
    json_t *value;
    if (*cli_text(data, "to"))
        buf_addf(out, "%s > %s%s", cli_text(data, "from"), cli_text(data, "to"),
                 *reason ? ": " : "");
    else if (*reason && cli_integer(data, "rank") >= 0)
        buf_addf(out, "rank %lld: ", (long long)cli_integer(data, "rank"));
    buf_adds(out, reason);
    if (out->len > 0)
        return;
    json_object_foreach((json_t *)data, key, value)
    {
        const char *comma = out->len ? ", " : "";
        if (json_is_integer(value) && json_integer_value(value) >= 0)
            buf_addf(out, "%s%s %lld", comma, key, (long long)json_integer_value(value));
        else if (json_is_real(value))
            buf_addf(out, "%s%s %.4g", comma, key, json_real_value(value));
        else if (json_string_length(value) > 0 && strcmp(key, "type") != 0)
            buf_addf(out, "%s%s %s", comma, key, json_string_value(value));
    }
}

static void print_events(const struct cli *c, const json_t *events)
{
    static const struct table_column columns[] = {
        {"TIME", 0, 0, 0}, {"EVENT", 0, 0, 0}, {"NODE", 0, 0, 1}, {"WHAT", 0, 16, 0}};
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    size_t i;
    json_t *event;
    table_init(&t, columns, ARRAY_LEN(columns));
    json_array_foreach((json_t *)events, i, event)
    {
        CLEANUP(buf_done) struct buf what = BUF_INIT;
        describe(json_object_get(event, "data"), &what);
        table_add(&t, cli_text(event, "time"));
        table_add(&t, cli_text(event, "type"));
        table_add(&t, cli_text(event, "node"));
        table_add(&t, what.data);
    }
    table_print(&t, c->width, c->color, &b);
    fputs(b.data, stdout);
}

int verb_events(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    int status = cli_parse_id(c, argc, argv, "Prints what happened to a job.", id);
    if (status != EXIT_OK)
        return status;
    json_auto_t *doc = NULL;
    status = fetch(c, id, &doc);
    if (status != EXIT_OK)
        return status;
    const json_t *events = json_object_get(doc, "events");
    if (c->json)
        cli_print_json(doc);
    else if (json_array_size(events) == 0)
        fprintf(stderr, "No events.\n");
    else
        print_events(c, events);
    return EXIT_OK;
}
