#include "suggest.h"

#include <stdio.h>
#include <string.h>

#include "op.h"

static int min3(int a, int b, int c)
{
    int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

// Insertions, deletions and replacements from a to b.
static int edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    int row[OP_MAX_NAME + 1];
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int above = row[j];
            row[j] = min3(row[j - 1] + 1, above + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

void suggest_init(struct suggest *s, const char *word, size_t size)
{
    int most = size <= 4 ? 1 : 2;
    *s = (struct suggest){.word = word, .size = size, .distance = most + 1};
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
