/* resident.h: what a rank really takes of the node's memory, as the kernel counts it. */
#ifndef TRAINYARD_TRAINER_RESIDENT_H
#define TRAINYARD_TRAINER_RESIDENT_H

#include <stdint.h>

/* Bytes of this process's anonymous and shared memory that are resident; a page that several
 * processes have counts in parts (Pss of /proc/self/smaps_rollup, proc(5)). -1: the kernel does not
 * tell. */
int64_t resident_bytes(void);

#endif
