/* CSV text, plain or gzip, in every header mode; what is accepted must be finite and whole. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/data_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Everything that was written lies where the split says, and can be used. */
static void check(const struct data_split *split, const struct data_need *need,
                  const struct data_out *o)
{
    if (split->samples < 1 || split->feature_size != need->feature_size)
        abort();
    const float *x = (const float *)(const void *)(o->map + split->features_at);
    for (int64_t i = 0; i < split->samples * split->feature_size; i++) {
        if (!isfinite(x[i]))
            abort();
    }
    const int32_t *classes = (const int32_t *)(const void *)(o->map + split->targets_at);
    for (int64_t i = 0; i < split->samples; i++) {
        if (classes[i] < 0 || classes[i] >= need->outputs)
            abort();
    }
}

static void read_once(int fd, const struct data_source *source, const struct data_need *need)
{
    struct data_stream s = {0};
    struct data_out o = {0};
    struct data_split split = {0};
    struct buf note = BUF_INIT;
    struct err e = {0};
    int out = memfd_create("out", MFD_CLOEXEC);
    if (data_stream_open(dup(fd), "fuzz.csv", &s, &e) < 0 || data_out_begin(&o, out, &e) < 0)
        abort();
    if (data_read_csv(&s, source, need, &o, &note, &split, &e) == 0)
        check(&split, need, &o);
    else if (e.code == 0 || e.text[0] == '\0')
        abort();
    data_stream_close(&s);
    data_out_done(&o);
    buf_done(&note);
    close(out);
}

/* Byte 0 chooses the number of inputs, the header's mode and the label's column. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n < 1)
        return 0;
    struct data_need need = {.feature_size = bytes[0] % 4 + 1,
                             .loss = LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
                             .outputs = 10,
                             .target_type = TARGET_CLASS,
                             .target_size = 1};
    need.input = (struct shape){1, {need.feature_size}};
    struct data_source source = {.format = DATA_CSV,
                                 .header = (enum csv_header)(bytes[0] / 4 % 3),
                                 .label_column = bytes[0] / 16 % 8 - 4};
    int fd = memfd_create("in", MFD_CLOEXEC);
    if (write(fd, bytes + 1, n - 1) != (ssize_t)(n - 1) || lseek(fd, 0, SEEK_SET) != 0)
        abort();
    read_once(fd, &source, &need);
    close(fd);
    return 0;
}
