#include "op/reader.h"

bool repeat_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (r->repeat)
        return lex_fail(lx, "'repeat' inside the one of line %d, expected its 'end' first",
                        r->repeat->line);
    struct step *step = section_add_step(r, STEP_REPEAT);
    if (!step)
        return false;
    struct symbol counter = { .kind = SYMBOL_LET, .index = r->n_slots, .line = lx->line };
    if (r->n_slots == ENV_MAX_SLOTS)
        return lex_fail(lx, "more than %d dimensions, lets and repeats", ENV_MAX_SLOTS);
    if (!lex_name(lx, "the name of a counter, as in 'repeat t < T'", counter.name,
                  sizeof counter.name) ||
        !lex_expect(lx, '<', "'<', as in 'repeat t < T'"))
        return false;
    step->repeat = reader_int(r, "repeat");
    if (!step->repeat || !lex_expect_end(lx))
        return false;
    step->slot = r->n_slots++;
    r->repeat = step;
    r->n_outside = r->scope.n;
    r->chained = false;
    return scope_add(&r->scope, &counter, lx);
}

bool repeat_read_end(struct reader *r)
{
    int line = r->lx.line;
    if (!section_end_launch(r))
        return false;
    r->lx.line = line;
    if (!r->repeat)
        return lex_fail(&r->lx, "'end' without its 'repeat'");
    r->repeat->n_body = (int)(&r->steps[r->section->n_steps] - r->repeat) - 1;
    if (r->repeat->n_body == 0)
        return lex_fail(&r->lx, "'repeat' without steps, expected 'kernel', 'matmul' or 'zero' "
                                "before its 'end'");
    r->scope.n = r->n_outside;
    r->repeat = NULL;
    r->chained = false;
    return lex_expect_end(&r->lx);
}

bool repeat_check_ended(struct reader *r)
{
    if (!r->repeat)
        return true;
    r->lx.line = r->repeat->line;
    return lex_fail(&r->lx, "'repeat' without its 'end'");
}
