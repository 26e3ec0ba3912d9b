/* emu_memory.cc: device memory and pinned host memory.
 *
 * Device pointers lie in a window of addresses that nobody may touch; the device thread reaches the
 * memory through a second mapping at a fixed distance, of which only what is allocated is open. An
 * allocation ends (up to its alignment of 256 bytes) where a closed page begins, and what is left
 * of its pages is filled with canaries. Addresses come into use again only when the window has been
 * used up once. Fresh memory holds 0xff: NaN in every floating point format, -1 in every integer.
 *
 * Accesses that the pages catch are explained by a signal handler, then happen again as they would
 * have without it (SIGSEGV).
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "emu_fiber.h"
#include "emu_internal.h"

#define PAGE    (page())
#define ALIGN   ((size_t)256)
#define WINDOW  ((size_t)64 << 30)
#define HINT    0x5a5a00000000U /* where nothing else lies, and nobody's numbers do */
#define POISON  0xff
#define CANARY  0xc5
#define DEFAULT ((size_t)1 << 30)
#define GRANULE ((size_t)512) /* what an allocation takes of the device's memory */

struct allocation {
    size_t bytes;
    uintptr_t region; /* its pages, in the window */
    size_t region_bytes;
    int device;
};

static struct {
    std::mutex lock;
    emu_window window;
    int fd;
    std::map<uintptr_t, allocation> live, freed; /* by what cudaMalloc() gave */
    std::map<uintptr_t, size_t> pinned;
    std::map<int, size_t> used; /* by device */
    uintptr_t cursor;
    size_t size;
    struct sigaction before[2];
} &m = *new std::remove_reference_t<decltype(m)>();

static size_t page(void)
{
    static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static unsigned char *own(uintptr_t address)
{
    return reinterpret_cast<unsigned char *>(address - m.window.base + m.window.device);
}

static int is_in(uintptr_t a, uintptr_t base)
{
    return a >= base && a - base < m.window.bytes;
}

/* ---- what an access outside is ---- */

/* The last allocation that begins at or before `a`. */
static const std::pair<const uintptr_t, allocation> *before(
    const std::map<uintptr_t, allocation> &of, uintptr_t a)
{
    auto i = of.upper_bound(a);
    return i == of.begin() ? NULL : &*--i;
}

static int covers(const std::pair<const uintptr_t, allocation> *x, uintptr_t a)
{
    return x && a < x->second.region + x->second.region_bytes + PAGE;
}

/* Into s: "1024 bytes behind an allocation of 4096 bytes". */
static void describe(uintptr_t a, char *s, size_t room)
{
    auto *l = before(m.live, a), *f = before(m.freed, a);
    if (covers(l, a) && a >= l->first + l->second.bytes)
        snprintf(s, room, "%zu bytes behind the end of an allocation of %zu bytes",
                 static_cast<size_t>(a - l->first) - l->second.bytes, l->second.bytes);
    else if (covers(l, a))
        snprintf(s, room, "byte %zu of an allocation of %zu bytes",
                 static_cast<size_t>(a - l->first), l->second.bytes);
    else if (covers(f, a))
        snprintf(s, room, "byte %zu of an allocation of %zu bytes that has been freed",
                 static_cast<size_t>(a - f->first), f->second.bytes);
    else
        snprintf(s, room, "an address that was never allocated");
}

static void say(const char *s)
{
    if (write(2, s, strlen(s)) < 0)
        return;
}

static void explain(uintptr_t a)
{
    char where[160], s[512];
    uintptr_t in = is_in(a, m.window.device) ? a - m.window.device + m.window.base : a;
    describe(in, where, sizeof where);
    const char *name = emu_running ? emu_running : "the host";
    if (is_in(a, m.window.base) && emu_running)
        snprintf(s, sizeof s,
                 "emulated CUDA: %s%s uses a device pointer that was not among its arguments: "
                 "%s\n",
                 name, emu_where(), where);
    else if (is_in(a, m.window.base))
        snprintf(s, sizeof s,
                 "emulated CUDA: the host reads or writes device memory at %#" PRIxPTR ": %s\n", a,
                 where);
    else
        snprintf(s, sizeof s, "emulated CUDA: %s%s reads or writes %s\n", name, emu_where(), where);
    say(s);
}

static void on_signal(int number, siginfo_t *info, void *)
{
    uintptr_t a = reinterpret_cast<uintptr_t>(info->si_addr);
    if (is_in(a, m.window.base) || is_in(a, m.window.device))
        explain(a);
    else if (emu_running && emu_fiber_overflowed(info->si_addr))
        say("emulated CUDA: a kernel's thread has used up its stack\n");
    sigaction(number, &m.before[number == SIGBUS], NULL);
}

static void catch_signals(void)
{
    struct sigaction a = {};
    a.sa_sigaction = on_signal;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &a, &m.before[0]);
    sigaction(SIGBUS, &a, &m.before[1]);
}

