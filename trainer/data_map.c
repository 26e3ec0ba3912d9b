/* data_map.c: the ranks' side: a prepared memfd, checked and mapped, and the files that it names.
 *
 * Every number in the memfd's header is checked against the real sizes before a pointer is made of
 * it: the ranks' user may write there.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/data_parts.h"

#define PATH_MOST 4096

/* What the header is held against. */
struct opened {
    struct prepared *p;
    int spool;
    uint64_t memory_size, spool_size, file_sizes[DATA_FILES_MAX];
};

/* ---- the header ---- */

static int check_place(const struct data_place *s, int64_t samples, const struct opened *o)
{
    if (s->type < 0 || s->type >= NUMBER__MAX || s->size < 1 || samples < 1 || s->in < 0)
        return 0;
    if (s->in >= DATA_IN_FILES && s->in - DATA_IN_FILES >= o->p->fd_count)
        return 0;
    uint64_t size = s->in == DATA_IN_MEMORY  ? o->memory_size
                    : s->in == DATA_IN_SPOOL ? o->spool_size
                                             : o->file_sizes[s->in - DATA_IN_FILES];
    uint64_t row, rows, end;
    if (s->in == DATA_IN_MEMORY && s->at < sizeof(struct data_header))
        return 0;
    if (__builtin_mul_overflow((uint64_t)s->size, number_width((enum number_type)s->type), &row) ||
        __builtin_mul_overflow((uint64_t)(samples - 1), s->stride, &rows) ||
        __builtin_add_overflow(row, rows, &end) || __builtin_add_overflow(end, s->at, &end))
        return 0;
    return end <= size;
}

/* Labels are one a target, or one a row of it where rows have a 1 in the label's place. */
static int check_targets(const struct data_split *s)
{
    if (s->target_type != TARGET_CLASS && s->target_type != TARGET_F32)
        return 0;
    if (s->positions < 1 || s->target_size < 1 || s->target_size % s->positions != 0)
        return 0;
    if (s->target_type == TARGET_CLASS)
        return !s->is_one_hot && s->target_size == s->positions && s->labels.size == s->positions;
    return s->labels.size == (s->is_one_hot ? s->positions : s->target_size);
}

static int check_split(const struct data_split *s, const struct opened *o)
{
    return check_targets(s) && check_place(&s->features, s->samples, o) &&
           check_place(&s->labels, s->samples, o);
}

static int check_header(const struct data_header *h, uint64_t size, struct err *e)
{
    if (memcmp(h->magic, DATA_MAGIC, sizeof h->magic) != 0)
        return err_set(e, ERR_CORRUPT, "the prepared data was never finished");
    if (h->version != DATA_VERSION || h->header_size != sizeof *h)
        return err_set(e, ERR_CORRUPT,
                       "the prepared data has version %" PRIu32 ", this trainer reads %d",
                       h->version, DATA_VERSION);
    if (h->total_size != size)
        return err_set(e, ERR_CORRUPT,
                       "the prepared data has %" PRIu64 " bytes where %" PRIu64 " were written",
                       size, h->total_size);
    if (h->file_count < 0 || h->file_count > DATA_FILES_MAX)
        return err_set(e, ERR_CORRUPT, "the prepared data names %d files", h->file_count);
    return 0;
}

static int check_splits(const struct data_header *h, const struct opened *o, struct err *e)
{
    const struct data_split *v = &h->validation;
    if (!check_split(&h->train, o))
        return err_set(e, ERR_CORRUPT, "the prepared training data does not fit its memory");
    if (v->samples == 0)
        return 0;
    if (!check_split(v, o) || v->features.size != h->train.features.size ||
        v->target_type != h->train.target_type || v->target_size != h->train.target_size ||
        v->positions != h->train.positions)
        return err_set(e, ERR_CORRUPT, "the prepared validation data does not fit its memory");
    return 0;
}

/* ---- files ---- */

static int open_spool(const struct data_header *h, int fd, struct opened *o, struct err *e)
{
    struct stat st;
    o->spool = fd;
    if (h->spool_size == 0)
        return 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_errno(e, "the spool of the prepared data cannot be examined");
    if ((uint64_t)st.st_size != h->spool_size)
        return err_set(e, ERR_CORRUPT,
                       "the spool has %" PRIu64 " bytes where %" PRIu64 " were written",
                       (uint64_t)st.st_size, h->spool_size);
    o->spool_size = h->spool_size;
    return 0;
}

