#pragma once

// What is known while a file is read, from the first directive to op_parse()'s end; it goes with
// that. Of op/ alone.
//
// A reader is called behind its directive's keyword and takes the rest of the line; it adds to the
// lists below, which are copied to the operator's arena once all is read. False: r->lx has the
// error, and nothing more is read. What a launch or a section needs when it is complete is checked
// when the next one begins (section_end_launch(), section_end()), under its own line.

#include "op/body.h"
#include "op/lines.h"
#include "base/mem.h"
#include "op/scope.h"

enum {
    READER_MAX_STEPS = 256,
    READER_MAX_SECTIONS = 2 * (1 + OP_MAX_INPUTS),
    READER_MAX_BINDS = 128,
    BIND_MAX_ARGS = 640, // members of structs included
};

struct bind {
    char name[2 * OP_MAX_NAME]; // "n", "p.sizes[1]"
    int line;
    int tensor;              // -1: none
    const struct expr *expr; // NULL where it is a tensor
    bool used;
};

struct batch_line {
    int line, n;
    const char *names[OP_MAX_RANK]; // of dimensions
};

struct reader {
    struct op *op;
    struct op_body *body;
    struct arena *arena; // the operator's
    struct lexer lx;     // over the present directive
    const struct line *line;
    const char *whole; // the file's text, what it includes in place
    size_t whole_size;
    const char *keyword;  // of that directive
    struct lex_mark mark; // of lx
    struct scope scope;
    const char *launch_words[16]; // directives that belong to a step
    int n_launch_words;
    int n_slots, n_packs;
    int op_line; // 0: no `op` yet
    bool has_view;
    int channels_last_line;
    uint8_t forward; // devices that have a forward section
    struct buf doc, warnings;
    const char *str_defaults[OP_MAX_ATTRS]; // of str attributes, until their words are known
    int str_lines[OP_MAX_ATTRS];

    struct report_check checks[OP_MAX_CHECKS];
    struct rule rules[OP_MAX_RULES];
    struct temp temps[OP_MAX_TEMPS];
    struct buf examples; // struct example each: too large to have room for all of them
    struct section sections[READER_MAX_SECTIONS];
    struct section *section;             // the one being read, or NULL
    uint32_t grads_read;                 // of these outputs, by some section or formula
    struct step steps[READER_MAX_STEPS]; // of that section
    struct step *launch;                 // the one being read, or NULL
    struct step *repeat;                 // the one being read, or NULL
    int n_outside;                       // of scope.symbols, without the counter of that repeat
    bool chained;                        // an `otherwise` may follow: the last step is of a chain
    int n_binds;
    struct bind binds[READER_MAX_BINDS]; // of that launch

    int n_batches;
    struct batch_line batches[OP_MAX_BATCHES];
    struct formula_set *formulas; // NULL: none yet
    bool column;                  // of a mistake in this directive: part of the message

    struct signature *signatures;
    int n_signatures;
    struct struct_definition *structs;
    int n_structs;
};

