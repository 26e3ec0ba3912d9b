/* field.h: JSON objects described by tables: one array of fields is the decoder, the sentences of a
 * 422 and, with its help and examples, the schema.
 *
 * field_decode_object() walks a table: defaults first, then each field that is there is checked and
 * stored at its offset. It goes on after a fault, so that one pass finds them all. Work is bounded:
 * once a list of faults is full, further ones are only counted.
 */
#ifndef TRAINYARD_SPEC_FIELD_H
#define TRAINYARD_SPEC_FIELD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/faults.h"
#include "spec/words.h"

/* Where in the document we are; rendered to a JSON pointer only for a fault. */
struct where {
    const struct where *up; /* NULL: `key` is the pointer of the root itself */
    const char *key;        /* NULL: an index */
    size_t index;
};

struct decoding {
    struct faults *faults;
    struct faults *warnings;
    int strict; /* unknown fields are faults */
};

enum field_kind {
    FIELD_INT,    /* int or int64_t (or unsigned of the same size), by `size` */
    FIELD_NUMBER, /* double */
    FIELD_BOOL,   /* int */
    FIELD_TEXT,   /* char *, owned; min and max count bytes */
    FIELD_ENUM,   /* an enum, from `words` */
    FIELD_OBJECT, /* a struct within the struct, by `object`; its defaults apply when absent */
    FIELD_CUSTOM, /* `decode` does it all */
    FIELD_FIXED,  /* nothing is stored: only the value `example` is known to this version */
    FIELD_KNOWN   /* nothing is stored: the caller reads it by itself */
};

struct field {
    const char *name;
    const char *help;    /* what it is, to follow the name and a colon; no full stop */
    const char *example; /* JSON text of a value that works */
    const char *also;    /* names that it goes by elsewhere, separated by spaces */
    enum field_kind kind;
    int required;
    size_t offset, size;
    double min, max;          /* inclusive */
    int above_min, below_max; /* the limit itself is not allowed */
    double fallback;          /* default of numbers, booleans and enums */
    const char *fallback_text;
    const struct words *words;
    const struct object *object;
    /* FIELD_CUSTOM: `base` is the struct. FIELD_TEXT may have `check`. Both add their faults. */
    void (*decode)(struct decoding *d, const json_t *v, const struct where *at, void *base);
    void (*check)(struct decoding *d, const struct where *at, const char *text);
};

struct object {
    const char *what; /* "a dense layer": goes after "is a field of" */
    const struct field *fields;
    size_t count;
    const struct object *const *kin; /* NULL-terminated: where else a stray field may belong */
};

#define FIELD_AT(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)
#define OBJECT(what_, fields_, kin_)                                                               \
    {                                                                                              \
        .what = (what_), .fields = (fields_), .count = sizeof(fields_) / sizeof((fields_)[0]),     \
        .kin = (kin_)                                                                              \
    }

void field_set_defaults(const struct object *o, void *base);

/* Decodes `v` into the struct at `base` after setting defaults there. Texts that were set before a
 * fault stay set: the caller releases the struct either way. */
void field_decode_object(struct decoding *d, const struct object *o, const json_t *v,
                         const struct where *at, void *base);
void field_decode(struct decoding *d, const struct field *f, const json_t *v,
                  const struct where *at, void *base);

const struct field *field_find(const struct object *o, const char *name);

/* `o` lacks `f` in the object `v` at `at`: the fault, with what was perhaps meant for it. */
void field_missing(struct decoding *d, const struct object *o, const struct field *f,
                   const json_t *v, const struct where *at);

/* `v` is not `expected` ("a whole number"); `hint` NULL: made from `example` and `name`. */
void field_wrong_type(struct decoding *d, const struct where *at, const char *name,
                      const char *expected, const char *example, const json_t *v);

/* A word that is not in the list. */
void field_unknown_word(struct decoding *d, const struct where *at, const struct words *w,
                        const char *given);

/* 1 if nothing at, below or above `pointer` has a fault yet: whether it may be looked at together
 * with other parts. */
int field_clean(const struct decoding *d, const char *pointer);

/* Adds a fault or a warning. `hint` may be NULL. */
void field_fault(struct decoding *d, const struct where *at, const char *code, const char *hint,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void field_warn(struct decoding *d, const struct where *at, const char *code, const char *hint,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* The same for member `key` of the object at `at`. */
#define FIELD_WHERE(at_, key_)  (&(const struct where){.up = (at_), .key = (key_)})
#define FIELD_ITEM(at_, index_) (&(const struct where){.up = (at_), .index = (index_)})

#define FIELD_SHOW_SIZE 96
/* A value as a sentence shows it: the string "64", 12, true, an object; returns `out`. */
char *field_show(const json_t *v, char out[FIELD_SHOW_SIZE]);
/* The shortest decimal that reads back as `x`; returns `out` (32 bytes). */
char *field_number(double x, char *out);
/* A text cut to fit a sentence, at a character's end; returns `out`. */
char *field_clip(const char *text, char out[FIELD_SHOW_SIZE]);
/* 1 and the value if `v` is a number without a fraction that fits (64.0 is one). */
int field_whole(const json_t *v, int64_t *ret);

#endif
