/* comm_nccl_message.cu: messages between neighbours of a line (comm_nccl.h says why each way has a
 * communicator of its own). */
#include "trainer/cuda/comm_nccl_parts.h"

#define LINES 2 /* the two families of a pipeline */

size_t nccl_line_bytes(size_t message_bytes)
{
    size_t slot = (message_bytes + 255) / 256 * 256;
    return LINES * 2 * 2 * slot; /* in and out, two slots each */
}

/* ---- opening ---- */

static int no_memory(size_t bytes, struct err *e)
{
    return err_set(e, ERR_NO_MEMORY,
                   "The GPU %s (%s) has no %zu bytes left for messages between stages.",
                   device_traits()->name, device_traits()->uuid, bytes);
}

static struct nccl_channel *new_channel(struct nccl_world *w, ncclComm_t nccl, struct err *e)
{
    struct nccl_channel *h = static_cast<struct nccl_channel *>(mem_zalloc(sizeof *h));
    cudaStream_t s = NULL;
    int is_well =
        device_ok(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "make a stream") &&
        nccl_lane_open(w, &h->lane, s) == 0;
    h->nccl = nccl;
    for (int i = 0; is_well && i < 2; i++) {
        is_well = device_ok(cudaEventCreateWithFlags(&h->filled[i], cudaEventDisableTiming),
                            "make an event") &&
                  device_ok(cudaEventCreateWithFlags(&h->emptied[i], cudaEventDisableTiming),
                            "make an event");
        h->slot[i] = static_cast<char *>(device_alloc(w->message_bytes));
        if (is_well && !h->slot[i]) {
            no_memory(w->message_bytes, e);
            device_fail(e);
            is_well = 0;
        }
    }
    if (!is_well)
        device_finish(e);
    w->own_used += 2 * w->message_bytes;
    return h;
}

static void free_channel(struct nccl_channel *h)
{
    if (!h)
        return;
    if (!device_failed()) { /* else something may wait there for ever, and the call with it */
        for (int i = 0; i < 2; i++) {
            device_release(h->slot[i]);
            cudaEventDestroy(h->filled[i]);
            cudaEventDestroy(h->emptied[i]);
        }
        nccl_lane_close(&h->lane);
        cudaStreamDestroy(h->lane.stream);
    }
    free(h);
}

/* The connection is made by the first message, which therefore goes now, when both are here. */
static int greet(struct nccl_world *w, struct nccl_channel *h, int is_out, struct err *e)
{
    ncclResult_t r = is_out ? ncclSend(h->slot[0], 1, ncclUint8, 1, h->nccl, h->lane.stream)
                            : ncclRecv(h->slot[0], 1, ncclUint8, 0, h->nccl, h->lane.stream);
    return nccl_done(w, h->nccl, r, "greet a neighbour", e);
}

/* Neighbours are pairs in a ring: pair j is of members j and j + 1. A member is in at most one of
 * those that are made at the same time: the even ones, the odd ones, and in an odd ring the last.
 */
static int round_of(int pair, int size)
{
    return size % 2 && pair == size - 1 ? 2 : pair % 2;
}

static int open_pair(struct nccl_comm *c, int color, int is_out, struct err *e)
{
    ncclComm_t nccl;
    int r = nccl_split(c->w, color, is_out ? 0 : 1, &nccl, e);
    if (r < 0 || color < 0)
        return r;
    struct nccl_channel *h = new_channel(c->w, nccl, e);
    *(is_out ? &c->out : &c->in) = h;
    return device_failed() ? device_finish(e) : greet(c->w, h, is_out, e);
}

int nccl_line_open(struct nccl_comm *c, int index, struct err *e)
{
    int size = c->base.size, next = c->base.rank, previous = (next + size - 1) % size, r = 0;
    int is_back = c->base.family == COMM_PIPELINE_BACK;
    for (int round = 0; r == 0 && round < 3; round++) {
        int with_next = round_of(next, size) == round;
        int is_in = with_next || round_of(previous, size) == round;
        int pair = with_next ? next : previous;
        r = open_pair(c, is_in ? index * c->w->size + pair : -1, with_next != is_back, e);
    }
    return r;
}

