/* mesh.c: a rank's coordinates and groups. */
#include "trainer/mesh.h"

void mesh_place(struct mesh *m, const struct plan *p, int rank)
{
    *m = (struct mesh){
        .rank = rank,
        .ranks = p->ranks,
        .data_rank = rank / p->pipeline,
        .data = p->data,
        .stage = rank % p->pipeline,
        .stages = p->pipeline,
        .ensemble = p->kind == STRATEGY_SEGMENT_ENSEMBLE,
    };
}

int mesh_connect(struct mesh *m, struct comm *take_world, struct err *e)
{
    int members[PLAN_MAX_RANKS], r = 0;
    m->world = take_world;
    if (m->data > 1 && !m->ensemble) {
        for (int d = 0; d < m->data; d++)
            members[d] = d * m->stages + m->stage;
        r = m->world->verbs->group(m->world, COMM_DATA, m->stage, members, m->data, &m->replicas,
                                   e);
    }
    if (r == 0 && m->stages > 1) {
        for (int s = 0; s < m->stages; s++)
            members[s] = m->data_rank * m->stages + s;
        r = m->world->verbs->group(m->world, COMM_PIPELINE, m->data_rank, members, m->stages,
                                   &m->pipeline, e);
    }
    return r;
}

void mesh_done(struct mesh *m)
{
    comm_close(m->replicas);
    comm_close(m->pipeline);
    comm_close(m->world);
    *m = (struct mesh){0};
}
