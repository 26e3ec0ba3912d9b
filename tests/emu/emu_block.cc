/* emu_block.cc: a kernel's blocks, one after the other, on the device thread.
 *
 * Threads of a block take turns on fibers: a thread runs until it ends or waits at a barrier or a
 * warp primitive, and whoever stops picks the next that can run. A fiber whose thread has ended
 * goes on with the next thread that has not begun, so that threads that never wait cost no switch.
 * A warp's threads run until none of them can; when no warp can, the block stands at a barrier
 * that all have reached, or the kernel is wrong, and the process ends with a sentence.
 */
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emu_fiber.h"
#include "emu_internal.h"

#define THREADS 1024
#define LANES   32U
#define WARPS   (THREADS / LANES)
#define POISON  0xff /* of shared memory: NaN in every float */

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
unsigned emu_lane;

enum turn { IDLE, CAN_BEGIN, CAN_GO_ON, AT_BARRIER, AT_PRIMITIVE, ENDED };

/* Lanes that meet at one warp primitive. */
struct meeting {
    unsigned mask, arrived, left, ballot;
    char kind; /* 's'huffle or 'b'allot */
    uint64_t values[LANES];
};
#define MEETINGS LANES /* a lane is in one until it leaves it */

struct lane_thread {
    enum turn turn;
    uint3 index;
    int line; /* of the barrier that it waits at */
    emu_fiber *fiber;
};

/* The running block. */
static struct block {
    const emu_launch *launch;
    void *const *arguments;
    unsigned threads, warps, warp; /* warp: whose turn it is, a position in `warp_order` */
    unsigned lane;                 /* a position in `lane_order` */
    unsigned ended, at_barrier, begun;
    unsigned ready[WARPS];
    int count[2]; /* of the barrier's predicate: this one's, and the last one's */
    unsigned barriers;
    std::vector<unsigned> warp_order, lane_order;
    struct lane_thread *now;
    struct lane_thread thread[THREADS];
    struct meeting meeting[WARPS][MEETINGS];
    unsigned meetings[WARPS]; /* as many have been used */
} b;

static struct {
    emu_fiber *idle[THREADS + 1];
    unsigned count;
    emu_fiber *home; /* the device thread's own stack */
} fibers;

static unsigned char *dynamic_shared, *dynamic_base;
static size_t dynamic_room;
#define DYNAMIC_MOST ((size_t)256 << 10)

