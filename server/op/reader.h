#pragma once

// What is known while a file is read. Each reader takes the rest of one directive's line.

#include "body.h"
#include "lines.h"
#include "mem.h"
#include "scope.h"

enum { READER_MAX_STEPS = 256, READER_MAX_SECTIONS = 33, READER_MAX_BINDS = 64 };

struct bind {
    char name[OP_MAX_NAME];
    int line;
    int tensor;              // -1: none
    const struct expr *expr; // NULL where it is a tensor
    bool used;
};

struct reader {
    struct op *op;
    struct op_body *body;
    struct arena *arena; // the operator's
    struct lexer lx;     // over the present directive
    const struct line *line;
    struct lex_mark mark; // of lx
    struct scope scope;
    int n_slots, n_packs;
    int op_line; // 0: no `op` yet
    bool has_forward, has_view;
    struct buf doc;
    const char *str_defaults[OP_MAX_ATTRS]; // of str attributes, until their words are known
    int str_lines[OP_MAX_ATTRS];

    struct device_check checks[OP_MAX_CHECKS];
    struct rule rules[OP_MAX_DIRECTIVES];
    struct temp temps[OP_MAX_TEMPS];
    struct example examples[OP_MAX_EXAMPLES];
    struct section sections[READER_MAX_SECTIONS];
    struct section *section;             // the one being read, or NULL
    struct step steps[READER_MAX_STEPS]; // of that section
    struct step *launch;                 // the one being read, or NULL
    bool chained;                        // an `otherwise` may follow: the last step is of a chain
    int n_binds;
    struct bind binds[READER_MAX_BINDS]; // of that launch

    struct signature *signatures;
    int n_signatures;
};

struct expr_place reader_place(const struct reader *r); // for expressions where the reader stands
struct rule *reader_rule(struct reader *r, enum rule_kind kind); // the next one, to be filled
bool reader_symbol(struct reader *r, const char *name, enum symbol_kind kind, int index);

// schema.c
bool schema_read(struct reader *r);
bool schema_read_value(struct reader *r, int attr,
                       struct op_value *v); // a default, or of an example

// shape.c
enum shape_use { SHAPE_INPUT, SHAPE_OPTIONAL_INPUT, SHAPE_RESULT };
bool shape_read(struct reader *r, enum shape_use use, struct shape *out);

// require.c
bool require_read(struct reader *r);
// A message in quotes; `index`: {index} is what a kernel reports.
bool require_read_message(struct reader *r, bool index, struct message *out);

// view.c
bool view_read(struct reader *r);
bool view_end(struct reader *r); // once all is read

// section.c
bool section_read_forward(struct reader *r);
bool section_read_backward(struct reader *r);
bool section_read_kernel(struct reader *r);
bool section_read_zero(struct reader *r);
bool section_read_grid(struct reader *r);
bool section_read_block(struct reader *r);
bool section_read_shared(struct reader *r);
bool section_read_when(struct reader *r);
bool section_read_otherwise(struct reader *r);
bool section_read_bind(struct reader *r);
bool section_end(struct reader *r); // the launch and the section being read, if any, are complete

// bind.c: the launch's kernel is looked up, and its parameters bound.
bool bind_launch(struct reader *r, struct step *launch);

// example.c
bool example_read(struct reader *r);
bool example_check_all(struct reader *r); // once the operator is complete: each of them must plan
