/* Data over its memory_limit: the same samples as from memory, files that change meanwhile, and
 * what the prepare step and the ranks hold of it. */
#include "tests/unit/trainer_npy.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <zip.h>

#include "trainer/data_parts.h"

#define SPARSE LOSS_SPARSE_CATEGORICAL_CROSSENTROPY
#define ROWS   3000
#define COLS   7

/* ---- the same numbers in every format ---- */

static int number_at(int row, int column)
{
    return (row * 31 + column * 7) % 200;
}

static int label_at(int row)
{
    return row * 13 % 10;
}

static void big_endian(struct buf *b, uint32_t v)
{
    unsigned char raw[4] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16),
                            (unsigned char)(v >> 8), (unsigned char)v};
    buf_add(b, raw, 4);
}

static void make_idx(struct buf *images, struct buf *labels)
{
    buf_add(images, "\0\0\x08\2", 4);
    big_endian(images, ROWS);
    big_endian(images, COLS);
    buf_add(labels, "\0\0\x08\1", 4);
    big_endian(labels, ROWS);
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < COLS; k++) {
            unsigned char byte = (unsigned char)number_at(i, k);
            buf_add(images, &byte, 1);
        }
        unsigned char label = (unsigned char)label_at(i);
        buf_add(labels, &label, 1);
    }
}

/* Big-endian doubles, and labels as i8. */
static void make_npy(struct buf *x, struct buf *y)
{
    double *values = mem_alloc(sizeof(double[ROWS * COLS]));
    int64_t *labels = mem_alloc(sizeof(int64_t[ROWS]));
    char dictionary[128];
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < COLS; k++) {
            double value = number_at(i, k);
            uint64_t bits;
            memcpy(&bits, &value, 8);
            bits = __builtin_bswap64(bits);
            memcpy(&values[i * COLS + k], &bits, 8);
        }
        labels[i] = label_at(i);
    }
    snprintf(dictionary, sizeof dictionary,
             "{'descr': '>f8', 'fortran_order': False, 'shape': (%d, %d)}", ROWS, COLS);
    npy_add(x, 1, dictionary, values, sizeof(double[ROWS * COLS]));
    snprintf(dictionary, sizeof dictionary,
             "{'descr': '<i8', 'fortran_order': False, 'shape': (%d,)}", ROWS);
    npy_add(y, 1, dictionary, labels, sizeof(int64_t[ROWS]));
    free(values);
    free(labels);
}

static void make_csv(struct buf *b)
{
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < COLS; k++)
            buf_addf(b, "%d,", number_at(i, k));
        buf_addf(b, "%d\n", label_at(i));
    }
}

static void put_buf(const char *name, struct buf *b, int packed)
{
    if (packed)
        put_packed(name, b->data, b->len);
    else
        put(name, b->data, b->len);
    buf_done(b);
}

static void put_npz(struct buf *x, struct buf *y)
{
    char path[128];
    snprintf(path, sizeof path, "%s/data.npz", root);
    unlink(path);
    zip_t *zip = zip_open(path, ZIP_CREATE, NULL);
    assert_non_null(zip);
    assert_int_equal(zip_file_add(zip, "x.npy", zip_source_buffer(zip, x->data, x->len, 0), 0), 0);
    assert_int_equal(zip_file_add(zip, "y.npy", zip_source_buffer(zip, y->data, y->len, 0), 0), 1);
    assert_int_equal(zip_close(zip), 0);
    buf_done(x);
    buf_done(y);
}

enum form { IDX, IDX_PACKED, NPY, NPY_PACKED, NPY_HALF, NPZ, CSV, CSV_PACKED, FORMS };

