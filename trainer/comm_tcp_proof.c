/* comm_tcp_proof.c: how two ranks prove to each other that they belong to one attempt.
 *
 *   dials -> answers   hello | HMAC(key, "hello", hello)          nothing is answered to a wrong
 * one answers -> dials   nonce | HMAC(key, "answer", hello, nonce) dials -> answers   HMAC(key,
 * "last", hello, nonce)
 *
 * The key is a hash of the attempt's secret, which itself never crosses the network; the hello
 * holds the dialling side's nonce, so that neither an old hello nor an old answer proves anything.
 * Both nonces make the keys of the connection. All comparisons take the same time whatever differs.
 */
#include "trainer/comm_tcp.h"

#include <string.h>

static const char MAGIC[8] = "TYARD\0\0\1"; /* the last byte is the protocol's version */

#define HELLO_PROVED  offsetof(struct tcp_hello, proof)
#define ANSWER_PROVED offsetof(struct tcp_answer, proof)

/* What a proof is about: the label, the hello without its proof, the answer's nonce. */
struct statement {
    char label[8];
    unsigned char hello[HELLO_PROVED];
    unsigned char nonce[TCP_NONCE];
};

static void prove(const unsigned char key[TCP_KEY], const char *label, const struct tcp_hello *h,
                  const unsigned char *nonce, unsigned char proof[TCP_PROOF])
{
    struct statement s = {{0}, {0}, {0}};
    memcpy(s.label, label, strlen(label));
    memcpy(s.hello, h, sizeof s.hello);
    if (nonce)
        memcpy(s.nonce, nonce, sizeof s.nonce);
    crypto_auth(proof, (const unsigned char *)&s, sizeof s, key);
}

static int check(const unsigned char key[TCP_KEY], const char *label, const struct tcp_hello *h,
                 const unsigned char *nonce, const unsigned char proof[TCP_PROOF])
{
    unsigned char right[TCP_PROOF];
    prove(key, label, h, nonce, right);
    return sodium_memcmp(right, proof, sizeof right) == 0;
}

void tcp_key_of(const char *secret, unsigned char key[TCP_KEY])
{
    crypto_generichash(key, TCP_KEY, (const unsigned char *)secret, strlen(secret), NULL, 0);
}

void tcp_say_hello(const unsigned char key[TCP_KEY], struct tcp_hello *h)
{
    memcpy(h->magic, MAGIC, sizeof h->magic);
    randombytes_buf(h->nonce, sizeof h->nonce);
    prove(key, "hello", h, NULL, h->proof);
}

static int ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

int tcp_is_hello(const struct tcp_hello *h)
{
    return memcmp(h->magic, MAGIC, sizeof h->magic) == 0 && ends(h->host, sizeof h->host) &&
           ends(h->node, sizeof h->node) && ends(h->attempt, sizeof h->attempt);
}

int tcp_check_hello(const unsigned char key[TCP_KEY], const struct tcp_hello *h)
{
    return check(key, "hello", h, NULL, h->proof);
}

void tcp_say_answer(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                    struct tcp_answer *a)
{
    randombytes_buf(a->nonce, sizeof a->nonce);
    prove(key, "answer", h, a->nonce, a->proof);
}

int tcp_check_answer(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                     const struct tcp_answer *a)
{
    return check(key, "answer", h, a->nonce, a->proof);
}

void tcp_say_last(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                  const struct tcp_answer *a, struct tcp_last *l)
{
    prove(key, "last", h, a->nonce, l->proof);
}

int tcp_check_last(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                   const struct tcp_answer *a, const struct tcp_last *l)
{
    return check(key, "last", h, a->nonce, l->proof);
}

void tcp_keys_of(const unsigned char key[TCP_KEY], const struct tcp_hello *h,
                 const struct tcp_answer *a, struct tcp_keys *ret)
{
    struct statement s = {.label = "keys"};
    _Static_assert(sizeof *ret == 64, "two keys of 32 bytes");
    memcpy(s.hello, h, sizeof s.hello);
    memcpy(s.nonce, a->nonce, sizeof s.nonce);
    crypto_generichash((unsigned char *)ret, sizeof *ret, (const unsigned char *)&s, sizeof s, key,
                       TCP_KEY);
}
