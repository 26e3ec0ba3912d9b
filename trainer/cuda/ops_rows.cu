/* ops_rows.cu: gradients of tables of which few rows are touched. */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/scan.h"
#include "trainer/cuda/index.h"

/* ---- which rows ---- */

#define PIECE_ROWS ((int64_t)1 << 20) /* of which it is told at a time */
#define FEW_COLS   16                 /* a thread's row; of more, a warp's */

__global__ static void touch_short_rows(int64_t rows, int64_t cols, const float *x,
                                        uint32_t *is_touched)
{
    GRID_STRIDE(r, rows)
    {
        uint32_t bits = 0;
        for (int64_t c = 0; c < cols; c++)
            bits |= elem_bits(x[r * cols + c]);
        is_touched[r] = bits != 0;
    }
}

/* Most rows that are touched are so in the first columns, and only those that are not are read to
 * the end. */
__global__ static void touch_long_rows(int64_t rows, int64_t cols, const float *x,
                                       uint32_t *is_touched)
{
    for (int64_t r = warp_team::first(); r < rows; r += warp_team::step()) {
        uint32_t any = 0;
        for (int64_t at = 0; at < cols && !any; at += 4 * WARP) {
            uint32_t bits = 0;
            for (int k = 0; k < 4; k++) {
                int64_t c = at + k * WARP + warp_team::lane();
                bits |= c < cols ? elem_bits(x[r * cols + c]) : 0u;
            }
            any = __ballot_sync(ALL_LANES, bits != 0);
        }
        if (warp_team::lane() == 0)
            is_touched[r] = any != 0;
    }
}

struct touched {
    const uint32_t *is_touched;
    __device__ int of(int64_t i, const uint32_t *) const
    {
        return is_touched[i] ? CHOICE_YES : 0;
    }
};

struct touched_ids {
    uint32_t *ids;
    uint32_t room, first;
    __device__ void put(uint32_t k, int64_t i) const
    {
        if (k < room)
            ids[k] = first + static_cast<uint32_t>(i);
    }
};

static uint32_t *take_words(int64_t n)
{
    return static_cast<uint32_t *>(device_scratch(static_cast<size_t>(n) * sizeof(uint32_t)));
}

/* Of one piece: their number, and the ids. */
static int64_t find_in_piece(int64_t rows, int64_t cols, const float *x,
                             const struct touched_ids &sink)
{
    uint32_t *state = take_words(2), *is_touched = take_words(rows), count = 0;
    uint32_t *counts = static_cast<uint32_t *>(device_scratch(choice_bytes(rows)));
    tape_zero(state, 2 * sizeof *state);
    if (cols <= FEW_COLS)
        TAPE_LAUNCH(touch_short_rows, tape_grid(rows), TAPE_THREADS, 0, rows, cols, x, is_touched);
    else
        TAPE_LAUNCH(touch_long_rows, team_grid(rows, 1), TAPE_THREADS, 0, rows, cols, x,
                    is_touched);
    choose(touched{is_touched}, state, rows, counts, sink);
    cuda_download(&count, counts + choice_tiles(rows), sizeof count);
    device_scratch_done();
    return static_cast<int64_t>(count);
}

int64_t cuda_find_rows(int64_t rows, int64_t cols, const float *x, int64_t most, uint32_t *ids)
{
    int64_t count = 0;
    for (int64_t at = 0; at < rows && cols > 0; at += PIECE_ROWS) {
        int64_t n = rows - at < PIECE_ROWS ? rows - at : PIECE_ROWS;
        int64_t told = count < most ? count : most;
        count += find_in_piece(
            n, cols, x + at * cols,
            touched_ids{ids + told, static_cast<uint32_t>(most - told), static_cast<uint32_t>(at)});
    }
    return count;
}

/* ---- lists of rows ---- */

/* packed: ids [room], values [room, cols] */
template <class Index, int V>
__global__ static void pack_listed(struct divisor by_cols, uint32_t room, int64_t cols,
                                   const uint32_t *ids, const float *x, uint32_t *packed, Index n)
{
    float *values = reinterpret_cast<float *>(packed + room);
    EACH_INDEX(Index, i, n)
    {
        Index row = i;
        int64_t col = take_rest(row, by_cols) * static_cast<int64_t>(V);
        store(values + static_cast<int64_t>(i) * V,
              load<V>(x + static_cast<int64_t>(ids[row]) * cols + col));
    }
}