static struct job_spec make_form(enum form form)
{
    static char path[16];
    struct buf x = BUF_INIT, y = BUF_INIT;
    struct job_spec job =
        form <= IDX_PACKED ? idx_job(SPARSE, COLS, 10) : npy_job(SPARSE, COLS, 10);
    snprintf(path, sizeof path, form == NPZ ? "data.npz" : "data.csv");
    job.train.path = path;
    job.train.format = form <= IDX_PACKED ? DATA_IDX
                       : form < NPZ       ? DATA_NPY
                       : form == NPZ      ? DATA_NPZ
                                          : DATA_CSV;
    job.train.label_column = -1;
    if (form <= IDX_PACKED) {
        make_idx(&x, &y);
        put_buf("images.idx", &x, form == IDX_PACKED);
        put_buf("labels.idx", &y, form == IDX_PACKED);
    } else if (form < NPZ) {
        make_npy(&x, &y);
        put_buf("x.npy", &x, form == NPY_PACKED);
        put_buf("y.npy", &y, form != NPY);
    } else if (form == NPZ) {
        static char names[2][2] = {"x", "y"};
        make_npy(&x, &y);
        put_npz(&x, &y);
        job.train.x = names[0];
        job.train.y = names[1];
    } else {
        make_csv(&x);
        put_buf("data.csv", &x, form == CSV_PACKED);
    }
    return job;
}

static void check_samples(const struct dataset *d, int first, int count)
{
    assert_int_equal(d->samples, count);
    int64_t ids[64];
    float x[64 * COLS];
    int32_t classes[64];
    for (int i = 0; i < count; i += 64) {
        int n = count - i < 64 ? count - i : 64;
        for (int k = 0; k < n; k++) /* runs of neighbours, and jumps */
            ids[k] = i % 128 ? i + k : (i + k) * INT64_C(7919) % count;
        assert_int_equal(data_gather(d, ids, n, x, classes, NULL, NULL), 0);
        for (int k = 0; k < n; k++) {
            int row = first + (int)ids[k];
            assert_int_equal(classes[k], label_at(row));
            for (int c = 0; c < COLS; c++)
                if (x[k * COLS + c] != (float)number_at(row, c))
                    fail_msg("row %d, column %d", row, c);
        }
    }
}

static void every_format_streamed(void **state)
{
    (void)state;
    for (int form = 0; form < FORMS; form++) {
        struct job_spec job = make_form((enum form)form);
        struct prepared p = prepared(&job);
        assert_false(data_is_streamed(&p.train));
        check_samples(&p.train, 0, ROWS);
        data_unmap(&p);
        job.train.memory_limit = 20000; /* some of it, or none */
        job.fit.validation_split = 0.25;
        p = prepared(&job);
        assert_true(data_is_streamed(&p.train));
        assert_true(p.map_size < 24000);
        check_samples(&p.train, 0, ROWS * 3 / 4);
        check_samples(&p.validation, ROWS * 3 / 4, ROWS / 4);
        int from_file = form == IDX || form == NPY || form == NPY_HALF;
        if (!strstr(p.note, from_file ? "the training data is read from its file as it is needed"
                                      : "the training data is read from the node's disk as it is"))
            fail_msg("form %d: %s", form, p.note);
        assert_int_equal(p.fd_count, form == NPY_HALF ? 1 : from_file ? 2 : 0);
        data_unmap(&p);
        job.train.limit = 1000;
        job.fit.validation_split = 0;
        p = prepared(&job);
        check_samples(&p.train, 0, 1000);
        data_unmap(&p);
    }
}

/* Both splits over their limits, into one spool; and one of them only. */
static void two_sources(void **state)
{
    (void)state;
    struct job_spec job = make_form(CSV_PACKED);
    job.has_validation = 1;
    job.validation = job.train;
    job.validation.limit = 500;
    for (int which = 1; which < 4; which++) {
        job.train.memory_limit = which & 1 ? 1000 : 0;
        job.validation.memory_limit = which & 2 ? 1000 : 0;
        struct prepared p = prepared(&job);
        assert_int_equal(data_is_streamed(&p.train), which & 1);
        assert_int_equal(data_is_streamed(&p.validation), which >> 1);
        check_samples(&p.train, 0, ROWS);
        check_samples(&p.validation, 0, 500);
        data_unmap(&p);
    }
}

