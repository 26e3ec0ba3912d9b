/* replicas.h: where a rank's values lie, and what the data ranks of a stage do for one another in a
 * step: their gradients are summed, and the update of the parameters is divided among them.
 *
 * Buckets. Arenas (net.h) are cut into buckets at layer borders, from the last layer down, which is
 * the order in which backward completes them; the cuts depend on the layout and the plan alone, so
 * that ranks with few or no items make the same calls. A bucket's gradients are summed as soon as
 * they are complete, with plan.parallel.overlap by a thread beside backward.
 *
 * Parts. A rank's own part of a bucket is comm_part()'s. What is divided:
 *
 *   zero 0   nothing: each rank sums and updates everything
 *   zero 1   the optimizer's state: a rank receives the sums of its part, updates its part of the
 *            parameters and fetches the others', which go on beside the next forward pass
 *   zero 2   gradients too: a bucket's gradients lie in scratch memory only while they are
 *            computed; of their sum a rank keeps its part, to which each micro-batch adds
 *   zero 3   parameters too: a bucket's are gathered before its layers are used, and given up for
 *            those of other buckets afterwards
 *
 * Where a step has one micro-batch all four give the same bits, for sums are taken in one tree over
 * the ranks. With more, zero 2 and 3 sum over ranks first and micro-batches second, zero 0 and 1
 * the other way round, which rounds otherwise. (On a device whose sums have their transport's order
 * only two data ranks have the same bits.)
 *
 * Reproducible. Micro-batches are grains of a fixed size, and gradients their sum in a binary tree
 * over all grains of the batch: a rank adds up its own like a binary counter (one arena a level),
 * the ranks go on with the levels above. Where a rank has several grains its gradients therefore
 * lie whole also under zero 2 and 3. Squares are summed exactly (exact.h), so that clipping depends
 * on no order either.
 *
 * Tables. Of an embedding few rows may be touched in a step. With zero 0 such a table is a bucket
 * of its own, whose gradient goes as a list of those rows where that is shorter: the same sums, bit
 * for bit.
 *
 * Codecs. A rank packs its sums over micro-batches, all get the packed ones of all, and each adds
 * them up in rank order: the same bits everywhere, float32 sums of rounded values. What packing
 * lost stays with the rank as its residual and is added to its next gradient. Nothing is divided
 * then.
 *
 * bfloat16 weights. Layers read rounded copies of float32 masters, unpacked a layer at a time. With
 * zero 0 they are rounded on the way and nothing is kept twice; else a rank has the masters of its
 * own part only, and the copies of all (zero 3: of its part) as bfloat16.
 *
 * Delayed. The sums of a step go on beside the whole next one, which computes into a second arena
 * with the weights as they were before: w(t+1) = w(t) - update of g(w(t-1)).
 *
 * local_sgd. Data ranks update weights of their own, with optimizer state of their own, and meet
 * now and then: all take the mean of the weights (a sum in the tree over ranks, times 1/ranks).
 * With an outer learning rate a or momentum u the mean is a gradient instead, d = anchor - mean,
 * and Nesterov's step is taken with it (Douillard et al., "DiLoCo", 2023): v = u v + d, weights =
 * anchor - a (d + u v), which become the next anchor.
 *
 * Beside. Sums and gathers are jobs of a queue: of a thread, where the device is the host; else
 * they are asked of the device, which does them beside its verbs until somebody waits for the job.
 * What follows a collective, such as adding up what codecs have packed, is the job's second half.
 *
 * A rank that has no replicas (the only one, or a member of an ensemble) owns everything and calls
 * nobody.
 */
#ifndef TRAINYARD_TRAINER_REPLICAS_H
#define TRAINYARD_TRAINER_REPLICAS_H

#include "spec/plan.h"
#include "trainer/exact.h"
#include "trainer/layers.h"
#include "trainer/mesh.h"
#include "trainer/net.h"
#include "trainer/optimizer.h"
#include "trainer/queue.h"

