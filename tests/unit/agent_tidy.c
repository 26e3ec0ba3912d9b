/* The checkpoint directory: what is listed, what is removed, and what never is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "daemon/agent/agent.h"

#define JOB_1 "job_01k8z4q9tw3v7m2c5xd8hbn6"
#define JOB_2 "job_01k8z4q9tw3v7m2c5xd8hbn7"
#define OLD   1000000000 /* a time of change long ago */

static char root[64];

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/agent-tidy-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return file_remove_tree(root, NULL);
}

/* A directory beneath the root, with a file in it. */
static void make(const char *job, const char *name)
{
    CLEANUP(mem_freep) char *dir = mem_printf("%s/%s/%s", root, job, name);
    CLEANUP(mem_freep) char *file = mem_printf("%s/manifest.json", dir);
    assert_int_equal(file_mkdirs(dir, 0700, NULL), 0);
    assert_int_equal(file_write_atomic(file, "{}", 2, 0600, NULL), 0);
}

static int is_there(const char *relative)
{
    struct stat st;
    CLEANUP(mem_freep) char *path = mem_printf("%s/%s", root, relative);
    return lstat(path, &st) == 0;
}

static void age(const char *relative)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/%s", root, relative);
    const struct timespec times[2] = {{.tv_sec = OLD}, {.tv_sec = OLD}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static json_t *run(const char *removals)
{
    json_auto_t *list = removals ? json_loads(removals, 0, NULL) : NULL;
    assert_true(!removals || list);
    json_t *out = tidy(root, list, "");
    assert_non_null(out);
    return out;
}

/* The names of the job that are listed, in any order; their number. */
static size_t listed(const json_t *out, const char *job, const char *name)
{
    size_t i, k, count = 0;
    json_t *item, *v;
    json_array_foreach(json_object_get(out, "held"), i, item)
    {
        if (strcmp(json_string_value(json_object_get(item, "job")), job) != 0)
            continue;
        json_array_foreach(json_object_get(item, "names"), k, v)
        {
            count += !name || strcmp(json_string_value(v), name) == 0;
        }
    }
    return count;
}

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"step-0000000001", "step-123456789012",
                                       ".step-0000000001.tmp", "step-0000000001.partial-2"};
    static const char *const bad[] = {"",
                                      ".",
                                      "..",
                                      "step-1",
                                      "step-0000000001/x",
                                      "manifest.json",
                                      "step-0000000001x",
                                      "..step-0000000001",
                                      "step-",
                                      "STEP-0000000001",
                                      "step-0000000001.A",
                                      "step-0000000001 "};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_true(tidy_name_valid(good[i]));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(tidy_name_valid(bad[i]));
}

static void what_is_there_is_listed(void **state)
{
    (void)state;
    make(JOB_1, "step-0000000100");
    make(JOB_1, ".step-0000000200.tmp");
    make(JOB_1, "other");
    make(JOB_2, "step-0000000007");
    make("lost+found", "step-0000000001");
    json_auto_t *out = run(NULL);
    assert_int_equal(json_array_size(json_object_get(out, "held")), 2);
    assert_int_equal(listed(out, JOB_1, NULL), 2);
    assert_int_equal(listed(out, JOB_1, "step-0000000100"), 1);
    assert_int_equal(listed(out, JOB_1, ".step-0000000200.tmp"), 1);
    assert_int_equal(listed(out, JOB_2, "step-0000000007"), 1);
    assert_string_equal(json_string_value(json_object_get(out, "after")), "");
    assert_int_equal(json_array_size(json_object_get(out, "disk")), 5);
    assert_true(json_integer_value(json_array_get(json_object_get(out, "disk"), 1)) > 0);
}

static void what_is_named_goes(void **state)
{
    (void)state;
    make(JOB_1, "step-0000000100");
    make(JOB_1, "step-0000000200");
    make(JOB_1, ".step-0000000300.tmp");
    make(JOB_2, "step-0000000100");
    json_auto_t *out =
        run("[{\"job\":\"" JOB_1 "\",\"remove\":[\"step-0000000100\",\".step-0000000300.tmp\","
            "\"step-0000000999\"],\"all\":false}]");
    assert_int_equal(json_object_size(json_object_get(out, "failed")), 0);
    assert_int_equal(listed(out, JOB_1, NULL), 1);
    assert_int_equal(listed(out, JOB_1, "step-0000000200"), 1);
    assert_int_equal(listed(out, JOB_2, NULL), 1);
    assert_false(is_there(JOB_1 "/step-0000000100"));
}

