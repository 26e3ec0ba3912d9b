#include "spec/keras_values.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "spec/names.h"

const char *keras_function_name(const json_t *v)
{
    if (json_is_string(v))
        return json_string_value(v);
    const char *class = json_string_value(json_object_get(v, "class_name"));
    int is_function = class && (strcmp(class, "function") == 0);
    return is_function ? json_string_value(json_object_get(v, "config")) : NULL;
}

char *keras_snake(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (const char *p = name; *p && n + 2 < size; p++) {
        int starts = isupper((unsigned char)*p) && p > name && !isupper((unsigned char)p[-1]);
        if (starts && p[-1] != '_')
            out[n++] = '_';
        out[n++] = (char)tolower((unsigned char)*p);
    }
    out[n] = '\0';
    return out;
}

/* ---- single values ---- */

static json_t *activation(struct decoding *d, const json_t *v, const struct where *at)
{
    const char *name = json_is_null(v) ? "linear" : keras_function_name(v);
    if (!name) {
        field_wrong_type(d, at, "activation", "the name of an activation or null", "\"relu\"", v);
        return NULL;
    }
    if (words_find(&activation_words, name))
        return json_string(name);
    field_unknown_word(d, at, &activation_words, name);
    return NULL;
}

/* Keras's scaled initialisers, all of which are cases of VarianceScaling. */
static const struct {
    const char *mode, *distribution, *name;
    double scale;
} scalings[] = {
    {"fan_avg", "uniform", "glorot_uniform", 1},
    {"fan_avg", "truncated_normal", "glorot_normal", 1},
    {"fan_in", "uniform", "lecun_uniform", 1},
    {"fan_in", "truncated_normal", "lecun_normal", 1},
    {"fan_in", "uniform", "he_uniform", 2},
    {"fan_in", "truncated_normal", "he_normal", 2},
};

static const char *scaling_name(const json_t *config)
{
    const char *mode = json_string_value(json_object_get(config, "mode"));
    const char *distribution = json_string_value(json_object_get(config, "distribution"));
    double scale = json_number_value(json_object_get(config, "scale"));
    for (size_t i = 0; mode && distribution && i < ARRAY_LEN(scalings); i++)
        if (strcmp(mode, scalings[i].mode) == 0 && scale == scalings[i].scale &&
            strcmp(distribution, scalings[i].distribution) == 0)
            return scalings[i].name;
    return NULL;
}

/* Arguments of the plain ones, which have one setting here. */
static const struct {
    const char *name;
    double value;
} settings[] = {{"minval", -0.05}, {"maxval", 0.05}, {"mean", 0}, {"stddev", 0.05}};

static int check_setting(struct decoding *d, const char *key, const json_t *v,
                         const struct where *at)
{
    char hint[96];
    if (strcmp(key, "seed") == 0) {
        if (!json_is_null(v))
            field_warn(d, FIELD_WHERE(at, key), "no_effect", NULL,
                       "All start values are drawn by fit.seed; this seed is not used.");
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        if (strcmp(key, settings[i].name) != 0)
            continue;
        if (json_is_number(v) && json_number_value(v) == settings[i].value)
            return 0;
        snprintf(hint, sizeof hint, "Only %g is known here.", settings[i].value);
        field_fault(d, FIELD_WHERE(at, key), "unsupported", hint,
                    "This version does not run an initializer with this \"%s\".", key);
        return -1;
    }
    field_fault(d, FIELD_WHERE(at, key), "unsupported", NULL,
                "\"%s\" is no argument of an initializer that this version knows.", key);
    return -1;
}

static json_t *initializer_object(struct decoding *d, const json_t *v, const struct where *at)
{
    char snake[64];
    const char *class = json_string_value(json_object_get(v, "class_name"));
    const json_t *config = json_object_get(v, "config");
    const struct where *at_config = FIELD_WHERE(at, "config");
    if (class && strcmp(class, "VarianceScaling") == 0) {
        const char *name = scaling_name(config);
        if (name)
            return json_string(name);
        field_fault(
            d, at_config, "unsupported",
            "Scale 1 with fan_avg (glorot) or fan_in (lecun), or 2 with fan_in (he); uniform "
            "or truncated_normal.",
            "This version does not run a VarianceScaling with these arguments.");
        return NULL;
    }
    const struct word *word =
        class ? words_find(&initializer_words, keras_snake(class, snake, sizeof snake)) : NULL;
    if (!word) {
        field_unknown_word(d, FIELD_WHERE(at, "class_name"), &initializer_words,
                           class ? class : "");
        return NULL;
    }
    const char *key;
    json_t *value;
    int bad = 0;
    json_object_foreach((json_t *)config, key, value) bad |=
        check_setting(d, key, value, at_config);
    return bad ? NULL : json_string(word->name);
}

