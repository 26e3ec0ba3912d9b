/* IDX files: every element type, and headers that do not tell the truth. */
#include "tests/unit/trainer_data.h"

#include <math.h>

#define SPARSE LOSS_SPARSE_CATEGORICAL_CROSSENTROPY

struct bytes {
    unsigned char data[4096];
    size_t n;
};

static void add(struct bytes *b, const void *p, size_t n)
{
    memcpy(b->data + b->n, p, n);
    b->n += n;
}

static void add_u32(struct bytes *b, uint32_t v)
{
    unsigned char raw[4] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16),
                            (unsigned char)(v >> 8), (unsigned char)v};
    add(b, raw, 4);
}

/* A header with up to four dimensions; the list ends with -1. */
static struct bytes header(int type, const int64_t *sizes)
{
    struct bytes b = {.n = 0};
    int dims = 0;
    while (sizes[dims] >= 0)
        dims++;
    unsigned char magic[4] = {0, 0, (unsigned char)type, (unsigned char)dims};
    add(&b, magic, 4);
    for (int i = 0; i < dims; i++)
        add_u32(&b, (uint32_t)sizes[i]);
    return b;
}
#define HEADER(type, ...) header(type, (const int64_t[]){__VA_ARGS__, -1})

static void put_bytes(const char *name, const struct bytes *b)
{
    put(name, b->data, b->n);
}

/* Two items of 2 x 3 bytes with the labels 7 and 9. */
static void put_good_set(void)
{
    struct bytes images = HEADER(0x08, 2, 2, 3), labels = HEADER(0x08, 2);
    add(&images, "\x00\x01\x02\x03\x04\xff\x0a\x0b\x0c\x0d\x0e\x0f", 12);
    add(&labels, "\x07\x09", 2);
    put_bytes("images.idx", &images);
    put_bytes("labels.idx", &labels);
}

static void unsigned_bytes_stay_bytes(void **state)
{
    (void)state;
    put_good_set();
    struct job_spec job = idx_job(SPARSE, 6, 10);
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 2);
    assert_int_equal(p.train.features.type, NUMBER_U8);
    assert_int_equal(p.train.feature_size, 6);
    assert_int_equal(p.train.target_type, TARGET_CLASS);
    assert_int_equal((uintptr_t)p.train.features.map % 64, 0);
    assert_int_equal((uintptr_t)p.train.labels.map % 64, 0);
    assert_int_equal(class_at(&p.train, 0, 0), 7);
    assert_int_equal(class_at(&p.train, 1, 0), 9);
    assert_true(value_at(&p.train, 0, 5) == 255);
    assert_true(value_at(&p.train, 1, 0) == 10);
    assert_int_equal(p.validation.samples, 0);
    assert_string_equal(p.note, "");
    data_unmap(&p);
    assert_null(p.map);
    data_unmap(&p);
}

static void equal_counts_are_enough(void **state)
{
    (void)state;
    put_good_set();
    struct job_spec job = idx_job(SPARSE, 6, 10);
    job.model.input = (struct shape){3, {3, 1, 2}};
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.feature_size, 6);
    data_unmap(&p);
    job.model.input = (struct shape){1, {784}};
    refused(
        &job, ERR_INVALID,
        "images.idx: an item is [2, 3], 6 values, where the model's input is [784], 784 values");
}

static void every_element_type(void **state)
{
    (void)state;
    static const struct {
        int type;
        const char *raw; /* 1, then the type's own */
        size_t width;
        double second;
    } CASES[] = {
        {0x09, "\x01\x80", 1, -128},
        {0x0b, "\x00\x01\x80\x00", 2, -32768},
        {0x0c, "\x00\x00\x00\x01\x80\x00\x00\x00", 4, -2147483648.0},
        {0x0d, "\x3f\x80\x00\x00\xc0\x49\x0f\xdb", 4, (double)-3.14159274f},
        {0x0e, "\x3f\xf0\x00\x00\x00\x00\x00\x00\xc0\x09\x21\xfb\x54\x44\x2d\x18", 8,
         (double)-3.14159274f},
    };
    struct bytes labels = HEADER(0x08, 1);
    add(&labels, "\x03", 1);
    put_bytes("labels.idx", &labels);
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct bytes images = HEADER(CASES[i].type, 1, 2);
        add(&images, CASES[i].raw, 2 * CASES[i].width);
        put_bytes("images.idx", &images);
        struct job_spec job = idx_job(SPARSE, 2, 10);
        struct prepared p = prepared(&job);
        assert_true(value_at(&p.train, 0, 0) == 1);
        assert_true(value_at(&p.train, 0, 1) == CASES[i].second);
        data_unmap(&p);
    }
}

