/* checkpoint_manifest.h: manifest.json: what a checkpoint is of, where the run stood, and which
 * shards there must be. Field by field: docs/protocols.md.
 *
 * The same training on the same mesh gives the same bytes. Figures that must come back as they were
 * are hexadecimal floating-point texts ("0x1.8p+1").
 */
#ifndef TRAINYARD_TRAINER_CHECKPOINT_MANIFEST_H
#define TRAINYARD_TRAINER_CHECKPOINT_MANIFEST_H

#include "base/buf.h"
#include "trainer/checkpoint_write.h"
#include "trainer/early_stopping.h"
#include "trainer/pieces.h"

#define MANIFEST_FORMAT    "trainyard-checkpoint"
#define MANIFEST_VERSION   1
#define MANIFEST_MAX_BYTES (4 * 1024 * 1024)

struct manifest {
    char *job;              /* whose; owned */
    int64_t steps;          /* of the whole run */
    int64_t samples, batch; /* what the cursor counts in: training samples, global batch size */
    uint64_t seed;
    int ranks, data, pipeline, tensor; /* the mesh that wrote it */
    int64_t epoch, step_in_epoch;      /* the cursor: epoch from 1, steps of it done */
    struct pieces_scalars scalars;     /* updates: see below */
    int members;                       /* 1 unless an ensemble */
    int64_t *updates;                  /* [members]; owned */
    struct figures *seen;              /* [members]: of the epoch so far; owned */
    struct early_stopping_state early;
    struct checkpoint_shard *shards; /* [ranks], rank-N.safetensors; owned */
};

/* A manifest with room for `members` and `ranks`, all zero. */
void manifest_init(struct manifest *m, const char *job, int members, int ranks);
void manifest_done(struct manifest *m); /* safe on a zeroed struct */

void manifest_print(const struct manifest *m, struct buf *ret);
/* ERR_CORRUPT, with a sentence that names the field, for whatever manifest_print() would not have
 * printed. */
int manifest_parse(const char *text, size_t n, struct manifest *ret, struct err *e);

#endif
