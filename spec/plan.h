/* plan.h: a parallel strategy as asked for, and the plan that was made of it.
 *
 * Rank r of a plan sits at tensor coordinate r % tensor, pipeline coordinate (r / tensor) %
 * pipeline and data coordinate r / (tensor * pipeline): ranks that speak most are adjacent. Stage s
 * of the pipeline * chunks stages runs layers stage_first[s] up to and without stage_first[s + 1],
 * on the ranks with pipeline coordinate s % pipeline; it is their chunk s / pipeline.
 */
#ifndef TRAINYARD_SPEC_PLAN_H
#define TRAINYARD_SPEC_PLAN_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

struct job_spec;
struct model;

enum strategy_kind {
    STRATEGY_AUTO,             /* only in a request */
    STRATEGY_NONE,             /* one device */
    STRATEGY_MIRRORED,         /* data parallel on one node */
    STRATEGY_PIPELINE,         /* layers cut into stages; may be combined with data > 1 by mesh */
    STRATEGY_SEGMENT_ENSEMBLE, /* independent members on disjoint shards; outputs averaged */
    STRATEGY_TENSOR,           /* layers split over ranks; with others by mesh */
    STRATEGY_LOCAL_SGD,        /* data ranks that average their weights every so many steps */
    STRATEGY__MAX
};
const char *strategy_name(enum strategy_kind k);

enum pipeline_schedule { SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED };
const char *pipeline_schedule_name(enum pipeline_schedule s);

/* When data ranks agree. The last two change the mathematics; never chosen by "auto". */
enum sync_kind {
    SYNC_EVERY_STEP,
    SYNC_DELAYED,  /* a step applies the gradient of the step before */
    SYNC_LOCAL_SGD /* local_steps updates of one's own, then the mean of the weights */
};
const char *sync_name(enum sync_kind s);

/* How gradients travel between data ranks. All but none are lossy; never chosen by "auto". int8 and
 * top_k keep what they lost and add it to the next gradient (error feedback). */
enum codec_kind { CODEC_NONE, CODEC_BF16, CODEC_INT8, CODEC_TOP_K };
const char *codec_name(enum codec_kind c);

enum recompute_kind { RECOMPUTE_AUTO, RECOMPUTE_NONE, RECOMPUTE_ALL };
const char *recompute_name(enum recompute_kind r);

/* How a global batch is cut over the data ranks. */
enum shares_kind { SHARES_EVEN, SHARES_MEASURED };
const char *shares_name(enum shares_kind s);

/* With `rebalance`, what the largest stage shares through the transport may grow by as much. */
#define PLAN_REBALANCE_ROOM 2.0

/* The part of a mesh that request and plan have alike. */
struct parallel {
    int reproducible;
    int64_t grains; /* reproducible: the batch is always cut into so many; a power of two, 8 */
    enum sync_kind sync;
    int64_t local_steps;        /* local_sgd; default 8 */
    double outer_learning_rate; /* local_sgd; 1 */
    double outer_momentum;      /* local_sgd, Nesterov; 0: the plain mean */
    enum codec_kind codec;
    double top_k; /* share of the elements that top_k sends; 0.01 */
    enum shares_kind shares;
    int rebalance; /* layers may move between stages during the run */
    int overlap;   /* gradients are summed by a thread beside backward */
};

/* As a job that says nothing about it has it. */
void parallel_set_defaults(struct parallel *p);

/* What the user wrote under "strategy": a name, or a mesh
 * {"data": 1, "pipeline": 2, "schedule": "1f1b", "microbatches": 4}. */
struct strategy {
    enum strategy_kind kind;
    int is_mesh;
    int64_t data;         /* mesh; 0 when not given */
    int64_t pipeline;     /* mesh; 0 when not given */
    int64_t tensor;       /* mesh; 0 when not given */
    int64_t zero;         /* 0..3; -1: chosen by the plan */
    int64_t chunks;       /* interleaved: model chunks per rank; 0: chosen by the plan */
    int64_t microbatches; /* 0: chosen by the plan. Without a pipeline: gradient accumulation */
    enum pipeline_schedule schedule;
    enum recompute_kind recompute;
    struct parallel parallel;
};

#define PLAN_MAX_RANKS        1024
#define PLAN_MAX_MICROBATCHES 65536

struct plan {
    enum strategy_kind kind; /* never AUTO */
    int ranks;
    int data;         /* data-parallel size; for an ensemble the number of members */
    int pipeline;     /* ranks along the pipeline */
    int tensor;       /* ranks that a layer is split over */
    int chunks;       /* stages per pipeline rank; 1 unless interleaved */
    int microbatches; /* per step and data rank, each forward and backward by itself */
    enum pipeline_schedule schedule;
    int *stage_first; /* pipeline * chunks + 1 layer indices, owned; {0, layer_count} for one */
    int zero;         /* 0: all whole; 1: optimizer state, 2: and gradients, 3: and parameters
                         divided among the data ranks */
    unsigned char *recompute; /* [layer_count]: 1 where the output is computed again in backward;
                                 owned; NULL: nowhere */
    int recompute_count;      /* layers in it */
    struct parallel parallel;
    int64_t memory_bytes; /* predicted peak of the heaviest rank */
    int chosen_by_auto;
    char *why; /* one sentence or two, owned */
};

void plan_done(struct plan *p); /* safe on a zeroed struct */

int plan_stages(const struct plan *p); /* pipeline * chunks */

/* {"name", "ranks", "mesh": {"data", "pipeline", "tensor", "chunks", "microbatches", "schedule",
 *  "zero"}, "stages": [[0,2],[2,4]], "recompute": [0,3], "parallel": {...}, "memory_bytes",
 *  "chosen_by": "auto"|"user", "why"}; a new reference. What earlier versions did not write has the
 * value that it had there. */
json_t *plan_to_json(const struct plan *p);
int plan_from_json(const json_t *doc, struct plan *ret, struct err *e);

/* Bytes of the heaviest rank for a candidate: parameters, gradients, optimiser state and what else
 * replicas keep, activations of the micro-batches in flight, what the transport takes. Not counted:
 * the data, which ranks share. `p` needs all but memory_bytes, chosen_by_auto and why. */
int64_t plan_memory(const struct job_spec *job, const struct plan *p);

/* Sets p->recompute such that every rank stays within `limit` bytes, with as little computed again
 * as it takes; where nothing does, such that ranks need as little as they can. A rank that fits
 * without has nothing computed again. `p` as for plan_memory. */
void plan_recompute(const struct job_spec *job, struct plan *p, int64_t limit);

/* Cuts the layers into `stages` contiguous stages, minimising the dearest stage's forward plus
 * backward FLOPs (ties: the most even). A layer with work has parameters or is a
 * rescaling; the others (flatten, reshape, dropout, activation) go with the layer before them (with
 * the one after at the start); their FLOPs count with it. An `add` stays with the layer whose
 * output it adds, and with all between. Every stage gets a layer with work; fails with ERR_INVALID,
 * and says how many stages there can be, when there are too few. One stage is always possible.
 * `ret_stage_first` has room for stages + 1. At most MODEL_MAX_LAYERS layers bound the search. */
int plan_cut(const struct job_spec *job, int stages, int *ret_stage_first, struct err *e);
/* The same by costs [layers] that were measured, in any unit. */
int plan_cut_by(const struct job_spec *job, const double *costs, int stages, int *ret_stage_first,
                struct err *e);
int plan_most_stages(const struct model *m); /* 1 of a model without layers */

#endif
