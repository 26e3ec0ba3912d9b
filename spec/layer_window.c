/* layer_window.c: layers that move a window over rows and columns of [rows, columns, channels]:
 * conv2d and poolings. Padding "valid" keeps the window inside; "same" gives ceil(size / stride)
 * outputs, and what it pads more than evenly lies below and to the right.
 */
#include "spec/layer_class.h"

#include <math.h>
#include <stdio.h>

#include "spec/shape.h"

/* ---- fields ---- */

static const struct word paddings[] = {{"valid", 0}, {"same", 1}};
const struct words padding_words = WORDS("a padding", paddings);

static int pair_fault(struct decoding *d, const json_t *v, const struct where *at, const char *name,
                      const char *example)
{
    field_wrong_type(d, at, name, "a whole number, or a list of two for rows and columns", example,
                     v);
    return -1;
}

/* 3, or [3, 5]; 0, 0 stays where there was a fault. */
static void decode_pair(struct decoding *d, const json_t *v, const struct where *at,
                        const char *name, const char *example, int64_t ret[2])
{
    int64_t pair[2] = {0, 0};
    int is_list = json_is_array(v) && json_array_size(v) == 2;
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = is_list ? json_array_get(v, i) : v;
        if (!field_whole(item, &pair[i])) {
            pair_fault(d, v, at, name, example);
            return;
        }
        if (pair[i] < 1 || pair[i] > SHAPE_MAX_ELEMENTS) {
            char shown[FIELD_SHOW_SIZE];
            field_fault(d, is_list ? FIELD_ITEM(at, i) : at, "out_of_range",
                        "Write how many rows and columns it is.",
                        "\"%s\" must be from 1 to %lld, but is %s.", name,
                        (long long)SHAPE_MAX_ELEMENTS, field_show(item, shown));
            return;
        }
    }
    ret[0] = pair[0];
    ret[1] = pair[1];
}

static void decode_kernel_size(struct decoding *d, const json_t *v, const struct where *at,
                               void *base)
{
    struct layer_draft *draft = base;
    decode_pair(d, v, at, "kernel_size", "3", draft->layer.window);
}

static void decode_pool_size(struct decoding *d, const json_t *v, const struct where *at,
                             void *base)
{
    struct layer_draft *draft = base;
    decode_pair(d, v, at, "pool_size", "2", draft->layer.window);
}

static void decode_strides(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct layer_draft *draft = base;
    decode_pair(d, v, at, "strides", "2", draft->layer.strides);
}

#define STRIDES(help_)                                                                             \
    {                                                                                              \
        .name = "strides", .also = "stride", .kind = FIELD_CUSTOM, .decode = decode_strides,       \
        .help = (help_), .example = "2"                                                            \
    }
#define PADDING                                                                                    \
    {                                                                                              \
        .name = "padding", .also = "border_mode pad", .kind = FIELD_ENUM, LAYER_AT(layer.same),    \
        .words = &padding_words, .help = "whether the window may reach over the edge",             \
        .example = "\"same\""                                                                      \
    }
#define CHANNELS_LAST                                                                              \
    LAYER_FIXED("data_format", "\"channels_last\"", "items are [rows, columns, channels]")

/* ---- inference ---- */

/* A shape with three dimensions that the item could have. */
static void suggest_shape(const struct shape *in, char *out, size_t size)
{
    long long n = (long long)shape_elements(in), side = llround(sqrt((double)n));
    if (in->dims == 2)
        snprintf(out, size, "[%lld, %lld, 1]", (long long)in->size[0], (long long)in->size[1]);
    else if (side * side == n)
        snprintf(out, size, "[%lld, %lld, 1]", side, side);
    else
        snprintf(out, size, "[%lld, 1, 1]", n);
}

