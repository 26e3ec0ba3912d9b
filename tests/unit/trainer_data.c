/* The prepare step as a whole: the reference runs' data, splits, losses, roots, and memfds that
 * lie. */
#include "tests/unit/trainer_data.h"

#include <math.h>
#include <sys/stat.h>

#include "trainer/data_parts.h"
#include "trainer/mt19937.h"

#define SPARSE LOSS_SPARSE_CATEGORICAL_CROSSENTROPY

static const char *const shipped_list[] = {"tests/reference", "examples/data"};
static const struct data_roots shipped = {shipped_list, 2};

static struct data_source mnist(int is_train)
{
    static char files[4][64] = {
        "mnist10k/train-images-idx3-ubyte.gz", "mnist10k/train-labels-idx1-ubyte.gz",
        "mnist10k/t10k-images-idx3-ubyte.gz", "mnist10k/t10k-labels-idx1-ubyte.gz"};
    return (struct data_source){
        .format = DATA_IDX, .images = files[is_train ? 0 : 2], .labels = files[is_train ? 1 : 3]};
}

static void the_mnist_digits(void **state)
{
    (void)state;
    struct job_spec job = make_job(SPARSE, 784, 10);
    job.train = mnist(1);
    job.validation = mnist(0);
    job.has_validation = 1;
    struct prepared p = prepared_from(&shipped, &job);
    assert_int_equal(p.train.samples, 8000);
    assert_int_equal(p.validation.samples, 2000);
    assert_int_equal(p.train.features.type, NUMBER_U8);
    int counts[10] = {0};
    for (int64_t i = 0; i < 8000; i++)
        counts[class_at(&p.train, i, 0)]++;
    for (int i = 0; i < 10; i++)
        assert_in_range(counts[i], 650, 950);
    uint64_t ink = 0;
    for (int64_t i = 0; i < 8000 * 784; i++)
        ink += p.train.features.map[i];
    assert_in_range(ink / 8000 / 784, 32, 35); /* MNIST's mean grey is 33 */
    data_unmap(&p);
}

static void the_csv_sets(void **state)
{
    (void)state;
    static const struct {
        char path[32];
        int64_t inputs, rows;
        enum csv_header header;
        double first;
        int classes;
    } SETS[] = {{"digits.csv.gz", 64, 1797, CSV_HEADER_NO, 0, 10},
                {"digits.csv.gz", 64, 1797, CSV_HEADER_AUTO, 0, 10},
                {"iris.csv", 4, 150, CSV_HEADER_AUTO, (double)5.1f, 3},
                {"breast_cancer.csv", 30, 569, CSV_HEADER_YES, (double)17.99f, 2},
                {"breast_cancer.csv", 30, 569, CSV_HEADER_AUTO, (double)17.99f, 2},
                {"wine_data.csv", 13, 178, CSV_HEADER_AUTO, (double)14.23f, 3}};
    for (size_t i = 0; i < ARRAY_LEN(SETS); i++) {
        struct job_spec job = csv_job(SPARSE, SETS[i].inputs, SETS[i].classes, SETS[i].header);
        char path[32];
        memcpy(path, SETS[i].path, sizeof path);
        job.train.path = path;
        struct prepared p = prepared_from(&shipped, &job);
        assert_int_equal(p.train.samples, SETS[i].rows);
        assert_true(value_at(&p.train, 0, 0) == SETS[i].first);
        int seen = 0;
        for (int64_t k = 0; k < p.train.samples; k++)
            seen |= 1 << class_at(&p.train, k, 0);
        assert_int_equal(seen, (1 << SETS[i].classes) - 1);
        data_unmap(&p);
    }
}

