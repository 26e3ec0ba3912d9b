/* device.cu: opening and closing the GPU, waiting for it, and what became of its calls. */
#include "trainer/cuda/device_parts.h"

#include <sched.h>
#include <time.h>

#include "trainer/cuda/gemm_plan.h"
#include "trainer/cuda/tape.h"

struct device_state device;

/* ---- what became of it ---- */

void device_try(struct err *e)
{
    e->code = 0;
    device.trial = e;
}

void device_tried(void)
{
    device.trial = NULL;
}

void device_fail(const struct err *why)
{
    struct err *to = device.trial ? device.trial : &device.failure;
    if (!to->code)
        *to = *why;
}

int device_failed(void)
{
    return device.failure.code != 0;
}

static int is_well(void)
{
    return !device_failed() && !(device.trial && device.trial->code);
}

/* What was asked wrongly is ours; the rest is the machine's. */
static int code_of(cudaError_t r)
{
    switch (r) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorAssert: return ERR_INTERNAL;
    case cudaErrorMemoryAllocation: return ERR_NO_MEMORY;
    default: return ERR_IO;
    }
}

/* What the error means where its name does not say it. */
static const char *meaning_of(cudaError_t r)
{
    switch (r) {
    case cudaErrorIllegalAddress: return "a kernel went outside its memory";
    case cudaErrorECCUncorrectable:
        return "its memory lost bits that it could not restore; the GPU must be reset";
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction: return "a kernel or the GPU itself is broken";
    case cudaErrorLaunchTimeout: return "a kernel ran longer than the display's driver allows";
    case cudaErrorLaunchFailure: return "a kernel stopped; nvidia-smi and dmesg may say why";
    case cudaErrorMemoryAllocation: return "the GPU's memory is full";
    case cudaErrorNoKernelImageForDevice:
        return "this program was not built for such a GPU (make CUDA_ARCHS=...)";
    default: return NULL;
    }
}

int device_ok(cudaError_t r, const char *what)
{
    if (r == cudaSuccess)
        return is_well();
    cudaGetLastError(); /* a failed launch would be told again by the next call */
    const char *names = tape_issued_names(), *meaning = meaning_of(r);
    struct err e = {};
    err_set(&e, code_of(r), "The GPU %s (%s) could not %s: %s%s%s (%s).%s%s%s", device.traits.name,
            device.traits.uuid, what, cudaGetErrorString(r), meaning ? ": " : "",
            meaning ? meaning : "", cudaGetErrorName(r), *names ? " It was last given " : "", names,
            *names ? "." : "");
    device_fail(&e);
    return 0;
}

int device_ok_blas(cublasStatus_t r, const char *what)
{
    if (r == CUBLAS_STATUS_SUCCESS)
        return is_well();
    struct err e = {};
    err_set(&e, r == CUBLAS_STATUS_INVALID_VALUE ? ERR_INTERNAL : ERR_IO,
            "cuBLAS on the GPU %s (%s) could not %s: %s (%s).", device.traits.name,
            device.traits.uuid, what, cublasLtGetStatusString(r), cublasLtGetStatusName(r));
    device_fail(&e);
    return 0;
}

void device_issue(void)
{
    tape_issue();
    for (int i = 0; i < device.fetch_count && !device_failed(); i++) {
        const struct device_fetch *f = &device.fetches[i];
        device.is_asked = 1;
        device_ok(
            cudaMemcpyAsync(f->host, f->from, f->bytes, cudaMemcpyDeviceToHost, device.compute),
            "copy to the host");
    }
    device.fetch_count = 0;
}

int device_settle(struct err *e)
{
    device_issue();
    if (device.is_asked)
        device_wait_stream(device.compute);
    if (!device_failed())
        return 0;
    return err_set(e, device.failure.code, "%s", device.failure.text);
}

int device_finish(struct err *e)
{
    if (device.uploads_unknown)
        device_wait_stream(device.beside);
    device.uploads_unknown = 0;
    return device_settle(e);
}

