/* emu_kernel.cc: kernels by their addresses, the checks of a launch, and what becomes of arguments:
 * device pointers among them are translated when the kernel runs, a host pointer ends the process.
 */
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "emu_internal.h"

/* Arrays that a kernel declares count too. Here they are the program's and nobody knows how many
 * bytes a kernel has of them: so much is taken for them. */
#define SHARED_DECLARED ((size_t)1 << 10)
#define SHARED_DEFAULT  (((size_t)48 << 10) - SHARED_DECLARED)
#define SHARED_MOST     (((size_t)227 << 10) - SHARED_DECLARED)

struct known {
    emu_kernel kernel;
    size_t shared; /* dynamic shared memory that a launch may ask for */
};

static struct {
    std::mutex lock;
    std::unordered_map<const void *, known> kernels;
} &k = *new std::remove_reference_t<decltype(k)>();

void emu_register(const void *address, const struct emu_kernel *kernel)
{
    std::lock_guard<std::mutex> g(k.lock);
    auto i = k.kernels.find(address);
    if (i == k.kernels.end())
        k.kernels[address] = {*kernel, SHARED_DEFAULT};
    else if (!i->second.kernel.name)
        i->second.kernel.name = kernel->name;
}

static known *find(const void *function)
{
    std::lock_guard<std::mutex> g(k.lock);
    auto i = k.kernels.find(function);
    return i == k.kernels.end() ? NULL : &i->second;
}

const struct emu_kernel *emu_find(const void *function)
{
    known *x = find(function);
    return x ? &x->kernel : NULL;
}

/* ---- a launch ---- */

static cudaError_t check_launch(const known *x, dim3 grid, dim3 block, size_t shared)
{
    if (!x)
        return cudaErrorInvalidDeviceFunction;
    int grid_fits = grid.x >= 1 && grid.x <= 0x7fffffffU && grid.y >= 1 && grid.y <= 65535 &&
                    grid.z >= 1 && grid.z <= 65535;
    int block_fits = block.x >= 1 && block.x <= 1024 && block.y >= 1 && block.y <= 1024 &&
                     block.z >= 1 && block.z <= 64 && block.x * block.y * block.z <= 1024;
    if (!grid_fits || !block_fits)
        return cudaErrorInvalidConfiguration;
    return shared > x->shared ? cudaErrorInvalidValue : cudaSuccess;
}

static void copy_arguments(emu_launch *l, void *const *arguments)
{
    size_t words = 0;
    const emu_kernel *f = l->kernel;
    for (int i = 0; i < f->count; i++)
        words += (f->sizes[i] + 15) / 16 * 2;
    l->storage.resize(words + 2);
    uintptr_t at = (reinterpret_cast<uintptr_t>(l->storage.data()) + 15) / 16 * 16;
    for (int i = 0; i < f->count; i++, at += (f->sizes[i - 1] + 15) / 16 * 16) {
        l->arguments.push_back(reinterpret_cast<void *>(at));
        memcpy(l->arguments.back(), arguments[i], f->sizes[i]);
    }
}

cudaError_t emu_prepare(const void *function, dim3 grid, dim3 block, void *const *arguments,
                        size_t shared, std::shared_ptr<const emu_launch> *ret_launch)
{
    known *x = find(function);
    cudaError_t r = check_launch(x, grid, block, shared);
    if (r == cudaSuccess && x->kernel.count && !arguments)
        r = cudaErrorInvalidValue;
    if (r != cudaSuccess)
        return r;
    auto l = std::make_shared<emu_launch>();
    l->function = function;
    l->kernel = &x->kernel;
    l->grid = grid;
    l->block = block;
    l->shared = shared;
    copy_arguments(l.get(), arguments);
    l->kernel->clear(l->arguments.data());
    *ret_launch = l;
    return cudaSuccess;
}

/* ---- its arguments ---- */

[[noreturn]] static void refuse(const emu_launch &l, int argument, void *p)
{
    emu_die("argument %d of kernel %s is %p, which is %s and no device pointer", argument,
            l.kernel->name ? l.kernel->name : "(without a name)", p,
            emu_is_pinned(p, 0) ? "pinned host memory" : "host memory");
}

/* A word of a struct may be a number that looks like an address; host memory is what is mapped. */
static int is_host_address(uintptr_t a)
{
    return a >= (uintptr_t)1 << 32 && a < (uintptr_t)1 << 47 &&
           (emu_is_pinned(reinterpret_cast<void *>(a), 0) || (a >> 40 >= 0x55 && emu_is_mapped(a)));
}

