/* ops_elementwise.cu: verbs that give an element for an element, and softmax over a row. Each reads
 * what it needs once and is bound by memory; sums of columns are taken on the way (reduce.h). */
#include "trainer/cuda/exponentials.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/reduce.h"
#include "trainer/cuda/vector.h"

#include <Random123/philox.h>

/* ---- other forms of the same numbers ---- */

namespace
{
struct to_bfloat16 {
    const float *x;
    uint16_t *y;
    template <int W> __device__ void at(int64_t i) const
    {
        auto from = load<W>(x + i);
        vector<uint16_t, W> to;
        for (int k = 0; k < W; k++)
            to.v[k] = elem_to_bfloat16(from.v[k]);
        store(y + i, to);
    }
};

struct from_bfloat16 {
    const uint16_t *x;
    float *y;
    template <int W> __device__ void at(int64_t i) const
    {
        auto from = load<W>(x + i);
        vector<float, W> to;
        for (int k = 0; k < W; k++)
            to.v[k] = elem_from_bfloat16(from.v[k]);
        store(y + i, to);
    }
};

struct round_bfloat16 {
    const float *x;
    float *y;
    template <int W> __device__ void at(int64_t i) const
    {
        auto v = load<W>(x + i);
        for (int k = 0; k < W; k++)
            v.v[k] = elem_from_bfloat16(elem_to_bfloat16(v.v[k]));
        store(y + i, v);
    }
};

template <class T> struct add_to {
    const T *x;
    T *y;
    template <int W> __device__ void at(int64_t i) const
    {
        auto v = load<W>(y + i), more = load<W>(x + i);
        for (int k = 0; k < W; k++)
            v.v[k] += more.v[k];
        store(y + i, v);
    }
};

struct affine {
    float scale, offset;
    const float *x;
    float *y;
    template <int W> __device__ void at(int64_t i) const
    {
        auto v = load<W>(x + i);
        for (int k = 0; k < W; k++)
            v.v[k] = v.v[k] * scale + offset;
        store(y + i, v);
    }
};
} // namespace

void cuda_to_bfloat16(size_t n, const float *x, uint16_t *y)
{
    map<4>(to_bfloat16{x, y}, static_cast<int64_t>(n), vector_phase<4>(x, y));
}

void cuda_from_bfloat16(size_t n, const uint16_t *x, float *y)
{
    map<4>(from_bfloat16{x, y}, static_cast<int64_t>(n), vector_phase<4>(x, y));
}

void cuda_round_bfloat16(size_t n, const float *x, float *y)
{
    map<4>(round_bfloat16{x, y}, static_cast<int64_t>(n), vector_phase<4>(x, y));
}

void cuda_add(size_t n, const float *x, float *y)
{
    map<4>(add_to<float>{x, y}, static_cast<int64_t>(n), vector_phase<4>(x, y));
}

void cuda_add_f64(size_t n, const double *x, double *y)
{
    map<2>(add_to<double>{x, y}, static_cast<int64_t>(n), vector_phase<2>(x, y));
}

void cuda_affine(int64_t n, float scale, float offset, const float *x, float *y)
{
    map<4>(affine{scale, offset, x, y}, n, vector_phase<4>(x, y));
}

/* ---- activations ---- */

namespace
{
/* One kernel for each function: it is a constant in all of them. */
template <enum activation f> struct activate {
    const float *bias;
    float *z, *y;
    int64_t cols;
    int64_t is_kept; /* z with its bias */

    template <int W> __device__ void at(int64_t i) const
    {
        auto v = load<W>(z + i);
        for (int k = 0; k < W; k++)
            v.v[k] = elem_activate(f, v.v[k]);
        store(y + i, v);
    }
    template <int W> __device__ void at(int64_t row, int64_t c) const
    {
        int64_t i = row * cols + c;
        auto v = load<W>(z + i), b = load<W>(bias + c);
        for (int k = 0; k < W; k++)
            v.v[k] += b.v[k];
        if (is_kept)
            store(z + i, v);
        for (int k = 0; k < W; k++)
            v.v[k] = elem_activate(f, v.v[k]);
        store(y + i, v);
    }
};

template <enum activation f> struct derive {
    const float *kept, *dy;
    float *dx;
    int64_t cols;

    template <int W> __device__ void at(int64_t i) const
    {
        auto v = load<W>(dy + i), k = load<W>(kept + i);
        for (int j = 0; j < W; j++)
            v.v[j] *= elem_derivative(f, k.v[j]);
        store(dx + i, v);
    }

    /* As a term of columns' sums. */
    typedef float sum;
    static constexpr int count = 1;
    __device__ void at(int64_t row, int64_t col, float *add) const
    {
        int64_t i = row * cols + col;
        add[0] = f == ACTIVATION_LINEAR ? dy[i] : dy[i] * elem_derivative(f, kept[i]);
        if (f != ACTIVATION_LINEAR || dx != dy)
            dx[i] = add[0];
    }
};

struct columns_of {
    const float *x;
    int64_t cols;
    typedef float sum;
    static constexpr int count = 1;
    __device__ void at(int64_t row, int64_t col, float *add) const
    {
        add[0] = x[row * cols + col];
    }
};
} // namespace

