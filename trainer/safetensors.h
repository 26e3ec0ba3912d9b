/* safetensors.h: reading and writing .safetensors: u64 little-endian header length, a JSON header
 * (name -> dtype, shape, data_offsets relative to the byte after it), then the data without holes.
 * Only F32 is read and written here. Format: huggingface/safetensors, README. */
#ifndef TRAINYARD_TRAINER_SAFETENSORS_H
#define TRAINYARD_TRAINER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/model.h"

struct safetensors_item {
    const char *name;
    struct shape shape;
    const float *data; /* for writing */
};

/* Called after every few MiB that are on the disk, so that whoever waits for the end hears of it.
 */
struct safetensors_pulse {
    void (*beat)(void *context);
    void *context;
};

/* Writes temporary name, fsync, rename; `pulse` may be NULL. `metadata` is a NULL-terminated list
 * of key, value, key, value, ... or NULL. Tensors stand in the order given; two of one name are
 * refused. */
int safetensors_write(const char *path, const struct safetensors_item *items, int count,
                      const char *const *metadata, const struct safetensors_pulse *pulse,
                      struct err *e);

/* The length and the padded header, as they stand at the start of such a file, for whoever writes
 * the data himself; the items' data are not looked at. */
int safetensors_header(const struct safetensors_item *items, int count, const char *const *metadata,
                       struct buf *ret, struct err *e);
/* The same with values that come range by range, in any order. Whatever is not put is zero.
 * Exactly one of finish and abandon ends it. */
struct safetensors_writer;
int safetensors_create(const char *path, const struct safetensors_item *items, int count,
                       const char *const *metadata, struct safetensors_writer **ret, struct err *e);
/* Elements [from, from + n) of item `i`. */
int safetensors_put(struct safetensors_writer *w, int i, size_t from, size_t n, const float *values,
                    const struct safetensors_pulse *pulse, struct err *e);
int safetensors_finish(struct safetensors_writer *w, struct err *e);
void safetensors_abandon(struct safetensors_writer *w); /* NULL is fine */

struct safetensors; /* an open file */
int safetensors_open(int take_fd, const char *name_for_errors, struct safetensors **ret,
                     struct err *e); /* checks offsets, overlaps, holes, sizes, duplicate names */
void safetensors_close(struct safetensors *s);
int safetensors_count(const struct safetensors *s);
/* Tensors are numbered in the order of the data. */
const char *safetensors_name(const struct safetensors *s, int i);
/* Elements of tensor i; -1 where it is not F32. */
int64_t safetensors_elements(const struct safetensors *s, int i);
/* The text that __metadata__ has under `key`, or NULL. */
const char *safetensors_metadata(const struct safetensors *s, const char *key);
/* Elements [from, to), which it must have, of the F32 tensor i. */
int safetensors_read_part(const struct safetensors *s, int i, int64_t from, int64_t to, float *out,
                          struct err *e);
/* Copies the tensor into `out` if it is there, F32 and of this shape; the sentence names both
 * shapes, or lists the names that there are. */
int safetensors_read(const struct safetensors *s, const char *name, const struct shape *shape,
                     float *out, struct err *e);

#endif
