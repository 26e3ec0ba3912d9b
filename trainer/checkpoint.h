/* checkpoint.h: when a checkpoint is taken, and how the ranks agree that it is whole.
 *
 * At a step boundary every rank copies its pieces (piece_copy.h) and a thread of it writes them
 * while training goes on. With each step's exchange a rank says how far it is; when all have
 * written, rank 0 has its thread write the manifest and rename the directory. One checkpoint is
 * under way at a time: what comes due meanwhile waits.
 *
 * All that the ranks decide they decide from the words of one exchange (struct checkpoint_word), so
 * they decide alike and nobody waits for anybody:
 *
 *   NONE -> WRITING -> WRITTEN -> NONE              when all have written; rank 0: -> COMMITTING ->
 * NONE
 *               `----> FAILED --> NONE              when nobody writes any more
 *
 * A checkpoint that cannot be written (a full disk) costs nothing but itself: training goes on, the
 * log and the report say so.
 */
#ifndef TRAINYARD_TRAINER_CHECKPOINT_H
#define TRAINYARD_TRAINER_CHECKPOINT_H

#include "trainer/checkpoint_manifest.h"
#include "trainer/report.h"

enum checkpoint_phase {
    CHECKPOINT_NONE,
    CHECKPOINT_WRITING,
    CHECKPOINT_WRITTEN,
    CHECKPOINT_FAILED,
    CHECKPOINT_COMMITTING
};

/* Where a run stands between two steps, apart from its pieces. */
struct checkpoint_cursor {
    int64_t epoch, step_in_epoch; /* the epoch, from 1, and its steps that are done */
    struct early_stopping_state early;
    struct piece_copy *best; /* weights of the best epoch, or NULL; borrowed */
};

struct checkpoints {
    struct engine *g;
    struct report *out;
    const char *root; /* NULL: none are taken */
    enum checkpoint_phase phase;
    int is_due;                  /* by the count of steps, or asked for; the same on all ranks */
    int64_t started_us;          /* boot time when the last one was begun, at first the run */
    struct manifest manifest;    /* of the one under way */
    struct piece_copy *snapshot; /* of the one under way */
    struct piece_copy *best;     /* the same */
    struct checkpoint_item *items;
    int item_count;
    struct checkpoint_source live; /* reads from the engine */
    struct buf text;               /* the manifest, while it is written */
    struct checkpoint_writer writer;
    struct err failure; /* the sentence of this rank's last failure */
};

/* Collective only in that rank 0 has removed dead attempts' leftovers when it returns there: a
 * barrier must follow before the first step. */
int checkpoints_open(struct checkpoints *c, struct engine *g, struct report *out, struct err *e);
/* Ends what is under way early, where there is something. Safe on a zeroed struct. */
void checkpoints_close(struct checkpoints *c);

/* Before and after each engine_step(). What goes wrong with a checkpoint is no error here; only the
 * report file is. */
void checkpoints_before_step(struct checkpoints *c);
int checkpoints_after_step(struct checkpoints *c, const struct checkpoint_cursor *at,
                           struct err *e);

/* Host bytes that copies beside the training will take. */
int checkpoints_memory(const struct checkpoints *c, size_t *ret_bytes, struct err *e);

/* Collective, between steps: waits until nothing is under way. */
int checkpoints_finish(struct checkpoints *c, struct err *e);
/* Collective, between steps: a checkpoint of now, whole when this returns; *ret_is_whole tells. */
int checkpoints_take(struct checkpoints *c, const struct checkpoint_cursor *at, int *ret_is_whole,
                     struct err *e);

#endif
