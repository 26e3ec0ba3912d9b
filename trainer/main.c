/* trainyard-trainer: one rank of a training job, or its prepare step (docs/protocols.md section 4).
 *
 *     trainyard-trainer --launch FILE --prepare
 *     trainyard-trainer --launch FILE --rank N
 *
 * Descriptors: 3 the report file, 4 the gang's shared memory, 5 the prepared data, 7 the file for
 * what of it is too large for memory (none: such data is refused). The launch
 * document may be /proc/self/fd/N: then that descriptor is read, since a rank that runs as another
 * user could not open the file again.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "trainer/train.h"

#define LAUNCH_MAX (4 * 1024 * 1024)

#define SPOOL_FD 7

static struct engine_fds fds = {.report = 3, .gang = 4, .data = 5, .spool = SPOOL_FD};

static volatile int stop_asked;

static void on_term(int signal_number)
{
    (void)signal_number;
    stop_asked = 1;
}

struct arguments {
    const char *launch;
    int rank, prepare;
};

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    char *end = NULL;
    switch (key) {
    case 'l': a->launch = value; return 0;
    case 'p': a->prepare = 1; return 0;
    case 'r':
        errno = 0;
        a->rank = (int)strtol(value, &end, 10);
        if (errno || *end || end == value || a->rank < 0 || a->rank >= PLAN_MAX_RANKS)
            argp_error(state, "--rank %s is not a number from 0 to %d", value, PLAN_MAX_RANKS - 1);
        return 0;
    case ARGP_KEY_END:
        if (!a->launch || (a->rank < 0) == !a->prepare)
            argp_error(state, "give --launch, and either --prepare or --rank");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {.name = "launch", .key = 'l', .arg = "FILE", .doc = "The launch document"},
    {.name = "prepare", .key = 'p', .doc = "Read and check the data set, then exit"},
    {.name = "rank", .key = 'r', .arg = "N", .doc = "Train as this rank"},
    {0},
};

static int read_descriptor(int fd, struct buf *ret, struct err *e)
{
    char block[65536];
    off_t at = 0;
    for (;;) {
        ssize_t n = pread(fd, block, sizeof block, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "cannot read the launch document from descriptor %d", fd);
        if (n == 0)
            return 0;
        at += n;
        if (at > LAUNCH_MAX)
            return err_set(e, ERR_TOO_LARGE, "The launch document is over %d bytes.", LAUNCH_MAX);
        buf_add(ret, block, (size_t)n);
    }
}

/* N of "/proc/self/fd/N", or -1. */
static int own_descriptor(const char *path)
{
    static const char prefix[] = "/proc/self/fd/";
    char *end;
    if (strncmp(path, prefix, sizeof prefix - 1) != 0)
        return -1;
    long fd = strtol(path + sizeof prefix - 1, &end, 10);
    return *end == '\0' && end[-1] != '/' && fd >= 0 && fd <= INT_MAX ? (int)fd : -1;
}

static int load_launch(const char *path, struct launch *ret, struct err *e)
{
    struct buf text = BUF_INIT;
    json_error_t where;
    int fd = own_descriptor(path);
    int r = fd >= 0 ? read_descriptor(fd, &text, e) : file_read(path, LAUNCH_MAX, &text, e);
    json_auto_t *doc = r == 0 ? json_loadb(text.data ? text.data : "", text.len, 0, &where) : NULL;
    if (r == 0 && !doc)
        r = err_set(e, ERR_INVALID, "%s is not JSON: %s (line %d)", path, where.text, where.line);
    buf_done(&text);
    return r < 0 ? r : launch_from_json(doc, ret, e);
}

static int check_descriptors(int prepare, struct err *e)
{
    for (int fd = 3; fd <= 5; fd++)
        if (!(prepare && fd == 4) && fcntl(fd, F_GETFD) < 0)
            return err_set(e, ERR_INVALID,
                           "Descriptor %d is closed. A trainer is started by trainyard-shim, with "
                           "the report file, the gang's memory and the data on 3, 4 and 5.",
                           fd);
    return 0;
}

int main(int argc, char **argv)
{
    struct arguments a = {.rank = -1};
    struct argp argp = {.options = options,
                        .parser = parse_option,
                        .doc = "Trains one rank of a job. Started by trainyard-shim."};
    struct launch l = {0};
    struct err e;
    struct sigaction on = {.sa_handler = on_term, .sa_flags = SA_RESTART};
    log_setup("trainyard-trainer", LOG_LEVEL_INFO);
    argp_err_exit_status = TRAIN_PERMANENT;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (!a.prepare)
        sigaction(SIGTERM, &on, NULL);
    int r = check_descriptors(a.prepare, &e);
    struct stat st;
    if (fstat(SPOOL_FD, &st) < 0 || !S_ISREG(st.st_mode))
        fds.spool = -1;
    if (r == 0)
        r = load_launch(a.launch, &l, &e);
    if (r < 0) {
        log_event(LOG_LEVEL_ERROR, "cannot_start", "reason=%s", log_quote(e.text));
        return TRAIN_PERMANENT;
    }
    int status = a.prepare ? train_prepare(&l, &fds) : train_rank(&l, a.rank, &fds, &stop_asked);
    launch_done(&l);
    return status;
}
