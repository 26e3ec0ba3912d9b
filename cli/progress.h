/* progress.h: how far a job is and how long it will take, and the line that says so. */
#ifndef TRAINYARD_CLI_PROGRESS_H
#define TRAINYARD_CLI_PROGRESS_H

#include <stdint.h>

#include "base/buf.h"

#define PROGRESS_SAMPLES   64
#define PROGRESS_WINDOW_US (20 * 1000000LL)

/* Steps seen over the last PROGRESS_WINDOW_US (at least two samples are kept however old), so that
 * the estimate follows a change of speed. A step that goes back starts anew: another attempt. */
struct progress {
    struct {
        int64_t time_us, step;
    } samples[PROGRESS_SAMPLES]; /* oldest first */
    int count;
    int64_t steps; /* in all; 0: unknown */
};

void progress_add(struct progress *p, int64_t now_us, int64_t step, int64_t steps);

/* The last step that was seen by `time_us`, or else the first one that is known; -1: none is. */
int64_t progress_step_at(const struct progress *p, int64_t time_us);

/* Seconds from `now_us` to the last step; -1 while that cannot be said. */
double progress_left(const struct progress *p, int64_t now_us);

/* What a line shows. Numbers below 0 (NaN for the loss) are unknown and left out. */
struct progress_view {
    const char *name; /* escaped here */
    const char *state;
    int64_t epoch, epochs, step, steps;
    double loss, samples_per_second, left_s;
};

/* "mnist  epoch 3/5  [=====>    ]  480/785  loss 0.1234  61.2k samples/s  12 s left", in at most
 * `width` columns: what does not fit is left out, the least needed first. */
void progress_line(const struct progress_view *v, int width, struct buf *out);

#endif
