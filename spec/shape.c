#include "spec/shape.h"

#include <stdio.h>

int64_t shape_elements(const struct shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->dims; i++)
        n *= s->size[i]; /* at most SHAPE_MAX_ELEMENTS, by shape_valid() */
    return n;
}

int64_t shape_last(const struct shape *s)
{
    return s->size[s->dims - 1];
}

int64_t shape_positions(const struct shape *s)
{
    return shape_elements(s) / shape_last(s);
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

/* ---- from a document ---- */

static int shape_fault(struct decoding *d, const json_t *v, const struct where *at,
                       const char *name)
{
    char expected[128], example[160];
    snprintf(expected, sizeof expected, "a list of 1 to %d sizes", SHAPE_MAX_DIMS);
    int64_t whole;
    if (field_whole(v, &whole) && whole > 0)
        snprintf(example, sizeof example, "[%lld]", (long long)whole);
    else
        snprintf(example, sizeof example, "[28, 28]");
    field_wrong_type(d, at, name, expected, example, v);
    return -1;
}

static int size_fault(struct decoding *d, const json_t *v, const struct where *at, size_t i,
                      int one_free)
{
    char shown[FIELD_SHOW_SIZE];
    const char *hint = "Write the number of elements in this dimension.";
    if (i == 0 && (json_is_null(v) || (json_is_integer(v) && json_integer_value(v) == -1)))
        hint = "Leave the batch dimension out: a shape is that of one item.";
    field_fault(d, FIELD_ITEM(at, i), json_is_number(v) ? "out_of_range" : "wrong_type", hint,
                "A size must be a whole number from 1 to %lld%s, but is %s.",
                (long long)SHAPE_MAX_ELEMENTS, one_free ? " (or -1, once)" : "",
                field_show(v, shown));
    return -1;
}

int decode_shape(struct decoding *d, const json_t *v, const struct where *at, const char *name,
                 int one_free, struct shape *ret)
{
    size_t n = json_array_size(v);
    struct shape s = {.dims = (int)n}, fixed;
    int r = 0, free_sizes = 0;
    if (n < 1 || n > SHAPE_MAX_DIMS)
        return shape_fault(d, v, at, name);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(v, i);
        int whole = field_whole(item, &s.size[i]);
        int is_free = one_free && whole && s.size[i] == -1 && free_sizes++ == 0;
        if (!is_free && (!whole || s.size[i] < 1 || s.size[i] > SHAPE_MAX_ELEMENTS))
            r = size_fault(d, item, at, i, one_free);
    }
    if (r < 0)
        return r;
    fixed = s;
    for (int i = 0; i < s.dims; i++)
        fixed.size[i] = s.size[i] == -1 ? 1 : s.size[i];
    if (!shape_valid(&fixed)) {
        field_fault(d, at, "too_large", NULL, "An item may have at most %lld elements.",
                    (long long)SHAPE_MAX_ELEMENTS);
        return -1;
    }
    *ret = s;
    return 0;
}
