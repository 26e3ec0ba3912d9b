/* mirrored.c: bucketed sums of gradients, and parts of parameters gathered again. */
#include "trainer/mirrored.h"

#include <stdlib.h>

#include "base/mem.h"

static void cut(struct mirrored *m, size_t at)
{
    m->cuts[++m->count] = at;
}

void mirrored_init(struct mirrored *m, const struct net *n, const struct mesh *mesh)
{
    *m = (struct mirrored){.net = n, .replicas = mesh->replicas};
    m->divided = m->replicas && n->elements * sizeof(float) > DIVIDE_BYTES;
    m->cuts = mem_zalloc(((size_t)(n->last - n->first) + 2) * sizeof *m->cuts);
    m->cuts[0] = n->elements;
    for (int l = n->last - 1; l >= n->lowest; l--)
        if ((m->cuts[m->count] - net_offset(n, l)) * sizeof(float) >= BUCKET_BYTES)
            cut(m, net_offset(n, l));
    if (m->cuts[m->count] > 0)
        cut(m, 0);
}

void mirrored_done(struct mirrored *m)
{
    free(m->cuts);
    *m = (struct mirrored){0};
}

static size_t bucket_elements(const struct mirrored *m, int b)
{
    return m->cuts[b] - m->cuts[b + 1];
}

static int sum_next(struct mirrored *m, struct err *e)
{
    int b = m->summed++;
    struct comm *c = m->replicas;
    if (!c)
        return 0;
    float *at = m->net->gradients + m->cuts[b + 1];
    return m->divided ? c->verbs->reduce_scatter(c, at, bucket_elements(m, b), COMM_F32, e)
                      : c->verbs->all_reduce(c, at, bucket_elements(m, b), COMM_F32, e);
}

void mirrored_begin(struct mirrored *m)
{
    m->summed = 0;
}

int mirrored_layer_done(void *mirrored, int layer, struct err *e)
{
    struct mirrored *m = mirrored;
    int r = 0;
    while (r == 0 && m->summed < m->count && m->cuts[m->summed + 1] >= net_offset(m->net, layer))
        r = sum_next(m, e);
    return r;
}

int mirrored_finish(struct mirrored *m, struct err *e)
{
    int r = 0;
    while (r == 0 && m->summed < m->count)
        r = sum_next(m, e);
    return r;
}

void mirrored_own(const struct mirrored *m, int b, size_t *ret_begin, size_t *ret_end)
{
    size_t begin = 0, end = bucket_elements(m, b);
    if (m->divided)
        comm_part(end, m->replicas->size, m->replicas->rank, &begin, &end);
    *ret_begin = m->cuts[b + 1] + begin;
    *ret_end = m->cuts[b + 1] + end;
}

int mirrored_counts(const struct mirrored *m)
{
    return m->divided || !m->replicas || m->replicas->rank == 0;
}

int mirrored_share(struct mirrored *m, struct err *e)
{
    struct comm *c = m->replicas;
    int r = 0;
    for (int b = 0; r == 0 && m->divided && b < m->count; b++)
        r = c->verbs->all_gather(c, m->net->parameters + m->cuts[b + 1], bucket_elements(m, b),
                                 COMM_F32, e);
    return r;
}
