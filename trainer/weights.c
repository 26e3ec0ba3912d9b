/* weights.c: reading, initialising, gathering and writing parameters. */
#include "trainer/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/random.h"
#include "trainer/safetensors.h"

/* ---- start ---- */

static float *host_buffer(const struct net_tensor *t)
{
    return mem_alloc(t->elements * sizeof(float));
}

static void put(struct engine *g, const struct net_tensor *t, const float *host)
{
    const struct net *n = &g->stage.net;
    n->ops->upload(n->parameters + t->offset, host, t->elements * sizeof(float));
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
    if (!g->job->model.weights) {
        initialize(g);
        return 0;
    }
    int r = read_file(g, e);
    if (r < 0)
        g->code = "weights_invalid";
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

/* The parameters of one place along the pipeline on the host, and how its tensors lie in them. */
struct part {
    struct net net; /* a layout without arenas */
    float *host;    /* of stage 0's parts, and of this rank's own; of others the last piece */
    float *owned;   /* NULL where the device has host memory and nothing was copied */
};

static int has_part(const struct engine *g, int stage)
{
    return g->mesh.stage == 0 || g->mesh.stage == stage;
}

static void make_room(const struct engine *g, int stage, struct part *p)
{
    const struct net *n = &g->stage.net;
    size_t bytes = p->net.elements * sizeof(float);
    int is_own = stage == g->mesh.stage;
    if (is_own && n->ops->is_host) {
        p->host = n->parameters;
        return;
    }
    p->host = p->owned = mem_alloc(has_part(g, stage) ? bytes : PIECE);
    if (is_own)
        n->ops->download(p->owned, n->parameters, bytes);
}

/* Only stage 0 keeps what it is sent: a model that needs a pipeline fits one rank badly. */
static int gather_part(struct engine *g, int stage, struct part *p, struct err *e)
{
    int count = g->plan->chunks;
    CLEANUP(mem_freep) struct net_chunk *chunks = mem_alloc((size_t)count * sizeof *chunks);
    mesh_chunks(g->plan, stage, chunks);
    struct comm *line = g->mesh.pipeline;
    int r = net_init(&p->net, g->job, g->stage.net.ops, chunks, count, e);
    if (r < 0)
        return r;
    make_room(g, stage, p);
    size_t bytes = p->net.elements * sizeof(float);
    for (size_t at = 0; line && r == 0 && at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        char *piece = (char *)p->host + (has_part(g, stage) ? at : 0);
        r = line->verbs->broadcast(line, piece, n, stage, e);
    }
    return r;
}

static void part_done(struct part *p)
{
    net_done(&p->net);
    free(p->owned);
    *p = (struct part){0};
}

static void tell_progress(void *world)
{
    comm_progress(world);
}

static int write_parts(const struct engine *g, const struct part *parts, const char *name,
                       struct err *e)
{
    int count = 0;
    for (int s = 0; s < g->mesh.stages; s++)
        count += parts[s].net.tensor_count;
    CLEANUP(mem_freep)
    struct safetensors_item *items = mem_alloc(((size_t)count + 1) * sizeof *items);
    for (int s = 0; s < g->mesh.stages; s++)
        for (int t = 0; t < parts[s].net.tensor_count; t++) {
            const struct net_tensor *x = &parts[s].net.tensors[t];
            items[x->number] = (struct safetensors_item){
                .name = x->name, .shape = x->spec->shape, .data = parts[s].host + x->offset};
        }
    char step[32];
    snprintf(step, sizeof step, "%lld", (long long)g->step);
    /* Nothing of the attempt: the same training gives the same file. */
    const char *const metadata[] = {"producer", "trainyard", "step", step, NULL};
    const struct safetensors_pulse pulse = {tell_progress, g->mesh.world};
    return safetensors_write(name, items, count, metadata, &pulse, e);
}

static int gather_and_write(struct engine *g, struct err *e)
{
    char name[WEIGHTS_NAME_SIZE];
    CLEANUP(mem_freep) struct part *parts = mem_zalloc((size_t)g->mesh.stages * sizeof *parts);
    int r = 0;
    for (int s = 0; r == 0 && s < g->mesh.stages; s++) {
        r = gather_part(g, s, &parts[s], e);
        if (g->mesh.stage != 0)
            part_done(&parts[s]);
    }
    if (r == 0 && g->mesh.stage == 0)
        r = write_parts(g, parts, weights_artifact(g, g->mesh.ensemble ? g->mesh.rank : 0, name),
                        e);
    for (int s = 0; s < g->mesh.stages; s++)
        part_done(&parts[s]);
    return r;
}

int weights_save(struct engine *g, struct err *e)
{
    int r = g->mesh.data_rank == 0 || g->mesh.ensemble ? gather_and_write(g, e) : 0;
    return r < 0 ? r : g->mesh.world->verbs->barrier(g->mesh.world, e);
}