static void known_answers_of_the_twister(void **state)
{
    (void)state;
    struct mt19937 m;
    mt19937_seed(&m, 5489); /* the paper's own seed; C++ fixes the 10,000th word */
    uint32_t word = 0;
    for (int i = 0; i < 10000; i++)
        word = mt19937_word(&m);
    assert_int_equal(word, 4123659995u);
    mt19937_seed(&m, 42);
    assert_true(mt19937_unit(&m) == 0.3745401188473625);
    assert_true(mt19937_unit(&m) == 0.9507143064099162);
    mt19937_seed(&m, 7);
    struct mt19937 before = m;
    assert_int_equal(mt19937_below(&m, 1), 0);
    assert_memory_equal(&m, &before, sizeof m);
    for (int i = 0; i < 1000; i++)
        assert_in_range(mt19937_below(&m, 5), 0, 4);
}

static struct job_spec synthetic_job(enum loss loss, int64_t samples, int64_t input,
                                     int64_t classes)
{
    struct job_spec job = make_job(loss, input, classes);
    job.train = (struct data_source){.format = DATA_SYNTHETIC,
                                     .samples = samples,
                                     .input = input,
                                     .classes = classes,
                                     .seed = 42};
    return job;
}

static void numpys_synthetic_set(void **state)
{
    (void)state;
    struct job_spec job = synthetic_job(SPARSE, 10000, 50, 10);
    struct prepared p = prepared_from(&shipped, &job);
    assert_true(value_at(&p.train, 0, 0) == (double)0.37454012f);
    assert_true(value_at(&p.train, 0, 1) == (double)0.9507143f);
    assert_true(value_at(&p.train, 1, 0) == (double)0.96958464f);
    static const int32_t FIRST[10] = {0, 6, 5, 6, 7, 4, 9, 4, 6, 5};
    for (int i = 0; i < 10; i++)
        assert_int_equal(class_at(&p.train, i, 0), FIRST[i]);
    data_unmap(&p);

    job.train.input = 49;
    refused(&job, ERR_INVALID,
            "the synthetic data has an input of 49 values, where the model's input is [50]");
    job.train.input = 50;
    job.train.samples = 0;
    refused(&job, ERR_INVALID, "no samples");
    job.train.samples = 1000;
    job.train.classes = 12;
    refused(&job, ERR_INVALID, "the synthetic data of 12 classes, item 15: label 10 is not");
    job.train.samples = INT64_C(1) << 50;
    refused(&job, ERR_TOO_LARGE, "the prepared data would take");
    job.train.samples = INT64_MAX;
    refused(&job, ERR_TOO_LARGE, "the prepared data would take");
}

static void one_hot_rows(void **state)
{
    (void)state;
    put_text("data.csv", "1,2,2\n3,4,0\n5,6,1\n");
    struct job_spec job = csv_job(LOSS_CATEGORICAL_CROSSENTROPY, 2, 3, CSV_HEADER_NO);
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.target_type, TARGET_F32);
    assert_int_equal(p.train.target_size, 3);
    static const float ROWS[] = {0, 0, 1, 1, 0, 0, 0, 1, 0};
    for (int i = 0; i < 9; i++)
        assert_true(target_at(&p.train, i / 3, i % 3) == (double)ROWS[i]);
    int64_t ids[] = {2, 0};
    float x[4], y[6];
    data_gather(&p.train, ids, 2, x, NULL, y, NULL);
    static const float X[] = {5, 6, 1, 2}, Y[] = {0, 1, 0, 0, 0, 1};
    assert_memory_equal(x, X, sizeof X);
    assert_memory_equal(y, Y, sizeof Y);
    data_unmap(&p);
    put_text("data.csv", "1,2,3\n");
    refused(&job, ERR_INVALID, "label 3 is not below 3, the number of classes");
}

static void real_and_binary_targets(void **state)
{
    (void)state;
    put_text("data.csv", "1,2,-2.5\n3,4,1e3\n");
    struct job_spec job = csv_job(LOSS_MEAN_SQUARED_ERROR, 2, 1, CSV_HEADER_NO);
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.target_type, TARGET_F32);
    assert_int_equal(p.train.target_size, 1);
    assert_true(target_at(&p.train, 0, 0) == -2.5 && target_at(&p.train, 1, 0) == 1000);
    data_unmap(&p);
    job.loss = LOSS_BINARY_CROSSENTROPY;
    refused(&job, ERR_INVALID,
            "data.csv line 1: label -2.5 is neither 0 nor 1, as binary_crossentropy needs it");
    put_text("data.csv", "1,2,0\n3,4,1\n");
    p = prepared(&job);
    assert_true(target_at(&p.train, 0, 0) == 0 && target_at(&p.train, 1, 0) == 1);
    data_unmap(&p);
}

