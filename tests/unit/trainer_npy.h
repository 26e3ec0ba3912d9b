/* trainer_npy.h: npy files made by hand, for the tests of npy and npz. */
#ifndef TRAINYARD_TESTS_UNIT_TRAINER_NPY_H
#define TRAINYARD_TESTS_UNIT_TRAINER_NPY_H

#include "tests/unit/trainer_data.h"

#include "base/buf.h"

/* Magic, version, header with its newline, data. */
static inline void npy_add(struct buf *b, int major, const char *dictionary, const void *data,
                           size_t n)
{
    size_t length = strlen(dictionary) + 1;
    unsigned char head[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)major, 0};
    for (int i = 0; i < 4; i++)
        head[8 + i] = (unsigned char)(length >> 8 * i);
    buf_add(b, head, major == 1 ? 10 : 12);
    buf_adds(b, dictionary);
    buf_adds(b, "\n");
    buf_add(b, data, n);
}

static inline void npy_put(const char *name, const char *dictionary, const void *data, size_t n)
{
    struct buf b = BUF_INIT;
    npy_add(&b, 1, dictionary, data, n);
    put(name, b.data, b.len);
    buf_done(&b);
}

static inline struct job_spec npy_job(enum loss loss, int64_t input, int64_t output)
{
    static char x[] = "x.npy", y[] = "y.npy";
    struct job_spec job = make_job(loss, input, output);
    job.train = (struct data_source){.format = DATA_NPY, .x = x, .y = y};
    return job;
}

#define NPY_X "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
#define NPY_Y "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }"

static const float npy_x[] = {1, -2, 0.5f, 4, 5, 6};
static const int64_t npy_y[] = {7, 9};

static inline void npy_put_good_set(void)
{
    npy_put("x.npy", NPY_X, npy_x, sizeof npy_x);
    npy_put("y.npy", NPY_Y, npy_y, sizeof npy_y);
}

#endif
