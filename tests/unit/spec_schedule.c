/* Orders of passes: all ranks of a pipeline are played against one another, with channels that hold
 * as much as real ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "spec/schedule.h"

#define RANKS  8
#define CHUNKS 4
#define MOST   17

/* A channel from a rank to a neighbour: (stage, micro-batch) of messages on their way. */
struct channel {
    int stage[SCHEDULE_IN_CHANNEL], microbatch[SCHEDULE_IN_CHANNEL];
    int count;
};

struct game {
    int ranks, chunks, microbatches, some; /* micro-batches from `some` on are skipped */
    struct schedule list[RANKS];
    int64_t at[RANKS];
    int computed[RANKS]; /* the pass has its input, and waits to send what came out */
    struct channel onward[RANKS], back[RANKS]; /* by sender */
};

static const char *const WORDS[] = {"gpipe", "1f1b", "interleaved"};

static int stage_of(const struct game *g, int rank, const struct schedule_pass *p)
{
    return p->chunk * g->ranks + rank;
}

/* 0 if the message is not there yet; another than expected fails. */
static int take(struct channel *c, int stage, int microbatch)
{
    if (c->count == 0)
        return 0;
    assert_int_equal(c->stage[0], stage);
    assert_int_equal(c->microbatch[0], microbatch);
    c->count--;
    memmove(c->stage, c->stage + 1, sizeof c->stage - sizeof c->stage[0]);
    memmove(c->microbatch, c->microbatch + 1, sizeof c->microbatch - sizeof c->microbatch[0]);
    return 1;
}

static int put(struct channel *c, int stage, int microbatch)
{
    if (c->count == SCHEDULE_IN_CHANNEL)
        return 0;
    c->stage[c->count] = stage;
    c->microbatch[c->count++] = microbatch;
    return 1;
}

static int receive(struct game *g, int r, const struct schedule_pass *p)
{
    int stage = stage_of(g, r, p), last = g->ranks * g->chunks - 1;
    int from = p->is_backward ? stage + 1 : stage - 1;
    if (from < 0 || from > last)
        return 1;
    return take(p->is_backward ? &g->back[from % g->ranks] : &g->onward[from % g->ranks], from,
                p->microbatch);
}

static int send(struct game *g, int r, const struct schedule_pass *p)
{
    int stage = stage_of(g, r, p), last = g->ranks * g->chunks - 1;
    if (stage == (p->is_backward ? 0 : last))
        return 1;
    return put(p->is_backward ? &g->back[r] : &g->onward[r], stage, p->microbatch);
}

/* As far as rank r gets; 1 if it moved. */
static int play(struct game *g, int r)
{
    int moved = 0;
    for (; g->at[r] < g->list[r].count; g->at[r]++, g->computed[r] = 0) {
        const struct schedule_pass *p = &g->list[r].passes[g->at[r]];
        if (p->microbatch >= g->some)
            continue;
        if (!g->computed[r] && !receive(g, r, p))
            return moved;
        moved = g->computed[r] = 1;
        if (!send(g, r, p))
            return moved;
    }
    return moved;
}

static void check_played_to_the_end(struct game *g, const char *what)
{
    int moved = 1;
    memset(g->at, 0, sizeof g->at);
    memset(g->computed, 0, sizeof g->computed);
    while (moved) {
        moved = 0;
        for (int r = 0; r < g->ranks; r++)
            moved |= play(g, r);
    }
    for (int r = 0; r < g->ranks; r++) {
        if (g->at[r] < g->list[r].count)
            fail_msg("%s, %d ranks, %d chunks, %d of %d micro-batches: rank %d waits forever in "
                     "pass %lld",
                     what, g->ranks, g->chunks, g->some, g->microbatches, r, (long long)g->at[r]);
        assert_int_equal(g->onward[r].count, 0);
        assert_int_equal(g->back[r].count, 0);
    }
}

