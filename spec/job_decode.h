/* job_decode.h: the parts of a job document; job.c puts them together. */
#ifndef TRAINYARD_SPEC_JOB_DECODE_H
#define TRAINYARD_SPEC_JOB_DECODE_H

#include "spec/field.h"
#include "spec/job.h"

/* Each decodes a member of the job document into a job_spec: `base` is one. */
void decode_compile(struct decoding *d, const json_t *v, const struct where *at, void *base);
void decode_data(struct decoding *d, const json_t *v, const struct where *at, void *base);
void decode_strategy(struct decoding *d, const json_t *v, const struct where *at, void *base);
void decode_command(struct decoding *d, const json_t *v, const struct where *at, void *base);
void decode_labels(struct decoding *d, const json_t *v, const struct where *at, void *base);
void decode_time_limit(struct decoding *d, const json_t *v, const struct where *at, void *base);
void decode_precision(struct decoding *d, const json_t *v, const struct where *at, void *base);
void decode_checkpoint(struct decoding *d, const json_t *v, const struct where *at, void *base);
/* `base` is a struct resources. */
void decode_memory(struct decoding *d, const json_t *v, const struct where *at, void *base);

void data_source_done(struct data_source *s);

/* As a job that says nothing about them has them. */
void checkpoint_set_defaults(struct checkpoint *c);
void strategy_set_defaults(struct strategy *s);

extern const struct object compile_object, optimizer_object, fit_object, resources_object;

/* What only shows when parts are seen together. Each check is made where the parts that it needs
 * had no fault of their own. */
void check_training(struct decoding *d, const struct job_spec *s, const json_t *doc,
                    const struct where *at);
void check_fit(struct decoding *d, const struct job_spec *s, const json_t *doc,
               const struct where *at);
/* Besides, settles what depends on the rest of the job: the schedule and the number of chunks. */
void check_strategy(struct decoding *d, struct job_spec *s, const json_t *doc,
                    const struct where *at);

/* Whether a layer has work enough to be a stage: parameters, or a pass of its own over its input
 * (rescaling). What only follows another layer (activation, dropout, flatten, reshape) has not. */
int layer_has_work(const struct layer *l);

#endif
