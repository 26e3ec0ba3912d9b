/* emu_nccl.cc: communicators: making, splitting, ending them, and calls in groups. As with NCCL's
 * non-blocking ones, a call is made only once the communicator has been asked and says so. */
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emu_nccl.h"

#define ASKS 3 /* how often a communicator says ncclInProgress at least */

struct ncclComm {
    std::shared_ptr<nccl_core> core;
    std::function<ncclResult_t()> pending; /* asked until it is not in progress */
    int asks;
    uint64_t splits;
};

/* How a communicator's memory is found. */
struct place {
    int32_t pid, fd;
};

static std::string &last_error = *new std::string();

static ncclResult_t fail(ncclResult_t r, const std::string &why)
{
    last_error = why;
    return r;
}

/* ---- memory ---- */

static nccl_map *map_file(int fd)
{
    void *p = mmap(NULL, sizeof(nccl_map), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : static_cast<nccl_map *>(p);
}

static int make_file(place *ret)
{
    int fd = memfd_create("emulated-nccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(nccl_map)) < 0)
        return -1;
    *ret = {getpid(), fd};
    return fd;
}

static std::shared_ptr<nccl_core> join(const place &at, int rank, int size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", at.pid, at.fd);
    int is_own = at.pid == getpid(), fd = is_own ? at.fd : open(path, O_RDWR | O_CLOEXEC);
    nccl_map *map = fd < 0 ? NULL : map_file(fd);
    if (!is_own && fd >= 0)
        close(fd);
    if (!map)
        return NULL;
    auto c = std::make_shared<nccl_core>();
    c->map = map;
    c->fd = is_own ? fd : -1;
    c->rank = rank;
    c->size = size;
    emu_device_uuid(0, map->members[rank].uuid);
    map->members[rank].is_here = 1;
    return c;
}

nccl_core::~nccl_core()
{
    munmap(map, sizeof *map);
    if (fd >= 0)
        close(fd);
}

/* ---- making ---- */

static ncclResult_t find_duplicate(const nccl_core &c)
{
    for (int i = 0; i < c.size; i++) {
        for (int k = 0; k < i; k++) {
            if (strcmp(c.map->members[i].uuid, c.map->members[k].uuid) == 0)
                return fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(k) +
                                                  " and rank " + std::to_string(i) + " both on " +
                                                  c.map->members[i].uuid);
        }
    }
    return ncclSuccess;
}

static ncclResult_t meet(const nccl_core &c)
{
    for (int m = 0; m < c.size; m++) {
        if (!c.map->members[m].is_here)
            return ncclInProgress;
    }
    return find_duplicate(c);
}

static void check_config(const ncclConfig_t *config)
{
    if (!config || config->size != sizeof *config || config->magic != EMU_NCCL_MAGIC)
        emu_die("NCCL: a configuration without NCCL_CONFIG_INITIALIZER");
    if (config->blocking != 0)
        emu_die("NCCL: only non-blocking communicators are emulated");
}

static void set_pending(ncclComm_t c, std::function<ncclResult_t()> f)
{
    c->pending = std::move(f);
    c->asks = ASKS;
}

static ncclComm_t new_comm(const std::shared_ptr<nccl_core> &core)
{
    ncclComm_t c = new ncclComm();
    c->core = core;
    set_pending(c, [core] { return meet(*core); });
    return c;
}

static void must_be_ready(ncclComm_t c, const char *what)
{
    if (!c)
        emu_die("NCCL: %s without a communicator", what);
    if (c->pending)
        emu_die("NCCL: %s on a communicator whose last call is still in progress", what);
}

extern "C" ncclResult_t ncclGetVersion(int *version)
{
    const char *text = getenv("TRAINYARD_EMU_NCCL_VERSION");
    *version = text ? atoi(text) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    place at;
    *id = {};
    if (make_file(&at) < 0)
        return fail(ncclSystemError, "no memory file");
    memcpy(id->internal, &at, sizeof at);
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id,
                                               int rank, ncclConfig_t *config)
{
    place at;
    check_config(config);
    if (nranks < 1 || nranks > MEMBERS || rank < 0 || rank >= nranks)
        emu_die("NCCL: rank %d of %d", rank, nranks);
    memcpy(&at, id.internal, sizeof at);
    auto core = join(at, rank, nranks);
    if (!core)
        return fail(ncclSystemError, "the first rank is gone");
    *comm = new_comm(core);
    return ncclInProgress;
}

/* ---- splitting ---- */

static nccl_wish &wish_of(const nccl_core &c, int member, uint64_t split)
{
    return c.map->members[member].wishes[split % 2];
}

/* The members of `color` of a split, in the order of their keys; in *ret_rank this one's place. */
static std::vector<int> members_of(const nccl_core &c, uint64_t split, int color, int *ret_rank)
{
    std::vector<int> in;
    for (int m = 0; m < c.size; m++) {
        const nccl_wish &w = wish_of(c, m, split);
        if (w.color != color)
            continue;
        size_t i = in.size();
        while (i > 0 && wish_of(c, in[i - 1], split).key > w.key)
            i--;
        in.insert(in.begin() + static_cast<long>(i), m);
    }
    for (size_t i = 0; i < in.size(); i++) {
        if (in[i] == c.rank)
            *ret_rank = static_cast<int>(i);
    }
    return in;
}

/* The child is told of once the parent is ready, as NCCL does. */
static ncclResult_t split_on(ncclComm_t parent, ncclComm_t *ret)
{
    nccl_core &c = *parent->core;
    nccl_wish &mine = wish_of(c, c.rank, parent->splits);
    int rank = 0;
    for (int m = 0; m < c.size; m++) {
        if (wish_of(c, m, parent->splits).number < parent->splits)
            return ncclInProgress;
    }
    if (mine.color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    std::vector<int> in = members_of(c, parent->splits, mine.color, &rank);
    nccl_wish &first = wish_of(c, in[0], parent->splits);
    place at;
    if (rank == 0 && mine.made < parent->splits) {
        if (make_file(&at) < 0)
            return fail(ncclSystemError, "no memory file");
        mine.pid = at.pid;
        mine.fd = at.fd;
        mine.made = parent->splits;
    }
    if (first.made < parent->splits)
        return ncclInProgress;
    auto core = join({first.pid, first.fd}, rank, static_cast<int>(in.size()));
    if (!core)
        return fail(ncclRemoteError, "the first rank is gone");
    *ret = new_comm(core);
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                                      ncclConfig_t *config)
{
    check_config(config);
    must_be_ready(comm, "ncclCommSplit");
    nccl_wish &w = wish_of(*comm->core, comm->core->rank, ++comm->splits);
    *newcomm = NULL;
    w.color = color;
    w.key = key;
    w.number = comm->splits;
    set_pending(comm, [comm, newcomm] { return split_on(comm, newcomm); });
    return ncclInProgress;
}

/* ---- asking and ending ---- */

extern "C" ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    *state = static_cast<ncclResult_t>(comm->core->error.load());
    if (*state != ncclSuccess || !comm->pending)
        return ncclSuccess;
    *state = ncclInProgress;
    if (comm->asks-- > 0)
        return ncclSuccess;
    *state = comm->pending();
    if (*state != ncclInProgress) {
        comm->pending = NULL;
        comm->core->error = *state;
    }
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    must_be_ready(comm, "ncclCommFinalize");
    auto core = comm->core;
    set_pending(comm,
                [core] { return core->finished == core->launched ? ncclSuccess : ncclInProgress; });
    return ncclInProgress;
}

extern "C" ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    must_be_ready(comm, "ncclCommDestroy");
    delete comm;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    const char *how = getenv("TRAINYARD_EMU_NCCL_ABORT");
    while (how && strcmp(how, "hang") == 0)
        pause();
    comm->core->is_aborted = 1;
    delete comm;
    return ncclSuccess;
}

