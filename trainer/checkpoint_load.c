/* checkpoint_load.c: verifying, agreeing, reading. */
#include "trainer/checkpoint_load.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "trainer/checkpoint_shard.h"
#include "trainer/say.h"

#define BLOCK ((size_t)256 * 1024) /* floats that are read at once */

void resumed_done(struct resumed *r)
{
    manifest_done(&r->manifest);
    piece_copy_drop(r->best);
    *r = (struct resumed){0};
}

/* ---- agreeing ---- */

/* One rank's fault is everybody's, in the words of the first that has one. */
static int agree(struct engine *g, int r, struct err *e)
{
    struct word {
        int32_t code;
        char text[COMM_EXCHANGE_MAX - sizeof(int32_t)];
    } mine = {.code = r};
    struct comm *w = g->mesh.world;
    CLEANUP(mem_freep) struct word *all = mem_alloc((size_t)g->mesh.ranks * sizeof *all);
    if (r < 0)
        snprintf(mine.text, sizeof mine.text, "%.*s", (int)sizeof mine.text - 1, e->text);
    int failed = w->verbs->exchange(w, &mine, sizeof mine, all, e);
    for (int k = 0; failed == 0 && k < g->mesh.ranks; k++)
        if (all[k].code < 0)
            return err_set(e, all[k].code, "%.*s", (int)sizeof all[k].text - 1, all[k].text);
    return failed;
}

/* ---- the manifest ---- */

static int belongs(const struct engine *g, const struct launch_checkpoint *c,
                   const struct manifest *m, struct err *e)
{
    if (strcmp(m->job, g->launch->job) != 0)
        return err_set(e, ERR_CORRUPT, "it is of job %.60s", m->job);
    if (m->scalars.step != c->step)
        return err_set(e, ERR_CORRUPT, "it is of step %lld", (long long)m->scalars.step);
    if (m->samples != g->prepared.train.samples)
        return err_set(e, ERR_CORRUPT,
                       "it was made with %lld training samples, and now there are %lld: the data "
                       "are not the same",
                       (long long)m->samples, (long long)g->prepared.train.samples);
    if (m->steps != g->steps || m->batch != g->job->fit.batch_size || m->seed != g->job->fit.seed)
        return err_set(
            e, ERR_CORRUPT,
            "it is of a run of %lld steps with batches of %lld and another fit than this",
            (long long)m->steps, (long long)m->batch);
    if (m->members != g->members)
        return err_set(e, ERR_CORRUPT,
                       "it is of an ensemble of %d members, and the plan has %d: members cannot be "
                       "divided again",
                       m->members, g->members);
    if (m->step_in_epoch > g->share.steps_per_epoch)
        return err_set(e, ERR_CORRUPT, "its cursor is behind the end of its epoch");
    return 0;
}

/* What is not there is left to `open` to tell. Opening a FIFO would wait for a writer for ever. */
static int refuse_special(const char *path, struct err *e)
{
    struct stat st;
    if (lstat(path, &st) < 0 || S_ISREG(st.st_mode))
        return 0;
    return err_set(e, ERR_CORRUPT, "%s is not a regular file", strrchr(path, '/') + 1);
}

static int read_manifest(const struct engine *g, const struct launch_checkpoint *c,
                         struct manifest *ret, struct err *e)
{
    struct buf text = BUF_INIT;
    struct checkpoint_sum wanted = {0}, sum;
    struct manifest m = {0};
    CLEANUP(mem_freep)
    char *path = mem_printf("%s/%s/manifest.json", g->launch->checkpoints, c->name);
    int r = refuse_special(path, e);
    if (r == 0)
        r = file_read(path, MANIFEST_MAX_BYTES, &text, e);
    if (r == 0) {
        sum = checkpoint_sum_of(text.data ? text.data : "", text.len);
        if (checkpoint_sum_parse(c->sum, &wanted) < 0 || wanted.high != sum.high ||
            wanted.low != sum.low)
            r = err_set(e, ERR_CORRUPT, "manifest.json is not what was written: its sum differs");
    }
    if (r == 0)
        r = manifest_parse(text.data, text.len, &m, e);
    if (r == 0 && (r = belongs(g, c, &m, e)) < 0)
        manifest_done(&m);
    buf_done(&text);
    if (r == 0)
        *ret = m;
    return r;
}

