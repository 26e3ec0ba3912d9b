/* fake_service.h: verbs for tests of the API: in memory, scripted by the test that owns it. */
#ifndef TRAINYARD_TESTS_FAKE_SERVICE_H
#define TRAINYARD_TESTS_FAKE_SERVICE_H

#include <stdint.h>

#include "api/service.h"

struct service {
    /* ---- what the test says ---- */
    int write_dirties; /* submit, cancel, sync and file leave the turn dirty */
    int sync_waits;    /* so many calls of sync answer "wait" */
    int sync_writes;   /* the first call of a sync leaves the turn dirty */
    void (*in_sync)(struct service *s, uint64_t ticket); /* called within sync, or NULL */
    int fail_status;                                     /* the next verb fails with it, once */
    const char *etag;                                    /* of job documents */
    int warn;                                            /* submit adds a warning */
    const char *content; /* of logs and artifacts: a file with these bytes, or NULL */
    int64_t content_size;
    int64_t lie;  /* it is said to be so much longer */
    int big_body; /* the job list has about this many bytes */

    /* ---- what the API did ---- */
    int dirty;
    int calls;
    const char *verb; /* the last one */
    char id[128], name[128], text[4096], key[300];
    int has_states, has_label, has_user, has_after, has_key;
    char states[200], label[200], user[200], after_text[200];
    int64_t limit, after, max_points, after_step, after_epoch, rank, attempt, offset, epoch;
    int dry_run, strict;
    size_t body_len;
    uint64_t ticket; /* of the last sync */
    int resumed;
    int submitted;
};

#endif
