/* comm_nccl_watch.cu: whether the gang goes on: NCCL's errors, the hosts' news, the clock, and the
 * end of it. */
#include "trainer/cuda/comm_nccl_parts.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define LOOK_US  1000  /* between two looks at the streams */
#define HOSTS_US 10000 /* and at the hosts */
#define ANEW_US  1000000

/* ---- the end ---- */

struct abort_job {
    ncclComm_t comms[NCCL_COMMS];
    int count;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int is_done;
};

static void *abort_all(void *context)
{
    struct abort_job *j = static_cast<struct abort_job *>(context);
    for (int i = j->count - 1; i >= 0; i--)
        ncclCommAbort(j->comms[i]);
    pthread_mutex_lock(&j->mutex);
    j->is_done = 1;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->mutex);
    return NULL;
}

static struct abort_job *new_job(const struct nccl_world *w)
{
    struct abort_job *j = static_cast<struct abort_job *>(mem_zalloc(sizeof *j));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&j->mutex, NULL);
    pthread_cond_init(&j->changed, &attr);
    pthread_condattr_destroy(&attr);
    memcpy(j->comms, w->comms, sizeof w->comms);
    j->count = w->comm_count;
    return j;
}

static int wait_for_abort(struct abort_job *j)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ABORT_MS / 1000;
    pthread_mutex_lock(&j->mutex);
    while (!j->is_done && pthread_cond_timedwait(&j->changed, &j->mutex, &until) == 0)
        ;
    int is_done = j->is_done;
    pthread_mutex_unlock(&j->mutex);
    return is_done;
}

/* An abort may itself wait for ever, in a driver or a proxy that is stuck. Then its thread is left
 * to the end of the process, which is near. */
static void abort_comms(struct nccl_world *w)
{
    pthread_t thread;
    struct abort_job *j = new_job(w);
    w->comm_count = 0;
    if (j->count == 0 || pthread_create(&thread, NULL, abort_all, j) != 0) {
        free(j);
        return;
    }
    if (!wait_for_abort(j)) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    pthread_mutex_destroy(&j->mutex);
    pthread_cond_destroy(&j->changed);
    free(j);
}

int nccl_end(struct nccl_world *w, struct err *e)
{
    if (!w->why.code) {
        w->why = *e;
        device_fail(e);
        abort_comms(w);
    }
    return e->code;
}

int nccl_going(struct nccl_world *w, struct err *e)
{
    if (w->why.code)
        return err_set(e, w->why.code, "%s", w->why.text);
    return device_failed() ? device_finish(e) : 0;
}

/* ---- looking ---- */

static int say_late(const struct nccl_world *w, const char *what, struct err *e)
{
    int64_t step = __atomic_load_n(w->hosts->step, __ATOMIC_RELAXED);
    char where[64] = "";
    if (step > 0)
        snprintf(where, sizeof where, " at step %lld", static_cast<long long>(step));
    return err_set(
        e, ERR_TIMEOUT,
        "Rank %d waited %.3g s in %s%s for the GPUs of other ranks, and nothing moved in "
        "the gang.",
        w->hosts->rank, static_cast<double>(w->deadline_us) * 1e-6, what, where);
}

/* Has somebody died, or has nothing moved for the deadline? What nobody has looked at for a while
 * is looked at anew. */
static int look_at_hosts(struct nccl_world *w, const char *what, struct err *e)
{
    uint64_t moved = 0;
    int64_t now = clock_boottime_us();
    int r = w->hosts->verbs->check(w->hosts, what, &moved, e);
    if (r < 0)
        return r;
    if (moved != w->moved || now - w->seen_us > ANEW_US) {
        w->moved = moved;
        w->moved_us = now;
    }
    w->seen_us = now;
    return now - w->moved_us > w->deadline_us ? say_late(w, what, e) : 0;
}

static int is_time(int64_t *at, int64_t every)
{
    int64_t now = clock_boottime_us();
    if (now - *at < every)
        return 0;
    *at = now;
    return 1;
}

