/* Setting up an agent, its loop, and its patience with a coordinator that is away. */
#include "daemon/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/random.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#define RETRY_FIRST_US 100000
#define RETRY_LAST_US  5000000

void agent_wake_at(struct agent *g, int64_t boot_us)
{
    if (g->wake_at_us == 0 || boot_us < g->wake_at_us)
        g->wake_at_us = boot_us;
}

/* ---- the coordinator, there or not ---- */

static int64_t jittered(int64_t us)
{
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random = (uint32_t)clock_boottime_us();
    return us / 2 + (int64_t)(random % (uint32_t)(us / 2));
}

void agent_call_failed(struct agent *g, const char *what, const char *why)
{
    int64_t now = clock_boottime_us();
    int doublings = g->failures < 6 ? g->failures : 6;
    int64_t pause = (int64_t)RETRY_FIRST_US << doublings;
    if (sd_event_get_state(g->event) == SD_EVENT_FINISHED)
        return; /* given up because we end */
    if (now < g->retry_us)
        return; /* several calls failed at once: one pause */
    g->retry_us = now + jittered(pause < RETRY_LAST_US ? pause : RETRY_LAST_US);
    /* At first, then every twelfth time: a minute apart. */
    if (g->failures < 3 || g->failures % 12 == 0)
        log_event(LOG_LEVEL_WARNING, "coordinator_away", "call=%s url=%s reason=%s tries=%d", what,
                  log_quote(g->options.coordinator), log_quote(why), g->failures + 1);
    g->failures++;
}

void agent_call_succeeded(struct agent *g)
{
    if (g->failures > 0)
        log_event(LOG_LEVEL_INFO, "coordinator_back", "tries=%d", g->failures);
    g->failures = 0;
    g->retry_us = 0;
    if (g->ready)
        return;
    g->ready = 1;
    char gpus[32] = "";
    if (gpus_count(g) > 0)
        snprintf(gpus, sizeof gpus, "%d gpus, ", gpus_count(g));
    printf("trainyard-agent %s ready: %s%d cpu devices, coordinator %s\n", g->options.name, gpus,
           g->cpu_count, g->options.coordinator);
    fflush(stdout);
    sd_notifyf(0, "READY=1\nSTATUS=%s%d cpu devices, coordinator %s", gpus, g->cpu_count,
               g->options.coordinator);
}

/* ---- the loop ---- */

static void pump_attempts(struct agent *g)
{
    for (int i = 0; i < g->attempt_count; i++)
        attempt_pump(g->attempts[i]);
    for (int i = g->attempt_count - 1; i >= 0; i--) {
        if (g->attempts[i]->forgotten && g->attempts[i]->shim_pidfd < 0)
            attempt_forget(g->attempts[i]); /* puts the last one in its place */
    }
}

static int pump(struct agent *g)
{
    g->wake_at_us = 0;
    watch_pump(g);
    trouble_pump(g);
    pump_attempts(g);
    sweep_pump(g);
    gpus_pump(g);
    sync_pump(g);
    int r = sd_event_source_set_time(g->wake, (uint64_t)g->wake_at_us);
    return r < 0 ? r : sd_event_source_set_enabled(g->wake, SD_EVENT_ONESHOT);
}

static int on_wake(sd_event_source *source, uint64_t usec, void *userdata)
{
    (void)source;
    (void)usec;
    (void)userdata; /* the turn's pump does the work */
    return 0;
}

static int on_terminate(sd_event_source *source, const struct signalfd_siginfo *info,
                        void *userdata)
{
    struct agent *g = userdata;
    (void)source;
    log_event(LOG_LEVEL_INFO, "ending", "signal=%u attempts=%d note=\"shims go on\"",
              info->ssi_signo, g->attempt_count);
    sd_notify(0, "STOPPING=1");
    return sd_event_exit(g->event, 0);
}

