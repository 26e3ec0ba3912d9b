/* layer.c: the tables of the layers' fields. */
#include "spec/layer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/names.h"
#include "spec/shape.h"

#define NAME_MAX_BYTES 64

static void check_name(struct decoding *d, const struct where *at, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (isalnum((unsigned char)*p) || strchr("._-", *p))
            continue;
        field_fault(d, at, "invalid", "For example: \"hidden_1\".",
                    "A layer's name has letters, digits, \"_\", \".\" and \"-\" only, because "
                    "its tensors are named after it.");
        return;
    }
}

static void decode_target(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct layer_draft *draft = base;
    decode_shape(d, v, at, "target_shape", 1, &draft->target);
}

#define COMMON_FIELDS                                                                              \
    {.name = "type",                                                                               \
     .also = "class_name layer kind op",                                                           \
     .kind = FIELD_KNOWN,                                                                          \
     .required = 1,                                                                                \
     .words = &layer_type_words,                                                                   \
     .help = "which layer it is",                                                                  \
     .example = "\"dense\""},                                                                      \
    {                                                                                              \
        .name = "name", .kind = FIELD_TEXT, FIELD_AT(struct layer_draft, layer.name), .min = 1,    \
        .max = NAME_MAX_BYTES, .check = check_name, .help = "what its tensors are called after",   \
        .example = "\"hidden\""                                                                    \
    }
#define INITIALIZER_FIELD(name_, fallback_, help_)                                                 \
    {                                                                                              \
        .name = #name_, .kind = FIELD_ENUM, FIELD_AT(struct layer_draft, name_),                   \
        .fallback = (fallback_), .words = &initializer_words, .help = (help_),                     \
        .example = "\"he_normal\""                                                                 \
    }
#define FIXED_FIELD(name_, only_, help_)                                                           \
    {                                                                                              \
        .name = (name_), .kind = FIELD_FIXED, .example = (only_), .help = (help_)                  \
    }

static const struct object *const layer_objects[LAYER_TYPE__MAX + 1];

static const struct field dense_fields[] = {
    COMMON_FIELDS,
    {.name = "units",
     .also = "size neurons out_features output_dim",
     .kind = FIELD_INT,
     FIELD_AT(struct layer_draft, layer.units),
     .required = 1,
     .min = 1,
     .max = (double)SHAPE_MAX_ELEMENTS,
     .help = "how many outputs the layer has",
     .example = "64"},
    {.name = "activation",
     .also = "act nonlinearity",
     .kind = FIELD_ENUM,
     FIELD_AT(struct layer_draft, layer.activation),
     .fallback = ACTIVATION_LINEAR,
     .words = &activation_words,
     .help = "applied to its output",
     .example = "\"relu\""},
    {.name = "use_bias",
     .also = "bias",
     .kind = FIELD_BOOL,
     FIELD_AT(struct layer_draft, layer.use_bias),
     .fallback = 1,
     .help = "whether a bias is added",
     .example = "true"},
    INITIALIZER_FIELD(kernel_initializer, INIT_GLOROT_UNIFORM, "how the kernel starts"),
    INITIALIZER_FIELD(bias_initializer, INIT_ZEROS, "how the bias starts"),
};
static const struct field flatten_fields[] = {COMMON_FIELDS};
static const struct field reshape_fields[] = {
    COMMON_FIELDS,
    {.name = "target_shape",
     .also = "shape",
     .kind = FIELD_CUSTOM,
     .decode = decode_target,
     .required = 1,
     .help = "the shape of an item, one size of which may be -1",
     .example = "[8, 8]"},
};
static const struct field rescaling_fields[] = {
    COMMON_FIELDS,
    {.name = "scale",
     .also = "factor",
     .kind = FIELD_NUMBER,
     FIELD_AT(struct layer_draft, layer.scale),
     .required = 1,
     .min = -1e30,
     .max = 1e30,
     .help = "what each input is multiplied by",
     .example = "0.00392156862745098"},
    {.name = "offset",
     .kind = FIELD_NUMBER,
     FIELD_AT(struct layer_draft, layer.offset),
     .min = -1e30,
     .max = 1e30,
     .help = "what is added after that",
     .example = "-1"},
};
static const struct field dropout_fields[] = {
    COMMON_FIELDS,
    {.name = "rate",
     .also = "p prob",
     .kind = FIELD_NUMBER,
     FIELD_AT(struct layer_draft, layer.rate),
     .required = 1,
     .min = 0,
     .max = 1,
     .below_max = 1,
     .help = "the share of inputs that is dropped",
     .example = "0.5"},
};
static const struct field activation_fields[] = {
    COMMON_FIELDS,
    {.name = "activation",
     .also = "function act",
     .kind = FIELD_ENUM,
     FIELD_AT(struct layer_draft, layer.activation),
     .required = 1,
     .words = &activation_words,
     .help = "which function is applied",
     .example = "\"relu\""},
};
static const struct field normalization_fields[] = {
    COMMON_FIELDS,
    {.name = "epsilon",
     .also = "eps",
     .kind = FIELD_NUMBER,
     FIELD_AT(struct layer_draft, layer.epsilon),
     .fallback = 1e-3,
     .min = 0,
     .above_min = 1,
     .max = 1,
     .help = "what is added to the variance",
     .example = "0.001"},
    INITIALIZER_FIELD(gamma_initializer, INIT_ONES, "how the scale starts"),
    INITIALIZER_FIELD(beta_initializer, INIT_ZEROS, "how the offset starts"),
    FIXED_FIELD("axis", "-1", "it normalises over the last dimension"),
    FIXED_FIELD("center", "true", "a layer normalization has its beta"),
    FIXED_FIELD("scale", "true", "a layer normalization has its gamma"),
};

