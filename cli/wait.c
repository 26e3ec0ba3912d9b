/* wait: a job until its end, with one line that is redrawn on a terminal, and plain lines (one per
 * change, at most one per second) anywhere else.
 *
 * Each turn asks for the job and for the metrics of the last second or more (thinned to POINTS_MOST
 * steps), so that a turn costs two small answers however long the job has run. The coordinator may
 * restart meanwhile.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/text.h"

#define WAIT_RETRY_S     60
#define TURN_TERMINAL_MS 250
#define TURN_PLAIN_MS    1000
#define TURN_PENDING_MS  500
#define SPEED_WINDOW_US  1000000
#define STEPS_FIRST      1000 /* that the first look takes the speed of */
#define POINTS_MOST      200

struct wait {
    struct cli *cli;
    const char *id;
    int live;        /* stderr is a terminal: redraw in place */
    int drawn;       /* a line stands there */
    struct buf last; /* the plain line before, without what always changes */
    struct progress progress;
    double loss, speed; /* of the last step; over the steps since `since` */
    double epoch_loss;  /* mean over the last epoch that ended */
    int64_t epoch;
    int64_t seen, since; /* step at the last look, and from where the speed was taken */
};

static int terminal_columns(const struct wait *w)
{
    return w->cli->width > 0 ? w->cli->width - 1 : 79;
}

/* The last step's loss, and the speed over all of them (of one step alone it jumps about). */
static void take_steps(struct wait *w, const json_t *steps)
{
    const json_t *last = json_array_get(steps, json_array_size(steps) - 1);
    double seconds_per_sample = 0;
    int counted = 0;
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)steps, i, s)
    {
        double speed = cli_real(s, "samples_per_second");
        seconds_per_sample += speed > 0 ? 1 / speed : 0;
        counted += speed > 0;
    }
    w->loss = cli_real(last, "loss");
    w->epoch = cli_integer(last, "epoch");
    w->speed = counted > 0 ? counted / seconds_per_sample : NAN;
}

/* The step that the speed is taken from: the last one seen a second ago, or at the last look. */
static int64_t speed_since(const struct wait *w, int64_t step)
{
    int64_t since = progress_step_at(&w->progress, clock_boottime_us() - SPEED_WINDOW_US);
    if (step == w->seen)
        return w->since;
    if (since < 0 || since >= step)
        return step > STEPS_FIRST ? step - STEPS_FIRST : 0;
    return since;
}

static void read_metrics(struct wait *w, int64_t step)
{
    int64_t since = speed_since(w, step);
    struct http_reply r = {0};
    CLEANUP(mem_freep)
    char *path = mem_printf("/v1/jobs/%s/metrics?after_step=%lld&max_points=%d", w->id,
                            (long long)since, POINTS_MOST);
    struct http_request q = {.method = "GET", .path = path};
    struct err e;
    if (step < 1 || http_send(w->cli->http, &q, &r, &e) < 0)
        return;
    const json_t *steps = json_object_get(r.doc, "steps");
    if (r.status == 200 && json_array_size(steps) > 0)
        take_steps(w, steps);
    const json_t *epochs = json_object_get(r.doc, "epochs");
    w->epoch_loss = cli_real(json_array_get(epochs, json_array_size(epochs) - 1), "loss");
    w->since = since;
    w->seen = step;
    http_reply_done(&r);
}

static struct progress_view make_view(struct wait *w, const json_t *job, int64_t now_us)
{
    const json_t *p = json_object_get(job, "progress");
    const json_t *fit = json_object_get(json_object_get(job, "spec"), "fit");
    struct progress_view v = {.name = cli_text(job, "name"), .state = cli_text(job, "state")};
    v.step = cli_integer(p, "step");
    v.steps = cli_integer(p, "steps");
    v.epoch = cli_integer(p, "epoch") > 0 ? cli_integer(p, "epoch") : w->epoch;
    v.epochs = cli_integer(fit, "epochs");
    v.loss = w->loss;
    v.samples_per_second = isnan(w->speed) ? -1 : w->speed;
    v.left_s = -1;
    if (v.step > 0) {
        progress_add(&w->progress, now_us, v.step, v.steps);
        v.left_s = progress_left(&w->progress, now_us);
    }
    return v;
}

