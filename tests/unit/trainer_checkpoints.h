/* trainer_checkpoints.h: gangs that take checkpoints and go on from them. */
#ifndef TRAINYARD_TESTS_TRAINER_CHECKPOINTS_H
#define TRAINYARD_TESTS_TRAINER_CHECKPOINTS_H

#include <math.h>
#include <sys/stat.h>

#include "tests/unit/trainer_gang.h"
#include "trainer/checkpoint_load.h"
#include "trainer/checkpoint_shard.h"

/* Layers enough for three stages, and two epochs of 13 steps, the last one smaller. */
#define RESUMABLE       SMALL("100", "8", "{\"type\": \"dropout\", \"rate\": 0.25},", "\"epochs\": 2")
#define RESUMABLE_STEPS 26

struct store {
    char root[64];
};

static inline void store_open(struct store *s)
{
    snprintf(s->root, sizeof s->root, "/tmp/trainyard-test-XXXXXX");
    assert_non_null(mkdtemp(s->root));
}

static inline void store_close(struct store *s)
{
    assert_int_equal(file_remove_tree(s->root, NULL), 0);
}

/* A gang that takes a checkpoint every so many steps (0: on request) into the store. */
static inline void gang_open_as(struct gang *g, const char *job, const struct plan *p,
                                struct store *s, int64_t every_steps)
{
    json_auto_t *doc = gang_job(job);
    gang_open_plan(g, doc, p);
    g->launch.checkpoints = s->root;
    g->launch.spec->checkpoint.every_steps = every_steps;
}

static inline void gang_open_with(struct gang *g, const char *job, int data, int pipeline,
                                  struct store *s, int64_t every_steps)
{
    struct plan p = {.kind = pipeline > 1 ? STRATEGY_PIPELINE : STRATEGY_MIRRORED,
                     .data = data,
                     .pipeline = pipeline,
                     .microbatches = pipeline,
                     .schedule = SCHEDULE_1F1B};
    parallel_set_defaults(&p.parallel);
    gang_open_as(g, job, &p, s, every_steps);
}

/* ---- runs that save at chosen steps ---- */

static inline int save_steps(struct engine *n, struct checkpoints *c, int64_t every, struct err *e)
{
    struct step_result result;
    struct checkpoint_cursor at = {.epoch = 1};
    int is_whole = 1, r = n->mesh.world->verbs->barrier(n->mesh.world, e);
    early_stopping_init(&at.early, &n->job->fit.early_stopping);
    for (; r == 0 && is_whole && n->step < n->steps; at.epoch++) {
        engine_begin_epoch(n, at.epoch);
        for (int64_t k = 0;
             r == 0 && is_whole && n->step < n->steps && k < n->share.steps_per_epoch; k++) {
            checkpoints_before_step(c);
            r = engine_step(n, k, &result, e);
            at.step_in_epoch = k + 1;
            if (r == 0 && n->step % every == 0)
                r = checkpoints_take(c, &at, &is_whole, e);
        }
    }
    return r < 0 || is_whole ? r : err_set(e, ERR_INTERNAL, "a checkpoint is not whole");
}

static inline int save_as_rank(struct gang *g, int rank, int64_t every)
{
    struct engine n;
    struct checkpoints c = {0};
    struct report out;
    struct err e = {0};
    struct engine_fds fds = gang_fds(g);
    report_init(&out, fds.report, rank);
    int r = engine_open(&n, &g->launch, rank, &fds, NULL, &e);
    if (r == 0)
        r = checkpoints_open(&c, &n, &out, &e);
    if (r == 0)
        r = save_steps(&n, &c, every, &e);
    if (r < 0)
        fprintf(stderr, "rank %d: %s\n", rank, e.text);
    checkpoints_close(&c);
    engine_close(&n);
    report_done(&out);
    return r < 0;
}

static inline void gang_start_saving(struct gang *g, int64_t every)
{
    assert_int_equal(gang_prepare(g), 0);
    for (int r = 0; r < g->launch.plan.ranks; r++) {
        g->pids[r] = fork();
        assert_true(g->pids[r] >= 0);
        if (g->pids[r] == 0) {
            alarm(GANG_ALARM);
            gang_take_device(r);
            _exit(save_as_rank(g, r, every));
        }
    }
}

/* Trains with a whole checkpoint after each so many steps; nothing else is left. */
static inline void gang_save_every(struct gang *g, int64_t every)
{
    gang_start_saving(g, every);
    gang_wait(g);
    for (int r = 0; r < g->launch.plan.ranks; r++)
        assert_int_equal(g->status[r], 0);
}

/* The checkpoints that a gang reported, newest first, as the coordinator would list them. */
struct resume_list {
    struct launch_checkpoint items[64];
    int count;
};

