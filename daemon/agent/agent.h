/* agent.h: one node's agent: its attempts, and its talk with the coordinator.
 *
 * Level-triggered throughout: events only note what changed; agent_pump() runs after every turn of
 * the loop, looks at what is, and starts what is due. Nothing on disk depends on the agent's life:
 * after a kill -9 adopt.c finds everything again.
 *
 *      WAITING <-> LAUNCHING -> RUNNING -> ENDED -> (forgotten)
 *                       \-> LOST -----------^
 */
#ifndef TRAINYARD_DAEMON_AGENT_AGENT_H
#define TRAINYARD_DAEMON_AGENT_AGENT_H

#include <jansson.h>
#include <stdint.h>
#include <sys/statvfs.h>
#include <systemd/sd-event.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/id.h"
#include "daemon/agent/gpus.h"
#include "daemon/agent/http.h"
#include "daemon/agent/options.h"
#include "daemon/attempt.h"

#define AGENT_UPLOADS_MAX   8       /* in flight, of all attempts */
#define AGENT_CHUNK         1048576 /* bytes of one upload */
#define AGENT_COALESCE_US   50000   /* between two looks at what ranks write */
#define AGENT_LOG_PAUSE_US  200000  /* between two pushes of one growing log */
#define AGENT_TICK_US       1000000 /* a look at everything, should a notice have been lost */
#define AGENT_PARK_MS       10000
#define AGENT_ARTIFACTS_MAX 1000
#define AGENT_ARTIFACT_GIB  16 /* a larger one (mostly holes, perhaps) is left out */
#define TROUBLE_SIZE        300
#define LEFT_OUT_MAX        32
#define SWEEP_JOBS_MAX      512    /* that one sync names */
#define SWEEP_NAMES_MAX     256    /* of one job */
#define SWEEP_BYTES_MAX     131072 /* of names, after which no further job is named */
#define AGENT_SHIM_STARTS   3      /* of one attempt, before its shim counts as lost */
#define REPORT_LINES_MAX    2000   /* of one sync */
#define REPORT_BYTES_MAX    524288 /* of one sync */
#define REPORT_LINE_MAX     16384  /* bytes; the protocol's is 4,000 */
#define REPORT_DEPTH_MAX    8

enum phase {
    PHASE_WAITING,   /* a shim of which we know no identity holds the lock: look again soon */
    PHASE_LAUNCHING, /* no rank yet; `shim_pidfd` < 0: not started, and started when wanted */
    PHASE_RUNNING,
    PHASE_LOST, /* the shim died without a record: ending what it left, holding its lock */
    PHASE_ENDED
};

/* The checkpoint directory, looked at and tidied by a child process: it may lie on a network, and a
 * file server that is away must not stop the agent. See sweep.c. */
struct sweep {
    pid_t pid; /* of the child; 0: none */
    int fd;    /* what it writes, -1 */
    sd_event_source *source;
    struct buf text;     /* of it, so far */
    json_t *held;        /* [{"job", "names"}] as last seen; NULL: not yet */
    int news;            /* it differs from what the coordinator was told */
    json_t *removals;    /* as the coordinator wants them next, or NULL */
    int64_t wanted_us;   /* boot time of `removals` */
    json_t *told;        /* what could not be removed and has been logged: {job: why} */
    char after[ID_SIZE]; /* where the next look begins, where there is too much for one */
    int due;
    int64_t next_us, started_us; /* boot time */
    char trouble[TROUBLE_SIZE];  /* of its disk, or that it does not answer */
};

struct upload {
    char *name; /* "rank-0.log", "artifact.model.safetensors" */
    char *file; /* in the attempt directory, or in artifacts/ */
    int is_artifact;
    int refused;     /* the coordinator will not have it */
    int told;        /* it has been posted at least once: an empty artifact must be */
    int64_t acked;   /* bytes the coordinator has, as far as we know */
    int64_t next_us; /* not before this boot time */
};

struct attempt {
    struct agent *agent;
    char id[ID_SIZE];
    char job[ID_SIZE]; /* "" until its launch document has been read */
    char *dir;
    json_t *gpus; /* [{"rank", "uuid"}] that it was given here, or NULL */
    int on_cpus;  /* it was given CPU devices here */
    json_t *xids; /* what its GPUs have reported meanwhile, or NULL */
    int has_dir;  /* 0: nothing could be written; it lives in memory alone */
    int64_t epoch;
    enum phase phase;
    int wanted; /* the coordinator has said run */
    int starts;
    int stopping;
    struct stop_request stop;
    int64_t default_grace_s;

