#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

static void *checked(void *p, size_t size)
{
    if (!p)
        BUG("out of host memory while asking for %zu bytes", size);
    return p;
}

void *mem_alloc(size_t size)
{
    return checked(malloc(size ? size : 1), size);
}

void *mem_zalloc(size_t size)
{
    return checked(calloc(1, size ? size : 1), size);
}

void *mem_realloc(void *p, size_t size)
{
    return checked(realloc(p, size ? size : 1), size);
}

void *mem_aligned(size_t size)
{
    size_t rounded = (size + 63) / 64 * 64;
    void *p = checked(aligned_alloc(64, rounded ? rounded : 64), rounded);
    memset(p, 0, rounded ? rounded : 64);
    return p;
}

char *mem_strdup(const char *s)
{
    return checked(strdup(s), strlen(s));
}

void mem_replace(char **field, const char *text)
{
    char *copy = mem_strdup(text); /* first: text may be what was there */
    free(*field);
    *field = copy;
}

char *mem_strndup(const char *s, size_t n)
{
    return checked(strndup(s, n), n);
}

char *mem_printf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0)
        BUG("out of host memory while formatting a string");
    return s;
}

void mem_freep(void *p)
{
    free(*(void **)p);
}

void mem_closep(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}
