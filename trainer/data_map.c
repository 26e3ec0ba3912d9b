/* data_map.c: the ranks' side: a prepared memfd, checked and mapped, and batches out of it.
 *
 * Every number in the memfd's header is checked against the memfd's real size before a pointer is
 * made of it: the ranks' user may write there.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "trainer/data_parts.h"

uint64_t data_feature_bytes(int32_t feature_type)
{
    return feature_type == FEATURE_U8 ? 1 : sizeof(float);
}

/* 1 if `rows` x `columns` elements of `width` bytes at `at` lie between the header and the end. */
static int lies_within(uint64_t at, int64_t rows, int64_t columns, uint64_t width, uint64_t size)
{
    uint64_t bytes;
    if (rows < 1 || columns < 1 || at < sizeof(struct data_header) || at > size || at % width)
        return 0;
    if (__builtin_mul_overflow((uint64_t)rows, (uint64_t)columns, &bytes) ||
        __builtin_mul_overflow(bytes, width, &bytes))
        return 0;
    return bytes <= size - at;
}

static int check_split(const struct data_split *s, uint64_t size)
{
    if (s->feature_type != FEATURE_U8 && s->feature_type != FEATURE_F32)
        return 0;
    if (s->target_type != TARGET_CLASS && s->target_type != TARGET_F32)
        return 0;
    if (s->target_type == TARGET_CLASS && s->target_size != 1)
        return 0;
    return lies_within(s->features_at, s->samples, s->feature_size,
                       data_feature_bytes(s->feature_type), size) &&
           lies_within(s->targets_at, s->samples, s->target_size, sizeof(float), size);
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
    if (!check_split(&h->train, size))
        return err_set(e, ERR_CORRUPT, "the prepared training data does not fit its memory");
    const struct data_split *v = &h->validation;
    if (v->samples == 0)
        return 0;
    if (!check_split(v, size) || v->feature_size != h->train.feature_size ||
        v->target_type != h->train.target_type || v->target_size != h->train.target_size)
        return err_set(e, ERR_CORRUPT, "the prepared validation data does not fit its memory");
    return 0;
}

static struct dataset dataset_of(const struct data_split *s, const unsigned char *map)
{
    struct dataset d = {0};
    if (s->samples == 0)
        return d;
    d.samples = s->samples;
    d.feature_size = s->feature_size;
    d.feature_type = (enum feature_type)s->feature_type;
    d.features = map + s->features_at;
    d.target_type = (enum target_type)s->target_type;
    d.target_size = s->target_size;
    d.positions = 1;
    const void *targets = map + s->targets_at;
    if (d.target_type == TARGET_CLASS)
        d.classes = targets;
    else
        d.targets = targets;
    return d;
}

int data_map(int memfd, struct prepared *ret, struct err *e)
{
    struct stat st;
    if (fstat(memfd, &st) < 0)
        return err_errno(e, "cannot examine the prepared data");
    uint64_t size = (uint64_t)st.st_size;
    if (size < sizeof(struct data_header))
        return err_set(e, ERR_CORRUPT, "there is no prepared data");
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, memfd, 0);
    if (map == MAP_FAILED)
        return err_errno(e, "cannot map %" PRIu64 " bytes of prepared data", size);
    struct data_header h;
    memcpy(&h, map, sizeof h); /* checked and used from here, whatever others write there */
    int r = check_header(&h, size, e);
    if (r < 0) {
        munmap(map, size);
        return r;
    }
    memset(ret, 0, sizeof *ret);
    ret->train = dataset_of(&h.train, map);
    ret->validation = dataset_of(&h.validation, map);
    memcpy(ret->note, h.note, sizeof ret->note - 1);
    ret->map = map;
    ret->map_size = size;
    return 0;
}

void data_unmap(struct prepared *p)
{
    if (p->map)
        munmap(p->map, p->map_size);
    memset(p, 0, sizeof *p);
}

static void widen(const uint8_t *restrict from, float *restrict to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)from[i];
}

static void gather_features(const struct dataset *d, const int64_t *ids, int64_t n, float *x)
{
    int64_t size = d->feature_size;
    for (int64_t i = 0; i < n; i++) {
        if (d->feature_type == FEATURE_U8)
            widen((const uint8_t *)d->features + ids[i] * size, x + i * size, size);
        else
            memcpy(x + i * size, (const float *)d->features + ids[i] * size,
                   (size_t)size * sizeof *x);
    }
}

int data_gather(const struct dataset *d, const int64_t *ids, int64_t n, float *x, int32_t *classes,
                float *targets, struct err *e)
{
    (void)e;
    if (x)
        gather_features(d, ids, n, x);
    for (int64_t i = 0; d->target_type == TARGET_CLASS && classes && i < n; i++)
        memcpy(classes + i * d->target_size, d->classes + ids[i] * d->target_size,
               (size_t)d->target_size * sizeof *classes);
    for (int64_t i = 0; d->target_type == TARGET_F32 && targets && i < n; i++)
        memcpy(targets + i * d->target_size, d->targets + ids[i] * d->target_size,
               (size_t)d->target_size * sizeof *targets);
    return 0;
}
