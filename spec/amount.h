/* amount.h: durations and amounts of memory in a job document, as text or as a number. */
#ifndef TRAINYARD_SPEC_AMOUNT_H
#define TRAINYARD_SPEC_AMOUNT_H

#include <stdint.h>

#include "spec/field.h"

/* "2h" or a number of seconds, 1 s to ten years. `at->key` is the field's name; `hint` says what
 * else would do. Returns 0, or -1 and a fault. */
int decode_duration(struct decoding *d, const json_t *v, const struct where *at, const char *hint,
                    int64_t *ret);

/* "512MiB", "1.5 GiB" or a number of bytes, 1 MiB to 1 PiB. */
int decode_bytes(struct decoding *d, const json_t *v, const struct where *at, const char *hint,
                 int64_t *ret);

#endif
