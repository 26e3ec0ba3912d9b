#include "spec/keras.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/keras_classes.h"
#include "spec/model_decode.h"
#include "spec/shape.h"

#define NESTING_MAX 8 /* Sequential within Sequential */

/* A layer as we write it, and where it stands in the original. */
struct found {
    json_t *doc;
    struct where *at;
    json_int_t axis; /* a positive one that the layer's input must end with; 0: none */
};

struct import {
    struct decoding *d;
    struct found *layers;
    size_t count;
    struct where **places; /* kept until everything is decoded */
    size_t place_count;
    const json_t *input; /* [null, ...], or NULL while none was seen */
    const struct where *input_at;
};

static struct where *keep(struct import *k, struct where w)
{
    struct where *p = mem_alloc(sizeof *p);
    *p = w;
    k->places = mem_realloc(k->places, (k->place_count + 1) * sizeof(*k->places));
    k->places[k->place_count++] = p;
    return p;
}

static struct where *keep_key(struct import *k, const struct where *up, const char *key)
{
    return keep(k, (struct where){.up = up, .key = key});
}

static void import_done(struct import *k)
{
    for (size_t i = 0; i < k->count; i++)
        json_decref(k->layers[i].doc);
    for (size_t i = 0; i < k->place_count; i++)
        free(k->places[i]);
    free(k->layers);
    free(k->places);
}

/* ---- layers ---- */

static void note_input(struct import *k, const json_t *config, const struct where *at)
{
    static const char *const names[] = {"batch_shape", "batch_input_shape", "build_input_shape"};
    for (size_t i = 0; i < ARRAY_LEN(names) && !k->input; i++) {
        const json_t *shape = json_object_get(config, names[i]);
        if (json_array_size(shape) < 2)
            continue;
        k->input = shape;
        k->input_at = keep_key(k, at, names[i]);
    }
}

static void take_input_layer(struct import *k, const json_t *config, const struct where *at)
{
    static const struct keras_arg args[] = {
        {.name = "sparse", .how = KERAS_ONLY, .only = "false"},
        {.name = "ragged", .how = KERAS_ONLY, .only = "false"},
        {.name = "optional", .how = KERAS_ONLY, .only = "false"},
    };
    static const struct keras_class input = KERAS_CLASS("InputLayer", NULL, NULL, args);
    json_auto_t *unused = json_object();
    keras_translate(k->d, &input, keras_common, keras_common_count, config, at, unused);
    if (k->count > 0)
        field_fault(k->d, at, "unsupported", NULL, "An InputLayer can only stand first.");
}

static void add_layer(struct import *k, json_t *take_doc, struct where *at)
{
    json_t *axis = json_object_get(take_doc, "axis");
    json_int_t value = json_integer_value(axis);
    json_object_del(take_doc, "axis");
    k->layers = mem_realloc(k->layers, (k->count + 1) * sizeof(*k->layers));
    k->layers[k->count++] = (struct found){take_doc, at, value == -1 ? 0 : value};
}

/* Arguments that only Keras 1 had. */
static int is_keras_1(const json_t *config)
{
    return json_object_get(config, "W_regularizer") || json_object_get(config, "init") ||
           json_object_get(config, "border_mode") || json_object_get(config, "nb_filter");
}

static void take_class(struct import *k, const char *class, const json_t *config,
                       const struct where *at, const struct where *at_layer)
{
    const struct keras_class *c = keras_class_find(class);
    if (!c) {
        field_unknown_word(k->d, FIELD_WHERE(at_layer, "class_name"), &keras_class_words, class);
        return;
    }
    if (is_keras_1(config)) {
        field_fault(k->d, at, "unsupported", "Load it with Keras 2 or 3 and write to_json() again.",
                    "This layer was written by Keras 1, whose arguments have other names.");
        return;
    }
    json_t *doc = json_object();
    json_object_set_new(doc, "type", json_string(c->type));
    keras_translate(k->d, c, keras_common, keras_common_count, config, at, doc);
    add_layer(k, doc, keep(k, *at));
}

static void take_list(struct import *k, const json_t *list, const struct where *at, int depth);

