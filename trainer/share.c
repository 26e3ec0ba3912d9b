/* share.c: batches cut into shares. */
#include "trainer/share.h"

#include <math.h>
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
    free(s->weights);
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

/* ---- slices by speed ---- */

/* The even slice of a whole batch. */
static double even_of(const struct share *s)
{
    return 1.0 / s->data;
}

static double limited(double weight, double even)
{
    double most = even * SHARE_MOST, least = even / SHARE_LEAST;
    return weight > most ? most : weight < least ? least : weight;
}

static double sum_limited(const struct share *s, const double *speeds, double factor)
{
    double sum = 0;
    for (int d = 0; d < s->data; d++)
        sum += limited(speeds[d] * factor, even_of(s));
    return sum;
}

/* Weights are speeds times one factor, within the limits: the factor by bisection. All ranks do the
 * same arithmetic, so they cut alike. */
void share_weigh(struct share *s, const double *speeds)
{
    double low = 0, high = 1;
    for (int d = 0; d < s->data; d++)
        if (!(speeds[d] > 0) || !isfinite(speeds[d]))
            return;
    while (sum_limited(s, speeds, high) < 1)
        high *= 2;
    for (int i = 0; i < 200; i++) {
        double middle = low + (high - low) / 2;
        if (sum_limited(s, speeds, middle) < 1)
            low = middle;
        else
            high = middle;
    }
    if (!s->weights)
        s->weights = mem_alloc((size_t)s->data * sizeof *s->weights);
    for (int d = 0; d < s->data; d++)
        s->weights[d] = limited(speeds[d] * high, even_of(s));
}

/* Where the slice of data rank `d` begins, of `total` items. */
static int64_t weighed_begin(const struct share *s, int64_t total, int d)
{
    double before = 0;
    for (int i = 0; i < d; i++)
        before += s->weights[i];
    int64_t begin = (int64_t)floor(before * (double)total + 0.5);
    return d == s->data || begin > total ? total : begin;
}

static void weighed_slice(const struct share *s, int64_t total, int64_t *ret_begin,
                          int64_t *ret_end)
{
    *ret_begin = weighed_begin(s, total, s->data_rank);
    *ret_end = weighed_begin(s, total, s->data_rank + 1);
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
        if (s->weights)
            weighed_slice(s, total, &begin, &end);
        else
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

/* A weighed slice may be one more than its share, both of its ends being rounded. */
int64_t share_most(const struct dataset *set, const struct fit *fit, const struct mesh *m,
                   const struct plan *p)
{
    int64_t begin, end, batch = smaller(fit->batch_size, set->samples);
    share_slice(batch, share_grains(p), m->data, 0, &begin, &end);
    if (p->parallel.shares == SHARES_MEASURED)
        end = begin + smaller(batch, SHARE_MOST * (end - begin) + 1);
    return end > begin ? end - begin : 1;
}
