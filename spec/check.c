/* check.c: what only shows when model, loss, data and fit are seen together. */
#include "spec/job_decode.h"

#include <math.h>
#include <stdio.h>

#include "spec/names.h"

static int has_activation(const struct layer *l)
{
    return l->type == LAYER_DENSE || l->type == LAYER_CONV2D || l->type == LAYER_ACTIVATION;
}

static enum activation last_activation(const struct layer *l)
{
    return has_activation(l) ? l->activation : ACTIVATION_LINEAR;
}

/* What probabilities the loss wants of the last layer; LINEAR: any output will do. */
static enum activation wanted_activation(enum loss loss)
{
    switch (loss) {
    case LOSS_SPARSE_CATEGORICAL_CROSSENTROPY:
    case LOSS_CATEGORICAL_CROSSENTROPY: return ACTIVATION_SOFTMAX;
    case LOSS_BINARY_CROSSENTROPY: return ACTIVATION_SIGMOID;
    case LOSS_MEAN_SQUARED_ERROR:
    case LOSS__MAX: break;
    }
    return ACTIVATION_LINEAR;
}

static const struct where *last_where(const struct layer *l, const struct where *at_layer,
                                      struct where *member)
{
    *member = (struct where){.up = at_layer, .key = "activation"};
    return has_activation(l) ? member : at_layer;
}

static void check_activation(struct decoding *d, const struct job_spec *s, const struct layer *l,
                             const struct where *at)
{
    enum activation wanted = wanted_activation(s->loss);
    const char *name = activation_name(wanted);
    char hint[256], has[64];
    struct where member;
    if (wanted == ACTIVATION_LINEAR || last_activation(l) == wanted)
        return;
    if (has_activation(l)) {
        snprintf(hint, sizeof hint, "Write \"activation\": \"%s\" in it%s.", name,
                 wanted == ACTIVATION_SOFTMAX && last_activation(l) == ACTIVATION_SIGMOID
                     ? ", or use binary_crossentropy"
                 : wanted == ACTIVATION_SIGMOID && last_activation(l) == ACTIVATION_SOFTMAX
                     ? ", or use sparse_categorical_crossentropy"
                     : "");
        snprintf(has, sizeof has, "has \"%s\"", activation_name(last_activation(l)));
    } else {
        snprintf(hint, sizeof hint,
                 "Put a dense layer with \"activation\": \"%s\" last, or add {\"type\": "
                 "\"activation\", \"activation\": \"%s\"}.",
                 name, name);
        snprintf(has, sizeof has, "is %s", layer_type_name(l->type));
    }
    field_fault(d, last_where(l, at, &member), "output_mismatch", hint,
                "The loss %s takes the outputs as probabilities, so the model must end with %s, "
                "but its last layer %s.",
                loss_name(s->loss), name, has);
}

/* One label an item is all that these have; npy files may have one at each position. */
static int has_one_label(enum data_format f)
{
    return f == DATA_CSV || f == DATA_IDX || f == DATA_SYNTHETIC;
}

static void check_output_shape(struct decoding *d, const struct job_spec *s, const struct layer *l,
                               const struct where *at)
{
    char out[128];
    int categorical = wanted_activation(s->loss) == ACTIVATION_SOFTMAX;
    int one_label = field_clean(d, "/data/train") && has_one_label(s->train.format);
    if (categorical && one_label && l->out.dims != 1) {
        field_fault(d, at, "output_mismatch", "Put a flatten layer before the last dense layer.",
                    "The loss %s compares one label with one row of probabilities, but the model's "
                    "output is %s.",
                    loss_name(s->loss), shape_format(&l->out, out));
    } else if (categorical && l->out.size[l->out.dims - 1] < 2) {
        field_fault(d, l->type == LAYER_DENSE ? FIELD_WHERE(at, "units") : at, "output_mismatch",
                    "Write the number of classes, or use binary_crossentropy with \"activation\": "
                    "\"sigmoid\" for yes and no.",
                    "The loss %s needs as many outputs as there are classes, at least 2, but the "
                    "model has 1.",
                    loss_name(s->loss));
    }
}

/* ---- tokens ---- */