static void take_sequential(struct import *k, const json_t *config, const struct where *at,
                            int depth)
{
    if (depth >= NESTING_MAX) {
        field_fault(k->d, at, "too_deep", NULL, "Models are nested more than %d deep.",
                    NESTING_MAX);
        return;
    }
    if (json_is_array(config)) { /* up to Keras 2.2 */
        take_list(k, config, at, depth);
        return;
    }
    static const char *const known[] = {"name",   "trainable",         "dtype",
                                        "layers", "build_input_shape", "batch_input_shape"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)config, key, value)
    {
        size_t i = 0;
        while (i < ARRAY_LEN(known) && strcmp(known[i], key) != 0)
            i++;
        if (i == ARRAY_LEN(known))
            field_fault(k->d, FIELD_WHERE(at, key), "unsupported", "Leave it out.",
                        "\"%s\" is no argument of Sequential that this version knows.", key);
    }
    if (json_is_false(json_object_get(config, "trainable")))
        field_fault(k->d, FIELD_WHERE(at, "trainable"), "unsupported",
                    "Set \"trainable\": false on its layers.",
                    "A model that is frozen as a whole has nothing to train.");
    take_list(k, json_object_get(config, "layers"), keep_key(k, at, "layers"), depth);
    note_input(k, config, at); /* after the layers: they name it better */
}

/* Members of the object around a layer's config. */
static void check_envelope(struct import *k, const json_t *v, const struct where *at)
{
    static const char *const known[] = {
        "module",       "class_name",       "config", "registered_name",
        "build_config", "shared_object_id", "name"};
    const char *registered = json_string_value(json_object_get(v, "registered_name"));
    if (registered && strchr(registered, '>'))
        field_fault(k->d, FIELD_WHERE(at, "registered_name"), "unsupported",
                    "Use layers of Keras itself.", "\"%.80s\" is a layer of your own.", registered);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        size_t i = 0;
        while (i < ARRAY_LEN(known) && strcmp(known[i], key) != 0)
            i++;
        if (i == ARRAY_LEN(known))
            field_fault(k->d, FIELD_WHERE(at, key), "unsupported",
                        "A Sequential model has a list of layers, one after the other.",
                        "\"%s\" is nothing that a layer of a Sequential model has.", key);
    }
}

static void take_layer(struct import *k, const json_t *v, const struct where *at, int depth)
{
    const char *class = json_string_value(json_object_get(v, "class_name"));
    const json_t *config = json_object_get(v, "config");
    if (!class || !(json_is_object(config) || json_is_array(config))) {
        field_wrong_type(k->d, at, NULL, "a layer as Keras writes it, with class_name and config",
                         "{\"class_name\": \"Dense\", \"config\": {\"units\": 10}}", v);
        return;
    }
    const struct where *at_config = keep_key(k, at, "config");
    check_envelope(k, v, at);
    note_input(k, config, at_config);
    if (strcmp(class, "InputLayer") == 0)
        take_input_layer(k, config, at_config);
    else if (strcmp(class, "Sequential") == 0)
        take_sequential(k, config, at_config, depth + 1);
    else
        take_class(k, class, config, at_config, at);
}

static void take_list(struct import *k, const json_t *list, const struct where *at, int depth)
{
    if (!json_is_array(list)) {
        field_fault(k->d, at, "required", NULL, "A Sequential model has a list of layers here.");
        return;
    }
    for (size_t i = 0; i < json_array_size(list) && k->count <= MODEL_MAX_LAYERS; i++)
        take_layer(k, json_array_get(list, i),
                   keep(k, (struct where){.up = at, .key = NULL, .index = i}), depth);
}

/* ---- the model ---- */

int keras_is_model(const json_t *v)
{
    return json_is_string(v) || json_object_get(v, "class_name") != NULL;
}

json_t *keras_unwrap(const json_t *v, struct err *e)
{
    json_t *doc = NULL;
    if (json_is_object(v))
        return json_incref((json_t *)v);
    if (json_is_string(v))
        job_spec_read(json_string_value(v), json_string_length(v), &doc, e);
    return doc;
}

static json_t *unwrap(struct decoding *d, const json_t *v, const struct where *at)
{
    struct err e = {0};
    json_t *doc = keras_unwrap(v, &e);
    if (json_is_object(doc))
        return doc;
    if (doc)
        field_wrong_type(d, at, "model", "an object", "{\"input\": [784], \"layers\": [...]}", doc);
    else
        field_fault(d, at, "wrong_type", "Write what to_json() gave, as an object or as its text.",
                    "\"model\" must be an object, or the text of one as Keras writes it; this text "
                    "is not JSON: %s.",
                    e.text);
    json_decref(doc);
    return NULL;
}

