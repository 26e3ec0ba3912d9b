/* cause.h: which rank's end is the cause, and in which words. Pure but for the readers.
 *
 * The first rank that failed, by time, is the cause. A rank that says peer_lost only tells of
 * another's death: it is named only when nobody died of anything else, even where its exit was
 * reaped first. Whoever dies of our own signals is no cause.
 */
#ifndef TRAINYARD_DAEMON_SHIM_CAUSE_H
#define TRAINYARD_DAEMON_SHIM_CAUSE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/attempt.h"

struct verdict {
    int failed;  /* a verdict with outcome "failed" was written */
    int stopped; /* one that says that it was asked to stop, and did */
    char code[64];
    char reason[ATTEMPT_REASON_MAX];
};

struct rank_end {
    int rank; /* -1: the prepare step */
    int started;
    int ended;
    int exit_code;     /* -1 when ended by a signal */
    int signal_number; /* 0 when it exited */
    int64_t ended_us;
    int order; /* of being reaped */
    int late;  /* reaped after we began to end the attempt */
    int by_us; /* ended by a signal that we had sent */
    struct verdict verdict;
};

/* Index of the cause in `ends`, or -1 if no rank failed. */
int cause_find(const struct rank_end *ends, int n);

/* 1 if it ended otherwise than by exit status 0. */
int cause_failed(const struct rank_end *end);

/* Fills in each rank's last verdict from the report file; a file that cannot be read has
 * none. Looks at the last CAUSE_REPORT_TAIL bytes: verdicts are last words. */
#define CAUSE_REPORT_TAIL (8L * 1024 * 1024) /* 1,024 ranks, 4,000 bytes each, twice */
void cause_read_verdicts(const char *report_path, struct rank_end *ends, int n);

/* "Rank 1 on node n1 was killed by SIGKILL.", or its verdict's sentence, or its exit status with
 * the end of its log. code is at least 64 bytes. */
void cause_describe(const struct rank_end *end, const char *node, const char *log_path, char *code,
                    char reason[ATTEMPT_REASON_MAX]);

/* The last CAUSE_LOG_TAIL bytes of a log as one printable line of UTF-8: controls and broken bytes
 * as \xNN, newlines as \n. Empty if there are none. */
#define CAUSE_LOG_TAIL      300
#define CAUSE_LOG_TEXT_SIZE (CAUSE_LOG_TAIL * 4 + 1)
void cause_log_tail(const char *log_path, char out[CAUSE_LOG_TEXT_SIZE]);

#endif