static void check_token_input(struct decoding *d, const struct job_spec *s,
                              const struct where *model)
{
    const struct shape *in = &s->model.input;
    char shape[128];
    if (in->dims != 1)
        field_fault(d, FIELD_WHERE(model, "input"), "shape_mismatch", "For example: [64].",
                    "An item of tokens is a list of them, so the model's input must have one size, "
                    "but is %s.",
                    shape_format(in, shape));
    else if (s->model.layers[0].type != LAYER_EMBEDDING)
        field_fault(d, FIELD_ITEM(FIELD_WHERE(model, "layers"), 0), "input_mismatch",
                    "Put {\"type\": \"embedding\", \"input_dim\": 256, \"output_dim\": 64} first.",
                    "Tokens are numbers of words, not amounts: the first layer must be an "
                    "embedding, but is %s.",
                    layer_type_name(s->model.layers[0].type));
}

/* Each token is followed by the one that the model is to tell: a label at every position. */
static void check_tokens(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    const struct where *model = FIELD_WHERE(at, "model");
    size_t last = (size_t)s->model.layer_count - 1;
    const struct shape *in = &s->model.input, *out = &s->model.layers[last].out;
    char hint[96], shape[128];
    if (s->loss != LOSS_SPARSE_CATEGORICAL_CROSSENTROPY) {
        field_fault(d, FIELD_WHERE(FIELD_WHERE(at, "compile"), "loss"), "output_mismatch",
                    "Write \"sparse_categorical_crossentropy\".",
                    "The labels of tokens are the tokens that follow, which are classes, but the "
                    "loss is %s.",
                    loss_name(s->loss));
        return;
    }
    check_token_input(d, s, model);
    if (in->dims != 1 || (out->dims == 2 && out->size[0] == in->size[0]))
        return;
    snprintf(hint, sizeof hint, "The output must be [%lld, number of different tokens].",
             (long long)in->size[0]);
    field_fault(d, FIELD_ITEM(FIELD_WHERE(model, "layers"), last), "output_mismatch", hint,
                "The model is to tell the next token at each of %lld positions, but its output is "
                "%s.",
                (long long)in->size[0], shape_format(out, shape));
}

static void check_metrics(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    const struct where *metrics = FIELD_WHERE(FIELD_WHERE(at, "compile"), "metrics");
    if (s->metrics[METRIC_ACCURACY] && s->loss == LOSS_MEAN_SQUARED_ERROR)
        field_fault(d, metrics, "conflict", "Use \"mae\", or leave it out.",
                    "\"accuracy\" counts right classes, and mean_squared_error has none.");
    if (s->metrics[METRIC_MAE] && s->loss == LOSS_SPARSE_CATEGORICAL_CROSSENTROPY)
        field_fault(d, metrics, "conflict", "Use \"accuracy\".",
                    "\"mae\" compares numbers, and the labels of sparse_categorical_crossentropy "
                    "are classes.");
}

static void check_synthetic(struct decoding *d, const struct job_spec *s,
                            const struct data_source *source, const struct where *at)
{
    char hint[128], shape[128];
    int64_t elements = shape_elements(&s->model.input);
    const struct layer *last = &s->model.layers[s->model.layer_count - 1];
    int64_t outputs = shape_elements(&last->out);
    if (source->format != DATA_SYNTHETIC)
        return;
    if (model_embedding(&s->model))
        field_fault(d, FIELD_WHERE(at, "format"), "conflict",
                    "Use tokens, or a csv or npy file of whole numbers.",
                    "Synthetic features are fractions between 0 and 1, but the model's embedding "
                    "takes token ids.");
    if (source->input != elements) {
        snprintf(hint, sizeof hint, "Write \"input\": %lld here, or [%lld] in /model/input.",
                 (long long)elements, (long long)source->input);
        field_fault(d, FIELD_WHERE(at, "input"), "shape_mismatch", hint,
                    "Items of %lld numbers do not fit the model's input %s.",
                    (long long)source->input, shape_format(&s->model.input, shape));
    }
    int categorical = wanted_activation(s->loss) == ACTIVATION_SOFTMAX;
    if (categorical && outputs > 1 && source->classes > outputs) {
        snprintf(hint, sizeof hint,
                 "Write \"units\": %lld in the last layer, or \"classes\": %lld.",
                 (long long)source->classes, (long long)outputs);
        field_fault(d, FIELD_WHERE(at, "classes"), "output_mismatch", hint,
                    "Labels of %lld classes need as many outputs, but the model has %lld.",
                    (long long)source->classes, (long long)outputs);
    }
    if (s->loss == LOSS_BINARY_CROSSENTROPY && source->classes > 2)
        field_fault(d, FIELD_WHERE(at, "classes"), "output_mismatch", "Write \"classes\": 2.",
                    "binary_crossentropy tells two classes apart, but there are %lld.",
                    (long long)source->classes);
}

