#include "compiler/host_loop.h"

#include <string.h>

#include "compiler/host_unit.h"

static const char *const kernel_loops[] = { "CUDA_KERNEL_LOOP", "CUDA_1D_KERNEL_LOOP",
                                            "CUDA_KERNEL_LOOP_TYPE", "CUDA_1D_KERNEL_LOOP_T",
                                            NULL };

// What tells the threads of a block apart, or counts them, or may hide either. How often a maximum
// is taken changes nothing.
static bool tells_threads(const struct host_token *t)
{
    return HOST_IS_ANY(t, "threadIdx", "blockIdx", "__shared__", "__activemask", "printf",
                       "gpuAtomicAdd", "fastAtomicAdd") ||
           host_token_starts(t, "clock") || memmem(t->at, t->size, "sync", strlen("sync")) ||
           (host_token_starts(t, "atomic") &&
            !HOST_IS_ANY(t, "atomicMax", "atomicMin", "atomicAnd", "atomicOr")) ||
           (host_token_is(t, "#") && t->at[1] == '#');
}

// Follows a piece's words. *loops: of kernels, so far.
static bool follow(struct host_unit *u, const struct host_piece *p, int *loops)
{
    bool repeats = false;
    for (size_t i = p->first; i < p->end; i++) {
        const struct host_token *t = HOST_AT(u->tokens, struct host_token, i);
        if (tells_threads(t))
            return false;
        repeats |= HOST_IS_ANY(t, "for", "while", "do", "goto");
        if (host_token_is_any(t, kernel_loops) && (!p->kernel || repeats || ++*loops > 1))
            return false; // which thread has an index may count in the other loop, or pass
        host_unit_reach(u, t);
    }
    return true;
}

static bool judge(struct host_unit *u, const char *expr)
{
    struct host_lexer l = { expr, 1, false };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;)
        host_unit_reach(u, &t);
    int loops = 0;
    size_t n = HOST_COUNT(u->pieces, struct host_piece);
    struct buf followed = { 0 }; // a bool of each
    bool plain = true, more = true;
    for (size_t i = 0; i < n; i++)
        buf_append(&followed, &(bool){ false }, sizeof(bool));
    while (plain && more) {
        more = false;
        for (size_t i = 0; i < n && plain; i++) {
            bool *done = HOST_AT(followed, bool, i);
            const struct host_piece *p = HOST_AT(u->pieces, struct host_piece, i);
            if (!p->reached || *done)
                continue;
            *done = more = true;
            plain = follow(u, p, &loops);
        }
    }
    buf_finish(&followed);
    return plain && loops == 1;
}

static bool is_plain(const struct compile_input *in, const char *expr)
{
    const char *const texts[] = { in->common, in->prelude, in->source };
    struct host_unit u = { 0 };
    for (int i = 0; i < 3; i++)
        host_unit_read_macros(&u, texts[i], i == 0 ? kernel_loops : NULL); // its own is meant
    for (int i = 0; i < 3; i++)
        host_unit_read(&u, texts[i]);
    host_unit_link(&u);
    bool plain = !u.unclear && !u.partly && !u.includes && judge(&u, expr);
    host_unit_finish(&u);
    return plain;
}

bool host_loop_is_plain(const struct compile_input *in)
{
    bool plain = strstr(in->source, "KERNEL_LOOP") && is_plain(in, in->expr);
    for (int i = 0; plain && i < in->n_more; i++)
        plain = is_plain(in, in->more[i]);
    return plain;
}
