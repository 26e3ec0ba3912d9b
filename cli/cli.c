/* The program: its verbs, the options that they share, and the terminal. */
#include "cli/cli.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define DEFAULT_SERVER "http://127.0.0.1:8724"

const char *argp_program_version = "trainyard " TRAINYARD_VERSION;

static const struct verb {
    const char *name;
    int (*run)(struct cli *c, int argc, char **argv);
    const char *summary;
} verbs[] = {
    {"submit", verb_submit, "submit a job from a JSON file, or - for standard input"},
    {"list", verb_list, "list jobs, newest first"},
    {"show", verb_show, "show one job"},
    {"wait", verb_wait, "wait for a job's end; the exit status says how it went"},
    {"logs", verb_logs, "print what a rank wrote"},
    {"metrics", verb_metrics, "print the losses and metrics of a job"},
    {"artifacts", verb_artifacts, "list what a job left behind, or fetch one file of it"},
    {"events", verb_events, "print what happened to a job"},
    {"cancel", verb_cancel, "cancel a job"},
    {"suspend", verb_suspend, "take its devices from a job, after a checkpoint"},
    {"resume", verb_resume, "let a suspended job go on"},
    {"retry", verb_retry, "start a failed or cancelled job again"},
    {"checkpoints", verb_checkpoints, "list the checkpoints of a job that are kept"},
    {"nodes", verb_nodes, "list the nodes, or one node's devices"},
    {"drain", verb_drain, "give a node, or a device of it, no new work"},
    {"undrain", verb_undrain, "give a drained node or device work again"},
    {"version", verb_version, "print the versions of this program and of the server"},
};

/* ---- interruption ---- */

volatile int cli_interrupted;

static void note_interrupt(int signal_number)
{
    (void)signal_number;
    cli_interrupted = 1;
}

void cli_watch_interrupt(void)
{
    struct sigaction a = {.sa_handler = note_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &a, NULL); /* a second Ctrl-C ends the program whatever it does */
}

void cli_sleep(int64_t ms)
{
    int64_t until = clock_boottime_us() + ms * 1000;
    for (int64_t left = ms; left > 0 && !cli_interrupted;
         left = (until - clock_boottime_us() + 999) / 1000)
        poll(NULL, 0, left > 100 ? 100 : (int)left); /* the signal may come just before poll */
}

/* ---- options ---- */

enum { KEY_JSON = 0x1001, KEY_SERVER, KEY_TOKEN_FILE, KEY_RETRY };

static const struct argp_option common_options[] = {
    {"json", KEY_JSON, 0, 0, "Print the server's document as JSON", 0},
    {"server", KEY_SERVER, "URL", 0,
     "The coordinator; default $TRAINYARD_SERVER or " DEFAULT_SERVER, 0},
    {"token-file", KEY_TOKEN_FILE, "FILE", 0,
     "The file with the bearer token; default $TRAINYARD_TOKEN_FILE", 0},
    {"retry", KEY_RETRY, "DURATION", 0,
     "How long to go on trying while the server cannot be reached, such as 0, 30s or 5m", 0},
    {0}};

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    struct cli *c = state->input;
    struct err e;
    switch (key) {
    case KEY_JSON: c->json = 1; return 0;
    case KEY_SERVER: c->server = arg; return 0;
    case KEY_TOKEN_FILE: c->token_file = arg; return 0;
    case KEY_RETRY:
        if (clock_parse_duration(arg, &c->retry_s, &e) < 0)
            argp_error(state, "--retry: %s", e.text);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_common_argp = {common_options, parse_common, NULL, NULL, NULL, NULL, NULL};

int64_t cli_number(struct argp_state *state, const char *what, const char *text)
{
    char *end = NULL;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < 0)
        argp_error(state, "%s wants a whole number, not \"%s\"", what, text);
    return n;
}

struct top {
    struct cli *cli;
    int first; /* index of the verb in argv */
};

static error_t parse_top(int key, char *arg, struct argp_state *state)
{
    struct top *top = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = top->cli; return 0;
    case ARGP_KEY_ARG:
        top->first = state->next - 1;
        state->next = state->argc; /* the rest is the verb's */
        return 0;
    case ARGP_KEY_NO_ARGS: argp_usage(state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static char *make_doc(void)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    buf_adds(&b, "Trainyard's command line: submits training jobs and shows how they go.\v");
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        buf_addf(&b, "  %-11s %s\n", verbs[i].name, verbs[i].summary);
    buf_adds(&b, "\nA job is named by its id, by a unique beginning of it, or by \"last\" for the "
                 "newest.\n\"trainyard VERB --help\" tells about one verb.\n\nExit status: 0 done, "
                 "1 refused or (wait) failed, 2 wrong usage,\n3 no server, one that fails, or "
                 "(wait) timeout.\n");
    return buf_steal(&b);
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    }
    return NULL;
}

/* ---- the terminal ---- */

static int terminal_width(void)
{
    struct winsize size;
    if (!isatty(STDOUT_FILENO))
        return 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    const char *columns = getenv("COLUMNS");
    long n = columns ? strtol(columns, NULL, 10) : 0;
    return n > 0 && n < 10000 ? (int)n : 80;
}

static int wants_color(void)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

static void set_defaults(struct cli *c)
{
    const char *server = getenv("TRAINYARD_SERVER");
    const char *token_file = getenv("TRAINYARD_TOKEN_FILE");
    c->server = server && *server ? server : DEFAULT_SERVER;
    c->token_file = token_file && *token_file ? token_file : NULL;
    c->retry_s = -1;
    c->width = terminal_width();
    c->color = wants_color();
}

static int run_verb(struct cli *c, const struct verb *v, int argc, char **argv)
{
    CLEANUP(mem_freep) char *name = mem_printf("trainyard %s", v->name);
    argv[0] = name;
    int status = v->run(c, argc, argv);
    if ((fflush(stdout) == EOF || ferror(stdout)) && status == EXIT_OK) {
        fprintf(stderr, "trainyard: cannot write the answer: %s\n", strerror(errno));
        status = EXIT_REFUSED;
    }
    return status;
}

int cli_main(int argc, char **argv)
{
    struct cli c = {0};
    struct top top = {.cli = &c};
    argp_err_exit_status = EXIT_USAGE;
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    set_defaults(&c);
    CLEANUP(mem_freep) char *doc = make_doc();
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {NULL, parse_top, "VERB [ARGUMENT...]", doc, children, NULL, NULL};
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &top);
    const struct verb *v = find_verb(argv[top.first]);
    if (!v) {
        fprintf(stderr, "trainyard: there is no verb \"%s\"; \"trainyard --help\" lists them\n",
                argv[top.first]);
        return EXIT_USAGE;
    }
    int status = run_verb(&c, v, argc - top.first, argv + top.first);
    http_close(c.http);
    return status;
}
