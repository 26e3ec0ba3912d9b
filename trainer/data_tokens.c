/* data_tokens.c: token files: unsigned numbers one after another, with or without a header of
 * llm.c. Sample j is tokens [jT, jT + T), T being the model's input; its labels are the same moved
 * by one, so that the last of them is the next sample's first token.
 *
 * A header is 256 little-endian int32: magic, version, number of tokens, zeros. Magic 20240520
 * with version 1 has uint16 tokens, 20240801 with version 7 uint32.
 */
#include <inttypes.h>
#include <string.h>

#include "trainer/data_parts.h"

#define HEADER_BYTES  1024
#define BLOCK_NUMBERS 8192

struct tokens {
    struct data_stream *stream;
    const struct data_need *need;
    enum number_type type;
    uint64_t width;
    uint64_t count;                    /* tokens in the file; UINT64_MAX: as many as come */
    uint64_t wanted;                   /* at most so many are used */
    unsigned char start[HEADER_BYTES]; /* of the file */
    uint64_t start_size, start_used;
};

static const struct {
    enum token_type dtype;
    enum number_type type;
    const char *name;
    uint32_t magic, version;
} TYPES[] = {
    {TOKEN_U16, NUMBER_U16, "uint16", 20240520, 1},
    {TOKEN_U32, NUMBER_U32, "uint32", 20240801, 7},
    {TOKEN_U8, NUMBER_U8, "uint8", 0, 0},
};
#define EVALUATION_MAGIC 20240522

static uint32_t header_word(const struct tokens *t, int i)
{
    const unsigned char *p = t->start + (size_t)i * 4;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- the header ---- */

static int use_header(struct tokens *t, size_t kind, enum token_type dtype, struct err *e)
{
    const char *name = t->stream->name;
    if (dtype != TOKEN_AUTO && dtype != TYPES[kind].dtype)
        return err_set(e, ERR_INVALID,
                       "%s has a header of llm.c that says %s, which is not the job's \"dtype\"; "
                       "leave \"dtype\" out",
                       name, TYPES[kind].name);
    t->type = TYPES[kind].type;
    t->count = header_word(t, 2);
    t->start_used = HEADER_BYTES;
    if (t->count > INT32_MAX)
        return err_set(e, ERR_INVALID, "%s: its header promises %" PRIu64 " tokens, over 2^31",
                       name, t->count);
    return data_stream_promises(t->stream, t->count * number_width(t->type), e);
}

/* Takes a header for one only by magic and version together. */
static int find_header(struct tokens *t, enum token_type dtype, int *ret_found, struct err *e)
{
    uint32_t magic = t->start_size == HEADER_BYTES ? header_word(t, 0) : 0;
    *ret_found = 0;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (magic == 0 || magic != TYPES[i].magic)
            continue;
        if (header_word(t, 1) == TYPES[i].version) {
            *ret_found = 1;
            return use_header(t, i, dtype, e);
        }
        if (dtype == TOKEN_AUTO)
            return err_set(e, ERR_INVALID,
                           "%s has a header of llm.c of version %" PRIu32 "; version %" PRIu32
                           " can be read",
                           t->stream->name, header_word(t, 1), TYPES[i].version);
    }
    if (magic == EVALUATION_MAGIC && header_word(t, 1) == 1)
        return err_set(e, ERR_INVALID,
                       "%s is an evaluation set of llm.c, with questions and answers, not a file "
                       "of tokens",
                       t->stream->name);
    return 0;
}

