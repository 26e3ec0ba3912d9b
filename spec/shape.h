/* shape.h: shapes that may come from input. */
#ifndef TRAINYARD_SPEC_SHAPE_H
#define TRAINYARD_SPEC_SHAPE_H

#include "spec/field.h"
#include "spec/model.h"

/* 1 to SHAPE_MAX_DIMS sizes, each at least 1, at most SHAPE_MAX_ELEMENTS elements together. Only of
 * such a shape may shape_elements() be asked. */
int shape_valid(const struct shape *s);

/* A list of 1 to SHAPE_MAX_DIMS sizes; -1 is taken once where `one_free`. Returns 0, or -1 and a
 * fault. */
int decode_shape(struct decoding *d, const json_t *v, const struct where *at, const char *name,
                 int one_free, struct shape *ret);

#endif
