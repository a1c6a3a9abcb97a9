#include "op/signature.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/op.h"
#include "op/stores.h"
#include "op/text.h"

// A word or one character of the blanked text.
struct piece {
    const char *start;
    size_t size;
    int line;
};

struct scanner {
    const char *file;
    struct arena *arena;
    struct opd_err *err;
    const char *text; // the whole, as it came
    size_t text_size;
    const char *p, *end;
    int line;
    struct piece piece; // size 0: the end
    int n;
    struct signature *found; // SIGNATURE_MAX_KERNELS of them
};

static void blank(char *from, const char *to)
{
    for (; from < to; from++)
        if (*from != '\n')
            *from = ' ';
}

static char *skip_line(char *p, const char *end)
{
    for (; p < end && *p != '\n'; p++)
        if (*p == '\\' && p + 1 < end)
            p++;
    return p;
}

static char *skip_quoted(char *p, const char *end)
{
    char quote = *p++;
    while (p < end && *p != quote && *p != '\n')
        p += *p == '\\' && p + 1 < end ? 2 : 1;
    return p < end && *p == quote ? p + 1 : p;
}

static char *skip_raw_string(char *p, const char *end)
{
    char close[24] = ")"; // R"word( ... )word"
    char *open = memchr(p, '(', end - p < 20 ? (size_t)(end - p) : 20);
    size_t n = open ? (size_t)(open - (p + 2)) : sizeof close;
    if (n > 16)
        return p + 1;
    memcpy(close + 1, p + 2, n);
    close[n + 1] = '"';
    char *stop = memmem(open, (size_t)(end - open), close, n + 2);
    return stop ? stop + n + 2 : (char *)end;
}

static char *skip_comment(char *p, const char *end)
{
    if (p[1] == '/')
        return skip_line(p, end);
    char *close = memmem(p + 2, (size_t)(end - p - 2), "*/", 2);
    return close ? close + 2 : (char *)end;
}

// Comments, strings and preprocessor lines become blanks; lines stay where they are.
static void blank_text(char *text, size_t size)
{
    char *p = text;
    const char *end = text + size;
    bool line_start = true;
    while (p < end) {
        char *from = p;
        bool more = end - p > 1;
        bool after_word = p > text && text_is_word_char(p[-1]);
        if (*p == '/' && more && (p[1] == '/' || p[1] == '*'))
            p = skip_comment(p, end);
        else if (*p == '#' && line_start)
            p = skip_line(p, end);
        else if (*p == 'R' && more && p[1] == '"' && !after_word)
            p = skip_raw_string(p, end);
        else if (*p == '"' || (*p == '\'' && !after_word)) // 1'000 is a number
            p = skip_quoted(p, end);
        else {
            line_start = *p == '\n' || (line_start && isspace((unsigned char)*p));
            p++;
            continue;
        }
        blank(from, p);
    }
}

static void next_piece(struct scanner *s)
{
    while (s->p < s->end && isspace((unsigned char)*s->p))
        s->line += *s->p++ == '\n';
    s->piece = (struct piece){ s->p, 0, s->line };
    if (s->p == s->end)
        return;
    do
        s->p++;
    while (text_is_word_char(*s->piece.start) && s->p < s->end && text_is_word_char(*s->p));
    s->piece.size = (size_t)(s->p - s->piece.start);
}

static bool piece_is(const struct piece *piece, const char *word)
{
    return text_is(piece->start, piece->size, word);
}

static bool at_end(const struct scanner *s)
{
    return s->piece.size == 0;
}

// The change of depth that a piece makes, brackets of every kind counted together.
static int depth_change(const struct piece *piece, bool angles)
{
    if (piece->size != 1)
        return 0;
    char c = *piece->start;
    if (strchr("([{", c) || (angles && c == '<'))
        return 1;
    return strchr(")]}", c) || (angles && c == '>') ? -1 : 0;
}

// The text between an opening bracket, where the scanner stands, and its closing one, behind which
// it is left.
static struct piece take_bracketed(struct scanner *s, bool angles)
{
    int depth = 0, round = 0;
    const char *start = s->piece.start + 1;
    int line = s->piece.line;
    while (!at_end(s)) {
        // Inside parentheses < and > compare.
        depth += depth_change(&s->piece, angles && round == 0);
        if (angles)
            round += depth_change(&s->piece, false);
        const char *stop = s->piece.start;
        next_piece(s);
        if (depth == 0)
            return (struct piece){ start, (size_t)(stop - start), line };
    }
    return (struct piece){ start, 0, line };
}