/* The end of a peer is often seen by NCCL first, which does not know whose it is. */
static int explain(struct nccl_world *w, ncclComm_t c, ncclResult_t r, const char *what,
                   struct err *e)
{
    uint64_t moved;
    for (int ms = 0; ms < VERDICT_MS; ms += 10) {
        int known = w->hosts->verbs->check(w->hosts, w->doing, &moved, e);
        if (known < 0)
            return known;
        if (r == ncclInvalidArgument || r == ncclInvalidUsage)
            break; /* nobody's end */
        usleep(10000);
    }
    const char *last = ncclGetLastError(c);
    int code = r == ncclRemoteError                                ? ERR_PEER
               : r == ncclInvalidArgument || r == ncclInvalidUsage ? ERR_INTERNAL
                                                                   : ERR_IO;
    return err_set(e, code, "NCCL could not %s: %s%s%s", what, ncclGetErrorString(r),
                   last && *last ? ": " : "", last ? last : "");
}

static int look_at_comms(struct nccl_world *w, struct err *e)
{
    for (int i = 0; i < w->comm_count; i++) {
        ncclResult_t state = ncclSuccess, r = ncclCommGetAsyncError(w->comms[i], &state);
        if (r == ncclSuccess)
            r = state;
        if (r != ncclSuccess && r != ncclInProgress)
            return explain(w, w->comms[i], r, w->doing, e);
    }
    return 0;
}

/* A GPU that works on something, or has done something, says so to those that wait. */
static void look_at_lanes(struct nccl_world *w)
{
    int waits = 0, moved = 0;
    for (int i = 0; i < w->lane_count; i++)
        moved |= nccl_lane_look(w->lanes[i], &waits);
    if (moved || !waits)
        comm_progress(w->hosts);
}

int nccl_watch(void *context, struct err *e)
{
    struct nccl_world *w = static_cast<struct nccl_world *>(context);
    int r = nccl_going(w, e);
    if (r < 0 || !is_time(&w->looked_us, LOOK_US))
        return r;
    look_at_lanes(w);
    r = look_at_comms(w, e);
    if (r == 0 && is_time(&w->heard_us, HOSTS_US))
        r = look_at_hosts(w, w->doing, e);
    return r < 0 ? nccl_end(w, e) : 0;
}

/* ---- calls ---- */

/* Most are ready at once. */
static void pause_for(int looks)
{
    if (looks > 100)
        usleep(looks > 1000 ? 1000 : 50);
}

/* A call under way is waited for as others are: the first of its kind may need all members. */
static int wait_until_ready(struct nccl_world *w, ncclComm_t c, const char *what, struct err *e)
{
    ncclResult_t state = ncclInProgress, r = ncclSuccess;
    w->moved_us = clock_boottime_us();
    for (int looks = 0; r == ncclSuccess && state == ncclInProgress; looks++) {
        r = ncclCommGetAsyncError(c, &state);
        if (looks > 0 && is_time(&w->heard_us, HOSTS_US)) {
            int heard = look_at_hosts(w, w->doing, e);
            if (heard < 0)
                return heard;
        }
        pause_for(looks);
    }
    r = r == ncclSuccess ? state : r;
    return r == ncclSuccess ? 0 : explain(w, c, r, what, e);
}

int nccl_done(struct nccl_world *w, ncclComm_t c, ncclResult_t r, const char *what, struct err *e)
{
    int s = 0;
    if (r == ncclInProgress)
        s = wait_until_ready(w, c, what, e);
    else if (r != ncclSuccess)
        s = explain(w, c, r, what, e);
    return s < 0 ? nccl_end(w, e) : 0;
}

int nccl_grouped(struct nccl_world *w, ncclComm_t c, ncclResult_t first, const char *what,
                 struct err *e)
{
    ncclResult_t r = ncclGroupEnd();
    return nccl_done(w, c, first != ncclSuccess && first != ncclInProgress ? first : r, what, e);
}
