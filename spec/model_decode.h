/* model_decode.h: the model as a part of the job document. */
#ifndef TRAINYARD_SPEC_MODEL_DECODE_H
#define TRAINYARD_SPEC_MODEL_DECODE_H

#include "base/err.h"
#include "spec/field.h"
#include "spec/model.h"

#define DATA_PATH_MAX 4096

extern const struct object model_object;

/* A layer of the document and where its fields stand. */
struct model_item {
    const json_t *doc;
    struct where at;
};
/* Decodes the layers of a model whose input is known (or faulty) into `m`; `at`: of their list. */
void model_decode_items(struct decoding *d, const struct model_item *items, size_t count,
                        const struct where *at, struct model *m);

/* Returns 0 if there was no fault; `m`, zeroed before, is to be released either way. */
int model_decode(struct decoding *d, const json_t *v, const struct where *at, struct model *m);

#endif
