/* ops_loss.cu: losses, metrics and the gradient that backward starts from: one kernel, a team for
 * a row, which it walks through twice: for what the whole row has to say (the largest outputs, the
 * sum of exponentials, the weight), and for each element's part in it. The rules are those of
 * ops_cpu_loss.c.
 *
 * Sums over rows are kept in float64 by teams, then blocks, then the call: an order that depends on
 * the shape alone. */
#include "trainer/cuda/exponentials.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/reduce.h"

#define CLIP 1e-7f

namespace
{
enum form { LOGITS, PROBABILITIES, BINARY_LOGITS, BINARY, SQUARED };

struct args {
    int64_t rows, cols;
    const float *out;
    const int32_t *classes;
    const float *targets; /* where classes is NULL */
    float *gradient;      /* may be NULL */
    const float *weights;
    int64_t weight_count;
};

struct row {
    const float *out, *targets; /* targets NULL: the class */
    int64_t own;                /* class */
};

__device__ __forceinline__ float target(const row &r, int64_t c)
{
    return r.targets ? r.targets[c] : static_cast<float>(c == r.own);
}

/* The first of the largest. A NaN is larger than nothing, but at column 0 nothing is larger. */
struct largest {
    float value;
    int64_t column;
};

struct largest_merge {
    __device__ __forceinline__ static largest merge(largest a, largest b)
    {
        int first = a.value > b.value || (a.value == b.value && a.column < b.column);
        return first ? a : b;
    }
};

__device__ __forceinline__ largest shuffle_xor(largest x, int lanes)
{
    return {::shuffle_xor(x.value, lanes), ::shuffle_xor(x.column, lanes)};
}

__device__ __forceinline__ largest largest_of(float x, int64_t c)
{
    if (x != x)
        x = c == 0 ? INFINITY : -INFINITY;
    return {x, c};
}

/* What a row's first walk finds. */
struct found {
    int64_t out, target; /* columns of the largest */
    float max, inverse;  /* LOGITS: of the exponentials; inverse of their sum */
    double log_sum;      /* the logarithm of the sum of exponentials, or of clipped outputs */
    double sum, weight;  /* of clipped outputs, of targets */
};

__device__ __forceinline__ float clip(float p)
{
    return p < CLIP ? CLIP : p > 1.0f - CLIP ? 1.0f - CLIP : p;
}

template <class Team, form F> __device__ __forceinline__ found walk(const row &r, int64_t cols)
{
    found f = {};
    largest out = {-INFINITY, INT64_MAX}, want = {-INFINITY, INT64_MAX};
    exponentials seen = EXPONENTIALS_OF_NOTHING;
    for (int64_t c = Team::lane(); c < cols; c += Team::size) {
        float x = r.out[c];
        out = largest_merge::merge(out, largest_of(x, c));
        if (F == LOGITS)
            seen = exponentials_see(seen, x);
        if (F == PROBABILITIES)
            f.sum += clip(x);
        if (r.targets) {
            want = largest_merge::merge(want, largest_of(r.targets[c], c));
            f.weight += r.targets[c];
        }
    }
    f.out = Team::template reduce<largest_merge>(out).column;
    f.target = r.targets ? Team::template reduce<largest_merge>(want).column : r.own;
    if (F == LOGITS) {
        seen = Team::template reduce<exponentials_merge>(seen);
        seen.sum = exponentials_sum(seen);
        f.max = seen.max;
        f.inverse = 1.0f / seen.sum;
        f.log_sum = static_cast<double>(logf(seen.sum) + seen.max);
    }
    if (F == PROBABILITIES) {
        f.sum = Team::template reduce<reduce_add>(f.sum);
        f.log_sum = log(f.sum);
    }
    if (F == LOGITS || F == PROBABILITIES)
        f.weight = r.targets ? Team::template reduce<reduce_add>(f.weight) : 1.0;
    return f;
}

/* One element: what it adds to the row's loss, its probability (or output) and gradient. */
struct element {
    double loss;
    float p, gradient;
};

template <form F>
__device__ __forceinline__ element element_of(const found &f, float x, float t, float cols)
{
    element e = {0.0, x, 0.0f};
    if (F == LOGITS) {
        e.p = elem_exp(x - f.max) * f.inverse;
        e.loss = static_cast<double>(t) * static_cast<double>(static_cast<float>(f.log_sum) - x);
        e.gradient = e.p * static_cast<float>(f.weight) - t;
    } else if (F == PROBABILITIES) {
        float q = clip(x);
        if (t != 0.0f)
            e.loss = -static_cast<double>(t) * (log(static_cast<double>(q)) - f.log_sum);
        if (q == x)
            e.gradient = static_cast<float>(f.weight / f.sum - static_cast<double>(t) / q);
    } else if (F == BINARY_LOGITS) {
        e.p = elem_sigmoid(x);
        e.loss = static_cast<double>(elem_max(x, 0.0f)) - static_cast<double>(x) * t +
                 static_cast<double>(log1pf(elem_exp(-fabsf(x))));
        e.gradient = (e.p - t) / cols;
    } else if (F == BINARY) {
        float q = clip(x);
        e.loss = -(t * log(static_cast<double>(q)) + (1.0 - t) * log1p(-static_cast<double>(q)));
        e.gradient = q == x ? (q - t) / (q * (1.0f - q)) / cols : 0.0f;
    } else {
        float d = x - t;
        e.loss = static_cast<double>(d) * d;
        e.gradient = 2.0f * d / cols;
    }
    return e;
}

/* As struct loss_sums. */
struct sums {
    double loss, accuracy, mae;
};
} // namespace

