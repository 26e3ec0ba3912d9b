/* mirrored.c: bucketed sums of gradients. */
#include "trainer/mirrored.h"

void buckets_start(struct buckets *b, const struct net *n, const struct mesh *m)
{
    *b = (struct buckets){.net = n, .replicas = m->replicas, .high = n->elements};
}

static int reduce_down_to(struct buckets *b, size_t low, struct err *e)
{
    size_t count = b->high - low;
    float *from = b->net->gradients + low;
    b->high = low;
    if (!b->replicas || count == 0)
        return 0;
    return b->replicas->verbs->all_reduce(b->replicas, from, count, COMM_F32, e);
}

int buckets_layer_done(void *buckets, int layer, struct err *e)
{
    struct buckets *b = buckets;
    size_t low = net_offset(b->net, layer);
    if ((b->high - low) * sizeof(float) < BUCKET_BYTES)
        return 0;
    return reduce_down_to(b, low, e);
}

int buckets_finish(struct buckets *b, struct err *e)
{
    return reduce_down_to(b, 0, e);
}
