/* optimizer.c: one pass over the flat arenas, in as few runs as possible. */
#include "trainer/optimizer.h"

#include <math.h>

int optimizer_states(const struct optimizer *o)
{
    switch (o->kind) {
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW: return 2;
    case OPTIMIZER_SGD: return o->momentum != 0.0;
    case OPTIMIZER__MAX: break;
    }
    return 0;
}

/* From 1 to the floor alpha, after the warm-up. */
static double fall(const struct optimizer *o, int64_t step)
{
    double share = (double)(step - o->warmup_steps) / (double)(o->decay_steps - o->warmup_steps);
    double left = 1.0 - fmin(share, 1.0);
    if (o->schedule == SCHEDULE_COSINE)
        left = 0.5 * (1.0 + cos(M_PI * fmin(share, 1.0)));
    return o->alpha + (1.0 - o->alpha) * left;
}

double optimizer_rate(const struct optimizer *o, int64_t step)
{
    if (o->schedule == SCHEDULE_CONSTANT)
        return o->learning_rate;
    if (step < o->warmup_steps)
        return o->learning_rate * (double)(step + 1) / (double)o->warmup_steps;
    if (o->schedule == SCHEDULE_STEP)
        return o->learning_rate * pow(o->gamma, (double)((step - o->warmup_steps) / o->step_size));
    return o->learning_rate * fall(o, step);
}

double optimizer_clip(const struct optimizer *o, double norm)
{
    return o->global_clipnorm > 0.0 && norm > o->global_clipnorm ? o->global_clipnorm / norm : 1.0;
}

static int decays(const struct optimizer *o, const struct net_tensor *t)
{
    return o->kind == OPTIMIZER_ADAMW && (t->spec->is_matrix || !o->decay_matrices_only);
}

/* What one call of a verb works on. */
struct run {
    size_t n;
    float *w;
    const float *g;
    void *state[NET_STATES];
    struct elem_dither dither;
};

/* Moments as bfloat16 are rounded by chance, which takes the place of the element in the model and
 * of the update in the run: the same on every mesh. */
static struct run run_of(const struct optimizer_range *x, enum storage_type moments, size_t from,
                         size_t to)
{
    size_t width = moments == STORAGE_BFLOAT16 ? sizeof(uint16_t) : sizeof(float);
    size_t skip = from - x->begin;
    struct run r = {.n = to - from, .w = x->parameter + skip, .g = x->gradient + skip};
    for (int s = 0; s < NET_STATES; s++)
        r.state[s] = x->state[s] ? (char *)x->state[s] + skip * width : NULL;
    return r;
}

static void adam(const struct optimizer *o, const struct ops *ops, double rate, int64_t update,
                 double scale, enum storage_type moments, const struct run *r, int decay)
{
    double correction =
        sqrt(1.0 - pow(o->beta_2, (double)update)) / (1.0 - pow(o->beta_1, (double)update));
    struct elem_adam a = {
        .rate = (float)(rate * correction),
        .beta_1 = (float)o->beta_1,
        .rest_1 = (float)(1.0 - o->beta_1),
        .beta_2 = (float)o->beta_2,
        .rest_2 = (float)(1.0 - o->beta_2),
        .epsilon = (float)o->epsilon,
        .scale = (float)scale,
        .decay = decay ? (float)(1.0 - rate * o->weight_decay) : 1.0f,
    };
    if (moments == STORAGE_BFLOAT16)
        ops->adam_bfloat16(&a, &r->dither, r->n, r->g, r->w, r->state[0], r->state[1]);
    else
        ops->adam(&a, r->n, r->g, r->w, r->state[0], r->state[1]);
}

static void sgd(const struct optimizer *o, const struct ops *ops, double rate, double scale,
                enum storage_type moments, const struct run *r)
{
    struct elem_sgd a = {
        .rate = (float)rate,
        .momentum = (float)o->momentum,
        .scale = (float)scale,
        .nesterov = o->nesterov,
    };
    if (moments == STORAGE_BFLOAT16 && r->state[0])
        ops->sgd_bfloat16(&a, &r->dither, r->n, r->g, r->w, r->state[0]);
    else
        ops->sgd(&a, r->n, r->g, r->w, r->state[0]);
}

/* Neighbours that are treated alike are one run: the layout has trained tensors in tensor order.
 * Where chance takes part each tensor is a run. */
static int is_alike(const struct optimizer *o, enum storage_type moments,
                    const struct net_tensor *a, const struct net_tensor *b)
{
    return b->is_fixed || (moments == STORAGE_FLOAT32 && decays(o, a) == decays(o, b));
}

static size_t run_end(const struct optimizer *o, const struct net *n, enum storage_type moments,
                      int first, int *ret_next)
{
    int t = first + 1;
    while (t < n->tensor_count && is_alike(o, moments, &n->tensors[first], &n->tensors[t]))
        t++;
    *ret_next = t;
    return t < n->tensor_count ? n->tensors[t].offset : n->trained;
}

void optimizer_update(const struct optimizer *o, const struct net *n, double rate, int64_t update,
                      double scale, enum storage_type moments, const struct optimizer_range *x)
{
    int t = 0, next;
    while (t < n->tensor_count && n->tensors[t].is_fixed)
        t++;
    for (; t < n->tensor_count; t = next) {
        const struct net_tensor *y = &n->tensors[t];
        size_t from = y->offset, to = run_end(o, n, moments, t, &next);
        from = from < x->begin ? x->begin : from;
        to = to > x->end ? x->end : to;
        if (from >= to)
            continue;
        struct run r = run_of(x, moments, from, to);
        r.dither = (struct elem_dither){.update = (uint64_t)update,
                                        .first = (y->number << 40) + (from - y->offset)};
        if (o->kind == OPTIMIZER_SGD)
            sgd(o, n->ops, rate, scale, moments, &r);
        else
            adam(o, n->ops, rate, update, scale, moments, &r, decays(o, y));
    }
}
