/* job.h: a training job as data: the document that a user posts, decoded and checked.
 *
 * The tables in job.c are the contract: each names a field, its type, range and default, and from
 * them come the decoder and the sentences of a 422. Nothing is clamped or defaulted silently:
 * unknown optional fields become warnings (errors with `strict`), everything else a fault.
 */
#ifndef TRAINYARD_SPEC_JOB_H
#define TRAINYARD_SPEC_JOB_H

#include <jansson.h>
#include <stdint.h>

#include "base/faults.h"
#include "spec/model.h"
#include "spec/plan.h"

enum loss {
    LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
    LOSS_CATEGORICAL_CROSSENTROPY,
    LOSS_BINARY_CROSSENTROPY,
    LOSS_MEAN_SQUARED_ERROR,
    LOSS__MAX
};
const char *loss_name(enum loss l);

enum metric { METRIC_ACCURACY, METRIC_MAE, METRIC__MAX };
const char *metric_name(enum metric m);

enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAM, OPTIMIZER_ADAMW, OPTIMIZER__MAX };
const char *optimizer_name(enum optimizer_kind k);

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_STEP };

/* How numbers are kept between uses; sums are always float32. */
enum storage_type { STORAGE_FLOAT32, STORAGE_BFLOAT16 };

/* What the operands of matrix products may be rounded to by a device that multiplies such numbers
 * faster; others, CPUs among them, go on with float32. Sums are float32. With float16, gradients
 * are scaled by a factor that follows what they can bear. */
enum compute_type { COMPUTE_FLOAT32, COMPUTE_TF32, COMPUTE_BFLOAT16, COMPUTE_FLOAT16 };
const char *compute_name(enum compute_type c);

/* "precision": "float32", "mixed_bfloat16" (weights, activations and products), "mixed_float16"
 * (products), or an object with the four. bfloat16 weights are rounded from float32 masters, which
 * the optimizer updates. */
struct precision {
    enum storage_type weights, activations, moments;
    enum compute_type compute;
};

/* Formulas: tests/reference/README.md. */
struct optimizer {
    enum optimizer_kind kind;
    double learning_rate;    /* sgd 0.01, adam and adamw 0.001 */
    double momentum;         /* sgd, 0 */
    int nesterov;            /* sgd, false */
    double beta_1;           /* 0.9 */
    double beta_2;           /* 0.999 */
    double epsilon;          /* 1e-7 */
    double weight_decay;     /* adamw, 0.004 */
    int decay_matrices_only; /* "exclude_from_weight_decay": "vectors" */
    double global_clipnorm;  /* 0: none */
    enum schedule_kind schedule;
    int64_t warmup_steps; /* all but constant: linear rise from learning_rate / warmup_steps */
    int64_t decay_steps;  /* cosine, linear: warmup included */
    double alpha;         /* cosine, linear: floor as a share of learning_rate */
    int64_t step_size;    /* step: learning_rate * gamma^((step - warmup) / step_size) */
    double gamma;
};

enum data_format { DATA_IDX, DATA_CSV, DATA_SYNTHETIC, DATA_NPY, DATA_NPZ, DATA_TOKENS };
enum csv_missing { CSV_MISSING_ERROR, CSV_MISSING_DROP, CSV_MISSING_FILL };
enum token_type { TOKEN_AUTO, TOKEN_U8, TOKEN_U16, TOKEN_U32 }; /* auto: by the file's header */
enum csv_header { CSV_HEADER_NO, CSV_HEADER_YES, CSV_HEADER_AUTO };

#define DATA_MEMORY_LIMIT ((int64_t)1 << 30) /* bytes, where a source says nothing */

struct data_source {
    enum data_format format;
    char *images;                    /* idx: path relative to a data root; owned */
    char *labels;                    /* idx */
    char *path;                      /* csv, npz, tokens (may be .gz) */
    char *x, *y;                     /* npy: paths; npz: names of arrays, default "x", "y" */
    enum token_type dtype;           /* tokens */
    enum csv_missing missing;        /* csv: an empty field, or NA, NaN, null, ? */
    double fill;                     /* csv: what takes its place */
    int64_t limit;                   /* the first so many samples only; 0: all */
    int64_t memory_limit;            /* bytes; a data set above it is streamed from its file */
    enum csv_header header;          /* csv; default auto */
    int64_t label_column;            /* csv; negative counts from the end; default -1 */
    int64_t samples, input, classes; /* synthetic */
    uint32_t seed;                   /* synthetic */
};

