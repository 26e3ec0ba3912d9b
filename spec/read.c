/* read.c: JSON text to a document, with a sentence that says where it goes wrong.
 *
 * A scan that keeps no stack comes first: it bounds the depth before the parser may recurse, and
 * finds NUL bytes. The parser then refuses duplicate keys and invalid UTF-8. Columns count
 * characters, from 1, for both.
 */
#include "spec/job.h"

#include <ctype.h>
#include <string.h>

#include "spec/field.h"

struct place {
    int line, column;
};

static void step(struct place *p, unsigned char c)
{
    if (c == '\n') {
        p->line++;
        p->column = 0;
    } else if ((c & 0xc0) != 0x80) {
        p->column++;
    }
}

/* Of text[end], which is worth a walk only for a sentence. */
static struct place place_of(const char *text, size_t end)
{
    struct place at = {1, 0};
    for (size_t i = 0; i <= end; i++)
        step(&at, (unsigned char)text[i]);
    return at;
}

/* The closing quote of the string that goes on at `at`; n or more: it has none. */
static size_t string_end(const char *text, size_t at, size_t n)
{
    for (; at < n && text[at] != '"'; at++)
        if (text[at] == '\\')
            at++;
    return at;
}

/* Depth and NUL bytes. Strings are skipped; what is not JSON is left to the parser. */
static int scan(const char *text, size_t n, struct err *e)
{
    int depth = 0;
    const char *nul = memchr(text, '\0', n);
    if (nul) {
        struct place at = place_of(text, (size_t)(nul - text));
        return err_set(e, ERR_INVALID, "line %d, column %d: there is a NUL byte", at.line,
                       at.column);
    }
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"')
            i = string_end(text, i + 1, n);
        else if (c == '{' || c == '[')
            depth++;
        else if (c == '}' || c == ']')
            depth--;
        if (depth > JOB_SPEC_MAX_DEPTH) {
            struct place at = place_of(text, i);
            return err_set(e, ERR_INVALID,
                           "line %d, column %d: objects and lists are nested more than %d deep",
                           at.line, at.column, JOB_SPEC_MAX_DEPTH);
        }
    }
    return 0;
}

/* Where the word that ends at `at` begins. */
static size_t token_start(const char *text, size_t at)
{
    while (at > 0 && isalnum((unsigned char)text[at - 1]) && isalnum((unsigned char)text[at]))
        at--;
    return at;
}

static int is_word(const char *text, size_t left, const char *word)
{
    size_t n = strlen(word);
    return n <= left && strncasecmp(text, word, n) == 0;
}

/* What people write that is nearly JSON, by what stands where the parser stopped. */
static const char *advice(const char *text, size_t n, const json_error_t *j)
{
    size_t end = j->position > 0 ? (size_t)j->position - 1 : 0;
    if (end >= n || strstr(j->text, "end of file"))
        return "; a closing bracket or quote is missing";
    size_t at = token_start(text, end), before = at;
    const char *here = text + at;
    while (before > 0 && strchr(" \t\r\n", text[before - 1]))
        before--;
    if ((*here == '}' || *here == ']') && before > 0 && text[before - 1] == ',')
        return "; remove the comma before the closing bracket";
    if (*here == '\'')
        return "; strings stand in double quotes";
    if (*here == '/' || *here == '#')
        return "; JSON has no comments";
    if (is_word(here, n - at, "nan") || is_word(here, n - at, "inf"))
        return "; JSON has no NaN and no infinity";
    if (is_word(here, n - at, "true") || is_word(here, n - at, "false") ||
        is_word(here, n - at, "none"))
        return "; write true, false or null";
    if (strstr(j->text, "'}' expected") || strstr(j->text, "']' expected"))
        return "; is a comma missing before it?";
    return "";
}

/* A document is an object or a list; anything else is told before the parser is asked. */
static int check_start(const char *text, size_t n, struct err *e)
{
    size_t i = 0;
    while (i < n && text[i] && strchr(" \t\r\n", text[i]))
        i++;
    if (i == n)
        return err_set(e, ERR_INVALID, "line 1, column 1: the document is empty");
    struct place at = place_of(text, i);
    if (n - i >= 3 && memcmp(text + i, "\xef\xbb\xbf", 3) == 0)
        return err_set(e, ERR_INVALID,
                       "line %d, column %d: there is a byte order mark; save the text without one",
                       at.line, at.column);
    if (text[i] != '{' && text[i] != '[')
        return err_set(e, ERR_INVALID,
                       "line %d, column %d: this is not JSON: a document must start with {",
                       at.line, at.column);
    return 0;
}

static int fail(const char *text, size_t n, const json_error_t *j, struct err *e)
{
    char said[FIELD_SHOW_SIZE];
    switch (json_error_code(j)) {
    case json_error_duplicate_key:
        return err_set(e, ERR_INVALID,
                       "line %d, column %d: a field is given twice in one object (%s); keep one",
                       j->line, j->column, field_clip(j->text, said));
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return err_set(e, ERR_INVALID, "line %d, column %d: a string has a NUL character (\\u0000)",
                       j->line, j->column);
    case json_error_numeric_overflow:
        return err_set(e, ERR_INVALID, "line %d, column %d: the number is too large (%s)", j->line,
                       j->column, field_clip(j->text, said));
    case json_error_end_of_input_expected:
        return err_set(e, ERR_INVALID,
                       "line %d, column %d: something follows the end of the document (%s)",
                       j->line, j->column, field_clip(j->text, said));
    case json_error_invalid_utf8:
        return err_set(e, ERR_INVALID, "line %d, column %d: the text is not UTF-8: %s", j->line,
                       j->column, field_clip(j->text, said));
    default:
        return err_set(e, ERR_INVALID, "line %d, column %d: this is not JSON: %s%s", j->line,
                       j->column, field_clip(j->text, said), advice(text, n, j));
    }
}

int job_spec_read(const char *text, size_t n, json_t **ret, struct err *e)
{
    if (n > JOB_SPEC_MAX_BYTES)
        return err_set(e, ERR_TOO_LARGE, "the document has %zu bytes; at most %d are allowed", n,
                       JOB_SPEC_MAX_BYTES);
    int r = check_start(text, n, e);
    if (r < 0)
        return r;
    r = scan(text, n, e);
    if (r < 0)
        return r;
    json_error_t j;
    json_t *doc = json_loadb(text, n, JSON_REJECT_DUPLICATES, &j);
    if (!doc)
        return fail(text, n, &j, e);
    *ret = doc;
    return 0;
}
