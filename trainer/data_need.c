/* data_need.c: what a job's model and loss ask of the data: which numbers can be features, and
 * which labels the loss can learn from. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "trainer/data_parts.h"

#define FLOAT_WHOLE_MOST (INT64_C(1) << 24) /* up to here float32 has every whole number */

static const struct shape *output_of(const struct model *m)
{
    return m->layer_count ? &m->layers[m->layer_count - 1].out : &m->input;
}

static int is_of_classes(enum loss loss)
{
    return loss == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY || loss == LOSS_CATEGORICAL_CROSSENTROPY;
}

/* Weights are by class: the classes must be the model's. */
static int check_weights(const struct job_spec *job, const struct data_need *need, struct err *e)
{
    int64_t classes = need->outputs;
    if (job->loss == LOSS_BINARY_CROSSENTROPY && classes == 1)
        classes = 2;
    else if (job->fit.class_weights > 0 && !is_of_classes(job->loss))
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

/* The embedding that gets the features as they are. */
static int find_vocabulary(const struct model *m, int64_t *ret, struct err *e)
{
    int l = 0;
    while (l < m->layer_count &&
           (m->layers[l].type == LAYER_FLATTEN || m->layers[l].type == LAYER_RESHAPE))
        l++;
    *ret = l < m->layer_count && m->layers[l].type == LAYER_EMBEDDING ? m->layers[l].vocabulary : 0;
    if (*ret <= FLOAT_WHOLE_MOST)
        return 0;
    return err_set(e, ERR_INVALID,
                   "the embedding's vocabulary of %" PRId64 " is too large: features are float32, "
                   "in which whole numbers are exact up to %" PRId64,
                   *ret, FLOAT_WHOLE_MOST);
}

int data_need_of(const struct job_spec *job, struct data_need *ret, struct err *e)
{
    const struct shape *out = output_of(&job->model);
    int64_t all = shape_elements(out), row = out->size[out->dims - 1];
    int by_row = is_of_classes(job->loss);
    int is_sparse = job->loss == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY;
    *ret = (struct data_need){.input = job->model.input,
                              .output = *out,
                              .feature_size = shape_elements(&job->model.input),
                              .loss = job->loss,
                              .positions = by_row ? all / row : 1,
                              .outputs = by_row ? row : all,
                              .labels = by_row ? all / row : all,
                              .target_type = is_sparse ? TARGET_CLASS : TARGET_F32,
                              .target_size = is_sparse ? all / row : all};
    int r = find_vocabulary(&job->model, &ret->vocabulary, e);
    return r < 0 ? r : check_weights(job, ret, e);
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

int data_need_classes(const struct data_need *need)
{
    return is_of_classes(need->loss);
}

void data_split_of(const struct data_need *need, struct data_split *ret)
{
    *ret = (struct data_split){.target_type = (int32_t)need->target_type,
                               .is_one_hot = need->loss == LOSS_CATEGORICAL_CROSSENTROPY,
                               .target_size = need->target_size,
                               .positions = need->positions};
}

int64_t data_limited(const struct data_source *source, int64_t samples)
{
    return source->limit > 0 && source->limit < samples ? source->limit : samples;
}

/* ---- single numbers ---- */

int data_check_feature(const struct data_need *need, double value, struct err *e)
{
    if (!isfinite(value))
        return err_set(e, ERR_INVALID, "value %f is not a finite number", value);
    if (!isfinite((float)value))
        return err_set(e, ERR_INVALID, "value %.15g is too large for a 32-bit float", value);
    if (need->vocabulary == 0)
        return 0;
    if (value < 0 || value != floor(value))
        return err_set(e, ERR_INVALID,
                       "value %.15g is not a whole number from 0, as the embedding that reads it "
                       "needs it",
                       value);
    if (value >= (double)need->vocabulary)
        return err_set(e, ERR_INVALID,
                       "value %.15g is not below %" PRId64
                       ", the vocabulary of the embedding that reads it",
                       value, need->vocabulary);
    return 0;
}

static int check_class(const struct data_need *need, double label, struct err *e)
{
    if (label != floor(label))
        return err_set(e, ERR_INVALID,
                       "label %.15g is not a whole number, but %s needs class numbers from 0",
                       label, loss_name(need->loss));
    if (label < 0)
        return err_set(e, ERR_INVALID, "label %.15g is below 0, but classes count from 0", label);
    if (label >= (double)need->outputs || label > INT32_MAX)
        return err_set(e, ERR_INVALID,
                       "label %.15g is not below %" PRId64
                       ", the number of classes that the model's last layer has",
                       label, need->outputs);
    return 0;
}

int data_check_label(const struct data_need *need, double label, struct err *e)
{
    if (!isfinite(label))
        return err_set(e, ERR_INVALID, "label %.15g is not a finite number", label);
    if (need->loss == LOSS_BINARY_CROSSENTROPY && label != 0 && label != 1)
        return err_set(e, ERR_INVALID, "label %.15g is neither 0 nor 1, as %s needs it", label,
                       loss_name(need->loss));
    if (need->loss == LOSS_MEAN_SQUARED_ERROR && !isfinite((float)label))
        return err_set(e, ERR_INVALID, "label %.15g is too large for a 32-bit float", label);
    return data_need_classes(need) ? check_class(need, label, e) : 0;
}

void data_keep_label(const struct data_need *need, double label, void *to)
{
    int32_t class = data_need_classes(need) ? (int32_t)label : 0;
    float value = (float)label;
    memcpy(to, data_need_classes(need) ? (void *)&class : (void *)&value, 4);
}

enum number_type data_label_type(const struct data_need *need)
{
    return data_need_classes(need) ? NUMBER_I32 : NUMBER_F32;
}

/* ---- prepared data against the job ---- */

static int fits(const struct dataset *d, const struct data_need *need, struct err *e)
{
    if (d->samples == 0 ||
        (d->feature_size == need->feature_size && d->target_type == need->target_type &&
         d->target_size == need->target_size && d->positions == need->positions &&
         d->is_one_hot == (need->loss == LOSS_CATEGORICAL_CROSSENTROPY)))
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
