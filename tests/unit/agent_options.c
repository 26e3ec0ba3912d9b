/* An agent's configuration file and what is made of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "daemon/agent/options.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/agent-options-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    return file_remove_tree(dir, NULL);
}

static int read_text(const char *text, struct options *o, struct err *e)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/conf", dir);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, NULL), 0);
    return options_read_file(path, o, e);
}

static void test_a_file(void **state)
{
    (void)state;
    struct options o = {.cpu_devices = -1};
    struct err e;
    assert_int_equal(read_text("; a comment\ncoordinator = http://c:1\n[agent]\ncpu_devices=1\n"
                               "data_root = /a\ndata_root = /b\n",
                               &o, &e),
                     0);
    assert_string_equal(o.coordinator, "http://c:1");
    assert_int_equal(o.cpu_devices, 1);
    assert_int_equal(o.data_root_count, 2);
    assert_string_equal(o.data_roots[1], "/b");
    options_done(&o);
}

static void test_what_is_there_stays(void **state)
{
    (void)state;
    struct options o = {.cpu_devices = 2, .name = mem_strdup("mine"), .data_root_count = 1};
    o.data_roots[0] = mem_strdup("/mine");
    assert_int_equal(read_text("name = other\ncpu_devices = 9\ndata_root = /other\n", &o, NULL), 0);
    assert_string_equal(o.name, "mine");
    assert_int_equal(o.cpu_devices, 2);
    assert_int_equal(o.data_root_count, 1);
    assert_string_equal(o.data_roots[0], "/mine");
    options_done(&o);
}

static void test_faults_name_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"name = a\nshape = b\n", "line 2"},
        {"[other]\nname = a\n", "[other]"},
        {"cpu_devices = -1\n", "1 to"},
        {"cpu_devices = 0\n", "a node without devices runs nothing"},
        {"cpu_devices = 1e3\n", "1 to"},
        {"cpu_devices = 99999999999\n", "1 to"},
        {"cpu_devices = 1025\n", "1 to"},
        {"name =\n", "no value"},
        {"just words\n", "line 1"},
        {"data_root = /a\ndata_root =\n", "line 2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct options o = {.cpu_devices = -1};
        struct err e = {0};
        assert_int_equal(read_text(cases[i].text, &o, &e), ERR_INVALID);
        if (!strstr(e.text, cases[i].want))
            fail_msg("\"%s\" does not hold \"%s\"", e.text, cases[i].want);
        assert_null(o.name); /* nothing of a wrong file is taken */
        assert_int_equal(o.data_root_count, 0);
        options_done(&o);
    }
}

static void test_no_file(void **state)
{
    (void)state;
    struct options o = {.cpu_devices = -1};
    struct err e;
    assert_true(options_read_file("/nonexistent/conf", &o, &e) < 0);
    assert_non_null(strstr(e.text, "/nonexistent/conf"));
}

/* All that options_check() needs, with `name` and `token` as given. */
static int check(const char *name, const char *token, struct options *o, struct err *e)
{
    *o = (struct options){.cpu_devices = -1,
                          .name = mem_strdup(name),
                          .coordinator = mem_strdup("http://127.0.0.1:1//"),
                          .shim = mem_strdup("/bin/true"),
                          .trainer = mem_strdup("/bin/true"),
                          .state_dir = mem_printf("%s/x/./y", dir)};
    if (token) {
        o->token_file = mem_printf("%s/token", dir);
        assert_int_equal(file_write_atomic(o->token_file, token, strlen(token), 0600, NULL), 0);
    }
    return options_check(o, e);
}

static void test_defaults(void **state)
{
    (void)state;
    struct options o;
    struct err e;
    CLEANUP(mem_freep) char *want = mem_printf("%s/x/y", dir);
    assert_int_equal(check("n-1.a", "secret\n", &o, &e), 0);
    assert_string_equal(o.coordinator, "http://127.0.0.1:1");
    assert_string_equal(o.state_dir, want);
    assert_string_equal(o.token, "secret");
    assert_true(o.cpu_devices >= 1);
    options_done(&o);
}

