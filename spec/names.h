/* names.h: the names of the room's enums, both ways. */
#ifndef TRAINYARD_SPEC_NAMES_H
#define TRAINYARD_SPEC_NAMES_H

#include "spec/words.h"

extern const struct words layer_type_words;
extern const struct words activation_words;
extern const struct words initializer_words;
extern const struct words loss_words;
extern const struct words metric_words;
extern const struct words optimizer_words;
extern const struct words schedule_words; /* enum schedule_kind */
extern const struct words device_kind_words;
extern const struct words data_format_words;
extern const struct words strategy_words;
extern const struct words pipeline_schedule_words;
extern const struct words sync_words;
extern const struct words codec_words;
extern const struct words recompute_words;
extern const struct words shares_words;
extern const struct words storage_type_words;
extern const struct words compute_type_words;
extern const struct words token_type_words;
extern const struct words csv_missing_words;
extern const struct words monitor_words;
extern const struct words transport_words; /* launch.h */

#endif