/* Values that outlive a step (pieces.h). */
enum piece_kind {
    PIECE_PARAMETER,
    PIECE_STATE_0,
    PIECE_STATE_1,
    PIECE_PENDING,
    PIECE_ANCHOR,
    PIECE_OUTER,
    PIECE_RESIDUAL,
    PIECE_KIND__MAX
};

#define BUCKET_BYTES  (4 * 1024 * 1024)
#define BUCKET_LEVELS 16 /* of the tree over a rank's grains, at most */

/* Values for trained elements: of the whole arena, or of this rank's own parts, bucket by bucket.
 */
struct arena {
    void *at; /* NULL: none */
    enum storage_type type;
    int is_divided;
    int is_shared; /* belongs to the transport */
};

struct bucket {
    size_t begin, end;              /* of the arenas */
    size_t own_begin, own_end;      /* what this rank updates */
    size_t shard;                   /* where that begins in divided arenas */
    int first, last;                /* layers with trained elements: first..last */
    int layers, left;               /* how many; of them not complete yet */
    int rounds;                     /* sums of it that were begun in this step; zero 2 and 3 */
    const struct net_tensor *table; /* an embedding's, which is all of it; else NULL */
    int64_t gathered;               /* ticket of what makes its parameters whole again */
    int64_t listed;                 /* rows of the lists that its present sum is made of */
};

/* Memory for one bucket at a time. */
struct slot {
    void *at;
    int bucket;     /* -1: none */
    int adds;       /* to what the step's earlier micro-batches left of the own part */
    int64_t ticket; /* of the last job that uses it */
};

struct replicas_bytes {
    size_t parameters, gradients, state;
    size_t rest; /* lists of rows, codecs, and what local_sgd goes by */
};

struct replicas {
    struct net *net;
    const struct job_spec *job;
    const struct plan *plan;
    struct comm *world, *group; /* the mesh's; group NULL: no replicas */
    struct queue *queue;
    int data, data_rank; /* of the mesh; an ensemble's members, too */
    int alone;           /* members: they have nothing in common */
    int zero;            /* 0 without replicas */
    int is_rounded;      /* layers read bfloat16 copies */
    int is_delayed;      /* a gradient is applied one step late */
    int is_apart;        /* local_sgd: data ranks have weights of their own between two means */
    int grains;          /* this rank's, in a tree; 0: micro-batches are added up as they come */

    struct bucket *buckets;
    int count;
    int *bucket_of; /* [layers]; -1 where nothing is trained */
    size_t own;     /* elements of the own parts together */
    size_t widest;  /* elements of the largest bucket */

    struct arena master;            /* float32 */
    struct arena copies;            /* bfloat16, of all; zero 1 and 2 */
    struct arena gradient[2];       /* whole, or with zero 2 and 3 own parts of the sums; the second
                                       one where delayed, in turn */
    int writes, ready;              /* which one passes write to, and which can be applied */
    int64_t summed[2];              /* tickets of their last sums */
    struct arena residual;          /* of a codec: what this rank has not sent yet */
    char *rows;                     /* lists of touched rows of a table, of all data ranks */
    uint32_t *row_ids;              /* [most that this rank may list] */
    char *packed;                   /* [data][codec_bytes(widest)]: gradients on their way */
    struct arena anchor, outer;     /* local_sgd with outer steps: weights at the last mean, and
                                       the momentum */
    struct arena state[NET_STATES]; /* of the optimizer */
    float *level[BUCKET_LEVELS];    /* [trained]: sums of 2^i grains */
    float *fixed;                   /* [elements - trained] */
    float *unpacked;                /* one layer's rounded parameters, for the layer at work */
    struct slot values[2], sums[2]; /* zero 3: gathered parameters; zero 2, 3: gradients */
    int value_slots, sum_slots;     /* how many of them */
    int value_turn, turn;           /* those at work */
    int next;                       /* bucket to sum, of an arena */
    int *pushed;                    /* [layers]: leaves of the tree that are in it */

