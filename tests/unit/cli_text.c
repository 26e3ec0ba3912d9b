/* What people see: escaping, widths, tables, the progress line, problems. No server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/problem.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/text.h"

static void expect_escape(const char *bytes, size_t n, enum text_mode mode, const char *want)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    text_escape(&b, bytes, n, mode);
    assert_string_equal(b.data, want);
    assert_int_equal(b.len, strlen(want));
}

static void escape_controls(void **state)
{
    (void)state;
    expect_escape("", 0, TEXT_LINE, "");
    expect_escape("plain Ünïcode 漢", strlen("plain Ünïcode 漢"), TEXT_LINE, "plain Ünïcode 漢");
    expect_escape("\033]0;own\007", 8, TEXT_LINE, "\\e]0;own\\x07");
    expect_escape("a\nb\tc\rd", 7, TEXT_LINE, "a\\nb\\tc\\rd");
    expect_escape("a\nb\tc\rd", 7, TEXT_LOG, "a\nb\tc\\rd");
    expect_escape("a\0b", 3, TEXT_LOG, "a\\x00b");
    expect_escape("\x7f", 1, TEXT_LOG, "\\x7f");
    expect_escape("\xc2\x9b"
                  "31m",
                  5, TEXT_LOG, "\\u{9b}31m");                      /* CSI as one character */
    expect_escape("\xe2\x80\xae", 3, TEXT_LINE, "\\u{202e}");      /* right-to-left override */
    expect_escape("\xe2\x80\xa8", 3, TEXT_LINE, "\\u{2028}");      /* line separator */
    expect_escape("\xf3\xa0\x81\x81", 4, TEXT_LINE, "\\u{e0041}"); /* tag character */
}

static void escape_invalid_utf8(void **state)
{
    (void)state;
    expect_escape("\xff\x41", 2, TEXT_LOG, "\\xffA");
    expect_escape("\xc0\x80", 2, TEXT_LOG, "\\xc0\\x80");          /* overlong */
    expect_escape("\xed\xa0\x80", 3, TEXT_LOG, "\\xed\\xa0\\x80"); /* surrogate */
    expect_escape("\xf4\x90\x80\x80", 4, TEXT_LOG, "\\xf4\\x90\\x80\\x80");
    expect_escape("\xe6\xbc", 2, TEXT_LOG, "\\xe6\\xbc"); /* cut off */
    expect_escape("\x80", 1, TEXT_LOG, "\\x80");
}

static void incomplete_tails(void **state)
{
    (void)state;
    assert_int_equal(text_incomplete("", 0), 0);
    assert_int_equal(text_incomplete("abc", 3), 0);
    assert_int_equal(text_incomplete("a\xe6", 2), 1);
    assert_int_equal(text_incomplete("a\xe6\xbc", 3), 2);
    assert_int_equal(text_incomplete("a\xe6\xbc\xa2", 4), 0);
    assert_int_equal(text_incomplete("\xf0\x9f\x98", 3), 3);
    assert_int_equal(text_incomplete("\x80\x80\x80\x80", 4), 0);
}

static void expect_cut(const char *s, int width, const char *want)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    text_cut(&b, s, width);
    assert_string_equal(b.data ? b.data : "", want);
}

static void widths_and_cuts(void **state)
{
    (void)state;
    assert_int_equal(text_width(""), 0);
    assert_int_equal(text_width("häh"), 3);
    assert_int_equal(text_width("漢字"), 4);
    expect_cut("abcdef", 6, "abcdef");
    expect_cut("abcdef", 5, "abcd…");
    expect_cut("abcdef", 1, "…");
    expect_cut("abcdef", 0, "");
    expect_cut("漢字漢", 4, "漢…"); /* a wide character is never halved */
}

static void numbers(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *duration, *count, *bytes;
    } rows[] = {
        {0, "0.0 s", "0", "0 B"},
        {9.94, "9.9 s", "10", "10 B"},
        {9.96, "10 s", "10", "10 B"},
        {59.6, "1:00", "60", "60 B"},
        {187, "3:07", "187", "187 B"},
        {3729, "1:02:09", "3.73k", "3.64 KiB"},
        {61234, "17:00:34", "61.2k", "59.8 KiB"},
        {999999, "11 d 13 h", "1.00M", "977 KiB"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP(buf_done) struct buf b = BUF_INIT;
        text_duration(&b, rows[i].value);
        assert_string_equal(b.data, rows[i].duration);
        buf_clear(&b);
        text_count(&b, rows[i].value);
        assert_string_equal(b.data, rows[i].count);
        buf_clear(&b);
        text_bytes(&b, rows[i].value);
        assert_string_equal(b.data, rows[i].bytes);
    }
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    text_duration(&b, -1);
    text_duration(&b, NAN);
    assert_string_equal(b.data, "??");
}

