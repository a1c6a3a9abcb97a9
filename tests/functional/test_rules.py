"""Shapes worked out by a client from an operator's rules, held against what `plan` says."""

import random
import re

import pytest

from opd._protocol import DTYPES
from opd._shapes import Rules, make_key
from opd._trees import Arithmetic, Misfit, parse
from opd._spec import Spec

from conftest import DEVICE
from raw import Raw, RpcError

# What is said of shapes and dtypes is the daemon's own; what a file requires is in its words.
OWN = re.compile(
    r"has rank|expected the same dtype|is \w+, expected (one of )?\w+(, \w+)*$|"
    r"in dimension \d+|in its dimensions|broadcasts with|is None|is missing|"
    r"2\^48|would have a rank|expected the shape of all inputs"
)
PLACE = re.compile(r" in '.*' \(\w+\.cu:\d+\)$")  # of an expression that has no value


def make_rules(raw, name):
    info = raw.call("op_info", name)
    return info, Rules(info)


def infer(info, rules, inputs, attrs):
    """What the rules give, or the text of what they refuse."""
    values = [attrs.get(a["name"], a["default"]) for a in info["attrs"]]
    try:
        results = rules.infer(inputs, values, lambda: DEVICE == "cpu", Arithmetic())
    except Misfit as e:
        return f"{info['name']}: {e}"
    return [[[d, list(s)] for d, s in descs] for descs in results]


def ask(raw, info, inputs, attrs):
    try:
        plan = raw.call("plan", info["name"], inputs, attrs, {"device": DEVICE})
    except RpcError as e:
        return str(e)
    return [plan["outputs"], plan["saved"]]


def change(rng, info, inputs, attrs):
    """Other sizes, mostly such as fit; sometimes another rank, dtype, or attribute."""
    sizes = {size: rng.choice([size, size, 1, 2, 3, 5, 8, 0]) for d in inputs if d for size in d[1]}
    inputs = [d and [d[0], [sizes[n] for n in d[1]]] for d in inputs]
    for i, desc in enumerate(inputs):
        if desc and rng.random() < 0.15:
            desc[1] = desc[1][1:] if rng.random() < 0.5 else [*desc[1], 2]
        if desc and desc[1] and rng.random() < 0.15:
            desc[1][rng.randrange(len(desc[1]))] = rng.choice([0, 1, 2, 7, 2**47])
        if desc and rng.random() < 0.1:
            desc[0] = rng.choice(list(DTYPES))
        if info["inputs"][i]["optional"] and rng.random() < 0.3:
            inputs[i] = None
    attrs = dict(attrs)
    for a in info["attrs"]:
        if rng.random() < 0.2:
            one = {"int": lambda: rng.randrange(-2, 5), "float": lambda: rng.choice([-1.5, 0.3, 2.0]),
                   "bool": lambda: rng.random() < 0.5, "str": lambda: rng.choice(a["words"])}  # fmt: skip
            make = one[a["type"]]
            attrs[a["name"]] = [make() for _ in range(a["list"])] if a["list"] else make()
            if a["optional"] and rng.random() < 0.5:
                attrs[a["name"]] = None
    return inputs, attrs


def compare(raw, info, rules, inputs, attrs):
    ours, theirs = infer(info, rules, inputs, attrs), ask(raw, info, inputs, attrs)
    if isinstance(theirs, list) or not isinstance(ours, str):
        # A launch may be refused all the same: of that rules say nothing.
        launch = isinstance(theirs, str) and re.search(r"kernel \w+:|2\^|overflow|repeat", theirs)
        assert ours == theirs or launch, (info["name"], inputs, attrs)
    elif not OWN.search(theirs):
        assert ours == PLACE.sub("", theirs), (info["name"], inputs, attrs)
    return isinstance(theirs, str)


@pytest.mark.parametrize("seed", range(3))
def test_every_operators_examples(daemon, seed):
    rng = random.Random(seed)
    refused = taken = 0
    with Raw(daemon.socket) as raw:
        for listed in raw.call("op_list"):
            info, rules = listed, Rules(listed)
            if any(i.get("list") for i in info["inputs"]):
                continue  # rules speak of one tensor of each
            for example in info["examples"]:
                inputs = [d and [d["dtype"], d["shape"]] for d in example["inputs"]]
                assert not compare(raw, info, rules, inputs, example["attrs"])
                for _ in range(10):
                    if compare(raw, info, rules, *change(rng, info, inputs, example["attrs"])):
                        refused += 1
                    else:
                        taken += 1
    assert refused > 100 and taken > 100


# --- headers that nobody would write

KERNEL = "//! forward\n//!   kernel k\n__global__ void k(const scalar_t *x, scalar_t *y) {}\n"
WORDS = """\
//! op      words(Tensor x, Tensor? m=None, *, int n=1, float a=0.5, int[2] k=1, bool t=True, \\
//!           str s="one") -> (Tensor y, Tensor z)
//! dtypes  float16 float64 int8
//! type    type_t int64 bool : m
//! words   s one two
//! shape   x [N, C, ...S]
//! shape   m [N + 1, ...S]
//! let     Q = n * k[0] - k[1]
//! let     BY = k[0] == 0 ? 1 : k[0]
//! let     F = a * N - 2.25
//! require Q > -1000 || "two" == s && F < 1e3 : "it's {Q} of '{s}', {a} {x} {m} {F} {k} {t} {n / 0}"
//! shape   y [max(0, Q / BY + 3), max(0, Q % BY + 3), max(0, cdiv(Q, BY) + 3), pow2(Q), \\
//!           fits32(Q * 200000000) + 1, max(floor(F), -F > 2 ? 1 : 2), min(N, 4) + max(Q, 0), gcd(Q, 12) + gcd(0, N), ...S]
//! shape   z [floor(pow(N, a) + 1), size(x, -1), rank(x) + numel(y), sizeof(acc_t) + is(type_t, bool), \\
//!           present(m) ? size(m, 0) : 3, !(N > 2) && t || cpu, (N < 3) + (C != N), -(-N)]
"""


