/* comm_parts.h: what transports share: the measured front of a group, and sums. */
#ifndef TRAINYARD_TRAINER_COMM_PARTS_H
#define TRAINYARD_TRAINER_COMM_PARTS_H

#include "trainer/comm.h"

/* Puts the front before `transport`: verbs that count progress, answer what needs no peer (a group
 * of one, nothing to move), measure, and refuse what no transport can do. */
void comm_front(struct comm *c, const struct comm_verbs *transport, enum comm_family family);

enum comm_verb {
    VERB_NONE,
    VERB_ALL_REDUCE,
    VERB_REDUCE_SCATTER,
    VERB_ALL_GATHER,
    VERB_BROADCAST,
    VERB_EXCHANGE,
    VERB_BARRIER,
    VERB_SEND
};
const char *comm_verb_name(uint32_t verb); /* "all_reduce"; "?" where there is none */

/* ERR_INTERNAL: world rank `theirs_rank` has made another call than this one; `who` names it. */
int comm_say_apart(const struct comm *c, const char *who, const struct comm_call *theirs,
                   struct err *e);

/* out[n] = the sum of in[0..count) in the tree of comm.h. `out` may be one of the inputs. COMM_F32
 * or COMM_F64. */
void comm_sum(enum comm_type type, size_t n, int count, const void *const *in, void *out);

/* settle() of transports that are done when they return. */
int comm_settled(struct comm *c, uint64_t call, struct err *e);

#endif
