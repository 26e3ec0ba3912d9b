/* Two IDX files, plain or gzip, cut out of one input. */
#include "tests/fuzz/trainer_data.h"

/* Byte 0: fuzz_begin(); byte 1: where the labels' file begins. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct fuzz f;
    if (n < 2)
        return 0;
    fuzz_begin(&f, bytes[0]);
    size_t cut = bytes[1] < n - 2 ? bytes[1] : n - 2;
    struct data_stream x = fuzz_stream(bytes + 2, cut, "x");
    struct data_stream y = fuzz_stream(bytes + 2 + cut, n - 2 - cut, "y");
    int r = data_read_idx(&x, &y, &f.job.train, &f.need, &f.out, &f.split, &f.e);
    data_stream_close(&x);
    data_stream_close(&y);
    fuzz_end(&f, r);
    return 0;
}