__global__ static void pack_ids(int64_t count, int64_t room, const uint32_t *ids, uint32_t *to)
{
    GRID_STRIDE(i, room)
    {
        to[i] = i < count ? ids[i] : UINT32_MAX;
    }
}

void cuda_pack_rows(int64_t count, int64_t room, int64_t cols, const uint32_t *ids, const float *x,
                    void *packed)
{
    uint32_t *to = static_cast<uint32_t *>(packed);
    const uint32_t *values = to + room;
    int v = floats_at_once(cols, x, values);
    if (room > 0)
        TAPE_LAUNCH(pack_ids, tape_grid(room), TAPE_THREADS, 0, count, room, ids, to);
    VECTOR_LAUNCH(pack_listed, v, count * cols / v, divisor_of(cols / v),
                  static_cast<uint32_t>(room), cols, ids, x, to);
}

/* ---- their sum ---- */

/* Where the rising list [room], UINT32_MAX behind its end, has the id; -1: nowhere. */
__device__ static int64_t place_of(const uint32_t *ids, int64_t room, uint32_t id)
{
    int64_t low = 0, high = room;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < room && ids[low] == id ? low : -1;
}

struct lists {
    int members;
    int64_t room, cols;
    const char *packed;
    size_t stride;
};

__device__ __forceinline__ const uint32_t *list_of(const struct lists &l, int member)
{
    return reinterpret_cast<const uint32_t *>(l.packed + static_cast<size_t>(member) * l.stride);
}

#define TREE_HEIGHT 11 /* of PLAN_MAX_RANKS leaves, and one */

/* Column c of the row that member d's list has at places[d], added up in the tree of collectives
 * (comm.h); who has no such row has 0. sum[h] is of 2^h leaves that stand together. */
__device__ static float sum_tree(const struct lists &l, const int64_t *places, int64_t c)
{
    float sum[TREE_HEIGHT] = {}, x = 0.0f;
    for (int d = 0; d < l.members; d++) {
        const float *values = reinterpret_cast<const float *>(list_of(l, d) + l.room);
        int h = 0;
        x = places[d] >= 0 ? values[places[d] * l.cols + c] : 0.0f;
        for (; d >> h & 1; h++)
            x = sum[h] + x;
        sum[h] = x;
    }
    /* What is left are trees of the bits of `members`, the smallest last. */
    int h = 0;
    while (!(l.members >> h & 1))
        h++;
    x = sum[h];
    for (h++; l.members >> h; h++)
        if (l.members >> h & 1)
            x = sum[h] + x;
    return x;
}

/* A block has a place of a list; of several lists with its id, the first member's has the sum. */
__global__ static void sum_listed(struct lists l, float *y)
{
    DYNAMIC_SHARED(int64_t, places); /* [members] */
    int64_t slots = l.members * l.room;
    for (int64_t slot = blockIdx.x; slot < slots; slot += gridDim.x) {
        int member = static_cast<int>(slot / l.room);
        uint32_t id = list_of(l, member)[slot % l.room];
        if (id == UINT32_MAX)
            continue;
        for (int d = static_cast<int>(threadIdx.x); d < l.members; d += blockDim.x)
            places[d] = place_of(list_of(l, d), l.room, id);
        __syncthreads();
        int is_first = 1;
        for (int d = 0; d < member; d++)
            is_first &= places[d] < 0;
        for (int64_t c = threadIdx.x; is_first && c < l.cols; c += blockDim.x)
            y[id * l.cols + c] = sum_tree(l, places, c);
        __syncthreads(); /* places are free again */
    }
}

#define MOST_SLOTS (1 << 20)

void cuda_sum_rows(int members, int64_t room, int64_t cols, const void *packed, size_t stride,
                   float *y)
{
    struct lists l = {members, room, cols, static_cast<const char *>(packed), stride};
    int64_t slots = members * room;
    if (slots == 0 || cols == 0)
        return;
    dim3 grid(static_cast<unsigned>(slots < MOST_SLOTS ? slots : MOST_SLOTS));
    unsigned threads = cols <= 32 ? 32 : cols <= 128 ? 128 : TAPE_THREADS;
    TAPE_LAUNCH(sum_listed, grid, threads, static_cast<size_t>(members) * sizeof(int64_t), l, y);
}
