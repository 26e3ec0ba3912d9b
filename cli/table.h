/* table.h: aligned columns that fit the terminal. Cells are escaped when they are added. */
#ifndef TRAINYARD_CLI_TABLE_H
#define TRAINYARD_CLI_TABLE_H

#include "base/buf.h"

#define TABLE_MAX_COLUMNS 12

enum table_color { TABLE_PLAIN, TABLE_GREEN, TABLE_RED, TABLE_YELLOW, TABLE_CYAN, TABLE_DIM };

struct table_column {
    const char *head;
    int right;  /* aligned right: numbers */
    int shrink; /* may be cut down to this width (0: never) when the table is too wide */
    int drop;   /* left out when cutting is not enough; the highest number goes first (0: never) */
};

struct table {
    const struct table_column *columns; /* borrowed */
    int column_count;
    struct table_cell *cells; /* row by row */
    int cell_count;
};

void table_init(struct table *t, const struct table_column *columns, int count);
void table_done(struct table *t);

/* Adds the next cell of the present row; rows fill from left to right. NULL is an empty cell. */
void table_add(struct table *t, const char *text);
void table_add_color(struct table *t, enum table_color color, const char *text);

/* Appends the header and the rows. `width` 0: as wide as it is. Trailing blanks are left out. */
void table_print(const struct table *t, int width, int color, struct buf *out);

/* Text in a colour, if `color`. */
void table_paint(struct buf *out, int color, enum table_color c, const char *text);

#endif
