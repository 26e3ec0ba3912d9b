/* queue.h: jobs done in order by one thread beside the caller, or, without a thread, at once by the
 * caller itself. Used for communication beside computation.
 *
 * One thread submits and waits; the jobs' order is that of submission. The first job that fails
 * ends all: those behind it are dropped, and every wait returns its error.
 *
 * On a device of its own a job only asks for its work, so there is no thread: submitting asks, and
 * whoever waits for the job has what it asked for settled. What a job does with the result is its
 * second half, which then comes at the wait.
 */
#ifndef TRAINYARD_TRAINER_QUEUE_H
#define TRAINYARD_TRAINER_QUEUE_H

#include <stdint.h>

#include "base/err.h"

typedef int queue_job(void *context, int argument, struct err *e);

/* A job in two halves. */
struct queue_work {
    queue_job *ask;
    queue_job *finish; /* NULL: nothing is left to do */
    int in_turn;       /* it asks once all before it have finished: they share memory */
};

/* How a device is told to wait for what jobs have asked of it. */
struct queue_device {
    void *context;
    uint64_t (*mark)(void *context); /* names all that has been asked so far */
    int (*settle)(void *context, uint64_t mark, struct err *e); /* the device's verbs from now on
                                                                   come after it */
    int is_beside; /* 0: settled at once, when it is asked */
};

struct queue;

/* `threaded` 0: submitting is doing. Fails where no thread can be made. */
int queue_open(struct queue **ret, int threaded, struct err *e);
struct queue *queue_open_on(const struct queue_device *d);
/* Drops what has not begun and waits for what has; the caller sees to it that this ends. NULL is
 * fine. */
void queue_close(struct queue *q);

int queue_is_beside(const struct queue *q); /* 1 if jobs go on while the caller does */

/* Returns the job's ticket: the count of jobs submitted so far. Blocks while QUEUE_ROOM jobs are
 * waiting. */
#define QUEUE_ROOM 1024
int64_t queue_submit(struct queue *q, const struct queue_work *work, void *context, int argument);

/* Until the job with that ticket, and so all before it, is done. */
int queue_wait(struct queue *q, int64_t ticket, struct err *e);
int queue_wait_all(struct queue *q, struct err *e);

/* Time since the queue was opened, in us: spent in jobs, and by the submitter waiting for them
 * (which includes jobs that it did itself). Not of a device's: asking takes none. */
struct queue_times {
    int64_t busy, waited;
};
struct queue_times queue_times(struct queue *q);

#endif
