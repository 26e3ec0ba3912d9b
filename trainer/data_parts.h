/* data_parts.h: what the readers of data formats share. Only for trainer/data*.c and their tests.
 *
 * A source is read by one function of the form data_read_<format>(): it checks the source against
 * `struct data_need`, puts labels and features through `struct data_out`, and describes where they
 * lie in a `struct data_split`. Nothing is held twice, and nothing whole that is over the source's
 * memory_limit: numbers go in blocks from the file to where the ranks will find them, or are only
 * looked at, where the ranks will read the file itself.
 */
#ifndef TRAINYARD_TRAINER_DATA_PARTS_H
#define TRAINYARD_TRAINER_DATA_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/job.h"
#include "trainer/data.h"

#define DATA_MAX_BYTES (UINT64_C(64) << 30) /* of prepared data in memory */
#define DATA_SPOOL_MAX (UINT64_C(1) << 40)  /* of prepared data on disk, and of an inflated file */

/* ---- numbers (data_numbers.c) ---- */

/* What `swapped` is for numbers of more than a byte. */
#define DATA_SWAPPED_BIG    (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#define DATA_SWAPPED_LITTLE (!DATA_SWAPPED_BIG)

uint64_t number_width(enum number_type type); /* bytes */
/* n numbers, at any alignment, from the form of a file. */
void numbers_to_float(enum number_type type, int swapped, const void *from, int64_t n, float *to);
double number_to_double(enum number_type type, int swapped, const void *from);
/* Class numbers; what is no whole number of 32 bits becomes -1. */
void numbers_to_class(enum number_type type, int swapped, const void *from, int64_t n, int32_t *to);
/* The form in which numbers of a file are kept: their own in this machine's byte order, or float32
 * for those of 8 bytes. */
enum number_type number_kept(enum number_type type);
void numbers_keep(enum number_type type, int swapped, const void *from, int64_t n, void *to);

/* ---- the prepared form (data_map.c checks it, data_out.c writes it) ---- */

#define DATA_MAGIC   "TYDATA1"
#define DATA_VERSION 2
#define DATA_ALIGN   64

enum { DATA_IN_MEMORY, DATA_IN_SPOOL, DATA_IN_FILES }; /* the last + i: files[i] */

/* struct data_rows as it is written. */
struct data_place {
    int32_t type, swapped;
    int32_t in;
    int32_t unused;
    int64_t size;
    uint64_t at, stride;
};

/* One split. All zero: no such split. */
struct data_split {
    int64_t samples;
    int32_t target_type; /* enum target_type */
    int32_t is_one_hot;
    int64_t target_size, positions;
    struct data_place features, labels;
};

/* A file that ranks read where it is: its path beneath a root, and what it was when it was checked.
 */
struct data_file {
    uint64_t device, inode, size;
    int64_t changed_ns;
    uint64_t path_at, path_len; /* in the memfd */
};

struct data_header {
    char magic[8]; /* written last: without it the prepare step did not end well */
    uint32_t version;
    uint32_t header_size;
    uint64_t total_size; /* of the memfd */
    uint64_t spool_size;
    struct data_split train;
    struct data_split validation;
    struct data_file files[DATA_FILES_MAX];
    int32_t file_count;
    int32_t unused;
    char note[1024];
};

/* ---- bytes of a file, inflated if it is gzip (data_stream.c), or of a zip's member (data_zip.c)
 * ---- */

struct data_stream {
    void *gz;         /* gzFile */
    void *member;     /* zip_file_t */
    const char *name; /* borrowed */
    uint64_t size;    /* of the file; of a member, inflated */
    int compressed;   /* by its first two bytes, whatever its name */
    uint64_t read;    /* bytes given out */
    uint32_t crc;     /* of those, of a compressed file */
    int fd;           /* of the file, once more; -1: none */
    int whole;        /* the end was reached, and nothing follows it */
    struct data_file was;
};

int data_stream_open(int take_fd, const char *name, struct data_stream *ret, struct err *e);
/* Fewer than `n` bytes only at the end. */
int data_stream_read(struct data_stream *s, void *to, uint64_t n, uint64_t *ret, struct err *e);
/* Exactly n bytes; else the sentence says in the middle of what the file ends. */
int data_stream_exactly(struct data_stream *s, void *to, uint64_t n, const char *what,
                        struct err *e);
/* 0 if `bytes` can come after what was read: exactly for a plain file, by the most that deflate can
 * pack for a compressed one. Says what was promised and what is there. */
int data_stream_promises(const struct data_stream *s, uint64_t bytes, struct err *e);
/* Nothing may follow; for gzip this is also what checks the sum at its end. */
int data_stream_ends(struct data_stream *s, struct err *e);
/* 1 if ranks could read the same bytes at the same places of the file. */
int data_stream_is_plain(const struct data_stream *s);
/* ERR_CONFLICT if the file is no longer what it was when it was opened. */
int data_stream_unchanged(const struct data_stream *s, struct err *e);
void data_stream_close(struct data_stream *s); /* safe on a zeroed struct and twice */

int data_file_of(int fd, const char *name, struct data_file *ret, struct err *e); /* no path */

/* ---- where prepared data goes (data_out.c) ---- */

struct data_out {
    struct data_store to;
    unsigned char *map; /* of the memfd */
    uint64_t size;      /* mapped, and the memfd's size */
    uint64_t used;
    uint64_t limit;
    /* the present source */
    uint64_t source_at;    /* in the memfd */
    uint64_t source_limit; /* bytes of it that may stay there */
    int spooling;
    uint64_t spool_at; /* where it begins in the spool */
    /* the spool: `spool_used` bytes are written, `held` wait in the block */
    uint64_t spool_used, held, block_size;
    unsigned char *block;
    struct data_file files[DATA_FILES_MAX];
    char *paths[DATA_FILES_MAX];
    int file_count;
};

