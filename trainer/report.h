/* report.h: the report file (docs/protocols.md section 5): one JSON object a line. Lines gather
 * for at most REPORT_WRITE_US and go out whole; what matters to others goes out at once. */
#ifndef TRAINYARD_TRAINER_REPORT_H
#define TRAINYARD_TRAINER_REPORT_H

#include "base/buf.h"
#include "trainer/checkpoint_write.h"
#include "trainer/engine.h"

#define REPORT_WRITE_US 10000

struct report {
    int fd, rank;
    struct buf lines;          /* whole lines, not written yet */
    int64_t wrote_us;          /* boot time of the last write */
    int64_t step_us;           /* boot time of the last step's end */
    double samples_per_second; /* of the last step */
};

void report_init(struct report *r, int fd, int rank);
void report_done(struct report *r);
int report_flush(struct report *r, struct err *e);

int report_prepared(struct report *r, const struct prepared *p, const struct job_spec *job,
                    double seconds, struct err *e);
int report_ready(struct report *r, size_t memory_bytes, struct err *e);
/* `epoch` is the one that comes next, or is gone on with. */
int report_start(struct report *r, const struct engine *g, int64_t epoch, struct err *e);
int report_step(struct report *r, int64_t step, int64_t epoch, const struct step_result *s,
                struct err *e);
int report_epoch(struct report *r, const struct engine *g, int64_t epoch,
                 const struct epoch_result *x, double seconds, struct err *e);
struct checkpoint_line {
    int64_t step, epoch, bytes; /* bytes: of all its files */
    struct checkpoint_sum sum;  /* of its manifest */
    double seconds;             /* from the snapshot to the name */
};
int report_checkpoint(struct report *r, const struct checkpoint_line *c, struct err *e);
int report_checkpoint_failed(struct report *r, int64_t step, const char *reason, struct err *e);
int report_artifact(struct report *r, const char *name, int64_t bytes, struct err *e);
/* What was foretold of this rank's memory and what was measured; before the last word. */
int report_memory(struct report *r, size_t memory_bytes, int64_t measured_bytes, struct err *e);
int report_verdict(struct report *r, const char *outcome, const char *code, const char *reason,
                   struct err *e);

#endif
