/* Files that were written are read back; files that lie are refused, with a sentence that says how.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "trainer/safetensors.h"

static char directory[64];

static int make_directory(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/trainyard-test-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    return file_remove_tree(directory, NULL);
}

/* A memfd with the 8-byte length, the header text and `data_size` zero bytes. */
static int make_file(uint64_t length, const char *header, size_t header_size, size_t data_size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &length, 8), 8);
    assert_int_equal(write(fd, header, header_size), (ssize_t)header_size);
    assert_int_equal(ftruncate(fd, (off_t)(8 + header_size + data_size)), 0);
    return fd;
}

static void refused(const char *header, size_t data_size, const char *words)
{
    struct err e = {0};
    struct safetensors *s = NULL;
    size_t n = strlen(header);
    int r = safetensors_open(make_file(n, header, n, data_size), "w.safetensors", &s, &e);
    if (r == 0 || !strstr(e.text, words))
        fail_msg("\"%s\" gave %d, \"%s\"; expected \"%s\"", header, r, e.text, words);
    assert_int_equal(r, e.code);
    assert_null(s);
    assert_non_null(strstr(e.text, "w.safetensors"));
}

static struct safetensors *accepted(const char *header, size_t data_size)
{
    struct err e = {0};
    struct safetensors *s = NULL;
    size_t n = strlen(header);
    if (safetensors_open(make_file(n, header, n, data_size), "w.safetensors", &s, &e) < 0)
        fail_msg("\"%s\" was refused: %s", header, e.text);
    return s;
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to   \
    "]}"

static void round_trip(void **state)
{
    (void)state;
    float kernel[6] = {1, -2, 3.5f, 0, 1e-30f, 6}, bias[3] = {7, 8, 9}, got[6];
    struct safetensors_item items[] = {
        {"layers.1.kernel", {2, {2, 3}}, kernel},
        {"layers.0.bias", {1, {3}}, bias},
    };
    const char *metadata[] = {"format", "trainyard", "note", "größe", NULL};
    char path[128];
    snprintf(path, sizeof path, "%s/w.safetensors", directory);
    struct err e = {0};
    assert_int_equal(safetensors_write(path, items, 2, metadata, NULL, &e), 0);

    struct buf raw = BUF_INIT;
    assert_int_equal(file_read(path, 4096, &raw, &e), 0);
    uint64_t length;
    memcpy(&length, raw.data, 8);
    assert_int_equal(length % 8, 0);
    assert_int_equal(raw.len, 8 + length + sizeof kernel + sizeof bias);
    assert_memory_equal(raw.data + 8 + length, kernel, sizeof kernel);
    assert_non_null(strstr(raw.data + 8, "gr\xc3\xb6\xc3\x9f"
                                         "e"));
    buf_done(&raw);

    struct safetensors *s;
    assert_int_equal(safetensors_open(open(path, O_RDONLY), "w", &s, &e), 0);
    assert_int_equal(safetensors_count(s), 2);
    assert_string_equal(safetensors_name(s, 0), "layers.1.kernel");
    assert_string_equal(safetensors_name(s, 1), "layers.0.bias");
    assert_int_equal(safetensors_read(s, "layers.1.kernel", &items[0].shape, got, &e), 0);
    assert_memory_equal(got, kernel, sizeof kernel);
    assert_int_equal(safetensors_read(s, "layers.0.bias", &items[1].shape, got, &e), 0);
    assert_memory_equal(got, bias, sizeof bias);
    safetensors_close(s);
}

static void writing_replaces_whole_files(void **state)
{
    (void)state;
    float a = 1, b = 2, got = 0;
    char path[128], other[160];
    snprintf(path, sizeof path, "%s/again.safetensors", directory);
    struct safetensors_item item = {"x", {1, {1}}, &a};
    struct err e = {0};
    assert_int_equal(safetensors_write(path, &item, 1, NULL, NULL, &e), 0);
    item.data = &b;
    assert_int_equal(safetensors_write(path, &item, 1, NULL, NULL, &e), 0);
    struct safetensors *s;
    assert_int_equal(safetensors_open(open(path, O_RDONLY), "w", &s, &e), 0);
    assert_int_equal(safetensors_read(s, "x", &item.shape, &got, &e), 0);
    assert_true(got == 2);
    safetensors_close(s);
    snprintf(other, sizeof other, "%s.%d.tmp", path, (int)getpid());
    assert_int_equal(access(other, F_OK), -1);
}

static void writing_fails_with_a_sentence(void **state)
{
    (void)state;
    float a = 1;
    char path[128];
    struct safetensors_item items[] = {{"x", {1, {1}}, &a}, {"x", {1, {1}}, &a}};
    struct err e = {0};
    snprintf(path, sizeof path, "%s/none/w.safetensors", directory);
    assert_int_equal(safetensors_write(path, items, 1, NULL, NULL, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, path));
    snprintf(path, sizeof path, "%s/twice.safetensors", directory);
    assert_int_equal(safetensors_write(path, items, 2, NULL, NULL, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "two tensors are named \"x\""));
    items[1].name = "\xff";
    assert_int_equal(safetensors_write(path, items, 2, NULL, NULL, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "UTF-8"));
    items[1].name = "__metadata__";
    assert_int_equal(safetensors_write(path, items, 2, NULL, NULL, &e), ERR_INVALID);
    assert_int_equal(access(path, F_OK), -1);
}

static void a_file_of_no_tensors(void **state)
{
    (void)state;
    char path[128];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/empty.safetensors", directory);
    assert_int_equal(safetensors_write(path, NULL, 0, NULL, NULL, &e), 0);
    struct safetensors *s;
    assert_int_equal(safetensors_open(open(path, O_RDONLY), "w", &s, &e), 0);
    assert_int_equal(safetensors_count(s), 0);
    struct shape one = {1, {1}};
    float x;
    assert_int_equal(safetensors_read(s, "x", &one, &x, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "has no tensor \"x\"; it has none"));
    safetensors_close(s);
}

/* Shapes and sums that the reference runs' own files have. */
static void reference_weights(void **state)
{
    (void)state;
    struct err e = {0};
    struct safetensors *s;
    int fd = open("tests/reference/mnist-mlp-adam/init.safetensors", O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(safetensors_open(fd, "init", &s, &e), 0);
    assert_int_equal(safetensors_count(s), 4);
    struct shape kernel = {2, {784, 128}};
    float *w = mem_alloc(784 * 128 * sizeof *w);
    assert_int_equal(safetensors_read(s, "layers.2.kernel", &kernel, w, &e), 0);
    double square = 0;
    for (int i = 0; i < 784 * 128; i++)
        square += (double)w[i] * (double)w[i];
    assert_true(square / (784 * 128) > 0.9 * 2 / (784 + 128));
    assert_true(square / (784 * 128) < 1.1 * 2 / (784 + 128));
    free(w);
    safetensors_close(s);
    const char *runs[] = {"cancer-batchnorm-binary", "digits-conv-nesterov", "digits-deep-adamw",
                          "digits-mlp-sgd", "synthetic-seed42"};
    for (size_t i = 0; i < 2 * ARRAY_LEN(runs); i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/reference/%s/%s.safetensors", runs[i / 2],
                 i % 2 ? "init" : "final");
        if (safetensors_open(open(path, O_RDONLY), path, &s, &e) < 0)
            fail_msg("%s", e.text);
        safetensors_close(s);
    }
}

static void reading_names_what_differs(void **state)
{
    (void)state;
    struct safetensors *s =
        accepted("{" T("a", "F32", "2,3", "0", "24") "," T("b", "F16", "4", "24", "32") "}  ", 32);
    struct err e = {0};
    float out[6] = {5};
    struct shape shape = {2, {3, 2}};
    assert_int_equal(safetensors_read(s, "a", &shape, out, &e), ERR_INVALID);
    assert_string_equal(e.text, "w.safetensors: tensor \"a\" has the shape [2, 3], the model needs "
                                "[3, 2]");
    shape = (struct shape){1, {6}};
    assert_int_equal(safetensors_read(s, "a", &shape, out, &e), ERR_INVALID);
    assert_int_equal(safetensors_read(s, "c", &shape, out, &e), ERR_NOT_FOUND);
    assert_string_equal(e.text, "w.safetensors has no tensor \"c\"; it has a, b");
    shape = (struct shape){1, {4}};
    assert_int_equal(safetensors_read(s, "b", &shape, out, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "dtype F16; only F32"));
    assert_true(out[0] == 5);
    safetensors_close(s);
}

static void other_tensors_are_checked_but_allowed(void **state)
{
    (void)state;
    /* Data in another order than the names, a scalar, an empty tensor, metadata in the middle. */
    struct safetensors *s =
        accepted("{" T("z", "F32", "", "16",
                       "20") ","
                             "\"__metadata__\":{\"k\":\"v\"}," T("a", "F64", "2", "0", "16") "," T(
                                 "e", "U8", "0,7", "16", "16") "}",
                 20);
    assert_int_equal(safetensors_count(s), 3);
    assert_string_equal(safetensors_name(s, 0), "a");
    assert_string_equal(safetensors_name(s, 2), "z");
    safetensors_close(s);
}

static void files_that_are_no_safetensors(void **state)
{
    (void)state;
    struct err e = {0};
    struct safetensors *s = NULL;
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(safetensors_open(fd, "w.safetensors", &s, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "only 0 bytes"));
    static const uint64_t LENGTHS[] = {3, 100, UINT64_MAX, UINT64_MAX - 7, 1ull << 63, 100000001};
    for (size_t i = 0; i < ARRAY_LEN(LENGTHS); i++) {
        assert_int_equal(
            safetensors_open(make_file(LENGTHS[i], "{}", 2, 0), "w.safetensors", &s, &e),
            ERR_INVALID);
        assert_non_null(strstr(e.text, "in a file of 10 bytes"));
    }
    assert_int_equal(safetensors_open(open(directory, O_RDONLY), "w.safetensors", &s, &e),
                     ERR_INVALID);
    assert_non_null(strstr(e.text, "not a regular file"));
    refused("", 0, "no JSON object at byte 8");
    refused("[]", 0, "no JSON object at byte 8");
    refused(" {}", 0, "no JSON object at byte 8");
    refused("{", 0, "not valid JSON");
    refused("{} x", 0, "not valid JSON");
    refused("{\"\\u0000\":1}", 0, "not valid JSON");
    refused("{\"\xff\":1}", 0, "not valid JSON");
}

static void layouts_that_lie(void **state)
{
    (void)state;
    refused("{" T("a", "F32", "2", "0", "8") "," T("a", "F32", "2", "8", "16") "}", 16,
            "not valid JSON");
    refused("{" T("a", "F32", "2", "0", "8") "}", 12,
            "the tensors end at byte 8 of data that has 12");
    refused("{}", 1, "the tensors end at byte 0");
    refused("{" T("a", "F32", "2", "0", "8") "}", 4, "lies at bytes 0 to 8");
    refused("{" T("a", "F32", "2", "8", "0") "}", 8, "lies at bytes 8 to 0");
    refused("{" T("a", "F32", "2", "-8", "0") "}", 8, "lies at bytes -8 to 0");
    refused("{" T("a", "F32", "3", "0", "8") "}", 8, "takes 12 bytes");
    refused("{" T("a", "F32", "1", "0", "4") "," T("b", "F32", "1", "8", "12") "}", 12,
            "leaving a hole");
    refused("{" T("a", "F32", "2", "0", "8") "," T("b", "F32", "2", "4", "12") "}", 12,
            "before the end of the one before");
    refused("{" T("a", "F32", "1", "0", "4") "," T("b", "F32", "1", "0", "4") "}", 4,
            "before the end of the one before");
    refused("{" T("a", "F32", "4611686018427387904,4", "0", "0") "}", 0, "too large");
    refused("{" T("a", "F32", "9223372036854775807", "0", "0") "}", 0, "too large");
    refused("{" T("a", "F32", "99999999999999999999", "0", "0") "}", 0, "not valid JSON");
    refused("{" T("a", "F32", "-1", "0", "4") "}", 4, "not a whole number");
    refused("{" T("a", "F32", "1.0", "0", "4") "}", 4, "not a whole number");
    refused("{" T("a", "F32", "1", "0.0", "4") "}", 4, "not described by");
    refused("{" T("a", "F33", "1", "0", "4") "}", 4, "unknown dtype \"F33\"");
}

static void documents_of_another_form(void **state)
{
    (void)state;
    refused("{\"a\":1}", 0, "not described by");
    refused("{\"a\":{}}", 0, "not described by");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "not described by");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}", 16,
            "not described by");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]}}", 16,
            "not described by");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"x\":1}}", 16,
            "not described by");
    refused("{\"__metadata__\":1}", 0, "__metadata__ is not an object");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "value of \"a\" is not a string");
}

