/* data_synthetic.c: numpy's legacy generator: after seed(s), x = rand(samples, input) as float32,
 * y = randint(classes, size=samples), drawn after x. */
#include <inttypes.h>

#include "trainer/data_parts.h"
#include "trainer/mt19937.h"

static int check(const struct data_source *d, const struct data_need *need, struct err *e)
{
    char input[128];
    if (d->samples < 1)
        return err_set(e, ERR_INVALID, "the synthetic data has no samples");
    if (d->classes < 1 || d->classes > INT32_MAX)
        return err_set(e, ERR_INVALID, "the synthetic data has %" PRId64 " classes", d->classes);
    if (d->input != need->feature_size)
        return err_set(e, ERR_INVALID,
                       "the synthetic data has an input of %" PRId64
                       " values, where the model's input is %s, %" PRId64 " values",
                       d->input, shape_format(&need->input, input), need->feature_size);
    return 0;
}

static int draw_labels(const struct data_source *d, struct mt19937 *m, struct data_targets *t,
                       struct err *e)
{
    for (int64_t i = 0; i < d->samples; i++) {
        uint32_t label = mt19937_below(m, (uint32_t)d->classes);
        int r = data_targets_add(t, label, i + 1, e);
        if (r < 0)
            return err_prefix(e, "the synthetic data of %" PRId64 " classes", d->classes);
    }
    return 0;
}

int data_read_synthetic(const struct data_source *d, const struct data_need *need,
                        struct data_out *o, struct data_split *ret, struct err *e)
{
    struct data_split split = {
        .samples = d->samples, .feature_size = d->input, .feature_type = FEATURE_F32};
    uint64_t elements, bytes;
    void *room;
    int r = check(d, need, e);
    if (r == 0)
        r = data_out_align(o, e);
    if (r < 0)
        return r;
    if (__builtin_mul_overflow((uint64_t)d->samples, (uint64_t)d->input, &elements) ||
        __builtin_mul_overflow(elements, sizeof(float), &bytes))
        bytes = UINT64_MAX;
    split.features_at = o->used;
    r = data_out_extend(o, bytes, &room, e);
    if (r < 0)
        return r;
    struct mt19937 m;
    mt19937_seed(&m, d->seed);
    float *x = room;
    for (uint64_t i = 0; i < elements; i++)
        x[i] = (float)mt19937_unit(&m);
    struct data_targets targets = {.need = need};
    r = draw_labels(d, &m, &targets, e);
    if (r == 0)
        r = data_targets_write(&targets, o, &split, e);
    data_targets_done(&targets);
    if (r == 0)
        *ret = split;
    return r;
}