static void outputs_that_one_label_cannot_serve(void **state)
{
    (void)state;
    put_text("data.csv", "1,2,0\n");
    struct job_spec job = csv_job(LOSS_MEAN_SQUARED_ERROR, 2, 3, CSV_HEADER_NO);
    refused(&job, ERR_INVALID,
            "mean_squared_error needs a single output, as there is one label per sample, but the "
            "model's last layer gives [3]");
    job.loss = LOSS_BINARY_CROSSENTROPY;
    refused(&job, ERR_INVALID, "binary_crossentropy needs a single output");
    job.loss = SPARSE;
    job.model.layers[0].out = (struct shape){2, {4, 10}};
    refused(&job, ERR_INVALID, "but the model's last layer gives [4, 10]");
    job.model.layers[0].out = (struct shape){2, {1, 10}};
    struct prepared p = prepared(&job);
    data_unmap(&p);
}

/* Keras trains with the first floor(n * (1 - split)), in double precision. */
static void the_last_part_validates(void **state)
{
    (void)state;
    static const struct {
        int64_t n;
        double split;
        int64_t kept;
    } CASES[] = {{1797, 0.2, 1437}, {10, 0.2, 8}, {10, 0.3, 7}, {10, 0.1, 9},
                 {100, 0.29, 71},   {2, 0.5, 1},  {3, 0.5, 1},  {1000, 0.999, 1},
                 {10, 0.7, 3},      {20, 0.9, 1}}; /* 20 * (1 - 0.9) is 1.9999999999999996 */
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct job_spec job = synthetic_job(SPARSE, CASES[i].n, 3, 10);
        struct prepared whole = prepared(&job);
        job.fit.validation_split = CASES[i].split;
        struct prepared p = prepared(&job);
        int64_t kept = p.train.samples;
        if (kept != CASES[i].kept || p.validation.samples != CASES[i].n - kept)
            fail_msg("%ld samples split at %g: %ld", (long)CASES[i].n, CASES[i].split, (long)kept);
        for (int64_t k = 0; k < CASES[i].n; k++) {
            const struct dataset *d = k < kept ? &p.train : &p.validation;
            int64_t at = k < kept ? k : k - kept;
            assert_true(value_at(d, at, 2) == value_at(&whole.train, k, 2));
            assert_int_equal(class_at(d, at, 0), class_at(&whole.train, k, 0));
        }
        data_unmap(&p);
        data_unmap(&whole);
    }
    struct job_spec job = synthetic_job(SPARSE, 3, 3, 10);
    job.fit.validation_split = 0.9;
    refused(&job, ERR_INVALID, "validation_split 0.9 of 3 samples leaves none to train with");
    job.fit.validation_split = 1e-17;
    refused(&job, ERR_INVALID, "leaves none to validate with");
    job.train.samples = 1;
    job.fit.validation_split = 0.5;
    refused(&job, ERR_INVALID, "leaves none to train with");
}

static void splits_of_bytes_and_of_rows(void **state)
{
    (void)state;
    static const unsigned char IMAGES[] = "\0\0\x08\2\0\0\0\3\0\0\0\3"
                                          "abcdefghi";
    put("images.idx", IMAGES, 21);
    put("labels.idx", "\0\0\x08\1\0\0\0\3\0\1\2", 11);
    struct job_spec job = idx_job(LOSS_CATEGORICAL_CROSSENTROPY, 3, 3);
    job.fit.validation_split = 0.34;
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, 1);
    assert_int_equal(p.validation.samples, 2);
    assert_true(value_at(&p.validation, 0, 0) == 'd');
    assert_true(value_at(&p.validation, 1, 2) == 'i');
    static const float ROWS[] = {0, 1, 0, 0, 0, 1};
    for (int i = 0; i < 6; i++)
        assert_true(target_at(&p.validation, i / 3, i % 3) == (double)ROWS[i]);
    data_unmap(&p);
}

