"""kernels_src/README.md and GRAMMAR.md: every example and every line of them, as they stand on the page."""

import re

import numpy as np
import opd
import pytest

from conftest import ROOT
from grammar import Grammar, directives

pytestmark = pytest.mark.unsanitized("of documents and scripts")

MANUAL = (ROOT / "kernels_src" / "README.md").read_text()
GRAMMAR = re.search(r"```ebnf\n(.*?)```", (ROOT / "kernels_src" / "GRAMMAR.md").read_text(), re.S)[1]
BLOCKS = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", MANUAL, re.M | re.S)
WHOLE = {re.search(r"//! op +(\w+)", text)[1]: text for kind, _, text in BLOCKS if "//! op " in text}
WHOLE["flatten"] = (ROOT / "kernels_src" / "flatten.cu").read_text()  # which the manual quotes

# What completes the blocks of the manual that are no whole operators, by the word behind ```cuda.
COMPLETED = {
    "nll": """\
//! op      nll(Tensor x, Tensor target) -> Tensor y
//! dtypes  float32
//! type    int64 : target
//! shape   x [N, C]
//! shape   target y [N]
{}
//! forward
//!   kernel nll threads N
{}""",
}


@pytest.fixture
def parse(client):
    """parse(text): the mistakes and warnings of a file of that text, as they begin."""

    def parse(text, name="f.cu"):
        found = client._link.ask("check", name, str(ROOT), text, {})
        return [e["message"] for e in found["errors"]], [w["log"] for w in found["warnings"]]

    return parse


# ---- the manual's examples ----


def rms_norm(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


EXAMPLES = {
    "rms_norm": (rms_norm, [(4, 3, 7)]),
    "linear": (lambda x, weight, bias: x @ weight.T + bias, [(5, 4), (3, 4), (3,)]),
    "silu": (lambda x: x / (1 + np.exp(-x)), [(3, 11)]),
    "flatten": (np.ndarray.flatten, [(2, 3, 4)]),
}
LISTS = {"sgd"}


def differentiate(function, inputs, k, grad):
    """By central differences."""
    made, at = np.zeros_like(inputs[k]), inputs[k]
    for i in np.ndindex(at.shape):
        old = at[i]
        at[i] = old + 1e-6
        above = function(*inputs)
        at[i] = old - 1e-6
        made[i] = ((above - function(*inputs)) * grad).sum() / 2e-6
        at[i] = old
    return made


def test_every_operator_is_right(start_daemon, tmp_path):
    assert WHOLE.keys() == EXAMPLES.keys() | LISTS
    for name, text in WHOLE.items():
        (tmp_path / f"{name}.cu").write_text(text)
    daemon = start_daemon("--kernels", tmp_path)
    rng = np.random.default_rng(1)
    with daemon.connect() as client:
        for name, (function, shapes) in EXAMPLES.items():
            inputs = [rng.standard_normal(shape) for shape in shapes]
            y, context = getattr(client.ops, name).forward(*map(client.tensor, inputs))
            np.testing.assert_allclose(y.numpy(), function(*inputs), rtol=1e-9)
            grad = rng.standard_normal(y.shape)
            for k, made in enumerate(context.backward(client.tensor(grad))):
                wanted = differentiate(function, inputs, k, grad)
                np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-5, atol=1e-7)


def test_lists(start_daemon, tmp_path):
    (tmp_path / "sgd.cu").write_text(WHOLE["sgd"])
    with start_daemon("--kernels", tmp_path).connect() as client:
        params = [client.tensor(np.full(n, 8.0)) for n in (3, 4)]
        client.ops.sgd(params, [np.full(n, n, np.float64) for n in (3, 4)], lr=0.5)
        assert [p.numpy().tolist() for p in params] == [[6.5] * 3, [6] * 4]


def test_what_a_kernel_checks(start_daemon, tmp_path):
    fragment, = [text for _, name, text in BLOCKS if name == "nll"]
    (tmp_path / "nll.cu").write_text(COMPLETED["nll"].format(*fragment.split("...\n")))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with start_daemon("--kernels", tmp_path).connect() as client:
        assert (client.ops.nll(client.tensor(x), client.tensor(np.array([2, 0]))).numpy() == [-2, -3]).all()
        with pytest.raises(opd.OpdError, match="nll: target 1 is not one of 3 classes"):
            client.ops.nll(client.tensor(x), client.tensor(np.array([2, 3])))


def test_every_block_is_run():
    for line in re.search(r"`flatten.cu` is one: (.*?)\.\s", MANUAL, re.S)[1].split("`")[1::2]:
        assert " ".join(line.split()) in directives(re.sub(" +", " ", WHOLE["flatten"]))
    for kind, name, text in BLOCKS:
        assert kind == "text" or name in COMPLETED or "//! op " in text, text