    size_t private_bytes, shared_bytes; /* of all that */
    struct replicas_bytes by;           /* the same, by what it is for */
    int is_measuring;                   /* sizes only */
    struct queue_times seen;            /* at the end of the last step */
};

/* Lays out `net` for rank `mesh` (placed is enough); allocates nothing. All four outlive it. */
void replicas_init(struct replicas *r, const struct job_spec *job, const struct plan *plan,
                   struct net *net, const struct mesh *mesh);
/* Bytes that replicas_open will ask of comm's memory(), and of the device besides; and r->by. */
void replicas_measure(struct replicas *r, size_t *ret_shared, size_t *ret_private);
/* Allocates everything, all zeroes, with the tensors' pointers set where they do not change; makes
 * the thread. The mesh, now connected, outlives it. */
int replicas_open(struct replicas *r, const struct mesh *mesh, struct err *e);
void replicas_done(struct replicas *r); /* safe on a zeroed struct */

/* After the start values are set. */
void replicas_start(struct replicas *r);

/* ---- a step ---- */

void replicas_begin(struct replicas *r);
/* What all passes call. */
struct layers_hook replicas_hook(struct replicas *r);
/* After the last pass: waits for the sums; where gradients are delayed, for those of the step
 * before. What is told and applied next are these. */
int replicas_finish(struct replicas *r, struct err *e);
/* Delayed: waits for the sums of the last step, too, which are then next. */
int replicas_flush(struct replicas *r, struct err *e);

/* The squares of the summed gradients, each element counted once in the sum over all ranks; exactly
 * where `exact`, else `*ret_sum` is rounded as it comes. */
void replicas_squares(const struct replicas *r, int exact, struct exact_sum *ret_exact,
                      double *ret_sum);

/* Updates what this rank owns and has the others' on their way. */
int replicas_update(struct replicas *r, double rate, int64_t update, double scale, struct err *e);

/* Nothing is on its way any more. */
int replicas_settle(struct replicas *r, struct err *e);

/* local_sgd: sets all weights to their mean over the data ranks, or a step towards it; under way
 * when it returns. */
int replicas_average(struct replicas *r, struct err *e);

int replicas_are_delayed(const struct replicas *r);
int replicas_are_apart(const struct replicas *r);

/* Since the last call: communication that the caller waited for, and that ran beside it. Returns 0
 * if there is none, or it is the device that waits. */
int replicas_times(struct replicas *r, int64_t *ret_exposed_us, int64_t *ret_hidden_us);

/* ---- values that outlive a step, by their place in the arenas (settled) ---- */

int replicas_keeps(const struct replicas *r, enum piece_kind k); /* 1 if there are any such */
/* 1 if each data rank has its own. */
int replicas_differ(const struct replicas *r, enum piece_kind k);

/* The end of the bucket, or of the fixed tensors, that `at` lies in. */
size_t replicas_stretch(const struct replicas *r, size_t at);
/* The part of [*begin, *end), which lies within one such, that this rank holds; or that it is the
 * one to save. Empty ones have *begin == *end. */
void replicas_clip_held(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end);
void replicas_clip_saved(const struct replicas *r, enum piece_kind k, size_t *begin, size_t *end);

/* Residuals of a codec start anew, at zero. */
void replicas_clear_residual(struct replicas *r);
/* The gradient that would be applied next was not finite: nothing of it is left. */
void replicas_drop_gradient(struct replicas *r);
/* Residuals are multiplied, as the gradients are that they will be added to. */
void replicas_scale_residual(struct replicas *r, double factor);

/* From device to host memory; the range is what clip_saved or clip_held gave. */
void replicas_get(const struct replicas *r, enum piece_kind k, size_t at, size_t n, float *host);
/* Sets what this rank holds of [at, at + n), any range, and what is derived from it. */
void replicas_set(struct replicas *r, enum piece_kind k, size_t at, size_t n, const float *host);

/* Collective over the data group: the masters of bucket b, whole, on every rank, in host memory
 * [end - begin]. */
int replicas_collect(struct replicas *r, int b, float *host, struct err *e);
#endif
