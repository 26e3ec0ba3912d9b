/* spec_answers.h: documents and the whole of their answers. Each is a good document with some
 * members replaced; the answer must have these faults and warnings, in this order, and no other. */
#ifndef TRAINYARD_TESTS_SPEC_ANSWERS_H
#define TRAINYARD_TESTS_SPEC_ANSWERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "spec/job.h"

#define MOST 5
struct change {
    const char *pointer;
    const char *value; /* JSON; NULL: taken out */
};
struct answer {
    const char *pointer, *code, *message, *hint;
};
struct wrong {
    struct change changes[MOST];
    struct answer faults[MOST];
    struct answer warnings[MOST];
    int strict;
};

static void unescape(char *token)
{
    char *out = token;
    for (char *p = token; *p; p++) {
        if (*p == '~')
            *out++ = *++p == '0' ? '~' : '/';
        else
            *out++ = *p;
    }
    *out = '\0';
}

static void change(json_t *doc, const struct change *c)
{
    json_t *at = doc;
    char *copy = mem_strdup(c->pointer + 1), *rest = copy, *token;
    while ((token = strsep(&rest, "/")) && rest)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(token))
                               : json_object_get(at, token);
    json_t *value = c->value ? json_loads(c->value, JSON_DECODE_ANY, NULL) : NULL;
    if (c->value)
        assert_non_null(value);
    unescape(token);
    if (json_is_array(at))
        assert_int_equal(json_array_set_new(at, (size_t)atoi(token), value), 0);
    else if (value)
        assert_int_equal(json_object_set_new(at, token, value), 0);
    else
        assert_int_equal(json_object_del(at, token), 0);
    free(copy);
}

static const char *or_none(const char *text)
{
    return text ? text : "(none)";
}

static void compare(const struct faults *have, const struct answer want[MOST])
{
    size_t n = 0;
    for (size_t i = 0; i < have->count; i++)
        if (i >= MOST || !want[i].pointer)
            print_message("besides: %s: %s\n", have->items[i].pointer, have->items[i].message);
    for (; n < MOST && want[n].pointer; n++) {
        if (n >= have->count)
            fail_msg("nothing is said of %s", want[n].pointer);
        assert_string_equal(have->items[n].pointer, want[n].pointer);
        assert_string_equal(have->items[n].code, want[n].code);
        assert_string_equal(have->items[n].message, want[n].message);
        assert_string_equal(or_none(have->items[n].hint), or_none(want[n].hint));
    }
    assert_int_equal(have->total, n);
}

static void answers_expect(const char *good, const struct wrong *w)
{
    json_t *doc = json_loads(good, 0, NULL);
    assert_non_null(doc);
    for (int c = 0; c < MOST && w->changes[c].pointer; c++)
        change(doc, &w->changes[c]);
    json_t *before = json_deep_copy(doc);
    struct faults faults = {0}, warnings = {0};
    struct job_spec *s = job_spec_parse(doc, w->strict, &faults, &warnings);
    compare(&faults, w->faults);
    compare(&warnings, w->warnings);
    assert_int_equal(s != NULL, faults.total == 0);
    assert_true(json_equal(doc, before));
    job_spec_free(s);
    faults_done(&faults);
    faults_done(&warnings);
    json_decref(before);
    json_decref(doc);
}

#endif
