/* engine.h: one rank of a training run: its slice of the model, its share of the data, its peers.
 *
 * Everything that could differ between ranks is agreed on once per step, in one exchange of
 * tallies: loss and metric sums, items, squared gradients, the wish to stop. Each rank adds them
 * up in rank order and so decides the same: whether the loss is finite, how far to clip, whether
 * to stop.
 *
 * Gradients, losses and metrics are sums until the tally, then divided once, by the global count of
 * items. An ensemble's members divide by their own counts and share nothing but the tally.
 */
#ifndef TRAINYARD_TRAINER_ENGINE_H
#define TRAINYARD_TRAINER_ENGINE_H

#include "spec/launch.h"
#include "trainer/data.h"
#include "trainer/loss_scale.h"
#include "trainer/replicas.h"
#include "trainer/optimizer.h"
#include "trainer/rebalance.h"
#include "trainer/stage.h"

/* What one rank has to say of the checkpoint that is being written: checkpoint.c fills it in before
 * a step and reads all ranks' after it. */
struct checkpoint_word {
    int32_t phase;     /* enum checkpoint_phase */
    int32_t is_wanted; /* rank 0: it is time for one */
    int64_t committed; /* rank 0: step of the newest that is whole; 0: none */
    int64_t bytes;     /* of the shard that was written */
    uint64_t sum[2];
    int64_t updates; /* done when the snapshot was taken */
};

/* What one rank has to say after a step or an evaluation. */
struct tally {
    struct loss_sums sums; /* of last stages; zero from others */
    double items;          /* rows of output behind the sums: items, or labels where an item has
                              one at each of its positions */
    double squares; /* of the summed gradients; each parameter counts once in all ranks' sum */
    struct exact_sum exact;            /* the same, where the norm may depend on no order */
    int64_t stop;                      /* this rank was asked to stop */
    struct checkpoint_word checkpoint; /* of a step only */
};

/* Sums over items; divide by items. */
struct figures {
    struct loss_sums sums;
    double items;
};

struct engine {
    const struct launch *launch;
    const struct job_spec *job;
    const struct plan *plan; /* the launch document's, or `current` */
    struct plan current;     /* where layers may move: the same with stages of its own */
    struct rebalance rebalance;
    struct mesh mesh;
    struct prepared prepared;
    struct share share;
    struct stage stage;
    struct replicas replicas;
    struct tally *tallies;    /* [ranks] */
    struct figures *seen;     /* [members]: this epoch's training, as seen */
    int members;              /* 1 unless an ensemble */
    float *outputs;           /* of an ensemble: [max_rows, out], where predictions are merged */
    struct loss_sums *merged; /* device */
    int64_t step, steps;      /* done; in all */
    int64_t updates;          /* done by this rank */
    int64_t local_steps;      /* local_sgd: since the last mean */
    int64_t pending_items, pending_step; /* delayed: behind the gradient that the next step applies,
                                            and the step that it is of; 0: there is none */
    struct loss_scale scale;             /* of the gradients that are computed next */
    double pending_scale;                /* delayed: of the gradient that the next step applies */
    struct checkpoint_word checkpoint;   /* this rank's, for the next step */
    size_t *arrived;                     /* while a checkpoint is read (pieces.c); else NULL */
    int64_t resident_before; /* resident_bytes() before anything was taken; -1: unknown */
    size_t memory_bytes;     /* all that this rank will ever use, but for the shared data set; where
                                the device has memory of its own, of that */
    struct ops_options options; /* that the device was opened with */
    int has_device;             /* it is open */
    size_t transport_bytes;     /* of memory_bytes, what does not hold values */
    const volatile int *stop;
    const char
        *code; /* what a failure is called, where the error's code says too little; or NULL */
};

/* Where the outside is reached: docs/protocols.md section 4. */
struct engine_fds {
    int report, gang, data;
    int spool; /* -1: none */
};

/* Sets up everything, meets the peers, and gives the parameters their start values. On failure
 * the engine is half-built: engine_close() it. */
int engine_open(struct engine *g, const struct launch *l, int rank, const struct engine_fds *fds,
                const volatile int *stop, struct err *e);
void engine_close(struct engine *g);

