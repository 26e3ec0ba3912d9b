/* Permutations: complete, reproducible, different by epoch and seed. Slices: exact covers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/order.h"

static void identity_without_shuffle(void **state)
{
    (void)state;
    int64_t ids[100];
    order_epoch(100, 0, 42, 3, ids);
    for (int64_t i = 0; i < 100; i++)
        assert_int_equal(ids[i], i);
}

static void every_sample_once_in_every_epoch(void **state)
{
    (void)state;
    static const int64_t SIZES[] = {0, 1, 2, 3, 17, 1797};
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        int64_t n = SIZES[s];
        int64_t *ids = mem_alloc((size_t)(n + 1) * sizeof *ids);
        for (int64_t epoch = 1; epoch <= 20; epoch++) {
            char *seen = mem_zalloc((size_t)n + 1);
            ids[n] = -7;
            order_epoch(n, 1, 42, epoch, ids);
            for (int64_t i = 0; i < n; i++) {
                assert_in_range(ids[i], 0, n - 1);
                assert_int_equal(seen[ids[i]], 0);
                seen[ids[i]] = 1;
            }
            assert_int_equal(ids[n], -7);
            free(seen);
        }
        free(ids);
    }
}

static void same_arguments_same_order(void **state)
{
    (void)state;
    int64_t a[500], b[500];
    order_epoch(500, 1, 42, 2, a);
    order_epoch(500, 1, 7, 9, b);
    order_epoch(500, 1, 42, 2, b);
    assert_memory_equal(a, b, sizeof a);
}

static int64_t in_common(const int64_t *a, const int64_t *b, int64_t n)
{
    int64_t same = 0;
    for (int64_t i = 0; i < n; i++)
        same += a[i] == b[i];
    return same;
}

static void epochs_and_seeds_differ(void **state)
{
    (void)state;
    int64_t a[1000], b[1000];
    order_epoch(1000, 1, 42, 1, a);
    order_epoch(1000, 1, 42, 2, b);
    assert_in_range(in_common(a, b, 1000), 0, 10); /* one on average */
    order_epoch(1000, 1, 43, 1, b);
    assert_in_range(in_common(a, b, 1000), 0, 10);
    order_epoch(1000, 1, 42 + (1ull << 40), 1, b);
    assert_in_range(in_common(a, b, 1000), 0, 10);
    order_epoch(1000, 0, 42, 1, b);
    assert_in_range(in_common(a, b, 1000), 0, 10);
}

/* All 24 orders of four samples turn up about equally often (1,000 each, deviation 31). */
static void orders_are_equally_likely(void **state)
{
    (void)state;
    int counts[256] = {0};
    for (int64_t epoch = 1; epoch <= 24000; epoch++) {
        int64_t ids[4];
        order_epoch(4, 1, 5, epoch, ids);
        counts[ids[0] << 6 | ids[1] << 4 | ids[2] << 2 | ids[3]]++;
    }
    int orders = 0;
    for (int i = 0; i < 256; i++) {
        if (counts[i] == 0)
            continue;
        orders++;
        assert_in_range(counts[i], 850, 1150);
    }
    assert_int_equal(orders, 24);
}

static void slices_cover_exactly(void **state)
{
    (void)state;
    for (int64_t total = 0; total <= 70; total++) {
        for (int parts = 1; parts <= 75; parts++) {
            int64_t at = 0, first = 0, last_size = 0;
            for (int i = 0; i < parts; i++) {
                int64_t begin = -1, end = -1;
                order_slice(total, parts, i, &begin, &end);
                assert_int_equal(begin, at);
                assert_true(end >= begin);
                if (i == 0)
                    first = end - begin;
                else
                    assert_true(end - begin <= last_size);
                last_size = end - begin;
                at = end;
            }
            assert_int_equal(at, total);
            assert_in_range(first - last_size, 0, 1);
        }
    }
}

static void slices_of_few_and_of_very_many(void **state)
{
    (void)state;
    int64_t begin, end;
    order_slice(3, 8, 2, &begin, &end);
    assert_int_equal(begin, 2);
    assert_int_equal(end, 3);
    order_slice(3, 8, 3, &begin, &end);
    assert_int_equal(begin, end);
    order_slice(64, 3, 0, &begin, &end);
    assert_int_equal(end, 22);
    order_slice(64, 3, 2, &begin, &end);
    assert_int_equal(begin, 43);
    assert_int_equal(end, 64);
    order_slice(INT64_MAX, 1024, 1023, &begin, &end);
    assert_true(end == INT64_MAX && begin < end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_without_shuffle),
        cmocka_unit_test(every_sample_once_in_every_epoch),
        cmocka_unit_test(same_arguments_same_order),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(orders_are_equally_likely),
        cmocka_unit_test(slices_cover_exactly),
        cmocka_unit_test(slices_of_few_and_of_very_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
