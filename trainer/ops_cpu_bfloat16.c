/* ops_cpu_bfloat16.c: parameters and moments that are kept as bfloat16. */
#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

CPU_CLONES void cpu_round_bfloat16(size_t n, const float *x, float *y)
{
    CPU_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        y[i] = elem_from_bfloat16(elem_to_bfloat16(x[i]));
}

CPU_CLONES static void adam_elements(struct elem_adam a, struct elem_dither d, size_t n,
                                     const float *restrict g, float *restrict w,
                                     uint16_t *restrict m, uint16_t *restrict v)
{
    for (size_t i = 0; i < n; i++) {
        struct elem_state s = {w[i], elem_from_bfloat16(m[i]), elem_from_bfloat16(v[i])};
        uint32_t chance = elem_chance(d, i);
        s = elem_adam_step(a, s, g[i]);
        w[i] = s.w;
        m[i] = elem_to_bfloat16_by_chance(s.m, chance & 0xffff);
        v[i] = elem_to_bfloat16_by_chance(s.v, chance >> 16);
    }
}

void cpu_adam_bfloat16(const struct elem_adam *a, const struct elem_dither *d, size_t n,
                       const float *g, float *w, uint16_t *m, uint16_t *v)
{
    adam_elements(*a, *d, n, g, w, m, v);
}

CPU_CLONES static void sgd_elements(struct elem_sgd a, struct elem_dither d, size_t n,
                                    const float *restrict g, float *restrict w,
                                    uint16_t *restrict m)
{
    for (size_t i = 0; i < n; i++) {
        struct elem_state s = {w[i], elem_from_bfloat16(m[i]), 0.0f};
        s = elem_sgd_step(a, s, g[i]);
        w[i] = s.w;
        m[i] = elem_to_bfloat16_by_chance(s.m, elem_chance(d, i) & 0xffff);
    }
}

void cpu_sgd_bfloat16(const struct elem_sgd *a, const struct elem_dither *d, size_t n,
                      const float *g, float *w, uint16_t *m)
{
    sgd_elements(*a, *d, n, g, w, m);
}