int data_out_begin(struct data_out *o, const struct data_store *to,
                   struct err *e); /* empties both, skips the header */
/* A new source, of which at most `memory_limit` bytes stay in memory. */
int data_out_source(struct data_out *o, int64_t memory_limit, struct err *e);
/* So many bytes of it will come: what does not fit is told now, and goes to the spool at once. */
int data_out_expect(struct data_out *o, uint64_t bytes, struct err *e);
/* Room for `bytes` more, all of which are yours to fill before the next call. ERR_TOO_LARGE over
 * the limits, before anything is allocated. *ret_at, unless NULL: where they will lie, counted from
 * the source's beginning. */
int data_out_room(struct data_out *o, uint64_t bytes, void **ret, uint64_t *ret_at, struct err *e);
int data_out_align(struct data_out *o, struct err *e); /* to DATA_ALIGN */
/* Turns a place of the source, `at` counted from its beginning, into one of the store. */
void data_out_place(const struct data_out *o, struct data_place *place);
/* The stream's file is one that ranks read themselves; returns its place's `in`. */
int32_t data_out_file(struct data_out *o, const struct data_stream *s);
/* Cuts to what is used, writes the header and, where the memfd allows it, seals it against
 * writing. */
int data_out_finish(struct data_out *o, struct data_header *h, struct err *e);
void data_out_done(struct data_out *o); /* unmaps; safe after finish and on a zeroed struct */

/* ---- what the job asks of a source (data_need.c) ---- */

struct data_need {
    struct shape input, output;
    int64_t feature_size;
    int64_t vocabulary; /* of the embedding that reads the features; 0: they are any numbers */
    enum loss loss;
    int64_t positions; /* rows of output that the loss compares with a label each */
    int64_t outputs;   /* of a row: classes, or numbers */
    int64_t labels;    /* per sample, as the data has them: one a row, or all numbers of it */
    enum target_type target_type;
    int64_t target_size;
};

/* ERR_INVALID where the job weighs classes that the model does not have. */
int data_need_of(const struct job_spec *job, struct data_need *ret, struct err *e);
/* ERR_INVALID unless one label serves a sample, for sources that have no more. */
int data_need_one_label(const struct data_need *need, struct err *e);
/* 1 if labels are class numbers. */
int data_need_classes(const struct data_need *need);

/* Checks a feature. The sentence starts with "value ..."; the caller puts the place before it. */
int data_check_feature(const struct data_need *need, double value, struct err *e);
/* Checks a label by the loss; "label ...". */
int data_check_label(const struct data_need *need, double label, struct err *e);
/* A checked label as int32 or float32, 4 bytes. */
void data_keep_label(const struct data_need *need, double label, void *to);
enum number_type data_label_type(const struct data_need *need); /* of kept labels */

/* Fills all of a split but the places and the samples. */
void data_split_of(const struct data_need *need, struct data_split *ret);

/* What stands where only so many of the source's samples are wanted. */
int64_t data_limited(const struct data_source *source, int64_t samples);

/* ---- a file of features or labels whose form is known (data_column.c): idx, npy, npz ---- */

struct data_column {
    struct data_stream *stream; /* stands at the first number */
    enum number_type type;
    int swapped;
    int of_booleans; /* only 0 and 1 are right */
    uint64_t items, per_item;
    char form[96]; /* "[28, 28]": the dimensions of an item */
};

/* The dimensions after the first of `dims` into `form`. */
void data_column_form(struct data_column *c, const uint64_t *size, int dims);
/* Sets items and per_item; ERR_INVALID if they are more than 64 bits count, or none. */
int data_column_count(struct data_column *c, const uint64_t *size, int dims, struct err *e);
int data_read_columns(struct data_column *x, struct data_column *y,
                      const struct data_source *source, const struct data_need *need,
                      struct data_out *o, struct data_split *ret, struct err *e);

/* ---- the formats ---- */

/* Each takes its open streams, fills `o` and *ret; `note` gets what was decided. */
int data_read_idx(struct data_stream *images, struct data_stream *labels,
                  const struct data_source *source, const struct data_need *need,
                  struct data_out *o, struct data_split *ret, struct err *e);
int data_read_npy(struct data_stream *x, struct data_stream *y, const struct data_source *source,
                  const struct data_need *need, struct data_out *o, struct data_split *ret,
                  struct err *e);
int data_read_npz(int take_fd, const struct data_source *source, const struct data_need *need,
                  struct data_out *o, struct data_split *ret, struct err *e);
int data_read_tokens(struct data_stream *s, const struct data_source *source,
                     const struct data_need *need, struct data_out *o, struct buf *note,
                     struct data_split *ret, struct err *e);
int data_read_csv(struct data_stream *s, const struct data_source *source,
                  const struct data_need *need, struct data_out *o, struct buf *note,
                  struct data_split *ret, struct err *e);
int data_read_synthetic(const struct data_source *source, const struct data_need *need,
                        struct data_out *o, struct data_split *ret, struct err *e);

/* Adds to a note, with "; " between its parts. */
void data_note(struct buf *note, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A decimal number, the whole of `text` but for spaces around it: 1 and the value (which may not be
 * finite), 0 if it is no number. */
int data_parse_number(const char *text, size_t n, double *ret);

/* The text in quotes, cut at 40 bytes, with \xNN for control characters and for bytes that are not
 * UTF-8; returns `out`. */
#define DATA_QUOTE_SIZE 176
char *data_quote(const char *text, size_t n, char out[DATA_QUOTE_SIZE]);

#endif
