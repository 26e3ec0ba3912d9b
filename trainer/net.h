/* net.h: what a rank holds of the model: which layers and tensors, and where these lie.
 *
 * A rank holds one chunk, a range of layers, or several of them where a pipeline is interleaved.
 * Parameters, gradients and optimiser state are flat arenas of one layout, in layer order, each
 * tensor at a multiple of 16 elements (a cache line); the padding stays zero. A bucket, a part or a
 * file is then a range of an arena. The layout is here, the memory in replicas.h.
 *
 * Tensors that are not trained (moving statistics, and all of a frozen layer) lie at the end of the
 * layout, from `trained` on. They have no gradient, are in no bucket and never updated.
 *
 * Layers go by the pointers of their tensors, which may change between the passes of two layers.
 */
#ifndef TRAINYARD_TRAINER_NET_H
#define TRAINYARD_TRAINER_NET_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/job.h"
#include "spec/tensor.h"
#include "trainer/ops.h"

#define NET_STATES 2 /* Adam's two moments are the most that an optimiser keeps */

/* Layers [first, last). */
struct net_chunk {
    int first, last;
};

/* What a rank has of a tensor: indices [begin, end) of dimension `axis`, at the front of a
 * dimension of `extent` elements, the rest of which is padding and stays zero. Where nothing is
 * split that is all of dimension 0. */
struct net_part {
    int axis;
    int64_t begin, end, extent;
};

struct net_tensor {
    const struct tensor_spec *spec; /* the whole tensor's */
    struct net_part part;
    char *name;       /* "<layer name>.<tensor>"; owned */
    int layer;        /* index in the model */
    uint64_t number;  /* of the tensor in the model, from 0 */
    int is_fixed;     /* not trained */
    int is_split;     /* over tensor ranks; others have the same on all of them */
    size_t offset;    /* elements, in every arena */
    size_t elements;  /* of the part, padding included */
    float *parameter; /* while its layer is at work */
    float *gradient;  /* the same, in backward; NULL where fixed */
};

/* Of one layer of the model; all zero where it is not here. */
struct net_layer {
    struct tensor_cut cut;    /* over the tensor ranks */
    int64_t in, out;          /* last dimensions that this rank works on, padding included */
    int tensor, tensor_count; /* in net.tensors */
    size_t begin, end;        /* its trained elements; begin == end where it has none */
};

struct net {
    const struct model *model;
    const struct ops *ops;
    struct net_chunk *chunks; /* in layer order; owned */
    int chunk_count;
    int tensor, tensor_rank;    /* of the mesh */
    struct net_tensor *tensors; /* in layer order, fixed ones among them */
    int tensor_count;
    struct net_layer *layers; /* [layers of the model] */
    size_t elements;          /* of all tensors, padding included */
    size_t trained;           /* of them, the leading ones */
    int folded; /* leading layers that the batch loader applies as it reads (rescaling, and
                   flatten and reshape, which move nothing) */
    int fused;  /* the last layer's softmax or sigmoid is left to the loss */
    int lowest; /* backward ends with this layer: below it nothing learns */
};

/* Lays the chunks out for rank `tensor_rank` of `tensor`, whose layouts are all of one size. `job`
 * outlives the net. */
int net_init(struct net *n, const struct job_spec *job, const struct ops *ops,
             const struct net_chunk *chunks, int chunk_count, int tensor, int tensor_rank,
             struct err *e);
void net_done(struct net *n); /* safe on a zeroed struct */

/* The tensors of layer `layer` in the order of its spec, in constant time. */
struct net_tensor *net_tensors_of(const struct net *n, int layer, int *ret_count);

/* 1 if this rank is the one of its tensor ranks that speaks for what it has of the tensor. */
int net_is_own(const struct net *n, const struct net_tensor *x);

/* Elements of an item that this rank has of the output of layer l. */
int64_t net_out_elements(const struct net *n, int l);

/* Points all tensors into whole arenas, [elements] and [trained]. */
void net_point(struct net *n, float *parameters, float *gradients);

/* 1 if the loss is computed from what goes into the final softmax or sigmoid. */
int net_loss_fused(const struct job_spec *job);

#endif
