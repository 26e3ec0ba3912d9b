/* emu_nccl_move.cc: what NCCL's kernels do, on the device thread, a piece at a time: a kernel that
 * waits for another rank lets other streams go on.
 *
 * Sums are added up around the ring, each stretch of the elements beginning at another member: so
 * they differ from any other order in their last bits, as NCCL's do. A send ends when its receive
 * has taken everything: nothing is buffered.
 */
#include <cstdlib>
#include <cstring>

#include "emu_nccl.h"

size_t nccl_width(ncclDataType_t t)
{
    return t == ncclFloat64 ? 8 : t == ncclFloat32 ? 4 : 1;
}

const char *nccl_kind_name(uint32_t kind)
{
    static const char *const NAMES[] = {"ncclAllReduce",     "ncclReduce",    "ncclBroadcast",
                                        "ncclReduceScatter", "ncclAllGather", "ncclSend",
                                        "ncclRecv"};
    return kind < sizeof NAMES / sizeof NAMES[0] ? NAMES[kind] : "?";
}

/* How far one operation of a kernel is. */
struct nccl_state {
    nccl_op op;
    size_t at;      /* elements; of a message, bytes */
    int stage;      /* 0: not begun */
    int member;     /* all_gather: whose part */
    uint64_t order; /* of the message between the two */
    int is_done;
};

struct nccl_kernel {
    std::shared_ptr<nccl_core> core;
    std::vector<nccl_state> states;
    uint64_t number;
    ncclResult_t fails; /* ncclSuccess: not */
};

/* ---- collectives ---- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void arrive(nccl_core &c)
{
    c.map->members[c.rank].phase = ++c.phase;
}

static int have_all_arrived(const nccl_core &c)
{
    for (int m = 0; m < c.size; m++) {
        if (c.map->members[m].phase < c.phase)
            return 0;
    }
    return 1;
}

/* Elements that all members together speak of. */
static size_t total_of(const nccl_core &c, const nccl_op &op)
{
    return op.kind == KIND_REDUCE_SCATTER ? op.count * static_cast<size_t>(c.size) : op.count;
}

static int root_of(const nccl_state &s)
{
    return s.op.kind == KIND_ALL_GATHER ? s.member : s.op.root;
}

static int is_sum(nccl_kind k)
{
    return k == KIND_ALL_REDUCE || k == KIND_REDUCE || k == KIND_REDUCE_SCATTER;
}

static void say_call(nccl_core &c, const nccl_state &s)
{
    uint64_t n = ++c.calls;
    c.map->members[c.rank].calls[n % 2] = {n, static_cast<uint32_t>(s.op.kind),
                                           static_cast<uint32_t>(s.op.type), s.op.count, s.op.root};
}

static void compare_calls(const nccl_core &c)
{
    const nccl_call &mine = c.map->members[c.rank].calls[c.calls % 2];
    for (int m = 0; m < c.size; m++) {
        const nccl_call &x = c.map->members[m].calls[c.calls % 2];
        if (memcmp(&x, &mine, sizeof x) != 0)
            emu_die(
                "NCCL: ranks' calls differ: call %llu of rank %d is %s of %llu elements of type "
                "%u, call %llu of rank %d is %s of %llu of type %u",
                static_cast<unsigned long long>(mine.number), c.rank, nccl_kind_name(mine.kind),
                static_cast<unsigned long long>(mine.count), mine.type,
                static_cast<unsigned long long>(x.number), m, nccl_kind_name(x.kind),
                static_cast<unsigned long long>(x.count), x.type);
    }
}

/* Elements [at, at + n) of what this member gives to the others. */
static void give(nccl_core &c, const nccl_state &s, size_t n)
{
    size_t width = nccl_width(s.op.type);
    const char *from = static_cast<const char *>(s.op.from) + s.at * width;
    if (is_sum(s.op.kind) || root_of(s) == c.rank)
        memcpy(c.map->members[c.rank].data, emu_translate(from, n * width), n * width);
}