/* What memory_bytes foretold, as the device or the kernel counts it now; -1: it does not tell. Most
 * of the data set, which ranks share, is taken off. */
int64_t engine_measured_bytes(const struct engine *g);

/* ---- engine_device.c ---- */

/* Takes the process's device, for what the stage is laid out for. */
int engine_open_device(struct engine *g, int64_t max_rows, struct err *e);
void engine_close_device(struct engine *g); /* safe where it was not opened */

/* Adds to memory_bytes: what the device holds, and what the host does. */
void engine_count(struct engine *g, size_t device, size_t host);

/* Parameters and what goes with them, as the plan lays them out here. */
int engine_values_bytes(const struct engine *g, struct replicas_bytes *ret, struct err *e);

/* 1 if the device broke, which `e` then says: one that broke gives no memory, however much it has.
 */
int engine_device_failed(const struct engine *g, struct err *e);

/* Before the sentence that the device is full: what it was to hold, and what would need less. The
 * table goes to the log. */
void engine_explain_no_memory(const struct engine *g, struct err *e);

/* What the plan's cut decides about: the chunks that this rank has, their arenas and frames. Set up
 * with start values of zero. */
int engine_set_up(struct engine *g, struct err *e);
void engine_take_down(struct engine *g);
/* What the ranks of the largest stage share through the transport. */
int engine_shared_bytes(const struct engine *g, const struct plan *p, size_t *ret, struct err *e);

void engine_begin_epoch(struct engine *g, int64_t epoch); /* from 1 */

struct step_result {
    double loss;
    double grad_norm, learning_rate; /* of the gradient that was applied; 0 where none was */
    int64_t items;
    double loss_scale; /* that the gradient was computed with; 0: none */
    int skipped;       /* the gradient was not finite: nothing was updated */
    int stop;          /* some rank was asked to stop: all see it at the same step */
    int has_comm;      /* data ranks exchange something; then the time it took this rank: */
    int64_t comm_exposed_us, comm_hidden_us; /* waiting for it, and beside computing */
};
/* One optimiser step on global batch `step_in_epoch` (from 0). A loss or gradient that is not
 * finite is ERR_INVALID, before any parameter changes; where gradients are scaled (loss_scale.h) a
 * gradient that is not finite skips the update, on all ranks, an ensemble's too.
 *
 * With sync "delayed" the gradient of a step is applied in the next one, with its own norm, divisor
 * and learning rate; the first step applies nothing and the last of the run two. With "local_sgd"
 * each data coordinate applies its own gradient, clipped by its own norm, divided by an equal share
 * of the batch's items; weights are averaged after every local_steps of them and at the end of
 * every epoch and of the run, so that what is validated or saved is one model. The norm told is the
 * mean of theirs. */
int engine_step(struct engine *g, int64_t step_in_epoch, struct step_result *ret, struct err *e);

/* local_sgd: where data ranks have taken steps since the last mean, their weights become it now:
 * for a run that stops between two. Weights that go on must not have met. */
int engine_meet(struct engine *g, struct err *e);

/* Means over items, NaN where there is nothing to tell. */
struct epoch_figures {
    double loss, accuracy, mae;
    double val_loss, val_accuracy, val_mae;
};
struct epoch_result {
    int has_validation;
    struct epoch_figures all;
    struct epoch_figures *members; /* [engine.members] of an ensemble, else NULL; owned by caller */
};
/* Takes the figures of the epoch (evaluate.c); of the validation data, too, where there are any and
 * `validate` is not 0. */
int engine_end_epoch(struct engine *g, int validate, struct epoch_result *ret, struct err *e);

/* The stage's sums, which are asked for first, and what these items count in a tally: zero but on
 * one rank of each last stage. */
void engine_fetch_sums(struct engine *g, int count);
struct loss_sums engine_take_sums(struct engine *g, int count);
double engine_counted(const struct engine *g, const struct items *items);
/* All ranks' tallies to all of them, once the device vouches for this one's. Their sums, in the
 * tree over data ranks that everything is summed in (comm.h), or one member's. */
int engine_exchange(struct engine *g, const struct tally *mine, struct err *e);
struct figures engine_sum(const struct engine *g, int member); /* -1: all */
void figures_add(struct figures *to, const struct figures *x);

#endif
