/* ops.h: the tensor verbs that a backend fills (ops_cpu.c; cuda/ops_cuda.cu). The engine above
 * knows only this table, so it runs on any backend unchanged.
 *
 * A backend is one device of one process. Pointers are memory of that device: from alloc(), or
 * from the transport's memory() for what collectives touch. Verbs on a device may return before the
 * work is done; they are ordered among themselves, and download(), finish() and what gives a result
 * to the host wait. All tensors are float32, row-major and dense; `rows` counts items times inner
 * positions, and may be 0 everywhere. Arguments that verbs are given by pointer may be gone when
 * they return.
 *
 * Verbs have no result. A device that fails goes on taking calls and does nothing; finish() tells.
 * What came from a device is believed only after finish() has returned 0.
 */
#ifndef TRAINYARD_TRAINER_OPS_H
#define TRAINYARD_TRAINER_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "spec/job.h"
#include "spec/model.h"
#include "trainer/elem.h"
#include "trainer/exact.h"

/* Sums over items, in float64; divided once, by the global count of items, by whoever reports. */
struct loss_sums {
    double loss;
    double accuracy; /* items that are right */
    double mae;
};

/* One call of loss(): per item the loss and metrics, and the gradient of the *sum* of losses. An
 * item's loss is over its `cols` outputs: the cross-entropy of the row, or for
 * binary_crossentropy and mean_squared_error the mean over the row. */
struct loss_args {
    enum loss kind;
    int from_logits; /* `out` is what the final softmax or sigmoid would get; the gradient is
                        with respect to that */
    int64_t rows, cols;
    const float *out;       /* [rows, cols] */
    const int32_t *classes; /* [rows], or NULL */
    const float *targets;   /* [rows, cols], where classes is NULL */
    float *gradient;        /* [rows, cols], or NULL; may not be `out` */
    struct loss_sums *sums; /* added to */
    const float *weights;   /* [weight_count], by class, of loss and gradient; others have 1. A row
                               of targets is of the class where it is largest, or of class 1 where
                               a single one is above a half */
    int64_t weight_count;
};

/* A window that moves over items [in_rows, in_cols, channels] and stands at out_rows x out_cols
 * places; the first begins pad before the item's first row and column. What lies outside the item
 * is zero to a convolution and nothing to a pooling. */
struct window_args {
    int64_t items;
    int64_t in[2], out[2]; /* rows, columns */
    int64_t channels;
    int64_t window[2], strides[2], pad[2];
};

/* One batch normalisation: x [rows, cols], statistics per column. */
struct batch_norm_args {
    int64_t rows, cols;
    const float *x;
    const float *stats; /* [2, cols]: mean and inverse deviation */
    const float *gamma; /* [cols]; NULL: 1 */
    const float *beta;  /* [cols]; NULL: 0 */
};

/* Which numbers a dropout layer draws: a function of the item's place in the global batch. */
struct dropout_args {
    float rate;
    uint64_t seed;
    uint64_t stream;  /* of (step, layer) */
    int64_t position; /* of row 0 */
    /* A row is positions of `width` columns: those from `first_column` on of `columns`, by which
     * the numbers go. */
    int64_t width, first_column, columns;
};

struct ops_options {
    enum compute_type compute; /* of matrix products, convolutions among them */
    int64_t widest;            /* elements of their largest operand */
    int is_plain;              /* each verb by itself as it comes: no fused, no replayed ones */
};

struct ops {
    const char *name;
    int is_host; /* the device reads and writes host memory: no copies needed */

    /* Takes the process's device; before any other verb, again only after close(). */
    int (*open)(const struct ops_options *o, struct err *e);
    void (*close)(void);
    /* Waits for everything that was asked for, but for uploads beside that have not been joined.
     * The first failure since open(), as a sentence. */
    int (*finish)(struct err *e);
    /* Has it begin with what was asked for: before the host does something else for long. */
    void (*start)(void);
    size_t (*workspace)(const struct ops_options *o); /* bytes that verbs keep for themselves */
    int64_t (*used)(void); /* bytes of the device that this process has taken; -1: the kernel counts
                              them (resident.h) */
    /* All bytes that the device has, and those that nobody has taken; -1: the host's kernel knows.
     */
    void (*room)(int64_t *ret_all, int64_t *ret_free);