static void tokens_streamed(void **state)
{
    (void)state;
    static char path[] = "t.bin";
    uint16_t tokens[10001];
    for (int i = 0; i < 10001; i++)
        tokens[i] = (uint16_t)(i * 7 % 500);
    struct job_spec job = make_job(SPARSE, 10, 10 * 500);
    job.model.layers[0].out = (struct shape){2, {10, 500}};
    job.train = (struct data_source){
        .format = DATA_TOKENS, .path = path, .dtype = TOKEN_U16, .memory_limit = 10000};
    for (int packed = 0; packed < 2; packed++) {
        if (packed)
            put_packed("t.bin", tokens, sizeof tokens);
        else
            put("t.bin", tokens, sizeof tokens);
        struct prepared p = prepared(&job);
        assert_true(data_is_streamed(&p.train));
        assert_int_equal(p.train.samples, 1000);
        assert_int_equal(p.fd_count, packed ? 0 : 1);
        for (int j = 999; j >= 0; j -= 37)
            for (int i = 0; i < 10; i++) {
                assert_true(value_at(&p.train, j, i) == tokens[10 * j + i]);
                assert_int_equal(class_at(&p.train, j, i), tokens[10 * j + i + 1]);
            }
        data_unmap(&p);
    }
}

/* Rows of more than a piece of reading. */
static void long_rows(void **state)
{
    (void)state;
    int64_t n = 50000;
    float *x = mem_alloc((size_t)(3 * n) * sizeof *x);
    for (int64_t i = 0; i < 3 * n; i++)
        x[i] = (float)i;
    npy_put("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 50000)}", x,
            (size_t)(3 * n) * sizeof *x);
    free(x);
    npy_put("y.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}", "\1\2\3", 3);
    struct job_spec job = npy_job(SPARSE, n, 10);
    job.train.memory_limit = 1000;
    struct prepared p = prepared(&job);
    for (int64_t row = 2; row >= 0; row--)
        for (int64_t i = 0; i < n; i += 4999)
            assert_true(value_at(&p.train, row, i) == (double)(row * n + i));
    data_unmap(&p);
}

static void without_a_spool(void **state)
{
    (void)state;
    struct job_spec job = make_form(CSV);
    struct data_store store = {memfd_create("prepared", MFD_CLOEXEC), -1};
    struct err e;
    job.train.memory_limit = 20000;
    assert_int_equal(data_prepare(&job, &roots, &store, &e), ERR_TOO_LARGE);
    assert_non_null(strstr(e.text, "and there is no spool for it"));
    close(store.memory);
}

/* ---- files that change ---- */

static void change(int how)
{
    char path[128], other[128];
    snprintf(path, sizeof path, "%s/images.idx", root);
    snprintf(other, sizeof other, "%s/other", root);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    struct timespec times[2] = {st.st_atim, st.st_mtim};
    struct buf b = BUF_INIT;
    struct err e;
    assert_int_equal(file_read(path, 1 << 20, &b, &e), 0);
    switch (how) {
    case 0: /* the same bytes and times in another file */
        put("other", b.data, b.len);
        assert_int_equal(utimensat(AT_FDCWD, other, times, 0), 0);
        assert_int_equal(rename(other, path), 0);
        break;
    case 1: /* another time */
        times[1].tv_nsec = times[1].tv_nsec ? 0 : 1;
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        break;
    case 2: /* another size, the time put back */
        assert_int_equal(truncate(path, st.st_size + 1), 0);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        break;
    default: assert_int_equal(unlink(path), 0);
    }
    buf_done(&b);
}

static void files_that_are_others_now(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        struct job_spec job = make_form(IDX);
        struct data_store store = make_store();
        struct prepared p;
        struct err e = {0};
        job.train.memory_limit = 1000;
        assert_int_equal(data_prepare(&job, &roots, &store, &e), 0);
        assert_int_equal(data_map(&store, &roots, &p, &e), 0);
        data_unmap(&p);
        change(how);
        assert_int_equal(data_map(&store, &roots, &p, &e), how < 3 ? ERR_CONFLICT : ERR_NOT_FOUND);
        if (!strstr(e.text, how < 3 ? "images.idx is not the file that was checked"
                                    : "images.idx is in none of the data roots"))
            fail_msg("%s", e.text);
        close(store.memory);
    }
}

