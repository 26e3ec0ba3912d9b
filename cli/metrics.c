/* metrics: the figures of each epoch, or of the steps. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"

#define COLUMN_MAX TABLE_MAX_COLUMNS

struct metrics_args {
    struct cli *cli;
    const char *id;
    int steps;
    int64_t max_points;
};

static const struct argp_option options[] = {
    {"steps", 's', 0, 0, "The steps instead of the epochs", 0},
    {"max-points", 'm', "N", 0, "About this many steps, evenly spread; default all", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct metrics_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case 's': a->steps = 1; return 0;
    case 'm': a->max_points = cli_number(state, "--max-points", arg); return 0;
    case ARGP_KEY_ARG:
        if (a->id)
            argp_error(state, "one job at a time; \"%s\" is the second", arg);
        a->id = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which job? Give its id, or \"last\""); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* A figure of any name: integers whole, times left as text, the rest with six digits. */
static void add_value(struct table *t, const json_t *v)
{
    char text[64] = "";
    if (json_is_string(v))
        snprintf(text, sizeof text, "%.60s", json_string_value(v));
    else if (json_is_integer(v))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(text, sizeof text, "%.6g", json_real_value(v));
    table_add(t, text);
}

/* `keys` that any of the rows has, in this order. */
static int present(const json_t *rows, const char *const *keys, struct table_column *ret)
{
    int n = 0;
    for (; *keys && n < COLUMN_MAX; keys++) {
        size_t i;
        json_t *row;
        json_array_foreach((json_t *)rows, i, row)
        {
            if (json_object_get(row, *keys)) {
                ret[n] = (struct table_column){.head = *keys, .right = 1, .drop = n > 1 ? n : 0};
                n++;
                break;
            }
        }
    }
    return n;
}

static void print_rows(struct cli *c, const json_t *rows, const char *const *keys)
{
    struct table_column columns[COLUMN_MAX];
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    int n = present(rows, keys, columns);
    size_t i;
    json_t *row;
    table_init(&t, columns, n);
    json_array_foreach((json_t *)rows, i, row)
    {
        for (int k = 0; k < n; k++)
            add_value(&t, json_object_get(row, columns[k].head));
    }
    if (n > 0) {
        table_print(&t, c->width, c->color, &b);
        fputs(b.data, stdout);
    }
}

static void print_metrics(struct cli *c, const struct metrics_args *a, const json_t *doc)
{
    static const char *const epoch_keys[] = {
        "epoch", "loss", "accuracy", "mae", "val_loss", "val_accuracy", "val_mae", "seconds", NULL};
    static const char *const step_keys[] = {
        "step", "epoch", "loss", "grad_norm", "learning_rate", "samples_per_second", NULL};
    const json_t *epochs = json_object_get(doc, "epochs");
    const json_t *steps = json_object_get(doc, "steps");
    if (!a->steps && json_array_size(epochs) > 0) {
        print_rows(c, epochs, epoch_keys);
    } else if (json_array_size(steps) > 0) {
        if (!a->steps)
            fprintf(stderr, "No epoch has ended yet; the last step:\n");
        json_auto_t *last = json_pack("[O]", json_array_get(steps, json_array_size(steps) - 1));
        print_rows(c, a->steps ? steps : last, step_keys);
    } else {
        fprintf(stderr, "No figures yet.\n");
    }
}

int verb_metrics(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    struct metrics_args a = {.cli = c};
    struct http_reply r = {0};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {options,  parse, "ID", "Prints the losses and metrics of a job.",
                        children, NULL,  NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    int status = cli_lookup(c, a.id, id);
    if (status != EXIT_OK)
        return status;
    int64_t points = a.max_points || a.steps || c->json ? a.max_points : 1;
    CLEANUP(mem_freep)
    char *path = points ? mem_printf("/v1/jobs/%s/metrics?max_points=%lld", id, (long long)points)
                        : mem_printf("/v1/jobs/%s/metrics", id);
    status = cli_get(c, path, 5, &r);
    if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    else if (status == EXIT_OK)
        print_metrics(c, &a, r.doc);
    http_reply_done(&r);
    return status;
}