    struct shim_record shim;
    int shim_pidfd; /* -1 unless a shim is known to live */
    sd_event_source *shim_source;
    int lost_lock_fd; /* held while PHASE_LOST */
    size_t lost_killed;
    int lost_empty;        /* walks in a row that found nothing */
    int64_t look_again_us; /* boot time; WAITING and LOST */
    json_t *exit;          /* the exit record once ENDED */
    int forgotten;         /* remove it as soon as the shim is gone */

    int report_fd;       /* -1 until there is a file */
    int report_unopened; /* there may be one, but we were out of descriptors */
    int64_t report_size, report_acked, report_sent;
    int report_known;                     /* report_acked is what the coordinator said */
    int64_t report_stuck, report_hold_us; /* size at which there was no whole line; pause */

    struct upload *uploads;
    int upload_count;
    int uploading; /* index of the one in flight, or -1 */
    int64_t uploading_size;
    int artifacts_listed, files_done;
    json_t *left_out;   /* [{"name","why"}] of the first LEFT_OUT_MAX, or NULL */
    int left_out_count; /* of all */
    int no_room;        /* the coordinator's disk had none for a file of it */
    int logs_dirty;

    int wd_moves, wd_writes; /* inotify, -1: none */
    int changed;             /* the coordinator must hear of it at once */
};

struct agent {
    struct options options;
    char boot_id[PROC_BOOT_ID_SIZE];
    char state_id[48]; /* device and inode: two agents with one name are told apart by it */
    char *attempts_dir;
    int state_lock_fd;
    int *cores; /* allowed CPUs in order; core_count of them */
    int core_count;
    json_t *cpus;             /* the CPU devices, as the coordinator is told of them */
    int cpu_first, cpu_count; /* their numbers */
    int64_t memory;           /* bytes of this machine */
    struct gpus gpus;

    sd_event *event;
    sd_event_source *wake;
    int64_t wake_at_us; /* earliest of what agent_wake_at() was told in this turn */
    struct http *http;

    struct attempt **attempts;
    int attempt_count;

    int moves_fd, writes_fd; /* inotify */
    sd_event_source *writes_source;
    int64_t writes_on_us; /* boot time at which to listen again; 0: listening */
    int64_t tick_us;

    int ready;
    int64_t seen, instance_epoch;
    char instance[ID_SIZE];
    char run[ID_SIZE];  /* names this process of ours */
    int64_t sequence;   /* of the last sync: two are under way, and the older may arrive last */
    int parked, urgent; /* a sync of that kind is in flight */
    int urgent_due;
    int failures;     /* in a row */
    int64_t retry_us; /* boot time; no call before it */
    int uploads_in_flight;

    struct sweep sweep;

    char trouble[TROUBLE_SIZE]; /* why no new jobs should come; "": none */
    int64_t trouble_look_us, no_space_until_us;
};

/* ---- agent.c ---- */
int agent_init(struct agent *g, struct options *take_options, struct err *e);
int agent_loop(struct agent *g, struct err *e); /* until SIGTERM or SIGINT */
void agent_done(struct agent *g);
void agent_wake_at(struct agent *g, int64_t boot_us);
/* A call failed: back off, and say why. */
void agent_call_failed(struct agent *g, const char *what, const char *why);
void agent_call_succeeded(struct agent *g);

/* ---- devices.c ---- */
int devices_find(struct agent *g, struct err *e); /* fills cores, the known GPUs, cpus */
void devices_number(struct agent *g);             /* again, should a first GPU have come */
json_t *devices_to_json(const struct agent *g);   /* all that are offered; a new reference */
json_t *devices_trainers(const struct agent *g);  /* ["cpu", "cuda"]; a new reference */
/* The core that a rank on CPU device `device` is bound to, or -1. */
int devices_core(const struct agent *g, int64_t device);
/* Notes which devices of this node the ranks of a launch document have. */
void devices_take(struct attempt *a, const json_t *ranks);
/* Whether its GPUs may be used still: an agent may have died between the document and the shim. */
int devices_check(const struct attempt *a, struct err *e);
/* Adds what only this node knows of the ranks' devices to the coordinator's document: "cpu" and
 * "trainer". ERR_CONFLICT where a device is not the one that is meant, or not clean. */
int devices_launch(const struct agent *g, json_t *launch, struct err *e);

