/* queue.h: the jobs that wait, by shape, in memory.
 *
 * Jobs of one priority that need the same devices are interchangeable for placement: when the
 * oldest does not fit, none does. They share a class, so that a scheduling pass costs as many
 * tries as there are shapes, whatever the number of jobs, and a submission costs a binary search.
 * The store is the truth; this is rebuilt from it (coordinator.c). A job that goes on from a
 * checkpoint needs its place as well.
 */
#ifndef TRAINYARD_COORDINATOR_QUEUE_H
#define TRAINYARD_COORDINATOR_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "storage/store.h"

#define QUEUE_PLACE_MAX 63 /* bytes of the name of a node, or of a shared file system */

/* What a job needs: `devices` of one kind on one node, each with at least `memory` bytes, and where
 * the checkpoint lies that it goes on from. */
struct need {
    int64_t devices;
    int kind; /* enum device_kind of spec/job.h */
    int64_t memory;
    int trains;                      /* 1: the node must have a trainer for that kind of device */
    char node[QUEUE_PLACE_MAX + 1];  /* that node; "": any */
    char share[QUEUE_PLACE_MAX + 1]; /* a node that sees this shared file system; "": any */
};

struct need queue_need(const struct job_row *job);

struct queued {
    int64_t seq;
    char id[ID_SIZE];
};

struct queue_class {
    int64_t priority;
    struct need need;
    int blocked;          /* tried since the free devices last grew, and did not fit */
    struct queued *items; /* ascending seq, from `head` on */
    size_t head, count, cap;
};

struct queue {
    struct queue_class *classes; /* by priority (highest first), then need; none is empty */
    size_t count, cap;
    size_t jobs;
};

void queue_done(struct queue *q); /* frees; the struct is as new */

void queue_add(struct queue *q, const struct job_row *job);
/* 1 if the job was there and is not any more. */
int queue_remove(struct queue *q, const struct job_row *job);
/* Jobs that would be placed before this one if everything fitted. */
int64_t queue_ahead(const struct queue *q, int64_t priority, int64_t seq);
void queue_unblock(struct queue *q); /* devices became free, or a node came: try every class */
int queue_has_candidates(const struct queue *q);

/* The class of jobs of that priority and need, or NULL. Borrowed until the queue changes. */
struct queue_class *queue_find(const struct queue *q, int64_t priority, const struct need *n);
const struct queued *queue_class_head(const struct queue_class *k);

#endif
