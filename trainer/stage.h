/* stage.h: a rank's chunks of the model at work: micro-batches forward and backward, in the order
 * of the schedule (spec/schedule.h), with activations and gradients passed to the neighbours. A
 * rank without neighbours is a pipeline of one stage.
 *
 * The micro-batches of a step are the slices (order.h) of the data rank's items, in a reproducible
 * run the grains that it has. Ones without items take part in all that ranks do together, but send
 * nothing. Every stage adds up its gradients in micro-batch order, so the schedules give the same
 * bits.
 *
 * A chunk with bars (frame.h) is worked on by all micro-batches in one go: as far as the bar, then
 * the sums of the whole batch are taken, then on from there. The sums of micro-batches, and then of
 * ranks, are added in one fixed tree in float64. Schedules must therefore take all forward passes
 * of such a chunk in a row, and all backward ones: gpipe does, and all do with one micro-batch.
 */
#ifndef TRAINYARD_TRAINER_STAGE_H
#define TRAINYARD_TRAINER_STAGE_H

#include "spec/schedule.h"
#include "trainer/batch.h"
#include "trainer/layers.h"
#include "trainer/mesh.h"
#include "trainer/share.h"

struct stage_chunk {
    int stage; /* of all stages of the model */
    struct frame *frames;
    int frame_count;
    struct layers_sums *sums; /* [layers of the chunk]; NULL without bars */
};

/* What the chunks have computed, without waiting for other ranks. */
struct stage_times {
    int64_t *busy_us; /* [chunks], in training; NULL: not measured */
    const struct layers_hook *hook;
    int64_t began_us, hook_us;
};

struct stage {
    const struct job_spec *job;
    const struct mesh *mesh;
    int microbatches;
    int parts; /* of this rank's validation data, whose sums are taken apart; at most
                  microbatches */
    struct schedule schedule;
    struct net net;
    struct frame_layout *layouts; /* [net.chunk_count] */
    struct stage_chunk *chunks;   /* [net.chunk_count] */
    struct frame_work work;
    struct layer_partials partials; /* of the layer at work */
    struct batch batch;
    struct items next;           /* of the step after this one; count 0: not known */
    double *leaves;              /* device [microbatches, leaf]: the sums of one bar */
    int leaf;                    /* the most of them that a bar has */
    int64_t max_rows;            /* items of the largest micro-batch */
    int64_t out_size;            /* elements per item of what the last chunk gives out */
    uint64_t seed;               /* of dropout */
    float loss_scale;            /* the gradient of the loss is multiplied by it; 0: as 1 */
    struct loss_sums *sums;      /* device [microbatches]; of last stages */
    struct loss_sums *host_sums; /* [microbatches]: where they are read to */
    float *class_weights;        /* device [job->fit.class_weights]; of last stages, where given */
    struct stage_times times;
};

/* Micro-batches of a rank in a step. */
int stage_microbatches(const struct plan *p);
/* The largest micro-batch that any rank of the mesh will see. */
int64_t stage_max_rows(const struct job_spec *job, const struct plan *p, const struct mesh *m,
                       const struct dataset *set);
/* The longest message between stages, in bytes, where layers move between any two layers; 0 with
 * one stage. */
size_t stage_message_bytes(const struct model *m, const struct plan *p, int64_t max_rows);

/* s->net is laid out and allocated; the stage owns it from here. */
int stage_init(struct stage *s, const struct job_spec *job, const struct plan *p,
               const struct mesh *m, const struct dataset *set, struct err *e);
void stage_done(struct stage *s);                                     /* safe on a zeroed struct */
size_t stage_bytes(const struct stage *s, const struct dataset *set); /* without the net's arenas */

/* The step after the next stage_train() will be on these items, whose data may be fetched
 * meanwhile. Their ids must hold until then. NULL: there is none, or another epoch begins. */
void stage_expect(struct stage *s, const struct items *next);

/* Forward and backward of `items`, which gives the sum of their gradients to `hook` (zeroes where
 * there are none) and sets the sums. */
int stage_train(struct stage *s, const struct items *items, int64_t step,
                const struct layers_hook *hook, struct err *e);

/* Forward only, max_rows at a time. Sums of loss and metrics are set in the last stage; where
 * `visit` is given it sees the outputs, its own to change, after that. */
struct stage_visit {
    int (*outputs)(void *context, float *out, int64_t rows, struct err *e);
    void *context;
};
int stage_evaluate(struct stage *s, const struct items *items, const struct layers_hook *hook,
                   const struct stage_visit *visit, struct err *e);

/* Adds loss and metrics of outputs [rows] against the labels now in the batch to sums (device).
 * With a gradient, which is of training, by class_weight. */
void stage_loss(const struct stage *s, int from_logits, int64_t rows, const float *out,
                float *gradient, struct loss_sums *sums);

/* Asks the device for sums [count], at most one for each micro-batch; and once it has been waited
 * for, or else now, takes them, added up in a tree. */
void stage_fetch_sums(const struct stage *s, const struct loss_sums *sums, int count);
struct loss_sums stage_take_sums(const struct stage *s, int count);

/* From now on the times of chunks add up in s->times.busy_us. */
void stage_measure(struct stage *s);

/* Tests make chunks seem slow: what a pass of one takes longer. NULL. */
extern int64_t (*stage_added_us)(const struct stage *s, int chunk);

/* ---- bars (stage_bars.c) ---- */

int stage_bars_init(struct stage *s, struct err *e);
void stage_bars_done(struct stage *s);
size_t stage_bars_bytes(const struct stage *s);

/* What micro-batch p->j adds to the sums of the chunk's bar `b`; in backward from `dy`. */
void stage_bar_leaf(struct stage *s, const struct layers_pass *p, int b, const float *dy);
/* The sums of all leaves and ranks; `total` items are in the whole batch. */
int stage_bar_add_up(struct stage *s, int chunk, int b, int backward, int64_t total, struct err *e);

#endif
