#include "spec/codec.h"

#include <math.h>

size_t codec_top(const struct parallel *p, size_t n)
{
    size_t k = (size_t)ceil(p->top_k * (double)n);
    return k < 1 && n > 0 ? 1 : k > n ? n : k;
}

size_t codec_bytes(const struct parallel *p, size_t n)
{
    size_t bytes = 0;
    switch (p->codec) {
    case CODEC_NONE: bytes = n * sizeof(float); break;
    case CODEC_BF16: bytes = n * sizeof(uint16_t); break;
    case CODEC_INT8:
        bytes = (n + CODEC_CHUNK - 1) / CODEC_CHUNK * sizeof(float) + n * sizeof(int8_t);
        break;
    case CODEC_TOP_K: bytes = codec_top(p, n) * (sizeof(uint32_t) + sizeof(float)); break;
    }
    return (bytes + 63) / 64 * 64;
}

int codec_keeps_residual(enum codec_kind k)
{
    return k == CODEC_INT8 || k == CODEC_TOP_K;
}

int64_t codec_table_room(int ranks, int64_t rows, int64_t cols)
{
    return rows <= UINT32_MAX - 1 ? rows * cols / ((int64_t)ranks * (cols + 1)) : 0;
}

size_t codec_rows_bytes(int64_t room, int64_t cols)
{
    size_t bytes = (size_t)room * (sizeof(uint32_t) + (size_t)cols * sizeof(float));
    return (bytes + 63) / 64 * 64;
}