/* ---- waiting ---- */

/* Work that is nearly done is worth a processor; a dead peer's is not. */
static void pause_for(int looks)
{
    if (looks < 256)
        return;
    if (looks < 1024) {
        sched_yield();
        return;
    }
    struct timespec t = {0, 100000};
    nanosleep(&t, NULL);
}

static int is_hopeless(int looks)
{
    struct err e = {};
    if (!device.poll || looks % 64 || device.poll(device.poll_context, &e) >= 0)
        return 0;
    device_fail(&e);
    return 1;
}

int64_t device_waits(void)
{
    return device.waits;
}

void device_wait(cudaEvent_t done)
{
    device.waits++;
    for (int looks = 0; !device_failed(); looks += looks < 1024 ? 1 : 64) {
        cudaError_t r = cudaEventQuery(done);
        if (r == cudaSuccess)
            return;
        if (r != cudaErrorNotReady) {
            device_ok(r, "finish its work");
            return;
        }
        cudaGetLastError(); /* which remembers that answer, too, and a library may ask */
        if (is_hopeless(looks))
            return;
        pause_for(looks);
        looks = looks < 1 << 20 ? looks : 1024;
    }
}

void device_wait_stream(cudaStream_t s)
{
    if (!is_well() || !device_ok(cudaEventRecord(device.ready, s), "record an event"))
        return;
    device_wait(device.ready);
    if (!device_failed() && s == device.compute) {
        device.is_asked = 0;
        tape_issued_well();
    }
}

void device_watch(device_poll *poll, void *context)
{
    device.poll = poll;
    device.poll_context = context;
}

cudaStream_t device_stream(void)
{
    tape_issue();
    device.is_asked = 1;
    return device.compute;
}

/* ---- what it is ---- */

const struct device_traits *device_traits(void)
{
    return &device.traits;
}

const struct ops_options *device_options(void)
{
    return &device.options;
}

cublasLtHandle_t device_blas(void)
{
    return device.blas;
}

/* ---- opening and closing ---- */

static int make_events(void)
{
    cudaEvent_t *all[] = {&device.ready, &device.joined, &device.uploaded, &device.staging[0].done,
                          &device.staging[1].done};
    for (cudaEvent_t *event : all)
        if (!device_ok(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "make an event"))
            return 0;
    return 1;
}

static int make_streams(void)
{
    return device_ok(cudaStreamCreateWithFlags(&device.compute, cudaStreamNonBlocking),
                     "make a stream") &&
           device_ok(cudaStreamCreateWithFlags(&device.beside, cudaStreamNonBlocking),
                     "make a stream") &&
           make_events() && device_ok_blas(cublasLtCreate(&device.blas), "begin");
}

int device_open(const struct ops_options *o, struct err *e)
{
    if (device.is_open)
        BUG("the device is open already");
    device = device_state{};
    device.is_open = 1;
    device.options = *o;
    int r = device_take(e);
    if (!r && !make_streams())
        r = err_set(e, device.failure.code, "%s", device.failure.text);
    if (!r)
        r = device_memory_open(e);
    if (r)
        device_close();
    return r;
}

static void destroy(void)
{
    for (cudaEvent_t event : {device.ready, device.joined, device.uploaded, device.staging[0].done,
                              device.staging[1].done})
        if (event)
            cudaEventDestroy(event);
    for (cudaStream_t s : {device.compute, device.beside})
        if (s)
            cudaStreamDestroy(s);
    if (device.blas)
        cublasLtDestroy(device.blas);
}

/* After a failure a kernel may be waiting for a peer that is gone, and whoever frees memory or a
 * stream would wait with it; the process's end gives everything back. */
void device_close(void)
{
    if (!device.is_open)
        return;
    if (!device_failed())
        device_finish(NULL);
    tape_close();
    gemm_plan_forget();
    device_memory_close();
    if (!device_failed())
        destroy();
    device = device_state{};
}
