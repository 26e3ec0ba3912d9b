/* Which rank is the cause, and in which words. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "daemon/shim/cause.h"

static char path[] = "/tmp/shim-cause-XXXXXX";

static void put(const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    close(fd);
    return fd < 0;
}

static int drop_file(void **state)
{
    (void)state;
    return unlink(path);
}

static struct rank_end end_of(int rank, int order, int exit_code, int signal_number)
{
    return (struct rank_end){.rank = rank,
                             .started = 1,
                             .ended = 1,
                             .exit_code = signal_number ? -1 : exit_code,
                             .signal_number = signal_number,
                             .order = order};
}

static void say(struct rank_end *end, const char *code)
{
    end->verdict.failed = 1;
    strcpy(end->verdict.code, code);
    strcpy(end->verdict.reason, "A sentence.");
}

static void test_nobody_failed(void **state)
{
    (void)state;
    struct rank_end ends[] = {end_of(0, 0, 0, 0), end_of(1, 1, 0, 0), {.rank = 2, .started = 1}};
    assert_int_equal(cause_find(ends, 3), -1);
    assert_int_equal(cause_find(ends, 0), -1);
}

static void test_first_by_order(void **state)
{
    (void)state;
    struct rank_end ends[] = {end_of(0, 2, 1, 0), end_of(1, 0, 0, 0), end_of(2, 1, 0, SIGSEGV)};
    assert_int_equal(cause_find(ends, 3), 2);
}

static void test_our_own_signals_are_no_cause(void **state)
{
    (void)state;
    struct rank_end ends[] = {end_of(0, 0, 0, SIGTERM), end_of(1, 1, 3, 0)};
    ends[0].by_us = ends[0].late = 1;
    assert_int_equal(cause_find(ends, 2), 1);
    ends[1] = end_of(1, 1, 0, 0);
    assert_int_equal(cause_find(ends, 2), -1);
}

static void test_peer_lost_is_an_echo(void **state)
{
    (void)state;
    struct rank_end ends[] = {end_of(0, 0, 111, 0), end_of(1, 1, 0, SIGKILL)};
    say(&ends[0], "peer_lost");
    assert_int_equal(cause_find(ends, 2), 1); /* in the same moment */
    ends[1].late = 1;
    assert_int_equal(cause_find(ends, 2), 1); /* reaped after we had begun to end it */
    ends[1].by_us = 1;
    assert_int_equal(cause_find(ends, 2), 0); /* nobody else died by itself */
    ends[1] = end_of(1, 1, 9, 0);
    ends[1].late = 1;
    assert_int_equal(cause_find(ends, 2), 0); /* an exit status after our SIGTERM says nothing */
    say(&ends[1], "data_invalid");
    assert_int_equal(cause_find(ends, 2), 1);
}

static void test_verdicts(void **state)
{
    (void)state;
    static const char text[] =
        "{\"type\":\"step\",\"note\":\"verdict\",\"rank\":0}\n"
        "{\"type\":\"verdict\",\"rank\":0,\"outcome\":\"failed\",\"code\":\"a\",\"reason\":\"A.\"}"
        "\n"
        "{\"type\":\"verdict\",\"rank\":0,\"outcome\":\"failed\",\"code\":\"b\",\"reason\":\"B.\"}"
        "\n"
        "{\"type\":\"verdict\",\"rank\":1,\"outcome\":\"failed\",\"code\":\"c\",\"reason\":\"C.\"}"
        "\n"
        "{\"type\":\"verdict\",\"rank\":1,\"outcome\":\"done\",\"code\":\"done\",\"reason\":\"D.\"}"
        "\n"
        "{\"type\":\"verdict\",\"rank\":99,\"outcome\":\"failed\",\"code\":\"x\",\"reason\":\"X.\"}"
        "\n"
        "\"verdict\"\n[\"verdict\"]\n{\"verdict\"\n\n"
        "{\"type\":\"verdict\",\"rank\":2,\"outcome\":\"failed\",\"code\":\"e\",\"reason\":\"E.\"}";
    struct rank_end ends[] = {{.rank = 0}, {.rank = 1}, {.rank = 2}, {.rank = 3}};
    put(text, sizeof text - 1);
    cause_read_verdicts(path, ends, 4);
    assert_string_equal(ends[0].verdict.code, "b"); /* the last one counts */
    assert_false(ends[1].verdict.failed);
    assert_string_equal(ends[2].verdict.reason, "E."); /* no newline at the end */
    assert_false(ends[3].verdict.failed);
    cause_read_verdicts("/nonexistent/report", ends, 4);
    assert_string_equal(ends[0].verdict.code, "b");
}

