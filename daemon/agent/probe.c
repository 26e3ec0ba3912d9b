/* The probe: a child that looks at the GPUs every five seconds, waits for Xids in between, and
 * writes a line of JSON for each. NVML may hang in the driver for minutes, or crash: the agent
 * never calls it itself. A byte written to the child asks for a look at once. A child that says
 * nothing for GPUS_PATIENCE_US is killed (before its first look it has four times as long); the
 * next one is started when it is gone, for two in a driver that hangs help nobody.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "daemon/agent/agent.h"

#define EVENT_SLICE_MS   200
#define LINE_MAX_BYTES   (16 << 20)
#define AGAIN_US         1000000 /* after a child that ended */
#define AGAIN_MISSING_US 5000000 /* where there is no NVML, but were GPUs */
#define AGAIN_NONE_US    60000000
#define DIRTY_LOOK_US    1000000 /* between looks while a GPU is to become clean */
#define REAP_US          100000
#define FIRST_LOOK       4 /* a driver may have to wake up each card, some seconds a piece */

/* ---- the child ---- */

struct eye {
    struct nvml nvml;
    struct look_handles seen, registered;
    nvml_event_set set;
    int has_set;
    int in, out;
};

static void say(const struct eye *eye, json_t *take_doc)
{
    CLEANUP(mem_freep) char *text = json_dumps(take_doc, JSON_COMPACT);
    json_decref(take_doc);
    size_t n = text ? strlen(text) : 0;
    if (n == 0)
        _exit(1);
    text[n++] = '\n'; /* over its NUL */
    for (size_t done = 0; done < n;) {
        ssize_t w = write(eye->out, text + done, n - done);
        if (w < 0 && errno != EINTR)
            _exit(1);
        done += w > 0 ? (size_t)w : 0;
    }
}

_Noreturn static void say_none(const struct eye *eye, const struct err *e)
{
    say(eye, json_pack("{s:s, s:s}", "type", "none", "reason", e->text));
    _exit(0);
}

static void drop_events(struct eye *eye)
{
    if (eye->has_set)
        NVML_CALL(&eye->nvml, event_set_free, eye->set);
    eye->has_set = 0;
    eye->registered.count = 0;
}

static int are_same(const struct look_handles *a, const struct look_handles *b)
{
    int same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = a->handle[i] == b->handle[i] && strcmp(a->uuid[i], b->uuid[i]) == 0;
    return same;
}

/* For exactly the GPUs that there are. */
static void register_events(struct eye *eye)
{
    int count = 0;
    if (eye->has_set && are_same(&eye->registered, &eye->seen))
        return;
    drop_events(eye);
    eye->registered = eye->seen;
    if (eye->seen.count == 0 || NVML_CALL(&eye->nvml, event_set_new, &eye->set) != NVML_OK)
        return;
    eye->has_set = 1;
    for (int i = 0; i < eye->seen.count; i++)
        count += NVML_CALL(&eye->nvml, event_register, eye->seen.handle[i], NVML_EVENT_XID,
                           eye->set) == NVML_OK;
    if (count == 0) {
        drop_events(eye);
        eye->registered = eye->seen;
    }
}

static void say_event(const struct eye *eye, const struct nvml_event *event)
{
    const char *uuid = NULL;
    for (int i = 0; i < eye->registered.count; i++) {
        if (eye->registered.handle[i] == event->device)
            uuid = eye->registered.uuid[i];
    }
    if (uuid && event->type == NVML_EVENT_XID && event->data <= 1000000)
        say(eye,
            json_pack("{s:s, s:s, s:i}", "type", "xid", "uuid", uuid, "xid", (int)event->data));
}

/* 1: a look is wanted. */
static int is_asked(const struct eye *eye, int wait_ms)
{
    struct pollfd p = {.fd = eye->in, .events = POLLIN};
    char room[64];
    if (poll(&p, 1, wait_ms) <= 0)
        return 0;
    ssize_t n = read(eye->in, room, sizeof room);
    if (n == 0)
        _exit(0); /* the agent has gone */
    return n > 0;
}

static void wait_for_more(struct eye *eye)
{
    int64_t until = clock_boottime_us() + GPUS_LOOK_PERIOD_MS * 1000LL;
    int64_t left;
    while ((left = until - clock_boottime_us()) > 0) {
        struct nvml_event event = {0};
        int r = eye->has_set ? NVML_CALL(&eye->nvml, event_wait, eye->set, &event, EVENT_SLICE_MS)
                             : NVML_TIMEOUT;
        if (r == NVML_OK) {
            say_event(eye, &event);
            return;
        }
        if (r != NVML_TIMEOUT)
            drop_events(eye);
        if (is_asked(eye, eye->has_set ? 0 : (int)(left / 1000)))
            return;
    }
}