void nccl_line_close(struct nccl_comm *c)
{
    free_channel(c->out);
    free_channel(c->in);
}

/* ---- messages ---- */

static void wait_for(cudaStream_t s, cudaEvent_t event)
{
    device_ok(cudaStreamWaitEvent(s, event, 0), "wait for an event");
}

static void record(cudaStream_t s, cudaEvent_t event)
{
    device_ok(cudaEventRecord(event, s), "record an event");
}

static int begin(struct nccl_comm *c, const char *verb, size_t bytes, struct err *e)
{
    c->w->doing = verb;
    if (bytes > c->w->message_bytes)
        BUG("a message of %zu bytes", bytes);
    return nccl_going(c->w, e);
}

/* Between the two events of the lane. */
static int move(struct nccl_comm *c, struct nccl_channel *h, int is_send, size_t bytes,
                struct err *e)
{
    void *slot = h->slot[h->count % 2];
    nccl_lane_begin(&h->lane);
    ncclResult_t r = ncclSuccess;
    if (bytes > 0)
        r = is_send ? ncclSend(slot, bytes, ncclUint8, 1, h->nccl, h->lane.stream)
                    : ncclRecv(slot, bytes, ncclUint8, 0, h->nccl, h->lane.stream);
    int s = nccl_done(c->w, h->nccl, r, is_send ? "send a message" : "receive a message", e);
    if (s == 0)
        nccl_lane_end(&h->lane, ++h->count);
    return s;
}

int nccl_send(struct comm *base, int to, const void *buf, size_t bytes, struct err *e)
{
    struct nccl_comm *c = nccl_self(base);
    struct nccl_channel *h = c->out;
    int ahead = base->family == COMM_PIPELINE ? 1 : base->size - 1;
    if (to != (base->rank + ahead) % base->size)
        BUG("a message from member %d to %d, against the line of family %d", base->rank, to,
            static_cast<int>(base->family));
    int r = begin(c, "send", bytes, e);
    if (r < 0)
        return r;
    cudaStream_t s = device_stream();
    int i = static_cast<int>(h->count % 2);
    if (h->count >= 2)
        wait_for(s, h->emptied[i]);
    if (bytes > 0)
        device_ok(cudaMemcpyAsync(h->slot[i], buf, bytes, cudaMemcpyDeviceToDevice, s),
                  "copy a message");
    record(s, h->filled[i]);
    wait_for(h->lane.stream, h->filled[i]);
    if ((r = move(c, h, 1, bytes, e)) == 0)
        record(h->lane.stream, h->emptied[i]);
    return r;
}

int nccl_recv(struct comm *base, int from, void *buf, size_t bytes, struct err *e)
{
    struct nccl_comm *c = nccl_self(base);
    struct nccl_channel *h = c->in;
    int behind = base->family == COMM_PIPELINE ? base->size - 1 : 1;
    if (from != (base->rank + behind) % base->size)
        BUG("a message to member %d from %d, against the line of family %d", base->rank, from,
            static_cast<int>(base->family));
    int r = begin(c, "recv", bytes, e);
    if (r < 0)
        return r;
    int i = static_cast<int>(h->count % 2);
    if (h->count >= 2)
        wait_for(h->lane.stream, h->emptied[i]);
    if ((r = move(c, h, 0, bytes, e)) < 0)
        return r;
    record(h->lane.stream, h->filled[i]);
    cudaStream_t s = device_stream();
    wait_for(s, h->filled[i]);
    if (bytes > 0)
        device_ok(cudaMemcpyAsync(buf, h->slot[i], bytes, cudaMemcpyDeviceToDevice, s),
                  "copy a message");
    record(s, h->emptied[i]);
    return 0;
}
