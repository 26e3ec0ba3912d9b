/* ending.h: how an attempt ended, decoded from the exit record that its agent sent
 * (docs/protocols.md, section 3), and what that means for the job. Pure. */
#ifndef TRAINYARD_COORDINATOR_ENDING_H
#define TRAINYARD_COORDINATOR_ENDING_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "storage/store.h"

#define ENDING_MAX_BYTES     (256 * 1024) /* of an exit record as text; 1,024 ranks take some 90 KB */
#define ENDING_REASON_MAX    1000
#define ENDING_MAX_LEFT_OUT  64  /* files that an exit record names as left out */
#define ENDING_LEFT_OUT_TEXT 255 /* bytes of each name and why */
#define ENDING_MAX_STARTS    4   /* attempts in a row that never ran; after them the job fails */
#define ENDING_REST_MAX_S    64  /* before a restart; it doubles from 1 s */

enum outcome {
    OUTCOME_DONE,
    OUTCOME_FAILED,
    OUTCOME_STOPPED,
    OUTCOME_TIME_LIMIT,
    OUTCOME_PREPARE_FAILED,
    OUTCOME_SPAWN_FAILED,
    OUTCOME_SHIM_LOST,
    OUTCOME__MAX
};
const char *outcome_name(enum outcome o);

struct ending {
    enum outcome outcome;
    char code[64];
    char reason[ENDING_REASON_MAX + 1];
    int64_t rank;                 /* -1: none is to blame */
    int64_t exit_code;            /* -1: none */
    char signal[24];              /* "": none */
    int64_t started_us, ended_us; /* 0: not said */
    int retryable;                /* no fault of the job, or it asked for another attempt */
};

/* What an agent sent is checked: ERR_INVALID with a sentence. */
int ending_parse(const json_t *doc, struct ending *ret, struct err *e);

struct verdict {
    enum job_state to; /* JOB_PENDING: it goes back to waiting */
    char code[64];
    char reason[1800];
    int64_t rest_us;                 /* with JOB_PENDING: not tried again before that long */
    int64_t restarts, failed_starts; /* as the job counts them from now on */
};

/* `job` as stored, with spec. `ran`: the attempt's ranks were seen to run. */
void ending_judge(const struct ending *x, const struct attempt_row *a, const struct job_row *job,
                  int ran, struct verdict *ret);

/* "resumes at step 400", "starts at step 0, since no checkpoint was taken", ...: what the next
 * attempt of the job does, into `out` (ENDING_NEXT_SIZE). Returns `out`. */
#define ENDING_NEXT_SIZE 160
const char *ending_next(const struct job_row *job, char out[ENDING_NEXT_SIZE]);

#endif