template <enum activation f>
static void activate_elements(int64_t rows, int64_t cols, const float *bias, float *z, float *y)
{
    activate<f> each = {bias, z, y, cols, z != y};
    if (!bias)
        map<4>(each, rows * cols, vector_phase<4>(z, y));
    else
        map_rows<4>(each, rows, cols, vector_phase<4>(z, y, bias) == 0);
}

template <enum activation f>
static void derive_elements(int64_t rows, int64_t cols, const float *kept, const float *dy,
                            float *dx, float beta, float *d_bias)
{
    derive<f> each = {kept, dy, dx, cols};
    if (d_bias)
        column_sums(each, rows, cols, columns_to_floats<1>{{d_bias}, beta});
    else
        map<4>(each, rows * cols, vector_phase<4>(kept, dy, dx));
    device_scratch_done();
}

/* ---- softmax ---- */

template <class Team>
__global__ static void softmax_rows(int64_t rows, int64_t cols, const float *bias, float *z,
                                    float *y)
{
    for (int64_t r = Team::first(); r < rows; r += Team::step()) {
        exponentials seen = EXPONENTIALS_OF_NOTHING;
        for (int64_t c = Team::lane(); c < cols; c += Team::size) {
            float x = z[r * cols + c];
            if (bias)
                x += bias[c];
            if (bias && z != y)
                z[r * cols + c] = x;
            seen = exponentials_see(seen, x);
        }
        seen = Team::template reduce<exponentials_merge>(seen);
        float inverse = 1.0f / exponentials_sum(seen);
        for (int64_t c = Team::lane(); c < cols; c += Team::size) {
            float x = z[r * cols + c];
            if (bias && z == y)
                x += bias[c];
            y[r * cols + c] = elem_exp(x - seen.max) * inverse;
        }
    }
}

/* dx = y (dy - <dy, y>) */
template <class Team>
__global__ static void softmax_rows_backward(int64_t rows, int64_t cols, const float *y,
                                             const float *dy, float *dx)
{
    for (int64_t r = Team::first(); r < rows; r += Team::step()) {
        float dot = 0.0f;
        for (int64_t c = Team::lane(); c < cols; c += Team::size)
            dot += dy[r * cols + c] * y[r * cols + c];
        dot = Team::template reduce<reduce_add>(dot);
        for (int64_t c = Team::lane(); c < cols; c += Team::size)
            dx[r * cols + c] = y[r * cols + c] * (dy[r * cols + c] - dot);
    }
}

static void softmax_backward(int64_t rows, int64_t cols, const float *y, const float *dy, float *dx,
                             float beta, float *d_bias)
{
    if (rows > 0 && cols > 0)
        TEAM_LAUNCH(softmax_rows_backward, rows, cols, rows, cols, y, dy, dx);
    if (d_bias)
        column_sums(columns_of{dx, cols}, rows, cols, columns_to_floats<1>{{d_bias}, beta});
    device_scratch_done();
}

/* ---- by function ---- */

#define EACH_ELEMENTWISE(CASE)                                                                     \
    CASE(ACTIVATION_LINEAR)                                                                        \
    CASE(ACTIVATION_RELU)                                                                          \
    CASE(ACTIVATION_TANH)                                                                          \
    CASE(ACTIVATION_SIGMOID)                                                                       \
    CASE(ACTIVATION_GELU)                                                                          \
    CASE(ACTIVATION_GELU_TANH)                                                                     \
    CASE(ACTIVATION_ELU)                                                                           \
    CASE(ACTIVATION_SILU)                                                                          \
    CASE(ACTIVATION_SOFTPLUS)                                                                      \
    CASE(ACTIVATION_LEAKY_RELU)

