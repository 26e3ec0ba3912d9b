/* part.c: runs of elements. */
#include "trainer/part.h"

/* A tensor as [outer][size][inner], cut along the middle. */
struct grid {
    int64_t outer, size, inner;
};

static struct grid grid_of(const struct shape *s, int axis)
{
    struct grid g = {1, s->size[axis], 1};
    for (int d = 0; d < axis; d++)
        g.outer *= s->size[d];
    for (int d = axis + 1; d < s->dims; d++)
        g.inner *= s->size[d];
    return g;
}

int64_t part_elements(const struct shape *s, const struct net_part *p)
{
    struct grid g = grid_of(s, p->axis);
    return g.outer * p->extent * g.inner;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t part_run_in_whole(const struct shape *s, const struct net_part *p, int64_t at, int64_t most,
                          int64_t *ret_whole)
{
    struct grid g = grid_of(s, p->axis);
    int64_t row = p->extent * g.inner, own = (p->end - p->begin) * g.inner;
    int64_t o = at / row, in_row = at % row;
    if (in_row >= own) {
        *ret_whole = -1;
        return smaller(row - in_row, most);
    }
    *ret_whole = (o * g.size + p->begin) * g.inner + in_row;
    return smaller(own - in_row, most);
}

int64_t part_run_in_part(const struct shape *s, const struct net_part *p, int64_t at, int64_t most,
                         int64_t *ret_own)
{
    struct grid g = grid_of(s, p->axis);
    int64_t row = g.size * g.inner, begin = p->begin * g.inner, end = p->end * g.inner;
    int64_t o = at / row, in_row = at % row;
    *ret_own = -1;
    if (in_row < begin)
        return smaller(begin - in_row, most);
    if (in_row >= end)
        return smaller(row - in_row, most);
    *ret_own = o * p->extent * g.inner + (in_row - begin);
    return smaller(end - in_row, most);
}
