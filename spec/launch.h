/* launch.h: the launch document (docs/protocols.md section 2), decoded: what a shim and its
 * trainers need to run one attempt on one node. */
#ifndef TRAINYARD_SPEC_LAUNCH_H
#define TRAINYARD_SPEC_LAUNCH_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/job.h"
#include "spec/plan.h"

/* What the ranks speak through: one node's shared memory, or TCP between nodes. */
enum transport { TRANSPORT_SHM, TRANSPORT_TCP };
const char *transport_name(enum transport t);

struct launch_rank {
    int rank;
    int local_rank;
    int device;
    enum device_kind kind;
    int cpu;    /* core to bind to, or -1 */
    char *node; /* this one, where the document says so; else NULL */
    char *uuid; /* of its GPU, "GPU-…" or "MIG-…"; a rank of this node on a GPU always has one */
};

/* A checkpoint that the attempt may go on from: the directory "<checkpoints>/<name>". */
struct launch_checkpoint {
    char *name; /* "step-0000000400" */
    int64_t step;
    char *sum; /* XXH128 of its manifest.json, 32 hex digits */
};

#define LAUNCH_MAX_RESUME 64 /* as CHECKPOINT_KEEP_MAX */

/* "step-" and the step with at least 10 digits: the one name a checkpoint of that step has. Returns
 * `out`. */
#define LAUNCH_CHECKPOINT_NAME_SIZE 32
char *launch_checkpoint_name(int64_t step, char out[LAUNCH_CHECKPOINT_NAME_SIZE]);

struct launch {
    char *job, *job_name, *attempt, *node;
    int64_t number; /* of the attempt within the job, from 1 */
    int64_t epoch;
    struct job_spec *spec;
    struct plan plan;
    char *secret; /* of the attempt: what its processes know each other by */
    enum transport transport;
    char *master_addr;    /* of rank 0, as the other nodes reach it */
    int master_port;      /* where rank 0 listens when the transport is tcp */
    int64_t time_limit_s; /* 0: none */
    int64_t grace_s;
    struct launch_rank *ranks; /* of this node; those that the document lists for others are checked
                                  and left out */
    int rank_count;
    char **data_roots;
    int data_root_count;
    char *trainer;     /* absolute path of the program; NULL until the agent has added it */
    char *run_as;      /* user name or NULL */
    char *checkpoints; /* absolute path of the job's checkpoint directory, which outlives attempts;
                          NULL where the job takes none (a command, "checkpoint": false) */
    struct launch_checkpoint *resume; /* newest first; not empty: one of them must be loaded */
    int resume_count;
};

/* The document is ours, so any fault is one sentence. */
int launch_from_json(const json_t *doc, struct launch *ret, struct err *e);
void launch_done(struct launch *l); /* safe on a zeroed struct */

#endif
