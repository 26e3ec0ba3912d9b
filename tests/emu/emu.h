/* emu.h: what the emulated runtime offers to the libraries that stand on it (cuBLAS, NCCL) and to
 * tests: work of their own on its streams.
 *
 * The device is one thread, started at the first work. It takes operations from the heads of the
 * streams whose turn it can be, one at a time, in TRAINYARD_EMU_ORDER's order. Operations run on it
 * alone; device pointers have to be translated there (emu_translate), when they run and not before.
 */
#ifndef TRAINYARD_EMU_EMU_H
#define TRAINYARD_EMU_EMU_H

#include <functional>

#include "cuda_runtime.h"

enum emu_progress {
    EMU_DONE,    /* the operation is over */
    EMU_MORE,    /* it went on, and has more to do: other streams may take a turn */
    EMU_NOT_YET, /* it waits for something outside; ask again */
};
typedef std::function<emu_progress()> emu_step;

/* Queues an operation; `name` for messages. Captured streams get a node instead, which each launch
 * of the graph runs as a fresh copy of `step`: state that it holds by value begins anew. Returns
 * what a launch would: sticky errors, cudaErrorInvalidResourceHandle. */
cudaError_t emu_enqueue(cudaStream_t stream, const char *name, emu_step step);

/* On the device thread: the device's own mapping of [p, p + bytes), which lies in one allocation;
 * else aborts with a sentence. NULL for NULL and 0 bytes. */
void *emu_translate_bytes(const void *p, size_t bytes);
template <class T> T *emu_translate(T *p, size_t bytes)
{
    return static_cast<T *>(emu_translate_bytes(p, bytes));
}
int emu_is_device(const void *p); /* within the window of device pointers */

/* From the device thread: the device is broken, as after an illegal access; every later call of the
 * runtime says so. */
void emu_break(cudaError_t why);
/* What the device is broken by, or cudaSuccess. */
cudaError_t emu_broken(void);

/* Whether TRAINYARD_EMU_FAIL wants this call of `kind` to fail, and with what. */
int emu_injected(const char *kind, cudaError_t *ret_error);

int emu_stream_device(cudaStream_t stream);
int emu_is_capturing(cudaStream_t stream);
/* "GPU-..." of a visible device, as in CUDA_VISIBLE_DEVICES; 48 bytes. */
void emu_device_uuid(int device, char *ret_uuid);

/* Ends the process with "emulated CUDA: " and a sentence. */
[[noreturn]] __attribute__((format(printf, 1, 2))) void emu_die(const char *format, ...);

#endif
