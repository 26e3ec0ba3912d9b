/* tape.h: what is asked of the compute stream, recorded first and issued in one go.
 *
 * A step asks for the same kernels again and again; only a few arguments change (learning rate,
 * dropout's counter). So verbs do not launch, they record. When somebody waits, or a collective
 * needs the stream, the tape is issued: the first time as it is; when the same sequence has come
 * before, as a CUDA graph, whose kernels' changed arguments are set first. Two recordings are the
 * same if their kernels, grids and library calls are; arguments of kernels may differ. Nothing
 * above knows of it, and with ops_options.is_plain there are no graphs.
 */
#ifndef TRAINYARD_TRAINER_CUDA_TAPE_H
#define TRAINYARD_TRAINER_CUDA_TAPE_H

#include "trainer/cuda/device.h"

/* Of the 48 KiB that a block has without asking 1 KiB is left for arrays of a kernel's own. */
#define TAPE_SHARED    ((size_t)47 << 10)
#define TAPE_ARGUMENTS 24

/* Of one kernel launch; of no block at all where a side of the grid is 0. `arguments` [count] point
 * to values of `sizes`, which are copied. */
struct tape_kernel {
    const void *function;
    const char *name;
    dim3 grid, block;
    size_t shared; /* bytes of dynamic shared memory, at most TAPE_SHARED */
    int count;     /* at most TAPE_ARGUMENTS */
    const void *const *arguments;
    const size_t *sizes;
};
void tape_kernel(const struct tape_kernel *k);

/* A call of a library that issues to the stream it is given; `arguments` are copied. Issued again
 * with the same bytes it may be replayed instead. Returns 0, or negative after device_fail(). */
typedef int tape_function(cudaStream_t s, const void *arguments);
void tape_call_named(const char *name, tape_function *f, const void *arguments, size_t bytes);
#define tape_call(f, arguments, bytes) tape_call_named(#f, f, arguments, bytes)

void tape_copy(void *to, const void *from, size_t bytes); /* within the device */
void tape_zero(void *p, size_t bytes);

void tape_issue(void); /* all of it, to the compute stream */
/* Stays the same as long as nothing is recorded and nobody issues: so long the device's memory is
 * what it was. */
uint64_t tape_place(void);
void tape_close(void); /* forgets graphs too */

/* What became of the tapes so far. */
struct tape_counts {
    int64_t direct, replayed;           /* tapes issued so */
    int64_t captured, evicted, refused; /* graphs made, thrown away, not to be had */
};
struct tape_counts tape_counts(void);

/* Kernels take what they need by value; no struct larger than a few words. An emulated CUDA
 * (tests/) has to be told of each kernel's type before it can launch it by address. */
#ifndef CUDA_KERNEL_IS_KNOWN
#define CUDA_KERNEL_IS_KNOWN(kernel, name) ((void)0)
#endif

template <class... P>
void tape_launch_named(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                       std::type_identity_t<P>... a)
{
    CUDA_KERNEL_IS_KNOWN(kernel, name);
    const void *arguments[] = {&a...};
    static const size_t sizes[] = {sizeof(P)...};
    struct tape_kernel k = {reinterpret_cast<const void *>(kernel), name,      grid, block, shared,
                            static_cast<int>(sizeof...(P)),         arguments, sizes};
    tape_kernel(&k);
}
#define TAPE_LAUNCH(kernel, grid, block, shared, ...)                                              \
    tape_launch_named(#kernel, kernel, grid, block, shared, __VA_ARGS__)

#define TAPE_THREADS 256
/* Blocks of TAPE_THREADS for n elements that a kernel's threads walk through in strides of the
 * grid: never more than keep the device full; none for n 0. */
dim3 tape_grid(int64_t n);

/* ---- what kernels share ---- */

/* for (int64_t i = ...) over n elements by all threads of the grid. */
#define GRID_STRIDE(i, n)                                                                          \
    for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < (n);         \
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)

/* `name`: the block's dynamic shared memory, as an array of `type`. */
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                                                                 \
    extern __shared__ __align__(16) unsigned char cuda_dynamic_shared[];                           \
    type *name = reinterpret_cast<type *>(cuda_dynamic_shared)
#endif

#endif