static void a_file_cut_short_while_open(void **state)
{
    (void)state;
    const char *header = "{" T("a", "F32", "2", "0", "8") "}";
    int fd = make_file(strlen(header), header, strlen(header), 8);
    int other = dup(fd);
    struct err e = {0};
    struct safetensors *s;
    assert_int_equal(safetensors_open(fd, "w.safetensors", &s, &e), 0);
    assert_int_equal(ftruncate(other, (off_t)(8 + strlen(header) + 4)), 0);
    struct shape shape = {1, {2}};
    float out[2];
    assert_int_equal(safetensors_read(s, "a", &shape, out, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "before its data does"));
    safetensors_close(s);
    close(other);
}

static void many_names_are_cut(void **state)
{
    (void)state;
    struct buf header = BUF_INIT;
    for (int i = 0; i < 500; i++)
        buf_addf(&header,
                 "%s\"layers.%d.kernel\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":"
                 "[0,0]}",
                 i ? "," : "{", i);
    buf_adds(&header, "}");
    struct safetensors *s = accepted(header.data, 0);
    struct err e = {0};
    struct shape shape = {1, {1}};
    float out;
    assert_int_equal(safetensors_read(s, "x", &shape, &out, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, " more"));
    safetensors_close(s);
    buf_done(&header);
    safetensors_close(NULL);
}

