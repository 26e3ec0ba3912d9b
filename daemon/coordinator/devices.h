/* devices.h: what follows from what a node says of its devices: events, attempts that are stopped,
 * and devices that are drained since they fail too often. */
#ifndef TRAINYARD_COORDINATOR_DEVICES_H
#define TRAINYARD_COORDINATOR_DEVICES_H

#include "daemon/coordinator/coordinator.h"

#define DEVICE_FLAPS   3                       /* failures within so long, */
#define DEVICE_FLAP_US (24 * 3600 * 1000000LL) /* and it is drained */

/* Events of what becomes of a device: so many at once, then one each so long, which says how often
 * it has changed meanwhile. */
#define DEVICE_EVENTS   10
#define DEVICE_EVENT_US (360 * 1000000LL)

/* After each sync that was applied: the list may have changed, or time have passed for what it
 * lacks. Before its attempts are looked at: an end that a device caused is judged as such. */
int devices_follow(struct service *c, struct node *n, struct err *e);

/* A node as it was loaded: its drains, and what events have told of its devices. */
int devices_load(struct service *c, struct node *n, struct err *e);

/* Writes the drain (of "": the node itself) and an event; at once in memory. */
int devices_drain(struct service *c, struct node *n, const struct drain_row *r, struct err *e);
int devices_undrain(struct service *c, struct node *n, const char *device, const char *by,
                    struct err *e);

#endif