static void clear_line(struct wait *w)
{
    if (w->drawn)
        fputs("\r\033[K", stderr);
    w->drawn = 0;
}

/* "pending: <reason>" while there are no steps. */
static void waiting_line(const json_t *job, struct buf *out)
{
    const char *reason = cli_text(job, "reason");
    const char *name = cli_text(job, "name");
    text_escape(out, name, strlen(name), TEXT_LINE);
    buf_addf(out, "  ");
    text_escape(out, cli_text(job, "state"), strlen(cli_text(job, "state")), TEXT_LINE);
    if (*reason) {
        buf_adds(out, ": ");
        text_escape(out, reason, strlen(reason), TEXT_LINE);
    }
}

static void draw(struct wait *w, const json_t *job)
{
    CLEANUP(buf_done) struct buf line = BUF_INIT;
    struct progress_view v = make_view(w, job, clock_boottime_us());
    if (v.step > 0 && strcmp(v.state, "stopping") != 0) {
        progress_line(&v, w->live ? terminal_columns(w) : 160, &line);
    } else {
        CLEANUP(buf_done) struct buf whole = BUF_INIT;
        waiting_line(job, &whole);
        text_cut(&line, whole.data, w->live ? terminal_columns(w) : 400);
    }
    if (w->live) {
        fprintf(stderr, "\r\033[K%s", line.data);
        fflush(stderr);
        w->drawn = 1;
        return;
    }
    CLEANUP(buf_done) struct buf key = BUF_INIT; /* time left alone is no change */
    buf_addf(&key, "%s %lld %s", v.state, (long long)v.step, v.step > 0 ? "" : line.data);
    if (w->last.data && strcmp(w->last.data, key.data) == 0)
        return;
    buf_clear(&w->last);
    buf_adds(&w->last, key.data);
    fprintf(stderr, "%s\n", line.data);
}

static int say_end(struct wait *w, const struct http_reply *r)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    const char *state = cli_text(r->doc, "state");
    const char *reason = cli_text(r->doc, "reason");
    const char *name = cli_text(r->doc, "name");
    int good = strcmp(state, "succeeded") == 0;
    text_escape(&b, name, strlen(name), TEXT_LINE);
    buf_addf(&b, " (%s) %s%s", w->id, strcmp(state, "cancelled") == 0 ? "was " : "", state);
    int64_t from = text_parse_time(cli_text(r->doc, "started_at"));
    int64_t to = text_parse_time(cli_text(r->doc, "finished_at"));
    if (from >= 0 && to >= from) {
        buf_adds(&b, " after ");
        text_duration(&b, (double)(to - from) / 1e6);
    }
    if (good && !isnan(w->loss))
        buf_addf(&b, ", loss %.4f at the last step", w->loss);
    if (good && !isnan(w->loss) && !isnan(w->epoch_loss))
        buf_addf(&b, ", %.4f over the last epoch", w->epoch_loss);
    if (!good && *reason) {
        buf_adds(&b, ": ");
        text_escape(&b, reason, strlen(reason), TEXT_LINE);
    }
    fprintf(stderr, "%s\n", b.data);
    if (strcmp(state, "failed") == 0)
        fprintf(stderr, "  trainyard logs %s    shows what it wrote\n", w->id);
    if (w->cli->json)
        cli_print_body(r);
    return good ? EXIT_OK : EXIT_REFUSED;
}

