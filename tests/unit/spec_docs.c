/* spec_docs.c: the JSON that docs/jobs.md shows is taken as it stands, with nothing to be warned
 * of: whole jobs, and meshes in a job that has as many devices. The unit tests that
 * docs/trainer-cases.md names are there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "spec/job.h"

static const char deep[] =
    "{\"model\": {\"input\": [4], \"layers\": [{\"type\": \"dense\", \"units\": 4}, {\"type\": "
    "\"dense\", \"units\": 4}, {\"type\": \"dense\", \"units\": 4}, {\"type\": \"dense\", "
    "\"units\": "
    "4}, {\"type\": \"dense\", \"units\": 4}, {\"type\": \"dense\", \"units\": 4}, {\"type\": "
    "\"dense\", \"units\": 4}, {\"type\": \"dense\", \"units\": 1}]}, \"compile\": {\"optimizer\": "
    "\"adam\", \"loss\": \"mse\"}, \"data\": {\"train\": {\"format\": \"csv\", \"path\": \"x\"}}}";

/* A job of that mesh. */
static json_t *around(json_t *take_mesh)
{
    static const char *const sizes[] = {"data", "pipeline", "tensor"};
    json_int_t devices = 1;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        if (json_object_get(take_mesh, sizes[i]))
            devices *= json_integer_value(json_object_get(take_mesh, sizes[i]));
    json_t *doc = json_loads(deep, 0, NULL);
    json_object_set_new(doc, "resources", json_pack("{s:I}", "devices", devices > 1 ? devices : 4));
    json_object_set_new(doc, "strategy", take_mesh);
    return doc;
}

static void expect_taken(const char *text)
{
    struct err e;
    json_t *doc;
    struct faults f = {0}, w = {0};
    if (job_spec_read(text, strlen(text), &doc, &e) < 0)
        fail_msg("%s\n%s", e.text, text);
    if (!json_object_get(doc, "model") && !json_object_get(doc, "command"))
        doc = around(doc);
    struct job_spec *s = job_spec_parse(doc, 1, &f, &w);
    for (size_t i = 0; i < f.count + w.count; i++) {
        const struct fault *x = i < f.count ? &f.items[i] : &w.items[i - f.count];
        print_message("%s: %s\n", x->pointer, x->message);
    }
    if (!s || w.total > 0)
        fail_msg("%s", text);
    job_spec_free(s);
    faults_done(&f);
    faults_done(&w);
    json_decref(doc);
}

static void examples_are_taken(void **state)
{
    (void)state;
    struct buf text = BUF_INIT;
    struct err e;
    int seen = 0;
    if (file_read("docs/jobs.md", 1 << 20, &text, &e) < 0)
        fail_msg("%s", e.text);
    for (char *at = text.data; (at = strstr(at, "```json\n")) != NULL; seen++) {
        char *begin = at + strlen("```json\n"), *end = strstr(begin, "\n```");
        assert_non_null(end);
        *end = '\0';
        expect_taken(begin);
        at = end + 1;
    }
    assert_true(seen >= 10);
    buf_done(&text);
}

/* `name`, after "FILE: " or in the file that was named before it in the same row. */
static void expect_test(char *name, char *file, size_t room)
{
    struct buf text = BUF_INIT;
    struct err e;
    char *colon = strstr(name, ": ");
    if (colon) {
        *colon = '\0';
        snprintf(file, room, "tests/unit/%s.c", name);
        name = colon + 2;
    }
    CLEANUP(mem_freep) char *head = mem_printf("\nstatic void %s(void **", name);
    if (file_read(file, 1 << 20, &text, &e) < 0)
        fail_msg("%s", e.text);
    if (!strstr(text.data, head))
        fail_msg("%s has no test %s", file, name);
    buf_done(&text);
}

/* The quoted names of a row's last cell, but for files of shell tests. Returns how many. */
static int expect_tests(char *row)
{
    char *at = row, *end, file[128] = "";
    int seen = 0;
    for (char *cell; (cell = strstr(at, " | ")) != NULL;)
        at = cell + 3;
    while ((at = strchr(at, '`')) && (end = strchr(at + 1, '`'))) {
        *end = '\0';
        if (!strstr(at, ".bats")) {
            expect_test(at + 1, file, sizeof file);
            seen++;
        }
        at = end + 1;
    }
    return seen;
}

static void tests_of_cases_are_there(void **state)
{
    (void)state;
    struct buf text = BUF_INIT;
    struct err e;
    int rows = 0;
    if (file_read("docs/trainer-cases.md", 1 << 20, &text, &e) < 0)
        fail_msg("%s", e.text);
    for (char *line = text.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (strncmp(line, "| ", 2) != 0 || line[2] < '0' || line[2] > '9')
            continue;
        rows++;
        if (expect_tests(line) == 0)
            fail_msg("no test: %s", line);
    }
    assert_int_equal(rows, 32);
    buf_done(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples_are_taken),
        cmocka_unit_test(tests_of_cases_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
