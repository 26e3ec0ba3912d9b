/* source.c: where the data comes from. */
#include "spec/job_decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec/layer.h"
#include "spec/model_decode.h"
#include "spec/names.h"

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

static const struct object *const source_objects[];

static const struct field idx_fields[] = {
    FORMAT_FIELD,
    PATH_FIELD(images, "the idx file with the items", "\"mnist/train-images-idx3-ubyte.gz\""),
    PATH_FIELD(labels, "the idx file with the labels", "\"mnist/train-labels-idx1-ubyte.gz\""),
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
};

static const struct object idx = OBJECT("data of the format idx", idx_fields, source_objects);
static const struct object csv = OBJECT("data of the format csv", csv_fields, source_objects);
static const struct object synthetic =
    OBJECT("data of the format synthetic", synthetic_fields, source_objects);
static const struct object *const source_objects[] = {
    [DATA_IDX] = &idx, [DATA_CSV] = &csv, [DATA_SYNTHETIC] = &synthetic, NULL};

void data_source_done(struct data_source *s)
{
    free(s->images);
    free(s->labels);
    free(s->path);
    *s = (struct data_source){0};
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
    if (word)
        field_decode_object(d, source_objects[word->value], v, at, s);
    else if (format)
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

static const struct object *const data_kin[] = {&csv, &idx, &synthetic, &fit_object, NULL};
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
