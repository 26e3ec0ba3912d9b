/* CSV text, plain or gzip, in every header mode and with every policy for missing values. */
#include "tests/fuzz/trainer_data.h"

/* Byte 0: fuzz_begin(); byte 1: the header's mode, the label's column, the policy. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct fuzz f;
    if (n < 2)
        return 0;
    fuzz_begin(&f, bytes[0]);
    f.job.train.header = (enum csv_header)(bytes[1] % 3);
    f.job.train.label_column = bytes[1] / 3 % 8 - 4;
    f.job.train.missing = (enum csv_missing)(bytes[1] / 24 % 3);
    f.job.train.fill = 1;
    struct data_stream s = fuzz_stream(bytes + 2, n - 2, "fuzz.csv");
    int r = data_read_csv(&s, &f.job.train, &f.need, &f.out, &f.note, &f.split, &f.e);
    data_stream_close(&s);
    fuzz_end(&f, r);
    return 0;
}
