/* net.h: a rank's slice of the model: which tensors it has and where they lie.
 *
 * Parameters, gradients and optimiser state are flat float32 arenas, laid out once in layer order,
 * each tensor at a multiple of 16 elements (a cache line); the padding stays zero. A bucket, a
 * shard or a file is then a range of an arena. Parameters and gradients may belong to the
 * transport, so that collectives need not copy them.
 */
#ifndef TRAINYARD_TRAINER_NET_H
#define TRAINYARD_TRAINER_NET_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/job.h"
#include "trainer/ops.h"

#define NET_STATES 2 /* Adam's two moments are the most that an optimiser keeps */

struct net_tensor {
    const struct tensor_spec *spec;
    char *name;      /* "<layer name>.<tensor>"; owned */
    int layer;       /* index in the model */
    uint64_t number; /* of the tensor in the model, from 0 */
    size_t offset;   /* elements, in every arena */
    size_t elements;
};

struct net {
    const struct model *model;
    const struct ops *ops;
    int first, last; /* layers [first, last) */
    struct net_tensor *tensors;
    int tensor_count;
    size_t elements;          /* of each arena */
    float *parameters;        /* [elements] */
    float *gradients;         /* [elements]; NULL until net_allocate */
    int own_arenas;           /* parameters and gradients, too, are the net's */
    float *state[NET_STATES]; /* [elements], NULL where the optimiser has none */
    int folded; /* leading layers that the batch loader applies as it reads (rescaling, and
                   flatten and reshape, which move nothing) */
    int fused;  /* the last layer's softmax or sigmoid is left to the loss */
    int lowest; /* backward ends with this layer: below it nothing learns */
};

/* Lays the slice out; allocates no arena. `job` outlives the net. */
int net_init(struct net *n, const struct job_spec *job, const struct ops *ops, int first, int last,
             struct err *e);
/* Allocates the arenas; `parameters` and `gradients` are given ones of `elements`, or both NULL. */
int net_allocate(struct net *n, int states, float *parameters, float *gradients, struct err *e);
void net_done(struct net *n); /* safe on a zeroed struct */

/* Elements of a slice's arena without making one. */
size_t net_elements(const struct model *m, int first, int last);

/* Bytes that net_allocate takes, given arenas not counted. */
size_t net_bytes(const struct net *n, int states, int own_arenas);

/* The arena offset where layer `layer`'s tensors begin; that of the next tensors where it has none.
 */
size_t net_offset(const struct net *n, int layer);

/* 1 if the loss is computed from what goes into the final softmax or sigmoid. */
int net_loss_fused(const struct job_spec *job);

#endif
