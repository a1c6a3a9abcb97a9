#include "op/report.h"

#include <string.h>

#include "op/rules.h"

// The tensor that kernels report to: 8 bytes of scratch.
static bool add_report(struct reader *r)
{
    int index = r->body->n_temps;
    if (index == OP_MAX_TEMPS)
        return lex_fail(&r->lx, "more than %d saved and scratch tensors, 'report' is one of them",
                        OP_MAX_TEMPS);
    struct temp *temp = &r->temps[index];
    *temp = (struct temp){ .name = "report", .type = -1, .dtype = OPD_DTYPE_int64 };
    struct rule *rule = reader_rule(r, RULE_SHAPE);
    rule->tensor = TENSOR_TEMP + index;
    rule->shape = (struct shape){ .text = "[]", .pack = -1 };
    r->body->n_temps++;
    r->scope.shaped[rule->tensor] = true;
    r->body->report = rule->tensor;
    return reader_symbol(r, temp->name, SYMBOL_TENSOR, rule->tensor);
}

bool report_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct op_body *body = r->body;
    char name[OP_MAX_NAME];
    if (body->n_checks == OP_MAX_CHECKS)
        return lex_fail(lx, "more than %d checks", OP_MAX_CHECKS);
    if (!lex_name(lx, "a name for the check", name, sizeof name) ||
        !lex_expect(lx, ':', "':' and the message in quotes"))
        return false;
    struct report_check *check = &r->checks[body->n_checks];
    *check = (struct report_check){ .line = lx->line };
    strcpy(check->name, name);
    if (lx->token.kind != TOKEN_STRING)
        return lex_fail_expected(lx, "the message in quotes");
    if (!require_read_message(r, true, &check->message) || !lex_expect_end(lx))
        return false;
    if (body->n_checks == 0 && !add_report(r))
        return false;
    body->n_checks++;
    return reader_symbol(r, check->name, SYMBOL_CHECK, body->n_checks - 1);
}

bool report_end(struct reader *r)
{
    if (r->body->n_checks == 0)
        return true;
    for (int i = 0; i < r->body->n_sections; i++)
        for (int k = 0; k < r->sections[i].n_steps; k++) {
            const struct step *step = &r->sections[i].steps[k];
            for (int a = 0; step->kind == STEP_LAUNCH && a < step->n_args; a++)
                if (step->args[a].tensor == r->body->report)
                    return true;
        }
    r->lx.line = r->checks[0].line;
    return lex_fail(&r->lx, "check '%s', but no kernel has the parameter 'opd::report_t *report'",
                    r->checks[0].name);
}

void report_write_names(const struct op *op, struct buf *out)
{
    for (int i = 0; i < op->body->n_checks; i++)
        buf_printf(out, "enum { %s = %d };\n", op->body->checks[i].name, i);
}

char *report_texts(const struct env *env, struct arena *arena, size_t *out_size)
{
    const struct op_body *body = env->request->op->body;
    struct buf texts = { 0 };
    char text[sizeof((struct opd_err *)0)->msg];
    for (int i = 0; i < body->n_checks; i++) {
        rules_format_message(&body->checks[i].message, env, text, sizeof text);
        buf_append(&texts, text, strlen(text) + 1);
    }
    char *out = arena_copy(arena, texts.bytes, texts.size, 1);
    *out_size = texts.size;
    buf_finish(&texts);
    return out;
}
