#include "cli/progress.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/text.h"

#define BAR_MIN        8
#define BAR_MAX        30
#define NAME_MAX_WIDTH 24

static void drop_oldest(struct progress *p)
{
    memmove(&p->samples[0], &p->samples[1], (size_t)(p->count - 1) * sizeof p->samples[0]);
    p->count--;
}

void progress_add(struct progress *p, int64_t now_us, int64_t step, int64_t steps)
{
    int64_t last = p->count ? p->samples[p->count - 1].step : -1;
    if (step < last)
        p->count = 0;
    p->steps = steps;
    if (step == last && p->count > 1)
        return; /* standing still shows in progress_left() by the clock */
    if (p->count == PROGRESS_SAMPLES)
        drop_oldest(p);
    while (p->count > 2 && now_us - p->samples[0].time_us > PROGRESS_WINDOW_US)
        drop_oldest(p);
    p->samples[p->count].time_us = now_us;
    p->samples[p->count].step = step;
    p->count++;
}

int64_t progress_step_at(const struct progress *p, int64_t time_us)
{
    int i = p->count - 1;
    while (i > 0 && p->samples[i].time_us > time_us)
        i--;
    return i < 0 ? -1 : p->samples[i].step;
}

double progress_left(const struct progress *p, int64_t now_us)
{
    if (p->count < 2 || p->steps <= 0)
        return -1;
    int64_t last = p->samples[p->count - 1].step;
    int64_t done = last - p->samples[0].step;
    int64_t moved_us = p->samples[p->count - 1].time_us - p->samples[0].time_us;
    if (done <= 0 || moved_us <= 0)
        return -1;
    double per_step = (double)moved_us / 1e6 / (double)done;
    double since = (double)(now_us - p->samples[p->count - 1].time_us) / 1e6;
    double left = (double)(p->steps - last) * per_step;
    /* A step that takes longer than the last ones did is not counted as progress. */
    return since < per_step ? fmax(left - since, 0) : fmax(left - per_step, 0);
}

/* ---- the line: pieces, of which the least needed are left out ---- */

enum piece { NAME, EPOCH, BAR, STEP, LOSS, SPEED, LEFT, PIECES };

static void add_name(struct buf *out, const char *name)
{
    CLEANUP(buf_done) struct buf escaped = BUF_INIT;
    text_escape(&escaped, name, strlen(name), TEXT_LINE);
    text_cut(out, escaped.data, NAME_MAX_WIDTH);
}

static void add_ratio(struct buf *out, const char *what, int64_t at, int64_t of)
{
    buf_addf(out, "%s%lld", what, (long long)at);
    if (of > 0)
        buf_addf(out, "/%lld", (long long)of);
}

static void make_pieces(const struct progress_view *v, struct buf *pieces)
{
    add_name(&pieces[NAME], v->name ? v->name : "");
    if (v->step <= 0 && v->state) {
        buf_adds(&pieces[STEP], v->state);
        return;
    }
    if (v->epoch > 0)
        add_ratio(&pieces[EPOCH], "epoch ", v->epoch, v->epochs);
    if (v->step >= 0)
        add_ratio(&pieces[STEP], v->steps > 0 ? "" : "step ", v->step, v->steps);
    if (!isnan(v->loss))
        buf_addf(&pieces[LOSS], "loss %.4f", v->loss);
    if (v->samples_per_second >= 0) {
        text_count(&pieces[SPEED], v->samples_per_second);
        buf_adds(&pieces[SPEED], " samples/s");
    }
    if (v->left_s >= 0) {
        text_duration(&pieces[LEFT], v->left_s);
        buf_adds(&pieces[LEFT], " left");
    }
}

static int pieces_width(const struct buf *pieces)
{
    int width = -2;
    for (int i = 0; i < PIECES; i++)
        width += pieces[i].len ? text_width(pieces[i].data) + 2 : 0;
    return width < 0 ? 0 : width;
}

static void make_bar(const struct progress_view *v, int room, struct buf *out)
{
    int inner = room - 2 > BAR_MAX ? BAR_MAX : room - 2;
    if (v->steps <= 0 || v->step < 0 || inner < BAR_MIN)
        return;
    int64_t at = v->step > v->steps ? v->steps : v->step;
    int full = (int)((double)at / (double)v->steps * inner);
    buf_adds(out, "[");
    for (int i = 0; i < inner; i++)
        buf_adds(out, i < full ? "=" : i == full ? ">" : " ");
    buf_adds(out, "]");
}

void progress_line(const struct progress_view *v, int width, struct buf *out)
{
    static const enum piece least_needed[] = {NAME, EPOCH, SPEED, LEFT, LOSS};
    struct buf pieces[PIECES] = {0};
    CLEANUP(buf_done) struct buf whole = BUF_INIT;
    make_pieces(v, pieces);
    for (size_t i = 0; i < ARRAY_LEN(least_needed) && pieces_width(pieces) > width; i++)
        buf_clear(&pieces[least_needed[i]]);
    make_bar(v, width - pieces_width(pieces) - 2, &pieces[BAR]);
    for (int i = 0; i < PIECES; i++) {
        if (pieces[i].len)
            buf_addf(&whole, "%s%s", whole.len ? "  " : "", pieces[i].data);
        buf_done(&pieces[i]);
    }
    text_cut(out, whole.data ? whole.data : "", width);
}
