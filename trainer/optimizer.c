/* optimizer.c: one pass over the flat arenas, in as few runs as weight decay allows. */
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

double optimizer_rate(const struct optimizer *o, int64_t step)
{
    if (o->schedule != SCHEDULE_COSINE)
        return o->learning_rate;
    if (step < o->warmup_steps)
        return o->learning_rate * (double)(step + 1) / (double)o->warmup_steps;
    double share = (double)(step - o->warmup_steps) / (double)(o->decay_steps - o->warmup_steps);
    double cosine = 0.5 * (1.0 + cos(M_PI * fmin(share, 1.0)));
    return o->learning_rate * (o->alpha + (1.0 - o->alpha) * cosine);
}

double optimizer_clip(const struct optimizer *o, double norm)
{
    return o->global_clipnorm > 0.0 && norm > o->global_clipnorm ? o->global_clipnorm / norm : 1.0;
}

static int decays(const struct optimizer *o, const struct net_tensor *t)
{
    return o->kind == OPTIMIZER_ADAMW && (t->spec->is_matrix || !o->decay_matrices_only);
}

static void adam(const struct optimizer *o, struct net *n, double rate, int64_t update,
                 double scale, size_t begin, size_t end, int decay)
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
    n->ops->adam(&a, end - begin, n->gradients + begin, n->parameters + begin, n->state[0] + begin,
                 n->state[1] + begin);
}

static void sgd(const struct optimizer *o, struct net *n, double rate, double scale, size_t begin,
                size_t end)
{
    struct elem_sgd a = {
        .rate = (float)rate,
        .momentum = (float)o->momentum,
        .scale = (float)scale,
        .nesterov = o->nesterov,
    };
    n->ops->sgd(&a, end - begin, n->gradients + begin, n->parameters + begin,
                n->state[0] ? n->state[0] + begin : NULL);
}

/* Trained tensors that are treated alike and lie side by side are one run: the layout has them in
 * tensor order. */
static size_t run_end(const struct optimizer *o, const struct net *n, int first, int *ret_next)
{
    int t = first + 1;
    while (t < n->tensor_count &&
           (n->tensors[t].is_fixed || decays(o, &n->tensors[t]) == decays(o, &n->tensors[first])))
        t++;
    *ret_next = t;
    return t < n->tensor_count ? n->tensors[t].offset : n->trained;
}

void optimizer_update(const struct optimizer *o, struct net *n, double rate, int64_t update,
                      double scale, size_t begin, size_t end)
{
    if (o->kind == OPTIMIZER_SGD) {
        sgd(o, n, rate, scale, begin, end);
        return;
    }
    int t = 0, next;
    while (t < n->tensor_count && n->tensors[t].is_fixed)
        t++;
    for (; t < n->tensor_count; t = next) {
        size_t from = n->tensors[t].offset, to = run_end(o, n, t, &next);
        from = from < begin ? begin : from;
        to = to > end ? end : to;
        if (from < to)
            adam(o, n, rate, update, scale, from, to, decays(o, &n->tensors[t]));
    }
}