static void nothing_else_goes(void **state)
{
    (void)state;
    CLEANUP(mem_freep) char *link = mem_printf("%s/" JOB_1 "/step-0000000300", root);
    CLEANUP(mem_freep) char *inner = mem_printf("%s/" JOB_1 "/step-0000000100/up", root);
    CLEANUP(mem_freep) char *target = mem_printf("%s/precious", root);
    CLEANUP(mem_freep) char *linked_job = mem_printf("%s/" JOB_2, root);
    make("precious", "step-0000000001");
    make(JOB_1, "step-0000000100");
    make(JOB_1, "notes");
    assert_int_equal(symlink(target, link), 0);
    assert_int_equal(symlink(target, inner), 0);
    assert_int_equal(symlink(target, linked_job), 0); /* a job's directory is none */
    json_auto_t *out = run(
        "[{\"job\":\"" JOB_1
        "\",\"remove\":[\"notes\",\"..\",\".\",\"../precious\",\"step-0000000300/"
        "step-0000000001\",\"step-0000000100/../notes\",7,\"step-0000000300\",\"step-0000000100\"],"
        "\"all\":true},{\"job\":\"" JOB_2 "\",\"remove\":[\"step-0000000001\"],\"all\":true},"
        "{\"job\":\"../precious\",\"remove\":[\"step-0000000001\"],\"all\":true},"
        "{\"job\":\"precious\",\"remove\":[\"step-0000000001\"],\"all\":true},{\"remove\":[]},7]");
    assert_true(is_there("precious/step-0000000001/manifest.json"));
    assert_true(is_there(JOB_1 "/notes/manifest.json"));
    assert_false(is_there(JOB_1 "/step-0000000100"));
    assert_false(is_there(JOB_1 "/step-0000000300")); /* the link, not what it leads to */
    const char *why = json_string_value(json_object_get(json_object_get(out, "failed"), JOB_2));
    assert_non_null(why);
    assert_non_null(strstr(why, "is no directory"));
}

static void an_empty_directory_goes_a_minute_later(void **state)
{
    (void)state;
    const char *all = "[{\"job\":\"" JOB_1 "\",\"remove\":[\"step-0000000100\"],\"all\":true}]";
    make(JOB_1, "step-0000000100");
    age(JOB_1);
    json_decref(run(all));
    assert_true(is_there(JOB_1)); /* it has just changed: perhaps an attempt is about to start */
    assert_false(is_there(JOB_1 "/step-0000000100"));
    age(JOB_1);
    json_auto_t *out = run(all);
    assert_false(is_there(JOB_1));
    assert_int_equal(json_array_size(json_object_get(out, "held")), 0);
    make(JOB_2, "notes");
    age(JOB_2);
    json_auto_t *kept = run("[{\"job\":\"" JOB_2 "\",\"remove\":[],\"all\":true}]");
    assert_true(is_there(JOB_2 "/notes"));
    const char *why = json_string_value(json_object_get(json_object_get(kept, "failed"), JOB_2));
    assert_non_null(why);
    assert_non_null(strstr(why, "something that is no checkpoint"));
}

static void many_jobs_come_in_turn(void **state)
{
    (void)state;
    enum { MANY = SWEEP_JOBS_MAX + 100 };
    char seen[MANY] = {0}, after[ID_SIZE] = "";
    for (int i = 0; i < MANY; i++) {
        CLEANUP(mem_freep) char *dir = mem_printf("%s/job_01k8z4q9tw3v7m2c5xd%05d", root, i);
        assert_int_equal(mkdir(dir, 0700), 0);
    }
    for (int round = 0; round < 2; round++) {
        size_t i;
        json_t *item;
        json_auto_t *out = tidy(root, NULL, after);
        assert_int_equal(json_array_size(json_object_get(out, "held")), SWEEP_JOBS_MAX);
        json_array_foreach(json_object_get(out, "held"), i, item)
        {
            seen[atoi(json_string_value(json_object_get(item, "job")) + 23)] = 1;
        }
        snprintf(after, sizeof after, "%s", json_string_value(json_object_get(out, "after")));
    }
    assert_null(memchr(seen, 0, sizeof seen));
}