BACKWARD = "__global__ void b(const acc_t *kept, const scalar_t *grad_y, scalar_t *grad_x) {}\n"


def test_every_word(start_daemon, tmp_path):
    source = WORDS + "//! saved   kept acc_t [sizeof(scalar_t), ...S, N]\n" + KERNEL + BACKWARD
    source = source.replace("scalar_t *y)", "scalar_t *y, scalar_t *z, acc_t *kept)")
    source = source.replace("__global__ void k(", "//! backward grad_x\n//!   kernel b\n__global__ void k(")
    (tmp_path / "words.cu").write_text(source)
    daemon = start_daemon("--kernels", str(tmp_path))
    rng = random.Random(1)
    with Raw(daemon.socket) as raw:
        info, rules = make_rules(raw, "words")
        numbers = [-(2**62), -7, -3, -1, 0, 1, 2, 3, 6, 2**40]
        refused = [0, 0]
        for _ in range(400):
            shape = [rng.randrange(5) for _ in range(rng.choice([2, 2, 3, 4, 1]))]
            dtype = rng.choice(["float16", "float64", "int8"])
            m = [rng.choice(["int64", "bool"]), [shape[0] + 1, *shape[2:]]]
            attrs = {"n": rng.choice(numbers), "k": [rng.choice(numbers[1:9]) for _ in "ab"],
                     "a": rng.choice([-0.5, 0.5, 2.0, 400.0]), "s": rng.choice(["one", "two"]),
                     "t": rng.random() < 0.5}  # fmt: skip
            inputs = [[dtype, shape], rng.choice([None, m])]
            refused[compare(raw, info, rules, inputs, attrs)] += 1
        assert min(refused) > 50


ODD = {
    # Words of Python, and of this language's own functions and devices' names.
    "odd_names": (
        '//! op odd_names(Tensor x, *, int lambda=2, int[2] size=3, str is="if") -> Tensor y\n'
        "//! dtypes float32\n//! words is if else\n//! shape x [class, None, ...import]\n"
        "//! let __builtins__ = class * lambda + size[1]\n//! let min = min(class, size[0])\n"
        "//! require is == 'if' || is == \"else\" : '\"{is}\" {lambda} {size}'\n"
        "//! shape y [__builtins__, min, min(min, None), ...import]\n",
        [["float32", [4, 5, 6, 7]]],
    ),
    # As deep and as long as an expression may be, to either side.
    "deep": (
        "//! op deep(Tensor x) -> Tensor y\n//! dtypes float32\n//! shape x [N, C]\n"
        f"//! shape y [{'(N+' * 60}N{')' * 60}{'+C' * 380}, {'C+' * 500}N, {'-' * 60}N, "
        f"{'min(' * 30}N{', C)' * 30}, {'N > 1 ? ' * 30}C{' : 2' * 30}, {'C && ' * 400}N]\n",
        [["float32", [3, 2]]],
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_headers(start_daemon, tmp_path, name):
    header, inputs = ODD[name]
    (tmp_path / f"{name}.cu").write_text(header + KERNEL)
    daemon = start_daemon("--kernels", str(tmp_path))
    with Raw(daemon.socket) as raw:
        info, rules = make_rules(raw, name)
        assert not compare(raw, info, rules, inputs, {})
        if name == "odd_names":
            assert "lambda" in ask(raw, info, inputs, {"lambda": None})


@pytest.mark.parametrize("text", [
    "", "N +", "N M", "+", "__import__('os')", "N.real", "N[1][2]", "size()", "size(x)", "eval(x)",
    "print()", "N\nM", "N  1 +", "0x10", "1.2.3", "[1]", "numel(x", "a;b",
])  # fmt: skip
def test_what_is_no_expression(text):
    with pytest.raises(ValueError):
        parse(text)


def test_rules_that_a_client_does_not_know(daemon):
    with Raw(daemon.socket) as raw:
        info = raw.call("op_info", "depthwise_conv2d")
    for change in ({"let": "Z", "value": "N cbrt()"}, {"sort": "N"}, {"require": "N", "message": ["", "?"]}):
        with pytest.raises((ValueError, KeyError)):
            Rules({**info, "rules": [*info["rules"], change]})
        assert Spec({**info, "rules": [change]}).rules is None


def test_the_key_is_of_shapes_alone():
    info = {"broadcasts": False, "outputs": [], "rules": [
        {"shape": "x", "dims": ["N"]}, {"let": "A", "value": "N 2 *"}, {"let": "B", "value": "A 1 +"},
        {"let": "C", "value": "3"}, {"require": "C", "message": ["no"]}, {"shape": "y", "dims": ["B"]},
    ]}  # fmt: skip

    def edit(i, **changes):
        rules = list(info["rules"])
        rules[i] = {**rules[i], **changes}
        return make_key({**info, "rules": rules})

    assert edit(3, value="4") == edit(4, message=["yes"]) == make_key(info)
    keys = {make_key(info), edit(1, value="N"), edit(2, value="A"), edit(0, dims=["N", "M"])}
    assert len(keys) == 4