extern "C" const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const TEXTS[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return r < sizeof TEXTS / sizeof TEXTS[0] ? TEXTS[r] : "unknown result code";
}

extern "C" const char *ncclGetLastError(ncclComm_t)
{
    return last_error.c_str();
}

/* ---- calls ---- */

static int depth;
static std::vector<nccl_op> &group = *new std::vector<nccl_op>();

/* All that the group has for the communicator of its first call. */
static void launch_some(void)
{
    ncclComm_t c = group[0].comm;
    std::vector<nccl_op> own, rest;
    for (const nccl_op &op : group)
        (op.comm == c ? own : rest).push_back(op);
    group = rest;
    set_pending(c, [core = c->core, own] {
        return nccl_launch(core, own) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    });
}

extern "C" ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        emu_die("NCCL: ncclGroupEnd without ncclGroupStart");
    if (--depth > 0)
        return ncclSuccess;
    int any = !group.empty();
    while (!group.empty())
        launch_some();
    return any ? ncclInProgress : ncclSuccess;
}

static void check_pointer(const nccl_op &op, const void *p)
{
    if (op.count > 0 && !emu_is_device(p))
        emu_die("NCCL: %s of memory that is not the device's (%p)", nccl_kind_name(op.kind), p);
}

static ncclResult_t call(const nccl_op &op, int has_from, int has_to)
{
    must_be_ready(op.comm, nccl_kind_name(op.kind));
    const nccl_core &c = *op.comm->core;
    int is_message = op.kind == KIND_SEND || op.kind == KIND_RECV;
    if (op.root < 0 || op.root >= c.size || (is_message && op.root == c.rank))
        emu_die("NCCL: %s with rank %d of %d by rank %d", nccl_kind_name(op.kind), op.root, c.size,
                c.rank);
    for (const nccl_op &x : group) {
        if (is_message && x.comm == op.comm && x.kind == op.kind && x.root == op.root)
            emu_die("NCCL: two messages to the same rank in a group are not emulated");
    }
    if (has_from)
        check_pointer(op, op.from);
    if (has_to)
        check_pointer(op, op.to);
    ncclGroupStart();
    group.push_back(op);
    return ncclGroupEnd();
}

static void check_sum(ncclRedOp_t op)
{
    if (op != ncclSum)
        emu_die("NCCL: of reductions only ncclSum is emulated");
}

extern "C" ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    check_sum(op);
    return call({KIND_ALL_REDUCE, from, to, count, type, 0, comm, stream}, 1, 1);
}

extern "C" ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    check_sum(op);
    return call({KIND_REDUCE, from, to, count, type, root, comm, stream}, 1,
                comm && comm->core->rank == root);
}

extern "C" ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type,
                                      int root, ncclComm_t comm, cudaStream_t stream)
{
    return call({KIND_BROADCAST, from, to, count, type, root, comm, stream},
                comm && comm->core->rank == root, 1);
}

extern "C" ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count,
                                          ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                          cudaStream_t stream)
{
    check_sum(op);
    return call({KIND_REDUCE_SCATTER, from, to, count, type, 0, comm, stream}, 1, 1);
}

extern "C" ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclComm_t comm, cudaStream_t stream)
{
    return call({KIND_ALL_GATHER, from, to, count, type, 0, comm, stream}, 1, 1);
}

extern "C" ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t comm, cudaStream_t stream)
{
    return call({KIND_SEND, from, NULL, count, type, peer, comm, stream}, 1, 0);
}

extern "C" ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t comm, cudaStream_t stream)
{
    return call({KIND_RECV, NULL, to, count, type, peer, comm, stream}, 0, 1);
}
