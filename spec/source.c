/* source.c: where the data comes from. */
#include "spec/job_decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec/amount.h"
#include "spec/layer.h"
#include "spec/model_decode.h"
#include "spec/names.h"

#define ARRAY_NAME_MAX 256

static const struct word headers[] = {{"auto", CSV_HEADER_AUTO}};
static const struct words header_words = WORDS("a word for a header", headers);

static void decode_header(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct data_source *s = base;
    const char *text = json_string_value(v);
    if (json_is_boolean(v))
        s->header = json_is_true(v) ? CSV_HEADER_YES : CSV_HEADER_NO;
    else if (text && words_find(&header_words, text))
        s->header = CSV_HEADER_AUTO;
    else
        field_wrong_type(d, at, "header", "true, false or \"auto\"", "true", v);
}

static void decode_memory_limit(struct decoding *d, const json_t *v, const struct where *at,
                                void *base)
{
    decode_bytes(d, v, at, "For example: \"4GiB\".", &((struct data_source *)base)->memory_limit);
}

/* What numpy calls an array: a name of its own in the archive, not a path. */
static void check_array_name(struct decoding *d, const struct where *at, const char *text)
{
    size_t n = strlen(text);
    char hint[160], shown[FIELD_SHOW_SIZE];
    if (n < 5 || strcmp(text + n - 4, ".npy") != 0)
        return;
    snprintf(hint, sizeof hint, "Write \"%.*s\".", (int)(n - 4), field_clip(text, shown));
    field_fault(d, at, "invalid", hint, "Arrays in an npz file are named without \".npy\".");
}

#define FORMAT_FIELD                                                                               \
    {                                                                                              \
        .name = "format", .also = "type", .kind = FIELD_ENUM,                                      \
        FIELD_AT(struct data_source, format), .required = 1, .words = &data_format_words,          \
        .help = "how the data is written", .example = "\"csv\""                                    \
    }
#define PATH_FIELD(name_, help_, example_)                                                         \
    {                                                                                              \
        .name = #name_, .kind = FIELD_TEXT, FIELD_AT(struct data_source, name_), .required = 1,    \
        .min = 1, .max = DATA_PATH_MAX, .check = check_data_path, .help = (help_),                 \
        .example = (example_)                                                                      \
    }

#define ARRAY_FIELD(name_, help_)                                                                  \
    {                                                                                              \
        .name = #name_, .kind = FIELD_TEXT, FIELD_AT(struct data_source, name_),                   \
        .fallback_text = #name_, .min = 1, .max = ARRAY_NAME_MAX, .check = check_array_name,       \
        .help = (help_), .example = "\"" #name_ "\""                                               \
    }
#define LIMIT_FIELD                                                                                \
    {                                                                                              \
        .name = "limit", .also = "max_samples n_samples take", .kind = FIELD_INT,                  \
        FIELD_AT(struct data_source, limit), .min = 1, .max = 1e15,                                \
        .help = "how many items are used, the first ones", .example = "1000"                       \
    }
#define MEMORY_FIELD                                                                               \
    {                                                                                              \
        .name = "memory_limit", .also = "max_memory buffer_size", .kind = FIELD_CUSTOM,            \
        .decode = decode_memory_limit,                                                             \
        .help = "the size from which on prepared data is kept on disk", .example = "\"4GiB\""      \
    }

static const struct object *const source_objects[];

