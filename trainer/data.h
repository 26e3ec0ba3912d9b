/* data.h: the data set of a job: read and checked once per node by the prepare step, then fetched
 * sample by sample by the ranks.
 *
 * Everything wrong with the data is found before any rank starts: a sentence with the file, the row
 * (from 1, and the line for CSV) and the value. What the ranks need lies in a memfd that all of
 * them map. A source above its memory_limit is not held in memory: plain idx, npy and token files
 * are read where they are, after they are seen to be the ones that were checked; what must be
 * converted first (csv, npz, compressed files) lies in the spool, a file on the node's disk.
 */
#ifndef TRAINYARD_TRAINER_DATA_H
#define TRAINYARD_TRAINER_DATA_H

#include <stdint.h>

#include "base/err.h"
#include "spec/job.h"

/* Numbers keep the form that they have in the file where that is of 4 bytes or fewer; they become
 * float32, or class numbers, when a batch is made. */
enum number_type {
    NUMBER_U8,
    NUMBER_I8,
    NUMBER_U16,
    NUMBER_I16,
    NUMBER_U32,
    NUMBER_I32,
    NUMBER_U64,
    NUMBER_I64,
    NUMBER_F32,
    NUMBER_F64,
    NUMBER__MAX
};

/* Rows of numbers, in memory or in a file. */
struct data_rows {
    enum number_type type;
    int swapped;              /* bytes in the other order than this machine's */
    int64_t size;             /* numbers in a row */
    uint64_t stride;          /* bytes from row to row */
    const unsigned char *map; /* row 0; NULL: it is at byte `at` of `fd` */
    int fd;
    uint64_t at;
    const char *name; /* of the file, for sentences */
};

/* Labels as the loss wants them: class indices (sparse categorical cross-entropy), or float32
 * targets, `target_size` of either per sample. A model whose output is [T, V] has a label at each
 * of T positions; losses and metrics are means over positions. */
enum target_type { TARGET_CLASS, TARGET_F32 };

/* One split. Pointers and descriptors belong to the struct prepared. */
struct dataset {
    int64_t samples;
    int64_t feature_size; /* elements per sample: shape_elements(model.input) */
    enum target_type target_type;
    int64_t target_size;
    int64_t positions; /* rows of output that the loss compares per sample; 1, or T */
    int is_one_hot;    /* labels are classes, the targets rows with a 1 in their place */
    int is_ahead;      /* this split or the other is streamed: it pays to fetch ahead */
    struct data_rows features, labels;
};

/* 1 where samples are read from a file each time. */
int data_is_streamed(const struct dataset *d);

#define DATA_FILES_MAX 4 /* features and labels of both splits */

struct prepared {
    struct dataset train;
    struct dataset validation; /* samples 0: none. From the validation source or validation_split:
                                  train keeps the first floor(n * (1 - split)) samples */
    char note[1024];           /* what was decided, such as the CSV header; for the log */
    void *map;
    size_t map_size;
    int fds[DATA_FILES_MAX]; /* streamed files, open */
    char *names[DATA_FILES_MAX];
    int fd_count;
};

/* Where data paths are looked up: the roots in order, each path resolved beneath its root. */
struct data_roots {
    const char *const *paths;
    int count;
};

/* Opens a data path beneath the first root that has it; the sentence names all roots tried. */
int data_open(const struct data_roots *roots, const char *path, int *ret_fd, struct err *e);

/* Where prepared data is put; both descriptors are borrowed. */
struct data_store {
    int memory; /* a memfd, sized to fit */
    int spool;  /* a file for what is over a source's memory_limit; -1: there is none */
};

/* Reads and checks all that the job names and writes it to `store`.
 * Checked: the file's form; feature count against the model's input; labels: integers within the
 * classes of the last layer's output; finite numbers; numbers below the vocabulary of an embedding
 * that reads them; at least one training sample, and, with validation_split, at least one on either
 * side; the same for a validation source. */
int data_prepare(const struct job_spec *job, const struct data_roots *roots,
                 const struct data_store *store, struct err *e);

/* Maps what data_prepare() wrote and opens the files that it names, which must be those that were
 * checked (device, inode, size, time of last change). data_unmap() is safe on a zeroed struct. */
int data_map(const struct data_store *store, const struct data_roots *roots, struct prepared *ret,
             struct err *e);
void data_unmap(struct prepared *p);

/* The prepared data is another process's: ERR_CORRUPT unless it is what the job's model and loss
 * take, so that buffers made for them hold it. Class numbers are looked at as they are fetched. */
int data_check(const struct prepared *p, const struct job_spec *job, struct err *e);

/* Fetches samples ids[0..n) as float32 into x [n, feature_size]; into classes or targets
 * [n, target_size] by the data set's target type (the other may be NULL). Without x, or with
 * neither classes nor targets, only the rest is fetched. Safe to call from several threads.
 * ERR_IO, or ERR_CORRUPT where a streamed file has become shorter or a class is one that the model
 * does not have. */
int data_gather(const struct dataset *d, const int64_t *ids, int64_t n, float *x, int32_t *classes,
                float *targets, struct err *e);

#endif
