/* words.h: lists of names that stand for values, and the nearest name to a misspelt one.
 *
 * A name is near when few letters must be changed, added, dropped or swapped (optimal string
 * alignment, case and "_", "-", " " set aside), or when one of the two holds the other whole.
 */
#ifndef TRAINYARD_SPEC_WORDS_H
#define TRAINYARD_SPEC_WORDS_H

#include <stddef.h>

struct word {
    const char *name;
    int value;
};

/* The first word of a value is its name; later ones of the same value are accepted besides. */
struct words {
    const char *what; /* "an activation": goes after "is not" */
    const struct word *list;
    size_t count;
};

#define WORDS(what_, list_)                                                                        \
    {                                                                                              \
        .what = (what_), .list = (list_), .count = sizeof(list_) / sizeof((list_)[0])              \
    }

const struct word *words_find(const struct words *w, const char *name); /* NULL: none */
const char *words_name(const struct words *w, int value);               /* never NULL */

/* "relu, tanh or sigmoid" (`last` is "or") into out[size]; returns `out`. */
char *words_format(const struct words *w, const char *last, char *out, size_t size);

/* How far apart two names are: 0 the same but for case and separators, up to WORDS_FAR. */
#define WORDS_FAR  1000
#define WORDS_PART 10 /* from here: one is a part of the other */
int words_distance(const char *given, const char *name);

const struct word *words_nearest(const struct words *w, const char *given); /* NULL: none is near */
/* The nearest only where it is a slip of a few letters. */
const struct word *words_meant(const struct words *w, const char *given);

#endif
