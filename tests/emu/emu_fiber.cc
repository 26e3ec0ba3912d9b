/* emu_fiber.cc: fibers: a switch by hand on x86-64 and aarch64, which saves what a call preserves;
 * ucontext elsewhere. Sanitizers are told of every switch. */
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "emu.h"
#include "emu_fiber.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN
#endif
#if __has_feature(thread_sanitizer)
#define EMU_TSAN
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define EMU_ASAN
#endif
#ifdef __SANITIZE_THREAD__
#define EMU_TSAN
#endif

#ifdef EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define STACK ((size_t)256 << 10)
#define GUARD ((size_t)64 << 10) /* below the stack; a multiple of every page size */

struct emu_fiber {
    void *sp;
    ucontext_t context; /* where there is no switch by hand */
    unsigned char *stack;
    size_t bytes;
    void *fake, *tsan;
    void (*main)(void);
};

static emu_fiber *starting;
static std::vector<emu_fiber *> all;

/* ---- the switch ---- */

#if defined(__x86_64__)
#define BY_HAND
asm(".text\n"
    ".local emu_switch_stacks\n"
    ".type emu_switch_stacks, @function\n"
    "emu_switch_stacks:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size emu_switch_stacks, . - emu_switch_stacks\n");
/* Six registers, where to return to, and a return address for an unwinder to stop at. */
static void *first_frame(unsigned char *top, void (*entry)(void))
{
    uintptr_t *sp = reinterpret_cast<uintptr_t *>(top) - 2;
    *--sp = 0;
    *--sp = reinterpret_cast<uintptr_t>(entry);
    for (int i = 0; i < 6; i++)
        *--sp = 0;
    return sp;
}
#elif defined(__aarch64__)
#define BY_HAND
asm(".text\n"
    ".local emu_switch_stacks\n"
    ".type emu_switch_stacks, %function\n"
    "emu_switch_stacks:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size emu_switch_stacks, . - emu_switch_stacks\n");
static void *first_frame(unsigned char *top, void (*entry)(void))
{
    uintptr_t *sp = reinterpret_cast<uintptr_t *>(top) - 20;
    for (int i = 0; i < 20; i++)
        sp[i] = 0;
    sp[11] = reinterpret_cast<uintptr_t>(entry); /* x30 */
    return sp;
}
#endif

#ifdef BY_HAND
extern "C" void emu_switch_stacks(void **from, void *to);
#endif

static void announce(emu_fiber *from, emu_fiber *to)
{
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->bytes);
#endif
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    (void)from;
    (void)to;
}

static void arrived(emu_fiber *at)
{
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(at->fake, NULL, NULL);
#endif
    (void)at;
}

static void entry(void)
{
    emu_fiber *self = starting;
    arrived(self);
    self->main();
    emu_die("a fiber's main function returned");
}

void emu_fiber_switch(emu_fiber *from, emu_fiber *to)
{
    starting = to;
    announce(from, to);
#ifdef BY_HAND
    emu_switch_stacks(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived(from);
}

/* ---- their memory ---- */

emu_fiber *emu_fiber_home(void)
{
    emu_fiber *f = new emu_fiber();
    pthread_attr_t a;
    void *stack = NULL;
    if (pthread_getattr_np(pthread_self(), &a) != 0 ||
        pthread_attr_getstack(&a, &stack, &f->bytes) != 0)
        emu_die("the device thread does not know its own stack");
    pthread_attr_destroy(&a);
    f->stack = static_cast<unsigned char *>(stack);
#ifdef EMU_TSAN
    f->tsan = __tsan_get_current_fiber();
#endif
    return f;
}

emu_fiber *emu_fiber_new(void (*main)(void))
{
    emu_fiber *f = new emu_fiber();
    void *p = mmap(NULL, GUARD + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        emu_die("no address space for one more thread's stack");
    f->stack = static_cast<unsigned char *>(p) + GUARD;
    f->bytes = STACK;
    f->main = main;
    if (mprotect(f->stack, STACK, PROT_READ | PROT_WRITE) != 0)
        emu_die("no memory for one more thread's stack");
#ifdef BY_HAND
    f->sp = first_frame(f->stack + STACK, entry);
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, entry, 0);
#endif
#ifdef EMU_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    all.push_back(f);
    return f;
}

int emu_fiber_overflowed(const void *address)
{
    const unsigned char *a = static_cast<const unsigned char *>(address);
    for (const emu_fiber *f : all) {
        if (a >= f->stack - GUARD && a < f->stack)
            return 1;
    }
    return 0;
}
