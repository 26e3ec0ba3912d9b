/* CSV tables: every shape of text that people have, and every sentence for what cannot be used. */
#include "tests/unit/trainer_data.h"

#include <math.h>

#include "trainer/data_parts.h"

#define SPARSE LOSS_SPARSE_CATEGORICAL_CROSSENTROPY

static void accepts(const char *text, enum csv_header header, int64_t rows, double first,
                    double last, int32_t last_class)
{
    put_text("data.csv", text);
    struct job_spec job = csv_job(SPARSE, 2, 10, header);
    struct prepared p = prepared(&job);
    if (p.train.samples != rows)
        fail_msg("%ld rows of \"%s\"", (long)p.train.samples, text);
    assert_int_equal(p.train.features.type, NUMBER_F32);
    assert_true(value_at(&p.train, 0, 0) == first);
    assert_true(value_at(&p.train, rows - 1, 1) == last);
    assert_int_equal(class_at(&p.train, rows - 1, 0), last_class);
    data_unmap(&p);
}

static void refuses(const char *text, enum csv_header header, const char *words)
{
    put_text("data.csv", text);
    struct job_spec job = csv_job(SPARSE, 2, 10, header);
    refused(&job, ERR_INVALID, words);
}

static void forms_of_text(void **state)
{
    (void)state;
    enum csv_header no = CSV_HEADER_NO;
    accepts("1,2,3\n4,5,6\n", no, 2, 1, 5, 6);
    accepts("1,2,3\n4,5,6", no, 2, 1, 5, 6);
    accepts("1,2,3\r\n4,5,6\r\n", no, 2, 1, 5, 6);
    accepts("1,2,3\r4,5,6\r", no, 2, 1, 5, 6);
    accepts("\n\n1,2,3\n\n  \n4,5,6\n\n", no, 2, 1, 5, 6);
    accepts("\"1\",\"2\",\"3\"\n\"4\",\" 5 \",\"6\"\n", no, 2, 1, 5, 6);
    accepts("\xef\xbb\xbf\"1\",2,3\n4,5,6\n", no, 2, 1, 5, 6);
    accepts(" 1 , 2 ,\t3\n+4,5.0,6e0\n", no, 2, 1, 5, 6);
    accepts("-1.5e-3,2,3\n4,.5,6.\n", no, 2, (double)-1.5e-3f, 0.5, 6);
}

static void headers(void **state)
{
    (void)state;
    accepts("a,b,label\n1,2,3\n4,5,6\n", CSV_HEADER_YES, 2, 1, 5, 6);
    accepts("a,b,label\n1,2,3\n4,5,6\n", CSV_HEADER_AUTO, 2, 1, 5, 6);
    accepts("1,2,3\n4,5,6\n", CSV_HEADER_AUTO, 2, 1, 5, 6);
    accepts("1,2,3\n4,5,6\n", CSV_HEADER_YES, 1, 4, 5, 6);
    /* Counts and class names, fewer or more of them than columns, as the UCI sets have it. */
    accepts("2,2,malignant,benign\n1,2,3\n4,5,6\n", CSV_HEADER_YES, 2, 1, 5, 6);
    accepts("2,2,malignant,benign\n1,2,3\n4,5,6\n", CSV_HEADER_AUTO, 2, 1, 5, 6);
    accepts("2,benign\n1,2,3\n4,5,6\n", CSV_HEADER_AUTO, 2, 1, 5, 6);
    accepts(",a,label\n1,2,3\n4,5,6\n", CSV_HEADER_AUTO, 2, 1, 5, 6);
    accepts("\"of two\r\nlines\",\"with \"\"quotes\"\"\",c\n1,2,3\n4,5,6\n", CSV_HEADER_AUTO, 2, 1,
            5, 6);
    refuses("a,b,label\n1,2,3\n", CSV_HEADER_NO,
            "data.csv line 1, column 1: \"a\" is not a number; if this line is a header, say "
            "\"header\": true");
    refuses("1,NA,3\n1,2,3\n", CSV_HEADER_AUTO,
            "data.csv line 1, column 2: \"NA\" stands for a missing value");
    refuses("1,nan,3\n1,2,3\n", CSV_HEADER_AUTO,
            "line 1, column 2: \"nan\" stands for a missing value");
    refuses("a,b,label\n", CSV_HEADER_AUTO, "data.csv has no rows of data");
    refuses("1,2,3\n", CSV_HEADER_YES, "data.csv has no rows of data");
}

