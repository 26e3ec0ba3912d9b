/* The rule of early stopping, epoch by epoch, as Keras's EarlyStopping has it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/early_stopping.h"

/* Runs through the figures; returns the epoch it stops after, 0 if it goes on for ever. */
static int64_t last_of(const struct early_stopping *rule, const double *figures, int64_t count,
                       struct early_stopping_state *s)
{
    early_stopping_init(s, rule);
    for (int64_t epoch = 1; epoch <= count; epoch++)
        if (early_stopping_epoch(s, rule, epoch, figures[epoch - 1]) == EARLY_STOPPING_STOP)
            return epoch;
    return 0;
}

static void check(const struct early_stopping *rule, const double *figures, int64_t count,
                  int64_t last, int64_t best)
{
    struct early_stopping_state s;
    assert_int_equal(last_of(rule, figures, count, &s), last);
    assert_int_equal(s.best_epoch, best);
}

static void patience_counts_epochs_without_a_better_figure(void **state)
{
    (void)state;
    static const double falls[] = {5, 4, 3, 3, 2, 2.5, 2.5, 1, 7, 7, 7};
    struct early_stopping rule = {.enabled = 1, .monitor = MONITOR_VAL_LOSS};
    check(&rule, falls, 11, 4, 3); /* patience 0: the first that is not better */
    rule.patience = 1;
    check(&rule, falls, 11, 4, 3);
    rule.patience = 2;
    check(&rule, falls, 11, 7, 5);
    rule.patience = 3;
    check(&rule, falls, 11, 11, 8);
    rule.patience = 4;
    check(&rule, falls, 11, 0, 8);
}

static void accuracies_rise(void **state)
{
    (void)state;
    static const double rises[] = {0.5, 0.7, 0.6, 0.8, 0.8, 0.75};
    struct early_stopping rule = {.enabled = 1, .monitor = MONITOR_VAL_ACCURACY, .patience = 2};
    check(&rule, rises, 6, 6, 4);
    rule.monitor = MONITOR_ACCURACY;
    check(&rule, rises, 6, 6, 4);
    rule.monitor = MONITOR_MAE;
    check(&rule, rises, 6, 3, 1);
}

static void better_by_more_than_min_delta(void **state)
{
    (void)state;
    static const double falls[] = {1, 0.95, 0.85, 0.8, 0.74};
    struct early_stopping rule = {
        .enabled = 1, .monitor = MONITOR_LOSS, .min_delta = 0.1, .patience = 2};
    check(&rule, falls, 5, 0, 5);
    rule.patience = 1;
    check(&rule, falls, 5, 2, 1);
}

/* Epochs are counted from 0 there: 3 leaves out epochs 1, 2 and 3. */
static void epochs_before_the_start_do_not_count(void **state)
{
    (void)state;
    static const double figures[] = {1, 2, 3, 9, 8, 8.5, 8.6};
    struct early_stopping rule = {
        .enabled = 1, .monitor = MONITOR_VAL_LOSS, .patience = 2, .start_from_epoch = 3};
    check(&rule, figures, 7, 7, 5);
}

static void what_is_no_number_is_never_better(void **state)
{
    (void)state;
    static const double figures[] = {NAN, 3, NAN, 2.9, NAN, NAN};
    struct early_stopping rule = {.enabled = 1, .monitor = MONITOR_VAL_LOSS, .patience = 2};
    check(&rule, figures, 6, 6, 4);
    rule.patience = 0; /* the first epoch never ends a run */
    check(&rule, figures, 6, 3, 2);
}

static void figures_of_validation_may_be_missing(void **state)
{
    (void)state;
    struct epoch_result x = {.all = {1, 2, 3, 4, 5, 6}};
    static const double want[MONITOR__MAX] = {
        [MONITOR_LOSS] = 1,     [MONITOR_ACCURACY] = 2,     [MONITOR_MAE] = 3,
        [MONITOR_VAL_LOSS] = 4, [MONITOR_VAL_ACCURACY] = 5, [MONITOR_VAL_MAE] = 6};
    for (int m = 0; m < MONITOR__MAX; m++) {
        struct early_stopping rule = {.monitor = (enum monitor)m};
        int has;
        x.has_validation = 1;
        assert_true(early_stopping_figure(&rule, &x, &has) == want[m]);
        assert_int_equal(has, 1);
        x.has_validation = 0;
        early_stopping_figure(&rule, &x, &has);
        assert_int_equal(has, want[m] <= 3);
        assert_int_equal(strncmp(early_stopping_monitor(&rule), "val_", 4) == 0, want[m] > 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patience_counts_epochs_without_a_better_figure),
        cmocka_unit_test(accuracies_rise),
        cmocka_unit_test(better_by_more_than_min_delta),
        cmocka_unit_test(epochs_before_the_start_do_not_count),
        cmocka_unit_test(what_is_no_number_is_never_better),
        cmocka_unit_test(figures_of_validation_may_be_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
