#include "base/suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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
    int rows[3][SUGGEST_MAX + 1];
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

void suggest_add(struct suggest *s, const char *name)
{
    size_t n = strlen(name);
    if (s->size >= SUGGEST_MAX || n >= SUGGEST_MAX)
        return;
    bool begins = s->size >= 2 && strncasecmp(name, s->word, s->size) == 0;
    size_t longer = n > s->size ? n - s->size : s->size - n; // no distance is below it
    if (!begins && longer >= (size_t)s->distance)
        return;
    int distance = begins ? 1 : edit_distance(s->word, s->size, name, n);
    if (distance < s->distance && (size_t)distance < s->size) {
        s->distance = distance;
        s->best = name;
    }
}

const char *suggest_text(struct suggest *s)
{
    s->text[0] = '\0';
    if (s->best)
        snprintf(s->text, sizeof s->text, "; did you mean '%s'?", s->best);
    return s->text;
}

const char *suggest_among(const char *word, const char *const *names, int n)
{
    struct suggest s;
    suggest_init(&s, word, strlen(word));
    for (int i = 0; i < n; i++)
        suggest_add(&s, names[i]);
    return s.best;
}