static void notes(void **state)
{
    (void)state;
    put_text("data.csv", "5,4,setosa\n1,2,3\n");
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_AUTO);
    struct prepared p = prepared(&job);
    assert_string_equal(p.note, "data.csv: line 1 was taken as the header, since \"setosa\" in "
                                "column 3 is not a number");
    data_unmap(&p);
    job.train.header = CSV_HEADER_YES;
    p = prepared(&job);
    assert_string_equal(p.note, "data.csv: line 1 was dropped as the header, as the job says");
    data_unmap(&p);
    put_text("data.csv", "\n5,4,3\n1,2,3\n");
    job.train.header = CSV_HEADER_AUTO;
    job.validation = job.train;
    job.validation.header = CSV_HEADER_YES;
    job.has_validation = 1;
    p = prepared(&job);
    assert_string_equal(p.note, "data.csv: no header, line 2 has no words; data.csv: line 2 was "
                                "dropped as the header, as the job says");
    assert_int_equal(p.train.samples, 2);
    assert_int_equal(p.validation.samples, 1);
    data_unmap(&p);
}

static void ragged_rows(void **state)
{
    (void)state;
    refuses("1,2,3\n4,5\n", CSV_HEADER_NO,
            "data.csv line 2: 2 columns where the lines before have 3");
    refuses("1,2,3\n\n\n4,5,6,7\n", CSV_HEADER_NO,
            "data.csv line 4: 4 columns where the lines before have 3");
    refuses("1,2,3\r\n4,5,6\r\n1,2,3,\r\n", CSV_HEADER_NO,
            "line 3, column 4: \"\" stands for a missing value");
    refuses("h,\"two\nlines\",c\n1,2,3\n4,5\n", CSV_HEADER_YES, "data.csv line 4: 2 columns");
    refuses("h,\"two\nlines\",c\n1,2,3\n4,5\n", CSV_HEADER_AUTO, "data.csv line 4: 2 columns");
}

static void fields_that_are_no_numbers(void **state)
{
    (void)state;
    const char *rows = "1,2,3\n1,2,3\n1,2,3\n1,2,3\n1,2,3\n1,2,3\n1,2,3\n1,2,3\n";
    static const char *const CASES[][2] = {
        {"1,2,NA", "data.csv line 9, column 3: \"NA\" stands for a missing value"},
        {"1,,3", "line 9, column 2: \"\" stands for a missing value"},
        {"1,\"\",3", "line 9, column 2: \"\" stands for a missing value"},
        {"1,0x10,3", "\"0x10\" is not a number"},
        {"1,1e,3", "\"1e\" is not a number"},
        {"1,1.2.3,3", "\"1.2.3\" is not a number"},
        {"1,--2,3", "\"--2\" is not a number"},
        {"1,-,3", "\"-\" stands for a missing value"},
        {"1,1 2,3", "\"1 2\" is not a number"},
        {"1,NaN,3", "line 9, column 2: \"NaN\" stands for a missing value"},
        {"inf,2,3", "line 9, column 1: \"inf\" is not a finite number"},
        {"-Infinity,2,3", "\"-Infinity\" is not a finite number"},
        {"1e999,2,3", "\"1e999\" is not a finite number"},
        {"1e39,2,3", "\"1e39\" is too large for a 32-bit float"},
        {"1;2;3", "\"1;2;3\" is not a number; columns are separated by commas"},
        {"1,2,caf\xc3\xa9", "\"caf\xc3\xa9\" is not a number"},
        {"1,2,caf\xe9", "\"caf\\xe9\" is not a number"},
        {"1,2,\x01\x1b[31m", "\"\\x01\\x1b[31m\" is not a number"},
        {"1,2,aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"... is not a number"},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s%s\n", rows, CASES[i][0]);
        refuses(text, CSV_HEADER_NO, CASES[i][1]);
    }
    put("data.csv", "1,2\0,3\n", 7);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    refused(&job, ERR_INVALID, "\"2\\x00\" is not a number");
}