/* Widths around a vector's, every byte value, against plain conversion. */
static void gathering_bytes(void **state)
{
    (void)state;
    for (int64_t width = 1; width <= 70; width++) {
        uint8_t *bytes = mem_alloc((size_t)(width * 5));
        int32_t classes[5] = {10, 11, 12, 13, 14}, got[4];
        for (int64_t i = 0; i < width * 5; i++)
            bytes[i] = (uint8_t)(i * 37 + width);
        struct dataset d = {
            .samples = 5,
            .feature_size = width,
            .target_type = TARGET_CLASS,
            .target_size = 1,
            .positions = 1,
            .features = {.type = NUMBER_U8, .size = width, .stride = (uint64_t)width, .map = bytes},
            .labels = {
                .type = NUMBER_I32, .size = 1, .stride = 4, .map = (const unsigned char *)classes}};
        int64_t ids[] = {4, 0, 0, 2};
        float *x = mem_alloc((size_t)(width * 4) * sizeof *x);
        data_gather(&d, ids, 4, x, got, NULL, NULL);
        for (int64_t i = 0; i < 4; i++) {
            assert_int_equal(got[i], 10 + ids[i]);
            for (int64_t k = 0; k < width; k++)
                assert_true(x[i * width + k] == (float)bytes[ids[i] * width + k]);
        }
        data_gather(&d, ids, 0, x, got, NULL, NULL);
        float untouched = x[0];
        got[0] = -1;
        data_gather(&d, ids, 4, NULL, got, NULL, NULL); /* a last stage needs no features */
        assert_int_equal(got[0], 14);
        got[0] = -1;
        data_gather(&d, ids, 4, x, NULL, NULL, NULL); /* nor a first one labels */
        assert_int_equal(got[0], -1);
        assert_true(x[0] == untouched);
        free(x);
        free(bytes);
    }
}

static void paths_stay_beneath_their_roots(void **state)
{
    (void)state;
    char path[256], second[128];
    snprintf(second, sizeof second, "%s/second", root);
    assert_int_equal(mkdir(second, 0755), 0);
    snprintf(path, sizeof path, "%s/first", root);
    assert_int_equal(mkdir(path, 0755), 0);
    put_text("second/only.csv", "x");
    put_text("secret.csv", "x");
    char first[128];
    snprintf(first, sizeof first, "%s/first", root);
    snprintf(path, sizeof path, "%s/link.csv", first);
    assert_int_equal(symlink("../secret.csv", path), 0);
    snprintf(path, sizeof path, "%s/pipe", first);
    assert_int_equal(mkfifo(path, 0600), 0);
    const char *list[] = {"/nonexistent", first, second};
    struct data_roots both = {list, 3}, none = {NULL, 0};
    struct err e = {0};
    int fd;
    assert_int_equal(data_open(&both, "only.csv", &fd, &e), 0);
    close(fd);
    static const struct {
        const char *path;
        int code;
        const char *words;
    } CASES[] = {
        {"none.csv", ERR_NOT_FOUND, "none.csv is in none of the data roots (/nonexistent, "},
        {"../secret.csv", ERR_INVALID, "leads outside"},
        {"link.csv", ERR_INVALID, "leads outside"},
        {"/etc/passwd", ERR_INVALID, "leads outside"},
        {"", ERR_NOT_FOUND, "is in none of the data roots"},
        {".", ERR_INVALID, "is a directory, not a file"},
        {"pipe", ERR_INVALID, "is a special file, not a file"},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        int r = data_open(&both, CASES[i].path, &fd, &e);
        if (r != CASES[i].code || !strstr(e.text, CASES[i].words))
            fail_msg("\"%s\" gave %d, %s", CASES[i].path, r, e.text);
    }
    assert_int_equal(data_open(&none, "only.csv", &fd, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "no data roots"));
}

