/* A pair of IDX files, plain or gzip, cut out of one input. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/data_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void open_part(const uint8_t *bytes, size_t n, const char *name, struct data_stream *ret)
{
    int fd = memfd_create("in", MFD_CLOEXEC);
    if (write(fd, bytes, n) != (ssize_t)n || lseek(fd, 0, SEEK_SET) != 0 ||
        data_stream_open(fd, name, ret, NULL) < 0)
        abort();
}

static void check(const struct data_split *split, const struct data_need *need,
                  const struct data_out *o)
{
    if (split->samples < 1 || split->feature_size != need->feature_size)
        abort();
    const float *x = (const float *)(const void *)(o->map + split->features_at);
    int64_t elements = split->samples * split->feature_size;
    for (int64_t i = 0; split->feature_type == FEATURE_F32 && i < elements; i++) {
        if (!isfinite(x[i]))
            abort();
    }
    const float *y = (const float *)(const void *)(o->map + split->targets_at);
    for (int64_t i = 0; i < split->samples * split->target_size; i++) {
        if (y[i] != 0 && y[i] != 1)
            abort();
    }
    if (split->features_at + (uint64_t)elements > o->used ||
        split->targets_at + (uint64_t)(split->samples * split->target_size) * 4 > o->used)
        abort();
}

/* Byte 0 chooses the number of inputs and the loss, byte 1 where the labels' file begins. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n < 2)
        return 0;
    int one_hot = bytes[0] & 1;
    struct data_need need = {.feature_size = bytes[0] / 2 % 8 + 1,
                             .loss =
                                 one_hot ? LOSS_CATEGORICAL_CROSSENTROPY : LOSS_BINARY_CROSSENTROPY,
                             .outputs = one_hot ? 3 : 1,
                             .target_type = TARGET_F32,
                             .target_size = one_hot ? 3 : 1};
    need.input = (struct shape){1, {need.feature_size}};
    size_t cut = bytes[1] < n - 2 ? bytes[1] : n - 2;
    struct data_stream images = {0}, labels = {0};
    open_part(bytes + 2, cut, "images", &images);
    open_part(bytes + 2 + cut, n - 2 - cut, "labels", &labels);
    struct data_out o = {0};
    struct data_split split = {0};
    struct err e = {0};
    int out = memfd_create("out", MFD_CLOEXEC);
    if (data_out_begin(&o, out, &e) < 0)
        abort();
    if (data_read_idx(&images, &labels, &need, &o, &split, &e) == 0)
        check(&split, &need, &o);
    else if (e.code == 0 || e.text[0] == '\0')
        abort();
    data_stream_close(&images);
    data_stream_close(&labels);
    data_out_done(&o);
    close(out);
    return 0;
}
