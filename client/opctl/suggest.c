#include "opctl/suggest.h"

#include <stdbool.h>
#include <string.h>

enum { LONGEST = 32 };

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

// How many insertions, deletions and replacements of a letter turn one word into the other.
static int count_edits(const char *a, const char *b)
{
    int row[LONGEST + 1];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n];
}

const char *suggest(const char *word, const char *const *names, int count)
{
    const char *best = NULL;
    int fewest = 3; // more than two edits are another word
    for (int i = 0; i < count; i++) {
        if (strlen(names[i]) > LONGEST)
            continue;
        bool begins = word[0] && word[1] && strncmp(names[i], word, strlen(word)) == 0;
        int edits = begins ? 0 : count_edits(word, names[i]);
        if (edits < fewest && edits < (int)strlen(names[i])) {
            fewest = edits;
            best = names[i];
        }
    }
    return best;
}