struct expr_place reader_place(struct reader *r); // for expressions where the reader stands
const struct expr *reader_expr(struct reader *r); // the one that stands there; NULL: it failed
const struct expr *reader_int(struct reader *r, const char *what);
struct rule *reader_rule(struct reader *r, enum rule_kind kind); // the next one, to be filled
bool reader_symbol(struct reader *r, const char *name, enum symbol_kind kind, int index);
bool reader_take_tensor(struct reader *r, int *out); // the input or output that stands there; taken
bool reader_at_launch_word(const struct reader *r);  // does what belongs to a launch stand there?
bool reader_at_next_word(const struct reader *r);    // the same, and no name of the file's
bool reader_optional_expr(struct reader *r, const struct expr **out); // NULL: none stands there
bool reader_is_float(const struct reader *r, int input); // may it be of a floating dtype?
const struct shape *reader_find_shape(const struct reader *r, int tensor); // NULL: none yet
// `by definition`, if it stands there, behind what makes the gradients of these inputs (bits).
bool reader_by_definition(struct reader *r, uint32_t inputs);
// Of a file that is served all the same.
void reader_warn(struct reader *r, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// layout.c: how tensors lie in memory.
bool layout_read_strided(struct reader *r);
bool layout_read_channels_last(struct reader *r);
bool layout_end(struct reader *r); // once all is read

// types.c
bool types_read_scalar(struct reader *r);  // `dtypes`: what scalar_t may be
bool types_read(struct reader *r);         // `type`: another variable or a dtype, and its tensors

// schema.c
bool schema_read(struct reader *r);
bool schema_check_lists(struct reader *r); // once all is read: is all of the kind that lists have?
bool schema_read_value(struct reader *r, int attr,
                       struct op_value *v); // a default, or of an example

// let.c
bool let_read(struct reader *r);

// again.c
bool again_read(struct reader *r);    // `again`: lets once more, with other values
bool again_read_as(struct reader *r); // `as`: of a launch

// shape.c
enum shape_use { SHAPE_INPUT, SHAPE_OPTIONAL_INPUT, SHAPE_RESULT };
bool shape_read(struct reader *r, enum shape_use use, struct shape *out);
bool shape_read_line(struct reader *r); // `shape A B [N, C]`: as a line for each

// temps.c
bool temps_read(struct reader *r); // `saved` and `scratch`
// `empty`: results that the kernels write before they read them, which their text does not show.
bool temps_read_empty(struct reader *r);

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
bool section_read_zero(struct reader *r);
struct step *section_add_step(struct reader *r, enum step_kind kind); // NULL: too many
bool section_check_made(struct reader *r, int tensor); // may this section write it? Or fails
void section_note_use(struct reader *r, int tensor);   // what backward reads is kept for it
bool section_end_launch(struct reader *r);             // the one being read, if any, is complete
bool section_check_devices(struct reader *r);          // once all is read: has each what it needs?
bool section_end(struct reader *r); // the launch and the section being read, if any, are complete

// section_launch.c
bool section_read_kernel(struct reader *r);
bool section_read_extents(struct reader *r); // `grid` and `block`
bool section_read_threads(struct reader *r);
bool section_read_chunks(struct reader *r);
bool section_read_shared(struct reader *r);
bool section_read_condition(struct reader *r); // `when` and `otherwise`
bool section_read_bind(struct reader *r);

// bind.c: the launch's kernel is looked up, and its parameters bound.
bool bind_launch(struct reader *r, struct step *launch);
// One parameter, or member of a struct.
bool bind_param(struct reader *r, const struct step *launch, struct argument *arg);
// The C type or type variable that a parameter's type, in the kernel's words, stands for.
bool bind_type(struct reader *r, const struct step *launch, const char *text, struct cnumber *out);
// Fails at a parameter, in the kernel's own lines.
#define PARAM_FAIL(r, launch, p, what, ...)                                                        \
    ((r)->lx.line = (p)->line, (r)->mark.word = (p)->name,                                         \
     lex_fail(&(r)->lx, "kernel '%s' has parameter '%s'" what, (launch)->name, (p)->name,          \
              ##__VA_ARGS__))

// members.c: parameters that are structs
struct argument_list {
    int n;
    struct argument args[BIND_MAX_ARGS];
};
// The struct of that type, in the kernel's words; NULL: the file has none.
const struct struct_definition *members_find(const struct reader *r, const char *type);
// A parameter's type with what the launch gives for the kernel's template parameters.
const char *members_type(struct reader *r, const struct step *launch, const char *type);
// Binds a parameter that is one: its members, between PARAM_STRUCT and PARAM_END.
bool members_bind(struct reader *r, const struct step *launch, const struct signature_param *p,
                  struct argument_list *out);
// Calls `visit` for each of its members instead, by its whole name ("p.sizes[0]").
typedef void member_visit(const struct signature_param *member, void *data);
bool members_each(struct reader *r, const struct step *launch, const struct signature_param *p,
                  member_visit *visit, void *data);

// formula_read.c
bool formula_read(struct reader *r);
bool formula_check_alone(struct reader *r);                 // may it stand beside formulas?
bool formula_finish(struct reader *r, struct opd_err *err); // all lines have been read

// batch.c
bool batch_read(struct reader *r);
bool batch_read_linear(struct reader *r);
bool batch_end(struct reader *r); // once all is read

// matmul.c
bool matmul_read(struct reader *r);
bool matmul_read_tf32(struct reader *r);

// inner.c
bool inner_read(struct reader *r); // `sum`, `fill`, and `formula` in a section
// target = from, a part of the step of that text; NULL: it failed
struct inner *inner_copy(struct reader *r, const char *text, int target, int from);

// repeat.c
bool repeat_read(struct reader *r);
bool repeat_read_end(struct reader *r);
bool repeat_check_ended(struct reader *r); // fails if one is being read

// example.c
bool example_read(struct reader *r);
bool example_check_all(struct reader *r); // once the operator is complete: each of them must plan
