/* comm.c: what all transports share. */
#include "trainer/comm.h"

#define PART_ALIGN 16

size_t comm_type_size(enum comm_type type)
{
    return type == COMM_F64 ? sizeof(double) : sizeof(float);
}

void comm_part(size_t count, int size, int index, size_t *ret_begin, size_t *ret_end)
{
    size_t blocks = (count + PART_ALIGN - 1) / PART_ALIGN;
    size_t each = blocks / (size_t)size, more = blocks % (size_t)size, i = (size_t)index;
    size_t begin = (i * each + (i < more ? i : more)) * PART_ALIGN;
    size_t end = begin + (each + (i < more)) * PART_ALIGN;
    *ret_begin = begin < count ? begin : count;
    *ret_end = end < count ? end : count;
}

void comm_progress(struct comm *c)
{
    __atomic_store_n(c->progress, *c->progress + 1, __ATOMIC_RELAXED);
}

void comm_close(struct comm *c)
{
    if (c)
        c->verbs->close(c);
}
