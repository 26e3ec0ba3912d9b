/* mesh.c: a rank's coordinates and groups. */
#include "trainer/mesh.h"

void mesh_place(struct mesh *m, const struct plan *p, int rank)
{
    *m = (struct mesh){
        .rank = rank,
        .ranks = p->ranks,
        .data_rank = rank / (p->tensor * p->pipeline),
        .data = p->data,
        .stage = rank / p->tensor % p->pipeline,
        .stages = p->pipeline,
        .chunks = p->chunks,
        .tensor_rank = rank % p->tensor,
        .tensor = p->tensor,
        .ensemble = p->kind == STRATEGY_SEGMENT_ENSEMBLE,
    };
}

void mesh_chunks(const struct plan *p, int stage, struct net_chunk *ret)
{
    for (int c = 0; c < p->chunks; c++) {
        const int *first = &p->stage_first[c * p->pipeline + stage];
        ret[c] = (struct net_chunk){first[0], first[1]};
    }
}

int mesh_has_outputs(const struct mesh *m)
{
    return m->stage == m->stages - 1 && m->tensor_rank == 0;
}

/* A group of `size` ranks, `stride` apart, of which this one is at `place`. */
static int connect(struct mesh *m, enum comm_family family, int index, int size, int place,
                   int stride, struct comm **ret, struct err *e)
{
    int members[PLAN_MAX_RANKS];
    for (int i = 0; i < size; i++)
        members[i] = m->rank + (i - place) * stride;
    return m->world->verbs->group(m->world, family, index, members, size, ret, e);
}

static int connect_data(struct mesh *m, enum comm_family family, struct comm **ret, struct err *e)
{
    int others = m->stages * m->tensor;
    if (m->data == 1 || m->ensemble)
        return 0;
    return connect(m, family, m->rank % others, m->data, m->data_rank, others, ret, e);
}

static int connect_line(struct mesh *m, enum comm_family family, struct comm **ret, struct err *e)
{
    if (m->stages == 1)
        return 0;
    return connect(m, family, m->data_rank * m->tensor + m->tensor_rank, m->stages, m->stage,
                   m->tensor, ret, e);
}

int mesh_connect(struct mesh *m, struct comm *take_world, struct err *e)
{
    m->world = take_world;
    int r = connect_data(m, COMM_DATA, &m->replicas, e);
    if (r == 0)
        r = connect_data(m, COMM_BATCH, &m->batch, e);
    if (r == 0)
        r = connect_line(m, COMM_PIPELINE, &m->pipeline, e);
    if (r == 0)
        r = connect_line(m, COMM_PIPELINE_BACK, &m->back, e);
    if (r == 0 && m->tensor > 1)
        r = connect(m, COMM_TENSOR, m->rank / m->tensor, m->tensor, m->tensor_rank, 1, &m->tensors,
                    e);
    return r;
}

void mesh_done(struct mesh *m)
{
    comm_close(m->replicas);
    comm_close(m->batch);
    comm_close(m->pipeline);
    comm_close(m->back);
    comm_close(m->tensors);
    comm_close(m->world);
    *m = (struct mesh){0};
}