static void missing_files_are_named(void **state)
{
    (void)state;
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    char missing[] = "sets/missing.csv";
    job.train.path = missing;
    refused(&job, ERR_NOT_FOUND, "sets/missing.csv is in none of the data roots");
    put_text("data.csv", "1,2,3\n");
    struct job_spec other = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    other.validation = job.train;
    other.has_validation = 1;
    refused(&other, ERR_NOT_FOUND, "sets/missing.csv");
    char *command[] = {NULL};
    other.command = command;
    refused(&other, ERR_INVALID, "command job");
}

static void validation_rows_are_checked_alike(void **state)
{
    (void)state;
    char other[] = "validation.csv";
    put_text("data.csv", "1,2,3\n");
    put_text("validation.csv", "1,2,3\n1,2,30\n");
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    job.validation = job.train;
    job.validation.path = other;
    job.has_validation = 1;
    refused(&job, ERR_INVALID, "validation.csv line 2: label 30 is not below 10");
    put_text("validation.csv", "");
    refused(&job, ERR_INVALID, "validation.csv is empty");
}

static void long_notes_are_cut_between_characters(void **state)
{
    (void)state;
    char name[160];
    for (int i = 0; i < 75; i++)
        memcpy(name + 2 * i, "\xc3\xa9", 3);
    put_text(name, "a,b,c\n1,2,3\n");
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_AUTO);
    job.train.path = name;
    job.validation = job.train;
    job.has_validation = 1;
    struct prepared p = prepared(&job);
    size_t n = strlen(p.note);
    assert_in_range(n, 300, 511);
    json_t *valid = json_string(p.note);
    assert_non_null(valid);
    json_decref(valid);
    data_unmap(&p);
}

static void preparing_twice_starts_anew(void **state)
{
    (void)state;
    struct job_spec job = synthetic_job(SPARSE, 50000, 50, 10);
    struct data_store store = {memfd_create("prepared", MFD_CLOEXEC), -1};
    struct err e = {0};
    struct prepared p;
    assert_int_equal(data_prepare(&job, &roots, &store, &e), 0);
    job.train.samples = 10;
    assert_int_equal(data_prepare(&job, &roots, &store, &e), 0);
    assert_int_equal(data_map(&store, &roots, &p, &e), 0);
    assert_int_equal(p.train.samples, 10);
    assert_true(p.map_size < 16384);
    data_unmap(&p);
    close(store.memory);
}

static void sealed_where_allowed(void **state)
{
    (void)state;
    struct job_spec job = synthetic_job(SPARSE, 10, 5, 10);
    struct data_store store = make_store();
    int fd = store.memory;
    struct err e = {0};
    assert_int_equal(data_prepare(&job, &roots, &store, &e), 0);
    if (fcntl(fd, F_GET_SEALS) & F_SEAL_FUTURE_WRITE) {
        assert_int_equal(pwrite(fd, "x", 1, 0), -1);
        assert_int_equal(ftruncate(fd, 10), -1);
    }
    close(fd);
}

