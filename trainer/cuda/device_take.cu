/* device_take.cu: which GPU this process has, or why it has none. */
#include "trainer/cuda/device_parts.h"

static const char *visible(void)
{
    const char *v = getenv("CUDA_VISIBLE_DEVICES");
    return v ? v : "";
}

/* "CUDA_VISIBLE_DEVICES is not set" */
static const char *visible_words(char to[160])
{
    const char *v = getenv("CUDA_VISIBLE_DEVICES");
    if (v)
        snprintf(to, 160, "CUDA_VISIBLE_DEVICES is \"%.100s\"", v);
    else
        snprintf(to, 160, "CUDA_VISIBLE_DEVICES is not set");
    return to;
}

/* "13.0" of 13000 */
static const char *version_words(int version, char to[16])
{
    snprintf(to, 16, "%d.%d", version / 1000 % 1000, version % 1000 / 10);
    return to;
}

static int say_driver(cudaError_t r, struct err *e)
{
    int driver = 0;
    char had[16], built[16];
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return err_set(e, ERR_IO,
                       "There is no NVIDIA driver here (%s): install one that knows CUDA %s, or "
                       "train on the CPU with \"device\": \"cpu\".",
                       cudaGetErrorString(r), version_words(CUDART_VERSION, built));
    return err_set(e, ERR_IO,
                   "The NVIDIA driver knows CUDA %s, and this program was built with CUDA %s (%s): "
                   "a driver of the same major version or later works.",
                   version_words(driver, had), version_words(CUDART_VERSION, built),
                   cudaGetErrorString(r));
}

static int say_none(cudaError_t r, struct err *e)
{
    char words[160];
    return err_set(e, ERR_IO,
                   "CUDA sees no GPU (%s; %s): nvidia-smi -L lists the UUIDs that "
                   "CUDA_VISIBLE_DEVICES may name.",
                   r == cudaSuccess ? "0 devices" : cudaGetErrorString(r), visible_words(words));
}

static int say_many(int count, struct err *e)
{
    char words[160];
    return err_set(e, ERR_INVALID,
                   "A rank trains on one GPU, and this process sees %d (%s): set "
                   "CUDA_VISIBLE_DEVICES to the UUID of one of them (nvidia-smi -L lists them).",
                   count, visible_words(words));
}

static int count_devices(struct err *e)
{
    int count = 0;
    cudaError_t r = cudaGetDeviceCount(&count);
    if (r != cudaSuccess)
        cudaGetLastError();
    switch (r) {
    case cudaSuccess: break;
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice: return say_driver(r, e);
    default: return say_none(r, e);
    }
    if (count == 0)
        return say_none(r, e);
    return count == 1 ? 0 : say_many(count, e);
}

static int say_refused(cudaError_t r, struct err *e)
{
    char words[160];
    cudaGetLastError();
    if (r == cudaErrorDevicesUnavailable)
        return err_set(e, ERR_IO,
                       "The GPU is taken by another process, or its compute mode lets none in "
                       "(nvidia-smi -q -d COMPUTE,PIDS says which; %s).",
                       visible_words(words));
    if (r == cudaErrorMemoryAllocation)
        return err_set(e, ERR_IO,
                       "The GPU has not even the memory to begin with: other processes hold it "
                       "(nvidia-smi lists them; %s).",
                       visible_words(words));
    return err_set(e, ERR_IO, "The GPU cannot be used: %s (%s; %s).", cudaGetErrorString(r),
                   cudaGetErrorName(r), visible_words(words));
}

/* As NVML and CUDA_VISIBLE_DEVICES write it. The runtime knows a slice of a GPU (MIG) by a UUID of
 * its own, and only the variable says that it is one. */
static void write_uuid(const cudaUUID_t *u, char *to, size_t size)
{
    const char *kind = strncmp(visible(), "MIG-", 4) == 0 ? "MIG" : "GPU";
    int n = snprintf(to, size, "%s-", kind);
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        n += snprintf(to + n, size - static_cast<size_t>(n), "%s%02x", dash,
                      static_cast<unsigned char>(u->bytes[i]));
    }
}

/* What has cuBLAS compute float32 in less than it is. */
static int check_environment(struct err *e)
{
    static const char *const names[] = {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"};
    for (const char *name : names) {
        const char *value = getenv(name);
        if (device.options.compute == COMPUTE_FLOAT32 && value && *value && strcmp(value, "0") != 0)
            return err_set(e, ERR_INVALID,
                           "%s is \"%.40s\" in this rank's environment, and the job computes in "
                           "float32: unset it, or ask for another precision (\"compute\": "
                           "\"tf32\").",
                           name, value);
    }
    return 0;
}

/* Streams beyond the connections between host and GPU (8, unless told otherwise) share them, and
 * wait for one another there: a kernel that waits for another rank would hold up the work that this
 * rank waits for. Read when the driver begins; what the environment says already stays. */
static void set_environment(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int device_take(struct err *e)
{
    int r = check_environment(e);
    set_environment();
    if (!r)
        r = count_devices(e);
    if (r)
        return r;
    cudaError_t c = cudaSetDevice(0);
    cudaDeviceProp p = {};
    if (c == cudaSuccess)
        c = cudaGetDeviceProperties(&p, 0);
    if (c != cudaSuccess)
        return say_refused(c, e);
    struct device_traits *t = &device.traits;
    snprintf(t->name, sizeof t->name, "%.127s", p.name);
    write_uuid(&p.uuid, t->uuid, sizeof t->uuid);
    snprintf(t->pci, sizeof t->pci, "%04x:%02x:%02x.0", static_cast<unsigned>(p.pciDomainID),
             static_cast<unsigned>(p.pciBusID), static_cast<unsigned>(p.pciDeviceID));
    t->multiprocessors = p.multiProcessorCount;
    t->major = p.major;
    t->minor = p.minor;
    t->memory = p.totalGlobalMem;
    return 0;
}
