/* stage.h: a rank's slice of the model at work: micro-batches forward and backward, in the order of
 * the pipeline schedule, with activations and gradients passed to the neighbours. A rank without
 * neighbours is a pipeline of one stage.
 *
 * The micro-batches of a step are the slices (order.h) of the data rank's items; empty ones are
 * skipped by all stages alike. Every stage adds up its gradients in micro-batch order, so the
 * schedules give the same bits.
 *
 *   stage 0 of 2   gpipe  F0 F1 F2 F3 B0 B1 B2 B3     1f1b  F0 F1 B0 F2 B1 F3 B2 B3
 *   stage 1              F0 F1 F2 F3 B0 B1 B2 B3           F0 B0 F1 B1 F2 B2 F3 B3
 *
 * In flight, so in memory: all micro-batches with GPipe, stages - stage with 1F1B. Channels hold
 * two messages; 1F1B needs one for no rank ever to wait in a circle.
 */
#ifndef TRAINYARD_TRAINER_STAGE_H
#define TRAINYARD_TRAINER_STAGE_H

#include "trainer/batch.h"
#include "trainer/layers.h"
#include "trainer/mesh.h"
#include "trainer/share.h"

struct stage {
    const struct job_spec *job;
    const struct mesh *mesh;
    int microbatches;
    enum pipeline_schedule schedule;
    struct net net;
    struct frame *frames;
    int frame_count;
    struct frame_work work;
    struct batch batch;
    int64_t max_rows;       /* items of the largest micro-batch */
    int64_t out_size;       /* elements per item that leave the stage */
    uint64_t seed;          /* of dropout */
    struct loss_sums *sums; /* device; of the last stage */
};

/* The largest micro-batch that any rank of the mesh will see. */
int64_t stage_max_rows(const struct job_spec *job, const struct plan *p, const struct mesh *m,
                       const struct dataset *set);
/* The longest message between stages, in bytes; 0 with one stage. */
size_t stage_message_bytes(const struct model *m, const struct plan *p, int64_t max_rows);

/* s->net is laid out and allocated; the stage owns it from here. */
int stage_init(struct stage *s, const struct job_spec *job, const struct plan *p,
               const struct mesh *m, const struct dataset *set, struct err *e);
void stage_done(struct stage *s);                                     /* safe on a zeroed struct */
size_t stage_bytes(const struct stage *s, const struct dataset *set); /* without the net's arenas */

/* Forward and backward of `items`, which gives the sum of their gradients to `hook` (zeroes where
 * there are none) and adds to the sums. */
int stage_train(struct stage *s, const struct items *items, int64_t step,
                const struct layers_hook *hook, struct err *e);

/* Forward only, max_rows at a time. Sums of loss and metrics are added up in the last stage; where
 * `visit` is given it sees the outputs, its own to change, after that. */
struct stage_visit {
    int (*outputs)(void *context, float *out, int64_t rows, struct err *e);
    void *context;
};
int stage_evaluate(struct stage *s, const struct items *items, const struct stage_visit *visit,
                   struct err *e);

/* Adds loss and metrics of outputs [rows] against the labels now in the batch to sums (device). */
void stage_loss(const struct stage *s, int from_logits, int64_t rows, const float *out,
                float *gradient, struct loss_sums *sums);

/* Reads a device's sums and starts them at zero again. */
struct loss_sums stage_take_sums(const struct stage *s, struct loss_sums *sums);

#endif
