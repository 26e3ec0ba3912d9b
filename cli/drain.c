/* drain, undrain: a node, or one of its devices, that is to get no new work; and work again. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/text.h"

struct drain_args {
    struct cli *cli;
    const char *node, *device, *reason;
};

static const struct argp_option drain_options[] = {
    {"device", 'd', "DEVICE", 0, "One device of it, by its index or its UUID", 0},
    {"reason", 'r', "TEXT", 0, "Why: shown with the node, and to jobs that wait for it", 0},
    {0}};
static const struct argp_option undrain_options[] = {
    {"device", 'd', "DEVICE", 0, "One device of it, by its index or its UUID", 0}, {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct drain_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case 'd': a->device = arg; return 0;
    case 'r': a->reason = arg; return 0;
    case ARGP_KEY_ARG:
        if (a->node)
            argp_error(state, "one node at a time, not \"%s\" as well", arg);
        a->node = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which node? \"trainyard nodes\" lists them");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What is all digits is an index: no UUID is. */
static json_t *device_of(const char *device)
{
    size_t n = strlen(device);
    if (n > 0 && n <= 9 && strspn(device, "0123456789") == n)
        return json_integer(atoll(device));
    return json_string(device);
}

static char *body_of(const struct drain_args *a)
{
    const struct passwd *user = getpwuid(getuid());
    json_auto_t *doc =
        json_pack("{s:s*, s:s*}", "reason", a->reason, "by", user ? user->pw_name : NULL);
    if (a->device)
        json_object_set_new(doc, "device", device_of(a->device));
    return doc ? json_dumps(doc, JSON_COMPACT) : NULL;
}

static int want(struct cli *c, const struct drain_args *a, const char *verb)
{
    struct http_reply r = {0};
    CLEANUP(buf_done) struct buf name = BUF_INIT;
    CLEANUP(mem_freep) char *node = http_escape(a->node);
    CLEANUP(mem_freep) char *path = mem_printf("/v1/nodes/%s/%s", node, verb);
    CLEANUP(mem_freep) char *body = body_of(a);
    if (!body) {
        fprintf(stderr, "trainyard: the reason or the device is no UTF-8 text\n");
        return EXIT_USAGE;
    }
    struct http_request q = {
        .method = "POST", .path = path, .body = body, .body_len = strlen(body)};
    int status = cli_send(c, &q, 10, &r);
    if (status == EXIT_OK && r.status != 200)
        status = cli_refused(&r);
    else if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    else if (status == EXIT_OK) {
        text_escape(&name, a->node, strlen(a->node), TEXT_LINE);
        printf("%s%s%s %sed\n", name.data, a->device ? " " : "", a->device ? a->device : "", verb);
    }
    http_reply_done(&r);
    return status;
}

static int run(struct cli *c, int argc, char **argv, const char *verb,
               const struct argp_option *options, const char *doc)
{
    struct drain_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {options, parse, "NODE", doc, children, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    return want(c, &a, verb);
}

int verb_drain(struct cli *c, int argc, char **argv)
{
    return run(
        c, argc, argv, "drain", drain_options,
        "Gives a node, or one of its devices, no new work. What runs there goes on. It stays "
        "so, whatever restarts, until \"undrain\".");
}

int verb_undrain(struct cli *c, int argc, char **argv)
{
    return run(c, argc, argv, "undrain", undrain_options,
               "Gives a drained node or device work again. A device's failures are forgotten.");
}
