/* Bytes as a manifest and as a shard: what is taken prints as it was, or fits no more memory than
 * was asked for. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/checkpoint_manifest.h"
#include "trainer/checkpoint_shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* What is read is what was printed: printed again it is the same. */
static void try_manifest(const char *text, size_t n)
{
    struct manifest m = {0}, again = {0};
    struct buf first = {0}, second = {0};
    struct err e = {0};
    int r = manifest_parse(text, n, &m, &e);
    if (r < 0 && (e.code != r || e.text[0] == '\0' || m.job))
        abort();
    if (r < 0)
        return;
    manifest_print(&m, &first);
    if (manifest_parse(first.data, first.len, &again, &e) < 0)
        abort();
    manifest_print(&again, &second);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
        abort();
    buf_done(&first);
    buf_done(&second);
    manifest_done(&m);
    manifest_done(&again);
}

static void read_piece(struct shard *s, int i)
{
    static struct layer layer = {.name = "layers.0",
                                 .tensors = {{.name = "kernel", .shape = {2, {3, 2}}}},
                                 .tensor_count = 1};
    static const struct model model = {.layers = &layer, .layer_count = 1};
    struct shard_piece p;
    struct err e;
    float out[64];
    if (shard_piece(s, i, &p, &e) < 0)
        return;
    size_t count = p.piece.to - p.piece.from;
    for (size_t at = 0; at < count; at += 64)
        if (shard_read(s, i, at, count - at < 64 ? count : at + 64, out, &e) < 0)
            abort();
    shard_check_tensor(&model, &p, &e);
}

static void try_shard(const uint8_t *bytes, size_t n)
{
    struct shard *s = NULL;
    struct err e = {0};
    const uint8_t *end = n ? memrchr(bytes, '}', n) : NULL;
    uint64_t length = end ? (uint64_t)(end - bytes) + 1 : n;
    int fd = memfd_create("in", MFD_CLOEXEC);
    if (write(fd, &length, 8) != 8 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    if (shard_open(fd, "fuzz", &s, &e) < 0)
        return;
    for (int i = 0; i < shard_count(s); i++)
        read_piece(s, i);
    shard_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    try_manifest((const char *)bytes, n);
    try_shard(bytes, n);
    return 0;
}