static const struct field idx_fields[] = {
    FORMAT_FIELD,
    PATH_FIELD(images, "the idx file with the items", "\"mnist/train-images-idx3-ubyte.gz\""),
    PATH_FIELD(labels, "the idx file with the labels", "\"mnist/train-labels-idx1-ubyte.gz\""),
    LIMIT_FIELD,
    MEMORY_FIELD,
};
static const struct field csv_fields[] = {
    FORMAT_FIELD,
    PATH_FIELD(path, "the csv file, which may be compressed (.gz)", "\"iris.csv\""),
    {.name = "header",
     .also = "has_header",
     .kind = FIELD_CUSTOM,
     .decode = decode_header,
     .help = "whether the first row has names",
     .example = "true"},
    {.name = "label_column",
     .also = "target target_column label",
     .kind = FIELD_INT,
     FIELD_AT(struct data_source, label_column),
     .fallback = -1,
     .min = -1e6,
     .max = 1e6,
     .help = "which column has the label, from 0; negative from the end",
     .example = "-1"},
    {.name = "missing",
     .also = "na missing_values",
     .kind = FIELD_ENUM,
     FIELD_AT(struct data_source, missing),
     .fallback = CSV_MISSING_ERROR,
     .words = &csv_missing_words,
     .help = "what becomes of a row in which a value is missing",
     .example = "\"drop\""},
    {.name = "fill",
     .also = "fill_value fillna",
     .kind = FIELD_NUMBER,
     FIELD_AT(struct data_source, fill),
     .min = -3e38,
     .max = 3e38,
     .help = "what takes the place of a missing value, with \"missing\": \"fill\"",
     .example = "0"},
    LIMIT_FIELD,
    MEMORY_FIELD,
};
static const struct field npy_fields[] = {
    FORMAT_FIELD,
    PATH_FIELD(x, "the npy file with the items", "\"x_train.npy\""),
    PATH_FIELD(y, "the npy file with the labels", "\"y_train.npy\""),
    LIMIT_FIELD,
    MEMORY_FIELD,
};
static const struct field npz_fields[] = {
    FORMAT_FIELD,
    PATH_FIELD(path, "the npz file with both arrays", "\"train.npz\""),
    ARRAY_FIELD(x, "the name of the array with the items"),
    ARRAY_FIELD(y, "the name of the array with the labels"),
    LIMIT_FIELD,
    MEMORY_FIELD,
};
static const struct field tokens_fields[] = {
    FORMAT_FIELD,
    PATH_FIELD(path, "the file with the tokens, which may be compressed (.gz)", "\"tokens.bin\""),
    {.name = "dtype",
     .also = "token_type",
     .kind = FIELD_ENUM,
     FIELD_AT(struct data_source, dtype),
     .fallback = TOKEN_AUTO,
     .words = &token_type_words,
     .help = "how a token is written; \"auto\": as the file's header says",
     .example = "\"uint16\""},
    LIMIT_FIELD,
    MEMORY_FIELD,
};
static const struct field synthetic_fields[] = {
    FORMAT_FIELD,
    {.name = "samples",
     .also = "n_samples num_samples size",
     .kind = FIELD_INT,
     FIELD_AT(struct data_source, samples),
     .required = 1,
     .min = 1,
     .max = 1e9,
     .help = "how many items are made",
     .example = "10000"},
    {.name = "input",
     .also = "features n_features",
     .kind = FIELD_INT,
     FIELD_AT(struct data_source, input),
     .required = 1,
     .min = 1,
     .max = (double)SHAPE_MAX_ELEMENTS,
     .help = "how many numbers an item has",
     .example = "50"},
    {.name = "classes",
     .also = "n_classes num_classes",
     .kind = FIELD_INT,
     FIELD_AT(struct data_source, classes),
     .required = 1,
     .min = 1,
     .max = 2147483647,
     .help = "how many classes the labels are drawn from",
     .example = "10"},
    {.name = "seed",
     .also = "random_seed random_state",
     .kind = FIELD_INT,
     FIELD_AT(struct data_source, seed),
     .max = 4294967295.0,
     .help = "the seed of the generator",
     .example = "42"},
    LIMIT_FIELD,
    MEMORY_FIELD,
};

static const struct object idx = OBJECT("data of the format idx", idx_fields, source_objects);
static const struct object csv = OBJECT("data of the format csv", csv_fields, source_objects);
static const struct object synthetic =
    OBJECT("data of the format synthetic", synthetic_fields, source_objects);
static const struct object npy = OBJECT("data of the format npy", npy_fields, source_objects);
static const struct object npz = OBJECT("data of the format npz", npz_fields, source_objects);
static const struct object tokens =
    OBJECT("data of the format tokens", tokens_fields, source_objects);
