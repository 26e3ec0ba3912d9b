/* cli.h: what every verb of the command line shares: the server, the terminal, one way to ask and
 * one way to say that it went wrong.
 *
 * Answers go to stdout, everything about them to stderr. Server text is escaped before it gets to
 * either, but for `logs` and --json into a pipe or file.
 */
#ifndef TRAINYARD_CLI_CLI_H
#define TRAINYARD_CLI_CLI_H

#include <argp.h>
#include <jansson.h>
#include <stdint.h>

#include "cli/http.h"

/* Exit statuses. */
enum {
    EXIT_OK = 0,
    EXIT_REFUSED = 1,   /* the server said no; wait: the job failed or was cancelled */
    EXIT_USAGE = 2,     /* a wrong command line, or an id that names no job */
    EXIT_NO_SERVER = 3, /* cannot reach the server; wait: the timeout passed */
    EXIT_INTERRUPTED = 130,
};

struct cli {
    const char *server;     /* URL */
    const char *token_file; /* or NULL */
    int json;               /* print the server's documents */
    int64_t retry_s;        /* how long to try an unreachable server; -1: the verb's default */
    int color;              /* stdout is a terminal that wants colours */
    int width;              /* of stdout in columns; 0: not a terminal */
    struct http *http;      /* opened by cli_connect() */
};

/* The whole program: parses, runs the verb, returns the exit status. */
int cli_main(int argc, char **argv);

/* Nonzero once SIGINT has come. */
extern volatile int cli_interrupted;
void cli_watch_interrupt(void); /* from now on SIGINT sets it instead of ending the program */
/* Sleeps until the deadline of `ms`, less if interrupted. */
void cli_sleep(int64_t ms);

/* ---- command lines: argp, with the options that every verb has ---- */
extern const struct argp cli_common_argp;
#define CLI_CHILDREN                                                                               \
    {                                                                                              \
        {&cli_common_argp, 0, "Common options:", 10},                                              \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
/* Parses a non-negative whole number or ends the program with a usage error. */
int64_t cli_number(struct argp_state *state, const char *what, const char *text);

/* ---- asking; each returns an exit status and has said on stderr what went wrong ---- */
int cli_connect(struct cli *c);
/* Sends; a server that cannot be reached or answers 503 is tried again for `retry_s` seconds (with
 * the same request, so it must be safe to repeat). Any HTTP status is EXIT_OK. */
int cli_send(struct cli *c, const struct http_request *q, int64_t retry_s, struct http_reply *ret);
/* GET; 200 with a JSON document or else it is refused. Release *ret with http_reply_done(). */
int cli_get(struct cli *c, const char *path, int64_t retry_s, struct http_reply *ret);
/* Prints the problem: EXIT_REFUSED, or EXIT_NO_SERVER where the server failed (5xx). */
int cli_refused(const struct http_reply *r);

/* A full id, a unique beginning of one (with or without "job_"), or "last" for the newest job, as
 * a full id into `ret`. */
#define CLI_ID_SIZE 64
int cli_lookup(struct cli *c, const char *given, char ret[CLI_ID_SIZE]);
/* The same of a command line that is "VERB ID"; `doc` is what --help says. */
int cli_parse_id(struct cli *c, int argc, char **argv, const char *doc, char ret[CLI_ID_SIZE]);

/* Waits for the job's end, showing its progress; 0 `timeout_s`: for ever. See wait.c. */
int cli_wait(struct cli *c, const char *id, int64_t timeout_s);

/* ---- documents ---- */
const char *cli_text(const json_t *doc, const char *key); /* "" when it is no string */
double cli_real(const json_t *doc, const char *key); /* NaN when it is no number ("nan", absent) */
int64_t cli_integer(const json_t *doc, const char *key); /* -1 when it is no integer */
const char *cli_strategy(const json_t *job); /* the strategy's name, "" if there is none yet */
int64_t cli_ranks(const json_t *job);        /* -1 if unknown */
int cli_state_final(const char *state);
int cli_state_color(const char *state); /* enum table_color */
void cli_print_json(const json_t *doc);
void cli_print_body(const struct http_reply *r); /* the server's document, as sent */
void cli_warnings(const json_t *doc);            /* its warnings[], to stderr */
/* Its left_out[], one line "left out   NAME: WHY" each, and how many more there were. */
void cli_left_out(const json_t *doc, struct buf *out);

void cli_print_devices(struct cli *c, const json_t *node); /* of a node's document: a table */

/* ---- the verbs; argv[0] is "trainyard VERB" ---- */
int verb_submit(struct cli *c, int argc, char **argv);
int verb_list(struct cli *c, int argc, char **argv);
int verb_show(struct cli *c, int argc, char **argv);
int verb_wait(struct cli *c, int argc, char **argv);
int verb_logs(struct cli *c, int argc, char **argv);
int verb_metrics(struct cli *c, int argc, char **argv);
int verb_artifacts(struct cli *c, int argc, char **argv);
int verb_events(struct cli *c, int argc, char **argv);
int verb_cancel(struct cli *c, int argc, char **argv);
int verb_suspend(struct cli *c, int argc, char **argv);
int verb_resume(struct cli *c, int argc, char **argv);
int verb_retry(struct cli *c, int argc, char **argv);
int verb_checkpoints(struct cli *c, int argc, char **argv);
int verb_nodes(struct cli *c, int argc, char **argv);
int verb_drain(struct cli *c, int argc, char **argv);
int verb_undrain(struct cli *c, int argc, char **argv);
int verb_version(struct cli *c, int argc, char **argv);

#endif