template <class T>
static void add_around(const nccl_core &c, const nccl_state &s, size_t i, size_t n, T *out)
{
    size_t total = total_of(c, s.op), size = static_cast<size_t>(c.size);
    for (size_t k = i; k < i + n; k++) {
        size_t first = (s.at + k) * size / total + 1;
        T sum = 0;
        for (size_t m = 0; m < size; m++) {
            T x = reinterpret_cast<const T *>(c.map->members[(first + m) % size].data)[k];
            sum = m ? sum + x : x;
        }
        out[k - i] = sum;
    }
}

/* Elements [i, i + n) of the piece into `to`. */
static void add_into(const nccl_core &c, const nccl_state &s, size_t i, size_t n, char *to)
{
    size_t bytes = n * nccl_width(s.op.type);
    if (n == 0)
        return;
    if (s.op.type == ncclFloat64)
        add_around(c, s, i, n, reinterpret_cast<double *>(emu_translate(to, bytes)));
    else if (s.op.type == ncclFloat32)
        add_around(c, s, i, n, reinterpret_cast<float *>(emu_translate(to, bytes)));
    else
        emu_die("NCCL: a sum of elements of type %d is not emulated", s.op.type);
}

/* Of a piece of n elements at s.at, what this member gets. */
static void take(const nccl_core &c, const nccl_state &s, size_t n)
{
    size_t width = nccl_width(s.op.type), begin = 0, end = n, base = s.at;
    char *to = static_cast<char *>(s.op.to);
    if (s.op.kind == KIND_REDUCE_SCATTER) {
        size_t low = static_cast<size_t>(c.rank) * s.op.count, high = low + s.op.count;
        begin = smaller(low > s.at ? low - s.at : 0, n);
        end = smaller(high > s.at ? high - s.at : 0, n);
        base = s.at + begin - (end > begin ? low : s.at + begin);
    } else if (s.op.kind == KIND_ALL_GATHER) {
        base = static_cast<size_t>(s.member) * s.op.count + s.at;
    }
    if (is_sum(s.op.kind) && (s.op.kind != KIND_REDUCE || s.op.root == c.rank))
        add_into(c, s, begin, end - begin, to + base * width);
    if (!is_sum(s.op.kind))
        memcpy(emu_translate(to + base * width, n * width), c.map->members[root_of(s)].data,
               n * width);
}

static void next_piece(const nccl_core &c, nccl_state &s, size_t n)
{
    s.at += n;
    s.stage = 1;
    if (s.at < total_of(c, s.op))
        return;
    s.at = 0;
    s.is_done = s.op.kind != KIND_ALL_GATHER || ++s.member == c.size;
}

/* Stages: 0 the call, 1 giving, 2 all have given, 3 all have taken. */
static emu_progress collect(nccl_core &c, nccl_state &s)
{
    size_t n = smaller(PIECE / nccl_width(s.op.type), total_of(c, s.op) - s.at);
    switch (s.stage) {
    case 0:
        say_call(c, s);
        s.stage = 1;
        if (total_of(c, s.op) == 0)
            s.is_done = 1;
        return EMU_MORE;
    case 1:
        give(c, s, n);
        arrive(c);
        s.stage = 2;
        return EMU_MORE;
    case 2:
        if (!have_all_arrived(c))
            return EMU_NOT_YET;
        if (s.at == 0 && s.member == 0)
            compare_calls(c);
        take(c, s, n);
        arrive(c);
        s.stage = 3;
        return EMU_MORE;
    default:
        if (!have_all_arrived(c))
            return EMU_NOT_YET;
        next_piece(c, s, n);
        return EMU_MORE;
    }
}

/* ---- messages ---- */

static size_t bytes_of(const nccl_op &op)
{
    return op.count * nccl_width(op.type);
}

static emu_progress send_on(nccl_core &c, nccl_state &s)
{
    nccl_box &b = c.map->boxes[c.rank][s.op.root];
    size_t bytes = bytes_of(s.op);
    if (s.stage == 0) {
        s.order = ++c.sent[s.op.root];
        s.stage = 1;
    }
    if (b.wanted < s.order || b.given != b.taken)
        return EMU_NOT_YET;
    if (s.at == bytes) { /* all is taken; the receiver may ask for the next one already */
        s.is_done = 1;
        return EMU_MORE;
    }
    if (b.bytes != bytes)
        emu_die("NCCL: rank %d sends %zu bytes to rank %d, which asks for %llu", c.rank, bytes,
                s.op.root, static_cast<unsigned long long>(b.bytes));
    size_t n = smaller(PIECE, bytes - s.at);
    memcpy(b.data, emu_translate(static_cast<const char *>(s.op.from) + s.at, n), n);
    s.at += n;
    b.given = b.given + 1;
    return EMU_MORE;
}