const char *emu_where(void)
{
    static char s[160];
    if (!b.launch)
        return "";
    snprintf(s, sizeof s, ", block (%u,%u,%u), thread (%u,%u,%u)", blockIdx.x, blockIdx.y,
             blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    return s;
}

static const char *kernel_name(void)
{
    return b.launch->kernel->name ? b.launch->kernel->name : "(a kernel without a name)";
}

/* ---- whose turn it is ---- */

static void may_run(unsigned t, enum turn how)
{
    b.thread[t].turn = how;
    b.ready[t / LANES]++;
}

static struct lane_thread *next_of_warp(unsigned w)
{
    for (;;) {
        unsigned t = w * LANES + b.lane_order[b.lane % LANES];
        b.lane++;
        if (t < b.threads && (b.thread[t].turn == CAN_BEGIN || b.thread[t].turn == CAN_GO_ON)) {
            b.ready[w]--;
            return &b.thread[t];
        }
    }
}

static void shuffle_turns(void)
{
    emu_permute(b.warp_order, b.warps);
    emu_permute(b.lane_order, LANES);
    b.warp = b.lane = 0;
}

[[noreturn]] static void explain_absent(void)
{
    unsigned t = 0;
    while (b.thread[t].turn != AT_PRIMITIVE)
        t++;
    struct meeting *m = b.meeting[t / LANES];
    while (m->mask == 0 || !(m->arrived & 1U << t % LANES))
        m++;
    emu_die("kernel %s, block (%u,%u,%u), warp %u: a %s is for the lanes 0x%08x, but only 0x%08x "
            "came to it",
            kernel_name(), blockIdx.x, blockIdx.y, blockIdx.z, t / LANES,
            m->kind == 's' ? "shuffle" : "vote or __syncwarp()", m->mask, m->arrived);
}

static void check_barrier(void)
{
    if (b.at_barrier + b.ended < b.threads)
        explain_absent();
    unsigned first = 0;
    while (b.thread[first].turn != AT_BARRIER)
        first++;
    int line = b.thread[first].line;
    if (b.ended)
        emu_die("kernel %s, block (%u,%u,%u): only %u of %u threads reached the barrier at line "
                "%d, the others have ended",
                kernel_name(), blockIdx.x, blockIdx.y, blockIdx.z, b.at_barrier, b.threads, line);
    for (unsigned t = 0; t < b.threads; t++) {
        if (b.thread[t].line != line)
            emu_die("kernel %s, block (%u,%u,%u): thread %u waits at the barrier at line %d, "
                    "thread %u at the one at line %d",
                    kernel_name(), blockIdx.x, blockIdx.y, blockIdx.z, first, line, t,
                    b.thread[t].line);
    }
}

static void open_barrier(void)
{
    check_barrier();
    b.at_barrier = 0;
    b.barriers++;
    b.count[b.barriers % 2] = 0;
    for (unsigned t = 0; t < b.threads; t++)
        may_run(t, CAN_GO_ON);
    shuffle_turns();
}

/* NULL: the block is done. */
static struct lane_thread *next_thread(void)
{
    for (;;) {
        for (; b.warp < b.warps; b.warp++, b.lane = 0) {
            unsigned w = b.warp_order[b.warp];
            if (b.ready[w])
                return next_of_warp(w);
        }
        if (b.ended == b.threads)
            return NULL;
        open_barrier();
    }
}

static void make_current(struct lane_thread *t)
{
    b.now = t;
    threadIdx = t->index;
    emu_lane = static_cast<unsigned>(t - b.thread) % LANES;
}

static void run_threads(void);

/* A fiber's life: threads that begin, then a rest until one that begins has none. */
static void fiber_main(void)
{
    for (;;)
        run_threads();
}

static emu_fiber *idle_fiber(void)
{
    return fibers.count ? fibers.idle[--fibers.count] : emu_fiber_new(fiber_main);
}

/* To whoever runs next. */
static void switch_to(emu_fiber *from, struct lane_thread *t)
{
    if (!t) {
        emu_fiber_switch(from, fibers.home);
        return;
    }
    make_current(t);
    if (t->turn == CAN_BEGIN)
        t->fiber = idle_fiber();
    if (t->fiber != from)
        emu_fiber_switch(from, t->fiber);
}

static void run_threads(void)
{
    emu_fiber *self = b.now->fiber;
    struct lane_thread *t = b.now;
    for (;;) {
        t->turn = IDLE;
        b.launch->kernel->call(b.launch->function, b.arguments);
        t->turn = ENDED;
        b.ended++;
        t = next_thread();
        if (!t || t->turn != CAN_BEGIN)
            break;
        t->fiber = self;
        make_current(t);
    }
    fibers.idle[fibers.count++] = self;
    switch_to(self, t);
}

/* The running thread waits in this way; returns when it goes on. */
static void stop(enum turn how)
{
    struct lane_thread *me = b.now;
    me->turn = how;
    switch_to(me->fiber, next_thread());
    me->turn = IDLE;
}

/* ---- what a kernel calls ---- */

void *emu_dynamic_shared(void)
{
    return dynamic_shared;
}

int emu_barrier_count(int line, int predicate)
{
    unsigned mine = b.barriers;
    b.count[mine % 2] += predicate != 0;
    b.at_barrier++;
    b.now->line = line;
    stop(AT_BARRIER);
    return b.count[mine % 2];
}

void emu_barrier(int line)
{
    emu_barrier_count(line, 0);
}

static struct meeting *join(unsigned mask, char kind)
{
    size_t w = static_cast<size_t>(b.now - b.thread) / LANES;
    struct meeting *all = b.meeting[w], *empty = NULL;
    for (unsigned i = 0; i < b.meetings[w]; i++) {
        struct meeting *m = &all[i];
        if (m->mask == mask && m->arrived != mask && m->kind == kind)
            return m;
        if (m->mask == 0)
            empty = m;
    }
    if (!empty)
        empty = &all[b.meetings[w]++];
    memset(empty, 0, offsetof(struct meeting, values));
    empty->mask = mask;
    empty->kind = kind;
    return empty;
}

/* Waits until all lanes of the mask are there. */
static struct meeting *meet(unsigned mask, char kind, uint64_t value)
{
    unsigned me = 1U << emu_lane, lane = emu_lane;
    if (!(mask & me))
        emu_die("kernel %s%s: lane %u calls a warp primitive for the lanes 0x%08x", kernel_name(),
                emu_where(), lane, mask);
    struct meeting *m = join(mask, kind);
    m->arrived |= me;
    m->values[lane] = value;
    m->ballot |= kind == 'b' && value ? me : 0;
    if (m->arrived != mask) {
        stop(AT_PRIMITIVE);
        return m;
    }
    unsigned first = static_cast<unsigned>(b.now - b.thread) / LANES * LANES;
    for (unsigned i = 0; i < LANES; i++) {
        if ((mask & ~me) & 1U << i)
            may_run(first + i, CAN_GO_ON);
    }
    return m;
}

static void leave(struct meeting *m)
{
    m->left |= 1U << emu_lane;
    if (m->left == m->mask)
        m->mask = 0;
}

uint64_t emu_shuffle(unsigned mask, uint64_t bits, unsigned source)
{
    struct meeting *m = meet(mask, 's', bits);
    if (source >= LANES || !(mask & 1U << source))
        emu_die("kernel %s%s: a shuffle for the lanes 0x%08x reads lane %u, which is not one of "
                "them",
                kernel_name(), emu_where(), mask, source);
    bits = m->values[source];
    leave(m);
    return bits;
}

unsigned emu_ballot(unsigned mask, int predicate)
{
    struct meeting *m = meet(mask, 'b', predicate != 0);
    unsigned ballot = m->ballot;
    leave(m);
    return ballot;
}

/* ---- blocks ---- */

/* Ends where a page that nobody may touch begins. */
static void place_shared(size_t bytes)
{
    if (!dynamic_base) {
        void *p = mmap(NULL, DYNAMIC_MOST + 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p, DYNAMIC_MOST, PROT_READ | PROT_WRITE) != 0)
            emu_die("no address space for shared memory");
        dynamic_base = static_cast<unsigned char *>(p);
    }
    dynamic_room = (bytes + 15) / 16 * 16;
    dynamic_shared = dynamic_base + DYNAMIC_MOST - dynamic_room;
}