static inline void list_checkpoints(const struct gang *g, struct resume_list *ret)
{
    int n = (int)gang_count(g, "checkpoint");
    assert_true(n <= 64);
    ret->count = n;
    for (int i = 0; i < n; i++) {
        const json_t *line = gang_line(g, "checkpoint", 0, (size_t)(n - 1 - i));
        ret->items[i] = (struct launch_checkpoint){
            .name = mem_strdup(gang_text(line, "name")),
            .step = (int64_t)gang_number(line, "step"),
            .sum = mem_strdup(gang_text(line, "sum")),
        };
    }
}

static inline void list_done(struct resume_list *l)
{
    for (int i = 0; i < l->count; i++) {
        free(l->items[i].name);
        free(l->items[i].sum);
    }
}

static inline void resume_from(struct gang *g, struct launch_checkpoint *items, int count)
{
    g->launch.resume = items;
    g->launch.resume_count = count;
}

static inline const json_t *step_line(const struct gang *g, int64_t step)
{
    for (size_t i = 0;; i++) {
        const json_t *line = gang_line(g, "step", 0, i);
        if (!line || json_integer_value(json_object_get(line, "step")) == step)
            return line;
    }
}

static inline const json_t *epoch_line(const struct gang *g, int64_t epoch)
{
    for (size_t i = 0;; i++) {
        const json_t *line = gang_line(g, "epoch", 0, i);
        if (!line || json_integer_value(json_object_get(line, "epoch")) == epoch)
            return line;
    }
}

static inline void same_number(const json_t *a, const json_t *b, const char *name, double tolerance)
{
    double x = gang_number(a, name), y = gang_number(b, name);
    double most = tolerance * (y < 0 ? -y : y);
    if (!(x - y <= most && y - x <= most))
        fail_msg("%s is %.9g, uninterrupted it was %.9g", name, x, y);
}

/* What `g` did after its start is what `whole` did from there on. */
static inline void same_rest(const struct gang *whole, const struct gang *g, int64_t from,
                             int64_t to, double tolerance)
{
    assert_int_equal(gang_count(g, "step"), to - from);
    for (int64_t s = from + 1; s <= to; s++) {
        const json_t *a = step_line(g, s), *b = step_line(whole, s);
        assert_non_null(a);
        assert_non_null(b);
        same_number(a, b, "loss", tolerance);
        same_number(a, b, "grad_norm", tolerance * 10);
        same_number(a, b, "learning_rate", 0);
        assert_int_equal(gang_number(a, "epoch"), gang_number(b, "epoch"));
    }
    for (int64_t epoch = 1; epoch_line(whole, epoch); epoch++)
        if (epoch_line(g, epoch))
            same_number(epoch_line(g, epoch), epoch_line(whole, epoch), "loss", tolerance);
}

/* The values; the headers tell the step. */
static inline void same_weights(const struct gang *a, const struct gang *b)
{
    struct buf x = BUF_INIT, y = BUF_INIT;
    read_whole(a, "model.safetensors", &x);
    read_whole(b, "model.safetensors", &y);
    size_t data = 8 + (unsigned char)x.data[0] + 256 * (size_t)(unsigned char)x.data[1];
    assert_int_equal(x.len, y.len);
    assert_true(data < x.len);
    assert_memory_equal(x.data + data, y.data + data, x.len - data);
    buf_done(&x);
    buf_done(&y);
}

/* Directories that never got their name. */
static inline int count_unfinished(const struct store *s)
{
    int n = 0;
    char *command = mem_printf("ls %s | grep -c 'tmp$'", s->root);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    free(command);
    return n;
}

/* The checkpoints that lie in a store, newest first, whether reported or not. */
static inline void list_store(const struct store *s, struct resume_list *ret)
{
    char *command = mem_printf("ls -r %s | grep '^step-[0-9]*$'", s->root), name[64];
    FILE *f = popen(command, "r");
    assert_non_null(f);
    for (ret->count = 0; fscanf(f, "%63s", name) == 1; ret->count++) {
        char sum[CHECKPOINT_SUM_SIZE], path[160];
        struct buf text = BUF_INIT;
        struct err e;
        snprintf(path, sizeof path, "%s/%s/manifest.json", s->root, name);
        if (file_read(path, MANIFEST_MAX_BYTES, &text, &e) < 0)
            fail_msg("%s", e.text);
        assert_true(ret->count < 64);
        ret->items[ret->count] = (struct launch_checkpoint){
            .name = mem_strdup(name),
            .step = strtoll(name + 5, NULL, 10),
            .sum = mem_strdup(checkpoint_sum_text(checkpoint_sum_of(text.data, text.len), sum)),
        };
        buf_done(&text);
    }
    pclose(f);
    free(command);
}

/* What a run says in standard output goes into a file of the gang's while it is open. */
static inline int say_into(const struct gang *g)
{
    char path[128];
    fflush(stdout);
    snprintf(path, sizeof path, "%s/said", g->dir);
    int fd = open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    int before = dup(STDOUT_FILENO);
    assert_true(fd >= 0 && before >= 0);
    dup2(fd, STDOUT_FILENO);
    close(fd);
    return before;
}