int agent_loop(struct agent *g, struct err *e)
{
    int r = 0;
    while (r >= 0 && sd_event_get_state(g->event) != SD_EVENT_FINISHED) {
        r = pump(g);
        if (r >= 0)
            r = sd_event_run(g->event, UINT64_MAX);
    }
    if (r >= 0)
        return 0;
    errno = -r;
    return err_errno(e, "the event loop failed");
}

/* ---- setting up ---- */

static int lock_state(struct agent *g, struct err *e)
{
    struct stat st;
    CLEANUP(mem_freep) char *path = mem_printf("%s/agent.lock", g->options.state_dir);
    g->state_lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (g->state_lock_fd < 0)
        return err_errno(e, "cannot open %s", path);
    if (fstat(g->state_lock_fd, &st) < 0)
        return err_errno(e, "cannot look at %s", path);
    snprintf(g->state_id, sizeof g->state_id, "%llx:%llx", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    if (flock(g->state_lock_fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno == EWOULDBLOCK)
        return err_set(e, ERR_CONFLICT,
                       "another agent uses the state directory %s; give each its own --state-dir",
                       g->options.state_dir);
    return err_errno(e, "cannot lock %s", path);
}

static int recall_instance(struct agent *g, struct err *e)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/instance.json", g->options.state_dir);
    json_t *doc;
    int r = file_read_json(path, 4096, &doc, e);
    if (r == ERR_NOT_FOUND)
        return 0;
    if (r < 0)
        return r;
    g->instance_epoch = json_integer_value(json_object_get(doc, "instance_epoch"));
    json_decref(doc);
    return 0;
}

static int set_up_loop(struct agent *g, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    int r = sd_event_default(&g->event);
    if (r >= 0)
        r = sd_event_add_signal(g->event, NULL, SIGTERM, on_terminate, g);
    if (r >= 0)
        r = sd_event_add_signal(g->event, NULL, SIGINT, on_terminate, g);
    if (r >= 0)
        r = sd_event_add_time(g->event, &g->wake, CLOCK_BOOTTIME, 0, 1000, on_wake, g);
    if (r >= 0)
        r = sd_event_set_watchdog(g->event, 1);
    if (r >= 0)
        return 0;
    errno = -r;
    return err_errno(e, "cannot set up the event loop");
}

int agent_init(struct agent *g, struct options *take_options, struct err *e)
{
    *g = (struct agent){
        .options = *take_options, .state_lock_fd = -1, .moves_fd = -1, .writes_fd = -1};
    g->sweep.fd = g->gpus.probe.from_fd = g->gpus.probe.to_fd = -1;
    g->gpus.probe.patience_us = GPUS_PATIENCE_US;
    id_new("run", g->run);
    *take_options = (struct options){.cpu_devices = -1};
    g->attempts_dir = mem_printf("%s/attempts", g->options.state_dir);
    int r = proc_boot_id(g->boot_id, e);
    if (r == 0)
        r = lock_state(g, e);
    if (r == 0)
        r = recall_instance(g, e);
    if (r == 0)
        r = devices_find(g, e);
    if (r == 0)
        r = set_up_loop(g, e);
    if (r == 0)
        r = http_new(g->event, g->options.coordinator, g->options.token, &g->http, e);
    if (r == 0)
        r = watch_init(g, e);
    if (r == 0)
        r = adopt_all(g, e);
    return r;
}

void agent_done(struct agent *g)
{
    http_free(g->http);
    sweep_done(g);
    gpus_done(g);
    for (int i = 0; i < g->attempt_count; i++)
        attempt_free(g->attempts[i]);
    free(g->attempts);
    sd_event_source_disable_unref(g->writes_source);
    sd_event_source_disable_unref(g->wake);
    sd_event_unref(g->event);
    mem_closep(&g->moves_fd);
    mem_closep(&g->writes_fd);
    mem_closep(&g->state_lock_fd);
    json_decref(g->cpus);
    free(g->cores);
    free(g->attempts_dir);
    options_done(&g->options);
}