static int say_interrupted(struct wait *w)
{
    clear_line(w);
    fprintf(stderr,
            "Stopped waiting; the job goes on.\n"
            "  trainyard wait %s      waits again\n"
            "  trainyard cancel %s    ends the job\n",
            w->id, w->id);
    return EXIT_INTERRUPTED;
}

/* One look at the job; *ret_done when it has ended. */
static int look(struct wait *w, const char *path, int *ret_done, int64_t *ret_pause_ms)
{
    struct http_reply r = {0};
    int status = cli_get(w->cli, path, WAIT_RETRY_S, &r);
    if (status != EXIT_OK)
        return status;
    const char *state = cli_text(r.doc, "state");
    int64_t step = cli_integer(json_object_get(r.doc, "progress"), "step");
    read_metrics(w, step);
    *ret_done = cli_state_final(state);
    if (*ret_done) {
        clear_line(w);
        status = say_end(w, &r);
    } else {
        draw(w, r.doc);
    }
    *ret_pause_ms = !w->live ? TURN_PLAIN_MS : step > 0 ? TURN_TERMINAL_MS : TURN_PENDING_MS;
    http_reply_done(&r);
    return status;
}

int cli_wait(struct cli *c, const char *id, int64_t timeout_s)
{
    struct wait w = {.cli = c,
                     .id = id,
                     .live = isatty(STDERR_FILENO),
                     .loss = NAN,
                     .speed = NAN,
                     .epoch_loss = NAN};
    CLEANUP(mem_freep) char *path = mem_printf("/v1/jobs/%s", id);
    int64_t until = clock_boottime_us() + timeout_s * 1000000;
    int status = EXIT_OK;
    cli_watch_interrupt();
    for (int done = 0; !done && status == EXIT_OK;) {
        int64_t pause = 0;
        status = look(&w, path, &done, &pause);
        if (done || cli_interrupted || status != EXIT_OK)
            break;
        int64_t left = (until - clock_boottime_us()) / 1000;
        if (timeout_s && left <= 0) {
            clear_line(&w);
            fprintf(stderr, "trainyard: %s has not ended within %lld s\n", id,
                    (long long)timeout_s);
            status = EXIT_NO_SERVER;
        } else {
            cli_sleep(timeout_s && left < pause ? left : pause);
        }
        if (cli_interrupted)
            break;
    }
    if (cli_interrupted && status != EXIT_REFUSED)
        status = say_interrupted(&w);
    buf_done(&w.last);
    return status;
}

/* ---- the verb ---- */

struct wait_args {
    struct cli *cli;
    const char *id;
    int64_t timeout_s;
};

static const struct argp_option options[] = {
    {"timeout", 't', "DURATION", 0, "Give up after this long, such as 90s or 2h", 0}, {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct wait_args *a = state->input;
    struct err e;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = a->cli; return 0;
    case 't':
        if (clock_parse_duration(arg, &a->timeout_s, &e) < 0)
            argp_error(state, "--timeout: %s", e.text);
        if (a->timeout_s == 0)
            argp_error(state, "--timeout is at least 1s");
        return 0;
    case ARGP_KEY_ARG:
        if (a->id)
            argp_error(state, "one job at a time; \"%s\" is the second", arg);
        a->id = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_error(state, "which job? Give its id, or \"last\""); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int verb_wait(struct cli *c, int argc, char **argv)
{
    char id[CLI_ID_SIZE];
    struct wait_args a = {.cli = c};
    struct argp_child children[] = CLI_CHILDREN;
    struct argp argp = {options,
                        parse,
                        "ID",
                        "Waits for a job's end, showing its progress.\vExit status: 0 succeeded, 1 "
                        "failed or cancelled, 2 wrong usage, 3 no server or the timeout passed. "
                        "Ctrl-C stops the waiting, not the job.",
                        children,
                        NULL,
                        NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    int status = cli_lookup(c, a.id, id);
    return status == EXIT_OK ? cli_wait(c, id, a.timeout_s) : status;
}
