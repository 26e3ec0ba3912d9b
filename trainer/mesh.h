/* mesh.h: where a rank sits (spec/plan.h) and whom it speaks with. */
#ifndef TRAINYARD_TRAINER_MESH_H
#define TRAINYARD_TRAINER_MESH_H

#include "spec/plan.h"
#include "trainer/comm.h"
#include "trainer/net.h"

struct mesh {
    int rank, ranks;
    int data_rank, data; /* which slice of the batch; which member, of an ensemble */
    int stage, stages;   /* place along the pipeline, and ranks along it */
    int chunks;          /* of the model that each of those has */
    int tensor_rank, tensor;
    int ensemble; /* the data coordinate numbers members that share nothing */
    struct comm *world;
    struct comm *replicas; /* the same place of all data ranks; NULL where nothing is summed */
    struct comm *batch;    /* the same ranks, for the sums that passes wait for: those of gradients
                              may be under way at the same time. NULL where replicas is */
    struct comm *pipeline; /* all places of this data rank, as a ring; NULL where there is one */
    struct comm *back;     /* the same ranks, for what goes backward */
    struct comm *tensors;  /* the ranks that a layer is split over; NULL where there is one */
};

void mesh_place(struct mesh *m, const struct plan *p, int rank);
/* Makes the groups of a placed mesh out of the world, which the mesh then owns. */
int mesh_connect(struct mesh *m, struct comm *take_world, struct err *e);
void mesh_done(struct mesh *m); /* safe on a zeroed struct */

/* The layers of the chunks of place `stage` along the pipeline, into ret [plan.chunks]. */
void mesh_chunks(const struct plan *p, int stage, struct net_chunk *ret);

/* 1 if this rank gives out the model's outputs, and so counts their loss: once for each item. */
int mesh_has_outputs(const struct mesh *m);

#endif
