/* weights.c: reading, initialising, gathering and writing parameters. */
#include "trainer/weights.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/part.h"
#include "trainer/random.h"
#include "trainer/safetensors.h"

/* ---- start ---- */

static float *host_buffer(const struct net_tensor *t)
{
    return mem_alloc((size_t)shape_elements(&t->spec->shape) * sizeof(float));
}

/* This rank's part of a whole tensor. */
static void put(struct engine *g, const struct net_tensor *t, const float *whole)
{
    const struct net_part *p = &t->part;
    const struct shape *s = &t->spec->shape;
    size_t inner = 1, outer = 1;
    for (int d = 0; d < s->dims; d++)
        *(d < p->axis ? &outer : &inner) *= (size_t)s->size[d];
    size_t unit = inner / (size_t)s->size[p->axis], n = (size_t)(p->end - p->begin) * unit;
    for (size_t o = 0; o < outer; o++)
        replicas_set(&g->replicas, PIECE_PARAMETER, t->offset + o * (size_t)p->extent * unit, n,
                     whole + o * inner + (size_t)p->begin * unit);
}

static void initialize(struct engine *g)
{
    uint64_t seed = g->stage.seed;
    for (int i = 0; i < g->stage.net.tensor_count; i++) {
        const struct net_tensor *t = &g->stage.net.tensors[i];
        CLEANUP(mem_freep) float *host = host_buffer(t);
        random_initialize(t->spec, seed, t->number, host);
        put(g, t, host);
    }
}

static int model_has(const struct model *m, const char *name)
{
    for (int l = 0; l < m->layer_count; l++)
        for (int t = 0; t < m->layers[l].tensor_count; t++) {
            size_t n = strlen(m->layers[l].name);
            if (strncmp(name, m->layers[l].name, n) == 0 && name[n] == '.' &&
                strcmp(name + n + 1, m->layers[l].tensors[t].name) == 0)
                return 1;
        }
    return 0;
}

static int check_names(const struct engine *g, const struct safetensors *s, struct err *e)
{
    for (int i = 0; i < safetensors_count(s); i++)
        if (!model_has(&g->job->model, safetensors_name(s, i)))
            return err_set(e, ERR_INVALID,
                           "%s has a tensor \"%.100s\", but the model has no such parameter.",
                           g->job->model.weights, safetensors_name(s, i));
    return 0;
}

static int has(const struct safetensors *s, const char *name)
{
    for (int i = 0; i < safetensors_count(s); i++)
        if (strcmp(safetensors_name(s, i), name) == 0)
            return 1;
    return 0;
}

/* Weights without moving statistics are those of a model before training: these start as always. A
 * frozen layer would be stuck with them. */
static int starts_anew(const struct engine *g, const struct net_tensor *t,
                       const struct safetensors *s)
{
    return t->spec->is_fixed && !g->job->model.layers[t->layer].frozen && !has(s, t->name);
}

static int read_all(struct engine *g, const struct safetensors *s, struct err *e)
{
    int r = check_names(g, s, e);
    for (int i = 0; r == 0 && i < g->stage.net.tensor_count; i++) {
        const struct net_tensor *t = &g->stage.net.tensors[i];
        CLEANUP(mem_freep) float *host = host_buffer(t);
        comm_progress(g->mesh.world);
        if (starts_anew(g, t, s))
            random_initialize(t->spec, g->stage.seed, t->number, host);
        else
            r = safetensors_read(s, t->name, &t->spec->shape, host, e);
        if (r == 0)
            put(g, t, host);
    }
    return r;
}

static int read_file(struct engine *g, struct err *e)
{
    const struct launch *l = g->launch;
    const char *path = g->job->model.weights;
    struct data_roots roots = {.paths = (const char *const *)l->data_roots,
                               .count = l->data_root_count};
    struct safetensors *s;
    int fd;
    int r = data_open(&roots, path, &fd, e);
    if (r < 0)
        return r;
    if ((r = safetensors_open(fd, path, &s, e)) < 0)
        return r;
    r = read_all(g, s, e);
    safetensors_close(s);
    return r;
}

