/* An npz archive. */
#include "tests/fuzz/trainer_data.h"

/* Byte 0: fuzz_begin(). */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static char path[] = "fuzz.npz";
    struct fuzz f;
    if (n < 1)
        return 0;
    fuzz_begin(&f, bytes[0]);
    f.job.train.path = path;
    int r =
        data_read_npz(fuzz_file(bytes + 1, n - 1), &f.job.train, &f.need, &f.out, &f.split, &f.e);
    fuzz_end(&f, r);
    return 0;
}
