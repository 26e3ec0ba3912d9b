/* share.c: batches cut into shares. */
#include "trainer/share.h"

#include <stdlib.h>

#include "base/mem.h"
#include "trainer/order.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How many of the ids below n are the member's. */
static int64_t members_below(int64_t n, int member, int members)
{
    return (n - member + members - 1) / members;
}

void share_init(struct share *s, const struct dataset *set, const struct fit *fit,
                const struct mesh *m, int grains)
{
    int64_t n = set->samples;
    *s = (struct share){
        .set = set,
        .fit = fit,
        .data_rank = m->data_rank,
        .data = m->data,
        .ensemble = m->ensemble,
        .grains = grains,
        .batch = fit->batch_size,
        .steps_per_epoch = n / fit->batch_size + (n % fit->batch_size != 0),
        .own = m->ensemble ? members_below(n, m->data_rank, m->data) : n,
    };
    s->ids = mem_alloc((size_t)(s->own + 1) * sizeof *s->ids);
}

void share_done(struct share *s)
{
    free(s->ids);
    *s = (struct share){0};
}

void share_epoch(struct share *s, int64_t epoch)
{
    uint64_t seed = s->fit->seed + (s->ensemble ? (uint64_t)s->data_rank : 0);
    order_epoch(s->own, s->fit->shuffle, seed, epoch, s->ids);
    for (int64_t i = 0; s->ensemble && i < s->own; i++)
        s->ids[i] = s->ids[i] * s->data + s->data_rank;
}

int64_t share_global_items(const struct share *s, int64_t step_in_epoch)
{
    return smaller(s->batch, s->set->samples - step_in_epoch * s->batch);
}

void share_items(const struct share *s, int64_t step_in_epoch, struct items *ret)
{
    int64_t first = step_in_epoch * s->batch, begin, end;
    int64_t after = first + share_global_items(s, step_in_epoch);
    if (s->ensemble) {
        begin = members_below(first, s->data_rank, s->data);
        end = members_below(after, s->data_rank, s->data);
        *ret = (struct items){s->set, s->ids + begin, end - begin, 0, end - begin};
    } else {
        int64_t total = after - first;
        share_slice(total, s->grains, s->data, s->data_rank, &begin, &end);
        *ret = (struct items){s->set, s->ids + first + begin, end - begin, begin, total};
    }
}

int64_t share_steps(const struct share *s)
{
    return s->fit->steps > 0 ? s->fit->steps : s->fit->epochs * s->steps_per_epoch;
}

int share_grains(const struct plan *p)
{
    return p->parallel.reproducible ? (int)p->parallel.grains : 0;
}

void share_slice(int64_t total, int grains, int ranks, int rank, int64_t *ret_begin,
                 int64_t *ret_end)
{
    int64_t unused;
    if (grains == 0) {
        order_slice(total, ranks, rank, ret_begin, ret_end);
        return;
    }
    int each = grains / ranks;
    order_slice(total, grains, rank * each, ret_begin, &unused);
    order_slice(total, grains, (rank + 1) * each - 1, &unused, ret_end);
}

int64_t share_most(const struct dataset *set, const struct fit *fit, const struct mesh *m,
                   int grains)
{
    int64_t begin, end;
    share_slice(smaller(fit->batch_size, set->samples), grains, m->data, 0, &begin, &end);
    return end > begin ? end - begin : 1;
}