/* A struct's word may be a number, or one and padding, that looks like an address. */
static void translate_word(const emu_launch &l, int argument, void *at, int is_pointer)
{
    void *p;
    memcpy(&p, at, sizeof p);
    if (emu_is_device(p) && !is_pointer && !emu_is_whole(p, 0))
        return;
    if (emu_is_device(p))
        p = emu_translate_argument(p, l.kernel->name ? l.kernel->name : "(without a name)",
                                   argument);
    else if (is_pointer ? p != NULL : is_host_address(reinterpret_cast<uintptr_t>(p)))
        refuse(l, argument, p);
    memcpy(at, &p, sizeof p);
}

static void translate(const emu_launch &l, void *const *arguments)
{
    for (int i = 0; i < l.kernel->count; i++) {
        unsigned char *at = static_cast<unsigned char *>(arguments[i]);
        if (l.kernel->kinds[i] == EMU_NUMBER)
            continue;
        for (size_t o = 0; o + sizeof(void *) <= l.kernel->sizes[i]; o += sizeof(void *))
            translate_word(l, i, at + o, l.kernel->kinds[i] == EMU_POINTER);
    }
}

static void run(const emu_launch &l)
{
    cudaError_t r;
    if (emu_injected("KERNEL", &r)) {
        emu_break(r);
        return;
    }
    emu_launch mine;
    mine.kernel = l.kernel;
    copy_arguments(&mine, l.arguments.data());
    translate(l, mine.arguments.data());
    emu_run_kernel(l, mine.arguments.data());
}

emu_body emu_launch_body(const std::shared_ptr<const emu_launch> &l)
{
    std::string name =
        std::string("kernel ") + (l->kernel->name ? l->kernel->name : "(without a name)");
    return {cudaGraphNodeTypeKernel, name,
            [l] {
                run(*l);
                return EMU_DONE;
            },
            l};
}

/* ---- the calls ---- */

extern "C" cudaError_t cudaLaunchKernel(const void *func, dim3 gridDim_, dim3 blockDim_,
                                        void **args, size_t sharedMem, cudaStream_t stream)
{
    std::shared_ptr<const emu_launch> l;
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (r == cudaSuccess && emu_injected("LAUNCH", &r))
        return emu_result(r);
    if (r == cudaSuccess)
        r = emu_prepare(func, gridDim_, blockDim_, args, sharedMem, &l);
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && (!s || s->device != emu_current_device()))
        r = cudaErrorInvalidResourceHandle;
    return emu_result(r == cudaSuccess ? emu_submit(s, emu_launch_body(l), NULL) : r);
}

extern "C" cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr,
                                            int value)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (r != cudaSuccess)
        return emu_result(r);
    known *x = find(func);
    if (!x)
        return emu_result(cudaErrorInvalidDeviceFunction);
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout)
        return emu_result(value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<size_t>(value) > SHARED_MOST)
        return emu_result(cudaErrorInvalidValue);
    x->shared =
        static_cast<size_t>(value) < SHARED_DEFAULT ? SHARED_DEFAULT : static_cast<size_t>(value);
    return cudaSuccess;
}

extern "C" cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    known *x = find(func);
    if (r != cudaSuccess || !x || !attr)
        return emu_result(r != cudaSuccess ? r
                          : x              ? cudaErrorInvalidValue
                                           : cudaErrorInvalidDeviceFunction);
    *attr = {};
    attr->maxThreadsPerBlock = 1024;
    attr->numRegs = 32;
    attr->ptxVersion = attr->binaryVersion = 90;
    attr->maxDynamicSharedSizeBytes = static_cast<int>(x->shared);
    return cudaSuccess;
}

extern "C" cudaError_t cudaFuncGetName(const char **name, const void *func)
{
    known *x = find(func);
    if (!x || !name)
        return emu_result(x ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    *name = x->kernel.name ? x->kernel.name : "";
    return cudaSuccess;
}

extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks,
                                                                     const void *func,
                                                                     int blockSize,
                                                                     size_t dynamicSMemSize)
{
    known *x = find(func);
    if (!x)
        return emu_result(cudaErrorInvalidDeviceFunction);
    if (!numBlocks || blockSize < 1 || blockSize > 1024)
        return emu_result(cudaErrorInvalidValue);
    size_t by_threads = 2048 / static_cast<size_t>((blockSize + 31) / 32 * 32);
    size_t by_memory = ((size_t)228 << 10) / (dynamicSMemSize + 1024);
    size_t n = by_threads < by_memory ? by_threads : by_memory;
    *numBlocks = static_cast<int>(dynamicSMemSize > x->shared ? 0 : n < 32 ? n : 32);
    return cudaSuccess;
}
