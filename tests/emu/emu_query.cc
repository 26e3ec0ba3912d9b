/* emu_query.cc: what devices there are and what they say of themselves. CUDA_VISIBLE_DEVICES lists
 * them: any GPU-<uuid> or MIG-<uuid> is one, and so are the indices 0 to 15, whose UUIDs end in
 * their number; the first entry that is neither ends the list, as with CUDA. Without it there is
 * device 0.
 */
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emu_internal.h"

#define MULTIPROCESSORS 3

static int is_uuid(const std::string &s)
{
    static const char form[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    if (s.size() != 4 + strlen(form) || (s.compare(0, 4, "GPU-") && s.compare(0, 4, "MIG-")))
        return 0;
    for (size_t i = 0; form[i]; i++) {
        char c = s[4 + i];
        if (form[i] == '-' ? c != '-' : !isxdigit(static_cast<unsigned char>(c)))
            return 0;
    }
    return 1;
}

/* "" where an entry of the list is no device. */
static std::string read_device(const std::string &s)
{
    char uuid[48];
    if (is_uuid(s))
        return s;
    if (s.empty() || s.find_first_not_of("0123456789") != std::string::npos || atoi(s.c_str()) > 15)
        return "";
    snprintf(uuid, sizeof uuid, "GPU-00000000-0000-4000-8000-0000000000%02x", atoi(s.c_str()));
    return uuid;
}

static const std::vector<std::string> &devices(void)
{
    static const std::vector<std::string> &all = *[] {
        auto *r = new std::vector<std::string>();
        const char *list = getenv("CUDA_VISIBLE_DEVICES");
        std::string rest = list ? list : "0", one;
        for (int more = 1; more;) {
            size_t comma = rest.find(',');
            more = comma != std::string::npos;
            one = read_device(rest.substr(0, comma));
            rest = more ? rest.substr(comma + 1) : "";
            if (one.empty())
                break;
            r->push_back(one);
        }
        return r;
    }();
    return all;
}

cudaError_t emu_count_devices(int *ret_count)
{
    *ret_count = static_cast<int>(devices().size());
    return *ret_count ? cudaSuccess : cudaErrorNoDevice;
}

static cudaError_t find_device(int device)
{
    int n;
    if (emu.is_forked)
        return cudaErrorInitializationError;
    cudaError_t r = emu_count_devices(&n);
    return r == cudaSuccess && (device < 0 || device >= n) ? cudaErrorInvalidDevice : r;
}

void emu_device_uuid(int device, char *ret_uuid)
{
    snprintf(ret_uuid, 48, "%s", devices()[static_cast<size_t>(device)].c_str());
}

/* Where on the bus: its UUID decides, so that it is the same for all who see it (FNV-1a). */
static uint32_t place(int device)
{
    uint32_t h = 2166136261U;
    for (char c : devices()[static_cast<size_t>(device)])
        h = (h ^ static_cast<unsigned char>(tolower(static_cast<unsigned char>(c)))) * 16777619U;
    return h;
}
static int bus(int device)
{
    return static_cast<int>(place(device) >> 8 & 0xff);
}
static int slot(int device)
{
    return static_cast<int>(place(device) & 0x1f);
}

extern "C" cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t r;
    if (!count)
        return emu_result(cudaErrorInvalidValue);
    if (emu.is_forked)
        return emu_result(cudaErrorInitializationError);
    if (emu_injected("INIT", &r))
        return emu_result(r);
    return emu_result(emu_count_devices(count));
}

static void read_bytes(const std::string &uuid, char *to)
{
    int n = 0;
    for (size_t i = 4; i + 1 < uuid.size() && n < 16; i++) {
        if (uuid[i] == '-')
            continue;
        to[n++] = static_cast<char>(strtol(uuid.substr(i, 2).c_str(), NULL, 16));
        i++;
    }
}

static void fill(struct cudaDeviceProp *p, int device)
{
    static const int block[] = {1024, 1024, 64}, grid[] = {0x7fffffff, 65535, 65535};
    *p = {};
    snprintf(p->name, sizeof p->name, "Emulated GPU");
    read_bytes(devices()[static_cast<size_t>(device)], p->uuid.bytes);
    p->totalGlobalMem = emu_memory_size();
    p->sharedMemPerBlock = (size_t)48 << 10;
    p->sharedMemPerBlockOptin = (size_t)227 << 10;
    p->sharedMemPerMultiprocessor = (size_t)228 << 10;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = warpSize;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    memcpy(p->maxThreadsDim, block, sizeof block);
    memcpy(p->maxGridSize, grid, sizeof grid);
    p->major = 9;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
    p->asyncEngineCount = 3;
    p->l2CacheSize = 4 << 20;
    p->pciBusID = bus(device);
    p->pciDeviceID = slot(device);
}