static void test_huge_verdicts_are_cut(void **state)
{
    (void)state;
    struct rank_end end = {.rank = 0};
    CLEANUP(mem_freep) char *text = mem_zalloc(20000);
    int n = sprintf(text, "{\"type\":\"verdict\",\"rank\":0,\"outcome\":\"failed\",\"code\":\"");
    memset(text + n, 'c', 500);
    n += 500 + sprintf(text + n + 500, "\",\"reason\":\"x");
    for (int i = 0; i < 3000; i++)
        n += sprintf(text + n, "\xc3\xa9");
    n += sprintf(text + n, "\"}\n");
    put(text, (size_t)n);
    cause_read_verdicts(path, &end, 1);
    assert_true(end.verdict.failed);
    assert_int_equal(strlen(end.verdict.code), sizeof end.verdict.code - 1);
    assert_int_equal(strlen(end.verdict.reason), ATTEMPT_REASON_MAX - 1);
    assert_memory_equal(end.verdict.reason + ATTEMPT_REASON_MAX - 3, "\xc3\xa9", 2); /* whole */
}

static void test_only_the_tail_of_a_long_report(void **state)
{
    (void)state;
    static const char verdict[] = "\n{\"type\":\"verdict\",\"rank\":0,\"outcome\":\"failed\","
                                  "\"code\":\"late\",\"reason\":\"L.\"}\n";
    struct rank_end end = {.rank = 0};
    size_t n = CAUSE_REPORT_TAIL + 5000;
    CLEANUP(mem_freep) char *text = mem_alloc(n);
    memset(text, 'x', n);
    memcpy(text + n - (sizeof verdict - 1), verdict, sizeof verdict - 1);
    put(text, n);
    cause_read_verdicts(path, &end, 1);
    assert_string_equal(end.verdict.code, "late");
}

static void tail_is(const char *bytes, size_t n, const char *want)
{
    char out[CAUSE_LOG_TEXT_SIZE];
    put(bytes, n);
    cause_log_tail(path, out);
    assert_string_equal(out, want);
}

static void test_log_tails(void **state)
{
    (void)state;
    char out[CAUSE_LOG_TEXT_SIZE];
    char many[1000];
    tail_is("", 0, "");
    tail_is("\n\n \n", 4, "");
    tail_is("one\ntwo\n", 8, "one\\ntwo");
    tail_is("a\0b\x7f\t!", 6, "a\\x00b\\x7f\\x09!");
    tail_is("caf\xc3\xa9 \xe2\x82\xac", 9, "caf\xc3\xa9 \xe2\x82\xac");
    tail_is("\xc0\xaf\xed\xa0\x80\xff", 6, "\\xc0\\xaf\\xed\\xa0\\x80\\xff"); /* not UTF-8 */
    tail_is("cut \xe2\x82", 6, "cut \\xe2\\x82");
    memset(many, 'y', sizeof many);
    put(many, sizeof many);
    cause_log_tail(path, out);
    assert_int_equal(strlen(out), CAUSE_LOG_TAIL);
    many[900] = '\n';
    put(many, sizeof many);
    cause_log_tail(path, out);
    assert_int_equal(strlen(out), 99); /* begins with a whole line */
    memset(many, 1, sizeof many);
    put(many, sizeof many);
    cause_log_tail(path, out);
    assert_int_equal(strlen(out), 4 * CAUSE_LOG_TAIL); /* the widest there is */
    cause_log_tail("/nonexistent", out);
    assert_string_equal(out, "");
}

static void test_words(void **state)
{
    (void)state;
    char code[64];
    char reason[ATTEMPT_REASON_MAX];
    struct rank_end killed = end_of(1, 0, 0, SIGKILL);
    cause_describe(&killed, "n1", path, code, reason);
    assert_string_equal(code, "rank_killed");
    assert_string_equal(reason, "Rank 1 on node n1 was killed by SIGKILL.");
    struct rank_end exited = end_of(0, 0, 3, 0);
    put("boom\n", 5);
    cause_describe(&exited, "n1", path, code, reason);
    assert_string_equal(code, "rank_failed");
    assert_string_equal(reason,
                        "Rank 0 on node n1 exited with status 3; the last lines of its log: boom");
    say(&exited, "data_invalid");
    cause_describe(&exited, "n1", path, code, reason);
    assert_string_equal(code, "data_invalid");
    assert_string_equal(reason, "A sentence.");
    struct rank_end prepare = end_of(-1, 0, 1, 0);
    put("", 0);
    cause_describe(&prepare, "n1", path, code, reason);
    assert_string_equal(reason,
                        "The prepare step on node n1 exited with status 1; its log is empty.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_failed),
        cmocka_unit_test(test_first_by_order),
        cmocka_unit_test(test_our_own_signals_are_no_cause),
        cmocka_unit_test(test_peer_lost_is_an_echo),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_huge_verdicts_are_cut),
        cmocka_unit_test(test_only_the_tail_of_a_long_report),
        cmocka_unit_test(test_log_tails),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, make_file, drop_file);
}
