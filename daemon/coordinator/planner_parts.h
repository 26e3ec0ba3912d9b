/* planner_parts.h: what the files of the planner share. */
#ifndef TRAINYARD_COORDINATOR_PLANNER_PARTS_H
#define TRAINYARD_COORDINATOR_PLANNER_PARTS_H

#include "base/buf.h"
#include "base/faults.h"
#include "spec/job.h"
#include "spec/plan.h"

struct planner {
    const struct job_spec *job;
    struct faults *faults;
    int64_t limit; /* bytes a rank may use; INT64_MAX: no limit */
    char limit_source[96];
};

/* A mesh before it is known what else it takes to fit. */
struct layout {
    enum strategy_kind kind;
    int data, pipeline, tensor;
};

/* ---- planner_fit.c: one mesh, and what makes it fit ---- */

int64_t planner_rows(const struct job_spec *job, int data); /* of a batch, that a data rank takes */

/* The plan of the mesh with the least of what costs time that lets it fit: zero, more
 * micro-batches, recompute, in that order, each only where the job leaves it open; zero 3 only
 * `with_zero_3`. Where nothing fits, the leanest. ERR_INVALID if the layers cannot be cut so. */
int planner_fit(const struct planner *p, const struct layout *l, int with_zero_3, struct plan *ret,
                struct err *e);
/* The mesh alone, cut into stages: all but zero, recompute and memory_bytes. */
int planner_begin(const struct planner *p, const struct layout *l, struct plan *ret, struct err *e);
/* The leanest that can be made of it; p->job may have another batch than it was begun with. */
void planner_make_lean(const struct planner *p, struct plan *plan);
int planner_fits(const struct planner *p, const struct plan *plan);

/* 1 if data ranks may be so many: those of a reproducible job divide its grains. */
int planner_takes_data(const struct job_spec *job, int data);

/* The mesh that the job asks for; where it asks for "auto", the n-th (from 0) of those to be tried,
 * from the one with the fewest stages on. 0 if there is no n-th. */
int planner_layout(const struct job_spec *job, int n, struct layout *ret);

/* ---- planner_why.c: sentences ---- */

/* "12.0 MiB of the 4.0 GiB of resources.memory", "12.0 MiB, with no limit known ..." */
const char *planner_memory_text(const struct planner *p, int64_t bytes, char out[160]);
/* What the plan is, why it is so, and what it does to the mathematics. `plain` is the memory that
 * the whole model on every rank would need, where that was tried and did not fit; else 0. */
void planner_why(const struct planner *p, struct plan *plan, int64_t plain);

/* ---- planner_refuse.c ---- */

/* The fault of a job that fits nowhere: bytes over, and what would work. ERR_INVALID. */
int planner_refuse_memory(const struct planner *p);

#endif
