/* data_gather.c: samples out of the prepared data, in any order: from memory, or from a file by
 * pread in pieces of at most 64 KiB, neighbours together. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "trainer/data_parts.h"

#define PIECE          65536
#define CLASSES_APIECE 1024

int data_is_streamed(const struct dataset *d)
{
    return d->samples > 0 && (!d->features.map || !d->labels.map);
}

/* n numbers of the rows' form to 4 bytes each. */
typedef void converter(const struct data_rows *rows, const void *from, int64_t n, void *to);

static void to_float(const struct data_rows *rows, const void *from, int64_t n, void *to)
{
    if (rows->type == NUMBER_F32 && !rows->swapped)
        memcpy(to, from, (size_t)n * sizeof(float));
    else
        numbers_to_float(rows->type, rows->swapped, from, n, to);
}

static void to_class(const struct data_rows *rows, const void *from, int64_t n, void *to)
{
    numbers_to_class(rows->type, rows->swapped, from, n, to);
}

/* ---- from a file ---- */

static int read_at(const struct data_rows *rows, uint64_t at, void *to, uint64_t n, struct err *e)
{
    uint64_t done = 0;
    while (done < n) {
        ssize_t got = pread(rows->fd, (char *)to + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, "cannot read %s", rows->name);
        if (got == 0)
            return err_set(e, ERR_CORRUPT,
                           "%s ends at byte %" PRIu64 ", where there was more when it was checked",
                           rows->name, at + done);
        done += (uint64_t)got;
    }
    return 0;
}

/* How many of the rows follow each other and fit a piece together. */
static int64_t run_of(const struct data_rows *rows, const int64_t *ids, int64_t n, uint64_t bytes)
{
    int64_t run = 1;
    while (run < n && ids[run] == ids[0] + run && (uint64_t)run * rows->stride + bytes <= PIECE)
        run++;
    return run;
}

/* A row that is longer than a piece. */
static int fetch_long(const struct data_rows *rows, uint64_t at, converter *convert,
                      unsigned char *to, struct err *e)
{
    unsigned char piece[PIECE];
    int64_t width = (int64_t)number_width(rows->type), most = PIECE / width;
    for (int64_t done = 0; done < rows->size; done += most) {
        int64_t n = rows->size - done < most ? rows->size - done : most;
        int r = read_at(rows, at + (uint64_t)(done * width), piece, (uint64_t)(n * width), e);
        if (r < 0)
            return r;
        convert(rows, piece, n, to + done * 4);
    }
    return 0;
}

static int fetch_read(const struct data_rows *rows, const int64_t *ids, int64_t n,
                      converter *convert, unsigned char *to, struct err *e)
{
    unsigned char piece[PIECE];
    uint64_t bytes = (uint64_t)rows->size * number_width(rows->type);
    for (int64_t i = 0, run; i < n; i += run) {
        uint64_t at = rows->at + (uint64_t)ids[i] * rows->stride;
        run = run_of(rows, ids + i, n - i, bytes);
        int r = bytes > PIECE
                    ? fetch_long(rows, at, convert, to + i * rows->size * 4, e)
                    : read_at(rows, at, piece, (uint64_t)(run - 1) * rows->stride + bytes, e);
        if (r < 0)
            return r;
        for (int64_t k = 0; bytes <= PIECE && k < run; k++)
            convert(rows, piece + (uint64_t)k * rows->stride, rows->size,
                    to + (i + k) * rows->size * 4);
    }
    return 0;
}

/* Rows ids[0..n) to `to` [n, size], 4 bytes a number. */
static int fetch(const struct data_rows *rows, const int64_t *ids, int64_t n, converter *convert,
                 void *to, struct err *e)
{
    if (!rows->map)
        return fetch_read(rows, ids, n, convert, to, e);
    for (int64_t i = 0; i < n; i++)
        convert(rows, rows->map + (uint64_t)ids[i] * rows->stride, rows->size,
                (unsigned char *)to + i * rows->size * 4);
    return 0;
}

/* ---- labels ---- */

static int bad_class(const struct dataset *d, int64_t id, int32_t class, struct err *e)
{
    return err_set(e, ERR_CORRUPT,
                   "Sample %" PRId64 " of the prepared data has class %d, where the model has "
                   "%" PRId64 " outputs: the data was changed after it was checked.",
                   id + 1, class, d->target_size / d->positions);
}

/* Labels are fetched to where their rows begin, and the rows are made from the last to the first,
 * so that no label is overwritten before it was read. */
static int fetch_one_hot(const struct dataset *d, const int64_t *ids, int64_t n, float *targets,
                         struct err *e)
{
    int64_t columns = d->target_size / d->positions;
    for (int64_t i = 0; i < n; i++) {
        float *row = targets + i * d->target_size;
        int r = fetch(&d->labels, ids + i, 1, to_class, row, e);
        if (r < 0)
            return r;
        for (int64_t p = d->positions - 1; p >= 0; p--) {
            int32_t class;
            memcpy(&class, row + p, sizeof class);
            if (class < 0 || class >= columns)
                return bad_class(d, ids[i], class, e);
            memset(row + p * columns, 0, (size_t)columns * sizeof *row);
            row[p * columns + class] = 1;
        }
    }
    return 0;
}

int data_gather(const struct dataset *d, const int64_t *ids, int64_t n, float *x, int32_t *classes,
                float *targets, struct err *e)
{
    int r = x ? fetch(&d->features, ids, n, to_float, x, e) : 0;
    if (r == 0 && classes && d->target_type == TARGET_CLASS)
        r = fetch(&d->labels, ids, n, to_class, classes, e);
    if (r == 0 && targets && d->target_type == TARGET_F32)
        r = d->is_one_hot ? fetch_one_hot(d, ids, n, targets, e)
                          : fetch(&d->labels, ids, n, to_float, targets, e);
    return r;
}