static int check_image(struct decoding *d, const struct layer *l, const struct where *at)
{
    char in[128], shape[96], hint[192];
    if (l->in.dims == 3)
        return 0;
    suggest_shape(&l->in, shape, sizeof shape);
    snprintf(hint, sizeof hint, "Put {\"type\": \"reshape\", \"target_shape\": %s} before it.",
             shape);
    field_fault(d, at, "shape_mismatch", hint,
                "A %s layer takes items of [rows, columns, channels], but %s comes in.",
                layer_type_name(l->type), shape_format(&l->in, in));
    return -1;
}

/* Rows or columns that come out; 0: the window does not fit. Sizes are below 2^28. */
static int64_t slide(struct layer *l, int axis)
{
    int64_t in = l->in.size[axis], window = l->window[axis], stride = l->strides[axis];
    if (!l->same)
        return window > in ? 0 : (in - window) / stride + 1;
    int64_t out = (in + stride - 1) / stride;
    int64_t missing = (out - 1) * stride + window - in;
    l->pad_before[axis] = missing > 0 ? missing / 2 : 0;
    return out;
}

static int window_infer(struct decoding *d, struct layer *l, int64_t channels, const char *field,
                        const struct where *at)
{
    char in[128];
    if (check_image(d, l, at) < 0)
        return -1;
    l->out = (struct shape){.dims = 3, .size = {slide(l, 0), slide(l, 1), channels}};
    if (l->out.size[0] == 0 || l->out.size[1] == 0) {
        field_fault(d, FIELD_WHERE(at, field), "shape_mismatch",
                    "Write a smaller one, or \"padding\": \"same\".",
                    "A window of %lld x %lld does not fit into the %s that comes in.",
                    (long long)l->window[0], (long long)l->window[1], shape_format(&l->in, in));
        return -1;
    }
    return 0;
}

/* ---- conv2d ---- */

static const struct field conv2d_fields[] = {
    LAYER_COMMON_FIELDS,
    LAYER_SIZE(filters, "units channels out_channels nb_filter", layer.units,
               "how many channels come out", "16"),
    {.name = "kernel_size",
     .also = "kernel size window",
     .kind = FIELD_CUSTOM,
     .decode = decode_kernel_size,
     .required = 1,
     .help = "rows and columns that each output sees",
     .example = "3"},
    STRIDES("how far the kernel moves, 1 if left out"),
    PADDING,
    LAYER_ACTIVATION_FIELD,
    LAYER_USE_BIAS,
    LAYER_INITIALIZER(kernel_initializer, INIT_GLOROT_UNIFORM, "how the kernel starts"),
    LAYER_INITIALIZER(bias_initializer, INIT_ZEROS, "how the bias starts"),
    CHANNELS_LAST,
    LAYER_FIXED("dilation_rate", "1", "kernels have no holes"),
    LAYER_FIXED("groups", "1", "every filter sees all channels"),
};

/* Elements of one filter; -1: too many. */
static int64_t filter_elements(const struct layer *l)
{
    int64_t n;
    if (__builtin_mul_overflow(l->window[0], l->window[1], &n) ||
        __builtin_mul_overflow(n, l->in.size[2], &n) || n > MODEL_MAX_PARAMETERS)
        return -1;
    return n;
}

static int conv2d_infer(struct decoding *d, struct layer_draft *draft,
                        const struct layer_draft *before, int index, const struct where *at)
{
    (void)before, (void)index;
    struct layer *l = &draft->layer;
    char text[160];
    for (int i = 0; i < 2; i++)
        l->strides[i] = l->strides[i] ? l->strides[i] : 1;
    if (window_infer(d, l, l->units, "kernel_size", at) < 0)
        return -1;
    if (!shape_valid(&l->out)) {
        field_fault(d, FIELD_WHERE(at, "filters"), "too_large",
                    "Use fewer filters, or larger strides.",
                    "The output %s would have more than %lld elements.",
                    shape_format(&l->out, text), (long long)SHAPE_MAX_ELEMENTS);
        return -1;
    }
    int64_t filter = filter_elements(l), all;
    if (filter < 0 || __builtin_mul_overflow(filter + 1, l->units, &all) ||
        all > MODEL_MAX_PARAMETERS) {
        field_fault(d, FIELD_WHERE(at, "kernel_size"), "too_large",
                    "Use a smaller kernel or fewer filters.",
                    "%lld filters of %lld x %lld over %lld channels have more parameters than the "
                    "%lld that a model may have.",
                    (long long)l->units, (long long)l->window[0], (long long)l->window[1],
                    (long long)l->in.size[2], (long long)MODEL_MAX_PARAMETERS);
        return -1;
    }
    struct shape kernel = {.dims = 4,
                           .size = {l->window[0], l->window[1], l->in.size[2], l->units}};
    layer_add_tensor(l, "kernel", kernel, draft->kernel_initializer);
    if (l->use_bias)
        layer_add_tensor(l, "bias", layer_vector(l->units), draft->bias_initializer);
    return 0;
}

