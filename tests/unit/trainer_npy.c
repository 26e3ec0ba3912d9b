/* npy files: every kind of number, the forms of the header, and headers that cannot be right. */
#include "tests/unit/trainer_npy.h"

#include <math.h>

#include "trainer/data_parts.h"

#define SPARSE LOSS_SPARSE_CATEGORICAL_CROSSENTROPY

static void a_good_set(void **state)
{
    (void)state;
    npy_put_good_set();
    struct job_spec job = npy_job(SPARSE, 3, 10);
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 2);
    assert_int_equal(p.train.features.type, NUMBER_F32);
    assert_true(value_at(&p.train, 0, 1) == -2 && value_at(&p.train, 1, 2) == 6);
    assert_int_equal(class_at(&p.train, 0, 0), 7);
    assert_int_equal(class_at(&p.train, 1, 0), 9);
    assert_false(data_is_streamed(&p.train));
    assert_string_equal(p.note, "");
    data_unmap(&p);
}

static void every_kind_of_number(void **state)
{
    (void)state;
    static const struct {
        const char *descr;
        const char *raw; /* 1, then the type's own */
        size_t width;
        double second;
    } CASES[] = {
        {"<f4", "\x00\x00\x80\x3f\xdb\x0f\x49\xc0", 4, (double)-3.14159274f},
        {">f4", "\x3f\x80\x00\x00\xc0\x49\x0f\xdb", 4, (double)-3.14159274f},
        {"<f8", "\0\0\0\0\0\0\xf0\x3f\x18\x2d\x44\x54\xfb\x21\x09\xc0", 8, (double)-3.14159274f},
        {">f8", "\x3f\xf0\0\0\0\0\0\0\xc0\x09\x21\xfb\x54\x44\x2d\x18", 8, (double)-3.14159274f},
        {"<i4", "\1\0\0\0\0\0\0\x80", 4, -2147483648.0},
        {">i4", "\0\0\0\1\x80\0\0\0", 4, -2147483648.0},
        {"<i8", "\1\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0", 8, 4294967296.0},
        {">i8", "\0\0\0\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xfe", 8, -2},
        {"|u1", "\1\xff", 1, 255},
        {"<u1", "\1\xff", 1, 255},
        {"|i1", "\1\x80", 1, -128},
        {"|b1", "\1\0", 1, 0},
        {"<u2", "\1\0\xff\xff", 2, 65535},
        {">u2", "\0\1\1\0", 2, 256},
        {"<i2", "\1\0\0\x80", 2, -32768},
        {"<u4", "\1\0\0\0\0\0\0\x80", 4, 2147483648.0},
        {">u4", "\0\0\0\1\x80\0\0\0", 4, 2147483648.0},
        {"<u8", "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x80", 8, 9223372036854775808.0},
    };
    npy_put("y.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", "\3", 1);
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        char dictionary[128];
        snprintf(dictionary, sizeof dictionary,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (1, 2), }", CASES[i].descr);
        npy_put("x.npy", dictionary, CASES[i].raw, 2 * CASES[i].width);
        struct job_spec job = npy_job(SPARSE, 2, 10);
        struct prepared p = prepared(&job);
        if (value_at(&p.train, 0, 0) != 1 || value_at(&p.train, 0, 1) != CASES[i].second)
            fail_msg("%s gave %.17g", CASES[i].descr, value_at(&p.train, 0, 1));
        assert_in_range(number_width(p.train.features.type), 1, 4);
        data_unmap(&p);
    }
}