EDITS = {  # what makes each error of the manual: a file of it, and what is replaced there
    "'exmaple'": ("rms_norm", "example", "exmaple"),
    "'row'": ("rms_norm", "forward threads rows", "forward threads row"),
    "'epss'": ("rms_norm", "acc_t eps", "acc_t epss"),
    "writes grad_x": ("rms_norm", "T *grad_x", "const T *grad_x"),
    "'epx'": ("silu", "exp(", "epx("),
    "'**'": ("silu", "y = x * s", "y = x ** s"),
    "'scale'": ("linear", "bias=None", "bias=None, *, float scale=1.0"),
}
CALLS = {
    "[3, 0]": ("rms_norm", [(3, 0)]),
    "rank 1": ("linear", [(5, 4), (4,)]),
    "weight is float64": ("linear", [(5, 4), np.ones((3, 4))]),
    "bias has 5": ("linear", [(5, 4), (3, 4), (5,)]),
    "params[1]": ("sgd", [[(2,), np.ones(3)], [(2,), (3,)]]),
    "at [1]": ("sgd", [[(3,), (2,)], [(3,), (3,)]]),
}


def test_every_error_is_what_comes(parse, start_daemon, tmp_path):
    lines = [line for kind, _, text in BLOCKS if kind == "text" for line in text.splitlines()]
    assert len(lines) == len(EDITS) + len(CALLS)
    for word, (name, old, new) in EDITS.items():
        wanted, = [line for line in lines if word in line]
        text = WHOLE[name].replace(old, new, 1).replace("//! example", "//")  # which would be compiled
        errors, warnings = parse(text, f"{name}.cu")
        assert wanted in errors + warnings
    for name in {name for name, _ in CALLS.values()}:
        (tmp_path / f"{name}.cu").write_text(WHOLE[name])
    with start_daemon("--kernels", tmp_path).connect() as client:
        for word, (name, inputs) in CALLS.items():
            wanted, = [line for line in lines if word in line]

            def make(i):
                if isinstance(i, list):
                    return [make(each) for each in i]
                return client.tensor(i if isinstance(i, np.ndarray) else np.ones(i, np.float32))

            attrs = {"lr": 0.5} if name == "sgd" else {}
            with pytest.raises(opd.InvalidArgument) as told:
                getattr(client.ops, name)(*map(make, inputs), **attrs)
            assert str(told.value) == wanted


# ---- the grammar ----

RULES = Grammar(re.sub(r"(\n +| *)//!.*", "", GRAMMAR))
BASE = """\
op f(Tensor x, Tensor? index, *, int n=2, float k=0.5, int[2] stride=1, str mode="sum", bool flag=True) \
-> Tensor y
dtypes float32 float64
words mode sum mean
shape x [...S, N]
shape index [N]
shape y [...S, N]
scratch m [3, 3]
scratch z [3, 3]
scratch t [...S, 1]
again BACK : N = n
forward
kernel write
backward grad_x
kernel back"""
CODE = """
struct numbers { int s[1]; };
struct two { int s[2]; };
__global__ void write(const scalar_t *x, scalar_t *y CHECKS) { }
__global__ void back(const scalar_t *grad_y, scalar_t *grad_x) { }
__global__ void add(scalar_t *y) { }
__global__ void pack(numbers p) { }
__global__ void pair(two p) { }
template <class T, int I> __global__ void scale(scalar_t *y) { }
"""


TABLE = """
struct table { void *addresses[1][4]; unsigned char block_to_tensor[8]; int block_to_chunk[8]; };
__global__ void steps(table t) { }
"""


def samples():
    """(the rule's name, a line that uses it) for each line behind `//!` of the page."""
    name = ""
    for line in GRAMMAR.splitlines():
        name = re.match(r"\w+|", line)[0] or name
        for sample in re.findall(r"//! (.*)", line):
            yield name, sample


def complete_op(line):
    """An operator of that first line, all tensors of which are scalars."""
    tensors = re.findall(r"Tensor(?:\(\w(!?)\))?(?:\[\])?\??(?: (\w+)|$)", line)
    names = [name or "output" for _, name in tensors]
    n_inputs = line.split("->")[0].count("Tensor")
    made = names[n_inputs:] + [name for mark, name in tensors if mark]
    lines = [line, "dtypes float32", *(f"words {s} a" for s in re.findall(r"str\?? (\w+)", line))]
    lines += [f"shape {name} []" for name in names]
    lines += ["view output x"] if "Tensor(a) " in line else ["forward", "kernel make"]
    return lines, f"\n__global__ void make({', '.join(f'scalar_t *{name}' for name in made)}) {{ }}\n"


