/* data_out.c: where prepared data goes: a memfd that grows as it is filled through a shared
 * mapping, or, from where a source is over its memory_limit, the spool, in blocks.
 *
 * The memfd grows by half at a time; pages that are not touched cost nothing, and the end is cut
 * off when all is written. Its limit is DATA_MAX_BYTES or the machine's memory, the smaller. A
 * source whose size shows only as it is read moves to the spool when it meets its limit.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/data_parts.h"

#define FIRST_SIZE (UINT64_C(1) << 20)
#define BLOCK      (UINT64_C(1) << 20)

static uint64_t memory_of_machine(void)
{
    struct sysinfo info;
    if (sysinfo(&info) < 0)
        return DATA_MAX_BYTES;
    return (uint64_t)info.totalram * info.mem_unit;
}

static uint64_t aligned(uint64_t at)
{
    return (at + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
}

static uint64_t sum_of(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ---- memory ---- */

static int resize(struct data_out *o, uint64_t size, struct err *e)
{
    if (ftruncate(o->to.memory, (off_t)size) < 0)
        return err_errno(e, "cannot size the prepared data to %" PRIu64 " bytes", size);
    void *map = o->map ? mremap(o->map, o->size, size, MREMAP_MAYMOVE)
                       : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, o->to.memory, 0);
    if (map == MAP_FAILED)
        return err_errno(e, "cannot map %" PRIu64 " bytes of prepared data", size);
    o->map = map;
    o->size = size;
    return 0;
}

int data_out_begin(struct data_out *o, const struct data_store *to, struct err *e)
{
    *o = (struct data_out){.to = *to, .limit = memory_of_machine()};
    if (o->limit > DATA_MAX_BYTES)
        o->limit = DATA_MAX_BYTES;
    if (ftruncate(to->memory, 0) < 0)
        return err_errno(e, "cannot empty the memory for the prepared data");
    if (to->spool >= 0 && ftruncate(to->spool, 0) < 0)
        return err_errno(e, "cannot empty the spool for the prepared data");
    o->used = aligned(sizeof(struct data_header));
    return resize(o, FIRST_SIZE, e);
}

static int memory_fits(const struct data_out *o, uint64_t bytes, struct err *e)
{
    uint64_t need = sum_of(o->used, bytes);
    if (need <= o->limit)
        return 0;
    return err_set(e, ERR_TOO_LARGE,
                   "the prepared data would take %" PRIu64 " MiB, over the limit of %" PRIu64
                   " MiB (this machine's memory, at most %" PRIu64
                   " MiB); a lower \"memory_limit\" keeps it on disk",
                   need >> 20, o->limit >> 20, (uint64_t)DATA_MAX_BYTES >> 20);
}

static int memory_room(struct data_out *o, uint64_t bytes, void **ret, struct err *e)
{
    int r = memory_fits(o, bytes, e);
    uint64_t need = o->used + bytes;
    if (r == 0 && need > o->size) {
        uint64_t size = o->size + o->size / 2;
        r = resize(o, size > need ? size : need, e);
    }
    if (r < 0)
        return r;
    *ret = o->map + o->used;
    o->used = need;
    return 0;
}

/* ---- the spool ---- */

static int write_at(struct data_out *o, const unsigned char *bytes, uint64_t n, struct err *e)
{
    while (n > 0) {
        ssize_t wrote = pwrite(o->to.spool, bytes, n, (off_t)o->spool_used);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return err_errno(e, "cannot write byte %" PRIu64 " of the spool", o->spool_used);
        bytes += wrote;
        n -= (uint64_t)wrote;
        o->spool_used += (uint64_t)wrote;
    }
    return 0;
}

static int flush(struct data_out *o, struct err *e)
{
    uint64_t n = o->held;
    o->held = 0;
    return write_at(o, o->block, n, e);
}

static int spool_fits(const struct data_out *o, uint64_t bytes, struct err *e)
{
    uint64_t need = sum_of(o->spool_used + o->held, bytes);
    if (need <= DATA_SPOOL_MAX)
        return 0;
    return err_set(e, ERR_TOO_LARGE,
                   "the prepared data would take %" PRIu64
                   " MiB on disk, over the limit of %" PRIu64 " MiB",
                   need >> 20, (uint64_t)DATA_SPOOL_MAX >> 20);
}

static int spool_room(struct data_out *o, uint64_t bytes, void **ret, struct err *e)
{
    int r = spool_fits(o, bytes, e);
    if (r == 0 && o->held + bytes > o->block_size)
        r = flush(o, e);
    if (r < 0)
        return r;
    if (bytes > o->block_size) {
        o->block_size = bytes > BLOCK ? bytes : BLOCK;
        o->block = mem_realloc(o->block, o->block_size);
    }
    *ret = o->block + o->held;
    o->held += bytes;
    return 0;
}

