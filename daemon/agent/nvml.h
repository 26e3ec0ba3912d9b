/* nvml.h: as much of NVIDIA's management library as a node's inventory needs, found by dlopen.
 *
 * Declared here from NVML's public API reference (names, values and layouts are the library's), for
 * a machine that builds this need not have it. Any call may be missing in an older or newer driver:
 * its pointer is NULL then, and NVML_CALL() answers NVML_FUNCTION_NOT_FOUND in its place.
 * Only the probe's process (probe.c) calls any of it.
 */
#ifndef TRAINYARD_DAEMON_AGENT_NVML_H
#define TRAINYARD_DAEMON_AGENT_NVML_H

#include "base/err.h"

/* nvmlReturn_t */
enum {
    NVML_OK = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_UNKNOWN = 999
};

typedef struct nvml_device *nvml_device;
typedef struct nvml_event_set *nvml_event_set;

struct nvml_pci { /* nvmlPciInfo_t; its _v2 form has the same first fields, and is no longer */
    char bus_id_legacy[16];
    unsigned domain, bus, device;
    unsigned device_id, subsystem_id;
    char bus_id[32];
};

struct nvml_memory { /* nvmlMemory_t; here `used` has in it what the driver keeps for itself */
    unsigned long long total, free, used;
};

struct nvml_memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, free, used;
};
#define NVML_MEMORY_V2 ((unsigned)(sizeof(struct nvml_memory_v2) | 2U << 24))

struct nvml_process { /* nvmlProcessInfo_t of the _v2 and _v3 calls */
    unsigned pid;
    unsigned long long memory; /* ULLONG_MAX: not known */
    unsigned gpu_instance, compute_instance;
};

struct nvml_process_v1 { /* of the call without a version */
    unsigned pid;
    unsigned long long memory;
};

struct nvml_utilization {
    unsigned gpu, memory; /* percent of the last sample period */
};

struct nvml_event { /* nvmlEventData_t */
    nvml_device device;
    unsigned long long type, data; /* data: the Xid */
    unsigned gpu_instance, compute_instance;
};

enum { NVML_EVENT_XID = 0x8 };                         /* nvmlEventTypeXidCriticalError */
enum { NVML_ECC_CORRECTED = 0, NVML_ECC_UNCORRECTED }; /* nvmlMemoryErrorType_t */
enum { NVML_ECC_VOLATILE = 0 };                        /* nvmlEccCounterType_t: since the reset */
enum { NVML_CLOCK_SM = 1 };                            /* nvmlClockType_t */
enum { NVML_LINK_TO_GPU = 0, NVML_LINK_TO_SWITCH = 2 };
enum { NVML_LINKS_MAX = 36 };
/* nvmlClocksThrottleReasons…: of hardware that protects itself */
enum { NVML_SLOWDOWN = 0x8, NVML_SLOWDOWN_THERMAL = 0x40, NVML_SLOWDOWN_POWER_BRAKE = 0x80 };

