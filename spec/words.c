#include "spec/words.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define LONGEST 48 /* longer names are near to nothing */

const struct word *words_find(const struct words *w, const char *name)
{
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->list[i].name, name) == 0)
            return &w->list[i];
    return NULL;
}

static const struct word *first_of(const struct words *w, int value)
{
    for (size_t i = 0; i < w->count; i++)
        if (w->list[i].value == value)
            return &w->list[i];
    return NULL;
}

const char *words_name(const struct words *w, int value)
{
    const struct word *word = first_of(w, value);
    if (!word)
        BUG("%d is not %s", value, w->what);
    return word->name;
}

static size_t value_count(const struct words *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += first_of(w, w->list[i].value) == &w->list[i];
    return n;
}

char *words_format(const struct words *w, const char *last, char *out, size_t size)
{
    size_t values = value_count(w), at = 0, nth = 0;
    out[0] = '\0';
    for (size_t i = 0; i < w->count && at < size; i++) {
        if (first_of(w, w->list[i].value) != &w->list[i])
            continue;
        nth++;
        const char *comma = nth == 1 || nth == values ? "" : ", ";
        const char *word = nth > 1 && nth == values ? last : "";
        at += (size_t)snprintf(out + at, size - at, "%s%s%s%s%s", comma, *word ? " " : "", word,
                               *word ? " " : "", w->list[i].name);
    }
    return out;
}

/* Lower case without separators; 0 if longer than LONGEST. */
static size_t fold(const char *s, char out[LONGEST + 1])
{
    size_t n = 0;
    for (; *s; s++) {
        if (*s == '_' || *s == '-' || *s == ' ')
            continue;
        if (n == LONGEST)
            return 0;
        out[n++] = (char)tolower((unsigned char)*s);
    }
    out[n] = '\0';
    return n;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edits from a[n] to b[m]: insertions, deletions, substitutions, swaps of neighbours. */
static int edits(const char *a, size_t n, const char *b, size_t m)
{
    int d[3][LONGEST + 1];
    for (size_t j = 0; j <= m; j++)
        d[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *row = d[i % 3], *last = d[(i + 2) % 3], *before = d[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    return d[n % 3][m];
}

int words_distance(const char *given, const char *name)
{
    char a[LONGEST + 1], b[LONGEST + 1];
    size_t n = fold(given, a), m = fold(name, b);
    if (n == 0 || m == 0)
        return WORDS_FAR;
    int distance = edits(a, n, b, m);
    int allowed = n <= 3 ? 1 : n <= 8 ? 2 : 3;
    if (distance <= allowed && distance < (int)m)
        return distance;
    size_t shorter = n < m ? n : m;
    if (shorter >= 3 && (strstr(a, b) || strstr(b, a)))
        return WORDS_PART + distance;
    return WORDS_FAR;
}

const struct word *words_nearest(const struct words *w, const char *given)
{
    const struct word *best = NULL;
    int best_distance = WORDS_FAR;
    for (size_t i = 0; i < w->count; i++) {
        int distance = words_distance(given, w->list[i].name);
        if (distance < best_distance) {
            best_distance = distance;
            best = &w->list[i];
        }
    }
    return best;
}

const struct word *words_meant(const struct words *w, const char *given)
{
    const struct word *exact = words_find(w, given); /* the common case, and cheap */
    if (exact)
        return exact;
    const struct word *word = words_nearest(w, given);
    return word && words_distance(given, word->name) < WORDS_PART ? word : NULL;
}
