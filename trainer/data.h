/* data.h: the data set of a job: read, checked and decompressed once per node by the prepare step
 * into a memfd, which every rank then maps read-only.
 *
 * Everything wrong with the data is found here, before any rank starts: a sentence with the file,
 * the row (from 1, and the line for CSV) and the value.
 */
#ifndef TRAINYARD_TRAINER_DATA_H
#define TRAINYARD_TRAINER_DATA_H

#include <stdint.h>

#include "base/err.h"
#include "spec/job.h"

/* Features keep the width that they have in the file; they become float32 when a batch is made. */
enum feature_type { FEATURE_U8, FEATURE_F32 };

/* Labels as the loss wants them: class indices (sparse categorical cross-entropy), or float32
 * targets, `target_size` of either per sample. A model whose output is [T, V] has a label at each
 * of T positions; losses and metrics are means over positions. */
enum target_type { TARGET_CLASS, TARGET_F32 };

/* One split. Pointers lie inside the mapping. */
struct dataset {
    int64_t samples;
    int64_t feature_size; /* elements per sample: shape_elements(model.input) */
    enum feature_type feature_type;
    const void *features; /* [samples, feature_size] */
    enum target_type target_type;
    int64_t target_size;
    int64_t positions;      /* rows of output that the loss compares per sample; 1, or T */
    const int32_t *classes; /* [samples, target_size], TARGET_CLASS */
    const float *targets;   /* [samples, target_size], TARGET_F32 */
};

struct prepared {
    struct dataset train;
    struct dataset validation; /* samples 0: none. From the validation source or validation_split:
                                  train keeps the first floor(n * (1 - split)) samples */
    char note[512];            /* what was decided, such as the CSV header; for the log */
    void *map;
    size_t map_size;
};

/* Where data paths are looked up: the roots in order, each path resolved beneath its root. */
struct data_roots {
    const char *const *paths;
    int count;
};

/* Opens a data path beneath the first root that has it; the sentence names all roots tried. */
int data_open(const struct data_roots *roots, const char *path, int *ret_fd, struct err *e);

/* Reads and checks all that the job names and writes it to `memfd`, which is sized to fit.
 * Checked: the file's form; feature count against the model's input; labels: integers within the
 * classes of the last layer's output; finite numbers; at least one training sample, and, with
 * validation_split, at least one on either side; the same for a validation source. */
int data_prepare(const struct job_spec *job, const struct data_roots *roots, int memfd,
                 struct err *e);

/* Maps what data_prepare() wrote. data_unmap() is safe on a zeroed struct. */
int data_map(int memfd, struct prepared *ret, struct err *e);
void data_unmap(struct prepared *p);

/* The prepared data is another process's: ERR_CORRUPT unless it is what the job's model and loss
 * take, so that buffers made for them hold it. Class numbers are looked at as they are fetched. */
int data_check(const struct prepared *p, const struct job_spec *job, struct err *e);

/* Copies samples ids[0..n) as float32 into x [n, feature_size]; into classes or targets
 * [n, target_size] by the data set's target type (the other may be NULL). Without x, or with
 * neither classes nor targets, only the rest is copied. Fails where the data lies in a file that
 * cannot be read any more. */
int data_gather(const struct dataset *d, const int64_t *ids, int64_t n, float *x, int32_t *classes,
                float *targets, struct err *e);

#endif
