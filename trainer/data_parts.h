/* data_parts.h: what the readers of data formats share. Only for trainer/data*.c and their tests.
 *
 * A source is read by one function of the form data_read_<format>(): it checks the source against
 * `struct data_need`, appends the features and then the labels to the memfd through `struct
 * data_out`, and describes them in a `struct data_split`. Nothing is held twice: idx is inflated
 * straight into the memfd, csv rows are converted into it one by one; only the labels (4 bytes a
 * sample) wait in a buffer until the features are complete.
 */
#ifndef TRAINYARD_TRAINER_DATA_PARTS_H
#define TRAINYARD_TRAINER_DATA_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/job.h"
#include "trainer/data.h"

/* No prepared data set, and nothing decompressed on the way to it, is larger than this; it is
 * kept in memory, so that the machine's own memory is the other limit. */
#define DATA_MAX_BYTES (UINT64_C(64) << 30)

/* ---- the prepared form (data_map.c checks it, data_out.c writes it) ---- */

#define DATA_MAGIC   "TYDATA1"
#define DATA_VERSION 1
#define DATA_ALIGN   64

/* One split in the memfd; offsets from its start. All zero: no such split. */
struct data_split {
    int64_t samples;
    int64_t feature_size;
    int32_t feature_type; /* enum feature_type */
    int32_t target_type;  /* enum target_type */
    int64_t target_size;
    uint64_t features_at; /* a multiple of DATA_ALIGN, but for a validation part cut from train */
    uint64_t targets_at;  /* the same */
};

struct data_header {
    char magic[8]; /* written last: without it the prepare step did not end well */
    uint32_t version;
    uint32_t header_size;
    uint64_t total_size; /* of the memfd */
    struct data_split train;
    struct data_split validation;
    char note[512];
};

uint64_t data_feature_bytes(int32_t feature_type); /* of one element */

/* ---- the memfd being filled (data_out.c) ---- */

struct data_out {
    int fd; /* borrowed */
    unsigned char *map;
    uint64_t size; /* mapped, and the memfd's size */
    uint64_t used;
    uint64_t limit;
};

int data_out_begin(struct data_out *o, int memfd, struct err *e); /* empties it, skips the header */
/* Room for `bytes` more zero bytes, which are yours to fill; the pointer holds until the next
 * call. ERR_TOO_LARGE over the limit, before anything is allocated. */
int data_out_extend(struct data_out *o, uint64_t bytes, void **ret, struct err *e);
int data_out_align(struct data_out *o, struct err *e); /* to DATA_ALIGN */
/* Cuts to what is used, writes the header and, where the memfd allows it, seals it against
 * writing. */
int data_out_finish(struct data_out *o, struct data_header *h, struct err *e);
void data_out_done(struct data_out *o); /* unmaps; safe after finish and on a zeroed struct */

/* ---- bytes of a file, inflated if it is gzip (data_stream.c) ---- */

struct data_stream {
    void *gz;         /* gzFile */
    const char *name; /* borrowed */
    uint64_t size;    /* of the file */
    int compressed;   /* by its first two bytes, whatever its name */
    uint64_t read;    /* bytes given out */
    uint32_t crc;     /* of those, of a compressed file */
    int fd;           /* of the file, once more; -1: none */
    int whole;        /* the end was reached, and nothing follows it */
};

int data_stream_open(int take_fd, const char *name, struct data_stream *ret, struct err *e);
/* Fewer than `n` bytes only at the end. */
int data_stream_read(struct data_stream *s, void *to, uint64_t n, uint64_t *ret, struct err *e);
/* 0 if `bytes` can come after what was read: exactly for a plain file, by the most that deflate can
 * pack for a compressed one. Says what was promised and what is there. */
int data_stream_promises(const struct data_stream *s, uint64_t bytes, struct err *e);
void data_stream_close(struct data_stream *s); /* safe on a zeroed struct and twice */

/* ---- what the job asks of a source (data_targets.c) ---- */

struct data_need {
    struct shape input, output;
    int64_t feature_size;
    enum loss loss;
    int64_t positions; /* rows of output that the loss compares with a label each */
    int64_t outputs;   /* of a row: classes, or numbers */
    int64_t labels;    /* per sample, as the data has them: one a row, or all numbers of it */
    enum target_type target_type;
    int64_t target_size;
};

/* ERR_INVALID where the job weighs classes that the model does not have. */
int data_need_of(const struct job_spec *job, struct data_need *ret, struct err *e);

/* Labels that wait for the features to end: int32 or float, one a sample. */
struct data_targets {
    const struct data_need *need;
    struct buf labels;
    int64_t count;
};

/* ERR_INVALID unless one label serves a sample, for sources that have no more. */
int data_need_one_label(const struct data_need *need, struct err *e);

/* Checks a label by the loss and keeps it. `item` (from 1) is named in the sentence; 0: the caller
 * names the place. The sentence starts with "label ..."; the caller puts the file before it. */
int data_targets_add(struct data_targets *t, double label, int64_t item, struct err *e);
/* Appends the targets to the memfd: classes, values or one-hot rows. Sets the split's targets. */
int data_targets_write(const struct data_targets *t, struct data_out *o, struct data_split *split,
                       struct err *e);
void data_targets_done(struct data_targets *t);

/* ---- the formats ---- */

/* Each takes its open streams, appends to `o` and fills *ret; `note` gets what was decided. */
int data_read_idx(struct data_stream *images, struct data_stream *labels,
                  const struct data_need *need, struct data_out *o, struct data_split *ret,
                  struct err *e);
int data_read_csv(struct data_stream *s, const struct data_source *source,
                  const struct data_need *need, struct data_out *o, struct buf *note,
                  struct data_split *ret, struct err *e);
int data_read_synthetic(const struct data_source *source, const struct data_need *need,
                        struct data_out *o, struct data_split *ret, struct err *e);

/* A decimal number, the whole of `text` but for spaces around it: 1 and the value (which may not be
 * finite), 0 if it is no number. */
int data_parse_number(const char *text, size_t n, double *ret);

/* The text in quotes, cut at 40 bytes, with \xNN for control characters and for bytes that are not
 * UTF-8; returns `out`. */
#define DATA_QUOTE_SIZE 176
char *data_quote(const char *text, size_t n, char out[DATA_QUOTE_SIZE]);

#endif