extern "C" cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    cudaError_t r = prop ? find_device(device) : cudaErrorInvalidValue;
    if (r == cudaSuccess)
        fill(prop, device);
    return emu_result(r);
}

static int attribute(enum cudaDeviceAttr a, const struct cudaDeviceProp &p, int *ret)
{
    switch (a) {
    case cudaDevAttrMaxThreadsPerBlock: *ret = p.maxThreadsPerBlock; return 1;
    case cudaDevAttrMaxBlockDimX: *ret = p.maxThreadsDim[0]; return 1;
    case cudaDevAttrMaxBlockDimY: *ret = p.maxThreadsDim[1]; return 1;
    case cudaDevAttrMaxBlockDimZ: *ret = p.maxThreadsDim[2]; return 1;
    case cudaDevAttrMaxGridDimX: *ret = p.maxGridSize[0]; return 1;
    case cudaDevAttrMaxGridDimY: *ret = p.maxGridSize[1]; return 1;
    case cudaDevAttrMaxGridDimZ: *ret = p.maxGridSize[2]; return 1;
    case cudaDevAttrMaxSharedMemoryPerBlock: *ret = static_cast<int>(p.sharedMemPerBlock); return 1;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *ret = static_cast<int>(p.sharedMemPerBlockOptin);
        return 1;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *ret = static_cast<int>(p.sharedMemPerMultiprocessor);
        return 1;
    case cudaDevAttrWarpSize: *ret = p.warpSize; return 1;
    case cudaDevAttrMaxRegistersPerBlock: *ret = p.regsPerBlock; return 1;
    case cudaDevAttrMultiProcessorCount: *ret = p.multiProcessorCount; return 1;
    case cudaDevAttrConcurrentKernels: *ret = p.concurrentKernels; return 1;
    case cudaDevAttrEccEnabled: *ret = p.ECCEnabled; return 1;
    case cudaDevAttrPciBusId: *ret = p.pciBusID; return 1;
    case cudaDevAttrPciDeviceId: *ret = p.pciDeviceID; return 1;
    case cudaDevAttrPciDomainId: *ret = p.pciDomainID; return 1;
    case cudaDevAttrL2CacheSize: *ret = p.l2CacheSize; return 1;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *ret = p.maxThreadsPerMultiProcessor; return 1;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *ret = p.maxBlocksPerMultiProcessor; return 1;
    case cudaDevAttrAsyncEngineCount: *ret = p.asyncEngineCount; return 1;
    case cudaDevAttrUnifiedAddressing: *ret = p.unifiedAddressing; return 1;
    case cudaDevAttrComputeCapabilityMajor: *ret = p.major; return 1;
    case cudaDevAttrComputeCapabilityMinor: *ret = p.minor; return 1;
    case cudaDevAttrStreamPrioritiesSupported: *ret = p.streamPrioritiesSupported; return 1;
    default: return 0;
    }
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    struct cudaDeviceProp p;
    cudaError_t r = value ? cudaGetDeviceProperties(&p, device) : cudaErrorInvalidValue;
    if (r == cudaSuccess && !attribute(attr, p, value))
        emu_die("cudaDeviceGetAttribute(): attribute %d is not emulated", attr);
    return emu_result(r);
}

extern "C" cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
    cudaError_t r = pciBusId && len >= 13 ? find_device(device) : cudaErrorInvalidValue;
    if (r == cudaSuccess)
        snprintf(pciBusId, static_cast<size_t>(len), "0000:%02X:%02X.0", bus(device), slot(device));
    return emu_result(r);
}

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    if (leastPriority)
        *leastPriority = 0;
    if (greatestPriority)
        *greatestPriority = -5;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice)
{
    cudaError_t r = find_device(device);
    if (r == cudaSuccess)
        r = find_device(peerDevice);
    if (r == cudaSuccess && (!canAccessPeer || device == peerDevice))
        r = canAccessPeer ? cudaErrorInvalidDevice : cudaErrorInvalidValue;
    if (r == cudaSuccess)
        *canAccessPeer = 0;
    return emu_result(r);
}

extern "C" cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    if (!runtimeVersion)
        return emu_result(cudaErrorInvalidValue);
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDriverGetVersion(int *driverVersion)
{
    return cudaRuntimeGetVersion(driverVersion);
}