static struct scanner scan_part(const struct scanner *s, struct piece part)
{
    struct scanner inner = {
        .file = s->file,
        .arena = s->arena,
        .err = s->err,
        .p = part.start,
        .end = part.start + part.size,
        .line = part.line,
    };
    next_piece(&inner);
    return inner;
}

// The words of one parameter, up to a comma outside brackets.
struct words {
    int n;
    struct piece pieces[64];
    bool too_many;
};

static void take_words(struct scanner *s, struct words *w)
{
    int depth = 0, round = 0;
    w->n = 0;
    w->too_many = false;
    while (!at_end(s)) {
        depth += depth_change(&s->piece, round == 0);
        round += depth_change(&s->piece, false);
        if (depth == 0 && piece_is(&s->piece, ","))
            break;
        if (w->n < (int)(sizeof w->pieces / sizeof *w->pieces))
            w->pieces[w->n++] = s->piece;
        else
            w->too_many = true;
        next_piece(s);
    }
    next_piece(s);
}

static bool is_word(const struct piece *piece)
{
    return piece->size > 0 && text_is_word_char(*piece->start);
}

static const char *copy_piece(struct arena *arena, const struct piece *piece)
{
    return arena_strndup(arena, piece->start, piece->size);
}

static struct template_param read_template_param(struct scanner *s, struct words *w)
{
    struct template_param param = { .name = "" };
    for (int i = 0; i < w->n; i++)
        if (piece_is(&w->pieces[i], "=")) {
            param.has_default = true;
            w->n = i;
        } else if (piece_is(&w->pieces[i], ".")) {
            param.is_pack = true;
        }
    if (w->n == 0)
        return param;
    param.is_type = piece_is(&w->pieces[0], "typename") || piece_is(&w->pieces[0], "class");
    if (w->n > 1 && is_word(&w->pieces[w->n - 1]))
        param.name = copy_piece(s->arena, &w->pieces[w->n - 1]);
    return param;
}

static bool read_template(struct scanner *s, struct piece text, struct signature *sig)
{
    struct template_param params[SIGNATURE_MAX_TEMPLATE];
    struct scanner inner = scan_part(s, text);
    struct words words;
    sig->is_template = true;
    sig->n_template = 0;
    while (!at_end(&inner)) {
        if (sig->n_template == SIGNATURE_MAX_TEMPLATE)
            return op_fail(s->err, "%s:%d: a template of more than %d parameters", s->file,
                           text.line, SIGNATURE_MAX_TEMPLATE);
        take_words(&inner, &words);
        params[sig->n_template++] = read_template_param(s, &words);
    }
    sig->template_params = arena_copy(s->arena, params, (size_t)sig->n_template, sizeof *params);
    return true;
}

