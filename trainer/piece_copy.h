/* piece_copy.h: pieces with their values, in host memory: a snapshot that a checkpoint is written
 * from while training goes on, and the weights of the best epoch. */
#ifndef TRAINYARD_TRAINER_PIECE_COPY_H
#define TRAINYARD_TRAINER_PIECE_COPY_H

#include "trainer/pieces.h"

struct piece_copy {
    struct piece *pieces; /* [count] */
    char **names;         /* [count]: of their tensors */
    float **values;       /* [count][to - from]; one allocation each, NULL where not copied */
    size_t count;
    int users; /* whoever holds one more reference to it */
};

/* What this rank is to save now, without values yet. `parameters_only` leaves out other kinds. */
int piece_copy_list(struct engine *g, int parameters_only, struct piece_copy **ret, struct err *e);
/* The same with values. */
int piece_copy_take(struct engine *g, int parameters_only, struct piece_copy **ret, struct err *e);
struct piece_copy *piece_copy_new(void); /* an empty one */
void piece_copy_add(struct piece_copy *c, const struct piece *p, const char *name,
                    float *take_values);
struct piece_copy *piece_copy_hold(struct piece_copy *c);
void piece_copy_drop(struct piece_copy *c); /* NULL is fine */

/* Sets all ranks' parameters from what all ranks have copied: collective. */
int piece_copy_restore(struct engine *g, const struct piece_copy *c, struct err *e);

/* The same of everything, on ranks that have been laid out anew. */
int piece_copy_restore_all(struct engine *g, const struct piece_copy *c,
                           const struct pieces_scalars *s, struct err *e);

/* Bytes of values that a copy taken of this engine has. */
int piece_copy_expect(struct engine *g, int parameters_only, size_t *ret_bytes, struct err *e);

#endif
