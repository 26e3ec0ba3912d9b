/* npz archives: as numpy writes them, and as nobody should. */
#include "tests/unit/trainer_npy.h"

#include <zip.h>

#include "trainer/data_parts.h"

#define SPARSE LOSS_SPARSE_CATEGORICAL_CROSSENTROPY

struct array {
    const char *member, *dictionary;
    const void *data;
    size_t n;
};

static const struct array good[] = {{"x.npy", NPY_X, npy_x, sizeof npy_x},
                                    {"y.npy", NPY_Y, npy_y, sizeof npy_y}};

/* An archive data.npz of arrays, by libzip. */
static void put_archive(const struct array *arrays, int count, zip_int32_t method)
{
    char path[128];
    snprintf(path, sizeof path, "%s/data.npz", root);
    unlink(path);
    zip_t *zip = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, NULL);
    assert_non_null(zip);
    for (int i = 0; i < count; i++) {
        struct buf b = BUF_INIT;
        npy_add(&b, 1, arrays[i].dictionary, arrays[i].data, arrays[i].n);
        zip_source_t *source = zip_source_buffer(zip, b.data, b.len, 1);
        zip_int64_t at = zip_file_add(zip, arrays[i].member, source, 0);
        assert_true(at >= 0);
        assert_int_equal(zip_set_file_compression(zip, (zip_uint64_t)at, method, 0), 0);
    }
    assert_int_equal(zip_close(zip), 0);
}

static struct job_spec npz_job(void)
{
    static char path[] = "data.npz";
    struct job_spec job = make_job(SPARSE, 3, 10);
    job.train = (struct data_source){.format = DATA_NPZ, .path = path};
    return job;
}

static struct buf archive(void)
{
    char path[128];
    struct buf b = BUF_INIT;
    struct err e;
    snprintf(path, sizeof path, "%s/data.npz", root);
    assert_int_equal(file_read(path, 1 << 20, &b, &e), 0);
    return b;
}

/* ---- a member by hand, for what libzip would not write ---- */

static void add(struct buf *b, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)((i < 8 ? value >> 8 * i : 0) & 0xff);
        buf_add(b, &byte, 1);
    }
}

struct entry {
    const char *name;
    uint32_t crc;
    uint64_t size, packed, at;
    int method;
};

/* 46 bytes and the name; sizes and place in a zip64 field. */
static void add_directory(struct buf *b, const struct entry *f)
{
    add(b, 0x02014b50, 4);
    add(b, 45, 2);
    add(b, 45, 2);
    add(b, 0, 2);
    add(b, (uint64_t)f->method, 2);
    add(b, 0, 4);
    add(b, f->crc, 4);
    add(b, UINT32_MAX, 4);
    add(b, UINT32_MAX, 4);
    add(b, strlen(f->name), 2);
    add(b, 28, 2);
    add(b, 0, 2 + 2 + 2 + 4);
    add(b, UINT32_MAX, 4);
    buf_adds(b, f->name);
    add(b, 1, 2);
    add(b, 24, 2);
    add(b, f->size, 8);
    add(b, f->packed, 8);
    add(b, f->at, 8);
}

static void add_local(struct buf *b, struct entry *f, const void *bytes)
{
    f->at = b->len;
    add(b, 0x04034b50, 4);
    add(b, 45, 2);
    add(b, 0, 2);
    add(b, (uint64_t)f->method, 2);
    add(b, 0, 4);
    add(b, f->crc, 4);
    add(b, UINT32_MAX, 4);
    add(b, UINT32_MAX, 4);
    add(b, strlen(f->name), 2);
    add(b, 20, 2);
    buf_adds(b, f->name);
    add(b, 1, 2);
    add(b, 16, 2);
    add(b, f->size, 8);
    add(b, f->packed, 8);
    buf_add(b, bytes, f->packed);
}

/* The 64-bit end, its locator, and the old end, which says nothing. */
static void add_end(struct buf *b, uint64_t directory_at, uint64_t entries, uint64_t said_size)
{
    uint64_t at = b->len;
    add(b, 0x06064b50, 4);
    add(b, 44, 8);
    add(b, 45, 2);
    add(b, 45, 2);
    add(b, 0, 8);
    add(b, entries, 8);
    add(b, entries, 8);
    add(b, said_size ? said_size : at - directory_at, 8);
    add(b, directory_at, 8);
    add(b, 0x07064b50, 4);
    add(b, 0, 4);
    add(b, at, 8);
    add(b, 1, 4);
    add(b, 0x06054b50, 4);
    add(b, 0, 4);
    add(b, UINT16_MAX, 2);
    add(b, UINT16_MAX, 2);
    add(b, UINT32_MAX, 4);
    add(b, UINT32_MAX, 4);
    add(b, 0, 2);
}

/* Stored members in the form of more than 4 GiB; `size` and `directory` are what it claims for x
 * and for the directory, 0: the truth. */