static const struct object dense = OBJECT("a dense layer", dense_fields, layer_objects);
static const struct object flatten = OBJECT("a flatten layer", flatten_fields, layer_objects);
static const struct object reshape = OBJECT("a reshape layer", reshape_fields, layer_objects);
static const struct object rescaling = OBJECT("a rescaling layer", rescaling_fields, layer_objects);
static const struct object dropout = OBJECT("a dropout layer", dropout_fields, layer_objects);
static const struct object activation =
    OBJECT("an activation layer", activation_fields, layer_objects);
static const struct object normalization =
    OBJECT("a layer_normalization layer", normalization_fields, layer_objects);

static const struct object *const layer_objects[LAYER_TYPE__MAX + 1] = {
    [LAYER_DENSE] = &dense,
    [LAYER_FLATTEN] = &flatten,
    [LAYER_RESHAPE] = &reshape,
    [LAYER_RESCALING] = &rescaling,
    [LAYER_DROPOUT] = &dropout,
    [LAYER_ACTIVATION] = &activation,
    [LAYER_LAYER_NORMALIZATION] = &normalization,
};

/* Which layer `v` is, or a fault and -1. A misspelt one is a fault and the layer that was meant, so
 * that the rest of it is looked at too. */
static int decode_type(struct decoding *d, const json_t *v, const struct where *at)
{
    const json_t *type = json_object_get(v, "type");
    const struct where *at_type = FIELD_WHERE(at, "type");
    if (!json_is_object(v)) {
        field_wrong_type(d, at, NULL, "a layer", "{\"type\": \"dense\", \"units\": 10}", v);
        return -1;
    }
    if (!type) {
        const struct object *o = &dense;
        field_missing(d, o, field_find(o, "type"), v, at);
        return -1;
    }
    if (!json_is_string(type)) {
        field_wrong_type(d, at_type, "type", "the name of a layer", "\"dense\"", type);
        return -1;
    }
    const char *name = json_string_value(type);
    const struct word *word = words_find(&layer_type_words, name);
    if (word)
        return word->value;
    const struct word *function = words_find(&activation_words, name);
    char hint[256];
    snprintf(hint, sizeof hint, "Write {\"type\": \"activation\", \"activation\": \"%s\"}.",
             function ? function->name : "");
    if (function)
        field_fault(d, at_type, "unknown_value", hint, "\"%s\" is an activation, not a layer.",
                    function->name);
    else
        field_unknown_word(d, at_type, &layer_type_words, name);
    const struct word *near = words_meant(&layer_type_words, name);
    return near && !function ? near->value : -1;
}

int layer_decode(struct decoding *d, const json_t *v, const struct where *at,
                 struct layer_draft *draft)
{
    size_t before = d->faults->total;
    int type = decode_type(d, v, at);
    if (type < 0)
        return -1;
    draft->layer.type = (enum layer_type)type;
    field_decode_object(d, layer_objects[type], v, at, draft);
    return d->faults->total == before ? 0 : -1;
}

void layer_done(struct layer *l)
{
    free(l->name);
    *l = (struct layer){0};
}

void check_data_path(struct decoding *d, const struct where *at, const char *text)
{
    char hint[256], shown[FIELD_SHOW_SIZE];
    const char *inside = text + strspn(text, "/");
    if (text[0] == '/') {
        snprintf(hint, sizeof hint, "For a data root above it, write the rest: \"%s\".",
                 field_clip(*inside ? inside : "train.csv", shown));
        field_fault(d, at, "invalid", hint,
                    "A data path is relative to the data roots of the node, but this is absolute.");
        return;
    }
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') {
            field_fault(d, at, "invalid",
                        "Write the path from a data root downwards, without \"..\".",
                        "A data path may not lead upwards out of its data root.");
            return;
        }
        p += n;
        if (!*p)
            return;
    }
}