static void check_split(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    const struct where *split = FIELD_WHERE(FIELD_WHERE(at, "fit"), "validation_split");
    double share = s->fit.validation_split;
    if (share > 0 && s->has_validation)
        field_fault(d, split, "conflict", "Leave out \"validation_split\" or /data/validation.",
                    "There is validation data already (/data/validation); \"validation_split\" "
                    "would take more from the training data.");
    if (share <= 0 || s->train.format != DATA_SYNTHETIC)
        return;
    int64_t kept = (int64_t)floor((double)s->train.samples * (1 - share));
    if (kept < 1 || kept >= s->train.samples)
        field_fault(d, split, "out_of_range", "Write 0.2, or make more samples.",
                    "Of %lld samples, this leaves %lld to train on and %lld to validate on.",
                    (long long)s->train.samples, (long long)kept,
                    (long long)(s->train.samples - kept));
}

static void check_batch(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    char hint[64];
    if (s->train.format != DATA_SYNTHETIC || s->fit.batch_size <= s->train.samples)
        return;
    snprintf(hint, sizeof hint, "Up to %lld makes a difference.", (long long)s->train.samples);
    field_warn(d, FIELD_WHERE(FIELD_WHERE(at, "fit"), "batch_size"), "no_effect", hint,
               "A batch of %lld is larger than the %lld samples, so every epoch is a single step.",
               (long long)s->fit.batch_size, (long long)s->train.samples);
}

static void check_output(struct decoding *d, const struct job_spec *s, const struct where *at)
{
    size_t last = (size_t)s->model.layer_count - 1;
    const struct layer *l = &s->model.layers[last];
    const struct where *layers = FIELD_WHERE(FIELD_WHERE(at, "model"), "layers");
    char pointer[64];
    snprintf(pointer, sizeof pointer, "/model/layers/%zu", last);
    if (!field_clean(d, pointer) || !field_clean(d, "/compile/loss"))
        return;
    check_activation(d, s, l, FIELD_ITEM(layers, last));
    if (l->out.dims > 0) /* 0 behind a faulty layer */
        check_output_shape(d, s, l, FIELD_ITEM(layers, last));
}

void check_training(struct decoding *d, const struct job_spec *s, const json_t *doc,
                    const struct where *at)
{
    const struct where *data = FIELD_WHERE(at, "data"), *fit = FIELD_WHERE(at, "fit");
    const json_t *given = json_object_get(doc, "fit");
    /* asked before any check adds a fault */
    int split_known = field_clean(d, "/data/train") && field_clean(d, "/fit");
    int model_known = field_clean(d, "/model") && field_clean(d, "/compile/loss");
    if (s->model.layer_count > 0)
        check_output(d, s, at);
    if (field_clean(d, "/compile"))
        check_metrics(d, s, at);
    if (model_known && field_clean(d, "/data/train"))
        check_synthetic(d, s, &s->train, FIELD_WHERE(data, "train"));
    if (model_known && field_clean(d, "/data/train") && s->train.format == DATA_TOKENS)
        check_tokens(d, s, at);
    if (model_known && s->has_validation && field_clean(d, "/data/validation"))
        check_synthetic(d, s, &s->validation, FIELD_WHERE(data, "validation"));
    if (split_known) {
        check_split(d, s, at);
        check_batch(d, s, at);
    }
    if (json_object_get(given, "epochs") && json_object_get(given, "steps"))
        field_fault(d, FIELD_WHERE(fit, "steps"), "conflict", "Leave one of the two out.",
                    "\"epochs\" and \"steps\" both say when training ends.");
}