/* NVML finds new GPUs only when it is initialised. */
static void start_anew(struct eye *eye)
{
    drop_events(eye);
    NVML_CALL(&eye->nvml, shutdown);
    eye->nvml.init();
}

_Noreturn static void run_child(const char *library, int in, int out)
{
    struct err e;
    struct eye eye = {.in = in, .out = out};
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_NAME, "trainyard-gpus");
    if (nvml_open(library, &eye.nvml, &e) < 0)
        say_none(&eye, &e);
    for (;;) {
        json_t *look = look_take(&eye.nvml, &eye.seen, &e);
        if (!look)
            say_none(&eye, &e);
        int is_new = json_array_size(json_object_get(look, "gpus")) == 0;
        register_events(&eye);
        say(&eye, look);
        wait_for_more(&eye);
        if (is_new)
            start_anew(&eye);
    }
}

/* Nothing of ours but the two pipes and the log: neither the lock of the state directory nor a
 * connection. */
static void close_others(int a, int b)
{
    unsigned low = (unsigned)(a < b ? a : b);
    unsigned high = (unsigned)(a < b ? b : a);
    if (low > 3)
        close_range(3, low - 1, 0);
    if (high > low + 1)
        close_range(low + 1, high - 1, 0);
    close_range(high + 1, ~0u, 0);
}

/* ---- the agent's side ---- */

static void close_probe(struct probe *p)
{
    p->source = sd_event_source_disable_unref(p->source);
    mem_closep(&p->from_fd);
    mem_closep(&p->to_fd);
    p->from_fd = p->to_fd = -1;
    buf_done(&p->text);
}

static void take_none(struct agent *g, const json_t *doc)
{
    struct gpus *s = &g->gpus;
    char text[sizeof s->without];
    const char *reason = json_string_value(json_object_get(doc, "reason"));
    agent_escape(reason ? reason : "NVML does not answer", text, sizeof text);
    if (strcmp(text, s->without) != 0)
        log_event(s->count > 0 ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "no_gpus", "reason=%s",
                  log_quote(text));
    if (s->present)
        gpus_news(g);
    memcpy(s->without, text, sizeof text);
    s->present = 0;
    s->probe.start_us = clock_boottime_us() + (s->count > 0 ? AGAIN_MISSING_US : AGAIN_NONE_US);
    s->settled |= s->count == 0; /* an ordinary answer */
}

static void take_line(struct agent *g, const char *text, size_t n)
{
    json_auto_t *doc = json_loadb(text, n, 0, NULL);
    const char *type = json_string_value(json_object_get(doc, "type"));
    const char *uuid = json_string_value(json_object_get(doc, "uuid"));
    g->gpus.probe.said_us = clock_boottime_us();
    g->gpus.probe.has_looked = 1;
    if (type && strcmp(type, "look") == 0)
        gpus_take_look(g, doc);
    else if (type && strcmp(type, "xid") == 0 && uuid)
        gpus_take_xid(g, uuid, (int)json_integer_value(json_object_get(doc, "xid")));
    else if (type && strcmp(type, "none") == 0)
        take_none(g, doc);
    else
        log_event(LOG_LEVEL_ERROR, "probe", "note=\"a line that cannot be read; passed over\"");
}

static void end_probe(struct agent *g)
{
    struct probe *p = &g->gpus.probe;
    close_probe(p);
    p->ended = 1;
    kill(p->pid, SIGKILL);
    if (g->gpus.present)
        gpus_news(g);
    g->gpus.present = 0;
}

static int on_output(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
    struct agent *g = userdata;
    struct probe *p = &g->gpus.probe;
    char room[65536];
    char *end;
    (void)source;
    (void)revents;
    ssize_t n = read(fd, room, sizeof room);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0 || p->text.len + (size_t)n > LINE_MAX_BYTES) {
        end_probe(g);
        return 0;
    }
    buf_add(&p->text, room, (size_t)n);
    while ((end = memchr(p->text.data, '\n', p->text.len))) {
        size_t size = (size_t)(end - p->text.data);
        take_line(g, p->text.data, size);
        buf_drop(&p->text, size + 1);
    }
    return 0;
}

static int watch_child(struct agent *g, int from, int to)
{
    struct probe *p = &g->gpus.probe;
    p->from_fd = from;
    p->to_fd = to;
    if (fcntl(from, F_SETFL, O_NONBLOCK) < 0 || fcntl(to, F_SETFL, O_NONBLOCK) < 0)
        return -1;
    return sd_event_add_io(g->event, &p->source, from, EPOLLIN, on_output, g) < 0 ? -1 : 0;
}

