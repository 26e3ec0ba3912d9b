/* attempt.h: the attempt directory, the contract between an agent and a shim (docs/protocols.md
 * section 3): the names in it, the small JSON files, the lock, and the mark of its processes.
 *
 * Everything in it but artifacts/ is written by the agent's user alone. Times are microseconds
 * since 1970 UTC.
 */
#ifndef TRAINYARD_DAEMON_ATTEMPT_H
#define TRAINYARD_DAEMON_ATTEMPT_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/proc.h"

#define ATTEMPT_LAUNCH    "launch.json"
#define ATTEMPT_STOP      "stop.json"
#define ATTEMPT_LOCK      "lock"
#define ATTEMPT_SHIM      "shim.json"
#define ATTEMPT_SHIM_LOG  "shim.log"
#define ATTEMPT_REPORT    "report.ndjson"
#define ATTEMPT_ARTIFACTS "artifacts"
#define ATTEMPT_EXIT      "exit.json"
#define ATTEMPT_ROOM      "exit.room"

#define ATTEMPT_LAUNCH_MAX                                                                         \
    (4 * 1024 * 1024)                    /* bytes of a launch document: a 1 MiB spec, a plan       \
                                          */
#define ATTEMPT_JSON_MAX   (1024 * 1024) /* bytes of each other JSON file: 1,024 ranks */
#define ATTEMPT_REASON_MAX 1000          /* bytes of a sentence in an exit record */

/* "<dir>/<name>" and "<dir>/rank-<n>.log"; free() them. */
char *attempt_path(const char *dir, const char *name);
char *attempt_log_path(const char *dir, int rank);

/* Value of TRAINYARD_ATTEMPT_MARK: "<attempt>:<boot id>". */
#define ATTEMPT_MARK_VARIABLE "TRAINYARD_ATTEMPT_MARK"
#define ATTEMPT_MARK_SIZE     (64 + PROC_BOOT_ID_SIZE)
int attempt_mark(const char *attempt, char out[ATTEMPT_MARK_SIZE], struct err *e);

/* Takes the attempt's lock without waiting: ERR_CONFLICT while another process holds it. It is
 * held until *ret_fd is closed. */
int attempt_lock(const char *dir, int *ret_fd, struct err *e);

/* Writes <dir>/<name> atomically but without waiting for the disk: for what is void, or is made
 * again, after a crash of the machine. Mode 0600. */
int attempt_write(const char *dir, const char *name, const json_t *doc, struct err *e);

/* ---- shim.json ---- */
struct shim_rank {
    int rank;
    pid_t pid;
    uint64_t start_time;
};

struct shim_record {
    struct proc_identity shim;
    int64_t started_us;      /* when the ranks started; 0 in the first version */
    struct shim_rank *ranks; /* owned; NULL until all ranks run */
    int rank_count;
};

void shim_record_done(struct shim_record *r); /* safe on a zeroed struct */
int shim_record_write(const char *dir, const struct shim_record *r, struct err *e);
int shim_record_read(const char *dir, struct shim_record *ret, struct err *e);

/* ---- stop.json ---- */
struct stop_request {
    char code[64];
    char reason[ATTEMPT_REASON_MAX];
    int64_t grace_s;
};

#define STOP_GRACE_MAX_S (24 * 3600)

int stop_request_write(const char *dir, const struct stop_request *s, struct err *e);
/* ERR_NOT_FOUND where there is none. */
int stop_request_read(const char *dir, struct stop_request *ret, struct err *e);
/* From {"code", "reason", "grace_s"}: what is absent or unfit gets "stopped", a plain sentence and
 * `default_grace_s`; a wish to stop is never refused for its wording. */
void stop_request_from_json(const json_t *doc, int64_t default_grace_s, struct stop_request *ret);

/* ---- exit.json ---- */
/* A record with no ranks and no rank at fault; a new reference. */
json_t *exit_record_new(const char *outcome, const char *code, const char *reason, int retryable,
                        int64_t started_us, int64_t ended_us);
int exit_record_write(const char *dir, const json_t *record, struct err *e);
/* ERR_NOT_FOUND where there is none, ERR_CORRUPT where it is not an object with an outcome. */
int exit_record_read(const char *dir, json_t **ret, struct err *e);

#endif