static void labels_of_every_kind(void **state)
{
    (void)state;
    static const struct {
        const char *descr, *raw; /* 1, then 0 */
        size_t width;
    } CASES[] = {{"<f4", "\0\0\x80\x3f\0\0\0\0", 4},
                 {">f8", "\x3f\xf0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 8},
                 {"<i4", "\1\0\0\0\0\0\0\0", 4},
                 {">i8", "\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0", 8},
                 {"|b1", "\1\0", 1},
                 {"<u8", "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 8}};
    npy_put_good_set();
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        char dictionary[128];
        snprintf(dictionary, sizeof dictionary,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (2, 1), }", CASES[i].descr);
        npy_put("y.npy", dictionary, CASES[i].raw, 2 * CASES[i].width);
        struct job_spec job = npy_job(SPARSE, 3, 10);
        struct prepared p = prepared(&job);
        assert_int_equal(class_at(&p.train, 0, 0), 1);
        assert_int_equal(class_at(&p.train, 1, 0), 0);
        data_unmap(&p);
        job = npy_job(LOSS_BINARY_CROSSENTROPY, 3, 1);
        p = prepared(&job);
        assert_true(target_at(&p.train, 0, 0) == 1 && target_at(&p.train, 1, 0) == 0);
        data_unmap(&p);
    }
}

static void forms_of_the_header(void **state)
{
    (void)state;
    static const struct {
        int major;
        const char *dictionary;
    } CASES[] = {
        {1, NPY_X},
        {2, NPY_X},
        {3, NPY_X},
        {1, "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}"},
        {1, "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2,3)}"},
        {1, "{'descr':'<f4','fortran_order':False,'shape':(2,3,)}        "},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3, 1), }"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3), }"},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct buf b = BUF_INIT;
        npy_put_good_set();
        npy_add(&b, CASES[i].major, CASES[i].dictionary, npy_x, sizeof npy_x);
        put("x.npy", b.data, b.len);
        buf_done(&b);
        int whole = i + 1 == ARRAY_LEN(CASES); /* one item of two rows */
        if (whole)
            npy_put("y.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", "\3", 1);
        struct job_spec job = npy_job(SPARSE, whole ? 6 : 3, 10);
        struct prepared p = prepared(&job);
        assert_int_equal(p.train.samples, whole ? 1 : 2);
        assert_true(value_at(&p.train, 0, 2) == 0.5);
        data_unmap(&p);
    }
}

static void fortran_order(void **state)
{
    (void)state;
    npy_put_good_set();
    struct job_spec job = npy_job(SPARSE, 3, 10);
    npy_put("y.npy", "{'descr': '<i8', 'fortran_order': True, 'shape': (2, 1), }", npy_y,
            sizeof npy_y);
    struct prepared p = prepared(&job);
    assert_int_equal(class_at(&p.train, 1, 0), 9);
    data_unmap(&p);
    npy_put("x.npy", "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", npy_x,
            sizeof npy_x);
    refused(&job, ERR_INVALID,
            "x.npy is in Fortran order, so that an item is scattered over the file; save it with "
            "numpy.ascontiguousarray");
}

static void labels_at_each_position(void **state)
{
    (void)state;
    npy_put_good_set();
    npy_put("y.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }",
            (const int32_t[]){0, 1, 2, 3, 2, 1}, 24);
    struct job_spec job = npy_job(SPARSE, 3, 12);
    job.model.layers[0].out = (struct shape){2, {3, 4}};
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.positions, 3);
    assert_int_equal(p.train.target_size, 3);
    assert_int_equal(class_at(&p.train, 1, 0), 3);
    assert_int_equal(class_at(&p.train, 0, 2), 2);
    data_unmap(&p);
    job.loss = LOSS_CATEGORICAL_CROSSENTROPY;
    p = prepared(&job);
    assert_int_equal(p.train.positions, 3);
    assert_int_equal(p.train.target_size, 12);
    for (int i = 0; i < 12; i++)
        assert_true(target_at(&p.train, 1, i) == (i == 3 || i == 6 || i == 9));
    data_unmap(&p);
    job.model.layers[0].out = (struct shape){2, {3, 3}};
    refused(&job, ERR_INVALID, "y.npy item 2, number 1: label 3 is not below 3, the number of");
    job.model.layers[0].out = (struct shape){1, {4}};
    refused(&job, ERR_INVALID, "y.npy: an item is [3], 3 values, where one label is needed");
    job.model.layers[0].out = (struct shape){2, {2, 4}};
    refused(&job, ERR_INVALID,
            "y.npy: an item is [3], 3 values, where categorical_crossentropy of the model's output "
            "[2, 4] needs 2 labels");
}

static void several_outputs(void **state)
{
    (void)state;
    npy_put_good_set();
    npy_put("y.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }",
            (const double[]){0.25, -1, 1, 1e6}, 32);
    struct job_spec job = npy_job(LOSS_MEAN_SQUARED_ERROR, 3, 2);
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.positions, 1);
    assert_true(target_at(&p.train, 0, 1) == -1 && target_at(&p.train, 1, 1) == 1e6);
    data_unmap(&p);
    job.loss = LOSS_BINARY_CROSSENTROPY;
    refused(&job, ERR_INVALID, "y.npy item 1, number 1: label 0.25 is neither 0 nor 1");
    npy_put("y.npy", NPY_Y, npy_y, sizeof npy_y);
    refused(&job, ERR_INVALID, "binary_crossentropy needs a single output, as there is one label");
}

