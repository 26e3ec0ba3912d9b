/* comm_parts.h: what transports share: the measured front of a group, and sums. */
#ifndef TRAINYARD_TRAINER_COMM_PARTS_H
#define TRAINYARD_TRAINER_COMM_PARTS_H

#include "trainer/comm.h"

/* Puts the front before `transport`: verbs that count progress, answer what needs no peer (a group
 * of one, nothing to move), measure, and refuse what no transport can do. */
void comm_front(struct comm *c, const struct comm_verbs *transport, enum comm_family family);

/* out[n] = the sum of in[0..count) in the tree of comm.h. `out` may be one of the inputs. COMM_F32
 * or COMM_F64. */
void comm_sum(enum comm_type type, size_t n, int count, const void *const *in, void *out);

#endif
