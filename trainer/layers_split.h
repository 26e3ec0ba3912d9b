/* layers_split.h: what the walk through a chunk (layers.c) does where layers are split over tensor
 * ranks (spec/tensor.h). `rows` are items times the inner positions of the layer's output. */
#ifndef TRAINYARD_TRAINER_LAYERS_SPLIT_H
#define TRAINYARD_TRAINER_LAYERS_SPLIT_H

#include "trainer/layers.h"

/* Elements that layer l itself gives out on this rank, before they are gathered. */
size_t split_elements(const struct layers_pass *p, int l);

/* Fills the call's view of a split: its columns, its rows of a table, whom it adds up with. */
void split_call(const struct layers_pass *p, int l, struct layer_call *c);

/* Where a layer whose output is gathered writes its part, until split_gather(). */
float *split_part(const struct layers_pass *p, int l);
/* Collective: the parts of all tensor ranks into whole [rows, columns]. */
int split_gather(const struct layers_pass *p, int l, float *whole, struct err *e);

/* This rank's columns of whole [rows, columns], zero where they are padding; for backward, which
 * needs two at a time. */
enum split_use { SPLIT_OUTPUT, SPLIT_GRADIENT };
float *split_take(const struct layers_pass *p, int l, const float *whole, enum split_use use);

/* Zeroes the padding of what layer l has put into y. */
void split_mask(const struct layers_pass *p, int l, float *y);

/* Collective where the layer's columns are split but its input is whole: dx [n] is then only what
 * this rank's columns add to the gradient. */
int split_sum_gradient(const struct layers_pass *p, int l, float *dx, size_t n, struct err *e);

#endif