static struct job_spec missing_job(enum csv_missing policy, const char *text)
{
    put_text("data.csv", text);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_AUTO);
    job.train.missing = policy;
    job.train.fill = -1.5;
    return job;
}

/* A first row with a missing value is no header, and the row behind it counts. */
static void rows_with_missing_values_are_dropped(void **state)
{
    (void)state;
    static const char *const MARKS[] = {"",    " ",    "NA",   "na", "N/A", "#N/A", "NaN",
                                        "nan", "null", "None", "?",  "-",   ".",    "\"\""};
    for (size_t i = 0; i < ARRAY_LEN(MARKS); i++) {
        char text[128], note[256];
        snprintf(text, sizeof text, "1,2,3\n1,%s,3\n%s,5,6\n4,5,6\n4,5,%s\n", MARKS[i], MARKS[i],
                 MARKS[i]);
        struct job_spec job = missing_job(CSV_MISSING_DROP, text);
        struct prepared p = prepared(&job);
        assert_int_equal(p.train.samples, 2);
        assert_true(value_at(&p.train, 1, 0) == 4);
        assert_int_equal(class_at(&p.train, 1, 0), 6);
        const char *mark = strspn(MARKS[i], " \"") == strlen(MARKS[i]) ? "" : MARKS[i];
        snprintf(note, sizeof note,
                 "data.csv: no header, line 1 has no words; data.csv: 3 of 5 rows were dropped, as "
                 "values are missing in them (the first: \"%s\" in line 2, column 2)",
                 mark);
        assert_string_equal(p.note, note);
        data_unmap(&p);
    }
    struct job_spec job = missing_job(CSV_MISSING_DROP, "?,2,3\n1,2,3\n");
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 1);
    assert_non_null(strstr(p.note, "1 of 2 rows were dropped"));
    data_unmap(&p);
    job = missing_job(CSV_MISSING_DROP, "?,name,3\n1,2,3\n");
    p = prepared(&job);
    assert_int_equal(p.train.samples, 1);
    assert_string_equal(p.note,
                        "data.csv: line 1 was taken as the header, since \"name\" in column "
                        "2 is not a number");
    data_unmap(&p);
    job = missing_job(CSV_MISSING_DROP, "1,,3\n,2,3\n");
    refused(&job, ERR_INVALID, "data.csv has no rows of data left: all 2 have missing values");
    job = missing_job(CSV_MISSING_DROP, "1,,3\n1,2\n");
    refused(&job, ERR_INVALID, "data.csv line 2: 2 columns where the lines before have 3");
    job = missing_job(CSV_MISSING_DROP, "1,inf,3\n1,2,3\n");
    refused(&job, ERR_INVALID, "line 1, column 2: \"inf\" is not a finite number");
    job = missing_job(CSV_MISSING_DROP, "1,2,3\n1,missing,3\n");
    refused(&job, ERR_INVALID, "line 2, column 2: \"missing\" is not a number");
}

