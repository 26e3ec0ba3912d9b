/* data_numbers.c: numbers in the forms that files have them in. */
#include <math.h>
#include <string.h>

#include "trainer/data_parts.h"

#define SWAP8(v)  (v)
#define SWAP16(v) __builtin_bswap16(v)
#define SWAP32(v) __builtin_bswap32(v)
#define SWAP64(v) __builtin_bswap64(v)

/* One loop per type and byte order: `bits` is read from any address, turned where `swapped`, and
 * taken as T. */
#define LOOP(bits, T, turn, body)                                                                  \
    for (int64_t i = 0; i < n; i++) {                                                              \
        bits##_t word;                                                                             \
        T value;                                                                                   \
        memcpy(&word, bytes + (size_t)i * sizeof word, sizeof word);                               \
        word = turn(word);                                                                         \
        memcpy(&value, &word, sizeof value);                                                       \
        body                                                                                       \
    }
#define BOTH(bits, T, SWAP, body)                                                                  \
    do {                                                                                           \
        if (swapped)                                                                               \
            LOOP(bits, T, SWAP, body)                                                              \
        else                                                                                       \
            LOOP(bits, T, SWAP8, body)                                                             \
        return;                                                                                    \
    } while (0)
#define EACH_TYPE(body)                                                                            \
    switch (type) {                                                                                \
    case NUMBER_U8: BOTH(uint8, uint8_t, SWAP8, body);                                             \
    case NUMBER_I8: BOTH(uint8, int8_t, SWAP8, body);                                              \
    case NUMBER_U16: BOTH(uint16, uint16_t, SWAP16, body);                                         \
    case NUMBER_I16: BOTH(uint16, int16_t, SWAP16, body);                                          \
    case NUMBER_U32: BOTH(uint32, uint32_t, SWAP32, body);                                         \
    case NUMBER_I32: BOTH(uint32, int32_t, SWAP32, body);                                          \
    case NUMBER_U64: BOTH(uint64, uint64_t, SWAP64, body);                                         \
    case NUMBER_I64: BOTH(uint64, int64_t, SWAP64, body);                                          \
    case NUMBER_F32: BOTH(uint32, float, SWAP32, body);                                            \
    case NUMBER_F64: BOTH(uint64, double, SWAP64, body);                                           \
    case NUMBER__MAX: break;                                                                       \
    }                                                                                              \
    BUG("number type %d", (int)type)

uint64_t number_width(enum number_type type)
{
    static const uint64_t WIDTHS[] = {
        [NUMBER_U8] = 1,  [NUMBER_I8] = 1,  [NUMBER_U16] = 2, [NUMBER_I16] = 2, [NUMBER_U32] = 4,
        [NUMBER_I32] = 4, [NUMBER_U64] = 8, [NUMBER_I64] = 8, [NUMBER_F32] = 4, [NUMBER_F64] = 8};
    return WIDTHS[type];
}

void numbers_to_float(enum number_type type, int swapped, const void *from, int64_t n, float *to)
{
    const unsigned char *restrict bytes = from;
    float *restrict out = to;
    EACH_TYPE({ out[i] = (float)value; });
}

static void to_doubles(enum number_type type, int swapped, const void *from, int64_t n, double *out)
{
    const unsigned char *bytes = from;
    EACH_TYPE({ out[i] = (double)value; });
}

double number_to_double(enum number_type type, int swapped, const void *from)
{
    double value;
    to_doubles(type, swapped, from, 1, &value);
    return value;
}

static int32_t class_of(double value)
{
    return value >= 0 && value <= INT32_MAX && value == floor(value) ? (int32_t)value : -1;
}

void numbers_to_class(enum number_type type, int swapped, const void *from, int64_t n, int32_t *to)
{
    if (type == NUMBER_I32 && !swapped) {
        memcpy(to, from, (size_t)n * sizeof *to);
        return;
    }
    const unsigned char *bytes = from;
    EACH_TYPE({ to[i] = class_of((double)value); });
}

enum number_type number_kept(enum number_type type)
{
    return number_width(type) == 8 ? NUMBER_F32 : type;
}

static void swap_words(uint64_t width, const unsigned char *from, int64_t n, unsigned char *to)
{
    for (int64_t i = 0; i < n; i++, from += width, to += width)
        for (uint64_t k = 0; k < width; k++)
            to[k] = from[width - 1 - k];
}

void numbers_keep(enum number_type type, int swapped, const void *from, int64_t n, void *to)
{
    uint64_t width = number_width(type);
    if (width == 8)
        numbers_to_float(type, swapped, from, n, to);
    else if (swapped && width > 1)
        swap_words(width, from, n, to);
    else
        memmove(to, from, (size_t)n * width);
}