/* Whoever can write in the directories chooses the names; a sync has room for 1 MiB in all. */
static void long_names_come_in_turn(void **state)
{
    (void)state;
    enum { JOBS = 5, NAMES = SWEEP_NAMES_MAX, LENGTH = 250 };
    char seen[JOBS] = {0}, after[ID_SIZE] = "", long_name[LENGTH + 1];
    memset(long_name, 'x', LENGTH);
    long_name[LENGTH] = '\0';
    for (int i = 0; i < JOBS * NAMES; i++) {
        CLEANUP(mem_freep)
        char *dir = mem_printf("%s/job_01k8z4q9tw3v7m2c5xd%05d/step-%010d.%.*s", root, i / NAMES,
                               i % NAMES, LENGTH - 16, long_name);
        assert_int_equal(file_mkdirs(dir, 0700, NULL), 0);
    }
    for (int look = 0; look < JOBS; look++) {
        size_t i;
        json_t *item;
        json_auto_t *out = tidy(root, NULL, after);
        CLEANUP(mem_freep) char *text = json_dumps(json_object_get(out, "held"), JSON_COMPACT);
        assert_true(strlen(text) < 256 * 1024);
        json_array_foreach(json_object_get(out, "held"), i, item)
        {
            seen[atoi(json_string_value(json_object_get(item, "job")) + 23)] = 1;
        }
        snprintf(after, sizeof after, "%s", json_string_value(json_object_get(out, "after")));
    }
    assert_null(memchr(seen, 0, sizeof seen));
}

static void as_its_owner(void **state)
{
    (void)state;
    struct stat st;
    if (getuid() != 0)
        skip();
    CLEANUP(mem_freep) char *dir = mem_printf("%s/" JOB_1, root);
    CLEANUP(mem_freep) char *inner = mem_printf("%s/" JOB_1 "/step-0000000100", root);
    CLEANUP(mem_freep) char *file = mem_printf("%s/manifest.json", inner);
    assert_int_equal(chmod(root, 0711), 0);
    make(JOB_1, "step-0000000100");
    assert_int_equal(chown(file, 65534, 65534), 0);
    assert_int_equal(chown(inner, 65534, 65534), 0);
    assert_int_equal(chown(dir, 65534, 65534), 0);
    json_auto_t *out = run(NULL);
    assert_int_equal(listed(out, JOB_1, NULL), 1);
    json_decref(run("[{\"job\":\"" JOB_1 "\",\"remove\":[\"step-0000000100\"],\"all\":false}]"));
    assert_false(is_there(JOB_1 "/step-0000000100"));
    make(JOB_1, "step-0000000200"); /* root's own in a user's directory: no business of a user */
    json_auto_t *failed =
        run("[{\"job\":\"" JOB_1 "\",\"remove\":[\"step-0000000200\"],\"all\":false}]");
    assert_non_null(json_object_get(json_object_get(failed, "failed"), JOB_1));
    assert_true(is_there(JOB_1 "/step-0000000200/manifest.json"));
    age(JOB_1);
    make(JOB_2, "step-0000000100");
    json_decref(run("[{\"job\":\"" JOB_2 "\",\"remove\":[\"step-0000000100\"],\"all\":true}]"));
    assert_int_equal(geteuid(), 0); /* and we are ourselves again */
    assert_int_equal(stat(dir, &st), 0);
}

static void without_a_directory(void **state)
{
    (void)state;
    json_auto_t *out = tidy("/nonexistent/checkpoints", NULL, "");
    assert_non_null(
        strstr(json_string_value(json_object_get(out, "error")), "/nonexistent/checkpoints"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        T(what_is_there_is_listed),
        T(what_is_named_goes),
        T(nothing_else_goes),
        T(an_empty_directory_goes_a_minute_later),
        T(many_jobs_come_in_turn),
        T(long_names_come_in_turn),
        T(as_its_owner),
        cmocka_unit_test(without_a_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