static int open_file(const struct data_file *f, const struct data_roots *roots, struct opened *o,
                     struct err *e)
{
    struct data_file is = {0};
    if (f->path_len > PATH_MOST || f->path_at > o->memory_size ||
        f->path_len > o->memory_size - f->path_at)
        return err_set(e, ERR_CORRUPT, "the prepared data names a file outside its memory");
    CLEANUP(mem_freep)
    char *path = mem_strndup((const char *)o->p->map + f->path_at, f->path_len);
    CLEANUP(mem_closep) int fd = -1;
    int r = data_open(roots, path, &fd, e);
    if (r == 0)
        r = data_file_of(fd, path, &is, e);
    if (r < 0)
        return r;
    if (is.device != f->device || is.inode != f->inode || is.size != f->size ||
        is.changed_ns != f->changed_ns)
        return err_set(e, ERR_CONFLICT,
                       "%s is not the file that was checked: it was changed or replaced since",
                       path);
    int i = o->p->fd_count++;
    o->file_sizes[i] = is.size;
    o->p->names[i] = STEAL(path);
    o->p->fds[i] = fd;
    fd = -1;
    return 0;
}

static int open_files(const struct data_header *h, const struct data_store *store,
                      const struct data_roots *roots, struct opened *o, struct err *e)
{
    int r = open_spool(h, store->spool, o, e);
    for (int i = 0; r == 0 && i < h->file_count; i++)
        r = open_file(&h->files[i], roots, o, e);
    return r;
}

/* ---- the data sets ---- */

static struct data_rows rows_of(const struct data_place *s, const struct opened *o)
{
    struct data_rows rows = {.type = (enum number_type)s->type,
                             .swapped = s->swapped != 0,
                             .size = s->size,
                             .stride = s->stride,
                             .at = s->at,
                             .fd = -1,
                             .name = "the spool"};
    if (s->in == DATA_IN_MEMORY) {
        rows.map = (const unsigned char *)o->p->map + s->at;
    } else if (s->in == DATA_IN_SPOOL) {
        rows.fd = o->spool;
    } else {
        rows.fd = o->p->fds[s->in - DATA_IN_FILES];
        rows.name = o->p->names[s->in - DATA_IN_FILES];
    }
    return rows;
}

static struct dataset dataset_of(const struct data_split *s, const struct opened *o)
{
    if (s->samples == 0)
        return (struct dataset){0};
    return (struct dataset){.samples = s->samples,
                            .feature_size = s->features.size,
                            .target_type = (enum target_type)s->target_type,
                            .target_size = s->target_size,
                            .positions = s->positions,
                            .is_one_hot = s->is_one_hot != 0,
                            .features = rows_of(&s->features, o),
                            .labels = rows_of(&s->labels, o)};
}

static int use_map(struct prepared *p, const struct data_store *store,
                   const struct data_roots *roots, struct err *e)
{
    struct data_header h;
    memcpy(&h, p->map, sizeof h); /* checked and used from here, whatever others write there */
    struct opened o = {.p = p, .memory_size = p->map_size};
    int r = check_header(&h, p->map_size, e);
    if (r == 0)
        r = open_files(&h, store, roots, &o, e);
    if (r == 0)
        r = check_splits(&h, &o, e);
    if (r < 0)
        return r;
    p->train = dataset_of(&h.train, &o);
    p->validation = dataset_of(&h.validation, &o);
    p->train.is_ahead = data_is_streamed(&p->train) || data_is_streamed(&p->validation);
    p->validation.is_ahead = p->train.is_ahead;
    memcpy(p->note, h.note, sizeof p->note - 1);
    return 0;
}

int data_map(const struct data_store *store, const struct data_roots *roots, struct prepared *ret,
             struct err *e)
{
    struct stat st;
    if (fstat(store->memory, &st) < 0)
        return err_errno(e, "cannot examine the prepared data");
    struct prepared p = {.map_size = (size_t)st.st_size};
    if (p.map_size < sizeof(struct data_header))
        return err_set(e, ERR_CORRUPT, "there is no prepared data");
    p.map = mmap(NULL, p.map_size, PROT_READ, MAP_SHARED, store->memory, 0);
    if (p.map == MAP_FAILED)
        return err_errno(e, "cannot map %zu bytes of prepared data", p.map_size);
    int r = use_map(&p, store, roots, e);
    if (r < 0)
        data_unmap(&p);
    else
        *ret = p;
    return r;
}

void data_unmap(struct prepared *p)
{
    if (p->map)
        munmap(p->map, p->map_size);
    for (int i = 0; i < p->fd_count; i++) {
        close(p->fds[i]);
        free(p->names[i]);
    }
    memset(p, 0, sizeof *p);
}