    void *(*alloc)(size_t bytes); /* zeroed, 64-byte aligned; NULL when the device is full */
    void (*release)(void *p);     /* NULL is fine */
    /* Host memory that copies to and from the device go fastest with; aborts where there is none.
     */
    void *(*alloc_host)(size_t bytes);
    void (*release_host)(void *p);
    void (*zero)(void *p, size_t bytes);
    void (*copy)(void *to, const void *from, size_t bytes);
    void (*upload)(void *to, const void *host, size_t bytes);
    void (*download)(void *host, const void *from, size_t bytes);
    /* Like download(), without a wait of its own: `host` [alloc_host] has it when the next
     * download() or finish() returns, and until then nothing changes `from`. */
    void (*fetch)(void *host, const void *from, size_t bytes);
    /* Like upload(), but beside the verbs before and after it. `to` is nothing that a verb uses
     * that was called before join_uploads(); `host` [alloc_host] stays until finish() or a
     * download() after that. */
    void (*upload_beside)(void *to, const void *host, size_t bytes);
    void (*join_uploads)(void); /* verbs from now on come after the uploads until now */

    void (*to_bfloat16)(size_t n, const float *x, uint16_t *y); /* elem.h says how it rounds */
    void (*from_bfloat16)(size_t n, const uint16_t *x, float *y);
    void (*round_bfloat16)(size_t n, const float *x, float *y); /* there and back */
    /* Gradients for their way to other ranks, codec_bytes() of them, and added up from there: y +=
     * sign * what was packed. */
    void (*pack)(const struct parallel *p, size_t n, const float *x, void *packed);
    void (*add_packed)(const struct parallel *p, size_t n, const void *packed, float sign,
                       float *y);
    /* Rows of x [rows, cols] that are not all zero bits: their number, and the first `most` of them
     * into ids, memory of the device. */
    int64_t (*find_rows)(int64_t rows, int64_t cols, const float *x, int64_t most, uint32_t *ids);
    /* `count` rows of x as uint32 [room] ids, the rest of them UINT32_MAX, and float32 [room,
     * cols].
     */
    void (*pack_rows)(int64_t count, int64_t room, int64_t cols, const uint32_t *ids,
                      const float *x, void *packed);
    /* Sets the rows of y that any of `members` packed lists, `stride` bytes apart, has: to their
     * sum in the tree of collectives. */
    void (*sum_rows)(int members, int64_t room, int64_t cols, const void *packed, size_t stride,
                     float *y);
    void (*add)(size_t n, const float *x, float *y); /* y += x */
    void (*add_f64)(size_t n, const double *x, double *y);

    /* C [m, n] = op(A) [m, k] op(B) [k, n] + beta C, beta 0 or 1; transposed operands are stored
     * [k, m], [n, k]. */
    void (*gemm)(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                 const float *b, float beta, float *c);

    /* A dense layer: gemm(0, 0, rows, cols, in, x, kernel, 0, z), then activate(f, rows, cols,
     * bias, z, y), in one. bias may be NULL. Only where z is not y is z kept. */
    void (*dense)(enum activation f, int64_t rows, int64_t cols, int64_t in, const float *x,
                  const float *kernel, const float *bias, float *z, float *y);
    /* d_kernel [in, cols] = beta d_kernel + x' dz; where d_bias is not NULL, d_bias [cols] = beta
     * d_bias + the column sums of dz. beta 0 or 1. */
    void (*dense_backward_kernel)(int64_t rows, int64_t cols, int64_t in, const float *x,
                                  const float *dz, float beta, float *d_kernel, float *d_bias);

    /* z += bias [cols] (unless NULL); y = f(z); y may be z. Softmax is over the row. */
    void (*activate)(enum activation f, int64_t rows, int64_t cols, const float *bias, float *z,
                     float *y);
    /* dx = dy f'; `kept` is z where elem_keeps_input(f), else y; dx may be dy. Where d_bias is not
     * NULL, d_bias [cols] = beta d_bias + the column sums of dx, beta 0 or 1. */
    void (*activate_backward)(enum activation f, int64_t rows, int64_t cols, const float *kept,
                              const float *dy, float *dx, float beta, float *d_bias);

    /* [rows, cols] from rows of `from_width` to rows of `to_width`; zeroes where `from` is NULL. */
    void (*copy_columns)(int64_t rows, int64_t cols, const float *from, int64_t from_width,
                         float *to, int64_t to_width);

    void (*affine)(int64_t n, float scale, float offset, const float *x, float *y); /* y may be x */

    /* y = x / (1 - rate) or 0. Its own derivative: backward is the same call on gradients. */
    void (*dropout)(const struct dropout_args *a, int64_t rows, int64_t cols, const float *x,
                    float *y);

    /* z [items, out, filters] = x over a kernel [window, channels, filters]. An item's bits do not
     * depend on the items beside it. */
    void (*conv)(const struct window_args *a, int64_t filters, const float *x, const float *kernel,
                 float *z);
    /* d_kernel = beta d_kernel + the sum over places in order, beta 0 or 1 */
    void (*conv_backward_kernel)(const struct window_args *a, int64_t filters, const float *x,
                                 const float *dz, float beta, float *d_kernel);
    void (*conv_backward_input)(const struct window_args *a, int64_t filters, const float *dz,
                                const float *kernel, float *dx);

