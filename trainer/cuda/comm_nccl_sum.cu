/* comm_nccl_sum.cu: collectives of device memory. Parts (comm_part) are cut at multiples of 16
 * elements, so they are seldom all equal: then each is a reduction to its owner, or a broadcast
 * from it, all in one group, which moves the same bytes. */
#include "trainer/cuda/comm_nccl_parts.h"

#include "trainer/cuda/tape.h"

#define LEVELS 10
static_assert(PLAN_MAX_RANKS <= 1 << LEVELS, "a level of the tree has no place");

/* Words of two are only ever moved. */
static ncclDataType_t type_of(enum comm_type type)
{
    return type == COMM_F32 ? ncclFloat32 : type == COMM_F64 ? ncclFloat64 : ncclUint8;
}

static size_t units_of(enum comm_type type, size_t count)
{
    return type == COMM_U16 ? 2 * count : count;
}

/* 1 if all parts have count / size elements. */
static int are_equal(const struct nccl_comm *c, size_t count)
{
    return count % (16 * static_cast<size_t>(c->base.size)) == 0;
}

static void part(const struct nccl_comm *c, size_t count, int member, enum comm_type type,
                 size_t *ret_at, size_t *ret_count)
{
    size_t begin, end;
    comm_part(count, c->base.size, member, &begin, &end);
    *ret_at = begin * comm_type_size(type);
    *ret_count = end - begin;
}

static void note(ncclResult_t *first, ncclResult_t r)
{
    if (*first == ncclSuccess || *first == ncclInProgress)
        *first = r;
}

/* ---- the tree ---- */

/* buf[n] = the sum over `members` in the tree of comm.h; all but `own`, which is buf, lie in rows
 * [members][stride]. Leaves are carried up like a binary counter. */
template <class T>
__global__ static void sum_tree(int members, int own, int64_t n, const T *rows, int64_t stride,
                                T *buf)
{
    GRID_STRIDE(i, n)
    {
        T level[LEVELS];
        for (int m = 0; m < members; m++) {
            T x = m == own ? buf[i] : rows[m * stride + i];
            int k = 0;
            for (; m >> k & 1; k++)
                x = level[k] + x;
            level[k] = x;
        }
        int k = 0;
        while (!(members >> k & 1))
            k++;
        T sum = level[k];
        for (k++; k < LEVELS; k++)
            if (members >> k & 1)
                sum = level[k] + sum;
        buf[i] = sum;
    }
}

template <class T>
static void add_up(const struct nccl_comm *c, cudaStream_t s, size_t count, const void *scratch,
                   size_t stride, void *buf)
{
    int members = c->base.size, own = c->base.rank;
    int64_t n = static_cast<int64_t>(count), apart = static_cast<int64_t>(stride / sizeof(T));
    const T *rows = static_cast<const T *>(scratch);
    T *to = static_cast<T *>(buf);
    void *arguments[] = {&members, &own, &n, &rows, &apart, &to};
    device_ok(cudaLaunchKernel(sum_tree<T>, tape_grid(n), dim3(TAPE_THREADS), arguments, 0, s),
              "add up what ranks have sent");
}

static size_t clip(size_t at, size_t most)
{
    return at < most ? at : most;
}

/* Elements [k slice, (k + 1) slice) of each part: to its owner, who adds them up. */
static int sum_slice(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                     enum comm_type type, size_t k, size_t slice, char *scratch, struct err *e)
{
    size_t width = comm_type_size(type), own_at = 0, own = 0, stride = slice * width;
    ncclResult_t first = ncclGroupStart();
    for (int m = 0; m < c->base.size; m++) {
        size_t at, n;
        part(c, count, m, type, &at, &n);
        at += clip(k * slice, n) * width;
        n = clip((k + 1) * slice, n) - clip(k * slice, n);
        if (m == c->base.rank) {
            own_at = at;
            own = n;
        } else if (n > 0) {
            note(&first, ncclSend(buf + at, n, type_of(type), m, c->nccl, s));
        }
    }
    for (int m = 0; m < c->base.size; m++)
        if (m != c->base.rank && own > 0)
            note(&first, ncclRecv(scratch + static_cast<size_t>(m) * stride, own, type_of(type), m,
                                  c->nccl, s));
    int r = nccl_grouped(c->w, c->nccl, first, "send parts of a sum", e);
    if (r == 0 && own > 0 && type == COMM_F64)
        add_up<double>(c, s, own, scratch, stride, buf + own_at);
    else if (r == 0 && own > 0)
        add_up<float>(c, s, own, scratch, stride, buf + own_at);
    return r;
}