static json_t *initializer(struct decoding *d, const json_t *v, const struct where *at)
{
    char snake[64];
    if (json_is_object(v))
        return initializer_object(d, v, at);
    if (!json_is_string(v)) {
        field_wrong_type(d, at, "initializer", "an initializer", "\"glorot_uniform\"", v);
        return NULL;
    }
    const struct word *word =
        words_find(&initializer_words, keras_snake(json_string_value(v), snake, sizeof snake));
    if (word)
        return json_string(word->name);
    field_unknown_word(d, at, &initializer_words, json_string_value(v));
    return NULL;
}

/* A policy object in Keras 3, a name before. */
static void check_dtype(struct decoding *d, const json_t *v, const struct where *at)
{
    const char *name = json_string_value(v);
    if (json_is_object(v))
        name = json_string_value(json_object_get(json_object_get(v, "config"), "name"));
    if (json_is_null(v) || (name && strcmp(name, "float32") == 0))
        return;
    field_fault(d, at, "unsupported",
                "Leave the model in float32; \"precision\" of the job chooses how it is stored.",
                "A layer's dtype can only be \"float32\".");
}

/* -1, or [-1]; a positive number is checked against the input by whoever knows its shape, so it is
 * passed on as "axis". */
static json_t *axis(struct decoding *d, const json_t *v, const struct where *at)
{
    const json_t *only = json_array_size(v) == 1 ? json_array_get(v, 0) : v;
    int64_t value;
    if (field_whole(only, &value))
        return json_integer(value);
    field_fault(d, at, "unsupported", "Write -1.",
                "This version normalises over one axis, the last.");
    return NULL;
}

static int is_one_of(const json_t *v, const char *texts)
{
    int found = 0;
    for (const char *p = texts; *p && !found;) {
        size_t n = strcspn(p, "|");
        json_auto_t *want = json_loadb(p, n, JSON_DECODE_ANY, NULL);
        found = json_equal(want, v) || (json_is_number(want) && json_is_number(v) &&
                                        json_number_value(want) == json_number_value(v));
        p += n + (p[n] == '|');
    }
    return found;
}

static void check_only(struct decoding *d, const struct keras_arg *a, const json_t *v,
                       const struct where *at)
{
    if (!is_one_of(v, a->only))
        field_fault(d, at, "unsupported", NULL, "\"%s\" can only be %.*s in this version.", a->name,
                    (int)strcspn(a->only, "|"), a->only);
}

/* ---- arguments ---- */

static json_t *translate_initializer(struct decoding *d, const struct keras_arg *a, const json_t *v,
                                     const struct where *at)
{
    json_t *ours = initializer(d, v, at);
    if (!ours || !a->only)
        return ours;
    if (strcmp(json_string_value(ours), a->only) != 0)
        field_fault(d, at, "unsupported", NULL, "\"%s\" can only be %s in this version.", a->name,
                    a->only);
    json_decref(ours);
    return NULL;
}

static json_t *translate_one(struct decoding *d, const struct keras_arg *a, const json_t *v,
                             const struct where *at)
{
    switch (a->how) {
    case KERAS_SAME: return json_is_null(v) ? NULL : json_incref((json_t *)v); /* its default */
    case KERAS_ACTIVATION: return activation(d, v, at);
    case KERAS_INITIALIZER: return translate_initializer(d, a, v, at);
    case KERAS_AXIS: return axis(d, v, at);
    case KERAS_DTYPE: check_dtype(d, v, at); break;
    case KERAS_ONLY: check_only(d, a, v, at); break;
    case KERAS_SEED:
        if (!json_is_null(v))
            field_warn(d, at, "no_effect", NULL,
                       "All random numbers are drawn by fit.seed; this seed is not used.");
        break;
    case KERAS_ANY: break;
    }
    return NULL;
}

static const struct keras_arg *find(const struct keras_arg *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

void keras_translate(struct decoding *d, const struct keras_class *c,
                     const struct keras_arg *common, size_t common_count, const json_t *config,
                     const struct where *at, json_t *to)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)config, key, value)
    {
        const struct keras_arg *a = find(c->args, c->count, key);
        a = a ? a : find(common, common_count, key);
        if (!a) {
            field_fault(d, FIELD_WHERE(at, key), "unsupported", "Leave it out.",
                        "\"%s\" is no argument of %s that this version knows.", key, c->name);
            continue;
        }
        json_t *ours = translate_one(d, a, value, FIELD_WHERE(at, key));
        if (ours)
            json_object_set_new(to, a->to ? a->to : key, ours);
    }
    json_auto_t *more = c->more ? json_loads(c->more, 0, NULL) : NULL;
    json_object_update(to, more);
}