// Words that say nothing about how a parameter is passed.
static bool is_qualifier(const struct piece *piece)
{
    static const char *const words[] = {
        "const",    "volatile",          "__restrict__", "__restrict", "restrict",
        "typename", "__grid_constant__", "struct",       "register",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (piece_is(piece, words[i]))
            return true;
    return false;
}

static const char *join_words(struct scanner *s, const struct piece *pieces, int n)
{
    struct buf text = { 0 };
    for (int i = 0; i < n; i++) {
        if (is_qualifier(&pieces[i]))
            continue;
        if (text.size > 0 && is_word(&pieces[i]) &&
            text_is_word_char((char)text.bytes[text.size - 1]))
            buf_append_str(&text, " ");
        buf_append(&text, pieces[i].start, pieces[i].size);
    }
    const char *copy = arena_strndup(s->arena, (const char *)text.bytes, text.size);
    buf_finish(&text);
    return copy;
}

static int find_word(const struct piece *pieces, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (piece_is(&pieces[i], word))
            return i;
    return -1;
}

// PackedTensorAccessor32 < type , rank , ... >
static bool read_accessor(struct scanner *s, const struct piece *pieces, int n,
                          struct signature_param *param)
{
    static const struct {
        const char *name;
        int index_size;
    } accessors[] = {
        { "PackedTensorAccessor32", 4 },
        { "PackedTensorAccessor64", 8 },
        { "PackedTensorAccessor", 8 },
    };
    for (size_t i = 0; i < sizeof accessors / sizeof *accessors; i++) {
        int at = find_word(pieces, n, accessors[i].name);
        if (at < 0)
            continue;
        int comma = at + 1 + find_word(pieces + at + 1, n - at - 1, ",");
        param->kind = PARAM_ACCESSOR;
        param->index_size = accessors[i].index_size;
        if (comma <= at + 2 || comma + 1 >= n || !piece_is(&pieces[at + 1], "<"))
            return true;
        param->writes = find_word(pieces + at, comma - at, "const") < 0;
        param->type = join_words(s, pieces + at + 2, comma - at - 2);
        if (pieces[comma + 1].size <= 2 && isdigit((unsigned char)*pieces[comma + 1].start))
            param->rank = atoi(copy_piece(s->arena, &pieces[comma + 1]));
        return true;
    }
    return false;
}

static void read_pointer(struct scanner *s, const struct piece *pieces, int n, int star,
                         struct signature_param *param)
{
    param->kind = PARAM_POINTER;
    param->writes = find_word(pieces, star, "const") < 0;
    param->type = join_words(s, pieces, star < n ? star : n);
}

// Reads a parameter. Returns why a launch could not pass it, or NULL.
static const char *read_param(struct scanner *s, struct words *w, struct signature_param *param)
{
    int n = find_word(w->pieces, w->n, "=");
    n = n < 0 ? w->n : n;
    int bracket = find_word(w->pieces, n, "[");
    bool attribute = bracket == 0; // [[maybe_unused]]
    bool is_array = bracket > 0;
    struct piece *pieces = w->pieces;
    if (attribute) {
        int close = find_word(pieces, n, "]");
        pieces += close + 2;
        n = close < 0 || close + 2 > n ? 0 : n - close - 2;
        is_array = false;
    }
    if (is_array)
        n = bracket;
    if (w->too_many || n < 2 || !is_word(&pieces[n - 1]) || is_qualifier(&pieces[n - 1]))
        return "a parameter without a name, or one that is too long";
    param->name = copy_piece(s->arena, &pieces[n - 1]);
    param->line = pieces[n - 1].line;
    n--;
    if (read_accessor(s, pieces, n, param))
        return param->rank > 0 ? NULL : "an accessor whose rank is not a plain number";
    if (find_word(pieces, n, "&") >= 0)
        return "a reference, which a kernel cannot take";
    int star = find_word(pieces, n, "*");
    if (star >= 0 && (is_array || find_word(pieces + star + 1, n - star - 1, "*") >= 0))
        return "a pointer to pointers, expected a pointer to elements";
    if (star >= 0 || is_array) {
        read_pointer(s, pieces, n, star >= 0 ? star : n, param);
    } else {
        param->kind = PARAM_VALUE;
        param->type = join_words(s, pieces, n);
    }
    return NULL;
}

static bool read_params(struct scanner *s, struct piece text, struct signature *sig)
{
    struct signature_param params[SIGNATURE_MAX_PARAMS];
    struct scanner inner = scan_part(s, text);
    struct words words;
    while (!at_end(&inner)) {
        if (sig->n_params == SIGNATURE_MAX_PARAMS)
            return op_fail(s->err, "%s:%d: kernel '%s' has more than %d parameters", s->file,
                           sig->line, sig->name, SIGNATURE_MAX_PARAMS);
        take_words(&inner, &words);
        if (words.n == 1 && piece_is(&words.pieces[0], "void") && sig->n_params == 0)
            break;
        struct signature_param param = { 0 };
        const char *problem = read_param(s, &words, &param);
        if (problem && !sig->problem)
            sig->problem = arena_printf(s->arena, "parameter %d is %s", sig->n_params + 1, problem);
        params[sig->n_params++] = param;
    }
    sig->params = arena_copy(s->arena, params, (size_t)sig->n_params, sizeof *params);
    return true;
}

static void look_into(struct scanner *s, struct signature *sig)
{
    struct scanner ahead = *s;
    struct piece body = sig->has_body ? take_bracketed(&ahead, false) : (struct piece){ 0 };
    for (int i = 0; sig->has_body && i < sig->n_params; i++) {
        struct signature_param *p = &sig->params[i];
        if (p->kind != PARAM_VALUE && p->name)
            p->reads = !(p->writes ? stores_only : stores_nothing)(body.start, body.size, p->name,
                                                                   s->text, s->text_size);
    }
}

// A kernel, behind __global__: attributes and words in any order, then NAME ( ... ).
static bool read_kernel(struct scanner *s, struct piece template_text)
{
    struct signature sig = { 0 };
    struct piece name = { 0 };
    while (!at_end(s) && !(s->piece.size == 1 && strchr(";{}", *s->piece.start))) {
        if (!piece_is(&s->piece, "(")) {
            name = s->piece;
            next_piece(s);
            continue;
        }
        struct piece inside = take_bracketed(s, false);
        if (piece_is(&name, "__launch_bounds__") || piece_is(&name, "__attribute__") ||
            piece_is(&name, "__cluster_dims__") || piece_is(&name, "__maxnreg__") ||
            piece_is(&name, "alignas"))
            continue;
        if (!is_word(&name))
            return true;
        if (s->n == SIGNATURE_MAX_KERNELS)
            return op_fail(s->err, "%s:%d: more than %d kernels", s->file, name.line,
                           SIGNATURE_MAX_KERNELS);
        sig.name = copy_piece(s->arena, &name);
        sig.line = name.line;
        if (template_text.start && !read_template(s, template_text, &sig))
            return false;
        if (!read_params(s, inside, &sig))
            return false;
        sig.has_body = piece_is(&s->piece, "{");
        look_into(s, &sig);
        s->found[s->n++] = sig;
        return true;
    }
    return true;
}

static bool scan_kernels(struct scanner *s)
{
    struct piece template_text = { 0 };
    next_piece(s);
    while (!at_end(s)) {
        if (piece_is(&s->piece, "template")) {
            next_piece(s);
            if (piece_is(&s->piece, "<"))
                template_text = take_bracketed(s, true);
        } else if (piece_is(&s->piece, "__global__")) {
            next_piece(s);
            if (!read_kernel(s, template_text))
                return false;
            template_text.start = NULL;
        } else {
            if (s->piece.size == 1 && strchr(";{}", *s->piece.start))
                template_text.start = NULL;
            next_piece(s);
        }
    }
    return true;
}

bool signature_scan(const char *file, const char *text, size_t size, struct arena *arena,
                    struct signature **out, int *out_n, struct opd_err *err)
{
    char *copy = mem_strndup(text, size);
    blank_text(copy, size);
    struct scanner s = {
        .file = file,
        .arena = arena,
        .err = err,
        .text = text,
        .text_size = size,
        .p = copy,
        .end = copy + size,
        .line = 1,
        .found = mem_zalloc(SIGNATURE_MAX_KERNELS, sizeof *s.found),
    };
    bool ok = scan_kernels(&s);
    *out = arena_copy(arena, s.found, ok ? (size_t)s.n : 0, sizeof **out);
    *out_n = ok ? s.n : 0;
    free(s.found);
    free(copy);
    return ok;
}

static void count_params(const struct scanner *s, struct piece text, int most,
                         struct function_signature *f)
{
    struct scanner inner = scan_part(s, text);
    struct words words;
    while (!at_end(&inner)) {
        take_words(&inner, &words);
        bool is_void = words.n == 1 && piece_is(&words.pieces[0], "void");
        f->least += !is_void && find_word(words.pieces, words.n, "=") < 0;
        f->most += !is_void;
    }
    f->most = f->most < most ? f->most : most;
}

// A function behind __device__: NAME ( ... ) { or ;
static bool read_function(struct scanner *s, struct function_signature *f, int most)
{
    struct piece name = { 0 };
    while (!at_end(s) && !(s->piece.size == 1 && strchr("=;{}", *s->piece.start))) {
        if (!piece_is(&s->piece, "(")) {
            name = s->piece;
            next_piece(s);
            continue;
        }
        struct piece inside = take_bracketed(s, false);
        if (piece_is(&name, "__launch_bounds__") || piece_is(&name, "__attribute__"))
            continue;
        *f = (struct function_signature){ .name = copy_piece(s->arena, &name) };
        count_params(s, inside, most, f);
        return is_word(&name);
    }
    return false;
}

bool signature_functions(const char *text, size_t size, struct arena *arena,
                         struct function_signature **out, int *out_n, int most)
{
    struct function_signature found[SIGNATURE_MAX_KERNELS], next;
    char *copy = mem_strndup(text, size);
    blank_text(copy, size);
    struct scanner s = { .arena = arena, .p = copy, .end = copy + size, .line = 1 };
    int depth = 0, n = 0;
    next_piece(&s);
    while (!at_end(&s) && n < SIGNATURE_MAX_KERNELS) {
        bool is_device = depth == 0 && piece_is(&s.piece, "__device__");
        depth += piece_is(&s.piece, "{") - piece_is(&s.piece, "}");
        next_piece(&s);
        if (is_device && read_function(&s, &next, most))
            found[n++] = next;
    }
    free(copy);
    *out = arena_copy(arena, found, (size_t)n, sizeof *found);
    *out_n = n;
    return n < SIGNATURE_MAX_KERNELS;
}

// --- structs

// One declarator: its type, stars and name, then [extents], and perhaps a default.
static const char *read_member(struct scanner *s, struct words *w, struct struct_member *out)
{
    struct piece *pieces = w->pieces;
    int n = find_word(pieces, w->n, "=");
    n = n < 0 ? w->n : n;
    int name = find_word(pieces, n, "[");
    name = name < 0 ? n - 1 : name - 1;
    bool bits = false;
    for (int i = 1; i + 1 < n; i++) // not of "::"
        bits = bits || (piece_is(&pieces[i], ":") && !piece_is(&pieces[i - 1], ":") &&
                        !piece_is(&pieces[i + 1], ":"));
    if (w->too_many || name < 1 || !is_word(&pieces[name]) || bits)
        return bits ? "a bit-field" : "a member that is no plain one";
    for (int i = name + 1; i < n; i += 3) {
        if (i + 2 >= n || !piece_is(&pieces[i + 2], "]") || out->n_extents == STRUCT_MAX_EXTENTS)
            return "an array whose extents are not one word each, or too many";
        out->extents[out->n_extents++] = copy_piece(s->arena, &pieces[i + 1]);
    }
    struct words plain = *w;
    plain.n = name + 1;
    return read_param(s, &plain, &out->param);
}

// The words before a declarator's stars and name.
static int count_base(const struct words *w)
{
    int n = find_word(w->pieces, w->n, "*");
    int name = find_word(w->pieces, w->n, "[");
    return n >= 0 ? n : name > 0 ? name - 1 : w->n - 1;
}

// `const T *x, *y, z[3];`
static void read_members(struct scanner *s, struct piece text, struct struct_definition *def,
                         struct struct_member *members)
{
    struct scanner inner = scan_part(s, text);
    struct words words, base = { 0 };
    for (bool first = true; !at_end(&inner); first = false) {
        struct struct_member member = { 0 };
        take_words(&inner, &words);
        if (first) {
            base = words;
            base.n = count_base(&words);
        } else {
            struct words more = words;
            words = base;
            for (int i = 0;
                 i < more.n && words.n < (int)(sizeof words.pieces / sizeof(struct piece)); i++)
                words.pieces[words.n++] = more.pieces[i];
        }
        const char *problem = base.n < 0 ? "a member that is no plain one"
                              : def->n_members == STRUCT_MAX_MEMBERS
                                  ? "one of too many members"
                                  : read_member(s, &words, &member);
        if (problem && !def->problem)
            def->problem = arena_printf(s->arena, "line %d has %s", text.line, problem);
        if (!problem) {
            member.param.reads = true;
            members[def->n_members++] = member;
        }
    }
}

// What is no member: types, functions, what is not the object's.
static bool is_aside(const struct piece *first)
{
    static const char *const words[] = { "static", "using",    "typedef", "friend",       "enum",
                                         "class",  "template", "union",   "static_assert" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (piece_is(first, words[i]))
            return true;
    return false;
}

static void read_body(struct scanner *s, struct piece text, struct struct_definition *def)
{
    struct struct_member members[STRUCT_MAX_MEMBERS];
    struct scanner in = scan_part(s, text);
    while (!at_end(&in)) {
        struct piece first = in.piece;
        bool aside = is_aside(&first), function = false, braces = false;
        for (; !at_end(&in) && !piece_is(&in.piece, ";");) {
            bool body = piece_is(&in.piece, "{");
            function = function || piece_is(&in.piece, "(");
            if (piece_is(&in.piece, ":") && !function && !body &&
                (piece_is(&first, "public") || piece_is(&first, "private") ||
                 piece_is(&first, "protected"))) {
                next_piece(&in);
                first = in.piece;
                aside = is_aside(&first);
                continue;
            }
            if (!body) {
                next_piece(&in);
                continue;
            }
            take_bracketed(&in, false);
            braces = true;
            if (function)
                break; // a function's body ends it, without ';'
            aside = aside || (piece_is(&first, "struct") && piece_is(&in.piece, ";"));
        }
        struct piece member = { first.start, (size_t)(in.piece.start - first.start), first.line };
        if (piece_is(&in.piece, ";"))
            next_piece(&in);
        if (aside || function || member.size == 0)
            continue;
        if (braces && !def->problem)
            def->problem = arena_printf(s->arena, "line %d has a struct of its own, or braces",
                                        first.line);
        else if (!braces)
            read_members(s, member, def, members);
    }
    def->members = arena_copy(s->arena, members, (size_t)def->n_members, sizeof *members);
}

// Behind `struct`: words and attributes, its name, perhaps a base, then the braces.
static bool read_struct(struct scanner *s, struct piece template_text,
                        struct struct_definition *def)
{
    struct piece name = { 0 };
    bool has_base = false;
    while (!at_end(s) && !piece_is(&s->piece, "{")) {
        if (s->piece.size == 1 && strchr(";)>,=*&", *s->piece.start) && !has_base)
            return false;
        if (piece_is(&s->piece, "(")) {
            def->problem = "its alignment is not that of its members";
            take_bracketed(s, false);
            continue;
        }
        has_base = has_base || piece_is(&s->piece, ":");
        if (!has_base && is_word(&s->piece))
            name = s->piece;
        next_piece(s);
    }
    if (has_base)
        def->problem = "it has a base";
    if (!is_word(&name) || at_end(s))
        return false;
    struct signature sig = { 0 };
    def->name = copy_piece(s->arena, &name);
    def->line = name.line;
    if (template_text.start && read_template(s, template_text, &sig)) {
        def->n_template = sig.n_template;
        def->template_params = sig.template_params;
    }
    struct scanner ahead = *s; // what is inside may be a struct, too
    read_body(s, take_bracketed(&ahead, false), def);
    return true;
}

void struct_scan(const char *text, size_t size, struct arena *arena, struct struct_definition **out,
                 int *out_n)
{
    char *copy = mem_strndup(text, size);
    blank_text(copy, size);
    struct opd_err ignored = { 0 };
    struct scanner s = {
        .file = "", .arena = arena, .err = &ignored, .p = copy, .end = copy + size, .line = 1
    };
    struct struct_definition *found = mem_zalloc(STRUCT_MAX, sizeof *found);
    struct piece template_text = { 0 };
    int n = 0;
    next_piece(&s);
    while (!at_end(&s) && n < STRUCT_MAX) {
        bool is_struct = piece_is(&s.piece, "struct");
        if (piece_is(&s.piece, "template")) {
            next_piece(&s);
            if (piece_is(&s.piece, "<"))
                template_text = take_bracketed(&s, true);
            continue;
        }
        if (s.piece.size == 1 && strchr(";{}", *s.piece.start))
            template_text.start = NULL;
        next_piece(&s);
        if (!is_struct)
            continue;
        found[n] = (struct struct_definition){ 0 };
        n += read_struct(&s, template_text, &found[n]);
        template_text.start = NULL;
    }
    opd_err_clear(&ignored);
    *out = arena_copy(arena, found, (size_t)n, sizeof *found);
    *out_n = n;
    free(found);
    free(copy);
}
