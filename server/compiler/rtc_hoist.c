#include "compiler/rtc_hoist.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compiler/host_lex.h"

struct part {
    struct buf lines;
    size_t kept; // of them: up to the last include that is in no open #if
    bool wanted; // an include stands behind `kept`
};

struct hoisting {
    const char *common, *prelude;
    rtc_include_kind kind;
    void *data;
    struct part before, behind;
    int depth; // open #if
    bool over;
    bool local;
};

// The words of a directive, '#' left out.
struct words {
    struct host_lexer lexer;
    const char *end;
};

static bool next_word(struct words *w, struct host_token *out)
{
    *out = host_lex(&w->lexer);
    return out->kind != HOST_END && out->at < w->end;
}

static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static bool defines(const char *text, const struct host_token *word)
{
    static const char define[] = "define ";
    for (const char *p = text; (p = strstr(p, define)) != NULL;) {
        p += strlen(define);
        if (strncmp(p, word->at, word->size) == 0 && !is_word_char(p[word->size]))
            return true;
    }
    return false;
}

// Whether a text has it as a word: a macro of that name would be another there.
static bool uses(const char *text, const struct host_token *word)
{
    const char *end = text + strlen(text);
    for (const char *p = text; (p = memmem(p, (size_t)(end - p), word->at, word->size)) != NULL;
         p++)
        if ((p == text || !is_word_char(p[-1])) && !is_word_char(p[word->size]))
            return true;
    return false;
}

static bool takes_none_of(const char *common, struct words w)
{
    struct host_token t;
    while (next_word(&w, &t))
        if (t.kind == HOST_WORD && defines(common, &t))
            return false;
    return true;
}

// The name in <> or "". NULL: a macro makes it.
static char *included_name(struct words *w)
{
    struct host_token t;
    if (!next_word(w, &t) || (!host_token_is(&t, "<") && t.kind != HOST_STRING))
        return NULL;
    size_t size = strcspn(t.at + 1, *t.at == '<' ? ">\n" : "\"\n");
    return t.at[1 + size] == '\n' || !t.at[1 + size] ? NULL : mem_strndup(t.at + 1, size);
}

// By <> in any case: "" would look beside the file first, where a header may change.
static void take_include(struct hoisting *h, struct words w)
{
    char *name = included_name(&w);
    enum rtc_include kind = name ? h->kind(name, h->data) : RTC_INCLUDE_LOCAL;
    h->local = h->local || kind == RTC_INCLUDE_LOCAL;
    h->over = h->over || kind == RTC_INCLUDE_LOCAL;
    if (kind != RTC_INCLUDE_EMPTY && !h->over) {
        struct part *part = kind == RTC_INCLUDE_OURS ? &h->behind : &h->before;
        buf_printf(&part->lines, "#include <%s>\n", name);
        part->wanted = true;
    }
    free(name);
}

static void take_directive(struct hoisting *h, const struct host_token *t)
{
    struct words w = { { t->at + 1, 1, false }, t->at + t->size };
    struct host_token name, next;
    if (!next_word(&w, &name) || host_token_is(&name, "line"))
        return;
    struct words rest = w;
    if (host_token_is(&name, "include"))
        take_include(h, w);
    if (host_token_is(&name, "include") || h->over)
        return;
    bool named = next_word(&rest, &next);
    if (host_token_is(&name, "pragma") && named && host_token_is(&next, "once"))
        return;
    if (host_token_starts(&name, "if"))
        h->depth++;
    else if (host_token_is(&name, "endif"))
        h->depth--;
    bool conditional = host_token_starts(&name, "if") || host_token_starts(&name, "el") ||
                       host_token_is(&name, "endif");
    bool plain = conditional ? takes_none_of(h->common, w)
                             : host_token_is(&name, "define") && h->depth == 0 && named &&
                                   !uses(h->common, &next) && !uses(h->prelude, &next);
    h->over = h->over || !plain || h->depth < 0 || memmem(t->at, t->size, "/*", 2) != NULL;
    buf_printf(&h->before.lines, "%.*s\n", (int)t->size, t->at);
    buf_printf(&h->behind.lines, "%.*s\n", (int)t->size, t->at);
}

static void keep(struct part *part)
{
    if (part->wanted)
        part->kept = part->lines.size;
    part->wanted = false;
}

static char *take(struct part *part)
{
    char *kept = mem_strndup(buf_str(&part->lines), part->kept);
    buf_finish(&part->lines);
    return kept;
}

struct rtc_hoisted rtc_hoist(const char *source, const char *common, const char *prelude,
                             rtc_include_kind kind, void *data)
{
    struct hoisting h = { .common = common, .prelude = prelude, .kind = kind, .data = data };
    struct host_lexer l = { source, 1, true };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;) {
        h.over = h.over || t.kind != HOST_DIRECTIVE;
        if (t.kind == HOST_DIRECTIVE)
            take_directive(&h, &t);
        if (h.depth == 0 && !h.over) {
            keep(&h.before);
            keep(&h.behind);
        }
    }
    return (struct rtc_hoisted){ take(&h.before), take(&h.behind), h.local };
}