static void a_file_that_shrinks_while_it_is_used(void **state)
{
    (void)state;
    struct job_spec job = make_form(IDX);
    char path[128];
    job.train.memory_limit = 1000;
    struct prepared p = prepared(&job);
    snprintf(path, sizeof path, "%s/images.idx", root);
    assert_int_equal(truncate(path, 1000), 0);
    int64_t ids[] = {0, ROWS - 1};
    float x[2 * COLS];
    struct err e = {0};
    assert_int_equal(data_gather(&p.train, ids, 2, x, NULL, NULL, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "images.idx ends at byte 21005, where there was more when"));
    data_unmap(&p);
}

/* A class written over after the check is an error in rows, not an index past them. */
static void labels_that_change(void **state)
{
    (void)state;
    struct job_spec job = make_form(IDX);
    char path[128];
    job.train.memory_limit = 1000;
    job.loss = LOSS_CATEGORICAL_CROSSENTROPY;
    struct prepared p = prepared(&job);
    snprintf(path, sizeof path, "%s/labels.idx", root);
    CLEANUP(mem_closep) int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "\xff", 1, 8 + 5), 1);
    int64_t ids[] = {5};
    float targets[10];
    struct err e = {0};
    assert_int_equal(data_gather(&p.train, ids, 1, NULL, NULL, targets, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "Sample 6 of the prepared data has class 255, where the model"));
    data_unmap(&p);
}

static void a_spool_that_is_another(void **state)
{
    (void)state;
    struct job_spec job = make_form(CSV);
    struct data_store store = make_store();
    struct prepared p;
    struct err e = {0};
    job.train.memory_limit = 1000;
    assert_int_equal(data_prepare(&job, &roots, &store, &e), 0);
    struct stat st;
    assert_int_equal(fstat(spool, &st), 0);
    assert_int_equal(ftruncate(spool, st.st_size - 1), 0);
    assert_int_equal(data_map(&store, &roots, &p, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "the spool has"));
    store.spool = -1;
    assert_true(data_map(&store, &roots, &p, &e) < 0);
    assert_non_null(strstr(e.text, "the spool of the prepared data cannot be examined"));
    close(store.memory);
}

/* ---- memory ---- */

/* KiB of a line of /proc/self/status. */
static long status_kib(const char *key)
{
    char line[256];
    long value = -1;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtol(line + strlen(key), NULL, 10);
    if (f)
        fclose(f);
    return value;
}

static struct data_store large_store = {-1, -1};

static void prepare_it(const struct job_spec *job)
{
    struct err e = {0};
    if (data_prepare(job, &roots, &large_store, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        _exit(255);
    }
}

/* Runs in a child of its own, whose peak starts anew; exits with the MiB that it grew by. */
static int grown_by(void (*work)(const struct job_spec *job), const struct job_spec *job)
{
    if (work == prepare_it) {
        mem_closep(&large_store.memory);
        large_store = make_store();
    }
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "5", 1) != 1)
            _exit(255);
        long before = status_kib("VmRSS:");
        work(job);
        long grown = (status_kib("VmHWM:") - before) / 1024;
        _exit(grown < 200 ? (int)grown : 200);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), 255);
    return WEXITSTATUS(status);
}

static void fetch_from_it(const struct job_spec *job)
{
    struct prepared p;
    struct err e;
    int64_t ids[64];
    int32_t classes[64];
    float *x = mem_alloc(64 * (size_t)job->model.input.size[0] * sizeof *x);
    if (data_map(&large_store, &roots, &p, &e) < 0)
        _exit(255);
    for (int i = 0; i < 200; i++) {
        for (int k = 0; k < 64; k++)
            ids[k] = (i * 64 + k) * INT64_C(7919) % p.train.samples;
        if (data_gather(&p.train, ids, 64, x, classes, NULL, &e) < 0)
            _exit(255);
    }
    data_unmap(&p);
    free(x);
}