/* Each pass once; backward after forward; the micro-batches of a chunk in order; frames enough. */
static void check_list(const struct game *g, int r, int is_training)
{
    const struct schedule *s = &g->list[r];
    int forward[CHUNKS] = {0}, backward[CHUNKS] = {0}, most[CHUNKS] = {0};
    for (int64_t k = 0; k < s->count; k++) {
        const struct schedule_pass *p = &s->passes[k];
        int c = p->chunk;
        assert_in_range(c, 0, g->chunks - 1);
        assert_int_equal(p->microbatch, p->is_backward ? backward[c] : forward[c]);
        if (!p->is_backward) {
            forward[c]++;
            most[c] = forward[c] - backward[c] > most[c] ? forward[c] - backward[c] : most[c];
        } else {
            assert_true(backward[c]++ < forward[c]);
        }
    }
    for (int c = 0; c < g->chunks; c++) {
        assert_int_equal(forward[c], g->microbatches);
        assert_int_equal(backward[c], is_training ? g->microbatches : 0);
        assert_int_equal(s->in_flight[c], is_training ? most[c] : 1);
    }
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Most micro-batches in flight over all chunks, as the header promises. */
static void check_in_flight(const struct game *g, int r, enum pipeline_schedule kind)
{
    int now = 0, most = 0, after = g->ranks - 1 - r;
    for (int64_t k = 0; k < g->list[r].count; k++) {
        now += g->list[r].passes[k].is_backward ? -1 : 1;
        most = now > most ? now : most;
    }
    if (kind == SCHEDULE_GPIPE)
        assert_int_equal(most, g->microbatches);
    else if (g->chunks == 1)
        assert_int_equal(most, least(after + 1, g->microbatches));
    else
        assert_in_range(most, 1, 2 * after + (g->chunks - 1) * g->ranks + 1);
}

static void check_training(enum pipeline_schedule kind, int ranks, int chunks, int microbatches)
{
    struct game g = {.ranks = ranks, .chunks = chunks, .microbatches = microbatches};
    for (int r = 0; r < ranks; r++) {
        schedule_make(&g.list[r], kind, ranks, chunks, microbatches, r);
        check_list(&g, r, 1);
        check_in_flight(&g, r, kind);
    }
    for (g.some = microbatches; g.some >= 0; g.some--)
        check_played_to_the_end(&g, WORDS[kind]);
    for (int r = 0; r < ranks; r++)
        schedule_done(&g.list[r]);
}

static void training_never_stands_still(void **state)
{
    (void)state;
    for (int p = 1; p <= RANKS; p++)
        for (int m = 1; m <= MOST; m++) {
            check_training(SCHEDULE_GPIPE, p, 1, m);
            check_training(SCHEDULE_1F1B, p, 1, m);
            for (int v = 1; v <= CHUNKS; v++)
                check_training(SCHEDULE_INTERLEAVED, p, v, m);
        }
}

static void forward_alone_never_stands_still(void **state)
{
    (void)state;
    for (int p = 1; p <= RANKS; p++)
        for (int v = 1; v <= CHUNKS; v++)
            for (int m = 1; m <= MOST; m++) {
                struct game g = {.ranks = p, .chunks = v, .microbatches = m};
                for (int r = 0; r < p; r++) {
                    schedule_make_forward(&g.list[r], p, v, m);
                    check_list(&g, r, 0);
                }
                for (g.some = m; g.some >= 0; g.some--)
                    check_played_to_the_end(&g, "forward");
                for (int r = 0; r < p; r++)
                    schedule_done(&g.list[r]);
            }
}

static void check_order(enum pipeline_schedule kind, int ranks, int chunks, int microbatches,
                        int rank, const char *want)
{
    struct schedule s;
    char text[512] = "";
    size_t n = 0;
    schedule_make(&s, kind, ranks, chunks, microbatches, rank);
    for (int64_t k = 0; k < s.count; k++) {
        const struct schedule_pass *p = &s.passes[k];
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%c%d", k ? " " : "",
                              (p->is_backward ? "BX" : "FG")[p->chunk], p->microbatch);
    }
    assert_string_equal(text, want);
    schedule_done(&s);
}

/* F and B are passes of chunk 0, G and X of chunk 1. */
static void the_orders_are_the_known_ones(void **state)
{
    (void)state;
    check_order(SCHEDULE_GPIPE, 2, 1, 4, 0, "F0 F1 F2 F3 B0 B1 B2 B3");
    check_order(SCHEDULE_1F1B, 2, 1, 4, 0, "F0 F1 B0 F2 B1 F3 B2 B3");
    check_order(SCHEDULE_1F1B, 2, 1, 4, 1, "F0 B0 F1 B1 F2 B2 F3 B3");
    check_order(SCHEDULE_1F1B, 4, 1, 2, 0, "F0 F1 B0 B1");
    check_order(SCHEDULE_INTERLEAVED, 2, 2, 4, 0,
                "F0 F1 G0 G1 F2 X0 F3 X1 G2 B0 G3 B1 X2 X3 B2 B3");
    check_order(SCHEDULE_INTERLEAVED, 2, 2, 4, 1,
                "F0 F1 G0 X0 G1 X1 F2 B0 F3 B1 G2 X2 G3 X3 B2 B3");
    check_order(SCHEDULE_INTERLEAVED, 2, 2, 3, 1, "F0 F1 G0 X0 G1 X1 F2 B0 B1 G2 X2 B2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_orders_are_the_known_ones),
        cmocka_unit_test(training_never_stands_still),
        cmocka_unit_test(forward_alone_never_stands_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
