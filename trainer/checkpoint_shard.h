/* checkpoint_shard.h: the shard of one rank: a safetensors file whose tensors are pieces.
 *
 * A piece is a float32 tensor [to - from] named "<kind>/<tensor>/<number in the file>", where kind
 * is piece_kind_name() or "best", the weights of the best epoch. __metadata__ has under the same
 * name where it belongs, as JSON text: {"kind", "tensor", "number", "axis", "begin", "end",
 * "extent", "from", "to", "replica", "replicas"}, which are the fields of struct piece.
 */
#ifndef TRAINYARD_TRAINER_CHECKPOINT_SHARD_H
#define TRAINYARD_TRAINER_CHECKPOINT_SHARD_H

#include "trainer/checkpoint_write.h"
#include "trainer/piece_copy.h"
#include "trainer/safetensors.h"

/* The items of a shard with these pieces, whose values are borrowed; `best` may be NULL. Free with
 * shard_items_free(). */
struct checkpoint_item *shard_items(const struct piece_copy *snapshot,
                                    const struct piece_copy *best, int *ret_count);
void shard_items_free(struct checkpoint_item *items, int count);

struct shard_piece {
    int is_best; /* then piece.kind is PIECE_PARAMETER */
    struct piece piece;
    const char *tensor; /* its name; the file's */
};

struct shard; /* an open file */
int shard_open(int take_fd, const char *name_for_errors, struct shard **ret, struct err *e);
void shard_close(struct shard *s); /* NULL is fine */
int shard_count(const struct shard *s);
/* Piece `i`, whose text is checked, not that it fits a model. The texts live until the next call.
 */
int shard_piece(struct shard *s, int i, struct shard_piece *ret, struct err *e);
/* Values [from, to) of piece `i`, counted from its beginning. */
int shard_read(const struct shard *s, int i, size_t from, size_t to, float *out, struct err *e);

/* 0 if the model has a tensor of that number and name. */
int shard_check_tensor(const struct model *m, const struct shard_piece *p, struct err *e);

#endif