static void conv2d_cost(struct layer *l, int propagates)
{
    layer_add_product(l, (double)(l->window[0] * l->window[1] * l->in.size[2]), propagates);
}

const struct layer_class layer_class_conv2d = {
    .object = OBJECT("a conv2d layer", conv2d_fields, layer_objects),
    .infer = conv2d_infer,
    .cost = conv2d_cost,
};

/* ---- poolings ---- */

static const struct field pooling_fields[] = {
    LAYER_COMMON_FIELDS,
    {.name = "pool_size",
     .also = "size window kernel_size",
     .kind = FIELD_CUSTOM,
     .decode = decode_pool_size,
     .help = "rows and columns that make one, 2 if left out",
     .example = "2"},
    STRIDES("how far the window moves, as far as it is wide if left out"),
    PADDING,
    CHANNELS_LAST,
};

static int pooling_infer(struct decoding *d, struct layer_draft *draft,
                         const struct layer_draft *before, int index, const struct where *at)
{
    (void)before, (void)index;
    struct layer *l = &draft->layer;
    for (int i = 0; i < 2; i++) {
        l->window[i] = l->window[i] ? l->window[i] : 2;
        l->strides[i] = l->strides[i] ? l->strides[i] : l->window[i];
    }
    return window_infer(d, l, l->in.size[l->in.dims - 1], "pool_size", at);
}

/* A comparison or an addition for each element of the window; backward, as many again. */
static void pooling_cost(struct layer *l, int propagates)
{
    double window = (double)l->window[0] * (double)l->window[1];
    layer_add_flops(l, window, propagates ? 2 * window : 0);
    l->activation_bytes = shape_elements(&l->out) * 4;
}

const struct layer_class layer_class_max_pooling2d = {
    .object = OBJECT("a max_pooling2d layer", pooling_fields, layer_objects),
    .infer = pooling_infer,
    .cost = pooling_cost,
};
const struct layer_class layer_class_average_pooling2d = {
    .object = OBJECT("an average_pooling2d layer", pooling_fields, layer_objects),
    .infer = pooling_infer,
    .cost = pooling_cost,
};

static const struct field global_fields[] = {
    LAYER_COMMON_FIELDS,
    CHANNELS_LAST,
    LAYER_FIXED("keepdims", "false", "one number per channel comes out"),
};

/* A pooling whose window is all there is. */
static int global_infer(struct decoding *d, struct layer_draft *draft,
                        const struct layer_draft *before, int index, const struct where *at)
{
    (void)before, (void)index;
    struct layer *l = &draft->layer;
    if (check_image(d, l, at) < 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        l->window[i] = l->in.size[i];
        l->strides[i] = 1;
    }
    l->out = layer_vector(l->in.size[2]);
    return 0;
}

const struct layer_class layer_class_global_max_pooling2d = {
    .object = OBJECT("a global_max_pooling2d layer", global_fields, layer_objects),
    .infer = global_infer,
    .cost = pooling_cost,
};
const struct layer_class layer_class_global_average_pooling2d = {
    .object = OBJECT("a global_average_pooling2d layer", global_fields, layer_objects),
    .infer = global_infer,
    .cost = pooling_cost,
};
