/* mesh.h: where a rank sits (spec/plan.h) and whom it speaks with. */
#ifndef TRAINYARD_TRAINER_MESH_H
#define TRAINYARD_TRAINER_MESH_H

#include "spec/plan.h"
#include "trainer/comm.h"

struct mesh {
    int rank, ranks;
    int data_rank, data; /* which slice of the batch; which member, of an ensemble */
    int stage, stages;
    int ensemble; /* the data coordinate numbers members that share nothing */
    struct comm *world;
    struct comm *replicas; /* the same stage of all data ranks; NULL where nothing is summed */
    struct comm *pipeline; /* all stages of this data rank; NULL where there is one */
};

void mesh_place(struct mesh *m, const struct plan *p, int rank);
/* Makes the groups of a placed mesh out of the world, which the mesh then owns. */
int mesh_connect(struct mesh *m, struct comm *take_world, struct err *e);
void mesh_done(struct mesh *m); /* safe on a zeroed struct */

#endif
