/* trainer_data.h: what the fuzzers of the data readers share: a job made of one byte, streams of
 * bytes, and what must hold of whatever is accepted. */
#ifndef TRAINYARD_TESTS_FUZZ_TRAINER_DATA_H
#define TRAINYARD_TESTS_FUZZ_TRAINER_DATA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/data_parts.h"

#define FUZZ_CLASSES    10
#define FUZZ_VOCABULARY 100
#define FUZZ_SAMPLES    200 /* as many are looked at one by one */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

struct fuzz {
    struct layer layer;
    struct job_spec job;
    struct data_need need;
    struct data_store store;
    struct data_out out;
    struct data_split split;
    struct buf note;
    struct err e;
};

/* Two bits each: inputs, loss, embedding and labels at each position, the memory limit. */
static inline void fuzz_begin(struct fuzz *f, uint8_t choice)
{
    static const enum loss LOSSES[] = {LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
                                       LOSS_CATEGORICAL_CROSSENTROPY, LOSS_BINARY_CROSSENTROPY,
                                       LOSS_MEAN_SQUARED_ERROR};
    int64_t inputs = choice % 4 + 1, outputs = choice / 4 % 4 < 2 ? FUZZ_CLASSES : 1;
    *f = (struct fuzz){.layer = {.type = LAYER_DENSE}};
    f->layer.out = (struct shape){1, {outputs}};
    if (choice & 16)
        f->layer.out = (struct shape){2, {inputs, outputs}};
    if (choice & 32) {
        f->layer.type = LAYER_EMBEDDING;
        f->layer.vocabulary = FUZZ_VOCABULARY;
    }
    f->job.model = (struct model){.input = {1, {inputs}}, .layers = &f->layer, .layer_count = 1};
    f->job.loss = LOSSES[choice / 4 % 4];
    f->job.train.memory_limit = choice & 64 ? 100 : 0;
    f->job.train.limit = choice & 128 ? 3 : 0;
    f->store.memory = memfd_create("out", MFD_CLOEXEC);
    f->store.spool = memfd_create("spool", MFD_CLOEXEC);
    if (data_need_of(&f->job, &f->need, &f->e) < 0 || data_out_begin(&f->out, &f->store, &f->e) < 0)
        abort();
}

static inline int fuzz_file(const uint8_t *bytes, size_t n)
{
    int fd = memfd_create("in", MFD_CLOEXEC);
    if (write(fd, bytes, n) != (ssize_t)n || lseek(fd, 0, SEEK_SET) != 0)
        abort();
    return fd;
}

static inline struct data_stream fuzz_stream(const uint8_t *bytes, size_t n, const char *name)
{
    struct data_stream s = {0};
    if (data_stream_open(fuzz_file(bytes, n), name, &s, NULL) < 0)
        abort();
    return s;
}

static inline void fuzz_check_sample(const struct fuzz *f, const struct dataset *d, int64_t id)
{
    float x[4], targets[4 * FUZZ_CLASSES];
    int32_t classes[4];
    if (data_gather(d, &id, 1, x, classes, targets, NULL) < 0)
        abort();
    for (int64_t i = 0; i < d->feature_size; i++)
        if (!isfinite(x[i]) ||
            (f->need.vocabulary && !(x[i] >= 0 && x[i] < FUZZ_VOCABULARY && x[i] == floorf(x[i]))))
            abort();
    float sum = 0;
    for (int64_t i = 0; i < d->target_size; i++) {
        if (d->target_type == TARGET_CLASS && (classes[i] < 0 || classes[i] >= FUZZ_CLASSES))
            abort();
        if (d->target_type == TARGET_F32 && !isfinite(targets[i]))
            abort();
        if (d->target_type == TARGET_F32)
            sum += targets[i];
    }
    if (d->is_one_hot && sum != (float)d->positions)
        abort();
}

/* What was accepted can be mapped and fetched, and every number of it is a right one. */
static inline void fuzz_check(struct fuzz *f)
{
    struct data_header h = {.train = f->split};
    struct data_roots none = {NULL, 0};
    struct prepared p = {0};
    int of_files = f->out.file_count > 0; /* those of a fuzzer are nowhere to be opened */
    if (data_out_finish(&f->out, &h, &f->e) < 0)
        abort();
    int r = data_map(&f->store, &none, &p, &f->e);
    if (of_files ? r == 0 : r < 0 || data_check(&p, &f->job, &f->e) < 0)
        abort();
    for (int64_t i = 0; i < p.train.samples && i < FUZZ_SAMPLES; i++)
        fuzz_check_sample(f, &p.train, i);
    data_unmap(&p);
}

/* `r` is what the reader returned. */
static inline void fuzz_end(struct fuzz *f, int r)
{
    if (r == 0)
        fuzz_check(f);
    else if (f->e.code != r || f->e.text[0] == '\0')
        abort();
    data_out_done(&f->out);
    buf_done(&f->note);
    close(f->store.memory);
    close(f->store.spool);
}

#endif
