/* infer.c: from a layer's fields and the shape that comes in: the shape that goes out, tensors,
 * parameters. No product is taken before its factors are known to keep it in range. */
#include "spec/layer.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "spec/shape.h"

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

/* `target` with the size at `i` such that it has `elements`; 0 if no whole size does. */
static int with_size(const struct shape *target, int i, int64_t elements, struct shape *ret)
{
    *ret = *target;
    ret->size[i] = 1;
    for (int j = 0; j < ret->dims; j++)
        ret->size[j] = ret->size[j] == -1 ? 1 : ret->size[j];
    int64_t others = shape_elements(ret);
    ret->size[i] = elements / others;
    return others <= elements && elements % others == 0;
}

static int free_size(const struct shape *s)
{
    for (int i = 0; i < s->dims; i++)
        if (s->size[i] == -1)
            return i;
    return -1;
}

static int reshape_fault(struct decoding *d, const struct layer_draft *draft,
                         const struct shape *in, const struct where *at)
{
    char from[128], to[128], near[128], hint[320], has[64] = "";
    int64_t elements = shape_elements(in);
    const struct shape *target = &draft->target;
    struct shape works;
    int found = 0;
    for (int i = target->dims - 1; i >= 0 && !found; i--)
        found = with_size(target, i, elements, &works);
    if (!found)
        works = (struct shape){.dims = 1, .size = {elements}};
    snprintf(hint, sizeof hint, "%s has %lld.", shape_format(&works, near), (long long)elements);
    if (free_size(target) < 0)
        snprintf(has, sizeof has, ", which has %lld", (long long)shape_elements(target));
    field_fault(d, FIELD_WHERE(at, "target_shape"), "shape_mismatch", hint,
                "%lld elements come in (%s); they do not fit %s%s.", (long long)elements,
                shape_format(in, from), shape_format(target, to), has);
    return -1;
}

static int infer_reshape(struct decoding *d, struct layer_draft *draft, const struct where *at)
{
    struct layer *l = &draft->layer;
    int64_t elements = shape_elements(&l->in);
    int i = free_size(&draft->target);
    l->out = draft->target;
    if (i >= 0 && !with_size(&draft->target, i, elements, &l->out))
        return reshape_fault(d, draft, &l->in, at);
    if (shape_elements(&l->out) != elements)
        return reshape_fault(d, draft, &l->in, at);
    return 0;
}

static void add_tensor(struct layer *l, const char *name, struct shape shape, enum initializer init)
{
    int64_t fan_in = shape.size[0];
    l->tensors[l->tensor_count++] = (struct tensor_spec){
        .name = name,
        .shape = shape,
        .init = init,
        .is_matrix = shape.dims >= 2,
        .fan_in = fan_in,
        .fan_out = shape.dims >= 2 ? shape.size[1] : fan_in,
    };
    l->parameters += shape_elements(&shape);
}

static struct shape vector(int64_t n)
{
    return (struct shape){.dims = 1, .size = {n}};
}

static int parameters_fault(struct decoding *d, const struct layer *l, const struct where *at)
{
    char hint[160];
    int64_t inputs = l->in.size[l->in.dims - 1];
    snprintf(hint, sizeof hint, "With %lld inputs, up to %lld units fit.", (long long)inputs,
             (long long)(MODEL_MAX_PARAMETERS / (inputs + 1)));
    field_fault(d, FIELD_WHERE(at, "units"), "too_large", hint,
                "This layer would have %lld parameters; a model may have at most %lld.",
                (long long)l->parameters, (long long)MODEL_MAX_PARAMETERS);
    return -1;
}

static int infer_dense(struct decoding *d, struct layer_draft *draft, const struct where *at)
{
    struct layer *l = &draft->layer;
    int64_t inputs = l->in.size[l->in.dims - 1];
    l->out = l->in;
    l->out.size[l->out.dims - 1] = l->units;
    if (!shape_valid(&l->out)) {
        char out[128];
        field_fault(d, FIELD_WHERE(at, "units"), "too_large",
                    "Put a flatten layer before it, or use fewer units.",
                    "The output %s would have more than %lld elements.", shape_format(&l->out, out),
                    (long long)SHAPE_MAX_ELEMENTS);
        return -1;
    }
    struct shape kernel = {.dims = 2, .size = {inputs, l->units}}; /* at most 2^54 elements */
    add_tensor(l, "kernel", kernel, draft->kernel_initializer);
    if (l->use_bias)
        add_tensor(l, "bias", vector(l->units), draft->bias_initializer);
    return l->parameters > MODEL_MAX_PARAMETERS ? parameters_fault(d, l, at) : 0;
}

static void infer_normalization(struct layer_draft *draft)
{
    struct layer *l = &draft->layer;
    int64_t n = l->in.size[l->in.dims - 1];
    l->out = l->in;
    add_tensor(l, "gamma", vector(n), draft->gamma_initializer);
    add_tensor(l, "beta", vector(n), draft->beta_initializer);
}

int layer_infer(struct decoding *d, struct layer_draft *draft, const struct shape *in,
                const struct where *at)
{
    struct layer *l = &draft->layer;
    l->in = *in;
    switch (l->type) {
    case LAYER_DENSE: return infer_dense(d, draft, at);
    case LAYER_RESHAPE: return infer_reshape(d, draft, at);
    case LAYER_FLATTEN: l->out = vector(shape_elements(in)); return 0;
    case LAYER_LAYER_NORMALIZATION: infer_normalization(draft); return 0;
    case LAYER_RESCALING:
    case LAYER_DROPOUT:
    case LAYER_ACTIVATION: l->out = *in; return 0;
    case LAYER_CONV2D:
    case LAYER_MAX_POOLING2D:
    case LAYER_AVERAGE_POOLING2D:
    case LAYER_GLOBAL_MAX_POOLING2D:
    case LAYER_GLOBAL_AVERAGE_POOLING2D:
    case LAYER_BATCH_NORMALIZATION:
    case LAYER_EMBEDDING:
    case LAYER_ADD:
    case LAYER_TYPE__MAX: break; /* no document names these yet */
    }
    BUG("layer type %d", (int)l->type);
}