/* Sizes after the batch dimension, with faults at their places in the original. */
static void take_sizes(struct import *k, struct shape *ret)
{
    size_t n = json_array_size(k->input);
    if (n - 1 > SHAPE_MAX_DIMS) {
        field_fault(k->d, k->input_at, "too_large", NULL, "An item has at most %d dimensions.",
                    SHAPE_MAX_DIMS);
        return;
    }
    struct shape s = {.dims = (int)n - 1};
    for (size_t i = 1; i < n; i++)
        if (!field_whole(json_array_get(k->input, i), &s.size[i - 1]) || s.size[i - 1] < 1) {
            field_fault(k->d, FIELD_ITEM(k->input_at, i), "out_of_range",
                        "Give the model a whole shape, or add \"input\" beside \"class_name\".",
                        "A size of the input must be a whole number from 1.");
            return;
        }
    if (shape_valid(&s))
        *ret = s;
    else
        field_fault(k->d, k->input_at, "too_large", NULL, "An item has at most %lld elements.",
                    (long long)SHAPE_MAX_ELEMENTS);
}

/* The shape of one item: what follows the batch dimension. */
static void decode_input(struct import *k, const json_t *model, const struct where *at,
                         struct model *m)
{
    const json_t *own = json_object_get(model, "input");
    if (own) {
        decode_shape(k->d, own, FIELD_WHERE(at, "input"), "input", 0, &m->input);
        return;
    }
    if (!k->input) {
        field_fault(k->d, at, "required",
                    "Add \"input\" beside \"class_name\", such as \"input\": [784], or give the "
                    "first layer its shape in Keras.",
                    "No layer of this model says the shape of its input.");
        return;
    }
    if (!json_is_null(json_array_get(k->input, 0)))
        field_fault(k->d, k->input_at, "unsupported",
                    "Leave the batch dimension open (null): fit.batch_size says it.",
                    "The model fixes its batch size.");
    take_sizes(k, &m->input);
}

static void check_members(struct import *k, const json_t *model, const struct where *at)
{
    static const char *const known[] = {"module",          "class_name",   "config",
                                        "registered_name", "build_config", "compile_config",
                                        "keras_version",   "backend",      "shared_object_id",
                                        "input",           "weights"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)model, key, value)
    {
        size_t i = 0;
        while (i < ARRAY_LEN(known) && strcmp(known[i], key) != 0)
            i++;
        if (i == ARRAY_LEN(known))
            field_fault(k->d, FIELD_WHERE(at, key), "unsupported", "Leave it out.",
                        "\"%s\" is nothing that this version knows of a Keras model.", key);
    }
}

static void check_axes(struct import *k, const struct model *m)
{
    for (size_t i = 0; i < k->count && (int)i < m->layer_count; i++) {
        const struct layer *l = &m->layers[i];
        if (k->layers[i].axis != 0 && l->in.dims > 0 && k->layers[i].axis != l->in.dims)
            field_fault(k->d, FIELD_WHERE(k->layers[i].at, "axis"), "unsupported", "Write -1.",
                        "This version normalises over the last axis (%d, counting the batch), not "
                        "%lld.",
                        l->in.dims, (long long)k->layers[i].axis);
    }
}

static void decode_found(struct import *k, const struct where *at, struct model *m)
{
    struct model_item *items = mem_zalloc((k->count + 1) * sizeof *items);
    for (size_t i = 0; i < k->count; i++)
        items[i] = (struct model_item){.doc = k->layers[i].doc, .at = *k->layers[i].at};
    model_decode_items(k->d, items, k->count, at, m);
    free(items);
    check_axes(k, m);
}

static void decode_weights(struct import *k, const json_t *model, const struct where *at,
                           struct model *m)
{
    const json_t *weights = json_object_get(model, "weights");
    if (weights)
        field_decode(k->d, field_find(&model_object, "weights"), weights,
                     FIELD_WHERE(at, "weights"), m);
}

static void decode_object(struct import *k, const json_t *model, const struct where *at,
                          struct model *m)
{
    const char *class = json_string_value(json_object_get(model, "class_name"));
    const struct where *at_config = keep_key(k, at, "config");
    if (!class || strcmp(class, "Sequential") != 0) {
        field_fault(k->d, FIELD_WHERE(at, "class_name"), "unsupported",
                    "Build it as keras.Sequential([...]).",
                    "Of Keras's models this version reads \"Sequential\" only.");
        return;
    }
    check_members(k, model, at);
    take_sequential(k, json_object_get(model, "config"), at_config, 0);
    size_t before = k->d->faults->total;
    decode_input(k, model, at, m);
    decode_weights(k, model, at, m);
    if (before == k->d->faults->total)
        decode_found(k, at_config, m);
}

int keras_decode_model(struct decoding *d, const json_t *v, const struct where *at, struct model *m)
{
    size_t before = d->faults->total;
    struct import k = {.d = d};
    json_auto_t *model = unwrap(d, v, at);
    if (model)
        decode_object(&k, model, at, m);
    import_done(&k);
    return d->faults->total == before ? 0 : -1;
}
