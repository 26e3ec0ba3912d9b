/* replicas.c: bucketed sums of gradients, and parts of parameters gathered again. */
#include "trainer/replicas.h"

#include <stdlib.h>

#include "base/mem.h"

static void cut(struct replicas *r, size_t at)
{
    r->cuts[++r->count] = at;
}

/* In the order of backward: down from the last layer of the last chunk. */
void replicas_init(struct replicas *r, const struct net *n, const struct mesh *mesh)
{
    *r = (struct replicas){.net = n, .group = mesh->replicas};
    r->divided = r->group && n->trained * sizeof(float) > DIVIDE_BYTES;
    r->cuts = mem_zalloc(((size_t)n->model->layer_count + 2) * sizeof *r->cuts);
    r->cuts[0] = n->trained;
    for (int l = n->model->layer_count - 1; l >= 0; l--) {
        const struct net_layer *y = &n->layers[l];
        if (y->begin < y->end && (r->cuts[r->count] - y->begin) * sizeof(float) >= BUCKET_BYTES)
            cut(r, y->begin);
    }
    if (r->cuts[r->count] > 0)
        cut(r, 0);
}

void replicas_done(struct replicas *r)
{
    free(r->cuts);
    *r = (struct replicas){0};
}

static size_t bucket_elements(const struct replicas *r, int b)
{
    return r->cuts[b] - r->cuts[b + 1];
}

static int sum_next(struct replicas *r, struct err *e)
{
    int b = r->summed++;
    struct comm *c = r->group;
    if (!c)
        return 0;
    float *at = r->net->gradients + r->cuts[b + 1];
    return r->divided ? c->verbs->reduce_scatter(c, at, bucket_elements(r, b), COMM_F32, e)
                      : c->verbs->all_reduce(c, at, bucket_elements(r, b), COMM_F32, e);
}

void replicas_begin(struct replicas *r)
{
    r->summed = 0;
    r->complete = r->net->trained;
}

static int before(void *context, int layer, int j, int backward, float *ret_beta, struct err *e)
{
    (void)context;
    (void)layer;
    (void)backward;
    (void)e;
    *ret_beta = j > 0 ? 1.0f : 0.0f;
    return 0;
}

/* Layers are complete in falling order. */
static int after(void *context, int layer, int j, int backward, int is_final, struct err *e)
{
    (void)j;
    struct replicas *r = context;
    const struct net_layer *y = &r->net->layers[layer];
    int status = 0;
    if (!backward || !is_final || y->begin == y->end)
        return 0;
    r->complete = y->begin;
    while (status == 0 && r->summed < r->count && r->cuts[r->summed + 1] >= r->complete)
        status = sum_next(r, e);
    return status;
}

struct layers_hook replicas_hook(struct replicas *r)
{
    return (struct layers_hook){.before = before, .after = after, .context = r};
}

int replicas_finish(struct replicas *r, struct err *e)
{
    int status = 0;
    while (status == 0 && r->summed < r->count)
        status = sum_next(r, e);
    return status;
}

void replicas_own(const struct replicas *r, int b, size_t *ret_begin, size_t *ret_end)
{
    size_t begin = 0, end = bucket_elements(r, b);
    if (r->divided)
        comm_part(end, r->group->size, r->group->rank, &begin, &end);
    *ret_begin = r->cuts[b + 1] + begin;
    *ret_end = r->cuts[b + 1] + end;
}

int replicas_counts(const struct replicas *r)
{
    return r->divided || !r->group || r->group->rank == 0;
}

int replicas_share(struct replicas *r, struct err *e)
{
    struct comm *c = r->group;
    int status = 0;
    for (int b = 0; status == 0 && r->divided && b < r->count; b++)
        status = c->verbs->all_gather(c, r->net->parameters + r->cuts[b + 1], bucket_elements(r, b),
                                      COMM_F32, e);
    return status;
}