/* X(member, name, name of an older or newer form with the same arguments or NULL, arguments) */
#define NVML_CALLS(X)                                                                              \
    X(init, "nvmlInit_v2", "nvmlInit", (void))                                                     \
    X(shutdown, "nvmlShutdown", NULL, (void))                                                      \
    X(count, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", (unsigned *))                          \
    X(by_position, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex",                  \
      (unsigned, nvml_device *))                                                                   \
    X(uuid, "nvmlDeviceGetUUID", NULL, (nvml_device, char *, unsigned))                            \
    X(name, "nvmlDeviceGetName", NULL, (nvml_device, char *, unsigned))                            \
    X(pci, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", (nvml_device, struct nvml_pci *)) \
    X(memory_v2, "nvmlDeviceGetMemoryInfo_v2", NULL, (nvml_device, struct nvml_memory_v2 *))       \
    X(memory, "nvmlDeviceGetMemoryInfo", NULL, (nvml_device, struct nvml_memory *))                \
    X(processes, "nvmlDeviceGetComputeRunningProcesses_v3",                                        \
      "nvmlDeviceGetComputeRunningProcesses_v2", (nvml_device, unsigned *, struct nvml_process *)) \
    X(processes_v1, "nvmlDeviceGetComputeRunningProcesses", NULL,                                  \
      (nvml_device, unsigned *, struct nvml_process_v1 *))                                         \
    X(graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3",                                        \
      "nvmlDeviceGetGraphicsRunningProcesses_v2",                                                  \
      (nvml_device, unsigned *, struct nvml_process *))                                            \
    X(mig_mode, "nvmlDeviceGetMigMode", NULL, (nvml_device, unsigned *, unsigned *))               \
    X(mig_count, "nvmlDeviceGetMaxMigDeviceCount", NULL, (nvml_device, unsigned *))                \
    X(mig, "nvmlDeviceGetMigDeviceHandleByIndex", NULL, (nvml_device, unsigned, nvml_device *))    \
    X(temperature, "nvmlDeviceGetTemperature", NULL, (nvml_device, int, unsigned *))               \
    X(power, "nvmlDeviceGetPowerUsage", NULL, (nvml_device, unsigned *))                           \
    X(utilization, "nvmlDeviceGetUtilizationRates", NULL,                                          \
      (nvml_device, struct nvml_utilization *))                                                    \
    X(clock, "nvmlDeviceGetClockInfo", NULL, (nvml_device, int, unsigned *))                       \
    X(throttled, "nvmlDeviceGetCurrentClocksThrottleReasons",                                      \
      "nvmlDeviceGetCurrentClocksEventReasons", (nvml_device, unsigned long long *))               \
    X(ecc_mode, "nvmlDeviceGetEccMode", NULL, (nvml_device, unsigned *, unsigned *))               \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors", NULL,                                             \
      (nvml_device, int, int, unsigned long long *))                                               \
    X(remapped_rows, "nvmlDeviceGetRemappedRows", NULL,                                            \
      (nvml_device, unsigned *, unsigned *, unsigned *, unsigned *))                               \
    X(retirement_pending, "nvmlDeviceGetRetiredPagesPendingStatus", NULL,                          \
      (nvml_device, unsigned *))                                                                   \
    X(link_state, "nvmlDeviceGetNvLinkState", NULL, (nvml_device, unsigned, unsigned *))           \
    X(link_type, "nvmlDeviceGetNvLinkRemoteDeviceType", NULL, (nvml_device, unsigned, unsigned *)) \
    X(link_pci, "nvmlDeviceGetNvLinkRemotePciInfo_v2", NULL,                                       \
      (nvml_device, unsigned, struct nvml_pci *))                                                  \
    X(event_set_new, "nvmlEventSetCreate", NULL, (nvml_event_set *))                               \
    X(event_set_free, "nvmlEventSetFree", NULL, (nvml_event_set))                                  \
    X(event_register, "nvmlDeviceRegisterEvents", NULL,                                            \
      (nvml_device, unsigned long long, nvml_event_set))                                           \
    X(event_wait, "nvmlEventSetWait_v2", "nvmlEventSetWait",                                       \
      (nvml_event_set, struct nvml_event *, unsigned))

struct nvml {
    void *library;
#define NVML_MEMBER(member, name, other, arguments) int(*member) arguments;
    NVML_CALLS(NVML_MEMBER)
#undef NVML_MEMBER
};

#define NVML_CALL(n, member, ...)                                                                  \
    ((n)->member ? (n)->member(__VA_ARGS__) : (int)NVML_FUNCTION_NOT_FOUND)

/* Fills the table by what `symbol` finds; 0 unless there is no way to tell devices apart. */
int nvml_resolve(struct nvml *n, void *(*symbol)(void *context, const char *name), void *context,
                 struct err *e);

/* Loads the library (a path, or a name that the loader looks up) and initialises it. ERR_NOT_FOUND
 * where there is none; ERR_UNAVAILABLE where there is one, but no driver that answers. */
int nvml_open(const char *path, struct nvml *ret, struct err *e);

const char *nvml_error_name(int r); /* "GPU_IS_LOST"; "error 42" in static storage */

#endif