static void labels_of_every_element_type(void **state)
{
    (void)state;
    static const struct {
        int type;
        const char *raw; /* 1, then 2 */
        size_t width;
    } CASES[] = {
        {0x08, "\x01\x02", 1},
        {0x09, "\x01\x02", 1},
        {0x0b, "\x00\x01\x00\x02", 2},
        {0x0c, "\x00\x00\x00\x01\x00\x00\x00\x02", 4},
        {0x0d, "\x3f\x80\x00\x00\x40\x00\x00\x00", 4},
        {0x0e, "\x3f\xf0\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00", 8},
    };
    put_good_set();
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct bytes labels = HEADER(CASES[i].type, 2, 1); /* one dimension more is fine */
        add(&labels, CASES[i].raw, 2 * CASES[i].width);
        put_bytes("labels.idx", &labels);
        struct job_spec job = idx_job(SPARSE, 6, 10);
        struct prepared p = prepared(&job);
        assert_int_equal(class_at(&p.train, 0, 0), 1);
        assert_int_equal(class_at(&p.train, 1, 0), 2);
        data_unmap(&p);
    }
}

static void more_items_than_a_chunk(void **state)
{
    (void)state;
    int64_t n = 100000;
    struct buf images = BUF_INIT, labels = BUF_INIT;
    struct bytes h = HEADER(0x0b, n, 3), l = HEADER(0x0c, n);
    buf_add(&images, h.data, h.n);
    buf_add(&labels, l.data, l.n);
    for (int64_t i = 0; i < n; i++) {
        unsigned char raw[6] = {0, (unsigned char)i, 1, (unsigned char)i, 0xff, 0xff};
        unsigned char label[4] = {0, 0, 0, (unsigned char)(i % 10)};
        buf_add(&images, raw, 6);
        buf_add(&labels, label, 4);
    }
    put_packed("images.idx", images.data, images.len);
    put("labels.idx", labels.data, labels.len);
    struct job_spec job = idx_job(SPARSE, 3, 10);
    struct prepared p = prepared(&job);
    for (int64_t i = 0; i < n; i++) {
        if (value_at(&p.train, i, 0) != (double)(i & 255) ||
            value_at(&p.train, i, 1) != (double)(256 + (i & 255)) ||
            value_at(&p.train, i, 2) != -1 || class_at(&p.train, i, 0) != i % 10)
            fail_msg("item %ld", (long)i);
    }
    data_unmap(&p);
    labels.data[l.n + 4 * 4710 + 3] = 12;
    put("labels.idx", labels.data, labels.len);
    refused(&job, ERR_INVALID,
            "labels.idx item 4711: label 12 is not below 10, the number of classes that the "
            "model's last layer has");
    buf_done(&images);
    buf_done(&labels);
}

/* Replaces one of the good set's files by these bytes and expects the sentence. */
static void refuses(const char *name, const struct bytes *b, const char *words)
{
    put_good_set();
    put_bytes(name, b);
    struct job_spec job = idx_job(SPARSE, 6, 10);
    refused(&job, ERR_INVALID, words);
}

static void counts_that_differ(void **state)
{
    (void)state;
    struct bytes labels = HEADER(0x08, 3);
    add(&labels, "\1\2\3", 3);
    refuses("labels.idx", &labels, "images.idx has 2 items, but labels.idx has labels for 3");
    struct bytes pairs = HEADER(0x08, 2, 2);
    add(&pairs, "\1\2\3\4", 4);
    refuses("labels.idx", &pairs,
            "labels.idx: an item is [2], 2 values, where one label is needed");
}

static void empty_and_foreign_files(void **state)
{
    (void)state;
    struct bytes none = {.n = 0}, text = {.n = 0}, stump = {.n = 0}, no_dims = {.n = 0};
    refuses("images.idx", &none, "images.idx is empty");
    refuses("labels.idx", &none, "labels.idx is empty");
    add(&text, "1,2,3\n", 6);
    refuses("images.idx", &text, "images.idx is not an IDX file");
    add(&stump, "\0\0\x08", 3);
    refuses("images.idx", &stump, "images.idx is not an IDX file");
    add(&no_dims, "\0\0\x08\0", 4);
    refuses("images.idx", &no_dims, "images.idx has no dimensions");
    struct bytes type = HEADER(0x0a, 2, 2, 3);
    refuses("images.idx", &type, "images.idx: its element type 0x0a is none of IDX's");
    struct bytes zero = HEADER(0x08, 0, 2, 3);
    refuses("images.idx", &zero, "images.idx has no items");
    struct bytes flat = HEADER(0x08, 2, 0, 3);
    refuses("images.idx", &flat, "an item is [0, 3], 0 values");
    struct bytes cut = HEADER(0x08, 2, 2, 3);
    cut.n -= 2;
    refuses("images.idx", &cut,
            "images.idx ends after 14 bytes, in the middle of its header: 2 more were to come");
}

