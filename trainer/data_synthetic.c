/* data_synthetic.c: numpy's legacy generator: after seed(s), x = rand(samples, input) as float32,
 * y = randint(classes, size=samples), drawn after x. */
#include <inttypes.h>

#include "trainer/data_parts.h"
#include "trainer/mt19937.h"

#define BLOCK_NUMBERS 4096

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
    return data_need_one_label(need, e);
}

static int draw_features(const struct data_source *d, int64_t samples, struct mt19937 *m,
                         struct data_out *o, uint64_t *ret_at, struct err *e)
{
    uint64_t count = (uint64_t)(d->samples * d->input), kept = (uint64_t)(samples * d->input), at;
    for (uint64_t done = 0; done < kept; done += BLOCK_NUMBERS) {
        uint64_t n = kept - done < BLOCK_NUMBERS ? kept - done : BLOCK_NUMBERS;
        void *room;
        int r = data_out_room(o, n * sizeof(float), &room, &at, e);
        if (r < 0)
            return r;
        if (done == 0)
            *ret_at = at;
        for (uint64_t i = 0; i < n; i++)
            ((float *)room)[i] = (float)mt19937_unit(m);
    }
    for (uint64_t i = kept; i < count; i++)
        mt19937_unit(m); /* the labels come after all of them */
    return 0;
}

static int draw_labels(const struct data_source *d, int64_t samples, struct mt19937 *m,
                       const struct data_need *need, struct data_out *o, uint64_t *ret_at,
                       struct err *e)
{
    uint64_t at;
    for (int64_t i = 0; i < samples; i++) {
        void *room;
        uint32_t label = mt19937_below(m, (uint32_t)d->classes);
        int r = data_out_room(o, 4, &room, &at, e);
        if (r < 0)
            return r;
        if (data_check_label(need, label, e) < 0)
            return err_prefix(e, "the synthetic data of %" PRId64 " classes, item %" PRId64,
                              d->classes, i + 1);
        data_keep_label(need, label, room);
        if (i == 0)
            *ret_at = at;
    }
    return 0;
}

static int draw(const struct data_source *d, const struct data_need *need, struct data_out *o,
                struct data_split *split, struct err *e)
{
    struct mt19937 m;
    mt19937_seed(&m, d->seed);
    split->features = (struct data_place){
        .type = NUMBER_F32, .size = d->input, .stride = (uint64_t)d->input * sizeof(float)};
    split->labels =
        (struct data_place){.type = (int32_t)data_label_type(need), .size = 1, .stride = 4};
    int r = draw_features(d, split->samples, &m, o, &split->features.at, e);
    if (r == 0)
        r = data_out_align(o, e);
    if (r == 0)
        r = draw_labels(d, split->samples, &m, need, o, &split->labels.at, e);
    return r;
}

int data_read_synthetic(const struct data_source *d, const struct data_need *need,
                        struct data_out *o, struct data_split *ret, struct err *e)
{
    struct data_split split;
    int r = check(d, need, e);
    if (r == 0)
        r = data_out_source(o, d->memory_limit, e);
    if (r < 0)
        return r;
    data_split_of(need, &split);
    split.samples = data_limited(d, d->samples);
    uint64_t elements, bytes;
    if (__builtin_mul_overflow((uint64_t)d->samples, (uint64_t)d->input, &elements) ||
        __builtin_mul_overflow((uint64_t)split.samples, (uint64_t)(d->input + 1) * 4, &bytes))
        bytes = UINT64_MAX;
    r = data_out_expect(o, bytes, e);
    if (r == 0)
        r = draw(d, need, o, &split, e);
    if (r < 0)
        return r;
    data_out_place(o, &split.features);
    data_out_place(o, &split.labels);
    *ret = split;
    return 0;
}
