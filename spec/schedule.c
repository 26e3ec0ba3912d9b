/* schedule.c: orders of passes. Each is a list of forward passes, the same list mirrored for
 * backward, and how far the first runs ahead of the second. */
#include "spec/schedule.h"

#include <stdlib.h>

#include "base/mem.h"

/* What a rank's order depends on. `padded` micro-batches fill the groups. */
struct shape_of {
    int group, chunks, microbatches;
    int64_t padded;
};

static struct shape_of shape_of(int group, int chunks, int microbatches)
{
    int64_t groups = (microbatches + group - 1) / group;
    return (struct shape_of){group, chunks, microbatches, groups * group};
}

/* Forward pass k of the full order; backward pass k is its mirror. */
static struct schedule_pass pass_at(const struct shape_of *o, int64_t k, int is_backward)
{
    int64_t of_group = (int64_t)o->group * o->chunks;
    int chunk = (int)(k % of_group / o->group);
    return (struct schedule_pass){
        .microbatch = (int)(k / of_group * o->group + k % o->group),
        .chunk = is_backward ? o->chunks - 1 - chunk : chunk,
        .is_backward = is_backward != 0,
    };
}

/* Adds pass k, unless there is none: beyond either end, or one that a smaller group lacks. */
static void add(struct schedule *s, const struct shape_of *o, int64_t k, int is_backward)
{
    if (k < 0 || k >= o->padded * o->chunks)
        return;
    struct schedule_pass p = pass_at(o, k, is_backward);
    if (p.microbatch < o->microbatches)
        s->passes[s->count++] = p;
}

/* Forward passes before the first backward one is followed by another forward one. */
static int64_t lead(enum pipeline_schedule kind, int pipeline, int chunks, int rank,
                    const struct shape_of *o)
{
    int after = pipeline - 1 - rank;
    if (kind == SCHEDULE_GPIPE)
        return o->padded * o->chunks;
    return chunks > 1 ? 2 * after + (int64_t)(chunks - 1) * pipeline : after;
}

static void count_in_flight(struct schedule *s, int chunks)
{
    CLEANUP(mem_freep) int *now = mem_zalloc((size_t)chunks * sizeof *now);
    for (int64_t k = 0; k < s->count; k++) {
        int c = s->passes[k].chunk;
        now[c] += s->passes[k].is_backward ? -1 : 1;
        s->in_flight[c] = now[c] > s->in_flight[c] ? now[c] : s->in_flight[c];
    }
}

static void make_room(struct schedule *s, int passes_of_one, int chunks, int microbatches)
{
    size_t most = (size_t)passes_of_one * (size_t)chunks * (size_t)microbatches;
    *s = (struct schedule){
        .passes = mem_alloc(most * sizeof *s->passes),
        .in_flight = mem_zalloc((size_t)chunks * sizeof *s->in_flight),
    };
}

void schedule_make(struct schedule *s, enum pipeline_schedule kind, int pipeline, int chunks,
                   int microbatches, int rank)
{
    struct shape_of o = shape_of(chunks > 1 ? pipeline : 1, chunks, microbatches);
    int64_t total = o.padded * chunks, ahead = lead(kind, pipeline, chunks, rank, &o);
    make_room(s, 2, chunks, microbatches);
    for (int64_t k = 0; k < total + ahead; k++) {
        add(s, &o, k, 0);
        add(s, &o, k - ahead, 1);
    }
    count_in_flight(s, chunks);
}

void schedule_make_forward(struct schedule *s, int pipeline, int chunks, int microbatches)
{
    struct shape_of o = shape_of(chunks > 1 ? pipeline : 1, chunks, microbatches);
    make_room(s, 1, chunks, microbatches);
    for (int64_t k = 0; k < o.padded * chunks; k++)
        add(s, &o, k, 0);
    for (int c = 0; c < chunks; c++)
        s->in_flight[c] = 1;
}

void schedule_done(struct schedule *s)
{
    free(s->passes);
    free(s->in_flight);
    *s = (struct schedule){0};
}