template <form F>
__device__ __forceinline__ int is_right(const row &r, int64_t cols, const found &f)
{
    if (cols == 1)
        return (r.out[0] > (F == BINARY_LOGITS ? 0.0f : 0.5f)) == (target(r, 0) > 0.5f);
    return f.out == f.target;
}

__device__ __forceinline__ float weight_of(const args &a, const row &r, const found &f)
{
    int64_t own = r.targets && a.cols == 1 ? r.targets[0] > 0.5f : f.target;
    return own < a.weight_count ? a.weights[own] : 1.0f;
}

/* Every thread of the team gets the row's. */
template <class Team, form F>
__device__ __forceinline__ void add_row(const args &a, int64_t i, sums *to)
{
    row r = {a.out + i * a.cols, a.classes ? nullptr : a.targets + i * a.cols,
             a.classes ? a.classes[i] : 0};
    found f = walk<Team, F>(r, a.cols);
    float weight = weight_of(a, r, f);
    double loss = 0.0, error = 0.0;
    for (int64_t c = Team::lane(); c < a.cols; c += Team::size) {
        float t = target(r, c);
        element e = element_of<F>(f, r.out[c], t, static_cast<float>(a.cols));
        loss += r.targets || F != LOGITS || c == r.own ? e.loss : 0.0;
        error += static_cast<double>(fabsf(e.p - t));
        if (a.gradient)
            a.gradient[i * a.cols + c] = weight != 1.0f ? e.gradient * weight : e.gradient;
    }
    loss = Team::template reduce<reduce_add>(loss);
    error = Team::template reduce<reduce_add>(error);
    double cols = static_cast<double>(a.cols);
    to->loss +=
        static_cast<double>(weight) * (F == LOGITS || F == PROBABILITIES ? loss : loss / cols);
    to->accuracy += is_right<F>(r, a.cols, f);
    to->mae += error / cols;
}

/* The block's sums, of which each team has its own; thread 0's are what is stored. */
template <class Team> __device__ __forceinline__ sums sums_of_block(const sums &own)
{
    int counts = Team::lane() == 0;
    return {block_reduce<reduce_add>(counts ? own.loss : 0.0),
            block_reduce<reduce_add>(counts ? own.accuracy : 0.0),
            block_reduce<reduce_add>(counts ? own.mae : 0.0)};
}

template <class Team, form F> __global__ static void loss_rows(args a, sums *parts)
{
    sums own = {};
    for (int64_t r = Team::first(); r < a.rows; r += Team::step())
        add_row<Team, F>(a, r, &own);
    own = sums_of_block<Team>(own);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = own;
}

__global__ static void loss_of_blocks(int64_t blocks, const sums *parts, sums *to)
{
    sums own = {};
    for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x) {
        own.loss += parts[i].loss;
        own.accuracy += parts[i].accuracy;
        own.mae += parts[i].mae;
    }
    own = {block_reduce<reduce_add>(own.loss), block_reduce<reduce_add>(own.accuracy),
           block_reduce<reduce_add>(own.mae)};
    if (threadIdx.x == 0) {
        to->loss += own.loss;
        to->accuracy += own.accuracy;
        to->mae += own.mae;
    }
}

static form form_of(const struct loss_args *a)
{
    switch (a->kind) {
    case LOSS_SPARSE_CATEGORICAL_CROSSENTROPY:
    case LOSS_CATEGORICAL_CROSSENTROPY: return a->from_logits ? LOGITS : PROBABILITIES;
    case LOSS_BINARY_CROSSENTROPY: return a->from_logits ? BINARY_LOGITS : BINARY;
    case LOSS_MEAN_SQUARED_ERROR: return SQUARED;
    case LOSS__MAX: break;
    }
    BUG("loss %d", static_cast<int>(a->kind));
}

template <form F> static void launch(dim3 grid, const args &a, sums *parts)
{
    if (team_is_warp(a.cols))
        TAPE_LAUNCH((loss_rows<warp_team, F>), grid, TAPE_THREADS, 0, a, parts);
    else
        TAPE_LAUNCH((loss_rows<block_team, F>), grid, TAPE_THREADS, 0, a, parts);
}

void cuda_loss(const struct loss_args *a)
{
    if (a->rows == 0)
        return;
    args k = {a->rows,    a->cols,     a->out,     a->classes,
              a->targets, a->gradient, a->weights, a->weight_count};
    dim3 grid = team_grid(a->rows, a->cols);
    sums *parts = static_cast<sums *>(device_scratch(grid.x * sizeof *parts));
    switch (form_of(a)) {
    case LOGITS: launch<LOGITS>(grid, k, parts); break;
    case PROBABILITIES: launch<PROBABILITIES>(grid, k, parts); break;
    case BINARY_LOGITS: launch<BINARY_LOGITS>(grid, k, parts); break;
    case BINARY: launch<BINARY>(grid, k, parts); break;
    case SQUARED: launch<SQUARED>(grid, k, parts); break;
    }
    static_assert(sizeof(sums) == sizeof(struct loss_sums), "sums are added to loss_sums");
    TAPE_LAUNCH(loss_of_blocks, dim3(1), TAPE_THREADS, 0, static_cast<int64_t>(grid.x), parts,
                reinterpret_cast<sums *>(a->sums));
    device_scratch_done();
}
