/* data_targets.c: what labels a loss can learn from, and the form that it wants them in. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "trainer/data_parts.h"

static const struct shape *output_of(const struct model *m)
{
    return m->layer_count ? &m->layers[m->layer_count - 1].out : &m->input;
}

/* Weights are by class: the classes must be the model's. */
static int check_weights(const struct job_spec *job, const struct data_need *need, struct err *e)
{
    int64_t classes = need->outputs;
    if (job->loss == LOSS_BINARY_CROSSENTROPY && classes == 1)
        classes = 2;
    else if (job->fit.class_weights > 0 && job->loss != LOSS_SPARSE_CATEGORICAL_CROSSENTROPY &&
             job->loss != LOSS_CATEGORICAL_CROSSENTROPY)
        return err_set(e, ERR_INVALID,
                       "class_weight weighs the classes of labels, but %s has no classes",
                       loss_name(job->loss));
    if (job->fit.class_weights <= classes)
        return 0;
    return err_set(e, ERR_INVALID,
                   "class_weight has a weight for class %" PRId64 ", but the model tells %" PRId64
                   " classes apart, 0 to %" PRId64,
                   job->fit.class_weights - 1, classes, classes - 1);
}

int data_need_of(const struct job_spec *job, struct data_need *ret, struct err *e)
{
    const struct shape *out = output_of(&job->model);
    int64_t all = shape_elements(out), row = out->size[out->dims - 1];
    int is_sparse = job->loss == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY;
    int of_classes = is_sparse || job->loss == LOSS_CATEGORICAL_CROSSENTROPY;
    *ret = (struct data_need){.input = job->model.input,
                              .output = *out,
                              .feature_size = shape_elements(&job->model.input),
                              .loss = job->loss,
                              .positions = of_classes ? all / row : 1,
                              .outputs = of_classes ? row : all,
                              .labels = of_classes ? all / row : all,
                              .target_type = is_sparse ? TARGET_CLASS : TARGET_F32,
                              .target_size = is_sparse ? all / row : all};
    return check_weights(job, ret, e);
}

int data_need_one_label(const struct data_need *need, struct err *e)
{
    char text[128];
    if (need->labels == 1)
        return 0;
    return err_set(e, ERR_INVALID,
                   "%s needs %s, as there is one label per sample, but the model's last layer "
                   "gives %s",
                   loss_name(need->loss),
                   need->positions > 1 ? "one row of class scores" : "a single output",
                   shape_format(&need->output, text));
}

static int fits(const struct dataset *d, const struct data_need *need, struct err *e)
{
    if (d->samples == 0 ||
        (d->feature_size == need->feature_size && d->target_type == need->target_type &&
         d->target_size == need->target_size && d->positions == need->positions))
        return 0;
    return err_set(e, ERR_CORRUPT,
                   "the prepared data has %" PRId64 " features and %" PRId64
                   " %s a sample, which is not what this job's model and loss take",
                   d->feature_size, d->target_size,
                   d->target_type == TARGET_CLASS ? "classes" : "targets");
}

int data_check(const struct prepared *p, const struct job_spec *job, struct err *e)
{
    struct data_need need;
    int r = data_need_of(job, &need, e);
    if (r == 0)
        r = fits(&p->train, &need, e);
    return r < 0 ? r : fits(&p->validation, &need, e);
}

/* " at item 4711", or nothing. */
static const char *place(int64_t item, char out[48])
{
    out[0] = '\0';
    if (item > 0)
        snprintf(out, 48, " at item %" PRId64, item);
    return out;
}

static int check_class(const struct data_need *need, double label, int64_t item, struct err *e)
{
    char at[48];
    if (label != floor(label))
        return err_set(e, ERR_INVALID,
                       "label %.15g%s is not a whole number, but %s needs class numbers from 0",
                       label, place(item, at), loss_name(need->loss));
    if (label < 0)
        return err_set(e, ERR_INVALID, "label %.15g%s is below 0, where class numbers start", label,
                       place(item, at));
    if (label >= (double)need->outputs || label > INT32_MAX)
        return err_set(e, ERR_INVALID,
                       "label %.15g%s is not below %" PRId64
                       ", the number of classes that the model's last layer has",
                       label, place(item, at), need->outputs);
    return 0;
}

static int check_label(const struct data_need *need, double label, int64_t item, struct err *e)
{
    char at[48];
    if (!isfinite(label))
        return err_set(e, ERR_INVALID, "label %.15g%s is not a finite number", label,
                       place(item, at));
    if (need->loss == LOSS_BINARY_CROSSENTROPY && label != 0 && label != 1)
        return err_set(e, ERR_INVALID, "label %.15g%s is neither 0 nor 1, as %s needs it", label,
                       place(item, at), loss_name(need->loss));
    if (need->loss == LOSS_MEAN_SQUARED_ERROR && !isfinite((float)label))
        return err_set(e, ERR_INVALID, "label %.15g%s is too large for a 32-bit float", label,
                       place(item, at));
    if (need->loss == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY ||
        need->loss == LOSS_CATEGORICAL_CROSSENTROPY)
        return check_class(need, label, item, e);
    return 0;
}

static int is_class(const struct data_need *need)
{
    return need->target_type == TARGET_CLASS || need->loss == LOSS_CATEGORICAL_CROSSENTROPY;
}

int data_targets_add(struct data_targets *t, double label, int64_t item, struct err *e)
{
    int r = check_label(t->need, label, item, e);
    if (r < 0)
        return r;
    int32_t class = is_class(t->need) ? (int32_t)label : 0;
    float value = (float)label;
    if (is_class(t->need))
        buf_add(&t->labels, &class, sizeof class);
    else
        buf_add(&t->labels, &value, sizeof value);
    t->count++;
    return 0;
}

int data_targets_write(const struct data_targets *t, struct data_out *o, struct data_split *split,
                       struct err *e)
{
    uint64_t bytes;
    void *to;
    int r = data_out_align(o, e);
    if (r < 0)
        return r;
    if (__builtin_mul_overflow((uint64_t)t->count * 4, (uint64_t)t->need->target_size, &bytes))
        bytes = UINT64_MAX; /* over any limit */
    uint64_t at = o->used;
    r = data_out_extend(o, bytes, &to, e);
    if (r < 0)
        return r;
    if (t->need->loss != LOSS_CATEGORICAL_CROSSENTROPY) {
        memcpy(to, t->labels.data, bytes);
    } else {
        const int32_t *classes = (const int32_t *)(const void *)t->labels.data;
        float *rows = to;
        for (int64_t i = 0; i < t->count; i++)
            rows[i * t->need->target_size + classes[i]] = 1;
    }
    split->target_type = (int32_t)t->need->target_type;
    split->target_size = t->need->target_size;
    split->targets_at = at;
    return 0;
}

void data_targets_done(struct data_targets *t)
{
    buf_done(&t->labels);
}
