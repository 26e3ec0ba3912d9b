/* early_stopping.c: the rule, apart from where its figures come from. */
#include "trainer/early_stopping.h"

#include <math.h>

static int rises(const struct early_stopping *rule)
{
    return rule->monitor == MONITOR_ACCURACY || rule->monitor == MONITOR_VAL_ACCURACY;
}

void early_stopping_init(struct early_stopping_state *s, const struct early_stopping *rule)
{
    *s = (struct early_stopping_state){.best = rises(rule) ? -INFINITY : INFINITY};
}

double early_stopping_figure(const struct early_stopping *rule, const struct epoch_result *x,
                             int *ret_has)
{
    const struct epoch_figures *f = &x->all;
    const double figures[] = {
        [MONITOR_LOSS] = f->loss,       [MONITOR_ACCURACY] = f->accuracy,
        [MONITOR_MAE] = f->mae,         [MONITOR_VAL_LOSS] = f->val_loss,
        [MONITOR_VAL_MAE] = f->val_mae, [MONITOR_VAL_ACCURACY] = f->val_accuracy,
    };
    int is_validation = rule->monitor == MONITOR_VAL_LOSS || rule->monitor == MONITOR_VAL_MAE ||
                        rule->monitor == MONITOR_VAL_ACCURACY;
    *ret_has = x->has_validation || !is_validation;
    return figures[rule->monitor];
}

const char *early_stopping_monitor(const struct early_stopping *rule)
{
    static const char *const names[MONITOR__MAX] = {
        [MONITOR_LOSS] = "loss",       [MONITOR_ACCURACY] = "accuracy",
        [MONITOR_MAE] = "mae",         [MONITOR_VAL_LOSS] = "val_loss",
        [MONITOR_VAL_MAE] = "val_mae", [MONITOR_VAL_ACCURACY] = "val_accuracy",
    };
    return names[rule->monitor];
}

static int is_better(const struct early_stopping *rule, double figure, double best)
{
    return rises(rule) ? figure - rule->min_delta > best : figure + rule->min_delta < best;
}

enum early_stopping_verdict early_stopping_epoch(struct early_stopping_state *s,
                                                 const struct early_stopping *rule, int64_t epoch,
                                                 double figure)
{
    if (epoch - 1 < rule->start_from_epoch)
        return EARLY_STOPPING_GO_ON;
    int is_first = s->best_epoch == 0;
    s->waited++;
    if (is_first || is_better(rule, figure, s->best))
        s->best_epoch = epoch;
    if (is_better(rule, figure, s->best)) {
        s->best = figure;
        s->waited = 0;
        return EARLY_STOPPING_BEST;
    }
    if (s->waited >= rule->patience && epoch > 1)
        return EARLY_STOPPING_STOP;
    return is_first ? EARLY_STOPPING_BEST : EARLY_STOPPING_GO_ON;
}