static inline void say_back(int before)
{
    dup2(before, STDOUT_FILENO);
    close(before);
}

static inline void check_said(const struct gang *g, const char *words)
{
    struct buf text = BUF_INIT;
    read_whole(g, "said", &text);
    if (!text.data || !strstr(text.data, words))
        fail_msg("nobody said \"%s\", but: %s", words, text.data ? text.data : "nothing");
    buf_done(&text);
}

/* ---- read at one mesh, written at another ---- */

/* Loads the newest of `s` and writes it into `to`, without a step between. */
static inline int save_again(struct gang *g, int rank, struct store *to)
{
    struct engine n;
    struct checkpoints c = {0};
    struct resumed from = {0};
    struct report out;
    struct err e = {0};
    struct engine_fds fds = gang_fds(g);
    int is_whole = 0;
    report_init(&out, fds.report, rank);
    int r = engine_open(&n, &g->launch, rank, &fds, NULL, &e);
    if (r == 0)
        r = checkpoints_open(&c, &n, &out, &e);
    if (r == 0)
        r = checkpoint_load(&n, &from, &e);
    struct checkpoint_cursor at = {from.manifest.epoch, from.manifest.step_in_epoch,
                                   from.manifest.early, from.best};
    c.root = to->root;
    if (r == 0)
        r = checkpoints_take(&c, &at, &is_whole, &e);
    if (r < 0 || !is_whole)
        fprintf(stderr, "rank %d: %s\n", rank, e.text);
    checkpoints_close(&c);
    resumed_done(&from);
    engine_close(&n);
    report_done(&out);
    return !is_whole;
}

/* Ranks of plan `p` read the newest of `list` and write it into `to`. */
static inline void move_to(const char *job, const struct plan *p, struct store *s,
                           struct resume_list *list, struct store *to)
{
    struct gang g;
    gang_open_as(&g, job, p, s, 0);
    resume_from(&g, list->items, 1);
    assert_int_equal(gang_prepare(&g), 0);
    for (int r = 0; r < g.launch.plan.ranks; r++) {
        g.pids[r] = fork();
        assert_true(g.pids[r] >= 0);
        if (g.pids[r] == 0)
            _exit(save_again(&g, r, to));
    }
    gang_wait(&g);
    for (int r = 0; r < g.launch.plan.ranks; r++)
        assert_int_equal(g.status[r], 0);
    gang_close(&g);
}

/* All values of one kind, tensor after tensor as the model has them; NAN where there is none. */
struct whole {
    float *values[PIECE_KIND__MAX];
    size_t elements;
};

static inline void place(struct whole *w, const struct model *m, const struct shard_piece *p,
                         const float *values)
{
    const struct net_part *q = &p->piece.part;
    uint64_t number = 0;
    size_t base = 0;
    for (int l = 0; l < m->layer_count; l++)
        for (int t = 0; t < m->layers[l].tensor_count; t++, number++) {
            const struct shape *s = &m->layers[l].tensors[t].shape;
            if (number < p->piece.number)
                base += (size_t)shape_elements(s);
            if (number != p->piece.number)
                continue;
            size_t inner = 1;
            for (int d = q->axis + 1; d < s->dims; d++)
                inner *= (size_t)s->size[d];
            for (size_t i = p->piece.from; i < p->piece.to; i++) {
                size_t row = (size_t)q->extent * inner, along = i % row / inner;
                size_t at = (i / row * (size_t)s->size[q->axis] + (size_t)q->begin + along) * inner;
                if (along >= (size_t)(q->end - q->begin))
                    continue;
                float *x = &w->values[p->piece.kind][base + at + i % inner];
                assert_true(isnan(*x)); /* each element is in one piece only */
                *x = values[i - p->piece.from];
            }
        }
}

static inline void whole_of(struct whole *w, const struct store *s, const char *name,
                            const struct model *m)
{
    struct err e;
    w->elements = (size_t)model_parameters(m);
    for (int k = 0; k < PIECE_KIND__MAX; k++) {
        w->values[k] = mem_alloc(w->elements * sizeof(float));
        for (size_t i = 0; i < w->elements; i++)
            w->values[k][i] = NAN;
    }
    for (int r = 0;; r++) {
        struct shard *file;
        char path[160];
        snprintf(path, sizeof path, "%s/%s/rank-%d.safetensors", s->root, name, r);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return;
        assert_int_equal(shard_open(fd, path, &file, &e), 0);
        for (int i = 0; i < shard_count(file); i++) {
            struct shard_piece p;
            assert_int_equal(shard_piece(file, i, &p, &e), 0);
            size_t n = p.piece.to - p.piece.from;
            float *values = mem_alloc(n * sizeof *values);
            assert_int_equal(shard_read(file, i, 0, n, values, &e), 0);
            place(w, m, &p, values);
            free(values);
        }
        shard_close(file);
    }
}

static inline void whole_done(struct whole *w)
{
    for (int k = 0; k < PIECE_KIND__MAX; k++)
        free(w->values[k]);
}

#endif
