#include "opctl/table.h"

#include <string.h>

// The margin is what colours take of a line where something counts them, as less does without -R.
enum { GAP = 2, MARGIN = 8 };

// How wide each column is; below 0: it is left out.
struct layout {
    int widths[TABLE_MAX_COLUMNS], least[TABLE_MAX_COLUMNS];
    bool empty[TABLE_MAX_COLUMNS]; // nothing to be told by it
};

static struct text read_cell(const struct table *t, size_t column, size_t row)
{
    const struct column *c = &t->columns[column];
    const void *at = (const char *)t->rows + row * t->row_size;
    if (c->show)
        return c->show(at);
    if (t->by_map && !(at = *(const msgpack_object *const *)at))
        return (struct text){ "-" };
    return c->read ? c->read(at, c->key) : text_field(at, c->key);
}

static bool says_nothing(const char *cell)
{
    return cell[strspn(cell, "-0.[] ")] == '\0';
}

static void measure(const struct table *t, struct layout *l)
{
    for (size_t c = 0; c < t->n_columns; c++) {
        int width = text_width(t->columns[c].title);
        l->empty[c] = true;
        for (size_t r = 0; r < t->n_rows; r++) {
            struct text cell = read_cell(t, c, r);
            int n = text_width(cell.s);
            width = n > width ? n : width;
            l->empty[c] = l->empty[c] && says_nothing(cell.s);
        }
        l->widths[c] = width;
        int least = t->columns[c].least;
        l->least[c] = least && least < width ? least : width;
    }
}

static int sum(const struct table *t, const struct layout *l, const int *of)
{
    int n = -GAP;
    for (size_t c = 0; c < t->n_columns; c++)
        n += l->widths[c] < 0 ? 0 : of[c] + GAP;
    return n;
}

// The next column to go: one that says nothing, or the first in their order.
static int find_drop(const struct table *t, const struct layout *l)
{
    int found = -1;
    for (size_t c = 0; c < t->n_columns; c++) {
        int drop = t->columns[c].drop;
        if (!drop || l->widths[c] < 0)
            continue;
        if (l->empty[c])
            return (int)c;
        if (found < 0 || drop < t->columns[found].drop)
            found = (int)c;
    }
    return found;
}

// The widest of those that may be cut; below 0: none.
static int find_cut(const struct table *t, const struct layout *l)
{
    int found = -1;
    for (size_t c = 0; c < t->n_columns; c++)
        if (l->widths[c] > l->least[c] && (found < 0 || l->widths[c] > l->widths[found]))
            found = (int)c;
    return found;
}

static void fit(const struct table *t, struct layout *l)
{
    int at;
    while (t->width && sum(t, l, l->least) > t->width && (at = find_drop(t, l)) >= 0)
        l->widths[at] = -1;
    while (t->width && sum(t, l, l->widths) > t->width && (at = find_cut(t, l)) >= 0)
        l->widths[at]--;
}

// A cell, and the gap before it; `left` is what the line still has.
static void print_cell(FILE *out, const struct column *column, const char *s, int width, bool last,
                       int *left)
{
    int n = text_width(s);
    n = n < width ? n : width;
    int before = column->right ? width - n : 0;
    if (before + n > *left) {
        n = *left > before ? *left - before : 0;
        before = before < *left ? before : *left;
    }
    fprintf(out, "%*s", before, "");
    text_print_cut(out, s, n);
    *left -= before + n;
    int after = last ? 0 : (column->right ? 0 : width - n) + GAP;
    after = after < *left ? after : *left;
    fprintf(out, "%*s", after, "");
    *left -= after;
}

static void print_row(FILE *out, const struct table *t, const struct layout *l, size_t row,
                      bool head)
{
    enum style plain = head ? STYLE_HEAD : STYLE_PLAIN;
    int left = t->width ? t->width : INT32_MAX;
    size_t last = 0;
    if (!head && t->style)
        plain = t->style((const char *)t->rows + row * t->row_size);
    for (size_t c = 0; c < t->n_columns; c++)
        last = l->widths[c] < 0 ? last : c;
    if (plain)
        term_style(out, plain);
    for (size_t c = 0; c <= last; c++) {
        if (l->widths[c] < 0)
            continue;
        struct text cell = { "" };
        if (!head)
            cell = read_cell(t, c, row);
        const char *s = head ? t->columns[c].title : cell.s;
        enum style style = !head && t->columns[c].state ? term_style_of(s) : STYLE_PLAIN;
        if (style)
            term_style(out, style);
        print_cell(out, &t->columns[c], s, l->widths[c], c == last, &left);
        if (style)
            term_style(out, STYLE_PLAIN);
        if (style && plain)
            term_style(out, plain);
    }
    if (plain)
        term_style(out, STYLE_PLAIN);
    putc('\n', out);
}

void table_show(FILE *out, const struct table *t)
{
    struct layout layout;
    measure(t, &layout);
    fit(t, &layout);
    print_row(out, t, &layout, 0, true);
    for (size_t r = 0; r < t->n_rows; r++)
        print_row(out, t, &layout, r, false);
}

void table_print(FILE *out, const struct column *columns, size_t count, const msgpack_object *rows)
{
    if (!rows || rows->type != MSGPACK_OBJECT_ARRAY || rows->via.array.size == 0)
        return;
    int width = term_columns();
    table_show(out, &(struct table){ .columns = columns,
                                     .n_columns = count,
                                     .rows = rows->via.array.ptr,
                                     .n_rows = rows->via.array.size,
                                     .row_size = sizeof *rows->via.array.ptr,
                                     .width = width > 2 * MARGIN ? width - MARGIN : width });
}
