/* launch.h: the launch document (docs/protocols.md section 2), decoded: what a shim and its
 * trainers need to run one attempt on one node. */
#ifndef TRAINYARD_SPEC_LAUNCH_H
#define TRAINYARD_SPEC_LAUNCH_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/job.h"
#include "spec/plan.h"

struct launch_rank {
    int rank;
    int local_rank;
    int device;
    enum device_kind kind;
    int cpu; /* core to bind to, or -1 */
};

struct launch {
    char *job, *job_name, *attempt, *node;
    int64_t number; /* of the attempt within the job, from 1 */
    int64_t epoch;
    struct job_spec *spec;
    struct plan plan;
    char *secret;
    char *master_addr;
    int master_port;
    int64_t time_limit_s; /* 0: none */
    int64_t grace_s;
    struct launch_rank *ranks;
    int rank_count;
    char **data_roots;
    int data_root_count;
    char *trainer; /* absolute path of the program; NULL until the agent has added it */
    char *run_as;  /* user name or NULL */
};

/* The document is ours, so any fault is one sentence. */
int launch_from_json(const json_t *doc, struct launch *ret, struct err *e);
void launch_done(struct launch *l); /* safe on a zeroed struct */

#endif
