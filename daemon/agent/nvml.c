#include "daemon/agent/nvml.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/mem.h"

const char *nvml_error_name(int r)
{
    static const struct {
        int value;
        const char *name;
    } names[] = {{NVML_OK, "SUCCESS"},
                 {NVML_UNINITIALIZED, "UNINITIALIZED"},
                 {NVML_INVALID_ARGUMENT, "INVALID_ARGUMENT"},
                 {NVML_NOT_SUPPORTED, "NOT_SUPPORTED"},
                 {NVML_NO_PERMISSION, "NO_PERMISSION"},
                 {NVML_NOT_FOUND, "NOT_FOUND"},
                 {NVML_INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE"},
                 {8, "INSUFFICIENT_POWER"},
                 {NVML_DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED"},
                 {NVML_TIMEOUT, "TIMEOUT"},
                 {11, "IRQ_ISSUE"},
                 {12, "LIBRARY_NOT_FOUND"},
                 {NVML_FUNCTION_NOT_FOUND, "FUNCTION_NOT_FOUND"},
                 {14, "CORRUPTED_INFOROM"},
                 {NVML_GPU_IS_LOST, "GPU_IS_LOST"},
                 {NVML_RESET_REQUIRED, "RESET_REQUIRED"},
                 {17, "OPERATING_SYSTEM"},
                 {18, "LIB_RM_VERSION_MISMATCH"},
                 {19, "IN_USE"},
                 {20, "MEMORY"},
                 {21, "NO_DATA"},
                 {NVML_UNKNOWN, "UNKNOWN"}};
    static char other[32];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (names[i].value == r)
            return names[i].name;
    }
    snprintf(other, sizeof other, "error %d", r);
    return other;
}

int nvml_resolve(struct nvml *n, void *(*symbol)(void *context, const char *name), void *context,
                 struct err *e)
{
    void *found;
#define NVML_FIND(member, name, other, arguments)                                                  \
    found = symbol(context, name);                                                                 \
    if (!found && (other) != NULL)                                                                 \
        found = symbol(context, (other) ? (other) : "");                                           \
    *(void **)&n->member = found;
    NVML_CALLS(NVML_FIND)
#undef NVML_FIND
    const char *missing = !n->init          ? "nvmlInit_v2"
                          : !n->count       ? "nvmlDeviceGetCount_v2"
                          : !n->by_position ? "nvmlDeviceGetHandleByIndex_v2"
                          : !n->uuid        ? "nvmlDeviceGetUUID"
                                            : NULL;
    if (!missing)
        return 0;
    return err_set(e, ERR_UNAVAILABLE,
                   "NVML has no %s, without which GPUs cannot be told apart; install the library "
                   "that belongs to the driver",
                   missing);
}

static void *by_dlsym(void *library, const char *name)
{
    return dlsym(library, name);
}

int nvml_open(const char *path, struct nvml *ret, struct err *e)
{
    struct nvml n = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!n.library)
        return err_set(e, ERR_NOT_FOUND, "NVML cannot be loaded (%.300s)", dlerror());
    int r = nvml_resolve(&n, by_dlsym, n.library, e);
    int answer = r == 0 ? n.init() : 0;
    if (r == 0 && answer != NVML_OK)
        r = err_set(e, ERR_UNAVAILABLE, "NVML cannot be initialised (%s)%s",
                    nvml_error_name(answer),
                    answer == NVML_DRIVER_NOT_LOADED ? "; load the NVIDIA driver" : "");
    if (r < 0) {
        dlclose(n.library);
        return r;
    }
    *ret = n;
    return 0;
}
