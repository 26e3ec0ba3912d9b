/* tensorboard_file.h: a TensorBoard event file of scalars: what a SummaryWriter writes.
 *
 * A file is a row of records: u64 little-endian length, the masked CRC-32C of those 8 bytes, the
 * payload, the masked CRC-32C of the payload. A payload is an Event in protocol-buffer encoding
 * (tensorflow/core/util/event.proto, framework/summary.proto): wall_time 1, step 2, file_version 3
 * in the first record, summary 5 with values 1 of tag 1 and simple_value 2. Whoever reads a file
 * that is still written, or was cut short, sees the records that are whole.
 */
#ifndef TRAINYARD_TRAINER_TENSORBOARD_FILE_H
#define TRAINYARD_TRAINER_TENSORBOARD_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct tensorboard_file {
    int fd;
    char *name;         /* owned */
    struct buf records; /* whole ones, not written yet */
};

struct tensorboard_scalar {
    const char *tag;
    double value; /* stored as float32 */
};

/* Creates `name` in the working directory; it must not exist. */
int tensorboard_file_open(struct tensorboard_file *f, const char *name, int64_t wall_us,
                          struct err *e);
/* One event with the scalars [count]. Nothing is written before the flush. */
void tensorboard_file_add(struct tensorboard_file *f, int64_t wall_us, int64_t step,
                          const struct tensorboard_scalar *scalars, int count);
int tensorboard_file_flush(struct tensorboard_file *f, struct err *e);
void tensorboard_file_close(struct tensorboard_file *f); /* safe on a zeroed struct */

/* CRC-32C, Castagnoli (RFC 3720 appendix B.4), not masked. */
uint32_t tensorboard_crc32c(const void *bytes, size_t n);

#endif
