/* main.c: trainyardd, the coordinator: options, wiring, and the loop.
 *
 * The loop sleeps in sd-event (HTTP, signals, the supervisor's watchdog) until something is ready
 * or due, and then makes one turn (coordinator.h). SIGTERM and SIGINT end it after the turn: parked
 * and held requests are answered, the store is closed, the status is 0. Status 1: it could not
 * start or the store failed; 64: the command line is wrong.
 */
#include <argp.h>
#include <ini.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>
#include <time.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"

#define LOCK_PATIENCE_US 2000000
#define LOCK_PAUSE_US    20000

#define TOKEN_MIN_LENGTH 16
#define TOKEN_MAX_LENGTH 512
#define DEFAULT_LISTEN   "127.0.0.1:8724"

const char *argp_program_version = "trainyardd " TRAINYARD_VERSION;

/* ---- options ---- */
enum option_id {
    OPTION_STATE_DIR,
    OPTION_LISTEN,
    OPTION_AGENT_LISTEN,
    OPTION_API_TOKEN_FILE,
    OPTION_AGENT_TOKEN_FILE,
    OPTION_ALLOWED_HOSTS,
    OPTION_WEB_DIR,
    OPTION_RETENTION,
    OPTION_CONFIG,
    OPTION_VERBOSE,
    OPTION__MAX
};
#define KEY(id) (1000 + (id))

struct options {
    char *values[OPTION__MAX]; /* owned; NULL: not given */
};

static const struct argp_option option_table[] = {
    {"state-dir", KEY(OPTION_STATE_DIR), "DIR", 0,
     "Where everything that must survive lies (default: $STATE_DIRECTORY)", 0},
    {"listen", KEY(OPTION_LISTEN), "ADDR:PORT", 0,
     "Address of the API (default: " DEFAULT_LISTEN "); port 0 takes a free one", 0},
    {"agent-listen", KEY(OPTION_AGENT_LISTEN), "ADDR:PORT", 0,
     "A further address, for agents alone", 0},
    {"api-token-file", KEY(OPTION_API_TOKEN_FILE), "FILE", 0,
     "Users must show the token in this file", 0},
    {"agent-token-file", KEY(OPTION_AGENT_TOKEN_FILE), "FILE", 0,
     "Agents must show the token in this file", 0},
    {"allowed-hosts", KEY(OPTION_ALLOWED_HOSTS), "NAMES", 0,
     "Names, separated by commas, by which this server may be addressed", 0},
    {"web-dir", KEY(OPTION_WEB_DIR), "DIR", 0, "The dashboard's files, served at /", 0},
    {"checkpoint-retention", KEY(OPTION_RETENTION), "DURATION", 0,
     "How long checkpoints of jobs are kept that failed, were cancelled or suspended (default: 7d)",
     0},
    {"config", KEY(OPTION_CONFIG), "FILE", 0,
     "An INI file with the names above as keys; the command line wins", 0},
    {"verbose", KEY(OPTION_VERBOSE), NULL, 0, "Log more", 0},
    {0},
};

static void set_option(struct options *o, int id, const char *value, int replace)
{
    if (o->values[id] && !replace)
        return;
    free(o->values[id]);
    o->values[id] = mem_strdup(value);
}

static error_t take_argument(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        argp_error(state, "\"%s\" is no option of trainyardd", arg);
    if (key < KEY(0) || key >= KEY(OPTION__MAX))
        return ARGP_ERR_UNKNOWN;
    set_option(state->input, key - KEY(0), arg ? arg : "yes", 1);
    return 0;
}

/* The INI file: keys are the long options; a section is ignored. Returns 0 to make inih stop. */
static int take_ini(void *user, const char *section, const char *name, const char *value)
{
    (void)section;
    for (const struct argp_option *o = option_table; o->name; o++) {
        if (strcmp(o->name, name) == 0 && o->key != KEY(OPTION_CONFIG)) {
            set_option(user, o->key - KEY(0), value, 0);
            return 1;
        }
    }
    fprintf(stderr, "trainyardd: the configuration has no key \"%s\"\n", name);
    return 0;
}

static int read_config(struct options *o, struct err *e)
{
    const char *path = o->values[OPTION_CONFIG];
    int line = path ? ini_parse(path, take_ini, o) : 0;
    if (line < 0)
        return err_errno(e, "cannot read the configuration %s", path);
    if (line > 0)
        return err_set(e, ERR_INVALID, "%s, line %d: not understood", path, line);
    if (!o->values[OPTION_STATE_DIR] && getenv("STATE_DIRECTORY"))
        set_option(o, OPTION_STATE_DIR, getenv("STATE_DIRECTORY"), 0);
    if (!o->values[OPTION_STATE_DIR])
        return err_set(e, ERR_INVALID,
                       "no state directory: give --state-dir DIR (a directory that survives "
                       "reboots), or set $STATE_DIRECTORY");
    set_option(o, OPTION_LISTEN, DEFAULT_LISTEN, 0);
    return 0;
}