/* ---- the window ---- */

static size_t read_size(void)
{
    const char *s = getenv("TRAINYARD_EMU_MEMORY");
    char *end = NULL;
    unsigned long long v = s ? strtoull(s, &end, 10) : DEFAULT;
    if (s && (end == s || *end || v == 0 || v > WINDOW / 4))
        emu_die("TRAINYARD_EMU_MEMORY is \"%s\"; it is the device's memory in bytes, at most %zu",
                s, WINDOW / 4);
    return static_cast<size_t>(v);
}

static void *reserve(void *hint, int flags, int fd)
{
    void *p = mmap(hint, WINDOW, PROT_NONE, flags | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        emu_die("no %zu bytes of address space for device memory: %s", WINDOW, strerror(errno));
    madvise(p, WINDOW, MADV_DONTDUMP);
    return p;
}

static void open_window(void)
{
    m.size = read_size();
    m.fd = memfd_create("emulated-device", MFD_CLOEXEC);
    if (m.fd < 0 || ftruncate(m.fd, WINDOW) != 0)
        emu_die("no memory for the device: %s", strerror(errno));
    void *base = reserve(reinterpret_cast<void *>(HINT), MAP_PRIVATE | MAP_ANONYMOUS, -1);
    /* a whole number of windows apart: a small number beside padding that looks like an address
     * stays what it is when it is translated */
    void *device = reserve(static_cast<char *>(base) + 2 * WINDOW, MAP_SHARED, m.fd);
    m.window = {reinterpret_cast<uintptr_t>(base), reinterpret_cast<uintptr_t>(device), WINDOW};
    m.cursor = m.window.base;
    catch_signals();
}

const emu_window &emu_memory_window(void)
{
    static int is_open = (open_window(), 1);
    (void)is_open;
    return m.window;
}

size_t emu_memory_size(void)
{
    emu_memory_window();
    return m.size;
}

size_t emu_memory_used(int device)
{
    std::lock_guard<std::mutex> g(m.lock);
    return m.used[device];
}

int emu_is_device(const void *p)
{
    return is_in(reinterpret_cast<uintptr_t>(p), emu_memory_window().base);
}

/* ---- allocations ---- */

/* 1 if no live allocation's pages lie in [region - PAGE, region + bytes + PAGE). An allocation
 * begins less than a page after its region does. */
static int is_free(uintptr_t region, size_t bytes)
{
    auto i = m.live.lower_bound(region + bytes + 2 * PAGE);
    while (i != m.live.begin()) {
        --i;
        if (i->second.region < region + bytes + PAGE)
            return i->second.region + i->second.region_bytes + PAGE <= region;
    }
    return 1;
}

/* After the last one, or in a gap once the window's end has been reached; 0: there is none. */
static uintptr_t find_region(size_t bytes)
{
    uintptr_t end = m.window.base + m.window.bytes;
    for (int turn = 0; turn < 2; turn++) {
        for (uintptr_t a = m.cursor + PAGE; a + bytes + PAGE <= end;) {
            if (is_free(a, bytes))
                return a;
            auto i = m.live.upper_bound(a);
            a = i == m.live.end() ? a + PAGE : i->second.region + i->second.region_bytes + PAGE;
        }
        m.cursor = m.window.base;
    }
    return 0;
}

static void forget_freed(uintptr_t region, size_t bytes)
{
    auto i = m.freed.lower_bound(region);
    while (i != m.freed.end() && i->first < region + bytes)
        i = m.freed.erase(i);
}

static cudaError_t allocate(size_t size, int device, void **ret)
{
    size_t room = round_up(size, ALIGN), bytes = round_up(room, PAGE);
    if (size > m.size || m.used[device] + round_up(size, GRANULE) > m.size)
        return cudaErrorMemoryAllocation;
    uintptr_t region = find_region(bytes);
    if (!region || mprotect(own(region), bytes, PROT_READ | PROT_WRITE) != 0)
        return cudaErrorMemoryAllocation;
    forget_freed(region, bytes);
    uintptr_t base = region + bytes - room;
    memset(own(region), CANARY, base - region);
    memset(own(base), POISON, size);
    memset(own(base) + size, CANARY, room - size);
    m.live[base] = {size, region, bytes, device};
    m.used[device] += round_up(size, GRANULE);
    m.cursor = region + bytes;
    *ret = reinterpret_cast<void *>(base);
    return cudaSuccess;
}

/* The number of the first byte that is no longer a canary, relative to `base`; 0: all are. */
static ptrdiff_t broken_canary(uintptr_t base, const allocation &a)
{
    for (uintptr_t i = base + a.bytes; i < a.region + a.region_bytes; i++) {
        if (*own(i) != CANARY)
            return static_cast<ptrdiff_t>(i - base);
    }
    for (uintptr_t i = base; i-- > a.region;) {
        if (*own(i) != CANARY)
            return static_cast<ptrdiff_t>(i) - static_cast<ptrdiff_t>(base);
    }
    return 0;
}

static void check_canary(uintptr_t base, const allocation &a, const char *when)
{
    ptrdiff_t at = broken_canary(base, a);
    if (at < 0)
        emu_die("%s: something wrote %td bytes before an allocation of %zu bytes", when, -at,
                a.bytes);
    if (at > 0)
        emu_die("%s: something wrote %zu bytes behind the end of an allocation of %zu bytes", when,
                static_cast<size_t>(at) - a.bytes + 1, a.bytes);
}

void emu_check_canaries(const char *when)
{
    std::lock_guard<std::mutex> g(m.lock);
    for (const auto &x : m.live)
        check_canary(x.first, x.second, when);
}

static cudaError_t release(uintptr_t base)
{
    auto i = m.live.find(base);
    if (i == m.live.end())
        return cudaErrorInvalidValue;
    const allocation &a = i->second;
    check_canary(base, a, "cudaFree()");
    mprotect(own(a.region), a.region_bytes, PROT_NONE);
    if (fallocate(m.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(a.region - m.window.base),
                  static_cast<off_t>(a.region_bytes)) != 0)
        emu_die("freed device memory cannot be given back: %s", strerror(errno));
    m.used[a.device] -= round_up(a.bytes, GRANULE);
    m.freed[base] = a;
    m.live.erase(i);
    return cudaSuccess;
}

static const std::pair<const uintptr_t, allocation> *find_live(uintptr_t a, size_t bytes)
{
    auto *l = before(m.live, a);
    return l && bytes <= l->second.bytes && a - l->first <= l->second.bytes - bytes ? l : NULL;
}

int emu_is_whole(const void *p, size_t bytes)
{
    std::lock_guard<std::mutex> g(m.lock);
    return find_live(reinterpret_cast<uintptr_t>(p), bytes) != NULL;
}

static void check_device(const allocation &a, const char *what)
{
    if (a.device != emu_running_on)
        emu_die("%s runs on device %d and uses memory of device %d", what, emu_running_on,
                a.device);
}

void *emu_translate_bytes(const void *p, size_t bytes)
{
    char where[160];
    uintptr_t a = reinterpret_cast<uintptr_t>(p);
    if (!emu_running)
        emu_die("a device pointer is translated elsewhere than on the device thread");
    if (!p && bytes == 0)
        return NULL;
    if (!emu_is_device(p))
        emu_die("%s uses %p, which is not a device pointer", emu_running, p);
    std::lock_guard<std::mutex> g(m.lock);
    auto *l = find_live(a, bytes);
    if (!l) {
        describe(a, where, sizeof where);
        emu_die("%s uses %zu bytes from %s", emu_running, bytes, where);
    }
    check_device(l->second, emu_running);
    return own(a);
}

void *emu_translate_argument(void *p, const char *what, int argument)
{
    char where[160];
    uintptr_t a = reinterpret_cast<uintptr_t>(p);
    std::lock_guard<std::mutex> g(m.lock);
    auto *l = find_live(a, 0);
    if (!l) {
        describe(a, where, sizeof where);
        emu_die("argument %d of kernel %s is %s", argument, what, where);
    }
    check_device(l->second, what);
    return own(a);
}

/* ---- host memory ---- */

static cudaError_t pin(size_t size, void **ret)
{
    size_t bytes = round_up(size, PAGE);
    void *p = mmap(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    if (mprotect(p, bytes, PROT_READ | PROT_WRITE) != 0) {
        munmap(p, bytes + PAGE);
        return cudaErrorMemoryAllocation;
    }
    memset(p, POISON, bytes);
    std::lock_guard<std::mutex> g(m.lock);
    m.pinned[reinterpret_cast<uintptr_t>(p)] = size;
    *ret = p;
    return cudaSuccess;
}

int emu_is_pinned(const void *p, size_t bytes)
{
    uintptr_t a = reinterpret_cast<uintptr_t>(p);
    std::lock_guard<std::mutex> g(m.lock);
    auto i = m.pinned.upper_bound(a);
    if (i == m.pinned.begin())
        return 0;
    --i;
    return bytes <= i->second && a - i->first <= i->second - bytes && a - i->first < i->second;
}

int emu_is_mapped(uintptr_t address)
{
    FILE *f = fopen("/proc/self/maps", "re");
    uintptr_t from, to;
    int found = 0;
    char line[512];
    while (f && !found && fgets(line, sizeof line, f)) {
        char r = '-';
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %c", &from, &to, &r) == 3)
            found = r == 'r' && address >= from && address < to;
    }
    if (f)
        fclose(f);
    return found;
}

/* ---- the calls ---- */

extern "C" cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    cudaError_t r;
    emu_guard g(emu.lock);
    if ((r = emu_enter_unsafe(g)) != cudaSuccess)
        return emu_result(r);
    if (!devPtr)
        return emu_result(cudaErrorInvalidValue);
    if (emu_injected("MALLOC", &r))
        return emu_result(r);
    *devPtr = NULL;
    if (size == 0)
        return cudaSuccess;
    emu_memory_window();
    std::lock_guard<std::mutex> h(m.lock);
    return emu_result(allocate(size, emu_current_device(), devPtr));
}

extern "C" cudaError_t cudaFree(void *devPtr)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter_unsafe(g);
    if (r == cudaSuccess)
        r = emu_wait_all(g);
    if (r != cudaSuccess || !devPtr)
        return emu_result(r);
    emu_memory_window();
    std::lock_guard<std::mutex> h(m.lock);
    return emu_result(release(reinterpret_cast<uintptr_t>(devPtr)));
}

