/* memory.h: what a rank takes, by what it takes it for. plan_memory() adds it up.
 *
 * The layouts are the trainer's (trainer/frame.h, stage.h, replicas.h, comm_shm_map.h), worked out
 * here from the job and the plan alone; a test holds the two against each other.
 */
#ifndef TRAINYARD_SPEC_MEMORY_H
#define TRAINYARD_SPEC_MEMORY_H

#include "spec/job.h"

/* What a layer is to the layouts: on one of the tensor ranks, which are all alike. */
struct layer_facts {
    double trained, fixed; /* elements, each tensor padded to a cache line */
    double out, in;        /* elements per item */
    double gathered;       /* elements per item of a part that is gathered; 0: none is */
    double kept_item;      /* floats kept for backward beside input and output, per item */
    double kept_batch;     /* the same, however many items */
    int keeps_output;      /* what is kept is a value like the output */
    int passes;            /* gives its input on */
    int source;            /* the layer whose output this one's is; -1: the model's input */
    int prepared;          /* the model's input but for rescaling and reshaping */
    int is_output;         /* computes the model's output */
    int sums;              /* how many it needs of the whole batch before it goes on; 0: none */
};

/* Bytes; doubles, for no model may overflow them. */
struct plan_bytes {
    double values;    /* parameters, gradients, optimizer state and what replicas keep besides */
    double shared;    /* the same, where the transport has it: as much on every rank */
    double frames;    /* activations in flight */
    double work;      /* what frames share: gradients, windows, scratch; sums and labels */
    double transport; /* channels and stages of the transport */
    double workspace; /* what the device's verbs keep for themselves */
};

/* All that a plan's ranks have in common. */
struct memory_view {
    const struct job_spec *job;
    const struct plan *plan;
    struct layer_facts *facts; /* [layers]; owned */
    int microbatches;          /* of a rank, in a step; a reproducible run's are its grains */
    double rows;               /* items of the largest of them */
    double shared, transport;  /* as in plan_bytes */
};

/* 1 if the job's devices have memory of their own: what the host keeps does not count then. */
int memory_is_apart(const struct job_spec *job);

void memory_open(struct memory_view *v, const struct job_spec *job, const struct plan *p);
void memory_done(struct memory_view *v);

/* Of the rank at `place` along the pipeline. */
void memory_rank(const struct memory_view *v, int place, struct plan_bytes *ret);
double memory_total(const struct plan_bytes *b);

/* ---- the parts ---- */

/* memory_frames.c: `frames` and `work`. */
void memory_add_frames(const struct memory_view *v, int place, struct plan_bytes *ret);
/* memory_values.c: what replicas keep; private, and in the transport's memory. */
void memory_add_values(const struct memory_view *v, int place, double *ret_private,
                       double *ret_shared);

#endif
