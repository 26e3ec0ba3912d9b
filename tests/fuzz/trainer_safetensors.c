/* Bytes as a safetensors file; the length field is also tried with the header's true length. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void read_all(const struct safetensors *s)
{
    static const struct shape SHAPES[] = {{1, {1}}, {1, {2}}, {2, {2, 3}}, {1, {4}}};
    float out[6];
    for (int i = 0; i < safetensors_count(s); i++) {
        for (size_t k = 0; k < sizeof SHAPES / sizeof *SHAPES; k++)
            safetensors_read(s, safetensors_name(s, i), &SHAPES[k], out, NULL);
    }
    safetensors_read(s, "no such tensor", &SHAPES[0], out, NULL);
}

static void try_file(int take_fd)
{
    struct safetensors *s = NULL;
    struct err e = {0};
    int r = safetensors_open(take_fd, "fuzz", &s, &e);
    if (r == 0)
        read_all(s);
    else if (s || e.code != r || e.text[0] == '\0')
        abort();
    safetensors_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    int fd = memfd_create("in", MFD_CLOEXEC);
    if (write(fd, bytes, n) != (ssize_t)n)
        abort();
    try_file(fd);

    const uint8_t *end = n ? memrchr(bytes, '}', n) : NULL;
    uint64_t length = end ? (uint64_t)(end - bytes) + 1 : n;
    fd = memfd_create("in", MFD_CLOEXEC);
    if (write(fd, &length, 8) != 8 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    try_file(fd);
    return 0;
}