/* What an embedding reads must be a row of its table. */
static void numbers_for_an_embedding(void **state)
{
    (void)state;
    npy_put_good_set();
    struct job_spec job = npy_job(SPARSE, 3, 10);
    job.model.layers[0].type = LAYER_EMBEDDING;
    job.model.layers[0].vocabulary = 6;
    refused(&job, ERR_INVALID,
            "x.npy item 1, number 2: value -2 is not a whole number from 0, as the embedding that "
            "reads it needs it");
    npy_put("x.npy", NPY_X, (const float[]){1, 2, 0.5f, 4, 5, 6}, 24);
    refused(&job, ERR_INVALID, "x.npy item 1, number 3: value 0.5 is not a whole number");
    npy_put("x.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }",
            (const int64_t[]){1, 2, 3, 4, 5, 6}, 48);
    refused(&job, ERR_INVALID,
            "x.npy item 2, number 3: value 6 is not below 6, the vocabulary of the embedding");
    job.model.layers[0].vocabulary = 7;
    struct prepared p = prepared(&job);
    assert_true(value_at(&p.train, 1, 2) == 6);
    data_unmap(&p);
    job.model.layers[0].vocabulary = INT64_C(1) << 25;
    refused(&job, ERR_INVALID, "the embedding's vocabulary of 33554432 is too large");
}

static void values_that_cannot_be(void **state)
{
    (void)state;
    struct job_spec job = npy_job(SPARSE, 3, 10);
    npy_put_good_set();
    npy_put("x.npy", NPY_X, (const float[]){1, 2, 3, 4, NAN, 6}, 24);
    refused(&job, ERR_INVALID, "x.npy item 2, number 2: value nan is not a finite number");
    npy_put("x.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }",
            (const double[]){1, 2, 3, 4, 5, -1e300}, 48);
    refused(&job, ERR_INVALID,
            "x.npy item 2, number 3: value -1e+300 is too large for a 32-bit float");
    npy_put("x.npy", "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 3), }", "\0\1\0\1\2\0",
            6);
    refused(&job, ERR_INVALID, "x.npy item 2, number 2: byte 2 is neither true nor false");
    npy_put_good_set();
    npy_put("y.npy", NPY_Y, (const int64_t[]){3, 10}, 16);
    refused(&job, ERR_INVALID, "y.npy item 2: label 10 is not below 10, the number of classes");
    npy_put("y.npy", NPY_Y, (const int64_t[]){-1, 3}, 16);
    refused(&job, ERR_INVALID, "y.npy item 1: label -1 is below 0");
}

/* Headers in the place of the good one, with the good one's data. */
static void headers_that_cannot_be_read(void **state)
{
    (void)state;
    static const char broken[] = "x.npy: its header is no dictionary of \"descr\"";
    static const struct {
        const char *dictionary, *words;
    } CASES[] = {
        {"", broken},
        {"{}", broken},
        {"{'descr': '<f4', 'fortran_order': False}", broken},
        {"{'descr': '<f4', 'shape': (2, 3)}", broken},
        {"{'fortran_order': False, 'shape': (2, 3)}", broken},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1}", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} x", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", broken},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6)}", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616, 3)}", broken},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}", broken},
        {"{'descr': '<f4\\'', 'fortran_order': False, 'shape': (2, 3)}", broken},
        {"{'descr': '<f4'; 'fortran_order': False; 'shape': (2, 3)}", broken},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}",
         "x.npy is an array of Python objects, which only Python can read"},
        {"{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (2,)}",
         "x.npy is an array of records"},
        {"{'descr': '<U10', 'fortran_order': False, 'shape': (2, 3)}",
         "x.npy: its dtype \"<U10\" is none that can be read"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (2, 3)}", "its dtype \"<c8\" is none"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3)}", "its dtype \"<f2\" is none"},
        {"{'descr': '|f4', 'fortran_order': False, 'shape': (2, 3)}", "its dtype \"|f4\" is none"},
        {"{'descr': 'f4', 'fortran_order': False, 'shape': (2, 3)}", "its dtype \"f4\" is none"},
        {"{'descr': '', 'fortran_order': False, 'shape': (2, 3)}", "its dtype \"\" is none"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': ()}",
         "x.npy is a single number, not an array of items"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3)}", "x.npy has no items"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}",
         "x.npy: an item is [4], 4 values, where the model's input is [3], 3 values"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3)}",
         "x.npy has 3 items, but y.npy has labels for 2"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3)}",
         "x.npy: its header promises 48 bytes of data, but 24 bytes follow it"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 3)}",
         "x.npy: its header promises more elements than 64 bits count"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
         "promises more elements than 64 bits count"},
    };
    npy_put_good_set();
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        npy_put("x.npy", CASES[i].dictionary, npy_x, sizeof npy_x);
        struct job_spec job = npy_job(SPARSE, 3, 10);
        refused(&job, ERR_INVALID, CASES[i].words);
    }
}

