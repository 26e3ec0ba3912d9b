/* schedule.h: the order in which a rank of a pipeline takes the passes of a step. Pure; the planner
 * counts memory with it, the trainer runs it.
 *
 *   rank 0 of 2   gpipe  F0 F1 F2 F3 B0 B1 B2 B3     1f1b  F0 F1 B0 F2 B1 F3 B2 B3
 *   rank 1               F0 F1 F2 F3 B0 B1 B2 B3           F0 B0 F1 B1 F2 B2 F3 B3
 *
 * Interleaved (Narayanan et al., "Efficient large-scale language model training on GPU clusters
 * using Megatron-LM", 2021, section 2.2): stage s of pipeline * chunks is chunk s / pipeline of
 * rank s % pipeline. Micro-batches go in groups of `pipeline`: a group passes through a rank's
 * first chunk, then its second, and so on; backward likewise from the last chunk to the first.
 * A rank begins with 2 (pipeline - 1 - rank) + (chunks - 1) pipeline forward passes, then takes one
 * forward and one backward in turn. Where the last group is smaller, the passes that it lacks are
 * left out of the order that full groups have.
 *
 * Activations travel in one channel from each rank to the next (interleaved: from the last to the
 * first, too), gradients in another one back, both in the order of the passes. A channel holds
 * SCHEDULE_IN_CHANNEL messages; a rank that would send one more waits. No order made here then ends
 * in a circle of waiting ranks, also when the passes of the micro-batches from some number on are
 * skipped by all ranks alike.
 */
#ifndef TRAINYARD_SPEC_SCHEDULE_H
#define TRAINYARD_SPEC_SCHEDULE_H

#include <stdint.h>

#include "spec/plan.h"

#define SCHEDULE_IN_CHANNEL 2

struct schedule_pass {
    int microbatch, chunk; /* the rank's own chunks, from 0 */
    int is_backward;
};

struct schedule {
    struct schedule_pass *passes;
    int64_t count;
    int *in_flight; /* [chunks]: most micro-batches of a chunk between their forward and the end of
                       their backward pass: as many frames it needs. Micro-batch j may lie in frame
                       j % in_flight: they end in the order in which they began */
};

/* The passes of rank `rank` of `pipeline`. `chunks` is 1 unless interleaved; microbatches >= 1. In
 * flight on a rank, over all its chunks: with gpipe all micro-batches, with 1f1b at most
 * pipeline - rank, interleaved at most 2 (pipeline - 1 - rank) + (chunks - 1) pipeline + 1. */
void schedule_make(struct schedule *s, enum pipeline_schedule kind, int pipeline, int chunks,
                   int microbatches, int rank);
/* The forward passes alone, in the same order; in_flight is 1. */
void schedule_make_forward(struct schedule *s, int pipeline, int chunks, int microbatches);
void schedule_done(struct schedule *s); /* safe on a zeroed struct */

#endif
