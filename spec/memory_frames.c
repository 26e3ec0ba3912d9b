/* memory_frames.c: activations, as trainer/frame.c lays them out. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "spec/memory.h"
#include "spec/schedule.h"

#define WINDOWS   3  /* FRAME_WINDOWS */
#define SUM_BYTES 24 /* sizeof(struct loss_sums) */

/* Where the outputs of one chunk lie. */
struct layout {
    const struct memory_view *view;
    const struct plan *plan;
    int first, last;
    char *again; /* [layers of the model]: by a layer that computes, whether it is done again */
    double frame, scratch, skips, widest, gathered;
    int windows, bars;
};

static double padded(double bytes)
{
    return ceil(bytes / 64) * 64;
}

static double value_bytes(double elements, int packed)
{
    return padded(elements * (packed ? 2 : 4));
}

static const struct layer_facts *facts(const struct layout *y, int l)
{
    return &y->view->facts[l];
}

/* Leading layers of the model that the batch loader applies as it reads. */
static int is_folded(const struct layout *y, int l)
{
    return y->first == 0 && facts(y, l)->prepared;
}

static int passes(const struct layout *y, int l)
{
    return is_folded(y, l) || facts(y, l)->passes;
}

static int rounds(const struct layout *y, int l)
{
    const struct memory_view *v = y->view;
    int from = l >= 0 ? v->facts[l].source : -1;
    return v->job->precision.activations == STORAGE_BFLOAT16 && from >= 0 &&
           !v->facts[l].prepared && !v->facts[from].is_output;
}

/* ---- what is computed again ---- */

/* The layer of the chunk whose output l's is; before the chunk: first - 1. */
static int source_of(const struct layout *y, int l)
{
    while (l >= y->first && passes(y, l))
        l--;
    return l < y->first ? y->first - 1 : l;
}

static int is_again(const struct layout *y, int l)
{
    int source = source_of(y, l);
    return source >= y->first && y->again[source];
}

static void keep(struct layout *y, int l)
{
    int source = source_of(y, l);
    if (source >= y->first)
        y->again[source] = 0;
}

/* The first layer of the stretch that l is in; -1: none. */
static int stretch_of(const struct layout *y, int l)
{
    if (!is_again(y, l))
        return -1;
    while (l > y->first && is_again(y, l - 1))
        l--;
    return l;
}

/* The stretch that is at hand when layer l runs forward; -1: none. */
static int stretch_before(const struct layout *y, int l)
{
    while (l >= y->first && stretch_of(y, l) < 0 && facts(y, l)->sums == 0)
        l--;
    return l < y->first ? -1 : stretch_of(y, l);
}

static int keep_one_for_adds(struct layout *y)
{
    const struct layer *layers = y->view->job->model.layers;
    for (int l = y->first; l < y->last; l++) {
        int from = l - layers[l].back;
        if (layers[l].type != LAYER_ADD || from < y->first || !is_again(y, from) ||
            stretch_of(y, from) == stretch_before(y, l))
            continue;
        keep(y, from);
        return 1;
    }
    return 0;
}

static void choose_again(struct layout *y)
{
    for (int l = y->first; l < y->last; l++)
        y->again[l] =
            y->plan->recompute && y->plan->recompute[l] && !passes(y, l) && !facts(y, l)->is_output;
    for (int l = y->first; l < y->last; l++)
        if (facts(y, l)->sums > 0) {
            y->bars++;
            keep(y, l - 1);
            if (l == y->last - 1)
                keep(y, l);
        }
    while (keep_one_for_adds(y))
        continue;
}

/* ---- bytes ---- */

static void add_output(struct layout *y, int l, double *used)
{
    const struct layer_facts *f = facts(y, l);
    double rows = y->view->rows, kept = rows * f->kept_item + f->kept_batch;
    int packed = rounds(y, l), kept_packed = packed && f->keeps_output;
    *used += value_bytes(rows * f->out, packed) + value_bytes(kept, kept_packed);
    y->windows = packed || kept_packed ? WINDOWS : y->windows;
}

/* The parts of all tensor ranks of what is gathered. */
static double part_bytes(const struct layout *y, int l)
{
    return padded(4 * y->view->rows * facts(y, l)->gathered) * y->plan->tensor;
}

static void add_outputs(struct layout *y)
{
    double scratch = 0;
    for (int l = y->first; l < y->last; l++) {
        y->widest = fmax(y->widest, y->view->rows * facts(y, l)->out);
        y->gathered = fmax(y->gathered, part_bytes(y, l));
        if (passes(y, l))
            continue;
        if (!y->again[l]) {
            add_output(y, l, &y->frame);
            continue;
        }
        if (l == y->first || !is_again(y, l - 1))
            scratch = 0;
        add_output(y, l, &scratch);
        y->scratch = fmax(y->scratch, scratch);
    }
}

/* A gradient that waits for the sums of a whole batch. */
static void add_edge(struct layout *y)
{
    double most = 0;
    for (int l = y->first; l < y->last; l++)
        if (facts(y, l)->sums > 0)
            most = fmax(most, value_bytes(y->view->rows * facts(y, l)->out, 0));
    y->frame += most;
}