static int use_bare(struct tokens *t, enum token_type dtype, struct err *e)
{
    const struct data_stream *s = t->stream;
    if (dtype == TOKEN_AUTO)
        return err_set(e, ERR_INVALID,
                       "%s has no header of llm.c, so the job must say what its tokens are: "
                       "\"dtype\": \"uint8\", \"uint16\" or \"uint32\"",
                       s->name);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (TYPES[i].dtype == dtype)
            t->type = TYPES[i].type;
    uint64_t width = number_width(t->type);
    t->count = s->compressed ? UINT64_MAX : s->size / width;
    if (s->compressed || s->size % width == 0)
        return 0;
    return err_set(e, ERR_INVALID,
                   "%s has %" PRIu64 " bytes, which is no whole number of tokens of %" PRIu64
                   " bytes",
                   s->name, s->size, width);
}

static int check_model(const struct data_need *need, struct err *e)
{
    char input[128], output[128];
    if (data_need_classes(need) && need->positions == need->feature_size)
        return 0;
    return err_set(e, ERR_INVALID,
                   "tokens give each position of the input %s the next token as its label, but the "
                   "model's output is %s and its loss %s: the output must be a row of scores at "
                   "each position, and the loss a categorical cross-entropy",
                   shape_format(&need->input, input), shape_format(&need->output, output),
                   loss_name(need->loss));
}

static int open_tokens(struct tokens *t, const struct data_source *source, struct err *e)
{
    int found, r = check_model(t->need, e);
    if (r == 0)
        r = data_stream_read(t->stream, t->start, HEADER_BYTES, &t->start_size, e);
    if (r == 0 && t->start_size == 0)
        r = err_set(e, ERR_INVALID, "%s is empty", t->stream->name);
    if (r == 0)
        r = find_header(t, source->dtype, &found, e);
    if (r == 0 && !found)
        r = use_bare(t, source->dtype, e);
    if (r < 0)
        return r;
    t->width = number_width(t->type);
    t->wanted = t->count;
    uint64_t limited;
    if (source->limit > 0 &&
        !__builtin_mul_overflow((uint64_t)source->limit, (uint64_t)t->need->feature_size,
                                &limited) &&
        limited < t->wanted)
        t->wanted = limited + 1;
    return 0;
}

/* ---- the tokens ---- */

/* The file's first bytes were looked at already. */
static int next_bytes(struct tokens *t, void *to, uint64_t n, uint64_t *ret, struct err *e)
{
    uint64_t early = t->start_size - t->start_used;
    early = early < n ? early : n;
    memcpy(to, t->start + t->start_used, early);
    t->start_used += early;
    uint64_t got = 0;
    int r = early < n ? data_stream_read(t->stream, (char *)to + early, n - early, &got, e) : 0;
    *ret = early + got;
    return r;
}

/* As a feature and as a label alike. */
static int check_block(const struct tokens *t, const unsigned char *raw, uint64_t first, uint64_t n,
                       struct err *e)
{
    uint64_t most = (uint64_t)t->need->outputs;
    if (t->need->vocabulary && (uint64_t)t->need->vocabulary < most)
        most = (uint64_t)t->need->vocabulary;
    if (t->width < 4 && most > (UINT64_C(1) << 8 * t->width) - 1)
        return 0;
    for (uint64_t i = 0; i < n; i++) {
        double token = number_to_double(t->type, DATA_SWAPPED_LITTLE, raw + i * t->width);
        if (token < (double)most)
            continue;
        int by_outputs = most == (uint64_t)t->need->outputs;
        return err_set(e, ERR_INVALID,
                       "%s: token %.0f at position %" PRIu64 " is not below %" PRIu64 ", %s",
                       t->stream->name, token, first + i, most,
                       by_outputs ? "the number of classes that the model's last layer has"
                                  : "the vocabulary of the embedding that reads it");
    }
    return 0;
}

