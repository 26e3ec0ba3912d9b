/* keras_values.h: the values that Keras's configurations have in common, as ours. Each returns a
 * new reference, or NULL after adding a fault at `at`. */
#ifndef TRAINYARD_SPEC_KERAS_VALUES_H
#define TRAINYARD_SPEC_KERAS_VALUES_H

#include "spec/field.h"

/* How an argument of Keras's is written here. */
enum keras_how {
    KERAS_SAME,        /* as it stands, perhaps under another name */
    KERAS_ACTIVATION,  /* a name, null, or a function object */
    KERAS_INITIALIZER, /* a name or an object; with `only`, that one alone, which goes unsaid */
    KERAS_AXIS,        /* the last dimension, as -1, its number, or a list of one */
    KERAS_DTYPE,       /* float32 */
    KERAS_ONLY,        /* only the values in `only` mean something here */
    KERAS_SEED,        /* null; another value is a warning: fit.seed draws all numbers */
    KERAS_ANY          /* no value of it changes the result here */
};

struct keras_arg {
    const char *name;
    enum keras_how how;
    const char *to;   /* our name; NULL: the same */
    const char *only; /* KERAS_ONLY: JSON texts, separated by "|"; KERAS_INITIALIZER: a name */
};

#define KERAS_SAME_ARG(name_)                                                                      \
    {                                                                                              \
        .name = (name_), .how = KERAS_SAME                                                         \
    }
#define KERAS_ONLY_ARG(name_, values_)                                                             \
    {                                                                                              \
        .name = (name_), .how = KERAS_ONLY, .only = (values_)                                      \
    }
#define KERAS_ANY_ARG(name_)                                                                       \
    {                                                                                              \
        .name = (name_), .how = KERAS_ANY                                                          \
    }

/* A class: its arguments become the fields of `type`. */
struct keras_class {
    const char *name;
    const char *type;
    const char *more; /* JSON object of fields that the class implies; NULL: none */
    const struct keras_arg *args;
    size_t count;
};

#define KERAS_CLASS(name_, type_, more_, args_)                                                    \
    {                                                                                              \
        .name = (name_), .type = (type_), .more = (more_), .args = (args_),                        \
        .count = sizeof(args_) / sizeof((args_)[0])                                                \
    }

/* Adds to `to` what the members of `config` are here: by the class's arguments, or `common` ones.
 * A member that is in neither is a fault. */
void keras_translate(struct decoding *d, const struct keras_class *c,
                     const struct keras_arg *common, size_t common_count, const json_t *config,
                     const struct where *at, json_t *to);

/* {"class_name": "function", "config": "relu"} is "relu"; a string is itself; else NULL. */
const char *keras_function_name(const json_t *v);

/* "SparseCategoricalCrossentropy" as "sparse_categorical_crossentropy" into out[size]. */
char *keras_snake(const char *name, char *out, size_t size);

#endif
