/* artifacts: what a job left behind: the list, or one file of it.
 *
 * A file comes under a temporary name beside the one that it is to have, and gets that name when
 * all of it is there and on the disk; what stands there already is replaced only with --force.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "cli/text.h"

#define ARTIFACT_RETRY_S 10

struct artifacts_args {
    struct cli *cli;
    const char *id, *name, *file;
    int force;
};

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Write it to FILE; default NAME, in this folder", 0},
    {"force", 'f', 0, 0, "Replace a file that is there", 0},
    {0}};

static void check(const struct artifacts_args *a, struct argp_state *state)
{
    if (!a->name && (a->file || a->force))
        argp_error(state, "%s goes with the NAME of an artifact", a->file ? "-o" : "--force");
    if (a->name && (!*a->name || strchr(a->name, '/') || strcmp(a->name, ".") == 0 ||
                    strcmp(a->name, "..") == 0))
        argp_error(state, "\"%s\" is no name of an artifact; without a name they are listed",
                   a->name);
    if (a->file && (!*a->file || strcmp(a->file, "-") == 0))
        argp_error(state, "-o wants the name of a file");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct artifacts_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case 'o': a->file = arg; return 0;
    case 'f': a->force = 1; return 0;
    case ARGP_KEY_ARG:
        if (a->name)
            argp_error(state, "one artifact at a time; \"%s\" is the second", arg);
        if (a->id)
            a->name = arg;
        else
            a->id = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which job? Give its id, or \"last\""); return 0;
    case ARGP_KEY_SUCCESS: check(a, state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- the list ---- */

void cli_left_out(const json_t *doc, struct buf *out)
{
    const json_t *list = json_object_get(doc, "left_out");
    int64_t more = cli_integer(doc, "left_out_count") - (int64_t)json_array_size(list);
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)list, i, entry)
    {
        const char *name = cli_text(entry, "name");
        const char *why = cli_text(entry, "why");
        buf_adds(out, "left out   ");
        text_escape(out, name, strlen(name), TEXT_LINE);
        buf_adds(out, ": ");
        text_escape(out, why, strlen(why), TEXT_LINE);
        buf_adds(out, "\n");
    }
    if (more > 0)
        buf_addf(out, "left out   %lld more\n", (long long)more);
}

static void print_list(const struct cli *c, const json_t *doc)
{
    static const struct table_column columns[] = {{"NAME", 0, 0, 0}, {"SIZE", 1, 0, 0}};
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(buf_done) struct buf left_out = BUF_INIT;
    CLEANUP(table_done) struct table t;
    size_t i;
    json_t *entry;
    table_init(&t, columns, ARRAY_LEN(columns));
    json_array_foreach(json_object_get(doc, "artifacts"), i, entry)
    {
        CLEANUP(buf_done) struct buf size = BUF_INIT;
        text_bytes(&size, (double)cli_integer(entry, "bytes"));
        table_add(&t, cli_text(entry, "name"));
        table_add(&t, size.data);
    }
    if (t.cell_count > 0)
        table_print(&t, c->width, c->color, &b);
    else
        fprintf(stderr, "No artifacts.\n");
    fputs(b.data ? b.data : "", stdout);
    cli_left_out(doc, &left_out);
    fputs(left_out.data ? left_out.data : "", stderr);
}

static int list(struct cli *c, const char *id)
{
    struct http_reply r = {0};
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s/artifacts", id);
    int status = cli_get(c, path, ARTIFACT_RETRY_S, &r);
    if (status == EXIT_OK && c->json)
        cli_print_body(&r);
    else if (status == EXIT_OK)
        print_list(c, r.doc);
    http_reply_done(&r);
    return status;
}

/* ---- one file ---- */

static int say_file(const char *what, const char *file, int code)
{
    fprintf(stderr, "trainyard: %s %s: %s\n", what, file, strerror(code));
    return EXIT_REFUSED;
}

static int say_exists(const char *file)
{
    fprintf(stderr, "trainyard: %s is there already; --force replaces it, -o FILE writes another\n",
            file);
    return EXIT_USAGE;
}

/* Gives the file its name. Some network file systems cannot rename without replacing; a hard link
 * never replaces. */
static int settle(const char *temporary, const char *file, int force)
{
    int r = renameat2(AT_FDCWD, temporary, AT_FDCWD, file, force ? 0 : RENAME_NOREPLACE);
    if (r < 0 && !force && errno == EINVAL) {
        r = link(temporary, file);
        if (r == 0)
            unlink(temporary);
    }
    if (r < 0 && errno == EEXIST)
        return say_exists(file);
    return r < 0 ? say_file("cannot make", file, errno) : EXIT_OK;
}

static int fetch(struct cli *c, const char *path, int fd)
{
    struct http_reply r = {0};
    struct http_request q = {.method = "GET", .path = path, .sink = fd};
    int status = cli_send(c, &q, ARTIFACT_RETRY_S, &r);
    if (status == EXIT_OK && r.status != 200)
        status = cli_refused(&r);
    http_reply_done(&r);
    return status;
}

static int say_written(const struct cli *c, const char *file, int64_t bytes)
{
    CLEANUP(buf_done) struct buf size = BUF_INIT;
    text_bytes(&size, (double)bytes);
    fprintf(stderr, "%s: %s\n", file, size.data);
    if (c->json) {
        json_auto_t *doc = json_pack("{s:s?,s:I}", "file", file, "bytes", (json_int_t)bytes);
        cli_print_json(doc);
    }
    return EXIT_OK;
}

static int download(struct cli *c, const char *id, const struct artifacts_args *a)
{
    const char *file = a->file ? a->file : a->name;
    struct stat st;
    if (!a->force && lstat(file, &st) == 0)
        return say_exists(file);
    CLEANUP(mem_freep) char *name = http_escape(a->name);
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s/artifacts/%s", id, name);
    CLEANUP(mem_freep) char *temporary = mem_printf("%s.XXXXXX", file);
    CLEANUP(mem_closep) int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return say_file("cannot write", file, errno);
    mode_t mask = umask(0);
    umask(mask);
    cli_watch_interrupt(); /* so that a Ctrl-C leaves no half of it */
    int status = fetch(c, path, fd);
    if (status == EXIT_OK && (fchmod(fd, 0666 & ~mask) < 0 || fstat(fd, &st) < 0 || fsync(fd) < 0))
        status = say_file("cannot write", file, errno);
    if (status == EXIT_OK)
        status = settle(temporary, file, a->force);
    if (status != EXIT_OK)
        unlink(temporary);
    return status == EXIT_OK ? say_written(c, file, st.st_size) : status;
}

int verb_artifacts(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    struct artifacts_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {
        options,  parse, "ID [NAME]", "Lists what a job left behind, or fetches the artifact NAME.",
        children, NULL,  NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    int status = cli_lookup(c, a.id, id);
    if (status != EXIT_OK)
        return status;
    return a.name ? download(c, id, &a) : list(c, id);
}
