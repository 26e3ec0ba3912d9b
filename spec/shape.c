#include "spec/shape.h"

#include <stdio.h>

int64_t shape_elements(const struct shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->dims; i++)
        n *= s->size[i]; /* at most SHAPE_MAX_ELEMENTS, by shape_valid() */
    return n;
}

int shape_valid(const struct shape *s)
{
    int64_t n = 1;
    if (s->dims < 1 || s->dims > SHAPE_MAX_DIMS)
        return 0;
    for (int i = 0; i < s->dims; i++)
        if (s->size[i] < 1 || __builtin_mul_overflow(n, s->size[i], &n) || n > SHAPE_MAX_ELEMENTS)
            return 0;
    return 1;
}

char *shape_format(const struct shape *s, char *out)
{
    int at = sprintf(out, "[");
    for (int i = 0; i < s->dims; i++)
        at += sprintf(out + at, "%s%lld", i ? ", " : "", (long long)s->size[i]);
    sprintf(out + at, "]"); /* 4 * 22 + 2 < 128 */
    return out;
}
