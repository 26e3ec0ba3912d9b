/* data.c: the prepare step: opens what a job names beneath the data roots, has the readers of the
 * formats put it into the store, and cuts the validation part off. */
#include "trainer/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "trainer/data_parts.h"

/* ERR_NOT_FOUND if this root does not have it. */
static int open_in_root(const char *root, const char *path, int *ret_fd, struct err *e)
{
    CLEANUP(mem_closep) int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0)
        return err_errno(e, "cannot open the data root %s", root);
    CLEANUP(mem_closep) int fd = -1;
    /* O_NONBLOCK: opening a named pipe must not wait for a writer. */
    int r = file_open_beneath(root_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, &fd, e);
    if (r == ERR_IO &&
        (errno == ELOOP || errno == ENOTDIR || errno == ENAMETOOLONG || errno == EACCES))
        return err_set(e, ERR_INVALID, "%s cannot be opened in the data root %s: %s", path, root,
                       strerror(errno)); /* trying again would not help */
    if (r < 0)
        return r;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(e, "cannot examine %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INVALID, "%s in the data root %s is %s, not a file", path, root,
                       S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    *ret_fd = fd;
    fd = -1;
    return 0;
}

int data_open(const struct data_roots *roots, const char *path, int *ret_fd, struct err *e)
{
    struct buf tried = BUF_INIT;
    int r = ERR_NOT_FOUND;
    for (int i = 0; i < roots->count && r == ERR_NOT_FOUND; i++) {
        r = open_in_root(roots->paths[i], path, ret_fd, e);
        buf_addf(&tried, "%s%s", i ? ", " : "", roots->paths[i]);
    }
    if (roots->count == 0)
        err_set(e, r, "cannot look for %s: this node has no data roots", path);
    else if (r == ERR_NOT_FOUND)
        err_set(e, r, "%s is in none of the data roots (%s)", path, tried.data);
    buf_done(&tried);
    return r;
}

static int open_stream(const struct data_roots *roots, const char *path, struct data_stream *ret,
                       struct err *e)
{
    int fd;
    int r = data_open(roots, path, &fd, e);
    return r < 0 ? r : data_stream_open(fd, path, ret, e);
}

struct prepare {
    const struct data_roots *roots;
    struct data_need need;
    struct data_out out;
    struct buf note;
};

/* idx and npy: features and labels in a file each. */
static int prepare_pair(struct prepare *p, const struct data_source *source, struct data_split *ret,
                        struct err *e)
{
    int is_idx = source->format == DATA_IDX;
    struct data_stream x = {0}, y = {0};
    int r = open_stream(p->roots, is_idx ? source->images : source->x, &x, e);
    if (r == 0)
        r = open_stream(p->roots, is_idx ? source->labels : source->y, &y, e);
    if (r == 0)
        r = (is_idx ? data_read_idx : data_read_npy)(&x, &y, source, &p->need, &p->out, ret, e);
    data_stream_close(&x);
    data_stream_close(&y);
    return r;
}

static int prepare_npz(struct prepare *p, const struct data_source *source, struct data_split *ret,
                       struct err *e)
{
    int fd;
    int r = data_open(p->roots, source->path, &fd, e);
    return r < 0 ? r : data_read_npz(fd, source, &p->need, &p->out, ret, e);
}

/* csv and tokens: one file has both. */
static int prepare_single(struct prepare *p, const struct data_source *source,
                          struct data_split *ret, struct err *e)
{
    struct data_stream s = {0};
    int r = open_stream(p->roots, source->path, &s, e);
    if (r == 0)
        r = (source->format == DATA_CSV ? data_read_csv : data_read_tokens)(
            &s, source, &p->need, &p->out, &p->note, ret, e);
    data_stream_close(&s);
    return r;
}

static int prepare_source(struct prepare *p, const struct data_source *source,
                          struct data_split *ret, struct err *e)
{
    switch (source->format) {
    case DATA_IDX:
    case DATA_NPY: return prepare_pair(p, source, ret, e);
    case DATA_NPZ: return prepare_npz(p, source, ret, e);
    case DATA_CSV:
    case DATA_TOKENS: return prepare_single(p, source, ret, e);
    case DATA_SYNTHETIC: return data_read_synthetic(source, &p->need, &p->out, ret, e);
    }
    BUG("data format %d", (int)source->format);
}

/* Keras's rule: the last fraction validates, and floor(n * (1 - split)) samples are left. */
static int cut_validation(double split, struct data_header *h, struct err *e)
{
    struct data_split *train = &h->train;
    int64_t kept = (int64_t)floor((double)train->samples * (1.0 - split));
    if (kept < 1 || kept >= train->samples)
        return err_set(e, ERR_INVALID,
                       "validation_split %.15g of %" PRId64 " samples leaves none to %s", split,
                       train->samples, kept < 1 ? "train with" : "validate with");
    h->validation = *train;
    h->validation.samples = train->samples - kept;
    h->validation.features.at += (uint64_t)kept * train->features.stride;
    h->validation.labels.at += (uint64_t)kept * train->labels.stride;
    train->samples = kept;
    return 0;
}

/* As much of the note as fits into the zeroed `out`, cut between characters. */
static void copy_note(const struct buf *note, char *out, size_t room)
{
    size_t n = note->len;
    if (n > room - 1) {
        n = room - 4;
        while (n > 0 && ((unsigned char)note->data[n] & 0xc0) == 0x80)
            n--;
    }
    if (n > 0)
        memcpy(out, note->data, n);
    if (n < note->len)
        memcpy(out + n, "...", 4);
}

static void note_streaming(struct prepare *p, const char *what, const struct data_split *s)
{
    if (s->samples == 0)
        return;
    if (s->features.in >= DATA_IN_FILES)
        data_note(&p->note, "the %s data is read from its file as it is needed", what);
    else if (s->features.in == DATA_IN_SPOOL)
        data_note(&p->note, "the %s data is read from the node's disk as it is needed", what);
}

static int prepare_all(struct prepare *p, const struct job_spec *job,
                       const struct data_store *store, struct err *e)
{
    struct data_header h = {0};
    int r = data_need_of(job, &p->need, e);
    if (r == 0)
        r = data_out_begin(&p->out, store, e);
    if (r == 0)
        r = prepare_source(p, &job->train, &h.train, e);
    if (r == 0)
        note_streaming(p, "training", &h.train);
    if (r == 0 && job->has_validation) {
        r = prepare_source(p, &job->validation, &h.validation, e);
        note_streaming(p, "validation", &h.validation);
    } else if (r == 0 && job->fit.validation_split > 0) {
        r = cut_validation(job->fit.validation_split, &h, e);
    }
    if (r < 0)
        return r;
    copy_note(&p->note, h.note, sizeof h.note);
    return data_out_finish(&p->out, &h, e);
}

int data_prepare(const struct job_spec *job, const struct data_roots *roots,
                 const struct data_store *store, struct err *e)
{
    struct prepare p = {.roots = roots};
    if (job->command)
        return err_set(e, ERR_INVALID, "a command job has no data set to prepare");
    int r = prepare_all(&p, job, store, e);
    data_out_done(&p.out);
    buf_done(&p.note);
    return r;
}
