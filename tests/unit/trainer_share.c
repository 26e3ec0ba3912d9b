/* Slices of the global batch: even ones, grains, and in proportion to speeds; together they are
 * always the whole batch, in order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/order.h"
#include "trainer/share.h"

static void grains_lie_within_slices(void **state)
{
    (void)state;
    for (int64_t total = 0; total < 70; total++)
        for (int ranks = 1; ranks <= 8; ranks *= 2) {
            int64_t next = 0, begin, end, from, to;
            for (int d = 0; d < ranks; d++) {
                share_slice(total, 8, ranks, d, &begin, &end);
                assert_int_equal(begin, next);
                next = end;
                for (int j = 0; j < 8 / ranks; j++) { /* as stages cut a rank's items */
                    order_slice(end - begin, 8 / ranks, j, &from, &to);
                    int64_t want_from, want_to;
                    order_slice(total, 8, d * 8 / ranks + j, &want_from, &want_to);
                    assert_int_equal(begin + from, want_from);
                    assert_int_equal(begin + to, want_to);
                }
            }
            assert_int_equal(next, total);
        }
}

/* One data rank's view of an epoch of 100 samples in batches of 16, the last of them with 4. */
static const struct dataset SET = {.samples = 100};
static const struct fit FIT = {.epochs = 1, .batch_size = 16, .seed = 5, .shuffle = 1};

static void open_share(struct share *s, int ranks, int rank, const double *speeds)
{
    struct mesh m = {.data = ranks, .data_rank = rank};
    share_init(s, &SET, &FIT, &m, 0);
    share_epoch(s, 1);
    share_weigh(s, speeds);
}

static void check_epoch(int ranks, const double *speeds, const double *want_weights)
{
    const struct plan plan = {.data = ranks, .parallel = {.shares = SHARES_MEASURED}};
    struct mesh m = {.data = ranks};
    int64_t most = share_most(&SET, &FIT, &m, &plan);
    char seen[100] = {0};
    for (int d = 0; d < ranks; d++) {
        struct share s;
        struct items it;
        open_share(&s, ranks, d, speeds);
        assert_true(fabs(s.weights[d] - want_weights[d]) < 1e-9);
        for (int64_t k = 0; k < s.steps_per_epoch; k++) {
            share_items(&s, k, &it);
            assert_in_range(it.count, 0, most);
            assert_true(fabs((double)it.count - want_weights[d] * (double)it.total) <= 1);
            for (int64_t i = 0; i < it.count; i++) {
                assert_ptr_equal(it.ids + i, s.ids + k * 16 + it.position + i);
                assert_int_equal(seen[it.ids[i]]++, 0);
            }
        }
        share_done(&s);
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(seen[i], 1);
}

static void slices_follow_the_speeds(void **state)
{
    (void)state;
    check_epoch(2, (double[]){3, 1}, (double[]){0.75, 0.25});
    check_epoch(4, (double[]){5, 5, 5, 5}, (double[]){0.25, 0.25, 0.25, 0.25});
    check_epoch(3, (double[]){1e-3, 2e-3, 1e-3}, (double[]){0.25, 0.5, 0.25});
    check_epoch(1, (double[]){17}, (double[]){1});
    /* the fast one's limit is twice the even slice, the slow ones' a quarter of it */
    check_epoch(4, (double[]){100, 1, 1, 1}, (double[]){0.5, 0.5 / 3, 0.5 / 3, 0.5 / 3});
    check_epoch(4, (double[]){1, 1e-9, 1, 1}, (double[]){0.3125, 0.0625, 0.3125, 0.3125});
}

static void speeds_that_are_none_change_nothing(void **state)
{
    (void)state;
    static const double BAD[][2] = {{0, 1}, {NAN, 1}, {1, INFINITY}, {-1, 1}};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        struct share s;
        open_share(&s, 2, 0, BAD[i]);
        assert_null(s.weights);
        share_done(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grains_lie_within_slices),
        cmocka_unit_test(slices_follow_the_speeds),
        cmocka_unit_test(speeds_that_are_none_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