static int start(struct agent *g)
{
    struct probe *p = &g->gpus.probe;
    int said[2];
    int asked[2];
    if (pipe2(said, O_CLOEXEC) < 0)
        return -1;
    if (pipe2(asked, O_CLOEXEC) < 0) {
        close(said[0]);
        close(said[1]);
        return -1;
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        close_others(asked[0], said[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) /* it died before that was set */
            _exit(0);
        run_child(g->options.nvml, asked[0], said[1]);
    }
    close(said[1]);
    close(asked[0]);
    p->pid = pid > 0 ? pid : 0;
    p->ended = p->has_looked = 0;
    p->said_us = clock_boottime_us();
    int r = watch_child(g, said[0], asked[1]);
    if (pid < 0)
        close_probe(p);
    else if (r < 0)
        end_probe(g);
    return pid < 0 ? -1 : 0;
}

static void say_ended(const struct gpus *s, int status)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        log_event(LOG_LEVEL_ERROR, "probe_ended", "signal=%s note=\"started again\"",
                  proc_signal_name(WTERMSIG(status)));
    else if (!s->without[0] && !s->stalled)
        log_event(LOG_LEVEL_WARNING, "probe_ended", "note=\"started again\"");
}

/* One that hangs in the driver outlasts SIGKILL; nobody waits for it. */
static void reap(struct agent *g, int64_t now)
{
    struct probe *p = &g->gpus.probe;
    int status = 0;
    pid_t r = waitpid(p->pid, &status, WNOHANG);
    if (r == 0 || (r < 0 && errno == EINTR)) {
        agent_wake_at(g, now + REAP_US);
        return;
    }
    say_ended(&g->gpus, status);
    p->pid = 0;
    if (p->start_us < now)
        p->start_us = now + (p->starts++ > 0 ? AGAIN_US : 0);
}

/* Silence since the last word, of whichever child, is what counts. */
static void check_patience(struct agent *g, int64_t now)
{
    struct gpus *s = &g->gpus;
    struct probe *p = &s->probe;
    if (p->seen_us == 0)
        p->seen_us = now;
    if (s->present)
        p->seen_us = p->said_us;
    if (now < p->seen_us + p->patience_us) {
        agent_wake_at(g, p->seen_us + p->patience_us);
        return;
    }
    if (!s->without[0] && !s->stalled) {
        log_event(LOG_LEVEL_ERROR, "probe_stalled", "pid=%d seconds=%d", (int)p->pid,
                  (int)(p->patience_us / 1000000));
        s->stalled = 1;
        gpus_news(g);
    }
    s->settled = 1;
    int64_t end_us = p->said_us + p->patience_us * (p->has_looked ? 1 : FIRST_LOOK);
    if (p->pid > 0 && !p->ended && now >= end_us)
        end_probe(g);
    else if (p->pid > 0 && !p->ended)
        agent_wake_at(g, end_us);
}

void gpus_look_soon(struct agent *g)
{
    struct probe *p = &g->gpus.probe;
    if (p->to_fd < 0)
        return;
    if (write(p->to_fd, "l", 1) == 1 || errno == EAGAIN) /* full: it is asked already */
        p->asked_us = clock_boottime_us();
}

static void look_until_clean(struct agent *g, int64_t now)
{
    struct probe *p = &g->gpus.probe;
    int dirty = 0;
    for (int i = 0; i < g->gpus.count; i++)
        dirty |= g->gpus.items[i].now.state == GPU_DIRTY;
    if (!dirty || p->to_fd < 0)
        return;
    if (now >= p->asked_us + DIRTY_LOOK_US)
        gpus_look_soon(g);
    agent_wake_at(g, p->asked_us + DIRTY_LOOK_US);
}

void gpus_pump(struct agent *g)
{
    struct probe *p = &g->gpus.probe;
    int64_t now = clock_boottime_us();
    if (strcmp(g->options.gpus, "none") == 0) {
        g->gpus.settled = 1;
        return;
    }
    if (p->pid > 0 && p->ended)
        reap(g, now);
    if (p->pid == 0 && now >= p->start_us && start(g) < 0) {
        log_event(LOG_LEVEL_ERROR, "probe", "error=%s", log_quote(strerror(errno)));
        p->start_us = now + AGAIN_US;
    }
    if (p->pid == 0)
        agent_wake_at(g, p->start_us);
    check_patience(g, now);
    look_until_clean(g, now);
}

void gpus_done(struct agent *g)
{
    struct probe *p = &g->gpus.probe;
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, WNOHANG);
    }
    close_probe(p);
    gpumap_done(&g->gpus);
}
