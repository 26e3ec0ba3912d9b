#include "cli/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "cli/text.h"

#define GAP 2

struct table_cell {
    char *text;
    enum table_color color;
};

void table_init(struct table *t, const struct table_column *columns, int count)
{
    if (count > TABLE_MAX_COLUMNS)
        BUG("a table of %d columns", count);
    *t = (struct table){.columns = columns, .column_count = count};
}

void table_done(struct table *t)
{
    for (int i = 0; i < t->cell_count; i++)
        free(t->cells[i].text);
    free(t->cells);
    *t = (struct table){0};
}

void table_add_color(struct table *t, enum table_color color, const char *text)
{
    struct buf b = BUF_INIT;
    text_escape(&b, text ? text : "", text ? strlen(text) : 0, TEXT_LINE);
    t->cells = mem_realloc(t->cells, (size_t)(t->cell_count + 1) * sizeof *t->cells);
    t->cells[t->cell_count++] = (struct table_cell){.text = buf_steal(&b), .color = color};
}

void table_add(struct table *t, const char *text)
{
    table_add_color(t, TABLE_PLAIN, text);
}

void table_paint(struct buf *out, int color, enum table_color c, const char *text)
{
    static const char *const codes[] = {"",         "\033[32m", "\033[31m",
                                        "\033[33m", "\033[36m", "\033[2m"};
    int painted = color && c != TABLE_PLAIN;
    if (painted)
        buf_adds(out, codes[c]);
    buf_adds(out, text);
    if (painted)
        buf_adds(out, "\033[0m");
}

static void natural_widths(const struct table *t, int *widths)
{
    for (int i = 0; i < t->column_count; i++)
        widths[i] = text_width(t->columns[i].head);
    for (int i = 0; i < t->cell_count; i++) {
        int w = text_width(t->cells[i].text);
        if (w > widths[i % t->column_count])
            widths[i % t->column_count] = w;
    }
}

static int total_width(const struct table *t, const int *widths)
{
    int total = -GAP;
    for (int i = 0; i < t->column_count; i++)
        total += widths[i] > 0 ? widths[i] + GAP : 0;
    return total;
}

/* Takes `excess` columns off the widest column that can still give; 0 if none can. */
static int shrink_one(const struct table *t, int *widths)
{
    int best = -1;
    for (int i = 0; i < t->column_count; i++) {
        int least = t->columns[i].shrink;
        if (least > 0 && widths[i] > least && (best < 0 || widths[i] > widths[best]))
            best = i;
    }
    if (best >= 0)
        widths[best]--;
    return best >= 0;
}

static int drop_one(const struct table *t, int *widths)
{
    int best = -1;
    for (int i = 0; i < t->column_count; i++) {
        if (widths[i] > 0 && t->columns[i].drop > (best < 0 ? 0 : t->columns[best].drop))
            best = i;
    }
    if (best >= 0)
        widths[best] = 0;
    return best >= 0;
}

static void fit(const struct table *t, int width, int *widths)
{
    int full[TABLE_MAX_COLUMNS] = {0};
    natural_widths(t, full);
    for (;;) {
        memcpy(widths, full, sizeof full);
        while (total_width(t, widths) > width && shrink_one(t, widths))
            ;
        if (total_width(t, widths) <= width || !drop_one(t, full))
            return;
    }
}

static void print_cell(const struct table *t, int column, const char *text, enum table_color c,
                       int width, int color, struct buf *out)
{
    CLEANUP(buf_done) struct buf cut = BUF_INIT;
    text_cut(&cut, text, width);
    const char *shown = cut.data ? cut.data : "";
    int pad = width - text_width(shown);
    for (int i = 0; t->columns[column].right && i < pad; i++)
        buf_add(out, " ", 1);
    table_paint(out, color, *shown ? c : TABLE_PLAIN, shown);
    for (int i = 0; !t->columns[column].right && i < pad; i++)
        buf_add(out, " ", 1);
}

static void end_line(struct buf *out)
{
    while (out->len > 0 && out->data[out->len - 1] == ' ')
        out->data[--out->len] = '\0';
    buf_add(out, "\n", 1);
}

/* `row` -1 is the header. */
static void print_row(const struct table *t, int row, const int *widths, int color, struct buf *out)
{
    int first = 1;
    for (int i = 0; i < t->column_count; i++) {
        if (widths[i] <= 0)
            continue;
        if (!first)
            buf_adds(out, "  ");
        first = 0;
        if (row < 0) {
            print_cell(t, i, t->columns[i].head, TABLE_DIM, widths[i], color, out);
        } else {
            const struct table_cell *cell = &t->cells[row * t->column_count + i];
            print_cell(t, i, cell->text, cell->color, widths[i], color, out);
        }
    }
    end_line(out);
}

void table_print(const struct table *t, int width, int color, struct buf *out)
{
    int widths[TABLE_MAX_COLUMNS] = {0};
    if (width > 0)
        fit(t, width, widths);
    else
        natural_widths(t, widths);
    for (int row = -1; row < t->cell_count / t->column_count; row++)
        print_row(t, row, widths, color, out);
}
