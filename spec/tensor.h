/* tensor.h: how the layers of a stage are split over the ranks of a tensor group.
 *
 * An activation is whole on every rank of the group, or split by columns: each rank holds a part of
 * its last dimension (channels of a convolution). A dense layer of a whole input takes columns of
 * its kernel and leaves a split output; one of a split input takes the rows that belong to its
 * columns, and the products are summed: a pair of dense layers costs one sum forward and one
 * backward. What cannot work on columns has them gathered before.
 *
 * Any size goes with any number of ranks: all parts have the length of the first, and the last ones
 * are padded. Padding of parameters and activations is zero and stays so; layers whose function is
 * not 0 at 0 have the padding of their output masked.
 */
#ifndef TRAINYARD_SPEC_TENSOR_H
#define TRAINYARD_SPEC_TENSOR_H

#include "spec/model.h"

enum tensor_split {
    TENSOR_WHOLE,      /* every rank does all of it */
    TENSOR_COLUMNS,    /* a part of the last dimension of kernel and bias: dense, conv2d */
    TENSOR_ROWS,       /* a part of the kernel's rows; outputs are summed, then bias and activation:
                          dense */
    TENSOR_VOCABULARY, /* a part of the table's rows; outputs are summed: embedding */
    TENSOR_CHANNELS    /* works on the columns it is given; its vectors are split alike */
};

struct tensor_cut {
    enum tensor_split split;
    int input_split;  /* its input is split by columns */
    int output_split; /* so is its output, after `gather` */
    int gather;       /* its output's columns are gathered for what follows */
    const char *why;  /* TENSOR_WHOLE: the reason, to follow "is not split:"; static */
};

/* The cuts of layers [first, last), which are one stage: `ret` has last - first of them. With
 * `ranks` 1 everything is whole. `fused`: the last activation of the model is left to the loss. */
void tensor_cuts(const struct model *m, int first, int last, int ranks, int fused,
                 struct tensor_cut *ret);

/* The axis of tensor `t` of the layer that is split, -1 for none. */
int tensor_axis(const struct layer *l, int t, enum tensor_split split);

/* Part `rank` of `size` for `ranks`: [*ret_begin, *ret_end), which may be empty. Returns the length
 * of every part, padding included. */
int64_t tensor_part(int64_t size, int ranks, int rank, int64_t *ret_begin, int64_t *ret_end);

#endif
