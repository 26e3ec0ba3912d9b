/* engine_device.c: the device of a rank: what it is opened for, what it is asked for in all, and
 * what is said where that is more than it has. */
#include <stdio.h>

#include "base/mem.h"
#include "spec/memory.h"
#include "trainer/engine.h"
#include "trainer/say.h"

/* ---- opening ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Operands of products: the input and output of a layer, and its matrix. Where layers move any may
 * come here. */
static int64_t widest_of(const struct engine *g, int64_t max_rows)
{
    const struct net *n = &g->stage.net;
    const struct model *m = &g->job->model;
    int64_t widest = 0;
    for (int l = 0; l < m->layer_count; l++) {
        int is_here = g->plan->parallel.rebalance;
        for (int c = 0; c < n->chunk_count; c++)
            is_here |= l >= n->chunks[c].first && l < n->chunks[c].last;
        if (!is_here)
            continue;
        widest = larger(widest, max_rows * shape_elements(&m->layers[l].in));
        widest = larger(widest, max_rows * shape_elements(&m->layers[l].out));
        for (int t = 0; t < m->layers[l].tensor_count; t++)
            widest = larger(widest, shape_elements(&m->layers[l].tensors[t].shape));
    }
    return widest;
}

int engine_open_device(struct engine *g, int64_t max_rows, struct err *e)
{
    const struct ops *o = backend.ops;
    g->options = (struct ops_options){.compute = g->job->precision.compute,
                                      .widest = widest_of(g, max_rows)};
    int r = o->open(&g->options, e);
    g->has_device = r == 0;
    if (r == ERR_IO)
        g->code = "device_failed";
    return r;
}

int engine_device_failed(const struct engine *g, struct err *e)
{
    struct err of_device = {0};
    if (!g->has_device || backend.ops->finish(&of_device) == 0 || of_device.code == ERR_NO_MEMORY)
        return 0;
    *e = of_device;
    return 1;
}

void engine_close_device(struct engine *g)
{
    if (g->has_device)
        backend.ops->close();
    g->has_device = 0;
}

void engine_count(struct engine *g, size_t device, size_t host)
{
    g->memory_bytes += device + (backend.ops->is_host ? host : 0);
}

/* ---- what it is to hold ---- */

struct row {
    const char *name;
    double bytes;
};

#define ROWS 8

/* As it is laid out, whether or not all of it has been allocated. */
static double layout_of(const struct engine *g, struct row rows[ROWS])
{
    struct memory_view v;
    struct plan_bytes b;
    struct replicas_bytes x;
    struct err late;
    double sum = 0;
    memory_open(&v, g->job, g->plan);
    memory_rank(&v, g->mesh.stage, &b);
    memory_done(&v);
    if (engine_values_bytes(g, &x, &late) < 0)
        x = (struct replicas_bytes){.rest = (size_t)(b.values + b.shared)};
    const struct row all[ROWS] = {
        {"parameters", (double)x.parameters},
        {"gradients", (double)x.gradients},
        {"optimizer state", (double)x.state},
        {"what data ranks keep besides", (double)x.rest},
        {"frames of activations", b.frames},
        {"scratch of layers", b.work},
        {"transport", (double)g->transport_bytes},
        {"workspace of the backend", (double)backend.ops->workspace(&g->options)},
    };
    for (int i = 0; i < ROWS; i++) {
        rows[i] = all[i];
        sum += all[i].bytes;
    }
    return sum;
}

#define MIB (1024.0 * 1024.0)

void engine_explain_no_memory(const struct engine *g, struct err *e)
{
    struct row rows[ROWS];
    int64_t all = -1, left = -1, used = backend.ops->used();
    double sum = layout_of(g, rows);
    const struct row *most = rows;
    backend.ops->room(&all, &left);
    for (int i = 0; i < ROWS; i++) {
        say_note("  %14.0f bytes  %s", rows[i].bytes, rows[i].name);
        most = rows[i].bytes > most->bytes ? &rows[i] : most;
    }
    say_note("  %14.0f bytes in all, for the %lld of the device, of which %lld are free and %lld "
             "are this rank's",
             sum, (long long)all, (long long)left, (long long)used);
    err_prefix(e,
               "Rank %d needs %.1f MiB of its device's memory, most of it (%.1f MiB) for %s, but "
               "the device has %.1f MiB, of which others have left it %.1f MiB. More ranks with "
               "\"zero\" or \"pipeline\", \"recompute\", or a smaller \"batch_size\" need less. "
               "The log has the whole layout",
               g->mesh.rank, sum / MIB, most->bytes / MIB, most->name, (double)all / MIB,
               (double)(left + used) / MIB);
}
