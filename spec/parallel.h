/* parallel.h: the fields that a strategy as asked for and a plan have alike (struct parallel).
 *
 * In a mesh of a job document they stand beside the sizes, in a plan under "parallel".
 */
#ifndef TRAINYARD_SPEC_PARALLEL_H
#define TRAINYARD_SPEC_PARALLEL_H

#include "spec/field.h"
#include "spec/names.h"
#include "spec/plan.h"

#define GRAINS_MAX      64
#define LOCAL_STEPS_MAX 1000000

/* Rows of a table of `type`; `path` leads from there to the struct parallel: nothing, or a member
 * and a dot. */
#define PARALLEL_FIELDS(type, path)                                                                \
    {.name = "reproducible",                                                                       \
     .also = "deterministic",                                                                      \
     .kind = FIELD_BOOL,                                                                           \
     FIELD_AT(type, path reproducible),                                                            \
     .help = "whether all meshes give the same bits",                                              \
     .example = "true"},                                                                           \
        {.name = "grains",                                                                         \
         .kind = FIELD_INT,                                                                        \
         FIELD_AT(type, path grains),                                                              \
         .fallback = 8,                                                                            \
         .min = 1,                                                                                 \
         .max = GRAINS_MAX,                                                                        \
         .help = "how many parts a reproducible batch is always cut into",                         \
         .example = "8"},                                                                          \
        {.name = "sync",                                                                           \
         .also = "synchronisation synchronization",                                                \
         .kind = FIELD_ENUM,                                                                       \
         FIELD_AT(type, path sync),                                                                \
         .fallback = SYNC_EVERY_STEP,                                                              \
         .words = &sync_words,                                                                     \
         .help = "when data ranks agree",                                                          \
         .example = "\"every_step\""},                                                             \
        {.name = "local_steps",                                                                    \
         .also = "sync_every inner_steps",                                                         \
         .kind = FIELD_INT,                                                                        \
         FIELD_AT(type, path local_steps),                                                         \
         .fallback = 8,                                                                            \
         .min = 1,                                                                                 \
         .max = LOCAL_STEPS_MAX,                                                                   \
         .help = "local_sgd: the steps between two means of the weights",                          \
         .example = "8"},                                                                          \
        {.name = "outer_learning_rate",                                                            \
         .also = "outer_lr",                                                                       \
         .kind = FIELD_NUMBER,                                                                     \
         FIELD_AT(type, path outer_learning_rate),                                                 \
         .fallback = 1,                                                                            \
         .min = 0,                                                                                 \
         .above_min = 1,                                                                           \
         .max = 1000,                                                                              \
         .help = "local_sgd: how far the weights go towards their mean",                           \
         .example = "1.0"},                                                                        \
        {.name = "outer_momentum",                                                                 \
         .kind = FIELD_NUMBER,                                                                     \
         FIELD_AT(type, path outer_momentum),                                                      \
         .min = 0,                                                                                 \
         .max = 1,                                                                                 \
         .below_max = 1,                                                                           \
         .help = "local_sgd: Nesterov momentum of the steps towards the mean",                     \
         .example = "0.9"},                                                                        \
        {.name = "codec",                                                                          \
         .also = "compression",                                                                    \
         .kind = FIELD_ENUM,                                                                       \
         FIELD_AT(type, path codec),                                                               \
         .fallback = CODEC_NONE,                                                                   \
         .words = &codec_words,                                                                    \
         .help = "how gradients travel between data ranks",                                        \
         .example = "\"bf16\""},                                                                   \
        {.name = "top_k",                                                                          \
         .also = "topk density",                                                                   \
         .kind = FIELD_NUMBER,                                                                     \
         FIELD_AT(type, path top_k),                                                               \
         .fallback = 0.01,                                                                         \
         .min = 0,                                                                                 \
         .above_min = 1,                                                                           \
         .max = 1,                                                                                 \
         .help = "the share of a gradient's elements that the codec top_k sends",                  \
         .example = "0.01"},                                                                       \
        {.name = "shares",                                                                         \
         .kind = FIELD_ENUM,                                                                       \
         FIELD_AT(type, path shares),                                                              \
         .fallback = SHARES_EVEN,                                                                  \
         .words = &shares_words,                                                                   \
         .help = "how a batch is cut over the data ranks",                                         \
         .example = "\"even\""},                                                                   \
        {.name = "rebalance",                                                                      \
         .kind = FIELD_BOOL,                                                                       \
         FIELD_AT(type, path rebalance),                                                           \
         .help = "whether layers move between stages when measured times ask for it",              \
         .example = "true"},                                                                       \
    {                                                                                              \
        .name = "overlap", .kind = FIELD_BOOL, FIELD_AT(type, path overlap),                       \
        .help = "whether gradients are summed beside backward, by a thread", .example = "true"     \
    }

/* base: a struct parallel. Its defaults are those of a request that says nothing. */
extern const struct object parallel_object;

#endif
