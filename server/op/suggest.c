#include "op/suggest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "op/op.h"

static int min3(int a, int b, int c)
{
    int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

static bool is_same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

// Insertions, deletions, replacements and swaps of neighbours from a to b.
static int edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    int rows[3][OP_MAX_NAME + 1];
    for (size_t i = 0; i <= na; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            if (i == 0) {
                row[j] = (int)j;
                continue;
            }
            row[j] = min3(row[j - 1] + 1, above[j] + 1,
                          above[j - 1] + !is_same(a[i - 1], b[j - 1]));
            bool swapped = i > 1 && j > 1 && is_same(a[i - 1], b[j - 2]) &&
                           is_same(a[i - 2], b[j - 1]);
            if (swapped && second[j - 2] + 1 < row[j])
                row[j] = second[j - 2] + 1;
        }
    }
    return rows[na % 3][nb];
}

void suggest_init(struct suggest *s, const char *word, size_t size)
{
    int most = size <= 4 ? 1 : 2;
    *s = (struct suggest){ .word = word, .size = size, .distance = most + 1 };
}

void suggest_add(struct suggest *s, const char *candidate)
{
    size_t n = strlen(candidate);
    if (s->size >= OP_MAX_NAME || n >= OP_MAX_NAME)
        return;
    int distance = edit_distance(s->word, s->size, candidate, n);
    if (distance < s->distance && (size_t)distance < s->size) {
        s->distance = distance;
        s->best = candidate;
    }
}

const char *suggest_text(const struct suggest *s, char *out, size_t size)
{
    if (s->best)
        snprintf(out, size, "; did you mean '%s'?", s->best);
    else
        snprintf(out, size, "%s", "");
    return out;
}