static void put_large_form(uint64_t size, int method, uint64_t directory)
{
    struct buf b = BUF_INIT, arrays[2] = {BUF_INIT, BUF_INIT};
    struct entry f[2] = {{.name = "x.npy", .method = method}, {.name = "y.npy"}};
    for (int i = 0; i < 2; i++) {
        npy_add(&arrays[i], 1, good[i].dictionary, good[i].data, good[i].n);
        f[i].crc = (uint32_t)crc32_z(0, (unsigned char *)arrays[i].data, arrays[i].len);
        f[i].packed = arrays[i].len;
        f[i].size = i == 0 && size ? size : arrays[i].len;
        add_local(&b, &f[i], arrays[i].data);
        buf_done(&arrays[i]);
    }
    uint64_t at = b.len;
    add_directory(&b, &f[0]);
    add_directory(&b, &f[1]);
    add_end(&b, at, 2, directory);
    put("data.npz", b.data, b.len);
    buf_done(&b);
}

/* ---- tests ---- */

static void stored_and_deflated(void **state)
{
    (void)state;
    static const zip_int32_t METHODS[] = {ZIP_CM_STORE, ZIP_CM_DEFLATE};
    for (size_t i = 0; i < ARRAY_LEN(METHODS); i++) {
        put_archive(good, 2, METHODS[i]);
        struct job_spec job = npz_job();
        struct prepared p = prepared(&job);
        assert_int_equal(p.train.samples, 2);
        assert_true(value_at(&p.train, 0, 1) == -2 && value_at(&p.train, 1, 2) == 6);
        assert_int_equal(class_at(&p.train, 0, 0), 7);
        assert_int_equal(class_at(&p.train, 1, 0), 9);
        data_unmap(&p);
    }
}

static void arrays_by_name(void **state)
{
    (void)state;
    static const struct array named[] = {{"x_train.npy", NPY_X, npy_x, sizeof npy_x},
                                         {"y_train.npy", NPY_Y, npy_y, sizeof npy_y},
                                         {"x.npy", "not read", "", 0}};
    static char x[] = "x_train", y[] = "y_train", none[] = "labels", slash[] = "../x_train";
    put_archive(named, 3, ZIP_CM_DEFLATE);
    struct job_spec job = npz_job();
    job.train.x = x;
    job.train.y = y;
    struct prepared p = prepared(&job);
    assert_int_equal(class_at(&p.train, 1, 0), 9);
    data_unmap(&p);
    job.train.y = none;
    refused(&job, ERR_INVALID,
            "data.npz has no array \"labels\"; it has \"x_train\", \"y_train\", \"x\"");
    job.train.y = y;
    job.train.x = slash;
    refused(&job, ERR_INVALID, "data.npz has no array \"../x_train\"");
    put_archive(good, 1, ZIP_CM_STORE);
    job = npz_job();
    refused(&job, ERR_INVALID, "data.npz has no array \"y\"; it has \"x\"");
}

static void many_names_are_cut(void **state)
{
    (void)state;
    struct array arrays[20];
    char names[20][16];
    for (int i = 0; i < 20; i++) {
        snprintf(names[i], sizeof names[i], "a%d.npy", i);
        arrays[i] = (struct array){names[i], NPY_Y, npy_y, sizeof npy_y};
    }
    put_archive(arrays, 20, ZIP_CM_STORE);
    struct job_spec job = npz_job();
    refused(&job, ERR_INVALID,
            "it has \"a0\", \"a1\", \"a2\", \"a3\", \"a4\", \"a5\", \"a6\", "
            "\"a7\", ...");
}

static void members_that_cannot_be_read(void **state)
{
    (void)state;
    struct job_spec job = npz_job();
    static const struct array text[] = {{"x.npy", "x", "", 0}, {"y.npy", NPY_Y, npy_y, 16}};
    put_archive(text, 2, ZIP_CM_STORE);
    refused(&job, ERR_INVALID, "data.npz: x: its header is no dictionary");
    static const struct array few[] = {{"x.npy", NPY_X, npy_x, 20}, {"y.npy", NPY_Y, npy_y, 16}};
    put_archive(few, 2, ZIP_CM_DEFLATE);
    refused(&job, ERR_INVALID,
            "data.npz: x: its header promises 24 bytes of data, but 20 bytes follow it");
    static const int64_t labels[] = {7, 12};
    static const struct array wrong[] = {{"x.npy", NPY_X, npy_x, 24}, {"y.npy", NPY_Y, labels, 16}};
    put_archive(wrong, 2, ZIP_CM_DEFLATE);
    refused(&job, ERR_INVALID, "data.npz: y item 2: label 12 is not below 10");
    if (zip_compression_method_supported(ZIP_CM_BZIP2, 1)) {
        put_archive(good, 2, ZIP_CM_BZIP2);
        refused(&job, ERR_INVALID, "data.npz: x is compressed by method 12; save it with");
    }
}

static void an_encrypted_member(void **state)
{
    (void)state;
    char path[128];
    if (!zip_encryption_method_supported(ZIP_EM_AES_128, 1))
        skip();
    put_archive(good, 2, ZIP_CM_STORE);
    snprintf(path, sizeof path, "%s/data.npz", root);
    zip_t *zip = zip_open(path, 0, NULL);
    assert_non_null(zip);
    assert_int_equal(zip_file_set_encryption(zip, 0, ZIP_EM_AES_128, "secret"), 0);
    assert_int_equal(zip_close(zip), 0);
    struct job_spec job = npz_job();
    refused(&job, ERR_INVALID, "data.npz: x is encrypted");
}

