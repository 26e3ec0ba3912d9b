/* ops_embedding.cu: rows of a table by id, and gradients back to them. For the latter, the places
 * of ids are sorted by id, equal ones in their order (radix sort, 8 bits at a time), and a warp
 * adds up the rows of one id, in that order, as the CPU does: the same bits. A table of 50,000
 * words costs what zeroing it costs.
 */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/scan.h"
#include "trainer/cuda/index.h"

/* The table's row for an id; -1: not among [first, first + rows). NaN is no id. */
__device__ __forceinline__ int64_t row_of(float id, int64_t first, int64_t rows)
{
    return id >= static_cast<float>(first) && id < static_cast<float>(first + rows)
               ? static_cast<int64_t>(id) - first
               : -1;
}

/* ---- gather ---- */

template <class Index, int V>
__global__ static void gather_rows(struct divisor by_cols, int64_t cols, int64_t first,
                                   int64_t rows, const float *ids, const float *table, float *y,
                                   Index n)
{
    EACH_INDEX(Index, i, n)
    {
        Index place = i;
        int64_t col = take_rest(place, by_cols) * static_cast<int64_t>(V);
        int64_t row = row_of(ids[place], first, rows);
        vector<float, V> v = {};
        if (row >= 0)
            v = load<V>(table + row * cols + col);
        store(y + static_cast<int64_t>(i) * V, v);
    }
}

void cuda_gather(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                 const float *table, float *y)
{
    int v = floats_at_once(cols, table, static_cast<const float *>(y));
    VECTOR_LAUNCH(gather_rows, v, count * cols / v, divisor_of(cols / v), cols, first, rows, ids,
                  table, y);
}

/* ---- sorting places by id ---- */

#define DIGITS      256 /* as many as a block has threads */
#define WARP_ROUNDS 8   /* a warp of a block takes so many times 32 of its elements */
#define SORT_TILE   (TAPE_THREADS * WARP_ROUNDS)
#define PIECE_IDS   ((int64_t)1 << 18) /* sorted at a time */
static_assert(DIGITS == TAPE_THREADS, "a thread has a digit");

/* Rows and places of n ids, twice: sorted from one into the other. */
struct sorting {
    int64_t n, tiles;
    uint32_t *rows[2], *places[2];
    uint32_t *counts; /* [DIGITS, tiles], and one */
};

/* Ids that are not the table's get row `rows`, behind all others. */
__global__ static void find_rows_of(int64_t n, int64_t first, int64_t rows, const float *ids,
                                    uint32_t *to, uint32_t *places)
{
    GRID_STRIDE(i, n)
    {
        int64_t row = row_of(ids[i], first, rows);
        to[i] = static_cast<uint32_t>(row < 0 ? rows : row);
        places[i] = static_cast<uint32_t>(i);
    }
}