static void options_done(struct options *o)
{
    for (int i = 0; i < OPTION__MAX; i++)
        free(o->values[i]);
}

/* ---- tokens ---- */
static int read_token(const char *path, char **ret, struct err *e)
{
    struct buf text = BUF_INIT;
    struct stat st;
    *ret = NULL;
    if (!path)
        return 0;
    int rc = file_read(path, TOKEN_MAX_LENGTH + 1, &text, e);
    if (rc != 0)
        return err_prefix(e, "the token file");
    if (stat(path, &st) == 0 && (st.st_mode & 077) != 0)
        log_event(LOG_LEVEL_WARNING, "token_readable", "file=%s advice=%s", log_quote(path),
                  log_quote("others can read it; chmod 600"));
    while (text.len > 0 && strchr("\r\n \t", text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (text.len < TOKEN_MIN_LENGTH || strcspn(text.data, "\r\n \t") != text.len) {
        sodium_memzero(text.data, text.len);
        buf_done(&text);
        return err_set(e, ERR_INVALID,
                       "the token in %s must be one line of at least %d characters without "
                       "spaces; \"openssl rand -hex 32\" makes one",
                       path, TOKEN_MIN_LENGTH);
    }
    *ret = buf_steal(&text);
    return 0;
}

/* Numbers only: a name that begins with 127. may be anywhere. */
static int is_loopback(const char *address)
{
    size_t n = strcspn(address, ":");
    return (strncmp(address, "127.", 4) == 0 && strspn(address, "0123456789.") == n) ||
           strncmp(address, "[::1]:", 6) == 0 || strncmp(address, "localhost:", 10) == 0;
}

static int check_exposure(const struct options *o, struct err *e)
{
    const char *listen = o->values[OPTION_LISTEN], *agents = o->values[OPTION_AGENT_LISTEN];
    if (!is_loopback(listen) &&
        (!o->values[OPTION_API_TOKEN_FILE] || !o->values[OPTION_AGENT_TOKEN_FILE]))
        return err_set(e, ERR_INVALID,
                       "--listen %s can be reached from other machines, so it needs "
                       "--api-token-file and --agent-token-file; without them listen on 127.0.0.1",
                       listen);
    if (agents && !is_loopback(agents) && !o->values[OPTION_AGENT_TOKEN_FILE])
        return err_set(e, ERR_INVALID,
                       "--agent-listen %s can be reached from other machines, so it needs "
                       "--agent-token-file",
                       agents);
    return 0;
}

/* ---- wiring ---- */
struct daemon {
    struct service *service;
    struct api *api;
    sd_event *loop;
    char *api_token, *agent_token;
};

static int open_api(struct daemon *d, const struct options *o, struct err *e)
{
    int rc = read_token(o->values[OPTION_API_TOKEN_FILE], &d->api_token, e);
    if (rc == 0)
        rc = read_token(o->values[OPTION_AGENT_TOKEN_FILE], &d->agent_token, e);
    if (rc != 0)
        return rc;
    struct api_options api = {.listen = o->values[OPTION_LISTEN],
                              .agent_listen = o->values[OPTION_AGENT_LISTEN],
                              .api_token = d->api_token,
                              .agent_token = d->agent_token,
                              .allowed_hosts = o->values[OPTION_ALLOWED_HOSTS],
                              .web_dir = o->values[OPTION_WEB_DIR]};
    rc = api_open(&api, d->service, &d->api, e);
    d->service->api = d->api;
    return rc;
}

/* Nothing to do but to end the sleep: the turn follows every wake-up. */
static int on_http(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source;
    (void)fd;
    (void)events;
    (void)user;
    return 0;
}

static int loop_failed(struct err *e, int rc, const char *what)
{
    return err_set(e, ERR_IO, "cannot %s: %s", what, strerror(-rc));
}

static int open_loop(struct daemon *d, struct err *e)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    int rc = sd_event_new(&d->loop);
    if (rc < 0)
        return loop_failed(e, rc, "make an event loop");
    rc = sd_event_add_io(d->loop, NULL, api_epoll_fd(d->api), EPOLLIN, on_http, d);
    if (rc < 0)
        return loop_failed(e, rc, "watch the HTTP sockets");
    if (sd_event_add_signal(d->loop, NULL, SIGTERM, NULL, NULL) < 0 ||
        sd_event_add_signal(d->loop, NULL, SIGINT, NULL, NULL) < 0)
        return err_set(e, ERR_IO, "cannot watch for signals");
    rc = sd_event_set_watchdog(d->loop, 1);
    return rc < 0 ? loop_failed(e, rc, "serve the watchdog") : 0;
}

/* Whoever starts us again after a kill -9 may be faster than the kernel, which lets go of the lock
 * once the dead one's memory is taken apart. */
static int open_state(struct daemon *d, const struct options *o, struct err *e)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_US * 1000L};
    int64_t until_us = clock_boottime_us() + LOCK_PATIENCE_US;
    int rc;
    while ((rc = coordinator_open(o->values[OPTION_STATE_DIR], &d->service, e)) == ERR_CONFLICT &&
           clock_boottime_us() < until_us)
        nanosleep(&pause, NULL);
    return rc;
}

