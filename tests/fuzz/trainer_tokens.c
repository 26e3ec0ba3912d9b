/* A token file, plain or gzip, with and without a header. */
#include "tests/fuzz/trainer_data.h"

/* Byte 0: fuzz_begin(); byte 1: the dtype. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct fuzz f;
    if (n < 2)
        return 0;
    fuzz_begin(&f, bytes[0]);
    f.job.train.dtype = (enum token_type)(bytes[1] % 4);
    struct data_stream s = fuzz_stream(bytes + 2, n - 2, "fuzz.bin");
    int r = data_read_tokens(&s, &f.job.train, &f.need, &f.out, &f.note, &f.split, &f.e);
    data_stream_close(&s);
    fuzz_end(&f, r);
    return 0;
}
