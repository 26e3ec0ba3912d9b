/* plan.h: a parallel strategy as asked for, and the plan that was made of it.
 *
 * Rank r of a plan sits at data coordinate r / pipeline and pipeline coordinate r % pipeline
 * (pipeline neighbours are adjacent ranks). Stage p runs layers stage_first[p] up to and without
 * stage_first[p + 1].
 */
#ifndef TRAINYARD_SPEC_PLAN_H
#define TRAINYARD_SPEC_PLAN_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

struct job_spec;

enum strategy_kind {
    STRATEGY_AUTO,             /* only in a request */
    STRATEGY_NONE,             /* one device */
    STRATEGY_MIRRORED,         /* data parallel on one node */
    STRATEGY_PIPELINE,         /* layers cut into stages; may be combined with data > 1 by mesh */
    STRATEGY_SEGMENT_ENSEMBLE, /* independent members on disjoint shards; outputs averaged */
    STRATEGY__MAX
};
const char *strategy_name(enum strategy_kind k);

enum pipeline_schedule { SCHEDULE_GPIPE, SCHEDULE_1F1B };
const char *pipeline_schedule_name(enum pipeline_schedule s);

/* What the user wrote under "strategy": a name, or a mesh
 * {"data": 1, "pipeline": 2, "schedule": "1f1b", "microbatches": 4}. */
struct strategy {
    enum strategy_kind kind;
    int is_mesh;
    int64_t data;         /* mesh; 0 when not given */
    int64_t pipeline;     /* mesh; 0 when not given */
    int64_t microbatches; /* 0: chosen by the plan */
    enum pipeline_schedule schedule;
};

#define PLAN_MAX_RANKS        1024
#define PLAN_MAX_MICROBATCHES 65536

struct plan {
    enum strategy_kind kind; /* never AUTO */
    int ranks;
    int data;         /* data-parallel size; for an ensemble the number of members */
    int pipeline;     /* stages */
    int microbatches; /* per step and data rank; 1 unless pipeline > 1 */
    enum pipeline_schedule schedule;
    int *stage_first;     /* pipeline + 1 layer indices, owned; {0, layer_count} for one stage */
    int64_t memory_bytes; /* predicted peak of the heaviest rank */
    int chosen_by_auto;
    char *why; /* one sentence or two, owned */
};

void plan_done(struct plan *p); /* safe on a zeroed struct */

/* {"name", "ranks", "mesh": {"data","pipeline","microbatches","schedule"}, "stages": [[0,2],[2,4]],
 *  "memory_bytes", "chosen_by": "auto"|"user", "why"}; a new reference. */
json_t *plan_to_json(const struct plan *p);
int plan_from_json(const json_t *doc, struct plan *ret, struct err *e);

/* Bytes of the heaviest rank for a candidate: parameters, gradients, optimiser state and
 * activations of the micro-batches in flight (an ensemble's member trains on whole batches of its
 * shard). Not counted: the data, which ranks share. `p` needs kind, ranks, data, pipeline,
 * microbatches, schedule and stage_first. */
int64_t plan_memory(const struct job_spec *job, const struct plan *p);

/* Cuts the layers into `stages` contiguous stages, minimising the dearest stage's forward plus
 * backward FLOPs (ties: the most even). A layer with work has parameters or is a
 * rescaling; the others (flatten, reshape, dropout, activation) go with the layer before them (with
 * the one after at the start); their FLOPs count with it. Every stage gets a layer with work; fails
 * with ERR_INVALID, and says how many stages there can be, when there are too few. One stage is
 * always possible. `ret_stage_first` has room for stages + 1. At most MODEL_MAX_LAYERS layers bound
 * the search. */
int plan_cut(const struct job_spec *job, int stages, int *ret_stage_first, struct err *e);

#endif