/* A block has a tile. */
__global__ static void count_digits(int64_t n, int64_t tiles, int shift, const uint32_t *rows,
                                    uint32_t *counts)
{
    __shared__ uint32_t of_digit[DIGITS];
    of_digit[threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < WARP_ROUNDS; k++) {
        int64_t i = static_cast<int64_t>(blockIdx.x) * SORT_TILE + k * TAPE_THREADS + threadIdx.x;
        if (i < n)
            atomicAdd(&of_digit[rows[i] >> shift & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    counts[threadIdx.x * tiles + blockIdx.x] = of_digit[threadIdx.x];
}

/* The lanes whose digit is this one's, of those that have one. */
__device__ __forceinline__ uint32_t lanes_alike(int has, uint32_t digit)
{
    uint32_t alike = __ballot_sync(ALL_LANES, has);
    for (uint32_t bit = 1; bit < DIGITS; bit *= 2) {
        uint32_t set = __ballot_sync(ALL_LANES, (digit & bit) != 0);
        alike &= digit & bit ? set : ~set;
    }
    return alike;
}

/* Where this lane's element goes, and `next` of its digit moves on for the whole warp. */
__device__ __forceinline__ uint32_t take_place(int has, uint32_t digit, uint32_t *next)
{
    uint32_t alike = lanes_alike(has, digit), before = ones_in(alike & lanes_before());
    uint32_t at = has ? next[digit] + before : 0u;
    __syncwarp();
    if (has && before == 0)
        next[digit] += ones_in(alike);
    __syncwarp();
    return at;
}

/* Each warp of a block takes a run of its tile, so that equal digits stay in order. */
__global__ static void sort_by_digit(int64_t n, int64_t tiles, int shift, const uint32_t *rows,
                                     const uint32_t *places, const uint32_t *counts,
                                     uint32_t *to_rows, uint32_t *to_places)
{
    __shared__ uint32_t next[WARPS][DIGITS];
    int warp = static_cast<int>(threadIdx.x) / WARP;
    int64_t first = static_cast<int64_t>(blockIdx.x) * SORT_TILE + warp * WARP * WARP_ROUNDS +
                    threadIdx.x % WARP;
    for (int w = 0; w < WARPS; w++)
        next[w][threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < WARP_ROUNDS; k++) {
        int64_t i = first + k * WARP;
        take_place(i < n, i < n ? rows[i] >> shift & (DIGITS - 1) : 0u, next[warp]);
    }
    __syncthreads();
    uint32_t at = counts[threadIdx.x * tiles + blockIdx.x];
    for (int w = 0; w < WARPS; w++) {
        uint32_t here = next[w][threadIdx.x];
        next[w][threadIdx.x] = at;
        at += here;
    }
    __syncthreads();
    for (int k = 0; k < WARP_ROUNDS; k++) {
        int64_t i = first + k * WARP;
        uint32_t row = i < n ? rows[i] : 0u;
        uint32_t to = take_place(i < n, row >> shift & (DIGITS - 1), next[warp]);
        if (i < n) {
            to_rows[to] = row;
            to_places[to] = places[i];
        }
    }
}

static struct sorting take_sorting(int64_t n)
{
    struct sorting s = {n, (n + SORT_TILE - 1) / SORT_TILE, {}, {}, NULL};
    size_t bytes = static_cast<size_t>(n) * sizeof(uint32_t);
    for (int i = 0; i < 2; i++) {
        s.rows[i] = static_cast<uint32_t *>(device_scratch(bytes));
        s.places[i] = static_cast<uint32_t *>(device_scratch(bytes));
    }
    s.counts = static_cast<uint32_t *>(
        device_scratch(static_cast<size_t>(DIGITS * s.tiles + 1) * sizeof(uint32_t)));
    return s;
}

/* Returns in which of the two they are in the end. */
static int sort_by_row(const struct sorting *s, int64_t rows)
{
    int from = 0;
    dim3 grid(static_cast<unsigned>(s->tiles));
    for (int shift = 0; rows >> shift > 0; shift += 8, from = !from) {
        TAPE_LAUNCH(count_digits, grid, TAPE_THREADS, 0, s->n, s->tiles, shift, s->rows[from],
                    s->counts);
        scan(DIGITS * s->tiles, s->counts);
        TAPE_LAUNCH(sort_by_digit, grid, TAPE_THREADS, 0, s->n, s->tiles, shift, s->rows[from],
                    s->places[from], s->counts, s->rows[!from], s->places[!from]);
    }
    return from;
}

/* ---- scatter ---- */

#define ROWS_AT_ONCE                                                                               \
    8 /* read before they are added, so that a frequent id does not wait for each */

/* Adds to `sum` the rows of dy for sorted ids [i, n) as long as these are `row`. */
template <int V>
__device__ static vector<float, V> add_run(vector<float, V> sum, int64_t i, int64_t n, uint32_t row,
                                           const uint32_t *rows, const uint32_t *places,
                                           int64_t cols, const float *dy)
{
    for (; i < n && rows[i] == row; i += ROWS_AT_ONCE) {
        vector<float, V> v[ROWS_AT_ONCE];
        bool has[ROWS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < ROWS_AT_ONCE; k++) {
            has[k] = i + k < n && rows[i + k] == row;
            if (has[k])
                v[k] = load<V>(dy + places[i + k] * cols);
        }
#pragma unroll
        for (int k = 0; k < ROWS_AT_ONCE; k++)
            for (int c = 0; c < V; c++)
                if (has[k])
                    sum.v[c] += v[k].v[c];
    }
    return sum;
}

/* A warp has a sorted place and 32 V columns; where an id's run begins it adds up the run. */
template <int V>
__global__ static void add_runs(int64_t n, int64_t table_rows, int64_t cols, const uint32_t *rows,
                                const uint32_t *places, const float *dy, float *d_table)
{
    for (int64_t i = warp_team::first(); i < n; i += warp_team::step()) {
        uint32_t row = rows[i];
        if (row >= table_rows || (i > 0 && rows[i - 1] == row))
            continue;
        for (int64_t c = (static_cast<int64_t>(blockIdx.y) * WARP + warp_team::lane()) * V;
             c < cols; c += static_cast<int64_t>(gridDim.y) * WARP * V) {
            float *to = d_table + row * cols + c;
            store(to, add_run<V>(load<V>(to), i, n, row, rows, places, cols, dy + c));
        }
    }
}

static dim3 runs_grid(int64_t n, int64_t cols, int vector)
{
    int64_t wide = (n + WARPS - 1) / WARPS, high = (cols + WARP * vector - 1) / (WARP * vector);
    return dim3(static_cast<unsigned>(wide), static_cast<unsigned>(high < 65535 ? high : 65535));
}

static void scatter_piece(int64_t n, int64_t cols, int64_t first, int64_t rows, const float *ids,
                          const float *dy, float *d_table)
{
    struct sorting s = take_sorting(n);
    int vector = floats_at_once(cols, dy, static_cast<const float *>(d_table));
    dim3 grid = runs_grid(n, cols, vector);
    TAPE_LAUNCH(find_rows_of, tape_grid(n), TAPE_THREADS, 0, n, first, rows, ids, s.rows[0],
                s.places[0]);
    int in = sort_by_row(&s, rows);
    if (vector == 4)
        TAPE_LAUNCH(add_runs<4>, grid, TAPE_THREADS, 0, n, rows, cols, s.rows[in], s.places[in], dy,
                    d_table);
    else
        TAPE_LAUNCH(add_runs<1>, grid, TAPE_THREADS, 0, n, rows, cols, s.rows[in], s.places[in], dy,
                    d_table);
    device_scratch_done();
}

void cuda_scatter_add(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                      const float *dy, float beta, float *d_table)
{
    if (beta == 0.0f)
        tape_zero(d_table, static_cast<size_t>(rows * cols) * sizeof *d_table);
    for (int64_t at = 0; at < count && cols > 0 && rows > 0; at += PIECE_IDS)
        scatter_piece(count - at < PIECE_IDS ? count - at : PIECE_IDS, cols, first, rows, ids + at,
                      dy + at * cols, d_table);
}