/* Gradients that skip layers on their way to what an `add` reads: slots, each in use from the last
 * `add` that reads an output down to the layer that made it. */
static void add_skips(struct layout *y)
{
    const struct layer *layers = y->view->job->model.layers;
    size_t count = (size_t)(y->last - y->first) + 1;
    CLEANUP(mem_freep) double *bytes = mem_zalloc(count * sizeof *bytes);
    CLEANUP(mem_freep) int *user = mem_zalloc(count * sizeof *user); /* layer + 1 */
    int slots = 0;
    for (int l = y->last - 1; l >= y->first; l--) {
        int from = layers[l].type == LAYER_ADD ? l - layers[l].back : l, slot = 0, has = 0;
        for (int i = 0; i < slots; i++) {
            user[i] = user[i] == l + 1 ? 0 : user[i];
            has = has || user[i] == from + 1;
        }
        if (from == l || from < y->first || has)
            continue;
        while (slot < slots && user[slot])
            slot++;
        slots = slot == slots ? slots + 1 : slots;
        user[slot] = from + 1;
        bytes[slot] = fmax(bytes[slot], value_bytes(y->view->rows * facts(y, from)->out, 0));
    }
    for (int i = 0; i < slots; i++)
        *(y->bars > 0 ? &y->frame : &y->skips) += bytes[i];
}

static int has_adds(const struct layout *y)
{
    for (int l = y->first; l < y->last; l++)
        if (y->view->job->model.layers[l].type == LAYER_ADD)
            return 1;
    return 0;
}

static void lay_out(struct layout *y)
{
    double in = y->first < y->last ? y->view->rows * facts(y, y->first)->in : 0;
    int packed = rounds(y, y->first - 1);
    y->widest = in;
    y->windows = packed ? WINDOWS : 0;
    y->frame = value_bytes(in, packed);
    choose_again(y);
    add_outputs(y);
    add_edge(y);
    if (has_adds(y))
        add_skips(y);
}

/* ---- a rank ---- */

static int in_flight(const struct memory_view *v, int place, const struct schedule *s, int chunk)
{
    const struct plan *p = v->plan;
    int m = v->microbatches, after = p->pipeline - place;
    if (s && s->in_flight)
        return s->in_flight[chunk];
    if (p->schedule == SCHEDULE_GPIPE)
        return m;
    return m < after ? m : after;
}

static double label_bytes(const struct memory_view *v)
{
    const struct model *m = &v->job->model;
    const struct shape *out = &m->layers[m->layer_count - 1].out;
    double all = (double)shape_elements(out);
    int sparse = v->job->loss == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY;
    return v->rows * 4 * (sparse ? all / (double)out->size[out->dims - 1] : all);
}

/* The two buffers that samples go to a device of its own through (trainer/batch.h). */
static double input_bytes(const struct memory_view *v, int place)
{
    double features = 4 * v->rows * (double)shape_elements(&v->job->model.input);
    return 2 *
           ((place == 0 ? features : 0) + (place == v->plan->pipeline - 1 ? label_bytes(v) : 0));
}

/* Sums over the whole batch: those of a bar, twice, and a leaf for each micro-batch. */
static double bar_bytes(const struct memory_view *v, int place)
{
    const struct plan *p = v->plan;
    double counts = 0, leaf = 0;
    for (int s = place; s < plan_stages(p); s += p->pipeline)
        for (int l = p->stage_first[s]; l < p->stage_first[s + 1]; l++) {
            counts += 2 * v->facts[l].sums;
            leaf = fmax(leaf, v->facts[l].sums);
        }
    return 8 * (counts + v->microbatches * leaf);
}

void memory_add_frames(const struct memory_view *v, int place, struct plan_bytes *ret)
{
    const struct plan *p = v->plan;
    struct schedule schedule = {0};
    double widest = 0, scratch = 0, skips = 0, gathered = 0;
    int windows = 0;
    CLEANUP(mem_freep) char *again = mem_zalloc((size_t)v->job->model.layer_count + 1);
    if (p->chunks > 1)
        schedule_make(&schedule, p->schedule, p->pipeline, p->chunks, v->microbatches, place);
    for (int c = 0; c < p->chunks; c++) {
        int s = c * p->pipeline + place;
        struct layout y = {.view = v,
                           .plan = p,
                           .first = p->stage_first[s],
                           .last = p->stage_first[s + 1],
                           .again = again};
        lay_out(&y);
        ret->frames += y.frame * in_flight(v, place, p->chunks > 1 ? &schedule : NULL, c);
        widest = fmax(widest, y.widest);
        scratch = fmax(scratch, y.scratch);
        skips = fmax(skips, y.skips);
        gathered = fmax(gathered, y.gathered);
        windows = y.windows > windows ? y.windows : windows;
    }
    schedule_done(&schedule);
    ret->work = (2 + windows) * value_bytes(widest, 0) + skips + scratch + gathered +
                bar_bytes(v, place) + (double)v->microbatches * SUM_BYTES;
    if (place == p->pipeline - 1)
        ret->work += label_bytes(v) + 4 * (double)v->job->fit.class_weights;
    if (memory_is_apart(v->job))
        ret->work += input_bytes(v, place);
}