/* Every field of the header, set to values that must not be believed. */
static void headers_that_lie(void **state)
{
    (void)state;
    struct job_spec job = synthetic_job(SPARSE, 100, 5, 10);
    job.fit.validation_split = 0.5;
    int fd = memfd_create("prepared", MFD_CLOEXEC);
    struct data_store store = {fd, -1};
    struct err e = {0};
    struct prepared p;
    assert_int_equal(data_prepare(&job, &roots, &store, &e), 0);
    struct data_header good, bad;
    assert_int_equal(pread(fd, &good, sizeof good, 0), sizeof good);
#define LIE(change)                                                                                \
    do {                                                                                           \
        bad = good;                                                                                \
        change;                                                                                    \
        assert_int_equal(pwrite(fd, &bad, sizeof bad, 0), sizeof bad);                             \
        if (data_map(&store, &roots, &p, &e) != ERR_CORRUPT)                                       \
            fail_msg("believed: %s", #change);                                                     \
    } while (0)
    LIE(bad.magic[0] = 'X');
    LIE(bad.version++);
    LIE(bad.header_size--);
    LIE(bad.total_size++);
    LIE(bad.total_size = 0);
    LIE(bad.train.samples = 0);
    LIE(bad.train.samples = -1);
    LIE(bad.train.samples = INT64_MAX);
    LIE(bad.train.samples = INT64_C(1) << 62);
    LIE(bad.file_count = -1);
    LIE(bad.file_count = DATA_FILES_MAX + 1);
    LIE(bad.file_count = 1; bad.files[0].path_at = bad.total_size; bad.files[0].path_len = 1);
    LIE(bad.file_count = 1; bad.files[0].path_at = 8; bad.files[0].path_len = UINT64_MAX);
    LIE(bad.train.features.size = 0);
    LIE(bad.train.features.size = INT64_MAX);
    LIE(bad.train.features.size = 30);
    LIE(bad.train.features.type = NUMBER__MAX);
    LIE(bad.train.features.type = -1);
    LIE(bad.train.features.stride = UINT64_MAX);
    LIE(bad.train.features.stride = 1000);
    LIE(bad.train.features.in = DATA_IN_SPOOL);
    LIE(bad.train.features.in = DATA_IN_FILES);
    LIE(bad.train.features.in = -1);
    LIE(bad.train.target_type = 2);
    LIE(bad.train.target_size = 2);
    LIE(bad.train.target_size = 0);
    LIE(bad.train.positions = 0);
    LIE(bad.train.positions = 2);
    LIE(bad.train.is_one_hot = 1);
    LIE(bad.train.target_type = TARGET_F32; bad.train.target_size = INT64_MAX);
    LIE(bad.train.target_type = TARGET_F32);
    LIE(bad.train.features.at = 0);
    LIE(bad.train.features.at = UINT64_MAX - 3);
    LIE(bad.train.features.at = bad.total_size);
    LIE(bad.train.labels.at = 8);
    LIE(bad.train.labels.at = bad.total_size - 4);
    LIE(bad.train.labels.size = 2);
    LIE(bad.validation.samples = -5);
    LIE(bad.validation.samples++);
    LIE(bad.validation.features.size = 4);
    LIE(bad.validation.features.at += 4000);
    LIE(bad.validation.positions = 3);
    assert_int_equal(pwrite(fd, &good, sizeof good, 0), sizeof good);
    assert_int_equal(data_map(&store, &roots, &p, &e), 0);
    data_unmap(&p);
    memset(good.note, 'n', sizeof good.note);
    assert_int_equal(pwrite(fd, &good, sizeof good, 0), sizeof good);
    assert_int_equal(data_map(&store, &roots, &p, &e), 0);
    assert_int_equal(strlen(p.note), sizeof p.note - 1);
    data_unmap(&p);
    assert_int_equal(ftruncate(fd, (off_t)(good.total_size - 1)), 0);
    assert_int_equal(data_map(&store, &roots, &p, &e), ERR_CORRUPT);
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_int_equal(data_map(&store, &roots, &p, &e), ERR_CORRUPT);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(data_map(&store, &roots, &p, &e), ERR_CORRUPT);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mnist_digits),
        cmocka_unit_test(the_csv_sets),
        cmocka_unit_test(known_answers_of_the_twister),
        cmocka_unit_test(numpys_synthetic_set),
        cmocka_unit_test(one_hot_rows),
        cmocka_unit_test(real_and_binary_targets),
        cmocka_unit_test(outputs_that_one_label_cannot_serve),
        cmocka_unit_test(the_last_part_validates),
        cmocka_unit_test(splits_of_bytes_and_of_rows),
        cmocka_unit_test(gathering_bytes),
        cmocka_unit_test(paths_stay_beneath_their_roots),
        cmocka_unit_test(missing_files_are_named),
        cmocka_unit_test(validation_rows_are_checked_alike),
        cmocka_unit_test(long_notes_are_cut_between_characters),
        cmocka_unit_test(preparing_twice_starts_anew),
        cmocka_unit_test(sealed_where_allowed),
        cmocka_unit_test(headers_that_lie),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
