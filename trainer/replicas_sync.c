/* replicas_sync.c: data ranks that agree otherwise than after every step. */
#include "trainer/replicas_parts.h"

int replicas_are_delayed(const struct replicas *r)
{
    return r->is_delayed;
}

int replicas_are_apart(const struct replicas *r)
{
    return r->is_apart;
}

void replicas_start(struct replicas *r)
{
    if (r->anchor.at)
        r->net->ops->copy(r->anchor.at, r->master.at, r->net->trained * sizeof(float));
}

/* A job. */
static int sum_weights(void *context, int i, struct err *e)
{
    struct replicas *r = context;
    const struct bucket *b = &r->buckets[i];
    float *w = arena_at(&r->master, b, b->begin);
    return r->group ? r->group->verbs->all_reduce(r->group, w, b->end - b->begin, COMM_F32, e) : 0;
}

static int take_mean(void *context, int i, struct err *e)
{
    struct replicas *r = context;
    const struct bucket *b = &r->buckets[i];
    const struct ops *o = r->net->ops;
    const struct parallel *p = &r->plan->parallel;
    size_t n = b->end - b->begin;
    float *w = arena_at(&r->master, b, b->begin);
    (void)e;
    if (r->group)
        o->affine((int64_t)n, 1.0f / (float)r->data, 0.0f, w, w);
    if (r->anchor.at) {
        struct elem_outer a = {(float)p->outer_learning_rate, (float)p->outer_momentum};
        o->outer_step(&a, n, w, arena_at(&r->anchor, b, b->begin),
                      arena_at(&r->outer, b, b->begin));
    }
    return 0;
}

static const struct queue_work average_work = {.ask = sum_weights, .finish = take_mean};

int replicas_average(struct replicas *r, struct err *e)
{
    for (int i = r->count - 1; i >= 0; i--)
        r->buckets[i].gathered = queue_submit(r->queue, &average_work, r, i);
    return queue_wait(r->queue, 0, e);
}
