/* nodes NODE: one node's devices, and why any of them is not given to jobs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/table.h"
#include "cli/text.h"

static enum table_color state_color(const char *state)
{
    if (strcmp(state, "free") == 0 || strcmp(state, "busy") == 0 || strcmp(state, "leased") == 0)
        return TABLE_GREEN;
    return strcmp(state, "dirty") == 0 || strcmp(state, "drained") == 0 ? TABLE_YELLOW : TABLE_RED;
}

/* "97 %", "" where the device does not tell */
static void add_figure(struct table *t, const json_t *figures, const char *name, const char *unit)
{
    char text[48] = "";
    double x = cli_real(figures, name);
    if (isfinite(x))
        snprintf(text, sizeof text, "%.0f %s", x, unit);
    table_add(t, text);
}

static void add_device(struct table *t, const json_t *d)
{
    CLEANUP(buf_done) struct buf memory = BUF_INIT;
    const json_t *figures = json_object_get(d, "telemetry");
    char index[24];
    snprintf(index, sizeof index, "%lld", (long long)cli_integer(d, "index"));
    text_bytes(&memory, cli_real(d, "memory_bytes"));
    table_add(t, index);
    table_add(t, cli_text(d, "kind"));
    table_add_color(t, state_color(cli_text(d, "state")), cli_text(d, "state"));
    table_add(t, memory.data);
    add_figure(t, figures, "utilization", "%");
    add_figure(t, figures, "temperature_c", "C");
    table_add(t, cli_text(d, "name"));
    table_add(t, cli_text(d, "uuid"));
    table_add(t, cli_text(d, "attempt"));
}

void cli_print_devices(struct cli *c, const json_t *node)
{
    static const struct table_column columns[] = {
        {"DEVICE", 1, 0, 0}, {"KIND", 0, 0, 0},  {"STATE", 0, 0, 0},
        {"MEMORY", 1, 0, 0}, {"USE", 1, 0, 4},   {"TEMP", 1, 0, 5},
        {"NAME", 0, 10, 0},  {"UUID", 0, 12, 2}, {"ATTEMPT", 0, 0, 3},
    };
    CLEANUP(buf_done) struct buf b = BUF_INIT;
    CLEANUP(table_done) struct table t;
    size_t i;
    json_t *d;
    table_init(&t, columns, ARRAY_LEN(columns));
    json_array_foreach(json_object_get(node, "devices"), i, d)
    {
        add_device(&t, d);
    }
    table_print(&t, c->width, c->color, &b);
    fputs(b.data ? b.data : "", stdout);
}
