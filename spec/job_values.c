/* job_values.c: members of a job that are neither a number nor a name: command, labels, time,
 * memory, precision, checkpoints. */
#include "spec/job_decode.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/amount.h"
#include "spec/names.h"

#define ARGS_MAX             1024
#define ARG_BYTES_MAX        65536 /* of one; the kernel takes 128 KiB */
#define LABELS_MAX           32
#define LABEL_VALUE_MAX      256
#define CHECKPOINT_STEPS_MAX 1000000000000000LL

static int decode_argument(struct decoding *d, const json_t *v, const struct where *at, char **ret)
{
    const char *text = json_string_value(v);
    if (!text) {
        char example[64] = "\"--epochs=10\"";
        field_wrong_type(d, at, NULL, "a string", example, v);
        return -1;
    }
    if (strlen(text) != json_string_length(v) || strlen(text) > ARG_BYTES_MAX) {
        field_fault(d, at, "out_of_range", NULL,
                    "An argument has at most %d bytes, none of them NUL.", ARG_BYTES_MAX);
        return -1;
    }
    *ret = mem_strdup(text);
    return 0;
}

void decode_command(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    size_t n = json_array_size(v);
    if (n == 0) {
        field_wrong_type(d, at, "command", "a list of strings: program and arguments",
                         "[\"python3\", \"train.py\"]", v);
        return;
    }
    if (n > ARGS_MAX) {
        field_fault(d, at, "out_of_range", NULL,
                    "\"command\" may have at most %d strings, but has %zu.", ARGS_MAX, n);
        return;
    }
    s->command = mem_zalloc((n + 1) * sizeof *s->command);
    for (size_t i = 0, kept = 0; i < n; i++)
        kept += decode_argument(d, json_array_get(v, i), FIELD_ITEM(at, i), &s->command[kept]) == 0;
    if (s->command[0] && !s->command[0][0])
        field_fault(d, FIELD_ITEM(at, 0), "invalid", "For example: \"python3\".",
                    "The program's name is empty.");
}

static int label_key_good(const char *key)
{
    size_t n = 0;
    for (; key[n]; n++)
        if (!(islower((unsigned char)key[n]) || isdigit((unsigned char)key[n]) ||
              strchr("._/-", key[n])))
            return 0;
    return n >= 1 && n <= 63;
}

/* What the key would be with the nearest allowed characters. */
static void label_key_hint(const char *key, char *out, size_t size)
{
    char better[64];
    size_t n = 0;
    for (; key[n] && n < 63; n++) {
        char c = (char)tolower((unsigned char)key[n]);
        better[n] =
            islower((unsigned char)c) || isdigit((unsigned char)c) || strchr("._/-", c) ? c : '-';
    }
    better[n] = '\0';
    snprintf(out, size, "For example: \"%s\".", n ? better : "team");
}

static void decode_label(struct decoding *d, const char *key, const json_t *v,
                         const struct where *at, struct job_spec *s)
{
    char hint[128];
    const char *text = json_string_value(v);
    if (!label_key_good(key)) {
        label_key_hint(key, hint, sizeof hint);
        field_fault(d, at, "invalid", hint,
                    "A label's key has 1 to 63 of the characters a-z, 0-9, \".\", \"_\", \"/\" and "
                    "\"-\".");
    } else if (!text) {
        field_wrong_type(d, at, key, "a string", "\"vision\"", v);
    } else if (strlen(text) != json_string_length(v) || strlen(text) > LABEL_VALUE_MAX) {
        field_fault(d, at, "out_of_range", NULL,
                    "A label's value has at most %d bytes, none of them NUL.", LABEL_VALUE_MAX);
    } else {
        s->labels[s->label_count++] = (struct label){mem_strdup(key), mem_strdup(text)};
    }
}

void decode_labels(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct job_spec *s = base;
    size_t n = json_object_size(v);
    if (!json_is_object(v)) {
        field_wrong_type(d, at, "labels", "an object of strings", "{\"team\": \"vision\"}", v);
        return;
    }
    if (n > LABELS_MAX) {
        field_fault(d, at, "out_of_range", NULL, "A job has at most %d labels, but this has %zu.",
                    LABELS_MAX, n);
        return;
    }
    s->labels = mem_zalloc((n + 1) * sizeof *s->labels);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        decode_label(d, key, value, FIELD_WHERE(at, key), s);
    }
}

void decode_time_limit(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    decode_duration(d, v, at,
                    "For example: \"90s\", \"15m\" or \"2h\". To have no limit, leave it out.",
                    &((struct job_spec *)base)->time_limit_s);
}

void decode_memory(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    decode_bytes(d, v, at, "For example: \"8GiB\". To have all of the device, leave it out.",
                 &((struct resources *)base)->memory);
}

/* ---- precision ---- */