static void missing_values_are_filled(void **state)
{
    (void)state;
    struct job_spec job = missing_job(CSV_MISSING_FILL, "1,2,3\n,NA,4\n4,?,6\n");
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 3);
    assert_true(value_at(&p.train, 1, 0) == -1.5 && value_at(&p.train, 1, 1) == -1.5);
    assert_true(value_at(&p.train, 2, 0) == 4 && value_at(&p.train, 2, 1) == -1.5);
    assert_int_equal(class_at(&p.train, 1, 0), 4);
    assert_string_equal(p.note, "data.csv: no header, line 1 has no words; data.csv: 3 missing "
                                "values in 2 rows were filled with -1.5 (the first: \"\" in line "
                                "2, column 1)");
    data_unmap(&p);
    job = missing_job(CSV_MISSING_FILL, "1,2,3\n1,2,NA\n");
    refused(&job, ERR_INVALID,
            "data.csv line 2: the label, column 3, is missing, and no fill can stand for it; "
            "\"missing\": \"drop\" leaves such rows out");
    job.model.layers[0].type = LAYER_EMBEDDING;
    job.model.layers[0].vocabulary = 5;
    refused(&job, ERR_INVALID, "data.csv cannot be filled with that: value -1.5 is not a whole");
    job = missing_job(CSV_MISSING_ERROR, "1,2,3\n1,NA,3\n");
    refused(&job, ERR_INVALID,
            "data.csv line 2, column 2: \"NA\" stands for a missing value; \"missing\": \"drop\" "
            "leaves such rows out, \"fill\" puts a number there");
}

static void the_first_rows_only(void **state)
{
    (void)state;
    struct job_spec job = missing_job(CSV_MISSING_DROP, "a,b,c\n1,2,3\n1,,3\n4,5,6\nx,\"y");
    job.train.limit = 2; /* rows that are kept; what follows is not read */
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 2);
    assert_int_equal(class_at(&p.train, 1, 0), 6);
    assert_non_null(strstr(p.note, "1 of 3 rows were dropped"));
    data_unmap(&p);
    job.train.limit = 3;
    refused(&job, ERR_INVALID, "data.csv line 5");
}

static void rows_for_an_embedding(void **state)
{
    (void)state;
    struct job_spec job = missing_job(CSV_MISSING_ERROR, "1,2,3\n4,5,6\n");
    job.model.layers[0].type = LAYER_EMBEDDING;
    job.model.layers[0].vocabulary = 5;
    refused(&job, ERR_INVALID,
            "data.csv line 2, column 2: value 5 is not below 5, the vocabulary of the embedding "
            "that reads it");
    job.model.layers[0].vocabulary = 6;
    struct prepared p = prepared(&job);
    data_unmap(&p);
}

static void labels(void **state)
{
    (void)state;
    refuses(
        "1,2,3\n1,2,12\n", CSV_HEADER_NO,
        "data.csv line 2: label 12 is not below 10, the number of classes that the model's last "
        "layer has");
    refuses("1,2,10\n", CSV_HEADER_NO, "label 10 is not below 10");
    refuses("1,2,-1\n", CSV_HEADER_NO, "data.csv line 1: label -1 is below 0");
    refuses("1,2,1.5\n", CSV_HEADER_NO,
            "label 1.5 is not a whole number, but sparse_categorical_crossentropy needs class "
            "numbers from 0");
    refuses("1,2,3000000000\n", CSV_HEADER_NO, "label 3000000000 is not below 10");
}

static void label_columns(void **state)
{
    (void)state;
    static const struct {
        int64_t label_column;
        double x0, x1;
        int32_t class;
    } CASES[] = {{-1, 1, 2, 3}, {0, 2, 3, 1},  {1, 1, 3, 2},
                 {2, 1, 2, 3},  {-3, 2, 3, 1}, {-2, 1, 3, 2}};
    put_text("data.csv", "1,2,3\n1,2,3\n");
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
        job.train.label_column = CASES[i].label_column;
        struct prepared p = prepared(&job);
        assert_true(value_at(&p.train, 1, 0) == CASES[i].x0);
        assert_true(value_at(&p.train, 1, 1) == CASES[i].x1);
        assert_int_equal(class_at(&p.train, 1, 0), CASES[i].class);
        data_unmap(&p);
    }
    static const int64_t OUTSIDE[] = {3, -4, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < ARRAY_LEN(OUTSIDE); i++) {
        struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
        job.train.label_column = OUTSIDE[i];
        refused(&job, ERR_INVALID, "among 3 columns");
    }
}

