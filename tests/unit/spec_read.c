/* spec_read.c: text that is not a document, and where the sentence says that it goes wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "spec/job.h"

static void test_sentences(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "line 1, column 1: the document is empty"},
        {" \n\t ", "line 1, column 1: the document is empty"},
        {"{\"a\": 1,}", "line 1, column 9: this is not JSON: string or '}' expected near '}'; "
                        "remove the comma before the closing bracket"},
        {"[1,\n2,\n]", "line 3, column 1: this is not JSON: unexpected token near ']'; remove the "
                       "comma before the closing bracket"},
        {"{'a': 1}", "line 1, column 2: this is not JSON: string or '}' expected near '''; strings "
                     "stand in double quotes"},
        {"{\"a\": 1,\n \"b\": 2, \"a\": 3}",
         "line 2, column 12: a field is given twice in one object (duplicate object key near "
         "'\"a\"'); keep one"},
        {"{\"a\": 1} x", "line 1, column 10: something follows the end of the document (end of "
                         "file expected near 'x')"},
        {"{\"a\": 1}{}", "line 1, column 9: something follows the end of the document (end of "
                         "file expected near '{')"},
        {"{\"a\": \"\xff\"}", "line 1, column 7: the text is not UTF-8: unable to decode byte 0xff "
                              "near '\"'"},
        {"{\"a\": \"\\ud800\"}", "line 1, column 14: this is not JSON: invalid Unicode '\\uD800' "
                                 "near '\"\\ud800\"'"},
        {"{\"a\": \"\\u0000\"}", "line 1, column 14: a string has a NUL character (\\u0000)"},
        {"{\"\\u0000\": 1}", "line 1, column 9: a string has a NUL character (\\u0000)"},
        {"{\"a\": 99999999999999999999}", "line 1, column 26: the number is too large (too big "
                                          "integer near '99999999999999999999')"},
        {"{\"a\": 1e999}", "line 1, column 11: the number is too large (real number overflow near "
                           "'1e999')"},
        {"{\"a\": NaN}", "line 1, column 9: this is not JSON: invalid token near 'NaN'; JSON has "
                         "no NaN and no infinity"},
        {"{\"a\": True}", "line 1, column 10: this is not JSON: invalid token near 'True'; write "
                          "true, false or null"},
        {"{\"a\": 1", "line 1, column 7: this is not JSON: '}' expected near end of file; a "
                      "closing bracket or quote is missing"},
        {"{\"\xc3\xa9\":\n\"\xc3\xa9\xc3\xa9\" 3}", "line 2, column 6: this is not JSON: '}' "
                                                    "expected near '3'; is a comma missing before "
                                                    "it?"},
        {"{\"a\": 1 // no\n}", "line 1, column 9: this is not JSON: '}' expected near '/'; JSON "
                               "has no comments"},
        {"\xef\xbb\xbf{}", "line 1, column 1: there is a byte order mark; save the text without "
                           "one"},
        {"\n \"x\"", "line 2, column 2: this is not JSON: a document must start with {"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        json_t *doc = NULL;
        struct err e = {0};
        assert_int_equal(job_spec_read(cases[i].text, strlen(cases[i].text), &doc, &e),
                         ERR_INVALID);
        assert_string_equal(e.text, cases[i].sentence);
        assert_null(doc);
    }
}

static void test_nul(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *doc = NULL;
    assert_int_equal(job_spec_read("{\"a\":\n\"b\0c\"}", 12, &doc, &e), ERR_INVALID);
    assert_string_equal(e.text, "line 2, column 3: there is a NUL byte");
    assert_int_equal(job_spec_read("{}\0", 3, &doc, &e), ERR_INVALID);
    assert_int_equal(job_spec_read("\0", 1, &doc, &e), ERR_INVALID);
    assert_null(doc);
}

/* `depth` lists one in another, with brackets in a string that must not count. */
static int read_depth(size_t depth, json_t **ret, struct err *e)
{
    size_t n = 2 * depth + 7;
    char *text = mem_alloc(n + 1);
    memset(text, '[', depth);
    memcpy(text + depth, "\"[{\\\"[\"", 7);
    memset(text + depth + 7, ']', depth);
    text[n] = '\0';
    int r = job_spec_read(text, n, ret, e);
    free(text);
    return r;
}

static void test_depth(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *doc = NULL;
    assert_int_equal(read_depth(JOB_SPEC_MAX_DEPTH, &doc, &e), 0);
    json_decref(doc);
    assert_int_equal(read_depth(JOB_SPEC_MAX_DEPTH + 1, &doc, &e), ERR_INVALID);
    assert_string_equal(e.text,
                        "line 1, column 33: objects and lists are nested more than 32 deep");
    assert_int_equal(read_depth(400000, &doc, &e), ERR_INVALID);
}

static void test_size(void **state)
{
    (void)state;
    char *text = mem_alloc(JOB_SPEC_MAX_BYTES + 1);
    memset(text, ' ', JOB_SPEC_MAX_BYTES + 1);
    text[0] = '{';
    text[JOB_SPEC_MAX_BYTES - 1] = '}';
    struct err e = {0};
    json_t *doc = NULL;
    assert_int_equal(job_spec_read(text, JOB_SPEC_MAX_BYTES, &doc, &e), 0);
    json_decref(doc);
    assert_int_equal(job_spec_read(text, JOB_SPEC_MAX_BYTES + 1, &doc, &e), ERR_TOO_LARGE);
    assert_string_equal(e.text, "the document has 1048577 bytes; at most 1048576 are allowed");
    free(text);
}

/* What is in the sentence is safe to print, whatever was in the text. */
static void test_printable(void **state)
{
    (void)state;
    struct err e = {0};
    json_t *doc = NULL;
    char text[300] = "{\"a\" ";
    memset(text + 5, 0x01, 200);
    assert_int_equal(job_spec_read(text, 205, &doc, &e), ERR_INVALID);
    for (const char *p = e.text; *p; p++)
        assert_true((unsigned char)*p >= 0x20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences), cmocka_unit_test(test_nul),
        cmocka_unit_test(test_depth),     cmocka_unit_test(test_size),
        cmocka_unit_test(test_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
