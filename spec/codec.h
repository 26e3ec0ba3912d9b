/* codec.h: how many bytes gradients take on their way between data ranks (plan.h, codec_kind). */
#ifndef TRAINYARD_SPEC_CODEC_H
#define TRAINYARD_SPEC_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "spec/plan.h"

#define CODEC_CHUNK 1024 /* int8: elements that have a scale in common */

/* Elements of n that top_k sends: at least one. */
size_t codec_top(const struct parallel *p, size_t n);

/* Bytes of n packed elements, a multiple of 64:
 *   bf16   uint16 [n]
 *   int8   float32 [chunks] scales (largest magnitude / 127), then int8 [n]
 *   top_k  uint32 [k] places, rising, then float32 [k] values */
size_t codec_bytes(const struct parallel *p, size_t n);

/* A table's gradient [rows, cols] goes as its touched rows where these are so few that all ranks'
 * lists together are shorter than the table: at most so many a rank; 0: never. */
int64_t codec_table_room(int ranks, int64_t rows, int64_t cols);
/* Bytes of a list of `room` rows: ids and values, a multiple of 64. */
size_t codec_rows_bytes(int64_t room, int64_t cols);

/* 1 if what packing lost is kept and added to the next gradient (error feedback). */
int codec_keeps_residual(enum codec_kind k);

#endif
