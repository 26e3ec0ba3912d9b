/* layer_shape.c: layers that read the same memory otherwise: flatten and reshape. They cost
 * nothing. */
#include "spec/layer_class.h"

#include <stdio.h>

#include "spec/shape.h"

static void no_cost(struct layer *l, int propagates)
{
    (void)l, (void)propagates;
}

/* ---- flatten ---- */

static const struct field flatten_fields[] = {LAYER_COMMON_FIELDS};

static int flatten_infer(struct decoding *d, struct layer_draft *draft,
                         const struct layer_draft *before, int index, const struct where *at)
{
    (void)d, (void)before, (void)index, (void)at;
    draft->layer.out = layer_vector(shape_elements(&draft->layer.in));
    return 0;
}

const struct layer_class layer_class_flatten = {
    .object = OBJECT("a flatten layer", flatten_fields, layer_objects),
    .infer = flatten_infer,
    .cost = no_cost,
};

/* ---- reshape ---- */

static void decode_target(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct layer_draft *draft = base;
    decode_shape(d, v, at, "target_shape", 1, &draft->target);
}

static const struct field reshape_fields[] = {
    LAYER_COMMON_FIELDS,
    {.name = "target_shape",
     .also = "shape",
     .kind = FIELD_CUSTOM,
     .decode = decode_target,
     .required = 1,
     .help = "the shape of an item, one size of which may be -1",
     .example = "[8, 8]"},
};

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

static int reshape_infer(struct decoding *d, struct layer_draft *draft,
                         const struct layer_draft *before, int index, const struct where *at)
{
    (void)before, (void)index;
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

const struct layer_class layer_class_reshape = {
    .object = OBJECT("a reshape layer", reshape_fields, layer_objects),
    .infer = reshape_infer,
    .cost = no_cost,
};
