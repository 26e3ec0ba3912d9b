/* comm_tcp_frame.c: frames: header, its tag, payload, its tag.
 *
 * Nothing is encrypted. The tags are Poly1305 under keys that ChaCha20 makes of the connection's
 * key and the frame's number: whatever is changed, left out, repeated or put in on the way is
 * noticed. The payload's tag comes last, so that a sender need not read the payload twice.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trainer/comm_tcp.h"

void tcp_link_init(struct tcp_link *l, int fd, int peer, const struct tcp_keys *k, int dialled)
{
    *l = (struct tcp_link){.fd = fd, .peer = peer};
    memcpy(l->send_key, dialled ? k->dialled : k->answered, TCP_KEY);
    memcpy(l->receive_key, dialled ? k->answered : k->dialled, TCP_KEY);
}

void tcp_link_close(struct tcp_link *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

static void start(struct tcp_seal *s, const unsigned char key[TCP_KEY], uint64_t number)
{
    unsigned char nonce[crypto_stream_chacha20_NONCEBYTES], keys[2 * TCP_KEY];
    _Static_assert(sizeof nonce == sizeof number, "a frame's number is its nonce");
    memcpy(nonce, &number, sizeof nonce);
    crypto_stream_chacha20(keys, sizeof keys, nonce, key);
    memcpy(s->head_key, keys, TCP_KEY);
    crypto_onetimeauth_init(&s->state, keys + TCP_KEY);
}

void tcp_seal_begin(struct tcp_seal *s, struct tcp_link *l, const struct tcp_head *h)
{
    start(s, l->send_key, l->sent++);
    memcpy(s->head, h, sizeof *h);
    crypto_onetimeauth(s->head + sizeof *h, s->head, sizeof *h, s->head_key);
}

void tcp_open_begin(struct tcp_seal *s, struct tcp_link *l)
{
    start(s, l->receive_key, l->received++);
}

int tcp_open_head(const struct tcp_seal *s, struct tcp_head *ret)
{
    const unsigned char *tag = s->head + sizeof *ret;
    if (crypto_onetimeauth_verify(tag, s->head, sizeof *ret, s->head_key) != 0)
        return 0;
    memcpy(ret, s->head, sizeof *ret);
    return 1;
}

void tcp_seal_feed(struct tcp_seal *s, const void *payload, size_t bytes)
{
    crypto_onetimeauth_update(&s->state, payload, bytes);
}

void tcp_seal_end(struct tcp_seal *s)
{
    crypto_onetimeauth_final(&s->state, s->tag);
}

int tcp_open_end(struct tcp_seal *s)
{
    unsigned char right[TCP_TAG];
    crypto_onetimeauth_final(&s->state, right);
    return sodium_memcmp(right, s->tag, sizeof right) == 0;
}

size_t tcp_frame_bytes(uint64_t payload)
{
    return TCP_FRAME_HEAD + (size_t)payload + (payload ? TCP_TAG : 0);
}
