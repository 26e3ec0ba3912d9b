/* ops_cpu_store.c: other forms of the same numbers, and sums of two arrays. */
#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

CPU_CLONES void cpu_to_bfloat16(size_t n, const float *x, uint16_t *y)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        y[i] = elem_to_bfloat16(x[i]);
}

CPU_CLONES void cpu_from_bfloat16(size_t n, const uint16_t *x, float *y)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        y[i] = elem_from_bfloat16(x[i]);
}

CPU_CLONES void cpu_add(size_t n, const float *x, float *y)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

CPU_CLONES void cpu_add_f64(size_t n, const double *x, double *y)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}
