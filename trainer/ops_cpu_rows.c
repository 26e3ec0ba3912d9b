/* ops_cpu_rows.c: gradients of tables of which few rows are touched. */
#include <string.h>

#include "spec/plan.h"
#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

static int is_touched(int64_t cols, const float *row)
{
    for (int64_t c = 0; c < cols; c++) {
        uint32_t bits;
        memcpy(&bits, &row[c], sizeof bits);
        if (bits != 0)
            return 1;
    }
    return 0;
}

int64_t cpu_find_rows(int64_t rows, int64_t cols, const float *x, int64_t most, uint32_t *ids)
{
    int64_t count = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (!is_touched(cols, x + r * cols))
            continue;
        if (count < most)
            ids[count] = (uint32_t)r;
        count++;
    }
    return count;
}

void cpu_pack_rows(int64_t count, int64_t room, int64_t cols, const uint32_t *ids, const float *x,
                   void *packed)
{
    uint32_t *to = packed;
    float *values = (float *)(to + room);
    for (int64_t i = 0; i < count; i++) {
        to[i] = ids[i];
        memcpy(values + i * cols, x + (int64_t)ids[i] * cols, (size_t)cols * sizeof *values);
    }
    for (int64_t i = count; i < room; i++)
        to[i] = UINT32_MAX;
}

/* Where each member's list stands. */
struct merging {
    int members;
    int64_t room, cols;
    const char *packed;
    size_t stride;
    int64_t at[PLAN_MAX_RANKS];
};

static const uint32_t *ids_of(const struct merging *m, int member)
{
    return (const uint32_t *)(m->packed + (size_t)member * m->stride);
}

/* The lowest id that is left; UINT32_MAX: none. */
static uint32_t lowest(const struct merging *m)
{
    uint32_t id = UINT32_MAX;
    for (int d = 0; d < m->members; d++)
        if (m->at[d] < m->room && ids_of(m, d)[m->at[d]] < id)
            id = ids_of(m, d)[m->at[d]];
    return id;
}

/* Adds up column c of row `id` in the tree that collectives sum in; who has not touched it has 0.
 */
static float sum_column(const struct merging *m, uint32_t id, int64_t c)
{
    float x[PLAN_MAX_RANKS];
    for (int d = 0; d < m->members; d++) {
        const uint32_t *ids = ids_of(m, d);
        int has = m->at[d] < m->room && ids[m->at[d]] == id;
        x[d] = has ? ((const float *)(ids + m->room))[m->at[d] * m->cols + c] : 0.0f;
    }
    for (int stride = 1; stride < m->members; stride *= 2)
        for (int d = 0; d + stride < m->members; d += 2 * stride)
            x[d] += x[d + stride];
    return x[0];
}

void cpu_sum_rows(int members, int64_t room, int64_t cols, const void *packed, size_t stride,
                  float *y)
{
    struct merging m = {
        .members = members, .room = room, .cols = cols, .packed = packed, .stride = stride};
    for (uint32_t id; (id = lowest(&m)) != UINT32_MAX;) {
        for (int64_t c = 0; c < cols; c++)
            y[(int64_t)id * cols + c] = sum_column(&m, id, c);
        for (int d = 0; d < members; d++)
            m.at[d] += m.at[d] < room && ids_of(&m, d)[m.at[d]] == id;
    }
}
