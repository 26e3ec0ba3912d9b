/* field_say.h: the sentences that field.c needs besides those of field.h. */
#ifndef TRAINYARD_SPEC_FIELD_SAY_H
#define TRAINYARD_SPEC_FIELD_SAY_H

#include "spec/field.h"

/* `key` of the object `v` at `at` is in no table: a warning, or a fault where strict. */
void field_unknown(struct decoding *d, const struct object *o, const json_t *v, const char *key,
                   const struct where *at);

void field_not_object(struct decoding *d, const struct object *o, const json_t *v,
                      const struct where *at);
void field_not_a_number(struct decoding *d, const struct field *f, const json_t *v,
                        const struct where *at);
/* `x` is the number of `v`, outside f's limits. */
void field_out_of_range(struct decoding *d, const struct field *f, double x, const json_t *v,
                        const struct where *at);

#endif