/* ---- the shards ---- */

static int open_shard(const struct engine *g, const char *name, int rank, int *ret_fd,
                      struct err *e)
{
    CLEANUP(mem_freep)
    char *path = mem_printf("%s/%s/rank-%d.safetensors", g->launch->checkpoints, name, rank);
    int r = refuse_special(path, e);
    if (r < 0)
        return r;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_errno(e, "cannot open rank-%d.safetensors", rank);
    *ret_fd = fd;
    return 0;
}

static int sum_file(struct engine *g, int fd, XXH3_state_t *hash, int rank, struct err *e)
{
    CLEANUP(mem_freep) char *block = mem_alloc(BLOCK * sizeof(float));
    XXH3_128bits_reset(hash);
    for (;;) {
        ssize_t n = read(fd, block, BLOCK * sizeof(float));
        if (n < 0)
            return err_errno(e, "cannot read rank-%d.safetensors", rank);
        if (n == 0)
            return 0;
        XXH3_128bits_update(hash, block, (size_t)n);
        comm_progress(g->mesh.world);
    }
}

static int verify_sum(struct engine *g, int fd, int rank, const struct checkpoint_shard *wanted,
                      struct err *e)
{
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return err_set(e, ERR_UNAVAILABLE, "no memory for a checksum");
    int r = sum_file(g, fd, hash, rank, e);
    XXH128_hash_t sum = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    if (r == 0 && (sum.high64 != wanted->sum.high || sum.low64 != wanted->sum.low))
        r = err_set(e, ERR_CORRUPT, "rank-%d.safetensors is not what was written: its sum differs",
                    rank);
    return r;
}

static int verify_shard(struct engine *g, const char *name, int rank,
                        const struct checkpoint_shard *wanted, struct err *e)
{
    CLEANUP(mem_closep) int fd = -1;
    struct stat st;
    int r = open_shard(g, name, rank, &fd, e);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return err_errno(e, "cannot examine rank-%d.safetensors", rank);
    if (st.st_size != wanted->bytes)
        return err_set(e, ERR_CORRUPT, "rank-%d.safetensors has %lld bytes and not %lld", rank,
                       (long long)st.st_size, (long long)wanted->bytes);
    return verify_sum(g, fd, rank, wanted, e);
}

/* This rank's part of the verification. */
static int verify(struct engine *g, const char *name, const struct manifest *m, struct err *e)
{
    int r = 0;
    for (int s = g->mesh.rank; r == 0 && s < m->ranks; s += g->mesh.ranks)
        r = verify_shard(g, name, s, &m->shards[s], e);
    return r;
}

/* ---- values ---- */

static int read_values(struct engine *g, const struct shard *s, int i, const struct piece *p,
                       float *block, struct err *e)
{
    size_t n = p->to - p->from;
    int r = 0;
    for (size_t at = 0; r == 0 && at < n; at += BLOCK) {
        struct piece part = *p;
        size_t end = n - at < BLOCK ? n : at + BLOCK;
        part.from = p->from + at;
        part.to = p->from + end;
        comm_progress(g->mesh.world);
        r = shard_read(s, i, at, end, block, e);
        if (r == 0)
            r = pieces_put(g, &part, block, e);
    }
    return r;
}

static int keep_best(const struct shard *s, int i, const struct shard_piece *p,
                     struct piece_copy *best, struct err *e)
{
    size_t n = p->piece.to - p->piece.from;
    CLEANUP(mem_freep) float *values = mem_alloc(n * sizeof *values);
    int r = shard_read(s, i, 0, n, values, e);
    if (r == 0)
        piece_copy_add(best, &p->piece, p->tensor, STEAL(values));
    return r;
}

/* What this rank needs of a shard. Weights of the best epoch only need to be somewhere: rank by
 * rank in turn. */
static int read_shard(struct engine *g, struct shard *s, int *best_seen, struct piece_copy *best,
                      float *block, struct err *e)
{
    struct shard_piece p;
    int r = 0;
    for (int i = 0; r == 0 && i < shard_count(s); i++) {
        r = shard_piece(s, i, &p, e);
        if (r == 0)
            r = shard_check_tensor(&g->job->model, &p, e);
        if (r == 0 && p.is_best && (*best_seen)++ % g->mesh.ranks == g->mesh.rank)
            r = keep_best(s, i, &p, best, e);
        else if (r == 0 && !p.is_best && pieces_want(g, &p.piece))
            r = read_values(g, s, i, &p.piece, block, e);
    }
    return r;
}

