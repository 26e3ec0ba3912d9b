/* ops_cpu_embedding.c: rows of a table by id, and gradients back to them, in the order of the ids.
 */
#include <string.h>

#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

/* The table's row for an id; -1: not among [first, first + rows). NaN is no id. */
static int64_t row_of(float id, int64_t first, int64_t rows)
{
    return id >= (float)first && id < (float)(first + rows) ? (int64_t)id - first : -1;
}

void cpu_gather(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                const float *table, float *y)
{
    for (int64_t i = 0; i < count; i++, y += cols) {
        int64_t row = row_of(ids[i], first, rows);
        if (row < 0)
            memset(y, 0, (size_t)cols * sizeof *y);
        else
            memcpy(y, table + row * cols, (size_t)cols * sizeof *y);
    }
}

CPU_CLONES static void add_row(int64_t n, const float *restrict from, float *restrict to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

void cpu_scatter_add(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                     const float *dy, float beta, float *d_table)
{
    if (beta == 0.0f)
        memset(d_table, 0, (size_t)(rows * cols) * sizeof *d_table);
    for (int64_t i = 0; i < count; i++, dy += cols) {
        int64_t row = row_of(ids[i], first, rows);
        if (row >= 0)
            add_row(cols, dy, d_table + row * cols);
    }
}
