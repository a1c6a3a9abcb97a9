#include <string.h>

#include "op/reader.h"
#include "base/suggest.h"

static bool fail_no_dtype(struct lexer *lx, const char *name)
{
    struct suggest near;
    suggest_init(&near, name, strlen(name));
    for (int d = 1; d < OPD_DTYPE_COUNT; d++)
        suggest_add(&near, dtype_name((enum opd_dtype)d));
    return lex_fail(lx, "'%s' is no dtype%s", name, suggest_text(&near));
}

// A list of dtypes, up to the end or a ':'.
static bool read_dtype_list(struct reader *r, struct op_type *type)
{
    struct lexer *lx = &r->lx;
    while (lx->token.kind == TOKEN_NAME) {
        char name[OP_MAX_NAME];
        if (!lex_name(lx, "a dtype", name, sizeof name))
            return false;
        enum opd_dtype dtype = dtype_parse(name);
        if (dtype == OPD_DTYPE_NONE)
            return fail_no_dtype(lx, name);
        if (op_type_takes(type, dtype))
            return lex_fail(lx, "%s stands twice in the list", name);
        type->dtypes[type->n_dtypes++] = dtype;
    }
    return type->n_dtypes > 0 || lex_fail_expected(lx, "a dtype");
}

bool types_read_scalar(struct reader *r)
{
    struct op_type *type = &r->op->types[TYPE_SCALAR];
    if (type->n_dtypes > 0)
        return lex_fail(&r->lx, "a second 'dtypes'");
    return read_dtype_list(r, type) && lex_expect_end(&r->lx);
}

bool types_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct op *op = r->op;
    char name[OP_MAX_NAME];
    if (op->n_types == OP_MAX_TYPES)
        return lex_fail(lx, "more than %d types", OP_MAX_TYPES);
    struct op_type *type = &op->types[op->n_types];
    const struct lexer start = *lx;
    if (!lex_name(lx, "the name of a type variable, or a dtype", name, sizeof name))
        return false;
    bool fixed = dtype_parse(name) != OPD_DTYPE_NONE;
    if (fixed)
        *lx = start;
    else
        strcpy(type->name, name);
    if (!read_dtype_list(r, type) || !lex_expect(lx, ':', "':' and the tensors of this type"))
        return false;
    if (fixed && type->n_dtypes > 1)
        return lex_fail(lx,
                        "a fixed type of %d dtypes; to allow several write 'type NAME_t %s ...'",
                        type->n_dtypes, name);
    do {
        int tensor;
        if (!reader_take_tensor(r, &tensor))
            return false;
        struct op_tensor *t = body_tensor(op, tensor);
        if (t->type != TYPE_SCALAR)
            return lex_fail(lx, "'%s' has a type already", t->name);
        t->type = op->n_types;
    } while (lx->token.kind == TOKEN_NAME);
    if (!lex_expect_end(lx))
        return false;
    op->n_types++;
    return fixed || reader_symbol(r, type->name, SYMBOL_TYPE, op->n_types - 1);
}