static const struct field precision_fields[] = {
    {.name = "weights",
     .kind = FIELD_ENUM,
     FIELD_AT(struct precision, weights),
     .fallback = STORAGE_FLOAT32,
     .words = &storage_type_words,
     .help = "what layers multiply with; bfloat16 ones are rounded from float32 masters",
     .example = "\"bfloat16\""},
    {.name = "activations",
     .kind = FIELD_ENUM,
     FIELD_AT(struct precision, activations),
     .fallback = STORAGE_FLOAT32,
     .words = &storage_type_words,
     .help = "what is kept between forward and backward",
     .example = "\"bfloat16\""},
    {.name = "moments",
     .kind = FIELD_ENUM,
     FIELD_AT(struct precision, moments),
     .fallback = STORAGE_FLOAT32,
     .words = &storage_type_words,
     .help = "what the optimizer remembers",
     .example = "\"bfloat16\""},
    {.name = "compute",
     .also = "compute_dtype",
     .kind = FIELD_ENUM,
     FIELD_AT(struct precision, compute),
     .fallback = COMPUTE_FLOAT32,
     .words = &compute_type_words,
     .help = "what GPUs round the operands of products to",
     .example = "\"tf32\""},
};
static const struct object precision_object = OBJECT("precision", precision_fields, NULL);

enum { PRECISION_FLOAT32, PRECISION_MIXED_BFLOAT16, PRECISION_MIXED_FLOAT16 };

static const struct word precisions[] = {{"float32", PRECISION_FLOAT32},
                                         {"mixed_bfloat16", PRECISION_MIXED_BFLOAT16},
                                         {"mixed_float16", PRECISION_MIXED_FLOAT16}};
static const struct words precision_words = WORDS("a precision", precisions);

static const struct precision named_precisions[] = {
    [PRECISION_MIXED_BFLOAT16] = {.weights = STORAGE_BFLOAT16,
                                  .activations = STORAGE_BFLOAT16,
                                  .compute = COMPUTE_BFLOAT16},
    [PRECISION_MIXED_FLOAT16] = {.compute = COMPUTE_FLOAT16},
};

static void decode_precision_name(struct decoding *d, const char *name, const struct where *at,
                                  struct precision *p)
{
    const struct word *word = words_find(&precision_words, name);
    if (word)
        *p = named_precisions[word->value];
    else if (strstr(name, "float16") || strcmp(name, "bf16") == 0 || strcmp(name, "fp16") == 0)
        field_fault(d, at, "unsupported",
                    "Write \"mixed_bfloat16\" or \"mixed_float16\": products are of rounded "
                    "operands, and what is updated is float32.",
                    "\"%s\" is not a precision of this version: sums, gradients and the weights "
                    "that the optimizer updates are always float32.",
                    name);
    else
        field_unknown_word(d, at, &precision_words, name);
}

void decode_precision(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct precision *p = &((struct job_spec *)base)->precision;
    if (json_is_string(v))
        decode_precision_name(d, json_string_value(v), at, p);
    else if (json_is_object(v))
        field_decode_object(d, &precision_object, v, at, p);
    else
        field_wrong_type(d, at, "precision", "the name of a precision or an object",
                         "\"mixed_bfloat16\"", v);
}

/* ---- checkpoints ---- */

/* A number counts steps, a text is a duration. */
static void decode_every(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct checkpoint *c = base;
    char shown[FIELD_SHOW_SIZE];
    int64_t steps = 0;
    if (json_is_string(v)) {
        decode_duration(d, v, at, "For example: \"10m\", or 500 for every 500 steps.", &c->every_s);
        return;
    }
    if (!field_whole(v, &steps)) {
        field_wrong_type(d, at, "every", "a duration or a number of steps", "\"10m\"", v);
        return;
    }
    if (steps < 1 || steps > CHECKPOINT_STEPS_MAX)
        field_fault(d, at, "out_of_range", "To have none, write \"checkpoint\": false.",
                    "\"every\" must be 1 step or more, but is %s.", field_show(v, shown));
    else
        c->every_steps = steps;
}

static const struct field checkpoint_fields[] = {
    {.name = "every_steps",
     .also = "steps interval save_steps",
     .kind = FIELD_INT,
     FIELD_AT(struct checkpoint, every_steps),
     .min = 1,
     .max = CHECKPOINT_STEPS_MAX,
     .help = "a checkpoint after each so many steps",
     .example = "500"},
    {.name = "every",
     .also = "period frequency save_freq",
     .kind = FIELD_CUSTOM,
     .decode = decode_every,
     .help = "the time between two checkpoints, or the number of steps",
     .example = "\"10m\""},
    {.name = "keep",
     .also = "max_to_keep save_total_limit keep_last",
     .kind = FIELD_INT,
     FIELD_AT(struct checkpoint, keep),
     .fallback = 2,
     .min = 1,
     .max = CHECKPOINT_KEEP_MAX,
     .help = "how many of the newest are kept",
     .example = "2"},
};
static const struct object checkpoint_object = OBJECT("checkpoint", checkpoint_fields, NULL);

void checkpoint_set_defaults(struct checkpoint *c)
{
    field_set_defaults(&checkpoint_object, c);
    c->enabled = 1;
}

void decode_checkpoint(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct checkpoint *c = &((struct job_spec *)base)->checkpoint;
    if (json_is_false(v)) {
        c->enabled = 0;
        return;
    }
    if (!json_is_object(v)) {
        field_wrong_type(d, at, "checkpoint", "an object or false", "{\"every\": \"10m\"}", v);
        return;
    }
    field_decode_object(d, &checkpoint_object, v, at, c);
    if (json_is_integer(json_object_get(v, "every")) && json_object_get(v, "every_steps"))
        field_fault(d, FIELD_WHERE(at, "every_steps"), "conflict",
                    "Leave one of the two out, or write \"every\" as a time such as \"10m\".",
                    "\"every\" as a number counts steps, too.");
}