void cuda_activate(enum activation f, int64_t rows, int64_t cols, const float *bias, float *z,
                   float *y)
{
    if (rows == 0 || cols == 0 || (f == ACTIVATION_LINEAR && !bias && y == z))
        return;
    switch (f) {
#define CASE(F)                                                                                    \
    case F: activate_elements<F>(rows, cols, bias, z, y); break;
        EACH_ELEMENTWISE(CASE)
#undef CASE
    case ACTIVATION_SOFTMAX: TEAM_LAUNCH(softmax_rows, rows, cols, rows, cols, bias, z, y); break;
    case ACTIVATION__MAX: break;
    }
}

void cuda_activate_backward(enum activation f, int64_t rows, int64_t cols, const float *kept,
                            const float *dy, float *dx, float beta, float *d_bias)
{
    if (f == ACTIVATION_LINEAR && !d_bias && dx == dy)
        return;
    switch (f) {
#define CASE(F)                                                                                    \
    case F: derive_elements<F>(rows, cols, kept, dy, dx, beta, d_bias); break;
        EACH_ELEMENTWISE(CASE)
#undef CASE
    case ACTIVATION_SOFTMAX: softmax_backward(rows, cols, kept, dy, dx, beta, d_bias); break;
    case ACTIVATION__MAX: break;
    }
}

/* ---- columns ---- */

namespace
{
struct copy_columns {
    const float *from;
    int64_t from_width;
    float *to;
    int64_t to_width;
    template <int W> __device__ void at(int64_t row, int64_t c) const
    {
        vector<float, W> v = {};
        if (from)
            v = load<W>(from + row * from_width + c);
        store(to + row * to_width + c, v);
    }
};
} // namespace

void cuda_copy_columns(int64_t rows, int64_t cols, const float *from, int64_t from_width, float *to,
                       int64_t to_width)
{
    size_t bytes = static_cast<size_t>(rows * cols) * sizeof *to;
    if (to_width == cols && (!from || from_width == cols)) { /* one piece of memory */
        if (from && bytes)
            tape_copy(to, from, bytes);
        else if (bytes)
            tape_zero(to, bytes);
        return;
    }
    int aligned = vector_phase<4>(from, to) == 0 && to_width % 4 == 0;
    if (from)
        aligned = aligned && from_width % 4 == 0;
    map_rows<4>(copy_columns{from, from_width, to, to_width}, rows, cols, aligned);
}

/* ---- dropout ---- */

namespace
{
/* A thread draws one counter's four numbers, random.h's, and takes those of them that fall to a
 * line: `width` elements from number `first_column` of its place on. */
struct drop {
    uint64_t key, stream;
    float rate, scale;
    int64_t position;  /* of row 0 */
    uint64_t counters; /* of a row */
    int64_t places;    /* lines of a row */
    int64_t width, first_column, columns;
    const float *x;
    float *y;

    template <int W> __device__ void at(int64_t line, int64_t q) const
    {
        int64_t row = places == 1 ? line : line / places, place = line - row * places;
        int64_t first = place * columns + first_column; /* the line's first number */
        int64_t number = first / 4 * 4 + q * 4;
        uint64_t index = static_cast<uint64_t>(position + row) * counters + number / 4;
        philox4x32_key_t k = {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
        philox4x32_ctr_t c = {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}};
        philox4x32_ctr_t word = philox4x32(c, k);
        for (int i = 0; i < 4; i++) {
            int64_t at = number + i - first;
            float unit = static_cast<float>(word.v[i] >> 8) * 0x1p-24f;
            if (at >= 0 && at < width)
                y[line * width + at] = unit >= rate ? x[line * width + at] * scale : 0.0f;
        }
    }
};
} // namespace

void cuda_dropout(const struct dropout_args *a, int64_t rows, int64_t cols, const float *x,
                  float *y)
{
    int64_t places = cols / a->width;
    drop d = {a->seed ^ static_cast<uint64_t>(RANDOM_DROPOUT) << 56,
              a->stream,
              a->rate,
              1.0f / (1.0f - a->rate),
              a->position,
              (static_cast<uint64_t>(places * a->columns) + 3) / 4,
              places,
              a->width,
              a->first_column,
              a->columns,
              x,
              y};
    if (a->width == a->columns) { /* the places of a row follow one another */
        d.places = 1;
        d.width = d.columns = cols;
    }
    map_rows<1>(d, rows * d.places, d.width / 4 + 2, 0);
}
