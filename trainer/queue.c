/* queue.c: a ring of jobs, a mutex, and two conditions. */
#include "trainer/queue.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

struct job {
    struct queue_work work;
    void *context;
    int argument;
    uint64_t mark; /* on a device: what it has asked for */
};

struct queue {
    int threaded, closing;
    struct queue_device device; /* settle NULL: none */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t more, less; /* jobs to do; jobs done */
    struct job jobs[QUEUE_ROOM];
    int64_t submitted, done;
    int64_t busy_ns, waited_ns;
    struct err error; /* code 0: none */
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Returns what it took. */
static int64_t do_job(const struct job *j, struct err *e)
{
    int64_t began = now_ns();
    struct err mine = {0};
    int r = j->work.ask(j->context, j->argument, &mine);
    if (r == 0 && j->work.finish)
        r = j->work.finish(j->context, j->argument, &mine);
    if (r < 0)
        *e = mine;
    return now_ns() - began;
}

/* With the mutex held, but for the work itself. */
static void do_next(struct queue *q)
{
    struct job j = q->jobs[q->done % QUEUE_ROOM];
    int skip = q->error.code != 0;
    struct err e = {0};
    int64_t took = 0;
    pthread_mutex_unlock(&q->mutex);
    if (!skip)
        took = do_job(&j, &e);
    pthread_mutex_lock(&q->mutex);
    q->busy_ns += took;
    if (e.code)
        q->error = e;
    q->done++;
    pthread_cond_broadcast(&q->less);
}

static void *work(void *queue)
{
    struct queue *q = queue;
    pthread_mutex_lock(&q->mutex);
    while (!q->closing) {
        if (q->done < q->submitted)
            do_next(q);
        else
            pthread_cond_wait(&q->more, &q->mutex);
    }
    pthread_mutex_unlock(&q->mutex);
    return NULL;
}

/* Signals are the main thread's: a wait of ours must not be the one that they interrupt. */
static int start(struct queue *q)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&q->thread, NULL, work, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

int queue_open(struct queue **ret, int threaded, struct err *e)
{
    struct queue *q = mem_zalloc(sizeof *q);
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->more, NULL);
    pthread_cond_init(&q->less, NULL);
    int r = threaded ? start(q) : 0;
    if (r != 0) {
        queue_close(q);
        return err_set(e, ERR_UNAVAILABLE, "cannot start a thread for communication: %s",
                       strerror(r));
    }
    q->threaded = threaded;
    *ret = q;
    return 0;
}

struct queue *queue_open_on(const struct queue_device *d)
{
    struct queue *q = mem_zalloc(sizeof *q);
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->more, NULL);
    pthread_cond_init(&q->less, NULL);
    q->device = *d;
    return q;
}

void queue_close(struct queue *q)
{
    if (!q)
        return;
    if (q->threaded) {
        pthread_mutex_lock(&q->mutex);
        q->closing = 1;
        pthread_cond_broadcast(&q->more);
        pthread_mutex_unlock(&q->mutex);
        pthread_join(q->thread, NULL);
    }
    pthread_cond_destroy(&q->more);
    pthread_cond_destroy(&q->less);
    pthread_mutex_destroy(&q->mutex);
    free(q);
}

int queue_is_beside(const struct queue *q)
{
    return q->threaded || (q->device.settle && q->device.is_beside);
}

/* With the mutex held. */
static void wait_for(struct queue *q, int64_t done)
{
    int64_t began = q->done < done ? now_ns() : 0;
    while (q->done < done)
        pthread_cond_wait(&q->less, &q->mutex);
    q->waited_ns += began ? now_ns() - began : 0;
}

static int64_t submit_beside(struct queue *q, const struct job *j)
{
    pthread_mutex_lock(&q->mutex);
    wait_for(q, q->submitted - QUEUE_ROOM + 1);
    q->jobs[q->submitted++ % QUEUE_ROOM] = *j;
    int64_t ticket = q->submitted;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->mutex);
    return ticket;
}

/* ---- on a device ---- */

/* The device's verbs come after what the jobs up to that one have asked for, and their second
 * halves are such. */
static void settle(struct queue *q, int64_t ticket)
{
    struct err e = {0};
    if (ticket <= q->done)
        return;
    if (!q->error.code &&
        q->device.settle(q->device.context, q->jobs[(ticket - 1) % QUEUE_ROOM].mark, &e) < 0)
        q->error = e;
    for (; q->done < ticket; q->done++) {
        const struct job *j = &q->jobs[q->done % QUEUE_ROOM];
        if (!q->error.code && j->work.finish && j->work.finish(j->context, j->argument, &e) < 0)
            q->error = e;
    }
}

static int64_t submit_to_device(struct queue *q, const struct job *j)
{
    struct err e = {0};
    settle(q, j->work.in_turn ? q->submitted : q->submitted - QUEUE_ROOM + 1);
    if (!q->error.code && j->work.ask(j->context, j->argument, &e) < 0)
        q->error = e;
    struct job *kept = &q->jobs[q->submitted++ % QUEUE_ROOM];
    *kept = *j;
    kept->mark = q->device.mark(q->device.context);
    if (!q->device.is_beside)
        settle(q, q->submitted);
    return q->submitted;
}

/* ---- both ---- */

int64_t queue_submit(struct queue *q, const struct queue_work *work, void *context, int argument)
{
    struct job j = {.work = *work, .context = context, .argument = argument};
    if (q->device.settle)
        return submit_to_device(q, &j);
    if (q->threaded)
        return submit_beside(q, &j);
    if (!q->error.code) {
        int64_t took = do_job(&j, &q->error);
        q->busy_ns += took;
        q->waited_ns += took;
    }
    q->done++;
    return ++q->submitted;
}

int queue_wait(struct queue *q, int64_t ticket, struct err *e)
{
    if (q->device.settle)
        settle(q, ticket);
    pthread_mutex_lock(&q->mutex);
    wait_for(q, ticket);
    int r = q->error.code;
    if (r < 0 && e)
        *e = q->error;
    pthread_mutex_unlock(&q->mutex);
    return r;
}

int queue_wait_all(struct queue *q, struct err *e)
{
    return queue_wait(q, q->submitted, e);
}

struct queue_times queue_times(struct queue *q)
{
    pthread_mutex_lock(&q->mutex);
    struct queue_times t = {q->busy_ns / 1000, q->waited_ns / 1000};
    pthread_mutex_unlock(&q->mutex);
    return t;
}
