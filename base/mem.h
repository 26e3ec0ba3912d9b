/* mem.h: host memory. Running out of it aborts (the supervisor restarts us); device memory and
 * sizes that come from input are checked by their owners before they get here. */
#ifndef TRAINYARD_BASE_MEM_H
#define TRAINYARD_BASE_MEM_H

#include <stddef.h>

void *mem_alloc(size_t size);
void *mem_zalloc(size_t size);
void *mem_realloc(void *p, size_t size);
char *mem_strdup(const char *s);
void mem_replace(char **field, const char *text); /* frees what was there; a copy takes its place */
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* 64-byte aligned, zeroed; free() it. */
void *mem_aligned(size_t size);

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* CLEANUP(fn) type *p = ...;  calls fn(&p) when p leaves its scope. */
#define CLEANUP(fn) __attribute__((cleanup(fn)))
void mem_freep(void *p);  /* CLEANUP(mem_freep) char *s */
void mem_closep(int *fd); /* CLEANUP(mem_closep) int fd; ignores -1 */

/* Gives the value away and leaves NULL behind, so that CLEANUP does not free it. */
#define STEAL(p)                                                                                   \
    ({                                                                                             \
        __typeof__(p) steal_tmp_ = (p);                                                            \
        (p) = NULL;                                                                                \
        steal_tmp_;                                                                                \
    })

#endif
