/* trainyard-shim: owns one attempt's ranks on one node; started by the agent, outlives it. */
#include <argp.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/shim/shim.h"

#define LOCK_WAIT_US 1000000 /* an agent that only looks holds the lock for an instant */

const char *argp_program_version = "trainyard-shim " TRAINYARD_VERSION;
static const char doc[] =
    "Starts and watches the ranks of one attempt. The agent runs it; by hand it is of no use.";
static const struct argp_option options[] = {
    {"dir", 'd', "DIR", 0, "Attempt directory, an absolute path", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    const char **dir = state->input;
    switch (key) {
    case 'd': *dir = arg; return 0;
    case ARGP_KEY_END:
        if (!*dir || **dir != '/')
            argp_error(state, "--dir with an absolute path is required");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int lock(const char *dir, int *ret, struct err *e)
{
    int64_t until = clock_boottime_us() + LOCK_WAIT_US;
    int r;
    while ((r = attempt_lock(dir, ret, e)) == ERR_CONFLICT && clock_boottime_us() < until)
        usleep(5000);
    return r;
}

static int run(const char *dir)
{
    struct err e;
    struct shim s = {.dir = dir, .lock_fd = -1};
    if (lock(dir, &s.lock_fd, &e) < 0) {
        log_event(LOG_LEVEL_WARNING, "not_started", "reason=%s", log_quote(e.text));
        return 1;
    }
    json_auto_t *record = NULL;
    if (exit_record_read(dir, &record, NULL) == 0) {
        log_event(LOG_LEVEL_WARNING, "not_started", "reason=\"the attempt has ended\"");
        return 1;
    }
    int r = shim_run(&s, &e);
    if (r < 0)
        log_event(LOG_LEVEL_ERROR, "failed", "error=%s", log_quote(e.text));
    shim_done(&s);
    return r < 0;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    const char *dir = NULL;
    if (argp_parse(&argp, argc, argv, 0, NULL, &dir) != 0)
        return EXIT_FAILURE;
    log_setup("trainyard-shim", LOG_LEVEL_INFO);
    umask(022);
    return run(dir);
}