    /* y [items, out, channels]: the largest of the window, or the mean of those of its elements
     * that lie in the item. NaN is larger than all. */
    void (*max_pool)(const struct window_args *a, const float *x, float *y);
    void (*mean_pool)(const struct window_args *a, const float *x, float *y);
    /* To the first of the largest, row by row. */
    void (*max_pool_backward)(const struct window_args *a, const float *x, const float *y,
                              const float *dy, float *dx);
    void (*mean_pool_backward)(const struct window_args *a, const float *dy, float *dx);

    /* y [count, cols]: row `ids[i] - first` of table [rows, cols] for each i; zeroes where the id
     * is not among them. */
    void (*gather)(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                   const float *table, float *y);
    /* d_table = beta d_table + the rows of dy in order, each added to its id's */
    void (*scatter_add)(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                        const float *dy, float beta, float *d_table);

    /* sums [2, cols], device: of x and of its squares, by column. */
    void (*batch_moments)(int64_t rows, int64_t cols, const float *x, double *sums);
    /* stats from such sums over `count` rows in all, the variance divided by count. */
    void (*batch_stats)(int64_t cols, const double *sums, double count, double epsilon,
                        float *stats);
    void (*moving_stats)(int64_t cols, const float *mean, const float *variance, double epsilon,
                         float *stats);
    /* mean = momentum mean + (1 - momentum) that of the batch; the variance likewise */
    void (*update_moving)(int64_t cols, const double *sums, double count, double momentum,
                          float *mean, float *variance);
    void (*batch_normalize)(const struct batch_norm_args *a, float *y);
    /* sums [2, cols], device: of dy, and of dy times the normalised x. */
    void (*batch_norm_sums)(const struct batch_norm_args *a, const float *dy, double *sums);
    /* dx (NULL, or may be dy), given the sums of all rows and their count; NULL where the
     * statistics are not of these rows. d_gamma and d_beta (each may be NULL) = accumulate * old +
     * sums over the rows of the call. */
    void (*batch_norm_backward)(const struct batch_norm_args *a, const float *dy,
                                const double *sums, double count, float *dx, float accumulate,
                                float *d_gamma, float *d_beta);

    /* y = gamma (x - mean) * rstd + beta per row; keeps mean and rstd in stats [rows, 2]. gamma and
     * beta may be NULL: 1 and 0. */
    void (*normalize)(int64_t rows, int64_t cols, float epsilon, const float *x, const float *gamma,
                      const float *beta, float *stats, float *y);
    /* dx may be NULL or dy; d_gamma, d_beta [cols], each may be NULL, = accumulate * old + sums
     * over rows */
    void (*normalize_backward)(int64_t rows, int64_t cols, const float *x, const float *stats,
                               const float *gamma, const float *dy, float *dx, float accumulate,
                               float *d_gamma, float *d_beta);

    void (*loss)(const struct loss_args *a);

    void (*sum_squares)(size_t n, const float *x, double *ret);                  /* host result */
    void (*sum_squares_exactly)(size_t n, const float *x, struct exact_sum *to); /* adds; host */
    void (*adam)(const struct elem_adam *a, size_t n, const float *g, float *w, float *m, float *v);
    void (*sgd)(const struct elem_sgd *a, size_t n, const float *g, float *w,
                float *m); /* m may be NULL */
    /* Moments kept as bfloat16. */
    void (*adam_bfloat16)(const struct elem_adam *a, const struct elem_dither *d, size_t n,
                          const float *g, float *w, uint16_t *m, uint16_t *v);
    void (*sgd_bfloat16)(const struct elem_sgd *a, const struct elem_dither *d, size_t n,
                         const float *g, float *w, uint16_t *m);
    /* w, the mean of several ranks' weights, and anchor become the next weights; v may be NULL. */
    void (*outer_step)(const struct elem_outer *a, size_t n, float *w, float *anchor, float *v);
};

extern const struct ops ops_cpu;

/* ERR_NO_MEMORY: alloc() had no `bytes` for `what`. */
int ops_no_memory(const struct ops *o, size_t bytes, const char *what, struct err *e);

/* ---- the program's backend ---- */

struct comm;
struct comm_options;

/* One of them is linked into a program: backend_cpu.c's, or that of cuda/. */
struct backend {
    enum device_kind kind;
    const struct ops *ops;
    /* The world through which the device's memory travels, over one between the hosts that has been
     * opened; both are the result's, and closed with it. On failure the caller still owns `hosts`.
     */
    int (*comm)(struct comm *hosts, const struct comm_options *o, struct comm **ret, struct err *e);
    size_t (*comm_bytes)(const struct comm_options *o); /* of the device, foretold; comm_bytes() is
                                                           the hosts' */
};
extern const struct backend backend;

#endif
