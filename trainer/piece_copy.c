/* piece_copy.c: taking, keeping and giving back. */
#include "trainer/piece_copy.h"

#include <stdlib.h>

#include "base/mem.h"

#define BLOCK ((size_t)256 * 1024) /* elements that are broadcast at once */

struct piece_copy *piece_copy_new(void)
{
    struct piece_copy *c = mem_zalloc(sizeof *c);
    c->users = 1;
    return c;
}

struct piece_copy *piece_copy_hold(struct piece_copy *c)
{
    c->users++;
    return c;
}

void piece_copy_drop(struct piece_copy *c)
{
    if (!c || --c->users > 0)
        return;
    for (size_t i = 0; i < c->count; i++) {
        free(c->names[i]);
        free(c->values[i]);
    }
    free(c->pieces);
    free(c->names);
    free(c->values);
    free(c);
}

static size_t elements(const struct piece *p)
{
    return p->to - p->from;
}

void piece_copy_add(struct piece_copy *c, const struct piece *p, const char *name,
                    float *take_values)
{
    size_t n = c->count++;
    c->pieces = mem_realloc(c->pieces, c->count * sizeof *c->pieces);
    c->names = mem_realloc(c->names, c->count * sizeof *c->names);
    c->values = mem_realloc(c->values, c->count * sizeof *c->values);
    c->pieces[n] = *p;
    c->names[n] = mem_strdup(name);
    c->values[n] = take_values;
}

int piece_copy_list(struct engine *g, int parameters_only, struct piece_copy **ret, struct err *e)
{
    struct piece *list;
    size_t count;
    int r = pieces_list(g, &list, &count, e);
    if (r < 0)
        return r;
    struct piece_copy *c = piece_copy_new();
    for (size_t i = 0; i < count; i++)
        if (!parameters_only || list[i].kind == PIECE_PARAMETER)
            piece_copy_add(c, &list[i], piece_tensor_name(g, &list[i]), NULL);
    free(list);
    *ret = c;
    return 0;
}

int piece_copy_take(struct engine *g, int parameters_only, struct piece_copy **ret, struct err *e)
{
    struct piece_copy *c;
    int r = piece_copy_list(g, parameters_only, &c, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < c->count; i++) {
        size_t n = elements(&c->pieces[i]);
        c->values[i] = mem_alloc(n * sizeof(float));
        piece_read(g, &c->pieces[i], 0, n, c->values[i]);
    }
    if ((r = g->stage.net.ops->finish(e)) < 0)
        piece_copy_drop(c);
    else
        *ret = c;
    return r;
}

int piece_copy_expect(struct engine *g, int parameters_only, size_t *ret_bytes, struct err *e)
{
    struct piece_copy *c;
    size_t sum = 0;
    int r = piece_copy_list(g, parameters_only, &c, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < c->count; i++)
        sum += elements(&c->pieces[i]) * sizeof(float);
    piece_copy_drop(c);
    *ret_bytes = sum;
    return 0;
}

/* ---- giving back ---- */

/* Block by block from `root`, which has the values, into what others need of them. */
static int pass_on(struct engine *g, int root, const struct piece *p, float *own, float *block,
                   struct err *e)
{
    struct comm *w = g->mesh.world;
    int r = 0;
    for (size_t at = 0; r == 0 && at < elements(p); at += BLOCK) {
        size_t n = elements(p) - at < BLOCK ? elements(p) - at : BLOCK;
        float *values = own ? own + at : block;
        struct piece part = *p;
        part.from = p->from + at;
        part.to = part.from + n;
        r = w->verbs->broadcast(w, values, n * sizeof *values, root, e);
        if (r == 0)
            r = pieces_put(g, &part, values, e);
    }
    return r;
}

static int restore_from(struct engine *g, int root, const struct piece_copy *c, float *block,
                        struct err *e)
{
    struct comm *w = g->mesh.world;
    int is_own = g->mesh.rank == root;
    uint64_t count = is_own ? c->count : 0;
    int r = w->verbs->broadcast(w, &count, sizeof count, root, e);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        struct piece p = {0};
        if (is_own)
            p = c->pieces[i];
        r = w->verbs->broadcast(w, &p, sizeof p, root, e);
        if (r == 0)
            r = pass_on(g, root, &p, is_own ? c->values[i] : NULL, block, e);
    }
    return r;
}

static int restore(struct engine *g, const struct piece_copy *c, struct err *e)
{
    CLEANUP(mem_freep) float *block = mem_alloc(BLOCK * sizeof *block);
    int r = 0;
    for (int root = 0; r == 0 && root < g->mesh.ranks; root++)
        r = restore_from(g, root, c, block, e);
    return r;
}

int piece_copy_restore(struct engine *g, const struct piece_copy *c, struct err *e)
{
    int r = restore(g, c, e);
    return r < 0 ? r : pieces_finish_parameters(g, e);
}

int piece_copy_restore_all(struct engine *g, const struct piece_copy *c,
                           const struct pieces_scalars *s, struct err *e)
{
    pieces_begin(g);
    int r = restore(g, c, e);
    return r < 0 ? r : pieces_finish(g, s, e);
}
