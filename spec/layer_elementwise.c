/* layer_elementwise.c: rescaling, dropout and add: a number comes out for every one that comes in.
 */
#include "spec/layer_class.h"

#include <stdio.h>
#include <string.h>

#include "spec/shape.h"

/* ---- rescaling ---- */

static const struct field rescaling_fields[] = {
    LAYER_COMMON_FIELDS,
    {.name = "scale",
     .also = "factor",
     .kind = FIELD_NUMBER,
     LAYER_AT(layer.scale),
     .required = 1,
     .min = -1e30,
     .max = 1e30,
     .help = "what each input is multiplied by",
     .example = "0.00392156862745098"},
    {.name = "offset",
     .kind = FIELD_NUMBER,
     LAYER_AT(layer.offset),
     .min = -1e30,
     .max = 1e30,
     .help = "what is added after that",
     .example = "-1"},
};

static void rescaling_cost(struct layer *l, int propagates)
{
    l->activation_bytes = shape_elements(&l->out) * 4;
    layer_add_flops(l, 2, propagates ? 1 : 0);
}

const struct layer_class layer_class_rescaling = {
    .object = OBJECT("a rescaling layer", rescaling_fields, layer_objects),
    .infer = layer_infer_same,
    .cost = rescaling_cost,
};

/* ---- dropout ---- */

static const struct field dropout_fields[] = {
    LAYER_COMMON_FIELDS,
    {.name = "rate",
     .also = "p prob",
     .kind = FIELD_NUMBER,
     LAYER_AT(layer.rate),
     .required = 1,
     .min = 0,
     .max = 1,
     .below_max = 1,
     .help = "the share of inputs that is dropped",
     .example = "0.5"},
};

static void dropout_cost(struct layer *l, int propagates)
{
    l->activation_bytes = shape_elements(&l->out) * 4;
    layer_add_flops(l, 10, propagates ? 10 : 0); /* counter-based random numbers */
}

const struct layer_class layer_class_dropout = {
    .object = OBJECT("a dropout layer", dropout_fields, layer_objects),
    .infer = layer_infer_same,
    .cost = dropout_cost,
};

/* ---- add ---- */

static const struct field add_fields[] = {
    LAYER_COMMON_FIELDS,
    {.name = "back",
     .also = "skip distance",
     .kind = FIELD_INT,
     LAYER_AT(layer.back),
     .min = 2,
     .max = MODEL_MAX_LAYERS - 1,
     .help = "how many layers before it the one stands whose output is added",
     .example = "3"},
    {.name = "with",
     .also = "to from inputs",
     .kind = FIELD_TEXT,
     LAYER_AT(with),
     .min = 1,
     .max = LAYER_NAME_MAX,
     .check = layer_check_name,
     .help = "the name of the layer whose output is added",
     .example = "\"block_1\""},
};

static int is_called(const struct layer_draft *draft, int index, const char *name)
{
    char usual[32];
    snprintf(usual, sizeof usual, "layers.%d", index);
    return strcmp(draft->layer.name ? draft->layer.name : usual, name) == 0;
}

/* How far back the layer `with` stands; 0: there is none. */
static int find_back(const struct layer_draft *before, int index, const char *with)
{
    for (int i = index - 1; i >= 0; i--)
        if (is_called(&before[i], i, with))
            return index - i;
    return 0;
}

static int other_fault(struct decoding *d, const struct layer_draft *draft, int index,
                       const struct where *at)
{
    char hint[96];
    if (index < 2) {
        field_fault(d, at, "invalid", "Put it after the layers that it reaches around.",
                    "An add layer needs two layers before it, but there %s %d.",
                    index == 1 ? "is" : "are", index);
    } else if (draft->with) {
        snprintf(hint, sizeof hint, "Or write \"back\": 2 to %d, counted from here.", index);
        field_fault(d, FIELD_WHERE(at, "with"), "invalid", hint,
                    "There is no layer \"%s\" among those that end at least two places before this "
                    "one.",
                    draft->with);
    } else {
        snprintf(hint, sizeof hint, "Write 2 to %d.", index);
        field_fault(d, FIELD_WHERE(at, "back"), "out_of_range", hint,
                    "\"back\" is %d, but only %d layers stand before this one.", draft->layer.back,
                    index);
    }
    return -1;
}

static int choice_fault(struct decoding *d, const struct layer_draft *draft, const struct where *at)
{
    if (draft->with)
        field_fault(d, FIELD_WHERE(at, "with"), "conflict", "Leave one of the two out.",
                    "\"back\" and \"with\" both say which output is added.");
    else
        field_fault(d, at, "required",
                    "Add \"with\" and a layer's name, or \"back\" and how many layers before this "
                    "one it stands.",
                    "An add layer says which earlier output it adds, but neither \"back\" nor "
                    "\"with\" is there.");
    return -1;
}

static int add_infer(struct decoding *d, struct layer_draft *draft,
                     const struct layer_draft *before, int index, const struct where *at)
{
    struct layer *l = &draft->layer;
    char ours[128], theirs[128];
    if (!draft->with == !l->back)
        return choice_fault(d, draft, at);
    const char *field = draft->with ? "with" : "back";
    int back = draft->with ? find_back(before, index, draft->with) : l->back;
    if (back < 2 || back > index)
        return other_fault(d, draft, index, at);
    l->back = back;
    l->out = l->in;
    const struct shape *other = &before[index - back].layer.out;
    if (shape_format(other, theirs), strcmp(theirs, shape_format(&l->in, ours)) == 0)
        return 0;
    field_fault(d, FIELD_WHERE(at, field), "shape_mismatch",
                "Give the layers between them as many units or filters, strides of 1 and padding "
                "\"same\".",
                "%s comes in, but the layer that is added gives %s; only equal shapes can be "
                "added.",
                ours, theirs);
    return -1;
}

static void add_cost(struct layer *l, int propagates)
{
    l->activation_bytes = shape_elements(&l->out) * 4;
    layer_add_flops(l, 1, propagates ? 1 : 0);
}

const struct layer_class layer_class_add = {
    .object = OBJECT("an add layer", add_fields, layer_objects),
    .infer = add_infer,
    .cost = add_cost,
};