/* Up to `wanted` tokens, checked and, unless `out` is NULL, kept. */
static int read_tokens(struct tokens *t, struct data_out *out, uint64_t *ret_count,
                       uint64_t *ret_at, struct err *e)
{
    unsigned char raw[BLOCK_NUMBERS * 4];
    uint64_t done = 0, got = 1, at;
    int r = out ? data_out_align(out, e) : 0;
    while (r == 0 && done < t->wanted && got > 0) {
        uint64_t n = t->wanted - done < BLOCK_NUMBERS ? t->wanted - done : BLOCK_NUMBERS;
        r = next_bytes(t, raw, n * t->width, &got, e);
        if (r == 0 && got % t->width != 0)
            r = err_set(e, ERR_INVALID, "%s ends in the middle of its token %" PRIu64,
                        t->stream->name, done + got / t->width);
        if (r == 0)
            r = check_block(t, raw, done, got / t->width, e);
        void *to;
        if (r == 0 && out && (r = data_out_room(out, got, &to, &at, e)) < 0)
            err_prefix(e, "%s", t->stream->name);
        if (r == 0 && out)
            memcpy(to, raw, got);
        if (r == 0 && out && done == 0)
            *ret_at = at;
        done += got / t->width;
    }
    *ret_count = done;
    return r;
}

static int check_count(const struct tokens *t, uint64_t got, struct err *e)
{
    uint64_t size = (uint64_t)t->need->feature_size;
    if (t->count != UINT64_MAX && got < t->wanted)
        return err_set(e, ERR_INVALID,
                       "%s ends after %" PRIu64 " tokens: %" PRIu64 " more were to come",
                       t->stream->name, got, t->wanted - got);
    if (got > size)
        return 0;
    return err_set(e, ERR_INVALID,
                   "%s has %" PRIu64 " tokens, where a sample takes %" PRIu64
                   " and the one that follows",
                   t->stream->name, got, size);
}

static void describe(const struct tokens *t, uint64_t got, int64_t samples,
                     struct data_place *features, struct data_place *labels, struct buf *note)
{
    uint64_t size = (uint64_t)t->need->feature_size, used = (uint64_t)samples * size + 1;
    features->type = (int32_t)t->type;
    features->swapped = t->width > 1 && DATA_SWAPPED_LITTLE;
    features->size = t->need->feature_size;
    features->stride = size * t->width;
    *labels = *features;
    labels->at += t->width;
    data_note(note, "%s: %" PRId64 " samples of %" PRIu64 " tokens (%s)", t->stream->name, samples,
              size,
              t->width == 1   ? "uint8"
              : t->width == 2 ? "uint16"
                              : "uint32");
    if (got > used && t->wanted == t->count)
        buf_addf(note, ", the last %" PRIu64 " tokens are too few for another", got - used);
}

int data_read_tokens(struct data_stream *s, const struct data_source *source,
                     const struct data_need *need, struct data_out *o, struct buf *note,
                     struct data_split *ret, struct err *e)
{
    struct tokens t = {.stream = s, .need = need};
    uint64_t got = 0, at = 0;
    int r = open_tokens(&t, source, e);
    if (r == 0)
        r = data_out_source(o, source->memory_limit, e);
    if (r < 0)
        return r;
    int is_known = t.count != UINT64_MAX;
    int own = is_known && data_stream_is_plain(s) && t.wanted * t.width > o->source_limit;
    if (own)
        at = t.start_used;
    else if (is_known && data_out_expect(o, t.wanted * t.width, e) < 0)
        return err_prefix(e, "%s", s->name);
    r = read_tokens(&t, own ? NULL : o, &got, &at, e);
    if (r == 0)
        r = check_count(&t, got, e);
    if (r == 0 && own)
        r = data_stream_unchanged(s, e);
    if (r == 0 && is_known && t.wanted == t.count)
        r = data_stream_ends(s, e);
    if (r < 0)
        return r;
    struct data_split split;
    data_split_of(need, &split);
    split.samples = (int64_t)((got - 1) / (uint64_t)need->feature_size);
    split.features = (struct data_place){.at = at, .in = own ? data_out_file(o, s) : 0};
    data_out_place(o, &split.features);
    describe(&t, got, split.samples, &split.features, &split.labels, note);
    *ret = split;
    return 0;
}
