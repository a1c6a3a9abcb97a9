#include "opctl/table.h"

enum { GAP = 2 };

static struct text read_cell(const struct column *column, const msgpack_object *row)
{
    return column->read ? column->read(row, column->key) : text_field(row, column->key);
}

static int measure_column(const struct column *column, const msgpack_object_array *rows)
{
    int width = text_width(column->title);
    for (uint32_t i = 0; i < rows->size; i++) {
        struct text cell = read_cell(column, &rows->ptr[i]);
        int n = text_width(cell.s);
        width = n > width ? n : width;
    }
    return width;
}

static void print_cell(FILE *out, const struct column *column, const char *s, int width, bool last)
{
    int pad = width - text_width(s);
    fprintf(out, "%*s", column->right ? pad : 0, "");
    text_print(out, s, false);
    if (!last)
        fprintf(out, "%*s", (column->right ? 0 : pad) + GAP, "");
}

void table_print(FILE *out, const struct column *columns, size_t count, const msgpack_object *rows)
{
    int widths[TABLE_MAX_COLUMNS];
    if (!rows || rows->type != MSGPACK_OBJECT_ARRAY || rows->via.array.size == 0)
        return;
    for (size_t i = 0; i < count; i++)
        widths[i] = measure_column(&columns[i], &rows->via.array);
    for (size_t i = 0; i < count; i++)
        print_cell(out, &columns[i], columns[i].title, widths[i], i + 1 == count);
    putc('\n', out);
    for (uint32_t r = 0; r < rows->via.array.size; r++) {
        for (size_t i = 0; i < count; i++) {
            struct text cell = read_cell(&columns[i], &rows->via.array.ptr[r]);
            print_cell(out, &columns[i], cell.s, widths[i], i + 1 == count);
        }
        putc('\n', out);
    }
}