MAKE = "\n__global__ void make(scalar_t *y) { }\n"


def complete(rule, sample):
    """An operator that has the line, and its code."""
    lines, (word, *rest) = BASE.splitlines(), sample.split()
    if word == "op":
        return complete_op(sample)
    if word == "view":
        return ["op f(Tensor(a) x) -> Tensor(a) v", "dtypes float32", "shape x v [N]", sample], ""
    if word == "channels_last":
        shapes = "shape x y [N, C, H, W]"
        return ["op f(Tensor x) -> Tensor y", "dtypes float32", shapes, sample, "forward", "kernel make"], MAKE
    if "[[" in sample:
        return ["op f(Tensor[] x) -> Tensor[] y", "dtypes float32", "formula y = x", sample], ""
    if "chunks" in rest:
        return ["op f(Tensor(a!)[] w) -> ()", "dtypes float32", "shape w [N]", "forward", sample], TABLE
    if word == "formula" and rule != "elements":
        others = ["formula y = x"] * rest[0].startswith("grad_")
        return ["op f(Tensor x, *, float k=0.5) -> Tensor y", "dtypes float32", *others, sample], ""
    replaced = {"dtypes": "dtypes", "words": "words", "shape": "shape y", "backward": "backward"}.get(word, "\n")
    lines = [line for line in lines if not line.startswith(replaced)]
    if word == "shape" and rest[0] == "x":
        lines.remove("shape x [...S, N]")
    first_step = lines.index("kernel write")
    if word == "forward":
        lines[first_step - 1] = sample
        if "cuda" in rest:
            lines[first_step - 1 : first_step - 1] = ["forward cpu", "kernel write"]
    elif word == "backward":
        lines.insert(-1, sample)
    elif word in ("doc", "dtypes", "words", "type"):
        lines.insert(1, sample)
    elif word == "shape":
        lines.insert(3 if rest[0] == "x" else 5, sample)
    elif word not in ("kernel", "matmul", "formula", "sum", "fill", "zero", "repeat"):
        lines[first_step - 1 : first_step - 1] = ["strided x"] * ("]:[" in sample) + [sample]
    else:
        lines[first_step] += " when n > 9" * ("otherwise" in rest)
        lines.insert(first_step + 1, sample)
        lines[first_step + 2 : first_step + 2] = ["kernel add", "end"] * (word == "repeat")
    return lines, CODE.replace("CHECKS", ", opd::report_t *report" * (word == "check"))


def write(lines, code):
    return "".join(f"//! {line}\n" for line in lines) + code


def derives(grammar, line):
    """Is it a line of a header?"""
    lines = [line, "kernel add", "end"] if line.startswith("repeat ") else [line]
    return any(grammar.derives(lines, start) for start in ("op", "line", "forward", "backward", "step"))


def test_every_rule_has_a_line_that_is_accepted(parse):
    """What is on the page of a rule is of it, and the daemon takes it."""
    of = {}
    for rule, sample in samples():
        lines, code = complete(rule, sample)
        assert RULES.derives(lines) and derives(RULES, sample), (rule, sample)
        assert not derives(RULES.without(rule), sample), f"{sample}: does not use {rule}"
        assert parse(write(lines, code))[0] == [], (rule, sample)
        of[rule] = sample
    assert RULES.rules.keys() - of.keys() == {"header", "line", "section", "step"}


def test_what_the_rules_do_not_allow_is_refused(parse):
    """Each line of the page without one of its words, with one twice, or two of them the other way
    round: what is none of the grammar is an error, with file and line."""
    word = re.compile(r"\.\.\.|->|::|\.\.|\+=|\|\||&&|[=!<>]=|\"[^\"]*\"|[\w.]+|\S")
    for rule, sample in samples():
        lines, code = complete(rule, sample)
        words, refused = word.findall(sample), 0
        for i in range(len(words)):
            for changed in (
                words[:i] + words[i + 1 :],
                words[: i + 1] + words[i:],
                words[:i] + words[i + 1 : i + 2] + words[i : i + 1] + words[i + 2 :],
            ):
                changed = " ".join(changed)
                if rule == "doc" or derives(RULES, changed):
                    continue
                errors, _ = parse(write([changed if line == sample else line for line in lines], code))
                assert errors and re.match(r"f\.cu:\d+", errors[0]), (rule, changed, errors)
                refused += 1
        assert refused or rule == "doc", (rule, sample)


def test_every_header_here_is_of_the_grammar():
    paths = [*ROOT.glob("kernels_src/*.cu"), *ROOT.glob("examples/*.cu")]
    texts = {path: path.read_text() for path in paths} | WHOLE
    assert len(texts) > 25
    for path, text in texts.items():
        assert RULES.derives(directives(text)), path