/* What the source has in memory so far moves over. */
static int begin_spooling(struct data_out *o, uint64_t bytes, struct err *e)
{
    if (o->to.spool < 0)
        return err_set(e, ERR_TOO_LARGE,
                       "the prepared data would take %" PRIu64 " MiB, over its memory_limit of "
                       "%" PRIu64 " MiB, and there is no spool for it",
                       sum_of(o->used - o->source_at, bytes) >> 20, o->source_limit >> 20);
    int r = flush(o, e);
    o->spool_used = aligned(o->spool_used);
    o->spool_at = o->spool_used;
    o->spooling = 1;
    if (r == 0)
        r = write_at(o, o->map + o->source_at, o->used - o->source_at, e);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = (o->source_at + page - 1) / page * page;
    o->used = o->source_at;
    if (r == 0 && from < o->size)
        (void)madvise(o->map + from, o->size - from, MADV_REMOVE); /* else it is cut at the end */
    return r;
}

/* ---- sources ---- */

int data_out_source(struct data_out *o, int64_t memory_limit, struct err *e)
{
    void *skipped;
    o->spooling = 0;
    o->source_limit = (uint64_t)(memory_limit > 0 ? memory_limit : DATA_MEMORY_LIMIT);
    int r = memory_room(o, aligned(o->used) - o->used, &skipped, e);
    o->source_at = o->used;
    return r;
}

static int is_over(const struct data_out *o, uint64_t bytes)
{
    return !o->spooling && sum_of(o->used - o->source_at, bytes) > o->source_limit;
}

int data_out_expect(struct data_out *o, uint64_t bytes, struct err *e)
{
    int r = is_over(o, bytes) ? begin_spooling(o, bytes, e) : 0;
    if (r == 0)
        r = o->spooling ? spool_fits(o, bytes, e) : memory_fits(o, bytes, e);
    if (r < 0 || !o->spooling)
        return r;
    /* A disk without the room says so now, where it can. */
    if (fallocate(o->to.spool, FALLOC_FL_KEEP_SIZE, (off_t)o->spool_used, (off_t)bytes) < 0 &&
        errno == ENOSPC)
        return err_errno(e, "the spool needs %" PRIu64 " MiB", bytes >> 20);
    return 0;
}

int data_out_room(struct data_out *o, uint64_t bytes, void **ret, uint64_t *ret_at, struct err *e)
{
    int r = is_over(o, bytes) ? begin_spooling(o, bytes, e) : 0;
    if (r < 0)
        return r;
    uint64_t at = o->spooling ? o->spool_used + o->held - o->spool_at : o->used - o->source_at;
    r = o->spooling ? spool_room(o, bytes, ret, e) : memory_room(o, bytes, ret, e);
    if (r == 0 && ret_at)
        *ret_at = at;
    return r;
}

int data_out_align(struct data_out *o, struct err *e)
{
    void *skipped;
    uint64_t at = o->spooling ? o->spool_used + o->held : o->used, bytes = aligned(at) - at;
    int r = bytes > 0 ? data_out_room(o, bytes, &skipped, NULL, e) : 0;
    if (r == 0 && bytes > 0)
        memset(skipped, 0, bytes);
    return r;
}

void data_out_place(const struct data_out *o, struct data_place *place)
{
    if (place->in >= DATA_IN_FILES)
        return;
    place->in = o->spooling ? DATA_IN_SPOOL : DATA_IN_MEMORY;
    place->at += o->spooling ? o->spool_at : o->source_at;
}

int32_t data_out_file(struct data_out *o, const struct data_stream *s)
{
    int i = o->file_count++;
    o->files[i] = s->was;
    o->paths[i] = mem_strdup(s->name);
    return DATA_IN_FILES + i;
}

/* ---- the end ---- */

static int write_paths(struct data_out *o, struct data_header *h, struct err *e)
{
    for (int i = 0; i < o->file_count; i++) {
        void *to;
        uint64_t n = strlen(o->paths[i]);
        h->files[i] = o->files[i];
        h->files[i].path_at = o->used;
        h->files[i].path_len = n;
        int r = memory_room(o, n, &to, e);
        if (r < 0)
            return r;
        memcpy(to, o->paths[i], n);
    }
    h->file_count = o->file_count;
    return 0;
}

int data_out_finish(struct data_out *o, struct data_header *h, struct err *e)
{
    int r = flush(o, e);
    if (r == 0)
        r = write_paths(o, h, e);
    if (r < 0)
        return r;
    memcpy(h->magic, DATA_MAGIC, sizeof h->magic);
    h->version = DATA_VERSION;
    h->header_size = sizeof *h;
    h->total_size = o->used;
    h->spool_size = o->spool_used;
    memcpy(o->map, h, sizeof *h);
    munmap(o->map, o->size);
    o->map = NULL;
    if (ftruncate(o->to.memory, (off_t)o->used) < 0)
        return err_errno(e, "cannot cut the prepared data to %" PRIu64 " bytes", o->used);
    if (o->to.spool >= 0 && ftruncate(o->to.spool, (off_t)o->spool_used) < 0)
        return err_errno(e, "cannot cut the spool to %" PRIu64 " bytes", o->spool_used);
    /* A bonus where the memfd was made to allow it; readers check the header all the same. */
    (void)fcntl(o->to.memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
    return 0;
}

void data_out_done(struct data_out *o)
{
    if (o->map)
        munmap(o->map, o->size);
    for (int i = 0; i < o->file_count; i++)
        free(o->paths[i]);
    free(o->block);
    *o = (struct data_out){0};
}