static int sum_in_tree(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                       enum comm_type type, struct err *e)
{
    size_t width = comm_type_size(type), size = static_cast<size_t>(c->base.size), at, longest;
    size_t most = NCCL_SCRATCH / size / width / 16 * 16;
    int is_beside = s == c->w->beside.stream, r = 0;
    part(c, count, 0, type, &at, &longest); /* none is longer */
    size_t slice = clip((longest + 15) / 16 * 16, most), bytes = size * slice * width;
    char *scratch = static_cast<char *>(is_beside ? c->w->scratch : device_scratch(bytes));
    for (size_t k = 0; r == 0 && k * slice < longest; k++)
        r = sum_slice(c, s, buf, count, type, k, slice, scratch, e);
    if (!is_beside)
        device_scratch_done();
    return r;
}

/* ---- the verbs ---- */

int nccl_sum_all(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count, enum comm_type type,
                 struct err *e)
{
    if (!c->w->is_reproducible)
        return nccl_done(c->w, c->nccl,
                         ncclAllReduce(buf, buf, count, type_of(type), ncclSum, c->nccl, s),
                         "all-reduce", e);
    int r = sum_in_tree(c, s, buf, count, type, e);
    return r < 0 ? r : nccl_gather_parts(c, s, buf, count, type, e);
}

static ncclResult_t reduce_each(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                                enum comm_type type)
{
    ncclResult_t first = ncclSuccess;
    for (int m = 0; m < c->base.size; m++) {
        size_t at, n;
        part(c, count, m, type, &at, &n);
        if (n > 0)
            note(&first, ncclReduce(buf + at, buf + at, n, type_of(type), ncclSum, m, c->nccl, s));
    }
    return first;
}

int nccl_sum_parts(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                   enum comm_type type, struct err *e)
{
    static const char what[] = "reduce-scatter";
    size_t at, n;
    if (c->w->is_reproducible)
        return sum_in_tree(c, s, buf, count, type, e);
    part(c, count, c->base.rank, type, &at, &n);
    if (are_equal(c, count))
        return nccl_done(c->w, c->nccl,
                         ncclReduceScatter(buf, buf + at, n, type_of(type), ncclSum, c->nccl, s),
                         what, e);
    ncclResult_t first = ncclGroupStart();
    note(&first, reduce_each(c, s, buf, count, type));
    return nccl_grouped(c->w, c->nccl, first, what, e);
}

static ncclResult_t broadcast_each(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                                   enum comm_type type)
{
    ncclResult_t first = ncclSuccess;
    for (int m = 0; m < c->base.size; m++) {
        size_t at, n;
        part(c, count, m, type, &at, &n);
        if (n > 0)
            note(&first, ncclBroadcast(buf + at, buf + at, units_of(type, n), type_of(type), m,
                                       c->nccl, s));
    }
    return first;
}

int nccl_gather_parts(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                      enum comm_type type, struct err *e)
{
    static const char what[] = "all-gather";
    size_t at, n;
    part(c, count, c->base.rank, type, &at, &n);
    if (are_equal(c, count))
        return nccl_done(c->w, c->nccl,
                         ncclAllGather(buf + at, buf, units_of(type, n), type_of(type), c->nccl, s),
                         what, e);
    ncclResult_t first = ncclGroupStart();
    note(&first, broadcast_each(c, s, buf, count, type));
    return nccl_grouped(c->w, c->nccl, first, what, e);
}