static void headers_that_lie(void **state)
{
    (void)state;
    struct bytes images = HEADER(0x08, 2, 2, 3);
    add(&images, "0123456789", 10);
    refuses("images.idx", &images,
            "images.idx: its header promises 12 bytes of data, but 10 bytes follow it");
    add(&images, "abc", 3);
    refuses("images.idx", &images, "promises 12 bytes of data, but 13 bytes follow it");
    struct bytes huge = HEADER(0x0e, 0xffffffff, 0xffffffff, 0xffffffff);
    refuses("images.idx", &huge, "promises more elements than 64 bits count");
    struct bytes wraps = HEADER(0x0e, 0x80000000, 0x40000000); /* 2^61 elements of 8 bytes */
    refuses("images.idx", &wraps, "promises more elements than 64 bits count");
    struct bytes deep = {.n = 0};
    add(&deep, "\0\0\x08\xff", 4);
    for (int i = 0; i < 255; i++)
        add_u32(&deep, 1);
    add(&deep, "x", 1);
    refuses("images.idx", &deep, "an item is [1, 1, 1, 1, 1, 1, ...], 1 values");
}

/* A gzip file's true size is known only when it is inflated; what cannot be is refused at once. */
static void packed_headers_that_lie(void **state)
{
    (void)state;
    put_good_set();
    struct job_spec job = idx_job(SPARSE, 6, 10);
    struct bytes labels = HEADER(0x08, 0xffffffff), images = HEADER(0x08, 0xffffffff, 2, 3);
    put_packed("labels.idx", labels.data, labels.n);
    put_packed("images.idx", images.data, images.n);
    refused(&job, ERR_INVALID, "promises 25769803770 bytes of data, more than a gzip file of");

    put_good_set();
    struct bytes b = HEADER(0x08, 2, 2, 3);
    add(&b, "0123456789", 10);
    put_packed("images.idx", b.data, b.n);
    refused(&job, ERR_INVALID,
            "images.idx ends after 26 bytes, in the middle of its data: 2 more were to come");
    add(&b, "abc", 3);
    put_packed("images.idx", b.data, b.n);
    refused(&job, ERR_INVALID, "images.idx goes on after the 28 bytes that its header promises");
}

static void damaged_packing(void **state)
{
    (void)state;
    put_good_set();
    struct job_spec job = idx_job(SPARSE, 6, 10);
    struct bytes b = HEADER(0x08, 2, 2, 3);
    add(&b, "0123456789ab", 12);
    unsigned char packed[256];
    size_t n = pack(b.data, b.n, packed, sizeof packed);
    put("images.idx", packed, n);
    struct prepared p = prepared(&job);
    data_unmap(&p);
    put("images.idx", packed, n - 6);
    refused(&job, ERR_CORRUPT, "images.idx ends in the middle of its gzip data");
    packed[n - 7] ^= 0x10;
    put("images.idx", packed, n);
    refused(&job, ERR_CORRUPT, "images.idx is damaged");
    packed[2] = 7;
    put("images.idx", packed, n);
    refused(&job, ERR_CORRUPT, "images.idx is damaged");
}

static void values_that_are_no_numbers(void **state)
{
    (void)state;
    struct bytes images = HEADER(0x0d, 2, 2, 3);
    for (int i = 0; i < 12; i++)
        add(&images, i == 10 ? "\x7f\xc0\x00\x00" : "\x3f\x80\x00\x00", 4);
    refuses("images.idx", &images, "images.idx item 2, number 5: value nan is not a finite number");
    struct bytes wide = HEADER(0x0e, 2, 2, 3);
    for (int i = 0; i < 12; i++)
        add(&wide, i == 6 ? "\x7f\xe0\x00\x00\x00\x00\x00\x00" : "\0\0\0\0\0\0\0\0", 8);
    refuses("images.idx", &wide,
            "images.idx item 2, number 1: value 8.98846567431158e+307 is too large for a "
            "32-bit float");
    struct bytes labels = HEADER(0x0d, 2);
    add(&labels, "\x3f\x80\x00\x00\x7f\x80\x00\x00", 8);
    refuses("labels.idx", &labels, "labels.idx item 2: label inf is not a finite number");
    struct bytes halves = HEADER(0x0d, 2);
    add(&halves, "\x3f\x80\x00\x00\x3f\x00\x00\x00", 8);
    refuses("labels.idx", &halves, "labels.idx item 2: label 0.5 is not a whole number");
    struct bytes negative = HEADER(0x09, 2);
    add(&negative, "\xff\x00", 2);
    refuses("labels.idx", &negative, "labels.idx item 1: label -1 is below 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsigned_bytes_stay_bytes),
        cmocka_unit_test(equal_counts_are_enough),
        cmocka_unit_test(every_element_type),
        cmocka_unit_test(labels_of_every_element_type),
        cmocka_unit_test(more_items_than_a_chunk),
        cmocka_unit_test(counts_that_differ),
        cmocka_unit_test(empty_and_foreign_files),
        cmocka_unit_test(headers_that_lie),
        cmocka_unit_test(packed_headers_that_lie),
        cmocka_unit_test(damaged_packing),
        cmocka_unit_test(values_that_are_no_numbers),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
