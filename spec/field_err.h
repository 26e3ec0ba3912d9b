/* field_err.h: documents of our own, whose first fault is one sentence. */
#ifndef TRAINYARD_SPEC_FIELD_ERR_H
#define TRAINYARD_SPEC_FIELD_ERR_H

#include "base/err.h"
#include "spec/field.h"

/* 0 if there are no faults; else ERR_INVALID and "<what>, <pointer>: <message>". */
int field_first_fault(const struct faults *f, const char *what, struct err *e);

#endif
