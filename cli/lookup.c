/* A job by what a person types: the whole id, a unique beginning of it, or "last".
 *
 * The server has no search by prefix: the list is read, newest first, at most LOOKUP_PAGES pages
 * of LOOKUP_PAGE jobs. A full id costs no request.
 */
#include <stdio.h>
#include <string.h>

#include "base/id.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/text.h"

#define LOOKUP_PAGE  1000
#define LOOKUP_PAGES 20
#define LOOKUP_SHOWN 5

struct lookup {
    const char *prefix; /* with "job_" */
    int found;
    char ids[LOOKUP_SHOWN][CLI_ID_SIZE];
    char names[LOOKUP_SHOWN][64];
};

static void match_page(struct lookup *l, const json_t *jobs)
{
    size_t i;
    json_t *job;
    json_array_foreach((json_t *)jobs, i, job)
    {
        const char *id = cli_text(job, "id");
        if (strncmp(id, l->prefix, strlen(l->prefix)) != 0 || !id_valid("job", id))
            continue;
        if (l->found < LOOKUP_SHOWN) {
            strcpy(l->ids[l->found], id);
            snprintf(l->names[l->found], sizeof l->names[0], "%.60s", cli_text(job, "name"));
        }
        l->found++;
    }
}

/* Reads the list into `l`; `pages` 1 and `limit` 1 for "last". */
static int read_list(struct cli *c, struct lookup *l, int limit, int pages, int *ret_more)
{
    CLEANUP(mem_freep) char *after = NULL;
    for (int i = 0; i < pages; i++) {
        struct http_reply r = {0};
        CLEANUP(mem_freep)
        char *path = after ? mem_printf("/v1/jobs?limit=%d&after=%s", limit, after)
                           : mem_printf("/v1/jobs?limit=%d", limit);
        int status = cli_get(c, path, 5, &r);
        if (status != EXIT_OK)
            return status;
        match_page(l, json_object_get(r.doc, "jobs"));
        const char *next = cli_text(r.doc, "next");
        mem_freep(&after);
        after = *next ? http_escape(next) : NULL;
        http_reply_done(&r);
        if (!after)
            break;
    }
    *ret_more = after != NULL;
    return EXIT_OK;
}

static int say_ambiguous(const struct lookup *l, const char *given)
{
    fprintf(stderr, "trainyard: \"%s\" is the beginning of %d ids:\n", given, l->found);
    for (int i = 0; i < l->found && i < LOOKUP_SHOWN; i++) {
        CLEANUP(buf_done) struct buf b = BUF_INIT;
        text_escape(&b, l->ids[i], strlen(l->ids[i]), TEXT_LINE);
        buf_adds(&b, "  ");
        text_escape(&b, l->names[i], strlen(l->names[i]), TEXT_LINE);
        fprintf(stderr, "  %s\n", b.data);
    }
    if (l->found > LOOKUP_SHOWN)
        fprintf(stderr, "  ...\n");
    return EXIT_USAGE;
}

static int say_unknown(const char *given, int last, int more)
{
    if (last)
        fprintf(stderr, "trainyard: there is no job yet\n");
    else if (more)
        fprintf(stderr,
                "trainyard: none of the newest %d jobs has an id that begins with \"%s\"; "
                "give the whole id\n",
                LOOKUP_PAGE * LOOKUP_PAGES, given);
    else
        fprintf(stderr,
                "trainyard: no job has an id that begins with \"%s\"; "
                "\"trainyard list\" shows them\n",
                given);
    return EXIT_USAGE;
}

static int plausible(const char *given)
{
    return *given && strlen(given) < CLI_ID_SIZE - 4 &&
           strspn(given, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(given);
}

int cli_lookup(struct cli *c, const char *given, char ret[CLI_ID_SIZE])
{
    struct lookup l = {0};
    int last = strcmp(given, "last") == 0;
    int more = 0;
    if (!plausible(given)) {
        fprintf(stderr, "trainyard: an id is made of a-z, 0-9 and _, such as "
                        "job_01k8z4q9tw3v7m2c5xd8hbn6; \"last\" is the newest job\n");
        return EXIT_USAGE;
    }
    if (id_valid("job", given)) {
        strcpy(ret, given);
        return EXIT_OK;
    }
    int begun = strncmp(given, "job_", strlen(given) < 4 ? strlen(given) : 4) == 0;
    CLEANUP(mem_freep) char *prefix = mem_printf("%s%s", begun || last ? "" : "job_", given);
    l.prefix = last ? "" : prefix;
    int status = read_list(c, &l, last ? 1 : LOOKUP_PAGE, last ? 1 : LOOKUP_PAGES, &more);
    if (status != EXIT_OK)
        return status;
    if (l.found == 0)
        return say_unknown(given, last, more);
    if (l.found > 1)
        return say_ambiguous(&l, given);
    strcpy(ret, l.ids[0]);
    return EXIT_OK;
}

/* ---- "VERB ID" ---- */

struct id_args {
    struct cli *cli;
    const char *id;
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

int cli_parse_id(struct cli *c, int argc, char **argv, const char *doc, char ret[CLI_ID_SIZE])
{
    struct id_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {NULL, parse, "ID", doc, children, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    return cli_lookup(c, a.id, ret);
}