static emu_progress receive_on(nccl_core &c, nccl_state &s)
{
    nccl_box &b = c.map->boxes[s.op.root][c.rank];
    size_t bytes = bytes_of(s.op);
    if (s.stage == 0) {
        b.bytes = bytes;
        b.wanted = ++c.received[s.op.root];
        s.stage = 1;
    }
    if (b.given == b.taken)
        return EMU_NOT_YET;
    size_t n = smaller(PIECE, bytes - s.at);
    memcpy(emu_translate(static_cast<char *>(s.op.to) + s.at, n), b.data, n);
    s.at += n;
    s.is_done = s.at == bytes;
    b.taken = b.taken + 1;
    return EMU_MORE;
}

/* ---- kernels ---- */

static emu_progress go_on(nccl_core &c, nccl_state &s)
{
    if (s.op.kind == KIND_SEND)
        return send_on(c, s);
    return s.op.kind == KIND_RECV ? receive_on(c, s) : collect(c, s);
}

/* Messages go on beside one another, collectives one after the other. */
static emu_progress go_round(nccl_kernel &k)
{
    int left = 0, moved = 0, is_behind = 0;
    for (nccl_state &s : k.states) {
        int is_message = s.op.kind == KIND_SEND || s.op.kind == KIND_RECV;
        if (s.is_done || (!is_message && is_behind))
            continue;
        moved |= go_on(*k.core, s) == EMU_MORE;
        left |= !s.is_done;
        is_behind |= !is_message && !s.is_done;
    }
    for (const nccl_state &s : k.states)
        left |= !s.is_done;
    return !left ? EMU_DONE : moved ? EMU_MORE : EMU_NOT_YET;
}

static emu_progress run(nccl_kernel &k)
{
    nccl_core &c = *k.core;
    if (c.is_aborted)
        return EMU_DONE;
    if (c.finished + 1 != k.number)
        return EMU_NOT_YET;
    if (k.fails != ncclSuccess) {
        c.error = k.fails;
        return EMU_NOT_YET;
    }
    emu_progress p = go_round(k);
    if (p == EMU_DONE)
        c.finished = k.number;
    return p;
}

/* TRAINYARD_EMU_NCCL_FAIL; the first communicator of a process has its world rank. */
static ncclResult_t wish_for_failure(const nccl_core &c)
{
    static uint64_t launched;
    static int world_rank = c.rank;
    const char *text = getenv("TRAINYARD_EMU_NCCL_FAIL");
    int rank, result;
    unsigned long long n;
    launched++;
    if (!text || sscanf(text, "%d:%llu:%d", &rank, &n, &result) != 3)
        return ncclSuccess;
    return rank == world_rank && n == launched ? static_cast<ncclResult_t>(result) : ncclSuccess;
}

cudaError_t nccl_launch(const std::shared_ptr<nccl_core> &core, const std::vector<nccl_op> &ops)
{
    auto k = std::make_shared<nccl_kernel>();
    k->core = core;
    for (const nccl_op &op : ops) {
        if (op.stream != ops[0].stream)
            emu_die("NCCL: a group on several streams is not emulated");
        if (op.kind != KIND_SEND && op.kind != KIND_RECV)
            k->states.push_back({op, 0, 0, 0, 0, 0});
        else if (op.count > 0)
            k->states.push_back({op, 0, 0, 0, 0, 0});
    }
    if (emu_is_capturing(ops[0].stream))
        emu_die("NCCL: %s in a capture is not emulated", nccl_kind_name(ops[0].kind));
    k->number = ++core->launched;
    k->fails = wish_for_failure(*core);
    return emu_enqueue(ops[0].stream, nccl_kind_name(ops[0].kind), [k] { return run(*k); });
}