static void times(void **state)
{
    (void)state;
    assert_int_equal(text_parse_time("1970-01-01T00:00:01Z"), 1000000);
    assert_int_equal(text_parse_time("1970-01-01T00:00:01.5Z"), 1500000);
    assert_int_equal(text_parse_time("2026-11-30T08:45:00.123456Z") % 1000000, 123456);
    assert_int_equal(text_parse_time(""), -1);
    assert_int_equal(text_parse_time(NULL), -1);
    assert_int_equal(text_parse_time("2026-11-30T08:45:00"), -1);
    assert_int_equal(text_parse_time("2026-11-30T08:45:00+01:00"), -1);
}

/* ---- tables ---- */

static const struct table_column columns[] = {
    {"ID", 0, 0, 0}, {"NAME", 0, 4, 0}, {"STEP", 1, 0, 2}, {"REASON", 0, 6, 1}};

static void fill_table(struct table *t)
{
    table_init(t, columns, ARRAY_LEN(columns));
    table_add(t, "job_1");
    table_add(t, "漢字");
    table_add(t, "7");
    table_add(t, "waits\033[2J");
    table_add(t, "job_2");
    table_add(t, "a-long-name");
    table_add(t, "1200");
    table_add(t, NULL);
}

static void table_aligns(void **state)
{
    (void)state;
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    fill_table(&t);
    table_print(&t, 0, 0, &b);
    assert_string_equal(b.data, "ID     NAME         STEP  REASON\n"
                                "job_1  漢字            7  waits\\e[2J\n"
                                "job_2  a-long-name  1200\n");
}

static void expect_table(int width, const char *want)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    fill_table(&t);
    table_print(&t, width, 0, &b);
    assert_string_equal(b.data, want);
}

static void table_narrow(void **state)
{
    (void)state;
    expect_table(30, "ID     NAME     STEP  REASON\n"
                     "job_1  漢字        7  waits\\e…\n"
                     "job_2  a-long…  1200\n");
    /* too narrow for all four: the step, dropped first, makes room */
    expect_table(22, "ID     NAME    REASON\n"
                     "job_1  漢字    waits\\…\n"
                     "job_2  a-lon…\n");
    /* narrower than anything: what cannot be cut stays */
    expect_table(5, "ID     NAME\n"
                    "job_1  漢字\n"
                    "job_2  a-l…\n");
}

static void table_empty_and_colored(void **state)
{
    (void)state;
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    table_init(&t, columns, 2);
    table_print(&t, 0, 0, &b);
    assert_string_equal(b.data, "ID  NAME\n");
    buf_clear(&b);
    table_add_color(&t, TABLE_RED, "x");
    table_add_color(&t, TABLE_RED, "");
    table_print(&t, 0, 1, &b);
    assert_string_equal(b.data, "\033[2mID\033[0m  \033[2mNAME\033[0m\n\033[31mx\033[0m\n");
}

/* ---- progress ---- */

static void estimate(void **state)
{
    (void)state;
    struct progress p = {0};
    assert_true(progress_left(&p, 0) < 0);
    progress_add(&p, 0, 10, 100);
    assert_true(progress_left(&p, 0) < 0); /* one point says nothing of speed */
    progress_add(&p, 1000000, 20, 100);
    assert_float_equal(progress_left(&p, 1000000), 8.0, 1e-9);
    assert_float_equal(progress_left(&p, 1050000), 7.95, 1e-9); /* the clock runs on */
    assert_float_equal(progress_left(&p, 60000000), 7.9, 1e-9); /* but a stuck step is not done */
    progress_add(&p, 2000000, 100, 100);
    assert_float_equal(progress_left(&p, 2000000), 0.0, 1e-9);
}

static void estimate_follows_speed_and_attempts(void **state)
{
    (void)state;
    struct progress p = {0};
    for (int s = 0; s <= 30; s++) /* 1 step/s for 30 s, then 10 step/s for 40 s */
        progress_add(&p, s * 1000000LL, s, 10000);
    for (int s = 1; s <= 40; s++)
        progress_add(&p, (30 + s) * 1000000LL, 30 + 10 * s, 10000);
    assert_float_equal(progress_left(&p, 70000000), (10000 - 430) / 10.0, 1.0);
    progress_add(&p, 71000000, 5, 10000); /* another attempt */
    assert_true(progress_left(&p, 71000000) < 0);
    for (int64_t s = 0; s < 1000; s++)
        progress_add(&p, 72000000 + s * 1000, 6 + s, 10000);
    assert_true(p.count <= PROGRESS_SAMPLES);
    progress_add(&p, 80000000, 2000, 0); /* no total: no estimate */
    assert_true(progress_left(&p, 80000000) < 0);
}

