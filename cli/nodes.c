/* nodes: who is there, and with what devices. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "cli/text.h"

struct nodes_args {
    struct cli *cli;
    const char *node; /* NULL: all of them */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct nodes_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case ARGP_KEY_ARG:
        if (a->node)
            argp_error(state, "one node at a time, not \"%s\" as well", arg);
        a->node = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int fetch(struct cli *c, json_t **ret)
{
    json_auto_t *nodes = json_array();
    CLEANUP(mem_freep) char *after = NULL;
    do {
        struct http_reply r = {0};
        CLEANUP(mem_freep)
        char *path = after ? mem_printf("/v1/nodes?limit=1000&after=%s", after)
                           : mem_printf("/v1/nodes?limit=1000");
        int status = cli_get(c, path, 5, &r);
        if (status != EXIT_OK)
            return status;
        const json_t *page = json_object_get(r.doc, "nodes");
        const char *next = json_array_size(page) ? cli_text(r.doc, "next") : "";
        json_array_extend(nodes, (json_t *)page);
        mem_freep(&after);
        after = *next ? http_escape(next) : NULL;
        http_reply_done(&r);
    } while (after);
    *ret = json_pack("{s:O}", "nodes", nodes);
    return EXIT_OK;
}

/* "2 cpu", "8 gpu + 4 cpu" */
static void describe_devices(const json_t *devices, struct buf *out)
{
    static const char *const kinds[] = {"gpu", "cpu"};
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        int n = 0;
        size_t i;
        json_t *d;
        json_array_foreach((json_t *)devices, i, d)
        {
            n += strcmp(cli_text(d, "kind"), kinds[k]) == 0;
        }
        if (n > 0)
            buf_addf(out, "%s%d %s", out->len ? " + " : "", n, kinds[k]);
    }
}

static enum table_color node_color(const char *state)
{
    if (strcmp(state, "ready") == 0)
        return TABLE_GREEN;
    return strcmp(state, "lost") == 0 ? TABLE_RED : TABLE_YELLOW;
}

static void add_node(struct table *t, const json_t *node, int64_t now)
{
    CLEANUP(buf_done) struct buf devices = BUF_INIT;
    CLEANUP(buf_done) struct buf seen = BUF_INIT;
    const char *state = cli_text(node, "state");
    int is_drained = json_is_object(json_object_get(node, "drain"));
    CLEANUP(mem_freep) char *shown = mem_printf("%s%s", state, is_drained ? ", drained" : "");
    int64_t free_count = cli_integer(node, "devices_free");
    char free_text[24] = "";
    int64_t at = text_parse_time(cli_text(node, "seen_at"));
    describe_devices(json_object_get(node, "devices"), &devices);
    if (free_count >= 0)
        snprintf(free_text, sizeof free_text, "%lld", (long long)free_count);
    if (at >= 0) {
        text_duration(&seen, (double)(now > at ? now - at : 0) / 1e6);
        buf_adds(&seen, " ago");
    }
    table_add(t, cli_text(node, "name"));
    table_add_color(t, is_drained ? TABLE_YELLOW : node_color(state), shown);
    table_add(t, devices.data);
    table_add(t, free_text);
    table_add(t, seen.data);
    table_add(t, cli_text(node, "version"));
}

/* ---- what is wrong with them ---- */
#define NOTES_MAX 20

struct notes {
    struct buf *out;
    int count;
};

static void note(struct notes *n, const json_t *node, const char *text)
{
    const char *name = cli_text(node, "name");
    if (n->count++ >= NOTES_MAX)
        return;
    text_escape(n->out, name, strlen(name), TEXT_LINE);
    buf_adds(n->out, ": ");
    text_escape(n->out, text, strlen(text), TEXT_LINE);
    buf_adds(n->out, "\n");
}

static void note_device(struct notes *n, const json_t *node, const json_t *d)
{
    double idle_s = cli_real(d, "idle_s");
    if (*cli_text(d, "why_not"))
        note(n, node, cli_text(d, "why_not"));
    if (idle_s > 0) {
        CLEANUP(buf_done) struct buf time = BUF_INIT;
        text_duration(&time, idle_s);
        CLEANUP(mem_freep)
        char *text = mem_printf("device %lld has been leased and idle for %s",
                                (long long)cli_integer(d, "index"), time.data);
        note(n, node, text);
    }
}

/* A line for each node that takes no jobs and each device that is not given any. */
static void add_notes(const json_t *nodes, struct buf *out)
{
    struct notes n = {.out = out};
    size_t i, k;
    json_t *node, *d;
    json_array_foreach((json_t *)nodes, i, node)
    {
        if (*cli_text(node, "trouble"))
            note(&n, node, cli_text(node, "trouble"));
        json_array_foreach(json_object_get(node, "devices"), k, d)
        {
            note_device(&n, node, d);
        }
    }
    if (n.count > NOTES_MAX)
        buf_addf(out, "and %d more; --json has them all\n", n.count - NOTES_MAX);
}

static void print_nodes(struct cli *c, const json_t *nodes)
{
    static const struct table_column columns[] = {
        {"NODE", 0, 8, 0}, {"STATE", 0, 0, 0}, {"DEVICES", 0, 0, 0},
        {"FREE", 1, 0, 3}, {"SEEN", 1, 0, 2},  {"VERSION", 0, 0, 4},
    };
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    size_t i;
    json_t *node;
    table_init(&t, columns, ARRAY_LEN(columns));
    json_array_foreach((json_t *)nodes, i, node)
    {
        add_node(&t, node, clock_wall_us());
    }
    table_print(&t, c->width, c->color, &b);
    add_notes(nodes, &b);
    fputs(b.data, stdout);
}

static int show_one(struct cli *c, const char *name)
{
    struct http_reply r = {0};
    CLEANUP(mem_freep) char *escaped = http_escape(name);
    CLEANUP(mem_freep) char *path = mem_printf("/v1/nodes/%s", escaped);
    int status = cli_get(c, path, 5, &r);
    if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    if (status == EXIT_OK && !c->json) {
        CLEANUP(buf_done) struct buf notes = BUF_INIT;
        json_auto_t *alone = json_pack("[O]", r.doc);
        cli_print_devices(c, r.doc);
        add_notes(alone, &notes);
        fputs(notes.data ? notes.data : "", stdout);
    }
    http_reply_done(&r);
    return status;
}

int verb_nodes(struct cli *c, int argc, char **argv)
{
    json_auto_t *doc = NULL;
    struct nodes_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {NULL,     parse, "[NODE]", "Lists the nodes, or one node's devices.",
                        children, NULL,  NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.node)
        return show_one(c, a.node);
    int status = fetch(c, &doc);
    if (status != EXIT_OK)
        return status;
    if (c->json)
        cli_print_json(doc);
    else if (json_array_size(json_object_get(doc, "nodes")) == 0)
        fprintf(stderr, "No node has joined yet; start trainyard-agent on each machine.\n");
    else
        print_nodes(c, json_object_get(doc, "nodes"));
    return EXIT_OK;
}