enum monitor {
    MONITOR_VAL_LOSS,
    MONITOR_VAL_ACCURACY,
    MONITOR_LOSS,
    MONITOR_ACCURACY,
    MONITOR_VAL_MAE,
    MONITOR_MAE,
    MONITOR__MAX
};

/* Keras's EarlyStopping; loss and mae fall, accuracy rises. */
struct early_stopping {
    int enabled;
    enum monitor monitor; /* default val_loss */
    double min_delta;
    int64_t patience;         /* epochs without improvement that are allowed; 0 */
    int64_t start_from_epoch; /* 0 */
    int restore_best_weights; /* false */
};

struct fit {
    int64_t epochs;          /* default 1; without effect where steps is given */
    int64_t steps;           /* optimiser steps in all; 0: as many as epochs take */
    int64_t batch_size;      /* global; default 32 */
    int shuffle;             /* default true */
    uint64_t seed;           /* default 0 */
    double validation_split; /* last fraction of train; 0: none */
    int64_t validation_freq; /* epochs between validations; default 1 */
    struct early_stopping early_stopping;
    double *class_weight; /* [class_weights]; NULL: all 1. By class, 1 where not given; owned */
    int64_t class_weights;
};

#define CHECKPOINT_KEEP_MAX 64
/* When neither is given there are none but on request (suspend, SIGTERM). */
struct checkpoint {
    int enabled;         /* 0 only for "checkpoint": false: not even on request */
    int64_t every_steps; /* 0: not by steps */
    int64_t every_s;     /* 0: not by time */
    int64_t keep;        /* default 2 */
};

enum device_kind { DEVICE_ANY, DEVICE_CPU, DEVICE_GPU };
const char *device_kind_name(enum device_kind k);

struct resources {
    int64_t devices;         /* ranks; default 1 */
    enum device_kind device; /* default any */
    int64_t memory;          /* bytes per rank that the plan may use; 0: the device's own */
};

struct label {
    char *key;
    char *value;
};

struct job_spec {
    char *name;     /* default "job" */
    char **command; /* NULL-terminated argv of a command job; NULL for a training job */
    struct model model;
    struct optimizer optimizer;
    enum loss loss;
    int metrics[METRIC__MAX]; /* 1 where asked for */
    struct data_source train;
    struct data_source validation;
    int has_validation; /* a validation source ({} is none); excludes validation_split */
    struct fit fit;
    struct resources resources;
    struct strategy strategy; /* as asked; plan.h */
    struct precision precision;
    struct checkpoint checkpoint;
    int64_t max_restarts; /* of an attempt that failed and may succeed again; default 3 */
    int64_t priority;     /* -1000..1000, default 0 */
    int64_t time_limit_s; /* 0: none */
    struct label *labels;
    int label_count;
    char *user; /* as given, default "" */
};

/* Decodes a document. `strict`: unknown fields are faults, not warnings. Faults (and, apart from
 * them, warnings of the same form) are added to the two lists. Returns the spec (job_spec_free it)
 * or NULL if there was any fault. The document is not changed. */
struct job_spec *job_spec_parse(const json_t *doc, int strict, struct faults *f,
                                struct faults *warnings);
void job_spec_free(struct job_spec *s); /* NULL is fine */

/* Size and depth limits of a document before it is parsed. */
#define JOB_SPEC_MAX_BYTES (1024 * 1024)
#define JOB_SPEC_MAX_DEPTH 32

/* JSON text to document: no duplicate keys, depth at most JOB_SPEC_MAX_DEPTH, valid UTF-8, no NUL.
 * The sentence gives line and column. */
int job_spec_read(const char *text, size_t n, json_t **ret, struct err *e);

#endif
