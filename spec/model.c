#include "spec/model_decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/keras.h"
#include "spec/layer.h"
#include "spec/shape.h"

void model_done(struct model *m)
{
    for (int i = 0; i < m->layer_count; i++)
        layer_done(&m->layers[i]);
    free(m->layers);
    free(m->weights);
    *m = (struct model){0};
}

int64_t model_parameters(const struct model *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->layer_count; i++)
        n += m->layers[i].parameters;
    return n;
}

const struct layer *model_embedding(const struct model *m)
{
    int l = 0;
    while (l < m->layer_count &&
           (m->layers[l].type == LAYER_FLATTEN || m->layers[l].type == LAYER_RESHAPE))
        l++;
    return l < m->layer_count && m->layers[l].type == LAYER_EMBEDDING ? &m->layers[l] : NULL;
}

double model_forward_flops(const struct model *m)
{
    double n = 0;
    for (int i = 0; i < m->layer_count; i++)
        n += m->layers[i].forward_flops;
    return n;
}

static void decode_input(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    struct model *m = base;
    decode_shape(d, v, at, "input", 0, &m->input);
}

static int by_name(const void *a, const void *b)
{
    const struct layer *x = *(const struct layer *const *)a, *y = *(const struct layer *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x > y) - (x < y);
}

/* Gives the default names, then looks for two that are the same. */
static void name_layers(struct decoding *d, struct model *m, const struct model_item *items)
{
    size_t n = (size_t)m->layer_count;
    struct layer **sorted = mem_alloc(n * sizeof(*sorted));
    for (size_t i = 0; i < n; i++) {
        sorted[i] = &m->layers[i];
        if (!sorted[i]->name)
            sorted[i]->name = mem_printf("layers.%zu", i);
    }
    qsort(sorted, n, sizeof(*sorted), by_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) != 0)
            continue;
        size_t index = (size_t)(sorted[i] - m->layers), first = (size_t)(sorted[i - 1] - m->layers);
        field_fault(d, FIELD_WHERE(&items[index].at, "name"), "duplicate",
                    "Give it another name, or none.",
                    "Layer %zu is called \"%s\" already; tensors are named after their layers.",
                    first, sorted[i]->name);
    }
    free(sorted);
}

static void parameters_fault(struct decoding *d, const struct model *m, int64_t total,
                             const struct where *at)
{
    field_fault(d, at, "too_large", "Use fewer units in the widest layers.",
                "The %d layers would have %lld parameters; a model may have at most %lld.",
                m->layer_count, (long long)total, (long long)MODEL_MAX_PARAMETERS);
}

static void nothing_fault(struct decoding *d, int64_t total, const struct where *at)
{
    if (total > 0)
        field_fault(d, at, "nothing_to_train", "Leave \"trainable\": false out of one that has.",
                    "No layer of this model has parameters that may change, so there is nothing to "
                    "train.");
    else
        field_fault(d, at, "nothing_to_train", "Add a dense layer.",
                    "No layer of this model has parameters, so there is nothing to train.");
}

/* Shapes, tensors and costs in order, as far as they are known: a layer that is faulty leaves the
 * shapes after it open. */
static void infer_layers(struct decoding *d, struct model *m, struct layer_draft *drafts,
                         const struct model_item *items, const char *good, const struct where *at)
{
    struct shape shape = m->input;
    int64_t total = 0, trained = 0;
    int known = shape.dims > 0, i;
    for (i = 0; i < m->layer_count && known; i++) {
        known = good[i] && layer_infer(d, drafts, i, &shape, &items[i].at) == 0;
        shape = drafts[i].layer.out;
        if (known)
            layer_set_costs(&drafts[i].layer, trained > 0);
        total += known ? drafts[i].layer.parameters : 0;
        trained += known ? layer_trained(&drafts[i].layer) : 0;
    }
    if (total > MODEL_MAX_PARAMETERS)
        parameters_fault(d, m, total, at);
    if (known && trained == 0)
        nothing_fault(d, total, at);
}

void model_decode_items(struct decoding *d, const struct model_item *items, size_t count,
                        const struct where *at, struct model *m)
{
    if (count == 0 || count > MODEL_MAX_LAYERS) {
        field_fault(d, at, count ? "too_large" : "required", NULL,
                    "A model has 1 to %d layers, but this has %zu.", MODEL_MAX_LAYERS, count);
        return;
    }
    struct layer_draft *drafts = mem_zalloc(count * sizeof(*drafts));
    char *good = mem_zalloc(count);
    m->layers = mem_zalloc(count * sizeof(*m->layers));
    m->layer_count = (int)count;
    for (size_t i = 0; i < count; i++)
        good[i] = layer_decode(d, items[i].doc, &items[i].at, &drafts[i]) == 0;
    infer_layers(d, m, drafts, items, good, at);
    for (size_t i = 0; i < count; i++) {
        m->layers[i] = drafts[i].layer;
        layer_draft_done(&drafts[i]);
    }
    free(drafts);
    free(good);
    name_layers(d, m, items);
}

static void decode_layers(struct decoding *d, const json_t *v, const struct where *at, void *base)
{
    size_t n = json_array_size(v);
    if (n == 0) {
        field_wrong_type(d, at, "layers", "a list of layers",
                         "[{\"type\": \"dense\", \"units\": 10, \"activation\": \"softmax\"}]", v);
        return;
    }
    struct model_item *items = mem_zalloc(n * sizeof(*items));
    for (size_t i = 0; i < n; i++)
        items[i] = (struct model_item){.doc = json_array_get(v, i), .at = *FIELD_ITEM(at, i)};
    model_decode_items(d, items, n, at, base);
    free(items);
}

/* "input" stands before "layers": shapes follow from it. */
static const struct field model_fields[] = {
    {.name = "input",
     .also = "input_shape shape inputs input_dim",
     .kind = FIELD_CUSTOM,
     .decode = decode_input,
     .required = 1,
     .help = "the shape of one item, without the batch",
     .example = "[784]"},
    {.name = "layers",
     .kind = FIELD_CUSTOM,
     .decode = decode_layers,
     .required = 1,
     .help = "the list of layers, from input to output",
     .example = "[{\"type\": \"dense\", \"units\": 10, \"activation\": \"softmax\"}]"},
    {.name = "weights",
     .also = "init initial_weights",
     .kind = FIELD_TEXT,
     FIELD_AT(struct model, weights),
     .min = 1,
     .max = DATA_PATH_MAX,
     .check = check_data_path,
     .help = "a safetensors file that the parameters start from",
     .example = "\"start.safetensors\""},
};
const struct object model_object = OBJECT("model", model_fields, NULL);

int model_decode(struct decoding *d, const json_t *v, const struct where *at, struct model *m)
{
    size_t before = d->faults->total;
    if (keras_is_model(v))
        return keras_decode_model(d, v, at, m);
    field_decode_object(d, &model_object, v, at, m);
    return d->faults->total == before ? 0 : -1;
}

int model_parse(const json_t *doc, const char *pointer, struct model *ret, struct faults *f)
{
    struct decoding d = {.faults = f, .warnings = f, .strict = 1};
    struct where at = {.key = pointer};
    struct model m = {0};
    if (model_decode(&d, doc, &at, &m) < 0) {
        model_done(&m);
        return ERR_INVALID;
    }
    *ret = m;
    return 0;
}
