/* Finding again, at start, what an earlier agent had begun: the directories say it all. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

int adopt_launch(struct attempt *a, struct err *e)
{
    CLEANUP(mem_freep) char *path = attempt_path(a->dir, ATTEMPT_LAUNCH);
    json_t *loaded;
    int r = file_read_json(path, ATTEMPT_LAUNCH_MAX, &loaded, e);
    if (r < 0)
        return r;
    json_auto_t *doc = loaded;
    const json_t *epoch = json_object_get(doc, "epoch");
    const json_t *grace = json_object_get(doc, "grace_s");
    const char *boot = json_string_value(json_object_get(doc, "boot_id"));
    const char *job = json_string_value(json_object_get(doc, "job"));
    if (!json_is_integer(epoch) || !boot)
        return err_set(e, ERR_CORRUPT, "%s lacks epoch or boot_id", path);
    a->epoch = json_integer_value(epoch);
    snprintf(a->job, sizeof a->job, "%.39s", job ? job : "");
    if (json_is_integer(grace))
        a->default_grace_s = json_integer_value(grace);
    devices_take(a, json_object_get(doc, "ranks"));
    uploads_add_logs(a, json_object_get(doc, "ranks"));
    if (strcmp(boot, a->agent->boot_id) != 0)
        return err_set(e, ERR_STALE, "%s is of an earlier boot of this machine", path);
    return 0;
}

/* A directory that an agent died in before it wrote the launch document: nothing ever ran. */
static void drop_empty(struct attempt *a)
{
    log_event(LOG_LEVEL_INFO, "dropped", "attempt=%s note=\"it was never launched\"", a->id);
    attempt_forget(a);
}

static void adopt(struct agent *g, const char *id)
{
    struct err e;
    struct attempt *a = attempt_add(g, id);
    a->has_dir = 1;
    int r = adopt_launch(a, &e);
    if (r == ERR_NOT_FOUND) {
        drop_empty(a);
        return;
    }
    if (r < 0 && r != ERR_STALE)
        log_event(LOG_LEVEL_ERROR, "launch_unreadable", "attempt=%s error=%s", id,
                  log_quote(e.text));
    a->stopping = stop_request_read(a->dir, &a->stop, NULL) == 0;
    watch_add(a);
    attempt_examine(a);
    if (r == ERR_STALE && a->phase != PHASE_ENDED && a->phase != PHASE_LOST) {
        int fd = -1; /* free: whoever held it died with the machine */
        if (attempt_lock(a->dir, &fd, &e) < 0)
            log_event(LOG_LEVEL_WARNING, "lock", "attempt=%s error=%s", id, log_quote(e.text));
        attempt_lose(a, fd);
    }
    reports_look(a);
    a->logs_dirty = 1;
    log_event(LOG_LEVEL_INFO, "adopted", "attempt=%s epoch=%lld state=%s shim=%d ranks=%d", id,
              (long long)a->epoch, attempt_state(a), a->shim_pidfd >= 0 ? (int)a->shim.shim.pid : 0,
              a->shim.rank_count);
}

int adopt_all(struct agent *g, struct err *e)
{
    DIR *d = opendir(g->attempts_dir);
    if (!d)
        return err_errno(e, "cannot list %s", g->attempts_dir);
    struct dirent *entry;
    while ((entry = readdir(d))) {
        if (id_valid("att", entry->d_name))
            adopt(g, entry->d_name);
        else if (entry->d_name[0] != '.')
            log_event(LOG_LEVEL_WARNING, "ignoring", "entry=%s in=%s", log_quote(entry->d_name),
                      log_quote(g->attempts_dir));
    }
    closedir(d);
    return 0;
}
