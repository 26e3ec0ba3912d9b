/* layer_embedding.c: a row of a table for every token id. */
#include "spec/layer_class.h"

#include <stdio.h>

#include "spec/shape.h"

/* Features are float32: whole numbers are exact up to here. */
#define VOCABULARY_MAX (1 << 24)

static const struct field embedding_fields[] = {
    LAYER_COMMON_FIELDS,
    {.name = "input_dim",
     .also = "vocabulary vocab_size num_embeddings",
     .kind = FIELD_INT,
     LAYER_AT(layer.vocabulary),
     .required = 1,
     .min = 1,
     .max = VOCABULARY_MAX,
     .help = "how many token ids there are, from 0",
     .example = "10000"},
    LAYER_SIZE(output_dim, "units embedding_dim", layer.units, "how many numbers stand for a token",
               "64"),
    LAYER_INITIALIZER(embeddings_initializer, INIT_RANDOM_UNIFORM, "how the table starts"),
    LAYER_FIXED("mask_zero", "false", "every token takes part"),
};

/* Ids come from the data: a layer between would make other numbers of them. */
static int check_place(struct decoding *d, const struct layer_draft *before, int index,
                       const struct where *at)
{
    for (int i = 0; i < index; i++) {
        enum layer_type t = before[i].layer.type;
        if (t == LAYER_FLATTEN || t == LAYER_RESHAPE)
            continue;
        field_fault(d, at, "invalid", "Put the embedding first.",
                    "An embedding takes token ids from the data, so only reshape and flatten may "
                    "stand before it, but layer %d is %s.",
                    i, layer_type_name(t));
        return -1;
    }
    return 0;
}

static int embedding_infer(struct decoding *d, struct layer_draft *draft,
                           const struct layer_draft *before, int index, const struct where *at)
{
    struct layer *l = &draft->layer;
    char text[160];
    if (check_place(d, before, index, at) < 0)
        return -1;
    if (l->in.dims == SHAPE_MAX_DIMS) {
        field_fault(d, at, "shape_mismatch", "Put a flatten or reshape layer before it.",
                    "An embedding adds a dimension, but %s has %d already, the most there can be.",
                    shape_format(&l->in, text), SHAPE_MAX_DIMS);
        return -1;
    }
    l->out = l->in;
    l->out.size[l->out.dims++] = l->units;
    if (!shape_valid(&l->out)) {
        field_fault(d, FIELD_WHERE(at, "output_dim"), "too_large", "Use a smaller output_dim.",
                    "The output %s would have more than %lld elements.",
                    shape_format(&l->out, text), (long long)SHAPE_MAX_ELEMENTS);
        return -1;
    }
    struct shape table = {.dims = 2, .size = {l->vocabulary, l->units}}; /* at most 2^51 elements */
    layer_add_tensor(l, "embeddings", table, draft->embeddings_initializer);
    if (l->parameters <= MODEL_MAX_PARAMETERS)
        return 0;
    snprintf(text, sizeof text, "With %lld tokens, up to %lld fit.", (long long)l->vocabulary,
             (long long)(MODEL_MAX_PARAMETERS / l->vocabulary));
    return layer_parameters_fault(d, l, FIELD_WHERE(at, "output_dim"), text);
}

static void embedding_cost(struct layer *l, int propagates)
{
    (void)propagates;
    layer_add_flops(l, 1, l->frozen ? 0 : 1);
    l->activation_bytes = shape_elements(&l->out) * 4;
}

const struct layer_class layer_class_embedding = {
    .object = OBJECT("an embedding layer", embedding_fields, layer_objects),
    .infer = embedding_infer,
    .cost = embedding_cost,
};
