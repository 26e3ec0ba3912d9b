/* model.h: the layers of a network, their shapes, parameters and costs. Pure data and arithmetic.
 *
 * Words and defaults are Keras's (kernels are (in, out), LayerNormalization epsilon 1e-3, gelu
 * exact unless gelu_tanh). Shapes exclude the batch dimension.
 */
#ifndef TRAINYARD_SPEC_MODEL_H
#define TRAINYARD_SPEC_MODEL_H

#include <jansson.h>
#include <stdint.h>

#include "base/faults.h"

#define SHAPE_MAX_DIMS       4
#define SHAPE_MAX_ELEMENTS   ((int64_t)1 << 27) /* of one item: 512 MiB of float32 */
#define MODEL_MAX_LAYERS     1024
#define MODEL_MAX_PARAMETERS ((int64_t)1 << 34) /* 64 GiB of float32 */
#define LAYER_MAX_TENSORS    4
#define LEAKY_RELU_SLOPE     0.2 /* Keras 3 activations.leaky_relu */

struct shape {
    int dims;                     /* 1..SHAPE_MAX_DIMS */
    int64_t size[SHAPE_MAX_DIMS]; /* each >= 1 */
};
int64_t shape_elements(const struct shape *s);
int64_t shape_last(const struct shape *s);      /* the last size */
int64_t shape_positions(const struct shape *s); /* elements by the last size: its rows */
/* "[28, 28]" into `out` (at least 128 bytes); returns `out`. */
char *shape_format(const struct shape *s, char *out);

enum layer_type {
    LAYER_DENSE,
    LAYER_FLATTEN,
    LAYER_RESHAPE,
    LAYER_RESCALING,
    LAYER_DROPOUT,
    LAYER_ACTIVATION,
    LAYER_LAYER_NORMALIZATION,
    LAYER_CONV2D,
    LAYER_MAX_POOLING2D,
    LAYER_AVERAGE_POOLING2D,
    LAYER_GLOBAL_MAX_POOLING2D,
    LAYER_GLOBAL_AVERAGE_POOLING2D,
    LAYER_BATCH_NORMALIZATION,
    LAYER_EMBEDDING,
    LAYER_ADD,
    LAYER_TYPE__MAX
};

enum activation {
    ACTIVATION_LINEAR,
    ACTIVATION_RELU,
    ACTIVATION_TANH,
    ACTIVATION_SIGMOID,
    ACTIVATION_GELU,      /* x * Phi(x), exact */
    ACTIVATION_GELU_TANH, /* the tanh approximation */
    ACTIVATION_ELU,       /* alpha 1 */
    ACTIVATION_SILU,
    ACTIVATION_SOFTPLUS,
    ACTIVATION_LEAKY_RELU, /* negative slope 0.2, as Keras 3 activations.leaky_relu */
    ACTIVATION_SOFTMAX,    /* over the last dimension */
    ACTIVATION__MAX
};

enum initializer {
    INIT_GLOROT_UNIFORM,
    INIT_GLOROT_NORMAL,
    INIT_HE_UNIFORM,
    INIT_HE_NORMAL,
    INIT_LECUN_UNIFORM,
    INIT_LECUN_NORMAL,
    INIT_RANDOM_UNIFORM, /* -0.05..0.05 */
    INIT_RANDOM_NORMAL,  /* stddev 0.05 */
    INIT_ZEROS,
    INIT_ONES,
    INITIALIZER__MAX
};

/* A parameter tensor of a layer. Its name in a safetensors file is "<layer name>.<name>",
 * where the layer name defaults to "layers.<index>" (index in model.layers, from 0). */
struct tensor_spec {
    const char *name; /* "kernel", "bias", "gamma", "beta"; static storage */
    struct shape shape;
    enum initializer init;
    int is_fixed;   /* not trained: moving statistics */
    int is_matrix;  /* 2 or more dimensions: weight decay may exclude the others */
    int64_t fan_in; /* for the initialiser */
    int64_t fan_out;
};

struct layer {
    enum layer_type type;
    char *name; /* unique in the model; owned */
    struct shape in;
    struct shape out;
    enum activation activation; /* dense, conv2d and activation layers; else LINEAR */
    int64_t units;              /* dense; conv2d: filters; embedding: output_dim */
    int use_bias;               /* dense, conv2d */
    double scale, offset;       /* rescaling: x * scale + offset */
    double rate;                /* dropout, 0 <= rate < 1 */
    double epsilon;             /* layer_normalization, batch_normalization */
    int has_gamma, has_beta;    /* the same: "scale" and "center" */
    double momentum;            /* batch_normalization: of the moving statistics */
    int64_t window[2]; /* conv2d: kernel, poolings: pool, global ones: all; rows, columns */
    int64_t strides[2];
    int same;              /* padding "same": ceil(in / stride) outputs; else "valid" */
    int64_t pad_before[2]; /* rows above, columns left; what "same" adds more goes after */
    int64_t vocabulary;    /* embedding: input_dim */
    int back;              /* add: adds the output of the layer so many before it */
    int frozen;            /* "trainable": false */
    struct tensor_spec tensors[LAYER_MAX_TENSORS];
    int tensor_count;
    int64_t parameters;       /* elements in all tensors */
    double forward_flops;     /* per item; multiply-add counts as 2 */
    double backward_flops;    /* per item; the first layers make no gradient of their input */
    int64_t activation_bytes; /* float32 kept per item between forward and backward */
};

struct model {
    struct shape input;
    struct layer *layers;
    int layer_count;
    char *weights; /* start weights, safetensors, relative to a data root; NULL: initialise */
};

/* Parses {"input", "layers", "weights"?} found at `pointer`, infers shapes, counts parameters and
 * costs. Every fault is added to `f`, unknown fields too (job_spec_parse can
 * make warnings of those); returns 0 only if there were none here. */
int model_parse(const json_t *doc, const char *pointer, struct model *ret, struct faults *f);
void model_done(struct model *m); /* safe on a zeroed struct */

int64_t model_parameters(const struct model *m);
/* The embedding that the features of the data go into as token ids; NULL where they are any
 * numbers.
 */
const struct layer *model_embedding(const struct model *m);
double model_forward_flops(const struct model *m);

const char *layer_type_name(enum layer_type t); /* "dense" */
const char *activation_name(enum activation a); /* "relu" */
const char *initializer_name(enum initializer i);

#endif
