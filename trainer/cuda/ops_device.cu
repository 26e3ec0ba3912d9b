/* ops_device.cu: memory and copies, as verbs.
 *
 * Copies between pageable memory and the device go through two pinned buffers, so that CUDA never
 * waits in a call of its own (device.h) and the host may do with its memory what it likes.
 */
#include "trainer/cuda/device_parts.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/tape.h"

int cuda_open(const struct ops_options *o, struct err *e)
{
    return device_open(o, e);
}

void cuda_close(void)
{
    device_close();
}

int cuda_finish(struct err *e)
{
    return device_settle(e);
}

void cuda_start(void)
{
    tape_issue();
}

size_t cuda_workspace(const struct ops_options *o)
{
    return DEVICE_SCRATCH + DEVICE_BLAS_WORKSPACE + 2 * device_operand_room(o) * sizeof(uint16_t);
}

int64_t cuda_used(void)
{
    return device_used();
}

void cuda_room(int64_t *ret_all, int64_t *ret_free)
{
    size_t left = 0, all = 0;
    *ret_all = *ret_free = -1;
    if (device_failed() || !device_ok(cudaMemGetInfo(&left, &all), "tell its memory"))
        return;
    *ret_all = static_cast<int64_t>(all);
    *ret_free = static_cast<int64_t>(left);
}

struct cuda_counts cuda_counts(void)
{
    struct tape_counts t = tape_counts();
    return {device_waits(), t.direct, t.replayed};
}

void *cuda_alloc(size_t bytes)
{
    return device_alloc(bytes);
}

void cuda_release(void *p)
{
    device_release(p);
}

void *cuda_alloc_host(size_t bytes)
{
    return device_alloc_host(bytes);
}

void cuda_release_host(void *p)
{
    device_release_host(p);
}

void cuda_zero(void *p, size_t bytes)
{
    tape_zero(p, bytes);
}

void cuda_copy(void *to, const void *from, size_t bytes)
{
    tape_copy(to, from, bytes);
}

/* ---- through pinned memory ---- */

/* The next of the buffers, once its last copy is done. */
static struct device_staging *take_staging(void)
{
    struct device_staging *s = &device.staging[device.next_staging];
    device.next_staging = !device.next_staging;
    if (s->is_busy)
        device_wait(s->done);
    s->is_busy = 0;
    return s;
}

static void give_staging(struct device_staging *s)
{
    device.is_asked = 1;
    s->is_busy = device_ok(cudaEventRecord(s->done, device.compute), "record an event");
}

static size_t piece_of(size_t bytes)
{
    return bytes < DEVICE_STAGING ? bytes : DEVICE_STAGING;
}

void cuda_upload(void *to, const void *host, size_t bytes)
{
    if (!bytes)
        return;
    tape_issue();
    for (size_t at = 0; at < bytes && !device_failed();) {
        size_t n = piece_of(bytes - at);
        struct device_staging *s = take_staging();
        if (device_failed())
            return;
        memcpy(s->host, static_cast<const char *>(host) + at, n);
        if (device_ok(cudaMemcpyAsync(static_cast<char *>(to) + at, s->host, n,
                                      cudaMemcpyHostToDevice, device.compute),
                      "copy from the host"))
            give_staging(s);
        at += n;
    }
}

/* Two pieces on their way: one is copied out while the other comes in. */
static void download_pieces(char *host, const char *from, size_t bytes)
{
    struct device_staging *last = NULL;
    size_t last_bytes = 0;
    for (size_t at = 0; at < bytes || last;) {
        struct device_staging *s = NULL;
        size_t n = piece_of(bytes - at);
        if (n) {
            s = take_staging();
            if (device_failed() ||
                !device_ok(
                    cudaMemcpyAsync(s->host, from + at, n, cudaMemcpyDeviceToHost, device.compute),
                    "copy to the host"))
                return;
            give_staging(s);
        }
        if (last) {
            device_wait(last->done);
            if (device_failed())
                return;
            last->is_busy = 0;
            memcpy(host + at - last_bytes, last->host, last_bytes);
        }
        last = s;
        last_bytes = n;
        at += n;
    }
}

void cuda_fetch(void *host, const void *from, size_t bytes)
{
    if (bytes && (device.fetch_count == DEVICE_FETCHES || !device_is_pinned(host)))
        cuda_download(host, from, bytes);
    else if (bytes)
        device.fetches[device.fetch_count++] = {host, from, bytes};
}

/* Uploads that were joined are done then, too. */
void cuda_download(void *host, const void *from, size_t bytes)
{
    device_issue();
    if (bytes && device_is_pinned(host)) {
        if (!device_failed())
            device_ok(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, device.compute),
                      "copy to the host");
        device_wait_stream(device.compute);
    } else if (bytes) {
        download_pieces(static_cast<char *>(host), static_cast<const char *>(from), bytes);
        device.is_asked = 0;
        if (!device_failed())
            tape_issued_well();
    }
}

/* ---- beside ---- */

/* What verbs before the last join used is free once they are done; those after it use something
 * else (ops.h). */
void cuda_upload_beside(void *to, const void *host, size_t bytes)
{
    if (!device_is_pinned(host)) {
        cuda_upload(to, host, bytes);
        return;
    }
    if (device_failed() || !bytes)
        return;
    if (device_ok(cudaStreamWaitEvent(device.beside, device.joined, 0), "order its streams"))
        device_ok(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, device.beside),
                  "copy from the host");
    device.is_uploading = device.uploads_unknown = 1;
}

void cuda_join_uploads(void)
{
    tape_issue();
    if (device_failed())
        return;
    if (device.is_uploading) {
        device.is_asked = 1;
        device_ok(cudaEventRecord(device.uploaded, device.beside), "record an event");
        device_ok(cudaStreamWaitEvent(device.compute, device.uploaded, 0), "order its streams");
    }
    device.is_uploading = 0;
    device_ok(cudaEventRecord(device.joined, device.compute), "record an event");
}
