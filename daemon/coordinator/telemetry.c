/* telemetry.c: figures in, figures out. A wrong figure is no reason to refuse a sync, which also
 * carries what runs; it is left out and counted. */
#include "daemon/coordinator/telemetry.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const struct figure {
    const char *name;   /* in syncs and documents */
    double max;         /* of what makes sense */
    const char *metric; /* trainyard_device_... */
    const char *help;
} figures[] = {
    [FIGURE_TEMPERATURE_C] = {"temperature_c", 1000, "temperature_celsius", "Temperature."},
    [FIGURE_POWER_W] = {"power_w", 100000, "power_watts", "Power that is drawn."},
    [FIGURE_UTILIZATION] = {"utilization", 100, "utilization_percent",
                            "Share of time in which it did something."},
    [FIGURE_MEMORY_USED] = {"memory_used_bytes", 1e15, "memory_used_bytes", "Memory in use."},
    [FIGURE_CLOCK_MHZ] = {"clock_mhz", 1e6, "clock_mhz", "Clock of its processors."},
    [FIGURE_ECC_CORRECTED] = {"ecc_corrected", 9e15, "ecc_corrected",
                              "Memory errors that were corrected, as its node counts them."},
    [FIGURE_ECC_UNCORRECTED] = {"ecc_uncorrected", 9e15, "ecc_uncorrected",
                                "Memory errors that were not, as its node counts them."},
};
_Static_assert(ARRAY_LEN(figures) == FIGURE__MAX, "a row for each figure");

/* ---- in ---- */
/* 1 if there is something that makes no sense. */
static int take_figure(struct device *d, enum device_figure f, const json_t *value)
{
    double number = json_number_value(value);
    d->figures[f] = NAN;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_number(value) || !(number >= 0 && number <= figures[f].max))
        return 1;
    d->figures[f] = number;
    return 0;
}

/* Leased, and told to do next to nothing: since when. */
static void note_idle(struct device *d, int64_t now_us)
{
    double utilization = d->figures[FIGURE_UTILIZATION];
    if (!d->attempt[0] || !(utilization < TELEMETRY_IDLE_BELOW))
        d->idle_us = 0;
    else if (d->idle_us == 0)
        d->idle_us = now_us;
}

static uint64_t take_one(struct node *n, const json_t *o, int64_t now_us)
{
    const json_t *index = json_object_get(o, "index");
    struct device *d = json_is_integer(index) ? node_device(n, json_integer_value(index)) : NULL;
    uint64_t wrong = 0;
    if (!d)
        return 1;
    for (int f = 0; f < FIGURE__MAX; f++)
        wrong +=
            (uint64_t)take_figure(d, (enum device_figure)f, json_object_get(o, figures[f].name));
    d->figures_us = now_us;
    note_idle(d, now_us);
    return wrong;
}

uint64_t telemetry_take(struct node *n, const json_t *list, int64_t now_us)
{
    uint64_t wrong = 0;
    if (!list)
        return 0;
    if (!json_is_array(list) || json_array_size(list) > NODE_MAX_DEVICES)
        return 1;
    for (size_t i = 0; i < json_array_size(list); i++)
        wrong += take_one(n, json_array_get(list, i), now_us);
    return wrong;
}

/* ---- out ---- */
static json_t *number(double value)
{
    return value == floor(value) ? json_integer((json_int_t)value) : json_real(value);
}

json_t *telemetry_document(const struct device *d, int64_t now_us)
{
    if (d->figures_us == 0)
        return json_null();
    json_t *doc = json_pack("{s:I}", "age_s", (json_int_t)((now_us - d->figures_us) / 1000000));
    for (int f = 0; f < FIGURE__MAX; f++)
        if (!isnan(d->figures[f]))
            json_object_set_new(doc, figures[f].name, number(d->figures[f]));
    return doc;
}

int64_t telemetry_idle_s(const struct device *d, int64_t now_us)
{
    int64_t idle_us = d->attempt[0] && d->idle_us ? now_us - d->idle_us : 0;
    return idle_us >= TELEMETRY_IDLE_US ? idle_us / 1000000 : -1;
}

/* A label's value: names and UUIDs are checked, but a quote would end it. */
static void add_label(struct buf *b, const char *name, const char *value)
{
    buf_addf(b, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            buf_adds(b, "\\");
        buf_add(b, *value == '\n' ? " " : value, 1);
    }
    buf_adds(b, "\"");
}

static int add_gauge(struct buf *b, const struct node *n, const struct device *d,
                     enum device_figure f, int64_t now_us)
{
    int is_shown = d->figures_us && now_us - d->figures_us < TELEMETRY_STALE_US;
    if (!is_shown || isnan(d->figures[f]))
        return 0;
    buf_addf(b, "trainyard_device_%s{", figures[f].metric);
    add_label(b, "node", n->name);
    buf_addf(b, ",device=\"%lld\",", (long long)d->index);
    add_label(b, "uuid", d->uuid);
    buf_addf(b, "} %.15g\n", d->figures[f]);
    return 1;
}

static void add_family(const struct nodes *l, enum device_figure f, int64_t now_us, struct buf *b)
{
    struct buf rows = BUF_INIT;
    int devices = 0;
    for (size_t i = 0; i < l->count; i++)
        for (size_t k = 0; k < l->items[i]->device_count && devices < TELEMETRY_MAX_DEVICES; k++)
            devices += add_gauge(&rows, l->items[i], &l->items[i]->devices[k], f, now_us);
    if (devices > 0)
        buf_addf(b, "# HELP trainyard_device_%s %s\n# TYPE trainyard_device_%s gauge\n%s",
                 figures[f].metric, figures[f].help, figures[f].metric, rows.data);
    buf_done(&rows);
}

void telemetry_metrics(const struct nodes *l, int64_t now_us, struct buf *b)
{
    for (int f = 0; f < FIGURE__MAX; f++)
        add_family(l, (enum device_figure)f, now_us, b);
}