extern "C" cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (r != cudaSuccess)
        return emu_result(r);
    if (!free || !total)
        return emu_result(cudaErrorInvalidValue);
    *total = emu_memory_size();
    *free = *total - emu_memory_used(emu_current_device());
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    cudaError_t r;
    emu_guard g(emu.lock);
    if ((r = emu_enter_unsafe(g)) != cudaSuccess)
        return emu_result(r);
    if (!pHost || flags > 7)
        return emu_result(cudaErrorInvalidValue);
    if (emu_injected("MALLOC_HOST", &r))
        return emu_result(r);
    *pHost = NULL;
    return size ? emu_result(pin(size, pHost)) : cudaSuccess;
}

extern "C" cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    return cudaHostAlloc(ptr, size, cudaHostAllocDefault);
}

extern "C" cudaError_t cudaFreeHost(void *ptr)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter_unsafe(g);
    if (r == cudaSuccess)
        r = emu_wait_all(g);
    if (r != cudaSuccess || !ptr)
        return emu_result(r);
    std::lock_guard<std::mutex> h(m.lock);
    auto i = m.pinned.find(reinterpret_cast<uintptr_t>(ptr));
    if (i == m.pinned.end())
        return emu_result(cudaErrorInvalidValue);
    munmap(ptr, round_up(i->second, PAGE) + PAGE);
    m.pinned.erase(i);
    return cudaSuccess;
}

extern "C" cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                                const void *ptr)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (r != cudaSuccess || !attributes)
        return emu_result(r != cudaSuccess ? r : cudaErrorInvalidValue);
    *attributes = {cudaMemoryTypeUnregistered, -1, NULL, const_cast<void *>(ptr)};
    if (emu_is_pinned(ptr, 0))
        *attributes = {cudaMemoryTypeHost, emu_current_device(), const_cast<void *>(ptr),
                       const_cast<void *>(ptr)};
    else if (emu_is_device(ptr) && emu_is_whole(ptr, 0))
        *attributes = {cudaMemoryTypeDevice, emu_current_device(), const_cast<void *>(ptr), NULL};
    return cudaSuccess;
}
