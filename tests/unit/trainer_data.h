/* trainer_data.h: what the tests of the data readers share: a data root in a temporary directory,
 * files in it, a job that names them, and the two outcomes of preparing it. */
#ifndef TRAINYARD_TESTS_UNIT_TRAINER_DATA_H
#define TRAINYARD_TESTS_UNIT_TRAINER_DATA_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "trainer/data.h"

static char root[64];
static const char *const root_list[] = {root};
static const struct data_roots roots = {root_list, 1};
static int spool = -1; /* one for all, so that one streamed set is open at a time */

static inline int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/trainyard-test-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    spool = open(root, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return spool < 0 ? -1 : 0;
}

static inline int remove_root(void **state)
{
    (void)state;
    close(spool);
    return file_remove_tree(root, NULL);
}

static inline struct data_store make_store(void)
{
    struct data_store s = {memfd_create("prepared", MFD_CLOEXEC | MFD_ALLOW_SEALING), spool};
    assert_true(s.memory >= 0);
    return s;
}

static inline void put(const char *name, const void *bytes, size_t n)
{
    char path[512];
    struct err e;
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (file_write_atomic(path, bytes, n, 0644, &e) < 0)
        fail_msg("%s", e.text);
}

static inline void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

/* gzip data of `bytes`; returns its length. */
static inline size_t pack(const void *bytes, size_t n, unsigned char *out, size_t room)
{
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)bytes,
                  .avail_in = (unsigned)n,
                  .next_out = out,
                  .avail_out = (unsigned)room};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t size = z.total_out;
    deflateEnd(&z);
    return size;
}

static inline void put_packed(const char *name, const void *bytes, size_t n)
{
    unsigned char *out = mem_alloc(n + 1024);
    put(name, out, pack(bytes, n, out, n + 1024));
    free(out);
}

/* A model of one layer, from `input` values to `output`. Static storage, one at a time. */
static inline struct job_spec make_job(enum loss loss, int64_t input, int64_t output)
{
    static struct layer layer;
    layer = (struct layer){.in = {1, {input}}, .out = {1, {output}}};
    struct job_spec job = {.model = {.input = {1, {input}}, .layers = &layer, .layer_count = 1},
                           .loss = loss};
    return job;
}

static inline struct job_spec csv_job(enum loss loss, int64_t input, int64_t output,
                                      enum csv_header header)
{
    struct job_spec job = make_job(loss, input, output);
    static char path[] = "data.csv";
    job.train = (struct data_source){
        .format = DATA_CSV, .path = path, .header = header, .label_column = -1};
    return job;
}

static inline struct job_spec idx_job(enum loss loss, int64_t input, int64_t output)
{
    struct job_spec job = make_job(loss, input, output);
    static char images[] = "images.idx", labels[] = "labels.idx";
    job.train = (struct data_source){.format = DATA_IDX, .images = images, .labels = labels};
    return job;
}

static inline void refused(const struct job_spec *job, int code, const char *words)
{
    struct err e = {0};
    struct prepared p;
    struct data_store store = make_store();
    int r = data_prepare(job, &roots, &store, &e);
    if (r != code || e.code != code || !strstr(e.text, words))
        fail_msg("%d, \"%s\"; expected %d, \"%s\"", r, e.text, code, words);
    assert_int_equal(data_map(&store, &roots, &p, &e), ERR_CORRUPT);
    close(store.memory);
}

static inline struct prepared prepared_from(const struct data_roots *where,
                                            const struct job_spec *job)
{
    struct err e = {0};
    struct prepared p = {0};
    struct data_store store = make_store();
    if (data_prepare(job, where, &store, &e) < 0 || data_map(&store, where, &p, &e) < 0 ||
        data_check(&p, job, &e) < 0)
        fail_msg("%s", e.text);
    close(store.memory);
    return p;
}

static inline struct prepared prepared(const struct job_spec *job)
{
    return prepared_from(&roots, job);
}

/* Element `column` of sample `row`, as a batch gets it. */
static inline double value_at(const struct dataset *d, int64_t row, int64_t column)
{
    CLEANUP(mem_freep) float *x = mem_alloc((size_t)d->feature_size * sizeof *x);
    assert_int_equal(data_gather(d, &row, 1, x, NULL, NULL, NULL), 0);
    return (double)x[column];
}

static inline int32_t class_at(const struct dataset *d, int64_t row, int64_t position)
{
    CLEANUP(mem_freep) int32_t *classes = mem_alloc((size_t)d->target_size * sizeof *classes);
    assert_int_equal(d->target_type, TARGET_CLASS);
    assert_int_equal(data_gather(d, &row, 1, NULL, classes, NULL, NULL), 0);
    return classes[position];
}

static inline double target_at(const struct dataset *d, int64_t row, int64_t column)
{
    CLEANUP(mem_freep) float *targets = mem_alloc((size_t)d->target_size * sizeof *targets);
    assert_int_equal(d->target_type, TARGET_F32);
    assert_int_equal(data_gather(d, &row, 1, NULL, NULL, targets, NULL), 0);
    return (double)targets[column];
}

#endif
