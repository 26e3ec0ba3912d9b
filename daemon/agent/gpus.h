/* gpus.h: the GPUs of a node: which there are, by UUID, and whether work may be put on them.
 *
 * A GPU's number is its UUID's for ever (gpumap.c); what the probe's looks say of it becomes a
 * state (gpujudge.c); what happens in between (the end of an attempt, an Xid, a probe that is
 * silent) is taken in by gpus.c, which tells it all to the coordinator.
 *
 *   ready   work may be put on it
 *   dirty   not now: it is being checked, is used by others, or holds memory; it comes back by
 * itself after two clean looks (after the end of an attempt, after one) failed  an error that only
 * a reset or a repair ends lost    it was here and is not any more
 */
#ifndef TRAINYARD_DAEMON_AGENT_GPUS_H
#define TRAINYARD_DAEMON_AGENT_GPUS_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/proc.h"
#include "daemon/agent/look.h"

struct agent;
struct attempt;

#define GPUS_MAX            512 /* numbers below this are GPUs', where a node has ever had one */
#define GPUS_CPUS_MAX       512 /* beside them */
#define GPUS_MAP            "devices.json"
#define GPU_REASON_SIZE     300 /* the coordinator takes as many bytes */
#define GPU_CODE_SIZE       32
#define GPUS_CLEAN_LOOKS    2
#define GPUS_PATIENCE_US    30000000 /* of a probe that says nothing */
#define GPUS_MEMORY_SLACK   (128LL << 20)
#define GPUS_MEMORY_IDLE    (1LL << 30) /* more than that no GPU holds that was never used */
#define GPUS_TELEMETRY_US   5000000
#define GPUS_LOOK_PERIOD_MS 5000

enum gpu_state { GPU_READY, GPU_DIRTY, GPU_FAILED, GPU_LOST };

struct gpu_finding {
    enum gpu_state state;
    char code[GPU_CODE_SIZE];     /* "" when ready */
    char reason[GPU_REASON_SIZE]; /* a sentence */
};

struct gpu {
    int index;
    char uuid[LOOK_UUID_SIZE], name[LOOK_NAME_SIZE], pci[32];
    char mig_of[LOOK_UUID_SIZE]; /* "": a whole card */
    int64_t memory;              /* bytes; 0: not known */
    int64_t baseline;            /* bytes in use when it is idle; -1: not known yet */
    int saved;                   /* its number is on the disk */

    json_t *look; /* what the last look says of it; NULL: nothing, it is not there */
    struct gpu_finding now;
    int clean_looks;
    int64_t checking_us; /* boot time; what a look that began earlier shows is outdated */
    int xid;             /* one that no rule knows, since the last look; 0: none */
    char told[256];      /* "unanswered" of the last look, as logged */
    int throttled;

    struct gpu_finding latch; /* GPU_FAILED: until an operator, or a boot, clears it */
    int latch_saved;
};

struct probe {
    pid_t pid;
    int ended; /* it is being ended, or has closed its pipe: to be reaped */
    int to_fd, from_fd;
    sd_event_source *source;
    struct buf text;
    int64_t said_us, asked_us, start_us, seen_us; /* boot times */
    int64_t patience_us;
    int has_looked; /* this child; before that it has FIRST_LOOK times the patience */
    int starts;
};

struct gpus {
    struct gpu *items; /* by index */
    int count;
    int next_index;
    int wrong_map; /* changed since it was written */
    struct probe probe;
    int settled; /* the first look is complete, or there is nothing to look at, or it hangs */
    int present; /* the last look has been taken, and nothing is wrong with the probe */
    int stalled; /* it has said nothing for GPUS_PATIENCE_US */
    char without[GPU_REASON_SIZE]; /* why there is no NVML, "" where there is */
    char logged[GPU_REASON_SIZE];
    int waits_for_cpus;   /* logged: numbers are held by attempts on CPUs */
    int64_t telemetry_us; /* boot time of the next */
};

/* ---- gpumap.c ---- */
int gpumap_load(struct agent *g, struct err *e); /* ERR_CORRUPT where it cannot be read */
void gpumap_save(struct agent *g);               /* what could not be saved is not offered */
struct gpu *gpumap_find(const struct agent *g, const char *uuid);
/* Numbers the unknown ones of a look, by PCI address; NULL entries never. */
void gpumap_add(struct agent *g, const json_t *look_gpus);
/* Failures that outlive this process: one file each in the state directory. */
void gpumap_latch(struct agent *g, struct gpu *d);
void gpumap_check_latches(struct agent *g); /* removed ones are over */
void gpumap_done(struct gpus *s);

/* ---- gpujudge.c ---- */
/* What the last look means. `began_us` is when it began. */
void gpu_judge(const struct agent *g, struct gpu *d, struct gpu_finding *ret);
/* Learns what an idle device holds; before gpu_judge() of any. */
void gpu_learn(const struct agent *g, struct gpu *d);
enum xid_kind { XID_APPLICATION, XID_HARDWARE, XID_OTHER };
enum xid_kind xid_kind(int xid, const char **ret_what); /* what: "memory page fault", or NULL */
/* The running attempt that has the device, and its rank; NULL: none. */
struct attempt *gpu_lessee(const struct agent *g, const char *uuid, int *ret_rank);

/* ---- gpus.c ---- */
void gpus_take_look(struct agent *g, json_t *look);
void gpus_take_xid(struct agent *g, const char *uuid, int xid);
void gpus_attempt_ended(struct agent *g, const struct attempt *a);
int gpus_offered(const struct agent *g, const struct gpu *d);
/* What the coordinator is told: the state, unless the probe itself is in doubt. */
void gpu_report(const struct agent *g, const struct gpu *d, struct gpu_finding *ret);
void gpus_to_json(const struct agent *g, json_t *devices);
json_t *gpus_telemetry(const struct agent *g); /* NULL: none */
const char *gpu_state_name(enum gpu_state state);
int gpus_count(const struct agent *g); /* offered */
/* Why --gpus cannot be right: it names one that the node never had. "" where it can be. */
void gpus_unknown(const struct agent *g, char *out, size_t size);
void gpus_news(struct agent *g); /* the coordinator is to hear of it at once */

/* ---- probe.c ---- */
void gpus_pump(struct agent *g);
void gpus_look_soon(struct agent *g);
void gpus_done(struct agent *g);

#endif
