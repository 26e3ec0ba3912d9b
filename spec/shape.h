/* shape.h: shapes that may come from input. */
#ifndef TRAINYARD_SPEC_SHAPE_H
#define TRAINYARD_SPEC_SHAPE_H

#include "spec/model.h"

/* 1 to SHAPE_MAX_DIMS sizes, each at least 1, at most SHAPE_MAX_ELEMENTS elements together. Only of
 * such a shape may shape_elements() be asked. */
int shape_valid(const struct shape *s);

#endif
