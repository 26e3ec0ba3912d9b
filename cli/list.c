/* list: the table of jobs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "cli/text.h"

#define DEFAULT_LIMIT 30
#define PAGE_MAX      1000

struct list_args {
    struct cli *cli;
    const char *state, *label, *user;
    int64_t limit;
    int all;
};

static const struct argp_option options[] = {
    {"state", 's', "STATES", 0, "Only these states, such as pending,running", 0},
    {"label", 'l', "KEY[=VALUE]", 0, "Only jobs with this label", 0},
    {"user", 'u', "NAME", 0, "Only jobs of this user", 0},
    {"limit", 'n', "N", 0, "At most this many; default 30", 0},
    {"all", 'a', 0, 0, "All jobs, however many", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct list_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case 's': a->state = arg; return 0;
    case 'l': a->label = arg; return 0;
    case 'u': a->user = arg; return 0;
    case 'n':
        a->limit = cli_number(state, "--limit", arg);
        if (a->limit < 1)
            argp_error(state, "--limit is at least 1");
        return 0;
    case 'a': a->all = 1; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "list takes no argument; \"show %s\" shows one job", arg);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void add_query(struct buf *path, const char *key, const char *value)
{
    if (!value)
        return;
    CLEANUP(mem_freep) char *escaped = http_escape(value);
    buf_addf(path, "&%s=%s", key, escaped);
}

/* All pages that are wanted as one document of the server's form. */
static int fetch(struct cli *c, const struct list_args *a, json_t **ret)
{
    json_auto_t *jobs = json_array();
    CLEANUP(mem_freep) char *after = NULL;
    for (int64_t left = a->all ? INT64_MAX : a->limit; left > 0;) {
        CLEANUP(buf_done) struct buf path = BUF_INIT;
        struct http_reply r = {0};
        buf_addf(&path, "/v1/jobs?limit=%lld", (long long)(left > PAGE_MAX ? PAGE_MAX : left));
        add_query(&path, "state", a->state);
        add_query(&path, "label", a->label);
        add_query(&path, "user", a->user);
        add_query(&path, "after", after);
        int status = cli_get(c, path.data, 5, &r);
        if (status != EXIT_OK)
            return status;
        const json_t *page = json_object_get(r.doc, "jobs");
        left -= (int64_t)json_array_size(page);
        json_array_extend(jobs, (json_t *)page);
        mem_freep(&after);
        after = *cli_text(r.doc, "next") ? mem_strdup(cli_text(r.doc, "next")) : NULL;
        int more = after && json_array_size(page) > 0;
        http_reply_done(&r);
        if (!more)
            break;
    }
    *ret = json_pack("{s:O}", "jobs", jobs);
    if (after)
        json_object_set_new(*ret, "next", json_string(after));
    return EXIT_OK;
}

static void add_number(struct table *t, int64_t n)
{
    char text[24] = "";
    if (n >= 0)
        snprintf(text, sizeof text, "%lld", (long long)n);
    table_add(t, text);
}

static void add_progress(struct table *t, const json_t *job)
{
    const json_t *p = json_object_get(job, "progress");
    char text[48] = "";
    if (cli_integer(p, "steps") > 0 && cli_integer(p, "step") >= 0)
        snprintf(text, sizeof text, "%lld/%lld", (long long)cli_integer(p, "step"),
                 (long long)cli_integer(p, "steps"));
    table_add(t, text);
}

static void add_age(struct table *t, const json_t *job, int64_t now_us)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    int64_t at = text_parse_time(cli_text(job, "submitted_at"));
    if (at >= 0) {
        text_duration(&b, (double)(now_us > at ? now_us - at : 0) / 1e6);
        buf_adds(&b, " ago");
    }
    table_add(t, b.data);
}

static void print_jobs(struct cli *c, const json_t *jobs)
{
    static const struct table_column columns[] = {
        {"ID", 0, 0, 0},    {"STATE", 0, 0, 0}, {"NAME", 0, 8, 0},      {"STRATEGY", 0, 0, 4},
        {"RANKS", 1, 0, 5}, {"STEP", 1, 0, 2},  {"SUBMITTED", 1, 0, 3}, {"REASON", 0, 16, 1},
    };
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    int64_t now = clock_wall_us();
    size_t i;
    json_t *job;
    table_init(&t, columns, ARRAY_LEN(columns));
    json_array_foreach((json_t *)jobs, i, job)
    {
        const char *state = cli_text(job, "state");
        table_add(&t, cli_text(job, "id"));
        table_add_color(&t, (enum table_color)cli_state_color(state), state);
        table_add(&t, cli_text(job, "name"));
        table_add(&t, cli_strategy(job));
        add_number(&t, cli_ranks(job));
        add_progress(&t, job);
        add_age(&t, job, now);
        table_add(&t, cli_text(job, "reason"));
    }
    table_print(&t, c->width, c->color, &b);
    fputs(b.data, stdout);
}

int verb_list(struct cli *c, int argc, char **argv)
{
    struct list_args a = {.cli = c, .limit = DEFAULT_LIMIT};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {options, parse, "", "Lists jobs, newest first.", children, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    json_auto_t *doc = NULL;
    int status = fetch(c, &a, &doc);
    if (status != EXIT_OK)
        return status;
    const json_t *jobs = json_object_get(doc, "jobs");
    if (c->json)
        cli_print_json(doc);
    else if (json_array_size(jobs) == 0)
        fprintf(stderr, "No jobs%s.\n", a.state || a.label || a.user ? " match" : " yet");
    else
        print_jobs(c, jobs);
    if (!c->json && json_object_get(doc, "next"))
        fprintf(stderr, "There are more: --limit N shows more of them, --all shows all.\n");
    return EXIT_OK;
}
