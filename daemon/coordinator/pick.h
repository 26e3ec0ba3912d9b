/* pick.h: which devices of a node a job gets. Pure. */
#ifndef TRAINYARD_COORDINATOR_PICK_H
#define TRAINYARD_COORDINATOR_PICK_H

#include "daemon/coordinator/node.h"
#include "daemon/coordinator/queue.h"

/* Of nodes with more open devices of a model, links are not looked at: the search takes the cube of
 * their number. */
#define PICK_MAX_LINKED 64

/* How good a choice is: the lowest comes first. */
enum pick {
    PICK_LINKED, /* one model, and all are reached over links */
    PICK_ONE_MODEL,
    PICK_MIXED, /* several models: there are not enough of one */
};

/* Fills `devices` with need->devices open ones of `n`, in the order of the ranks: linked ones stand
 * side by side. need->kind is one kind, and there are as many. One device, or CPUs: PICK_LINKED. */
enum pick pick_devices(struct node *n, const struct need *need, struct device **devices);

/* What is worth telling of a choice that was made, as "; its GPUs are linked by NVLink": into
 * `out`, "" where there is nothing. */
#define PICK_TEXT_SIZE 320
const char *pick_say(struct device *const *devices, int64_t count, char out[PICK_TEXT_SIZE]);

#endif
