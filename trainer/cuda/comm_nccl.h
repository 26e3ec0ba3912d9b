/* comm_nccl.h: the world through which memory of GPUs travels: NCCL for that, and under it the
 * transport between the hosts (shared memory or TCP), which stays what ranks meet, agree and learn
 * of each other's end through.
 *
 * What ranks have in common is set up over the hosts' world: versions of NCCL, who has which GPU,
 * and the unique id, which so comes from a rank that has proved itself. Each mesh dimension has a
 * communicator of its own, split from the world's. All are non-blocking: after each call they are
 * asked until they are ready, and meanwhile the hosts' world whether all ranks live.
 *
 * Streams. Collectives take their place on the compute stream. Those of COMM_DATA go to a stream of
 * their own, which waits for what was recorded before the call; settle() has the compute stream
 * wait for them.
 *
 * Messages. NCCL's send ends when its receive has come, and calls of one communicator wait for one
 * another. So each pair of neighbours has for each direction a communicator, a stream and two
 * buffers on both sides: a sender's compute stream goes on once the message is copied into a
 * buffer, and waits for one only where two messages have not been received; a receiver's buffers
 * take messages in as soon as its host has asked for them. In a schedule that ends with at most two
 * messages under way these streams wait for nobody who waits for them.
 *
 * Sums have NCCL's order, which is the same in every run of the same ranks on the same machines
 * (additions in the switch, NVLS, which have none, are turned off unless the environment says
 * NCCL_NVLS_ENABLE). With `is_reproducible` each part of a sum is sent to its owner, added up there
 * in the tree of comm.h, and gathered: the bits of shared memory.
 *
 * The end. While the host waits for the device (device_watch) NCCL is asked for errors, the hosts'
 * world for dead peers, and the clock: a rank whose GPU is waiting for others is timed out when
 * nothing has moved in the gang for the deadline; one whose GPU computes says that it does. Then
 * every communicator is aborted, which ends the kernels that wait, and the device has failed with
 * the peer's name. An abort that does not return is left behind after ABORT_MS.
 */
#ifndef TRAINYARD_TRAINER_CUDA_COMM_NCCL_H
#define TRAINYARD_TRAINER_CUDA_COMM_NCCL_H

#ifdef __cplusplus
#include "trainer/cuda/trainer.h"
extern "C" {
#else
#include "trainer/comm.h"
#endif

/* backend.comm(): the device is open, and closed after the world. */
int comm_nccl_open(struct comm *hosts, const struct comm_options *o, struct comm **ret,
                   struct err *e);
size_t comm_nccl_foretold(const struct comm_options *o); /* backend.comm_bytes() */

/* What NCCL takes for itself, of all communicators of a rank: an allowance. */
#define COMM_NCCL_OWN ((size_t)512 << 20)

#ifdef __cplusplus
}
#endif

#endif