static void step_of_a_time(void **state)
{
    (void)state;
    struct progress p = {0};
    assert_int_equal(progress_step_at(&p, 5), -1);
    progress_add(&p, 1000000, 10, 100);
    assert_int_equal(progress_step_at(&p, 0), 10); /* the first one that is known */
    progress_add(&p, 2000000, 20, 100);
    progress_add(&p, 3000000, 30, 100);
    assert_int_equal(progress_step_at(&p, 1999999), 10);
    assert_int_equal(progress_step_at(&p, 2000000), 20);
    assert_int_equal(progress_step_at(&p, 9000000), 30);
}

static void expect_line(const struct progress_view *v, int width, const char *want)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    progress_line(v, width, &b);
    assert_string_equal(b.data ? b.data : "", want);
    assert_true(text_width(b.data ? b.data : "") <= width);
}

static void lines(void **state)
{
    (void)state;
    struct progress_view v = {.name = "mnist",
                              .state = "running",
                              .epoch = 3,
                              .epochs = 5,
                              .step = 480,
                              .steps = 785,
                              .loss = 0.12344,
                              .left_s = 12.2,
                              .samples_per_second = 61234};
    expect_line(&v, 110,
                "mnist  epoch 3/5  [==================>           ]  480/785  loss 0.1234  "
                "61.2k samples/s  12 s left");
    expect_line(&v, 60, "epoch 3/5  480/785  loss 0.1234  61.2k samples/s  12 s left");
    expect_line(&v, 34, "480/785  loss 0.1234  12 s left");
    expect_line(&v, 7, "480/785");
    expect_line(&v, 4, "480…");
    v = (struct progress_view){.name = "a\033b",
                               .epoch = -1,
                               .step = 7,
                               .steps = -1,
                               .loss = NAN,
                               .samples_per_second = -1,
                               .left_s = -1};
    expect_line(&v, 80, "a\\eb  step 7");
    v = (struct progress_view){.name = "n", .state = "pending", .step = -1, .loss = NAN};
    expect_line(&v, 80, "n  pending");
    v = (struct progress_view){.name = "n",
                               .state = "running",
                               .step = 12,
                               .steps = 10,
                               .loss = INFINITY,
                               .samples_per_second = 0,
                               .left_s = 0};
    expect_line(&v, 80,
                "n  [==============================]  12/10  loss inf  0 samples/s  0.0 s left");
}

/* ---- problems ---- */

static void expect_problem(int status, const char *type, const char *body, const char *want)
{
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    struct http_reply r = {.status = status, .content_type = mem_strdup(type)};
    buf_adds(&r.body, body);
    r.doc = strstr(type, "json") ? json_loads(body, 0, NULL) : NULL;
    problem_print(&r, &b);
    assert_string_equal(b.data, want);
    http_reply_done(&r);
}

static void problems(void **state)
{
    (void)state;
    const char *json = "application/problem+json";
    expect_problem(422, json,
                   "{\"title\":\"T\",\"detail\":\"The job cannot run.\",\"errors\":["
                   "{\"pointer\":\"/fit/batch_size\",\"code\":\"out_of_range\","
                   "\"message\":\"must be at least 1\",\"hint\":\"try 64\"},"
                   "{\"pointer\":\"\",\"code\":\"c\",\"message\":\"whole\"},"
                   "{\"code\":\"only_code\"},7]}",
                   "The job cannot run.\n"
                   "  /fit/batch_size: must be at least 1 (try 64)\n"
                   "  whole\n  only_code\n  \n");
    expect_problem(404, json, "{\"title\":\"Not found\"}", "Not found\n");
    expect_problem(400, json, "{\"detail\":\"bad \\u001b[31m\\nname\"}", "bad \\e[31m\\nname\n");
    expect_problem(503, json, "{\"detail\":\"later\",\"request_id\":\"req_1\"}",
                   "later\n  request req_1\n");
    expect_problem(502, "text/plain", "bad\ngateway",
                   "the server answered HTTP 502: bad\\ngateway\n");
    expect_problem(502, "text/html", "<html>", "the server answered HTTP 502\n");
    expect_problem(500, json, "[1]", "the server answered HTTP 500: [1]\n");
    expect_problem(500, json, "{", "the server answered HTTP 500: {\n");
    expect_problem(500, "", "", "the server answered HTTP 500\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(escape_controls),
        cmocka_unit_test(escape_invalid_utf8),
        cmocka_unit_test(incomplete_tails),
        cmocka_unit_test(widths_and_cuts),
        cmocka_unit_test(numbers),
        cmocka_unit_test(times),
        cmocka_unit_test(table_aligns),
        cmocka_unit_test(table_narrow),
        cmocka_unit_test(table_empty_and_colored),
        cmocka_unit_test(estimate),
        cmocka_unit_test(estimate_follows_speed_and_attempts),
        cmocka_unit_test(step_of_a_time),
        cmocka_unit_test(lines),
        cmocka_unit_test(problems),
    };
    setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