static void shapes_that_do_not_fit(void **state)
{
    (void)state;
    refuses(
        "1,2,3,4\n", CSV_HEADER_NO,
        "data.csv line 1: 3 columns beside the label, where the model's input is [2], 2 values");
    refuses("1\n", CSV_HEADER_NO, "0 columns beside the label");
    put_text("data.csv", "1,2,3\n");
    struct job_spec job = csv_job(SPARSE, INT64_MAX, 10, CSV_HEADER_NO);
    refused(&job, ERR_INVALID, "2 columns beside the label");
}

static void empty_files(void **state)
{
    (void)state;
    refuses("", CSV_HEADER_NO, "data.csv is empty");
    refuses("", CSV_HEADER_AUTO, "data.csv is empty");
    refuses("\n\n\r\n", CSV_HEADER_NO, "data.csv has no rows of data");
    refuses("\xef\xbb\xbf", CSV_HEADER_NO, "data.csv has no rows of data");
    put_packed("data.csv", "", 0);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    refused(&job, ERR_INVALID, "data.csv is empty");
}

static void broken_text(void **state)
{
    (void)state;
    refuses("1,2,3\n1,\"2,3\n1,2,3\n", CSV_HEADER_NO,
            "data.csv line 2, column 2: a quote is opened and never closed");
    refuses("1,2,3\n1,2\"2,3\n", CSV_HEADER_NO, "line 2, column 2: a quote in the wrong place");
    refuses("1,2,3\n1,\"2\"2,3\n", CSV_HEADER_NO, "line 2, column 2: a quote in the wrong place");
    put("data.csv",
        "\xff\xfe"
        "1\0,\0",
        6);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    refused(&job, ERR_INVALID, "data.csv is UTF-16 text");
}

static void an_endless_field(void **state)
{
    (void)state;
    size_t n = 3u << 20;
    char *text = mem_alloc(n);
    memset(text, '7', n);
    memcpy(text, "1,2,3\n\"", 7);
    put_packed("data.csv", text, n);
    free(text);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    refused(&job, ERR_TOO_LARGE, "data.csv line 2, column 1: a field of more than 1048576 bytes");
}

static void packed_text(void **state)
{
    (void)state;
    put_packed("data.csv", "1,2,3\n4,5,6\n", 12);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 2);
    data_unmap(&p);

    unsigned char bytes[200];
    size_t n = pack("1,2,3\n", 6, bytes, 100); /* two members after each other */
    n += pack("4,5,6\n", 6, bytes + n, 100);
    put("data.csv", bytes, n);
    p = prepared(&job);
    assert_int_equal(p.train.samples, 2);
    assert_int_equal(class_at(&p.train, 1, 0), 6);
    data_unmap(&p);

    put("data.csv", bytes, n - 4);
    refused(&job, ERR_CORRUPT, "data.csv ends in the middle of its gzip data");
    put("data.csv", bytes, n - 12);
    refused(&job, ERR_CORRUPT, "data.csv ends in the middle of its gzip data");
    bytes[n - 6] ^= 1; /* the checksum */
    put("data.csv", bytes, n);
    refused(&job, ERR_CORRUPT, "data.csv is damaged");
}

/* zlib reads up to what it does not know and says nothing: the rows behind it would be lost. */
static void what_follows_packed_text(void **state)
{
    (void)state;
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    unsigned char bytes[600] = {0};
    size_t one = pack("1,2,3\n", 6, bytes, 100);
    size_t two = one + pack("4,5,6\n", 6, bytes + one, 100);
    put("data.csv", bytes, two + 300); /* zeros, as a tape has them */
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 2);
    data_unmap(&p);
    put("data.csv", bytes, one); /* one member alone */
    p = prepared(&job);
    assert_int_equal(p.train.samples, 1);
    data_unmap(&p);
    bytes[two] = 'x';
    put("data.csv", bytes, two + 1);
    refused(&job, ERR_CORRUPT, "data.csv: 1 bytes that are no gzip data follow the first");
    bytes[one] ^= 1; /* the second member's magic */
    put("data.csv", bytes, two);
    refused(&job, ERR_CORRUPT, "is a second part damaged?");
}

