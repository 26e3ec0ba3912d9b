/* data_out.c: a memfd that grows as it is filled through a shared mapping.
 *
 * The memfd grows by half at a time; pages that are not touched cost nothing, and the end is cut
 * off when all is written. The limit is DATA_MAX_BYTES or the machine's memory, the smaller.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "trainer/data_parts.h"

#define FIRST_SIZE (UINT64_C(1) << 20)

static uint64_t memory_of_machine(void)
{
    struct sysinfo info;
    if (sysinfo(&info) < 0)
        return DATA_MAX_BYTES;
    return (uint64_t)info.totalram * info.mem_unit;
}

static int resize(struct data_out *o, uint64_t size, struct err *e)
{
    if (ftruncate(o->fd, (off_t)size) < 0)
        return err_errno(e, "cannot size the prepared data to %" PRIu64 " bytes", size);
    void *map = o->map ? mremap(o->map, o->size, size, MREMAP_MAYMOVE)
                       : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
    if (map == MAP_FAILED)
        return err_errno(e, "cannot map %" PRIu64 " bytes of prepared data", size);
    o->map = map;
    o->size = size;
    return 0;
}

int data_out_begin(struct data_out *o, int memfd, struct err *e)
{
    *o = (struct data_out){.fd = memfd, .limit = memory_of_machine()};
    if (o->limit > DATA_MAX_BYTES)
        o->limit = DATA_MAX_BYTES;
    if (ftruncate(memfd, 0) < 0)
        return err_errno(e, "cannot empty the memory for the prepared data");
    int r = resize(o, FIRST_SIZE, e);
    if (r < 0)
        return r;
    o->used = sizeof(struct data_header);
    return data_out_align(o, e);
}

int data_out_extend(struct data_out *o, uint64_t bytes, void **ret, struct err *e)
{
    uint64_t need;
    if (__builtin_add_overflow(o->used, bytes, &need))
        need = UINT64_MAX;
    if (need > o->limit)
        return err_set(e, ERR_TOO_LARGE,
                       "the prepared data would take %" PRIu64 " MiB, over the limit of %" PRIu64
                       " MiB (this machine's memory, at most %" PRIu64 " MiB)",
                       need >> 20, o->limit >> 20, (uint64_t)DATA_MAX_BYTES >> 20);
    if (need > o->size) {
        uint64_t size = o->size + o->size / 2;
        int r = resize(o, size > need ? size : need, e);
        if (r < 0)
            return r;
    }
    *ret = o->map + o->used;
    o->used = need;
    return 0;
}

int data_out_align(struct data_out *o, struct err *e)
{
    void *skipped;
    return data_out_extend(o, (DATA_ALIGN - o->used % DATA_ALIGN) % DATA_ALIGN, &skipped, e);
}

int data_out_finish(struct data_out *o, struct data_header *h, struct err *e)
{
    memcpy(h->magic, DATA_MAGIC, sizeof h->magic);
    h->version = DATA_VERSION;
    h->header_size = sizeof *h;
    h->total_size = o->used;
    memcpy(o->map, h, sizeof *h);
    data_out_done(o);
    if (ftruncate(o->fd, (off_t)o->used) < 0)
        return err_errno(e, "cannot cut the prepared data to %" PRIu64 " bytes", o->used);
    /* A bonus where the memfd was made to allow it; readers check the header all the same. */
    (void)fcntl(o->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
    return 0;
}

void data_out_done(struct data_out *o)
{
    if (o->map)
        munmap(o->map, o->size);
    o->map = NULL;
}