static void damaged_members(void **state)
{
    (void)state;
    struct job_spec job = npz_job();
    unsigned char noise[6000]; /* any byte is a right one */
    for (uint32_t i = 0, v = 1; i < sizeof noise; i++, v = v * 1664525 + 1013904223)
        noise[i] = (unsigned char)(v >> 24) & 0x3f;
    const struct array bytes[] = {
        {"x.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3000)}", noise, 6000},
        good[1]};
    put_archive(bytes, 2, ZIP_CM_DEFLATE);
    struct buf b = archive();
    b.data[b.len / 2] ^= 0x5a;
    put("data.npz", b.data, b.len);
    buf_done(&b);
    job.model.input.size[0] = 3000;
    refused(&job, ERR_CORRUPT, "data.npz: x is damaged after");
    job.model.input.size[0] = 3;
    put_archive(good, 2, ZIP_CM_STORE);
    b = archive();
    float *six = memmem(b.data, b.len, &npy_x[5], 4);
    assert_non_null(six);
    *(char *)six ^= 1; /* a number like any other: only the checksum tells */
    put("data.npz", b.data, b.len);
    buf_done(&b);
    refused(&job, ERR_CORRUPT, "data.npz: x is damaged after");
}

static void archives_that_are_none(void **state)
{
    (void)state;
    struct job_spec job = npz_job();
    put_text("data.npz", "");
    refused(&job, ERR_INVALID, "data.npz is not a file of numpy.savez, or was not copied whole");
    put_text("data.npz", "PK\3\4 this only starts like one");
    refused(&job, ERR_INVALID, "a zip archive's end is not there");
    put_archive(good, 2, ZIP_CM_STORE);
    struct buf b = archive();
    put("data.npz", b.data, b.len - 10);
    refused(&job, ERR_INVALID, "a zip archive's end is not there");
    memset(memmem(b.data, b.len, "PK\1\2", 4), 'x', 4);
    put("data.npz", b.data, b.len);
    refused(&job, ERR_CORRUPT, "data.npz cannot be read as a zip archive");
    put("data.npz", "PK\5\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22); /* without members */
    refused(&job, ERR_INVALID, "data.npz has no array \"x\"; it has none at all");
    buf_done(&b);
    char missing[] = "none.npz";
    job.train.path = missing;
    refused(&job, ERR_NOT_FOUND, "none.npz is in none of the data roots");
}

static void the_form_of_large_archives(void **state)
{
    (void)state;
    struct job_spec job = npz_job();
    put_large_form(0, ZIP_CM_STORE, 0);
    struct prepared p = prepared(&job);
    assert_true(value_at(&p.train, 1, 2) == 6);
    assert_int_equal(class_at(&p.train, 1, 0), 9);
    data_unmap(&p);
    put_large_form(0, ZIP_CM_STORE, UINT64_C(1) << 40);
    refused(&job, ERR_TOO_LARGE, "data.npz: its list of arrays has 1048576 MiB; at most 16 MiB");
    put_large_form(UINT64_C(1) << 39, ZIP_CM_DEFLATE, 0);
    refused(&job, ERR_INVALID, "data.npz: x: its header promises 549755813888 bytes of data, more");
    put_large_form(UINT64_C(1) << 50, ZIP_CM_DEFLATE, 0);
    refused(&job, ERR_TOO_LARGE, "data.npz: x has 1048576 GiB; at most 1024 can be read");
}

/* A megabyte of zeroes in a kilobyte is what deflate can do; it is read, block by block. */
static void well_packed_arrays(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    void *zeroes = mem_zalloc(n);
    char dictionary[128], labels[128];
    snprintf(dictionary, sizeof dictionary,
             "{'descr': '|u1', 'fortran_order': False, 'shape': (%zu, 8)}", n / 8);
    snprintf(labels, sizeof labels, "{'descr': '|u1', 'fortran_order': False, 'shape': (%zu,)}",
             n / 8);
    const struct array arrays[] = {{"x.npy", dictionary, zeroes, n},
                                   {"y.npy", labels, zeroes, n / 8}};
    put_archive(arrays, 2, ZIP_CM_DEFLATE);
    free(zeroes);
    struct job_spec job = npz_job();
    job.model.input.size[0] = 8;
    struct prepared p = prepared(&job);
    assert_int_equal(p.train.samples, n / 8);
    data_unmap(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_and_deflated),    cmocka_unit_test(arrays_by_name),
        cmocka_unit_test(many_names_are_cut),     cmocka_unit_test(members_that_cannot_be_read),
        cmocka_unit_test(an_encrypted_member),    cmocka_unit_test(damaged_members),
        cmocka_unit_test(archives_that_are_none), cmocka_unit_test(the_form_of_large_archives),
        cmocka_unit_test(well_packed_arrays),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
