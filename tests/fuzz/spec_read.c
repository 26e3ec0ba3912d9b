/* spec_read.c: bytes as a document, read by us and by Jansson's parser alone. What we take, it
 * takes, and as the same values in the same order. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "spec/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *ours;
    struct err e;
    if (job_spec_read((const char *)data, size, &ours, &e) < 0)
        return 0;
    json_t *theirs = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    if (!theirs || !json_equal(ours, theirs))
        BUG("read as what it is not");
    char *a = json_dumps(ours, JSON_COMPACT), *b = json_dumps(theirs, JSON_COMPACT);
    if (!a || !b || strcmp(a, b) != 0)
        BUG("read in another order");
    free(a);
    free(b);
    json_decref(ours);
    json_decref(theirs);
    return 0;
}