/* 3 KB of zeroes a row behind the header; on disk they take nothing. */
static void put_large(int rows)
{
    char path[128], dictionary[128];
    snprintf(dictionary, sizeof dictionary,
             "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 784)}", rows);
    npy_put("x.npy", dictionary, "", 0);
    snprintf(path, sizeof path, "%s/x.npy", root);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size + (off_t)rows * 784 * 4), 0);
    snprintf(dictionary, sizeof dictionary,
             "{'descr': '|u1', 'fortran_order': False, 'shape': (%d,)}", rows);
    void *labels = mem_zalloc((size_t)rows);
    npy_put("y.npy", dictionary, labels, (size_t)rows);
    free(labels);
}

static void pack_large(void)
{
    char command[512];
    snprintf(command, sizeof command, "gzip -1 <%s/x.npy >%s/x.gz && mv %s/x.gz %s/x.npy", root,
             root, root, root);
    assert_int_equal(system(command), 0);
}

#ifdef TRAINYARD_SANITIZED
#define SLACK 100 /* MiB: freed memory is kept for a while */
#else
#define SLACK 6
#endif

static void memory_stays_bounded(void **state)
{
    (void)state;
    struct job_spec job = npy_job(SPARSE, 784, 10);
    put_large(96000); /* 300 MB */
    job.train.memory_limit = 16 << 20;
    int grown = grown_by(prepare_it, &job); /* the file itself is read */
    if (grown > SLACK)
        fail_msg("preparing a file took %d MiB", grown);
    grown = grown_by(fetch_from_it, &job);
    if (grown > SLACK)
        fail_msg("fetching from the file took %d MiB", grown);
    put_large(32000);
    pack_large(); /* by way of the spool */
    grown = grown_by(prepare_it, &job);
    if (grown > SLACK)
        fail_msg("preparing a packed file took %d MiB", grown);
    grown = grown_by(fetch_from_it, &job);
    if (grown > SLACK)
        fail_msg("fetching from the spool took %d MiB", grown);
    job.train.memory_limit = 1 << 30; /* that it can be told: this is in memory */
    assert_in_range(grown_by(prepare_it, &job), 90, 200);
    mem_closep(&large_store.memory);
}

/* The size of a table shows as it is read: up to the limit it is in memory. */
static void a_table_that_outgrows_memory(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    for (int i = 0; i < 1000000; i++)
        buf_addf(&b, "%d,2.5,%d\n", i, i % 10);
    put("data.csv", b.data, b.len);
    buf_done(&b);
    struct job_spec job = csv_job(SPARSE, 2, 10, CSV_HEADER_NO);
    job.train.memory_limit = 4 << 20;
    int grown = grown_by(prepare_it, &job);
    if (grown > 4 + SLACK)
        fail_msg("preparing a table took %d MiB", grown);
    struct prepared p;
    assert_int_equal(data_map(&large_store, &roots, &p, NULL), 0);
    assert_int_equal(p.train.samples, 1000000);
    for (int64_t i = 0; i < 1000000; i += 9973) {
        assert_true(value_at(&p.train, i, 0) == (double)i);
        assert_int_equal(class_at(&p.train, i, 0), i % 10);
    }
    data_unmap(&p);
    mem_closep(&large_store.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_streamed),
        cmocka_unit_test(two_sources),
        cmocka_unit_test(tokens_streamed),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(without_a_spool),
        cmocka_unit_test(files_that_are_others_now),
        cmocka_unit_test(a_file_that_shrinks_while_it_is_used),
        cmocka_unit_test(labels_that_change),
        cmocka_unit_test(a_spool_that_is_another),
        cmocka_unit_test(memory_stays_bounded),
        cmocka_unit_test(a_table_that_outgrows_memory),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