/* A writer that is killed half-way leaves nothing that looks like an artifact. */
static void what_a_killed_writer_leaves_is_hidden(void **state)
{
    (void)state;
    static float data[50000];
    char own[128], path[160];
    snprintf(own, sizeof own, "%s/killed", directory);
    snprintf(path, sizeof path, "%s/model.safetensors", own);
    assert_int_equal(mkdir(own, 0700), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct safetensors_item item = {.name = "w", .shape = {1, {50000}}, .data = data};
        struct rlimit limit = {100000, 100000}; /* SIGXFSZ ends it */
        setrlimit(RLIMIT_FSIZE, &limit);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        safetensors_write(path, &item, 1, NULL, NULL, NULL);
        _exit(0);
    }
    int status, files = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    DIR *d = opendir(own);
    for (struct dirent *x; (x = readdir(d)); files++)
        assert_int_equal(x->d_name[0], '.');
    assert_int_equal(files, 3);
    closedir(d);
}

static void count_beat(void *beats)
{
    ++*(int *)beats;
}

/* Whoever waits for a long write hears of it. */
static void a_long_write_is_heard_of(void **state)
{
    (void)state;
    int64_t n = 10 * 1024 * 1024;
    float *data = mem_zalloc((size_t)n * sizeof *data);
    struct safetensors_item item = {.name = "w", .shape = {1, {n}}, .data = data};
    int beats = 0;
    struct safetensors_pulse pulse = {count_beat, &beats};
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/long.safetensors", directory);
    assert_int_equal(safetensors_write(path, &item, 1, NULL, &pulse, NULL), 0);
    assert_true(beats >= 4); /* the header and three pieces */
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > n * 4);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(writing_replaces_whole_files),
        cmocka_unit_test(writing_fails_with_a_sentence),
        cmocka_unit_test(a_file_of_no_tensors),
        cmocka_unit_test(reference_weights),
        cmocka_unit_test(reading_names_what_differs),
        cmocka_unit_test(other_tensors_are_checked_but_allowed),
        cmocka_unit_test(files_that_are_no_safetensors),
        cmocka_unit_test(layouts_that_lie),
        cmocka_unit_test(documents_of_another_form),
        cmocka_unit_test(a_file_cut_short_while_open),
        cmocka_unit_test(many_names_are_cut),
        cmocka_unit_test(a_long_write_is_heard_of),
        cmocka_unit_test(what_a_killed_writer_leaves_is_hidden),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