static void test_addresses(void **state)
{
    (void)state;
    static const char *const wrong[] = {"http://",    "http://:80", "http://127.0.0.1:99999",
                                        "http://h:x", "http://a b", "ftp://h",
                                        "h:80"};
    static const char *const right[] = {"http://h", "https://[::1]:8724/", "http://h:1/prefix"};
    struct err e;
    for (size_t i = 0; i < ARRAY_LEN(wrong) + ARRAY_LEN(right); i++) {
        int ok = i >= ARRAY_LEN(wrong);
        struct options o = {.cpu_devices = 1,
                            .name = mem_strdup("n"),
                            .coordinator = mem_strdup(ok ? right[i - ARRAY_LEN(wrong)] : wrong[i]),
                            .shim = mem_strdup("/bin/true"),
                            .trainer = mem_strdup("/bin/true"),
                            .state_dir = mem_printf("%s/x", dir)};
        assert_int_equal(options_check(&o, &e), ok ? 0 : ERR_INVALID);
        assert_true(ok || strstr(e.text, "coordinator's address"));
        options_done(&o);
    }
}

static void test_names_and_tokens(void **state)
{
    (void)state;
    static const char *const names[] = {"",   "a b", "a/b", "..\n", "a&x=1", "\xc3\xa9",
                                        "N1", "n_1", "-n",  ".n"}; /* nor the coordinator's */
    static const char *const tokens[] = {"", "\n", "two words", "a\r\nX-Header: b"};
    struct options o;
    struct err e;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(check(names[i], NULL, &o, &e), ERR_INVALID);
        options_done(&o);
    }
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        assert_int_equal(check("n1", tokens[i], &o, &e), ERR_INVALID);
        options_done(&o);
    }
}

static void test_checkpoints(void **state)
{
    (void)state;
    struct options o;
    struct err e;
    struct stat st;
    CLEANUP(mem_freep) char *own = mem_printf("%s/x/y/checkpoints", dir);
    CLEANUP(mem_freep) char *shared = mem_printf("%s/shared", dir);
    assert_int_equal(check("n1", NULL, &o, &e), 0);
    assert_string_equal(o.checkpoint_dir, own);
    assert_int_equal(stat(own, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0711);
    options_done(&o);
    static const struct {
        const char *share;
        mode_t mode;
        const char *want;
    } cases[] = {{NULL, 0755, NULL},         {"nfs-1.a_B", 0711, NULL},
                 {"a b", 0711, "letters"},   {"a/b", 0711, "letters"},
                 {NULL, 0777, "chmod go-w"}, {"nfs", 01777, "chmod go-w"},
                 {NULL, 0720, "others than"}};
    assert_int_equal(mkdir(shared, 0711), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(chmod(shared, cases[i].mode), 0);
        assert_int_equal(check("n1", NULL, &o, &e), 0);
        mem_replace(&o.checkpoint_dir, shared);
        if (cases[i].share)
            o.checkpoint_share = mem_strdup(cases[i].share);
        assert_int_equal(options_check(&o, &e), cases[i].want ? ERR_INVALID : 0);
        assert_true(!cases[i].want || strstr(e.text, cases[i].want));
        options_done(&o);
    }
    assert_int_equal(check("n1", NULL, &o, &e), 0);
    free(STEAL(o.checkpoint_dir));
    o.checkpoint_share = mem_strdup("nfs");
    assert_int_equal(options_check(&o, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "it needs --checkpoint-dir"));
    free(STEAL(o.checkpoint_share));
    o.checkpoint_dir = mem_printf("%s/none", dir);
    assert_int_equal(options_check(&o, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "checkpoint directory"));
    options_done(&o);
    assert_int_equal(read_text("checkpoint_dir = /c\ncheckpoint_share = s\n", &o, &e), 0);
    assert_string_equal(o.checkpoint_dir, "/c");
    assert_string_equal(o.checkpoint_share, "s");
    options_done(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file),
        cmocka_unit_test(test_what_is_there_stays),
        cmocka_unit_test(test_faults_name_their_line),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_names_and_tokens),
        cmocka_unit_test(test_checkpoints),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