static void files_that_are_no_npy(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        int code;
        const char *words;
    } CASES[] = {
        {"", 0, ERR_INVALID, "x.npy is empty"},
        {"1,2,3\n", 6, ERR_INVALID, "x.npy is not a file of numpy.save"},
        {"\x93NUMPX\1\0", 8, ERR_INVALID, "x.npy is not a file of numpy.save"},
        {"\x93NUMPY\1", 7, ERR_INVALID, "x.npy is not a file of numpy.save"},
        {"\x93NUMPY\4\0\0\0", 10, ERR_INVALID, "x.npy has version 4.0; versions 1.0 to 3.0"},
        {"\x93NUMPY\1\1\0\0", 10, ERR_INVALID, "x.npy has version 1.1"},
        {"\x93NUMPY\1\0\x76", 9, ERR_INVALID, "ends after 9 bytes, in the middle of its header"},
        {"\x93NUMPY\1\0\x76\0{", 11, ERR_INVALID, "in the middle of its header: 117 more"},
        {"\x93NUMPY\2\0\0\0\0\x7f{", 13, ERR_TOO_LARGE,
         "x.npy: its header is said to have 2130706432 bytes; at most 65535 can be right"},
        {"\x93NUMPY\1\0\3\0{\0}", 13, ERR_INVALID, "there are NUL bytes in its header"},
    };
    npy_put_good_set();
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        put("x.npy", CASES[i].bytes, CASES[i].n);
        struct job_spec job = npy_job(SPARSE, 3, 10);
        refused(&job, CASES[i].code, CASES[i].words);
    }
}

static void packed_files(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct job_spec job = npy_job(SPARSE, 3, 10);
    npy_put_good_set();
    npy_add(&b, 1, NPY_X, npy_x, sizeof npy_x);
    put_packed("x.npy", b.data, b.len);
    struct prepared p = prepared(&job);
    assert_true(value_at(&p.train, 1, 1) == 5);
    data_unmap(&p);
    put_packed("x.npy", b.data, b.len - 4);
    refused(&job, ERR_INVALID, "in the middle of its data: 4 more were to come");
    buf_adds(&b, "more");
    put_packed("x.npy", b.data, b.len);
    refused(&job, ERR_INVALID, "x.npy goes on after the");
    buf_done(&b);
}

static void the_first_so_many(void **state)
{
    (void)state;
    npy_put_good_set();
    struct job_spec job = npy_job(SPARSE, 3, 10);
    job.train.limit = 1;
    npy_put("y.npy", NPY_Y, (const int64_t[]){3, 99}, 16); /* the second is not looked at */
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 1);
    assert_int_equal(class_at(&p.train, 0, 0), 3);
    data_unmap(&p);
    npy_put_good_set();
    job.train.limit = 3;
    p = prepared(&job);
    assert_int_equal(p.train.samples, 2);
    data_unmap(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_set),
        cmocka_unit_test(every_kind_of_number),
        cmocka_unit_test(labels_of_every_kind),
        cmocka_unit_test(forms_of_the_header),
        cmocka_unit_test(fortran_order),
        cmocka_unit_test(labels_at_each_position),
        cmocka_unit_test(several_outputs),
        cmocka_unit_test(numbers_for_an_embedding),
        cmocka_unit_test(values_that_cannot_be),
        cmocka_unit_test(headers_that_cannot_be_read),
        cmocka_unit_test(files_that_are_no_npy),
        cmocka_unit_test(packed_files),
        cmocka_unit_test(the_first_so_many),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
