/* queue.h: jobs done in order by one thread beside the caller, or, without a thread, at once by the
 * caller itself. Used for communication beside computation.
 *
 * One thread submits and waits; the jobs' order is that of submission. The first job that fails
 * ends all: those behind it are dropped, and every wait returns its error.
 */
#ifndef TRAINYARD_TRAINER_QUEUE_H
#define TRAINYARD_TRAINER_QUEUE_H

#include <stdint.h>

#include "base/err.h"

typedef int queue_job(void *context, int argument, struct err *e);

struct queue;

/* `threaded` 0: submitting is doing. Fails where no thread can be made. */
int queue_open(struct queue **ret, int threaded, struct err *e);
/* Drops what has not begun and waits for what has; the caller sees to it that this ends. NULL is
 * fine. */
void queue_close(struct queue *q);

int queue_is_threaded(const struct queue *q);

/* Returns the job's ticket: the count of jobs submitted so far. Blocks while QUEUE_ROOM jobs are
 * waiting. */
#define QUEUE_ROOM 1024
int64_t queue_submit(struct queue *q, queue_job *job, void *context, int argument);

/* Until the job with that ticket, and so all before it, is done. */
int queue_wait(struct queue *q, int64_t ticket, struct err *e);
int queue_wait_all(struct queue *q, struct err *e);

/* Time since the queue was opened, in us: spent in jobs, and by the submitter waiting for them
 * (which includes jobs that it did itself). */
struct queue_times {
    int64_t busy, waited;
};
struct queue_times queue_times(struct queue *q);

#endif