int weights_start(struct engine *g, struct err *e)
{
    int r = 0;
    if (g->job->model.weights)
        r = read_file(g, e);
    else
        initialize(g);
    if (r < 0)
        g->code = "weights_invalid";
    else
        replicas_start(&g->replicas);
    malloc_trim(0); /* of whole tensors, which the C library would keep */
    return r;
}

/* ---- end ---- */

const char *weights_artifact(const struct engine *g, int i, char out[WEIGHTS_NAME_SIZE])
{
    if (i >= g->members)
        return NULL;
    if (g->mesh.ensemble)
        snprintf(out, WEIGHTS_NAME_SIZE, "member-%d.safetensors", i);
    else
        snprintf(out, WEIGHTS_NAME_SIZE, "model.safetensors");
    return out;
}

#define PIECE (1024 * 1024) /* bytes */

/* The values of the model, on their way into a file of rank 0 (an ensemble's: of each member). */
struct saving {
    struct engine *g;
    struct safetensors_writer *file; /* NULL on the other ranks */
    struct safetensors_pulse pulse;
    struct net net; /* of the coordinates that send: a layout only */
    struct replicas layout;
    int place, part; /* along the pipeline, and among tensor ranks */
    float *host;     /* room for one of its buckets */
};

static void tell_progress(void *world)
{
    comm_progress(world);
}

static int create(struct saving *s, const char *name, struct err *e)
{
    const struct model *m = &s->g->job->model;
    int count = 0;
    struct net all = {0};
    const struct net_chunk whole = {0, m->layer_count};
    int r = net_init(&all, s->g->job, s->g->stage.net.ops, &whole, 1, 1, 0, e);
    if (r < 0)
        return r;
    CLEANUP(mem_freep)
    struct safetensors_item *items = mem_alloc(((size_t)all.tensor_count + 1) * sizeof *items);
    for (; count < all.tensor_count; count++) /* tensor number is item number */
        items[count] = (struct safetensors_item){.name = all.tensors[count].name,
                                                 .shape = all.tensors[count].spec->shape};
    char step[32];
    snprintf(step, sizeof step, "%lld", (long long)s->g->step);
    /* Nothing of the attempt: the same training gives the same file. */
    const char *const metadata[] = {"producer", "trainyard", "step", step, NULL};
    r = safetensors_create(name, items, count, metadata, &s->file, e);
    net_done(&all);
    return r;
}

/* Elements [from, to) of the sender's tensor, which stand in `host`, into the file: run by run
 * where the tensor is split. */
static int put_tensor(const struct saving *s, const struct net_tensor *x, size_t from, size_t to,
                      const float *host, struct err *e)
{
    int r = 0;
    if (!net_is_own(&s->net, x))
        return 0;
    for (size_t at = from, run; r == 0 && at < to; at += run) {
        int64_t whole;
        run = (size_t)part_run_in_whole(&x->spec->shape, &x->part, (int64_t)at, (int64_t)(to - at),
                                        &whole);
        if (whole >= 0)
            r = safetensors_put(s->file, (int)x->number, (size_t)whole, run, host + (at - from),
                                &s->pulse, e);
    }
    return r;
}

/* Arena elements [begin, end), which stand in s->host, into the file. */
static int put_range(const struct saving *s, size_t begin, size_t end, struct err *e)
{
    int r = 0;
    for (int t = 0; s->file && r == 0 && t < s->net.tensor_count; t++) {
        const struct net_tensor *x = &s->net.tensors[t];
        size_t from = x->offset, to = from + x->elements;
        from = from < begin ? begin : from;
        to = to > end ? end : to;
        if (from < to)
            r = put_tensor(s, x, from - x->offset, to - x->offset, s->host + (from - begin), e);
    }
    return r;
}

static int broadcast(const struct saving *s, struct comm *c, int root, size_t bytes, struct err *e)
{
    int r = 0;
    for (size_t at = 0; c && root > 0 && r == 0 && at < bytes; at += PIECE)
        r = c->verbs->broadcast(c, (char *)s->host + at, bytes - at < PIECE ? bytes - at : PIECE,
                                root, e);
    return r;
}

