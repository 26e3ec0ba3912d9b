/* ops_cpu_sync.c: steps towards the mean of several ranks' weights. */
#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

CPU_CLONES static void step_plain(struct elem_outer a, size_t n, float *restrict w,
                                  float *restrict anchor)
{
    for (size_t i = 0; i < n; i++) {
        struct elem_state s = elem_outer_step(a, (struct elem_state){w[i], 0.0f, 0.0f}, anchor[i]);
        w[i] = anchor[i] = s.w;
    }
}

CPU_CLONES static void step_with_momentum(struct elem_outer a, size_t n, float *restrict w,
                                          float *restrict anchor, float *restrict v)
{
    for (size_t i = 0; i < n; i++) {
        struct elem_state s = elem_outer_step(a, (struct elem_state){w[i], v[i], 0.0f}, anchor[i]);
        w[i] = anchor[i] = s.w;
        v[i] = s.m;
    }
}

void cpu_outer_step(const struct elem_outer *a, size_t n, float *w, float *anchor, float *v)
{
    if (v)
        step_with_momentum(*a, n, w, anchor, v);
    else
        step_plain(*a, n, w, anchor);
}
