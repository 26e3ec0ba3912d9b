/* buf.h: a growable byte string, always NUL-terminated after its `len` bytes. */
#ifndef TRAINYARD_BASE_BUF_H
#define TRAINYARD_BASE_BUF_H

#include <stddef.h>

struct buf {
    char *data; /* never NULL after the first append; NULL in a fresh or released struct */
    size_t len;
    size_t cap;
};

#define BUF_INIT                                                                                   \
    {                                                                                              \
        0                                                                                          \
    }

void buf_done(struct buf *b); /* frees; the struct is as new */
void buf_clear(struct buf *b);
void buf_reserve(struct buf *b, size_t extra);
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_adds(struct buf *b, const char *s);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_drop(struct buf *b, size_t n); /* removes the first n bytes */
char *buf_steal(struct buf *b);         /* yours to free(); the struct is as new */

#endif