static void poison_shared(void)
{
    memset(dynamic_shared, POISON, dynamic_room);
    if (dynamic_shared > dynamic_base)
        dynamic_shared[-1] = POISON;
}

static void check_shared(size_t bytes)
{
    for (size_t i = bytes; i < dynamic_room; i++) {
        if (dynamic_shared[i] != POISON)
            emu_die("kernel %s, block (%u,%u,%u) wrote behind its %zu bytes of dynamic shared "
                    "memory",
                    kernel_name(), blockIdx.x, blockIdx.y, blockIdx.z, bytes);
    }
    if (dynamic_shared > dynamic_base && dynamic_shared[-1] != POISON)
        emu_die("kernel %s, block (%u,%u,%u) wrote before its dynamic shared memory", kernel_name(),
                blockIdx.x, blockIdx.y, blockIdx.z);
}

static void run_block(void)
{
    poison_shared();
    b.ended = b.at_barrier = b.barriers = 0;
    b.count[0] = b.count[1] = 0;
    for (unsigned t = 0; t < b.threads; t++)
        may_run(t, CAN_BEGIN);
    shuffle_turns();
    switch_to(fibers.home, next_thread());
    check_shared(b.launch->shared);
}

static void set_up(const emu_launch &l)
{
    if (!fibers.home)
        fibers.home = emu_fiber_home();
    blockDim = l.block;
    gridDim = l.grid;
    b.threads = l.block.x * l.block.y * l.block.z;
    b.warps = (b.threads + LANES - 1) / LANES;
    for (unsigned t = 0; t < b.threads; t++)
        b.thread[t].index = {t % l.block.x, t / l.block.x % l.block.y, t / l.block.x / l.block.y};
    place_shared(l.shared);
}

void emu_run_kernel(const emu_launch &l, void *const *arguments)
{
    static std::vector<unsigned> order;
    b.launch = &l;
    b.arguments = arguments;
    set_up(l);
    emu_permute(order, static_cast<size_t>(l.grid.x) * l.grid.y * l.grid.z);
    for (unsigned i : order) {
        blockIdx = {i % l.grid.x, i / l.grid.x % l.grid.y, i / l.grid.x / l.grid.y};
        run_block();
    }
    b.launch = NULL;
}
