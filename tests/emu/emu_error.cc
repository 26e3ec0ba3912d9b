/* emu_error.cc: errors by name, the last one of each thread, and faults on demand:
 * TRAINYARD_EMU_FAIL=KIND:n[:error],… lets the n-th call of a kind (from 1) fail once. Kinds are
 * MALLOC, MALLOC_HOST, LAUNCH (the call), KERNEL (its execution), COPY, SET, STREAM, EVENT, RECORD,
 * QUERY, SYNC, CAPTURE, GRAPH, INIT, and those of the libraries above. `error` is a name or number
 * of cudaError; without it allocations fail with cudaErrorMemoryAllocation, INIT with
 * cudaErrorInitializationError, everything else with cudaErrorIllegalAddress.
 */
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emu_internal.h"

static thread_local cudaError_t last_error;

struct error_text {
    cudaError_t error;
    const char *name, *text;
};
#define ERROR_TEXT(name, value, text) {name, #name, text},
static const error_text texts[] = {EMU_ERRORS(ERROR_TEXT)};

void emu_die(const char *format, ...)
{
    va_list a;
    va_start(a, format);
    fflush(stdout);
    fprintf(stderr, "emulated CUDA: ");
    vfprintf(stderr, format, a);
    fprintf(stderr, "\n");
    va_end(a);
    abort();
}

cudaError_t emu_result(cudaError_t r)
{
    if (r != cudaSuccess)
        last_error = r;
    return r;
}

int emu_is_fatal(cudaError_t e)
{
    switch (e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown: return 1;
    default: return 0;
    }
}

extern "C" cudaError_t cudaPeekAtLastError(void)
{
    cudaError_t broken = emu_broken();
    return broken != cudaSuccess ? broken : last_error;
}

extern "C" cudaError_t cudaGetLastError(void)
{
    cudaError_t r = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return r;
}

extern "C" const char *cudaGetErrorName(cudaError_t error)
{
    for (const error_text &t : texts) {
        if (t.error == error)
            return t.name;
    }
    return "unrecognized error code";
}

extern "C" const char *cudaGetErrorString(cudaError_t error)
{
    for (const error_text &t : texts) {
        if (t.error == error)
            return t.text;
    }
    return "unrecognized error code";
}

/* ---- faults on demand ---- */

struct fault {
    std::string kind;
    std::atomic<long> left; /* calls until it comes */
    cudaError_t error;
};

static cudaError_t read_error(const std::string &kind, const char *s)
{
    if (!s && (kind == "MALLOC" || kind == "MALLOC_HOST"))
        return cudaErrorMemoryAllocation;
    if (!s)
        return kind == "INIT" ? cudaErrorInitializationError : cudaErrorIllegalAddress;
    for (const error_text &t : texts) {
        if (strcmp(t.name, s) == 0 || (atoi(s) > 0 && atoi(s) == t.error))
            return t.error;
    }
    emu_die("TRAINYARD_EMU_FAIL: \"%s\" is no error of CUDA's", s);
}

static void read_fault(std::deque<fault> &to, char *s)
{
    char *at = strchr(s, ':'), *error = at ? strchr(at + 1, ':') : NULL, *end = NULL;
    if (error)
        *error++ = '\0';
    long n = at ? strtol(at + 1, &end, 10) : 0;
    if (!at || n < 1 || *end)
        emu_die("TRAINYARD_EMU_FAIL: \"%s\" is not KIND:n[:error]", s);
    std::string kind(s, at);
    to.emplace_back();
    to.back().kind = kind;
    to.back().left = n;
    to.back().error = read_error(kind, error);
}

static std::deque<fault> &faults(void)
{
    static std::deque<fault> &all = *[] {
        auto *r = new std::deque<fault>();
        const char *s = getenv("TRAINYARD_EMU_FAIL");
        std::string list = s ? s : "";
        char *rest = list.data(), *one;
        while ((one = strtok_r(rest, ",", &rest)))
            read_fault(*r, one);
        return r;
    }();
    return all;
}

int emu_injected(const char *kind, cudaError_t *ret_error)
{
    for (fault &f : faults()) {
        if (f.kind != kind || --f.left != 0)
            continue;
        *ret_error = f.error;
        if (emu_is_fatal(f.error))
            emu_break(f.error);
        return 1;
    }
    return 0;
}