static int set_retention(struct daemon *d, const struct options *o, struct err *e)
{
    int64_t seconds;
    const char *text = o->values[OPTION_RETENTION];
    if (!text)
        return 0;
    int rc = clock_parse_duration(text, &seconds, e);
    if (rc != 0)
        return err_prefix(e, "--checkpoint-retention");
    d->service->retention_us = seconds * 1000000;
    return 0;
}

static int open_all(struct daemon *d, const struct options *o, struct err *e)
{
    int rc = check_exposure(o, e);
    if (rc == 0)
        rc = open_state(d, o, e);
    if (rc == 0)
        rc = set_retention(d, o, e);
    if (rc == 0)
        rc = open_api(d, o, e);
    return rc == 0 ? open_loop(d, e) : rc;
}

static void close_all(struct daemon *d)
{
    api_close(d->api);
    if (d->service)
        d->service->api = NULL;
    coordinator_close(d->service);
    sd_event_unref(d->loop);
    free(d->api_token);
    free(d->agent_token);
}

static int say_ready(struct daemon *d, const struct options *o, struct err *e)
{
    int64_t counts[JOB_STATE__MAX], jobs = 0;
    int rc = store_job_count(d->service->store, counts, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < JOB_STATE__MAX; i++)
        jobs += counts[i];
    printf("trainyardd ready on http://%s (state %s, %lld %s)\n", api_address(d->api),
           o->values[OPTION_STATE_DIR], (long long)jobs, jobs == 1 ? "job" : "jobs");
    fflush(stdout);
    sd_notifyf(0, "READY=1\nSTATUS=http://%s", api_address(d->api));
    return 0;
}

/* sd_event_run() dispatches one source and returns; a signal without a handler of ours asks the
 * loop to exit, which it does at its next round. */
static int run(struct daemon *d, struct err *e)
{
    for (;;) {
        int64_t wait = coordinator_wait_us(d->service);
        int rc = sd_event_run(d->loop, (uint64_t)wait);
        if (rc < 0)
            return loop_failed(e, rc, "run the event loop");
        if (sd_event_get_state(d->loop) == SD_EVENT_FINISHED)
            return 0;
        rc = coordinator_turn(d->service, e);
        if (rc != 0)
            return rc;
    }
}

int main(int argc, char **argv)
{
    static const struct argp parser = {
        option_table,
        take_argument,
        NULL,
        "The coordinator of Trainyard: takes training jobs over HTTP, keeps them, and has agents "
        "run them.",
        NULL,
        NULL,
        NULL};
    struct options o = {0};
    struct daemon d = {0};
    struct err e = {0};
    umask(077);
    signal(SIGPIPE, SIG_IGN);
    argp_err_exit_status = 64;
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    log_setup("trainyardd", o.values[OPTION_VERBOSE] ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    int rc = sodium_init() < 0 ? err_set(&e, ERR_INTERNAL, "libsodium does not start") : 0;
    if (rc == 0)
        rc = read_config(&o, &e);
    if (rc == 0)
        rc = open_all(&d, &o, &e);
    if (rc == 0)
        rc = say_ready(&d, &o, &e);
    if (rc == 0)
        rc = run(&d, &e);
    sd_notify(0, "STOPPING=1");
    close_all(&d);
    options_done(&o);
    if (rc == 0)
        return 0;
    log_event(LOG_LEVEL_ERROR, "ended", "code=%s reason=%s", err_code_name(rc), log_quote(e.text));
    return 1;
}