static const struct object *const source_objects[] = {[DATA_IDX] = &idx,
                                                      [DATA_CSV] = &csv,
                                                      [DATA_SYNTHETIC] = &synthetic,
                                                      [DATA_NPY] = &npy,
                                                      [DATA_NPZ] = &npz,
                                                      [DATA_TOKENS] = &tokens,
                                                      NULL};

void data_source_done(struct data_source *s)
{
    free(s->images);
    free(s->labels);
    free(s->path);
    free(s->x);
    free(s->y);
    *s = (struct data_source){0};
}

/* A value to fill in belongs to the policy that does so, and the other way round. */
static void check_fill(struct decoding *d, const json_t *v, const struct where *at,
                       const struct data_source *s)
{
    int given = json_object_get(v, "fill") != NULL;
    if (s->format != DATA_CSV)
        return;
    if (s->missing == CSV_MISSING_FILL && !given)
        field_missing(d, &csv, field_find(&csv, "fill"), v, at);
    else if (s->missing != CSV_MISSING_FILL && given)
        field_warn(d, FIELD_WHERE(at, "fill"), "no_effect", "Write \"missing\": \"fill\".",
                   "\"fill\" has no effect with \"missing\": \"%s\".",
                   words_name(&csv_missing_words, (int)s->missing));
}

static void decode_source(struct decoding *d, const json_t *v, const struct where *at,
                          const char *name, struct data_source *s)
{
    if (!json_is_object(v)) {
        field_wrong_type(d, at, name, "an object", "{\"format\": \"csv\", \"path\": \"iris.csv\"}",
                         v);
        return;
    }
    const json_t *format = json_object_get(v, "format");
    const struct field *field = field_find(&csv, "format");
    const struct word *word =
        json_is_string(format) ? words_meant(&data_format_words, json_string_value(format)) : NULL;
    s->header = CSV_HEADER_AUTO;
    s->memory_limit = DATA_MEMORY_LIMIT;
    if (word) {
        field_decode_object(d, source_objects[word->value], v, at, s);
        check_fill(d, v, at, s);
    } else if (format)
        field_decode(d, field, format, FIELD_WHERE(at, "format"), s);
    else
        field_missing(d, &csv, field, v, at);
}

static void decode_train(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    decode_source(d, v, at, "train", &((struct job_spec *)base)->train);
}

/* {} is what a form with nothing filled in sends: no validation. */
static void decode_validation(struct decoding *d, const json_t *v, const struct where *at,
                              void *base)
{
    struct job_spec *s = base;
    if (json_is_object(v) && json_object_size(v) == 0)
        return;
    s->has_validation = 1;
    decode_source(d, v, at, "validation", &s->validation);
}

#define SOURCE_EXAMPLE "{\"format\": \"csv\", \"path\": \"iris.csv\"}"

static const struct object *const data_kin[] = {&csv, &idx,    &synthetic,  &npy,
                                                &npz, &tokens, &fit_object, NULL};
static const struct field data_fields[] = {
    {.name = "train",
     .also = "training",
     .kind = FIELD_CUSTOM,
     .decode = decode_train,
     .required = 1,
     .help = "the data to train on",
     .example = SOURCE_EXAMPLE},
    {.name = "validation",
     .also = "test val valid",
     .kind = FIELD_CUSTOM,
     .decode = decode_validation,
     .help = "the data that each epoch is judged on",
     .example = SOURCE_EXAMPLE},
};
static const struct object data_object = OBJECT("data", data_fields, data_kin);

void decode_data(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    const json_t *format = json_object_get(v, "format");
    if (((struct job_spec *)base)->command)
        return;
    if (format && !json_object_get(v, "train")) {
        field_fault(d, FIELD_WHERE(at, "train"), "required",
                    "Write \"data\": {\"train\": {\"format\": ...}}.",
                    "\"train\" is missing: a source of data stands under \"train\", and another "
                    "may stand under \"validation\".");
        return;
    }
    field_decode_object(d, &data_object, v, at, base);
}