/* From the coordinates that have them to the first ones. Only rank 0 keeps what it is sent, a
 * bucket at a time: a model that needs a mesh fits one rank badly. */
static int pass_on(const struct saving *s, size_t begin, size_t end, struct err *e)
{
    const struct mesh *m = &s->g->mesh;
    size_t bytes = (end - begin) * sizeof(float);
    int r = m->stage == s->place ? broadcast(s, m->tensors, s->part, bytes, e) : 0;
    if (r == 0 && m->tensor_rank == 0)
        r = broadcast(s, m->pipeline, s->place, bytes, e);
    return r < 0 ? r : put_range(s, begin, end, e);
}

static int is_ours(const struct saving *s)
{
    return s->g->mesh.stage == s->place && s->g->mesh.tensor_rank == s->part;
}

/* Whether this rank is of those that send to rank 0. */
static int is_first_replica(const struct saving *s)
{
    return s->g->mesh.data_rank == 0 || s->g->mesh.ensemble;
}

static int save_bucket(const struct saving *s, int b, struct err *e)
{
    const struct bucket *x = &s->layout.buckets[b];
    int r = is_ours(s) ? replicas_collect(&s->g->replicas, b, s->host, e) : 0;
    return r < 0 || !is_first_replica(s) ? r : pass_on(s, x->begin, x->end, e);
}

/* What is not trained is the same on all data ranks; a tensor at a time. */
static int save_fixed(const struct saving *s, const struct net_tensor *x, struct err *e)
{
    if (!x->is_fixed || !is_first_replica(s))
        return 0;
    if (is_ours(s))
        replicas_get(&s->g->replicas, PIECE_PARAMETER, x->offset, x->elements, s->host);
    return pass_on(s, x->offset, x->offset + x->elements, e);
}

static int save_place(struct saving *s, struct err *e)
{
    struct engine *g = s->g;
    CLEANUP(mem_freep)
    struct net_chunk *chunks = mem_alloc((size_t)g->plan->chunks * sizeof *chunks);
    mesh_chunks(g->plan, s->place, chunks);
    int r = net_init(&s->net, g->job, g->stage.net.ops, chunks, g->plan->chunks, g->mesh.tensor,
                     s->part, e);
    if (r < 0)
        return r;
    replicas_init(&s->layout, g->job, g->plan, &s->net, &g->mesh);
    size_t room = s->layout.widest;
    for (int t = 0; t < s->net.tensor_count; t++)
        if (s->net.tensors[t].is_fixed && s->net.tensors[t].elements > room)
            room = s->net.tensors[t].elements;
    s->host = mem_alloc((room + 1) * sizeof *s->host);
    for (int b = 0; r == 0 && b < s->layout.count; b++)
        r = save_bucket(s, b, e);
    for (int t = 0; r == 0 && t < s->net.tensor_count; t++)
        r = save_fixed(s, &s->net.tensors[t], e);
    free(s->host);
    replicas_done(&s->layout);
    net_done(&s->net);
    return r;
}

int weights_save(struct engine *g, struct err *e)
{
    char name[WEIGHTS_NAME_SIZE];
    struct saving s = {.g = g, .pulse = {tell_progress, g->mesh.world}};
    int r = 0;
    if (g->mesh.rank == 0 || g->mesh.ensemble)
        r = create(&s, weights_artifact(g, g->mesh.ensemble ? g->mesh.rank : 0, name), e);
    for (s.place = 0; r == 0 && s.place < g->mesh.stages; s.place++)
        for (s.part = 0; r == 0 && s.part < g->mesh.tensor; s.part++)
            r = save_place(&s, e);
    if (r == 0)
        r = g->stage.net.ops->finish(e);
    if (s.file && r == 0)
        r = safetensors_finish(s.file, e);
    else
        safetensors_abandon(s.file);
    return r < 0 ? r : g->mesh.world->verbs->barrier(g->mesh.world, e);
}
