/* ops_cpu_loss.c: losses, metrics and the gradient that backward starts from, row by row.
 *
 * From logits: log-sum-exp for cross-entropy, max(x, 0) - x t + log(1 + e^-|x|) for the binary
 * one; neither ever takes the logarithm of a rounded probability. From probabilities (a model
 * without a final softmax or sigmoid, or the mean of several models): Keras's rule, clipped to
 * [1e-7, 1 - 1e-7] and, for classes, divided by the row's sum; no gradient where it was clipped.
 *
 * Metrics follow Keras's "accuracy": one output is right when both sides of 0.5 agree, several are
 * right when the largest output is where the target's largest is (the first where tied). `mae` of
 * class labels is against the one-hot row.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "trainer/ops_cpu.h"

#define CLIP 1e-7f

/* One row as the losses see it. */
struct row {
    const struct loss_args *a;
    const float *out;
    const float *targets; /* NULL: the class */
    int32_t class;
    float *gradient; /* NULL: not wanted */
};

static float target(const struct row *r, int64_t c)
{
    return r->targets ? r->targets[c] : (float)(c == r->class);
}

static int64_t largest(int64_t n, const float *x)
{
    int64_t best = 0;
    for (int64_t c = 1; c < n; c++)
        if (x[c] > x[best])
            best = c;
    return best;
}

static int is_right(const struct row *r)
{
    int64_t cols = r->a->cols;
    if (cols == 1) {
        float border = r->a->from_logits && r->a->kind == LOSS_BINARY_CROSSENTROPY ? 0.0f : 0.5f;
        return (r->out[0] > border) == (target(r, 0) > 0.5f);
    }
    int64_t want = r->targets ? largest(cols, r->targets) : r->class;
    return largest(cols, r->out) == want;
}

static double mean_error(const struct row *r, const float *probability)
{
    double sum = 0;
    for (int64_t c = 0; c < r->a->cols; c++)
        sum += fabsf(probability[c] - target(r, c));
    return sum / (double)r->a->cols;
}

/* -sum t (x - logsumexp x); `p` gets the probabilities. Gradient: p sum(t) - t. */
static double entropy_of_logits(const struct row *r, float *p)
{
    int64_t n = r->a->cols;
    float max = cpu_row_max(n, r->out);
    float sum = cpu_row_exp(n, max, r->out, p);
    float inverse = 1.0f / sum, log_sum = logf(sum) + max;
    double loss = 0, weight = 0;
    for (int64_t c = 0; c < n; c++)
        p[c] *= inverse;
    if (!r->targets) {
        loss = log_sum - r->out[r->class];
        weight = 1;
    } else {
        for (int64_t c = 0; c < n; c++) {
            loss += (double)r->targets[c] * (log_sum - r->out[c]);
            weight += r->targets[c];
        }
    }
    for (int64_t c = 0; r->gradient && c < n; c++)
        r->gradient[c] = p[c] * (float)weight - target(r, c);
    return loss;
}

static float clip(float p)
{
    return p < CLIP ? CLIP : p > 1.0f - CLIP ? 1.0f - CLIP : p;
}

/* With q the clipped outputs: -sum t log(q / sum q). */
static double entropy_of_probabilities(const struct row *r)
{
    int64_t n = r->a->cols;
    double sum = 0, weight = 0, loss = 0;
    for (int64_t c = 0; c < n; c++) {
        sum += clip(r->out[c]);
        weight += target(r, c);
    }
    for (int64_t c = 0; c < n; c++) {
        float t = target(r, c), q = clip(r->out[c]);
        if (t != 0.0f)
            loss -= t * (log((double)q) - log(sum));
        if (r->gradient)
            r->gradient[c] = q == r->out[c] ? (float)(weight / sum - (double)t / q) : 0.0f;
    }
    return loss;
}

static double binary(const struct row *r, float *p)
{
    int64_t n = r->a->cols;
    double loss = 0;
    for (int64_t c = 0; c < n; c++) {
        float x = r->out[c], t = target(r, c), d;
        if (r->a->from_logits) {
            p[c] = elem_sigmoid(x);
            loss += (double)elem_max(x, 0.0f) - (double)x * t + log1pf(elem_exp(-fabsf(x)));
            d = p[c] - t;
        } else {
            float q = clip(x);
            loss -= t * log((double)q) + (1.0 - t) * log1p(-(double)q);
            d = q == x ? (q - t) / (q * (1.0f - q)) : 0.0f;
        }
        if (r->gradient)
            r->gradient[c] = d / (float)n;
    }
    return loss / (double)n;
}

static double squared(const struct row *r)
{
    int64_t n = r->a->cols;
    double loss = 0;
    for (int64_t c = 0; c < n; c++) {
        float d = r->out[c] - target(r, c);
        loss += (double)d * d;
        if (r->gradient)
            r->gradient[c] = 2.0f * d / (float)n;
    }
    return loss / (double)n;
}

static double loss_of(const struct row *r, float *p)
{
    switch (r->a->kind) {
    case LOSS_SPARSE_CATEGORICAL_CROSSENTROPY:
    case LOSS_CATEGORICAL_CROSSENTROPY:
        return r->a->from_logits ? entropy_of_logits(r, p) : entropy_of_probabilities(r);
    case LOSS_BINARY_CROSSENTROPY: return binary(r, p);
    case LOSS_MEAN_SQUARED_ERROR: return squared(r);
    case LOSS__MAX: break;
    }
    return 0;
}

static float weight_of(const struct row *r)
{
    const struct loss_args *a = r->a;
    int64_t class = r->class;
    if (r->targets)
        class = a->cols == 1 ? r->targets[0] > 0.5f : largest(a->cols, r->targets);
    return class < a->weight_count ? a->weights[class] : 1.0f;
}

static void one_row(const struct row *r, float *p)
{
    struct loss_sums *s = r->a->sums;
    float weight = weight_of(r);
    s->loss += weight * loss_of(r, p);
    for (int64_t c = 0; r->gradient && weight != 1.0f && c < r->a->cols; c++)
        r->gradient[c] *= weight;
    s->accuracy += is_right(r);
    s->mae += mean_error(r, r->a->from_logits ? p : r->out);
}

void cpu_loss(const struct loss_args *a)
{
    float few[256] = {0};
    CLEANUP(mem_freep) float *many = NULL;
    if (a->cols > (int64_t)ARRAY_LEN(few))
        many = mem_alloc((size_t)a->cols * sizeof *many);
    for (int64_t i = 0; i < a->rows; i++) {
        struct row r = {
            .a = a,
            .out = a->out + i * a->cols,
            .targets = a->classes ? NULL : a->targets + i * a->cols,
            .class = a->classes ? a->classes[i] : 0,
            .gradient = a->gradient ? a->gradient + i * a->cols : NULL,
        };
        one_row(&r, many ? many : few);
    }
}
