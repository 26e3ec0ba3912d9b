#include "base/id.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/err.h"

#define ID_BODY 24 /* characters: 120 bits */

static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

static void random_bytes(void *out, size_t n)
{
    if (getrandom(out, n, 0) != (ssize_t)n)
        BUG("getrandom gave fewer than %zu bytes", n);
}

char *id_new(const char *prefix, char out[ID_SIZE])
{
    uint8_t bits[15];
    uint64_t ms = (uint64_t)(clock_wall_us() / 1000);
    random_bytes(bits, sizeof bits);
    for (int i = 0; i < 6; i++)
        bits[i] = (uint8_t)(ms >> (40 - 8 * i));
    int n = snprintf(out, ID_SIZE - ID_BODY, "%.8s_", prefix);
    for (int i = 0; i < ID_BODY; i++) {
        int bit = i * 5;
        unsigned two = (unsigned)bits[bit / 8] << 8 | (bit / 8 + 1 < 15 ? bits[bit / 8 + 1] : 0u);
        out[n + i] = alphabet[two >> (11 - bit % 8) & 31];
    }
    out[n + ID_BODY] = '\0';
    return out;
}

int id_valid(const char *prefix, const char *s)
{
    size_t n = strlen(prefix);
    if (strncmp(s, prefix, n) != 0 || s[n] != '_')
        return 0;
    const char *body = s + n + 1;
    return strlen(body) == ID_BODY && strspn(body, alphabet) == ID_BODY;
}

void id_secret(char out[ID_SECRET_SIZE])
{
    uint8_t bits[32];
    random_bytes(bits, sizeof bits);
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(out + 2 * i, 3, "%02x", bits[i]);
}