/* More rows than a chunk and than the first size of the memfd, against arithmetic. */
static void many_rows(void **state)
{
    (void)state;
    struct buf text = BUF_INIT;
    int64_t n = 200000;
    for (int64_t i = 0; i < n; i++)
        buf_addf(&text, "%ld,%ld.5,%ld\n", (long)i, (long)(i % 1000), (long)(i % 10));
    put("data.csv", text.data, text.len);
    buf_done(&text);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_AUTO);
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, n);
    for (int64_t i = 0; i < n; i++) {
        if (value_at(&p.train, i, 0) != (double)i ||
            value_at(&p.train, i, 1) != (double)(i % 1000) + 0.5 ||
            class_at(&p.train, i, 0) != i % 10)
            fail_msg("row %ld", (long)i);
    }
    data_unmap(&p);
}

/* The short way of reading numbers against strtod, bit by bit. */
static void numbers_as_strtod_reads_them(void **state)
{
    (void)state;
    static const char *const TEXTS[] = {"0",
                                        "-0",
                                        "1",
                                        "17.99",
                                        "0.1184",
                                        "122.8",
                                        "1001",
                                        "0.006399",
                                        "123456789012345",
                                        "0.00000000000001",
                                        "999999999999999",
                                        "1234567890123456",
                                        "3.141592653589793238462643",
                                        "1e10",
                                        "1E-10",
                                        "2.2250738585072014e-308",
                                        "4.9e-324",
                                        "1.7976931348623157e308",
                                        "-.5",
                                        "5.",
                                        "+7",
                                        "0.1",
                                        "0.3",
                                        "123456.789012345",
                                        "00012",
                                        "16777217"};
    for (size_t i = 0; i < ARRAY_LEN(TEXTS); i++) {
        double got = -1, wanted = strtod(TEXTS[i], NULL);
        assert_int_equal(data_parse_number(TEXTS[i], strlen(TEXTS[i]), &got), 1);
        if (memcmp(&got, &wanted, sizeof got) != 0)
            fail_msg("%s gave %.17g", TEXTS[i], got);
    }
    static const char *const NONE[] = {"",    " ",     "+",       "-",    ".",  "-.",
                                       "e5",  "1e",    "1e+",     "+-1",  "1-", "0x1",
                                       "1,5", "1_000", "infinit", "nanx", "1f", "½"};
    for (size_t i = 0; i < ARRAY_LEN(NONE); i++) {
        double got = -1;
        if (data_parse_number(NONE[i], strlen(NONE[i]), &got))
            fail_msg("\"%s\" gave %.17g", NONE[i], got);
        assert_true(got == -1);
    }
    char digits[600];
    memset(digits, '1', sizeof digits);
    double got;
    assert_int_equal(data_parse_number(digits, 300, &got), 1);
    assert_int_equal(data_parse_number(digits, 600, &got), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_of_text),
        cmocka_unit_test(headers),
        cmocka_unit_test(notes),
        cmocka_unit_test(ragged_rows),
        cmocka_unit_test(fields_that_are_no_numbers),
        cmocka_unit_test(rows_with_missing_values_are_dropped),
        cmocka_unit_test(missing_values_are_filled),
        cmocka_unit_test(the_first_rows_only),
        cmocka_unit_test(rows_for_an_embedding),
        cmocka_unit_test(labels),
        cmocka_unit_test(label_columns),
        cmocka_unit_test(shapes_that_do_not_fit),
        cmocka_unit_test(empty_files),
        cmocka_unit_test(broken_text),
        cmocka_unit_test(an_endless_field),
        cmocka_unit_test(packed_text),
        cmocka_unit_test(what_follows_packed_text),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(numbers_as_strtod_reads_them),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