static int read_shards(struct engine *g, const char *name, const struct manifest *m,
                       struct piece_copy *best, int *ret_best_seen, struct err *e)
{
    CLEANUP(mem_freep) float *block = mem_alloc(BLOCK * sizeof *block);
    int r = 0;
    *ret_best_seen = 0;
    for (int rank = 0; r == 0 && rank < m->ranks; rank++) {
        struct shard *s = NULL;
        int fd = -1;
        r = open_shard(g, name, rank, &fd, e);
        if (r == 0)
            r = shard_open(fd, "a shard", &s, e);
        if (r == 0)
            r = read_shard(g, s, ret_best_seen, best, block, e);
        shard_close(s);
        if (r < 0)
            err_prefix(e, "rank-%d.safetensors", rank);
    }
    return r;
}

static int read_all(struct engine *g, const char *name, struct resumed *x, struct err *e)
{
    int best_seen;
    struct pieces_scalars scalars = x->manifest.scalars;
    struct piece_copy *best = piece_copy_new();
    scalars.updates = x->manifest.updates[g->members > 1 ? g->mesh.data_rank : 0];
    pieces_begin(g);
    int r = read_shards(g, name, &x->manifest, best, &best_seen, e);
    if (r == 0)
        r = pieces_finish(g, &scalars, e);
    if (r == 0 && best_seen > 0)
        x->best = piece_copy_hold(best);
    piece_copy_drop(best);
    return r;
}

/* ---- one after another ---- */

static int try_one(struct engine *g, const struct launch_checkpoint *c, struct resumed *ret,
                   struct err *e)
{
    struct resumed x = {0};
    int own = read_manifest(g, c, &x.manifest, e);
    if (own == 0)
        own = verify(g, c->name, &x.manifest, e);
    int r = agree(g, own, e);
    if (own == 0 && r == 0)
        r = agree(g, read_all(g, c->name, &x, e), e);
    if (r == 0)
        *ret = x;
    else
        resumed_done(&x);
    return r;
}

static void say_resumed(const struct engine *g, const char *name, const struct manifest *m)
{
    say_note("Going on from %s: epoch %lld, %lld steps of it done. %d rank%s wrote it (data %d, "
             "pipeline %d, tensor %d), %d rank%s go%s on.",
             name, (long long)m->epoch, (long long)m->step_in_epoch, m->ranks,
             m->ranks == 1 ? "" : "s", m->data, m->pipeline, m->tensor, g->mesh.ranks,
             g->mesh.ranks == 1 ? "" : "s", g->mesh.ranks == 1 ? "es" : "");
    if (g->plan->parallel.codec != CODEC_NONE && m->data != g->mesh.data)
        say_note("What the gradient codec had not sent yet, of %d data ranks, is added up over %d.",
                 m->data, g->mesh.data);
}

/* A peer that died says nothing about a checkpoint. */
static int is_of_checkpoint(int r)
{
    return r == ERR_CORRUPT || r == ERR_INVALID || r == ERR_NOT_FOUND || r == ERR_TOO_LARGE ||
           r == ERR_IO;
}

int checkpoint_load(struct engine *g, struct resumed *ret, struct err *e)
{
    const struct launch *l = g->launch;
    struct err newest = {0};
    int r = 0;
    for (int i = 0; i < l->resume_count && l->checkpoints; i++) {
        r = try_one(g, &l->resume[i], ret, e);
        if (r == 0 && g->mesh.rank == 0)
            say_resumed(g, l->resume[i].name, &ret->manifest);
        if (r == 0 || !is_of_checkpoint(r))
            return r;
        if (i == 0)
            newest = *e;
        if (g->mesh.rank == 0)
            say_note("%s cannot be gone on from: %s", l->resume[i].name, e->text);
    }
    g->code = "checkpoint_invalid";
    return err_set(e, ERR_INVALID,
                   "None of the %d checkpoints of this job can be gone on from; %s, the newest: "
                   "%.300s",
                   l->resume_count, l->resume[0].name,
                   l->checkpoints ? newest.text : "the launch document names no directory");
}
