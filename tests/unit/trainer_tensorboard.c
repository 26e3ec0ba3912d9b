/* Event files: the checksum's published vectors, records as TensorFlow writes them, payloads as
 * protoc decodes them, and what a run puts into them. */
#include <math.h>

#include "tests/unit/trainer_gang.h"
#include "trainer/tensorboard_file.h"

/* ---- an own reader ---- */

static uint64_t little(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

static uint32_t unmasked(uint32_t masked)
{
    uint32_t rotated = masked - 0xa282ead8u;
    return rotated << 15 | rotated >> 17;
}

/* The payload of the record at *at, which moves on; 0 at the end of the file. */
static int next_record(const struct buf *file, size_t *at, const unsigned char **ret, size_t *ret_n)
{
    const unsigned char *p = (const unsigned char *)file->data + *at;
    if (*at == file->len)
        return 0;
    assert_true(file->len - *at >= 16);
    uint64_t n = little(p, 8);
    assert_true(n <= file->len - *at - 16);
    assert_int_equal(tensorboard_crc32c(p, 8), unmasked((uint32_t)little(p + 8, 4)));
    assert_int_equal(tensorboard_crc32c(p + 12, n), unmasked((uint32_t)little(p + 12 + n, 4)));
    *ret = p + 12;
    *ret_n = n;
    *at += n + 16;
    return 1;
}

/* What protoc makes of a payload: the text form, without line breaks. */
static void decode(const unsigned char *payload, size_t n, char *out, size_t room)
{
    char path[] = "/tmp/trainyard-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, payload, n), n);
    close(fd);
    char *command = mem_printf("protoc --decode=Event -Itests/unit tests/unit/tensorboard.proto "
                               "<%s | tr -s ' \\n' '  '",
                               path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t got = fread(out, 1, room - 1, f);
    out[got] = '\0';
    assert_int_equal(pclose(f), 0);
    free(command);
    unlink(path);
}

static double number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    if (!at)
        fail_msg("no \"%s\" in \"%s\"", key, text);
    return strtod(at + strlen(key), NULL);
}

/* ---- tests ---- */

/* RFC 3720, appendix B.4, and the check value of the algorithm's catalogue. */
static void checksums_of_the_rfc(void **state)
{
    (void)state;
    unsigned char b[48] = {0};
    assert_int_equal(tensorboard_crc32c(b, 32), 0x8a9136aau);
    memset(b, 0xff, 32);
    assert_int_equal(tensorboard_crc32c(b, 32), 0x62a8ab43u);
    for (unsigned i = 0; i < 32; i++)
        b[i] = (unsigned char)i;
    assert_int_equal(tensorboard_crc32c(b, 32), 0x46dd794eu);
    for (unsigned i = 0; i < 32; i++)
        b[i] = (unsigned char)(31 - i);
    assert_int_equal(tensorboard_crc32c(b, 32), 0x113fdb5cu);
    static const unsigned char read_pdu[48] = {
        0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, 0x28, [40] = 0x02};
    assert_int_equal(tensorboard_crc32c(read_pdu, 48), 0xd9963a56u);
    assert_int_equal(tensorboard_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(tensorboard_crc32c("", 0), 0);
}

static char directory[64];

static int enter(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/trainyard-test-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    return file_remove_tree(directory, NULL);
}

static void read_file(const char *name, struct buf *ret)
{
    char path[160];
    struct err e;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (file_read(path, 64 << 20, ret, &e) < 0)
        fail_msg("%s", e.text);
}

static void open_in(struct tensorboard_file *f, const char *name, int64_t wall_us)
{
    struct err e;
    char path[160];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (tensorboard_file_open(f, path, wall_us, &e) < 0)
        fail_msg("%s", e.text);
}

/* The first record of every event file is 24 bytes of payload, whose checksum is well known. */
static void a_file_begins_like_those_of_tensorflow(void **state)
{
    (void)state;
    static const unsigned char head[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22, 0x09};
    struct tensorboard_file f;
    struct buf bytes = BUF_INIT;
    open_in(&f, "events", 1500000000000000);
    tensorboard_file_close(&f);
    read_file("events", &bytes);
    assert_int_equal(bytes.len, 8 + 4 + 24 + 4);
    assert_memory_equal(bytes.data, head, sizeof head);
    assert_memory_equal(bytes.data + 12 + 9,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    buf_done(&bytes);
}

static void protoc_reads_what_was_written(void **state)
{
    (void)state;
    static const struct tensorboard_scalar two[] = {{"loss", 0.125}, {"grad_norm", -3.5e-20}};
    static const struct tensorboard_scalar not_finite[] = {{"loss", NAN}};
    struct tensorboard_file f;
    struct buf bytes = BUF_INIT;
    struct err e;
    char text[1024];
    size_t at = 0, n;
    const unsigned char *payload;
    open_in(&f, "events", 1500000000250000);
    tensorboard_file_add(&f, 1500000001500000, 300, two, 2);
    tensorboard_file_add(&f, 1500000002000000, (int64_t)1 << 40, not_finite, 1);
    assert_int_equal(tensorboard_file_flush(&f, &e), 0);
    tensorboard_file_close(&f);
    read_file("events", &bytes);
    assert_true(next_record(&bytes, &at, &payload, &n));
    decode(payload, n, text, sizeof text);
    assert_string_equal(text, "wall_time: 1500000000.25 file_version: \"brain.Event:2\" ");
    assert_true(next_record(&bytes, &at, &payload, &n));
    decode(payload, n, text, sizeof text);
    assert_string_equal(text, "wall_time: 1500000001.5 step: 300 summary { "
                              "value { tag: \"loss\" simple_value: 0.125 } "
                              "value { tag: \"grad_norm\" simple_value: -3.5e-20 } } ");
    assert_true(next_record(&bytes, &at, &payload, &n));
    decode(payload, n, text, sizeof text);
    assert_string_equal(text, "wall_time: 1500000002 step: 1099511627776 summary { "
                              "value { tag: \"loss\" simple_value: nan } } ");
    assert_false(next_record(&bytes, &at, &payload, &n));
    buf_done(&bytes);
}

static void nothing_is_written_over(void **state)
{
    (void)state;
    struct tensorboard_file f, g;
    struct err e;
    char path[160];
    open_in(&f, "events", 1);
    snprintf(path, sizeof path, "%s/events", directory);
    assert_int_equal(tensorboard_file_open(&g, path, 2, &e), ERR_IO);
    assert_non_null(strstr(e.text, "cannot create the event file"));
    tensorboard_file_close(&f);
}

/* The name of the run's artifact that ends so. */
static const char *artifact_named(const struct gang *g, const char *end)
{
    for (size_t i = 0; gang_line(g, "artifact", 0, i); i++) {
        const char *name = gang_text(gang_line(g, "artifact", 0, i), "name");
        if (strlen(name) > strlen(end) && strcmp(name + strlen(name) - strlen(end), end) == 0)
            return name;
    }
    fail_msg("no artifact ends with %s", end);
    return NULL;
}

static void check_scalar(const char *text, const char *tag, const json_t *line, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "tag: \"%s\" simple_value: ", tag);
    double got = number_after(text, key), want = gang_number(line, name);
    if (!(got >= want - 1e-6 * (want < 0 ? -want : want) &&
          got <= want + 1e-6 * (want < 0 ? -want : want)))
        fail_msg("%s is %g, the report says %g", tag, got, want);
}

/* Every step and every epoch, with the report's own figures. */
static void a_run_is_drawn(void **state)
{
    (void)state;
    json_auto_t *doc = gang_job(SMALL("50", "16", "", "\"epochs\": 2, \"validation_split\": 0.2"));
    struct gang g;
    struct buf train = BUF_INIT, validation = BUF_INIT;
    char text[1024];
    size_t at = 0, n;
    const unsigned char *payload;
    gang_open(&g, doc, STRATEGY_MIRRORED, 2, 1, 1, SCHEDULE_GPIPE);
    gang_run(&g);
    assert_int_equal(gang_count(&g, "artifact"), 3);
    assert_non_null(strstr(artifact_named(&g, ".train"), "events.out.tfevents."));
    read_whole(&g, artifact_named(&g, ".train"), &train);
    read_whole(&g, artifact_named(&g, ".validation"), &validation);
    assert_true(next_record(&train, &at, &payload, &n)); /* the version */
    for (size_t step = 0, epoch = 0; next_record(&train, &at, &payload, &n);) {
        decode(payload, n, text, sizeof text);
        int is_epoch = strstr(text, "epoch_loss") != NULL;
        const json_t *line = gang_line(&g, is_epoch ? "epoch" : "step", 0, is_epoch ? epoch : step);
        assert_non_null(line);
        if (is_epoch) {
            check_scalar(text, "epoch_loss", line, "loss");
            check_scalar(text, "epoch_accuracy", line, "accuracy");
            assert_true(number_after(text, "step: ") == (double)++epoch);
        } else {
            check_scalar(text, "loss", line, "loss");
            check_scalar(text, "grad_norm", line, "grad_norm");
            check_scalar(text, "learning_rate", line, "learning_rate");
            assert_true(number_after(text, "tag: \"samples_per_second\" simple_value: ") > 0);
            assert_true(number_after(text, "step: ") == (double)++step);
        }
        if (at == train.len) {
            assert_int_equal(step, gang_count(&g, "step"));
            assert_int_equal(epoch, 2);
        }
    }
    at = 0;
    assert_true(next_record(&validation, &at, &payload, &n));
    for (size_t epoch = 0; epoch < 2; epoch++) {
        assert_true(next_record(&validation, &at, &payload, &n));
        decode(payload, n, text, sizeof text);
        check_scalar(text, "epoch_loss", gang_line(&g, "epoch", 0, epoch), "val_loss");
        check_scalar(text, "epoch_accuracy", gang_line(&g, "epoch", 0, epoch), "val_accuracy");
    }
    assert_int_equal(at, validation.len);
    buf_done(&train);
    buf_done(&validation);
    gang_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_of_the_rfc),
        cmocka_unit_test_setup_teardown(a_file_begins_like_those_of_tensorflow, enter, leave),
        cmocka_unit_test_setup_teardown(protoc_reads_what_was_written, enter, leave),
        cmocka_unit_test_setup_teardown(nothing_is_written_over, enter, leave),
        cmocka_unit_test(a_run_is_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