/* ---- attempts.c: one attempt's life ---- */
struct attempt *attempt_find(const struct agent *g, const char *id);
struct attempt *attempt_add(struct agent *g, const char *id); /* known to nobody yet */
/* Writes the launch document and starts the shim; whatever fails becomes its exit record. */
void attempt_launch(struct agent *g, const char *id, int64_t epoch, json_t *launch);
/* `run` for an attempt that is there: starts its shim if none ever ran. */
void attempt_want(struct attempt *a);
void attempt_stop(struct attempt *a, const struct stop_request *stop);
void attempt_forget(struct attempt *a); /* frees it, unless its shim still lives */
void attempt_pump(struct attempt *a);   /* its timers and retries */
/* Reads from the directory what is; used for adoption, and when the shim has gone. */
void attempt_examine(struct attempt *a);
void attempt_refresh(struct attempt *a); /* shim.json or exit.json was replaced */
/* Ends it with a record of our own making, on disk as far as there is room. */
void attempt_end(struct attempt *a, const char *outcome, const char *code, const char *reason,
                 int retryable);
void attempt_free(struct attempt *a);
const char *attempt_state(const struct attempt *a); /* the protocol's word */
int attempt_complete(const struct attempt *a);      /* ended, and the coordinator has everything */

/* ---- lost.c ---- */
/* Takes the lock `take_lock_fd` and ends what the dead shim left, then the attempt. */
void attempt_lose(struct attempt *a, int take_lock_fd);
void attempt_lose_pump(struct attempt *a);

/* ---- adopt.c ---- */
int adopt_all(struct agent *g, struct err *e);
/* Reads epoch, ranks and boot id of launch.json into `a`; ERR_STALE if it is of another boot. */
int adopt_launch(struct attempt *a, struct err *e);

/* ---- reports.c ---- */
int reports_due(struct attempt *a);
/* At most *lines and *bytes, which are lowered by what was taken. A new reference:
 * {"from", "to", "lines"}. */
json_t *reports_read(struct attempt *a, int *lines, int64_t *bytes);
void reports_acked(struct attempt *a, int64_t offset);
void reports_look(struct attempt *a); /* at the file's size */
int reports_done(const struct attempt *a);

/* ---- uploads.c ---- */
void uploads_add_logs(struct attempt *a, const json_t *ranks);
void uploads_pump(struct attempt *a);

/* ---- leftout.c: files that the coordinator does not get ---- */
/* Printable ASCII, other bytes as \\xNN; cut to `size`, with "..." where something is missing. */
void agent_escape(const char *text, char *out, size_t size);
void left_out_add(struct attempt *a, const char *name, const char *why);
void left_out_cut(struct attempt *a, int count); /* takes back all but the first `count` */
json_t *left_out_exit(const struct attempt *a);  /* the exit record with them; a new reference */

/* ---- trouble.c: why this node wants no new jobs ---- */
void trouble_pump(struct agent *g);
void trouble_no_space(struct agent *g, const char *what); /* a write found no room */
/* What a disk means; `had`: there was trouble before, which ends only with some room to spare. */
void trouble_of_disk(const char *what, const char *dir, const struct statvfs *fs, int had,
                     char out[TROUBLE_SIZE]);

/* ---- watch.c ---- */
int watch_init(struct agent *g, struct err *e);
void watch_add(struct attempt *a);
void watch_remove(struct attempt *a);
void watch_pump(struct agent *g);

/* ---- sweep.c ---- */
void sweep_pump(struct agent *g);
void sweep_done(struct agent *g);
void sweep_soon(struct agent *g); /* there is something new in it */
/* `list`: what the coordinator wants removed, [{"job", "epoch", "remove", "all"}]. */
void sweep_want(struct agent *g, const json_t *list);

/* ---- tidy.c: what the child does ---- */
/* Removes what `removals` names (or NULL) beneath `root`, and lists what is left, at most
 * SWEEP_JOBS_MAX jobs behind `after` and some SWEEP_BYTES_MAX bytes of names: {"held": [{"job",
 * "names"}], "after", "failed": {job: why}, "disk": [f_frsize, f_blocks, f_bavail, f_files,
 * f_favail]}. "error" where it cannot be read. */
json_t *tidy(const char *root, const json_t *removals, const char *after);
int tidy_name_valid(const char *name); /* of a checkpoint, or of one that is being written */

/* ---- sync.c ---- */
void sync_pump(struct agent *g);

/* ---- answer.c ---- */
/* Takes in a sync's answer; ERR_STALE for one of an older coordinator. */
int answer_apply(struct agent *g, const char *text, size_t n, struct err *e);

#endif
