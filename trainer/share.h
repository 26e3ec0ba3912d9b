/* share.h: which samples a rank takes in each step. A function of (seed, epoch, step) and of the
 * rank's place, so every rank knows all it needs without asking.
 *
 * Data parallel: global batch k of an epoch is ids [k B, (k + 1) B) of the epoch's order, the last
 * one smaller; a data rank takes its slice of it, which may be empty. In a reproducible run the
 * batch is always cut into the same grains, and a rank's slice is those that it has.
 *
 * Ensemble: member s of S owns the samples with id % S == s, and has an order of its own by
 * (seed + s, epoch). After global step k it has seen as many of them as lie among the first
 * min((k + 1) B, N) ids; so a member's batch is its share of the global batch (B / S where S
 * divides B), each of its samples comes once an epoch, and all members make the same number of
 * steps.
 */
#ifndef TRAINYARD_TRAINER_SHARE_H
#define TRAINYARD_TRAINER_SHARE_H

#include <stdint.h>

#include "spec/job.h"
#include "trainer/data.h"
#include "trainer/mesh.h"

#define SHARE_MOST  2
#define SHARE_LEAST 4

/* Samples to work on. */
struct items {
    const struct dataset *set;
    const int64_t *ids;
    int64_t count;
    int64_t position; /* of ids[0] in the global (for an ensemble: the member's) batch */
    int64_t total;    /* items of that batch */
};

struct share {
    const struct dataset *set;
    const struct fit *fit;
    int data_rank, data, ensemble;
    int grains;      /* 0: not cut into grains */
    double *weights; /* [data], their sum is 1; NULL: even slices */
    int64_t batch, steps_per_epoch;
    int64_t *ids; /* the epoch's order; owned */
    int64_t own;  /* how many of them: all samples, or the member's */
};

/* `grains` of a reproducible run, else 0; divisible by the data ranks. */
void share_init(struct share *s, const struct dataset *set, const struct fit *fit,
                const struct mesh *m, int grains);
void share_done(struct share *s);
void share_epoch(struct share *s, int64_t epoch);                                  /* from 1 */
void share_items(const struct share *s, int64_t step_in_epoch, struct items *ret); /* from 0 */
int64_t share_global_items(const struct share *s, int64_t step_in_epoch);
int64_t share_steps(const struct share *s); /* of the whole run */

/* Slices follow the data ranks' speeds [data], in items per whatever, the same numbers on every
 * rank; from the next share_items on. */
void share_weigh(struct share *s, const double *speeds);

/* The slice [*ret_begin, *ret_end) of `total` items that data rank `rank` of `ranks` takes. */
void share_slice(int64_t total, int grains, int ranks, int rank, int64_t *ret_begin,
                 int64_t *ret_end);

/* The most items that any rank takes in one step. */
int64_t share_most(const struct dataset *set, const struct fit *fit, const struct mesh *m,
                   const struct plan *p);

int share_grains(const struct plan *p); /* as share_init wants them */

#endif
